//! Requests of Chat Completions.

use serde_json::{Map, Value, json};

use super::{Ask, MessageItem, arguments_text, join, message_items, schema_of};
use crate::agent::message::{AssistantMessage, Message};
use crate::agent::model::names::ToolNames;
use crate::agent::model::{Endpoint, Wire};

pub(super) fn body(endpoint: &Endpoint, ask: &Ask<'_>, names: &ToolNames) -> Value {
    let mut body = json!({
        "model": endpoint.model,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if let Some(max_tokens) = ask.max_tokens {
        // OpenAI's reasoning models refuse the old name; most other servers know only that one.
        let is_openai = ["openai.com", "openai.azure.com"]
            .iter()
            .any(|domain| endpoint.base_url.host.ends_with(domain));
        let name = if is_openai { "max_completion_tokens" } else { "max_tokens" };
        body[name] = json!(max_tokens);
    }
    if let Some(temperature) = ask.temperature {
        body["temperature"] = json!(temperature);
    }
    if let Some(effort) = ask.effort {
        body["reasoning_effort"] = json!(effort.as_str());
    }
    if !ask.tools.is_empty() {
        let tool = |tool: &crate::agent::ToolDescription| {
            let (name, parameters) = (names.wire_name(&tool.name), schema_of(tool));
            let description = &tool.description;
            let function =
                json!({"name": name, "description": description, "parameters": parameters});
            json!({ "type": "function", "function": function })
        };
        body["tools"] = ask.tools.iter().map(tool).collect();
        if !ask.parallel_tool_calls {
            // The default allows several calls.
            body["parallel_tool_calls"] = json!(false);
        }
    }
    body["messages"] = Value::Array(messages(ask.messages, names));
    body
}

/// Writes the messages. Many models' templates require user and model to alternate: consecutive
/// user messages are joined, and an empty message of the model is left out.
fn messages(messages: &[Message], names: &ToolNames) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for message in messages {
        match message {
            Message::System(text) => all.push(json!({ "role": "system", "content": text })),
            Message::User(text) => match all.last_mut() {
                Some(Value::Object(last)) if last["role"] == "user" => {
                    let mut content = last["content"].as_str().unwrap_or("").to_owned();
                    join(&mut content, text);
                    last["content"] = json!(content);
                }
                _ => all.push(json!({ "role": "user", "content": text })),
            },
            Message::Assistant(message) => all.extend(assistant(message, names)),
            Message::Tool(result) => all.push(json!({
                "role": "tool", "tool_call_id": result.call_id, "content": result.output,
            })),
        }
    }
    all
}

fn assistant(message: &AssistantMessage, names: &ToolNames) -> Option<Value> {
    let mut spelled = Map::new();
    spelled.insert("role".to_owned(), json!("assistant"));
    let has_text = !message.text.is_empty();
    spelled.insert("content".to_owned(), if has_text { json!(message.text) } else { Value::Null });
    let mut calls: Vec<Value> = Vec::new();
    for item in message_items(message, Wire::ChatCompletions) {
        match item {
            MessageItem::Text(_) => {}
            MessageItem::Call(call) => {
                let (name, arguments) = (names.wire_name(&call.name), arguments_text(call));
                let function = json!({ "name": name, "arguments": arguments });
                let mut call_spelled =
                    json!({ "id": call.id, "type": "function", "function": function });
                if let Some(extra) = &call.extra {
                    call_spelled["extra_content"] = extra.clone();
                }
                calls.push(call_spelled);
            }
            MessageItem::Block(block) => {
                let fields = block.value.as_object().into_iter().flatten();
                spelled.extend(fields.map(|(name, value)| (name.clone(), value.clone())));
            }
        }
    }
    let is_empty = !has_text && calls.is_empty();
    if !calls.is_empty() {
        spelled.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    (!is_empty).then_some(Value::Object(spelled))
}
