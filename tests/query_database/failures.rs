//! Each problem with the file has a message of its own, which names the argument.

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::json;

use crate::{File, ask, shard};

fn problem(path: &Path) -> String {
    let error = ask(&shard(), path, "SELECT * FROM t").unwrap_err();
    assert!(error.starts_with("`path`: "), "{error}");
    error
}

#[test]
fn a_file_that_is_none_is_told_apart_from_one_that_is_no_database() {
    let missing = File::new("missing");
    assert!(problem(missing.path()).contains("No such file"));
    assert!(!missing.path().exists(), "it was made");

    assert!(problem(&std::env::temp_dir()).contains("is a directory"));

    let socket = File::new("socket");
    let _listener = UnixListener::bind(socket.path()).unwrap();
    assert!(problem(socket.path()).contains("is not a regular file"));

    let text = File::new("text");
    std::fs::write(text.path(), "not a database, ".repeat(100)).unwrap();
    assert!(problem(text.path()).contains("is not an SQLite database"));

    let empty = File::new("empty"); // SQLite reads it as a database without tables.
    std::fs::write(empty.path(), "").unwrap();
    let error = ask(&shard(), empty.path(), "SELECT * FROM t").unwrap_err();
    assert!(error.contains("no such table"), "{error}");
}

#[test]
fn a_damaged_file_is_called_damaged() {
    let file = File::of_rows("damaged", 10_000);
    let mut open = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
    open.seek(SeekFrom::Start(8 * 4_096)).unwrap();
    open.write_all(&[0xff; 64 << 10]).unwrap();
    let error = ask(&shard(), file.path(), "SELECT * FROM items").unwrap_err();
    assert!(error.starts_with("`path`: is damaged"), "{error}");
}

#[test]
fn a_file_that_may_not_be_read_is_said_to_be_so() {
    let file = File::database("unreadable", "CREATE TABLE t (a)");
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(file.path()).is_ok() {
        println!("not run: this user may read everything");
        return;
    }
    assert!(problem(file.path()).contains("cannot be opened"));
}

#[test]
fn a_file_that_a_writer_has_locked_is_said_to_be_locked() {
    let file = File::database("locked", "CREATE TABLE t (a)");
    let writer = file.connection();
    writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert!(problem(file.path()).contains("locked"));
    writer.execute_batch("COMMIT").unwrap();
    assert_eq!(ask(&shard(), file.path(), "SELECT * FROM t"), Ok(vec![]));
}

#[test]
fn a_file_that_a_crash_left_half_written_is_said_to_need_repair() {
    let file = File::of_rows("crashed", 10_000);
    let writer = file.connection();
    let half = "PRAGMA cache_size = 1; BEGIN; UPDATE items SET name = name || '!'";
    writer.execute_batch(half).unwrap();
    // The state in which a power failure leaves the files.
    let found = File::new("found");
    std::fs::copy(file.path(), found.path()).unwrap();
    let journal = |file: &File| format!("{}-journal", file.path().display());
    std::fs::copy(journal(&file), journal(&found)).unwrap();
    assert!(problem(found.path()).contains("must be repaired"));
}

#[test]
fn a_log_without_writer_is_read_and_nothing_is_written_to_it() {
    let file = File::database("idle", "PRAGMA journal_mode = WAL; CREATE TABLE t (a)");
    let before = std::fs::read(file.path()).unwrap();
    assert_eq!(ask(&shard(), file.path(), "SELECT * FROM t"), Ok(vec![]));
    assert!(std::fs::read(file.path()).unwrap() == before);
    // SQLite leaves the log file, because it cannot delete what it opened for reading.
    let log = std::fs::metadata(format!("{}-wal", file.path().display()));
    assert!(log.is_ok_and(|log| log.len() == 0));
}

#[test]
fn a_path_is_never_taken_for_a_uri() {
    let file = File::database("uri", "CREATE TABLE t (a)");
    let shard = shard();
    let path = file.path().to_str().unwrap();
    for uri in [
        format!("file:{path}?mode=rwc"),
        format!("file:{path}"),
        format!("file://{path}?immutable=1"),
        ":memory:".to_owned(),
        "file::memory:".to_owned(),
    ] {
        let error = ask(&shard, Path::new(&uri), "SELECT 1").unwrap_err();
        assert!(error.contains("No such file"), "{uri}: {error}");
    }
}

#[test]
fn a_link_leads_to_its_file_and_a_log_of_a_living_writer_is_read() {
    let file = File::database("wal", "PRAGMA journal_mode = WAL; CREATE TABLE t (a)");
    let writer = file.connection();
    writer.execute_batch("INSERT INTO t VALUES (1), (2)").unwrap();
    let link = File::new("link");
    std::os::unix::fs::symlink(file.path(), link.path()).unwrap();
    let rows = ask(&shard(), link.path(), "SELECT a FROM t");
    assert_eq!(rows, Ok(vec![json!({"a": 1}), json!({"a": 2})]));
}

#[test]
fn a_mistake_in_the_query_reaches_the_subscriber_and_the_next_query_is_answered() {
    let file = File::database("mistakes", "CREATE TABLE t (a); INSERT INTO t VALUES (1)");
    let shard = shard();
    for (query, named) in [
        ("SELECT b FROM t", "no such column: b"),
        ("DELETE FROM t", "only reading is allowed, not a change of table t"),
        ("SELECT ?", "`parameters`: the query takes 1"),
        ("SELECT abs(-9223372036854775808)", "integer overflow"), // Found while the query runs.
    ] {
        let error = ask(&shard, file.path(), query).unwrap_err();
        assert!(error.contains(named), "{error}");
    }
    assert_eq!(ask(&shard, file.path(), "SELECT a FROM t"), Ok(vec![json!({"a": 1})]));
}
