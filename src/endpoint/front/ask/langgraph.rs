//! Requests of LangGraph clients: commands, `{id, method, params}`, and requests to follow a
//! thread, `{channels, namespaces?, depth?, since?}`.

use serde_json::{Value, json};

use super::{AskError, Conversation, FrontRequest, content, error, list, object};
use crate::agent::CallMade;
use crate::api::{CommandAnswer, OrNull, StartedRun, spelled};
use crate::endpoint::front::Channels;
use crate::wire::json::whole_number;

/// A command of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// `run.start`.
    Start {
        /// The number that the answer refers to.
        id: u64,
        /// The client's name of the assistant: a model, or the agent itself.
        assistant: String,
        /// The content of the request.
        request: Box<FrontRequest>,
    },
    /// A command that is refused, with the protocol's name of the reason.
    Refused {
        /// The number that the answer refers to.
        id: u64,
        /// `unknown_command` or `not_supported`.
        reason: &'static str,
    },
}

/// A request to follow a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follow {
    /// The channels to follow.
    pub channels: Channels,
    /// The number of the last event that the client has.
    pub since: Option<u64>,
    /// True if it follows the root namespace, which has all events.
    pub has_root: bool,
}

/// Methods of the protocol that are not supported.
const NOT_SUPPORTED: [&str; 9] = [
    "subscription.subscribe",
    "subscription.unsubscribe",
    "subscription.reconnect",
    "agent.getTree",
    "input.respond",
    "input.inject",
    "state.get",
    "state.listCheckpoints",
    "state.fork",
];

/// Reads the body of `POST /threads/{id}/commands`, for the thread of this name.
///
/// # Errors
/// [`AskError`] names the field that is missing or wrong.
pub fn read_command(body: &[u8], thread_id: &str) -> Result<Command, AskError> {
    let mut command = object(body)?;
    let Some(id) = command.get("id").and_then(whole_number) else {
        return error("id", "must be a number");
    };
    let method = command.get("method").and_then(Value::as_str).unwrap_or_default().to_owned();
    match method.as_str() {
        "run.start" => {}
        _ if NOT_SUPPORTED.contains(&&*method) => {
            return Ok(Command::Refused { id, reason: "not_supported" });
        }
        _ => return Ok(Command::Refused { id, reason: "unknown_command" }),
    }
    let Some(Value::Object(mut params)) = command.remove("params") else {
        return error("params", "must be an object");
    };
    let assistant =
        ["assistant_id", "assistantId"].into_iter().find_map(|name| params.remove(name));
    let Some(Value::String(assistant)) = assistant else {
        return error("params.assistant_id", "must be a text");
    };
    let messages = read_input(params.remove("input"), "params.input", true)?;
    // Applications of LangGraph put the options of a run here.
    let options = match params.remove("config").map(|mut config| config["configurable"].take()) {
        Some(Value::Object(options)) => options,
        _ => Default::default(),
    };
    let thread_id = Some(thread_id.to_owned());
    let request = FrontRequest { messages, thread_id, options, ..FrontRequest::default() };
    Ok(Command::Start { id, assistant, request: Box::new(request) })
}

/// Reads the input in the member `field`: a text, or an object with messages. A thread has the
/// messages whose ids this server gave.
pub(super) fn read_input(
    input: Option<Value>,
    field: &str,
    has_thread: bool,
) -> Result<Vec<crate::agent::Message>, AskError> {
    let mut conversation = Conversation::default();
    let mut members = match input {
        Some(Value::String(text)) => {
            conversation.user(text);
            return Ok(conversation.end());
        }
        Some(Value::Object(members)) => members,
        _ => return error(field, "must be an object or a text"),
    };
    // One message may stand without a list.
    let messages = match members.remove("messages") {
        Some(Value::Array(messages)) => messages,
        Some(message @ (Value::Object(_) | Value::String(_))) => vec![message],
        Some(_) => return error(format!("{field}.messages"), "must be a list"),
        None => return error(format!("{field}.messages"), "is missing"),
    };
    for (at, message) in messages.iter().enumerate() {
        let place = |name: &str| format!("{field}.messages[{at}]{name}");
        if has_thread && message["id"].as_str().is_some_and(|id| id.starts_with(OWN_ID)) {
            continue;
        }
        // A pair is a message, too: its role and its content.
        let (role, content_of) = match message {
            Value::String(_) => (Some("user"), message),
            Value::Array(pair) if pair.len() == 2 => (pair[0].as_str(), &pair[1]),
            // Both names are in use.
            _ => (message["role"].as_str().or(message["type"].as_str()), &message["content"]),
        };
        let Some(text) = content(content_of) else {
            return error(place(".content"), "must be a text");
        };
        match role {
            Some("system" | "developer") => conversation.system(text),
            Some("user" | "human") => conversation.user(text),
            Some("assistant" | "ai") => conversation.assistant(text, calls(message)),
            Some("tool") => {
                let call_id = message["tool_call_id"].as_str().unwrap_or_default();
                conversation.result(call_id, text, message["status"] == "error");
            }
            _ => return error(place(".role"), "is not a known role"),
        }
    }
    Ok(conversation.end())
}

/// The beginning of the ids of messages that this server gives.
const OWN_ID: &str = "msg-";

fn calls(message: &Value) -> Vec<CallMade> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let read = |call: &Value| {
        Some(CallMade {
            id: call["id"].as_str()?.to_owned(),
            name: call["name"].as_str()?.to_owned(),
            arguments: call["args"].to_string(),
            extra: None,
        })
    };
    calls.filter_map(read).collect()
}

/// Reads the body of `POST /threads/{id}/stream/events`.
///
/// # Errors
/// [`AskError`] names the field that is missing or wrong.
pub fn read_follow(body: &[u8]) -> Result<Follow, AskError> {
    let mut members = object(body)?;
    let channels = list(&mut members, "channels")?;
    let names: Option<Vec<&str>> = channels.iter().map(Value::as_str).collect();
    let Some(names) = names else { return error("channels", "must be a list of texts") };
    let since = match members.get("since") {
        None | Some(Value::Null) => None,
        Some(since) => match whole_number(since) {
            Some(since) => Some(since),
            None => return error("since", "must be a number"),
        },
    };
    let has_root = match members.get("namespaces") {
        None | Some(Value::Null) => true,
        Some(Value::Array(namespaces)) => {
            // An empty prefix matches every namespace.
            namespaces.is_empty() || namespaces.iter().any(|prefix| *prefix == json!([]))
        }
        Some(_) => return error("namespaces", "must be a list"),
    };
    Ok(Follow { channels: Channels::new(names), since, has_root })
}

/// Returns the answer to a command that was carried out.
pub fn write_command_success(id: u64, run_id: &str) -> Vec<u8> {
    let result = Some(StartedRun { run_id: run_id.to_owned() });
    let (kind, id) = ("success".to_owned(), OrNull(Some(id)));
    let answer = CommandAnswer { kind, id, result, error: None, message: None };
    spelled(&answer).to_string().into_bytes()
}

/// Returns the answer to a command that was refused. `reason` is one of the protocol's.
pub fn write_command_error(id: Option<u64>, reason: &str, message: &str) -> Vec<u8> {
    let (error, message) = (Some(reason.to_owned()), Some(message.to_owned()));
    let (kind, id) = ("error".to_owned(), OrNull(id));
    let answer = CommandAnswer { kind, id, result: None, error, message };
    spelled(&answer).to_string().into_bytes()
}
