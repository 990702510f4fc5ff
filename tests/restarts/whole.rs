//! Everything that was answered before a kill is there after it, and is whole.

use serde_json::{Value, json};

use crate::world::{Folder, events, execute, fetch, get, inspect, kill, run};

#[test]
fn every_answered_execution_is_there_with_its_output_and_one_end() {
    find_everything_again("auto");
}

#[test]
fn every_answered_execution_is_there_without_io_uring() {
    find_everything_again("mio");
}

fn find_everything_again(reactor: &str) {
    let folder = Folder::new(&format!("whole-{reactor}"));
    let content = folder.write_file("long.txt", 3 << 20);
    let serve = || folder.serve(&["--reactor", reactor]);
    let server = serve();
    let short = run(&server, "slow_data_processor", json!({"chunks": 30, "delay_ms": 0}));
    let long = run(&server, "process_file", json!({"file_path": "long.txt"}));
    let running = json!({"chunks": 100_000, "delay_ms": 5});
    let running = execute(&server, &json!({"tool": "slow_data_processor", "arguments": running}));
    let output = |server: &_, id: &str| fetch(server, &format!("/v1/executions/{id}/output"));
    let short_output = output(&server, &short);
    assert!(output(&server, &long) == content);
    let before: Vec<Value> = events(&server, &long, "");
    kill(server);

    for round in 0..2 {
        let server = serve();
        let listed: Value = serde_json::from_str(&server.ask("GET", "/v1/executions", "")).unwrap();
        let listed = listed["executions"].as_array().unwrap();
        let state_of = |id: &str| {
            let found: Vec<&Value> = listed
                .iter()
                .filter(|one| one["execution"] == id)
                .map(|one| &one["state"])
                .collect();
            assert_eq!(found.len(), 1, "{id} in {listed:?}");
            found[0].as_str().unwrap().to_owned()
        };
        assert_eq!(state_of(&short), "completed");
        assert_eq!(state_of(&long), "completed");
        assert_eq!(state_of(&running), "failed");
        assert_eq!(output(&server, &short), short_output, "round {round}");
        assert!(output(&server, &long) == content);

        // The same chunks with the same numbers and times, and one end.
        let after = events(&server, &long, "");
        let chunks = |all: &[Value]| -> Vec<Value> {
            let chunks = all.iter().filter(|event| event["event"] == "chunk").cloned();
            let without_total = |mut chunk: Value| {
                chunk.as_object_mut().unwrap().remove("total_chunks"); // What is left to come.
                chunk
            };
            chunks.map(without_total).collect()
        };
        assert!(chunks(&before) == chunks(&after));
        let ends = |all: &[Value]| all.iter().filter(|event| event["event"] == "end").count();
        assert_eq!((ends(&after), &after.last().unwrap()["state"]), (1, &json!("completed")));

        let failed = events(&server, &running, "");
        let end = failed.last().unwrap();
        assert_eq!((ends(&failed), &end["state"]), (1, &json!("failed")));
        assert!(end["error"].as_str().unwrap().starts_with("restarted"), "{end}");
        assert_eq!(chunks(&failed).len() as u64, end["chunks"].as_u64().unwrap());
        assert_eq!(end["missed_chunks"], 0);
        let (status, document) = inspect(&server, &running);
        assert_eq!((status, &document["state"]), (200, &json!("failed")));
        assert_eq!(document["created_at"], listed_at(listed, &running));
        kill(server);
    }
}

fn listed_at(listed: &[Value], id: &str) -> Value {
    listed.iter().find(|one| one["execution"] == id).unwrap()["created_at"].clone()
}

#[test]
fn a_progress_token_is_known_after_a_kill() {
    let folder = Folder::new("tokens");
    let server = folder.serve(&[]);
    let begin = |chunks: u32| {
        let arguments = json!({"chunks": chunks, "delay_ms": 5});
        let body = json!({"tool": "slow_data_processor", "arguments": arguments});
        let created = server.ask("POST", "/v1/executions", &body.to_string());
        let created: Value = serde_json::from_str(&created).unwrap();
        let member = |name: &str| created[name].as_str().unwrap().to_owned();
        (member("execution"), member("token"))
    };
    let (done, running) = (begin(2), begin(100_000));
    assert_eq!(events(&server, &done.0, "").last().unwrap()["event"], "end");
    kill(server);

    let server = folder.serve(&[]);
    for ((execution, token), state) in [(&done, "completed"), (&running, "failed")] {
        let progress = server.ask("GET", &format!("/v1/progress/{token}"), "");
        let progress: Value = serde_json::from_str(&progress).unwrap();
        assert_eq!(
            (&progress["execution"], &progress["state"]),
            (&json!(execution), &json!(state))
        );
    }
    let unknown = format!("/v1/progress/{}", "0".repeat(done.1.len()));
    assert_eq!(get(&server, &unknown, "").status, 404);
}

#[test]
fn a_reader_that_comes_after_the_end_loses_nothing() {
    let folder = Folder::new("late");
    let content = folder.write_file("big.txt", 24 << 20);
    let server = folder.serve(&[]);
    // Nobody reads while it runs, and its ring has room for a small part of it.
    let body = json!({"tool": "process_file", "arguments": {"file_path": "big.txt"}});
    let id = execute(&server, &body);
    let result = format!("/v1/executions/{id}/result?wait_ms=60000");
    let result: Value = serde_json::from_str(&server.ask("GET", &result, "")).unwrap();
    assert_eq!(result["state"], "completed");
    // A document has the end of it, and says so.
    let data = result["data"].as_str().unwrap();
    assert_eq!((data.len(), &result["complete"]), (1 << 20, &json!(false)));
    assert!(content.ends_with(data.as_bytes()));
    let all = events(&server, &id, "");
    let kinds = |name: &str| all.iter().filter(|event| event["event"] == name).count();
    assert_eq!((kinds("gap"), kinds("end")), (0, 1));
    let data: String = all.iter().filter_map(|event| event["data"].as_str()).collect();
    assert!(data.as_bytes() == content);
    let before = server.memory_bytes("VmRSS");
    for _ in 0..4 {
        assert!(fetch(&server, &format!("/v1/executions/{id}/output")) == content);
    }
    let grown = server.memory_bytes("VmRSS").saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more");
}
