//! One step of a run: the message of the model, and the results of its calls.
//!
//! The message is added to the state when its calls are complete and one of them says something.
//! Otherwise that happens at the end of the step. A call that the model makes later changes it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::spelled::tool_message;
use super::{
    AGENT, CallEnd, Events, FrontCall, FrontNames, Input, Op, Prose, State, StepEnd, TOOLS,
    has_room_for,
};
use crate::agent::Usage;
use crate::limits;

/// A step that has not ended; see the module's text.
#[derive(Debug)]
pub(super) struct Turn {
    pub number: u32,
    /// The id of the message.
    id: String,
    model: String,
    text: String,
    reasoning: String,
    calls: Vec<TurnCall>,
    usage: Option<Usage>,
    /// True if the state has the message.
    is_added: bool,
    /// True if the state has the message, but not as it is now.
    is_stale: bool,
    /// True if the metadata of the message was written.
    is_known: bool,
    /// Bytes of copies of the message that were written.
    copied_bytes: usize,
}

/// A call that the model makes.
#[derive(Debug)]
struct TurnCall {
    id: Arc<str>,
    name: Arc<str>,
    arguments: String,
    /// The problem of arguments that are not valid.
    problem: Option<String>,
    is_ready: bool,
}

impl Turn {
    pub fn new(names: &FrontNames, number: u32, model: String) -> Turn {
        Turn {
            number,
            id: format!("{}-{number}", names.message_id),
            model,
            text: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            usage: None,
            is_added: false,
            is_stale: false,
            is_known: false,
            copied_bytes: 0,
        }
    }

    pub fn kept_bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.arguments.capacity());
        self.text.capacity() + self.reasoning.capacity() + calls.sum::<usize>()
    }

    /// True if the state has the message.
    pub fn is_added(&self) -> bool {
        self.is_added
    }

    pub fn write(&mut self, op: &Op<'_>, state: &mut State, events: &mut Events<'_>) {
        match op {
            Op::Delta { block, text } => self.prose(block.prose, text, state, events),
            Op::CallOpen { call, .. } => self.call(call, events),
            Op::CallArguments { call, text } => self.arguments(call, text, events),
            Op::CallReady { call, input, is_sent } => self.ready(call, input, *is_sent, events),
            Op::Output { call, output } => {
                self.add_if_ready(state, events);
                events.tool("on_tool_event", call, |data| data.text("data", output.text));
                events.custom("tool_output", Some(call), |data| {
                    data.text("name", &call.name);
                    data.text("delta", output.text);
                    data.text("kind", output.kind);
                    data.number("offset", output.offset);
                });
            }
            Op::CallEnd { call, end } => self.call_end(call, end, state, events),
            _ => {}
        }
    }

    fn prose(&mut self, prose: Prose, text: &str, state: &mut State, events: &mut Events<'_>) {
        let so_far = self.text.len() + self.reasoning.len();
        let room = state.room_for(text.len(), so_far, limits::FRONT_PROSE_BYTES_MAX);
        let kept = &text[..text.floor_char_boundary(room)];
        match prose {
            Prose::Text => self.text.push_str(kept),
            Prose::Reasoning => self.reasoning.push_str(kept),
        }
        self.is_stale = true;
        self.piece(events, |piece| match prose {
            Prose::Text => piece.text("content", text),
            Prose::Reasoning => {
                piece.text("content", "");
                piece.object("additional_kwargs", |more| more.text("reasoning_content", text));
            }
        });
        self.copy(events);
    }

    /// Writes a piece of the message.
    fn piece(&self, events: &mut Events<'_>, fill: impl FnOnce(&mut super::Object<'_>)) {
        events.piece(AGENT, &self.model, |piece| {
            piece.text("type", "AIMessageChunk");
            piece.text("id", &self.id);
            fill(piece);
        });
    }

    /// Writes a piece of a call in the message.
    fn call_piece(&self, at: usize, is_first: bool, arguments: &str, events: &mut Events<'_>) {
        let call = &self.calls[at];
        let (id, name) = match is_first {
            true => (json!(&*call.id), json!(&*call.name)),
            false => (Value::Null, Value::Null),
        };
        let piece = json!([{
            "type": "tool_call_chunk", "index": at, "id": id, "name": name, "args": arguments,
        }]);
        self.piece(events, |message| {
            message.text("content", "");
            message.value("tool_call_chunks", &piece);
        });
    }

    /// Writes the message as far as it has come, unless that would be too much.
    fn copy(&mut self, events: &mut Events<'_>) {
        self.introduce(events);
        let size = self.text.len() + self.reasoning.len();
        let arguments = self.calls.iter().map(|call| call.arguments.len() + 100).sum::<usize>();
        let free = limits::FRONT_COPIES_BYTES_FREE;
        if has_room_for(size + arguments + 200, &mut self.copied_bytes, free) {
            events.copy("messages/partial", || self.message());
        } else {
            events.skip();
        }
    }

    /// Writes the metadata of the message, once.
    fn introduce(&mut self, events: &mut Events<'_>) {
        if !self.is_known {
            self.is_known = true;
            events.message_metadata(&self.id, AGENT, &self.model);
        }
    }

    fn place_of(&self, call: &FrontCall) -> Option<usize> {
        self.calls.iter().position(|other| other.id == call.id)
    }

    fn call(&mut self, call: &FrontCall, events: &mut Events<'_>) {
        self.calls.push(TurnCall {
            id: Arc::clone(&call.id),
            name: Arc::clone(&call.name),
            arguments: String::new(),
            problem: None,
            is_ready: false,
        });
        self.is_stale = true;
        self.call_piece(self.calls.len() - 1, true, "", events);
    }

    fn arguments(&mut self, call: &FrontCall, text: &str, events: &mut Events<'_>) {
        let Some(at) = self.place_of(call) else { return };
        self.calls[at].arguments.push_str(text); // The model's arguments are bounded.
        self.call_piece(at, false, text, events);
    }

    fn ready(
        &mut self,
        call: &FrontCall,
        input: &Input<'_>,
        is_sent: bool,
        events: &mut Events<'_>,
    ) {
        let Some(at) = self.place_of(call) else { return };
        let valid;
        let (whole, problem) = match input {
            Input::Valid(value) => {
                valid = value.to_string();
                (&*valid, None)
            }
            Input::Cut(text) => (*text, Some("the rest was lost".to_owned())),
            Input::Invalid { text, problem } => (*text, Some((*problem).to_owned())),
            Input::Unknown => ("", Some("they were lost".to_owned())),
        };
        if !is_sent {
            // What was sent of them, if anything, is not their beginning for sure.
            let rest = whole.strip_prefix(&*self.calls[at].arguments).unwrap_or("").to_owned();
            if !rest.is_empty() {
                self.call_piece(at, false, &rest, events);
            }
            whole.clone_into(&mut self.calls[at].arguments);
        }
        (self.calls[at].problem, self.calls[at].is_ready) = (problem, true);
        self.copy(events);
        events.tool("on_tool_start", call, |data| match input {
            Input::Valid(value) => data.value("input", value),
            Input::Cut(text) | Input::Invalid { text, .. } => data.text("input", text),
            Input::Unknown => data.value("input", &Value::Null),
        });
    }

    fn add_if_ready(&mut self, state: &mut State, events: &mut Events<'_>) {
        if !self.is_added && self.calls.iter().all(|call| call.is_ready) {
            self.add(state, events);
        }
    }

    /// Adds the message to the state, or puts it there as it is now.
    fn add(&mut self, state: &mut State, events: &mut Events<'_>) {
        (self.is_added, self.is_stale) = (true, false);
        let message = self.message();
        self.introduce(events);
        events.copy("messages/complete", || message.clone());
        events.update(AGENT, &message);
        state.put(message);
    }

    fn call_end(
        &mut self,
        call: &FrontCall,
        end: &CallEnd<'_>,
        state: &mut State,
        events: &mut Events<'_>,
    ) {
        self.add_if_ready(state, events);
        let problem = end.problem();
        let room = state.room_for(end.output.len(), 0, limits::FRONT_OUTPUT_BYTES_MAX);
        let output = &end.output[..end.output.floor_char_boundary(room)];
        let content = match &problem {
            None => output.to_owned(),
            Some(problem) if output.is_empty() => problem.clone(),
            Some(problem) => format!("{output}\n{problem}"),
        };
        let id = format!("{}-{}", self.id, call.id);
        let message = tool_message(&id, (&call.id, &call.name), &content, problem.is_some());
        match &problem {
            None => events.tool("on_tool_end", call, |data| data.text("output", output)),
            Some(problem) => events.tool("on_tool_error", call, |data| {
                data.text("error", problem);
            }),
        }
        events.piece(TOOLS, "", |piece| {
            for (name, value) in message.as_object().expect("it is an object") {
                piece.value(name, value);
            }
        });
        events.message_metadata(&id, TOOLS, "");
        events.copy("messages/complete", || message.clone());
        events.update(TOOLS, &message);
        state.put(message);
    }

    /// Ends the step.
    pub fn end(&mut self, end: &StepEnd<'_>, state: &mut State, events: &mut Events<'_>) {
        if let Some(usage) = end.usage {
            (self.usage, self.is_stale) = (Some(usage), true);
            let usage = usage_of(&usage);
            self.piece(events, |piece| {
                piece.text("content", "");
                piece.value("usage_metadata", &usage);
            });
        }
        if self.is_stale {
            self.add(state, events);
        }
    }

    fn message(&self) -> Value {
        let mut more = Map::new();
        if !self.reasoning.is_empty() {
            more.insert("reasoning_content".to_owned(), (&*self.reasoning).into());
        }
        let metadata = match &*self.model {
            "" => json!({}),
            model => json!({ "model_name": model }),
        };
        let (mut calls, mut invalid) = (Vec::new(), Vec::new());
        for call in &self.calls {
            let arguments = serde_json::from_str(&call.arguments).ok().filter(Value::is_object);
            match (arguments, &call.problem) {
                (Some(arguments), None) => calls.push(json!({
                    "type": "tool_call", "id": &*call.id, "name": &*call.name, "args": arguments,
                })),
                // While it is being written, the object that it will be is not known.
                (_, None) => calls.push(json!({
                    "type": "tool_call", "id": &*call.id, "name": &*call.name, "args": {},
                })),
                (_, Some(problem)) => invalid.push(json!({
                    "type": "invalid_tool_call", "id": &*call.id, "name": &*call.name,
                    "args": call.arguments, "error": problem,
                })),
            }
        }
        let mut message = json!({
            "type": "ai", "id": self.id, "content": self.text, "additional_kwargs": more,
            "response_metadata": metadata, "tool_calls": calls, "invalid_tool_calls": invalid,
        });
        if let Some(usage) = &self.usage {
            message["usage_metadata"] = usage_of(usage);
        }
        message
    }
}

fn usage_of(usage: &Usage) -> Value {
    let (input, output) = (usage.input_tokens, usage.output_tokens);
    let mut told = json!({
        "input_tokens": input, "output_tokens": output,
        "total_tokens": input.saturating_add(output),
    });
    if let Some(cached) = usage.cached_input_tokens {
        told["input_token_details"] = json!({ "cache_read": cached });
    }
    if let Some(reasoning) = usage.reasoning_tokens {
        told["output_token_details"] = json!({ "reasoning": reasoning });
    }
    told
}
