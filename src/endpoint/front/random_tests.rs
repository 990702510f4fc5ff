//! Random logs in every format, however they are cut.

use super::check::{Checker, SeenCall, SeenEnd, SeenStream, arguments};
use super::runs::{RandomRun, Size};
use super::{
    Front, FrontFormat, FrontItem, FrontNames, FrontReader, GraphAnswer, SdkVersion, Spelling,
    StreamMode, StreamModes, StreamSource, TaskAnswer,
};
use crate::base::Random;
use crate::wire::events::{ChunkEvent, EndEvent, EndState, GapEvent, Limits, StartedEvent};

pub const FORMATS: [FrontFormat; 9] = [
    FrontFormat::AiSdk { sdk: SdkVersion::V5 },
    FrontFormat::AiSdk { sdk: SdkVersion::V6 },
    FrontFormat::AiSdk { sdk: SdkVersion::V7 },
    FrontFormat::AgUi,
    FrontFormat::LangGraph { spelling: Spelling::Snake },
    FrontFormat::LangGraph { spelling: Spelling::Camel },
    RUNS,
    RESPONSES,
    FrontFormat::A2a { answer: TaskAnswer::Events },
];
/// LangGraph's runs, in all modes at once.
pub const RUNS: FrontFormat = FrontFormat::Graph { answer: GraphAnswer::Events(StreamModes::ALL) };
pub const RESPONSES: FrontFormat = FrontFormat::Responses { is_document: false };
const ROUNDS: u64 = 300;

fn seed() -> u64 {
    std::env::var("SEED").map_or(1, |text| text.parse().unwrap())
}

pub const STARTED: StartedEvent<'static> = StartedEvent {
    execution: "0abc",
    subscriber: "1",
    tool: "agent",
    token: None,
    policy: "block",
    limits: Limits { chunks: 8, bytes: None },
    from_seq: 1,
    replay: None,
};

pub fn end(state: EndState<'static>) -> EndEvent<'static> {
    EndEvent {
        execution: "0abc",
        state,
        chunks: 0,
        bytes: 0,
        missed_chunks: 0,
        missed_bytes: 0,
        execution_chunks: 0,
        execution_bytes: 0,
        duration_us: 1,
        exit: None,
        error: None,
    }
}

pub fn gap() -> GapEvent<'static> {
    let (from_seq, to_seq, chunk_count, byte_count) = (3, 5, 3, 100);
    GapEvent { execution: "0abc", from_seq, to_seq, chunk_count, byte_count, reason: "lag" }
}

pub fn front(format: FrontFormat) -> Front {
    Front::new(format, FrontNames::new("0abc", "agent"), StreamSource::Agent)
}

/// Returns what a client of `format` should read from the generated run.
fn expected(format: FrontFormat, seen: &SeenStream) -> SeenStream {
    let mut seen = seen.clone();
    for call in seen.steps.iter_mut().flat_map(|step| &mut step.calls) {
        call.result = call.result.take().map(|result| match (format, result) {
            // All output that came is sent.
            (FrontFormat::AiSdk { .. } | FrontFormat::A2a { .. }, Ok(_)) => Ok(call.pieces.clone()),
            (FrontFormat::AgUi, Err(problem)) => Ok(problem),
            (_, result) => result,
        });
    }
    match (&seen.end, format) {
        (SeenEnd::Failed(_), FrontFormat::AiSdk { .. } | FrontFormat::Responses { .. }) => {
            seen.end = SeenEnd::Failed(String::new());
        }
        // A run that was stopped has not failed.
        (SeenEnd::Failed(text), FrontFormat::AgUi)
            if ["it took too long", "the server stops"].contains(&text.as_str()) =>
        {
            seen.end = SeenEnd::Cancelled;
        }
        _ => {}
    }
    seen.without_silence()
}

/// Normalizes what a client has read. The texts of errors are compared here, where the format has
/// them.
fn understood(format: FrontFormat, mut seen: SeenStream, meant: &SeenStream) -> SeenStream {
    for call in seen.steps.iter_mut().flat_map(|step| &mut step.calls) {
        if let Some(text) = call.arguments.as_str() {
            call.arguments = arguments(text);
        }
        let problem = meant.call(&call.id).and_then(|call| call.result.clone()?.err());
        call.result = call.result.take().map(|result| match (format, result, problem) {
            // The error follows the output.
            (FrontFormat::AgUi, Ok(text), Some(problem)) if text.ends_with(&problem) => Ok(problem),
            (_, result, _) => result,
        });
    }
    let has_code = matches!(format, FrontFormat::AiSdk { .. } | FrontFormat::Responses { .. });
    if let (SeenEnd::Failed(text), true, SeenEnd::Failed(said)) =
        (&mut seen.end, has_code, &meant.end)
    {
        assert!(text.ends_with(said), "{text:?} {said:?}");
        text.clear();
    }
    seen.without_silence()
}

fn whole(format: FrontFormat, run: &RandomRun) -> Vec<u8> {
    let (mut front, mut out) = (front(format), Vec::new());
    front.write(FrontItem::Started(&STARTED), &mut out);
    for part in &run.parts {
        front.write(FrontItem::Part(part), &mut out);
    }
    front.write(FrontItem::End(&end(EndState::Ended("completed"))), &mut out);
    out
}

fn read(format: FrontFormat, bytes: &[u8], random: &mut Random) -> SeenStream {
    let mut checker = Checker::new(format);
    let read = checker.read(bytes, random).and_then(|()| checker.finish());
    read.unwrap_or_else(|error| panic!("{format:?}: {error}\n{}", String::from_utf8_lossy(bytes)))
}

#[test]
fn every_format_tells_the_same_run() {
    let mut random = Random::new(seed());
    for round in 0..ROUNDS {
        let run = RandomRun::new(&mut random, Size::default());
        for format in FORMATS {
            let bytes = whole(format, &run);
            let seen = understood(format, read(format, &bytes, &mut random), &run.seen);
            assert_eq!(seen, expected(format, &run.seen), "SEED={} {round} {format:?}", seed());
        }
    }
}

#[test]
fn a_part_is_told_alike_as_a_value_and_as_a_chunk() {
    let mut random = Random::new(seed() + 7);
    let run = RandomRun::new(&mut random, Size::default());
    for format in FORMATS {
        let (mut front, mut out) = (front(format), Vec::new());
        front.write(FrontItem::Started(&STARTED), &mut out);
        for part in &run.parts {
            let mut json = Vec::new();
            part.write_json(&mut json);
            let chunk = ChunkEvent { kind: part.kind().name(), ..chunk(part.seq, 0, &json) };
            front.write(FrontItem::Chunk(&chunk), &mut out);
            // A chunk that is not a part means nothing to a client.
            front.write(FrontItem::Chunk(&ChunkEvent { data: b"{\"type\":", ..chunk }), &mut out);
        }
        front.write(FrontItem::End(&end(EndState::Ended("completed"))), &mut out);
        assert_eq!(out, whole(format, &run), "SEED={} {format:?}", seed());
    }
}

/// Returns what a client reads from a stream that starts at `held.end`: what was open, and what
/// came later. Parts before `held` were lost.
fn reopened(
    format: FrontFormat,
    reader: FrontReader,
    run: &RandomRun,
    held: std::ops::Range<usize>,
    random: &mut Random,
) -> SeenStream {
    let cut = held.end;
    let (mut front, mut out) = (front(format), Vec::new());
    for part in &run.parts[held] {
        front.prime(FrontItem::Part(part));
    }
    front.reopen(reader, &mut out);
    for part in &run.parts[cut..] {
        front.write(FrontItem::Part(part), &mut out);
    }
    front.write(FrontItem::End(&end(EndState::Ended("completed"))), &mut out);
    read(format, &out, random)
}

fn has_same_end(call: &SeenCall, meant: &SeenCall) -> bool {
    let result = call.result.as_ref().unwrap();
    match meant.result.as_ref().unwrap() {
        // A format may have the error after the output, or may have sent an error before.
        Err(problem) => {
            result.as_ref().is_ok_and(|text| text.ends_with(problem)) || result.is_err()
        }
        Ok(text) => result.as_ref().is_ok_and(|told| {
            // A format may send all output that came, if the model has received less of it.
            let rest = told.trim_start_matches(char::REPLACEMENT_CHARACTER);
            let is_longer = told.len() > text.len() && meant.pieces.ends_with(rest);
            told.starts_with(text) || is_longer
        }),
    }
}

#[test]
fn a_stream_that_starts_in_the_middle_has_all_that_was_open_and_all_that_comes() {
    let mut random = Random::new(seed() + 1);
    for round in 0..ROUNDS {
        let run = RandomRun::new(&mut random, Size::default());
        let cut = random.below(run.parts.len() as u64) as usize;
        for format in FORMATS {
            let context = format!("SEED={} {round} {format:?} cut {cut}", seed());
            let seen = reopened(format, FrontReader::New, &run, 0..cut, &mut random);
            let seen = understood(format, seen, &run.seen);
            assert_eq!(seen.end, expected(format, &run.seen).end, "{context}");
            let first_step = run.parts[cut].step_number.max(1) as usize;
            let meant = expected(format, &run.seen);
            let later = run.seen.steps[first_step..].iter();
            let later_count = later.filter(|step| **step != Default::default()).count();
            let (seen_later, meant_later) = (&seen.steps, &meant.steps);
            assert_eq!(
                seen_later[seen_later.len() - later_count..],
                meant_later[meant_later.len() - later_count..],
                "{context}"
            );
            // Calls of the interrupted step that had not ended are complete.
            for step in &seen.steps {
                for call in &step.calls {
                    let meant = meant.call(&call.id).expect("the call belongs to the run");
                    assert_eq!(call, meant, "{context}");
                }
            }
            for part in &run.parts[cut..] {
                if let Some(id) = part.tool_call_id() {
                    assert!(seen.call(id).is_some(), "{context}: {id}");
                }
            }
        }
    }
}

#[test]
fn whatever_was_lost_before_a_client_reads_what_is_left() {
    let mut random = Random::new(seed() + 2);
    for round in 0..ROUNDS {
        let run = RandomRun::new(&mut random, Size::default());
        let cut = random.below(run.parts.len() as u64) as usize;
        let lost = random.below(cut as u64 + 1) as usize;
        for format in FORMATS {
            // A new client can read what is sent to a returning one, except in LangGraph's format.
            let may_return = !matches!(format, FrontFormat::LangGraph { .. });
            let readers = [FrontReader::New, FrontReader::Returning];
            let reader = readers[usize::from(may_return && random.chance(1, 2))];
            let seen = reopened(format, reader, &run, lost..cut, &mut random);
            for part in &run.parts[cut..] {
                // A client that receives the end of a call knows the call.
                let crate::agent::Body::Final(last) = &part.body else { continue };
                let (Some(id), true) =
                    (part.tool_call_id(), format!("{last:?}").starts_with("ToolCallC"))
                else {
                    continue;
                };
                let call = seen.call(id);
                let meant = run.seen.call(id).unwrap();
                let context = format!("SEED={} {round} {format:?} {lost} {cut}", seed());
                assert!(call.is_some_and(|call| has_same_end(call, meant)), "{context}: {call:?}");
            }
        }
    }
}

#[test]
fn a_log_with_holes_is_told_in_order() {
    let mut random = Random::new(seed() + 3);
    for _ in 0..ROUNDS {
        let run = RandomRun::new(&mut random, Size::default());
        for format in FORMATS {
            let (mut front, mut out, mut gap_count) = (front(format), Vec::new(), 0);
            let mut is_lost = false;
            for part in &run.parts {
                if is_lost && random.chance(1, 2) && !part.is_end() {
                    continue;
                }
                if !is_lost && random.chance(1, 10) && !part.is_end() {
                    is_lost = true;
                    gap_count += 1;
                    front.write(FrontItem::Gap(&gap()), &mut out);
                    continue;
                }
                is_lost = false;
                front.write(FrontItem::Part(part), &mut out);
            }
            front.write(FrontItem::End(&end(EndState::Ended("completed"))), &mut out);
            let seen = read(format, &out, &mut random);
            assert_eq!(seen.gap_count, gap_count);
            let meant = expected(format, &run.seen).end;
            assert_eq!(understood(format, seen, &run.seen).end, meant, "{format:?}");
        }
    }
}

#[test]
fn who_comes_back_goes_on_where_he_was() {
    let mut random = Random::new(seed() + 4);
    for round in 0..ROUNDS {
        let run = RandomRun::new(&mut random, Size::default());
        let cut = random.below(run.parts.len() as u64) as usize;
        let format = FrontFormat::AgUi;
        let mut checker = Checker::new(format);
        let (mut first, mut out) = (front(format), Vec::new());
        for part in &run.parts[..cut] {
            first.write(FrontItem::Part(part), &mut out);
        }
        checker.read(&out, &mut random).unwrap();
        checker.reconnect();
        out.clear();
        let mut second = front(format);
        for part in &run.parts[..cut] {
            second.prime(FrontItem::Part(part));
        }
        second.reopen(FrontReader::Returning, &mut out);
        for part in &run.parts[cut..] {
            second.write(FrontItem::Part(part), &mut out);
        }
        second.write(FrontItem::End(&end(EndState::Ended("completed"))), &mut out);
        let context = format!("SEED={} {round} cut {cut}", seed());
        checker.read(&out, &mut random).unwrap_or_else(|error| panic!("{context}: {error}"));
        let seen = understood(format, checker.finish().unwrap(), &run.seen);
        assert_eq!(seen, expected(format, &run.seen), "{context}");
    }
}

/// Returns the events, each with its number.
fn frames(bytes: &[u8]) -> Vec<(u64, String)> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let frames = text.split_terminator("\n\n").map(|frame| {
        let id = frame.lines().next().unwrap().rsplit([':', ' ']).next().unwrap();
        (id.parse().unwrap(), frame.to_owned())
    });
    frames.collect()
}

#[test]
fn with_since_exactly_the_events_behind_that_one_are_written() {
    let mut random = Random::new(seed() + 5);
    let format = FrontFormat::LangGraph { spelling: Spelling::Snake };
    for round in 0..ROUNDS {
        let run = RandomRun::new(&mut random, Size::default());
        let all = frames(&whole(format, &run));
        let at = random.below(all.len() as u64) as usize;
        let since = all[at].0;
        let (mut front, mut out) = (front(format), Vec::new());
        front.set_since(since);
        front.write(FrontItem::Started(&STARTED), &mut out);
        for part in &run.parts {
            front.write(FrontItem::Part(part), &mut out);
        }
        front.write(FrontItem::End(&end(EndState::Ended("completed"))), &mut out);
        assert_eq!(frames(&out), all[at + 1..], "SEED={} {round} since {since}", seed());

        // The same result comes from priming the items before. Nothing is written twice.
        let cut = Front::part_of(since) as usize;
        let (mut front, mut out) = (self::front(format), Vec::new());
        front.prime(FrontItem::Started(&STARTED));
        for part in &run.parts[..cut] {
            front.prime(FrontItem::Part(part));
        }
        front.reopen(FrontReader::Returning, &mut out);
        assert_eq!(out, b"");
        for part in &run.parts[cut..] {
            front.write(FrontItem::Part(part), &mut out);
        }
        front.write(FrontItem::End(&end(EndState::Ended("completed"))), &mut out);
        let behind = all.iter().filter(|(number, _)| Front::part_of(*number) > cut as u64);
        assert!(behind.eq(&frames(&out)), "SEED={} {round} cut {cut}", seed());
    }
}

/// Returns the events of a response, each with its number.
fn numbered(bytes: &[u8]) -> Vec<(u64, String)> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let frames = text.split_terminator("\n\n").map(|frame| {
        let data = frame.split_once("data: ").unwrap().1;
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        (data["sequence_number"].as_u64().unwrap(), frame.to_owned())
    });
    frames.collect()
}

#[test]
fn a_response_goes_on_behind_a_number_and_is_the_same_as_a_document() {
    let mut random = Random::new(seed() + 8);
    for round in 0..ROUNDS {
        let run = RandomRun::new(&mut random, Size::default());
        let all = numbered(&whole(RESPONSES, &run));
        let at = random.below(all.len() as u64) as usize;
        let since = all[at].0;
        let write = |mut front: Front| {
            let mut out = Vec::new();
            front.write(FrontItem::Started(&STARTED), &mut out);
            for part in &run.parts {
                front.write(FrontItem::Part(part), &mut out);
            }
            front.write(FrontItem::End(&end(EndState::Ended("completed"))), &mut out);
            (front, out)
        };
        let mut behind = front(RESPONSES);
        assert_eq!(behind.set_since(since), None);
        let behind = numbered(&write(behind).1);
        assert_eq!(behind, all[at + 1..], "SEED={} {round} since {since}", seed());
        let (written, document) = write(front(FrontFormat::Responses { is_document: true }));
        let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
        let last = all.last().unwrap().1.split_once("data: ").unwrap().1;
        let last: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!(document, last["response"], "SEED={} {round}", seed());
        assert_eq!(written.document("queued")["output"], document["output"]);
    }
}

#[test]
fn a_run_goes_on_behind_a_number_whatever_the_modes_and_is_the_same_as_a_document() {
    let mut random = Random::new(seed() + 9);
    let write = |mut front: Front, run: &RandomRun| {
        let mut out = Vec::new();
        front.write(FrontItem::Started(&STARTED), &mut out);
        for part in &run.parts {
            front.write(FrontItem::Part(part), &mut out);
        }
        front.write(FrontItem::End(&end(EndState::Ended("completed"))), &mut out);
        out
    };
    for round in 0..ROUNDS {
        let run = RandomRun::new(&mut random, Size::default());
        let all = frames(&whole(RUNS, &run));
        let at = random.below(all.len() as u64) as usize;
        let since = all[at].0;
        let mut behind = front(RUNS);
        assert_eq!(behind.set_since(since), None);
        let behind = frames(&write(behind, &run));
        assert_eq!(behind, all[at + 1..], "SEED={} {round} since {since}", seed());
        // An event has the same number in each mode.
        let modes = StreamModes::of(&[StreamMode::Values, StreamMode::Tools]);
        let some = FrontFormat::Graph { answer: GraphAnswer::Events(modes) };
        let some = frames(&write(front(some), &run));
        assert!(some.iter().all(|frame| all.contains(frame)), "SEED={} {round}", seed());
        let document = write(front(FrontFormat::Graph { answer: GraphAnswer::Values }), &run);
        let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
        let last = all.iter().rev().find(|(_, frame)| frame.contains("event: values")).unwrap();
        let last = last.1.split_once("data: ").unwrap().1;
        let last: serde_json::Value = serde_json::from_str(last).unwrap();
        match document.get("__error__") {
            Some(error) => assert!(error["message"].is_string(), "{error}"),
            None => assert_eq!(document, last, "SEED={} {round}", seed()),
        }
    }
}

#[test]
fn a_tools_output_is_told_once_and_a_bit_more_however_small_its_chunks() {
    const OUTPUT_BYTES: usize = 3 << 20;
    for (chunk_bytes, bytes_of_chunk) in [(64, 400), (4_096, 400)] {
        for format in FORMATS {
            let mut front = Front::new(format, FrontNames::new("0abc", "seq"), StreamSource::Tool);
            let (mut out, mut written, mut kept) = (Vec::new(), 0, 0);
            let data = vec![b'x'; chunk_bytes];
            let count = OUTPUT_BYTES / chunk_bytes;
            for seq in 1..=count as u64 {
                front.write(
                    FrontItem::Chunk(&chunk(seq, (seq - 1) * chunk_bytes as u64, &data)),
                    &mut out,
                );
                written += out.len();
                out.clear();
                kept = kept.max(front.kept_bytes());
            }
            front.write(FrontItem::End(&end(EndState::Ended("completed"))), &mut out);
            written += out.len();
            let bound = 5 * OUTPUT_BYTES + count * bytes_of_chunk + 4_096;
            assert!(written <= bound, "{format:?} {chunk_bytes}: {written} > {bound}");
            let kept_max = 2 * crate::limits::FRONT_OUTPUT_BYTES_MAX + 4_096;
            assert!(kept <= kept_max, "{format:?}: {kept} are kept");
        }
    }
}

pub fn chunk(seq: u64, offset: u64, data: &[u8]) -> ChunkEvent<'_> {
    ChunkEvent {
        execution: "0abc",
        seq,
        total_chunks: None,
        kind: "stdout",
        key: None,
        offset,
        data,
        timestamp_us: 1_700_000_000_000_000,
        mono_ns: 1,
    }
}

#[test]
fn a_tool_is_told_as_one_call_whatever_its_output_and_its_end() {
    let mut random = Random::new(seed() + 6);
    for round in 0..ROUNDS {
        let mut data = vec![0; random.below(4_000) as usize];
        random.fill(&mut data);
        let size = 1 + random.below(300) as usize;
        let state = ["completed", "failed", "cancelled", "timed_out"][random.below(4) as usize];
        for format in FORMATS {
            let names = FrontNames {
                arguments: serde_json::json!({"to": 3}),
                ..FrontNames::new("0abc", "seq")
            };
            let (mut front, mut out) = (Front::new(format, names, StreamSource::Tool), Vec::new());
            if random.chance(1, 2) {
                front.write(FrontItem::Started(&STARTED), &mut out);
            }
            let mut offset = 0;
            for (at, piece) in data.chunks(size).enumerate() {
                front.write(FrontItem::Chunk(&chunk(at as u64 + 1, offset, piece)), &mut out);
                offset += piece.len() as u64;
            }
            front.write(FrontItem::End(&end(EndState::Ended(state))), &mut out);
            let context = format!("SEED={} {round} {format:?}", seed());
            let seen = read(format, &out, &mut random);
            let [step] = &seen.steps[..] else { panic!("{context}: {seen:?}") };
            let [call] = &step.calls[..] else { panic!("{context}: {seen:?}") };
            let text = String::from_utf8_lossy(&data);
            assert_eq!((&*call.id, &*call.name), ("0abc", "seq"), "{context}");
            assert_eq!(call.arguments, serde_json::json!({"to": 3}), "{context}");
            assert_eq!(call.pieces, text, "{context}");
            if state == "completed" {
                assert_eq!(call.result, Some(Ok(text.into_owned())), "{context}");
                assert_eq!(seen.end, SeenEnd::Completed, "{context}");
            } else {
                let is_stopped = format == FrontFormat::AgUi && state == "timed_out";
                let is_cancelled = state == "cancelled" || is_stopped;
                assert_eq!(seen.end == SeenEnd::Cancelled, is_cancelled, "{context}");
                assert_ne!(call.result, Some(Ok(text.into_owned())), "{context}");
            }
        }
    }
}
