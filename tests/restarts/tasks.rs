//! Tasks of both eras of the Model Context Protocol are there after a kill, with their results.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::mcp::{Client, Era, two_shards};
use crate::served::Server;
use crate::world::{Folder, kill};

const HOUR_MS: u64 = 3_600_000;
const INVALID_PARAMS: i64 = -32_602;
pub const ANN: &str = "annannannannannannannannannannann";
pub const BOB: &str = "bobbobbobbobbobbobbobbobbobbobbob";

fn forever() -> Value {
    json!({"seconds": 3_600})
}

#[test]
fn a_task_of_the_handshake_era_has_the_same_result_after_a_kill() {
    find_tasks_again(Era::Handshake, &[]);
}

#[test]
fn a_task_of_the_stateless_era_has_the_same_result_after_a_kill() {
    find_tasks_again(Era::Stateless, &["--reactor", "mio"]);
}

fn find_tasks_again(era: Era, arguments: &[&str]) {
    let folder = Folder::new(&format!("tasks-{era:?}"));
    folder.write_file("long.txt", 3 << 20);
    let serve = || folder.serve(&[arguments, &["--conformance"]].concat());
    let server = serve();
    let client = Client::new(&server, era);
    let mut tasks = vec![
        client.begin(
            "slow_compute",
            json!({"seconds": 0, "label": "a \"quoted\" \u{1F622}"}),
            HOUR_MS,
        ),
        client.begin("failing_job", json!({}), HOUR_MS),
        client.begin("protocol_error_job", json!({}), HOUR_MS),
    ];
    if era == Era::Handshake {
        let chunks = json!({"chunks": 30, "delay_ms": 0});
        tasks.push(client.begin("slow_data_processor", chunks, HOUR_MS));
        tasks.push(client.begin("process_file", json!({"file_path": "long.txt"}), HOUR_MS));
    }
    let running = client.begin("slow_compute", forever(), HOUR_MS);
    tasks.iter().for_each(|task| client.finish(task));
    let before: Vec<Vec<String>> = tasks.iter().map(|task| client.tell(task)).collect();
    let session = client.session.clone();
    kill(server);

    for round in 0..2 {
        let server = serve();
        let mut client = Client::new(&server, era);
        for (task, before) in tasks.iter().zip(&before) {
            assert_eq!(&client.tell(task), before, "round {round}");
            assert_eq!(&client.tell(task), before, "round {round}, again");
        }
        check_cut_task(&client, &running);
        let unknown = client.ask_task("tasks/get", &format!("00{}", "f".repeat(32)));
        assert_eq!(unknown.error()["code"], INVALID_PARAMS);
        if era == Era::Handshake {
            client.session = session.clone(); // It has died with its process.
            assert_eq!(client.ask_task("tasks/get", &running).status, 404);
        }
        kill(server);
    }
}

/// Checks the answers about a task whose tool was running when the process was killed.
fn check_cut_task(client: &Client<'_>, task: &str) {
    let got = client.ask_task("tasks/get", task).result();
    assert_eq!(got["status"], "failed", "{got}");
    let cancelled = client.ask_task("tasks/cancel", task);
    match client.era {
        Era::Handshake => {
            assert_eq!(cancelled.error()["code"], INVALID_PARAMS);
            let result = client.ask_task("tasks/result", task).result();
            assert_eq!(result["isError"], true);
            let text = result["content"][0]["text"].as_str().unwrap();
            assert!(text.starts_with("restarted"), "{result}");
            let meta = &result["_meta"]["io.modelcontextprotocol/related-task"];
            assert_eq!(meta["taskId"], task);
        }
        Era::Stateless => {
            assert_eq!(cancelled.result()["resultType"], "complete");
            let text = got["error"]["message"].as_str().unwrap();
            assert!(text.starts_with("restarted"), "{got}");
            let updated = client.ask("tasks/update", json!({"taskId": task, "inputResponses": {}}));
            assert_eq!(updated.result()["resultType"], "complete");
        }
    }
}

#[test]
fn a_task_that_was_cancelled_is_cancelled_after_a_kill() {
    let folder = Folder::new("tasks-cancelled");
    for era in [Era::Handshake, Era::Stateless] {
        let server = folder.serve(&["--conformance"]);
        let client = Client::new(&server, era);
        let task = client.begin("slow_compute", forever(), HOUR_MS);
        client.ask_task("tasks/cancel", &task).result();
        let is_over = |server: &Server| {
            let listed: Value =
                serde_json::from_str(&server.ask("GET", "/v1/executions", "")).unwrap();
            let all = listed["executions"].as_array().unwrap();
            all.iter().all(|one| one["state"] == "cancelled")
        };
        while !is_over(&server) {
            std::thread::sleep(Duration::from_millis(20));
        }
        kill(server);
        let server = folder.serve(&["--conformance"]);
        let client = Client::new(&server, era);
        let got = client.ask_task("tasks/get", &task).result();
        assert_eq!(got["status"], "cancelled", "{era:?} {got}");
        kill(server);
    }
}

#[test]
fn a_task_is_kept_for_its_time_and_no_longer() {
    let folder = Folder::new("tasks-ttl");
    let server = folder.serve(&["--conformance"]);
    let client = Client::new(&server, Era::Handshake);
    let [short, long] =
        [3_000, HOUR_MS].map(|ttl_ms| client.begin("slow_compute", json!({"seconds": 0}), ttl_ms));
    client.finish(&long);
    kill(server);
    let server = folder.serve(&["--conformance"]);
    let client = Client::new(&server, Era::Handshake);
    while client.ask_task("tasks/get", &short).text.contains("completed") {
        std::thread::sleep(Duration::from_millis(100));
    }
    let found = client.ask_task("tasks/get", &long).result();
    assert_eq!((&found["status"], &found["ttl"]), (&json!("completed"), &json!(HOUR_MS)));
    assert_eq!(client.ask_task("tasks/get", &short).error()["code"], INVALID_PARAMS);
    assert_eq!(client.ask_task("tasks/result", &short).error()["code"], INVALID_PARAMS);
}

/// Starts a server that requires the tokens of Ann and Bob, with these further arguments.
pub fn start_guarded(folder: &Folder, further: &[&str]) -> Server {
    let path = folder.path().join("tokens");
    std::fs::write(&path, format!("ann {ANN}\nbob {BOB}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let mut arguments = vec!["--conformance", "--token-file", path.to_str().unwrap()];
    arguments.extend(further);
    folder.serve(&arguments)
}

fn listed(client: &Client<'_>) -> Vec<Value> {
    let result = client.ask("tasks/list", json!({})).result();
    result["tasks"].as_array().unwrap().clone()
}

#[test]
fn a_task_belongs_to_its_principal_and_is_listed_after_a_kill() {
    let folder = Folder::new("tasks-owners");
    let server = start_guarded(&folder, two_shards());
    // Each connection may come to another shard, and so may each session.
    let clients: Vec<Client<'_>> =
        (0..4).map(|_| Client::with_token(&server, Era::Handshake, ANN)).collect();
    let begin = |client: &Client<'_>| {
        client.begin("slow_compute", json!({"seconds": 0, "label": "ann"}), HOUR_MS)
    };
    let tasks: Vec<String> = clients.iter().map(begin).collect();
    let running = clients[0].begin("slow_compute", forever(), HOUR_MS);
    clients.iter().zip(&tasks).for_each(|(client, task)| client.finish(task));
    let own = |document: &Value| tasks.iter().any(|task| document["taskId"] == **task);
    let before: Vec<Value> = listed(&clients[0]).into_iter().filter(own).collect();
    assert_eq!(before.len(), tasks.len());
    kill(server);

    let server = start_guarded(&folder, two_shards());
    for _ in 0..4 {
        let bob = Client::with_token(&server, Era::Handshake, BOB);
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            for task in tasks.iter().chain([&running]) {
                assert_eq!(bob.ask_task(method, task).error()["code"], INVALID_PARAMS, "{method}");
            }
        }
        assert!(listed(&bob).is_empty());
    }
    for _ in 0..4 {
        let ann = Client::with_token(&server, Era::Handshake, ANN);
        let all = listed(&ann);
        let after: Vec<Value> = all.iter().filter(|document| own(document)).cloned().collect();
        assert_eq!(after, before);
        let cut = all.iter().find(|document| document["taskId"] == *running).unwrap();
        assert_eq!(cut["status"], "failed");
        for task in &tasks {
            let result = ann.ask_task("tasks/result", task).result();
            assert_eq!(result["content"][0]["text"], "ann took 0 s", "{result}");
        }
        // Nothing is listed twice when it is in memory again.
        assert_eq!(listed(&ann).len(), all.len());
    }
    kill(server);
}
