//! Tests of connections that break: a client that can come back resumes where it was.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::{MOMENT, Mcp, ReceivedMessages, alone, slow};
use crate::base::Random;
use crate::limits;
use crate::shard::ShardConfig;
use crate::sim::network::SimClient;
use crate::sim::server::script::Script;
use crate::sim::server::test_server::TestServer;
use crate::sim::world::EAGAIN;
use crate::stream::{Kind, Policy};
use crate::tool::{Context, Need, Step, SubscribeDefaults, Tool, ToolSpec, Work};

#[test]
fn a_session_that_is_cut_off_goes_on_where_it_was() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(10, 100), json!({"progressToken": 7}));
    mcp.test_server.pass(Duration::from_millis(450));
    let mut heard = ReceivedMessages::read(&mcp.test_server.hear(client));
    let seen = heard.chunks().len();
    assert!((3..8).contains(&seen), "{heard:?}");
    mcp.test_server.world.client_reset(client);
    mcp.test_server.pass(Duration::from_millis(300));
    assert_eq!(mcp.states(), ["running"], "it goes on");
    let back = mcp.resume(heard.last_id());
    mcp.test_server.pass(Duration::from_secs(2));
    let again = ReceivedMessages::read(&mcp.test_server.hear(back));
    assert_eq!(again.status, "200");
    assert!(again.is_over, "{again:?}");
    again.answer();
    heard.messages.extend(again.messages);
    assert_eq!(heard.chunks(), (1..=10).collect::<Vec<u64>>());
    heard.assert_rises();
    let ids: Vec<&String> = heard.messages.iter().map(|(id, _)| id).collect();
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), ids.len(), "no id is there twice: {ids:?}");
}

#[test]
fn who_comes_back_with_numbers_of_its_own_harms_nobody() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(10, 100), json!({"progressToken": 7}));
    mcp.test_server.pass(Duration::from_millis(450));
    let id = ReceivedMessages::read(&mcp.test_server.hear(client)).last_id().to_owned();
    let name = id.split('-').next().unwrap();
    let most = u64::MAX;
    let wild = [(most, most, most), (1, most, 1), (most, 1, 1), (1, 1, most), (0, 0, most - 1)];
    let early = [(9, 1 << 40, 0), (1 << 52, 1 << 52, 1 << 52), (3, 0, 0), (0, 60, 1)];
    for (seq, bytes, count) in wild.into_iter().chain(early) {
        let back = mcp.resume(&format!("{name}-{seq}-{bytes}-{count}"));
        mcp.test_server.pass(MOMENT);
        let heard = ReceivedMessages::read(&mcp.test_server.hear(back));
        let is_known = ![seq, bytes, count].iter().any(|number| *number > 1 << 53);
        assert_eq!(heard.status, if is_known { "200" } else { "400" }, "{heard:?}");
    }
    let back = mcp.resume(&id);
    mcp.test_server.pass(Duration::from_secs(2));
    let heard = ReceivedMessages::read(&mcp.test_server.hear(back));
    heard.answer();
    assert_eq!(heard.chunks().last(), Some(&10));
}

#[test]
fn an_answer_that_got_lost_is_there_for_who_comes_back() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(3, 100), json!({"progressToken": 7}));
    let first = ReceivedMessages::read(&mcp.test_server.hear(client));
    mcp.test_server.world.client_reset(client);
    mcp.test_server.pass(Duration::from_secs(3));
    assert_eq!(mcp.states(), ["draining"], "it may come back");
    mcp.test_server.pass(limits::RECONNECT_GRACE);
    assert_eq!(mcp.states(), ["completed"]);
    let back = mcp.resume(first.last_id());
    mcp.test_server.pass(MOMENT);
    let again = ReceivedMessages::read(&mcp.test_server.hear(back));
    assert!(again.is_over);
    again.answer();
    let mut chunks = first.chunks();
    chunks.extend(again.chunks());
    assert_eq!(chunks, [1, 2, 3]);
    // It is sent again as often as it gets lost, to this session alone.
    for behind in [first.last_id(), again.messages[0].0.as_str()] {
        let third = mcp.resume(behind);
        mcp.test_server.pass(MOMENT);
        let heard = ReceivedMessages::read(&mcp.test_server.hear(third));
        assert!(heard.is_over, "{heard:?}");
        heard.answer();
    }
    mcp.begin();
    let stranger = mcp.resume(first.last_id());
    mcp.test_server.pass(MOMENT);
    assert_eq!(ReceivedMessages::read(&mcp.test_server.hear(stranger)).status, "400");
}

#[test]
fn behind_the_answer_nothing_more_is_told() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(3, 100), json!({"progressToken": 7}));
    mcp.test_server.pass(Duration::from_secs(1));
    let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
    heard.answer();
    let before = heard.messages[heard.messages.len() - 2].0.clone();
    let mut last = heard.last_id().to_owned();
    for _ in 0..3 {
        for _ in 0..2 {
            let back = mcp.resume(&last);
            let text = mcp.test_server.hear(back);
            let nothing = ReceivedMessages::read(&text);
            assert_eq!(nothing.status, "200", "{text}");
            assert!(nothing.is_over && nothing.messages.is_empty(), "{text}");
            // The connection is free again.
            mcp.test_server.say(back, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert!(mcp.test_server.hear(back).starts_with("HTTP/1.1 200 "));
        }
        // The response that comes after it was lost has an event id of its own.
        let back = mcp.resume(&before);
        let again = ReceivedMessages::read(&mcp.test_server.hear(back));
        again.answer();
        assert_ne!(again.last_id(), last);
        last = again.last_id().to_owned();
    }
}

#[test]
fn an_answer_is_kept_for_who_is_cut_off_again_before_it() {
    let mut mcp = Mcp::begun();
    let client = call_flood(&mut mcp, 256 << 10, 1_000, 300);
    let first = hear_some(&mut mcp, client, 2_000);
    mcp.test_server.world.client_reset(client);
    mcp.test_server.pass(limits::RECONNECT_GRACE + Duration::from_secs(1));
    assert_eq!(mcp.states(), ["completed"], "nobody has come back for it in time");
    let mut last = first.last_id().to_owned();
    for _ in 0..3 {
        let back = mcp.resume(&last);
        let heard = hear_some(&mut mcp, back, 60_000);
        assert!(heard.status == "200" && heard.answers().is_empty(), "{heard:?}");
        last = heard.last_id().to_owned();
        mcp.test_server.world.client_reset(back);
        mcp.test_server.pass(Duration::from_secs(1));
    }
    let back = mcp.resume(&last);
    let heard = hear_some(&mut mcp, back, usize::MAX);
    assert!(heard.is_over, "{heard:?}");
    heard.answer();
}

/// The client reads a part of the sent bytes. The rest is lost with the connection.
#[test]
fn under_block_no_chunk_is_missed_however_often_the_connection_is_cut() {
    // The ring keeps more for a returning client than is ever under way, and less than all chunks.
    for (ring_bytes, chunk_bytes, chunk_count) in [
        (256 << 10, 100, 4_000),
        (256 << 10, 1_000, 600),
        (256 << 10, 7_777, 80),
        (1 << 20, 40_000, 40),
    ] {
        for seed in 0..2 {
            let mut random = Random::new(seed);
            let mut mcp = Mcp::of(TestServer::with_rings(1, 2 << 20, ShardConfig::default()));
            mcp.begin();
            let mut client = call_flood(&mut mcp, ring_bytes, chunk_bytes, chunk_count);
            let (mut chunks, mut last, mut cuts) = (Vec::new(), String::new(), 0);
            let answer = loop {
                let most = 2_000 + random.below(60_000) as usize + 2 * chunk_bytes;
                let heard = hear_some(&mut mcp, client, if cuts < 30 { most } else { usize::MAX });
                let gaps = heard.gaps();
                assert!(gaps.is_empty(), "{chunk_bytes} bytes, seed {seed}, cut {cuts}: {gaps:?}");
                chunks.extend(heard.chunks());
                if heard.is_over {
                    break heard.answer().clone();
                }
                if !heard.messages.is_empty() {
                    assert_eq!(heard.status, "200");
                    last = heard.last_id().to_owned();
                }
                match random.chance(1, 3) {
                    true => {} // Its server does not know: the client just comes back.
                    false => mcp.test_server.world.client_reset(client),
                }
                let away_ms = match random.chance(1, 8) {
                    true => limits::RECONNECT_GRACE.as_millis() as u64 - 100,
                    false => random.below(50),
                };
                mcp.test_server.pass(Duration::from_millis(away_ms));
                client = mcp.resume(&last);
                cuts += 1;
            };
            assert!(cuts >= 10, "{cuts}");
            assert_eq!(chunks, (1..=chunk_count).collect::<Vec<u64>>());
            let text = answer["result"]["content"][1]["text"].as_str().unwrap();
            assert!(text.contains("contained all of it"), "{text}");
        }
    }
}

/// Calls a tool whose subscribers may miss nothing, and that publishes as fast as they allow.
fn call_flood(mcp: &mut Mcp, ring_bytes: u32, chunk_bytes: usize, chunk_count: u64) -> SimClient {
    let subscribers = SubscribeDefaults { policy: Policy::Block, ..SubscribeDefaults::default() };
    let need = Need { ring_bytes, chunk_bytes: chunk_bytes as u32, ..Need::default() };
    let spec = ToolSpec { subscribers, need, ..ToolSpec::new("flood", "Publishes a lot.") };
    let prepare = move |_: &Value, need| {
        let flood = Flood { chunk_bytes, left: chunk_count };
        Ok((Work::Steps(Box::new(flood) as _), need))
    };
    mcp.test_server.shards[0].tools_mut().insert(spec, prepare).unwrap();
    let meta = json!({"progressToken": 1, "dev.streamdoor/stream": false});
    let params = json!({"name": "flood", "arguments": {}, "_meta": meta});
    let message = mcp.request("tools/call", params);
    mcp.post(&message)
}

struct Flood {
    chunk_bytes: usize,
    left: u64,
}

impl Tool for Flood {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        while self.left > 0 {
            if context.emit(&vec![b'x'; self.chunk_bytes]).is_err() {
                return Step::Blocked;
            }
            self.left -= 1;
        }
        Step::Done
    }
}

/// The complete events in the next `bytes_max` bytes, or in all that come in a second.
fn hear_some(mcp: &mut Mcp, client: SimClient, bytes_max: usize) -> ReceivedMessages {
    let mut text = Vec::new();
    let mut idle = 0;
    while text.len() < bytes_max && idle < 1_000 {
        let mut buffer = [0; 4_096];
        let most = (bytes_max - text.len()).min(buffer.len());
        match mcp.test_server.world.client_receive(client, &mut buffer[..most]) {
            Ok(0) => break,
            Ok(count) => {
                text.extend_from_slice(&buffer[..count]);
                idle = 0;
            }
            Err(EAGAIN) => {
                mcp.test_server.pass(MOMENT);
                idle += 1;
            }
            Err(error) => panic!("{error}"),
        }
        if text.ends_with(b"\r\n0\r\n\r\n") {
            break;
        }
    }
    let text = String::from_utf8(text).unwrap();
    let is_over = text.ends_with("\r\n0\r\n\r\n");
    let until = if is_over { text.len() } else { text.rfind("\n\n").map_or(0, |at| at + 2) };
    ReceivedMessages::read(&text[..until])
}

/// Chunks that share a notification are sent late, lines of a log at once.
#[test]
fn the_id_of_an_event_says_what_was_told_with_it_and_before() {
    let mut mcp = Mcp::begun();
    mcp.ask("logging/setLevel", json!({"level": "debug"}));
    let mut log_lines = 0;
    for seed in 0..20 {
        let (chunk_count, chunk_bytes_max) = (40, 30);
        let script = Script { seed, chunk_count, chunk_bytes_max, fails: false, is_remote: false };
        let meta = json!({"progressToken": 7});
        let params = json!({"name": "script", "arguments": script.arguments(), "_meta": meta});
        let message = mcp.request("tools/call", params);
        let client = mcp.post(&message);
        mcp.test_server.pass(Duration::from_secs(2));
        let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
        heard.answer();
        let mut reported_seq = 0;
        for (id, message) in &heard.messages {
            let numbers: Vec<u64> =
                id.split('-').skip(1).map(|number| number.parse().unwrap()).collect();
            let [seq, bytes, _] = numbers[..] else { panic!("{id}") };
            assert_eq!(bytes, script.sum(&[], 1, seq).bytes, "{id}");
            let chunks = message["params"]["_meta"]["dev.streamdoor/chunks"].as_array();
            for chunk in chunks.into_iter().flatten() {
                reported_seq = reported_seq.max(chunk["seq"].as_u64().unwrap());
            }
            if message["method"] == "notifications/message" {
                log_lines += 1;
                reported_seq += 1;
                while script.chunk(reported_seq).0 != Kind::Log {
                    reported_seq += 1;
                }
            }
            assert!(seq >= reported_seq, "{id}: {message}");
        }
    }
    assert!(log_lines > 100, "{log_lines}");
}

#[test]
fn a_request_that_stands_for_itself_ends_with_its_connection() {
    let mut mcp = Mcp::new();
    let mut meta = alone();
    meta["progressToken"] = 1.into();
    for is_reset in [true, false] {
        let client = mcp.call(slow(100, 1_000), meta.clone());
        mcp.test_server.pass(Duration::from_secs(2));
        assert_eq!(mcp.states().last().unwrap(), "running");
        match is_reset {
            true => mcp.test_server.world.client_reset(client),
            false => mcp.test_server.world.client_close(client),
        }
        mcp.test_server.pass(Duration::from_secs(1));
        assert!(mcp.states().iter().all(|state| state == "cancelled"), "{:?}", mcp.states());
    }
}

/// A slow reader receives the end when the execution is forgotten already.
#[test]
fn a_result_that_is_read_late_says_what_an_early_one_says() {
    for is_late in [false, true] {
        let mut mcp = Mcp::begun();
        let subscribers = SubscribeDefaults { policy: Policy::Drop, ..Default::default() };
        let panics = ToolSpec::new("panics", "Says a lot, and panics.");
        let panics = ToolSpec { subscribers, ..panics };
        let prepare = |_: &Value, need| Ok((Work::Steps(Box::new(Panics(0)) as _), need));
        mcp.test_server.shards[0].tools_mut().insert(panics, prepare).unwrap();
        let many = json!({"chunks": 400, "delay_ms": 0, "chunk_size": 40});
        let client = mcp.call_lossy(many, json!({"progressToken": 7}));
        let meta = json!({"progressToken": 8});
        let params = json!({"name": "panics", "arguments": {}, "_meta": meta});
        let message = mcp.request("tools/call", params);
        let panicked = mcp.post(&message);
        mcp.test_server.pass(MOMENT);
        if is_late {
            mcp.test_server.pass(Duration::from_secs(61));
            assert!(mcp.states().is_empty(), "both are forgotten");
        }
        let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
        let meta = &heard.answer()["result"]["_meta"];
        assert!(meta["progressToken"].as_str().unwrap().len() >= 32, "{meta}");
        let heard = ReceivedMessages::read(&mcp.test_server.hear(panicked));
        assert_eq!(heard.answer()["error"]["code"], -32603);
    }
}

/// A tool that publishes 400 chunks, and then panics. The field counts the chunks.
struct Panics(u32);

impl Tool for Panics {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        while self.0 < 400 {
            if context.emit(&[b'x'; 140]).is_err() {
                return Step::Blocked;
            }
            self.0 += 1;
        }
        std::panic::resume_unwind(Box::new("as it is meant to")); // Prints nothing on stderr.
    }
}
