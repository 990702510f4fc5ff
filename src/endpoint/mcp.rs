//! Requests at `/mcp`: the HTTP part of the Model Context Protocol.
//!
//! A POST carries one message. A GET opens the session's own stream, or resumes a stream that was
//! cut. A DELETE ends a session. The shard has the sessions, so it determines the era of the
//! protocol, the session and the meaning of a message.

use serde_json::{Map, Value};
use smallvec::SmallVec;

use crate::api::{McpError, McpProblem, spelled};
use crate::base::ExecutionId;
use crate::endpoint::answer::{Answer, JSON};
use crate::endpoint::fields::{Field, Shape};
use crate::endpoint::{ApiCall, ApiError};
use crate::mcp::{Ask, Context, codes};
use crate::wire::http1::{HeaderFault, Headers, Status, is_media_type};
use crate::wire::jsonrpc::{self, Parameters, RpcMessage};
use crate::wire::sse;

/// The path of all MCP requests.
pub(super) const PATH: &str = "/mcp";

/// A request of a client at `/mcp`.
#[derive(Clone, Debug, PartialEq)]
pub struct McpRequest {
    /// The purpose of the request.
    pub action: McpAction,
    /// The header `Mcp-Session-Id`.
    pub session: Option<Box<str>>,
    /// The header `MCP-Protocol-Version`.
    pub version: Option<Box<str>>,
    /// The header `Mcp-Method`.
    pub method: Option<Box<str>>,
    /// The header `Mcp-Name`.
    pub name: Option<Box<str>>,
    /// The headers `Mcp-Param-*`, each with its name after the prefix.
    pub parameters: Vec<(Box<str>, Box<str>)>,
}

/// The purpose of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum McpAction {
    /// Sends this message.
    Send(Box<RpcMessage>),
    /// Opens a stream of messages, or resumes one after this event.
    OpenStream(Option<Box<str>>),
    /// Ends the session.
    EndSession,
    /// A request that another shard admitted, about something that lives on this shard.
    Forwarded(Box<Context>, Ask),
}

/// The members of a JSON-RPC message.
pub(super) const MESSAGE: &[Field] = &[
    Field::new("jsonrpc", Shape::Choice(&["2.0"]), "The version of JSON-RPC.").required(),
    Field::new(
        "method",
        Shape::Text { bytes_max: 256 },
        "The method of a request or a notification.",
    ),
    Field::new(
        "id",
        Shape::Either(&[Shape::Text { bytes_max: 256 }, Shape::Whole]),
        "The id that the reply repeats. A message without an id gets no reply.",
    ),
    Field::new("params", Shape::Anything, "The parameters of the method."),
    Field::new("result", Shape::Anything, "The result of a request of the server."),
    Field::new("error", Shape::Anything, "The error of a request of the server."),
];

const SESSION: Field = Field::new(
    "Mcp-Session-Id",
    Shape::Session,
    "The id of the session, if the protocol version has sessions.",
);
const VERSION: Field = Field::new(
    "MCP-Protocol-Version",
    Shape::Text { bytes_max: 64 },
    "The version of the protocol.",
);
/// The headers of a request with a message.
pub(super) const MESSAGE_HEADERS: &[Field] = &[
    Field::new(
        "Accept",
        Shape::Choice(&["application/json, text/event-stream"]),
        "The client must accept both: the reply is one message, or a stream of several.",
    )
    .required(),
    SESSION,
    VERSION,
    Field::new(
        "Mcp-Method",
        Shape::Text { bytes_max: 256 },
        "The method of the message, from version 2026-07-28 on.",
    ),
    Field::new(
        "Mcp-Name",
        Shape::Text { bytes_max: 4_096 },
        "The object of the method, from version 2026-07-28 on.",
    ),
];
/// The headers of a request for a stream.
pub(super) const STREAM_HEADERS: &[Field] = &[
    Field::new(
        "Accept",
        Shape::Choice(&["text/event-stream"]),
        "The client must accept this type.",
    )
    .required(),
    SESSION,
    VERSION,
    Field::new(
        "Last-Event-ID",
        Shape::Cursors,
        "The id of the last event that the client received.",
    ),
];
/// The headers of a request that ends a session.
pub(super) const END_HEADERS: &[Field] = &[SESSION, VERSION];

/// Reads the head of a message. Its body has not arrived yet.
pub(super) fn message_head(headers: Headers<'_>) -> Result<McpRequest, ApiError> {
    require(headers, &[JSON, sse::MEDIA_TYPE])?;
    head(headers, McpAction::EndSession)
}

/// Reads a request for a stream.
pub(super) fn open_stream(headers: Headers<'_>) -> Result<ApiCall, ApiError> {
    require(headers, &[sse::MEDIA_TYPE])?;
    let last = headers.only("last-event-id")?.map(Box::from);
    Ok(ApiCall::Mcp(head(headers, McpAction::OpenStream(last))?.into()))
}

/// Reads a request that ends a session.
pub(super) fn end_session(headers: Headers<'_>) -> Result<ApiCall, ApiError> {
    Ok(ApiCall::Mcp(head(headers, McpAction::EndSession)?.into()))
}

/// Returns the call for a message whose body is complete.
pub(super) fn complete(head: McpRequest, body: &[u8]) -> Result<ApiCall, Answer> {
    match jsonrpc::parse(body) {
        Ok(message) => {
            Ok(ApiCall::Mcp(McpRequest { action: McpAction::Send(message.into()), ..head }.into()))
        }
        Err(malformed) => {
            let mut text = Vec::new();
            let (code, id) = (malformed.code, malformed.id.as_ref());
            jsonrpc::write_error(&mut text, id, code, &malformed.message, None);
            Err(Answer::text(Status::BAD_REQUEST, JSON, text))
        }
    }
}

/// Returns the JSON-RPC error for a request that was not read as a message. It answers no message,
/// so it has no id. Its `data` has the members of other errors.
pub(super) fn error_body(error: &ApiError) -> Vec<u8> {
    let code = match error.status {
        Status::SERVICE_UNAVAILABLE => codes::BUSY,
        status if status.code() >= 500 => codes::INTERNAL,
        _ => codes::INVALID_REQUEST,
    };
    let mut data = Map::new();
    data.insert("code".into(), error.code.into());
    if let Some(field) = &error.field {
        data.insert("field".into(), field.as_str().into());
    }
    if let Some(limit) = error.limit {
        data.insert("limit".into(), limit.into());
    }
    let (message, data) = (error.message.clone(), Some(data.into()));
    let error = McpProblem { code, message, data };
    let document = McpError { jsonrpc: "2.0".to_owned(), id: None, error };
    spelled(&document).to_string().into_bytes()
}

fn head(headers: Headers<'_>, action: McpAction) -> Result<McpRequest, ApiError> {
    const NAMES: [&str; 4] = ["mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"];
    let mut values: [Option<Box<str>>; NAMES.len()] = Default::default();
    let mut parameters = Vec::new();
    for header in headers.iter() {
        let text = std::str::from_utf8(header.value);
        if let Some(at) = NAMES.iter().position(|name| header.name.eq_ignore_ascii_case(name)) {
            match text {
                Ok(text) if text.is_ascii() && values[at].is_none() => {
                    values[at] = Some(text.into())
                }
                _ => return Err(HeaderFault { name: NAMES[at] }.into()),
            }
        } else if let Some((prefix, name)) = header.name.split_at_checked(PARAMETER.len())
            && prefix.eq_ignore_ascii_case(PARAMETER)
        {
            parameters.push((name.into(), text.unwrap_or(NO_TEXT).into()));
        }
    }
    let [session, version, method, name] = values;
    Ok(McpRequest { action, session, version, method, name, parameters })
}

const PARAMETER: &str = "mcp-param-";
/// A value that no parameter can have, because it contains a control character.
const NO_TEXT: &str = "\u{0}";

/// Checks that `Accept` names each of these media types explicitly.
fn require(headers: Headers<'_>, media_types: &[&str]) -> Result<(), ApiError> {
    let mut missing: SmallVec<[&str; 2]> = media_types.into();
    for range in headers.texts("accept").flat_map(|text| text.split(',')) {
        missing.retain(|media_type| !is_media_type(range.trim(), media_type));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let text = format!("accept: it must name {}", media_types.join(" and "));
    Err(ApiError::new(Status::NOT_ACCEPTABLE, "not_acceptable", text).field("accept"))
}

impl McpRequest {
    /// Returns the execution that the request names, as a resource or as a stream.
    pub fn execution(&self) -> Option<ExecutionId> {
        match &self.action {
            McpAction::Forwarded(_, ask) => execution_of(ask),
            _ => self.params().and_then(execution_in),
        }
    }

    /// Returns the task that the request names.
    pub fn task(&self) -> Option<&str> {
        match &self.action {
            McpAction::Forwarded(_, ask) => task_of(ask),
            _ => self.params()?.get("taskId")?.as_str(),
        }
    }

    /// Returns the resource that the request reads.
    pub fn read_uri(&self) -> Option<&str> {
        match &self.action {
            McpAction::Forwarded(_, Ask::ReadResource { uri }) => Some(uri),
            McpAction::Send(message) => match &**message {
                RpcMessage::Request { method, params, .. } if method == "resources/read" => {
                    params.get("uri")?.as_str()
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the parameters of the message, if it is a request.
    fn params(&self) -> Option<&Parameters> {
        let McpAction::Send(message) = &self.action else { return None };
        match &**message {
            RpcMessage::Request { params, .. } => Some(params),
            RpcMessage::Notification { .. } | RpcMessage::Response { .. } => None,
        }
    }

    /// Returns the number of the shard that must answer. It is the shard of the session or, without
    /// a session, of what the request names.
    pub(super) fn home(&self) -> Option<u8> {
        if let McpAction::OpenStream(Some(behind)) = &self.action {
            return place_of(behind); // The shard of the call whose stream was cut.
        }
        let params = match &self.action {
            McpAction::Send(message) => match &**message {
                RpcMessage::Request { params, .. } | RpcMessage::Notification { params, .. } => {
                    Some(params)
                }
                RpcMessage::Response { .. } => None,
            },
            McpAction::Forwarded(..) => return None,
            McpAction::OpenStream(_) | McpAction::EndSession => None,
        };
        let meta = params.and_then(Parameters::meta);
        let is_alone = meta.is_some_and(|meta| meta.get(VERSION_KEY).is_some());
        match &self.session {
            Some(session) if !is_alone => place_of(session),
            _ => params.and_then(named),
        }
    }
}

impl McpRequest {
    /// Creates a request that was admitted and needs its head no more.
    pub fn of(action: McpAction, session: Option<Box<str>>) -> McpRequest {
        let (version, method, name) = (None, None, None);
        McpRequest { action, session, version, method, name, parameters: Vec::new() }
    }

    /// Returns the tool that the message calls, if it is a `tools/call` request.
    pub fn called_tool(&self) -> Option<&str> {
        let McpAction::Send(message) = &self.action else { return None };
        match &**message {
            RpcMessage::Request { method, params, .. } if method == "tools/call" => {
                params.get("name")?.as_str()
            }
            _ => None,
        }
    }
}

/// The key under which messages of the stateless era name their version.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// Returns the shard of a name given out by this server. Such names begin with the number of their
/// shard.
fn place_of(name: &str) -> Option<u8> {
    u8::from_str_radix(name.get(..2)?, 16).ok()
}

/// Returns the shard of the execution or the task that a request is about.
pub fn shard_of(ask: &Ask) -> Option<u8> {
    match task_of(ask) {
        Some(task) => place_of(task),
        None => execution_of(ask).map(|id| id.shard),
    }
}

/// Returns the task that a request is about.
fn task_of(ask: &Ask) -> Option<&str> {
    match ask {
        Ask::GetTask { id }
        | Ask::TaskResult { id }
        | Ask::CancelTask { id }
        | Ask::UpdateTask { id, .. } => Some(id),
        _ => None,
    }
}

/// Returns the execution that a request is about.
fn execution_of(ask: &Ask) -> Option<ExecutionId> {
    match ask {
        Ask::ReadResource { uri } | Ask::Subscribe { uri } | Ask::Unsubscribe { uri } => {
            uri.strip_prefix(EXECUTIONS)?.split('/').next()?.parse().ok()
        }
        Ask::CallTool { name, arguments } if name.starts_with("stream_") => {
            arguments.get("stream_id")?.as_str()?.parse().ok()
        }
        _ => None,
    }
}

/// Returns the shard of what the parameters of a request name.
fn named(params: &Parameters) -> Option<u8> {
    if let Some(task) = params.get("taskId").and_then(Value::as_str) {
        return place_of(task);
    }
    execution_in(params).map(|id| id.shard)
}

/// Returns the execution that the parameters of a request name.
fn execution_in(params: &Parameters) -> Option<ExecutionId> {
    let stream = params.get("arguments").and_then(|arguments| arguments.get("stream_id"));
    let uri = params.get("uri").and_then(Value::as_str);
    let uri = uri.and_then(|uri| uri.strip_prefix(EXECUTIONS));
    let id = uri.or(stream.and_then(Value::as_str))?.split('/').next()?;
    id.parse().ok()
}

/// The prefix of resources that are executions.
const EXECUTIONS: &str = "streamdoor://executions/";
