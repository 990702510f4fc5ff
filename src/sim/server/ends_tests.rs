//! Tests of ends, in simulated time: a server that stops, an execution that is cancelled, a
//! subscriber that is removed.

use std::time::Duration;

use serde_json::Value;

use super::script::Script;
use super::test_server::{NOTHING, SHORT, TestServer, get};
use crate::base::ExecutionId;
use crate::limits;
use crate::sim::network::SimClient;
use crate::sim::world::EAGAIN;

const SECOND: Duration = Duration::from_secs(1);
/// More than a connection and its server hold.
const BIG: Script = Script {
    seed: 3,
    chunk_count: 2_000,
    chunk_bytes_max: 1 << 10,
    fails: false,
    is_remote: false,
};
const AT_ONCE: &str = ",\"start\":{\"after_subscribers\":1}";

fn delete(test_server: &mut TestServer, path: &str) -> String {
    let client = test_server.visit(&format!("DELETE {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let heard = test_server.hear(client);
    test_server.world.client_close(client);
    heard
}

/// The state of an execution, as the server reports it.
fn state(test_server: &mut TestServer, id: &str) -> String {
    let heard = test_server.get(&format!("/v1/executions/{id}"));
    let (_, body) = heard.split_once("\r\n\r\n").expect(&heard);
    let document: Value = serde_json::from_str(body).expect(body);
    document["state"].as_str().expect(body).to_owned()
}

/// The events of a stream, from the texts behind `data: `.
fn events(heard: &str) -> Vec<Value> {
    let lines = heard.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// An execution of each of two shards, and a connection of the first shard that follows both.
fn both(test_server: &mut TestServer) -> ([String; 2], SimClient) {
    let mut ids = [None, None];
    while ids.contains(&None) {
        let id = test_server.run(SHORT, NOTHING);
        let shard = usize::from(id.parse::<ExecutionId>().unwrap().shard);
        if ids[shard].is_some() {
            delete(test_server, &format!("/v1/executions/{id}"));
            test_server.pass(limits::RETENTION + SECOND);
        } else {
            ids[shard] = Some(id);
        }
    }
    let ids = ids.map(|id| id.expect("as above"));
    // The connection moves to the shard of the first.
    let client = test_server.visit(&get(&format!("/v1/events?executions={},{}", ids[0], ids[1])));
    (ids, client)
}

fn connection_count(test_server: &TestServer) -> u32 {
    test_server.shards.iter().map(|shard| shard.connection_count()).sum()
}

#[test]
fn a_server_that_stops_closes_a_connection_when_its_response_ends() {
    for first in [0, 1] {
        let mut test_server = TestServer::of(2);
        let (_, client) = both(&mut test_server);
        let idle = test_server.visit(&get("/healthz")); // It waits for another request.
        assert!(test_server.hear(idle).starts_with("HTTP/1.1 200 "));
        assert!(test_server.hear(client).contains("event: started\n"));
        // One shard has closed its connections before the other one sends its end.
        test_server.shards[first].drain();
        test_server.pass(SECOND / 10);
        assert!(connection_count(&test_server) > 0);
        test_server.shards[1 - first].drain();
        test_server.pass(SECOND / 10);
        let heard = test_server.hear(client);
        let ends = events(&heard).iter().filter(|event| event["reason"] == "shutdown").count();
        assert_eq!(ends, 2, "{heard}");
        assert!(heard.ends_with("<end>"), "{heard}");
        assert_eq!(test_server.hear(idle), "<end>");
        // Both clients still have their own ends open.
        assert_eq!(connection_count(&test_server), 0);
    }
}

#[test]
fn a_server_that_stops_waits_for_no_client_that_has_said_nothing_more() {
    let mut test_server = TestServer::new();
    let head = "GET /v1/executions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let told = test_server.visit(head); // It does not close its side.
    let id = test_server.run(SHORT, NOTHING);
    let path = format!("/v1/executions/{id}/events");
    let stream = test_server
        .visit(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    // The rest of this request may come at any time: a close could cut off its reply.
    let begun =
        test_server.visit("GET /v1/executions HTTP/1.1\r\nContent-Length: nonsense\r\n\r\n");
    test_server.shards[0].drain();
    test_server.pass(SECOND / 10);
    assert!(test_server.hear(told).ends_with("<end>"));
    assert!(test_server.hear(stream).ends_with("<end>"));
    assert!(test_server.hear(begun).starts_with("HTTP/1.1 400"));
    assert_eq!(connection_count(&test_server), 1);
    test_server.pass(limits::LINGER + SECOND);
    assert_eq!(connection_count(&test_server), 0);
}

/// The machine has slept: the cancellation and the keep-alive are due in the same turn.
#[test]
fn a_stream_that_ends_when_its_sign_of_life_is_due_ends() {
    let mut test_server = TestServer::new();
    let id = test_server.run(BIG, ",\"start\":{\"after_subscribers\":2,\"deadline_ms\":3600000}");
    let client = test_server.visit(&get(&format!("/v1/executions/{id}/events")));
    test_server.pass(SECOND);
    let other = test_server.world.connect(&test_server.address).unwrap();
    test_server.turn();
    let request = format!("DELETE /v1/executions/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(test_server.world.client_send(other, request.as_bytes()), Ok(request.len()));
    test_server.world.advance_to(test_server.world.now() + 2 * limits::KEEP_ALIVE);
    test_server.turn();
    let heard = test_server.hear(client);
    assert_eq!(events(&heard).last().unwrap()["state"], "cancelled", "{heard}");
}

/// An execution that was cancelled while a client reads it under `block`.
fn cancelled_with_a_reader() -> (TestServer, String, SimClient) {
    let mut test_server = TestServer::new();
    let id = test_server.run(BIG, AT_ONCE);
    let client = test_server.visit(&get(&format!("/v1/executions/{id}/events?policy=block")));
    test_server.pass(SECOND);
    assert!(delete(&mut test_server, &format!("/v1/executions/{id}")).starts_with("HTTP/1.1 202"));
    (test_server, id, client)
}

#[test]
fn a_cancelled_execution_waits_for_a_reader_that_stands_still_no_longer_than_it_says() {
    let (mut test_server, id, client) = cancelled_with_a_reader();
    test_server.pass(limits::CANCELLED_STALL / 2);
    assert_eq!(state(&mut test_server, &id), "draining");
    test_server.pass(limits::CANCELLED_STALL);
    assert_eq!(state(&mut test_server, &id), "cancelled");
    let mut heard = String::new();
    for _ in 0..200 {
        heard += &test_server.hear(client);
        test_server.pass(Duration::from_millis(1));
    }
    assert_eq!(events(&heard).last().unwrap()["reason"], "stall");
}

#[test]
fn a_reader_that_makes_progress_gets_all_of_a_cancelled_execution() {
    let (mut test_server, _, client) = cancelled_with_a_reader();
    let (mut heard, mut buffer, mut waited) = (Vec::new(), [0; 4_096], Duration::ZERO);
    while !heard.ends_with(b"0\r\n\r\n") {
        match test_server.world.client_receive(client, &mut buffer) {
            Ok(count) => heard.extend_from_slice(&buffer[..count]),
            Err(error) => assert_eq!(error, EAGAIN),
        }
        test_server.pass(limits::CANCELLED_STALL * 3 / 4);
        waited += limits::CANCELLED_STALL * 3 / 4;
    }
    assert!(waited > limits::CANCELLED_STALL * 4, "{waited:?}");
    let events = events(&String::from_utf8_lossy(&heard));
    let seqs: Vec<u64> = events.iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let end = events.last().unwrap();
    assert_eq!((&end["state"], &end["missed_chunks"]), (&"cancelled".into(), &0.into()), "{end}");
}

#[test]
fn who_removes_a_subscriber_is_told_the_same_on_every_shard() {
    let mut test_server = TestServer::of(2);
    let (ids, client) = both(&mut test_server);
    let started: Vec<Value> = events(&test_server.hear(client))
        .into_iter()
        .filter(|event| event["limits"].is_object())
        .collect();
    assert_eq!(started.len(), 2, "{started:?}");
    for event in &started {
        let (id, subscriber) = (&event["execution"], &event["subscriber"]);
        let (id, subscriber) = (id.as_str().unwrap(), subscriber.as_str().unwrap());
        assert!(ids.iter().any(|known| known == id));
        let path = format!("/v1/executions/{id}/subscribers/{subscriber}");
        assert!(delete(&mut test_server, &path).starts_with("HTTP/1.1 204"));
    }
    test_server.pass(SECOND / 10);
    let heard = test_server.hear(client);
    let reasons: Vec<Value> = events(&heard).iter().map(|event| event["reason"].clone()).collect();
    assert_eq!(reasons, ["removed", "removed"], "{heard}");
}

#[test]
fn output_whose_beginning_is_gone_is_refused_with_the_chunk_that_is_still_there() {
    let mut test_server = TestServer::new();
    let id = test_server.run(BIG, ",\"hold\":\"newest\"");
    test_server.pass(SECOND);
    let heard = test_server.get(&format!("/v1/executions/{id}"));
    let (_, body) = heard.split_once("\r\n\r\n").unwrap();
    let tail_seq = serde_json::from_str::<Value>(body).unwrap()["tail_seq"].as_u64().expect(body);
    assert!(tail_seq > 2, "{body}");
    let heard = test_server.get(&format!("/v1/executions/{id}/output"));
    assert!(heard.starts_with("HTTP/1.1 410 "), "{heard}");
    let (_, body) = heard.split_once("\r\n\r\n").unwrap();
    let error = serde_json::from_str::<Value>(body).unwrap()["error"].clone();
    assert_eq!((&error["code"], &error["limit"]), (&"no_longer_held".into(), &tail_seq.into()));
    assert!(error.get("field").is_none(), "the request has no such parameter: {error}");
    // The message names a request that works.
    let next = format!("/v1/executions/{id}/events?from={tail_seq}");
    assert!(error["message"].as_str().unwrap().contains(&next), "{error}");
    let client = test_server.visit(&get(&next));
    assert!(test_server.hear(client).starts_with("HTTP/1.1 200 "));
}
