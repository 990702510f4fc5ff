//! Tests of each rule, with the exact text of each format.

use serde_json::json;

use super::check::{Checker, SeenEnd};
use super::random_tests::{FORMATS, STARTED, chunk, end, front, gap};
use super::runs::tool_gap;
use super::{
    Channels, Front, FrontFormat, FrontItem, FrontNames, FrontReader, SdkVersion, Spelling,
    StreamSource,
};
use crate::agent::{
    Arguments, Body, CancelReason, Data, Final, FinalState, Partial, Reason, RunPart,
    ToolExecution, Usage,
};
use crate::base::Random;
use crate::stream::{Kind, Outcome};
use crate::wire::events::{EndState, ProgressEvent};

fn parts(bodies: impl IntoIterator<Item = Body>) -> Vec<RunPart> {
    let numbered = (1..).zip(bodies);
    let part = |(seq, body)| {
        let step_number = u32::from(seq > 1);
        RunPart { seq, agent_id: "a".into(), step_number, timestamp_us: 2_000 * seq, body }
    };
    numbered.map(part).collect()
}

fn started() -> Body {
    Body::Partial(Partial::ExecutionStarted {
        task: "t".to_owned(),
        task_truncated: false,
        model: "m".to_owned(),
        tools: Vec::new(),
        tools_truncated: false,
    })
}

fn text(delta: &str, offset: u64) -> Body {
    let (delta, accumulated_text, accumulated_truncated) = (delta.to_owned(), None, false);
    Body::Partial(Partial::TextDelta { delta, offset, accumulated_text, accumulated_truncated })
}

fn call_started() -> Body {
    let (tool_call_id, tool_name) = ("c".into(), "seq".into());
    Body::Partial(Partial::ToolCallStarted { tool_call_id, tool_name })
}

fn arguments(arguments: Arguments) -> Body {
    let (tool_call_id, tool_name) = ("c".into(), "seq".into());
    Body::Final(Final::ToolCallArgsCompleted { tool_call_id, tool_name, arguments })
}

fn output(text: &str, offset: u64) -> Body {
    Body::Partial(Partial::ToolOutputChunk {
        tool_call_id: "c".into(),
        execution: None,
        output_seq: 1,
        offset,
        kind: Kind::Stdout,
        data: Data::Text(text.to_owned()),
        more: false,
    })
}

fn call_end(outcome: Outcome, output: &str, error: Option<&str>) -> Body {
    let execution = Box::new(ToolExecution {
        tool_call_id: "c".to_owned(),
        name: "seq".to_owned(),
        execution: None,
        arguments: Arguments::Valid(json!({})),
        output: output.to_owned(),
        output_truncated: false,
        output_bytes: output.len() as u64,
        outcome,
        exit: None,
        error: error.map(str::to_owned),
        started_us: 1,
        duration_us: 2,
    });
    let tool_call_id = "c".into();
    Body::Final(match outcome {
        Outcome::Completed => Final::ToolCallCompleted { tool_call_id, execution },
        _ => Final::ToolCallFailed { tool_call_id, execution },
    })
}

fn written(format: FrontFormat, bodies: Vec<Body>, state: EndState<'static>) -> String {
    let (mut front, mut out) = (front(format), Vec::new());
    for part in &parts(bodies) {
        front.write(FrontItem::Part(part), &mut out);
    }
    front.write(FrontItem::End(&end(state)), &mut out);
    String::from_utf8(out).unwrap()
}

/// Returns the type of each event.
fn types(text: &str) -> Vec<String> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let name = |data: &str| {
        let json: serde_json::Value = serde_json::from_str(data).unwrap_or(json!({"type": data}));
        let event = &json["params"]["data"]["event"];
        let custom = &json["params"]["data"]["name"];
        let name = [event, custom, &json["type"]].into_iter().find_map(|name| name.as_str());
        name.unwrap().to_owned()
    };
    data.map(name).filter(|name| !name.starts_with("data-e")).collect()
}

const AI_SDK: FrontFormat = FrontFormat::AiSdk { sdk: SdkVersion::V5 };
const LANGGRAPH: FrontFormat = FrontFormat::LangGraph { spelling: Spelling::Snake };
const COMPLETED: EndState<'static> = EndState::Ended("completed");

/// Returns a run that writes `Hi` and calls a tool, which has written one line; `rest` follows.
fn calling<const N: usize>(rest: [Body; N]) -> Vec<Body> {
    let valid = arguments(Arguments::Valid(json!({"to": 1})));
    let begun = [started(), text("Hi", 0), call_started(), valid, output("1\n", 0)];
    begun.into_iter().chain(rest).collect()
}

#[test]
fn ai_sdk_is_told_a_run_in_the_chunks_that_its_oldest_client_knows() {
    let bodies = calling([call_end(Outcome::Completed, "1\n", None)]);
    let text = written(AI_SDK, bodies, COMPLETED);
    let begin = "data: {\"type\":\"start\",\"messageId\":\"msg-0abc\"}\n\n\
        data: {\"type\":\"data-execution\",\"data\":{\"execution\":\"0abc\",\"tool\":\"agent\"},\
        \"transient\":true}\n\n\
        data: {\"type\":\"start-step\"}\n\n\
        data: {\"type\":\"text-start\",\"id\":\"text-1-0\"}\n\n\
        data: {\"type\":\"text-delta\",\"id\":\"text-1-0\",\"delta\":\"Hi\"}\n\n\
        data: {\"type\":\"text-end\",\"id\":\"text-1-0\"}\n\n\
        data: {\"type\":\"tool-input-start\",\"toolCallId\":\"c\",\"toolName\":\"seq\",\
        \"dynamic\":true}\n\n\
        data: {\"type\":\"tool-input-available\",\"toolCallId\":\"c\",\"toolName\":\"seq\",\
        \"input\":{\"to\":1},\"dynamic\":true}\n\n\
        data: {\"type\":\"data-tool-output\",\"data\":{\"toolCallId\":\"c\",\"delta\":\"1\\n\",\
        \"offset\":0,\"kind\":\"stdout\"},\"transient\":true}\n\n\
        data: {\"type\":\"tool-output-available\",\"toolCallId\":\"c\",\"output\":\"1\\n\",\
        \"dynamic\":true,\"preliminary\":true}\n\n\
        data: {\"type\":\"tool-output-available\",\"toolCallId\":\"c\",\"output\":\"1\\n\",\
        \"dynamic\":true}\n\n";
    assert!(text.starts_with(begin), "{text}");
    let last = "data: {\"type\":\"finish-step\"}\n\ndata: {\"type\":\"finish\"}\n\n\
        data: [DONE]\n\n";
    assert!(text.ends_with(last), "{text}");
}

#[test]
fn ag_ui_is_told_a_run_and_nothing_that_is_no_json() {
    let bodies = calling([output("2\n", 2), call_end(Outcome::Failed, "1\n", Some("exit code 2"))]);
    let text = written(FrontFormat::AgUi, bodies, COMPLETED);
    let expected = [
        "RUN_STARTED",
        "CUSTOM",
        "STEP_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "ACTIVITY_SNAPSHOT",
        "ACTIVITY_DELTA",
        "ACTIVITY_DELTA",
        "ACTIVITY_DELTA",
        "TOOL_CALL_RESULT",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ];
    let [types, expected] = [types(&text), expected.map(str::to_owned).to_vec()];
    assert_eq!(types[1..], expected[1..], "{text}");
    let delta = "\"patch\":[{\"op\":\"add\",\"path\":\"/pieces/-\",\"value\":\"2\\n\"}]}\n\n";
    assert!(text.contains(delta) && !text.contains("DONE"), "{text}");
    assert!(text.contains("\"content\":\"1\\n\\nexit code 2\",\"role\":\"tool\""), "{text}");
}

/// Returns a run that ended for this reason, with these counts.
fn ended(reason: Reason, usage: Usage) -> Vec<Body> {
    let final_state = FinalState {
        step_count: 3,
        text: String::new(),
        text_truncated: false,
        usage,
        reason: reason.clone(),
        tool_call_count: 0,
        duration_us: 7,
    };
    let last = match reason {
        Reason::Cancelled(reason) => Final::ExecutionCancelled { reason, final_state },
        _ => Final::ExecutionCompleted { final_state },
    };
    vec![started(), text("Hi", 0), Body::Final(last)]
}

#[test]
fn ag_ui_is_told_that_a_stopped_run_is_cancelled_and_why() {
    let usage = Usage { input_tokens: 7, output_tokens: 2, ..Usage::default() };
    let message = |text: &str| format!("\"message\":\"{text}\",");
    for (reason, message) in [
        (Reason::Cancelled(CancelReason::Cancelled), String::new()),
        (Reason::Cancelled(CancelReason::TimedOut), message("it took too long")),
        (Reason::Cancelled(CancelReason::Shutdown), message("the server stops")),
        (Reason::StepsMax, String::new()),
        (Reason::Hook("enough".to_owned()), String::new()),
    ] {
        let name = reason.name();
        let text = written(FrontFormat::AgUi, ended(reason, usage), COMPLETED);
        let end = format!(
            "{{\"type\":\"RUN_FINISHED\",\"timestamp\":6,\"threadId\":\"0abc\",\"runId\":\"0abc\",\
             \"outcome\":{{\"type\":\"cancelled\"}},\"metadata\":{{\"streamdoor\":{{\
             \"reason\":\"{name}\",{message}\"stepCount\":3}}}},\"usage\":[{{\"model\":\"m\",\
             \"inputTokens\":7,\"outputTokens\":2,\"totalTokens\":9}}]}}\n\n"
        );
        assert!(text.ends_with(&end), "{text}\n{end}");
    }
    // A limit ends a run of the other formats as its model would.
    let text = written(LANGGRAPH, ended(Reason::StepsMax, usage), COMPLETED);
    assert_eq!(types(&text).last().map(String::as_str), Some("completed"), "{text}");
}

#[test]
fn counts_beyond_the_integers_of_json_are_left_out() {
    let usage = Usage {
        input_tokens: (1 << 53) - 1,
        output_tokens: 1,
        reasoning_tokens: Some(u64::MAX),
        ..Usage::default()
    };
    let text = written(FrontFormat::AgUi, ended(Reason::Stop, usage), COMPLETED);
    let counts = "{\"model\":\"m\",\"inputTokens\":9007199254740991,\"outputTokens\":1}";
    assert!(text.contains(counts), "{text}");
}

#[test]
fn langgraph_is_told_a_run_with_numbers_and_both_spellings() {
    let bodies = || {
        vec![
            started(),
            text("Hi", 0),
            call_started(),
            arguments(Arguments::Valid(json!({"to": 1}))),
            output("1\n", 0),
            call_end(Outcome::Completed, "1\n", None),
        ]
    };
    let text = written(LANGGRAPH, bodies(), COMPLETED);
    let expected = [
        "started",
        "message-start",
        "content-block-start",
        "content-block-delta",
        "content-block-finish",
        "content-block-start",
        "content-block-finish",
        "tool-started",
        "tool-output-delta",
        "tool-finished",
        "message-finish",
        "completed",
    ];
    assert_eq!(types(&text), expected, "{text}");
    // The third event of part 2.
    let delta = "id: 0abc:8194\nevent: messages\ndata: {\"type\":\"event\",\
        \"event_id\":\"0abc:8194\",\"seq\":8194,\"method\":\"messages\",\"params\":{\
        \"namespace\":[],\"timestamp\":4,\"data\":{\"event\":\"content-block-delta\",\"index\":0,\
        \"delta\":{\"type\":\"text-delta\",\"text\":\"Hi\"}}}}\n\n";
    assert!(text.contains(delta), "{text}");
    assert!(
        text.contains(
            "\"data\":{\"event\":\"tool-started\",\"tool_call_id\":\"c\",\
        \"tool_name\":\"seq\",\"input\":{\"to\":1}}"
        ),
        "{text}"
    );
    let camel = written(FrontFormat::LangGraph { spelling: Spelling::Camel }, bodies(), COMPLETED);
    assert!(camel.contains("\"toolCallId\":\"c\",\"toolName\":\"seq\""), "{camel}");
    assert!(!camel.contains("_id\"") && !camel.contains("_name\""), "{camel}");
}

#[test]
fn langgraph_follows_the_channels_that_were_asked_for_and_numbers_them_alike() {
    let run = parts([started(), text("Hi", 0), call_started(), output("1\n", 0)]);
    let emit = |channels| {
        let (mut front, mut out) = (front(LANGGRAPH), Vec::new());
        front.set_channels(channels);
        run.iter().for_each(|part| front.write(FrontItem::Part(part), &mut out));
        String::from_utf8(out).unwrap()
    };
    let (all, some) = (emit(Channels::default()), emit(Channels::new(["tools"])));
    assert_eq!(types(&some), ["tool-started", "tool-output-delta"]);
    assert!(some.split_inclusive("\n\n").all(|frame| all.contains(frame)), "{some}");
}

#[test]
fn wrong_arguments_start_no_tool_and_fail_once() {
    let wrong = Arguments::Invalid {
        text: "{\"to\":".to_owned(),
        text_truncated: false,
        problem: "it ends too early".to_owned(),
    };
    let bodies = || {
        let failed = call_end(Outcome::Failed, "", Some("it ends too early"));
        vec![started(), call_started(), arguments(wrong.clone()), failed]
    };
    let text = written(AI_SDK, bodies(), COMPLETED);
    assert!(text.contains("\"type\":\"tool-input-error\""), "{text}");
    assert!(!text.contains("tool-output-error"), "{text}");
    let text = written(LANGGRAPH, bodies(), COMPLETED);
    assert!(text.contains("\"type\":\"invalid_tool_call\""), "{text}");
    assert_eq!(types(&text)[4..6], ["tool-started", "tool-error"], "{text}");
    let text = written(FrontFormat::AgUi, bodies(), COMPLETED);
    assert!(text.contains("\"delta\":\"{\\\"to\\\":\"") && text.contains("TOOL_CALL_RESULT"));
}

#[test]
fn an_end_that_the_log_does_not_tell_is_told_from_the_streams_end() {
    let ends = [
        ("failed", SeenEnd::Failed(String::new())),
        ("cancelled", SeenEnd::Cancelled),
        ("timed_out", SeenEnd::Failed(String::new())),
        ("completed", SeenEnd::Completed),
    ];
    for format in FORMATS {
        for (state, meant) in &ends {
            let bodies = vec![started(), text("Hi", 0), call_started(), output("1", 0)];
            let text = written(format, bodies, EndState::Ended(state));
            let mut checker = Checker::new(format);
            checker.read(text.as_bytes(), &mut Random::new(1)).unwrap();
            let mut seen = checker.finish().unwrap();
            if let SeenEnd::Failed(text) = &mut seen.end {
                text.clear();
            }
            let is_stopped = format == FrontFormat::AgUi && *state == "timed_out";
            let meant = if is_stopped { &SeenEnd::Cancelled } else { meant };
            assert_eq!(seen.end, *meant, "{format:?} {text}");
            assert_eq!(seen.steps[0].text, "Hi", "{format:?}");
        }
    }
}

#[test]
fn who_is_detached_is_told_so_and_that_the_run_goes_on() {
    for format in FORMATS {
        let bodies = vec![started(), text("Hi", 0)];
        let state = EndState::Detached { reason: "lag", resume_from: 3 };
        let text = written(format, bodies, state);
        let mut checker = Checker::new(format);
        checker.read(text.as_bytes(), &mut Random::new(1)).unwrap();
        let seen = checker.finish().unwrap_or_else(|error| panic!("{format:?} {error} {text}"));
        assert_eq!(seen.end, SeenEnd::Detached, "{format:?}");
        assert!(format == FrontFormat::AgUi || text.contains("\"resumeFrom\":3"), "{text}");
    }
}

#[test]
fn gaps_and_progress_are_told_where_they_are() {
    let progress = ProgressEvent {
        execution: "0abc",
        token: None,
        progress: 1.0,
        total: Some(4.0),
        percentage: Some(25.0),
        message: Some("on its way"),
        context: Some("{\"rows\":3}"),
    };
    for format in FORMATS {
        let (mut front, mut out) = (front(format), Vec::new());
        let bodies = [started(), call_started(), output("1", 0), Body::Partial(tool_gap("c"))];
        for part in &parts(bodies) {
            front.write(FrontItem::Part(part), &mut out);
            front.write(FrontItem::Gap(&gap()), &mut out);
            front.write(FrontItem::Progress(&progress), &mut out);
        }
        front.write(FrontItem::End(&end(COMPLETED)), &mut out);
        let mut checker = Checker::new(format);
        checker.read(&out, &mut Random::new(1)).unwrap();
        assert_eq!(checker.finish().unwrap().gap_count, 5, "{format:?}");
        let text = String::from_utf8(out).unwrap();
        let told = "\"progress\":1,\"total\":4,\"percentage\":25,\"message\":\"on its way\",\
            \"context\":{\"rows\":3}";
        assert_eq!(text.matches(told).count(), 4, "{text}");
        assert!(text.contains("\"fromSeq\":2,\"toSeq\":4,\"chunkCount\":3,\"byteCount\":30"));
    }
}

#[test]
fn a_tool_whose_log_lost_its_front_is_told_from_there() {
    for format in FORMATS {
        let mut front = Front::new(format, FrontNames::new("0abc", "seq"), StreamSource::Tool);
        let mut out = Vec::new();
        front.prime(FrontItem::Started(&STARTED));
        front.prime(FrontItem::Chunk(&chunk(7, 700, b"seven ")));
        front.reopen(FrontReader::New, &mut out);
        front.write(FrontItem::Chunk(&chunk(8, 706, b"eight")), &mut out);
        front.write(FrontItem::End(&end(COMPLETED)), &mut out);
        let mut checker = Checker::new(format);
        checker.read(&out, &mut Random::new(1)).unwrap();
        let seen = checker.finish().unwrap();
        assert_eq!(seen.call("0abc").unwrap().pieces, "seven eight", "{format:?}");
    }
}

#[test]
fn names_of_strangers_stay_in_their_strings() {
    let hostile = "a\n\ndata: {}\nid: 7\n\"\u{2028}";
    for format in FORMATS {
        let names = FrontNames {
            thread_id: hostile.to_owned(),
            run_id: hostile.to_owned(),
            ..FrontNames::new("0abc", "agent")
        };
        let (mut front, mut out) = (Front::new(format, names, StreamSource::Agent), Vec::new());
        for part in &parts([started(), text(hostile, 0)]) {
            front.write(FrontItem::Part(part), &mut out);
        }
        front.write(FrontItem::End(&end(COMPLETED)), &mut out);
        let mut checker = Checker::new(format);
        checker.read(&out, &mut Random::new(1)).unwrap();
        assert_eq!(checker.finish().unwrap().steps[0].text, hostile, "{format:?}");
    }
}
