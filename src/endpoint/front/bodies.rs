//! Bodies from clients of front ends as calls. They are translated to the server's own requests,
//! and read as such.
//!
//! Options of a run are read from where an application can put them. For AI SDK these are the other
//! members of the body, for AG-UI `forwardedProps`, and for LangGraph `config.configurable`.
//! Unknown options are ignored, because each release of a client sends more, and each application
//! adds its own.

use serde_json::{Map, Value, json};

use super::ask::{self, AskError, FrontRequest};
use super::{FrontFormat, GraphAnswer, SdkVersion};
use crate::api::{FrontInfo, spelled};
use crate::base::ExecutionId;
use crate::endpoint::{
    Answer, ApiCall, ApiError, DeliveryOptions, Execute, FrontOptions, FrontProtocol, FrontRun,
    StreamFormat, ThreadAsk, ThreadCall, agent,
};
use crate::limits;
use crate::tool::AGENT;
use crate::wire::http1::Status;

/// A request for a run.
#[derive(Debug)]
pub(in crate::endpoint) enum RunRequest {
    /// A request in the server's own form.
    Own(Value),
    /// A request of a front end's client.
    Front {
        /// The request translated to the server's own form.
        members: Value,
        /// The format that the client reads.
        format: FrontFormat,
        /// The client's names and tools.
        front: FrontRun,
    },
}

/// Reads a request for a run. Members that only one client sends show where it comes from.
pub(in crate::endpoint) fn run_of(body: Value) -> Result<RunRequest, ApiError> {
    let Value::Object(members) = body else { return Ok(RunRequest::Own(body)) };
    let has_parts = |message: &Value| message.get("parts").is_some();
    let mut messages = members.get("messages").and_then(Value::as_array).into_iter().flatten();
    let is_ai_sdk = members.contains_key("trigger") || messages.any(has_parts);
    let is_ag_ui = members.contains_key("threadId") && members.contains_key("runId");
    let (request, format) = match (is_ai_sdk, is_ag_ui) {
        (true, _) => (ask::of_ai_sdk(members), FrontFormat::AiSdk { sdk: SdkVersion::default() }),
        (false, true) => (ask::of_ag_ui(members), FrontFormat::AgUi),
        (false, false) => return Ok(RunRequest::Own(members.into())),
    };
    let request = request.map_err(refused)?;
    let thread_field = if is_ai_sdk { "id" } else { "threadId" };
    let front = FrontRun {
        thread_id: request
            .thread_id
            .as_deref()
            .map(|name| named(thread_field, name))
            .transpose()?,
        run_id: request.run_id.as_deref().map(|name| named("runId", name)).transpose()?,
        passed_over: request.client_tools.iter().map(|tool| tool.name.clone()).collect(),
        ..FrontRun::default()
    };
    Ok(RunRequest::Front { members: members_of(request), format, front })
}

/// Reads a request for a response.
pub(in crate::endpoint) fn respond(body: &[u8]) -> Result<Execute, ApiError> {
    let asked = ask::of_responses(object(body)?).map_err(refused)?;
    let ask::ResponseRequest { run, is_stream, is_plain, is_background, previous, repeated } =
        asked;
    let previous = match previous {
        None => None,
        Some(id) => Some(response_id(&id).ok_or_else(|| {
            let error = ApiError::from(crate::engine::NotFound);
            error.field("previous_response_id")
        })?),
    };
    let mut members = members_of(run);
    if members["model"] == AGENT {
        members.as_object_mut().expect("it is an object").remove("model"); // It names no model.
    }
    let messages = members["messages"].clone();
    let format = StreamFormat::Front(FrontFormat::Responses { is_document: !is_stream });
    let stream = (is_stream || !is_background).then(|| (format, DeliveryOptions::default()));
    let execute = agent::run(&members, stream)?;
    let kept = json!({ "response": repeated, "messages": messages });
    let front = FrontRun {
        protocol: FrontProtocol::Response,
        previous,
        kept: Some(kept.into()),
        is_plain,
        ..FrontRun::default()
    };
    Ok(Execute { front: Some(front.into()), ..execute })
}

/// Returns the items of a response as messages in the server's own form.
pub(crate) fn messages_of(items: Value) -> Vec<Value> {
    let messages = ask::read_items(items).unwrap_or_default(); // The server wrote them.
    match ask::messages_json(&messages) {
        Value::Array(messages) => messages,
        _ => Vec::new(),
    }
}

/// Reads the id of a response: that of its execution, with a prefix.
pub(in crate::endpoint) fn response_id(text: &str) -> Option<ExecutionId> {
    text.strip_prefix("resp_")?.parse().ok()
}

/// Translates a request to the server's own form.
fn members_of(request: FrontRequest) -> Value {
    let mut members: Map<String, Value> =
        request.options.into_iter().filter(|(name, _)| agent::is_member(name)).collect();
    members.insert("messages".to_owned(), ask::messages_json(&request.messages));
    members.into()
}

/// Checks a name that a client gave to something.
pub(in crate::endpoint) fn named(field: &str, name: &str) -> Result<Box<str>, ApiError> {
    let bytes_max = limits::THREAD_ID_BYTES_MAX;
    if (1..=bytes_max).contains(&name.len()) {
        return Ok(name.into());
    }
    let text = format!("{field}: it must have 1 to {bytes_max} bytes");
    let error = ApiError::new(Status::BAD_REQUEST, "invalid_field", text);
    Err(error.field(field).limit(bytes_max as u64))
}

fn refused(error: AskError) -> ApiError {
    let text = error.to_string();
    match error.field.is_empty() {
        true => ApiError::new(Status::BAD_REQUEST, "malformed_json", text),
        false => ApiError::new(Status::BAD_REQUEST, "invalid_field", text).field(error.field),
    }
}

/// Reads a LangGraph command for this thread. A refusal has status 200, because clients read its
/// reason only then.
pub(in crate::endpoint) fn command(body: &[u8], thread: Box<str>) -> Result<ApiCall, Answer> {
    match ask::read_command(body, &thread) {
        Err(error) => Err(command_refused(None, "invalid_argument", &error.to_string())),
        Ok(ask::Command::Refused { id, reason }) => {
            Err(command_refused(Some(id), reason, "this server does not support this command"))
        }
        Ok(ask::Command::Start { id, assistant, request }) => {
            let mut members = members_of(*request);
            choose_assistant(&mut members, assistant);
            let front = FrontRun {
                thread_id: Some(thread),
                protocol: FrontProtocol::Command(id),
                kept: Some(json!({ "messages": members["messages"] }).into()),
                ..FrontRun::default()
            };
            match agent::run(&members, None) {
                Ok(execute) => {
                    Ok(ApiCall::Execute(Execute { front: Some(front.into()), ..execute }.into()))
                }
                Err(error) => Err(command_refused(Some(id), "invalid_argument", &error.message)),
            }
        }
    }
}

/// Chooses the model that an assistant names, unless an option has chosen one.
fn choose_assistant(members: &mut Value, assistant: String) {
    if assistant != AGENT && members.get("model").is_none() {
        members["model"] = assistant.into();
    }
}

/// The answer to a request for a run of LangGraph's ordinary API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::endpoint) enum RunAnswer {
    /// The events of the run.
    Stream,
    /// The state, once the run has ended.
    Wait,
    /// The run, at once.
    Begin,
}

/// Reads a request for a run on a thread, or on none if the name is empty.
pub(in crate::endpoint) fn start_run(
    body: &[u8],
    thread: Box<str>,
    how: RunAnswer,
) -> Result<Execute, ApiError> {
    let thread_id = (!thread.is_empty()).then_some(thread);
    let asked = ask::of_run(object(body)?, thread_id.is_some()).map_err(refused)?;
    let ask::RunRequest { run, assistant, modes, cancels, metadata } = asked;
    let mut members = members_of(run);
    let kept = json!({
        "messages": members["messages"], "metadata": metadata, "assistant": assistant,
    });
    choose_assistant(&mut members, assistant);
    let answer = match how {
        RunAnswer::Stream => Some(GraphAnswer::Events(modes)),
        RunAnswer::Wait => Some(GraphAnswer::Values),
        RunAnswer::Begin => None,
    };
    let stream = answer.map(|answer| {
        (StreamFormat::Front(FrontFormat::Graph { answer }), DeliveryOptions::default())
    });
    let execute = agent::run(&members, stream)?;
    let protocol = FrontProtocol::Run;
    let front = FrontRun { thread_id, protocol, kept: Some(kept.into()), ..FrontRun::default() };
    Ok(Execute { front: Some(front.into()), cancels: cancels && stream.is_some(), ..execute })
}

/// Reads a search for threads, or counts them.
pub(in crate::endpoint) fn search_threads(
    body: &[u8],
    is_count: bool,
) -> Result<ApiCall, ApiError> {
    let search = ask::read_thread_search(object(body)?, is_count).map_err(refused)?;
    let (thread, ask) = (Box::default(), ThreadAsk::Search(search));
    Ok(ApiCall::Thread(ThreadCall { thread, ask }.into()))
}

/// Reads what a client wants of the history of this thread. Its limits have no effect: the history
/// is short.
pub(in crate::endpoint) fn history(body: &[u8], thread: Box<str>) -> Result<ApiCall, ApiError> {
    ask::read_thread_search(object(body)?, false).map_err(refused)?;
    let ask = ThreadAsk::State { is_listed: true };
    Ok(ApiCall::Thread(ThreadCall { thread, ask }.into()))
}

/// Reads a search for assistants, or counts them.
pub(in crate::endpoint) fn search_assistants(
    body: &[u8],
    is_count: bool,
) -> Result<ApiCall, ApiError> {
    let search = ask::read_search(object(body)?, is_count).map_err(refused)?;
    Ok(ApiCall::Assistants(search.into()))
}

/// Reads a body that must be an object.
fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match crate::endpoint::body::parse(body)? {
        Value::Object(members) => Ok(members),
        _ => {
            let text = "the body must be a JSON object";
            Err(ApiError::new(Status::BAD_REQUEST, "invalid_body", text))
        }
    }
}

/// Returns the answer to a refused command. `reason` is one of the protocol's.
pub(crate) fn command_refused(id: Option<u64>, reason: &str, message: &str) -> Answer {
    let body = ask::write_command_error(id, reason, message);
    Answer::text(Status::OK, crate::endpoint::JSON, body)
}

/// Returns the answer to a command that has started this run.
pub(crate) fn command_carried_out(id: u64, run_id: &str) -> Answer {
    let body = ask::write_command_success(id, run_id);
    Answer::text(Status::OK, crate::endpoint::JSON, body)
}

/// Reads a LangGraph request to follow this thread.
pub(in crate::endpoint) fn follow(
    body: &[u8],
    thread: Box<str>,
    format: FrontFormat,
) -> Result<ApiCall, ApiError> {
    let ask::Follow { channels, since, has_root } = ask::read_follow(body).map_err(refused)?;
    // All events happen at the root.
    let channels = if has_root { channels } else { super::Channels::new([]) };
    let front_options = FrontOptions { since, channels, ..FrontOptions::default() };
    Ok(ApiCall::Thread(ThreadCall { thread, ask: ThreadAsk::Follow(format, front_options) }.into()))
}

/// Reads a LangGraph request to create a thread. A thread comes into being only with its first run.
pub(in crate::endpoint) fn create(body: &[u8]) -> Result<ApiCall, ApiError> {
    let members = object(body)?;
    let thread = match members.get("thread_id") {
        None | Some(Value::Null) => Box::default(),
        Some(Value::String(name)) => named("thread_id", name)?,
        Some(_) => {
            let text = "thread_id: it must be a text";
            let error = ApiError::new(Status::BAD_REQUEST, "invalid_field", text);
            return Err(error.field("thread_id"));
        }
    };
    Ok(ApiCall::Thread(ThreadCall { thread, ask: ThreadAsk::Describe }.into()))
}

/// Returns information about this server for LangGraph clients.
pub(in crate::endpoint) fn about() -> Value {
    let flags = [("assistants", true), ("crons", false)];
    let flags = flags.map(|(name, is_there)| (name.to_owned(), is_there.into()));
    let version = env!("CARGO_PKG_VERSION").to_owned();
    spelled(&FrontInfo { version, flags: flags.into_iter().collect() })
}
