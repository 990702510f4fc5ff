//! Requests of Messages. The results of a turn's calls come first in one user message after the
//! calls. Texts without a visible character are left out, because the server refuses them.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{Ask, MessageItem, arguments_of, join, message_items, schema_of};
use crate::agent::message::{AssistantMessage, Message, ToolDescription};
use crate::agent::model::names::ToolNames;
use crate::agent::model::{Endpoint, Wire};
use crate::limits;

pub(super) fn body(endpoint: &Endpoint, ask: &Ask<'_>, names: &ToolNames) -> Value {
    let max_tokens = ask.max_tokens.unwrap_or(limits::MODEL_TOKENS_DEFAULT);
    let mut body = json!({ "model": endpoint.model, "stream": true, "max_tokens": max_tokens });
    match (ask.effort, ask.temperature) {
        (Some(effort), _) => {
            // Reasoning excludes a temperature.
            body["thinking"] = json!({ "type": "adaptive" });
            body["output_config"] = json!({ "effort": effort.as_str() });
        }
        (None, Some(temperature)) => body["temperature"] = json!(temperature),
        (None, None) => {}
    }
    if !ask.tools.is_empty() {
        let tool = |tool: &ToolDescription| {
            let (name, schema) = (names.wire_name(&tool.name), schema_of(tool));
            json!({ "name": name, "description": tool.description, "input_schema": schema })
        };
        body["tools"] = ask.tools.iter().map(tool).collect();
        if !ask.parallel_tool_calls {
            body["tool_choice"] = json!({ "type": "auto", "disable_parallel_tool_use": true });
        }
    }
    let (system, messages) = messages(ask.messages, names);
    if !system.is_empty() {
        body["system"] = json!(system);
    }
    body["messages"] = Value::Array(messages);
    body
}

/// Returns all system texts, and the alternating turns of the user and the model.
fn messages(messages: &[Message], names: &ToolNames) -> (String, Vec<Value>) {
    let mut system = String::new();
    let mut turns: Vec<(&'static str, Vec<Value>)> = Vec::new();
    for message in messages {
        let (role, blocks) = match message {
            Message::System(text) => {
                join(&mut system, text);
                continue;
            }
            Message::User(text) => ("user", text_block(text).into_iter().collect()),
            Message::Assistant(message) => ("assistant", assistant(message, names)),
            Message::Tool(result) => {
                let id = plain_id(&result.call_id);
                let mut block =
                    json!({ "type": "tool_result", "tool_use_id": id, "content": result.output });
                if result.is_error {
                    block["is_error"] = json!(true);
                }
                ("user", vec![block])
            }
        };
        match turns.last_mut() {
            _ if blocks.is_empty() => {}
            Some((last_role, last)) if *last_role == role => last.extend(blocks),
            _ => turns.push((role, blocks)),
        }
    }
    let spelled = turns.into_iter().map(|(role, mut blocks)| {
        if role == "user" {
            blocks.sort_by_key(|block| block["type"] != "tool_result"); // Stable: results first.
        }
        json!({ "role": role, "content": blocks })
    });
    (system, spelled.collect())
}

fn assistant(message: &AssistantMessage, names: &ToolNames) -> Vec<Value> {
    let spell = |item| match item {
        MessageItem::Text(text) => text_block(text),
        MessageItem::Call(call) => Some(json!({
            "type": "tool_use", "id": plain_id(&call.id), "name": names.wire_name(&call.name),
            "input": arguments_of(call),
        })),
        MessageItem::Block(block) => Some(block.value.clone()),
    };
    message_items(message, Wire::Messages).into_iter().filter_map(spell).collect()
}

fn text_block(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({ "type": "text", "text": text }))
}

/// Replaces the characters of an id from another wire that this wire refuses.
fn plain_id(id: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    match !id.is_empty() && id.chars().all(is_plain) {
        true => Cow::Borrowed(id),
        false if id.is_empty() => Cow::Borrowed("_"),
        false => id.chars().map(|c| if is_plain(c) { c } else { '_' }).collect(),
    }
}
