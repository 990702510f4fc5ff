//! Tests of calls: answered once, behind all their events, or cancelled.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::{MOMENT, Mcp, ReceivedMessages, alone, slow};
use crate::base::Random;
use crate::mcp::{META_CHUNKS, chunks};
use crate::shard::ShardConfig;
use crate::sim::network::SimClient;
use crate::sim::server::test_server::TestServer;

#[test]
fn a_call_is_answered_once_behind_all_that_was_told_of_it() {
    for meta in [json!({"progressToken": 0}), {
        let mut meta = alone();
        meta["progressToken"] = "t".into();
        meta
    }] {
        let mut mcp = Mcp::begun();
        let client = mcp.call(slow(10, 100), meta.clone());
        let first = ReceivedMessages::read(&mcp.test_server.hear(client));
        assert_eq!(first.status, "200");
        assert!(!first.progress().is_empty() && !first.is_over, "{first:?}");
        mcp.test_server.pass(Duration::from_secs(2));
        let mut heard = first;
        heard.add(&mcp.test_server.hear(client));
        assert!(heard.is_over);
        heard.assert_rises();
        assert_eq!(heard.chunks(), (1..=10).collect::<Vec<u64>>());
        let token = &heard.progress()[0]["params"]["progressToken"];
        assert_eq!(*token, meta["progressToken"]);
        let (_, last) = heard.messages.last().unwrap();
        assert_eq!(last, heard.answer());
        let text = last["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("chunk 10 of 10") && text.len() == 200, "{text}");
        assert!(last["result"]["_meta"]["progressToken"].as_str().unwrap().len() >= 32);
    }
}

#[test]
fn a_call_without_a_session_starts_with_a_small_ring_and_is_answered_in_full() {
    let mut session_meta = json!({"progressToken": 0});
    let mut lone_meta = alone();
    lone_meta["progressToken"] = 0.into();
    for (meta, ring_bytes) in [(&mut lone_meta, 4 << 10), (&mut session_meta, 256 << 10)] {
        let mut mcp = Mcp::begun();
        let client = mcp.call(slow(100, 10), meta.take());
        let mut heard = ReceivedMessages::read(&mcp.test_server.hear(client));
        let usage = mcp.test_server.shards[0].memory().usage;
        assert_eq!((usage.leased_count, usage.leased_bytes), (1, ring_bytes));
        mcp.test_server.pass(Duration::from_secs(2));
        heard.add(&mcp.test_server.hear(client));
        assert_eq!(heard.chunks(), (1..=100).collect::<Vec<u64>>());
        let text = heard.answer()["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("chunk 100 of 100"), "{text}");
    }
}

#[test]
fn who_wants_to_be_told_nothing_is_answered_with_one_message() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(3, 100), json!({}));
    mcp.test_server.pass(Duration::from_secs(1));
    let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
    assert!(heard.head.contains("application/json"), "{heard:?}");
    assert_eq!(heard.answer()["id"], 2);
    // The connection is free again.
    mcp.test_server.say(client, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(mcp.test_server.hear(client).starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_long_silence_becomes_a_stream_that_says_that_it_lives() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(2, 40_000), json!({}));
    mcp.test_server.pass(Duration::from_secs(35));
    let text = mcp.test_server.hear(client);
    assert!(text.contains("text/event-stream") && text.contains(":\n\n"), "{text}");
    let mut heard = ReceivedMessages::read(&text);
    mcp.test_server.pass(Duration::from_secs(10));
    heard.add(&mcp.test_server.hear(client));
    assert!(heard.is_over);
    heard.answer();
}

#[test]
fn a_cancelled_call_is_stopped_and_not_answered() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(100, 1_000), json!({"progressToken": 1}));
    mcp.test_server.pass(Duration::from_secs(2));
    let id = mcp.next_id;
    // Another session's request of the same id is not affected.
    let session = mcp.session.clone();
    mcp.begin();
    let cancel = json!({
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": id, "reason": "enough"},
    });
    let told = mcp.post(&cancel);
    assert!(mcp.test_server.hear(told).starts_with("HTTP/1.1 202 "));
    mcp.test_server.pass(Duration::from_secs(1));
    assert_eq!(mcp.states(), ["running"]);
    mcp.session = session;
    let told = mcp.post(&cancel);
    assert!(mcp.test_server.hear(told).starts_with("HTTP/1.1 202 "));
    mcp.test_server.pass(Duration::from_secs(1));
    assert_eq!(mcp.states(), ["cancelled"]);
    let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
    assert!(heard.is_over && heard.answers().is_empty(), "{heard:?}");
}

#[test]
fn who_takes_nothing_for_a_while_is_told_what_it_missed_and_answered() {
    let mut mcp = Mcp::begun();
    let many = json!({"chunks": 3_000, "delay_ms": 1, "chunk_size": 200});
    let meta = json!({"progressToken": 1, "dev.streamdoor/stream": false});
    let client = mcp.call_lossy(many, meta);
    mcp.test_server.pass(Duration::from_secs(10));
    assert_eq!(mcp.states(), ["completed"], "nobody was held back");
    let mut text = String::new();
    for _ in 0..400 {
        text += &mcp.test_server.hear(client);
        mcp.test_server.pass(MOMENT);
    }
    let heard = ReceivedMessages::read(&text);
    assert!(heard.is_over);
    heard.assert_rises();
    let (mut next, mut missed) = (1, 0);
    for note in heard.progress() {
        let meta = &note["params"]["_meta"];
        let gap = &meta["dev.streamdoor/gap"];
        if let Some(from) = gap["from_seq"].as_u64() {
            assert_eq!(from, next);
            next = gap["to_seq"].as_u64().unwrap() + 1;
            missed += gap["chunk_count"].as_u64().unwrap();
        }
        for chunk in meta["dev.streamdoor/chunks"].as_array().into_iter().flatten() {
            assert_eq!(chunk["seq"], next);
            next += 1;
        }
    }
    assert_eq!(next, 3_001);
    assert!(missed > 0, "it could not take all of it");
    let result = &heard.answer()["result"];
    assert_eq!(result["_meta"]["dev.streamdoor/stream"], Value::Null, "it has no beginning");
    let text = result["content"][1]["text"].as_str().unwrap();
    assert!(text.contains("contained all of it, except for their gaps"), "{text}");
}

#[test]
fn a_call_without_a_stream_and_without_notifications_says_that_the_rest_is_lost() {
    let mut mcp = Mcp::begun();
    let many = json!({"chunks": 3_000, "delay_ms": 0, "chunk_size": 200});
    let client = mcp.call(many, json!({"dev.streamdoor/stream": false}));
    mcp.test_server.pass(Duration::from_secs(1));
    assert_eq!(mcp.states(), ["completed"], "nobody was held back");
    let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
    let result = &heard.answer()["result"];
    assert_eq!(result["isError"], true);
    assert_eq!(result["_meta"]["dev.streamdoor/stream"], Value::Null);
    let text = result["content"][1]["text"].as_str().unwrap();
    assert!(text.contains("The rest was not kept"), "{text}");
}

#[test]
fn the_text_of_long_chunks_comes_once_unless_full_chunks_are_wanted() {
    for (form, chunk_bytes, encoding) in [
        (Value::Null, 256, "text"),
        (Value::Null, 257, "message"),
        (json!("full"), 257, "text"),
        (json!("full"), 3_000, "text"),
        (Value::Null, 3_000, "message"),
    ] {
        for mut meta in [json!({}), alone()] {
            meta["progressToken"] = 1.into();
            meta[META_CHUNKS] = form.clone();
            let mut mcp = Mcp::begun();
            let arguments = json!({"chunks": 3, "delay_ms": 100, "chunk_size": chunk_bytes});
            let client = mcp.call(arguments, meta);
            mcp.test_server.pass(Duration::from_secs(1));
            let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
            assert_eq!(heard.chunks(), [1, 2, 3]);
            let mut text = Vec::new();
            for note in heard.progress() {
                let entries = note["params"]["_meta"][META_CHUNKS].as_array();
                for entry in entries.into_iter().flatten() {
                    assert_eq!(entry["encoding"], encoding, "{form} {chunk_bytes}");
                    assert_eq!(entry.get("data").is_some(), encoding == "text");
                }
                for chunk in chunks::read(&note["params"]).unwrap() {
                    assert_eq!((chunk.offset, chunk.data.len()), (text.len() as u64, chunk_bytes));
                    text.extend_from_slice(&chunk.data);
                }
            }
            let whole = heard.answer()["result"]["content"][0]["text"].as_str().unwrap();
            assert_eq!(whole.as_bytes(), text, "{form} {chunk_bytes}");
        }
    }
}

#[test]
fn a_form_of_chunks_that_does_not_exist_is_refused() {
    let mut mcp = Mcp::begun();
    for wrong in [json!("long"), json!(true), json!([])] {
        let client = mcp.call(slow(1, 0), json!({META_CHUNKS: wrong}));
        let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
        let error = &heard.answer()["error"];
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().unwrap().contains("must be \"full\""), "{error}");
    }
}

#[test]
fn a_wish_for_a_stream_that_is_neither_yes_nor_no_is_refused() {
    let mut mcp = Mcp::begun();
    for wrong in [json!("false"), json!(0), json!([]), json!({})] {
        for (meta, arguments, name) in [
            (json!({"dev.streamdoor/stream": wrong}), slow(1, 0), "dev.streamdoor/stream"),
            (json!({}), json!({"chunks": 1, "_stream": wrong}), "_stream"),
        ] {
            let client = mcp.call(arguments, meta);
            let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
            let error = &heard.answer()["error"];
            assert_eq!(error["code"], -32602, "{error}");
            assert!(error["message"].as_str().unwrap().contains(name), "{error}");
        }
    }
    assert!(mcp.states().is_empty(), "nothing was run");
}

#[test]
fn a_server_that_ends_answers_what_it_can() {
    let mut mcp = Mcp::begun();
    let runs = mcp.call(slow(100, 1_000), json!({"progressToken": 1}));
    let mut meta = alone();
    meta["progressToken"] = 1.into();
    let other = mcp.call(slow(100, 1_000), meta);
    mcp.test_server.pass(MOMENT);
    mcp.test_server.shards[0].drain();
    mcp.test_server.pass(Duration::from_secs(1));
    for client in [runs, other] {
        let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
        assert!(heard.is_over, "{heard:?}");
        assert_eq!(heard.answer()["result"]["isError"], true);
    }
}

#[test]
fn whatever_clients_do_nothing_is_answered_twice_or_left_behind() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let mut mcp = Mcp::of(TestServer::with(ShardConfig::default()));
        mcp.begin();
        let mut open: Vec<(SimClient, ReceivedMessages, bool)> = Vec::new();
        for _ in 0..60 {
            match random.below(6) {
                0 | 1 => {
                    let is_alone = random.chance(1, 2);
                    let mut meta = if is_alone { alone() } else { json!({}) };
                    if random.chance(2, 3) {
                        meta["progressToken"] = random.below(3).into();
                    }
                    let arguments = slow(random.below(12), random.below(300));
                    let client = mcp.call(arguments, meta);
                    open.push((client, ReceivedMessages::default(), is_alone));
                }
                2 if !open.is_empty() => {
                    let at = random.below(open.len() as u64) as usize;
                    let (client, heard, is_alone) = open.swap_remove(at);
                    mcp.test_server.world.client_reset(client);
                    let last = heard.last_id().to_owned();
                    if !is_alone && !last.is_empty() && heard.answers().is_empty() {
                        let back = mcp.resume(&last);
                        open.push((back, ReceivedMessages::default(), is_alone));
                    }
                }
                3 => {
                    let id = random.below(mcp.next_id + 1);
                    let cancel = json!({
                        "jsonrpc": "2.0",
                        "method": "notifications/cancelled",
                        "params": {"requestId": id},
                    });
                    let told = mcp.post(&cancel);
                    mcp.test_server.world.client_close(told);
                }
                _ => mcp.test_server.pass(Duration::from_millis(random.below(400))),
            }
            for (client, heard, _) in &mut open {
                let text = mcp.test_server.hear(*client);
                match heard.status.is_empty() {
                    true => *heard = ReceivedMessages::read(&text),
                    false => heard.add(&text),
                }
                assert!(heard.answers().len() <= 1, "seed {seed}: {heard:?}");
                heard.assert_rises();
            }
        }
        mcp.test_server.pass(Duration::from_secs(10));
        assert!(mcp.states().iter().all(|state| state != "running"), "seed {seed}");
    }
}
