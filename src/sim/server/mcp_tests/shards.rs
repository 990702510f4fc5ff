//! Tests of servers of several shards: requests to one shard about executions of another.

use serde_json::{Value, json};

use super::client::{MOMENT, Mcp, ReceivedMessages, alone, slow};
use crate::base::ExecutionId;
use crate::sim::server::test_server::{self, TestServer};

#[test]
fn sessions_find_what_lives_on_other_shards() {
    let mut mcp = Mcp::of(TestServer::of(3));
    let ids: Vec<String> =
        (0..6).map(|_| mcp.test_server.run(test_server::SHORT, test_server::NOTHING)).collect();
    let shards: Vec<u8> = ids.iter().map(|id| id.parse::<ExecutionId>().unwrap().shard).collect();
    assert!(shards.iter().any(|shard| *shard != shards[0]), "{shards:?}");
    for _ in 0..4 {
        mcp.begin();
        let listed = mcp.ask("resources/list", json!({}));
        let listed = listed.answer()["result"]["resources"].as_array().unwrap().clone();
        assert!(listed.len() >= 6, "{listed:?}");
        for id in &ids {
            let uri = format!("streamdoor://executions/{id}");
            assert!(listed.iter().any(|resource| resource["uri"] == uri.as_str()));
            let read = mcp.ask("resources/read", json!({"uri": uri}));
            let text = read.answer()["result"]["contents"][0]["text"].as_str().unwrap();
            assert!(text.contains(id.as_str()), "{text}");
            assert_eq!(mcp.ask("ping", json!({})).answer()["result"], json!({}));
        }
        let params = json!({
            "name": "slow_data_processor",
            "arguments": slow(3, 1_000),
            "task": {},
        });
        let created = mcp.ask("tools/call", params);
        let id = json!({"taskId": created.answer()["result"]["task"]["taskId"]});
        mcp.begin(); // A task belongs to its owner, not to a session.
        assert_eq!(mcp.ask("tasks/get", id.clone()).answer()["result"]["status"], "working");
        assert_eq!(mcp.ask("tasks/cancel", id).answer()["result"]["status"], "cancelled");
    }
    // A request of a session that another shard answered has given its id back.
    let before = mcp.next_id;
    for _ in 0..3 {
        mcp.next_id = before;
        for id in &ids {
            let uri = json!({"uri": format!("streamdoor://executions/{id}")});
            assert_eq!(mcp.ask("resources/read", uri).answer()["error"], Value::Null);
        }
    }
}

#[test]
fn calls_of_virtual_tools_live_where_their_workers_are() {
    let mut mcp = Mcp::of(TestServer::of(3));
    let body = r#"{"description":"d","input_schema":{"type":"object"}}"#;
    let put = mcp.test_server.visit(&format!(
        "PUT /v1/virtual-tools/echo HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert!(mcp.test_server.hear(put).starts_with("HTTP/1.1 201 "));
    let worker = mcp
        .test_server
        .visit("GET /v1/tool-calls/stream HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: w\r\n\r\n");
    mcp.test_server.hear(worker);
    for round in 0..6 {
        mcp.begin();
        let meta = if round == 5 { alone() } else { json!({"progressToken": 5}) };
        let params = json!({"name": "echo", "arguments": {}, "_meta": meta});
        let message = mcp.request("tools/call", params);
        let client = mcp.post(&message);
        let told = mcp.test_server.hear(worker);
        let at = told.find("\"id\":\"").expect(&told) + 6;
        let id = told[at..at + 26].to_owned();
        if round % 2 == 1 && round < 5 {
            let cancel = json!({
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": mcp.next_id},
            });
            mcp.post(&cancel);
            mcp.test_server.pass(MOMENT);
            assert!(mcp.test_server.hear(worker).contains("event: cancel"));
            let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
            assert!(heard.is_over && heard.answers().is_empty(), "{heard:?}");
            continue;
        }
        let mut heard = ReceivedMessages::default();
        let mut client = client;
        if round == 2 {
            // After the cut it resumes there.
            let part = json!({"tool_call_id": id, "content": "a"}).to_string();
            deliver(&mut mcp, &part);
            heard = ReceivedMessages::read(&mcp.test_server.hear(client));
            mcp.test_server.world.client_reset(client);
            mcp.test_server.pass(MOMENT);
            client = mcp.resume(heard.last_id());
        }
        let part = json!({"tool_call_id": id, "content": "b", "complete": true}).to_string();
        deliver(&mut mcp, &part);
        mcp.test_server.pass(MOMENT);
        let rest = ReceivedMessages::read(&mcp.test_server.hear(client));
        heard.messages.extend(rest.messages);
        let text = heard.answer()["result"]["content"][0]["text"].as_str().unwrap();
        assert_eq!(text, if round == 2 { "ab" } else { "b" });
    }
}

fn deliver(mcp: &mut Mcp, part: &str) {
    let client = mcp.test_server.visit(&format!(
        "POST /v1/tool-results/stream HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: w\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{part}",
        part.len()
    ));
    let heard = mcp.test_server.hear(client);
    assert!(heard.starts_with("HTTP/1.1 200 "), "{heard}");
    mcp.test_server.world.client_close(client);
}
