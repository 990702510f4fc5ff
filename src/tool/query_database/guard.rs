//! One SQLite file, open for reading and for nothing else, whatever the query says.
//!
//! Neither the query nor the file is trusted. In order of who says no first:
//!
//! 1. The name is made absolute, so that `file:…?mode=rwc` and `:memory:` are names of files.
//! 2. The file is opened read-only, and `query_only` is on.
//! 3. What a file can bring along is off: triggers, functions in its schema that have effects,
//!    pages that contradict themselves. So are extensions, which are off unless switched on.
//! 4. The authorizer sees each part of a statement while it is compiled ([`refusal_of`]).
//! 5. A statement that is not all reading, or gives no columns, is not run: VACUUM passes the rest.
//! 6. SQLite's own limits bound what a query can take before it gives its first row. Temporary
//!    files (a sort that is larger than the page cache) are bounded by the timeouts alone.
//!
//! What is written all the same: a file that is in WAL mode gets an empty log and its index beside
//! it (`-wal`, `-shm`) if nobody else has it open, for SQLite reads it in no other way.
//!
//! A file must not be opened by any other way than SQLite's: to close it then would drop the locks
//! that this process holds on it through other connections.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::{Batch, Connection, OpenFlags, Statement};

use crate::tool::StopSignal;
use crate::tool::query_database::QUERY_BYTES_MAX;
use crate::tool::query_database::failure::Failure;

/// Values for placeholders, of one query.
pub(super) const PARAMETERS_MAX: usize = 1_000;
/// The longest value or row. As JSON it can be six times as long, and stands in memory once.
pub(super) const VALUE_BYTES_MAX: usize = 16 << 20;
/// How long a writer's lock is waited for.
pub(super) const BUSY_WAIT: Duration = Duration::from_secs(2);
const BUSY_WAIT_STEP: Duration = Duration::from_millis(5);

const LIMITS: [(Limit, usize); 10] = [
    (Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX),
    (Limit::SQLITE_LIMIT_SQL_LENGTH, QUERY_BYTES_MAX),
    // The compiler recurses over these, on a thread with a stack of 2 MiB.
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 400),
    (Limit::SQLITE_LIMIT_PARSER_DEPTH, 400),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100),
    (Limit::SQLITE_LIMIT_VDBE_OP, 1_000_000),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    // Matching takes time by the square of it, without looking whether it is interrupted.
    (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
    (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, PARAMETERS_MAX),
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
];

/// On if `true`.
const SWITCHES: [(DbConfig, bool); 7] = [
    (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
    (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
    (DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_ATTACH_CREATE, false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_ATTACH_WRITE, false),
];

/// Functions that reach out of the file. SQLite's own builds have only the first two; the others
/// are those of its shell, in case somebody's SQLite has them.
const FUNCTIONS_REFUSED: [&str; 6] =
    ["load_extension", "fts3_tokenizer", "readfile", "writefile", "edit", "eval"];
/// Pragmas that only tell something. Full-text search asks for the first two by itself.
const PRAGMAS: [&str; 16] = [
    "data_version",
    "page_size",
    "application_id",
    "collation_list",
    "compile_options",
    "database_list",
    "encoding",
    "foreign_key_check",
    "freelist_count",
    "function_list",
    "integrity_check",
    "module_list",
    "page_count",
    "quick_check",
    "table_list",
    "user_version",
];
/// Those that only tell something also when they are given a value, which says about what.
const PRAGMAS_ABOUT: [&str; 10] = [
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "integrity_check",
    "quick_check",
    "table_info",
    "table_list",
    "table_xinfo",
];
/// Tables of these names are written to by an R-tree, which compiles those statements as soon as
/// it is opened for reading.
const RTREE_TABLES: [&str; 3] = ["_node", "_parent", "_rowid"];

/// A connection that can only read.
pub(super) struct Guard {
    connection: Connection,
    /// What the authorizer refused since the last time that somebody asked.
    refused: Arc<Mutex<Option<String>>>,
}

impl Guard {
    /// Opens a file.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn open(path: &Path, stop: StopSignal) -> Result<Guard, Failure> {
        let in_words = |error: std::io::Error| Failure::File(error.to_string());
        let metadata = std::fs::metadata(path).map_err(in_words)?;
        if metadata.is_dir() {
            return Err(Failure::File("is a directory".to_owned()));
        }
        if !metadata.is_file() {
            return Err(Failure::File("is not a regular file".to_owned())); // A pipe would block.
        }
        let path = std::path::absolute(path).map_err(in_words)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        harden(&connection)?;
        let mut waited = Duration::ZERO;
        connection.busy_handler(Some(move |attempt| {
            waited = if attempt == 0 { Duration::ZERO } else { waited + BUSY_WAIT_STEP };
            std::thread::sleep(BUSY_WAIT_STEP);
            waited < BUSY_WAIT && !stop.is_stopped()
        }))?;
        let refused = Arc::new(Mutex::new(None));
        let refused_there = Arc::clone(&refused);
        connection.authorizer(Some(move |context: AuthContext<'_>| {
            let Some(refusal) = refusal_of(&context.action) else { return Authorization::Allow };
            lock(&refused_there).get_or_insert(refusal);
            Authorization::Deny
        }))?;
        Ok(Guard { connection, refused })
    }

    /// The connection, for what is ours.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Compiles `query`, if it is one statement that only reads.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn prepare(&self, query: &str) -> Result<Statement<'_>, Failure> {
        let refused = |text: &str| Err(Failure::Refused(format!("`query`: {text}")));
        // Not `Connection::prepare`, which compiles all that follows, one within the other.
        let mut statements = Batch::new(&self.connection, query);
        let Some(statement) = self.said(statements.next())? else {
            return refused("is empty: there is no statement in it");
        };
        if !matches!(statements.next(), Ok(None)) {
            return refused("does not end with its first statement; give one statement only");
        }
        lock(&self.refused).take(); // What a virtual table was refused, and could do without.
        if statement.column_count() == 0 || !statement.readonly() {
            return refused("only reading is allowed, and this statement does not give rows");
        }
        Ok(statement)
    }

    /// An answer of SQLite, with our reason if it was we who said no.
    pub fn said<T>(&self, answer: rusqlite::Result<T>) -> Result<T, Failure> {
        answer.map_err(|error| match lock(&self.refused).take() {
            Some(what) => Failure::Refused(format!("`query`: only reading is allowed, not {what}")),
            None => Failure::Sqlite(error),
        })
    }
}

fn lock(refused: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    refused.lock().unwrap_or_else(PoisonError::into_inner)
}

fn harden(connection: &Connection) -> rusqlite::Result<()> {
    for (switch, is_on) in SWITCHES {
        connection.set_db_config(switch, is_on)?;
    }
    for (limit, most) in LIMITS {
        connection.set_limit(limit, i32::try_from(most).expect("limits are small"))?;
    }
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "mmap_size", 0) // A file that shrinks would kill the process.
}

/// What `action` is called, if it is not allowed.
fn refusal_of(action: &AuthAction<'_>) -> Option<String> {
    let is_in = |names: &[&str], name: &str| names.iter().any(|n| n.eq_ignore_ascii_case(name));
    let write_to = |table: &str| {
        let is_own = RTREE_TABLES.iter().any(|suffix| table.ends_with(suffix));
        let is_schema = table.starts_with("sqlite_");
        match (is_own, is_schema) {
            (true, _) => None, // Only compiled: `Guard::prepare` refuses to run one.
            (false, true) => Some("a change of the schema (CREATE, DROP, ALTER …)".to_owned()),
            (false, false) => Some(format!("a change of table {table}")),
        }
    };
    let refused = match *action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => return None,
        AuthAction::Function { function_name } if !is_in(&FUNCTIONS_REFUSED, function_name) => {
            return None;
        }
        AuthAction::Pragma { pragma_name, pragma_value: None } if is_in(&PRAGMAS, pragma_name) => {
            return None;
        }
        AuthAction::Pragma { pragma_name, .. } if is_in(&PRAGMAS_ABOUT, pragma_name) => {
            return None;
        }
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::Update { table_name, .. } => return write_to(table_name),
        AuthAction::Function { function_name } => format!("the function {function_name}"),
        AuthAction::Pragma { pragma_name, pragma_value: None } => format!("PRAGMA {pragma_name}"),
        AuthAction::Pragma { pragma_name, pragma_value: Some(value) } => {
            format!("PRAGMA {pragma_name} = {value}")
        }
        AuthAction::Attach { .. } => "ATTACH".to_owned(),
        AuthAction::Detach { .. } => "DETACH".to_owned(),
        AuthAction::Transaction { .. } => "a transaction (BEGIN, COMMIT, ROLLBACK)".to_owned(),
        AuthAction::Savepoint { .. } => "a savepoint".to_owned(),
        AuthAction::Analyze { .. } => "ANALYZE".to_owned(),
        AuthAction::Reindex { .. } => "REINDEX".to_owned(),
        AuthAction::Unknown { code, .. } => format!("what SQLite counts as action {code}"),
        _ => "a change of the schema (CREATE, DROP, ALTER …)".to_owned(),
    };
    Some(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A file with some tables of each sort, which goes when it is dropped.
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
            Guard::open(&self.0, StopSignal::default()).unwrap()
        }

        /// How many rows it gives, or what is wrong.
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
            ("ATTACH ? AS x", "not what SQLite counts as action"),
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
            ("VACUUM", "does not give rows"),
            (&vacuum_into, "does not give rows"),
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
            (&"SELECT 1;".repeat(20_000), two), // One within the other, they would burst the stack.
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
        // What people write is far from that, and passes.
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
}
