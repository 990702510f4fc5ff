//! The members of `POST /v1/agent/stream`, which are also the arguments of the tools `agent` and
//! `llm_generate`.

use serde_json::{Map, Value};

use crate::endpoint::body::{Members, parse};
use crate::endpoint::execute::{
    AGREED, ALLOWED, BEGINNING, DELIVERED, DURABLE, FULL, HELD_BACK, KEPT, KEPT_FOR, MEASURED,
    RETAINED, STALLED, opening,
};
use crate::endpoint::fields::{Field, Preset, Shape, object_schema};
use crate::endpoint::front::bodies::{self, RunRequest};
use crate::endpoint::{ApiError, DeliveryOptions, Execute, StreamFormat};
use crate::limits;
use crate::tool::AGENT;
use crate::trace::TraceContext;

const TEXT: Shape = Shape::Text { bytes_max: limits::AGENT_TEXT_BYTES_MAX as u64 };
const EFFORTS: &[&str] = &["low", "medium", "high"];

const TASK: Field =
    Field::new("task", TEXT, "The task. If it is absent, the last message is the task.");
const MESSAGES: Field = Field::new(
    "messages",
    Shape::Messages,
    "The conversation so far, oldest message first. The task follows it.",
);
const MODEL: Field = Field::new(
    "model",
    Shape::ToolName,
    "The name of one of the server's models. Default: the first one.",
);
const TOOLS: Field = Field::new(
    "tools",
    Shape::Either(&[Shape::Choice(&["all"]), Shape::AgentTools]),
    "The tools that the agent may call: names from /v1/tools, or all except agents. Default: set \
     by the server.",
);
const SYSTEM: Field =
    Field::new("system", TEXT, "The instructions that the model receives before everything else.");
const STRATEGY: Field = Field::new(
    "strategy",
    Shape::Choice(&["after_turn", "eager"]),
    "The time at which tools start: after the model's turn, or each as soon as its arguments are \
     complete.",
)
.or(Preset::Text("after_turn"));
const PARALLEL: Field = Field::new(
    "parallel",
    Shape::Number { min: 1, max: limits::AGENT_CALLS_PER_STEP_MAX as u64 },
    "The maximum number of tools that run at once.",
)
.or(Preset::Number(limits::AGENT_PARALLEL_CALLS as u64));
const STEPS: Field = Field::new(
    "max_steps",
    Shape::Number { min: 1, max: limits::AGENT_STEPS_MAX as u64 },
    "The maximum number of turns of the model, each with the calls that it makes.",
)
.or(Preset::Number(limits::AGENT_STEPS as u64));
const TOKENS: Field = Field::new(
    "max_tokens",
    Shape::Number { min: 1, max: u32::MAX as u64 },
    "The maximum number of tokens that the model writes in one turn. Default: set by its provider.",
);
const TOTAL_TOKENS: Field = Field::new(
    "max_total_tokens",
    Shape::Number { min: 1, max: u64::MAX },
    "The number of tokens, read and written in all turns, at which the run stops. Default: no \
     limit.",
);
const TEMPERATURE: Field =
    Field::new("temperature", Shape::Real, "The sampling temperature of the model, from 0 to 2.");
const EFFORT: Field =
    Field::new("reasoning_effort", Shape::Choice(EFFORTS), "The amount of reasoning.");
const TIMEOUT: Field = Field::new(
    "timeout_ms",
    Shape::Number { min: 1, max: limits::AGENT_DURATION_MAX.as_millis() as u64 },
    "The time limit. A run that reaches it is completed and reports the reason.",
)
.or(Preset::Number(limits::AGENT_DURATION.as_millis() as u64));
const ACCUMULATE: Field =
    Field::new("accumulate", Shape::Flag, "Each delta also contains the whole text so far.");
const DEPTH: Field = Field::new(
    "depth",
    Shape::Number { min: 0, max: limits::AGENT_DEPTH_MAX as u64 },
    "The number of levels of agents that the agent may start, if `agent` is among its tools.",
)
.or(Preset::Number(0));
const CANCEL: Field = Field::new(
    "cancel_on_disconnect",
    Shape::Flag,
    "The run is cancelled when this connection breaks. Default: it continues and can be followed.",
);

/// The members of a request: [`RUN`], and the options of every execution.
pub(super) const STREAMED: &[Field] = &[
    TASK,
    MESSAGES,
    MODEL,
    TOOLS,
    SYSTEM,
    STRATEGY,
    PARALLEL,
    STEPS,
    TOKENS,
    TOTAL_TOKENS,
    TEMPERATURE,
    EFFORT,
    TIMEOUT,
    ACCUMULATE,
    DEPTH,
    CANCEL,
    AGREED,
    BEGINNING,
    KEPT,
    ALLOWED,
    RETAINED,
    HELD_BACK,
    STALLED,
    MEASURED,
    DURABLE,
    DELIVERED,
    FULL,
    KEPT_FOR,
];
/// The arguments of `agent`.
const RUN: &[Field] = STREAMED.split_at(15).0;
/// The arguments of `llm_generate`.
const GENERATE: &[Field] = &[
    Field::new("prompt", TEXT, "The prompt for the model.").required(),
    MODEL,
    SYSTEM,
    TOKENS,
    TEMPERATURE,
    EFFORT,
    Field::new("stream", Shape::Flag, "No effect: each delta is always a chunk."),
];

/// Returns the schema of the arguments of `agent`.
pub fn agent_schema() -> Value {
    object_schema(RUN)
}

/// Returns the schema of the arguments of `llm_generate`.
pub fn generate_schema() -> Value {
    object_schema(GENERATE)
}

/// The options of the answer to `POST /v1/agent/stream`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StreamOptions {
    /// The format that the request named.
    pub said: Option<StreamFormat>,
    /// The format for clients that send our own members and name no format.
    pub own: StreamFormat,
    pub delivery_options: DeliveryOptions,
}

/// Reads the body of `POST /v1/agent/stream`: an execution whose arguments are among its members.
/// The body shows whether a front end's client sent it. The answer then has the format of that
/// front end, unless the request names another.
pub(super) fn stream(body: &[u8], stream: StreamOptions) -> Result<Execute, ApiError> {
    let StreamOptions { said, own, delivery_options } = stream;
    match bodies::run_of(parse(body)?)? {
        RunRequest::Own(body) => run(&body, Some((said.unwrap_or(own), delivery_options))),
        RunRequest::Front { members, format, front } => {
            let format = said.unwrap_or(StreamFormat::Front(format));
            let execute = run(&members, Some((format, delivery_options)))?;
            Ok(Execute { front: Some(front.into()), ..execute })
        }
    }
}

/// Returns a run whose arguments are among these members.
pub(super) fn run(
    body: &Value,
    stream: Option<(StreamFormat, DeliveryOptions)>,
) -> Result<Execute, ApiError> {
    let members = Members::of(body, STREAMED)?;
    let mut arguments = Map::new();
    for field in RUN {
        if let Some(value) = members.get(field.name) {
            arguments.insert(field.name.to_owned(), value.clone());
        }
    }
    Ok(Execute {
        tool: AGENT.to_owned(),
        arguments: Value::Object(arguments),
        opening: opening(&members)?,
        stream,
        cancels: members.flag("cancel_on_disconnect")?,
        trace: TraceContext::default(),
        front: None,
        key: None,
    })
}

/// Returns true if a run has a member of this name.
pub(super) fn is_member(name: &str) -> bool {
    STREAMED.iter().any(|field| field.name == name)
}
