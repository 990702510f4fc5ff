//! The events of OpenAI's Responses API, as the specification Open Responses has them, and the
//! object that a client gets without a stream.
//!
//! A run is one response. Its prose is in items `message` and `reasoning`. A call of a tool, which
//! the server carries out, is an item `mcp_call`: it has arguments, an output and an error. The
//! protocol has no event for output that grows, so such events have a prefix, and are written for
//! those who include them:
//!
//! | event | members |
//! |---|---|
//! | `streamdoor:tool_output.delta` | `item_id`, `output_index`, `delta`, `kind`, `offset` |
//! | `streamdoor:progress` | `item_id`, `output_index`, `progress`, `total`, `message` |
//! | `streamdoor:gap` | `fromSeq`, `toSeq`, `chunkCount`, `byteCount`, `reason` |
//!
//! The number of an event encodes the part it came from, and a count within that part. Numbers
//! grow, and are the same in each stream of a response. A client that goes on after a number is
//! sent the events behind it. They are made from the whole log, because the last one has all items.

use std::sync::Arc;

use serde_json::{Value, json};

use super::call::FrontCall;
use super::json::{Object, object};
use super::numbers::Numbers;
use super::op::{Block, CallEnd, Ending, Input, Op, Prose, RunOutcome};
use super::{FrontItem, FrontNames};
use crate::agent::Usage;
use crate::limits;

/// The beginning of the names of events that the specification does not have.
const PREFIX: &str = "streamdoor:";

/// The label of the server of all calls.
const SERVER: &str = "streamdoor";

/// The writer of this format; see the module's text.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// True if only the object is written, at the end.
    is_document: bool,
    /// True if the events with a prefix are left out, which some clients refuse.
    is_plain: bool,
    numbers: Numbers,
    items: Vec<Value>,
    /// The open block of prose: the index of its item, and its text.
    prose: Option<(usize, String)>,
    calls: Vec<OpenCall>,
    /// Bytes of all items.
    kept_bytes: usize,
    /// True if an item has less than it had in the log.
    is_cut: bool,
    missed_chunks: u64,
}

/// A call that has not ended.
#[derive(Debug)]
struct OpenCall {
    id: Arc<str>,
    index: usize,
    arguments: String,
}

impl Responses {
    pub fn new(is_document: bool) -> Responses {
        Responses { is_document, ..Responses::default() }
    }

    pub fn be_plain(&mut self) {
        self.is_plain = true;
    }

    pub fn set_since(&mut self, since: u64) {
        self.numbers.since = Some(since);
    }

    /// Sets the item from which the next events come.
    pub fn begin(&mut self, item: FrontItem<'_>) {
        self.numbers.begin(item);
    }

    /// Prepares the writer for a client that has nothing: what is open is opened again.
    pub fn reset(&mut self) {
        (self.prose, self.calls) = (None, Vec::new());
        self.items.retain(|item| item["status"] != "in_progress");
    }

    pub fn kept_bytes(&self) -> usize {
        let prose_bytes = self.prose.as_ref().map_or(0, |(_, text)| text.capacity());
        let calls = self.calls.iter().map(|call| call.arguments.capacity());
        self.kept_bytes + prose_bytes + calls.sum::<usize>()
    }

    /// Returns the object of a response that has not ended.
    pub fn document(&self, names: &FrontNames, status: &str) -> Value {
        self.response(names, status, None)
    }

    pub fn write(&mut self, op: &Op<'_>, names: &FrontNames, out: &mut Vec<u8>) {
        match op {
            Op::Start => {
                for event in ["response.created", "response.in_progress"] {
                    self.with_response(event, names, ("in_progress", None), out);
                }
            }
            Op::StepStart { .. } | Op::StepEnd(_) | Op::Close => {}
            Op::Open(block) => self.open(*block, names, out),
            Op::Delta { block, text } => self.delta(*block, text, out),
            Op::Shut(block) => self.shut(*block, out),
            Op::CallOpen { call, step } => self.call(call, *step, out),
            Op::CallArguments { call, text } => self.arguments(call, text, out),
            Op::CallReady { call, input, is_sent } => self.ready(call, *input, *is_sent, out),
            Op::Output { call, output } => {
                self.of_call("streamdoor:tool_output.delta", call, out, |event| {
                    event.text("delta", output.text);
                    event.text("kind", output.kind);
                    event.number("offset", output.offset);
                });
            }
            Op::Progress { call: Some(call), progress } => {
                self.of_call("streamdoor:progress", call, out, |event| progress.write(event));
            }
            Op::Progress { call: None, progress } => {
                self.event("streamdoor:progress", out, |event| progress.write(event));
            }
            Op::Gap { gap, .. } => {
                self.missed_chunks += gap.chunk_count;
                self.event("streamdoor:gap", out, |event| gap.write(event));
            }
            Op::CallEnd { call, end } => self.call_end(call, end, out),
            Op::End(ending) => {
                let (status, event) = match ending.how {
                    RunOutcome::Completed => ("completed", "response.completed"),
                    RunOutcome::Limited => ("incomplete", "response.incomplete"),
                    // Clients wait for one of three ends, and none of them is this one.
                    RunOutcome::Cancelled => ("cancelled", "response.incomplete"),
                    RunOutcome::Failed { .. } | RunOutcome::Stopped { .. } => {
                        ("failed", "response.failed")
                    }
                };
                self.with_response(event, names, (status, Some(ending)), out);
                self.put_document(names, (status, Some(ending)), out);
            }
            Op::Detached { reason, resume_from, .. } => {
                let message = format!("the stream ends before the response does: {reason}");
                self.event("error", out, |event| {
                    event.text("code", "detached");
                    event.text("message", &message);
                    event.value("param", &Value::Null);
                    event.number("resumeFrom", *resume_from);
                });
                self.put_document(names, ("in_progress", None), out);
            }
        }
    }

    fn event(&mut self, name: &str, out: &mut Vec<u8>, fill: impl FnOnce(&mut Object<'_>)) {
        let is_left_out = self.is_document || self.is_plain && name.starts_with(PREFIX);
        let Some(number) = self.numbers.draw().filter(|_| !is_left_out) else { return };
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\ndata: ");
        object(out, |event| {
            event.text("type", name);
            event.number("sequence_number", number);
            fill(event);
        });
        out.extend_from_slice(b"\n\n");
    }

    fn with_response(
        &mut self,
        event: &str,
        names: &FrontNames,
        (status, ending): (&str, Option<&Ending>),
        out: &mut Vec<u8>,
    ) {
        if self.is_document {
            return;
        }
        let response = self.response(names, status, ending);
        self.event(event, out, |event| event.value("response", &response));
    }

    fn put_document(
        &self,
        names: &FrontNames,
        (status, ending): (&str, Option<&Ending>),
        out: &mut Vec<u8>,
    ) {
        if self.is_document {
            crate::wire::write_json(out, &self.response(names, status, ending));
            out.push(b'\n');
        }
    }

    /// Counts bytes of an item. Returns how many of them are kept.
    fn room_for(&mut self, bytes: usize, so_far: usize, bytes_max: usize) -> usize {
        let of_all = limits::FRONT_RESPONSE_BYTES_MAX.saturating_sub(self.kept_bytes);
        let room = bytes_max.saturating_sub(so_far).min(of_all);
        self.is_cut |= bytes > room;
        bytes.min(room)
    }

    fn open(&mut self, block: Block, names: &FrontNames, out: &mut Vec<u8>) {
        let Block { prose, step, offset } = block;
        let execution = &names.execution;
        let item = match prose {
            Prose::Text => json!({
                "type": "message", "id": format!("msg_{execution}_{step}_{offset}"),
                "status": "in_progress", "role": "assistant", "content": [],
            }),
            Prose::Reasoning => json!({
                "type": "reasoning", "id": format!("rs_{execution}_{step}_{offset}"),
                "status": "in_progress", "summary": [], "content": [],
            }),
        };
        let index = self.add(item, out);
        self.prose = Some((index, String::new()));
        let part = part_of(prose, "");
        self.of_item("response.content_part.added", index, out, |event| {
            event.number("content_index", 0);
            event.value("part", &part);
        });
    }

    /// Adds an item, and returns its index.
    fn add(&mut self, item: Value, out: &mut Vec<u8>) -> usize {
        let index = self.items.len();
        self.event("response.output_item.added", out, |event| {
            event.number("output_index", index as u64);
            event.value("item", &item);
        });
        self.items.push(item);
        index
    }

    fn of_item(
        &mut self,
        name: &str,
        index: usize,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Object<'_>),
    ) {
        let id = self.items[index]["id"].as_str().expect("each item has an id").to_owned();
        self.event(name, out, |event| {
            event.text("item_id", &id);
            event.number("output_index", index as u64);
            fill(event);
        });
    }

    fn delta(&mut self, block: Block, text: &str, out: &mut Vec<u8>) {
        let Some((index, so_far)) = self.prose.as_ref().map(|(at, text)| (*at, text.len())) else {
            return;
        };
        let room = self.room_for(text.len(), so_far, limits::FRONT_PROSE_BYTES_MAX);
        if let Some((_, kept)) = &mut self.prose {
            kept.push_str(&text[..text.floor_char_boundary(room)]);
        }
        let name = match block.prose {
            Prose::Text => "response.output_text.delta",
            Prose::Reasoning => "response.reasoning_text.delta",
        };
        self.of_item(name, index, out, |event| {
            event.number("content_index", 0);
            event.text("delta", text);
            if block.prose == Prose::Text {
                event.value("logprobs", &json!([]));
            }
        });
    }

    fn shut(&mut self, block: Block, out: &mut Vec<u8>) {
        let Some((index, text)) = self.prose.take() else { return };
        let name = match block.prose {
            Prose::Text => "response.output_text.done",
            Prose::Reasoning => "response.reasoning_text.done",
        };
        self.of_item(name, index, out, |event| {
            event.number("content_index", 0);
            event.text("text", &text);
            if block.prose == Prose::Text {
                event.value("logprobs", &json!([]));
            }
        });
        let part = part_of(block.prose, &text);
        self.of_item("response.content_part.done", index, out, |event| {
            event.number("content_index", 0);
            event.value("part", &part);
        });
        self.items[index]["content"] = json!([part]);
        self.kept_bytes += text.len();
        self.done(index, "completed", out);
    }

    /// Ends an item.
    fn done(&mut self, index: usize, status: &str, out: &mut Vec<u8>) {
        self.items[index]["status"] = status.into();
        let item = self.items[index].clone();
        self.event("response.output_item.done", out, |event| {
            event.number("output_index", index as u64);
            event.value("item", &item);
        });
    }

    fn call(&mut self, call: &FrontCall, step: u32, out: &mut Vec<u8>) {
        let item = json!({
            "type": "mcp_call", "id": format!("mcp_{step}_{}", call.id), "status": "in_progress",
            "server_label": SERVER, "name": &*call.name, "arguments": "",
            "approval_request_id": null, "output": null, "error": null,
        });
        let index = self.add(item, out);
        self.calls.push(OpenCall { id: Arc::clone(&call.id), index, arguments: String::new() });
        self.of_item("response.mcp_call.in_progress", index, out, |_| {});
    }

    fn of_call(
        &mut self,
        name: &str,
        call: &FrontCall,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Object<'_>),
    ) {
        let open = self.calls.iter().find(|open| open.id == call.id);
        if let Some(index) = open.map(|open| open.index) {
            self.of_item(name, index, out, fill);
        }
    }

    fn arguments(&mut self, call: &FrontCall, text: &str, out: &mut Vec<u8>) {
        if let Some(open) = self.calls.iter_mut().find(|open| open.id == call.id) {
            open.arguments.push_str(text); // The model's arguments are bounded.
        }
        self.of_call("response.mcp_call_arguments.delta", call, out, |event| {
            event.text("delta", text);
        });
    }

    fn ready(&mut self, call: &FrontCall, input: Input<'_>, is_sent: bool, out: &mut Vec<u8>) {
        let valid;
        let whole = match input {
            Input::Valid(value) => {
                valid = value.to_string();
                &valid
            }
            Input::Cut(text) | Input::Invalid { text, .. } => text,
            Input::Unknown => "",
        };
        let open = self.calls.iter_mut().find(|open| open.id == call.id);
        let Some(open) = open else { return };
        if !is_sent {
            // What was sent of them, if anything, is not their beginning for sure.
            let rest = whole.strip_prefix(&*open.arguments).unwrap_or("").to_owned();
            if !rest.is_empty() {
                self.arguments(call, &rest, out);
            }
        }
        let open = self.calls.iter_mut().find(|open| open.id == call.id).expect("it is open");
        let (index, arguments) = (open.index, std::mem::take(&mut open.arguments));
        self.of_item("response.mcp_call_arguments.done", index, out, |event| {
            event.text("arguments", &arguments);
        });
        self.kept_bytes += arguments.len();
        self.items[index]["arguments"] = arguments.into();
    }

    fn call_end(&mut self, call: &FrontCall, end: &CallEnd<'_>, out: &mut Vec<u8>) {
        let Some(at) = self.calls.iter().position(|open| open.id == call.id) else { return };
        let OpenCall { index, .. } = self.calls.remove(at);
        let room = self.room_for(end.output.len(), 0, limits::FRONT_OUTPUT_BYTES_MAX);
        let output = &end.output[..end.output.floor_char_boundary(room)];
        self.kept_bytes += output.len();
        let problem = end.problem();
        let (name, status) = match problem {
            None => ("response.mcp_call.completed", "completed"),
            Some(_) => ("response.mcp_call.failed", "failed"),
        };
        let item = &mut self.items[index];
        item["output"] = output.into();
        item["error"] = problem.into();
        self.of_item(name, index, out, |_| {});
        self.done(index, status, out);
    }

    /// Returns the object of the response as it is now.
    fn response(&self, names: &FrontNames, status: &str, ending: Option<&Ending>) -> Value {
        let asked = &names.arguments["response"];
        let model = ending.map(|ending| &*ending.model).filter(|model| !model.is_empty());
        let model = model.or(asked["model"].as_str()).unwrap_or(&names.tool);
        let error = ending.and_then(|ending| match &ending.how {
            RunOutcome::Failed { code, message } => Some((&**code, &**message)),
            RunOutcome::Stopped { code, message } => Some((*code, *message)),
            _ => None,
        });
        let error = error.map(|(code, message)| {
            json!({ "code": "server_error", "message": format!("{code}: {message}") })
        });
        let is_limited = ending.is_some_and(|ending| ending.how == RunOutcome::Limited);
        let reason = ending.filter(|_| is_limited).map(|ending| match &*ending.reason {
            "max_tokens" | "length" => "max_output_tokens",
            reason => reason,
        });
        let usage = ending.and_then(|ending| ending.usage.as_ref());
        let mut response = json!({
            "id": format!("resp_{}", names.execution),
            "object": "response",
            "created_at": names.created_s,
            "status": status,
            "background": false,
            "error": error,
            "incomplete_details": reason.map(|reason| json!({ "reason": reason })),
            "instructions": null,
            "max_output_tokens": null,
            "max_tool_calls": null,
            "metadata": {},
            "model": model,
            "output": self.items,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "reasoning": { "effort": null, "summary": null },
            "service_tier": "default",
            "store": true,
            "temperature": null,
            "text": { "format": { "type": "text" } },
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": null,
            "truncation": "disabled",
            "usage": usage.map(usage_of),
            "user": null,
        });
        for (name, value) in asked.as_object().into_iter().flatten() {
            if name != "model" {
                response[name] = value.clone();
            }
        }
        if self.is_cut || self.missed_chunks > 0 {
            response["streamdoor"] =
                json!({ "is_cut": self.is_cut, "missed_chunks": self.missed_chunks });
        }
        response
    }
}

fn part_of(prose: Prose, text: &str) -> Value {
    match prose {
        Prose::Text => {
            json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
        }
        Prose::Reasoning => json!({ "type": "reasoning_text", "text": text }),
    }
}

fn usage_of(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_input_tokens.unwrap_or(0) },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens.unwrap_or(0) },
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
    })
}
