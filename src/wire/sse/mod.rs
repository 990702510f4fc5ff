//! Server-sent events, `text/event-stream`, by the WHATWG HTML standard, section 9.2.
//!
//! A frame is a prefix, a middle and a suffix. The middle, [`write_event`], is the same for all
//! subscribers of an event: it is encoded once, and shared. The prefix and suffix may differ. The
//! prefix is the `id:` line, [`write_cursors`], which differs if a connection follows several
//! executions. The suffix, [`END`], is the blank line that dispatches the event.
//!
//! ```
//! use streamdoor::wire::events::{GapEvent, WireEvent};
//! use streamdoor::wire::sse::{self, Cursor};
//!
//! let (from_seq, to_seq, chunk_count, byte_count) = (11, 40, 30, 900);
//! let execution = "0000000000000000000000000a";
//! let gap = GapEvent { execution, from_seq, to_seq, chunk_count, byte_count, reason: "lag" };
//! let mut out = Vec::with_capacity(512);
//! let (seq, bytes, chunks, has_ended) = (to_seq, 1_200, None, false);
//! sse::write_cursors(&mut out, &[Cursor { execution, seq, bytes, chunks, has_ended }]);
//! sse::write_event(&mut out, &WireEvent::Gap(gap));
//! out.extend_from_slice(sse::END);
//! let text = String::from_utf8(out)?;
//! let begin = "id: 0000000000000000000000000a:40:1200\nevent: gap\ndata: {\"event\":\"gap\",";
//! assert!(text.starts_with(begin) && text.ends_with("}\n\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Only line feeds end our lines, because some clients search for two of them and nothing else.

mod cursor;
mod decode;
#[cfg(test)]
mod decode_tests;
mod encode;

pub use cursor::{Cursor, CursorError, Cursors, Reached, SeenTotals, parse_cursors, write_cursors};
pub use decode::{DecodeError, Decoder, SseEvent};
pub use encode::{
    END, FieldError, KEEP_ALIVE, write_comment, write_data, write_event, write_name, write_retry,
};

/// The media type of a stream of events.
pub const MEDIA_TYPE: &str = "text/event-stream";
