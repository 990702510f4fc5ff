//! Notifications: they have the shape that the schemas require, including all extensions of this
//! server.

use serde_json::{Value, json};

use super::cursor::List;
use super::notify::{self, ChunkNotification, Data, GapNotification, ProgressNotification};
use super::shapes::check_bytes;
use super::tasks::{Detail, Task, TaskState};
use super::{Filter, Level, META_CHUNKS, Version, chunks};
use crate::base::Random;
use crate::limits::MCP_TEXT_TWICE_BYTES_MAX;
use crate::stream::Kind;
use crate::wire::jsonrpc::Id;
use crate::wire::{base64, json};

const OLD: Version = Version::V2025_11_25;
const NEW: Version = Version::V2026_07_28;

/// Writes a notification behind other bytes, checks its shape in both eras, and returns its
/// parameters.
fn params(shape: &str, write: impl Fn(&mut Vec<u8>)) -> Value {
    let mut out = b"before".to_vec();
    write(&mut out);
    let bytes = out.strip_prefix(b"before").unwrap();
    check_bytes(OLD, shape, bytes);
    check_bytes(NEW, shape, bytes)["params"].clone()
}

fn note(token: &Id) -> ProgressNotification<'_> {
    ProgressNotification::new(token, 2.5)
}

fn chunk(
    seq: u64,
    kind: &'static str,
    offset: u64,
    data: &'static [u8],
) -> ChunkNotification<'static> {
    ChunkNotification { seq, kind, offset, data }
}

fn progress(note: &ProgressNotification<'_>, chunks: &[ChunkNotification<'_>]) -> Value {
    params("ProgressNotification", |out| notify::progress(out, note, chunks.iter().copied()))
}

#[test]
fn progress_has_the_clients_token_and_a_number() {
    // A27, B27: the token 0 is valid.
    for token in [Id::of_number(0), Id::of_text("a\"b"), Id::of_number(u64::MAX)] {
        let got = progress(&note(&token), &[]);
        assert_eq!(got, json!({"progressToken": token.to_value(), "progress": 2.5}));
    }
    let token = Id::of_number(1);
    let total = |total| progress(&ProgressNotification { total: Some(total), ..note(&token) }, &[]);
    assert_eq!(total(100.0)["total"], 100);
    assert_eq!(total(f64::INFINITY).get("total"), None);
}

#[test]
fn chunks_are_the_message_and_their_data() {
    let token = Id::of_number(1);
    let chunks = [chunk(3, "stdout", 7, "a\n\u{e9}".as_bytes()), chunk(4, "output", 10, b"b")];
    let got = progress(&note(&token), &chunks);
    assert_eq!(got["message"], "a\n\u{e9}b");
    let expected = json!([
        {"seq": 3, "kind": "stdout", "offset": 7, "encoding": "text", "data": "a\n\u{e9}"},
        {"seq": 4, "kind": "output", "offset": 10, "encoding": "text", "data": "b"},
    ]);
    assert_eq!(got["_meta"], json!({"dev.streamdoor/chunks": expected}));
}

#[test]
fn a_long_text_is_sent_once() {
    let token = Id::of_number(1);
    let texts = ["\u{e9}\n".repeat(80), String::new(), "\"".repeat(17)];
    assert_eq!(texts.concat().len(), MCP_TEXT_TWICE_BYTES_MAX + 1);
    let chunks: Vec<ChunkNotification<'_>> = (texts.iter().zip(["stdout", "output", "stderr"]))
        .zip(1..)
        .map(|((text, kind), seq)| {
            let offset = 100 * seq;
            ChunkNotification { seq, kind, offset, data: text.as_bytes() }
        })
        .collect();
    let got = progress(&note(&token), &chunks);
    assert_eq!(got["message"], texts.concat());
    let expected = json!([
        {"seq": 1, "kind": "stdout", "offset": 100, "encoding": "message", "length": 240},
        {"seq": 2, "kind": "output", "offset": 200, "encoding": "message", "length": 0},
        {"seq": 3, "kind": "stderr", "offset": 300, "encoding": "message", "length": 17},
    ]);
    assert_eq!(got["_meta"], json!({META_CHUNKS: expected}));
    // Clients may request the other form.
    let full = ProgressNotification { has_full_chunks: true, ..note(&token) };
    let got = progress(&full, &chunks);
    assert_eq!(got["message"], texts.concat());
    for (text, entry) in texts.iter().zip(got["_meta"][META_CHUNKS].as_array().unwrap()) {
        assert_eq!((&entry["encoding"], &entry["data"]), (&json!("text"), &json!(text)));
        assert_eq!(entry.get("length"), None);
    }
    // A text of the limit is sent twice.
    let got = progress(&note(&token), &[ChunkNotification { data: &[b'x'; 256], ..chunks[0] }]);
    assert_eq!(got["message"], got["_meta"][META_CHUNKS][0]["data"]);
}

#[test]
fn chunks_have_their_data_where_the_message_is_not_exactly_their_text() {
    let token = Id::of_number(1);
    let long = [b'x'; 1_000];
    let text = ChunkNotification { seq: 1, kind: "output", offset: 0, data: &long };
    let bytes = ChunkNotification { seq: 2, data: b"\xff", ..text };
    let x = "x".repeat(1_000);
    for (message, chunks) in [
        (Some("half way"), &[text][..]),
        (Some(""), &[text]), // Content blocks.
        (Some(&*x), &[text]),
        (None, &[text, bytes]),
        (None, &[bytes, text]),
    ] {
        let note = ProgressNotification { message, ..note(&token) };
        let got = progress(&note, chunks);
        assert_eq!(got["message"].as_str(), message.filter(|message| !message.is_empty()));
        for (chunk, read) in chunks.iter().zip(chunks::read(&got).unwrap()) {
            assert_eq!(*read.data, *chunk.data);
        }
        let entries = got["_meta"][META_CHUNKS].as_array().unwrap();
        assert!(entries.iter().all(|entry| entry["data"].is_string()), "{got}");
    }
}

#[test]
fn random_chunks_are_read_as_they_were() {
    const PARTS: [&str; 8] = [
        "plain text of some length, ",
        "\u{e9}",
        "\u{1f980}",
        "\"",
        "\\",
        "\n",
        "\u{85}",
        "\u{2028}",
    ];
    let token = Id::of_number(0);
    let (mut once, mut twice) = (0, 0);
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let wanted_bytes = MCP_TEXT_TWICE_BYTES_MAX - 8 + random.below(17) as usize;
        let chunk_count = random.between(1, 5);
        let mut texts = vec![String::new(); chunk_count as usize];
        while texts.iter().map(String::len).sum::<usize>() < wanted_bytes {
            let part = PARTS[random.below(PARTS.len() as u64) as usize];
            texts[random.below(chunk_count) as usize].push_str(part);
        }
        let bytes = texts.concat().len();
        let chunks: Vec<ChunkNotification<'_>> = (1..)
            .zip(&texts)
            .map(|(seq, text)| ChunkNotification {
                seq,
                kind: "output",
                offset: 9 * seq,
                data: text.as_bytes(),
            })
            .collect();
        let has_full_chunks = random.chance(1, 4);
        let got = progress(&ProgressNotification { has_full_chunks, ..note(&token) }, &chunks);
        let is_once = got["_meta"][META_CHUNKS][0]["encoding"] == "message";
        assert_eq!(is_once, bytes > MCP_TEXT_TWICE_BYTES_MAX && !has_full_chunks, "seed {seed}");
        *if is_once { &mut once } else { &mut twice } += 1;
        let read = chunks::read(&got).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(read.len(), chunks.len(), "seed {seed}");
        for (read, chunk) in read.iter().zip(&chunks) {
            assert_eq!((read.seq, read.kind, read.offset), (chunk.seq, "output", 9 * chunk.seq));
            assert_eq!(*read.data, *chunk.data, "seed {seed}");
        }
    }
    assert!(once > 500 && twice > 500, "{once} {twice}");
}

#[test]
fn each_of_many_chunks_has_its_own_data_even_where_it_is_empty_or_escaped() {
    let token = Id::of_number(0);
    let data: Vec<Vec<u8>> = (0..100u32)
        .map(|number| match number % 4 {
            0 => Vec::new(),
            1 => format!("\"{number}\"\n\u{85}").into_bytes(),
            _ => format!("plain {number}").into_bytes(),
        })
        .collect();
    for count in [1, 2, 3, 64, 65, 100] {
        let chunks = (1..).zip(&data[..count]);
        let chunks =
            chunks.map(|(seq, data)| ChunkNotification { seq, kind: "output", offset: 0, data });
        let chunks: Vec<ChunkNotification<'_>> = chunks.collect();
        let message: Vec<u8> = data[..count].concat();
        let message = String::from_utf8(message).unwrap();
        for has_full_chunks in [false, true] {
            let said = progress(&ProgressNotification { has_full_chunks, ..note(&token) }, &chunks);
            assert_eq!(said["message"].as_str().unwrap_or_default(), message);
            let read = chunks::read(&said).unwrap();
            let read: Vec<_> = read.iter().map(|chunk| (chunk.seq, &*chunk.data)).collect();
            let expected: Vec<_> = chunks.iter().map(|chunk| (chunk.seq, chunk.data)).collect();
            assert_eq!(read, expected);
        }
    }
}

/// Spells a notification member by member, unlike the code under test.
fn model(token: &Id, has_full_chunks: bool, chunks: &[ChunkNotification<'_>]) -> String {
    let string = |text: &str| {
        let mut out = Vec::new();
        json::write_string(&mut out, text);
        String::from_utf8(out).unwrap()
    };
    let bytes: usize = chunks.iter().map(|chunk| chunk.data.len()).sum();
    let texts: Option<Vec<&str>> =
        chunks.iter().map(|chunk| std::str::from_utf8(chunk.data).ok()).collect();
    let message = texts.map(|texts| texts.concat()).filter(|text| !text.is_empty());
    let is_once = bytes > MCP_TEXT_TWICE_BYTES_MAX && !has_full_chunks && message.is_some();
    let entries: Vec<String> = chunks
        .iter()
        .map(|ChunkNotification { seq, kind, offset, data }| {
            let data = match std::str::from_utf8(data) {
                Ok(_) if is_once => format!("\"message\",\"length\":{}", data.len()),
                Ok(text) => format!("\"text\",\"data\":{}", string(text)),
                Err(_) => {
                    let mut out = Vec::new();
                    base64::write(&mut out, data);
                    format!("\"base64\",\"data\":\"{}\"", String::from_utf8(out).unwrap())
                }
            };
            let kind = string(kind);
            format!("{{\"seq\":{seq},\"kind\":{kind},\"offset\":{offset},\"encoding\":{data}}}")
        })
        .collect();
    let message = message.map(|text| format!(",\"message\":{}", string(&text)));
    let meta = format!(",\"_meta\":{{\"{META_CHUNKS}\":[{}]}}", entries.join(","));
    let params = format!(
        "\"progressToken\":{},\"progress\":2.5{}{}",
        token.as_json(),
        message.unwrap_or_default(),
        if chunks.is_empty() { "" } else { &meta },
    );
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{{{params}}}}}")
}

#[track_caller]
fn assert_like_model(has_full_chunks: bool, chunks: &[ChunkNotification<'_>]) {
    let token = Id::of_text("a\"b");
    let mut out = b"before".to_vec();
    let note = ProgressNotification { has_full_chunks, ..note(&token) };
    notify::progress(&mut out, &note, chunks.iter().copied());
    let written = String::from_utf8(out).unwrap();
    let expected = model(&token, has_full_chunks, chunks);
    assert_eq!(written.strip_prefix("before"), Some(&*expected));
}

#[test]
fn a_notification_has_exactly_the_bytes_of_the_model() {
    const PARTS: [&[u8]; 7] = [
        b"plain text of some length, more than 32",
        b"short",
        b"\n",
        b"\"\\",
        "\u{85}\u{2028}".as_bytes(),
        "\u{e9}\u{1f980}".as_bytes(),
        b"\xE9",
    ];
    for seed in 0..5_000 {
        let mut random = Random::new(seed);
        // Some have more chunks than one delivery, whose texts are not found again.
        let chunk_count_max = if random.chance(1, 20) { 80 } else { 5 };
        let chunk_count = random.below(chunk_count_max);
        let part_count = PARTS.len() as u64 - u64::from(random.chance(3, 4)); // Mostly text.
        let mut data = vec![Vec::new(); chunk_count as usize];
        for data in &mut data {
            for _ in 0..random.below(5) {
                data.extend_from_slice(PARTS[random.below(part_count) as usize]);
            }
        }
        let chunks: Vec<ChunkNotification<'_>> = (1..)
            .zip(&data)
            .map(|(seq, data)| {
                let kind = Kind::ALL[random.below(Kind::ALL.len() as u64) as usize].name();
                ChunkNotification { seq, kind, offset: random.next_u64(), data }
            })
            .collect();
        assert_like_model(random.chance(1, 2), &chunks);
    }
}

#[test]
fn a_wrong_byte_at_any_place_makes_its_chunk_base_64() {
    let token = Id::of_number(1);
    for length in 1..=70 {
        for place in 0..length {
            for byte in [0x80, 0xC3, 0xFF] {
                let mut data = vec![b'x'; length];
                data[place] = byte;
                let chunk = ChunkNotification { seq: 1, kind: "output", offset: 0, data: &data };
                let text = ChunkNotification { seq: 2, data: b"text\n", ..chunk };
                for chunks in [&[chunk][..], &[chunk, text], &[text, chunk]] {
                    assert_like_model(false, chunks);
                }
                let mut out = Vec::new();
                notify::partial_result(&mut out, NEW, &token, 0, [chunk].into_iter());
                let got: Value = serde_json::from_slice(&out).unwrap();
                let blob = got["params"]["content"][0]["resource"]["blob"].as_str().unwrap();
                assert_eq!(base64::read(blob), Some(data));
            }
        }
    }
}

#[test]
fn names_of_kinds_need_no_escapes() {
    for kind in Kind::ALL {
        assert!(kind.name().bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()));
    }
}

#[test]
fn bytes_that_are_no_text_are_data_and_no_message() {
    let token = Id::of_number(1);
    let chunks = [chunk(1, "output", 0, b"ok"), chunk(2, "output", 2, b"\xff")];
    let got = progress(&note(&token), &chunks);
    assert_eq!(got.get("message"), None);
    let second = &got["_meta"]["dev.streamdoor/chunks"][1];
    assert_eq!((&second["encoding"], &second["data"]), (&json!("base64"), &json!("/w==")));
    let empty = progress(&note(&token), &[chunk(1, "output", 0, b"")]);
    assert_eq!(empty.get("message"), None);
    assert_eq!(empty["_meta"]["dev.streamdoor/chunks"][0]["data"], "");
}

#[test]
fn a_report_of_the_tool_is_told_along() {
    let token = Id::of_text("t");
    let gap =
        GapNotification { from_seq: 2, to_seq: 5, chunk_count: 4, byte_count: 99, reason: "lag" };
    let note = ProgressNotification {
        total: Some(10.0),
        message: Some("half\u{7}way"),
        percentage: Some(50.0),
        context: Some(r#"{"step":[1]}"#),
        gap: Some(gap),
        task: Some("k"),
        ..note(&token)
    };
    let got = progress(&note, &[chunk(1, "output", 0, b"x")]);
    assert_eq!(got["message"], "half\u{7}way");
    let meta = &got["_meta"];
    let report = json!({"percentage": 50, "context": {"step": [1]}});
    assert_eq!(meta["dev.streamdoor/progress"], report);
    let gap = json!({
        "from_seq": 2, "to_seq": 5, "chunk_count": 4, "byte_count": 99, "reason": "lag",
    });
    assert_eq!(meta["dev.streamdoor/gap"], gap);
    // A49.
    assert_eq!(meta["io.modelcontextprotocol/related-task"], json!({"taskId": "k"}));
    assert_eq!(meta.as_object().unwrap().len(), 4);
    let note =
        ProgressNotification { percentage: None, context: Some("no JSON"), gap: None, ..note };
    let got = progress(&note, &[]);
    assert_eq!(got["_meta"]["dev.streamdoor/progress"], json!({"context": "no JSON"}));
}

#[test]
fn pieces_of_a_result_are_content_blocks() {
    // SEP-2998.
    let audio = br#"{"type":"audio","data":"aGk=","mimeType":"a/w"}"#;
    let chunks =
        [chunk(1, "output", 0, b"a"), chunk(2, "content", 1, audio), chunk(3, "row", 9, b"\xff")];
    for version in Version::ALL {
        let mut out = Vec::new();
        let token = Id::of_text("p");
        notify::partial_result(&mut out, version, &token, 0, chunks.iter().copied());
        let got: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(got["method"], "notifications/tools/partial_result");
        let params = &got["params"];
        assert_eq!((&params["partialResultToken"], &params["seq"]), (&json!("p"), &json!(0)));
        assert_eq!(params["content"][0], json!({"type": "text", "text": "a"}));
        let is_audio = params["content"][1]["type"] == "audio";
        assert_eq!(is_audio, version >= Version::V2025_03_26);
        assert_eq!(params["content"][2]["resource"]["blob"], "/w==");
        let content = json!({"content": params["content"], "resultType": "complete"});
        super::shapes::check(version, "CallToolResult", &content);
    }
}

#[test]
fn log_messages_have_a_level_and_anything_as_data() {
    // A40, B36.
    for level in Level::ALL {
        let got = params("LoggingMessageNotification", |out| {
            notify::message(out, level, Some("tool"), Data::Text("a\u{2028}b"), None);
        });
        assert_eq!(got, json!({"level": level.name(), "logger": "tool", "data": "a\u{2028}b"}));
    }
    let data = json!({"a": [1, null]});
    let got = params("LoggingMessageNotification", |out| {
        notify::message(out, Level::Info, None, Data::Json(&data), Some("k"));
    });
    let task = json!({"io.modelcontextprotocol/related-task": {"taskId": "k"}});
    assert_eq!(got, json!({"level": "info", "data": data, "_meta": task}));
}

#[test]
fn who_listens_is_told_with_the_name_of_his_subscription() {
    // B29.
    let key = "io.modelcontextprotocol/subscriptionId";
    for id in [Id::of_number(0), Id::of_text("s")] {
        let (id, subscription) = (Some(&id), &id);
        let named = subscription.to_value();
        let got = params("ResourceUpdatedNotification", |out| {
            notify::resources_updated(out, "test://a", id);
        });
        assert_eq!(got, json!({"uri": "test://a", "_meta": {key: named}}));
        for (list, shape) in [
            (List::Tools, "ToolListChangedNotification"),
            (List::Prompts, "PromptListChangedNotification"),
            (List::Resources, "ResourceListChangedNotification"),
        ] {
            let got = params(shape, |out| notify::list_changed(out, list, id));
            assert_eq!(got, json!({"_meta": {key: named}}));
            assert_eq!(params(shape, |out| notify::list_changed(out, list, None)), json!({}));
        }
        let filter = Filter { tools: true, uris: vec!["a:b".to_owned()], ..Default::default() };
        let mut out = Vec::new();
        notify::acknowledged(&mut out, subscription, &filter);
        let got = check_bytes(NEW, "SubscriptionsAcknowledgedNotification", &out);
        assert_eq!(got["params"]["_meta"], json!({key: named}));
        assert_eq!(got["params"]["notifications"], filter.to_json());
    }
    let plain =
        params("ResourceUpdatedNotification", |out| notify::resources_updated(out, "a:b", None));
    assert_eq!(plain, json!({"uri": "a:b"}));
    let mut out = Vec::new();
    notify::list_changed(&mut out, List::Tasks, None);
    assert!(out.is_empty());
}

#[test]
fn a_cancellation_names_the_request() {
    // A31, B28.
    let got = params("CancelledNotification", |out| {
        notify::cancelled(out, &Id::of_text("ours"), Some("too late"));
    });
    assert_eq!(got, json!({"requestId": "ours", "reason": "too late"}));
    let got =
        params("CancelledNotification", |out| notify::cancelled(out, &Id::of_number(0), None));
    assert_eq!(got, json!({"requestId": 0}));
}

#[test]
fn changes_of_a_task_are_told_in_both_forms() {
    // A49, B38.
    let result = json!({"content": [], "resultType": "complete"});
    for (state, detail) in
        [(TaskState::Working, Detail::None), (TaskState::Completed, Detail::Result(&result))]
    {
        let task =
            Task { id: "k", state, message: None, created_us: 0, updated_us: 0, ttl_ms: None };
        let mut out = Vec::new();
        notify::task(&mut out, OLD, &task, detail, None);
        let got = check_bytes(OLD, "TaskStatusNotification", &out);
        assert_eq!(got["method"], "notifications/tasks/status");
        assert_eq!(got["params"].get("result"), None);
        assert_eq!(got["params"].get("_meta"), None);
        let mut out = Vec::new();
        notify::task(&mut out, NEW, &task, detail, Some(&Id::of_number(3)));
        let got = check_bytes(NEW, "TaskStatusNotification", &out);
        assert_eq!(got["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 3);
        assert_eq!(got["params"]["createdAt"], "1970-01-01T00:00:00.000000Z");
    }
}
