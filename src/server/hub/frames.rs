//! The frame cache: each chunk is encoded once for each format, and sent to many connections.
//!
//! The cache is a circular arena. A frame's position is the number of bytes ever written before it,
//! so one comparison tells whether it was overwritten. The cache delays no writer: an overwritten
//! frame is encoded again, and counted. Only frames that are queued for sending must not be
//! overwritten ([`Frames::keep`] refuses). The end of a round of sends releases those that were
//! queued before it began.
//!
//! A frame is laid out for a chunked body. It holds the size of the HTTP chunk, a prefix, a middle,
//! and the end of the HTTP chunk. The prefix exists for SSE only. It is the `id:` for clients that
//! follow this execution alone and all its kinds. Other clients get a prefix of their own, and the
//! rest of the frame.

use crate::limits;
use crate::wire::events::WireEvent;
use crate::wire::http1::{CHUNK_END, begin_chunk, end_chunk};
use crate::wire::sse;

/// The encoding of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Encoding {
    /// Server-sent events.
    Sse,
    /// One JSON object for each line.
    Ndjson,
    /// The payload alone.
    Output,
    /// The format of a front end's client. Its events depend on those before, so its frames are not
    /// shared: the cache has none.
    Front,
    /// The Durable Streams protocol. Its frames are not shared either.
    Durable,
}

/// Number of encodings that have frames.
pub(in crate::server) const ENCODINGS: usize = 3;

/// A frame in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Frame {
    /// The position: the number of bytes ever written before it.
    pub at: u64,
    /// Offset of the content of the HTTP chunk, in bytes.
    pub content: u32,
    /// Offset of the part that all clients share, in bytes.
    pub middle: u32,
    /// Length of the frame in bytes.
    pub length: u32,
}

impl Frame {
    /// Returns the length of the shared part, without the end of the HTTP chunk.
    pub fn middle_bytes(&self) -> usize {
        self.length as usize - self.middle as usize - CHUNK_END.len()
    }
}

/// The identity of a frame: a chunk in one encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Key {
    /// The nonce of the execution's id. Its place may be that of another one: an execution from
    /// before a restart can have the same.
    pub nonce: u64,
    pub seq: u64,
    pub encoding: Encoding,
}

/// A frame and its key. All zero is none, so the kernel provides the memory of the table as it is
/// written. The words: the position and 1, the chunk's number, the execution's nonce, the offsets,
/// and the length with the encoding.
type Entry = [u64; 5];
const NO_ENTRY: Entry = [0; 5];

fn entry_of(key: &Key, frame: &Frame) -> Entry {
    let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let offsets = pair(frame.content, frame.middle);
    let length = pair(frame.length, key.encoding as u32);
    [frame.at + 1, key.seq, key.nonce, offsets, length]
}

/// Returns the frame of an entry, if it has this key.
#[inline]
fn frame_of(entry: &Entry, key: &Key) -> Option<Frame> {
    let [place, _, _, offsets, length] = *entry;
    let at = place.checked_sub(1)?;
    let (content, middle) = ((offsets >> 32) as u32, offsets as u32);
    let frame = Frame { at, content, middle, length: (length >> 32) as u32 };
    (entry_of(key, &frame) == *entry).then_some(frame)
}

/// The frames that would be overwritten are queued for sending. Flush first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Queued;

/// The frame cache. See the module's text.
#[derive(Debug)]
pub(in crate::server) struct Frames {
    arena: Box<[u8]>,
    /// Bytes ever written, padding included.
    written: u64,
    /// The oldest position that was queued for sending since the last round began.
    queued_at: u64,
    /// The oldest position that was queued before.
    held_at: u64,
    /// Direct-mapped: the newest chunks of one execution never collide.
    table: Box<[Entry]>,
    /// A frame is encoded here, because its length is not known before.
    scratch: Vec<u8>,
    /// The offset of the shared part of the frame in `scratch`.
    middle: u32,
}

impl Frames {
    /// Creates a cache with an arena of this size.
    pub fn new(arena_bytes: usize) -> Frames {
        assert!(arena_bytes >= 2 * limits::FRAME_BYTES_MAX);
        Frames {
            arena: vec![0; arena_bytes].into_boxed_slice(),
            written: 0,
            queued_at: u64::MAX,
            held_at: u64::MAX,
            table: vec![NO_ENTRY; limits::FRAME_CACHE_FRAMES].into_boxed_slice(),
            scratch: Vec::with_capacity(limits::FRAME_BYTES_MAX),
            middle: 0,
        }
    }

    fn slot(&self, key: &Key) -> usize {
        let spread = key.nonce.wrapping_add(key.encoding as u64 * 0x51ed);
        (key.seq.wrapping_add(spread) as usize) & (self.table.len() - 1)
    }

    /// Returns the frame of this chunk, if it was not overwritten.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<Frame> {
        let frame = frame_of(&self.table[self.slot(key)], key)?;
        self.has(&frame).then_some(frame)
    }

    /// True if this frame was not overwritten.
    #[inline]
    pub fn has(&self, frame: &Frame) -> bool {
        self.written - frame.at <= self.arena.len() as u64
    }

    /// Encodes a frame with `write`, which [`Frames::keep`] keeps next. All of it is shared.
    pub fn encode_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.scratch.clear();
        self.middle = 0;
        write(&mut self.scratch);
    }

    /// Encodes a chunk, which [`Frames::keep`] keeps next. `cursor` is the position of clients
    /// after it.
    pub fn encode(&mut self, encoding: Encoding, chunk: &WireEvent<'_>, cursor: &sse::Cursor<'_>) {
        let out = &mut self.scratch;
        out.clear();
        let open = begin_chunk(out);
        self.middle = out.len() as u32;
        match encoding {
            Encoding::Sse => {
                sse::write_cursors(out, std::slice::from_ref(cursor));
                self.middle = out.len() as u32;
                sse::write_event(out, chunk);
                out.extend_from_slice(sse::END);
            }
            Encoding::Ndjson => chunk.write_line(out),
            Encoding::Output => chunk.write_payload(out),
            Encoding::Front | Encoding::Durable => unreachable!("its events are not shared"),
        }
        end_chunk(out, open);
        assert!(out.len() <= limits::FRAME_BYTES_MAX);
    }

    /// Keeps the frame that was encoded last. In the payload-only encoding, an empty payload gives
    /// a frame of length 0.
    ///
    /// # Errors
    /// [`Queued`]. The encoded frame remains.
    pub fn keep(&mut self, key: Key) -> Result<Frame, Queued> {
        let capacity = self.arena.len() as u64;
        let length = self.scratch.len() as u64;
        let mut at = self.written;
        // A frame does not wrap, and does not end where the arena ends. Frames with consecutive
        // positions are then adjacent in memory, and are sent as one. The skipped bytes are
        // padding.
        if at % capacity + length >= capacity {
            at += capacity - at % capacity;
        }
        if (at + length).saturating_sub(capacity) > self.queued_at.min(self.held_at) {
            return Err(Queued);
        }
        let offset = (at % capacity) as usize;
        self.arena[offset..offset + self.scratch.len()].copy_from_slice(&self.scratch);
        self.written = at + length;
        let content = (CHUNK_HEAD_BYTES as u32).min(self.middle);
        let frame = Frame { at, content, middle: self.middle, length: length as u32 };
        let slot = self.slot(&key);
        self.table[slot] = entry_of(&key, &frame);
        Ok(frame)
    }

    /// Returns bytes of the arena. The frame has to be queued, or to have been found just now.
    #[inline]
    pub fn bytes(&self, at: u64, length: usize) -> &[u8] {
        assert!(self.written - at <= self.arena.len() as u64);
        let offset = (at % self.arena.len() as u64) as usize;
        &self.arena[offset..offset + length]
    }

    /// Marks the frames from this position on as queued for sending.
    #[inline]
    pub fn queue(&mut self, at: u64) {
        self.queued_at = self.queued_at.min(at);
    }

    /// Begins a round: everything queued so far is sent at its end.
    pub fn begin_round(&mut self) {
        self.held_at = self.held_at.min(self.queued_at);
        self.queued_at = u64::MAX;
    }

    /// Releases the frames that were queued before the round began.
    #[inline]
    pub fn end_round(&mut self) {
        self.held_at = u64::MAX;
    }
}

/// Length of the head of an HTTP chunk, as [`begin_chunk`] writes it.
const CHUNK_HEAD_BYTES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;
    use crate::wire::events;

    const EXECUTION: &str = "0000000000000000000000000a";

    fn key(seq: u64, encoding: Encoding) -> Key {
        Key { nonce: 3, seq, encoding }
    }

    fn encode(frames: &mut Frames, seq: u64, encoding: Encoding, data: &[u8]) {
        let chunk = events::ChunkEvent {
            execution: EXECUTION,
            seq,
            total_chunks: None,
            kind: "data",
            key: None,
            offset: 0,
            data,
            timestamp_us: 1,
            mono_ns: 2,
        };
        let cursor =
            sse::Cursor { execution: EXECUTION, seq, bytes: 9, chunks: None, has_ended: false };
        frames.encode(encoding, &WireEvent::Chunk(chunk), &cursor);
    }

    #[test]
    fn a_frame_is_an_http_chunk_around_an_event() {
        let mut frames = Frames::new(2 * limits::FRAME_BYTES_MAX);
        encode(&mut frames, 7, Encoding::Sse, b"hello");
        let frame = frames.keep(key(7, Encoding::Sse)).unwrap();
        let text = String::from_utf8(frames.bytes(frame.at, frame.length as usize).to_vec());
        let text = text.unwrap();
        let (head, content) = text.split_at(frame.content as usize);
        let size = usize::from_str_radix(head.trim_end(), 16).unwrap();
        assert_eq!(size, content.len() - 2);
        let middle = &text[frame.middle as usize..][..frame.middle_bytes()];
        assert!(content.starts_with("id: 0000000000000000000000000a:7"), "{content}");
        assert!(middle.starts_with("event: chunk\ndata: {"), "{middle}");
        assert!(middle.ends_with("}\n\n") && text.ends_with("}\n\n\r\n"), "{text}");
        encode(&mut frames, 7, Encoding::Output, b"hello");
        let frame = frames.keep(key(7, Encoding::Output)).unwrap();
        assert_eq!(frames.bytes(frame.at, frame.length as usize), b"00000005\r\nhello\r\n");
        encode(&mut frames, 8, Encoding::Output, b"");
        assert_eq!(frames.keep(key(8, Encoding::Output)).unwrap().length, 0);
    }

    #[test]
    fn frames_that_follow_each_other_are_one_piece_of_memory() {
        let mut frames = Frames::new(limits::FRAME_CACHE_BYTES);
        let data = vec![b'x'; 4_096 - CHUNK_HEAD_BYTES - CHUNK_END.len()];
        let mut end = 0;
        let mut wrap_count = 0;
        for seq in 1..10_000 {
            encode(&mut frames, seq, Encoding::Output, &data);
            let frame = frames.keep(key(seq, Encoding::Output)).unwrap();
            assert_eq!(frame.length, 4_096); // This length fills the arena to its last byte.
            match frame.at == end {
                true if seq > 1 => _ = frames.bytes(frame.at - 4_096, 2 * 4_096),
                true => {}
                false => wrap_count += 1,
            }
            end = frame.at + 4_096;
        }
        assert!(wrap_count > 3);
    }

    #[test]
    fn what_is_found_is_what_was_kept_and_what_is_queued_is_not_overwritten() {
        let mut frames = Frames::new(2 * limits::FRAME_BYTES_MAX);
        let mut random = Random::new(1);
        let mut queued: Vec<(Frame, Vec<u8>)> = Vec::new();
        let (mut refused_count, mut found_count) = (0, 0);
        for seq in 1..3_000 {
            let data = vec![b'a' + (seq % 26) as u8; random.below(20_000) as usize];
            encode(&mut frames, seq, Encoding::Ndjson, &data);
            let frame = match frames.keep(key(seq, Encoding::Ndjson)) {
                Ok(frame) => frame,
                Err(Queued) => {
                    refused_count += 1;
                    for (frame, bytes) in queued.drain(..) {
                        assert_eq!(frames.bytes(frame.at, bytes.len()), bytes, "seq {seq}");
                    }
                    frames.begin_round();
                    assert!(
                        frames.keep(key(seq, Encoding::Ndjson)).is_err(),
                        "they are still held"
                    );
                    frames.end_round();
                    frames.keep(key(seq, Encoding::Ndjson)).unwrap()
                }
            };
            frames.queue(frame.at);
            queued.push((frame, frames.bytes(frame.at, frame.length as usize).to_vec()));
            let earlier = seq.saturating_sub(random.below(400)).max(1);
            if let Some(frame) = frames.find(&key(earlier, Encoding::Ndjson)) {
                let bytes = frames.bytes(frame.at, frame.length as usize);
                let expected = format!("\"seq\":{earlier},");
                assert!(String::from_utf8_lossy(bytes).contains(&expected));
                found_count += 1;
            }
            assert_eq!(frames.find(&key(seq, Encoding::Sse)), None);
            let namesake = Key { nonce: 4, ..key(seq, Encoding::Ndjson) };
            assert_eq!(frames.find(&namesake), None);
        }
        assert!(refused_count > 3 && found_count > 1_000, "{refused_count} {found_count}");
    }
}
