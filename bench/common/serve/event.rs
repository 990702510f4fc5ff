//! How the floor and the peers spell what they publish: as streamdoor does, so that every receiver
//! gets the same bytes.

use std::fmt;

use streamdoor::wire::events::{Chunk, End, EndState, Event};
use streamdoor::wire::sse;

/// How events are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Server-sent events.
    Sse,
    /// A JSON object a line.
    Ndjson,
}

impl Format {
    /// What stands in `Accept` and `Content-Type`.
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

/// The id of an execution that is not streamdoor's; as long as one of those.
pub fn execution_name(index: u32) -> String {
    format!("{index:026}")
}

/// What a chunk says of the time of day. Nobody reads it; it has as many digits as a true one.
pub fn timestamp_us(planned_ns: u64) -> u64 {
    1_700_000_000_000_000 + planned_ns / 1_000
}

/// A chunk that was due at `planned_ns`, which is also when it says that it was published.
pub fn chunk<'a>(execution: &'a str, seq: u64, data: &'a [u8], planned_ns: u64) -> Event<'a> {
    Event::Chunk(Chunk {
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

/// The end of an execution of so many chunks.
pub fn end(execution: &str, chunks: u64, size_bytes: usize) -> Event<'_> {
    Event::End(End {
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

/// How far a reader is behind chunk `seq`, when payloads have `size_bytes`: an event's `id`.
pub fn id(execution: &str, seq: u64, size_bytes: usize) -> String {
    format!("{execution}:{seq}:{}", seq * size_bytes as u64)
}

/// Appends `event` with what a stream of `format` has around it.
pub fn write(out: &mut Vec<u8>, format: Format, id: &str, event: &Event<'_>) {
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
