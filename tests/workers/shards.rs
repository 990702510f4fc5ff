//! Several shards: on every connection, tools are known and calls find their workers.

use serde_json::{Value, json};

use crate::client::{Worker, ask, execute, put_tool, wait_for};
use crate::served::Server;

#[test]
fn tools_and_workers_are_found_from_every_shard() {
    let server = Server::start(&["--cpus", "0,1"]);
    put_tool(&server, "echo");
    let mut worker = Worker::connect(&server, "w");
    for round in 0..12 {
        // Each request has a connection of its own, whose shard the kernel chooses.
        let tools = ask(&server, "GET", "/v1/tools", "", &Value::Null).body.to_string();
        assert!(tools.contains("\"name\":\"echo\""), "{tools}");
        let id = execute(&server, &json!({"tool": "echo", "arguments": {"round": round}}));
        let call = worker.call();
        assert_eq!((&call["id"], &call["arguments"]["round"]), (&json!(id), &json!(round)));
        let part = json!({"tool_call_id": id, "content": "done", "complete": true});
        let answer = worker.deliver(&server, &part);
        assert_eq!(answer.status, 200, "{}", answer.body);
        wait_for(&server, &id, |state| state["state"] == "completed");
    }
    let gone = ask(&server, "DELETE", "/v1/virtual-tools/echo", "", &Value::Null);
    assert_eq!(gone.status, 204);
    for _ in 0..6 {
        let body = json!({"tool": "echo"});
        assert_eq!(ask(&server, "POST", "/v1/executions", "", &body).status, 404);
    }
}
