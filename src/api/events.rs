//! The events of a stream.
//!
//! The server spells events by hand (`wire/events.rs`), because each chunk is one and the spelling
//! allocates nothing. The client reads chunks and progress by hand, too, and all other events as
//! these types. Tests compare both with the rows: `endpoint/openapi_tests.rs` what is written,
//! `client/event_tests.rs` what is read.

use serde_json::{Value, json};

use super::executions::Progress;
use super::rows::{Document, Member, Row, documents, object};
use super::values::Encoding;
use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::stream::{DetachReason, Exit, GapReason, Kind, LagLimit, Policy};
use crate::wire::events::Replay as Kept;

documents! {
    /// The first event of a stream: the agreed terms.
    struct StartedEvent: "StartedEvent" {
        /// The name of the event.
        event: String => named("started"),
        /// The id of the execution.
        execution: ExecutionId,
        /// The id of the subscriber.
        subscriber: String => SubscriberId::schema(),
        /// The name of the tool.
        tool: String,
        /// The token of the progress reports. It is absent if the execution has none.
        token: Option<ProgressToken>,
        /// The lag policy of the subscriber.
        policy: Policy,
        /// The limit of its lag.
        limits: LagLimit,
        /// The first chunk that the subscriber receives, or that a gap reports to it.
        from_seq: u64,
        /// The chunks that the server keeps in case the connection breaks.
        replay: Option<Replay>,
    }

    /// The chunks that the server keeps in case the connection of a subscriber breaks.
    struct Replay: "Replay" {
        /// Number of chunks at most.
        chunks: u32,
        /// Number of bytes at most. A single chunk is kept in any case.
        bytes: u32,
        /// The kept chunks: the newest that were sent, or all that are unacknowledged.
        of: String => choice(&Kept::OF),
        /// Time for which the subscription is kept after its connection broke, in milliseconds.
        grace_ms: u64,
    }

    /// A chunk of a result.
    struct ChunkEvent: "ChunkEvent" {
        /// The name of the event.
        event: String => named("chunk"),
        /// The id of the execution.
        execution: ExecutionId,
        /// The number of the chunk: 1, 2, 3 … without holes.
        seq: u64,
        /// Number of chunks that the tool expects to publish, if it announced a number.
        total_chunks: Option<u64>,
        /// The kind of the payload.
        kind: Kind,
        /// The key of the chunk under `conflate`, if it is not the number of its kind.
        key: Option<u8>,
        /// Number of payload bytes of the execution before this chunk.
        offset: u64,
        /// The encoding of `data`.
        encoding: Encoding,
        /// The payload.
        data: String,
        /// The time of publication, in microseconds since 1970.
        timestamp_us: u64,
        /// The time of publication by the monotonic clock of the server's machine, in nanoseconds.
        mono_ns: u64,
    }

    /// A part of an agent's run, which replaces a chunk. Each type has further members.
    struct PartEvent: "PartEvent" {
        /// The type of the part.
        part("type"): String => json!({"type": "string", "pattern": "^[A-Z][A-Za-z]+$"}),
        /// The number of its chunk.
        seq: u64,
        /// The execution of the agent that it is about.
        agent_id: ExecutionId,
        /// The number of the step.
        step_number: u64,
        /// The time of the part, in microseconds since 1970.
        timestamp_us: u64,
    }

    /// Chunks that will not come. The event stands in their place in the order.
    struct GapEvent: "GapEvent" {
        /// The name of the event.
        event: String => named("gap"),
        /// The id of the execution.
        execution: ExecutionId,
        /// The first chunk missed.
        from_seq: u64,
        /// The last chunk missed.
        to_seq: u64,
        /// Number of missed chunks of the subscriber's kinds.
        chunk_count: u64,
        /// Number of payload bytes of these chunks.
        byte_count: u64,
        /// The reason why they were missed.
        reason: GapReason,
    }

    /// The last event of a stream. Each subscription has exactly one.
    struct EndEvent: "EndEvent" {
        /// The name of the event.
        event: String => named("end"),
        /// The id of the execution.
        execution: ExecutionId,
        /// The outcome of the execution, or `detached` if the subscription ended before it.
        state: String => choice(&STATES),
        /// The reason of a detachment.
        reason: Option<DetachReason>,
        /// The first chunk that a detached subscriber was not told of.
        resume_from: Option<u64>,
        /// Number of chunks that were sent.
        chunks: u64,
        /// Number of their bytes.
        bytes: u64,
        /// Number of chunks in gaps.
        missed_chunks: u64,
        /// Number of their bytes.
        missed_bytes: u64,
        /// Number of published chunks of the subscriber's kinds, up to its place.
        execution_chunks: u64,
        /// Number of their bytes.
        execution_bytes: u64,
        /// The duration of the subscription, in microseconds.
        duration_us: u64,
        /// The exit of the command, if the tool ran one.
        exit: Option<Exit>,
        /// The error text, if the execution has failed.
        error: Option<String>,
    }
}

/// The values of `state` in the last event.
const STATES: [&str; 5] = ["completed", "failed", "cancelled", "timed_out", "detached"];

mod progress {
    use super::{ExecutionId, ProgressToken, documents, named};

    documents! {
        /// The progress of the tool: these members, and those of a progress report.
        struct ProgressHead: "ProgressEvent" {
            /// The name of the event.
            event: String => named("progress"),
            /// The id of the execution.
            execution: ExecutionId,
            /// The token of the progress reports. It is absent if the execution has none.
            token: Option<ProgressToken>,
        }
    }
}

/// Returns the rows of the event `progress`.
pub fn progress_rows() -> impl Iterator<Item = &'static Row> {
    progress::ProgressHead::ROWS.iter().chain(Progress::ROWS)
}

/// Returns the schema of all events.
pub(super) fn any_event() -> Value {
    let all = schemas().into_iter().chain(progress::schemas()).map(|(name, _)| name);
    let all: Vec<Value> = all
        .filter(|name| *name != Replay::TITLE)
        .map(|name| json!({"$ref": format!("#/components/schemas/{name}")}))
        .collect();
    json!({ "oneOf": all })
}

/// Returns the name and the schema of the event `progress`.
pub(super) fn progress_event() -> (&'static str, Value) {
    type Head = progress::ProgressHead;
    (Head::TITLE, object(Head::ABOUT, progress_rows()))
}

fn named(name: &str) -> Value {
    json!({ "const": name })
}

fn choice(names: &[&str]) -> Value {
    json!({"type": "string", "enum": names})
}
