//! What comes with every request: whose it is, how it wants to be told what happens meanwhile, and
//! what it brings of an earlier one.

use serde_json::{Map, Value};

use super::client::{ClientCapabilities, ClientInfo};
use super::{Fault, Version};
use crate::limits;
use crate::trace::TraceContext;
use crate::wire::jsonrpc::Id;
use crate::wire::members::{member, take_member};

/// The member of `_meta` that says which version a request of the stateless era has.
pub const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// ... what its client can do, ...
pub const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// ... who it is, ...
pub const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";
/// ... and which log messages it wants.
pub const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// What a server says of itself in each result.
pub const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";
/// Which `subscriptions/listen` a notification belongs to.
pub const META_SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// Which task of the handshake era a message belongs to.
pub const META_TASK: &str = "io.modelcontextprotocol/related-task";
/// Our own: `true` in a call that wants its result as a stream to read from, `false` in one that
/// never does; in a result, what to read it from.
pub const META_STREAM: &str = "dev.streamdoor/stream";
/// Our own, in a result: the execution's id.
pub const META_EXECUTION: &str = "dev.streamdoor/execution";
/// Our own, in a result: where the native stream is.
pub const META_EVENTS: &str = "dev.streamdoor/events";

/// How much a log message matters, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// For who looks for a mistake.
    Debug,
    /// What happens.
    Info,
    /// What happens seldom.
    Notice,
    /// What could become an error.
    Warning,
    /// Something was not done.
    Error,
    /// A part of the whole does not work.
    Critical,
    /// Somebody has to act at once.
    Alert,
    /// Nothing works.
    Emergency,
}

impl Level {
    /// All of them, least first.
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

    /// As it is spelled.
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

    /// The level that is spelled so.
    pub fn parse(text: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == text)
    }

    /// # Errors
    /// It is none.
    pub(super) fn of(value: &Value) -> Result<Level, Fault> {
        value.as_str().and_then(Level::parse).ok_or_else(|| {
            let names = Level::ALL.map(Level::name).join(", ");
            Fault::invalid_params(format!("the log level is none of {names}"))
        })
    }
}

/// The handshake era's wish that a call be a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskWish {
    /// How long it is to be kept, if the client cares.
    pub ttl_ms: Option<u64>,
}

/// What a request brings that was answered with questions before, unchecked: see
/// [`super::request_state::Seal::replies`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Retry {
    /// Answers by the keys of their questions. What is no object was left out: it is asked again.
    pub answers: Map<String, Value>,
    /// What was given along with the questions.
    pub request_state: Option<String>,
}

/// What comes with every request.
#[derive(Clone, Debug, PartialEq)]
pub struct Context {
    /// Under which its answer goes back.
    pub id: Id,
    /// In which version.
    pub version: Version,
    /// What its client can do.
    pub client: ClientCapabilities,
    /// Who its client is, if it says so.
    pub client_info: Option<ClientInfo>,
    /// Under which it is told how far it is, if it wants to be.
    pub progress_token: Option<Id>,
    /// Under which it is given pieces of its result, if its client takes them.
    pub partial_token: Option<Id>,
    /// Log messages below this are not sent; without it none is.
    pub log_level: Option<Level>,
    /// It wants to be a task.
    pub task: Option<TaskWish>,
    /// Whether it wants its result as a stream to read from: at once, or never; if it does not
    /// say, only where that is long.
    pub wants_stream: Option<bool>,
    /// What it is a part of.
    pub trace: TraceContext,
    /// What it brings of an earlier one.
    pub retry: Retry,
}

/// Who asks, before it is known what.
pub(super) struct Asker {
    pub id: Id,
    pub version: Version,
    pub client: ClientCapabilities,
    pub client_info: Option<ClientInfo>,
    pub log_level: Option<Level>,
}

impl Context {
    /// Takes out of `params` what is the same in all requests.
    ///
    /// # Errors
    /// Something of it is not what it has to be.
    pub(super) fn take(asker: Asker, params: &mut Map<String, Value>) -> Result<Context, Fault> {
        let meta = match take_member(params, "_meta") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(meta)) => meta,
            Some(_) => return Err(Fault::invalid_params("`_meta` is not an object")),
        };
        let token = |name: &str| match member(&meta, name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match Id::of_value(value) {
                Some(token) => Ok(Some(token)),
                None => {
                    let bytes_max = limits::MCP_ID_BYTES_MAX;
                    let text = format!(
                        "`_meta.{name}` is not a string of at most {bytes_max} bytes or an integer"
                    );
                    Err(Fault::invalid_params(text))
                }
            },
        };
        let Asker { id, version, client, client_info, log_level } = asker;
        let partial_token = token("partialResultToken")?.filter(|_| client.partial_results);
        Ok(Context {
            id,
            version,
            client_info,
            progress_token: token("progressToken")?,
            partial_token,
            client,
            log_level,
            task: task_wish(version, params)?,
            wants_stream: wants_stream(&meta, params)?,
            trace: trace_of(&meta),
            retry: retry(version, params)?,
        })
    }
}

/// B9: what W3C does not spell so is left out.
fn trace_of(meta: &Map<String, Value>) -> TraceContext {
    let text = |name: &str| member(meta, name).and_then(Value::as_str);
    TraceContext::parse(text("traceparent"), text("tracestate"), text("baggage"))
}

/// A45: only where there are tasks of this form; elsewhere it is as if it were not there.
fn task_wish(version: Version, params: &mut Map<String, Value>) -> Result<Option<TaskWish>, Fault> {
    let wish = take_member(params, "task");
    if version != Version::V2025_11_25 {
        return Ok(None);
    }
    match wish {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(wish)) => match wish.get("ttl") {
            None | Some(Value::Null) => Ok(Some(TaskWish { ttl_ms: None })),
            Some(ttl) => match ttl.as_u64() {
                Some(ttl_ms) => Ok(Some(TaskWish { ttl_ms: Some(ttl_ms) })),
                None => Err(Fault::invalid_params("`task.ttl` is not a number of milliseconds")),
            },
        },
        Some(_) => Err(Fault::invalid_params("`task` is not an object")),
    }
}

/// In `_meta`, or, for models that can say nothing there, among the arguments.
fn wants_stream(
    meta: &Map<String, Value>,
    params: &mut Map<String, Value>,
) -> Result<Option<bool>, Fault> {
    let flag = |name: &str, value: Option<&Value>| match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(Fault::invalid_params(format!("`{name}` is neither true nor false"))),
    };
    let arguments = params.get_mut("arguments").and_then(Value::as_object_mut);
    let said = arguments.and_then(|arguments| arguments.shift_remove("_stream"));
    let in_arguments = flag("arguments._stream", said.as_ref())?;
    let in_meta = flag(&format!("_meta.{META_STREAM}"), member(meta, META_STREAM))?;
    Ok(in_meta.or(in_arguments))
}

/// B16: missing answers, and such as make no sense, are asked for again.
fn retry(version: Version, params: &mut Map<String, Value>) -> Result<Retry, Fault> {
    if version < Version::V2026_07_28 {
        return Ok(Retry::default());
    }
    let answers = match take_member(params, "inputResponses") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(answers)) => {
            answers.into_iter().filter(|(_, answer)| answer.is_object()).collect()
        }
        Some(_) => return Err(Fault::invalid_params("`inputResponses` is not an object")),
    };
    let request_state = match take_member(params, "requestState") {
        None | Some(Value::Null) => None,
        Some(Value::String(state)) => Some(state),
        Some(_) => return Err(Fault::invalid_params("`requestState` is not a string")),
    };
    Ok(Retry { answers, request_state })
}
