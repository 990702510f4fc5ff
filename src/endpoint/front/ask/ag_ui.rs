//! Requests of AG-UI's `HttpAgent`: `{threadId, runId, messages, tools, context, state,
//! forwardedProps}`.

use serde_json::{Map, Value};

use super::{
    AskError, Conversation, FrontRequest, content, error, list, list_if, object, text_if, text_of,
};
use crate::agent::{CallMade, ToolDescription};

/// Reads a `RunAgentInput` of version 1.0 of the protocol.
///
/// The page's description of itself (`context`) becomes the first system message. `forwardedProps`
/// are options. The `state` of a page is ignored. Messages of unknown roles, parts of unknown types
/// and unknown fields are ignored, too, because newer clients send more. Any `protocolVersion` is
/// served.
///
/// # Errors
/// [`AskError`] names the field that is missing or wrong. A known field with a wrong value is never
/// ignored.
pub fn read_ag_ui(body: &[u8]) -> Result<FrontRequest, AskError> {
    of_ag_ui(object(body)?)
}

/// Does the same as [`read_ag_ui`], for a body that was parsed.
pub(in crate::endpoint) fn of_ag_ui(
    mut members: Map<String, Value>,
) -> Result<FrontRequest, AskError> {
    text_if(&mut members, "protocolVersion")?;
    text_if(&mut members, "parentRunId")?;
    list_if(&mut members, "resume")?; // No run of this server waits for an answer.
    let mut conversation = Conversation::default();
    let mut context = Vec::new();
    for (at, entry) in list_if(&mut members, "context")?.iter().enumerate() {
        let said = |name: &str| text_of(&entry[name], || format!("context[{at}].{name}"));
        context.push(format!("{}: {}", said("description")?, said("value")?));
    }
    conversation.system(context.join("\n"));
    for (at, message) in list(&mut members, "messages")?.iter().enumerate() {
        read_message(&format!("messages[{at}]"), message, &mut conversation)?;
    }
    let mut client_tools = Vec::new();
    for (at, tool) in list_if(&mut members, "tools")?.into_iter().enumerate() {
        client_tools.push(read_tool(&format!("tools[{at}]"), tool)?);
    }
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

/// Adds a message, which is at `field` of the request.
fn read_message(
    field: &str,
    message: &Value,
    conversation: &mut Conversation,
) -> Result<(), AskError> {
    let role = text_of(&message["role"], || format!("{field}.role"))?;
    if !["system", "developer", "user", "assistant", "tool"].contains(&role) {
        // Activities and reasoning are not for the model. Other roles are newer than this server.
        return Ok(());
    }
    let Some(text) = content(&message["content"]) else {
        return error(format!("{field}.content"), "must be a text");
    };
    match role {
        "user" => conversation.user(text),
        "assistant" => conversation.assistant(text, read_calls(field, &message["toolCalls"])?),
        "tool" => {
            let call_id = text_of(&message["toolCallId"], || format!("{field}.toolCallId"))?;
            let failed = message["error"].as_str();
            let output = failed.map_or(text, str::to_owned);
            conversation.result(call_id, output, failed.is_some());
        }
        _ => conversation.system(text),
    }
    Ok(())
}

fn read_calls(field: &str, calls: &Value) -> Result<Vec<CallMade>, AskError> {
    let calls = match calls {
        Value::Null => &[][..],
        Value::Array(calls) => calls,
        _ => return error(format!("{field}.toolCalls"), "must be a list"),
    };
    let read = |(at, call): (usize, &Value)| {
        let said = |value: &Value, name: &str| {
            text_of(value, || format!("{field}.toolCalls[{at}].{name}")).map(str::to_owned)
        };
        let function = &call["function"];
        Ok(CallMade {
            id: said(&call["id"], "id")?,
            name: said(&function["name"], "function.name")?,
            arguments: said(&function["arguments"], "function.arguments")?,
            extra: None,
        })
    };
    calls.iter().enumerate().map(read).collect()
}

fn read_tool(field: &str, mut tool: Value) -> Result<ToolDescription, AskError> {
    let name = text_of(&tool["name"], || format!("{field}.name"))?.to_owned();
    let description = match &tool["description"] {
        Value::Null => String::new(),
        said => text_of(said, || format!("{field}.description"))?.to_owned(),
    };
    let schema = tool.get_mut("parameters").map(Value::take).unwrap_or_default();
    Ok(ToolDescription { name, description, schema })
}
