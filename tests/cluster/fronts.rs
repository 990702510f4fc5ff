//! Runs of LangGraph and tasks of A2A, on another node than the one that runs them.

use serde_json::{Value, json};

use crate::nodes::Cluster;
use crate::responses::SCRIPT;
use crate::scripted::ModelServer;
use crate::served::{Server, asked};
use crate::world::{get, post};

const A2A: &str = "A2A-Version: 1.0\r\n";

/// The events of a stream, each with its number.
fn events(node: &Server, path: &str, headers: &str) -> Vec<(u64, String)> {
    let text = String::from_utf8(get(node, path, headers).body).unwrap();
    let frames = text.split_terminator("\n\n").filter(|frame| frame.starts_with("id: "));
    let frames = frames.map(|frame| {
        let id = frame.lines().next().unwrap().trim_start_matches("id: ");
        (id.parse().unwrap(), frame.to_owned())
    });
    frames.collect()
}

fn begin(node: &Server, path: &str, headers: &str, body: &Value) -> Value {
    let (status, text) = asked::ask(&node.address, "POST", path, headers, &body.to_string());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn runs_and_tasks_are_followed_and_read_and_cancelled_on_another_node() {
    let Some(cluster) = Cluster::start("fronts") else { return };
    let model = ModelServer::following("cluster-fronts", SCRIPT);
    let described = format!("demo=chat,{},demo", model.base_url);
    let owner = cluster.node("a", &["--model", &described]);
    let other = cluster.node("b", &["--model", &described]);
    let tools = json!(["slow_data_processor"]);
    let run = json!({
        "assistant_id": "demo", "input": "Count", "config": { "configurable": { "tools": tools } },
    });
    let run = begin(&owner, "/langgraph/runs", "", &run);
    let id = run["run_id"].as_str().unwrap();
    let path = format!("/langgraph/threads/{id}/runs/{id}");
    let stream = format!("{path}/stream?stream_mode=updates,messages-tuple,tools,custom");
    // Live, and from the log.
    let there = events(&other, &stream, "");
    assert_eq!(there, events(&owner, &stream, ""));
    assert!(there.last().unwrap().1.contains("\"status\":\"success\""), "{there:?}");
    for node in [&owner, &other] {
        for at in [0, there.len() / 2, there.len() - 2] {
            let behind = format!("Last-Event-ID: {}\r\n", there[at].0);
            assert_eq!(events(node, &stream, &behind), there[at + 1..], "{at}");
        }
    }
    let read = |node: &Server, path: &str, headers: &str| -> Value {
        let response = get(node, path, headers);
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        serde_json::from_slice(&response.body).unwrap()
    };
    let joined = read(&other, &format!("{path}/join"), "");
    assert_eq!(joined, read(&owner, &format!("{path}/join"), ""));
    assert_eq!(joined["messages"].as_array().unwrap().len(), 4, "{joined}");
    assert_eq!(read(&other, &path, "")["status"], "success");

    let message = json!({
        "message": {
            "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "Count" }],
            "metadata": { "tools": tools },
        },
        "configuration": { "returnImmediately": true },
    });
    let task = || {
        let sent = begin(&owner, "/a2a/message:send", A2A, &message);
        sent["task"]["id"].as_str().unwrap().to_owned()
    };
    let id = task();
    let path = format!("/a2a/tasks/{id}");
    let there = events(&other, &format!("{path}:subscribe"), A2A);
    assert!(there[0].1.contains("{\"task\":"), "{there:?}");
    assert!(there.last().unwrap().1.contains("TASK_STATE_COMPLETED"), "{there:?}");
    let here = read(&owner, &path, A2A);
    assert_eq!(read(&other, &path, A2A)["artifacts"], here["artifacts"]);
    assert_eq!(here["artifacts"].as_array().unwrap().len(), 4, "{here}");
    let cancelled = task();
    let response = post(&other, &format!("/a2a/tasks/{cancelled}:cancel"), A2A, "");
    let said: Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(said["status"]["state"], "TASK_STATE_CANCELED", "{said}");
}
