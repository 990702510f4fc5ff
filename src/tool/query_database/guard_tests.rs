//! The statements that the guard allows, and the texts with which it refuses others.

use std::path::PathBuf;

use super::*;

/// A file with some tables of each sort. Dropping it removes the file.
struct Sample(PathBuf);

impl Sample {
    fn new(name: &str) -> Sample {
        let name = format!("streamdoor-{}-guard-{name}.db", std::process::id());
        let sample = Sample(std::env::temp_dir().join(name));
        let connection = Connection::open(&sample.0).unwrap();
        let tables = "CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y');
            CREATE VIEW v AS SELECT a FROM t;
            CREATE VIRTUAL TABLE words USING fts5(text);
            INSERT INTO words VALUES ('the quick fox'), ('the lazy dog');
            CREATE VIRTUAL TABLE old_words USING fts4(text);
            INSERT INTO old_words VALUES ('the quick fox');
            CREATE VIRTUAL TABLE boxes USING rtree(id, x0, x1);
            INSERT INTO boxes VALUES (1, 0, 10), (2, 20, 30);";
        connection.execute_batch(tables).unwrap();
        sample
    }

    fn guard(&self) -> Guard {
        Guard::open(&Files::Anywhere, &self.0, StopSignal::default()).unwrap()
    }

    /// Number of rows that a query returns, or its error.
    fn ask(&self, query: &str) -> Result<usize, String> {
        let guard = self.guard();
        let count = guard.prepare(query).and_then(|mut statement| {
            let mut rows = statement.raw_query();
            let mut count = 0;
            while guard.said(rows.next())?.is_some() {
                count += 1;
            }
            Ok(count)
        });
        count.map_err(|failure| failure.in_words(&self.0))
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn everything_that_only_reads_is_allowed() {
    let sample = Sample::new("reads");
    for (query, row_count) in [
        ("SELECT * FROM t", 2),
        ("/* first */ SELECT a FROM v; -- last", 2),
        (";; SELECT 1 ;;", 1),
        ("VALUES (1), (2), (3)", 3),
        (
            "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 9) \
            SELECT * FROM n",
            9,
        ),
        ("SELECT * FROM words WHERE words MATCH 'quick'", 1),
        ("SELECT snippet(words, 0, '[', ']', '…', 3) FROM words('dog')", 1),
        ("SELECT * FROM old_words WHERE old_words MATCH 'fox'", 1),
        ("SELECT id FROM boxes WHERE x0 >= 5", 1),
        ("SELECT name FROM sqlite_schema WHERE type = 'view'", 1),
        ("SELECT key FROM json_each('{\"a\": 1}')", 1),
        ("SELECT * FROM pragma_table_info('t')", 2),
        ("PRAGMA table_info(t)", 2),
        ("PRAGMA integrity_check", 1),
        ("PRAGMA QUICK_CHECK(1)", 1),
        ("PRAGMA user_version", 1),
        ("EXPLAIN QUERY PLAN SELECT * FROM t", 1),
        ("SELECT a FROM t ORDER BY random()", 2),
    ] {
        assert_eq!(sample.ask(query), Ok(row_count), "{query}");
    }
}

#[test]
fn what_does_more_than_read_is_refused_with_its_name_and_changes_nothing() {
    let sample = Sample::new("refused");
    let before = std::fs::read(&sample.0).unwrap();
    let other = sample.0.with_extension("other");
    let vacuum_into = format!("VACUUM INTO '{}'", other.display());
    for (query, named) in [
        ("ATTACH '/tmp/x' AS x", "not ATTACH"),
        ("ATTACH ':memory:' AS x", "not ATTACH"),
        ("ATTACH ? AS x", "not SQLite action"),
        ("DETACH main", "not DETACH"),
        ("PRAGMA journal_mode = WAL", "not PRAGMA journal_mode = WAL"),
        ("PRAGMA journal_mode", "not PRAGMA journal_mode"),
        ("PRAGMA main.user_version = 5", "not PRAGMA user_version = 5"),
        ("PRAGMA query_only = 0", "not PRAGMA query_only = 0"),
        ("PRAGMA writable_schema(1)", "not PRAGMA writable_schema = 1"),
        ("PRAGMA wal_checkpoint", "not PRAGMA wal_checkpoint"),
        ("SELECT * FROM pragma_journal_mode", "not PRAGMA journal_mode"),
        ("INSERT INTO t VALUES (3, 'z')", "not a change of table t"),
        ("INSERT INTO t VALUES (3, 'z') RETURNING a", "not a change of table t"),
        ("REPLACE INTO t VALUES (3, 'z')", "not a change of table t"),
        ("UPDATE t SET a = 5", "not a change of table t"),
        ("WITH n AS (SELECT 1) DELETE FROM t", "not a change of table t"),
        ("EXPLAIN DELETE FROM t", "not a change of table t"),
        ("INSERT INTO words VALUES ('x')", "not a change of table words"),
        ("DELETE FROM boxes", "not a change of table boxes"),
        ("DELETE FROM boxes_node RETURNING 1", "boxes_node may not be modified"),
        ("CREATE TABLE u (a)", "not a change of the schema"),
        ("CREATE TEMP TABLE u AS SELECT * FROM t", "not a change of the schema"),
        ("CREATE TABLE u_node (a)", "not a change of the schema"),
        ("CREATE INDEX i ON t (a)", "not a change of the schema"),
        ("CREATE VIEW w AS SELECT 1", "not a change of the schema"),
        ("CREATE TEMP TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END", "of the schema"),
        ("CREATE VIRTUAL TABLE u USING fts5(x)", "not a change of the schema"),
        ("DROP TABLE t", "not a change of the schema"),
        ("DROP VIEW v", "not a change of the schema"),
        ("ALTER TABLE t RENAME TO u", "not a change of the schema"),
        ("VACUUM", "returns no rows"),
        (&vacuum_into, "returns no rows"),
        ("BEGIN", "not a transaction"),
        ("BEGIN IMMEDIATE", "not a transaction"),
        ("COMMIT", "not a transaction"),
        ("ROLLBACK", "not a transaction"),
        ("SAVEPOINT s", "not a savepoint"),
        ("RELEASE s", "not a savepoint"),
        ("ANALYZE", "only reading is allowed"),
        ("REINDEX", "not REINDEX"),
        ("SELECT load_extension('x')", "not the function load_extension"),
        ("SELECT LOAD_EXTENSION('x', 'y')", "not the function load_extension"),
        ("SELECT fts3_tokenizer('simple')", "not the function fts3_tokenizer"),
        ("SELECT writefile('x', 'y')", "no such function: writefile"),
        ("SELECT readfile('x')", "no such function: readfile"),
    ] {
        let error = sample.ask(query).unwrap_err();
        assert!(error.starts_with("`query`: "), "{query}: {error}");
        assert!(error.contains(named), "{query}: {error}");
    }
    assert!(!other.exists());
    assert!(std::fs::read(&sample.0).unwrap() == before);
}

#[test]
fn a_query_is_one_statement() {
    let sample = Sample::new("one");
    let two = "give one statement only";
    for (query, named) in [
        ("SELECT 1; SELECT 2", two),
        ("SELECT 1; ATTACH 'x' AS y", two),
        ("SELECT 1; garbage", two),
        ("SELECT 1; 'open", two),
        ("SELECT 1 garbage garbage", "near \"garbage\": syntax error, at byte 17"),
        ("SELEC 1", "near \"SELEC\": syntax error, at byte 0"),
        ("SELECT * FROM nowhere", "no such table: nowhere"),
        ("SELECT", "incomplete input"),
        (" ", "is empty"),
        (";", "is empty"),
        ("-- SELECT 1", "is empty"),
        (&"SELECT 1;".repeat(20_000), two), // One within the other, they would overflow the stack.
    ] {
        let error = sample.ask(query).unwrap_err();
        assert!(error.starts_with("`query`: "), "{error}");
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn what_would_burst_the_stack_or_the_memory_is_refused() {
    let sample = Sample::new("limits");
    let nested = |open: &str, close: &str, count: usize| {
        format!("SELECT {}1{}", open.repeat(count), close.repeat(count))
    };
    for query in [
        nested("(", ")", 50_000),
        nested("NOT ", "", 50_000),
        nested("1 OR ", "", 20_000),
        nested("(SELECT ", ")", 10_000),
        nested("CASE WHEN 1 THEN ", " END", 10_000),
        nested("abs(", ")", 20_000),
        nested("* FROM (SELECT ", ")", 10_000),
        nested("1 UNION ALL SELECT ", "", 10_000),
        nested("1 IN (SELECT ", ")", 10_000),
        format!("SELECT 1 WHERE 'a' LIKE '{}'", "%a".repeat(501)),
        format!("SELECT length(zeroblob({}))", VALUE_BYTES_MAX + 1),
        "SELECT printf('%.*c', 1000000000, 'x')".to_owned(),
        "SELECT ?1001".to_owned(),
        format!("SELECT '{}'", "x".repeat(QUERY_BYTES_MAX)),
    ] {
        let error = sample.ask(&query).unwrap_err();
        let start: String = query.chars().take(40).collect();
        println!("{start}: {error}");
        assert!(error.starts_with("`query`: "), "{start}: {error}");
    }
    // Statements of people are far from that, and pass.
    for query in [
        nested("(", ")", 100),
        nested("1 OR ", "", 300),
        nested("* FROM (SELECT ", ")", 50),
        nested("1 UNION ALL SELECT ", "", 99),
    ] {
        let start: String = query.chars().take(40).collect();
        assert!(sample.ask(&query).is_ok(), "{start}: {:?}", sample.ask(&query));
    }
}
