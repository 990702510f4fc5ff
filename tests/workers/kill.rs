//! Workers that are killed at random moments: their calls fail exactly once for every follower, and
//! other calls go on.

use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::Random;

use crate::client::{ask, execute, follow, state, wait_for};
use crate::node::NodeWorker;
use crate::served::Server;

const VICTIMS: usize = 4;
const SEED: u64 = 20_261_122;

#[test]
fn what_a_killed_worker_was_doing_fails_once_and_everywhere() {
    let server = Server::start(&[]);
    let mut random = Random::new(SEED);
    let mut victims = Vec::new();
    for index in 0..VICTIMS {
        let mode = ["parts", "lines"][index % 2];
        let session = format!("victim-{index}");
        let Some(worker) = NodeWorker::start(&server, &session, &["--mode", mode]) else { return };
        victims.push(worker);
    }
    let _survivor = NodeWorker::start(&server, "survivor", &[]).unwrap();
    // A call goes to the worker with the fewest calls, so each worker gets two.
    let body = json!({
        "tool": "monitor_events",
        "arguments": {"every_ms": 2, "bytes": 50},
        "start": {"after_subscribers": 2},
    });
    let ids: Vec<String> = (0..2 * (VICTIMS + 1)).map(|_| execute(&server, &body)).collect();
    let followers: Vec<_> =
        ids.iter().map(|id| [follow(&server, id), follow(&server, id)]).collect();
    for id in &ids {
        wait_for(&server, id, |state| state["chunks"].as_u64().unwrap() > 0);
    }
    for victim in &mut victims {
        std::thread::sleep(Duration::from_millis(random.below(200)));
        victim.kill();
    }
    let is_failed = |id: &&String| state(&server, id)["state"] == "failed";
    while ids.iter().filter(is_failed).count() < 2 * VICTIMS {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (failed, running): (Vec<_>, Vec<_>) = ids.iter().partition(is_failed);
    assert_eq!((failed.len(), running.len()), (2 * VICTIMS, 2), "seed {SEED}");
    for id in &running {
        let before = state(&server, id)["chunks"].as_u64().unwrap();
        wait_for(&server, id, |state| state["chunks"].as_u64().unwrap() > before);
        let gone = ask(&server, "DELETE", &format!("/v1/executions/{id}"), "", &Value::Null);
        assert_eq!(gone.status, 202);
    }
    for (id, pair) in ids.iter().zip(followers) {
        let (wanted, error) = match failed.contains(&id) {
            true => ("failed", json!("its worker disconnected and did not return in time")),
            false => ("cancelled", Value::Null),
        };
        let told = pair.map(|follower| follower.join().unwrap());
        for events in &told {
            let ends = events.iter().filter(|event| event["event"] == "end");
            let ends: Vec<&Value> = ends.collect();
            assert_eq!(ends.len(), 1, "seed {SEED}");
            assert_eq!((&ends[0]["state"], &ends[0]["error"]), (&json!(wanted), &error));
            assert_eq!(ends[0]["missed_chunks"], 0);
        }
        assert_eq!(text(&told[0]), text(&told[1]), "both were told the same");
        for (index, line) in text(&told[0]).lines().enumerate() {
            let event: Value = serde_json::from_str(line).unwrap();
            assert_eq!(event["event"], format!("event {}", index + 1));
        }
    }
}

fn text(events: &[Value]) -> String {
    let chunks = events.iter().filter(|event| event["event"] == "chunk");
    chunks.map(|chunk| chunk["data"].as_str().unwrap()).collect()
}
