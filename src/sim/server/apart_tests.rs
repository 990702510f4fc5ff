//! Tests of one connection and executions of two shards: durations and behaviour, in simulated
//! time.

use std::time::Duration;

use serde_json::Value;

use super::script::{self, Script, ThreadPlayer};
use super::test_server::{NOTHING, SHORT, TestServer, get};
use crate::base::{ExecutionId, Random};
use crate::limits;
use crate::sim::network::SimClient;

const LONG: Script =
    Script { seed: 11, chunk_count: 500, chunk_bytes_max: 64, fails: false, is_remote: false };
const BIG: Script =
    Script { seed: 3, chunk_count: 400, chunk_bytes_max: 1 << 10, fails: false, is_remote: false };

/// Runs a script on that shard, although the world spreads connections. Returns the execution's id.
fn run_on(test_server: &mut TestServer, shard: u8, script: Script, more: &str) -> String {
    run_tool_on(test_server, shard, ("script", script), more)
}

fn run_tool_on(test_server: &mut TestServer, shard: u8, run: (&str, Script), more: &str) -> String {
    loop {
        let id = test_server.run_tool(run.0, run.1, more);
        if id.parse::<ExecutionId>().unwrap().shard == shard {
            return id;
        }
        let gone = test_server
            .visit(&format!("DELETE /v1/executions/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert!(test_server.hear(gone).starts_with("HTTP/1.1 20"));
        test_server.pass(limits::RETENTION + Duration::from_secs(1));
    }
}

/// Follows both executions on the shard of the first.
fn follow(test_server: &mut TestServer, ids: [&str; 2], query: &str, head: &str) -> SimClient {
    let [first, second] = ids;
    test_server.visit(&format!(
        "GET /v1/events?executions={first},{second}&{query} HTTP/1.1\r\n\
         Host: localhost\r\n{head}\r\n"
    ))
}

fn last_id(heard: &str) -> &str {
    heard.rsplit("id: ").next().and_then(|rest| rest.lines().next()).unwrap()
}

fn events_of(heard: &str, id: &str) -> Vec<Value> {
    let lines = heard.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["execution"] == id).collect()
}

#[test]
fn a_reader_for_a_connection_that_takes_nothing_is_let_go_at_its_deadline() {
    let mut test_server = TestServer::of(2);
    let silent = run_on(&mut test_server, 0, SHORT, NOTHING);
    let held = ",\"hold\":\"until_read\",\"block_deadline_ms\":20000";
    let big = run_on(&mut test_server, 1, BIG, held);
    let client = follow(&mut test_server, [&silent, &big], "policy=block", "");
    test_server.pass(Duration::from_secs(15));
    let heard = test_server.get(&format!("/v1/executions/{big}"));
    assert!(heard.contains("\"held_back\":true"), "{heard}");
    assert!(!heard.contains("\"held_back_by\":[]"), "{heard}");
    assert!(heard.contains("\"place\":\"remote\""), "{heard}");
    test_server.pass(Duration::from_secs(10));
    let heard = test_server.get(&format!("/v1/executions/{big}"));
    assert!(heard.contains("\"subscribers\":[]"), "{heard}");
    let mut heard = String::new();
    for _ in 0..400 {
        heard += &test_server.hear(client);
        test_server.pass(Duration::from_millis(1));
    }
    let end = heard.find("event: end\n").expect("it is told why");
    assert!(heard[end..].contains("\"state\":\"detached\",\"reason\":\"stall\""), "{heard}");
    assert_eq!(heard.matches("event: end\n").count(), 1); // The silent one goes on.
    let heard = test_server.get(&format!("/v1/executions/{silent}"));
    assert!(heard.contains("\"place\":\"local\""), "{heard}");
}

#[test]
fn its_place_is_kept_for_the_grace_and_no_longer() {
    for is_back in [true, false] {
        let mut test_server = TestServer::of(2);
        let silent = run_on(&mut test_server, 0, SHORT, NOTHING);
        let long = run_on(&mut test_server, 1, LONG, ",\"hold\":\"until_read\"");
        let client = follow(&mut test_server, [&silent, &long], "policy=block", "");
        let heard = test_server.hear(client);
        test_server.world.client_reset(client);
        test_server.pass(limits::RECONNECT_GRACE - Duration::from_secs(1));
        for id in [&silent, &long] {
            let status = test_server.get(&format!("/v1/executions/{id}"));
            assert!(status.contains("\"lost\":true"), "{status}");
        }
        if is_back {
            let last = format!("Last-Event-ID: {}\r\n", last_id(&heard));
            let back = follow(&mut test_server, [&silent, &long], "policy=block", &last);
            let heard = test_server.hear(back);
            assert_eq!(heard.matches("event: started\n").count(), 2, "{heard}");
            assert!(!heard.contains("event: gap\n"), "{heard}");
        } else {
            test_server.pass(Duration::from_secs(2));
        }
        for id in [&silent, &long] {
            let status = test_server.get(&format!("/v1/executions/{id}"));
            assert!(!status.contains("\"lost\":true"), "{status}");
        }
    }
}

#[test]
fn a_stream_over_two_shards_ends_although_a_thread_waits_when_it_joins() {
    let mut test_server = TestServer::of(2);
    for shard in &mut test_server.shards {
        shard.run_jobs_by_hand();
        shard.tools_mut().insert(script::spec_on_thread(), script::prepare_on_thread).unwrap();
    }
    let silent = run_on(&mut test_server, 0, SHORT, NOTHING);
    let big = run_tool_on(&mut test_server, 1, (script::ON_THREAD, BIG), "");
    let jobs = std::iter::from_fn(|| test_server.shards[1].next_job());
    let mut thread = jobs.last().map(|job| ThreadPlayer::new(*job));
    let client = test_server.visit(&get(&format!("/v1/executions/{silent}")));
    assert!(test_server.hear(client).contains("\"running\""));
    // The thread fills its ring while its shard sleeps, and the request is there when it wakes up.
    test_server.absent = Some(1);
    let mut random = Random::new(1);
    for _ in 0..100 {
        thread = thread.and_then(|thread| thread.play(&mut random));
    }
    test_server.say(client, &get(&format!("/v1/events?executions={silent},{big}&policy=drop")));
    test_server.absent = None;
    let mut heard = String::new();
    for _ in 0..1_000 {
        test_server.pass(Duration::from_millis(1));
        heard += &test_server.hear(client);
        thread = thread.and_then(|thread| thread.play(&mut random));
    }
    let status = test_server.get(&format!("/v1/executions/{big}"));
    assert!(thread.is_none(), "the thread waits, and nobody holds it back: {status}; {heard}");
    assert_eq!(events_of(&heard, &big).last().unwrap()["state"], "completed");
}

/// Two executions, and a client that follows both, on a connection of the first one's shard. The
/// other shard has no turn.
fn asked_of_an_absent_shard(policy: &str) -> (TestServer, SimClient, [String; 2]) {
    let mut test_server = TestServer::of(2);
    let silent = run_on(&mut test_server, 0, SHORT, NOTHING);
    let long = run_on(&mut test_server, 1, LONG, ",\"hold\":\"until_read\"");
    let client = test_server.visit(&get(&format!("/v1/executions/{silent}")));
    assert!(test_server.hear(client).contains("\"running\""));
    test_server.absent = Some(1);
    test_server
        .say(client, &get(&format!("/v1/events?executions={silent},{long}&policy={policy}")));
    (test_server, client, [silent, long])
}

/// Asserts that none of these executions has a subscriber.
fn assert_unfollowed(test_server: &mut TestServer, ids: &[String]) {
    for id in ids {
        let status = test_server.get(&format!("/v1/executions/{id}"));
        assert!(status.contains("\"subscribers\":[]"), "{status}");
    }
}

#[test]
fn a_shard_that_does_not_answer_is_not_waited_for_without_end() {
    let (mut test_server, client, ids) = asked_of_an_absent_shard("block");
    test_server.pass(limits::JOIN_DEADLINE - Duration::from_secs(1));
    assert_eq!(test_server.hear(client), "");
    test_server.pass(Duration::from_secs(2));
    let heard = test_server.hear(client);
    assert!(heard.starts_with("HTTP/1.1 503 ") && heard.contains("retry-after"), "{heard}");
    // Its reply comes late: when the reconnect grace is over, no subscriber is left.
    test_server.absent = None;
    test_server.pass(limits::RECONNECT_GRACE + Duration::from_secs(1));
    assert_unfollowed(&mut test_server, &ids);
    // The connection goes on.
    test_server.say(client, &get("/healthz"));
    assert!(test_server.hear(client).starts_with("HTTP/1.1 200 "));
}

#[test]
fn who_leaves_before_the_answer_leaves_nobody_behind() {
    let (mut test_server, client, ids) = asked_of_an_absent_shard("drop");
    test_server.world.client_reset(client);
    test_server.pass(Duration::from_millis(10));
    test_server.absent = None;
    test_server.pass(Duration::from_millis(10));
    assert_unfollowed(&mut test_server, &ids);
}

#[test]
fn chunks_from_another_shard_wait_for_company() {
    const DELAY: Duration = Duration::from_millis(3);
    let mut test_server = TestServer::of(2);
    let silent = run_on(&mut test_server, 0, SHORT, NOTHING);
    let few = Script { chunk_count: 40, ..LONG }; // Fewer than `block` may lag by.
    let starts = ",\"start\":{\"after_subscribers\":1,\"deadline_ms\":3600000}";
    for (delay, is_prompt) in [("", true), ("&coalesce_us=3000&coalesce_bytes=1000000", false)] {
        let id = run_on(&mut test_server, 1, few, starts);
        let query = format!("policy=block{delay}");
        let client = follow(&mut test_server, [&silent, &id], &query, "");
        let (mut heard, mut first_at) = (String::new(), None);
        while !heard.contains("event: end\n") {
            heard += &test_server.hear(client);
            if heard.contains("event: chunk\n") && first_at.is_none() {
                first_at = Some(test_server.world.now());
            }
            test_server.pass(Duration::from_micros(100));
        }
        let events = events_of(&heard, &id);
        let chunks = events.iter().filter(|event| event["event"] == "chunk");
        let published: Vec<u64> = chunks.map(|chunk| chunk["mono_ns"].as_u64().unwrap()).collect();
        assert_eq!(published.len(), 40);
        let waited_ns = first_at.unwrap().nanos() - published[0];
        let last = published[39];
        assert!(last > published[0] + DELAY.as_nanos() as u64, "the end comes first");
        assert_eq!(waited_ns < DELAY.as_nanos() as u64, is_prompt, "{waited_ns} ns");
    }
}

#[test]
fn who_was_told_of_the_end_of_one_is_told_so_with_each_id() {
    let mut test_server = TestServer::of(2);
    let silent = run_on(&mut test_server, 0, SHORT, NOTHING);
    let short = run_on(&mut test_server, 1, SHORT, "");
    for ids in [[&silent, &short], [&short, &silent]] {
        let mut last = String::new();
        for round in 0..3 {
            let client = follow(&mut test_server, [ids[0], ids[1]], "policy=drop", &last);
            test_server.pass(Duration::from_secs(1));
            let heard = test_server.hear(client);
            let started_count = if round == 0 { 2 } else { 1 };
            assert_eq!(heard.matches("event: started\n").count(), started_count, "{heard}");
            let cursor = last_id(&heard).split(',').find(|cursor| cursor.starts_with(&short));
            let is_end = |cursor: &str| cursor.contains(":5:") && cursor.ends_with(":end");
            assert!(cursor.is_some_and(is_end), "{heard}");
            last = format!("Last-Event-ID: {}\r\n", last_id(&heard));
            test_server.world.client_reset(client);
        }
    }
}
