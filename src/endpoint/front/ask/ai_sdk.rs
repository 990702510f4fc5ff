//! Requests of `useChat`: `{id, messages: [{id, role, parts}], trigger, messageId?, …}`.
//!
//! A message of the assistant is a whole run. It is split where it marks a step. Each step becomes
//! a message with its calls, followed by their results.

use serde_json::{Map, Value};

use super::{AskError, Conversation, FrontRequest, error, list, object, result_text, text_if};
use crate::agent::CallMade;

/// Reads the body of a request from AI SDK's transport, of any generation.
///
/// # Errors
/// [`AskError`] names the field that is missing or wrong.
pub fn read_ai_sdk(body: &[u8]) -> Result<FrontRequest, AskError> {
    of_ai_sdk(object(body)?)
}

/// Does the same as [`read_ai_sdk`], for a body that was parsed.
pub(in crate::endpoint) fn of_ai_sdk(
    mut members: Map<String, Value>,
) -> Result<FrontRequest, AskError> {
    let messages = list(&mut members, "messages")?;
    let mut conversation = Conversation::default();
    for (at, message) in messages.iter().enumerate() {
        let Some(parts) = message["parts"].as_array() else {
            return error(format!("messages[{at}].parts"), "must be a list");
        };
        match message["role"].as_str() {
            Some("system") => conversation.system(texts(parts)),
            Some("user") => conversation.user(texts(parts)),
            Some("assistant") => {
                for step in parts.split(|part| part["type"] == "step-start") {
                    read_step(step, &mut conversation);
                }
            }
            _ => return error(format!("messages[{at}].role"), "is not a known role"),
        }
    }
    let thread_id = text_if(&mut members, "id")?;
    for name in ["trigger", "messageId"] {
        members.remove(name); // The message that is regenerated is not among those sent.
    }
    let messages = conversation.end();
    Ok(FrontRequest { messages, thread_id, options: members, ..FrontRequest::default() })
}

fn texts(parts: &[Value]) -> String {
    let texts = parts.iter().filter(|part| part["type"] == "text");
    texts.filter_map(|part| part["text"].as_str()).collect()
}

fn read_step(parts: &[Value], conversation: &mut Conversation) {
    let calls = || parts.iter().filter_map(read_call);
    conversation.assistant(texts(parts), calls().map(|(call, _)| call).collect());
    for (call, result) in calls() {
        match result {
            Some(Ok(output)) => conversation.result(&call.id, output, false),
            Some(Err(problem)) => conversation.result(&call.id, problem, true),
            None => {}
        }
    }
}

type Outcome = Option<Result<String, String>>;

/// Reads a call and its result. The name is in its type, or in a field.
fn read_call(part: &Value) -> Option<(CallMade, Outcome)> {
    let name = match part["type"].as_str()? {
        "dynamic-tool" => part["toolName"].as_str()?,
        other => other.strip_prefix("tool-")?,
    };
    let id = part["toolCallId"].as_str()?.to_owned();
    let input = [&part["input"], &part["rawInput"]].into_iter().find(|input| !input.is_null());
    let arguments = input.map_or_else(|| "{}".to_owned(), result_text);
    let result = match part["state"].as_str()? {
        "output-available" if part["preliminary"] != true => Some(Ok(result_text(&part["output"]))),
        "output-error" => {
            Some(Err(part["errorText"].as_str().unwrap_or("the tool failed").to_owned()))
        }
        "output-denied" => Some(Err("the user denied the call".to_owned())),
        // The tool was still running when the page lost the stream.
        "output-available" => {
            Some(Err(format!("the output was cut off: {}", result_text(&part["output"]))))
        }
        _ => None,
    };
    Some((CallMade { id, name: name.to_owned(), arguments, extra: None }, result))
}
