//! Streams for clients to read: runs as parts, with their expected contents.

use serde_json::{Value, json};
use streamdoor::agent::RunPart;
use streamdoor::endpoint::front::{
    Front, FrontFormat, FrontItem, FrontNames, FrontReader, StreamSource,
};
use streamdoor::wire::events::{ChunkEvent, EndEvent, EndState, GapEvent};

/// The scenes that exist in every format.
pub const SCENES: [&str; 7] =
    ["whole", "failed", "cancelled", "gap", "reopened", "tool", "tool-failed"];

/// Returns the output of a tool in a run: more than the first few sizes of a snapshot, with
/// difficult characters.
pub fn output() -> String {
    (0..900).map(|number| format!("line {number}: ä€😀\u{2028}\n")).collect()
}

pub const TEXT: [&str; 2] = ["I look for \"it\".\n", "It is there: 😀 data: [DONE]"];

/// Returns the scene in this format.
pub fn scene(name: &str, format: FrontFormat) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(state) = name.strip_prefix("tool") {
        tool(format, if state.is_empty() { "completed" } else { "failed" }, &mut out);
        return out;
    }
    let names = FrontNames { run_id: "run-1".into(), ..FrontNames::new("0abc", "agent") };
    let mut front = Front::new(format, names, StreamSource::Agent);
    let parts = match name {
        "failed" | "cancelled" => broken(name),
        _ => whole(),
    };
    let outputs = |part: &RunPart| part.name() == "ToolOutputChunk";
    let middle = parts.iter().position(outputs).expect("a tool puts something out") + 20;
    for (at, part) in parts.iter().enumerate() {
        match name {
            "reopened" if at < middle => front.prime(FrontItem::Part(part)),
            "gap" if (middle..middle + 10).contains(&at) => {
                if at == middle {
                    front.write(FrontItem::Gap(&gap(part.seq)), &mut out);
                }
            }
            _ => {
                if name == "reopened" && at == middle {
                    front.reopen(FrontReader::New, &mut out);
                }
                front.write(FrontItem::Part(part), &mut out);
            }
        }
    }
    front.write(FrontItem::End(&end("completed")), &mut out);
    out
}

fn tool(format: FrontFormat, state: &'static str, out: &mut Vec<u8>) {
    let names = FrontNames { arguments: json!({"to": 900}), ..FrontNames::new("0abc", "seq") };
    let mut front = Front::new(format, names, StreamSource::Tool);
    let text = output();
    let (mut seq, mut offset) = (0, 0);
    // Characters are cut.
    for data in text.as_bytes().chunks(101) {
        seq += 1;
        let chunk = ChunkEvent {
            execution: "0abc",
            seq,
            total_chunks: None,
            kind: "stdout",
            key: None,
            offset,
            data,
            timestamp_us: 1_700_000_000_000_000,
            mono_ns: 1,
        };
        offset += data.len() as u64;
        front.write(FrontItem::Chunk(&chunk), out);
    }
    front.write(FrontItem::End(&end(state)), out);
}

fn end(state: &'static str) -> EndEvent<'static> {
    EndEvent {
        execution: "0abc",
        state: EndState::Ended(state),
        chunks: 1,
        bytes: 1,
        missed_chunks: 0,
        missed_bytes: 0,
        execution_chunks: 1,
        execution_bytes: 1,
        duration_us: 1,
        exit: None,
        error: (state == "failed").then_some("exit code 3"),
    }
}

fn gap(from_seq: u64) -> GapEvent<'static> {
    let (to_seq, chunk_count, byte_count) = (from_seq + 9, 10, 1_000);
    GapEvent { execution: "0abc", from_seq, to_seq, chunk_count, byte_count, reason: "lag" }
}

/// Numbers the parts, and adds the fields that all have.
fn parts(documents: Vec<(u32, Value)>) -> Vec<RunPart> {
    let numbered = (1_u64..).zip(documents);
    let part = |(seq, (step, mut document)): (u64, (u32, Value))| {
        document["seq"] = seq.into();
        document["agent_id"] = "agent-1".into();
        document["step_number"] = step.into();
        document["timestamp_us"] = (1_700_000_000_000_000 + seq).into();
        let line = document.to_string();
        RunPart::parse(line.as_bytes()).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    numbered.map(part).collect()
}

fn prose(name: &str, text: &str) -> Vec<Value> {
    let mut offset = 0;
    let delta = |character: char| {
        let part = json!({"type": name, "delta": character.to_string(), "offset": offset});
        offset += character.len_utf8();
        part
    };
    text.chars().map(delta).collect()
}

fn begin() -> Vec<(u32, Value)> {
    let mut run = vec![(
        0,
        json!({
            "type": "ExecutionStarted", "task": "find it", "model": "a-model", "tools": ["seq"],
        }),
    )];
    run.push((1, json!({"type": "StepStarted"})));
    let said = prose("ReasoningDelta", "Hm …").into_iter().chain(prose("TextDelta", TEXT[0]));
    run.extend(said.map(|part| (1, part)));
    for (id, name) in [("call_1", "seq"), ("call_2", "rm")] {
        let started = json!({"type": "ToolCallStarted", "tool_call_id": id, "tool_name": name});
        run.push((1, started));
        for (offset, delta) in [(0, "{\"to\""), (5, ":900}")] {
            run.push((1, json!({
                "type": "ToolCallArgsDelta", "tool_call_id": id, "delta": delta, "offset": offset,
            })));
        }
        run.push((
            1,
            json!({
                "type": "ToolCallArgsCompleted", "tool_call_id": id, "tool_name": name,
                "arguments": {"to": 900},
            }),
        ));
    }
    let mut offset = 0;
    for (line, output_seq) in output().split_inclusive('\n').zip(1..) {
        run.push((
            1,
            json!({
                "type": "ToolOutputChunk", "tool_call_id": "call_1", "execution": null,
                "output_seq": output_seq, "offset": offset, "kind": "stdout", "encoding": "text",
                "data": line,
            }),
        ));
        offset += line.len();
    }
    run
}

fn execution(name: &str, output: &str, outcome: &str) -> Value {
    json!({
        "name": name, "arguments": {"to": 900}, "output": output,
        "output_truncated": name == "seq", "output_bytes": self::output().len(),
        "outcome": outcome, "started_us": 1, "duration_us": 2,
    })
}

fn call_end(what: &str, id: &str, execution: Value) -> (u32, Value) {
    (1, json!({"type": what, "tool_call_id": id, "execution": execution}))
}

fn step_end(number: u32, decision: &str, reason: &str) -> (u32, Value) {
    let step = json!({
        "number": number, "text": "", "text_truncated": true, "tool_calls": [],
        "finish_reason": null, "duration_us": 3,
    });
    let outcome = json!({"decision": decision, "reason": reason});
    let usage = json!({"input_tokens": 7, "output_tokens": 5, "cached_input_tokens": 2});
    (number, json!({"type": "StepCompleted", "step": step, "outcome": outcome, "usage": usage}))
}

fn final_state(reason: &str) -> Value {
    json!({
        "step_count": 2, "text": "", "text_truncated": true, "reason": reason,
        "usage": {"input_tokens": 14, "output_tokens": 10}, "tool_call_count": 2,
        "duration_us": 9,
    })
}

fn whole() -> Vec<RunPart> {
    let mut run = begin();
    run.push(call_end("ToolCallCompleted", "call_1", execution("seq", "line 0 …", "completed")));
    let mut failed = execution("rm", "", "failed");
    failed["output_bytes"] = 0.into();
    let (step, mut end) = call_end("ToolCallFailed", "call_2", failed);
    end["error"] = "it may not".into();
    run.push((step, end));
    run.push(step_end(1, "continue", "tool_calls"));
    run.push((2, json!({"type": "StepStarted"})));
    run.extend(prose("TextDelta", TEXT[1]).into_iter().map(|part| (2, part)));
    run.push(step_end(2, "stop", "stop"));
    run.push((2, json!({"type": "ExecutionCompleted", "final_state": final_state("stop")})));
    parts(run)
}

fn broken(how: &str) -> Vec<RunPart> {
    let mut run = begin();
    for (id, name) in [("call_1", "seq"), ("call_2", "rm")] {
        let mut execution = execution(name, "", "cancelled");
        if name == "rm" {
            execution["output_bytes"] = 0.into();
        }
        run.push(call_end("ToolCallCancelled", id, execution));
    }
    run.push(step_end(1, "stop", how));
    let state = final_state(how);
    run.push(if how == "failed" {
        let error = json!({"code": "overloaded", "message": "no room", "retryable": true});
        (1, json!({"type": "ExecutionFailed", "error": error, "final_state": state}))
    } else {
        (1, json!({"type": "ExecutionCancelled", "reason": "cancelled", "final_state": state}))
    });
    parts(run)
}
