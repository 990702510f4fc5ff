//! The bodies of `POST /v1/executions` and of an acknowledgement.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::endpoint::body::{Members, parse};
use crate::endpoint::fields::{Field, POLICIES, Preset, Shape, milliseconds, policy_named};
use crate::endpoint::{
    ApiError, DeliveryOptions, Execute, IdempotencyKey, Opening, PolicyChoice, StreamFormat,
};
use crate::engine::{Hold, OnStall, ProgressSource, Start, Timeouts};
use crate::limits;
use crate::stream::{Deliver, OnFull};
use crate::trace::TraceContext;

/// The fields of an execution that a client starts.
pub(super) const EXECUTE: &[Field] = &[
    Field::new(
        "tool",
        Shape::Text { bytes_max: limits::TOOL_NAME_CHARS_MAX as u64 },
        "The name of the tool to run, from /v1/tools.",
    )
    .required(),
    Field::new(
        "arguments",
        Shape::Anything,
        "The arguments of the tool, as its input schema allows. Default: none.",
    ),
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

// The fields of every execution, whatever it runs. `opening` reads them.

pub(super) const AGREED: Field = Field::new(
    "policy",
    Shape::Either(&[Shape::Choice(POLICIES), Shape::Members(POLICY)]),
    "The policy for subscribers that do not choose one. Default: set by the tool.",
);
pub(super) const BEGINNING: Field = Field::new(
    "start",
    Shape::Either(&[Shape::Choice(&["now"]), Shape::Members(START)]),
    "The condition for the start: at once, or after a number of subscribers.",
)
.or(Preset::Text("now"));
pub(super) const KEPT: Field = Field::new(
    "hold",
    Shape::Either(&[Shape::Choice(&["newest", "until_read"]), Shape::Members(HOLD)]),
    "The chunks that are kept until a reader comes: the newest, or the oldest. `until_read` keeps \
     the oldest, and a tool that has filled the ring waits, for 30 s at most.",
)
.or(Preset::Text("until_read"));
pub(super) const ALLOWED: Field = Field::new(
    "timeouts",
    Shape::Members(TIMEOUTS),
    "The time limits, where null means no limit. Default: set by the tool.",
);
pub(super) const RETAINED: Field =
    Field::ms("retention_ms", 0, "The time for which the execution can be read after its end.")
        .or(Preset::Number(limits::RETENTION.as_millis() as u64));
pub(super) const HELD_BACK: Field = Field::ms(
    "block_deadline_ms",
    1,
    "The longest time that a block subscriber may hold the execution back.",
)
.or(Preset::Number(limits::BLOCK_DEADLINE.as_millis() as u64));
pub(super) const STALLED: Field = Field::new(
    "on_stall",
    Shape::Choice(&["detach", "fail"]),
    "The action at the block deadline: the subscriber is detached, or the execution fails.",
)
.or(Preset::Text("detach"));
pub(super) const MEASURED: Field = Field::new(
    "progress",
    Shape::Choice(&["tool", "chunks", "bytes"]),
    "The source of the progress. Default: set by the tool.",
);

pub(super) const DURABLE: Field = Field::new(
    "durability",
    Shape::Choice(&["none", "written", "synced", "replicated"]),
    "The promise for the chunks: none, kept through the end of the server's process, kept through \
     a power cut, or in the log of the cluster. Default: set by the server.",
);
pub(super) const DELIVERED: Field = Field::new(
    "deliver",
    Shape::Choice(&["at_once", "when_durable"]),
    "The time at which subscribers are given chunks: at once, or when they are kept as promised.",
)
.or(Preset::Text("at_once"));
pub(super) const FULL: Field = Field::new(
    "on_full",
    Shape::Choice(&["pause", "gap", "wait"]),
    "The consequence if the disk has no room for a chunk. `pause`: the execution waits while the \
     disk moves, and goes on without it after 2 s. `gap`: it never waits. `wait`: it waits until \
     the block deadline, and fails then. Late readers find a gap where a chunk was not kept.",
)
.or(Preset::Text("pause"));
pub(super) const KEPT_FOR: Field = Field::new(
    "keep_s",
    Shape::Number { min: 1, max: limits::KEEP_S_MAX as u64 },
    "The time in seconds for which the execution is kept on disk after its end. If the disk is as \
     full as it may be, the oldest executions go before their time. Default: set by the server.",
);

pub(super) const POLICY: &[Field] = &[
    Field::new("name", Shape::Choice(POLICIES), "The name of the policy.").required(),
    Field::new(
        "max_chunks",
        Shape::Number { min: 1, max: u32::MAX as u64 },
        "The maximum lag of a subscriber, in chunks.",
    ),
    Field::new(
        "max_bytes",
        Shape::Number { min: 1, max: u64::MAX },
        "The maximum lag of a subscriber, in bytes.",
    ),
];

const START: &[Field] = &[
    Field::new(
        "after_subscribers",
        Shape::Number { min: 1, max: limits::SUBSCRIBERS_PER_EXECUTION_MAX as u64 },
        "The number of subscribers to wait for.",
    )
    .required(),
    Field::ms(
        "deadline_ms",
        1,
        "The time after which the execution starts with fewer subscribers.",
    )
    .or(ATTACH),
];

const HOLD: &[Field] =
    &[Field::ms("until_read_ms", 1, "The longest time for which the oldest chunks are kept.")
        .required()];

pub(super) const TIMEOUTS: &[Field] = &[
    Field::new("first_chunk_ms", MS_OR_NULL, "The time until the first chunk or progress report.")
        .or(Preset::Number(limits::TIMEOUT_FIRST_CHUNK.as_millis() as u64)),
    Field::new(
        "inactivity_ms",
        MS_OR_NULL,
        "The time from one chunk or progress report to the next.",
    )
    .or(Preset::Number(limits::TIMEOUT_INACTIVITY.as_millis() as u64)),
    Field::new("total_ms", MS_OR_NULL, "The total time. Default: no limit."),
];

const MS_OR_NULL: Shape = Shape::Either(&[milliseconds(1), Shape::Null]);
const ATTACH: Preset = Preset::Number(limits::ATTACH_DEADLINE.as_millis() as u64);

/// The fields of an acknowledgement.
pub(super) const ACKNOWLEDGE: &[Field] = &[Field::new(
    "seq",
    Shape::Number { min: 0, max: u64::MAX },
    "The number of the last chunk that the subscriber has processed.",
)
.required()];

/// Returns the key of a request with this body.
pub(super) fn key(text: Box<str>, body: &[u8]) -> IdempotencyKey {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    IdempotencyKey { text, digest: hasher.finish() }
}

/// Reads the body of `POST /v1/executions`.
pub(super) fn execute(
    body: &[u8],
    stream: Option<(StreamFormat, DeliveryOptions)>,
) -> Result<Execute, ApiError> {
    let body = parse(body)?;
    let members = Members::of(&body, EXECUTE)?;
    let (tool, arguments) = (tool(&members)?, arguments(&members)?);
    let (opening, trace) = (opening(&members)?, TraceContext::default());
    Ok(Execute { tool, arguments, opening, stream, cancels: false, trace, front: None, key: None })
}

/// Reads the fields that every execution has, whatever it runs.
pub(super) fn opening(members: &Members<'_>) -> Result<Opening, ApiError> {
    Ok(Opening {
        policy: policy(members)?,
        start: start(members)?,
        hold: hold(members)?,
        timeouts: timeouts(members)?,
        retention: duration(members, "retention_ms")?,
        block_deadline: duration(members, "block_deadline_ms")?,
        on_stall: match members.choice("on_stall")? {
            Some("fail") => OnStall::Fail,
            _ => OnStall::Detach,
        },
        durability: members
            .choice("durability")?
            .map(|name| name.parse().expect("every choice is a durability")),
        deliver: match members.choice("deliver")? {
            Some("when_durable") => Deliver::WhenDurable,
            _ => Deliver::AtOnce,
        },
        on_full: members.choice("on_full")?.map(|name| match name {
            "wait" => OnFull::Wait,
            "gap" => OnFull::Gap,
            _ => OnFull::Pause,
        }),
        keep: members.number("keep_s")?.map(Duration::from_secs),
        progress: members.choice("progress")?.map(|name| match name {
            "chunks" => ProgressSource::Chunks,
            "bytes" => ProgressSource::Bytes,
            _ => ProgressSource::Tool,
        }),
    })
}

/// Reads an acknowledgement. Returns the number of the chunk through which it goes.
pub(super) fn acknowledge(body: &[u8]) -> Result<u64, ApiError> {
    let body = parse(body)?;
    let seq = Members::of(&body, ACKNOWLEDGE)?.number("seq")?;
    Ok(seq.expect("the field is required"))
}

fn tool(members: &Members<'_>) -> Result<String, ApiError> {
    let chars_max = limits::TOOL_NAME_CHARS_MAX;
    match members.get("tool") {
        Some(Value::String(name)) if (1..=chars_max).contains(&name.len()) => Ok(name.clone()),
        _ => {
            let problem = format!("it must be a name of 1 to {chars_max} characters");
            Err(members.error("tool", &problem).limit(chars_max as u64))
        }
    }
}

fn arguments(members: &Members<'_>) -> Result<Value, ApiError> {
    match members.get("arguments") {
        None => Ok(Value::Object(Map::new())),
        Some(arguments @ Value::Object(_)) => Ok(arguments.clone()),
        Some(_) => Err(members.error("arguments", "it must be an object")),
    }
}

pub(super) fn policy(members: &Members<'_>) -> Result<Option<PolicyChoice>, ApiError> {
    let Some(parts) = members.members("policy")? else {
        let name = members.choice("policy")?;
        return Ok(name.map(|name| PolicyChoice { policy: policy_named(name), ..<_>::default() }));
    };
    Ok(Some(PolicyChoice {
        policy: policy_named(parts.choice("name")?.expect("the field is required")),
        limit_chunks: parts.number("max_chunks")?.map(|chunks| chunks as u32),
        limit_bytes: parts.number("max_bytes")?,
    }))
}

fn start(members: &Members<'_>) -> Result<Start, ApiError> {
    let Some(parts) = members.members("start")? else {
        members.choice("start")?;
        return Ok(Start::Now);
    };
    Ok(Start::AfterSubscribers {
        count: parts.number("after_subscribers")?.expect("the field is required") as u32,
        deadline: duration(&parts, "deadline_ms")?.unwrap_or(limits::ATTACH_DEADLINE),
    })
}

fn hold(members: &Members<'_>) -> Result<Hold, ApiError> {
    Ok(match members.members("hold")? {
        Some(parts) => Hold::UntilRead {
            deadline: duration(&parts, "until_read_ms")?.expect("the field is required"),
        },
        None if members.choice("hold")? == Some("newest") => Hold::Newest,
        None => Hold::default(),
    })
}

pub(super) fn timeouts(members: &Members<'_>) -> Result<Option<Timeouts>, ApiError> {
    let Some(parts) = members.members("timeouts")? else {
        return match members.get("timeouts") {
            None => Ok(None),
            Some(_) => Err(members.error("timeouts", "it must be an object")),
        };
    };
    let timeout = |name: &str, default: Option<Duration>| match parts.get(name) {
        None => Ok(default),
        Some(Value::Null) => Ok(None),
        Some(_) => duration(&parts, name),
    };
    let defaults = Timeouts::default();
    Ok(Some(Timeouts {
        first_chunk: timeout("first_chunk_ms", defaults.first_chunk)?,
        inactivity: timeout("inactivity_ms", defaults.inactivity)?,
        total: timeout("total_ms", defaults.total)?,
    }))
}

pub(super) fn duration(members: &Members<'_>, name: &str) -> Result<Option<Duration>, ApiError> {
    Ok(members.number(name)?.map(Duration::from_millis))
}
