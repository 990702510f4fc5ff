//! Reads the requests of clients of the formats as conversations.
//!
//! Only known content is read: texts, calls and their results. Files, content that only a page
//! understands, and unknown fields are ignored, because each release of a client sends more of
//! them. A call without a result gets one that says so, because no model accepts a call without a
//! result.

mod a2a;
mod ag_ui;
mod ai_sdk;
mod graph;
mod langgraph;
mod responses;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::{Map, Value, json};

pub(in crate::endpoint) use a2a::{
    MessageFault, SentMessage, history_length, read_message, read_task_search, task_id,
};
pub(in crate::endpoint) use ag_ui::of_ag_ui;
pub use ag_ui::read_ag_ui;
pub(in crate::endpoint) use ai_sdk::of_ai_sdk;
pub use ai_sdk::read_ai_sdk;
pub(in crate::endpoint) use graph::{RunRequest, of_run, read_search, read_thread_search};
pub use langgraph::{
    Command, Follow, read_command, read_follow, write_command_error, write_command_success,
};

pub(in crate::endpoint) use responses::{EXTENSIONS, ResponseRequest, of_responses, read_items};

use crate::agent::{AssistantMessage, CallMade, Message, ToolDescription, ToolResult};

/// The content of a client's request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrontRequest {
    /// The conversation so far, including the task.
    pub messages: Vec<Message>,
    /// The client's name of the conversation.
    pub thread_id: Option<String>,
    /// The client's name of the run.
    pub run_id: Option<String>,
    /// Tools that the client would carry out itself.
    pub client_tools: Vec<ToolDescription>,
    /// Options that the application added. They may be members of `POST /v1/agent/stream`.
    pub options: Map<String, Value>,
}

/// The reason why a body cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskError {
    /// The position of the fault, such as `messages[2].role`.
    pub field: String,
    /// The fault.
    pub problem: &'static str,
}

impl fmt::Display for AskError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            return out.write_str(self.problem);
        }
        write!(out, "`{}` {}", self.field, self.problem)
    }
}

impl std::error::Error for AskError {}

/// Returns a conversation as the member `messages` of a request.
pub(in crate::endpoint) fn messages_json(messages: &[Message]) -> Value {
    let spelled = |message: &Message| match message {
        Message::System(text) => json!({"role": "system", "content": text}),
        Message::User(text) => json!({"role": "user", "content": text}),
        Message::Assistant(said) => {
            let call = |call: &CallMade| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            };
            let mut message = json!({"role": "assistant", "content": said.text});
            if !said.calls.is_empty() {
                message["tool_calls"] = said.calls.iter().map(call).collect();
            }
            message
        }
        Message::Tool(ToolResult { call_id, output, is_error }) => json!({
            "role": "tool", "tool_call_id": call_id, "content": output, "is_error": is_error,
        }),
    };
    messages.iter().map(spelled).collect()
}

/// The result of a call that has none.
const NO_RESULT: &str = "this call has no result";

fn error<T>(field: impl Into<String>, problem: &'static str) -> Result<T, AskError> {
    Err(AskError { field: field.into(), problem })
}

fn object(body: &[u8]) -> Result<Map<String, Value>, AskError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => error("", "the body must be an object"),
        Err(_) => error("", "the body must be JSON"),
    }
}

/// Removes a required list.
fn list(members: &mut Map<String, Value>, name: &str) -> Result<Vec<Value>, AskError> {
    match members.remove(name) {
        Some(Value::Array(list)) => Ok(list),
        Some(_) => error(name, "must be a list"),
        None => error(name, "is missing"),
    }
}

/// Removes an optional list.
fn list_if(members: &mut Map<String, Value>, name: &str) -> Result<Vec<Value>, AskError> {
    match members.remove(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => error(name, "must be a list"),
    }
}

/// Returns a required text. `field` is its position.
fn text_of(value: &Value, field: impl FnOnce() -> String) -> Result<&str, AskError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Null => error(field(), "is missing"),
        _ => error(field(), "must be a text"),
    }
}

/// Removes an optional text.
fn text_if(members: &mut Map<String, Value>, name: &str) -> Result<Option<String>, AskError> {
    match members.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => error(name, "must be a text"),
    }
}

/// Returns the texts of a content, which is one text or a list of parts. Parts that are not text
/// are ignored. Returns `None` for anything else, such as a part of type `text` without a text.
fn content(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().filter(|part| part["type"] == "text");
            texts.map(|part| part["text"].as_str()).collect()
        }
        Value::Null => Some(String::new()),
        _ => None,
    }
}

/// Returns a result as the text for a model.
fn result_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A conversation under construction. It ensures that each call has exactly one result, directly
/// after the message that makes the call.
#[derive(Default)]
struct Conversation {
    messages: Vec<Message>,
    /// The ids of the last message's calls that have no result.
    open: Vec<String>,
}

impl Conversation {
    fn system(&mut self, text: String) {
        self.say(text, Message::System);
    }

    fn user(&mut self, text: String) {
        self.say(text, Message::User);
    }

    fn say(&mut self, text: String, message: fn(String) -> Message) {
        if !text.is_empty() {
            self.answer_open();
            self.messages.push(message(text));
        }
    }

    fn assistant(&mut self, text: String, calls: Vec<CallMade>) {
        if text.is_empty() && calls.is_empty() {
            return; // The message has no content that is known here.
        }
        self.answer_open();
        self.open = calls.iter().map(|call| call.id.clone()).collect();
        let message = AssistantMessage { text, calls, reasoning: Vec::new() };
        self.messages.push(Message::Assistant(message));
    }

    /// Adds the calls of the assistant. They belong to what it said just before.
    fn calls(&mut self, calls: Vec<CallMade>) {
        match self.messages.last_mut() {
            Some(Message::Assistant(said)) if said.calls.is_empty() => {
                self.open = calls.iter().map(|call| call.id.clone()).collect();
                said.calls = calls;
            }
            _ => self.assistant(String::new(), calls),
        }
    }

    /// Adds a result. It is ignored if no call waits for it.
    fn result(&mut self, call_id: &str, output: String, is_error: bool) {
        if let Some(at) = self.open.iter().position(|open| open == call_id) {
            let call_id = self.open.remove(at);
            self.messages.push(Message::Tool(ToolResult { call_id, output, is_error }));
        }
    }

    fn answer_open(&mut self) {
        for call_id in std::mem::take(&mut self.open) {
            let (output, is_error) = (NO_RESULT.to_owned(), true);
            self.messages.push(Message::Tool(ToolResult { call_id, output, is_error }));
        }
    }

    fn end(mut self) -> Vec<Message> {
        self.answer_open();
        self.messages
    }
}
