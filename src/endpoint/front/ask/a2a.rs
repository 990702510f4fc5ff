//! Requests of A2A: messages, and what else their methods take.

use serde_json::{Map, Value, json};

use super::{AskError, error, text_if};
use crate::base::ExecutionId;
use crate::endpoint::{TaskSearch, task_state_named};
use crate::limits;
use crate::wire::json::whole_number;

/// A message of a client.
#[derive(Debug, PartialEq)]
pub(in crate::endpoint) struct SentMessage {
    /// The text of the message, with its values.
    pub text: String,
    /// The tool that a value in the message calls, with its arguments.
    pub call: Option<(String, Value)>,
    pub context: Option<String>,
    pub task: Option<String>,
    /// Options of the run, in the metadata.
    pub options: Map<String, Value>,
    /// True if the answer does not wait for the end of the task.
    pub is_immediate: bool,
    pub history_max: Option<usize>,
}

/// The reason why a message is refused.
#[derive(Debug, PartialEq)]
pub(in crate::endpoint) enum MessageFault {
    Wrong(AskError),
    /// A part that is neither text nor a value.
    Content(&'static str),
    /// Notifications of changes, at an address of the client.
    Push,
}

impl From<AskError> for MessageFault {
    fn from(error: AskError) -> MessageFault {
        MessageFault::Wrong(error)
    }
}

/// Reads a request to send a message.
pub(in crate::endpoint) fn read_message(
    mut params: Map<String, Value>,
) -> Result<SentMessage, MessageFault> {
    params.retain(|_, value| !value.is_null());
    let mut message = match params.remove("message") {
        Some(Value::Object(message)) => message,
        Some(_) => return Ok(error("message", "must be an object")?),
        None => return Ok(error("message", "is missing")?),
    };
    message.retain(|_, value| !value.is_null());
    if text_if(&mut message, "messageId")?.is_none_or(|id| id.is_empty()) {
        return Ok(error("message.messageId", "is missing")?);
    }
    if message.get("role").is_none_or(|role| role != "ROLE_USER") {
        return Ok(error("message.role", "must be ROLE_USER")?);
    }
    let named = |name: Option<String>| name.filter(|name| !name.is_empty());
    let context = named(text_if(&mut message, "contextId")?);
    let task = named(text_if(&mut message, "taskId")?);
    let (text, call) = read_parts(message.remove("parts"))?;
    let mut options = Map::new();
    for metadata in [params.remove("metadata"), message.remove("metadata")] {
        match metadata {
            None => {}
            Some(Value::Object(mut found)) => options.append(&mut found),
            Some(_) => return Ok(error("metadata", "must be an object")?),
        }
    }
    let (mut is_immediate, mut history_max) = (false, None);
    match params.remove("configuration") {
        None => {}
        Some(Value::Object(found)) => {
            if found.get("taskPushNotificationConfig").is_some_and(|config| !config.is_null()) {
                return Err(MessageFault::Push);
            }
            is_immediate = found.get("returnImmediately") == Some(&Value::Bool(true));
            history_max = history_length(&found)?;
        }
        Some(_) => return Ok(error("configuration", "must be an object")?),
    }
    Ok(SentMessage { text, call, context, task, options, is_immediate, history_max })
}

/// A text, and the call of a tool.
type Parts = (String, Option<(String, Value)>);

fn read_parts(parts: Option<Value>) -> Result<Parts, MessageFault> {
    let Some(Value::Array(parts)) = parts else {
        return Ok(error("message.parts", "must be a list")?);
    };
    if parts.is_empty() {
        return Ok(error("message.parts", "must not be empty")?);
    }
    let (mut texts, mut call) = (Vec::new(), None);
    for (at, part) in parts.iter().enumerate() {
        let members = part.as_object();
        match members.and_then(|part| {
            ["text", "data", "raw", "url"].iter().find_map(|name| {
                part.get(*name).filter(|value| !value.is_null()).map(|value| (*name, value))
            })
        }) {
            Some(("text", Value::String(text))) => texts.push(text.clone()),
            Some(("data", value)) => {
                let tool = value["tool"].as_str();
                if let (Some(tool), true) = (tool, value["arguments"].is_object()) {
                    call = Some((tool.to_owned(), value["arguments"].clone()));
                }
                texts.push(value.to_string());
            }
            Some(("raw" | "url", _)) => {
                return Err(MessageFault::Content("files are not supported: send texts and data"));
            }
            _ => return Ok(error(format!("message.parts[{at}]"), "has no content")?),
        }
    }
    Ok((texts.join("\n"), call))
}

/// Reads the maximum length of a history.
pub(in crate::endpoint) fn history_length(
    params: &Map<String, Value>,
) -> Result<Option<usize>, AskError> {
    match params.get("historyLength") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match whole_number(value) {
            Some(length) => Ok(Some(usize::try_from(length).unwrap_or(usize::MAX))),
            None => error("historyLength", "must be a whole number"),
        },
    }
}

/// Reads the id of a task. `None` if no task has it.
pub(in crate::endpoint) fn task_id(
    params: &Map<String, Value>,
) -> Result<Option<ExecutionId>, AskError> {
    match params.get("id") {
        Some(Value::String(id)) if !id.is_empty() => Ok(id.parse().ok()),
        Some(Value::String(_) | Value::Null) | None => error("id", "is missing"),
        Some(_) => error("id", "must be a text"),
    }
}

/// Reads a search for tasks.
pub(in crate::endpoint) fn read_task_search(
    mut params: Map<String, Value>,
) -> Result<TaskSearch, AskError> {
    params.retain(|_, value| !value.is_null() && *value != json!(""));
    history_length(&params)?; // It is checked, but a list has no histories.
    let context = text_if(&mut params, "contextId")?.map(Into::into);
    let state = match text_if(&mut params, "status")?.as_deref() {
        None | Some("TASK_STATE_UNSPECIFIED") => None,
        Some(name) => match task_state_named(name) {
            Some(name) => Some(name),
            None => return error("status", "must be a state of a task"),
        },
    };
    let page_size = match params.get("pageSize").map(whole_number) {
        None => limits::TASKS_PAGE_DEFAULT,
        Some(Some(size)) if (1..=limits::TASKS_PAGE_MAX as u64).contains(&size) => size as usize,
        Some(_) => return error("pageSize", "must be a number from 1 to 100"),
    };
    let after = match text_if(&mut params, "pageToken")? {
        None => None,
        Some(token) => match TaskSearch::place(&token) {
            Some(place) => Some(place),
            None => return error("pageToken", "must be the nextPageToken of an earlier answer"),
        },
    };
    let since_us = match text_if(&mut params, "statusTimestampAfter")? {
        None => None,
        Some(time) => match crate::wire::durable::parse_time(&time) {
            Some(us) => Some(us),
            None => return error("statusTimestampAfter", "must be a time of RFC 3339"),
        },
    };
    if params.get("includeArtifacts").is_some_and(|value| *value == json!(true)) {
        return error("includeArtifacts", "must be false: GetTask has the artifacts of a task");
    }
    Ok(TaskSearch { context, state, page_size, after, since_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(params: Value) -> Result<SentMessage, MessageFault> {
        let Value::Object(params) = params else { panic!() };
        read_message(params)
    }

    fn message(more: Value) -> Value {
        let mut message =
            json!({ "messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}] });
        message.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
        json!({ "message": message })
    }

    #[test]
    fn a_message_is_a_text_or_the_call_of_a_tool() {
        let mut params = message(json!({
            "contextId": "c", "taskId": "", "metadata": { "model": "demo" },
            "parts": [{ "text": "Go" }, { "data": { "tool": "t", "arguments": { "a": 1 } } }],
        }));
        params["configuration"] = json!({ "returnImmediately": true, "historyLength": 0 });
        let read = read(params).unwrap();
        assert_eq!(read.call, Some(("t".to_owned(), json!({ "a": 1 }))));
        assert_eq!(read.text, "Go\n{\"tool\":\"t\",\"arguments\":{\"a\":1}}");
        assert_eq!((read.context.as_deref(), read.task), (Some("c"), None));
        assert_eq!((read.is_immediate, read.history_max), (true, Some(0)));
        assert_eq!(Value::Object(read.options), json!({ "model": "demo" }));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (more, field) in [
            (json!({ "messageId": "" }), "message.messageId"),
            (json!({ "role": "ROLE_AGENT" }), "message.role"),
            (json!({ "parts": [] }), "message.parts"),
            (json!({ "parts": "x" }), "message.parts"),
            (json!({ "parts": [{}] }), "message.parts[0]"),
            (json!({ "metadata": 1 }), "metadata"),
        ] {
            let Err(MessageFault::Wrong(error)) = read(message(more.clone())) else { panic!() };
            assert_eq!(error.field, field, "{more}");
        }
        let raw = read(message(json!({ "parts": [{ "raw": "AAAA" }] })));
        assert!(matches!(raw, Err(MessageFault::Content(_))));
        let mut push = message(json!({}));
        push["configuration"] = json!({ "taskPushNotificationConfig": { "url": "http://x" } });
        assert_eq!(read(push), Err(MessageFault::Push));
    }

    #[test]
    fn a_search_has_bounds() {
        let search = |params: Value| read_task_search(params.as_object().unwrap().clone());
        let all = search(json!({ "pageToken": "", "status": "TASK_STATE_UNSPECIFIED" })).unwrap();
        assert_eq!((all.page_size, all.after, all.state), (50, None, None));
        for (params, field) in [
            (json!({ "pageSize": 0 }), "pageSize"),
            (json!({ "pageSize": 101 }), "pageSize"),
            (json!({ "status": "working" }), "status"),
            (json!({ "pageToken": "x" }), "pageToken"),
            (json!({ "historyLength": -1 }), "historyLength"),
            (json!({ "statusTimestampAfter": "now" }), "statusTimestampAfter"),
            (json!({ "includeArtifacts": true }), "includeArtifacts"),
        ] {
            assert_eq!(search(params).unwrap_err().field, field);
        }
    }
}
