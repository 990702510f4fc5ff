//! Messages and states, as LangGraph's clients know them.

use serde_json::{Value, json};

use super::FrontNames;

/// Returns the messages of a conversation in the server's own form. `execution` is the run that
/// they belong to. A message that has no id gets one from its place.
pub(super) fn messages_of(execution: &str, own: &Value) -> Vec<Value> {
    let own = own.as_array().map(Vec::as_slice).unwrap_or_default();
    let message = |(at, message): (usize, &Value)| {
        let id = match message["id"].as_str() {
            Some(id) => id.to_owned(),
            None => format!("msg-{execution}-in-{at}"),
        };
        message_of(&id, message, &own[..at])
    };
    own.iter().enumerate().map(message).collect()
}

fn message_of(id: &str, message: &Value, before: &[Value]) -> Value {
    let content = message["content"].as_str().unwrap_or_default();
    let plain = |kind: &str| {
        json!({
            "type": kind, "id": id, "content": content, "additional_kwargs": {},
            "response_metadata": {},
        })
    };
    match message["role"].as_str() {
        Some("system") => plain("system"),
        Some("assistant") => {
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            let call = |call: &Value| {
                let arguments = call["function"]["arguments"].as_str().unwrap_or("{}");
                let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
                json!({
                    "type": "tool_call", "id": call["id"], "name": call["function"]["name"],
                    "args": if arguments.is_object() { arguments } else { json!({}) },
                })
            };
            let mut told = plain("ai");
            told["tool_calls"] = calls.map(call).collect();
            told["invalid_tool_calls"] = json!([]);
            told
        }
        Some("tool") => {
            let call_id = message["tool_call_id"].as_str().unwrap_or_default();
            let calls = before.iter().rev().filter_map(|other| other["tool_calls"].as_array());
            let call = calls.flatten().find(|call| call["id"] == call_id);
            let name = call.and_then(|call| call["function"]["name"].as_str()).unwrap_or_default();
            tool_message(id, (call_id, name), content, message["is_error"] == true)
        }
        _ => plain("human"),
    }
}

/// Returns the path of a run, behind the base URL of a client.
pub(super) fn path_of(names: &FrontNames) -> String {
    let mut path = "/threads/".to_owned();
    for byte in names.thread_id.bytes() {
        match byte {
            b'-' | b'_' | b'.' | b'~' => path.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => path.push(byte.into()),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path + "/runs/" + &names.execution
}

/// Returns the result of a call as a message.
pub(super) fn tool_message(
    id: &str,
    (call_id, name): (&str, &str),
    content: &str,
    is_error: bool,
) -> Value {
    json!({
        "type": "tool", "id": id, "content": content, "tool_call_id": call_id, "name": name,
        "status": if is_error { "error" } else { "success" }, "additional_kwargs": {},
        "response_metadata": {}, "artifact": null,
    })
}

/// Returns the state of a thread. `error` is null if the last run did not fail.
pub(super) fn thread_state(
    names: &FrontNames,
    values: Value,
    next: &[&str],
    error: &Value,
) -> Value {
    let at = crate::trace::rfc3339(names.created_s * 1_000_000);
    let task = |(name, error): (&str, &Value)| {
        json!({
            "id": names.execution, "name": name, "error": error, "interrupts": [],
            "checkpoint": null, "state": null,
        })
    };
    let tasks: Vec<Value> = match (next, error) {
        ([name], error) => vec![task((name, error))],
        (_, Value::Null) => Vec::new(),
        (_, error) => vec![task((super::AGENT, &error["message"]))],
    };
    json!({
        "values": values, "next": next, "tasks": tasks, "interrupts": [],
        "metadata": { "run_id": names.execution, "thread_id": names.thread_id },
        "created_at": at,
        "checkpoint": {
            "thread_id": names.thread_id, "checkpoint_ns": "", "checkpoint_id": names.execution,
            "checkpoint_map": null,
        },
        "parent_checkpoint": null,
    })
}
