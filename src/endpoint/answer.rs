//! Complete answers: a status, a body, and how they are written.

use std::borrow::Cow;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::api;
use crate::base::{ExecutionId, Instant};
use crate::endpoint::access::OriginPlace;
use crate::endpoint::durable::DurableHeaders;
use crate::endpoint::representation::{
    RepresentationHeaders, Selected, Selection, StaticDocument, payload_etag,
};
use crate::endpoint::tally::RouteAt;
use crate::endpoint::{ApiError, OutputAsk, Surroundings, a2a, mcp};
use crate::limits;
use crate::wire::http1::{Framing, NoSuchRange, ResponseHead, Status};

/// The media type of JSON.
pub const JSON: &str = "application/json";
/// The media type of bytes of any kind.
pub const BYTES: &str = "application/octet-stream";

/// A complete answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    status: Status,
    /// The media type of the body. `None`: the answer has no body.
    media_type: Option<&'static str>,
    body: Body,
    retry_after: Option<Duration>,
    /// The document that the body is, if it does not change.
    document: Option<&'static StaticDocument>,
    extra_header: ExtraHeader,
    /// The refusal, if the answer is one.
    refusal: Option<Box<Refusal>>,
}

/// The body of an answer.
#[derive(Clone, Debug, PartialEq)]
enum Body {
    Own(Cow<'static, [u8]>),
    /// Other answers have the same bytes.
    Shared(Arc<Vec<u8>>),
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Body::Own(bytes) => bytes,
            Body::Shared(bytes) => bytes,
        }
    }
}

impl<T: Into<Cow<'static, [u8]>>> From<T> for Body {
    fn from(bytes: T) -> Body {
        Body::Own(bytes.into())
    }
}

/// The parts of a refusal that the log gets.
#[derive(Clone, Debug, PartialEq)]
struct Refusal {
    code: &'static str,
    /// The requested path, if the request was refused for its head.
    path: Option<Box<str>>,
}

/// An additional header of the answer. No answer has two of these.
#[derive(Clone, Debug, PartialEq)]
enum ExtraHeader {
    None,
    /// The location of what was created.
    Location(String),
    ContentLocation(String),
    /// The id of the MCP session that was opened.
    Session(String),
    /// The methods that the path allows.
    Allow(String),
    /// The challenge for a client without a valid token.
    Challenge(&'static str),
    /// The methods that a page may use.
    Preflight(String),
    /// The headers about the representation that was selected.
    Representation(Box<RepresentationHeaders>),
    /// The headers of a reply about a stream.
    Durable(Box<DurableHeaders>),
}

/// Properties of the request that determine how its answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseContext {
    /// True for `HEAD`: the head is written in full, the body not at all.
    pub is_head: bool,
    /// True for HTTP/1.0: no chunked framing, and the connection closes unless the answer says
    /// otherwise.
    pub is_old: bool,
    /// True if another request may follow on the connection.
    pub keeps_alive: bool,
    /// The error format that the client understands.
    pub error_format: ErrorFormat,
    /// The origin of the page that sent the request, if it is a configured origin.
    pub origin: Option<OriginPlace>,
    /// The route of the request.
    pub route: RouteAt,
    /// The time at which the head of the request was read.
    pub began: Option<Instant>,
}

/// The format in which an error is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ErrorFormat {
    /// The JSON document of [`ApiError`].
    #[default]
    ApiError,
    /// A JSON-RPC error without an id, because the client may read nothing else.
    JsonRpc,
    /// The words of A2A, which depend on the body of the request.
    A2a,
}

impl ErrorFormat {
    /// Returns the format that clients of this path understand.
    pub fn at(path: &str) -> ErrorFormat {
        let is_a2a = || {
            path.strip_prefix(a2a::PATH)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match path {
            mcp::PATH => ErrorFormat::JsonRpc,
            _ if is_a2a() => ErrorFormat::A2a,
            _ => ErrorFormat::ApiError,
        }
    }
}

impl Answer {
    /// Creates an answer with a JSON document.
    pub fn json(status: Status, document: &impl Serialize) -> Answer {
        let mut body = Vec::with_capacity(512);
        api::write(&mut body, document);
        body.push(b'\n'); // For readers in a terminal.
        Answer { media_type: Some(JSON), body: body.into(), ..Answer::empty(status) }
    }

    /// Creates the answer for something that was created at `location`.
    pub fn created(document: &impl Serialize, location: impl Into<String>) -> Answer {
        let extra_header = ExtraHeader::Location(location.into());
        Answer { extra_header, ..Answer::json(Status::CREATED, document) }
    }

    /// Creates an answer with a body that is not JSON.
    pub fn text(
        status: Status,
        media_type: &'static str,
        body: impl Into<Cow<'static, [u8]>>,
    ) -> Answer {
        let body = Body::Own(body.into());
        Answer { media_type: Some(media_type), body, ..Answer::empty(status) }
    }

    /// Creates an answer with a status and no body.
    pub fn empty(status: Status) -> Answer {
        Answer {
            status,
            media_type: None,
            body: Body::Own(Cow::Borrowed(&[])),
            retry_after: None,
            document: None,
            extra_header: ExtraHeader::None,
            refusal: None,
        }
    }

    /// Creates the answer for an error.
    pub fn error(error: &ApiError) -> Answer {
        let (retry_after, refusal) = (error.retry_after, Refusal::of(error));
        Answer { retry_after, refusal, ..Answer::json(error.status, &error.to_json()) }
    }

    /// Does the same as [`Answer::error`], in this format.
    pub(super) fn error_in(error_format: ErrorFormat, error: &ApiError) -> Answer {
        match error_format {
            // The connection spells those of A2A.
            ErrorFormat::ApiError | ErrorFormat::A2a => Answer::error(error),
            ErrorFormat::JsonRpc => {
                let (retry_after, refusal) = (error.retry_after, Refusal::of(error));
                let body = mcp::error_body(error);
                Answer { retry_after, refusal, ..Answer::text(error.status, JSON, body) }
            }
        }
    }

    /// Creates an answer with a document that does not change.
    pub(super) fn document(document: &'static StaticDocument) -> Answer {
        let answer = Answer::text(Status::OK, document.media_type, document.plain());
        Answer { document: Some(document), ..answer }
    }

    /// Creates the answer with the payload of an ended execution, or with the wanted part of it.
    pub fn payload(execution: ExecutionId, payload: Vec<u8>, ask: &OutputAsk) -> Answer {
        let PayloadPart { bytes, status, headers } =
            match PayloadPart::of(execution, payload.len() as u64, ask) {
                Ok(part) => part,
                Err(answer) => return answer,
            };
        let part = match bytes.end - bytes.start == payload.len() as u64 {
            true => payload,
            false => payload[bytes.start as usize..bytes.end as usize].to_vec(),
        };
        let extra_header = ExtraHeader::Representation(headers.into());
        Answer { extra_header, ..Answer::text(status, BYTES, part) }
    }

    /// Returns the answer in the representation that its request selected: 304 if the client has
    /// it already. Other answers than documents have only one representation.
    pub(super) fn selected(&self, selection: &Selection) -> Answer {
        if self.status != Status::OK {
            return self.clone();
        }
        let selected = match self.document {
            Some(document) => selection.of_static(document),
            None => selection.of(self.body.to_vec()),
        };
        let (answer, headers) = match selected {
            Selected::Known(headers) => (Answer::empty(Status::NOT_MODIFIED), headers),
            Selected::Body(body, headers) => {
                let media_type = self.media_type;
                (Answer { media_type, body: body.into(), ..Answer::empty(self.status) }, headers)
            }
        };
        Answer { extra_header: ExtraHeader::Representation(headers.into()), ..answer }
    }

    /// Adds the place of what the answer is about.
    #[must_use]
    pub fn about(self, location: String) -> Answer {
        Answer { extra_header: ExtraHeader::ContentLocation(location), ..self }
    }

    /// Adds the id of the session that the answer opens.
    #[must_use]
    pub fn in_session(self, session: String) -> Answer {
        Answer { extra_header: ExtraHeader::Session(session), ..self }
    }

    /// Creates the answer to a request without a valid token. Only `challenge` shows whether a
    /// token was missing or wrong.
    pub(super) fn unauthorized(error_format: ErrorFormat, challenge: &'static str) -> Answer {
        let text = "a token is needed: Authorization: Bearer TOKEN";
        let error = ApiError::new(Status::UNAUTHORIZED, "unauthorized", text);
        Answer {
            extra_header: ExtraHeader::Challenge(challenge),
            ..Answer::error_in(error_format, &error)
        }
    }

    /// Creates the answer to a preflight request that is allowed, with these methods.
    pub(super) fn preflight(methods: String) -> Answer {
        Answer {
            extra_header: ExtraHeader::Preflight(methods),
            ..Answer::empty(Status::NO_CONTENT)
        }
    }

    /// Creates the answer about a stream. The headers say what the body is.
    pub fn durable(status: Status, headers: DurableHeaders, body: Vec<u8>) -> Answer {
        Answer { body: body.into(), ..Answer::empty(status) }.with_headers(headers)
    }

    /// Creates the answer about a stream with bytes that other answers have, too.
    pub fn durable_shared(headers: DurableHeaders, body: Arc<Vec<u8>>) -> Answer {
        Answer { body: Body::Shared(body), ..Answer::empty(Status::OK) }.with_headers(headers)
    }

    /// Adds the headers of a reply about a stream.
    #[must_use]
    pub fn with_headers(self, headers: DurableHeaders) -> Answer {
        Answer { extra_header: ExtraHeader::Durable(headers.into()), ..self }
    }

    /// Adds the methods that the path allows.
    pub(super) fn allowing(self, methods: String) -> Answer {
        Answer { extra_header: ExtraHeader::Allow(methods), ..self }
    }

    /// Returns the status of the answer.
    pub fn status(&self) -> Status {
        self.status
    }

    /// True if the answer is a refusal.
    pub(super) fn is_refusal(&self) -> bool {
        self.refusal.is_some()
    }

    /// Returns the same answer with another body.
    pub(super) fn with_body(&self, media_type: &'static str, body: Vec<u8>) -> Answer {
        Answer { media_type: Some(media_type), body: body.into(), ..self.clone() }
    }

    /// Returns the same answer with another status.
    pub(super) fn with_status(self, status: Status) -> Answer {
        Answer { status, ..self }
    }

    /// Returns the body of the answer.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Adds the path of a request that was refused for its head, for the log. It is cut.
    pub(super) fn at_path(mut self, path: &str) -> Answer {
        if let Some(refusal) = &mut self.refusal {
            let end = path.floor_char_boundary(limits::REFUSED_PATH_BYTES_MAX);
            refusal.path = Some(path[..end].into());
        }
        self
    }

    pub(super) fn write(
        &self,
        context: ResponseContext,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) {
        if let Some(body) = self.write_apart(context, around, out) {
            out.extend_from_slice(&body);
        }
    }

    /// Does the same as [`Answer::write`], except for a long body that other answers have, too.
    /// Returns that one, and the caller sends it next.
    pub(super) fn write_apart(
        &self,
        context: ResponseContext,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> Option<Arc<Vec<u8>>> {
        let refusal = self.refusal.as_ref();
        let error = refusal.map(|refusal| (refusal.code, refusal.path.as_deref()));
        context.count(self.status, error, around);
        let mut head = ResponseHead::begin(out, self.status, &around.date);
        let retry_after = self.retry_after.map(|delay| {
            let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
            seconds.max(1).to_string()
        });
        let cache_control = match &self.extra_header {
            // Kept, but asked for each time.
            ExtraHeader::Representation(headers) if headers.etag.is_some() => Some("no-cache"),
            _ => self.media_type.map(|_| "no-store"),
        };
        let extra_header = match &self.extra_header {
            ExtraHeader::Location(location) => Some(("location", location.as_str())),
            ExtraHeader::ContentLocation(location) => Some(("content-location", location.as_str())),
            ExtraHeader::Session(session) => Some(("mcp-session-id", session.as_str())),
            ExtraHeader::Allow(methods) => Some(("allow", methods.as_str())),
            ExtraHeader::Challenge(challenge) => Some(("www-authenticate", *challenge)),
            ExtraHeader::Preflight(methods) => {
                Some(("access-control-allow-methods", methods.as_str()))
            }
            ExtraHeader::Representation(_) | ExtraHeader::Durable(_) | ExtraHeader::None => None,
        };
        let (extra_name, extra_value) = extra_header.unzip();
        for (name, value) in [
            ("content-type", self.media_type),
            ("cache-control", cache_control),
            (extra_name.unwrap_or_default(), extra_value),
            ("retry-after", retry_after.as_deref()),
            ("connection", context.says_keep_alive()),
        ] {
            if let Some(value) = value {
                head.header(name, value).expect("the server's own headers are valid");
            }
        }
        let representation = match &self.extra_header {
            ExtraHeader::Representation(headers) => Some(headers),
            _ => None,
        };
        if let Some(headers) = representation {
            headers.write(&mut head);
        }
        if let ExtraHeader::Durable(headers) = &self.extra_header {
            for (name, value) in headers.iter() {
                head.header(name, value).expect("the values come from valid headers");
            }
        }
        context.write_origin(around, representation.and_then(|headers| headers.vary), &mut head);
        if let ExtraHeader::Preflight(_) = &self.extra_header {
            let max_age_s = limits::PREFLIGHT_MAX_AGE.as_secs().to_string();
            let headers = ("access-control-allow-headers", HEADERS_OF_PAGES);
            for (name, value) in [headers, ("access-control-max-age", &max_age_s)] {
                head.header(name, value).expect("the server's own headers are valid");
            }
        }
        head.finish(Framing::Length(self.body.len() as u64), context.keeps_alive);
        match &self.body {
            _ if context.is_head || self.status.is_bodiless() => None,
            Body::Shared(body) if body.len() >= limits::SHARED_BYTES_MIN => Some(Arc::clone(body)),
            body => {
                out.extend_from_slice(body);
                None
            }
        }
    }
}

/// The part of a payload that a client gets, and its place.
#[derive(Clone, Debug)]
pub struct PayloadPart {
    /// The bytes.
    pub bytes: Range<u64>,
    status: Status,
    headers: RepresentationHeaders,
}

impl PayloadPart {
    /// Returns the part of a payload of this length that a client asks for.
    ///
    /// # Errors
    /// The answer, if the client has the payload already, or if the part does not exist.
    pub fn of(
        execution: ExecutionId,
        total_bytes: u64,
        ask: &OutputAsk,
    ) -> Result<PayloadPart, Answer> {
        let etag = Some(payload_etag(execution));
        let mut headers = RepresentationHeaders { etag, has_ranges: true, ..Default::default() };
        let answer = match ask.range.map(|range| range.within(total_bytes)) {
            _ if ask.is_known => Answer::empty(Status::NOT_MODIFIED),
            None => return Ok(PayloadPart { bytes: 0..total_bytes, status: Status::OK, headers }),
            Some(Ok(bytes)) => {
                let (first, last) = (bytes.start, bytes.end - 1);
                headers.range = Some(format!("bytes {first}-{last}/{total_bytes}"));
                return Ok(PayloadPart { bytes, status: Status::PARTIAL_CONTENT, headers });
            }
            Some(Err(NoSuchRange)) => {
                (headers.etag, headers.range) = (None, Some(format!("bytes */{total_bytes}")));
                let text = format!("range: the output has only {total_bytes} bytes");
                let status = Status::RANGE_NOT_SATISFIABLE;
                let error = ApiError::new(status, "range_not_satisfiable", text);
                Answer::error(&error.field("range").limit(total_bytes))
            }
        };
        Err(Answer { extra_header: ExtraHeader::Representation(headers.into()), ..answer })
    }

    /// Writes the head of an answer whose body follows piece by piece.
    pub(super) fn write_head(
        &self,
        around: &Surroundings<'_>,
        context: &ResponseContext,
        out: &mut Vec<u8>,
    ) {
        context.count(self.status, None, around);
        let mut head = ResponseHead::begin(out, self.status, &around.date);
        for (name, value) in [("content-type", BYTES), ("cache-control", "no-cache")] {
            head.header(name, value).expect("the server's own headers are valid");
        }
        if let Some(value) = context.says_keep_alive() {
            head.header("connection", value).expect("the server's own headers are valid");
        }
        self.headers.write(&mut head);
        context.write_origin(around, None, &mut head);
        head.finish(Framing::Length(self.bytes.end - self.bytes.start), context.keeps_alive);
    }
}

impl Refusal {
    fn of(error: &ApiError) -> Option<Box<Refusal>> {
        Some(Box::new(Refusal { code: error.code, path: None }))
    }
}

/// Request headers that a page may set besides those that every page may.
const HEADERS_OF_PAGES: &str = "authorization, content-type, last-event-id, x-session-id, \
    mcp-session-id, mcp-protocol-version, mcp-method, mcp-name, traceparent, tracestate, baggage, \
    idempotency-key, if-none-match, range, if-range, stream-seq, stream-ttl, stream-expires-at, \
    stream-closed, stream-forked-from, stream-fork-offset, stream-fork-sub-offset, producer-id, \
    producer-epoch, producer-seq";

/// Response headers that a page may read besides those that every page may.
const EXPOSED_HEADERS: &str = "location, retry-after, mcp-session-id, etag, accept-ranges, \
    content-range, stream-next-offset, stream-cursor, stream-up-to-date, stream-closed, \
    stream-sse-data-encoding, stream-ttl, stream-expires-at, producer-epoch, producer-seq, \
    producer-expected-seq, producer-received-seq";

impl ResponseContext {
    /// The properties for the last answer on a connection.
    pub const LAST: ResponseContext = ResponseContext {
        is_head: false,
        is_old: false,
        keeps_alive: false,
        error_format: ErrorFormat::ApiError,
        origin: None,
        route: None,
        began: None,
    };

    /// Counts an answer in this context. `error` is the code of the error, with the path of a
    /// request that was refused for its head.
    pub fn count(
        self,
        status: Status,
        error: Option<(&'static str, Option<&str>)>,
        around: &Surroundings<'_>,
    ) {
        around.tally.count(around, (self.route, self.began), status, error);
    }

    /// Writes the CORS headers that let the page read the answer. The server uses no cookies, so it
    /// does not allow credentials. `vary` has the other request headers that the answer depends on.
    pub fn write_origin(
        self,
        around: &Surroundings<'_>,
        vary: Option<&'static str>,
        head: &mut ResponseHead<'_>,
    ) {
        let origin = self.origin.and_then(|place| around.access.origin(place));
        let exposed = origin.map(|_| EXPOSED_HEADERS);
        let vary = match (vary, origin) {
            (Some(vary), Some(_)) => Some(Cow::Owned(format!("{vary}, origin"))),
            (None, Some(_)) => Some(Cow::Borrowed("origin")),
            (vary, None) => vary.map(Cow::Borrowed),
        };
        for (name, value) in [
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", exposed),
            ("vary", vary.as_deref()),
        ] {
            if let Some(value) = value {
                head.header(name, value).expect("the server's own headers are valid");
            }
        }
    }

    /// Returns the `Connection` header for HTTP/1.0, which closes unless both sides ask to keep it
    /// open.
    pub fn says_keep_alive(self) -> Option<&'static str> {
        (self.is_old && self.keeps_alive).then_some("keep-alive")
    }
}
