//! The body of a request from another process that will write a ring.

use crate::endpoint::body::{Members, parse};
use crate::endpoint::execute::{
    AGREED, ALLOWED, BEGINNING, DELIVERED, DURABLE, FULL, HELD_BACK, KEPT, KEPT_FOR, MEASURED,
    RETAINED, STALLED, opening,
};
use crate::endpoint::fields::{Field, Preset, Shape};
use crate::endpoint::{ApiError, Produce};
use crate::limits;
use crate::memory::Geometry;
use crate::tool::is_tool_name;

/// The length of the longest chunk, whatever the size of the ring.
const CHUNK_BYTES_MAX: u32 = Geometry::of_class(limits::DOOR_RING_BYTES_MAX).length_max();

/// The fields of an execution whose chunks another process writes.
pub(super) const PRODUCE: &[Field] = &[
    Field::new("name", Shape::ToolName, "The name of the execution, in the form of a tool name.")
        .required(),
    Field::new(
        "ring_bytes",
        Shape::Number { min: 1, max: limits::DOOR_RING_BYTES_MAX as u64 },
        "The minimum size of the ring, in bytes. The next available size is used. While memory is \
         short, it may be smaller.",
    )
    .or(Preset::Number(limits::DOOR_RING_BYTES_DEFAULT as u64)),
    Field::new(
        "chunk_bytes",
        Shape::Number { min: 0, max: CHUNK_BYTES_MAX as u64 },
        "The length of the longest chunk that must fit, in bytes.",
    )
    .or(Preset::Number(0)),
    Field::new(
        "estimated_bytes",
        Shape::Number { min: 0, max: u64::MAX },
        "The approximate length of the whole output, in bytes. Default: unknown.",
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

/// Reads the body of `POST /v1/door/executions`.
pub(super) fn produce(body: &[u8]) -> Result<Produce, ApiError> {
    let body = parse(body)?;
    let members = Members::of(&body, PRODUCE)?;
    let name = members.get("name").and_then(|name| name.as_str()).filter(|name| is_tool_name(name));
    let Some(name) = name else {
        let chars_max = limits::TOOL_NAME_CHARS_MAX;
        let problem = format!("it must be 1 to {chars_max} letters, digits, `_`, `-` and `.`");
        return Err(members.error("name", &problem).limit(chars_max as u64));
    };
    let bytes = |name: &str| Ok::<_, ApiError>(members.number(name)?.map(|bytes| bytes as u32));
    Ok(Produce {
        name: name.into(),
        ring_bytes: bytes("ring_bytes")?.unwrap_or(limits::DOOR_RING_BYTES_DEFAULT),
        chunk_bytes: bytes("chunk_bytes")?.unwrap_or(0),
        estimated_bytes: members.number("estimated_bytes")?,
        opening: opening(&members)?,
    })
}
