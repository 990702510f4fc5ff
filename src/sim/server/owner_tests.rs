//! Tests that the executions of another owner are invisible, over HTTP, in simulated time.

use std::time::Duration;

use super::script::Script;
use super::test_server::TestServer;
use crate::base::{ExecutionId, Principal};
use crate::engine::SubscribeSpec;
use crate::shard::ExecuteOptions;
use crate::stream::Policy;

const SCRIPT: Script =
    Script { seed: 7, chunk_count: 5, chunk_bytes_max: 8, fails: false, is_remote: false };

/// An execution that belongs to an owner, not started over HTTP.
fn run_for(test_server: &mut TestServer, owner: Principal) -> ExecutionId {
    let start =
        crate::engine::Start::AfterSubscribers { count: 99, deadline: Duration::from_secs(3_600) };
    let options = ExecuteOptions { owner, start, ..ExecuteOptions::default() };
    let arguments = serde_json::from_str(&SCRIPT.arguments().to_string()).unwrap();
    test_server.shards[0].execute("script", &arguments, options).unwrap()
}

/// The status and the body, without the parts of the head that depend on the time.
fn said(test_server: &mut TestServer, method: &str, path: &str, body: &str) -> (String, String) {
    let head = match body {
        "" => String::new(),
        body => format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()),
    };
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n{body}");
    let client = test_server.visit(&request);
    let heard = test_server.hear(client);
    test_server.world.client_close(client);
    let (head, body) = heard.split_once("\r\n\r\n").expect(&heard);
    (head[9..12].to_owned(), body.to_owned())
}

#[test]
fn what_belongs_to_somebody_else_is_answered_as_what_never_was() {
    let mut test_server = TestServer::new();
    let id = run_for(&mut test_server, Principal(1));
    let token = test_server.shards[0].inspect(id).unwrap().token.unwrap();
    let spec = SubscribeSpec { policy: Policy::Block, ..SubscribeSpec::default() };
    let subscriber = test_server.shards[0].subscribe(id, spec, |_| {}).unwrap();
    let own = test_server.run(SCRIPT, ",\"start\":{\"after_subscribers\":9}");
    let mut never = id;
    never.nonce ^= 1;
    let mut no_token = token;
    no_token.secret ^= 1;
    let paths = |id: ExecutionId, token| {
        [
            ("GET", format!("/v1/executions/{id}"), ""),
            ("DELETE", format!("/v1/executions/{id}"), ""),
            ("GET", format!("/v1/executions/{id}/result?wait_ms=0"), ""),
            ("GET", format!("/v1/executions/{id}/output"), ""),
            ("GET", format!("/v1/executions/{id}/events"), ""),
            ("GET", format!("/v1/executions/{id}/events?from=99"), ""),
            ("GET", format!("/v1/events?executions={id}"), ""),
            ("GET", format!("/v1/events?executions={own},{id}"), ""),
            ("POST", format!("/v1/executions/{id}/subscribers/{subscriber}/acks"), "{\"seq\":0}"),
            ("DELETE", format!("/v1/executions/{id}/subscribers/{subscriber}"), ""),
            ("DELETE", format!("/v1/executions/{own}/subscribers/{subscriber}"), ""),
            ("GET", format!("/v1/progress/{token}"), ""),
        ]
    };
    let foreign = paths(id, token);
    for ((method, path, body), (_, unknown, _)) in foreign.iter().zip(&paths(never, no_token)) {
        let got = said(&mut test_server, method, path, body);
        assert_eq!(got.0, "404", "{method} {path}");
        assert_eq!(got, said(&mut test_server, method, unknown, body), "{method} {path}");
    }
    let cursor = format!("GET /v1/events?executions={own},{id} HTTP/1.1\r\nHost: localhost\r\n");
    let client = test_server.visit(&format!("{cursor}Last-Event-ID: {own}:99:0,{id}:6:0\r\n\r\n"));
    assert!(test_server.hear(client).starts_with("HTTP/1.1 404 "), "the first would be 409");
    test_server.shards[0].subscribers(id).expect("nothing was done to it");
    assert_eq!(test_server.shards[0].subscribers(id).unwrap().len(), 1);
}

#[test]
fn lists_say_what_is_ones_own() {
    let mut test_server = TestServer::new();
    let foreign = run_for(&mut test_server, Principal(1)).to_string();
    for list in ["/v1/executions", "/v1/progress"] {
        let (_, body) = said(&mut test_server, "GET", list, "");
        assert!(body.ends_with(":[]}\n"), "{body}");
    }
    let own = test_server.run(SCRIPT, ",\"start\":{\"after_subscribers\":9}");
    for list in ["/v1/executions", "/v1/progress"] {
        let (status, body) = said(&mut test_server, "GET", list, "");
        assert_eq!(status, "200");
        assert!(body.contains(&own) && !body.contains(&foreign), "{body}");
    }
}
