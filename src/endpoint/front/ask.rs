//! What clients of the three formats ask for, as a conversation: bodies in, values out.
//!
//! Only what is understood is taken: texts, calls and what came of them. Files and what only a
//! page understands are passed over, as are fields that are not known, because each release of a
//! client sends more of them. A call without a result gets one that says so: no model takes a call
//! that was never answered.

mod ag_ui;
mod ai_sdk;
mod langgraph;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::{Map, Value, json};

pub(in crate::endpoint) use ag_ui::of_ag_ui;
pub use ag_ui::read_ag_ui;
pub(in crate::endpoint) use ai_sdk::of_ai_sdk;
pub use ai_sdk::read_ai_sdk;
pub use langgraph::{
    Command, Follow, read_command, read_follow, write_command_error, write_command_success,
};

use crate::agent::{AssistantMessage, CallMade, Message, ToolDescription, ToolResult};

/// What a client asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// What was said so far, and what is to be done.
    pub messages: Vec<Message>,
    /// The client's name of the conversation.
    pub thread_id: Option<String>,
    /// The client's name of the run.
    pub run_id: Option<String>,
    /// Tools that the client would carry out itself.
    pub client_tools: Vec<ToolDescription>,
    /// What the application has added: the members of `POST /v1/agent/stream` have their places
    /// here.
    pub options: Map<String, Value>,
}

/// Why a body is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskError {
    /// Where: `messages[2].role`.
    pub field: String,
    /// What is wrong with it.
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

/// A conversation as the member `messages` of a request spells it.
pub(in crate::endpoint) fn spelled(messages: &[Message]) -> Value {
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

/// What a call without a result is answered.
const NO_RESULT: &str = "there is no result of this call";

fn error<T>(field: impl Into<String>, problem: &'static str) -> Result<T, AskError> {
    Err(AskError { field: field.into(), problem })
}

fn object(body: &[u8]) -> Result<Map<String, Value>, AskError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => error("", "the body is no object"),
        Err(_) => error("", "the body is no JSON"),
    }
}

/// A list that has to be there.
fn list(members: &mut Map<String, Value>, name: &str) -> Result<Vec<Value>, AskError> {
    match members.remove(name) {
        Some(Value::Array(list)) => Ok(list),
        Some(_) => error(name, "is no list"),
        None => error(name, "is missing"),
    }
}

/// A text that may be there.
fn text_if(members: &mut Map<String, Value>, name: &str) -> Result<Option<String>, AskError> {
    match members.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => error(name, "is no text"),
    }
}

/// The texts of a content, which is one, or a list of parts: those that are none are passed over.
fn content(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().filter(|part| part["type"] == "text");
            Some(texts.filter_map(|part| part["text"].as_str()).collect())
        }
        Value::Null => Some(String::new()),
        _ => None,
    }
}

/// A result as the text that a model is told.
fn result_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Puts messages one behind the other, and sees to it that each call has exactly one result, right
/// behind the message that makes it.
#[derive(Default)]
struct Conversation {
    messages: Vec<Message>,
    /// Calls of the last message without a result.
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
            return; // It has said nothing that is understood here.
        }
        self.answer_open();
        self.open = calls.iter().map(|call| call.id.clone()).collect();
        let message = AssistantMessage { text, calls, reasoning: Vec::new() };
        self.messages.push(Message::Assistant(message));
    }

    /// A result. One of no call that waits for it is passed over.
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
