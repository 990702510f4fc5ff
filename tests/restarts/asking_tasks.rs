//! Tasks whose tools have questions are there after a kill, and their clients go on answering.

use std::collections::HashSet;

use serde_json::{Value, json};
use streamdoor::ExecutionId;

use crate::mcp::{Client, Era, two_shards};
use crate::served::Server;
use crate::tasks::{ANN, BOB, start_guarded};
use crate::world::{Folder, kill, post};

const HOUR_MS: u64 = 3_600_000;

fn accept(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

/// Answers the question with this text.
fn answer(message: &str) -> Value {
    match message {
        "What is your name?" => accept(json!({"name": "Ada"})),
        _ => accept(json!({"confirm": true})),
    }
}

fn state(client: &Client<'_>, task: &str) -> Value {
    client.ask_task("tasks/get", task).result()["status"].clone()
}

/// The tools of all executions that are listed, besides those of [`kill_synced`].
fn executed(server: &Server) -> Vec<String> {
    let listed: Value = serde_json::from_str(&server.ask("GET", "/v1/executions", "")).unwrap();
    let all = listed["executions"].as_array().unwrap();
    let tools = all.iter().map(|one| one["tool"].as_str().unwrap().to_owned());
    tools.filter(|tool| tool != "slow_data_processor").collect()
}

/// Kills a server when the disk has everything before. An execution under `synced` is answered
/// then, and the journal of each shard is one log.
fn kill_synced(server: Server) {
    kill_synced_by(server, 1, "");
}

/// Like [`kill_synced`], for a server with so many shards, by a principal.
fn kill_synced_by(server: Server, shard_count: usize, token: &str) {
    let call = json!({
        "tool": "slow_data_processor",
        "arguments": {"chunks": 1, "delay_ms": 0},
        "durability": "synced",
    });
    let mut headers = "Content-Type: application/json\r\n".to_owned();
    if !token.is_empty() {
        headers += &format!("Authorization: Bearer {token}\r\n");
    }
    let mut shards = HashSet::new();
    while shards.len() < shard_count {
        let created = post(&server, "/v1/executions", &headers, &call.to_string());
        assert_eq!(created.status, 201, "{}", String::from_utf8_lossy(&created.body));
        let created: Value = serde_json::from_slice(&created.body).unwrap();
        let id: ExecutionId = created["execution"].as_str().unwrap().parse().unwrap();
        shards.insert(id.shard);
    }
    kill(server);
}

#[test]
fn a_task_of_the_stateless_era_goes_on_with_its_questions_after_a_kill() {
    let folder = Folder::new("asking-stateless");
    let serve = || folder.serve(&["--conformance"]);
    let server = serve();
    let client = Client::new(&server, Era::Stateless);
    let task = client.begin("multi_input", json!({}), HOUR_MS);
    let idle = client.begin("confirm_delete", json!({"filename": "a \"b\""}), HOUR_MS);
    let before = client.ask_task("tasks/get", &task).result();
    assert_eq!(before["status"], "input_required", "{before}");
    let keys = |document: &Value| -> Vec<String> {
        document["inputRequests"].as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(keys(&before), ["user_name", "confirmation"]);
    kill_synced(server);

    let server = serve();
    let client = Client::new(&server, Era::Stateless);
    let mut after = client.ask_task("tasks/get", &task).result();
    after["lastUpdatedAt"] = before["lastUpdatedAt"].clone(); // It is restored as it was asked.
    assert_eq!(after, before);
    let update = |client: &Client<'_>, key: &str, answer: Value| {
        let params = json!({"taskId": task, "inputResponses": {key: answer}});
        client.ask("tasks/update", params).result()
    };
    update(&client, "user_name", accept(json!({"name": "Ada"})));
    kill_synced(server);

    // The answer is not asked for again.
    let server = serve();
    let client = Client::new(&server, Era::Stateless);
    let half = client.ask_task("tasks/get", &task).result();
    assert_eq!(keys(&half), ["confirmation"], "{half}");
    update(&client, "confirmation", accept(json!({"confirm": true})));
    client.finish(&task);
    let done = client.ask_task("tasks/get", &task).text;
    assert!(done.contains("Hello, Ada!"), "{done}");
    kill_synced(server);

    for _ in 0..2 {
        let server = serve();
        let client = Client::new(&server, Era::Stateless);
        assert_eq!(client.ask_task("tasks/get", &task).text, done);
        assert_eq!(state(&client, &idle), "input_required");
        assert_eq!(executed(&server), ["multi_input"], "what was only asked is no execution");
        kill_synced(server);
    }
}

#[test]
fn a_task_of_the_handshake_era_goes_on_with_its_questions_after_a_kill() {
    let folder = Folder::new("asking-handshake");
    let serve = || folder.serve(&["--conformance", "--reactor", "mio"]);
    let server = serve();
    let client = Client::new(&server, Era::Handshake);
    let task = client.begin("multi_input", json!({}), HOUR_MS);
    let mut asked = Vec::new();
    let result = client.await_result(&task, |message| {
        asked.push(message.to_owned());
        (asked.len() < 2).then(|| answer(message)) // The client leaves one question open.
    });
    assert!(result.is_none() && asked.len() == 2, "{asked:?}");
    kill_synced(server);

    let server = serve();
    let client = Client::new(&server, Era::Handshake);
    assert_eq!(state(&client, &task), "input_required");
    let mut again = Vec::new();
    let result = client.await_result(&task, |message| {
        again.push(message.to_owned());
        Some(answer(message))
    });
    assert_eq!(again, asked[1..], "it is asked what it has not answered");
    let result = result.expect("it has answered everything");
    assert_eq!(result["content"][0]["text"], "Hello, Ada!", "{result}");
    let done = client.tell(&task);
    kill_synced(server);

    let server = serve();
    let client = Client::new(&server, Era::Handshake);
    assert_eq!(client.tell(&task), done);
    kill_synced(server);
}

#[test]
fn a_task_that_ends_before_its_tool_runs_has_the_same_end_after_a_kill() {
    for era in [Era::Handshake, Era::Stateless] {
        let folder = Folder::new(&format!("asking-ended-{era:?}"));
        let serve = || folder.serve(&["--conformance"]);
        let server = serve();
        let client = Client::new(&server, era);
        let cancelled = client.begin("confirm_delete", json!({"filename": "a"}), HOUR_MS);
        client.ask_task("tasks/cancel", &cancelled).result();
        assert_eq!(state(&client, &cancelled), "cancelled");
        // Its arguments are wrong, which its tool says before it runs.
        let wrong = client.begin("slow_compute", json!({"seconds": "soon"}), HOUR_MS);
        let before = [client.tell(&cancelled), client.tell(&wrong)];
        assert!(before[1].last().unwrap().contains("seconds"), "{before:?}");
        kill_synced(server);
        for round in 0..2 {
            let server = serve();
            let client = Client::new(&server, era);
            assert_eq!(state(&client, &cancelled), "cancelled", "{era:?}");
            let result = |told: &[String]| -> Value {
                let message: Value = serde_json::from_str(told.last().unwrap()).unwrap();
                message["result"]["content"].clone()
            };
            assert_eq!(result(&client.tell(&cancelled)), result(&before[0]), "{era:?} {round}");
            assert_eq!(client.tell(&wrong), before[1], "{era:?} {round}");
            kill_synced(server);
        }
    }
}

#[test]
fn a_task_with_questions_belongs_to_its_principal_whatever_the_number_of_shards() {
    let folder = Folder::new("asking-owners");
    let server = start_guarded(&folder, two_shards());
    let ann = || Client::with_token(&server, Era::Stateless, ANN);
    // Each connection may come to another shard.
    let tasks: Vec<String> =
        (0..6).map(|_| ann().begin("multi_input", json!({}), HOUR_MS)).collect();
    kill_synced_by(server, two_shards()[1].split(',').count(), ANN);

    let server = start_guarded(&folder, &["--cpus", "0"]);
    let [ann, bob] = [ANN, BOB].map(|token| Client::with_token(&server, Era::Stateless, token));
    let answers = json!({
        "user_name": accept(json!({"name": "Ada"})),
        "confirmation": accept(json!({"confirm": true})),
    });
    for task in &tasks {
        assert_eq!(state(&ann, task), "input_required");
        for method in ["tasks/get", "tasks/cancel"] {
            assert_eq!(bob.ask_task(method, task).error()["code"], -32_602);
        }
        let params = json!({"taskId": task, "inputResponses": answers});
        assert_eq!(bob.ask("tasks/update", params.clone()).error()["code"], -32_602);
        ann.ask("tasks/update", params).result();
        ann.finish(task);
        let done = ann.ask_task("tasks/get", task).text;
        assert!(done.contains("Hello, Ada!"), "{done}");
    }
    kill(server);
}

#[test]
fn a_task_whose_tool_is_gone_fails_when_it_is_answered() {
    let folder = Folder::new("asking-gone");
    let server = folder.serve(&["--conformance"]);
    let client = Client::new(&server, Era::Stateless);
    let task = client.begin("multi_input", json!({}), HOUR_MS);
    kill_synced(server);
    let server = folder.serve(&[]);
    let client = Client::new(&server, Era::Stateless);
    let asked = client.ask_task("tasks/get", &task).result();
    let answers = asked["inputRequests"].as_object().unwrap().keys();
    let answers: Value = answers.map(|key| (key.clone(), answer(""))).collect();
    client.ask("tasks/update", json!({"taskId": task, "inputResponses": answers})).result();
    let failed = client.ask_task("tasks/get", &task).result();
    assert_eq!(failed["status"], "failed", "{failed}");
    assert_eq!(failed["error"]["message"], "unknown tool: multi_input");
    kill_synced(server);
    let server = folder.serve(&[]);
    let client = Client::new(&server, Era::Stateless);
    assert_eq!(client.ask_task("tasks/get", &task).result(), failed);
    kill_synced(server);
}

#[test]
fn a_task_whose_time_is_over_is_not_asked_after_a_kill() {
    let folder = Folder::new("asking-ttl");
    let server = folder.serve(&["--conformance"]);
    let client = Client::new(&server, Era::Handshake);
    let task = client.begin("confirm_delete", json!({"filename": "a"}), 1_000);
    assert_eq!(state(&client, &task), "input_required");
    kill_synced(server);
    std::thread::sleep(std::time::Duration::from_secs(1));
    for _ in 0..2 {
        let server = folder.serve(&["--conformance"]);
        let client = Client::new(&server, Era::Handshake);
        assert_eq!(client.ask_task("tasks/get", &task).error()["code"], -32_602);
        assert!(executed(&server).is_empty(), "its record is removed");
        kill_synced(server);
    }
}
