//! Requests: writes a conversation in the format of each wire.
//!
//! All three wires are asked for a stream. This module has their common parts: the head, arguments
//! as an object, and the position of data required back verbatim in a model's message.

mod chat;
mod messages;
mod responses;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use crate::agent::message::{AssistantMessage, CallMade, Message, ReasoningBlock, ToolDescription};
use crate::agent::model::names::ToolNames;
use crate::agent::model::{Endpoint, Wire};

const USER_AGENT: &str = concat!("streamdoor/", env!("CARGO_PKG_VERSION"));
/// The version of Messages in use.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// The content of a request to a model.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The conversation, oldest message first.
    pub messages: &'a [Message],
    /// The tools that the model may call.
    pub tools: &'a [ToolDescription],
    /// Maximum number of tokens of the answer.
    pub max_tokens: Option<u32>,
    /// The sampling temperature.
    pub temperature: Option<f64>,
    /// The amount of reasoning, for models that can reason.
    pub effort: Option<Effort>,
    /// True if the model may make several calls in one turn.
    pub parallel_tool_calls: bool,
}

impl<'a> Ask<'a> {
    /// Creates a request that continues a conversation, without tools and with the provider's
    /// defaults.
    pub fn of(messages: &'a [Message]) -> Ask<'a> {
        Ask {
            messages,
            tools: &[],
            max_tokens: None,
            temperature: None,
            effort: None,
            parallel_tool_calls: true,
        }
    }
}

/// The amount of reasoning requested from a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Little reasoning.
    Low,
    /// The usual amount.
    Medium,
    /// Much reasoning.
    High,
}

impl Effort {
    /// Returns the name, which is the same on all three wires.
    pub fn as_str(self) -> &'static str {
        match self {
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
        }
    }
}

/// Appends a complete HTTP/1.1 request to `out`, with the key in its head.
///
/// ```
/// use streamdoor::agent::Message;
/// use streamdoor::agent::model::{Ask, Endpoint, Secret, Wire, write_request};
///
/// let endpoint = Endpoint {
///     wire: Wire::Messages,
///     base_url: "https://models.example".parse()?,
///     model: "some-model".into(),
///     key: Some(Secret::new("secret")?),
/// };
/// let messages = [Message::User("Hello?".into())];
/// let mut request = Vec::new();
/// write_request(&endpoint, &Ask::of(&messages), &mut request);
/// let request = String::from_utf8(request)?;
/// assert!(request.starts_with("POST /v1/messages HTTP/1.1\r\nhost: models.example\r\n"));
/// assert!(request.contains("\r\nx-api-key: secret\r\n"));
/// assert!(request.ends_with(r#"[{"role":"user","content":[{"type":"text","text":"Hello?"}]}]}"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_request(endpoint: &Endpoint, ask: &Ask<'_>, out: &mut Vec<u8>) {
    let names = ToolNames::of(ask.tools);
    let body = match endpoint.wire {
        Wire::ChatCompletions => chat::body(endpoint, ask, &names),
        Wire::Responses => responses::body(endpoint, ask, &names),
        Wire::Messages => messages::body(endpoint, ask, &names),
    };
    let body = body.to_string();
    let (path, host) = (endpoint.path(), endpoint.base_url.authority());
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: {USER_AGENT}\r\n\
         accept: text/event-stream\r\naccept-encoding: identity\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    let key = endpoint.key.as_ref().map(|key| key.reveal());
    if endpoint.wire == Wire::Messages {
        head += &format!("anthropic-version: {ANTHROPIC_VERSION}\r\n");
    }
    match (endpoint.wire, key) {
        (_, None) => {}
        (Wire::Messages, Some(key)) => head += &format!("x-api-key: {key}\r\n"),
        (_, Some(key)) => head += &format!("authorization: Bearer {key}\r\n"),
    }
    head += "\r\n";
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body.as_bytes());
}

/// An item of a model's message, in the order in which the items are sent back.
enum MessageItem<'a> {
    Text(&'a str),
    Call(&'a CallMade),
    Block(&'a ReasoningBlock),
}

/// Splits a message at the positions of the data that its wire requires back. Positions beyond the
/// message move to its end, because the text may have been shortened.
fn message_items<'a>(message: &'a AssistantMessage, wire: Wire) -> Vec<MessageItem<'a>> {
    let AssistantMessage { text, calls, reasoning } = message;
    let (mut text_at, mut call_at) = (0, 0);
    let mut all = Vec::new();
    let mut push_until = |all: &mut Vec<MessageItem<'a>>, text_end: usize, call_end: usize| {
        let text_end = text.floor_char_boundary(text_end).max(text_at);
        let call_end = call_end.min(calls.len()).max(call_at);
        if text_end > text_at {
            all.push(MessageItem::Text(&text[text_at..text_end]));
        }
        all.extend(calls[call_at..call_end].iter().map(MessageItem::Call));
        (text_at, call_at) = (text_end, call_end);
    };
    for block in reasoning.iter().filter(|block| block.wire == wire) {
        push_until(&mut all, block.text_bytes, block.call_count);
        all.push(MessageItem::Block(block));
    }
    push_until(&mut all, text.len(), calls.len());
    all
}

/// Returns the arguments as an object, which wires and prompt templates rely on.
fn arguments_of(call: &CallMade) -> Value {
    match serde_json::from_str(&call.arguments) {
        Ok(arguments @ Value::Object(_)) => arguments,
        _ if call.arguments.trim_ascii().is_empty() => json!({}),
        _ => json!({ "invalid_arguments": call.arguments }),
    }
}

/// Returns the arguments as text: the model's own if it is an object, otherwise as
/// [`arguments_of`].
fn arguments_text(call: &CallMade) -> String {
    match serde_json::from_str(&call.arguments) {
        Ok(Value::Object(_)) => call.arguments.clone(),
        _ => arguments_of(call).to_string(),
    }
}

/// Returns the schema of a tool as the schema of an object.
fn schema_of(tool: &ToolDescription) -> Value {
    let mut schema = tool.schema.as_object().cloned().unwrap_or_default();
    if schema.get("type").is_none_or(|kind| kind != "object") {
        schema.insert("type".to_owned(), json!("object"));
    }
    if !schema.contains_key("properties") {
        schema.insert("properties".to_owned(), json!({}));
    }
    Value::Object(schema)
}

/// Appends a text, after an empty line if `all` has text already.
fn join(all: &mut String, text: &str) {
    if !all.is_empty() {
        all.push_str("\n\n");
    }
    all.push_str(text);
}
