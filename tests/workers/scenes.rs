//! Three scenes with the example worker: a search in batches, an analysis with progress, and live
//! events until they are cancelled. Each runs in both of the worker's ways to deliver.

use serde_json::{Value, json};

use crate::client::{ask, execute, follow};
use crate::node::NodeWorker;
use crate::served::Server;

/// Runs a tool, which begins once it is followed, and returns its id and events.
fn call(server: &Server, tool: &str, arguments: Value) -> (String, Vec<Value>) {
    let start = json!({"after_subscribers": 1});
    let id = execute(server, &json!({"tool": tool, "arguments": arguments, "start": start}));
    let events = follow(server, &id).join().unwrap();
    (id, events)
}

fn of_kind<'e>(events: &'e [Value], name: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

fn end(events: &[Value]) -> &Value {
    assert_eq!(of_kind(events, "end").len(), 1);
    events.last().unwrap()
}

fn search(server: &Server) {
    let arguments = json!({"query": "door", "rows": 1_000, "batch": 100});
    let (_, events) = call(server, "search_large_dataset", arguments);
    let chunks = of_kind(&events, "chunk");
    assert_eq!(chunks.len(), 10, "each batch is a chunk");
    let mut found = Vec::new();
    for (index, chunk) in chunks.iter().enumerate() {
        assert_eq!((&chunk["seq"], &chunk["kind"]), (&json!(index + 1), &json!("json")));
        let batch: Value = serde_json::from_str(chunk["data"].as_str().unwrap()).unwrap();
        assert_eq!(batch["hasMore"], index < 9);
        found.extend(batch["results"].as_array().unwrap().clone());
    }
    let expected: Vec<Value> = (1..=1_000)
        .filter(|row| row % 3 == 0)
        .map(|row| json!(format!("door in row {row}")))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(end(&events)["state"], "completed");
}

fn analysis(server: &Server) {
    let (_, events) = call(server, "analyze_files", json!({"files": 7}));
    let steps: Vec<(f64, &str)> = of_kind(&events, "progress")
        .iter()
        .map(|event| (event["progress"].as_f64().unwrap(), event["message"].as_str().unwrap()))
        .collect();
    // Two notifications close together may be merged. The last one always comes.
    let all = [
        (0.2, "Analyzing files..."),
        (0.5, "Processing data..."),
        (0.8, "Generating report..."),
        (1.0, "Complete"),
    ];
    assert!(steps.iter().all(|step| all.contains(step)), "{steps:?}");
    assert!(steps.windows(2).all(|pair| pair[0].0 < pair[1].0), "{steps:?}");
    assert_eq!(steps.last(), Some(&all[3]));
    let chunks = of_kind(&events, "chunk");
    let report: Value = serde_json::from_str(chunks[0]["data"].as_str().unwrap()).unwrap();
    assert_eq!(report, json!({"status": "Complete", "files": 7, "findings": 21}));
    assert_eq!(end(&events)["state"], "completed");
}

fn live_events(server: &Server, worker: &NodeWorker) {
    let start = json!({"after_subscribers": 1});
    let body = json!({"tool": "monitor_events", "arguments": {"every_ms": 2}, "start": start});
    let id = execute(server, &body);
    let follower = follow(server, &id);
    crate::client::wait_for(server, &id, |state| state["chunks"].as_u64().unwrap() >= 5);
    let gone = ask(server, "DELETE", &format!("/v1/executions/{id}"), "", &Value::Null);
    assert_eq!(gone.status, 202);
    let events = follower.join().unwrap();
    assert_eq!(end(&events)["state"], "cancelled");
    worker.wait_for(&format!("cancelled {id}"));
    // The events come as lines, each once and in order.
    let text: String =
        of_kind(&events, "chunk").iter().map(|chunk| chunk["data"].as_str().unwrap()).collect();
    for (index, line) in text.lines().enumerate() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["event"], format!("event {}", index + 1));
    }
}

fn play(mode: &str) {
    let server = Server::start(&[]);
    let Some(worker) = NodeWorker::start(&server, mode, &["--mode", mode]) else { return };
    search(&server);
    analysis(&server);
    live_events(&server, &worker);
    let bad = json!({"tool": "analyze_files", "arguments": {"files": "many"}});
    assert_eq!(ask(&server, "POST", "/v1/executions", "", &bad).status, 400);
    search(&server); // The worker still works.
}

#[test]
fn a_node_worker_plays_the_scenes_with_a_request_for_each_part() {
    play("parts");
}

#[test]
fn a_node_worker_plays_the_scenes_with_lines_of_one_request() {
    play("lines");
}
