//! The stream of one connection: one or several executions, in one encoding.

use std::time::Duration;

use smallvec::SmallVec;

use crate::base::{ExecutionId, SubscriberId};
use crate::endpoint::{Execute, StreamBody};
use crate::engine::Status;
use crate::limits;
use crate::server::durable::reader::Reader;
use crate::server::hub::connection::Connection;
use crate::server::hub::frames::{Encoding, Frame};
use crate::server::streams::front::FrontState;
use crate::shard::{Chunk, Names};
use crate::stream::{Kinds, Totals};
use crate::wire::events::{self, WireEvent};
use crate::wire::http1::{begin_chunk, end_chunk, write_chunk_size};
use crate::wire::sse;

/// A body that is being written.
#[derive(Debug)]
pub(in crate::server) struct Stream {
    pub encoding: Encoding,
    pub body: StreamBody,
    /// True if the request named executions as a list, even of one.
    pub is_combined: bool,
    pub followed: SmallVec<[Followed; 1]>,
    /// Number of followed executions that have not ended.
    pub open_count: u32,
    /// The execution that is cancelled if the connection breaks.
    pub cancels: Option<ExecutionId>,
    /// The state of the front end's stream, for [`Encoding::Front`].
    pub front: Option<Box<FrontState>>,
    /// The part of the payload that is wanted, for a body of a known length.
    pub window: Option<Window>,
    /// The payload so far, if it is sent as part of a document.
    pub gathered: Option<Box<Gathered>>,
    /// The reader of a stream, for [`Encoding::Durable`].
    pub reader: Option<Box<Reader>>,
}

/// A payload of an ended execution that is gathered from the disk.
#[derive(Debug)]
pub(in crate::server) struct Gathered {
    pub status: Status,
    pub purpose: Purpose,
    data: Vec<u8>,
}

/// The purpose of a gathered payload.
#[derive(Debug)]
pub(in crate::server) enum Purpose {
    /// A document about the execution.
    Result,
    /// A run that goes on with its conversation.
    Run(Box<Execute>),
}

impl Gathered {
    pub fn new(status: Status, purpose: Purpose) -> Gathered {
        Gathered { status, purpose, data: Vec::new() }
    }

    /// Adds a chunk. The end of a long payload stays.
    fn add(&mut self, chunk: &WireEvent<'_>) {
        chunk.write_payload(&mut self.data);
        if self.data.len() > 2 * limits::RESULT_KEPT_BYTES_MAX {
            self.data.drain(..self.data.len() - limits::RESULT_KEPT_BYTES_MAX);
        }
    }

    /// The payload, or its end.
    pub fn data(&self) -> &[u8] {
        &self.data[self.data.len().saturating_sub(limits::RESULT_KEPT_BYTES_MAX)..]
    }
}

/// A part of a payload that is given chunk by chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Window {
    /// Number of bytes before it that are still to come.
    pub skip_bytes: u64,
    /// Number of its bytes that are still to come.
    pub left_bytes: u64,
}

impl Window {
    /// Removes everything from the end of `out`, from `from` on, that is not wanted.
    fn cut(&mut self, out: &mut Vec<u8>, from: usize) {
        let skipped_bytes = ((out.len() - from) as u64).min(self.skip_bytes);
        self.skip_bytes -= skipped_bytes;
        out.drain(from..from + skipped_bytes as usize);
        let wanted_bytes = ((out.len() - from) as u64).min(self.left_bytes);
        self.left_bytes -= wanted_bytes;
        out.truncate(from + wanted_bytes as usize);
    }
}

/// The origin of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Source {
    /// This shard's engine, through this subscriber.
    Here(SubscriberId),
    /// The ring of another shard, through the reader in this slot of `peers::remote::Remotes`.
    There(u32),
}

/// An execution that is followed.
#[derive(Debug)]
pub(in crate::server) struct Followed {
    /// The printed id.
    pub name: Box<str>,
    /// `None` if it has ended for this connection.
    pub source: Option<Source>,
    pub kinds: Kinds,
    /// The last chunk that was delivered or skipped with a gap. After the end it is the newest.
    pub seq: u64,
    /// True if the end of the execution was delivered.
    pub has_ended: bool,
    /// Totals of all chunks of these kinds through that one.
    pub seen: Totals,
}

impl Followed {
    fn cursor(&self) -> sse::Cursor<'_> {
        let Totals { chunks, bytes } = self.seen;
        let chunks = (!self.kinds.is_all()).then_some(chunks);
        let Followed { seq, has_ended, .. } = *self;
        sse::Cursor { execution: &self.name, seq, bytes, chunks, has_ended }
    }
}

impl Stream {
    /// True if its events are the shared ones of its encoding, without a prefix of its own.
    #[inline]
    pub fn is_plain(&self) -> bool {
        match self.encoding {
            Encoding::Sse => !self.is_combined && self.followed[0].kinds.is_all(),
            Encoding::Ndjson | Encoding::Output => true,
            Encoding::Front | Encoding::Durable => false,
        }
    }

    /// True if it follows a thread that has no run now.
    pub fn waits_on_thread(&self) -> bool {
        let thread = self.front.as_ref().and_then(|told| told.thread.as_ref());
        thread.is_some_and(|thread| thread.waiting.is_some())
    }

    /// Returns the entry of this source.
    #[inline]
    pub fn part(&mut self, source: Source) -> Option<&mut Followed> {
        self.followed.iter_mut().find(|followed| followed.source == Some(source))
    }

    /// Counts a chunk that is delivered.
    #[inline]
    pub fn count(&mut self, source: Source, chunk: &Chunk<'_>) {
        let followed = self.part(source).expect("only followed sources deliver");
        assert!(chunk.seq > followed.seq);
        followed.seq = chunk.seq;
        followed.seen.count(chunk.data.len() as u32);
    }

    /// Writes the time that a browser has to wait before it reconnects.
    pub fn write_retry(&self, out: &mut Vec<u8>, wait: Duration) {
        let open = (self.body == StreamBody::Chunked).then(|| begin_chunk(out));
        sse::write_retry(out, wait);
        if let Some(open) = open {
            end_chunk(out, open);
        }
    }

    /// Writes the `id:` line, with the position in each execution.
    pub fn write_cursors(&self, out: &mut Vec<u8>) {
        let cursors: SmallVec<[sse::Cursor<'_>; 4]> =
            self.followed.iter().map(Followed::cursor).collect();
        sse::write_cursors(out, &cursors);
    }

    /// Writes a chunk that is not shared. It was counted before.
    pub fn write_chunk(&mut self, out: &mut Vec<u8>, chunk: &Chunk<'_>, names: &Names) {
        if let Some(reader) = &mut self.reader {
            return reader.take(chunk, self.body, out);
        }
        let chunk = &names.event(chunk);
        if self.encoding != Encoding::Output {
            self.write_event(out, chunk, true);
            return;
        }
        if let Some(gathered) = &mut self.gathered {
            return gathered.add(chunk);
        }
        if let Some(window) = &mut self.window {
            let from = out.len();
            chunk.write_payload(out);
            window.cut(out, from);
            return;
        }
        let open = (self.body == StreamBody::Chunked).then(|| begin_chunk(out));
        chunk.write_payload(out);
        if let Some(open) = open {
            end_chunk(out, open);
        }
    }

    /// True if the body has a known length, and all of its bytes were written, or if everything was
    /// gathered.
    pub fn is_whole(&self) -> bool {
        let is_gathered = self.gathered.is_some() && self.open_count == 0;
        let is_read = self.reader.as_ref().is_some_and(|reader| {
            reader.is_whole() || (reader.has_reply() && self.open_count == 0)
        });
        is_gathered || is_read || self.window.is_some_and(|window| window.left_bytes == 0)
    }

    /// True if its reader misses bytes that the disk does not have any more.
    pub fn is_lost(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.is_lost)
    }

    /// True if nothing of it is shared with other connections.
    pub fn is_apart(&self) -> bool {
        let is_of_its_own = matches!(self.encoding, Encoding::Front | Encoding::Durable);
        is_of_its_own || self.window.is_some() || self.gathered.is_some()
    }

    /// Writes an event other than a shared frame. With `has_id` a client can resume after it.
    pub fn write_event(&mut self, out: &mut Vec<u8>, event: &WireEvent<'_>, has_id: bool) {
        if let Some(reader) = &mut self.reader {
            match event {
                WireEvent::End(end) => {
                    let is_completed = end.state == events::EndState::Ended("completed");
                    reader.end(is_completed, self.body, out);
                }
                WireEvent::Gap(_) => reader.is_lost = true,
                _ => {}
            }
            return;
        }
        let open = (self.body == StreamBody::Chunked).then(|| begin_chunk(out));
        match self.encoding {
            Encoding::Sse => {
                if has_id {
                    self.write_cursors(out);
                }
                sse::write_event(out, event);
                out.extend_from_slice(sse::END);
            }
            Encoding::Ndjson => event.write_line(out),
            // These encodings hold nothing but payload.
            Encoding::Output | Encoding::Durable => {}
            Encoding::Front => {
                if let Some(told) = &mut self.front {
                    told.write(event, out);
                }
            }
        }
        if let Some(open) = open {
            end_chunk(out, open);
        }
    }

    /// Writes an event for a worker. The document is JSON.
    pub fn write_named(&self, out: &mut Vec<u8>, name: &str, document: &str) {
        let open = (self.body == StreamBody::Chunked).then(|| begin_chunk(out));
        sse::write_name(out, name).expect("event names are words");
        sse::write_data(out, document);
        out.extend_from_slice(sse::END);
        if let Some(open) = open {
            end_chunk(out, open);
        }
    }

    /// Writes a keep-alive that readers skip.
    pub fn write_keep_alive(&self, out: &mut Vec<u8>) {
        let text = match self.encoding {
            Encoding::Sse => sse::KEEP_ALIVE,
            Encoding::Ndjson => b"\n",
            Encoding::Output => return,
            Encoding::Front | Encoding::Durable => match &self.front {
                Some(told) => told.keep_alive(),
                None => crate::server::streams::front::KEEP_ALIVE,
            },
        };
        let open = (self.body == StreamBody::Chunked).then(|| begin_chunk(out));
        out.extend_from_slice(text);
        if let Some(open) = open {
            end_chunk(out, open);
        }
    }
}

/// Queues a chunk for a connection that follows its execution. Returns the position from which the
/// frame cache is needed for it, if it is.
#[inline]
pub(in crate::server) fn give(
    connection: &mut Connection,
    stream: &Stream,
    frame: Frame,
) -> Option<u64> {
    let (at, length) = (frame.at, frame.length as usize);
    if length == 0 {
        return None; // The payload is empty, and this encoding holds nothing else.
    }
    if stream.is_plain() && stream.body == StreamBody::Chunked {
        connection.push_frame(at, length);
        return Some(at);
    }
    let (content, middle) = (u64::from(frame.content), u64::from(frame.middle));
    let middle_bytes = frame.middle_bytes();
    if stream.is_plain() {
        let content_bytes = (middle - content) as usize + middle_bytes;
        connection.push_frame(at + content, content_bytes);
        return Some(at);
    }
    let chunk_end_bytes = match stream.body {
        StreamBody::Chunked => length - middle as usize - middle_bytes,
        StreamBody::UntilClose | StreamBody::None => 0,
    };
    connection.write(|out| {
        // The size of the HTTP chunk precedes the `id:`, and depends on its length.
        let begun_at = out.len();
        stream.write_cursors(out);
        let id_bytes = out.len() - begun_at;
        if stream.body == StreamBody::Chunked {
            write_chunk_size(out, id_bytes + middle_bytes);
            out[begun_at..].rotate_left(id_bytes);
        }
    });
    connection.push_frame(at + middle, middle_bytes + chunk_end_bytes);
    Some(at)
}
