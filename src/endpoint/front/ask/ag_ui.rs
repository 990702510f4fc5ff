//! Requests of AG-UI's `HttpAgent`: `{threadId, runId, messages, tools, context, state,
//! forwardedProps}`.

use serde_json::{Map, Value};

use super::{AskError, Conversation, FrontRequest, content, error, list, object, text_if};
use crate::agent::{CallMade, ToolDescription};

/// Reads a `RunAgentInput`.
///
/// The page's description of itself (`context`) becomes the first system message. `forwardedProps`
/// are options. The `state` of a page is ignored.
///
/// # Errors
/// [`AskError`] names the field that is missing or wrong.
pub fn read_ag_ui(body: &[u8]) -> Result<FrontRequest, AskError> {
    of_ag_ui(object(body)?)
}

/// Does the same as [`read_ag_ui`], for a body that was parsed.
pub(in crate::endpoint) fn of_ag_ui(
    mut members: Map<String, Value>,
) -> Result<FrontRequest, AskError> {
    let mut conversation = Conversation::default();
    if let Some(context) = members.get("context").and_then(Value::as_array) {
        let entries = context.iter().filter_map(|entry| {
            Some(format!("{}: {}", entry["description"].as_str()?, entry["value"].as_str()?))
        });
        conversation.system(entries.collect::<Vec<_>>().join("\n"));
    }
    for (at, message) in list(&mut members, "messages")?.iter().enumerate() {
        let Some(text) = content(&message["content"]) else {
            // The content of an activity is an object, which is not for the model.
            match message["role"].as_str() {
                Some("activity") => continue,
                _ => return error(format!("messages[{at}].content"), "must be a text"),
            }
        };
        match message["role"].as_str() {
            Some("system" | "developer") => conversation.system(text),
            Some("user") => conversation.user(text),
            Some("assistant") => conversation.assistant(text, calls(message)),
            Some("tool") => {
                let failed = message["error"].as_str();
                let output = failed.map_or(text, str::to_owned);
                let call_id = message["toolCallId"].as_str().unwrap_or_default();
                conversation.result(call_id, output, failed.is_some());
            }
            Some("activity" | "reasoning") => {}
            _ => return error(format!("messages[{at}].role"), "is not a known role"),
        }
    }
    let client_tools = match members.remove("tools") {
        Some(Value::Array(tools)) => tools.into_iter().filter_map(tool).collect(),
        None | Some(Value::Null) => Vec::new(),
        Some(_) => return error("tools", "must be a list"),
    };
    let options = match members.remove("forwardedProps") {
        Some(Value::Object(options)) => options,
        _ => Map::new(),
    };
    Ok(FrontRequest {
        messages: conversation.end(),
        thread_id: text_if(&mut members, "threadId")?,
        run_id: text_if(&mut members, "runId")?,
        client_tools,
        options,
    })
}

fn calls(message: &Value) -> Vec<CallMade> {
    let calls = message["toolCalls"].as_array().into_iter().flatten();
    let read = |call: &Value| {
        let function = &call["function"];
        Some(CallMade {
            id: call["id"].as_str()?.to_owned(),
            name: function["name"].as_str()?.to_owned(),
            arguments: function["arguments"].as_str().unwrap_or("{}").to_owned(),
            extra: None,
        })
    };
    calls.filter_map(read).collect()
}

fn tool(tool: Value) -> Option<ToolDescription> {
    Some(ToolDescription {
        name: tool["name"].as_str()?.to_owned(),
        description: tool["description"].as_str().unwrap_or_default().to_owned(),
        schema: tool["parameters"].clone(),
    })
}
