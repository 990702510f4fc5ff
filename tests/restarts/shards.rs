//! The same journal under servers with other numbers of shards.

use serde_json::{Value, json};

use crate::world::{Folder, fetch, inspect, kill, run};

#[test]
fn executions_are_found_whatever_the_number_of_shards() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("not run: one core only");
        return;
    }
    let folder = Folder::new("shards");
    let mut all: Vec<String> = Vec::new();
    for cpus in [&["--cpus", "0,1"][..], &[], &["--cpus", "0"], &["--cpus", "0,1"]] {
        let server = folder.serve(cpus);
        for id in &all {
            let (status, document) = inspect(&server, id);
            assert_eq!((status, &document["state"]), (200, &json!("completed")), "{cpus:?} {id}");
            let output = fetch(&server, &format!("/v1/executions/{id}/output"));
            assert_eq!(output.len(), 5 * 100, "{cpus:?} {id}");
        }
        // Connections are spread over the shards.
        for _ in 0..16 {
            let arguments = json!({"chunks": 5, "delay_ms": 0});
            all.push(run(&server, "slow_data_processor", arguments));
        }
        let listed: Value = serde_json::from_str(&server.ask("GET", "/v1/executions", "")).unwrap();
        let listed = listed["executions"].as_array().unwrap();
        assert_eq!(listed.len(), all.len(), "{cpus:?}");
        // One stream of executions from before, of all shards.
        let list = all[..8].join(",");
        let path = format!("/v1/events?executions={list}&from=start&format=ndjson");
        let body = String::from_utf8(fetch(&server, &path)).unwrap();
        assert_eq!(body.matches("\"event\":\"end\"").count(), 8, "{cpus:?}: {body}");
        assert_eq!(body.matches("\"event\":\"chunk\"").count(), 8 * 5);
        kill(server);
    }
}
