//! `query_database` with a relative path that SQLite would take for something else. The test has a
//! process of its own, because it changes the working directory.
#![cfg(feature = "sqlite")]

use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;
use streamdoor::engine::{Hold, SubscribeSpec};
use streamdoor::shard::{Delivery, ExecuteOptions, Shard, ShardConfig, outcome_of};
use streamdoor::stream::{Outcome, Policy};

#[test]
fn a_file_that_is_called_like_a_uri_or_like_memory_is_read_as_that_file() {
    let name = format!("streamdoor-{}-relative", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).unwrap();
    std::env::set_current_dir(&folder).unwrap();
    let (shard, _) = Shard::spawn(ShardConfig::default(), |_| {}).unwrap();
    for path in ["plain.db", "file:odd.db", "file:odd.db?mode=memory", ":memory:"] {
        let table = format!("CREATE TABLE t (a); INSERT INTO t VALUES ('{path}')");
        Connection::open(folder.join(path)).unwrap().execute_batch(&table).unwrap();

        let hold = Hold::UntilRead { deadline: Duration::from_secs(60) };
        let options = ExecuteOptions { hold, ..Default::default() };
        let arguments = json!({"path": path, "query": "SELECT a FROM t"});
        let id = shard.execute("query_database", arguments, options).unwrap();
        let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
        let mut subscriber = shard.subscribe(id, spec).unwrap();
        let mut rows = String::new();
        loop {
            match subscriber.next() {
                Delivery::Chunk(chunk) => rows += std::str::from_utf8(chunk.data).unwrap(),
                Delivery::End(ended) => {
                    assert_eq!(ended.error, None, "{path}");
                    assert_eq!(outcome_of(&ended.end), Some(Outcome::Completed));
                    break;
                }
                Delivery::Progress(_) => {}
                Delivery::Gap(gap) => panic!("under `block`: {gap:?}"),
            }
        }
        assert_eq!(rows, format!("{{\"a\":\"{path}\"}}\n"));
    }
    std::env::set_current_dir("/").unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
