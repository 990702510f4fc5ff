//! The writing side of a ring.
//!
//! Owned by one thread. Holds its own record of every chunk in the ring, so that nothing it decides
//! depends on what stands in shared memory; it stores there and never loads. Reads no clock, makes
//! no syscall while writing (waking is [`RingWriter::wake`], a call of its own).
//!
//! The order of stores is the protocol. A *claim* says in advance what is about to be overwritten:
//!
//! 1. `tail_seq` = the first chunk that will survive, then a release fence (`ring:claim`);
//! 2. payload, fields of the descriptor;
//! 3. the descriptor's `seq`, then `head_seq`, each with release (`ring:publish`).
//!
//! Claiming is in `claim.rs`. Invariants ([`RingWriter::audit`]):
//! - W1: `tail_seq <= seq_next`, `seq_next - tail_seq <= slot_count`
//! - W2: `position_next - position(tail_seq) <= data_bytes`
//! - W3: no chunk at or after the caller's `gate_seq` is ever claimed
//! - W4: held chunks from `alike_from` on are all of kind `alike`
//!
//! Tests: below, `model_tests.rs`, `loom_tests.rs`, `tests/ring_process.rs`.

use std::fmt;

use super::atomic::{AtomicU64, Flaw, Ordering, is_flawed};
use super::copy;
use super::futex;
use super::layout::{
    ChunkHeader, ClockAnchor, Descriptor, GENERATION_WORD, Geometry, HEAD_SEQ_WORD, KindTotals,
    META, MONO_NS, OFFSET, POSITION, SEQ, TOTAL_BYTES, TOTAL_BYTES_WORD, pack_meta, padded,
    unpack_meta,
};
use super::lease::Lease;
use super::reader::RingReader;
#[cfg(all(test, feature = "server"))]
use super::segment::Segment;
use crate::base::Instant;
use crate::base::planted::{Planted, planted};
use crate::limits::KINDS_MAX;
use crate::trace::probe;

/// [`RingWriter::fetch_room`] fetches no more than that.
const FETCH_BYTES_MAX: u32 = 512;
/// No chunk has this number.
const NO_BATCH: u64 = u64::MAX;
/// Words of a cache line.
const LINE_WORDS: usize = 8;

/// The one writer of one ring.
pub struct RingWriter {
    /// The number of the next chunk; `head_seq` is one less.
    pub(super) seq_next: u64,
    /// A chunk below this has a slot without a claim.
    pub(super) seq_limit: u64,
    /// Where the next payload starts if it fits before the end of the area.
    pub(super) position_next: u64,
    /// A payload that ends at or below this has room without a claim.
    pub(super) position_limit: u64,
    /// Position of the start of the data area in the present lap.
    lap_position: u64,
    total_bytes: u64,
    last_length: u32,
    pub(super) geometry: Geometry,
    /// The chunk that the first record is of: 1, but for a relay, or behind a skip.
    first_seq: u64,
    /// What every slot holds: our own record, one entry per slot that was ever used. Room for all
    /// of them is bought at once; what a short result never reaches is not touched.
    records: Vec<Record>,
    pub(super) tail_seq: u64,
    pub(super) tail_version: u64,
    pub(super) tail_totals: KindTotals,
    /// What kind the newest chunks are, and the first of these: they are claimed in one go.
    pub(super) alike: u8,
    pub(super) alike_from: u64,
    /// The first chunk of a batch that is under way; no other chunk has that number.
    batch_seq: u64,
    /// Where a lent stretch is, until it is published.
    lent: Option<Room>,
    anchor: ClockAnchor,
    generation: u64,
    pub(super) lease: Lease,
}

/// Our own record of a chunk in the ring: half a cache line.
#[derive(Clone, Copy, Default)]
pub(super) struct Record {
    pub(super) position: u64,
    pub(super) total_bytes: u64,
    mono_ns: u64,
    pub(super) meta: u64,
}

/// Where a ring starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its first chunk.
    pub seq: u64,
    /// Payload bytes of all chunks before.
    pub total_bytes: u64,
    /// All chunks before, per kind.
    pub kinds: KindTotals,
}

impl Default for Start {
    /// At the beginning.
    fn default() -> Start {
        Start { seq: 1, total_bytes: 0, kinds: KindTotals::default() }
    }
}

/// A stretch of the data area that nothing valid stands in.
#[derive(Clone, Copy)]
struct Room {
    position: u64,
    offset: u32,
    length: u32,
}

/// Why a chunk was not written. The ring is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// Split it: a chunk has at most `length_max` bytes (a quarter of the data area).
    TooLarge {
        /// Bytes that were to be written.
        length: usize,
        /// What one chunk of this ring can have.
        length_max: u32,
    },
    /// Wait: the chunk `gate_seq` would have to be overwritten, and somebody still has to read it.
    Gated {
        /// The gate that the caller gave.
        gate_seq: u64,
    },
}

impl RingWriter {
    /// An empty ring in the window of `lease`. Readers of what stood there before see
    /// [`Gone`](super::Poll::Gone) from the first store on.
    pub fn new(lease: Lease, anchor: ClockAnchor) -> RingWriter {
        RingWriter::starting(lease, anchor, &Start::default())
    }

    /// An empty ring that goes on where another one is: chunks before `start` are gone here, and
    /// counted.
    ///
    /// # Panics
    /// If it starts behind chunk 1 and `lease` is of a pool, or if there is no chunk 0.
    pub fn starting(lease: Lease, anchor: ClockAnchor, start: &Start) -> RingWriter {
        super::format::format(&lease, anchor, start);
        RingWriter::of_formatted(lease, anchor, start)
    }

    /// Of a window that has been formatted like that.
    pub(super) fn of_formatted(lease: Lease, anchor: ClockAnchor, start: &Start) -> RingWriter {
        let geometry = lease.geometry;
        RingWriter {
            seq_next: start.seq,
            seq_limit: start.seq + u64::from(geometry.slot_count()),
            position_next: 0,
            position_limit: u64::from(geometry.data_bytes()),
            lap_position: 0,
            total_bytes: start.total_bytes,
            last_length: 0,
            geometry,
            first_seq: start.seq,
            records: Vec::with_capacity(geometry.slot_count() as usize),
            tail_seq: start.seq,
            tail_version: 0,
            tail_totals: start.kinds,
            alike: 0,
            alike_from: start.seq,
            batch_seq: NO_BATCH,
            lent: None,
            anchor,
            generation: lease.generation,
            lease,
        }
    }

    /// Ends this ring and gives its window back. The next writer of it has a new generation.
    pub fn into_lease(mut self) -> Lease {
        self.lease.generation += 1;
        self.lease
    }

    /// Its memory, for tests that scribble.
    #[cfg(all(test, feature = "server"))]
    pub(crate) fn segment(&self) -> Segment {
        self.lease.segment.clone()
    }

    /// A reader of this ring, for any thread.
    pub fn reader(&self) -> RingReader {
        let segment = self.lease.segment.clone();
        RingReader::of_writer(segment, self.geometry, self.generation, self.anchor)
    }

    /// Appends a chunk with a copy of `payload` and returns its number. Chunks from `gate_seq` on
    /// are not overwritten; `u64::MAX` means that nobody gates.
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
        if planted(Planted::ClaimAfterWrite) {
            self.copy_unclaimed(payload);
        }
        let room = self.room(payload.len(), gate_seq)?;
        if is_flawed(Flaw::PublishOrder) {
            return Ok(self.write_in_wrong_order(header, payload, now, room));
        }
        let start = self.geometry.data_start() + room.offset as usize;
        // SAFETY: `room` is free space of a window that only we write (the lease).
        unsafe { copy::copy_in(&self.lease.segment, start, payload) };
        #[cfg(feature = "planted")]
        super::interleave::in_write(self);
        Ok(self.commit(header, room, now))
    }

    /// Room for a chunk of up to `length` bytes, to be filled in place and published with
    /// [`RingWriter::publish`]. What stands in it is left over from older chunks. A lent stretch
    /// that is not published is simply free again.
    ///
    /// # Errors
    /// [`WriteError`]; the ring is then unchanged.
    pub fn lend(&mut self, length: usize, gate_seq: u64) -> Result<&mut [u8], WriteError> {
        let room = self.room(length, gate_seq)?;
        self.lent = Some(room);
        let start = self.geometry.data_start() + room.offset as usize;
        let address = self.lease.segment.byte_address(start, length);
        // SAFETY: in bounds by `byte_address`, initialized (zeroed at birth). Only we write here,
        // and `&mut self` keeps us from doing so while the slice lives. Readers that still copy
        // what stood here throw their copies away: the claim is stored.
        Ok(unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), length) })
    }

    /// Publishes the first `length` bytes of what was lent last, without a copy.
    ///
    /// # Panics
    /// If nothing is lent (since the last write or publish), if `length` is more than was lent, or
    /// if `header.kind` is not below [`KINDS_MAX`].
    pub fn publish(&mut self, header: ChunkHeader, length: usize, now: Instant) -> u64 {
        let lent = self.lent.take().expect("publish follows lend");
        assert!(length <= lent.length as usize);
        self.commit(header, Room { length: length as u32, ..lent }, now)
    }

    /// Holds nothing, and begins at `start`, where the next payload would have gone.
    pub(super) fn begin_lap_at(&mut self, start: &Start) {
        self.first_seq = start.seq;
        self.records.clear();
        self.seq_next = start.seq;
        self.tail_seq = start.seq;
        self.alike_from = start.seq;
        self.seq_limit = start.seq + u64::from(self.geometry.slot_count());
        self.position_limit = self.position_next + u64::from(self.geometry.data_bytes());
        self.total_bytes = start.total_bytes;
        self.lent = None;
    }

    /// Takes the cache lines in which a payload as long as the last one would stand next from
    /// whoever has read them last: the next chunk then does not wait for them. For a moment at
    /// which nobody waits.
    #[inline]
    pub fn fetch_room(&self) {
        let (offset, length) = (self.position_next - self.lap_position, self.last_length);
        let end = padded(length.min(FETCH_BYTES_MAX));
        let is_free = self.position_next + end <= self.position_limit
            && offset + end <= u64::from(self.geometry.data_bytes());
        if is_free {
            // Nothing valid stands there, and nobody else writes: a word of each line is enough.
            let first = (self.geometry.data_start() + offset as usize) / 8;
            for word in (0..end as usize / 8).step_by(LINE_WORDS) {
                self.word(first + word).store(0, Ordering::Relaxed);
            }
            if end > 0 {
                self.word(first + end as usize / 8 - 1).store(0, Ordering::Relaxed);
            }
        }
    }

    /// Finds room for `length` bytes and claims it.
    #[inline]
    fn room(&mut self, length: usize, gate_seq: u64) -> Result<Room, WriteError> {
        let length_max = self.geometry.length_max();
        if length > length_max as usize {
            return Err(WriteError::TooLarge { length, length_max });
        }
        let length = length as u32;
        let (position, offset) = self.place(length);
        if position + padded(length) > self.position_limit || self.seq_next == self.seq_limit {
            self.claim(position + padded(length), gate_seq)?;
        }
        Ok(Room { position, offset: offset as u32, length })
    }

    /// Where a payload goes: a position, and where in the data area that is.
    #[inline]
    fn place(&self, length: u32) -> (u64, u64) {
        let data_bytes = u64::from(self.geometry.data_bytes());
        let offset = self.position_next - self.lap_position;
        // An empty payload takes no room, but has to start inside: at least one word must be left.
        if offset + padded(length.max(1)) > data_bytes {
            return (self.lap_position + data_bytes, 0); // The rest of the area becomes padding.
        }
        (self.position_next, offset)
    }

    /// [`Planted::ClaimAfterWrite`].
    #[cold]
    fn copy_unclaimed(&mut self, payload: &[u8]) {
        if payload.len() <= self.geometry.length_max() as usize {
            let (_, offset) = self.place(payload.len() as u32);
            let start = self.geometry.data_start() + offset as usize;
            copy::words_in(&self.lease.segment, start, payload);
            #[cfg(feature = "planted")]
            super::interleave::in_write(self);
        }
    }

    /// Makes a chunk of what stands in `room`.
    #[inline]
    fn commit(&mut self, header: ChunkHeader, room: Room, now: Instant) -> u64 {
        assert!((header.kind as usize) < KINDS_MAX);
        let seq = self.seq_next;
        self.total_bytes += u64::from(room.length);
        self.last_length = room.length;
        if header.kind != self.alike {
            (self.alike, self.alike_from) = (header.kind, seq);
        }
        let record = Record {
            position: room.position,
            total_bytes: self.total_bytes,
            mono_ns: now.nanos(),
            meta: pack_meta(room.length, header),
        };
        let index = self.record_index(seq);
        match self.records.get_mut(index) {
            Some(slot) => *slot = record,
            None => self.records.push(record), // The first lap.
        }
        self.lap_position = room.position - u64::from(room.offset);
        self.position_next = room.position + padded(room.length);
        self.seq_next = seq + 1;
        self.lent = None;

        let line = self.lease.segment.line(self.geometry.descriptor_line(seq));
        line[POSITION].store(record.position, Ordering::Relaxed);
        line[TOTAL_BYTES].store(record.total_bytes, Ordering::Relaxed);
        line[MONO_NS].store(record.mono_ns, Ordering::Relaxed);
        line[META].store(record.meta, Ordering::Relaxed);
        line[OFFSET].store(u64::from(room.offset), Ordering::Relaxed);
        if self.batch_seq != NO_BATCH {
            if seq != self.batch_seq {
                line[SEQ].store(seq, Ordering::Release); // ring:publish
            }
            return seq; // To who waits for the first of them, none is there yet.
        }
        line[SEQ].store(seq, Ordering::Release); // ring:publish
        self.word(TOTAL_BYTES_WORD).store(record.total_bytes, Ordering::Relaxed);
        self.word(HEAD_SEQ_WORD).store(seq, Ordering::Release); // ring:publish
        probe!(publish, seq, room.length, record.total_bytes);
        seq
    }

    /// What is written from now on is there for others when the batch ends, all of it at once: who
    /// waits for the first chunk leaves the lines of the others alone until then.
    pub fn begin_batch(&mut self) {
        assert!(self.batch_seq == NO_BATCH);
        self.batch_seq = self.seq_next;
    }

    /// From where on nothing may be overwritten while this batch lasts; `u64::MAX` if there is
    /// none. Whoever writes has to give no larger gate.
    #[inline]
    pub fn batch_seq(&self) -> u64 {
        self.batch_seq
    }

    /// Ends a batch. How many chunks it had.
    pub fn end_batch(&mut self) -> u64 {
        let first_seq = std::mem::replace(&mut self.batch_seq, NO_BATCH);
        if first_seq >= self.seq_next {
            return 0;
        }
        assert!(self.is_held(first_seq));
        let line = self.lease.segment.line(self.geometry.descriptor_line(first_seq));
        line[SEQ].store(first_seq, Ordering::Release); // ring:publish
        self.word(TOTAL_BYTES_WORD).store(self.total_bytes, Ordering::Relaxed);
        self.word(HEAD_SEQ_WORD).store(self.seq_next - 1, Ordering::Release); // ring:publish
        let count = self.seq_next - first_seq;
        probe!(publish_batch, first_seq, count);
        count
    }

    /// For a control of the loom models: the chunk is announced before its bytes are there.
    #[cold]
    fn write_in_wrong_order(
        &mut self,
        header: ChunkHeader,
        payload: &[u8],
        now: Instant,
        room: Room,
    ) -> u64 {
        let seq = self.commit(header, room, now);
        let start = self.geometry.data_start() + room.offset as usize;
        copy::words_in(&self.lease.segment, start, payload);
        seq
    }

    #[inline]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        self.lease.segment.word(index)
    }

    #[inline]
    pub(super) fn record(&self, seq: u64) -> &Record {
        &self.records[self.record_index(seq)]
    }

    /// Where the record of chunk `seq` is: in the order in which the first lap comes.
    #[inline]
    fn record_index(&self, seq: u64) -> usize {
        ((seq - self.first_seq) & u64::from(self.geometry.slot_count() - 1)) as usize
    }

    /// Wakes everyone who waits for the head to move, in this process and others: one syscall.
    pub fn wake(&self) {
        probe!(wake, self.head_seq());
        futex::wake_all(self.word(HEAD_SEQ_WORD));
    }

    /// The newest chunk; 0 if there is none yet.
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

    /// Would less than half of what it holds have to go before `gate_seq` is in the way? It is
    /// asked for by who moves the gate, which takes a while.
    pub fn is_short_of_room(&self, gate_seq: u64) -> bool {
        let free = gate_seq.clamp(self.tail_seq, self.seq_next) - self.tail_seq;
        free < (self.seq_next - self.tail_seq) / 2
    }

    /// Payload bytes of all chunks so far.
    #[inline]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Chunks before the tail, per kind.
    pub fn tail_totals(&self) -> &KindTotals {
        &self.tail_totals
    }

    /// The sizes of this ring.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Which tenancy of its window this ring is.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The moment on both clocks that stands in the header.
    pub fn anchor(&self) -> ClockAnchor {
        self.anchor
    }

    /// Everything about chunk `seq` but its bytes.
    ///
    /// # Panics
    /// If the ring does not hold it ([`RingWriter::is_held`]).
    #[inline(always)] // Descriptors are large: none of them is to be moved about.
    pub fn descriptor(&self, seq: u64) -> Descriptor {
        assert!(self.is_held(seq));
        let record = self.record(seq);
        let (length, header) = unpack_meta(record.meta);
        // What is held spans less than the data area, so it is in this lap or in the one before.
        let offset = if record.position >= self.lap_position {
            record.position - self.lap_position
        } else {
            record.position + u64::from(self.geometry.data_bytes()) - self.lap_position
        };
        Descriptor {
            seq,
            position: record.position,
            total_bytes: record.total_bytes,
            mono_ns: record.mono_ns,
            length,
            header,
            offset: offset as u32,
        }
    }

    /// The bytes of chunk `seq`, where they are: nothing is copied, and the borrow keeps this
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
        let start = self.geometry.data_start() + descriptor.offset as usize;
        let address = self.lease.segment.byte_address(start, descriptor.length as usize);
        // SAFETY: in bounds by `byte_address`, initialized (zeroed at birth). Only we write here,
        // and `&self` keeps us from doing so while the slice lives.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), descriptor.length as usize) }
    }

    /// [`RingWriter::descriptor`] and [`RingWriter::payload`] in one.
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
        assert!(self.position_next - self.position_of(self.tail_seq) <= data_bytes);
        assert!(self.position_next - self.lap_position <= data_bytes);
        assert!(self.position_next <= self.position_limit);
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
                write!(out, "a chunk of {length} bytes; this ring takes at most {length_max}")
            }
            WriteError::Gated { gate_seq } => {
                write!(out, "the ring is full: chunk {gate_seq} has yet to be read")
            }
        }
    }
}

impl std::error::Error for WriteError {}
