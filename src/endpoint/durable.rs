//! Requests of the Durable Streams protocol, at `/v1/stream/PATH`: from heads to calls, and the
//! headers of their replies.
//!
//! The protocol has rules of its own. Unknown parameters are ignored, bodies have any type, and
//! paths have any number of parts. Its requests are therefore read here, and not by fields. Their
//! routes are in the table of all routes, for the description and the counts.

use std::borrow::Cow;
use std::fmt::Write;

use crate::base::ExecutionId;
use crate::endpoint::answer::{Answer, ErrorFormat};
use crate::endpoint::ask::{Asked, ParsedHead, methods};
use crate::endpoint::fields::{Field, Shape};
use crate::endpoint::routes::ROUTES;
use crate::endpoint::{ApiCall, ApiError, Control, Elsewhere, subscriptions};
use crate::limits;
use crate::wire::durable::{Offset, parse_exact_number, parse_number, parse_time};
use crate::wire::http1::{DecodeError, Headers, Method, Query, RequestHead, RequestTarget, Status};

/// The start of the path of every stream.
pub(super) const PREFIX: &str = "/v1/stream/";
/// The path of the routes.
pub(super) const ROUTE: &str = "/v1/stream/{stream}";
/// The start of the paths of executions, which are streams that nobody else can write.
const EXECUTIONS: &str = "executions/";
/// The first part of the paths that no stream can have.
pub(super) const RESERVED: &str = "__ds";

const SHORT: Shape = Shape::Text { bytes_max: 64 };
const SOURCE: Shape =
    Shape::Text { bytes_max: (PREFIX.len() + limits::DURABLE_PATH_BYTES_MAX) as u64 };
const SEQ: Shape = Shape::Text { bytes_max: limits::DURABLE_SEQ_BYTES_MAX as u64 };
const ID: Shape = Shape::Text { bytes_max: limits::DURABLE_PRODUCER_BYTES_MAX as u64 };
const NUMBER: Shape = Shape::Number { min: 0, max: (1 << 53) - 1 };
const CLOSED: Field =
    Field::new("Stream-Closed", Shape::Any, "`true` if nothing follows the body.");
/// The headers of a request that creates a stream.
pub(super) const CREATED: &[Field] = &[
    Field::new("Stream-TTL", NUMBER, "The seconds after the last use at which the stream ends."),
    Field::new("Stream-Expires-At", SHORT, "The time at which the stream ends (RFC 3339)."),
    CLOSED,
    Field::new("Stream-Forked-From", SOURCE, "The path of the stream that this one begins with."),
    Field::new("Stream-Fork-Offset", SHORT, "The end of that part. Default: its present end."),
    Field::new(
        "Stream-Fork-Sub-Offset",
        NUMBER,
        "The number of messages or bytes behind that offset that belong to it, too.",
    ),
];
// The headers of an append that its producer may repeat.
pub(super) const PRODUCER_ID: Field =
    Field::new("Producer-Id", ID, "The name of the producer, which may repeat its appends.");
pub(super) const PRODUCER_EPOCH: Field =
    Field::new("Producer-Epoch", NUMBER, "The number of the life of the producer.");
pub(super) const PRODUCER_SEQ: Field =
    Field::new("Producer-Seq", NUMBER, "The number of the append in this life, from 0 on.");
/// The headers of a request that appends to a stream.
pub(super) const APPENDED: &[Field] = &[
    Field::new("Stream-Seq", SEQ, "A text that is larger than the one of the append before."),
    CLOSED,
    PRODUCER_ID,
    PRODUCER_EPOCH,
    PRODUCER_SEQ,
];
/// The parameters of a request that reads a stream.
pub(super) const READ: &[Field] = &[
    Field::new("offset", SHORT, "`-1`, `now`, or an offset of a reply. Default: -1."),
    Field::new("live", Shape::Choice(&["long-poll", "sse"]), "The way to wait for more."),
    Field::new("cursor", Shape::Any, "The cursor of the last reply."),
];

/// A request about a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct DurableCall {
    /// The path of the stream, decoded. Each principal has its own streams.
    pub path: Box<str>,
    /// The path of the request, as it was sent.
    pub raw_path: Box<str>,
    /// The text behind its `?`, as it was sent; empty if there is none.
    pub raw_query: Box<str>,
    /// The host that the client has sent the request to, if it says so.
    pub host: Option<Box<str>>,
    /// The request.
    pub ask: DurableAsk,
}

/// The request about a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum DurableAsk {
    /// Creates the stream.
    Create(Box<Creation>),
    /// Appends to the stream, closes it, or both.
    Append(Box<Appended>),
    /// Returns a part of the stream.
    Read(ReadAsk),
    /// Returns the properties of the stream.
    Describe,
    /// Removes the stream.
    Delete,
    /// Does something with a subscription. The path is not that of a stream.
    Control(Box<Control>),
}

/// The wanted properties of a new stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Creation {
    /// The media type, with its parameters; `None`: the one of the source, or bytes.
    pub media_type: Option<Box<str>>,
    /// The seconds after the last use at which the stream ends.
    pub ttl_s: Option<u64>,
    /// The wall-clock time at which the stream ends, in µs since 1970.
    pub expires_us: Option<u64>,
    /// True if nothing follows the body.
    pub is_closed: bool,
    /// The stream that it begins with.
    pub fork: Option<Fork>,
    /// The first content.
    pub body: Vec<u8>,
}

/// The part of another stream that a new one begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The path of the other stream.
    pub source: Box<str>,
    /// The end of that part; `None`: the present end of the other stream.
    pub offset: Option<Offset>,
    /// The number of messages or bytes behind the offset that belong to it, too.
    pub sub_offset: u64,
}

/// Content for a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// The media type, if the request has one.
    pub media_type: Option<Box<str>>,
    /// The text that has to be larger than the one of the append before.
    pub seq: Option<Box<str>>,
    /// The producer, and the number of this append.
    pub producer: Option<ProducerAt>,
    /// True if nothing follows the body.
    pub closes: bool,
    /// The content.
    pub body: Vec<u8>,
}

/// The number of an append of one producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerAt {
    /// The name of the producer.
    pub id: Box<str>,
    /// The number of the life of the producer.
    pub epoch: u64,
    /// The number of the append in this life, from 0 on.
    pub seq: u64,
}

/// The wanted part of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadAsk {
    /// The beginning.
    pub from: ReadFrom,
    /// The way in which the client waits for more.
    pub live: Option<Live>,
    /// The cursor of the last reply.
    pub cursor: Option<u64>,
    /// The entity tags of replies that the client has.
    pub known: Vec<Box<str>>,
}

/// The beginning of a part of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// The first byte.
    #[default]
    Start,
    /// The present end.
    Now,
    /// This position.
    At(Offset),
}

/// The way in which a client waits for more of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// The reply comes when there is something to send, or after some time.
    LongPoll,
    /// The reply is a stream of events.
    Sse,
}

impl DurableCall {
    /// Returns the execution that the path names, if it names one.
    pub fn execution(&self) -> Option<ExecutionId> {
        self.path.strip_prefix(EXECUTIONS)?.parse().ok()
    }

    /// True if it is about a subscription, and not about a stream.
    pub fn is_control(&self) -> bool {
        matches!(self.ask, DurableAsk::Control(_))
    }
}

/// Returns the meaning of a request at `path`, which follows [`PREFIX`].
pub(super) fn ask(head: &RequestHead<'_>) -> Asked {
    if head.target.path.starts_with(subscriptions::PREFIX) {
        return subscriptions::ask(head);
    }
    let asked = match read(head) {
        Ok(ask) => ask,
        Err(error) => return refused(head, &error),
    };
    let (path, raw_path) = match path_of(head) {
        Ok(path) => (path, head.target.path.into()),
        Err(error) => return refused(head, &error),
    };
    let host = head.headers.only("host").ok().flatten().map(Box::from);
    let raw_query = head.target.query.into();
    let call = DurableCall { path, raw_path, raw_query, host, ask: asked };
    let body_bytes_max = match call.ask {
        DurableAsk::Create(_) | DurableAsk::Append(_) => limits::DURABLE_APPEND_BYTES_MAX,
        _ => limits::HTTP_SMALL_BODY_BYTES_MAX,
    };
    let parsed = ParsedHead::Durable(Box::new(call));
    Asked { parsed, body_bytes_max, route: route_of(head.method), selection: None }
}

/// Returns the call of a request now that its body is complete.
pub(super) fn complete(mut call: DurableCall, body: &[u8]) -> Result<ApiCall, Answer> {
    match &mut call.ask {
        DurableAsk::Create(creation) => creation.body = body.to_vec(),
        DurableAsk::Append(appended) => {
            if body.is_empty() && !appended.closes {
                return Err(answer_refused(&bad("body", "it is empty, and nothing is closed")));
            }
            if !body.is_empty() && appended.media_type.is_none() {
                return Err(answer_refused(&bad("content-type", "it is missing")));
            }
            appended.body = body.to_vec();
        }
        DurableAsk::Control(control) => subscriptions::complete(control, body)?,
        DurableAsk::Read(_) | DurableAsk::Describe | DurableAsk::Delete => {}
    }
    Ok(ApiCall::Durable(Box::new(call)))
}

fn refused(head: &RequestHead<'_>, error: &ApiError) -> Asked {
    let answer = match error.status {
        Status::METHOD_NOT_ALLOWED => Answer::error(error).with_headers(allowing(head)),
        _ => answer_refused(error),
    };
    let asked = Asked::refused(answer);
    Asked {
        route: route_of(head.method),
        body_bytes_max: limits::DURABLE_APPEND_BYTES_MAX,
        ..asked
    }
}

/// Returns the header with the methods that the path of a request allows.
pub(super) fn allowing(head: &RequestHead<'_>) -> DurableHeaders {
    DurableHeaders::default().with("allow", methods(head))
}

fn route_of(method: Method) -> Option<u8> {
    let at = |route: &super::routes::Route| {
        let is_get = matches!(method, Method::Get | Method::Head);
        route.path == ROUTE && (route.method == method || (is_get && route.method == Method::Get))
    };
    ROUTES.iter().position(at).map(|at| at as u8)
}

/// Returns the decoded path of a stream.
fn path_of(head: &RequestHead<'_>) -> Result<Box<str>, ApiError> {
    decoded(head.target.segments(), "the path")
}

/// Joins the decoded parts of a path, without the first two.
fn decoded<'a>(
    segments: impl Iterator<Item = Result<Cow<'a, str>, DecodeError>>,
    name: &str,
) -> Result<Box<str>, ApiError> {
    let malformed = |text: &str| {
        ApiError::new(Status::BAD_REQUEST, "malformed_path", format!("{name}: {text}"))
    };
    let mut path = String::new();
    for (at, segment) in segments.enumerate().skip(2) {
        let segment = segment.map_err(|fault| malformed(&fault.to_string()))?;
        if segment.is_empty() {
            return Err(malformed("a part of it is empty"));
        }
        if at == 2 && segment == RESERVED {
            return Err(crate::engine::NotFound.into());
        }
        let slash = if at == 2 { "" } else { "/" };
        let _ = write!(path, "{slash}{segment}"); // A string takes everything.
    }
    let bytes_max = limits::DURABLE_PATH_BYTES_MAX;
    if path.len() > bytes_max {
        return Err(malformed("it is too long").limit(bytes_max as u64));
    }
    Ok(path.into())
}

/// Reads everything of a request but its path and its body.
fn read(head: &RequestHead<'_>) -> Result<DurableAsk, ApiError> {
    if let Some(encoding) = text(head, "content-encoding")?
        && !encoding.eq_ignore_ascii_case("identity")
    {
        let text = "content-encoding: the body must have no encoding";
        let code = "unsupported_media_type";
        let error = ApiError::new(Status::UNSUPPORTED_MEDIA_TYPE, code, text);
        return Err(error.field("content-encoding"));
    }
    match head.method {
        Method::Put => Ok(DurableAsk::Create(Box::new(creation(head)?))),
        Method::Post => Ok(DurableAsk::Append(Box::new(appended(head)?))),
        Method::Get => Ok(DurableAsk::Read(read_ask(head)?)),
        Method::Head => Ok(DurableAsk::Describe),
        Method::Delete => Ok(DurableAsk::Delete),
        _ => {
            let text = "a stream allows only DELETE, GET, HEAD, OPTIONS, POST, PUT";
            Err(ApiError::new(Status::METHOD_NOT_ALLOWED, "method_not_allowed", text))
        }
    }
}

fn creation(head: &RequestHead<'_>) -> Result<Creation, ApiError> {
    let ttl_s = text(head, "stream-ttl")?
        .map(|text| parse_exact_number(text).ok_or_else(|| not_a_number("stream-ttl")))
        .transpose()?;
    let expires_us = text(head, "stream-expires-at")?
        .map(|text| {
            parse_time(text).ok_or_else(|| bad("stream-expires-at", "it is no time of RFC 3339"))
        })
        .transpose()?;
    if ttl_s.is_some() && expires_us.is_some() {
        return Err(bad("stream-ttl", "stream-expires-at is there, too"));
    }
    Ok(Creation {
        media_type: media_type(head)?.map(Box::from),
        ttl_s,
        expires_us,
        is_closed: closes(head)?,
        fork: fork(head)?,
        body: Vec::new(),
    })
}

fn fork(head: &RequestHead<'_>) -> Result<Option<Fork>, ApiError> {
    let offset = text(head, "stream-fork-offset")?;
    let sub_offset = text(head, "stream-fork-sub-offset")?;
    let Some(source) = text(head, "stream-forked-from")? else {
        let name = "stream-forked-from";
        return match (offset, sub_offset) {
            (None, None) => Ok(None),
            _ => Err(bad(name, "a part of another stream is named, and not the stream")),
        };
    };
    let target = source.strip_prefix(PREFIX).map(|_| source);
    let target = target.ok_or_else(|| bad("stream-forked-from", "it is no path of a stream"))?;
    let segments = RequestTarget::of_path(target).segments();
    let source = decoded(segments, "stream-forked-from")?;
    let offset = offset
        .map(|text| text.parse().map_err(|_| bad("stream-fork-offset", "it is no offset")))
        .transpose()?;
    let sub_offset = sub_offset
        .map(|text| parse_exact_number(text).ok_or_else(|| not_a_number("stream-fork-sub-offset")))
        .transpose()?
        .unwrap_or(0);
    if sub_offset > 0 && offset.is_none() {
        return Err(bad("stream-fork-sub-offset", "it needs stream-fork-offset"));
    }
    Ok(Some(Fork { source, offset, sub_offset }))
}

fn appended(head: &RequestHead<'_>) -> Result<Appended, ApiError> {
    let seq = text(head, "stream-seq")?;
    if seq.is_some_and(|seq| seq.len() > limits::DURABLE_SEQ_BYTES_MAX) {
        let error = bad("stream-seq", "it is too long");
        return Err(error.limit(limits::DURABLE_SEQ_BYTES_MAX as u64));
    }
    Ok(Appended {
        media_type: media_type(head)?.map(Box::from),
        seq: seq.map(Box::from),
        producer: producer(&head.headers)?,
        closes: closes(head)?,
        body: Vec::new(),
    })
}

/// Returns the producer that the headers name, if they name one.
pub(super) fn producer(headers: &Headers<'_>) -> Result<Option<ProducerAt>, ApiError> {
    let id = headers.only("producer-id")?;
    let [epoch, seq] = ["producer-epoch", "producer-seq"].map(|name| headers.only(name));
    let (id, epoch, seq) = match (id, epoch?, seq?) {
        (None, None, None) => return Ok(None),
        (Some(id), Some(epoch), Some(seq)) => (id, epoch, seq),
        _ => return Err(bad("producer-id", "producer-id, -epoch and -seq belong together")),
    };
    if id.is_empty() || id.len() > limits::DURABLE_PRODUCER_BYTES_MAX {
        let bytes_max = limits::DURABLE_PRODUCER_BYTES_MAX;
        let error = bad("producer-id", &format!("it needs 1 to {bytes_max} characters"));
        return Err(error.limit(bytes_max as u64));
    }
    let number = |name, text| parse_number(text).ok_or_else(|| not_a_number(name));
    Ok(Some(ProducerAt {
        id: id.into(),
        epoch: number("producer-epoch", epoch)?,
        seq: number("producer-seq", seq)?,
    }))
}

fn read_ask(head: &RequestHead<'_>) -> Result<ReadAsk, ApiError> {
    let query = Query::parse(head.target.query)?;
    let from = match query.text("offset")? {
        None => None,
        Some("-1") => Some(ReadFrom::Start),
        Some("now") => Some(ReadFrom::Now),
        Some(text) => {
            let offset = text.parse().map_err(|_| bad("offset", "it is no offset"))?;
            Some(ReadFrom::At(offset))
        }
    };
    let live = match query.text("live")? {
        None => None,
        Some("long-poll") => Some(Live::LongPoll),
        Some("sse") => Some(Live::Sse),
        Some(_) => return Err(bad("live", "it must be long-poll or sse")),
    };
    if live.is_some() && from.is_none() {
        return Err(bad("offset", "a client that waits for more has to say where it is"));
    }
    let tags = head.headers.texts("if-none-match").flat_map(|tags| tags.split(','));
    Ok(ReadAsk {
        from: from.unwrap_or_default(),
        live,
        cursor: query.all("cursor").next().and_then(parse_number),
        known: tags.map(|tag| Box::from(tag.trim())).collect(),
    })
}

/// Returns the media type of a request. One without a type and a subtype counts as none.
fn media_type<'a>(head: &RequestHead<'a>) -> Result<Option<&'a str>, ApiError> {
    let is_one = |text: &&str| {
        let (kind, subtype) = text.split_once('/').unwrap_or_default();
        !kind.trim().is_empty() && !subtype.trim().is_empty()
    };
    Ok(text(head, "content-type")?.filter(is_one))
}

fn closes(head: &RequestHead<'_>) -> Result<bool, ApiError> {
    Ok(text(head, "stream-closed")?.is_some_and(|text| text.eq_ignore_ascii_case("true")))
}

fn text<'a>(head: &RequestHead<'a>, name: &'static str) -> Result<Option<&'a str>, ApiError> {
    Ok(head.headers.only(name)?)
}

fn bad(field: &str, text: &str) -> ApiError {
    let message = format!("{field}: {text}");
    ApiError::new(Status::BAD_REQUEST, "invalid_parameter", message).field(field)
}

fn not_a_number(field: &str) -> ApiError {
    bad(field, "it is no number of the protocol")
}

/// The headers of every reply about a stream, also for pages of other origins.
pub const HEADERS: &[(&str, &str)] =
    &[("x-content-type-options", "nosniff"), ("cross-origin-resource-policy", "cross-origin")];
/// The same for events with base64.
pub const BASE64_HEADERS: &[(&str, &str)] = &[HEADERS[0], HEADERS[1], BASE64];
const BASE64: (&str, &str) = ("stream-sse-data-encoding", "base64");

/// Returns the answer for an error of a request about a stream.
pub fn answer_refused(error: &ApiError) -> Answer {
    let answer = Answer::error_in(ErrorFormat::ApiError, error);
    answer.with_headers(DurableHeaders::default())
}

/// Returns the answer to a request about a stream of another node: the address there. Without the
/// URL of the node, an error.
pub fn answer_elsewhere(call: &DurableCall, elsewhere: Elsewhere) -> Answer {
    let is_plain =
        |url: &&str| url.starts_with("http") && url.bytes().all(|byte| byte.is_ascii_graphic());
    let Some(url) = elsewhere.url.as_deref().filter(is_plain) else {
        return answer_refused(&ApiError::elsewhere(elsewhere));
    };
    let mut location = format!("{}{}", url.trim_end_matches('/'), call.raw_path);
    if !call.raw_query.is_empty() {
        location.push('?');
        location.push_str(&call.raw_query);
    }
    let headers = DurableHeaders::default().with("location", location);
    Answer::durable(Status::TEMPORARY_REDIRECT, headers, Vec::new())
}

/// The headers of a reply about a stream, besides those of every one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurableHeaders {
    headers: Vec<(&'static str, Box<str>)>,
}

impl DurableHeaders {
    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Box<str>>) -> DurableHeaders {
        self.headers.push((name, value.into()));
        self
    }

    /// Adds a header if there is a value for it.
    #[must_use]
    pub fn with_some(self, name: &'static str, value: Option<impl Into<Box<str>>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds a header with the value `true`, or nothing.
    #[must_use]
    pub fn with_flag(self, name: &'static str, is_set: bool) -> DurableHeaders {
        if is_set { self.with(name, "true") } else { self }
    }

    /// Returns all headers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self.headers.iter().map(|(name, value)| (*name, &**value));
        HEADERS.iter().copied().chain(own)
    }
}
