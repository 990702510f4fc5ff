//! The bodies of requests that define virtual tools, and of the results that workers deliver.

use serde_json::Value;

use crate::endpoint::body::{Members, parse};
use crate::endpoint::execute::{self, POLICY, TIMEOUTS};
use crate::endpoint::fields::{Field, POLICIES, Preset, Shape};
use crate::endpoint::{ApiError, DeliveredPart, ProducerAt};
use crate::limits;
use crate::stream::Kind;
use crate::tool::{Gather, Report, SubscribeDefaults, ToolSpec, VirtualTool};
use crate::wire::http1::Status;

/// The fields of a virtual tool, whose calls are carried out by clients.
pub(super) const VIRTUAL_TOOL: &[Field] = &[
    Field::new(
        "description",
        Shape::Text { bytes_max: limits::VIRTUAL_DESCRIPTION_BYTES_MAX },
        "The purpose of the tool, for a caller that chooses among tools.",
    )
    .required(),
    Field::new(
        "input_schema",
        Shape::Anything,
        "The JSON Schema (2020-12) of the arguments. Its type is object, and it does not refer to \
         itself.",
    )
    .required(),
    Field::new(
        "timeouts",
        Shape::Members(TIMEOUTS),
        "The time limits of a call, where null means no limit.",
    ),
    Field::new(
        "policy",
        Shape::Either(&[Shape::Choice(POLICIES), Shape::Members(POLICY)]),
        "The policy for subscribers that do not choose one.",
    ),
    Field::new(
        "coalesce",
        Shape::Members(COALESCE),
        "Gathers small parts into one chunk. Values that are not text then end their line.",
    ),
];

const COALESCE: &[Field] = &[
    Field::new(
        "delay_ms",
        Shape::Number { min: 1, max: limits::GATHER_DELAY_MAX.as_millis() as u64 },
        "The longest time that the first part waits for others.",
    )
    .or(Preset::Number(limits::GATHER_DELAY_DEFAULT.as_millis() as u64)),
    Field::new(
        "max_bytes",
        Shape::Number { min: 1, max: limits::GATHER_BYTES_MAX },
        "The number of bytes that are published without further delay.",
    )
    .or(Preset::Number(limits::GATHER_BYTES_DEFAULT)),
];

/// The fields of a part of a result.
pub(super) const PART: &[Field] = &[
    Field::new("tool_call_id", Shape::Execution, "The id of the call.").required(),
    Field::new(
        "content",
        Shape::Any,
        "The next piece of the result: a text, or any other value, which is passed on as JSON \
         text.",
    ),
    Field::new("complete", Shape::Flag, "This is the last part: the work is done."),
    Field::new(
        "seq",
        Shape::Number { min: 1, max: u64::MAX },
        "The number of the part, from 1 on. A repeated part is ignored. Default: the next number.",
    ),
    Field::new(
        "error",
        Shape::Text { bytes_max: limits::PART_ERROR_BYTES_MAX },
        "The reason why the work failed. This is the last part.",
    ),
    Field::new("progress", Shape::Members(PROGRESS), "The progress of the call."),
];

const PROGRESS: &[Field] = &[
    Field::new("progress", Shape::Real, "The amount of work that is done.").required(),
    Field::new("total", Shape::Real, "The total amount of work, in the same unit."),
    Field::new(
        "message",
        Shape::Text { bytes_max: limits::PROGRESS_MESSAGE_BYTES_MAX as u64 },
        "The progress in words.",
    ),
];

/// Reads the body of `PUT /v1/virtual-tools/{name}`.
pub(super) fn put(name: &str, body: &[u8]) -> Result<VirtualTool, ApiError> {
    virtual_tool(name, &parse(body)?)
}

/// Reads a virtual tool from its definition: the body of a `PUT`, or a table of a configuration
/// file. Its input schema is validated later, when the tool is added.
///
/// # Errors
/// [`ApiError`] names the field that is invalid.
pub fn virtual_tool(name: &str, document: &Value) -> Result<VirtualTool, ApiError> {
    let members = Members::of(document, VIRTUAL_TOOL)?;
    let mut spec = ToolSpec::new(name, members.text("description")?.unwrap_or_default());
    spec.arguments = match members.get("input_schema") {
        Some(schema @ Value::Object(_)) => schema.clone(),
        _ => return Err(members.error("input_schema", "it must be an object")),
    };
    if let Some(timeouts) = execute::timeouts(&members)? {
        spec.timeouts = timeouts;
    }
    if let Some(choice) = execute::policy(&members)? {
        let (limit_chunks, limit_bytes) = (choice.limit_chunks, choice.limit_bytes);
        spec.subscribers = SubscribeDefaults { policy: choice.policy, limit_chunks, limit_bytes };
    }
    let gather = match (members.members("coalesce")?, members.get("coalesce")) {
        (Some(parts), _) => Some(Gather {
            delay_max: execute::duration(&parts, "delay_ms")?
                .unwrap_or(limits::GATHER_DELAY_DEFAULT),
            bytes_max: parts.number("max_bytes")?.unwrap_or(limits::GATHER_BYTES_DEFAULT) as u32,
        }),
        (None, Some(_)) => return Err(members.error("coalesce", "it must be an object")),
        (None, None) => None,
    };
    Ok(VirtualTool { spec, gather })
}

/// Gives a part the number that its producer says. Producers count from 0 on, and parts from 1 on.
pub(super) fn numbered(
    part: DeliveredPart,
    producer: Option<&ProducerAt>,
) -> Result<DeliveredPart, ApiError> {
    let Some(producer) = producer else { return Ok(part) };
    let seq = producer.seq + 1;
    if part.seq.is_some_and(|own| own != seq) {
        let text = "seq: it has to be the number of the header Producer-Seq, and 1 more";
        let error = ApiError::new(Status::BAD_REQUEST, "invalid_field", text);
        return Err(error.field("seq").limit(seq));
    }
    Ok(DeliveredPart { seq: Some(seq), ..part })
}

/// Reads a part of a result.
pub(super) fn part(body: &[u8]) -> Result<DeliveredPart, ApiError> {
    let body = parse(body)?;
    let members = Members::of(&body, PART)?;
    let id = members.get("tool_call_id").and_then(Value::as_str);
    let call = id.and_then(|id| id.parse().ok());
    let call = call.ok_or_else(|| members.error("tool_call_id", "it must be the id of a call"))?;
    let content = members.get("content").map(|content| match content {
        Value::String(text) => (Kind::Output, text.as_bytes().to_vec()),
        value => (Kind::Json, value.to_string().into_bytes()),
    });
    let error = members.text("error")?;
    let is_complete = members.flag("complete")?;
    let end = match error {
        Some(text) => Some(Err(text.into())),
        None => is_complete.then_some(Ok(())),
    };
    let progress = match (members.members("progress")?, members.get("progress")) {
        (Some(parts), _) => Some(report(&parts)?),
        (None, Some(_)) => return Err(members.error("progress", "it must be an object")),
        (None, None) => None,
    };
    Ok(DeliveredPart { call, seq: members.number("seq")?, content, progress, end })
}

fn report(members: &Members<'_>) -> Result<Report, ApiError> {
    let current = members.real("progress")?.expect("the field is required");
    let report = Report::amount(current, members.real("total")?);
    Ok(match members.text("message")? {
        Some(text) => report.with_message(text),
        None => report,
    })
}
