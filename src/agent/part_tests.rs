//! Tests of parts. Every type is written and parsed back, and wrong fields are named. The order of
//! parts is broken in every way.

use serde_json::{Value, json};

use crate::agent::message::Usage;
use crate::agent::model::FinishReason;
use crate::agent::order::Order;
use crate::agent::part::PART_NAMES;
use crate::agent::{
    Arguments, Body, CancelReason, Continuation, Data, Decision, Failure, Final, FinalState,
    PartProgress, Partial, Reason, RunPart, StepCall, StepSummary, ToolExecution, part_name,
};
use crate::base::{ExecutionId, Handle};
use crate::limits;
use crate::stream::{Exit, Gap, GapReason, Kind, Kinds, Outcome};

fn execution_id() -> ExecutionId {
    ExecutionId { shard: 1, slot: Handle { index: 2, generation: 3 }, nonce: 4 }
}

fn execution(outcome: Outcome, arguments: Arguments) -> Box<ToolExecution> {
    let is_good = outcome == Outcome::Completed;
    Box::new(ToolExecution {
        tool_call_id: "c1".to_owned(),
        name: "read".to_owned(),
        execution: is_good.then(execution_id),
        arguments,
        output: "a \"line\"\n".to_owned(),
        output_truncated: true,
        output_bytes: 99,
        outcome,
        exit: is_good.then_some(Exit::Signal(9)),
        error: (!is_good).then(|| "no\u{2028}".to_owned()),
        started_us: 5,
        duration_us: 6,
    })
}

fn final_state(reason: Reason) -> FinalState {
    let (input_tokens, output_tokens) = (1, 2);
    FinalState {
        step_count: 1,
        text: "So.".to_owned(),
        text_truncated: false,
        usage: Usage { input_tokens, output_tokens, ..Usage::default() },
        reason,
        tool_call_count: 1,
        duration_us: 9,
    }
}

fn id() -> std::sync::Arc<str> {
    "c1".into()
}

fn good_arguments() -> Arguments {
    Arguments::Valid(json!({"a": [1, 0.5, null, "ä\n"]}))
}

fn output(offset: u64, data: Data) -> Partial {
    Partial::ToolOutputChunk {
        tool_call_id: id(),
        execution: Some(execution_id()),
        output_seq: 1,
        offset,
        kind: Kind::Stderr,
        data,
        more: offset == 0,
    }
}

/// Partial parts of a run, before its call has arguments and after.
fn partials() -> (Vec<Partial>, Vec<Partial>) {
    let before = vec![
        Partial::ExecutionStarted {
            task: "Do it.".to_owned(),
            task_truncated: false,
            model: "m".to_owned(),
            tools: vec!["read".to_owned()],
            tools_truncated: true,
        },
        Partial::StepStarted,
        Partial::ReasoningDelta { delta: "Hm".to_owned(), offset: 0 },
        Partial::TextDelta {
            delta: "So.".to_owned(),
            offset: 0,
            accumulated_text: Some("So.".to_owned()),
            accumulated_truncated: false,
        },
        Partial::ToolCallStarted { tool_call_id: id(), tool_name: "read".into() },
        Partial::ToolCallArgsDelta { tool_call_id: id(), delta: "{}".to_owned(), offset: 0 },
    ];
    let progress = PartProgress {
        progress: 0.5,
        total: Some(2.0),
        percentage: Some(25.0),
        message: Some("so far".to_owned()),
        context: Some(json!({"a": 1})),
    };
    let reason = GapReason::Overtaken;
    let gap = Gap { from_seq: 2, to_seq: 3, chunk_count: 2, byte_count: 20, reason };
    let after = vec![
        output(0, Data::Text("ä".to_owned())),
        output(2, Data::Bytes(vec![0xFF, 0])),
        Partial::ToolProgress { tool_call_id: id(), progress },
        Partial::Gap { tool_call_id: id(), gap },
    ];
    (before, after)
}

/// The end of the step and the end of the run.
fn good_ends() -> [Final; 2] {
    let step = StepSummary {
        number: 1,
        text: "So.".to_owned(),
        text_truncated: true,
        tool_calls: vec![StepCall {
            id: "c1".to_owned(),
            name: "read".to_owned(),
            outcome: Outcome::TimedOut,
        }],
        tool_calls_truncated: true,
        finish_reason: Some(FinishReason::Other("odd".to_owned())),
        duration_us: 8,
    };
    let reason = Reason::Hook("enough".to_owned());
    let outcome = Continuation { decision: Decision::Stop, reason: reason.clone() };
    let usage = Some(Usage { reasoning_tokens: Some(3), ..Usage::default() });
    [
        Final::StepCompleted { step, outcome, usage },
        Final::ExecutionCompleted { final_state: final_state(reason) },
    ]
}

/// Other ends that can take the place of the good ones.
fn other_ends() -> [Final; 4] {
    let bad = Arguments::Invalid {
        text: "{".to_owned(),
        text_truncated: false,
        problem: "cut off".to_owned(),
    };
    let cut = Arguments::Cut("{\"a\":".to_owned());
    let error =
        Failure { code: "overloaded".to_owned(), message: "no".to_owned(), is_retryable: true };
    let reason = CancelReason::Shutdown;
    [
        Final::ToolCallFailed { tool_call_id: id(), execution: execution(Outcome::Failed, bad) },
        Final::ToolCallCancelled {
            tool_call_id: id(),
            execution: execution(Outcome::Cancelled, cut),
        },
        Final::ExecutionFailed { error, final_state: final_state(Reason::Failed) },
        Final::ExecutionCancelled { reason, final_state: final_state(Reason::Cancelled(reason)) },
    ]
}

/// The parts of a good run, followed by the remaining types.
fn bodies() -> Vec<Body> {
    let (before, after) = partials();
    let (tool_call_id, tool_name) = (id(), "read".into());
    let written =
        Final::ToolCallArgsCompleted { tool_call_id, tool_name, arguments: good_arguments() };
    let execution = execution(Outcome::Completed, good_arguments());
    let done = Final::ToolCallCompleted { tool_call_id: id(), execution };
    let ends = [done].into_iter().chain(good_ends()).chain(other_ends());
    let before = before.into_iter().map(Body::Partial).chain([Body::Final(written)]);
    let after = after.into_iter().map(Body::Partial).chain(ends.map(Body::Final));
    before.chain(after).collect()
}

fn parts() -> Vec<RunPart> {
    let number = |(at, body)| RunPart {
        seq: at as u64 + 1,
        agent_id: "run-1".into(),
        step_number: u32::from(at > 0),
        timestamp_us: 1_700_000_000_000_000,
        body,
    };
    bodies().into_iter().enumerate().map(number).collect()
}

/// The parts of a good run.
fn good_parts() -> Vec<RunPart> {
    let mut parts = parts();
    parts.truncate(parts.iter().position(RunPart::is_end).unwrap() + 1);
    parts
}

fn json_of(part: &RunPart) -> Vec<u8> {
    let mut json = Vec::new();
    part.write_json(&mut json);
    json
}

#[test]
fn every_type_is_read_back_as_it_was() {
    let mut names: Vec<&str> = Vec::new();
    for part in parts() {
        let json = json_of(&part);
        assert_eq!(RunPart::parse(&json), Ok(part.clone()));
        let value: Value = serde_json::from_slice(&json).unwrap();
        let fields: Vec<&String> = value.as_object().unwrap().keys().take(5).collect();
        assert_eq!(fields, ["type", "seq", "agent_id", "step_number", "timestamp_us"]);
        assert_eq!(value["type"], part.name());
        assert_eq!(part_name(part.code()), Some(part.name()));
        assert!(usize::from(part.code()) < limits::KEYS_MAX);
        assert!(Kinds::ALL.contains(part.kind()));
        names.push(part.name());
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), PART_NAMES.len());
    assert_eq!(part_name(PART_NAMES.len() as u8), None);
}

#[test]
fn a_part_is_spelled_as_it_is_documented() {
    let spelled = |part: &RunPart| String::from_utf8(json_of(part)).unwrap();
    let parts = parts();
    let head = |name, seq, step| {
        let about = format!(r#""seq":{seq},"agent_id":"run-1","step_number":{step}"#);
        format!(r#"{{"type":"{name}",{about},"timestamp_us":1700000000000000"#)
    };
    let expected = head("ExecutionStarted", 1, 0)
        + r#","task":"Do it.","model":"m","tools":["read"],"tools_truncated":true}"#;
    assert_eq!(spelled(&parts[0]), expected);
    assert_eq!(spelled(&parts[1]), head("StepStarted", 2, 1) + "}");
    let expected = head("ToolOutputChunk", 9, 1)
        + r#","tool_call_id":"c1","execution":""#
        + &execution_id().to_string()
        + r#"","output_seq":1,"offset":2,"kind":"stderr","encoding":"base64","data":"/wA="}"#;
    assert_eq!(spelled(&parts[8]), expected);
    let expected = head("ToolCallFailed", 15, 1)
        + r#","tool_call_id":"c1","execution":{"name":"read","invalid_arguments":"{","#
        + r#""problem":"cut off","output":"a \"line\"\n","output_truncated":true,"#
        + r#""output_bytes":99,"outcome":"failed","started_us":5,"duration_us":6},"#
        + r#""error":"no\u2028"}"#;
    assert_eq!(spelled(&parts[14]), expected);
}

#[test]
fn what_is_missing_or_wrong_is_named_and_what_is_unknown_is_passed_over() {
    for part in parts() {
        let good: Value = serde_json::from_slice(&json_of(&part)).unwrap();
        let mut more = good.clone();
        more["later_version"] = json!([1]);
        assert_eq!(RunPart::parse(more.to_string().as_bytes()), Ok(part.clone()));
        for field in good.as_object().unwrap().keys() {
            let mut wrong = good.clone();
            wrong[field] = json!({"no": [[]]});
            let result = RunPart::parse(wrong.to_string().as_bytes());
            match (part.name(), field.as_str()) {
                // Any value is valid as a context, and any object as arguments.
                ("ToolProgress", "context") | ("ToolCallArgsCompleted", "arguments") => {
                    assert!(result.is_ok());
                }
                (name, field) => {
                    let error = result.expect_err(name).to_string();
                    let is_inner =
                        matches!(wrong_inner(field), Some(inner) if error.contains(inner));
                    assert!(is_inner || error.contains(field), "{name}.{field}: {error}");
                }
            }
        }
    }
    for text in ["", "[]", "1", "{", r#"{"type":1}"#, r#"{"type":"New","seq":1}"#] {
        assert!(RunPart::parse(text.as_bytes()).is_err(), "{text}");
    }
}

/// The field that is reported missing in an object without known fields.
fn wrong_inner(field: &str) -> Option<&'static str> {
    match field {
        "execution" => Some("name"),
        "step" => Some("number"),
        "outcome" => Some("decision"),
        "usage" => Some("input_tokens"),
        "final_state" => Some("step_count"),
        "error" => Some("code"),
        _ => None,
    }
}

#[test]
fn a_good_order_is_good_and_no_part_of_it_can_be_missed_moved_or_repeated() {
    let good = good_parts();
    let check = |parts: &[RunPart]| {
        let mut order = Order::default();
        // The parts are renumbered, so only their order can be wrong.
        for (at, part) in parts.iter().enumerate() {
            order.take(&RunPart { seq: at as u64 + 1, ..part.clone() })?;
        }
        if order.is_over() { Ok(()) } else { Err("it has no end") }
    };
    assert_eq!(check(&good), Ok(()));
    for at in 0..good.len() {
        let mut missed = good.clone();
        let part = missed.remove(at);
        let may_be_missed = matches!(
            part.name(),
            "TextDelta"
                | "ReasoningDelta"
                | "ToolProgress"
                | "Gap"
                | "ToolOutputChunk"
                | "ToolCallArgsDelta" // The last of its kind here: no later offset shows the loss.
        );
        assert_eq!(check(&missed).is_ok(), may_be_missed, "without {}", part.name());
        let mut twice = good.clone();
        twice.insert(at, part.clone());
        let may_be_twice = matches!(part.name(), "ToolProgress" | "Gap");
        assert_eq!(check(&twice).is_ok(), may_be_twice, "with two {}", part.name());
        let mut last = missed;
        last.push(part.clone());
        assert!(at + 1 == good.len() || check(&last).is_err(), "{} at the end", part.name());
    }
    let mut hole = Order::default();
    assert_eq!(hole.take(&good[0]), Ok(()));
    assert!(hole.take(&good[2]).is_err());
}

#[test]
fn no_tool_has_output_or_a_good_end_without_good_arguments() {
    let parts = good_parts();
    let at = |name: &str| parts.iter().position(|part| part.name() == name).unwrap();
    for name in ["ToolOutputChunk", "ToolProgress", "Gap", "ToolCallCompleted"] {
        let mut order = Order::default();
        parts[..at("ToolCallArgsCompleted")].iter().for_each(|part| order.take(part).unwrap());
        let next = RunPart { seq: order.seq() + 1, ..parts[at(name)].clone() };
        assert_eq!(order.take(&next), Err("P6: a tool without good arguments"), "{name}");
    }
}
