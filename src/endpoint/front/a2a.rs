//! The streams and tasks of the Agent2Agent protocol (A2A), version 1.0.
//!
//! An execution is a task. Each block of prose is an artifact that grows. A call of a tool is one,
//! too: its name, its arguments, its output, and its end. The stream begins with the task as it is
//! then, and ends with its last status.
//!
//! | part of a log | event |
//! |---|---|
//! | prose | `artifactUpdate`, metadata `{kind: text \| reasoning}` |
//! | a call | `artifactUpdate`: data, data, text …, data; metadata `{kind: tool}` |
//! | progress, a gap, an early end of the stream | `statusUpdate` with metadata |
//! | the end | `statusUpdate` with the last state |
//!
//! The protocol has no cursor. Here each event has a number as its `id:`, which encodes the part
//! that the event came from. A client that comes back with `Last-Event-ID` first gets the task as
//! it was before that part, and then every event from that part on. It misses nothing, and the
//! events after the task always go on with that task.

use std::sync::Arc;

use serde_json::{Value, json};

use super::call::FrontCall;
use super::numbers::{EVENT_BITS, Numbers};
use super::op::{Block, CallEnd, Ending, Input, Op, Prose, RunOutcome};
use super::{FrontItem, FrontNames, Since};
use crate::limits;
use crate::trace::rfc3339;
use crate::wire::write_json;

/// The kind of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskAnswer {
    /// The events of the task.
    Events,
    /// The task.
    Task,
    /// The task, as the answer to a message.
    Sent,
}

/// The writer of this format; see the module's text.
#[derive(Debug)]
pub(super) struct A2a {
    answer: TaskAnswer,
    /// The id of the JSON-RPC request that is answered, as JSON; `None` without JSON-RPC.
    reply_to: Option<Box<str>>,
    /// Maximum number of messages in the history; `None`: all.
    history_max: Option<usize>,
    numbers: Numbers,
    artifacts: Vec<Artifact>,
    /// Null until the stream has started.
    status: Value,
    kept_bytes: usize,
    /// True if the client has the task.
    is_told: bool,
}

/// An artifact as far as it has come.
#[derive(Debug)]
struct Artifact {
    id: String,
    /// The call that it is, until that has ended.
    call: Option<Arc<str>>,
    name: String,
    kind: &'static str,
    /// Parts before the text.
    before: Vec<Value>,
    text: String,
    /// The part behind the text.
    behind: Option<Value>,
    /// True if the client has a part of it.
    is_begun: bool,
}

impl A2a {
    pub fn new(answer: TaskAnswer) -> A2a {
        A2a {
            answer,
            reply_to: None,
            history_max: None,
            numbers: Numbers::default(),
            artifacts: Vec::new(),
            status: Value::Null,
            kept_bytes: 0,
            is_told: false,
        }
    }

    /// Sets the request that is answered, and the length of the history.
    pub fn reply_to(&mut self, request: Option<Box<str>>, history_max: Option<usize>) {
        (self.reply_to, self.history_max) = (request, history_max);
    }

    /// Returns the part from which the stream goes on for a client that has this event.
    pub fn since(event: u64) -> Since {
        Since { part: event >> EVENT_BITS, is_reopened: false }
    }

    /// Sets the item from which the next events come.
    pub fn begin(&mut self, item: FrontItem<'_>) {
        self.numbers.begin(item);
    }

    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Writes the task as it is now, at the beginning of a stream.
    pub fn snapshot(&mut self, names: &FrontNames, out: &mut Vec<u8>) {
        self.is_told = true;
        let task = json!({ "task": self.task(names) });
        self.event(&task, out);
        for artifact in &mut self.artifacts {
            artifact.is_begun = !artifact.before.is_empty() || !artifact.text.is_empty();
        }
    }

    /// Returns the answer for a task that has not ended.
    pub fn document(&self, names: &FrontNames) -> Value {
        let task = self.task(names);
        self.wrapped(if self.answer == TaskAnswer::Sent { json!({ "task": task }) } else { task })
    }

    pub fn write(&mut self, op: &Op<'_>, names: &FrontNames, time_us: u64, out: &mut Vec<u8>) {
        match op {
            Op::Start => {
                self.set_status("TASK_STATE_WORKING", None, names, time_us);
                if !self.is_told {
                    self.snapshot(names, out);
                }
            }
            Op::Delta { block, text } => self.prose(*block, text, names, out),
            Op::CallOpen { call, step } => {
                let id = format!("call-{step}-{}", call.id);
                let artifact = Artifact::new(id, call.name.to_string(), "tool");
                let before = data(&json!({ "toolCallId": &*call.id, "name": &*call.name }));
                let call = Some(Arc::clone(&call.id));
                self.artifacts.push(Artifact { call, before: vec![before.clone()], ..artifact });
                self.tell_artifact(self.artifacts.len() - 1, &before, false, names, out);
            }
            Op::CallReady { call, input, .. } => self.call(call, *input, names, out),
            Op::Output { call, output } => {
                if let Some(at) = self.place_of(call) {
                    self.grow(at, output.text, limits::FRONT_OUTPUT_BYTES_MAX, names, out);
                }
            }
            Op::CallEnd { call, end } => self.call_end(call, end, names, out),
            Op::Progress { progress, .. } => {
                let mut told = Vec::new();
                super::json::object(&mut told, |told| progress.write(told));
                let told: Value = serde_json::from_slice(&told).unwrap_or_default();
                self.set_status("TASK_STATE_WORKING", progress.message, names, time_us);
                self.tell_status(names, json!({ "progress": told }), out);
            }
            Op::Gap { gap, .. } => {
                let mut told = Vec::new();
                super::json::object(&mut told, |told| gap.write(told));
                let told: Value = serde_json::from_slice(&told).unwrap_or_default();
                self.tell_status(names, json!({ "gap": told }), out);
            }
            Op::End(ending) => self.end(ending, names, time_us, out),
            Op::Detached { reason, resume_from, .. } => {
                let told = json!({ "detached": { "reason": reason, "resumeFrom": resume_from } });
                self.tell_status(names, told, out);
                self.put_document(names, out);
            }
            Op::StepStart { .. }
            | Op::StepEnd(_)
            | Op::Open(_)
            | Op::Shut(_)
            | Op::CallArguments { .. }
            | Op::Close => {}
        }
    }

    /// Puts a result into the answer to the request.
    fn wrapped(&self, result: Value) -> Value {
        match &self.reply_to {
            None => result,
            Some(id) => {
                let id: Value = serde_json::from_str(id).unwrap_or_default();
                json!({ "jsonrpc": "2.0", "id": id, "result": result })
            }
        }
    }

    fn event(&mut self, event: &Value, out: &mut Vec<u8>) {
        let number = self.numbers.draw();
        let (TaskAnswer::Events, Some(number)) = (self.answer, number) else { return };
        out.extend_from_slice(format!("id: {number}\ndata: ").as_bytes());
        match &self.reply_to {
            None => write_json(out, event),
            Some(id) => {
                out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
                out.extend_from_slice(id.as_bytes());
                out.extend_from_slice(b",\"result\":");
                write_json(out, event);
                out.push(b'}');
            }
        }
        out.extend_from_slice(b"\n\n");
    }

    fn put_document(&self, names: &FrontNames, out: &mut Vec<u8>) {
        if self.answer != TaskAnswer::Events {
            write_json(out, &self.document(names));
            out.push(b'\n');
        }
    }

    fn set_status(&mut self, state: &str, message: Option<&str>, names: &FrontNames, time_us: u64) {
        let time_us = if time_us > 0 { time_us } else { names.created_s * 1_000_000 };
        self.status = json!({ "state": state, "timestamp": rfc3339(time_us) });
        if let Some(text) = message {
            let id = format!("{}-status", names.message_id);
            self.status["message"] = message_of(&id, names, "ROLE_AGENT", text);
        }
    }

    fn tell_status(&mut self, names: &FrontNames, metadata: Value, out: &mut Vec<u8>) {
        let mut update = json!({
            "taskId": names.execution, "contextId": names.thread_id, "status": self.status,
        });
        if metadata.is_object() {
            update["metadata"] = metadata;
        }
        self.event(&json!({ "statusUpdate": update }), out);
    }

    fn prose(&mut self, block: Block, text: &str, names: &FrontNames, out: &mut Vec<u8>) {
        let kind = match block.prose {
            Prose::Text => "text",
            Prose::Reasoning => "reasoning",
        };
        let id = format!("{kind}-{}-{}", block.step, block.offset);
        let at = self.artifacts.iter().position(|artifact| artifact.id == id);
        let at = at.unwrap_or_else(|| {
            self.artifacts.push(Artifact::new(id, kind.to_owned(), kind));
            self.artifacts.len() - 1
        });
        self.grow(at, text, limits::FRONT_PROSE_BYTES_MAX, names, out);
    }

    /// Adds text to an artifact.
    fn grow(
        &mut self,
        at: usize,
        text: &str,
        bytes_max: usize,
        names: &FrontNames,
        out: &mut Vec<u8>,
    ) {
        let of_all = limits::FRONT_RESPONSE_BYTES_MAX.saturating_sub(self.kept_bytes);
        let artifact = &mut self.artifacts[at];
        let room = bytes_max.saturating_sub(artifact.text.len()).min(of_all).min(text.len());
        let kept = &text[..text.floor_char_boundary(room)];
        artifact.text.push_str(kept);
        self.kept_bytes += kept.len();
        self.tell_artifact(at, &json!({ "text": text }), false, names, out);
    }

    /// Writes a new part of an artifact.
    fn tell_artifact(
        &mut self,
        at: usize,
        part: &Value,
        is_last: bool,
        names: &FrontNames,
        out: &mut Vec<u8>,
    ) {
        let artifact = &mut self.artifacts[at];
        let is_more = std::mem::replace(&mut artifact.is_begun, true);
        let told = match is_more {
            true => json!({ "artifactId": artifact.id, "parts": [part] }),
            false => artifact.spelled(json!([part])),
        };
        let mut update = json!({
            "taskId": names.execution, "contextId": names.thread_id, "artifact": told,
            "append": is_more,
        });
        if is_last {
            update["lastChunk"] = true.into();
        }
        self.event(&json!({ "artifactUpdate": update }), out);
    }

    fn call(&mut self, call: &FrontCall, input: Input<'_>, names: &FrontNames, out: &mut Vec<u8>) {
        let arguments = match input {
            Input::Valid(value) => value.clone(),
            Input::Cut(text) | Input::Invalid { text, .. } => text.into(),
            Input::Unknown => Value::Null,
        };
        let Some(at) = self.place_of(call) else { return };
        let before = data(&json!({ "arguments": arguments }));
        self.kept_bytes += before.to_string().len();
        self.artifacts[at].before.push(before.clone());
        self.tell_artifact(at, &before, false, names, out);
    }

    /// Returns the place of the artifact of a call that has not ended.
    fn place_of(&self, call: &FrontCall) -> Option<usize> {
        self.artifacts.iter().rposition(|artifact| artifact.call.as_ref() == Some(&call.id))
    }

    fn call_end(
        &mut self,
        call: &FrontCall,
        end: &CallEnd<'_>,
        names: &FrontNames,
        out: &mut Vec<u8>,
    ) {
        let Some(at) = self.place_of(call) else { return };
        let mut told = json!({ "outcome": end.outcome.name() });
        if let Some(problem) = end.problem() {
            told["error"] = problem.into();
        }
        if !self.artifacts[at].text.starts_with(end.output) {
            told["output"] = end.output.into(); // Some of it was lost before.
        }
        let behind = data(&told);
        self.kept_bytes += behind.to_string().len();
        (self.artifacts[at].behind, self.artifacts[at].call) = (Some(behind.clone()), None);
        self.tell_artifact(at, &behind, true, names, out);
    }

    fn end(&mut self, ending: &Ending, names: &FrontNames, time_us: u64, out: &mut Vec<u8>) {
        let (state, message) = match &ending.how {
            RunOutcome::Completed => ("TASK_STATE_COMPLETED", None),
            RunOutcome::Limited => ("TASK_STATE_COMPLETED", Some(&*ending.reason)),
            RunOutcome::Cancelled => ("TASK_STATE_CANCELED", None),
            RunOutcome::Failed { message, .. } => ("TASK_STATE_FAILED", Some(&**message)),
            RunOutcome::Stopped { message, .. } => ("TASK_STATE_FAILED", Some(*message)),
        };
        self.set_status(state, message, names, time_us);
        self.tell_status(names, Value::Null, out);
        self.put_document(names, out);
    }

    fn task(&self, names: &FrontNames) -> Value {
        let artifacts: Vec<Value> =
            self.artifacts.iter().filter_map(|artifact| artifact.whole()).collect();
        let status = match &self.status {
            Value::Null => {
                let created_at = rfc3339(names.created_s * 1_000_000);
                json!({ "state": "TASK_STATE_SUBMITTED", "timestamp": created_at })
            }
            status => status.clone(),
        };
        let mut task = json!({
            "id": names.execution, "contextId": names.thread_id, "status": status,
            "artifacts": artifacts, "metadata": { "tool": names.tool },
        });
        let history = history_of(names);
        let first = self.history_max.map_or(0, |max| history.len().saturating_sub(max));
        if first < history.len() {
            task["history"] = history[first..].into();
        }
        task
    }
}

impl Artifact {
    fn new(id: String, name: String, kind: &'static str) -> Artifact {
        let (call, before, text, behind) = (None, Vec::new(), String::new(), None);
        Artifact { id, call, name, kind, before, text, behind, is_begun: false }
    }

    fn spelled(&self, parts: Value) -> Value {
        json!({
            "artifactId": self.id, "name": self.name, "parts": parts,
            "metadata": { "kind": self.kind },
        })
    }

    /// Returns the artifact with everything that it has. `None` if it has nothing yet.
    fn whole(&self) -> Option<Value> {
        let mut parts = self.before.clone();
        if !self.text.is_empty() {
            parts.push(json!({ "text": self.text }));
        }
        parts.extend(self.behind.iter().cloned());
        (!parts.is_empty()).then(|| self.spelled(parts.into()))
    }
}

/// Returns a part with a JSON value.
fn data(value: &Value) -> Value {
    json!({ "data": value, "mediaType": "application/json" })
}

fn message_of(id: &str, names: &FrontNames, role: &str, text: &str) -> Value {
    json!({
        "messageId": id, "contextId": names.thread_id, "taskId": names.execution, "role": role,
        "parts": [{ "text": text }],
    })
}

/// Returns the messages with which the task began.
fn history_of(names: &FrontNames) -> Vec<Value> {
    let own = names.arguments["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut history = Vec::new();
    for (at, message) in own.iter().enumerate() {
        let text = message["content"].as_str().unwrap_or_default();
        let role = match message["role"].as_str() {
            Some("user") => "ROLE_USER",
            Some("assistant") if !text.is_empty() => "ROLE_AGENT",
            _ => continue, // The protocol has no others.
        };
        let id = match message["id"].as_str() {
            Some(id) => id.to_owned(),
            None => format!("{}-in-{at}", names.message_id),
        };
        history.push(message_of(&id, names, role, text));
    }
    history
}
