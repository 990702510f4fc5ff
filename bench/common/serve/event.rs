//! The events of the floor and the peers. They have streamdoor's format, so that every receiver
//! gets the same bytes.

use std::fmt;

use streamdoor::wire::events::{ChunkEvent, EndEvent, EndState, WireEvent};
use streamdoor::wire::sse;

/// The format of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Server-sent events.
    Sse,
    /// One JSON object per line.
    Ndjson,
}

impl Format {
    /// Returns the media type for `Accept` and `Content-Type`.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Sse => "text/event-stream",
            Format::Ndjson => "application/x-ndjson",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Format::Sse => "sse",
            Format::Ndjson => "ndjson",
        })
    }
}

/// Returns the id of an execution outside of streamdoor, with the same length as one of streamdoor.
pub fn execution_name(index: u32) -> String {
    format!("{index:026}")
}

/// Returns a fake time of day for a chunk. Nothing reads it; it has as many digits as a real one.
pub fn timestamp_us(planned_ns: u64) -> u64 {
    1_700_000_000_000_000 + planned_ns / 1_000
}

/// Returns a chunk that was due at `planned_ns`. This is also its time of publication.
pub fn chunk<'a>(execution: &'a str, seq: u64, data: &'a [u8], planned_ns: u64) -> WireEvent<'a> {
    WireEvent::Chunk(ChunkEvent {
        execution,
        seq,
        total_chunks: None,
        kind: "output",
        key: None,
        offset: (seq - 1) * data.len() as u64,
        data,
        timestamp_us: timestamp_us(planned_ns),
        mono_ns: planned_ns,
    })
}

/// Returns the end of an execution with `chunks` chunks.
pub fn end(execution: &str, chunks: u64, size_bytes: usize) -> WireEvent<'_> {
    WireEvent::End(EndEvent {
        execution,
        state: EndState::Ended("completed"),
        chunks,
        bytes: chunks * size_bytes as u64,
        missed_chunks: 0,
        missed_bytes: 0,
        execution_chunks: chunks,
        execution_bytes: chunks * size_bytes as u64,
        duration_us: 0,
        exit: None,
        error: None,
    })
}

/// Returns an event's `id`: the position behind chunk `seq` if payloads have `size_bytes`.
pub fn id(execution: &str, seq: u64, size_bytes: usize) -> String {
    format!("{execution}:{seq}:{}", seq * size_bytes as u64)
}

/// Appends `event`, framed for a stream of `format`.
pub fn write(out: &mut Vec<u8>, format: Format, id: &str, event: &WireEvent<'_>) {
    match format {
        Format::Sse => {
            for part in ["id: ", id, "\n"] {
                out.extend_from_slice(part.as_bytes());
            }
            sse::write_event(out, event);
            out.extend_from_slice(sse::END);
        }
        Format::Ndjson => event.write_line(out),
    }
}
