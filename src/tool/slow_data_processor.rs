//! `slow_data_processor {chunks, delay_ms, chunk_size}`: the seeds' demonstration of a tool with
//! slow results. It is a state machine that costs nothing between two chunks.

use std::time::Duration;

use serde_json::{Value, json};

use crate::base::Instant;
use crate::engine::Timeouts;
use crate::tool::{
    ArgumentError, Arguments, Context, EmitError, Need, Step, Tool, ToolError, ToolSpec, Work,
};

const CHUNKS_MAX: u64 = 10_000_000;
const DELAY_MS_MAX: u64 = 3_600_000;
const CHUNK_BYTES_MAX: u64 = 64 << 10;

struct SlowDataProcessor {
    sent_count: u64,
    chunk_count: u64,
    delay: Duration,
    due: Option<Instant>,
    payload: Box<[u8]>,
}

/// The description of the tool. The defaults are the seed's: 10 chunks of 100 bytes, 200 ms apart.
pub(super) fn spec() -> ToolSpec {
    let number = |minimum: u64, maximum: u64, default: u64, description: &str| {
        json!({
            "type": "integer",
            "minimum": minimum,
            "maximum": maximum,
            "default": default,
            "description": description,
        })
    };
    ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": {
                "chunks": number(0, CHUNKS_MAX, 10, "The number of chunks."),
                "delay_ms": number(0, DELAY_MS_MAX, 200, "The time to make each chunk, in \
                                                          milliseconds."),
                "chunk_size": number(1, CHUNK_BYTES_MAX, 100, "The size of each chunk, in bytes."),
            },
            "additionalProperties": false,
        }),
        // The tool is slow on purpose, so its silence means nothing.
        timeouts: Timeouts::NONE,
        ..ToolSpec::new(
            "slow_data_processor",
            "Makes chunks of text at a chosen pace, each a line.",
        )
    }
}

pub(super) fn prepare(arguments: &Value, need: Need) -> Result<(Work, Need), ArgumentError> {
    let mut arguments = Arguments::new(arguments)?;
    let chunk_count = arguments.number("chunks", 10, 0..=CHUNKS_MAX)?;
    let delay_ms = arguments.number("delay_ms", 200, 0..=DELAY_MS_MAX)?;
    let chunk_bytes = arguments.number("chunk_size", 100, 1..=CHUNK_BYTES_MAX)?;
    arguments.finish()?;
    let tool = SlowDataProcessor {
        sent_count: 0,
        chunk_count,
        delay: Duration::from_millis(delay_ms),
        due: None,
        payload: vec![b'.'; chunk_bytes as usize].into_boxed_slice(),
    };
    let ring_bytes = need.ring_bytes.max(chunk_bytes as u32 * 8);
    let estimated_bytes = Some(chunk_count * chunk_bytes);
    let need = Need { ring_bytes, chunk_bytes: chunk_bytes as u32, estimated_bytes };
    Ok((Work::Steps(Box::new(tool)), need))
}

impl SlowDataProcessor {
    /// Writes a line `chunk 7 of 10 .....`, cut or filled to the length of a chunk. A chunk of one
    /// byte has no line end.
    fn write_payload(&mut self) {
        let text = format!("chunk {} of {} ", self.sent_count + 1, self.chunk_count);
        let length = text.len().min(self.payload.len());
        self.payload[..length].copy_from_slice(&text.as_bytes()[..length]);
        if let [_, .., last] = &mut *self.payload {
            *last = b'\n';
        }
    }
}

impl Tool for SlowDataProcessor {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        if self.sent_count == 0 && self.due.is_none() {
            context.expect_total(self.chunk_count);
        }
        if self.sent_count == self.chunk_count {
            return Step::Done;
        }
        let due = *self.due.get_or_insert(context.now());
        if due > context.now() {
            return Step::Sleep(due);
        }
        self.write_payload();
        match context.emit(&self.payload) {
            Ok(_) => {}
            Err(EmitError::Blocked) => return Step::Blocked,
            Err(EmitError::TooLarge { chunk_bytes_max }) => {
                let text = format!("`chunk_size` must be at most {chunk_bytes_max} for this ring");
                return Step::Failed(ToolError::new(text));
            }
        }
        self.sent_count += 1;
        context.progress(self.sent_count as f64, Some(self.chunk_count as f64));
        // Counted from when this chunk was due, so that delays do not add up. Never in a burst.
        let next_due = (due + self.delay).max(context.now());
        self.due = Some(next_due);
        if self.sent_count < self.chunk_count && self.delay > Duration::ZERO {
            Step::Sleep(next_due)
        } else {
            Step::Again
        }
    }
}
