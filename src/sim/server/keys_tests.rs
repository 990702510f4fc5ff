//! Tests of idempotency keys, in simulated time: a repeated request begins nothing twice, whichever
//! shard gets it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::test_server::{NOTHING, SHORT, TestServer};
use crate::limits;

/// Posts an execution with these header lines. Returns the status and the body.
fn post(server: &mut TestServer, query: &str, headers: &str, more: &str) -> (u16, String) {
    let arguments = SHORT.arguments();
    let body = format!("{{\"tool\":\"script\",\"arguments\":{arguments}{more}}}");
    let length = body.len();
    let client = server.visit(&format!(
        "POST /v1/executions{query} HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    ));
    let heard = server.hear(client);
    let (head, body) = heard.split_once("\r\n\r\n").expect(&heard);
    (head["HTTP/1.1 ".len()..][..3].parse().unwrap(), body.to_owned())
}

fn id_in(body: &str) -> String {
    let document: Value = serde_json::from_str(body).expect(body);
    document["execution"].as_str().expect(body).to_owned()
}

#[test]
fn a_repeated_request_gets_the_execution_of_the_first() {
    let mut server = TestServer::of(2);
    let mut begun = BTreeSet::new();
    for key in 0..12 {
        // The connections arrive at either shard. A key may have quotes.
        let headers =
            [format!("Idempotency-Key: k{key}\r\n"), format!("idempotency-key: \"k{key}\"\r\n")];
        let ids: Vec<String> = (0..6)
            .map(|at| {
                let (status, body) = post(&mut server, "", &headers[at % 2], NOTHING);
                assert_eq!(status, 201, "{body}");
                id_in(&body)
            })
            .collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        assert!(begun.insert(ids[0].clone()), "each key has an execution of its own");
    }
    let opened: u64 = server.shards.iter().map(|shard| shard.counters().executions_opened).sum();
    assert_eq!(opened, 12);
}

#[test]
fn another_request_with_the_key_is_refused() {
    let mut server = TestServer::of(2);
    let key = "Idempotency-Key: one\r\n";
    assert_eq!(post(&mut server, "", key, NOTHING).0, 201);
    let (status, body) = post(&mut server, "", key, ",\"retention_ms\":5");
    assert_eq!(status, 422, "{body}");
    assert!(body.contains("\"key_reused\"") && body.contains("\"idempotency-key\""), "{body}");
    for wrong in ["", "\"", "\"\"", "a b", "\u{e4}", &"x".repeat(256), "a\r\nIdempotency-Key: b"] {
        let headers = format!("Idempotency-Key: {wrong}\r\n");
        let (status, body) = post(&mut server, "", &headers, NOTHING);
        assert_eq!(status, 400, "{wrong}: {body}");
    }
}

#[test]
fn a_repeated_request_for_the_stream_gets_the_whole_stream() {
    let mut server = TestServer::new();
    let key = "Idempotency-Key: stream\r\n";
    let (_, first) = post(&mut server, "?format=ndjson", key, "");
    server.pass(limits::ATTACH_DEADLINE);
    let (status, again) = post(&mut server, "?format=ndjson", key, "");
    assert_eq!(status, 200);
    assert!(first.contains("\"event\":\"started\""), "{first}");
    assert_eq!(again.matches("\"event\":\"chunk\"").count(), SHORT.chunk_count as usize, "{again}");
    assert_eq!(server.shards[0].counters().executions_opened, 1);
}

/// The engine forgets such an execution before its end is counted and logged.
#[test]
fn an_execution_without_retention_is_counted_when_it_ends() {
    let mut server = TestServer::new();
    let (status, body) = post(&mut server, "", "", ",\"retention_ms\":0,\"hold\":\"newest\"");
    assert_eq!(status, 201, "{body}");
    server.pass(2 * limits::ATTACH_DEADLINE);
    let metrics = server.get("/metrics");
    let ended =
        "streamdoor_executions_ended_total{shard=\"0\",tool=\"script\",state=\"completed\"} 1";
    assert!(metrics.contains(ended), "{metrics}");
}

#[test]
fn a_key_is_forgotten_with_its_execution() {
    let mut server = TestServer::new();
    let key = "Idempotency-Key: old\r\n";
    let (_, first) = post(&mut server, "", key, ",\"retention_ms\":1");
    server.pass(2 * limits::ATTACH_DEADLINE + 2 * limits::RETENTION);
    let (status, second) = post(&mut server, "", key, ",\"retention_ms\":1");
    assert_eq!(status, 201);
    assert_ne!(id_in(&first), id_in(&second));
}
