//! Two principals whose tools and workers have the same names. Neither receives anything of the
//! other's.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::test_server::{ANN, Asking, BOB, TestServer};

/// Connects the worker `w` of the principal with this token, and reads the first line of its
/// stream.
fn worker(server: &TestServer, token: &str) -> BufReader<TcpStream> {
    let asking = Asking::new("GET", "/v1/tool-calls/stream").header("X-Session-ID: w");
    let mut stream = BufReader::new(asking.token(token).send(&server.address));
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
    stream
}

/// Returns the next call for this worker.
fn next_call(worker: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut line = String::new();
        assert!(worker.read_line(&mut line).unwrap() > 0, "its stream has ended");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).unwrap();
        }
    }
}

fn put(server: &TestServer, token: &str, description: &str) -> u16 {
    let body = json!({"description": description, "input_schema": {"type": "object"}});
    Asking::new("PUT", "/v1/virtual-tools/echo").token(token).body(&body).status(&server.address)
}

fn deliver(server: &TestServer, token: &str, call: &Value, content: &str) -> u16 {
    let body = json!({"tool_call_id": call, "content": content, "complete": true});
    let asking = Asking::new("POST", "/v1/tool-results/stream").header("X-Session-ID: w");
    asking.token(token).body(&body).status(&server.address)
}

#[test]
fn tools_workers_and_calls_are_ones_own() {
    for shard_count in [1, 2] {
        let server = TestServer::new(shard_count);
        assert_eq!([put(&server, ANN, "of ann"), put(&server, BOB, "of bob")], [201, 201]);
        let mut calls = Vec::new();
        for (token, name) in [(ANN, "ann"), (BOB, "bob")] {
            let listed = server.get(token, "/v1/virtual-tools");
            assert_eq!(listed["virtual_tools"].as_array().map(Vec::len), Some(1), "{listed}");
            assert!(listed.to_string().contains(&format!("of {name}")), "{listed}");
            let body = json!({"tool": "echo", "arguments": {"of": name}});
            let asking = Asking::new("POST", "/v1/executions").token(token).body(&body);
            let (status, _, created) = asking.answer(&server.address);
            assert_eq!(status, 201, "{created}");
            let created: Value = serde_json::from_str(&created).unwrap();
            calls.push(created["execution"].clone());
        }
        // Bob's worker connects first, and receives only Bob's call.
        for (token, call, name) in [(BOB, &calls[1], "bob"), (ANN, &calls[0], "ann")] {
            let told = next_call(&mut worker(&server, token));
            assert_eq!((&told["id"], &told["arguments"]["of"]), (call, &json!(name)), "{told}");
        }
        assert_eq!(deliver(&server, BOB, &calls[0], "forged"), 404);
        assert_eq!(deliver(&server, ANN, &calls[1], "forged"), 404);
        let _workers = [worker(&server, ANN), worker(&server, BOB)];
        for (token, call) in [(ANN, &calls[0]), (BOB, &calls[1])] {
            assert_eq!(deliver(&server, token, call, "own"), 200);
            let path = format!("/v1/executions/{}/result?wait_ms=10000", call.as_str().unwrap());
            assert_eq!(server.get(token, &path)["data"], "own");
        }
        // If one principal removes its tool, the other's stays.
        let delete = Asking::new("DELETE", "/v1/virtual-tools/echo");
        assert_eq!(delete.token(BOB).status(&server.address), 204);
        assert_eq!(delete.token(BOB).status(&server.address), 404);
        assert!(server.get(ANN, "/v1/tools").to_string().contains("of ann"));
        assert!(!server.get(BOB, "/v1/tools").to_string().contains("\"echo\""));
    }
}
