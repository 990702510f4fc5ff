//! Executions whose chunks and end are in the log of the cluster before anybody sees them.

use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::reactor::Clock;

use crate::nodes::{Cluster, only};
use crate::served::{self, Server};
use crate::world::{self, Folder, events, inspect, kill};

const LOST: &str = "its node was lost: a";

fn replicated(node: &Server, chunks: u64, delay_ms: u64, more: Value) -> String {
    let arguments = json!({ "chunks": chunks, "delay_ms": delay_ms });
    let mut body = json!({ "tool": "slow_data_processor", "arguments": arguments });
    body["durability"] = "replicated".into();
    let more = more.as_object().cloned().unwrap_or_default();
    body.as_object_mut().unwrap().extend(more);
    world::execute(node, &body)
}

/// The chunks and the ends of a stream, without what is each subscriber's own.
fn told(events: &[Value]) -> Vec<(Value, Value, Value)> {
    // Progress is told by the newest report.
    let of = |event: &Value| {
        let name = event["event"].clone();
        (name, event["seq"].clone(), event["data"].clone())
    };
    let is_told = |event: &&Value| event["event"] != "started" && event["event"] != "progress";
    events.iter().filter(is_told).map(of).collect()
}

/// Follows an execution until its server is killed. Returns the number of the last chunk.
fn follow_until_cut(address: &str, id: &str) -> u64 {
    let head =
        world::request_head(&format!("GET /v1/executions/{id}/events?format=ndjson"), "", "");
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut socket, head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut socket, &mut answer); // It is cut.
    let text = String::from_utf8_lossy(&answer).into_owned();
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter_map(|event| event["seq"].as_u64()).max().unwrap_or(0)
}

#[test]
fn everybody_gets_the_same_on_every_node() {
    let Some(cluster) = Cluster::start("replicated") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    for (chunks, delay_ms) in [(0, 0), (1, 0), (300, 1), (20_000, 0)] {
        let id = replicated(&owner, chunks, delay_ms, json!({}));
        let (here, there) = (events(&owner, &id, "&policy=block"), events(&other, &id, ""));
        assert_eq!(here.last().unwrap()["state"], "completed", "{:?}", here.last());
        assert_eq!(only(&here, "chunk").len() as u64, chunks);
        assert_eq!(told(&here), told(&there));
        // It is there when it is over, and long after that.
        assert_eq!(told(&events(&owner, &id, "&policy=replay")), told(&there));
    }
}

#[test]
fn a_tool_waits_while_the_log_is_away_and_nobody_sees_more_than_the_log_has() {
    let Some(mut cluster) = Cluster::start("replicated-away") else { return };
    let owner = cluster.node("a", &["--cluster-lease", "60s"]);
    let running = replicated(&owner, 3_000, 1, json!({}));
    while inspect(&owner, &running).1["chunks"].as_u64().is_none_or(|chunks| chunks < 100) {}
    cluster.nats.kill();
    let short = replicated(&owner, 3, 0, json!({}));
    // What is on its way to the log may still be told.
    std::thread::sleep(Duration::from_millis(200));
    let before = inspect(&owner, &running).1["chunks"].clone();
    std::thread::sleep(Duration::from_millis(500));
    let (status, short_state) = inspect(&owner, &short);
    assert_eq!((status, &short_state["chunks"]), (200, &json!(0)), "{short_state}");
    let state = inspect(&owner, &running).1;
    assert_eq!((&state["chunks"], &state["state"]), (&before, &json!("running")));
    cluster.nats.start_again();
    for (id, chunks) in [(running, 3_000), (short, 3)] {
        let all = events(&owner, &id, "&policy=replay");
        assert_eq!(all.last().unwrap()["state"], "completed", "{:?}", all.last());
        assert_eq!((only(&all, "chunk").len(), only(&all, "gap").len()), (chunks, 0));
    }
}

#[test]
fn an_execution_whose_log_does_not_come_back_fails_after_its_deadline() {
    let Some(mut cluster) = Cluster::start("replicated-deadline") else { return };
    let owner = cluster.node("a", &["--cluster-lease", "60s"]);
    let id = replicated(&owner, 1_000_000, 1, json!({ "block_deadline_ms": 700 }));
    while inspect(&owner, &id).1["chunks"].as_u64().is_none_or(|chunks| chunks < 10) {}
    cluster.nats.kill();
    let begun = Clock::now();
    let end = events(&owner, &id, "&policy=replay").pop().unwrap();
    assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("failed")));
    let error = end["error"].as_str().unwrap();
    assert!(
        error.starts_with("cluster_away: the log of the cluster did not take chunk"),
        "{error}"
    );
    assert!(Clock::now().since(begun) >= Duration::from_millis(600));
    // Its log gets the same end.
    cluster.nats.start_again();
    let other = cluster.node("b", &["--cluster-lease", "60s"]);
    let there = loop {
        let there = events(&other, &id, "").pop().unwrap();
        if there["event"] == "end" {
            break there;
        }
    };
    assert_eq!((&there["state"], &there["error"]), (&json!("failed"), &json!(error)));
}

#[test]
fn what_was_seen_survives_the_node_and_the_node_says_the_same_afterwards() {
    let Some(cluster) = Cluster::start("replicated-lost") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let id = replicated(&owner, 1_000_000, 1, json!({}));
    let follower = {
        let (address, id) = (owner.address.clone(), id.clone());
        std::thread::spawn(move || follow_until_cut(&address, &id))
    };
    while inspect(&owner, &id).1["chunks"].as_u64().is_none_or(|chunks| chunks < 200) {}
    kill(owner);
    let seen = follower.join().unwrap();
    let there = events(&other, &id, "");
    let end = there.last().unwrap();
    assert_eq!((&end["state"], &end["error"]), (&json!("failed"), &json!(LOST)));
    assert!(only(&there, "chunk").len() as u64 >= seen && seen >= 200, "{seen}");
    // The disk of the lost node may have more. Nobody was given that.
    let owner = cluster.node("a", &[]);
    assert_eq!(told(&events(&owner, &id, "")), told(&there));
}

#[test]
fn what_no_log_takes_is_refused() {
    let alone = Server::start(&["--idle", "block"]);
    let body = json!({
        "tool": "slow_data_processor",
        "arguments": {"chunks": 1, "delay_ms": 0},
        "durability": "replicated",
    });
    let (status, answer) = served::ask(&alone.address, "POST", "/v1/executions", &body.to_string());
    assert!(status == 400 && answer.contains("\"no_journal\""), "{status} {answer}");
    let folder = Folder::new("replicated-alone");
    let alone = folder.serve(&["--idle", "block"]);
    let (status, answer) = served::ask(&alone.address, "POST", "/v1/executions", &body.to_string());
    assert!(status == 400 && answer.contains("\"no_cluster\""), "{status} {answer}");
}
