//! `query_database` through a shard: the rows, their timing, and the errors.
#![cfg(feature = "sqlite")]

mod failures;
mod streams;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};
use streamdoor::base::ExecutionId;
use streamdoor::engine::{Hold, SubscribeSpec};
use streamdoor::shard::{Delivery, ExecuteOptions, Shard, ShardConfig, ShardThread, Subscriber};
use streamdoor::stream::{EndState, Kind, Outcome, Policy};

/// A file that is removed when it is dropped, with the files that SQLite puts beside it.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        let name = format!("streamdoor-{}-query-{name}", std::process::id());
        File(std::env::temp_dir().join(name))
    }

    /// Creates a database with these statements.
    fn database(name: &str, tables: &str) -> File {
        let file = File::new(name);
        file.write(tables);
        file
    }

    /// Creates a table `items` with `count` rows of 3 columns.
    fn of_rows(name: &str, count: u64) -> File {
        let tables = format!(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
            CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price REAL);
            WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {count})
            INSERT INTO items SELECT i, 'item number ' || i, i * 0.25 FROM n;"
        );
        File::database(name, &tables)
    }

    fn write(&self, statements: &str) {
        self.connection().execute_batch(statements).unwrap();
    }

    fn connection(&self) -> Connection {
        Connection::open(&self.0).unwrap()
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        for suffix in ["-wal", "-shm", "-journal"] {
            let mut name = self.0.clone().into_os_string();
            name.push(suffix);
            let _ = std::fs::remove_file(name);
        }
    }
}

fn shard() -> ShardThread {
    Shard::spawn(ShardConfig::default(), |_| {}).unwrap().0
}

/// Options that hold the stream until a subscriber reads it.
fn held() -> ExecuteOptions {
    let hold = Hold::UntilRead { deadline: Duration::from_secs(60) };
    ExecuteOptions { hold, ..Default::default() }
}

fn start(shard: &ShardThread, arguments: Value) -> (ExecutionId, Subscriber) {
    start_with(shard, arguments, held())
}

fn start_with(
    shard: &ShardThread,
    arguments: Value,
    options: ExecuteOptions,
) -> (ExecutionId, Subscriber) {
    let id = shard.execute("query_database", arguments, options).unwrap();
    let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
    (id, shard.subscribe(id, spec).unwrap())
}

/// The outcome of an execution, and its error.
type Ending = (Outcome, Option<String>);

/// Reads everything until the end. `take` is given the bytes of each chunk, and true if the row
/// goes on in the next chunk.
fn read_all(subscriber: &mut Subscriber, mut take: impl FnMut(&[u8], bool)) -> Ending {
    loop {
        match subscriber.next() {
            Delivery::Chunk(chunk) => {
                assert_eq!(chunk.kind, Kind::Row);
                take(chunk.data, chunk.more);
            }
            Delivery::Progress(_) => {}
            Delivery::Gap(gap) => panic!("under `block`: {gap:?}"),
            Delivery::End(ended) => {
                let EndState::Ended(outcome) = ended.end.state else {
                    panic!("{:?}", ended.end);
                };
                return (outcome, ended.error.map(str::to_owned));
            }
        }
    }
}

/// Runs a query and returns its rows or its error.
fn ask(shard: &ShardThread, path: &Path, query: &str) -> Result<Vec<Value>, String> {
    let arguments = json!({"path": path.to_str().unwrap(), "query": query});
    let (_, mut subscriber) = start(shard, arguments);
    let mut lines = Vec::new();
    let (outcome, error) = read_all(&mut subscriber, |bytes, _| lines.extend_from_slice(bytes));
    match outcome {
        Outcome::Completed => {
            let rows = serde_json::Deserializer::from_slice(&lines).into_iter();
            Ok(rows.map(Result::unwrap).collect())
        }
        outcome => {
            assert_eq!(outcome, Outcome::Failed);
            Err(error.expect("a failure has a text"))
        }
    }
}
