//! The stream of a long query, and its cancellation at any moment.

use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::engine::Timeouts;
use streamdoor::limits;
use streamdoor::shard::{Delivery, ExecuteOptions, ShardThread, Subscriber};
use streamdoor::stream::{ExecutionState, Outcome};

use crate::{File, ask, held, read_all, shard, start, start_with};

/// Time limit of a wait that should take milliseconds. A test fails after it instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a full spool and a full ring.
const SPOOLED_AND_HELD_BYTES_MAX: usize = (64 + 16) << 20;
/// A query that counts for ever and gives no row.
const ENDLESS: &str = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) \
    SELECT count(*) FROM n, t";
/// A query that gives rows for ever.
const ENDLESS_ROWS: &str = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) \
    SELECT i FROM n, t";
/// A query that sorts for long before it gives its first row.
const SORT: &str =
    "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 30000000)
    SELECT i FROM n, t ORDER BY i % 1000";

fn table(name: &str) -> File {
    File::database(name, "CREATE TABLE t (a); INSERT INTO t VALUES (1)")
}

fn arguments(file: &File, query: &str) -> Value {
    json!({"path": file.path().to_str().unwrap(), "query": query})
}

fn end_of(subscriber: &mut Subscriber) -> Outcome {
    loop {
        let delivery = subscriber.next_within(PATIENCE).expect("it ends");
        if let Delivery::End(ended) = delivery {
            return streamdoor::shard::outcome_of(&ended.end).expect("it was not detached");
        }
    }
}

/// Checks that the tool's thread has returned: its lock on the file is released.
fn assert_unlocked(file: &File) {
    let connection = file.connection();
    connection.busy_timeout(PATIENCE).unwrap();
    connection.execute_batch("BEGIN EXCLUSIVE; ROLLBACK").unwrap();
}

/// Waits until the query holds its lock on the file, which shows that it runs.
fn wait_until_locked(file: &File) {
    let connection = file.connection();
    connection.busy_timeout(Duration::ZERO).unwrap();
    for _ in 0..PATIENCE.as_millis() {
        if connection.execute_batch("BEGIN EXCLUSIVE; ROLLBACK").is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the query has not begun");
}

fn assert_answers(shard: &ShardThread, file: &File) {
    assert_eq!(ask(shard, file.path(), "SELECT a FROM t"), Ok(vec![json!({"a": 1})]));
}

#[test]
fn a_cancellation_stops_a_query_that_says_nothing() {
    let shard = shard();
    for (name, query) in [("count", ENDLESS), ("sort", SORT)] {
        let file = table(name);
        let (id, mut subscriber) = start(&shard, arguments(&file, query));
        wait_until_locked(&file);
        shard.cancel(id).unwrap();
        assert_eq!(end_of(&mut subscriber), Outcome::Cancelled, "{name}");
        assert_unlocked(&file);
    }
}

#[test]
fn a_cancellation_stops_a_query_whose_rows_nobody_reads() {
    let (shard, file) = (shard(), table("rows"));
    let (id, mut subscriber) = start(&shard, arguments(&file, ENDLESS_ROWS));
    while !shard.inspect(id).unwrap().gated {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(shard.inspect(id).unwrap().state, ExecutionState::Running);
    shard.cancel(id).unwrap();
    assert_unlocked(&file);
    assert_eq!(end_of(&mut subscriber), Outcome::Cancelled);
}

#[test]
fn the_hard_cap_ends_a_query_and_frees_its_thread() {
    let (shard, file) = (shard(), table("cap"));
    let total = Some(Duration::from_millis(100));
    let timeouts = Some(Timeouts { total, ..Timeouts::NONE });
    let options = ExecuteOptions { timeouts, ..held() };
    let (_, mut subscriber) = start_with(&shard, arguments(&file, ENDLESS), options);
    let (outcome, error) = read_all(&mut subscriber, |_, _| panic!("it has no rows"));
    assert_eq!(outcome, Outcome::TimedOut);
    assert!(error.as_deref().is_some_and(|text| text.contains("timed out")), "{error:?}");
    assert_unlocked(&file);
    assert_answers(&shard, &file);
}

#[test]
fn a_query_that_waits_for_a_lock_is_stopped_while_it_waits() {
    let (shard, file) = (shard(), table("waits"));
    let writer = file.connection();
    writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let (id, mut subscriber) = start(&shard, arguments(&file, ENDLESS));
    shard.cancel(id).unwrap();
    assert_eq!(end_of(&mut subscriber), Outcome::Cancelled);
    writer.execute_batch("COMMIT").unwrap();
}

#[test]
fn every_thread_is_free_again_after_its_query_was_cancelled() {
    let (shard, file) = (shard(), table("threads"));
    let started: Vec<_> = (0..limits::TOOL_THREADS_MAX + 4)
        .map(|_| start(&shard, arguments(&file, ENDLESS)))
        .collect();
    wait_until_locked(&file);
    // Some queries run, some have not begun, and four wait for a thread.
    started.iter().for_each(|(id, _)| shard.cancel(*id).unwrap());
    for (_, mut subscriber) in started {
        assert_eq!(end_of(&mut subscriber), Outcome::Cancelled);
    }
    assert_answers(&shard, &file);
    assert_unlocked(&file);
}

#[test]
fn a_shard_that_goes_stops_its_queries() {
    let (shard, file) = (shard(), table("goes"));
    let (_, subscriber) = start(&shard, arguments(&file, ENDLESS));
    wait_until_locked(&file);
    drop(subscriber);
    drop(shard);
    assert_unlocked(&file);
}

#[test]
fn the_first_row_comes_alone_and_the_others_in_batches_of_whole_lines() {
    let (shard, file) = (shard(), File::of_rows("batches", 100));
    let query = "SELECT id, name FROM items ORDER BY id";
    let mut arguments = arguments(&file, query);
    arguments["batch_size"] = json!(7);
    let (_, mut subscriber) = start(&shard, arguments);
    let (mut counts, mut lines) = (Vec::new(), Vec::new());
    let ending = read_all(&mut subscriber, |bytes, more| {
        assert!(!more && bytes.ends_with(b"\n"));
        counts.push(bytes.iter().filter(|&&byte| byte == b'\n').count());
        lines.extend_from_slice(bytes);
    });
    assert_eq!(ending, (Outcome::Completed, None));
    let expected: String =
        (1..=100).map(|i| format!("{{\"id\":{i},\"name\":\"item number {i}\"}}\n")).collect();
    assert_eq!(String::from_utf8(lines).unwrap(), expected);
    assert_eq!(counts[0], 1);
    assert!(counts.iter().all(|&count| count <= 7), "{counts:?}");
}

#[test]
fn a_reader_that_is_slow_gets_full_chunks() {
    let file = File::database(
        "slow",
        "CREATE TABLE t (a); WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n \
            LIMIT 1000) INSERT INTO t SELECT printf('%.300c', 'x') FROM n",
    );
    let shard = shard();
    let (_, mut subscriber) = start(&shard, arguments(&file, "SELECT a FROM t"));
    let (mut chunk_count, mut byte_count) = (0, 0);
    let ending = read_all(&mut subscriber, |bytes, _| {
        chunk_count += 1;
        byte_count += bytes.len();
        std::thread::sleep(Duration::from_millis(60)); // Longer than a row waits for others.
    });
    assert_eq!(ending, (Outcome::Completed, None));
    assert_eq!(byte_count, 1_000 * (300 + "{'a':''}\n".len()));
    // About 46 rows fill a chunk. A pause of this machine adds a few chunks.
    assert!(chunk_count < 60, "{chunk_count} chunks for 1000 rows");
}

#[test]
fn a_row_that_is_larger_than_a_chunk_comes_in_pieces_between_the_others() {
    let (shard, file) = (shard(), table("giant"));
    let query = "SELECT 1 AS a, 'before' AS b UNION ALL SELECT 2, zeroblob(3000000)
        UNION ALL SELECT 3, 'after'";
    let (_, mut subscriber) = start(&shard, arguments(&file, query));
    let (mut pieces, mut lines) = (0, Vec::new());
    let ending = read_all(&mut subscriber, |bytes, more| {
        assert_eq!(bytes.ends_with(b"\n"), !more);
        pieces += usize::from(more);
        lines.extend_from_slice(bytes);
    });
    assert_eq!(ending, (Outcome::Completed, None));
    assert!(pieces > 10, "{pieces}");
    let lines = String::from_utf8(lines).unwrap();
    let zeros = "A".repeat(4_000_000);
    assert!(lines.starts_with("{\"a\":1,\"b\":\"before\"}\n{\"a\":2,\"b\":{\"base64\":\"AAAA"));
    assert!(lines.contains(&zeros));
    assert!(lines.ends_with("AAAA\"}}\n{\"a\":3,\"b\":\"after\"}\n"));
}

#[test]
fn placeholders_are_filled_in_and_never_taken_for_sql() {
    let (shard, file) = (shard(), File::of_rows("placeholders", 10));
    let query = "SELECT id, :evil AS evil FROM items WHERE id = :id OR name = :evil";
    let mut arguments = arguments(&file, query);
    let evil = "' OR 1; DROP TABLE items; --";
    arguments["parameters"] = json!({"id": 3, "evil": evil});
    let (_, mut subscriber) = start(&shard, arguments);
    let mut lines = Vec::new();
    let ending = read_all(&mut subscriber, |bytes, _| lines.extend_from_slice(bytes));
    assert_eq!(ending, (Outcome::Completed, None));
    let row: Value = serde_json::from_slice(&lines).unwrap(); // Exactly one row.
    assert_eq!(row, json!({"id": 3, "evil": evil}));
}

#[test]
fn a_query_without_rows_completes_without_chunks() {
    let (shard, file) = (shard(), table("none"));
    assert_eq!(ask(&shard, file.path(), "SELECT a FROM t WHERE 0"), Ok(vec![]));
}

#[test]
fn a_reader_that_reads_nothing_locks_nobody_out() {
    const ROWS: u64 = 20_000; // Many times the ring's size.
    let (shard, file) = (shard(), File::of_rows("unread", ROWS));
    let (_, mut subscriber) = start(&shard, arguments(&file, "SELECT id, price FROM items"));
    // The query has begun. All its rows come from the state of the file at this time.
    let Some(Delivery::Chunk(first)) = subscriber.next_within(PATIENCE) else { panic!() };
    let mut lines = first.data.to_vec();
    let writer = file.connection();
    writer.busy_timeout(PATIENCE).unwrap();
    writer.execute_batch("UPDATE items SET price = -1").unwrap();
    let ending = read_all(&mut subscriber, |bytes, _| lines.extend_from_slice(bytes));
    assert_eq!(ending, (Outcome::Completed, None));
    let text = String::from_utf8(lines).unwrap();
    assert_eq!(text.lines().count() as u64, ROWS);
    for (line, id) in text.lines().zip(1..) {
        let row: Value = serde_json::from_str(line).unwrap();
        assert_eq!(row, json!({"id": id, "price": id as f64 * 0.25}));
    }
}

#[test]
fn a_query_with_too_many_rows_for_a_stuck_reader_is_given_up_and_says_so() {
    let (shard, file) = (shard(), table("stuck"));
    let query = ENDLESS_ROWS.replace("SELECT i FROM", "SELECT printf('%.100000c', 'x') FROM");
    let (id, mut subscriber) = start(&shard, arguments(&file, &query));
    // A query also holds a lock for a moment while it is prepared. Rows that wait for the reader
    // show that it holds the later lock.
    while !shard.inspect(id).unwrap().gated {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_unlocked(&file);
    let mut byte_count = 0;
    let (outcome, error) = read_all(&mut subscriber, |bytes, _| {
        byte_count += bytes.len();
        assert!(byte_count <= SPOOLED_AND_HELD_BYTES_MAX, "the query goes on");
    });
    assert_eq!(outcome, Outcome::Failed);
    assert!(error.as_deref().is_some_and(|text| text.contains("query was ended")), "{error:?}");
}
