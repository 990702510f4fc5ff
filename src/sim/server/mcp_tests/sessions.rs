//! Tests of sessions: their lifetime, and the notifications that belong to no call.

use std::time::Duration;

use serde_json::json;

use super::client::{MOMENT, Mcp, slow};
use crate::limits;

#[test]
fn a_session_that_is_not_used_is_forgotten_and_one_that_is_used_is_not() {
    let mut mcp = Mcp::begun();
    let (old, _) = (mcp.session.clone(), mcp.begin());
    let used = mcp.session.clone();
    mcp.test_server.pass(limits::MCP_SESSION_IDLE / 2);
    assert_eq!(mcp.ask("ping", json!({})).answer()["result"], json!({}));
    mcp.test_server.pass(limits::MCP_SESSION_IDLE / 2 + Duration::from_secs(1));
    mcp.session = old;
    assert_eq!(mcp.ask("ping", json!({})).status, "404");
    mcp.session = used;
    assert_eq!(mcp.ask("ping", json!({})).status, "200");
    let session = mcp.session.clone().unwrap();
    let leave = format!("DELETE /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {session}\r\n");
    let client = mcp.test_server.visit(&format!("{leave}\r\n"));
    assert!(mcp.test_server.hear(client).starts_with("HTTP/1.1 204 "));
    assert_eq!(mcp.ask("ping", json!({})).status, "404");
}

#[test]
fn abandoned_sessions_take_the_places_of_each_other() {
    let mut mcp = Mcp::begun();
    let first = mcp.session.clone();
    for _ in 0..limits::MCP_SESSIONS_MAX {
        mcp.begin();
    }
    let last = mcp.session.clone();
    mcp.session = first;
    assert_eq!(mcp.ask("ping", json!({})).status, "404");
    mcp.session = last;
    assert_eq!(mcp.ask("ping", json!({})).status, "200");
}

#[test]
fn a_session_has_one_stream_of_its_own_and_is_told_of_other_tools_there() {
    let mut mcp = Mcp::begun();
    let session = mcp.session.clone().unwrap();
    let get = format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\
         Mcp-Session-Id: {session}\r\n\r\n"
    );
    let stream = mcp.test_server.visit(&get);
    assert!(mcp.test_server.hear(stream).contains("text/event-stream"));
    let second = mcp.test_server.visit(&get);
    assert!(mcp.test_server.hear(second).starts_with("HTTP/1.1 409 "));
    let body = r#"{"description":"d","input_schema":{"type":"object"}}"#;
    let put = mcp.test_server.visit(&format!(
        "PUT /v1/virtual-tools/echo HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert!(mcp.test_server.hear(put).starts_with("HTTP/1.1 201 "));
    let heard = mcp.test_server.hear(stream);
    assert!(heard.contains("notifications/tools/list_changed"), "{heard}");
    let listed = mcp.ask("tools/list", json!({}));
    let tools = listed.answer()["result"]["tools"].as_array().unwrap().clone();
    assert!(tools.iter().any(|tool| tool["name"] == "echo"));
    mcp.test_server.world.client_close(stream);
    mcp.test_server.pass(MOMENT);
    let third = mcp.test_server.visit(&get);
    assert!(mcp.test_server.hear(third).contains("text/event-stream"));
}

#[test]
fn who_subscribes_to_an_execution_is_told_when_it_changes() {
    let mut mcp = Mcp::begun();
    let session = mcp.session.clone().unwrap();
    let stream = mcp.test_server.visit(&format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\
         Mcp-Session-Id: {session}\r\n\r\n"
    ));
    mcp.test_server.hear(stream);
    let _call = mcp.call(slow(20, 100), json!({}));
    let listed = mcp.ask("resources/list", json!({}));
    let uri = listed.answer()["result"]["resources"][0]["uri"].clone();
    let output = format!("{}/output", uri.as_str().unwrap());
    let done = mcp.ask("resources/subscribe", json!({"uri": output}));
    assert_eq!(done.answer()["result"], json!({}));
    mcp.test_server.pass(Duration::from_secs(5));
    let heard = mcp.test_server.hear(stream);
    let count = heard.matches("notifications/resources/updated").count();
    assert!((2..=4).contains(&count), "{count}: {heard}");
    let read = mcp.ask("resources/read", json!({"uri": output}));
    let text = read.answer()["result"]["contents"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text.len(), 400);
    let never = json!({"uri": format!("streamdoor://executions/{}", "0".repeat(26))});
    let missing = mcp.ask("resources/read", never);
    assert_eq!(missing.answer()["error"]["code"], -32002);
}
