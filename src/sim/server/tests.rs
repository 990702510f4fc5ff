//! Tests of the server's durations and behaviour, in simulated time.

use std::time::Duration;

use super::script::Script;
use super::test_server::{NOTHING, SHORT, TestServer, get};
use crate::limits;
use crate::shard::ShardConfig;

#[test]
fn streams_say_that_they_live_when_they_have_said_nothing_else() {
    let mut test_server = TestServer::new();
    let id = test_server.run(SHORT, NOTHING);
    let sse = test_server.visit(&get(&format!("/v1/executions/{id}/events")));
    let ndjson = test_server.visit(&get(&format!("/v1/executions/{id}/events?format=ndjson")));
    assert!(test_server.hear(sse).contains("event: started\n"));
    assert!(test_server.hear(ndjson).contains("\"event\":\"started\""));
    test_server.pass(limits::KEEP_ALIVE * 10);
    let (sse, ndjson) = (test_server.hear(sse), test_server.hear(ndjson));
    let comments = sse.matches(":\n\n").count();
    assert!((9..=11).contains(&comments), "{comments} in {sse:?}");
    assert!(
        sse.replace(":\n\n", "").chars().all(|c| c == '\r' || c == '\n' || c.is_ascii_hexdigit())
    );
    let blanks = ndjson.matches("1\r\n\n\r\n").count();
    assert!((9..=11).contains(&blanks), "{blanks} in {ndjson:?}");
}

#[test]
fn a_request_does_not_wait_for_all_followers_of_a_stream() {
    const FOLLOWERS: usize = 20;
    let mut test_server = TestServer::new();
    test_server.shards[0].guests.set_followers_per_look(3);
    let gate = format!(",\"start\":{{\"after_subscribers\":{}}}", FOLLOWERS + 1);
    let id = test_server.run(SHORT, &gate);
    let events = get(&format!("/v1/executions/{id}/events"));
    let followers: Vec<_> = (0..FOLLOWERS).map(|_| test_server.visit(&events)).collect();
    followers.iter().for_each(|&client| assert!(test_server.hear(client).contains("started")));
    // The last follower opens the gate, and somebody asks at the same time.
    let opener = test_server.world.connect(&test_server.address).unwrap();
    let asker = test_server.world.connect(&test_server.address).unwrap();
    let question = get(&format!("/v1/executions/{id}"));
    for (client, text) in [(opener, &events), (asker, &question)] {
        assert_eq!(test_server.world.client_send(client, text.as_bytes()), Ok(text.len()));
    }
    let (mut heard, mut waiting) = (vec![String::new(); FOLLOWERS], FOLLOWERS);
    let (mut answer, mut waited) = (String::new(), 0);
    for _ in 0..1_000 {
        if !test_server.turn_once() {
            test_server.pass(Duration::from_micros(100));
        }
        let mut sent_count = 0;
        for (text, &follower) in heard.iter_mut().zip(&followers) {
            let now = test_server.take(follower);
            waiting -= usize::from(text.is_empty() && !now.is_empty());
            sent_count += usize::from(!now.is_empty());
            text.push_str(&now);
        }
        if waiting > 0 {
            assert!(sent_count <= 3, "{sent_count} in one turn");
        }
        if answer.is_empty() {
            answer = test_server.take(asker);
            waited = waiting;
        }
    }
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(waited >= FOLLOWERS - 6, "it was answered when {waited} followers had nothing");
    for text in &heard {
        assert_eq!(text.matches("event: chunk\n").count(), 5, "{text}");
        assert_eq!(text.matches("event: end\n").count(), 1, "{text}");
    }
}

#[test]
fn a_result_is_waited_for_and_no_longer_than_asked() {
    let mut test_server = TestServer::new();
    let id = test_server.run(SHORT, NOTHING);
    let client = test_server.visit(&get(&format!("/v1/executions/{id}/result?wait_ms=20000")));
    test_server.pass(Duration::from_secs(19));
    assert_eq!(test_server.hear(client), "");
    test_server.pass(Duration::from_secs(2));
    let heard = test_server.hear(client);
    assert!(heard.starts_with("HTTP/1.1 202 ") && heard.contains("\"running\""), "{heard}");
    test_server.say(client, &get(&format!("/v1/executions/{id}/result?wait_ms=20000")));
    let gone = test_server
        .visit(&format!("DELETE /v1/executions/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert!(test_server.hear(gone).starts_with("HTTP/1.1 202 "));
    let heard = test_server.hear(client);
    assert!(heard.starts_with("HTTP/1.1 200 ") && heard.contains("\"cancelled\""), "{heard}");
    let whole = test_server.run(SHORT, "");
    test_server.pass(Duration::from_secs(5));
    let heard = test_server.get(&format!("/v1/executions/{whole}/result"));
    assert!(heard.contains("\"complete\":true"), "{heard}");
}

#[test]
fn results_that_fill_the_memory_take_nothing_of_what_block_promises() {
    let mut test_server = TestServer::with_executions(64, 1, 4 << 20, ShardConfig::default());
    let promise = |test_server: &mut TestServer| {
        let id = test_server.run(SHORT, ",\"policy\":\"block\"");
        let heard = test_server.get(&format!("/v1/executions/{id}/events?policy=block"));
        let at = heard.find("\"replay\":").expect(&heard);
        let promise = heard[at..].split_inclusive('}').next().unwrap().to_owned();
        test_server.pass(Duration::from_secs(1));
        assert!(test_server.get(&format!("/v1/executions/{id}")).contains("\"completed\""));
        promise
    };
    let first = promise(&mut test_server);
    for at in 0..32 {
        assert_eq!(promise(&mut test_server), first, "{at}");
    }
    let counters = test_server.shards[0].counters();
    assert!(counters.executions_evicted > 0, "memory was enough for all of them");
}

#[test]
fn who_cancels_an_execution_whose_ring_others_wait_for_is_not_told_that_it_never_was() {
    let mut test_server = TestServer::with_rings(1, 16 << 10, ShardConfig::default());
    let first = test_server.run(SHORT, NOTHING);
    let ids: Vec<String> = (0..7).map(|_| test_server.run(SHORT, NOTHING)).collect();
    let mut is_queued = |id: &String| {
        test_server.get(&format!("/v1/executions/{id}")).contains("\"state\":\"queued\"")
    };
    let last = ids.iter().find(|id| is_queued(id)).expect("there is no ring for all of them");
    let client = test_server
        .visit(&format!("DELETE /v1/executions/{first} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let heard = test_server.hear(client);
    assert!(heard.starts_with("HTTP/1.1 202 ") && heard.contains("\"cancelled\""), "{heard}");
    let status = test_server.get(&format!("/v1/executions/{last}"));
    assert!(status.contains("\"state\":\"running\""), "{status}");
}

#[test]
fn a_block_subscriber_that_takes_nothing_is_detached_at_its_deadline() {
    let mut test_server = TestServer::new();
    let big = Script {
        seed: 3,
        chunk_count: 400,
        chunk_bytes_max: 1 << 10,
        fails: false,
        is_remote: false,
    };
    let id = test_server.run(big, ",\"hold\":\"until_read\",\"block_deadline_ms\":20000");
    let client = test_server.visit(&get(&format!("/v1/executions/{id}/events?policy=block")));
    test_server.pass(Duration::from_secs(15));
    let heard = test_server.get(&format!("/v1/executions/{id}"));
    assert!(heard.contains("\"held_back\":true"), "{heard}");
    assert!(!heard.contains("\"held_back_by\":[]"), "{heard}");
    test_server.pass(Duration::from_secs(10));
    let heard = test_server.get(&format!("/v1/executions/{id}"));
    assert!(heard.contains("\"subscribers\":[]"), "{heard}");
    test_server.pass(Duration::from_secs(1));
    let mut heard = String::new();
    for _ in 0..200 {
        heard += &test_server.hear(client);
        test_server.pass(Duration::from_millis(1));
    }
    let end = heard.find("event: end\n").expect("it is told why");
    assert!(heard[end..].contains("\"state\":\"detached\",\"reason\":\"stall\""), "{heard}");
}

#[test]
fn the_place_of_a_block_subscriber_is_kept_for_the_grace_and_no_longer() {
    for is_back in [true, false] {
        let mut test_server = TestServer::new();
        let slow = Script {
            seed: 11,
            chunk_count: 500,
            chunk_bytes_max: 64,
            fails: false,
            is_remote: false,
        };
        let id = test_server.run(slow, ",\"hold\":\"until_read\"");
        let path = format!("/v1/executions/{id}/events?policy=block");
        let client = test_server.visit(&get(&path));
        let heard = test_server.hear(client);
        test_server.world.client_reset(client);
        test_server.pass(limits::RECONNECT_GRACE - Duration::from_secs(1));
        let status = test_server.get(&format!("/v1/executions/{id}"));
        assert!(status.contains("\"lost\":true"), "{status}");
        let cursor = heard.rsplit("id: ").next().and_then(|rest| rest.lines().next()).unwrap();
        if is_back {
            let back = test_server.visit(&format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {cursor}\r\n\r\n"
            ));
            let heard = test_server.hear(back);
            assert!(heard.contains("event: started\n"), "{heard}");
            assert!(!heard.contains("event: gap\n"), "{heard}");
        } else {
            test_server.pass(Duration::from_secs(2));
        }
        let status = test_server.get(&format!("/v1/executions/{id}"));
        assert!(!status.contains("\"lost\":true"), "{status}");
    }
}

#[test]
fn who_was_told_of_the_end_is_told_that_there_is_no_more() {
    let mut test_server = TestServer::new();
    let id = test_server.run(SHORT, "");
    test_server.pass(Duration::from_secs(2));
    let path = format!("/v1/executions/{id}/events");
    let heard = test_server.get(&path);
    let cursor = heard.rsplit("id: ").next().and_then(|rest| rest.lines().next()).unwrap();
    assert!(cursor.starts_with(&format!("{id}:5:")) && cursor.ends_with(":end"), "{heard}");
    let again = test_server.visit(&format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {cursor}\r\n\r\n"
    ));
    assert!(test_server.hear(again).starts_with("HTTP/1.1 204 "));
    // A client that has more than there is has not received the end.
    for ahead in ["5:9000", "6:9000", "7:9000", "18446744073709551614"] {
        let again = test_server.visit(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {id}:{ahead}\r\n\r\n"
        ));
        let heard = test_server.hear(again);
        assert!(heard.contains("\"from_seq\":6}"), "{ahead}: {heard}");
        assert!(heard.contains("event: end\n") && !heard.contains("event: gap\n"), "{heard}");
        assert!(heard.contains(&format!("id: {cursor}\n")), "{ahead}: {heard}");
    }
    let old = test_server.visit(&format!("GET {path} HTTP/1.0\r\n\r\n"));
    let heard = test_server.hear(old);
    assert!(heard.ends_with("}\n\n<end>") && !heard.contains("transfer-encoding"), "{heard}");
    let head = test_server.visit(&format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let heard = test_server.hear(head);
    assert!(heard.contains("text/event-stream") && heard.ends_with("\r\n\r\n"), "{heard}");
}

#[test]
fn several_executions_come_on_one_connection_and_each_id_says_how_far_all_are() {
    let mut test_server = TestServer::new();
    let (a, b) = (test_server.run(SHORT, ""), test_server.run(SHORT, ""));
    test_server.pass(Duration::from_secs(2));
    let heard = test_server.get(&format!("/v1/events?executions={a},{b}"));
    assert_eq!(heard.matches("event: end\n").count(), 2, "{heard}");
    let ids: Vec<&str> = heard.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert!(ids.iter().all(|id| id.contains(&format!("{a}:")) && id.contains(&format!(",{b}:"))));
    let last = ids.last().unwrap();
    let cursors: Vec<&str> = last.split(',').collect();
    let is_end = |cursor: &&str| cursor.contains(":5:") && cursor.ends_with(":end");
    assert!(cursors.len() == 2 && cursors.iter().all(is_end), "{last}");
    assert!(heard.ends_with("0\r\n\r\n"), "{heard}");
    // Cut behind the end of one: only the other comes again.
    let middle = format!("{a}:5:0:end,{b}:2:0");
    let client = test_server.visit(&format!(
        "GET /v1/events?executions={a},{b} HTTP/1.1\r\nHost: localhost\r\n\
         Last-Event-ID: {middle}\r\n\r\n"
    ));
    let heard = test_server.hear(client);
    assert_eq!(heard.matches("event: started\n").count(), 1, "{heard}");
    assert_eq!(heard.matches("event: chunk\n").count(), 3, "{heard}");
}

#[test]
fn a_server_that_ends_says_so_and_sends_what_was_said() {
    let mut test_server = TestServer::new();
    let id = test_server.run(SHORT, NOTHING);
    let stream = test_server.visit(&get(&format!("/v1/executions/{id}/events")));
    let idle = test_server.visit(&get("/healthz"));
    assert!(test_server.hear(stream).contains("event: started\n"));
    assert!(test_server.hear(idle).contains("200"));
    test_server.shards[0].drain();
    test_server.pass(Duration::from_millis(1));
    let heard = test_server.hear(stream);
    assert!(heard.contains("\"state\":\"detached\",\"reason\":\"shutdown\""), "{heard}");
    assert_eq!(test_server.hear(idle), "<end>");
    assert!(test_server.world.connect(&test_server.address).is_err());
    test_server.world.client_close(stream);
    test_server.pass(limits::CONNECTION_IDLE + limits::LINGER * 2);
    assert_eq!(test_server.shards[0].connection_count(), 0);
}

#[test]
fn who_asks_and_does_not_read_is_not_answered_without_end() {
    let mut test_server = TestServer::new();
    for _ in 0..6 {
        test_server.run(SHORT, "");
    }
    let client = test_server.world.connect(&test_server.address).unwrap();
    let mut sent = 0;
    // Replies are hundreds of times as long as their requests.
    let question = get("/v1/executions").repeat(64);
    for _ in 0..400 {
        if test_server.world.client_send(client, question.as_bytes()) == Ok(question.len()) {
            sent += 1;
        }
        test_server.pass(Duration::from_millis(1));
    }
    assert!(sent < 100, "it takes questions, and nobody reads the answers: {sent}");
    let mut heard = 0;
    for _ in 0..4_000 {
        heard += test_server.hear(client).len();
        test_server.pass(Duration::from_millis(1));
    }
    assert!(heard > 1 << 20, "those that were taken are answered: {heard}");
}
