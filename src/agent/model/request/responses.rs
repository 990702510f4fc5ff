//! Requests of Responses. Nothing is stored on the server: each request contains the whole
//! conversation, with encrypted reasoning.

use serde_json::{Value, json};

use super::{Ask, MessageItem, arguments_text, join, message_items, schema_of};
use crate::agent::message::{AssistantMessage, Message, ToolDescription};
use crate::agent::model::names::ToolNames;
use crate::agent::model::{Endpoint, Wire};

pub(super) fn body(endpoint: &Endpoint, ask: &Ask<'_>, names: &ToolNames) -> Value {
    let mut body = json!({ "model": endpoint.model, "stream": true, "store": false });
    if ask.effort.is_some() || thinks(&endpoint.model) {
        // Other models refuse this field.
        body["include"] = json!(["reasoning.encrypted_content"]);
    }
    if let Some(effort) = ask.effort {
        body["reasoning"] = json!({ "effort": effort.as_str() });
    }
    if let Some(max_tokens) = ask.max_tokens {
        body["max_output_tokens"] = json!(max_tokens);
    }
    if let Some(temperature) = ask.temperature {
        body["temperature"] = json!(temperature);
    }
    if !ask.tools.is_empty() {
        let tool = |tool: &ToolDescription| {
            let (name, parameters) = (names.wire_name(&tool.name), schema_of(tool));
            let description = &tool.description;
            json!({
                "type": "function", "name": name, "description": description,
                "parameters": parameters, "strict": false,
            })
        };
        body["tools"] = ask.tools.iter().map(tool).collect();
        body["parallel_tool_calls"] = json!(ask.parallel_tool_calls);
    }
    let (mut instructions, mut input) = (String::new(), Vec::new());
    for message in ask.messages {
        match message {
            Message::System(text) if input.is_empty() => join(&mut instructions, text),
            Message::System(text) => input.push(json!({ "role": "system", "content": text })),
            Message::User(text) => input.push(json!({ "role": "user", "content": text })),
            Message::Assistant(message) => input.extend(assistant(message, names)),
            Message::Tool(result) => input.push(json!({
                "type": "function_call_output", "call_id": result.call_id, "output": result.output,
            })),
        }
    }
    if !instructions.is_empty() {
        body["instructions"] = json!(instructions);
    }
    body["input"] = Value::Array(input);
    body
}

/// True if the name is one of OpenAI's reasoning models: `o3`, `o4-mini`, `gpt-5`, …
fn thinks(model: &str) -> bool {
    let mut chars = model.chars();
    let is_o = chars.next() == Some('o') && chars.next().is_some_and(|c| c.is_ascii_digit());
    let is_gpt = model.strip_prefix("gpt-").is_some_and(|version| {
        let digits = version.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
        digits.parse().is_ok_and(|major: u32| major >= 5) && !version.contains("chat")
    });
    is_o || is_gpt
}

/// Writes a message of the model. Reasoning is sent back only with an item that follows it.
fn assistant(message: &AssistantMessage, names: &ToolNames) -> Vec<Value> {
    let (mut items, mut kept_count) = (Vec::new(), 0);
    for item in message_items(message, Wire::Responses) {
        match item {
            MessageItem::Text(text) => items.push(json!({ "role": "assistant", "content": text })),
            MessageItem::Call(call) => items.push(json!({
                "type": "function_call", "call_id": call.id, "name": names.wire_name(&call.name),
                "arguments": arguments_text(call),
            })),
            // Without its content the item refers to data that was not stored.
            MessageItem::Block(block) if block.value["encrypted_content"].is_string() => {
                items.push(block.value.clone());
                continue;
            }
            MessageItem::Block(_) => continue,
        }
        kept_count = items.len();
    }
    items.truncate(kept_count);
    items
}
