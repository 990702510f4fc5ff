//! The kept replies. `NAME.body` is the input. `NAME.events` holds the expected result: a line for
//! each event and for the fault.

use std::fs;
use std::path::PathBuf;

use streamdoor::agent::model::{FinishReason, ModelEvent, ModelFault, Wire};
use streamdoor::base::Random;

use super::{WIRES, check_order, random_pieces, read};

struct Kept {
    wire: Wire,
    name: String,
    body: Vec<u8>,
    /// The expected lines of the file, without comments.
    expected: Vec<String>,
    /// Numbers of frames after which a cut reply is complete. If the file does not say, it is
    /// complete behind the frame with the wire's end marker.
    complete_after: Option<Vec<usize>>,
}

fn kept(wire: Wire) -> Vec<Kept> {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where its package is");
    let folder = PathBuf::from(root).join("tests/corpus/models").join(wire.to_string());
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("a folder can be listed").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "body"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(path.with_extension("events")).expect("it stands beside");
        let (mut expected, mut complete_after) = (Vec::new(), None);
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.strip_prefix("complete after frames ") {
                Some(numbers) => {
                    let number = |number: &str| number.parse().expect("a number of frames");
                    complete_after = Some(numbers.split(' ').map(number).collect());
                }
                None => expected.push(line.to_owned()),
            }
        }
        let name = path.file_stem().expect("it has a name").to_string_lossy().into_owned();
        let body = fs::read(path).expect("a corpus is files");
        Kept { wire, name, body, expected, complete_after }
    };
    paths.into_iter().map(read).collect()
}

/// Events and the fault behind them, in the format of the files.
fn spelled(events: &[ModelEvent], result: &Result<(), ModelFault>) -> Vec<String> {
    let quoted = |text: &str| serde_json::to_string(text).expect("a text is JSON");
    let event = |event: &ModelEvent| match event {
        ModelEvent::Text(text) => format!("text {}", quoted(text)),
        ModelEvent::Reasoning(text) => format!("reasoning {}", quoted(text)),
        ModelEvent::CallStarted { index, id, name } => {
            let id = id.as_deref().map_or("-".to_owned(), quoted);
            format!("call {index} {id} {}", quoted(name))
        }
        ModelEvent::CallArguments { index, piece } => {
            format!("arguments {index} {}", quoted(piece))
        }
        ModelEvent::CallCompleted { index, extra: None } => format!("complete {index}"),
        ModelEvent::CallCompleted { index, extra: Some(extra) } => {
            format!("complete {index} {extra}")
        }
        ModelEvent::Block(block) => {
            format!("block text={} calls={} {}", block.text_bytes, block.call_count, block.value)
        }
        ModelEvent::Usage(usage) => {
            let rest =
                [("reasoning", usage.reasoning_tokens), ("cached", usage.cached_input_tokens)];
            let rest: String = rest
                .into_iter()
                .filter_map(|(name, count)| Some(format!(" {name}={}", count?)))
                .collect();
            format!("usage input={} output={}{rest}", usage.input_tokens, usage.output_tokens)
        }
        ModelEvent::Finished(reason) => format!("finished {}", reason.as_str()),
    };
    let fault = result.as_ref().err().map(|fault| match fault {
        ModelFault::Truncated => "fault truncated".to_owned(),
        ModelFault::Malformed(problem) => format!("fault malformed {problem}"),
        ModelFault::Said { code, message, is_retryable } => {
            let lasts = if *is_retryable { "retryable" } else { "lasting" };
            format!("fault said {code} {lasts}: {message}")
        }
        ModelFault::TooLong { what, limit } => format!("fault too_long {what} {limit}"),
    });
    events.iter().map(event).chain(fault).collect()
}

impl Kept {
    fn read_pieces<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let (events, result) = read(self.wire, pieces);
        check_order(&events);
        spelled(&events, &result)
    }

    fn is_complete(&self) -> bool {
        self.expected.last().is_some_and(|last| last.starts_with("finished"))
    }

    /// True if the end marker of the wire is in the bytes.
    fn has_end(&self, prefix: &[u8]) -> bool {
        let text = String::from_utf8_lossy(prefix);
        let has = |word: &str| text.contains(word);
        match self.wire {
            Wire::ChatCompletions => {
                let reasons = text.split("\"finish_reason\":").skip(1);
                // The value of a finish reason, complete and not null.
                reasons.into_iter().any(|behind| {
                    let reason = behind.trim_start().strip_prefix('"');
                    reason.is_some_and(|reason| reason.contains('"') && !reason.starts_with('"'))
                })
            }
            Wire::Responses => has("response.completed") || has("response.incomplete"),
            Wire::Messages => has("message_stop"),
        }
    }
}

#[test]
fn each_kept_answer_is_understood_as_it_should_be() {
    let mut count = 0;
    for kept in WIRES.into_iter().flat_map(kept) {
        let said = kept.read_pieces([kept.body.as_slice()]);
        assert_eq!(said, kept.expected, "{} {}", kept.wire, kept.name);
        count += 1;
    }
    println!("{count} answers");
    assert!(count >= 60, "only {count} answers are kept");
}

fn check_cuts(wire: Wire) {
    let (mut cut_count, mut random) = (0, Random::new(1));
    for kept in kept(wire) {
        let Kept { name, body, expected, .. } = &kept;
        for cut in 0..=body.len() {
            let (front, back) = body.split_at(cut);
            assert_eq!(kept.read_pieces([front, back]), *expected, "{wire} {name} cut at {cut}");
            cut_count += 1;
        }
        assert_eq!(kept.read_pieces(body.chunks(1)), *expected, "{wire} {name} byte by byte");
        for _ in 0..8 {
            let pieces = random_pieces(body, &mut random);
            assert_eq!(kept.read_pieces(pieces.clone()), *expected, "{wire} {name}: {pieces:?}");
        }
    }
    println!("{wire}: {cut_count} cuts");
}

#[test]
fn chat_completions_say_the_same_however_they_are_cut() {
    check_cuts(Wire::ChatCompletions);
}

#[test]
fn responses_say_the_same_however_they_are_cut() {
    check_cuts(Wire::Responses);
}

#[test]
fn messages_say_the_same_however_they_are_cut() {
    check_cuts(Wire::Messages);
}

/// Offsets at which frames end, for all kinds of line ends.
fn frame_ends(body: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    for at in 1..=body.len() {
        let so_far = &body[..at];
        let blank = [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"];
        if blank.iter().any(|blank| so_far.ends_with(blank)) {
            ends.push(at);
        }
    }
    ends
}

#[test]
fn an_answer_that_ends_before_its_end_is_a_failure() {
    let mut cut_count = 0;
    for kept in WIRES.into_iter().flat_map(kept).filter(Kept::is_complete) {
        let (whole, _) = read(kept.wire, [kept.body.as_slice()]);
        for (at, end) in frame_ends(&kept.body).into_iter().enumerate() {
            let prefix = &kept.body[..end];
            let (events, result) = read(kept.wire, [prefix]);
            let is_complete = match &kept.complete_after {
                Some(counts) => counts.contains(&(at + 1)),
                None => kept.has_end(prefix),
            };
            let context = format!("{} {} behind frame {}", kept.wire, kept.name, at + 1);
            let expected = if is_complete { Ok(()) } else { Err(ModelFault::Truncated) };
            assert_eq!(result, expected, "{context}");
            // The events until the cut are a prefix of all events. The end and the blocks are left
            // out, because they come late.
            let is_late = |event: &&ModelEvent| {
                matches!(event, ModelEvent::Finished(_) | ModelEvent::Block(_))
            };
            let said: Vec<_> = events.iter().filter(|event| !is_late(event)).collect();
            let of_whole: Vec<_> = whole.iter().filter(|event| !is_late(event)).collect();
            assert!(of_whole.starts_with(&said), "{context}: {said:?}");
            cut_count += 1;
        }
    }
    println!("{cut_count} cuts");
    assert!(cut_count > 300);
}

/// The complete calls, with their arguments.
fn complete_calls(events: &[ModelEvent]) -> Vec<(u32, String)> {
    let (mut arguments, mut complete) = (Vec::<String>::new(), Vec::new());
    for event in events {
        match event {
            ModelEvent::CallStarted { .. } => arguments.push(String::new()),
            ModelEvent::CallArguments { index, piece } => arguments[*index as usize] += piece,
            ModelEvent::CallCompleted { index, .. } => {
                complete.push((*index, arguments[*index as usize].clone()));
            }
            _ => {}
        }
    }
    complete
}

#[test]
fn a_cut_anywhere_is_a_failure_and_makes_no_call_complete() {
    for kept in WIRES.into_iter().flat_map(kept).filter(Kept::is_complete) {
        let (whole, _) = read(kept.wire, [kept.body.as_slice()]);
        let calls = complete_calls(&whole);
        for end in 0..kept.body.len() {
            let prefix = &kept.body[..end];
            let (events, result) = read(kept.wire, [prefix]);
            check_order(&events);
            let context = format!("{} {} at {end}", kept.wire, kept.name);
            match result {
                Ok(()) => assert!(kept.has_end(prefix), "{context}"),
                Err(fault) => assert_eq!(fault, ModelFault::Truncated, "{context}"),
            }
            for call in complete_calls(&events) {
                assert!(calls.contains(&call), "{context}: {call:?} is not all of it");
            }
        }
    }
}

#[test]
fn reasons_to_finish_have_names_of_their_own() {
    let reasons = [
        FinishReason::Stop,
        FinishReason::ToolCalls,
        FinishReason::Length,
        FinishReason::ContentFilter,
        FinishReason::Refusal,
        FinishReason::Paused,
    ];
    let mut names: Vec<&str> = reasons.iter().map(FinishReason::as_str).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), reasons.len());
}
