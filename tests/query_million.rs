//! `query_database` over a million rows: the first rows arrive while the query runs, a reader holds
//! the query back, and memory does not grow. The test has a process of its own, because it measures
//! the memory of the process.
#![cfg(feature = "sqlite")]

use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::json;
use streamdoor::engine::{Hold, SubscribeSpec};
use streamdoor::limits;
use streamdoor::shard::{Delivery, ExecuteOptions, Shard, ShardConfig, outcome_of};
use streamdoor::stream::{ExecutionState, Outcome, Policy};

const ROWS: u64 = 1_000_000;
/// The allowed growth of the process while all rows pass. It covers SQLite's page cache (2 MiB), a
/// ring, a chunk on each side, and as much again for the allocator. The rows are ten times as
/// large.
const GROWTH_BYTES_MAX: u64 = 5 << 20;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
}

struct File(std::path::PathBuf);

impl File {
    fn of_rows() -> File {
        let name = format!("streamdoor-{}-million.db", std::process::id());
        let file = File(std::env::temp_dir().join(name));
        let tables = format!(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
            CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price REAL);
            WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
            INSERT INTO items SELECT i, 'item number ' || i, i * 0.25 FROM n;"
        );
        Connection::open(&file.0).unwrap().execute_batch(&tables).unwrap();
        file
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Checks each line, and counts the lines and the bytes over all chunks.
#[derive(Default)]
struct Checker {
    row_count: u64,
    byte_count: u64,
    expected: String,
}

impl Checker {
    fn take(&mut self, bytes: &[u8]) {
        use std::fmt::Write;
        self.byte_count += bytes.len() as u64;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.row_count += 1;
            let id = self.row_count;
            self.expected.clear();
            let price = id as f64 * 0.25;
            write!(self.expected, "{{\"id\":{id},\"name\":\"item number {id}\",").unwrap();
            writeln!(self.expected, "\"price\":{price:?}}}").unwrap();
            assert_eq!(std::str::from_utf8(line).unwrap(), self.expected);
        }
    }
}

#[test]
fn a_million_rows_come_while_the_query_runs_and_take_no_memory() {
    let file = File::of_rows();
    let (shard, _) = Shard::spawn(ShardConfig::default(), |_| {}).unwrap();
    let arguments = json!({
        "path": file.0.to_str().unwrap(), "query": "SELECT id, name, price FROM items",
    });
    let hold = Hold::UntilRead { deadline: Duration::from_secs(60) };
    let options = ExecuteOptions { hold, ..Default::default() };
    let id = shard.execute("query_database", arguments, options).unwrap();
    let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
    let mut subscriber = shard.subscribe(id, spec).unwrap();

    // The first row has arrived. The query has not reached the last one: the reader holds it back.
    let mut checker = Checker::default();
    loop {
        if let Delivery::Chunk(chunk) = subscriber.next() {
            checker.take(chunk.data);
            break;
        }
    }
    assert_eq!(checker.row_count, 1);
    while !shard.inspect(id).unwrap().gated {
        std::thread::sleep(Duration::from_millis(1));
    }
    let status = shard.inspect(id).unwrap();
    assert_eq!(status.state, ExecutionState::Running);
    let ring_bytes_max = u64::from(*limits::RING_CLASS_BYTES.last().unwrap());
    assert!(status.totals.bytes < ring_bytes_max, "{:?}", status.totals);

    let (began, before_bytes) = (now(), resident_bytes());
    let (mut most_bytes, mut rows_told) = (before_bytes, 0.0);
    let outcome = loop {
        match subscriber.next() {
            Delivery::Chunk(chunk) => {
                let sampled = chunk.seq % 100 == 0;
                checker.take(chunk.data);
                if sampled {
                    most_bytes = most_bytes.max(resident_bytes());
                }
            }
            Delivery::Progress(reported) => {
                let rows = reported.progress.progress;
                assert!(rows >= rows_told);
                rows_told = rows;
            }
            Delivery::Gap(gap) => panic!("under `block`: {gap:?}"),
            Delivery::End(ended) => break outcome_of(&ended.end),
        }
    };
    let (took, growth_bytes) = (began.elapsed(), most_bytes - before_bytes);
    assert_eq!((outcome, checker.row_count), (Some(Outcome::Completed), ROWS));
    assert_eq!(rows_told, ROWS as f64);
    assert!(checker.byte_count > 10 * GROWTH_BYTES_MAX);
    assert!(growth_bytes <= GROWTH_BYTES_MAX, "{growth_bytes} bytes more");
    println!(
        "{:.0} rows/s ({:.1} MB/s, each line checked), memory grew by {} KiB",
        ROWS as f64 / took.as_secs_f64(),
        checker.byte_count as f64 / took.as_secs_f64() / 1e6,
        growth_bytes / 1_024,
    );
}

#[expect(clippy::disallowed_methods, reason = "a figure for the reader; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}
