//! The writing side of a ring.
//!
//! One thread owns the writer. It loads the facts of a held chunk from the chunk's frame, which
//! nobody else writes (`RingWriter::held`). It reads no clock, and makes no syscall while
//! writing ([`RingWriter::wake`] is a separate call).
//!
//! The order of stores is the protocol. A *claim* announces in advance what is about to be
//! overwritten:
//!
//! 1. `tail_seq` = the first chunk that will survive, then a release fence (`ring:claim`);
//! 2. payload, the other fields of the frame, 0 at the next place behind it;
//! 3. the index word with release (`ring:index`);
//! 4. the frame's `seq` with release (`ring:publish`), and `WRAPPED` at the place that a frame
//!    at the start of the area has left empty;
//! 5. `head_seq` with release (`ring:publish`).
//!
//! A position counts bytes in the endless sequence of data areas. The *place* of a chunk is the
//! position behind the chunk before it. The chunk begins there, or at the start of the next lap.
//!
//! `claim.rs` contains the claim. Invariants ([`RingWriter::audit`]):
//! - W1: `tail_seq <= seq_next`, `seq_next - tail_seq <= slot_count`
//! - W2: `position_next + 8 - place(tail_seq) <= data_bytes`. Everything from the place of the
//!   first held chunk to the next place stays, with the empty place before a wrap.
//! - W3: no chunk at or after the caller's `gate_seq` is ever claimed
//! - W4: held chunks from `alike_from` on are all of kind `alike`
//!
//! Tests: below, `model_tests.rs`, `loom_tests.rs`, `tests/ring_process.rs`.

use std::fmt;

use super::atomic::{AtomicU64, Flaw, Ordering, is_flawed};
use super::layout::{
    ChunkHeader, ClockAnchor, Descriptor, FRAME_BYTES, FRAME_WORDS, GENERATION_WORD, Geometry,
    HEAD_SEQ_WORD, META, MONO_NS, SEQ, TOTAL_BYTES, TOTAL_BYTES_WORD, WRAPPED, frame_bytes,
    index_word, offset_of, pack_meta, unpack_meta,
};
use super::lease::Lease;
use super::reader::RingReader;
#[cfg(test)]
use super::segment::Segment;
use super::{copy, futex};
use crate::base::Instant;
use crate::base::planted::{Planted, planted};
use crate::limits::KINDS_MAX;
use crate::stream::KindTotals;
use crate::trace::probe;

/// The largest number of bytes that [`RingWriter::fetch_room`] fetches.
const FETCH_BYTES_MAX: u32 = 512;
/// The value of `batch_seq` outside of a batch. No chunk has this number.
const NO_BATCH: u64 = u64::MAX;
/// Number of words of a cache line.
const LINE_WORDS: usize = 8;
/// Number of bytes of the next place, which the writer keeps at 0.
pub(super) const PLACE_BYTES: u64 = 8;

const _: () = {
    assert!(FETCH_BYTES_MAX.is_multiple_of(8)); // The writer fetches whole words.
    assert!(NO_BATCH == u64::MAX); // As a gate it holds nothing.
};

/// The one writer of one ring.
pub struct RingWriter {
    /// The number of the next chunk; `head_seq` is one less.
    pub(super) seq_next: u64,
    /// The first chunk whose slot needs a claim.
    pub(super) seq_limit: u64,
    /// The place of the next chunk. Its frame begins here, if it fits before the end of the area.
    pub(super) position_next: u64,
    /// The position up to which the next place may end without a claim: a lap behind the place of
    /// the first held chunk.
    pub(super) position_limit: u64,
    /// Position of the start of the data area in the present lap.
    pub(super) lap_position: u64,
    total_bytes: u64,
    last_length: u32,
    pub(super) geometry: Geometry,
    pub(super) tail_seq: u64,
    pub(super) tail_version: u64,
    pub(super) tail_totals: KindTotals,
    /// The kind of the newest chunks. Those from `alike_from` on are claimed in one go.
    pub(super) alike: u8,
    pub(super) alike_from: u64,
    /// The first chunk of the current batch, or [`NO_BATCH`].
    batch_seq: u64,
    /// The lent room, until it is published.
    lent: Option<Room>,
    anchor: ClockAnchor,
    generation: u64,
    /// True if no other process can store to the memory of the ring.
    is_alone: bool,
    pub(super) lease: Lease,
}

/// The start of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its first chunk.
    pub seq: u64,
    /// Payload bytes of all chunks before.
    pub total_bytes: u64,
    /// Totals of all chunks before, per kind.
    pub kinds: KindTotals,
}

impl Default for Start {
    /// Starts at chunk 1, with nothing before it.
    fn default() -> Start {
        Start { seq: 1, total_bytes: 0, kinds: KindTotals::default() }
    }
}

/// A range of the data area that holds nothing valid.
#[derive(Clone, Copy)]
struct Room {
    position: u64,
    offset: u32,
    length: u32,
}

/// The reason why a chunk was not written. The ring is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The chunk is longer than `length_max` (a quarter of the data area): split it.
    TooLarge {
        /// Length of the chunk, in bytes.
        length: usize,
        /// The length limit of one chunk of this ring, in bytes.
        length_max: u32,
    },
    /// The write would overwrite chunk `gate_seq`, which has yet to be read: wait.
    Gated {
        /// The gate that the caller gave.
        gate_seq: u64,
    },
}

impl RingWriter {
    /// Makes an empty ring in the window of `lease`. Readers of an earlier ring in it see
    /// [`Gone`](super::Poll::Gone) from the first store on.
    pub fn new(lease: Lease, anchor: ClockAnchor) -> RingWriter {
        RingWriter::starting(lease, anchor, &Start::default())
    }

    /// Makes an empty ring that continues at `start`. Chunks before `start` count as gone.
    ///
    /// # Panics
    /// If `start.seq` is 0.
    pub fn starting(lease: Lease, anchor: ClockAnchor, start: &Start) -> RingWriter {
        super::format::format(&lease, anchor, start);
        RingWriter::of_formatted(lease, anchor, start)
    }

    /// Makes the writer of a window that was formatted with the same arguments.
    pub(super) fn of_formatted(lease: Lease, anchor: ClockAnchor, start: &Start) -> RingWriter {
        let geometry = lease.geometry;
        assert!(start.seq > 0);
        assert!(lease.generation > 0); // Zeroed memory has generation 0, which no ring has.
        assert!(lease.segment.bytes() >= geometry.window_bytes());
        RingWriter {
            seq_next: start.seq,
            seq_limit: start.seq + u64::from(geometry.slot_count()),
            position_next: 0,
            position_limit: u64::from(geometry.data_bytes()),
            lap_position: 0,
            total_bytes: start.total_bytes,
            last_length: 0,
            geometry,
            tail_seq: start.seq,
            tail_version: 0,
            tail_totals: start.kinds,
            alike: 0,
            alike_from: start.seq,
            batch_seq: NO_BATCH,
            lent: None,
            anchor,
            generation: lease.generation,
            is_alone: !lease.segment.is_open_to_others(),
            lease,
        }
    }

    /// Takes into account that the process that made the memory can still store to it.
    pub(super) fn share(mut self) -> RingWriter {
        self.is_alone = false;
        self
    }

    /// Ends this ring and returns its lease. The next writer of the window has a new generation.
    pub fn into_lease(mut self) -> Lease {
        assert!(self.lease.generation == self.generation); // One writer for each generation.
        self.lease.generation += 1;
        self.lease
    }

    /// Returns the memory of the ring, for tests that overwrite it.
    #[cfg(test)]
    pub(crate) fn segment(&self) -> Segment {
        self.lease.segment.clone()
    }

    /// Returns a reader of this ring, for any thread.
    pub fn reader(&self) -> RingReader {
        let segment = self.lease.segment.clone();
        RingReader::of_writer(segment, self.geometry, self.generation, self.anchor)
    }

    /// Appends a chunk with a copy of `payload` and returns its number. Chunks from `gate_seq` on
    /// are not overwritten; `u64::MAX` means that no reader gates the writer.
    ///
    /// # Errors
    /// [`WriteError`]; the ring is then unchanged.
    ///
    /// # Panics
    /// If `header.kind` is not below [`KINDS_MAX`].
    #[inline]
    pub fn write(
        &mut self,
        header: ChunkHeader,
        payload: &[u8],
        now: Instant,
        gate_seq: u64,
    ) -> Result<u64, WriteError> {
        self.append(header, payload, now, gate_seq).map(|descriptor| descriptor.seq)
    }

    /// Like [`RingWriter::write`]. Returns everything about the chunk but its bytes.
    #[inline(always)] // Descriptors are large and should not be moved.
    pub(crate) fn append(
        &mut self,
        header: ChunkHeader,
        payload: &[u8],
        now: Instant,
        gate_seq: u64,
    ) -> Result<Descriptor, WriteError> {
        if planted(Planted::ClaimAfterWrite) {
            self.copy_unclaimed(payload);
        }
        let room = self.room(payload.len(), gate_seq)?;
        if is_flawed(Flaw::PublishOrder) {
            return Ok(self.append_in_wrong_order(header, payload, now, room));
        }
        let start = self.payload_start(room.offset);
        // SAFETY: `room` is free space of a window that only we write (the lease).
        unsafe { copy::copy_in(&self.lease.segment, start, payload) };
        #[cfg(any(test, fuzzing))]
        super::interleave::in_write(self);
        Ok(self.commit(header, room, now))
    }

    /// Like [`RingWriter::append`], for several chunks of one kind. Only the first may overwrite
    /// others. Stops before another that has to, before the end of the area, and before a chunk
    /// that is too long. Returns everything about the first, and the number of chunks.
    ///
    /// # Errors
    /// [`WriteError`], for the first; the ring is then unchanged.
    pub(crate) fn append_run(
        &mut self,
        header: ChunkHeader,
        payloads: &[&[u8]],
        now: Instant,
        gate_seq: u64,
    ) -> Result<(Descriptor, usize), WriteError> {
        let first = self.append(header, payloads[0], now, gate_seq)?;
        let is_odd = planted(Planted::ClaimAfterWrite) || is_flawed(Flaw::PublishOrder);
        match self.batch_seq {
            NO_BATCH if !is_odd => Ok((first, 1 + self.append_behind(&first, &payloads[1..]))),
            _ => Ok((first, 1)),
        }
    }

    /// Appends chunks behind `first`, which is the newest one, with its header and time. The head
    /// moves over all of them at once. Returns their number.
    fn append_behind(&mut self, first: &Descriptor, payloads: &[&[u8]]) -> usize {
        let (length_max, lap) = (self.geometry.length_max() as usize, self.lap_position);
        // Behind a frame that ends before it there is a next place, free and in the same lap (W2).
        let lap_end = lap + u64::from(self.geometry.data_bytes());
        let position_max = self.position_limit.min(lap_end) - PLACE_BYTES;
        let (mut seq, mut position) = (self.seq_next, self.position_next);
        let (mut total_bytes, mut length) = (self.total_bytes, self.last_length);
        for payload in payloads {
            let end = position + frame_bytes(payload.len().min(length_max) as u32);
            if payload.len() > length_max || end > position_max || seq == self.seq_limit {
                break;
            }
            length = payload.len() as u32;
            total_bytes += u64::from(length);
            let offset = (position - lap) as u32;
            let start = self.payload_start(offset);
            // SAFETY: free space by the lines above, of a window that only we write (the lease).
            unsafe { copy::copy_in(&self.lease.segment, start, payload) };
            #[cfg(any(test, fuzzing))]
            super::interleave::in_write(self);
            let chunk = Descriptor { seq, total_bytes, length, offset, ..*first };
            let number = self.store_frame(&chunk, (end - lap) as u32, false);
            number.store(seq, Ordering::Release); // ring:publish
            (seq, position) = (seq + 1, end);
        }
        let count = (seq - self.seq_next) as usize;
        if count > 0 {
            (self.seq_next, self.position_next) = (seq, position);
            (self.total_bytes, self.last_length) = (total_bytes, length);
            self.store_head();
            probe!(publish_batch, first.seq + 1, count);
        }
        count
    }

    /// Lends room for a chunk of up to `length` bytes. The caller fills it in place and publishes
    /// it with [`RingWriter::publish`]. Its content is left over from older chunks. Room that is
    /// not published is free again.
    ///
    /// # Errors
    /// [`WriteError`]; the ring is then unchanged.
    pub fn lend(&mut self, length: usize, gate_seq: u64) -> Result<&mut [u8], WriteError> {
        let room = self.room(length, gate_seq)?;
        self.lent = Some(room);
        let start = self.payload_start(room.offset);
        let address = self.lease.segment.byte_address(start, length);
        // SAFETY: in bounds by `byte_address`, initialized (zeroed when allocated). Only we write
        // here, and `&mut self` keeps us from doing so while the slice lives. Readers that still
        // copy the earlier content discard their copies, because the claim is stored.
        Ok(unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), length) })
    }

    /// Publishes the first `length` bytes of the lent room, without a copy. Returns the number of
    /// the chunk.
    ///
    /// # Panics
    /// If nothing is lent (since the last write or publish), if `length` exceeds the lent room, or
    /// if `header.kind` is not below [`KINDS_MAX`].
    pub fn publish(&mut self, header: ChunkHeader, length: usize, now: Instant) -> u64 {
        let lent = self.lent.take().expect("publish follows lend");
        assert!(length <= lent.length as usize);
        self.commit(header, Room { length: length as u32, ..lent }, now).seq
    }

    /// Takes lent room back, which is free again.
    pub(crate) fn forget_lent(&mut self) {
        self.lent = None;
    }

    /// True if room is lent that is not published yet.
    pub(super) fn has_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Empties the ring and begins at `start`, at the next place.
    pub(super) fn begin_lap_at(&mut self, start: &Start) {
        assert!(self.batch_seq == NO_BATCH); // Its first chunk would never be published.
        self.seq_next = start.seq;
        self.tail_seq = start.seq;
        self.alike_from = start.seq;
        self.seq_limit = start.seq + u64::from(self.geometry.slot_count());
        self.position_limit = self.position_next + u64::from(self.geometry.data_bytes());
        self.total_bytes = start.total_bytes;
        self.lent = None;
    }

    /// Moves the cache lines of the next frame to this core, from the core that last read them. The
    /// line of the next place stays, because readers look at it. The frame is assumed to be as
    /// long as the last one. The next write then does not wait for these lines. Call it while
    /// nobody waits.
    #[inline]
    pub fn fetch_room(&self) {
        let offset = self.position_next - self.lap_position;
        let end = frame_bytes(self.last_length.min(FETCH_BYTES_MAX));
        let is_free = self.position_next + end <= self.position_limit
            && offset + end <= u64::from(self.geometry.data_bytes());
        if is_free {
            // The room holds nothing valid and has no other writer. One word of each line is
            // enough.
            let first = self.geometry.frame_word(offset as u32);
            let end = first + end as usize / 8;
            let next_line = (first + 1).next_multiple_of(LINE_WORDS);
            for word in (next_line..end).step_by(LINE_WORDS) {
                self.word(word).store(0, Ordering::Relaxed);
            }
        }
    }

    /// Finds room for `length` bytes and claims it.
    #[inline(always)] // A call would cost 42 instructions for each chunk.
    fn room(&mut self, length: usize, gate_seq: u64) -> Result<Room, WriteError> {
        let length_max = self.geometry.length_max();
        if length > length_max as usize {
            return Err(WriteError::TooLarge { length, length_max });
        }
        let length = length as u32;
        let (position, offset) = self.place(length);
        let position_end = position + frame_bytes(length) + PLACE_BYTES;
        if position_end > self.position_limit || self.seq_next == self.seq_limit {
            self.claim(position_end, gate_seq)?;
        }
        Ok(Room { position, offset: offset as u32, length })
    }

    /// Returns the position of the next frame, and its offset in the data area.
    #[inline]
    fn place(&self, length: u32) -> (u64, u64) {
        let data_bytes = u64::from(self.geometry.data_bytes());
        let offset = self.position_next - self.lap_position;
        if offset + frame_bytes(length) > data_bytes {
            return (self.lap_position + data_bytes, 0); // The rest of the area becomes padding.
        }
        (self.position_next, offset)
    }

    /// The start of the payload of the frame at `offset`, in bytes of the window.
    #[inline]
    fn payload_start(&self, offset: u32) -> usize {
        self.geometry.data_start() + (offset + FRAME_BYTES) as usize
    }

    /// Copies a payload before the claim, for [`Planted::ClaimAfterWrite`].
    #[cold]
    fn copy_unclaimed(&mut self, payload: &[u8]) {
        if payload.len() <= self.geometry.length_max() as usize {
            let (_, offset) = self.place(payload.len() as u32);
            let start = self.payload_start(offset as u32);
            copy::words_in(&self.lease.segment, start, payload);
            #[cfg(any(test, fuzzing))]
            super::interleave::in_write(self);
        }
    }

    /// Publishes the content of `room` as a chunk.
    #[inline(always)] // Descriptors are large and should not be moved.
    fn commit(&mut self, header: ChunkHeader, room: Room, now: Instant) -> Descriptor {
        assert!((header.kind as usize) < KINDS_MAX);
        let seq = self.seq_next;
        assert!(seq < self.seq_limit); // W1
        self.total_bytes += u64::from(room.length);
        self.last_length = room.length;
        if header.kind != self.alike {
            (self.alike, self.alike_from) = (header.kind, seq);
        }
        self.lap_position = room.position - u64::from(room.offset);
        let left_place = self.position_next; // Empty, if the frame is not there.
        let frame_bytes = frame_bytes(room.length);
        self.position_next = room.position + frame_bytes;
        let is_inside = self.position_next + PLACE_BYTES <= self.position_limit; // W2
        assert!(is_inside || planted(Planted::DataWrapBeforeSlotWrap));
        self.seq_next = seq + 1;
        self.lent = None;

        let Room { length, offset, .. } = room;
        let (total_bytes, mono_ns) = (self.total_bytes, now.nanos());
        let descriptor = Descriptor { seq, total_bytes, mono_ns, length, header, offset };
        let next_place = self.geometry.next_place(offset + frame_bytes as u32);
        let has_wrapped = left_place != room.position;
        let number = self.store_frame(&descriptor, next_place, has_wrapped);
        if self.batch_seq != seq {
            number.store(seq, Ordering::Release); // ring:publish
        }
        if has_wrapped {
            self.leave_place(left_place);
        }
        // In a batch, a reader that waits for the first chunk sees none yet.
        if self.batch_seq == NO_BATCH {
            self.store_head();
            probe!(publish, seq, length, total_bytes);
        }
        descriptor
    }

    /// Stores everything of a frame but its number. Returns the word of the number. `is_hidden`
    /// means that the frame is not at the next place, so its old number has to go first.
    #[inline(always)]
    fn store_frame(&self, it: &Descriptor, next_place: u32, is_hidden: bool) -> &AtomicU64 {
        if !is_flawed(Flaw::NextPlace) {
            self.word(self.geometry.frame_word(next_place)).store(0, Ordering::Relaxed);
        }
        let frame = self.frame_words(it.offset);
        if is_hidden {
            frame[SEQ].store(0, Ordering::Relaxed);
        }
        frame[TOTAL_BYTES].store(it.total_bytes, Ordering::Relaxed);
        frame[MONO_NS].store(it.mono_ns, Ordering::Relaxed);
        frame[META].store(pack_meta(it.length, it.header), Ordering::Relaxed);
        let index = self.word(self.geometry.index_word(it.seq));
        index.store(index_word(it.seq, it.offset), Ordering::Release); // ring:index
        &frame[SEQ]
    }

    /// Tells readers of the newest chunk.
    #[inline(always)]
    fn store_head(&self) {
        self.word(TOTAL_BYTES_WORD).store(self.total_bytes, Ordering::Relaxed);
        self.word(HEAD_SEQ_WORD).store(self.head_seq(), Ordering::Release); // ring:publish
    }

    /// Tells readers that wait at the place of the newest chunk that its frame is at the start of
    /// the area.
    #[cold]
    fn leave_place(&self, place: u64) {
        let data_bytes = u64::from(self.geometry.data_bytes());
        assert!(place < self.lap_position);
        assert!(place + data_bytes > self.lap_position); // It is in the lap before.
        let offset = (place + data_bytes - self.lap_position) as u32;
        let place = self.word(self.geometry.frame_word(offset));
        place.store(WRAPPED, Ordering::Release); // ring:publish
    }

    /// Begins a batch. The chunks that follow become visible together when the batch ends. A reader
    /// that waits for the first chunk leaves the lines of the others alone until then.
    pub fn begin_batch(&mut self) {
        assert!(self.batch_seq == NO_BATCH);
        self.batch_seq = self.seq_next;
    }

    /// The first chunk that may not be overwritten while this batch lasts; `u64::MAX` outside of a
    /// batch. The gate of a write must not be larger.
    #[inline]
    pub fn batch_seq(&self) -> u64 {
        self.batch_seq
    }

    /// Ends a batch and returns the number of its chunks.
    pub fn end_batch(&mut self) -> u64 {
        let first_seq = std::mem::replace(&mut self.batch_seq, NO_BATCH);
        if first_seq >= self.seq_next {
            return 0;
        }
        assert!(self.is_held(first_seq)); // The gate of each write was at most `batch_seq`.
        let frame = self.frame_words(self.held(first_seq).offset);
        frame[SEQ].store(first_seq, Ordering::Release); // ring:publish
        self.store_head();
        let count = self.seq_next - first_seq;
        assert!(count <= u64::from(self.geometry.slot_count()));
        probe!(publish_batch, first_seq, count);
        count
    }

    /// Announces the chunk before its bytes are there, for a control of the loom models.
    #[cold]
    fn append_in_wrong_order(
        &mut self,
        header: ChunkHeader,
        payload: &[u8],
        now: Instant,
        room: Room,
    ) -> Descriptor {
        let descriptor = self.commit(header, room, now);
        let start = self.payload_start(room.offset);
        copy::words_in(&self.lease.segment, start, payload);
        descriptor
    }

    #[inline]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        self.lease.segment.word(index)
    }

    /// The words of the frame at `offset`, in front of its payload.
    #[inline]
    fn frame_words(&self, offset: u32) -> &[AtomicU64; FRAME_WORDS] {
        self.lease.segment.words_at(self.geometry.frame_word(offset))
    }

    /// Returns what the frame of a held chunk says.
    ///
    /// Only this writer stores there, with two exceptions. A server can store to the ring that it
    /// has made for a producer. Other processes of the user can store to a named ring, or cut it
    /// off. No number from there leads outside of the ring.
    #[inline(always)] // Descriptors are large and should not be moved.
    pub(super) fn held(&self, seq: u64) -> Descriptor {
        let entry = self.word(self.geometry.index_word(seq)).load(Ordering::Relaxed);
        let Some(offset) = offset_of(seq, entry) else { return self.held_elsewhere(seq) };
        let room = self.geometry.data_bytes() - FRAME_BYTES;
        if offset > room {
            return self.held_elsewhere(seq);
        }
        let words = self.frame_words(offset);
        let (length, header) = unpack_meta(words[META].load(Ordering::Relaxed));
        if length > room - offset || header.kind as usize >= KINDS_MAX {
            return self.held_elsewhere(seq);
        }
        let total_bytes = words[TOTAL_BYTES].load(Ordering::Relaxed);
        let mono_ns = words[MONO_NS].load(Ordering::Relaxed);
        Descriptor { seq, total_bytes, mono_ns, length, header, offset }
    }

    /// Stands for a frame that somebody else has overwritten.
    #[cold]
    #[inline(never)]
    fn held_elsewhere(&self, seq: u64) -> Descriptor {
        // Where nobody else can store, it is our own state.
        assert!(!self.is_alone || planted(Planted::DataWrapBeforeSlotWrap));
        let (total_bytes, header) = (self.total_bytes, ChunkHeader::default());
        Descriptor { seq, total_bytes, mono_ns: 0, length: 0, header, offset: 0 }
    }

    /// Wakes everyone who waits for the head to move, in this process and others, with one syscall.
    pub fn wake(&self) {
        probe!(wake, self.head_seq());
        futex::wake_all(self.word(HEAD_SEQ_WORD));
    }

    /// The newest chunk; 0 if none exists yet.
    #[inline]
    pub fn head_seq(&self) -> u64 {
        self.seq_next - 1
    }

    /// The oldest chunk that is held; `head_seq + 1` if none is.
    #[inline]
    pub fn tail_seq(&self) -> u64 {
        self.tail_seq
    }

    /// True if chunk `seq` is in the ring.
    #[inline]
    pub fn is_held(&self, seq: u64) -> bool {
        seq >= self.tail_seq && seq < self.seq_next
    }

    /// True if less than half of the held chunks can go before `gate_seq` stops the writer. The
    /// owner of the gate asks, because moving it is slow.
    pub fn is_short_of_room(&self, gate_seq: u64) -> bool {
        let free = gate_seq.clamp(self.tail_seq, self.seq_next) - self.tail_seq;
        assert!(free <= u64::from(self.geometry.slot_count())); // W1
        free < (self.seq_next - self.tail_seq) / 2
    }

    /// Payload bytes of all chunks so far.
    #[inline]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Totals of the chunks before the tail, per kind.
    pub fn tail_totals(&self) -> &KindTotals {
        &self.tail_totals
    }

    /// The sizes of this ring.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The generation of its window that this ring has.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The clock anchor in the header: one moment on both clocks.
    pub fn anchor(&self) -> ClockAnchor {
        self.anchor
    }

    /// Returns everything about chunk `seq` but its bytes.
    ///
    /// # Panics
    /// If the ring does not hold it ([`RingWriter::is_held`]).
    #[inline(always)] // Descriptors are large and should not be moved.
    pub fn descriptor(&self, seq: u64) -> Descriptor {
        assert!(self.is_held(seq));
        self.held(seq)
    }

    /// Borrows the bytes of chunk `seq` in place. Nothing is copied, and the borrow keeps this
    /// writer from overwriting them.
    ///
    /// # Panics
    /// If the ring does not hold it ([`RingWriter::is_held`]).
    #[inline]
    pub fn payload(&self, seq: u64) -> &[u8] {
        self.payload_of(&self.descriptor(seq))
    }

    #[inline]
    fn payload_of(&self, descriptor: &Descriptor) -> &[u8] {
        let start = self.payload_start(descriptor.offset);
        let address = self.lease.segment.byte_address(start, descriptor.length as usize);
        // SAFETY: in bounds by `byte_address`, initialized (zeroed when allocated). Only we write
        // here, and `&self` keeps us from doing so while the slice lives.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), descriptor.length as usize) }
    }

    /// Returns [`RingWriter::descriptor`] and [`RingWriter::payload`] in one call.
    ///
    /// # Panics
    /// If the ring does not hold it ([`RingWriter::is_held`]).
    #[inline(always)] // As above.
    pub fn chunk(&self, seq: u64) -> (Descriptor, &[u8]) {
        let descriptor = self.descriptor(seq);
        (descriptor, self.payload_of(&descriptor))
    }

    /// Checks W1, W2 and W4.
    pub fn audit(&self) {
        assert!(self.tail_seq <= self.seq_next);
        assert!(self.seq_next - self.tail_seq <= u64::from(self.geometry.slot_count()));
        let data_bytes = u64::from(self.geometry.data_bytes());
        let position_end = self.position_next + PLACE_BYTES;
        assert!(position_end - self.place_of(self.tail_seq) <= data_bytes);
        assert!(self.position_next - self.lap_position <= data_bytes);
        assert!(position_end <= self.position_limit);
        let next_offset = (self.position_next - self.lap_position) as u32;
        let next_place = self.geometry.frame_word(self.geometry.next_place(next_offset));
        assert_eq!(self.word(next_place).load(Ordering::Relaxed), 0);
        for seq in self.tail_seq.max(self.alike_from)..self.seq_next {
            assert_eq!(self.descriptor(seq).header.kind, self.alike);
        }
        assert_eq!(self.word(GENERATION_WORD).load(Ordering::Relaxed), self.generation);
    }
}

impl fmt::Debug for RingWriter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tail, head) = (self.tail_seq, self.head_seq());
        write!(out, "RingWriter({:?}, chunks {tail}..={head}, {:?})", self.geometry, self.lease)
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::TooLarge { length, length_max } => {
                write!(
                    out,
                    "a chunk of {length} bytes is too long; this ring takes at most {length_max}"
                )
            }
            WriteError::Gated { gate_seq } => {
                write!(out, "the ring is full: chunk {gate_seq} is not read yet")
            }
        }
    }
}

impl std::error::Error for WriteError {}
