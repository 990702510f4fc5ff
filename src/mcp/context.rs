//! The common part of all requests: the client, its options for notifications, and the state of an
//! earlier request that it continues.

use serde_json::{Map, Value};

use super::client::{ClientCapabilities, ClientInfo};
use super::{McpFault, Version};
use crate::limits;
use crate::trace::TraceContext;
use crate::wire::json::whole_number;
use crate::wire::jsonrpc::{Id, Parameters};
use crate::wire::members::{Members, Place, take_member};

/// The member of `_meta` that holds the version of a request of the stateless era.
pub const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The member of `_meta` that holds the client's capabilities, ...
pub const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// ... its name and version, ...
pub const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";
/// ... and the lowest level of log messages that it wants.
pub const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// The member of `_meta` that holds the server's name and version, in each result.
pub const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";
/// The member of `_meta` that names the `subscriptions/listen` a notification belongs to.
pub const META_SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// The member of `_meta` that names the handshake era's task a message belongs to.
pub const META_TASK: &str = "io.modelcontextprotocol/related-task";
/// A member of our own. In a call, `true` requests the result as a stream, and `false` forbids
/// that. In a result, it names the stream.
pub const META_STREAM: &str = "dev.streamdoor/stream";
/// A member of our own. In a progress notification, it holds the chunks. In a call, `"full"`
/// requests that each chunk has its data, even if the message repeats it.
pub const META_CHUNKS: &str = "dev.streamdoor/chunks";
/// A member of our own, in a result: the id of the execution.
pub const META_EXECUTION: &str = "dev.streamdoor/execution";
/// A member of our own, in a result: the address of the native stream.
pub const META_EVENTS: &str = "dev.streamdoor/events";

/// The severity of a log message, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// For debugging.
    Debug,
    /// Normal operation.
    Info,
    /// Normal but significant events.
    Notice,
    /// A possible error.
    Warning,
    /// An operation failed.
    Error,
    /// A component has failed.
    Critical,
    /// Immediate action is required.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Level; 8] = [
        Level::Debug,
        Level::Info,
        Level::Notice,
        Level::Warning,
        Level::Error,
        Level::Critical,
        Level::Alert,
        Level::Emergency,
    ];

    /// The name of the level in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Notice => "notice",
            Level::Warning => "warning",
            Level::Error => "error",
            Level::Critical => "critical",
            Level::Alert => "alert",
            Level::Emergency => "emergency",
        }
    }

    /// Returns the level of this name.
    pub fn parse(text: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == text)
    }

    /// Parses a level.
    ///
    /// # Errors
    /// The value is no level.
    pub(super) fn of(value: &Value) -> Result<Level, McpFault> {
        value.as_str().and_then(Level::parse).ok_or_else(|| {
            let names = Level::ALL.map(Level::name).join(", ");
            McpFault::invalid_params(format!("the log level must be one of {names}"))
        })
    }
}

/// The request of the handshake era that a call run as a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRequest {
    /// The retention that the client requests, in ms.
    pub ttl_ms: Option<u64>,
}

/// The answers and the state of a request that is sent again after questions. They are not verified
/// yet; [`super::request_state::Seal::replies`] does that.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Retry {
    /// Answers by the keys of their questions. Answers that are no objects were left out, so their
    /// questions are asked again.
    pub answers: Map<String, Value>,
    /// The state that came with the questions.
    pub request_state: Option<String>,
}

/// The common part of all requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Context {
    /// The id of the request.
    pub id: Id,
    /// The version of the protocol.
    pub version: Version,
    /// The client's capabilities.
    pub client: ClientCapabilities,
    /// The client's name and version, if it declares them.
    pub client_info: Option<ClientInfo>,
    /// The token for progress notifications, if the client wants them.
    pub progress_token: Option<Id>,
    /// The token for partial results, if the client wants them and has declared that it takes them.
    pub partial_token: Option<Id>,
    /// The lowest level of log messages that are sent; `None` if none are.
    pub log_level: Option<Level>,
    /// The options of a task, if the call should be one.
    pub task: Option<TaskRequest>,
    /// True if the result should be a stream at once, and false if it must never be one. `None`
    /// makes it a stream only if it is long.
    pub wants_stream: Option<bool>,
    /// True if each chunk of a progress notification should have its data, even if the message
    /// repeats it.
    pub wants_full_chunks: bool,
    /// The trace that the request belongs to.
    pub trace: TraceContext,
    /// The state of the earlier request that this one continues.
    pub retry: Retry,
}

/// The client's part of a [`Context`], known before the parameters are read.
pub(super) struct Asker {
    pub id: Id,
    pub version: Version,
    pub client: ClientCapabilities,
    pub client_info: Option<ClientInfo>,
    pub log_level: Option<Level>,
}

impl Context {
    /// Returns the context of a call that is over, of which only the version is left.
    pub fn past(version: Version) -> Context {
        Context {
            id: Id::of_number(0),
            version,
            client: ClientCapabilities::default(),
            client_info: None,
            progress_token: None,
            partial_token: None,
            log_level: None,
            task: None,
            wants_stream: None,
            wants_full_chunks: false,
            trace: TraceContext::default(),
            retry: Retry::default(),
        }
    }

    /// Takes the common part of all requests out of `params`. Returns it and the other parameters.
    ///
    /// # Errors
    /// A member of it is malformed.
    pub(super) fn take(asker: Asker, params: Parameters) -> Result<(Context, Members), McpFault> {
        let (meta, mut params) = params.into_parts();
        let meta = match meta {
            Place::Object(meta) => meta,
            Place::Other(Value::Null) => Members::default(),
            Place::Other(_) => return Err(McpFault::invalid_params("`_meta` is not an object")),
        };
        let token = |name: &str| match meta.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match Id::of_value(value) {
                Some(token) => Ok(Some(token)),
                None => {
                    let bytes_max = limits::MCP_ID_BYTES_MAX;
                    let text = format!(
                        "`_meta.{name}` is not a string of at most {bytes_max} bytes or an integer"
                    );
                    Err(McpFault::invalid_params(text))
                }
            },
        };
        let Asker { id, version, client, client_info, log_level } = asker;
        let partial_token = token("partialResultToken")?.filter(|_| client.partial_results);
        let context = Context {
            id,
            version,
            client_info,
            progress_token: token("progressToken")?,
            partial_token,
            client,
            log_level,
            task: task_request(version, &mut params)?,
            wants_stream: wants_stream(&meta, &mut params)?,
            wants_full_chunks: wants_full_chunks(&meta)?,
            trace: trace_of(&meta),
            retry: retry(version, &mut params)?,
        };
        Ok((context, params))
    }
}

/// Reads the trace. Members that W3C Trace Context does not allow are left out (B9).
fn trace_of(meta: &Members) -> TraceContext {
    let text = |name: &str| meta.get(name).and_then(Value::as_str);
    TraceContext::parse(text("traceparent"), text("tracestate"), text("baggage"))
}

/// Takes the `task` of a call. It is ignored in versions without tasks of this form (A45).
fn task_request(version: Version, params: &mut Members) -> Result<Option<TaskRequest>, McpFault> {
    let wish = params.take("task");
    if version != Version::V2025_11_25 {
        return Ok(None);
    }
    match wish {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(wish)) => match wish.get("ttl") {
            None | Some(Value::Null) => Ok(Some(TaskRequest { ttl_ms: None })),
            Some(ttl) => match whole_number(ttl) {
                Some(ttl_ms) => Ok(Some(TaskRequest { ttl_ms: Some(ttl_ms) })),
                None => Err(McpFault::invalid_params("`task.ttl` is not a number of milliseconds")),
            },
        },
        Some(_) => Err(McpFault::invalid_params("`task` is not an object")),
    }
}

/// Reads the option from `_meta`, or from the arguments: some models cannot write to `_meta`.
fn wants_stream(meta: &Members, params: &mut Members) -> Result<Option<bool>, McpFault> {
    let flag = |place: &str, name: &str, value: Option<&Value>| match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(McpFault::invalid_params(format!("`{place}.{name}` must be true or false"))),
    };
    let arguments = params.get_mut("arguments").and_then(Value::as_object_mut);
    let said = arguments.and_then(|arguments| take_member(arguments, "_stream"));
    let in_arguments = flag("arguments", "_stream", said.as_ref())?;
    let in_meta = flag("_meta", META_STREAM, meta.get(META_STREAM))?;
    Ok(in_meta.or(in_arguments))
}

/// Reads the form of chunks from `_meta`.
fn wants_full_chunks(meta: &Members) -> Result<bool, McpFault> {
    match meta.get(META_CHUNKS) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::String(form)) if form == "full" => Ok(true),
        Some(_) => Err(McpFault::invalid_params(format!("`_meta.{META_CHUNKS}` must be \"full\""))),
    }
}

/// Takes the answers and the state of a retry. Missing or malformed answers are asked for again
/// (B16).
fn retry(version: Version, params: &mut Members) -> Result<Retry, McpFault> {
    if version < Version::V2026_07_28 {
        return Ok(Retry::default());
    }
    let answers = match params.take("inputResponses") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(answers)) => {
            answers.into_iter().filter(|(_, answer)| answer.is_object()).collect()
        }
        Some(_) => return Err(McpFault::invalid_params("`inputResponses` is not an object")),
    };
    let request_state = match params.take("requestState") {
        None | Some(Value::Null) => None,
        Some(Value::String(state)) => Some(state),
        Some(_) => return Err(McpFault::invalid_params("`requestState` is not a string")),
    };
    Ok(Retry { answers, request_state })
}
