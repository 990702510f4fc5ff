//! Events survive the wire. A malformed event is refused with the name of the wrong field.

use serde_json::{Value, json};

use super::event::StreamEvent;
use crate::api::{self, Document, Row};
use crate::base::{ExecutionId, Handle, Random};
use crate::stream::{
    DetachReason, EndState, Exit, Gap, GapReason, Kind, LagLimit, Outcome, Policy, Totals,
};
use crate::wire::events;

fn id() -> ExecutionId {
    ExecutionId { shard: 1, slot: Handle { index: 2, generation: 3 }, nonce: 4 }
}

/// The event that the client reads after the server's encoder has written it.
fn read(event: events::WireEvent<'_>) -> StreamEvent {
    let mut out = Vec::new();
    event.write_json(&mut out);
    let (execution, read) = StreamEvent::parse(&out).unwrap();
    assert_eq!(execution, id());
    assert_eq!(read.name(), event.name());
    read
}

fn chunk<'a>(execution: &'a str, data: &'a [u8]) -> events::ChunkEvent<'a> {
    events::ChunkEvent {
        execution,
        seq: 7,
        total_chunks: Some(9),
        kind: "stderr",
        key: Some(3),
        offset: 50,
        data,
        timestamp_us: u64::MAX,
        mono_ns: 5,
    }
}

#[test]
fn chunks_of_any_bytes_come_through() {
    let execution = id().to_string();
    let mut random = Random::new(1);
    for length in 0..300 {
        let mut data = vec![0; length];
        random.fill(&mut data);
        if length % 2 == 0 {
            data.iter_mut().for_each(|byte| *byte &= 0x7F); // Text, with all control characters.
        }
        let StreamEvent::Chunk(read) = read(events::WireEvent::Chunk(chunk(&execution, &data)))
        else {
            panic!("expected a chunk")
        };
        assert_eq!((read.data, read.seq, read.total_chunks), (data, 7, Some(9)));
        assert_eq!((read.kind, read.key, read.offset), (Kind::Stderr, Some(3), 50));
        assert_eq!((read.timestamp_us, read.mono_ns), (u64::MAX, 5));
    }
}

#[test]
fn everything_else_comes_through() {
    let execution = &id().to_string();
    let (subscriber, tool, policy) = ("s1.2", "t\n\u{2028}", "drop_oldest");
    let limits = events::Limits { chunks: 10, bytes: None };
    let kept = events::Replay { chunks: 3, bytes: 99, until_acknowledged: true, grace_ms: 10_000 };
    let replay = Some(kept);
    let started = events::StartedEvent {
        execution,
        subscriber,
        tool,
        token: None,
        policy,
        limits,
        from_seq: 4,
        replay,
    };
    let StreamEvent::Started(read_started) = read(events::WireEvent::Started(started)) else {
        panic!()
    };
    assert_eq!((read_started.execution, read_started.tool.as_str()), (id(), tool));
    assert_eq!(read_started.policy, Policy::DropOldest);
    assert_eq!(read_started.limit, LagLimit { chunks: 10, bytes: u64::MAX });
    assert_eq!((read_started.subscriber.as_str(), read_started.from_seq), (subscriber, 4));
    assert_eq!(read_started.replay, replay);

    for reason in GapReason::ALL {
        let gap = Gap { from_seq: 2, to_seq: 5, chunk_count: 4, byte_count: 0, reason };
        let sent = events::GapEvent {
            execution,
            from_seq: 2,
            to_seq: 5,
            chunk_count: 4,
            byte_count: 0,
            reason: reason.name(),
        };
        assert_eq!(read(events::WireEvent::Gap(sent)), StreamEvent::Gap(gap));
    }

    let progress = events::ProgressEvent {
        execution,
        token: None,
        progress: 0.1,
        total: Some(3.0),
        percentage: Some(3.3),
        message: Some("m"),
        context: Some("{\"a\":[1]}"),
    };
    let StreamEvent::Progress(read_progress) = read(events::WireEvent::Progress(progress)) else {
        panic!()
    };
    assert_eq!((read_progress.progress, read_progress.total), (0.1, Some(3.0)));
    assert_eq!(read_progress.message.as_deref(), Some("m"));
    assert_eq!(read_progress.context.as_deref(), Some("{\"a\":[1]}"));
}

#[test]
fn every_end_comes_through() {
    let execution = &id().to_string();
    let outcomes = [Outcome::Completed, Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut];
    let ended = outcomes.map(EndState::Ended);
    let detached = DetachReason::ALL.map(|reason| EndState::Detached { reason, resume_from: 6 });
    for (at, state) in ended.into_iter().chain(detached).enumerate() {
        let exits = [None, Some(Exit::Code(-3)), Some(Exit::Signal(9))];
        let exit = exits[at % exits.len()];
        let sent = events::EndEvent {
            execution,
            state: match state {
                EndState::Ended(outcome) => events::EndState::Ended(outcome.name()),
                EndState::Detached { reason, resume_from } => {
                    events::EndState::Detached { reason: reason.name(), resume_from }
                }
            },
            chunks: 1,
            bytes: 2,
            missed_chunks: 3,
            missed_bytes: 4,
            execution_chunks: 7,
            execution_bytes: 8,
            duration_us: 5,
            exit,
            error: Some("why"),
        };
        let StreamEvent::End(read) = read(events::WireEvent::End(sent)) else {
            panic!("expected an end")
        };
        assert_eq!((read.end.state, read.end.exit), (state, exit));
        assert_eq!(read.end.given, Totals { chunks: 1, bytes: 2 });
        assert_eq!(read.end.missed, Totals { chunks: 3, bytes: 4 });
        assert_eq!(read.end.published, Totals { chunks: 7, bytes: 8 });
        assert_eq!((read.end.duration_us, read.error.as_deref()), (5, Some("why")));
    }
}

/// The fault of an event with one field changed or removed. Empty if it is none.
fn fault(event: &Value, name: &str, value: Value) -> String {
    let mut event = event.clone();
    event[name] = value; // `null` counts as absent.
    match StreamEvent::parse(event.to_string().as_bytes()) {
        Err(error) => error.to_string(),
        Ok(_) => String::new(),
    }
}

#[test]
fn what_is_no_event_is_refused_by_name() {
    let execution = id().to_string();
    let mut out = Vec::new();
    events::WireEvent::Chunk(chunk(&execution, b"no base 64")).write_json(&mut out);
    let chunk: Value = serde_json::from_slice(&out).unwrap();
    let gap = json!({"event": "gap", "execution": execution, "from_seq": 2, "to_seq": 3,
                     "chunk_count": 2, "byte_count": 5, "reason": "lag"});
    let end = json!({"event": "end", "execution": execution, "state": "detached", "chunks": 1,
                     "reason": "lag", "resume_from": 2, "bytes": 1, "missed_chunks": 0,
                     "missed_bytes": 0, "execution_chunks": 1, "execution_bytes": 1,
                     "duration_us": 1});
    let table = [
        (&chunk, "event", json!("chunks")),
        (&chunk, "event", json!(null)),
        (&chunk, "execution", json!("x")),
        (&chunk, "seq", json!(0)),
        (&chunk, "seq", json!(-1)),
        (&chunk, "seq", json!(1.5)),
        (&chunk, "seq", json!("7")),
        (&chunk, "seq", json!(1e30)),
        (&chunk, "kind", json!("other")),
        (&chunk, "key", json!(256)),
        (&chunk, "offset", json!(u64::MAX)),
        (&chunk, "encoding", json!("hex")),
        (&chunk, "encoding", json!("base64")),
        (&chunk, "data", json!(["data"])),
        (&chunk, "data", json!(null)),
        (&chunk, "mono_ns", json!(null)),
        (&gap, "from_seq", json!(0)),
        (&gap, "to_seq", json!(1)),
        (&gap, "chunk_count", json!(3)),
        (&gap, "reason", json!("because")),
        (&end, "state", json!("over")),
        (&end, "reason", json!(null)),
        (&end, "resume_from", json!(null)),
        (&end, "exit", json!({})),
        (&end, "exit", json!({"code": 1, "signal": 2})),
        (&end, "exit", json!({"code": 1u64 << 40})),
    ];
    for (event, name, value) in table {
        let text = format!("{name} = {value}");
        let fault = fault(event, name, value);
        let named = match name {
            "encoding" if text.contains("base64") => "data", // The two contradict each other.
            "exit" if text.contains("1099511627776") => "code",
            name => name,
        };
        assert!(fault.contains(&format!("`{named}`")), "{text}: {fault}");
    }
    for event in [&chunk, &gap, &end] {
        assert_eq!(fault(event, "unknown", json!([1])), "", "unknown fields must be ignored");
    }
}

/// Returns one event of each kind as the server writes it, with the rows of its members.
fn written() -> Vec<(Value, Vec<&'static Row>)> {
    let (execution, token) = (&*id().to_string(), &*"0".repeat(39));
    let limits = events::Limits { chunks: 1, bytes: Some(2) };
    let replay = events::Replay { chunks: 1, bytes: 2, until_acknowledged: true, grace_ms: 3 };
    let started = events::StartedEvent {
        execution,
        subscriber: "s1.2",
        tool: "t",
        token: Some(token),
        policy: "block",
        limits,
        from_seq: 1,
        replay: Some(replay),
    };
    let gap = events::GapEvent {
        execution,
        from_seq: 2,
        to_seq: 3,
        chunk_count: 2,
        byte_count: 5,
        reason: "lag",
    };
    let progress = events::ProgressEvent {
        execution,
        token: Some(token),
        progress: 1.0,
        total: Some(2.0),
        percentage: Some(50.0),
        message: Some("m"),
        context: Some("{}"),
    };
    let end = events::EndEvent {
        execution,
        state: events::EndState::Detached { reason: "lag", resume_from: 4 },
        chunks: 1,
        bytes: 2,
        missed_chunks: 2,
        missed_bytes: 5,
        execution_chunks: 3,
        execution_bytes: 7,
        duration_us: 9,
        exit: Some(Exit::Code(1)),
        error: Some("e"),
    };
    let rows = |rows: &'static [Row]| rows.iter().collect();
    let all: [(_, Vec<&Row>); 5] = [
        (events::WireEvent::Started(started), rows(api::StartedEvent::ROWS)),
        (events::WireEvent::Chunk(chunk(execution, b"data")), rows(api::ChunkEvent::ROWS)),
        (events::WireEvent::Gap(gap), rows(api::GapEvent::ROWS)),
        (events::WireEvent::Progress(progress), api::progress_rows().collect()),
        (events::WireEvent::End(end), rows(api::EndEvent::ROWS)),
    ];
    let write = |event: events::WireEvent<'_>| {
        let mut line = Vec::new();
        event.write_line(&mut line);
        serde_json::from_slice(&line).unwrap()
    };
    all.into_iter().map(|(event, rows)| (write(event), rows)).collect()
}

#[test]
fn the_server_writes_the_members_of_the_rows_in_their_order() {
    for (event, rows) in written() {
        let names = rows.iter().map(|row| row.name);
        assert!(event.as_object().unwrap().keys().eq(names), "{event}");
    }
}

#[test]
fn a_member_that_must_be_there_and_is_not_is_named() {
    let part = json!({"type": "StateUpdate", "seq": 1, "agent_id": id().to_string()});
    assert_eq!(fault(&part, "step_number", json!(null)), "", "parts have members of their own");
    for name in ["seq", "agent_id"] {
        let expected = format!("the server breaks the rules: `{name}` of an event is missing");
        assert_eq!(fault(&part, name, json!(null)), expected);
    }
    for (event, rows) in written() {
        assert_eq!(fault(&event, "unknown", json!(1)), "", "{event}");
        for row in rows {
            let expected = match row.is_optional && !matches!(row.name, "reason" | "resume_from") {
                true => String::new(),
                false => {
                    let name = row.name;
                    format!("the server breaks the rules: `{name}` of an event is missing")
                }
            };
            assert_eq!(fault(&event, row.name, json!(null)), expected, "{event}");
        }
    }
}
