//! What is asked at `/mcp`: the Model Context Protocol over HTTP, as far as that is HTTP.
//!
//! A POST carries one message, a GET opens a session's own stream or goes on with one that was cut,
//! a DELETE ends a session. Which of the protocol's two eras a message is of, whose session it
//! names and what it asks for is the shard's to see: it has the sessions.

use serde_json::{Map, Value};
use smallvec::SmallVec;

use crate::base::ExecutionId;
use crate::endpoint::answer::{Answer, JSON};
use crate::endpoint::fields::{Field, Shape};
use crate::endpoint::{ApiError, Call};
use crate::mcp::{Ask, Context, codes};
use crate::wire::http1::{HeaderFault, Headers, Status, is_media_type};
use crate::wire::jsonrpc::{self, Message};
use crate::wire::members::member;
use crate::wire::sse;

/// Where all of it is.
pub(super) const PATH: &str = "/mcp";

/// What a client asks for at `/mcp`.
#[derive(Clone, Debug, PartialEq)]
pub struct McpRequest {
    /// What it wants.
    pub wish: McpWish,
    /// `Mcp-Session-Id`.
    pub session: Option<Box<str>>,
    /// `MCP-Protocol-Version`.
    pub version: Option<Box<str>>,
    /// `Mcp-Method`.
    pub method: Option<Box<str>>,
    /// `Mcp-Name`.
    pub name: Option<Box<str>>,
    /// `Mcp-Param-*`, by what stands for the star.
    pub parameters: Vec<(Box<str>, Box<str>)>,
}

/// What it wants.
#[derive(Clone, Debug, PartialEq)]
pub enum McpWish {
    /// To say this.
    Say(Box<Message>),
    /// To be told, behind this event if it had others before.
    Hear(Option<Box<str>>),
    /// To end its session.
    Leave,
    /// This, which another shard has let in: it is about something that lives here.
    Asked(Box<Context>, Ask),
}

/// A message of JSON-RPC.
pub(super) const MESSAGE: &[Field] = &[
    Field::new("jsonrpc", Shape::Choice(&["2.0"]), "Which protocol it is.").required(),
    Field::new("method", Shape::Text { bytes_max: 256 }, "What is asked for, or told."),
    Field::new(
        "id",
        Shape::Either(&[Shape::Text { bytes_max: 256 }, Shape::Whole]),
        "What the answer is known by; absent: none is wanted.",
    ),
    Field::new("params", Shape::Anything, "About what."),
    Field::new("result", Shape::Anything, "What a question of the server is answered with."),
    Field::new("error", Shape::Anything, "Why it is not."),
];

const SESSION: Field = Field::new(
    "Mcp-Session-Id",
    Shape::Session,
    "Which session it belongs to, where the protocol has them.",
);
const VERSION: Field = Field::new(
    "MCP-Protocol-Version",
    Shape::Text { bytes_max: 64 },
    "Which version of the protocol is spoken.",
);
/// Of a message.
pub(super) const SAID: &[Field] = &[
    Field::new(
        "Accept",
        Shape::Choice(&["application/json, text/event-stream"]),
        "Both are named: the answer is one message, or a stream of several.",
    )
    .required(),
    SESSION,
    VERSION,
    Field::new("Mcp-Method", Shape::Text { bytes_max: 256 }, "The method, from 2026-07-28 on."),
    Field::new(
        "Mcp-Name",
        Shape::Text { bytes_max: 4_096 },
        "What the method is about, from 2026-07-28 on.",
    ),
];
/// Of a stream.
pub(super) const HEARD: &[Field] = &[
    Field::new("Accept", Shape::Choice(&["text/event-stream"]), "It is named.").required(),
    SESSION,
    VERSION,
    Field::new("Last-Event-ID", Shape::Cursors, "The id of the last event seen."),
];
/// Of an end.
pub(super) const LEFT: &[Field] = &[SESSION, VERSION];

/// The head of a message. Its body is still to come.
pub(super) fn said(headers: Headers<'_>) -> Result<McpRequest, ApiError> {
    require(headers, &[JSON, sse::MEDIA_TYPE])?;
    head(headers, McpWish::Leave)
}

/// Somebody wants to be told.
pub(super) fn heard(headers: Headers<'_>) -> Result<Call, ApiError> {
    require(headers, &[sse::MEDIA_TYPE])?;
    let last = headers.only("last-event-id")?.map(Box::from);
    Ok(Call::Mcp(head(headers, McpWish::Hear(last))?.into()))
}

/// Somebody goes.
pub(super) fn left(headers: Headers<'_>) -> Result<Call, ApiError> {
    Ok(Call::Mcp(head(headers, McpWish::Leave)?.into()))
}

/// A message, now that its body is there.
pub(super) fn complete(head: McpRequest, body: &[u8]) -> Result<Call, Answer> {
    match jsonrpc::parse(body) {
        Ok(message) => {
            Ok(Call::Mcp(McpRequest { wish: McpWish::Say(message.into()), ..head }.into()))
        }
        Err(malformed) => {
            let mut text = Vec::new();
            let (code, id) = (malformed.code, malformed.id.as_ref());
            jsonrpc::write_error(&mut text, id, code, &malformed.message, None);
            Err(Answer::text(Status::BAD_REQUEST, JSON, text))
        }
    }
}

/// Why something was not even read as a message: an error without an id, as it answers none. What
/// is in `data` is what stands in errors elsewhere.
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
    let mut body = Vec::with_capacity(256);
    jsonrpc::write_error(&mut body, None, code, &error.message, Some(&data.into()));
    body
}

fn head(headers: Headers<'_>, wish: McpWish) -> Result<McpRequest, ApiError> {
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
    Ok(McpRequest { wish, session, version, method, name, parameters })
}

const PARAMETER: &str = "mcp-param-";
/// No value is this: it has a control character.
const NO_TEXT: &str = "\u{0}";

/// Says the client expressly that it takes each of these?
fn require(headers: Headers<'_>, media_types: &[&str]) -> Result<(), ApiError> {
    let mut missing: SmallVec<[&str; 2]> = media_types.into();
    for range in headers.texts("accept").flat_map(|text| text.split(',')) {
        missing.retain(|media_type| !is_media_type(range.trim(), media_type));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let text = format!("accept: it has to name {}", media_types.join(" and "));
    Err(ApiError::new(Status::NOT_ACCEPTABLE, "not_acceptable", text).field("accept"))
}

impl McpRequest {
    /// The number of the shard that has to answer: where the session is or, where there is none,
    /// what the request names.
    pub(super) fn home(&self) -> Option<u8> {
        if let McpWish::Hear(Some(behind)) = &self.wish {
            return place_of(behind); // Where the call is whose stream was cut.
        }
        let params = match &self.wish {
            McpWish::Say(message) => match &**message {
                Message::Request { params, .. } | Message::Notification { params, .. } => {
                    Some(params)
                }
                Message::Response { .. } => None,
            },
            McpWish::Asked(..) => return None,
            McpWish::Hear(_) | McpWish::Leave => None,
        };
        let is_alone = params.is_some_and(|params| {
            let meta = member(params, "_meta").and_then(Value::as_object);
            meta.is_some_and(|meta| member(meta, VERSION_KEY).is_some())
        });
        match &self.session {
            Some(session) if !is_alone => place_of(session),
            _ => params.and_then(named),
        }
    }
}

impl McpRequest {
    /// One that was let in, and needs its head no more.
    pub fn of(wish: McpWish, session: Option<Box<str>>) -> McpRequest {
        let (version, method, name) = (None, None, None);
        McpRequest { wish, session, version, method, name, parameters: Vec::new() }
    }

    /// The tool that a request calls which stands for itself.
    pub fn called_tool(&self) -> Option<&str> {
        let McpWish::Say(message) = &self.wish else { return None };
        match &**message {
            Message::Request { method, params, .. } if method == "tools/call" => {
                params.get("name")?.as_str()
            }
            _ => None,
        }
    }
}

/// Where the stateless era says its version.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// Names of ours begin with the number of their shard.
fn place_of(name: &str) -> Option<u8> {
    u8::from_str_radix(name.get(..2)?, 16).ok()
}

/// The shard of the first of these that lives somewhere.
pub fn shard_of(ask: &Ask) -> Option<u8> {
    let of_uri = |uri: &str| {
        let id = uri.strip_prefix(EXECUTIONS)?.split('/').next()?;
        id.parse::<ExecutionId>().ok().map(|id| id.shard)
    };
    match ask {
        Ask::ReadResource { uri } | Ask::Subscribe { uri } | Ask::Unsubscribe { uri } => {
            of_uri(uri)
        }
        Ask::GetTask { id }
        | Ask::TaskResult { id }
        | Ask::CancelTask { id }
        | Ask::UpdateTask { id, .. } => place_of(id),
        Ask::CallTool { name, arguments } if name.starts_with("stream_") => {
            let id = arguments.get("stream_id")?.as_str()?;
            id.parse::<ExecutionId>().ok().map(|id| id.shard)
        }
        _ => None,
    }
}

/// Where that lives which the parameters of a request name.
fn named(params: &Map<String, Value>) -> Option<u8> {
    let text = |name: &str| member(params, name).and_then(Value::as_str);
    if let Some(task) = text("taskId") {
        return place_of(task);
    }
    let stream = member(params, "arguments").and_then(|arguments| arguments.get("stream_id"));
    let uri = text("uri").and_then(|uri| uri.strip_prefix(EXECUTIONS));
    let id = uri.or(stream.and_then(Value::as_str))?.split('/').next()?;
    id.parse::<ExecutionId>().ok().map(|id| id.shard)
}

/// How the resources begin that executions are.
const EXECUTIONS: &str = "streamdoor://executions/";
