//! Parameters of requests, from their query strings and heads, each read by its field.

mod fronts;

use std::time::Duration;

use smallvec::SmallVec;

use crate::base::ExecutionId;
use crate::endpoint::access::TICKET;
use crate::endpoint::answer::JSON;
use crate::endpoint::fields::{Field, POLICIES, Preset, Shape, policy_named};
use crate::endpoint::list::{ListAsk, ListPlace, ListScope, SCOPE_NAMES, STATE_NAMES};
use crate::endpoint::representation::{has_etag, payload_etag};
use crate::endpoint::{
    ApiError, DeliveryOptions, Follow, FrontOptions, MetricsFormat, OutputAsk, ProducerAt,
    ReadDoor, StreamFormat, durable, front,
};
use crate::engine::{Coalesce, From};
use crate::limits;
use crate::stream::{ExecutionState, Kind, Kinds, Totals};
use crate::tool::is_tool_name;
use crate::trace::TraceContext;
use crate::wire::http1::{ByteRange, Headers, Query, Status, is_media_type, negotiate};
use crate::wire::sse::{CursorError, Reached, SeenTotals, parse_cursors};
use crate::wire::{ndjson, sse};

/// The delivery options of a stream.
pub(super) const WISHES: &[Field] = &[
    Field::new(
        "policy",
        Shape::Choice(POLICIES),
        "The policy for a subscriber that lags. Default: set by the execution or its tool.",
    ),
    Field::new(
        "max_chunks",
        Shape::Number { min: 1, max: u32::MAX as u64 },
        "The maximum lag of the subscriber, in chunks. Default: set with the policy.",
    ),
    Field::new(
        "max_bytes",
        Shape::Number { min: 1, max: u64::MAX },
        "The maximum lag of the subscriber, in bytes. Default: only chunks count.",
    ),
    KIND,
    Field::new(
        "coalesce_us",
        Shape::Number { min: 0, max: limits::COALESCE_DELAY_MAX.as_micros() as u64 },
        "The longest time that a chunk waits to be sent with others, in microseconds.",
    ),
    Field::new(
        "coalesce_bytes",
        Shape::Number { min: 1, max: u64::MAX },
        "The number of waiting bytes that are sent without further delay.",
    ),
    Field::new(
        "acks",
        Shape::Number { min: 1, max: u32::MAX as u64 },
        "The maximum number of chunks that are sent beyond the last acknowledged one.",
    ),
];
/// The delivery options of a reader in another process: [`WISHES`] without coalescing and
/// acknowledgements.
pub(super) const DOOR_WISHES: &[Field] = WISHES.split_at(4).0;
const KIND: Field =
    Field::new("kinds", Shape::Kinds, "The kinds of chunks to deliver. Default: all kinds.");
pub(super) const KINDS: &[Field] = &[Field::new(
    "kinds",
    Shape::Kinds,
    "The kinds of chunks in the output. Default: all kinds but `structured`.",
)];

const FORMATS: &[&str] =
    &["sse", "ndjson", "ai-sdk", "ag-ui", "langgraph", "langgraph-runs", "responses", "a2a"];
const STREAM_MODE: Field = Field::new(
    "stream_mode",
    Shape::StreamModes,
    "The events of the stream, for format langgraph-runs. Default: values.",
);
const SDK_VERSION: Field = Field::new(
    "sdk_version",
    Shape::Choice(&["5", "6", "7"]),
    "The version of the AI SDK client, for format ai-sdk. Later versions read the stream for 5, \
     too.",
)
.or(Preset::Text("5"));
const SPELLING: Field = Field::new(
    "spelling",
    Shape::Choice(&["snake", "camel"]),
    "The spelling of names of several words, for format langgraph.",
)
.or(Preset::Text("snake"));
pub(super) const FORMAT: &[Field] = &[
    Field::new(
        "format",
        Shape::Choice(FORMATS),
        "The format of the stream. Default: negotiated by Accept.",
    ),
    SDK_VERSION,
    SPELLING,
    STREAM_MODE,
];
/// The parameters of a request whose answer goes to a LangGraph client.
pub(super) const SPELLED: &[Field] = &[SPELLING];
/// The parameters of a request whose answer may be a stream.
pub(super) const STREAM: &[Field] = &[
    Field::new(
        "format",
        Shape::Choice(FORMATS),
        "The format of the stream that is the reply, from its start. The other parameters \
         configure the stream. Default: negotiated by Accept, which prefers application/json.",
    ),
    SDK_VERSION,
    SPELLING,
    STREAM_MODE,
];
pub(super) const FROM: &[Field] = &[Field::new(
    "from",
    Shape::Either(&[Shape::Choice(FROM_NAMES), Shape::Number { min: 1, max: u64::MAX }]),
    "The first chunk to deliver: the first one, the next one that is published, or its number.",
)
.or(Preset::Text("start"))];
/// The parameters of a stream of several executions.
pub(super) const FROM_ALL: &[Field] = &[Field::new(
    "from",
    Shape::Choice(FROM_NAMES),
    "The start of each execution's events: its first chunk, or the next one that is published.",
)
.or(Preset::Text("start"))];
const FROM_NAMES: &[&str] = &["start", "live"];
pub(super) const EXECUTIONS: &[Field] =
    &[Field::new("executions", Shape::Executions, "The ids of the executions to follow.")
        .required()];
pub(super) const WAIT: &[Field] = &[Field::new(
    "wait_ms",
    Shape::Number { min: 0, max: limits::RESULT_WAIT_MAX.as_millis() as u64 },
    "The time to wait for the end, in milliseconds.",
)
.or(Preset::Number(limits::RESULT_WAIT_DEFAULT.as_millis() as u64))];

/// The parameters of the list of executions.
pub(super) const LISTED: &[Field] = &[
    Field::new("tool", Shape::ToolName, "Only executions of this tool."),
    Field::new("state", Shape::Choice(STATE_NAMES), "Only executions in this state."),
    Field::new(
        "limit",
        Shape::Number { min: 1, max: limits::LISTED_EXECUTIONS_MAX as u64 },
        "The maximum number of executions in the reply.",
    )
    .or(Preset::Number(limits::LISTED_EXECUTIONS_MAX as u64)),
    Field::new(
        "after",
        Shape::Place,
        "The value of `next` in the previous reply. The list continues there.",
    ),
    Field::new(
        "scope",
        Shape::Choice(SCOPE_NAMES),
        "`cluster`: the executions of all nodes of the cluster, in parts of 250 at most. A server \
         that is no node lists its own.",
    )
    .or(Preset::Text("server")),
];

/// The parameter of requests that a ticket may admit instead of a token. Admission has checked it
/// already.
pub(super) const TICKETS: &[Field] = &[Field::new(
    TICKET,
    Shape::Ticket,
    "A ticket from the links of an execution, for clients that cannot send a token.",
)];
/// The header of requests that resume a stream.
pub(super) const LAST_EVENT_ID: &[Field] = &[Field::new(
    "Last-Event-ID",
    Shape::Cursors,
    "The id of the last event that the client received. The stream continues after it and ignores \
     `from`.",
)];

/// The same header, of a stream whose events have numbers.
pub(super) const LAST_EVENT_NUMBER: &[Field] = &[Field::new(
    "Last-Event-ID",
    Shape::Cursors,
    "The number of the last event that the client received. The stream continues after it.",
)];

/// The header of requests for a document that clients may keep.
pub(super) const IF_NONE_MATCH: &[Field] = &[KNOWN_ETAGS];
const KNOWN_ETAGS: Field = Field::new(
    "If-None-Match",
    Shape::Cursors,
    "The entity tags of copies that the client has. The reply is 304 if one is current.",
);
/// The headers of requests for a payload that clients may read in parts.
pub(super) const RANGES: &[Field] = &[
    Field::new(
        "Range",
        Shape::Text { bytes_max: 64 },
        "The wanted bytes: `bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-COUNT`. The reply is \
         whole for several ranges and before the end of the execution.",
    ),
    Field::new(
        "If-Range",
        Shape::Text { bytes_max: 64 },
        "The entity tag of the client's part. The reply is whole if the tag is not current.",
    ),
    KNOWN_ETAGS,
];

/// The header of requests that may be repeated.
const KEY: Field = Field::new(
    "Idempotency-Key",
    Shape::Text { bytes_max: limits::IDEMPOTENCY_KEY_CHARS_MAX as u64 },
    "A text that is new for each request, such as a UUID. A repeated request with the same key and \
     body gets the execution of the first one, as long as that can be found.",
);

const TRACE_PARENT: Field = Field::new(
    "traceparent",
    Shape::Text { bytes_max: 512 },
    "The trace context of the request (W3C Trace Context). Tools, their commands and workers \
     receive it.",
);
const TRACE_STATE: Field = Field::new(
    "tracestate",
    Shape::Text { bytes_max: 512 },
    "The vendor-specific trace state (W3C Trace Context).",
);
const BAGGAGE: Field = Field::new(
    "baggage",
    Shape::Text { bytes_max: 512 },
    "The baggage of the request (W3C Baggage).",
);

/// The headers of requests that start work. Malformed values are ignored.
pub(super) const TRACE: &[Field] = &[TRACE_PARENT, TRACE_STATE, BAGGAGE];
/// The headers of requests that start one execution.
pub(super) const KEY_AND_TRACE: &[Field] = &[KEY, TRACE_PARENT, TRACE_STATE, BAGGAGE];

/// The header of requests of workers.
pub(super) const SESSION: &[Field] = &[NAME_OF_WORKER];
const NAME_OF_WORKER: Field =
    Field::new("X-Session-ID", Shape::Session, "The name that the worker gives itself.").required();
/// The headers of a part of a result. Its producer may repeat it.
pub(super) const SESSION_AND_PRODUCER: &[Field] =
    &[NAME_OF_WORKER, durable::PRODUCER_ID, durable::PRODUCER_EPOCH, durable::PRODUCER_SEQ];
pub(super) const WORKER_TOOLS: &[Field] = &[Field::new(
    "tools",
    Shape::ToolNames,
    "The virtual tools whose calls the worker takes. Default: all virtual tools.",
)];

/// The parameters of one request, of which none is unknown.
#[derive(Debug)]
pub(super) struct Parameters<'a> {
    query: Query<'a>,
    groups: &'static [&'static [Field]],
    headers: Headers<'a>,
}

impl<'a> Parameters<'a> {
    /// Reads a query string that may contain only the fields of `groups`.
    pub fn read(
        query: &'a str,
        headers: Headers<'a>,
        groups: &'static [&'static [Field]],
    ) -> Result<Parameters<'a>, ApiError> {
        let query = Query::parse(query)?;
        let fields = groups.iter().copied().flatten();
        let names: SmallVec<[&str; 16]> = fields.map(|field| field.name).collect();
        query.refuse_others(&names)?;
        Ok(Parameters { query, groups, headers })
    }

    /// Returns the head of the request.
    pub fn headers(&self) -> Headers<'a> {
        self.headers
    }

    fn shape(&self, name: &str) -> &'static Shape {
        let mut fields = self.groups.iter().copied().flatten();
        &fields.find(|field| field.name == name).expect("the field is declared").shape
    }

    fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let (min, max) = self.shape(name).number().expect("the field has this shape");
        Ok(self.query.number(name, min..=max)?)
    }

    fn choice(&self, name: &str) -> Result<Option<&'static str>, ApiError> {
        let choices = self.shape(name).choices().expect("the field has this shape");
        Ok(self.query.choice(name, choices)?)
    }

    fn kinds(&self, default: Kinds) -> Result<Kinds, ApiError> {
        if self.query.all("kinds").next().is_none() {
            return Ok(default);
        }
        let kinds: Result<Kinds, _> = self.query.list("kinds").map(str::parse::<Kind>).collect();
        match kinds {
            Ok(kinds) if kinds.is_empty() => Err(invalid("kinds", "it names no kind")),
            Ok(kinds) => Ok(kinds),
            Err(error) => Err(invalid("kinds", &error.to_string())),
        }
    }

    /// Reads a request for the payload of an execution. `HEAD` has no ranges.
    pub fn output(&self, execution: ExecutionId, is_head: bool) -> Result<OutputAsk, ApiError> {
        let etag = payload_etag(execution);
        let has_part = self.headers.only("if-range")?.is_none_or(|part| part == etag);
        let range = self.headers.only("range")?.filter(|_| has_part && !is_head);
        Ok(OutputAsk {
            kinds: self.kinds(Kinds::RAW)?,
            range: range.and_then(ByteRange::parse),
            is_known: has_etag(self.headers.texts("if-none-match"), &etag),
        })
    }

    /// True if an ended execution has to be removed.
    pub fn forgets(&self) -> Result<bool, ApiError> {
        match self.query.text("forget")? {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(invalid("forget", "it must be true or false")),
        }
    }

    /// Reads a request for a list of executions.
    pub fn listed(&self) -> Result<ListAsk, ApiError> {
        let tool = self.query.text("tool")?;
        if let Some(tool) = &tool
            && !is_tool_name(tool)
        {
            return Err(invalid("tool", "it must be the name of a tool"));
        }
        let state = self.choice("state")?;
        let named = |name: &str| ExecutionState::ALL.into_iter().find(|state| state.name() == name);
        let after = match self.query.text("after")? {
            None => None,
            Some(text) => match ListPlace::parse(text) {
                Some(place) => Some(place),
                None => return Err(invalid("after", "it must be `next` of a previous reply")),
            },
        };
        let limit = self.number("limit")?.unwrap_or(limits::LISTED_EXECUTIONS_MAX.into()) as u32;
        let scope = self.choice("scope")?.and_then(ListScope::named).unwrap_or_default();
        let limit_max = match scope {
            ListScope::Server => limits::LISTED_EXECUTIONS_MAX,
            ListScope::Cluster => limits::CLUSTER_LISTED_MAX,
        };
        Ok(ListAsk {
            tool: tool.map(Box::from),
            state: state.and_then(named),
            limit: limit.min(limit_max),
            after,
            scope,
        })
    }

    pub fn wait(&self) -> Result<Duration, ApiError> {
        let wait_ms = self.number("wait_ms")?;
        Ok(wait_ms.map_or(limits::RESULT_WAIT_DEFAULT, Duration::from_millis))
    }

    pub fn delivery_options(&self) -> Result<DeliveryOptions, ApiError> {
        let delay = self.number("coalesce_us")?.map(Duration::from_micros);
        let bytes = self.number("coalesce_bytes")?;
        let coalesce = (delay.is_some() || bytes.is_some()).then(|| Coalesce {
            delay_max: delay.unwrap_or(limits::COALESCE_DELAY_MAX),
            bytes_max: bytes.unwrap_or(limits::COALESCE_BYTES_DEFAULT),
        });
        let ack_window = self.number("acks")?.map(|window| window as u32);
        Ok(DeliveryOptions { coalesce, ack_window, ..self.ring_delivery_options()? })
    }

    /// Reads the delivery options of [`DOOR_WISHES`].
    fn ring_delivery_options(&self) -> Result<DeliveryOptions, ApiError> {
        Ok(DeliveryOptions {
            policy: self.choice("policy")?.map(policy_named),
            limit_chunks: self.number("max_chunks")?.map(|chunks| chunks as u32),
            limit_bytes: self.number("max_bytes")?,
            kinds: self.kinds(Kinds::ALL)?,
            ..DeliveryOptions::default()
        })
    }

    /// Reads the request of another process for the ring of an execution.
    pub fn read_door(&self, execution: ExecutionId) -> Result<ReadDoor, ApiError> {
        Ok(ReadDoor {
            execution,
            from: self.from()?,
            delivery_options: self.ring_delivery_options()?,
        })
    }

    /// Returns the format and the options of the stream if the request asks for one as its answer.
    /// The parameter `format` is stronger than `Accept`.
    pub fn stream(&self) -> Result<Option<(StreamFormat, DeliveryOptions)>, ApiError> {
        let accepted = || {
            let offered = [JSON, sse::MEDIA_TYPE, ndjson::MEDIA_TYPE];
            match negotiate(self.headers.texts("accept"), &offered)? {
                sse::MEDIA_TYPE => Some(StreamFormat::Sse),
                ndjson::MEDIA_TYPE => Some(StreamFormat::Ndjson),
                _ => None,
            }
        };
        if let Some(format) = self.explicit_format()?.or_else(accepted) {
            return Ok(Some((format, self.delivery_options()?)));
        }
        let is_there = |field: &&Field| self.query.all(field.name).next().is_some();
        match WISHES.iter().find(is_there) {
            Some(field) => {
                let problem = "it is valid only for a stream; set `format` or Accept";
                Err(invalid(field.name, problem))
            }
            None => Ok(None),
        }
    }

    /// Returns the format that the parameter `format` names, if it is present.
    pub fn explicit_format(&self) -> Result<Option<StreamFormat>, ApiError> {
        match self.choice("format")? {
            Some(name) => self.format_named(name).map(Some),
            None => self.refuse_format_details().map(|()| None),
        }
    }

    /// Reads a request to follow one execution.
    pub fn follow(&self, execution: ExecutionId) -> Result<Follow, ApiError> {
        self.follow_all(&[execution], self.from()?)
    }

    /// Returns where one execution begins.
    fn from(&self) -> Result<From, ApiError> {
        match self.query.text("from")? {
            None | Some("start") => Ok(From::Start),
            Some("live") => Ok(From::Live),
            Some(_) => match self.number("from") {
                Ok(seq) => {
                    Ok(From::Seq { seq: seq.expect("the parameter is present"), seen: None })
                }
                Err(_) => Err(invalid("from", "it must be start, live or a number from 1 on")),
            },
        }
    }

    /// Reads a request to follow several executions together.
    pub fn follow_listed(&self) -> Result<Follow, ApiError> {
        let mut executions: SmallVec<[ExecutionId; 8]> = SmallVec::new();
        for text in self.query.list("executions") {
            let id: ExecutionId =
                text.parse().map_err(|_| invalid("executions", "it must be a list of ids"))?;
            if executions.contains(&id) {
                return Err(invalid("executions", "it names an execution twice"));
            }
            if executions.len() == limits::STREAM_CURSORS_MAX {
                let most = limits::STREAM_CURSORS_MAX;
                let problem = format!("it names more than {most} executions");
                return Err(invalid("executions", &problem).limit(most as u64));
            }
            executions.push(id);
        }
        if executions.is_empty() {
            let text = "executions: it is missing";
            let error = ApiError::new(Status::BAD_REQUEST, "missing_parameter", text);
            return Err(error.field("executions"));
        }
        let from = match self.choice("from")? {
            Some("live") => From::Live,
            _ => From::Start,
        };
        Ok(Follow { is_combined: true, ..self.follow_all(&executions, from)? })
    }

    fn follow_all(&self, executions: &[ExecutionId], from: From) -> Result<Follow, ApiError> {
        let last_event_id = self.headers.only("last-event-id")?;
        let format = self.format()?;
        if let StreamFormat::Front(front) = format {
            let since = last_event_id.map(|id| event_of(front, id, executions[0])).transpose()?;
            return self.follow_front(executions, from, format, since);
        }
        let (places, seen_ends) = match last_event_id {
            Some(text) => resume(text, executions)?,
            None => (executions.iter().map(|id| (*id, from)).collect(), SmallVec::new()),
        };
        Ok(Follow {
            executions: places,
            is_combined: false,
            seen_ends,
            format,
            delivery_options: self.delivery_options()?,
            front: FrontOptions::default(),
        })
    }

    fn follow_front(
        &self,
        executions: &[ExecutionId],
        from: From,
        format: StreamFormat,
        since: Option<u64>,
    ) -> Result<Follow, ApiError> {
        if executions.len() > 1 {
            return Err(invalid(
                "format",
                "it is for one execution only, but the request names several",
            ));
        }
        Ok(Follow {
            executions: executions.iter().map(|id| (*id, from)).collect(),
            is_combined: false,
            seen_ends: SmallVec::new(),
            format,
            delivery_options: self.delivery_options()?,
            front: FrontOptions { since, ..FrontOptions::default() },
        })
    }

    /// Returns the format of a stream: that of the parameter `format`, or else the best match for
    /// `Accept`.
    pub fn format(&self) -> Result<StreamFormat, ApiError> {
        if let Some(format) = self.explicit_format()? {
            return Ok(format);
        }
        let offered = [sse::MEDIA_TYPE, ndjson::MEDIA_TYPE];
        match negotiate(self.headers.texts("accept"), &offered) {
            Some(sse::MEDIA_TYPE) => Ok(StreamFormat::Sse),
            Some(_) => Ok(StreamFormat::Ndjson),
            None => {
                let text = format!("the header Accept must allow {} or {}", offered[0], offered[1]);
                let error = ApiError::new(Status::NOT_ACCEPTABLE, "not_acceptable", text);
                Err(error.field("accept"))
            }
        }
    }

    /// Returns the format of this name, with the parameters that belong to it.
    fn format_named(&self, name: &str) -> Result<StreamFormat, ApiError> {
        match name {
            "sse" => self.refuse_format_details().map(|()| StreamFormat::Sse),
            "ndjson" => self.refuse_format_details().map(|()| StreamFormat::Ndjson),
            name => {
                let (sdk, spelling) = (self.choice("sdk_version")?, self.choice("spelling")?);
                let format = front::FrontFormat::from_parameters(name, sdk, spelling);
                let format = format.map_err(wrong_format)?;
                if let front::FrontFormat::Graph { .. } = format {
                    return self.run_events();
                }
                if self.query.all("stream_mode").next().is_some() {
                    let problem = "it is valid only with format=langgraph-runs";
                    return Err(invalid("stream_mode", problem));
                }
                Ok(StreamFormat::Front(format))
            }
        }
    }

    /// Refuses the parameters that belong only to formats of front ends.
    fn refuse_format_details(&self) -> Result<(), ApiError> {
        match STREAM[1..].iter().find(|field| self.query.all(field.name).next().is_some()) {
            Some(field) => {
                Err(invalid(field.name, "it is valid only with the format of a front end"))
            }
            None => Ok(()),
        }
    }

    /// Returns the trace that the request belongs to.
    pub fn trace(&self) -> TraceContext {
        let joined = |name: &str| {
            let values: SmallVec<[&str; 4]> = self.headers.texts(name).collect();
            (!values.is_empty()).then(|| values.join(","))
        };
        let parent = self.headers.only("traceparent").ok().flatten();
        TraceContext::parse(parent, joined("tracestate").as_deref(), joined("baggage").as_deref())
    }

    /// Returns the idempotency key, without its quotes if it has some.
    pub fn key(&self) -> Result<Option<Box<str>>, ApiError> {
        let chars_max = limits::IDEMPOTENCY_KEY_CHARS_MAX;
        let Some(value) = self.headers.only("idempotency-key")? else { return Ok(None) };
        let inner = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let key = inner.unwrap_or(value);
        let is_char = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        match (1..=chars_max).contains(&key.len()) && key.bytes().all(is_char) {
            true => Ok(Some(key.into())),
            false => {
                let text = format!(
                    "idempotency-key: it must be 1 to {chars_max} visible characters without \" \
                     and \\"
                );
                let error = ApiError::new(Status::BAD_REQUEST, "invalid_header", text);
                Err(error.field("idempotency-key").limit(chars_max as u64))
            }
        }
    }

    /// Returns the name that the worker gave itself.
    /// Returns the producer of an append or of a part, if the request names one.
    pub fn producer(&self) -> Result<Option<ProducerAt>, ApiError> {
        durable::producer(&self.headers)
    }

    pub fn session(&self) -> Result<Box<str>, ApiError> {
        let chars_max = limits::SESSION_CHARS_MAX;
        let wrong = |code, text: String| {
            ApiError::new(Status::BAD_REQUEST, code, text).field("x-session-id")
        };
        let Some(name) = self.headers.only("x-session-id")? else {
            let text = "x-session-id: it is missing; set it to a name for the worker";
            return Err(wrong("missing_header", text.to_owned()));
        };
        let is_name = (1..=chars_max).contains(&name.len());
        match is_name && name.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(name.into()),
            false => {
                let text = format!("x-session-id: it must be 1 to {chars_max} visible characters");
                Err(wrong("invalid_header", text).limit(chars_max as u64))
            }
        }
    }

    /// Returns the tools whose calls a worker takes; `None`: all virtual tools.
    pub fn worker_tools(&self) -> Result<Option<Vec<Box<str>>>, ApiError> {
        if self.query.all("tools").next().is_none() {
            return Ok(None);
        }
        let mut names: Vec<Box<str>> = Vec::new();
        for name in self.query.list("tools") {
            if !is_tool_name(name) {
                return Err(invalid("tools", "it must be a list of tool names"));
            }
            if names.iter().any(|other| **other == *name) {
                return Err(invalid("tools", "it names a tool twice"));
            }
            if names.len() == limits::WORKER_TOOLS_MAX {
                let most = limits::WORKER_TOOLS_MAX;
                let problem = format!("it names more than {most} tools");
                return Err(invalid("tools", &problem).limit(most as u64));
            }
            names.push(name.into());
        }
        match names.is_empty() {
            true => Err(invalid("tools", "it names no tool")),
            false => Ok(Some(names)),
        }
    }

    /// Returns true if the body has one JSON value per line.
    pub fn has_lines(&self) -> bool {
        let media_type = self.headers.only("content-type").ok().flatten();
        media_type.is_some_and(|media_type| is_media_type(media_type, ndjson::MEDIA_TYPE))
    }

    /// Returns true if the client prefers a page for people.
    pub fn wants_page(&self) -> bool {
        negotiate(self.headers.texts("accept"), &[JSON, PAGE]) == Some(PAGE)
    }

    /// Returns the format of metrics. If `Accept` allows neither format, it is the older one.
    pub fn metrics_format(&self) -> MetricsFormat {
        match negotiate(self.headers.texts("accept"), METRICS_TYPES) {
            Some("application/openmetrics-text") => MetricsFormat::OpenMetrics,
            _ => MetricsFormat::Prometheus,
        }
    }
}

/// The media type of a page for people.
const PAGE: &str = "text/html";

/// The media types of metrics. If a client prefers none, the first one is used.
pub(super) const METRICS_TYPES: &[&str] = &["text/plain", "application/openmetrics-text"];

/// The beginning of each execution of a stream, and the executions that have ended for its client.
type Places = (SmallVec<[(ExecutionId, From); 1]>, SmallVec<[ExecutionId; 1]>);

/// Returns where each execution continues after the event that the client saw last.
fn resume(text: &str, executions: &[ExecutionId]) -> Result<Places, ApiError> {
    let invalid = |error: CursorError| {
        let error = ApiError::new(Status::BAD_REQUEST, "invalid_cursor", error.to_string());
        error.field("last-event-id")
    };
    let cursors = parse_cursors(text).map_err(invalid)?;
    let (mut places, mut seen_ends) = Places::default();
    for (id, reached) in executions.iter().zip(cursors.of(executions).map_err(invalid)?) {
        places.push((*id, behind(reached).ok_or_else(|| invalid(CursorError::BadNumber))?));
        seen_ends.extend(reached.has_ended.then_some(*id));
    }
    Ok((places, seen_ends))
}

/// Returns the position after a cursor.
fn behind(reached: Reached) -> Option<From> {
    let seen = reached.seen.map(|SeenTotals { chunks, bytes }| Totals { chunks, bytes });
    Some(From::Seq { seq: reached.seq.checked_add(1)?, seen })
}

/// Returns the number of the event that the client saw last, in the format of a front end.
fn event_of(format: front::FrontFormat, id: &str, execution: ExecutionId) -> Result<u64, ApiError> {
    format.event_of(id, &execution.to_string()).ok_or_else(unknown_event)
}

fn unknown_event() -> ApiError {
    let text = "last-event-id: no event of this stream has this id in this format";
    ApiError::new(Status::BAD_REQUEST, "invalid_cursor", text).field("last-event-id")
}

/// Returns the error for a parameter of a format.
fn wrong_format(error: front::FormatError) -> ApiError {
    invalid(error.parameter, &format!("it must be {}", error.allowed))
}

/// Returns the error for a parameter that is invalid.
fn invalid(field: &str, problem: &str) -> ApiError {
    let text = format!("{field}: {problem}");
    ApiError::new(Status::BAD_REQUEST, "invalid_parameter", text).field(field)
}
