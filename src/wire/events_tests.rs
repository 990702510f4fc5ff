//! Tests of the shapes of events, byte for byte, and of reading back what was written.

use serde_json::{Value, json};

use super::base64::tests::decoded;
use super::events::{
    ChunkEvent, EndEvent, EndState, GapEvent, Limits, ProgressEvent, Replay, StartedEvent,
    WireEvent,
};
use crate::base::Random;
use crate::stream::Exit;

fn line(event: WireEvent<'_>) -> String {
    let mut out = Vec::new();
    event.write_line(&mut out);
    String::from_utf8(out).expect("JSON is UTF-8")
}

fn parsed(event: WireEvent<'_>) -> Value {
    let line = line(event);
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn chunk(data: &[u8]) -> ChunkEvent<'_> {
    ChunkEvent {
        execution: "0abc",
        seq: 3,
        total_chunks: None,
        kind: "stdout",
        key: None,
        offset: 64,
        data,
        timestamp_us: 1_790_000_000_000_000,
        mono_ns: 12_345,
    }
}

fn end(state: EndState<'_>) -> EndEvent<'_> {
    EndEvent {
        execution: "0abc",
        state,
        chunks: 9,
        bytes: 900,
        missed_chunks: 1,
        missed_bytes: 100,
        execution_chunks: 20,
        execution_bytes: 2_000,
        duration_us: 2_000_000,
        exit: None,
        error: None,
    }
}

const PROGRESS: ProgressEvent<'_> = ProgressEvent {
    execution: "0abc",
    token: None,
    progress: 3.0,
    total: None,
    percentage: None,
    message: None,
    context: None,
};

#[test]
fn started_is_spelled_so() {
    let started = StartedEvent {
        execution: "0abc",
        subscriber: "s0.1",
        tool: "process_file",
        token: Some("t-1"),
        policy: "block",
        limits: Limits { chunks: 10, bytes: Some(4_096) },
        from_seq: 1,
        replay: None,
    };
    assert_eq!(
        line(WireEvent::Started(started)),
        r#"{"event":"started","execution":"0abc","subscriber":"s0.1","tool":"process_file","#
            .to_owned()
            + r#""token":"t-1","policy":"block","limits":{"max_chunks":10,"max_bytes":4096},"#
            + "\"from_seq\":1}\n"
    );
    let limits = Limits { chunks: 10, bytes: None };
    let bare = line(WireEvent::Started(StartedEvent { token: None, limits, ..started }));
    assert!(bare.contains(r#""tool":"process_file","policy":"block","limits":{"max_chunks":10},"#));
    for (until_acknowledged, of) in [(true, "unacknowledged"), (false, "sent")] {
        let replay = Replay { chunks: 8, bytes: 9, until_acknowledged, grace_ms: 10_000 };
        let kept = line(WireEvent::Started(StartedEvent { replay: Some(replay), ..started }));
        let expected = r#""from_seq":1,"replay":{"chunks":8,"bytes":9,"of":"#.to_owned()
            + &format!("\"{of}\",\"grace_ms\":10000}}}}\n");
        assert!(kept.ends_with(&expected), "{kept}");
    }
}

#[test]
fn a_chunk_is_spelled_so() {
    assert_eq!(
        line(WireEvent::Chunk(chunk("grün\n".as_bytes()))),
        r#"{"event":"chunk","execution":"0abc","seq":3,"kind":"stdout","offset":64,"#.to_owned()
            + r#""encoding":"text","data":"grün\n","timestamp_us":1790000000000000,"#
            + "\"mono_ns\":12345}\n"
    );
    let full = ChunkEvent { total_chunks: Some(7), key: Some(63), ..chunk(b"\xFF\0") };
    assert_eq!(
        line(WireEvent::Chunk(full)),
        r#"{"event":"chunk","execution":"0abc","seq":3,"total_chunks":7,"kind":"stdout","#
            .to_owned()
            + r#""key":63,"offset":64,"encoding":"base64","data":"/wA=","#
            + "\"timestamp_us\":1790000000000000,\"mono_ns\":12345}\n"
    );
}

#[test]
fn a_gap_is_spelled_so() {
    let gap = GapEvent {
        execution: "0abc",
        from_seq: 11,
        to_seq: 40,
        chunk_count: 30,
        byte_count: u64::MAX,
        reason: "overtaken",
    };
    assert_eq!(
        line(WireEvent::Gap(gap)),
        r#"{"event":"gap","execution":"0abc","from_seq":11,"to_seq":40,"chunk_count":30,"#
            .to_owned()
            + "\"byte_count\":18446744073709551615,\"reason\":\"overtaken\"}\n"
    );
}

#[test]
fn progress_is_spelled_so() {
    assert_eq!(
        line(WireEvent::Progress(PROGRESS)),
        "{\"event\":\"progress\",\"execution\":\"0abc\",\"progress\":3}\n"
    );
    let full = ProgressEvent {
        token: Some("t-1"),
        progress: 2.5,
        total: Some(10.0),
        percentage: Some(25.0),
        message: Some("half\nway"),
        context: Some("{\"step\": 2,\n \"of\": [\"\u{2028}\"]}"),
        ..PROGRESS
    };
    assert_eq!(
        line(WireEvent::Progress(full)),
        r#"{"event":"progress","execution":"0abc","token":"t-1","progress":2.5,"total":10,"#
            .to_owned()
            + r#""percentage":25,"message":"half\nway","context":{"step":2,"of":["\u2028"]}}"#
            + "\n"
    );
    for text in ["not JSON", "{} {}", "1}", "{\"a\":1},\"progress\":9", ""] {
        let event = parsed(WireEvent::Progress(ProgressEvent { context: Some(text), ..PROGRESS }));
        assert_eq!((&event["context"], &event["progress"]), (&text.into(), &3.into()));
    }
}

#[test]
fn an_end_is_spelled_so() {
    assert_eq!(
        line(WireEvent::End(end(EndState::Ended("completed")))),
        r#"{"event":"end","execution":"0abc","state":"completed","chunks":9,"bytes":900,"#
            .to_owned()
            + "\"missed_chunks\":1,\"missed_bytes\":100,\"execution_chunks\":20,\
               \"execution_bytes\":2000,\"duration_us\":2000000}\n"
    );
    let failed = EndEvent {
        exit: Some(Exit::Code(-3)),
        error: Some("no \"luck\""),
        ..end(EndState::Ended("failed"))
    };
    assert!(line(WireEvent::End(failed)).ends_with(
        "\"duration_us\":2000000,\"exit\":{\"code\":-3},\"error\":\"no \\\"luck\\\"\"}\n"
    ));
    let killed = EndEvent { exit: Some(Exit::Signal(9)), ..end(EndState::Ended("cancelled")) };
    assert!(line(WireEvent::End(killed)).ends_with("\"exit\":{\"signal\":9}}\n"));
    let detached = EndState::Detached { reason: "lag", resume_from: 17 };
    assert!(line(WireEvent::End(end(detached))).starts_with(
        "{\"event\":\"end\",\"execution\":\"0abc\",\"state\":\"detached\",\"reason\":\"lag\",\
         \"resume_from\":17,\"chunks\":9,"
    ));
}

#[test]
fn a_chunk_is_text_only_if_all_of_it_is_utf_8() {
    let texts: [&[u8]; 4] = [b"", b"plain", "ä€😀".as_bytes(), b"\0\x1b[31m"];
    for data in texts {
        let event = parsed(WireEvent::Chunk(chunk(data)));
        assert_eq!(event["encoding"], "text", "{data:?}");
        assert_eq!(event["data"].as_str().unwrap().as_bytes(), data);
    }
    let others: [&[u8]; 6] = [
        b"\xFF",
        b"text and then \x80",
        b"\xC0\xAF",          // An overlong slash.
        b"\xED\xA0\x80",      // A surrogate.
        b"\xF4\x90\x80\x80",  // Above U+10FFFF.
        &"ä".as_bytes()[..1], // Cut in the middle.
    ];
    for data in others {
        let event = parsed(WireEvent::Chunk(chunk(data)));
        assert_eq!(event["encoding"], "base64", "{data:?}");
        assert_eq!(decoded(event["data"].as_str().unwrap()), data);
    }
}

#[test]
fn what_is_no_number_is_null() {
    let event = parsed(WireEvent::Progress(ProgressEvent { progress: f64::NAN, ..PROGRESS }));
    assert_eq!(event, json!({"event": "progress", "execution": "0abc", "progress": null}));
}

/// Returns a text of any characters, often hostile ones.
fn text(random: &mut Random) -> String {
    let length = random.below(30);
    let hostile = ['"', '\\', '\n', '\r', '\0', '\u{85}', '\u{2028}', '\u{2029}', '\u{feff}'];
    let any = |random: &mut Random| match random.below(4) {
        0 => hostile[random.below(hostile.len() as u64) as usize],
        1 => char::from_u32(random.below(0x11_0000) as u32).unwrap_or('\u{fffd}'),
        _ => random.between(0x20, 0x7e) as u8 as char,
    };
    (0..length).map(|_| any(random)).collect()
}

#[test]
fn what_is_written_is_read_back_as_it_was() {
    for seed in 0..5_000 {
        let mut random = Random::new(seed);
        let (execution, word) = (text(&mut random), text(&mut random));
        let mut data = text(&mut random).into_bytes();
        if random.chance(1, 3) {
            data.push(random.next_u64() as u8);
        }
        let chunk = ChunkEvent {
            execution: &execution,
            seq: random.next_u64(),
            total_chunks: random.chance(1, 2).then(|| random.next_u64()),
            kind: &word,
            key: random.chance(1, 2).then(|| random.below(64) as u8),
            offset: random.next_u64(),
            data: &data,
            timestamp_us: random.next_u64(),
            mono_ns: random.next_u64(),
        };
        let line = line(WireEvent::Chunk(chunk));
        let ends = |c: char| c.is_control() || "\u{2028}\u{2029}".contains(c);
        assert_eq!(line.find(ends), Some(line.len() - 1), "seed {seed}: {line}");
        let event: Value = serde_json::from_str(&line).unwrap();
        let data_read = match event["encoding"].as_str() {
            Some("text") => event["data"].as_str().unwrap().as_bytes().to_vec(),
            _ => decoded(event["data"].as_str().unwrap()),
        };
        assert_eq!(data_read, data, "seed {seed}");
        let mut expected = json!({
            "event": "chunk", "execution": execution, "seq": chunk.seq, "kind": word,
            "offset": chunk.offset, "encoding": event["encoding"], "data": event["data"],
            "timestamp_us": chunk.timestamp_us, "mono_ns": chunk.mono_ns,
        });
        if let Some(total) = chunk.total_chunks {
            expected["total_chunks"] = total.into();
        }
        if let Some(key) = chunk.key {
            expected["key"] = key.into();
        }
        assert_eq!(event, expected, "seed {seed}");
    }
}
