//! The reading side of a ring, for any thread and any process.
//!
//! The reader relies on nothing: data in shared memory may be torn, overwritten or hostile. Each
//! word is loaded once, and payload bytes are copied to the caller's private buffer. Only then does
//! the reader check whether the writer had claimed them meanwhile. It stores nothing, so a
//! read-only mapping is enough.
//!
//! - `ring:publish`: a reader that sees a frame's `seq` sees the chunk, and 0 at the next place
//!   until the next chunk is there. A reader that sees `WRAPPED` sees the next chunk's index;
//! - `ring:index`: a reader that sees a chunk's index word sees no older number in its frame;
//! - `ring:claim`: a reader that saw anything of a newer chunk sees the tail that gave up the older
//!   one;
//! - `ring:generation`: a reader that saw anything of the window's next ring sees its generation.
//!
//! A reader remembers the place behind the chunk that it read last, and looks there for the next
//! one. It never finds a part of a payload there. While the tail is at most the next chunk, no
//! chunk may use that place but the next one (W2 of `writer.rs`).
//!
//! Tests: below, `model_tests.rs`, `loom_tests.rs`, `tests/ring_process.rs`.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use super::atomic::{AtomicU64, Flaw, Ordering, fence, is_flawed, load_acquire, spin_hint};
use super::copy;
use super::format::{HeaderFault, read_header};
use super::futex::{self, WaitOutcome};
use super::layout::{
    ClockAnchor, Descriptor, FRAME_BYTES, FRAME_WORDS, GENERATION_WORD, Geometry, HEAD_SEQ_WORD,
    META, MONO_NS, SEQ, TAIL_SEQ_WORD, TAIL_TOTALS_WORD, TAIL_VERSION_WORD, TOTAL_BYTES,
    TOTAL_BYTES_WORD, frame_bytes, offset_of, unpack_meta,
};
use super::segment::Segment;
use crate::limits::{KINDS_MAX, SEQLOCK_ATTEMPTS_MAX};
use crate::stream::KindTotals;

/// A reader of one generation of one ring. It has no position: the caller's cursor is the position.
#[derive(Clone)]
pub struct RingReader {
    segment: Segment,
    geometry: Geometry,
    generation: u64,
    anchor: ClockAnchor,
    /// The chunk behind the one that was read last, and the offset of its place.
    next: Cell<(u64, u32)>,
}

/// The value of `next` for no chunk.
const NO_PLACE: (u64, u32) = (u64::MAX, 0);

/// The result of a look for a chunk.
enum Found {
    /// Its frame begins at this offset, which is inside of the area.
    At(u32),
    /// It is not at its place, or will be elsewhere.
    NotYet,
    /// The index does not know it.
    Nowhere,
}

/// The state of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// It is in the ring. The writer may overtake it at any moment, which [`RingReader::copy`]
    /// detects.
    Ready(Descriptor),
    /// It has not been written yet.
    Pending,
    /// It has been overwritten, as has everything before `tail_seq`.
    Overtaken {
        /// The oldest chunk that is still held.
        tail_seq: u64,
    },
    /// The window belongs to another execution now.
    Gone,
    /// The data cannot come from a writer of ours.
    Corrupt,
}

/// The reason why a chunk was not read. The contents of the buffer are then invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// It has not been written yet: wait.
    Pending,
    /// It has been overwritten: continue at `tail_seq`.
    Overtaken {
        /// The oldest chunk that is still held.
        tail_seq: u64,
    },
    /// The window belongs to another execution now: give up.
    Gone,
    /// The data cannot come from a writer of ours: give up.
    Corrupt,
    /// The payload is larger than the buffer: call again with a larger one.
    BufferTooSmall {
        /// Length of the payload, in bytes.
        length: u32,
    },
}

/// The totals before the tail at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailTotals {
    /// The oldest chunk that was held.
    pub tail_seq: u64,
    /// The chunks before it, per kind.
    pub kinds: KindTotals,
}

impl RingReader {
    /// Attaches a reader to the ring in `segment`, whose writer is not trusted.
    ///
    /// # Errors
    /// [`HeaderFault`] if it is not a ring.
    pub fn attach(segment: Segment) -> Result<RingReader, HeaderFault> {
        let header = read_header(&segment)?;
        // `read_header` has refused all others.
        assert!(header.generation > 0);
        assert!(segment.bytes() >= header.geometry.window_bytes());
        Ok(RingReader {
            segment,
            geometry: header.geometry,
            generation: header.generation,
            anchor: header.anchor,
            next: Cell::new(NO_PLACE),
        })
    }

    /// Makes a reader from the values that the writer stored in the header.
    pub(super) fn of_writer(
        segment: Segment,
        geometry: Geometry,
        generation: u64,
        anchor: ClockAnchor,
    ) -> RingReader {
        assert!(generation > 0); // Zeroed memory has generation 0, which no ring has.
        assert!(segment.bytes() >= geometry.window_bytes());
        RingReader { segment, geometry, generation, anchor, next: Cell::new(NO_PLACE) }
    }

    /// Looks for chunk `seq`. If the chunk before was read last, this loads the line of the frame,
    /// and the line of the tail, which rarely changes. Otherwise it looks into the index first.
    #[inline]
    pub fn poll(&self, seq: u64) -> Poll {
        match self.find(seq) {
            Found::At(offset) => self.poll_at(seq, offset),
            Found::NotYet => self.recheck(seq).map_or_else(Poll::from, |()| Poll::Pending),
            Found::Nowhere => self.missing(seq),
        }
    }

    #[inline]
    fn poll_at(&self, seq: u64, offset: u32) -> Poll {
        let found = self.descriptor(seq, offset);
        match (self.recheck(seq), found) {
            (Err(loss), _) => loss.into(),
            (Ok(()), Some(descriptor)) => {
                self.note_place_behind(&descriptor);
                Poll::Ready(descriptor)
            }
            (Ok(()), None) => Poll::Corrupt,
        }
    }

    /// Looks for the frame of chunk `seq`: at its place, if the chunk before was read last.
    #[inline(always)]
    fn find(&self, seq: u64) -> Found {
        let (next_seq, place) = self.next.get();
        if next_seq == seq {
            let found_seq = self.seq_at(place);
            if found_seq == seq {
                return Found::At(place);
            }
            if found_seq == 0 {
                return Found::NotYet;
            }
            // It wrapped, or was overtaken.
        }
        self.find_by_index(seq)
    }

    #[inline(never)]
    fn find_by_index(&self, seq: u64) -> Found {
        let entry = load_acquire(self.word(self.geometry.index_word(seq))); // ring:index
        match offset_of(seq, entry) {
            Some(offset) if offset <= self.geometry.data_bytes() - FRAME_BYTES => {
                let found_seq = load_acquire(&self.frame_words(offset)[SEQ]); // ring:publish
                if found_seq == seq { Found::At(offset) } else { Found::Nowhere }
            }
            _ => Found::Nowhere, // It may be an offset that no writer of ours has stored.
        }
    }

    /// Finds the reason why the index does not know chunk `seq`. Only such a reader looks at the
    /// line of the head.
    #[cold]
    fn missing(&self, seq: u64) -> Poll {
        if let Err(loss) = self.recheck(seq) {
            return loss.into();
        }
        if self.head_seq() < seq {
            return Poll::Pending;
        }
        self.missing_though_published(seq)
    }

    /// Looks again for a chunk that the head includes.
    fn missing_though_published(&self, seq: u64) -> Poll {
        if let Found::At(offset) = self.find_by_index(seq) {
            return self.poll_at(seq, offset);
        }
        match self.recheck(seq) {
            Err(loss) => loss.into(),
            Ok(()) => Poll::Corrupt, // It was overwritten without a claim, or never written.
        }
    }

    /// Returns the content of the frame at `offset`, if a writer of ours can have written it. Only
    /// the re-check shows whether its fields belong together.
    #[inline(always)]
    fn descriptor(&self, seq: u64, offset: u32) -> Option<Descriptor> {
        let room = (self.geometry.data_bytes() - FRAME_BYTES).checked_sub(offset)?;
        let words = self.frame_words(offset);
        let total_bytes = words[TOTAL_BYTES].load(Ordering::Relaxed);
        let mono_ns = words[MONO_NS].load(Ordering::Relaxed);
        let (length, header) = unpack_meta(words[META].load(Ordering::Relaxed));
        let is_sound = length <= self.geometry.length_max()
            && length <= room
            && (header.kind as usize) < KINDS_MAX;
        is_sound.then_some(Descriptor { seq, total_bytes, mono_ns, length, header, offset })
    }

    /// The number of the chunk whose frame begins at `place`, or a mark.
    #[inline(always)]
    fn seq_at(&self, place: u32) -> u64 {
        load_acquire(self.word(self.geometry.frame_word(place))) // ring:publish
    }

    /// The words of the frame at `offset`, in front of its payload.
    #[inline]
    fn frame_words(&self, offset: u32) -> &[AtomicU64; FRAME_WORDS] {
        self.segment.words_at(self.geometry.frame_word(offset))
    }

    /// Remembers where the chunk behind this one begins. This one was whole.
    #[inline]
    fn note_place_behind(&self, descriptor: &Descriptor) {
        let end = u64::from(descriptor.offset) + frame_bytes(descriptor.length);
        assert!(end <= u64::from(self.geometry.data_bytes())); // `descriptor` has checked it.
        self.next.set((descriptor.seq.saturating_add(1), self.geometry.next_place(end as u32)));
    }

    /// Copies the payload of `descriptor` to the start of `buffer` and checks that it was whole.
    ///
    /// # Errors
    /// [`ReadError`], never `Pending`. The contents of `buffer` are then invalid.
    #[inline(always)]
    pub fn copy(&self, descriptor: &Descriptor, buffer: &mut [u8]) -> Result<(), ReadError> {
        let length = descriptor.length;
        let Some(target) = buffer.get_mut(..length as usize) else {
            return Err(ReadError::BufferTooSmall { length });
        };
        let start = self.payload_start(descriptor);
        // SAFETY: nobody reads `target` unless the re-check shows that nobody wrote meanwhile.
        unsafe { copy::copy_out(&self.segment, start, target) };
        self.recheck(descriptor.seq)
    }

    /// Reads a chunk: [`RingReader::poll`] and [`RingReader::copy`] in one, with one re-check for
    /// both.
    ///
    /// # Errors
    /// [`ReadError`]. The contents of `buffer` are then invalid.
    #[inline(always)] // A descriptor is a cache line and should not be moved.
    pub fn read(&self, seq: u64, buffer: &mut [u8]) -> Result<Descriptor, ReadError> {
        let (next_seq, place) = self.next.get();
        if next_seq == seq {
            let found_seq = self.seq_at(place);
            if found_seq == 0 && self.recheck(seq).is_ok() {
                return Err(ReadError::Pending);
            }
            if found_seq == seq
                && let Some(descriptor) = self.descriptor(seq, place)
            {
                self.copy(&descriptor, buffer)?;
                self.note_place_behind(&descriptor);
                return Ok(descriptor);
            }
        }
        self.read_other(seq, buffer)
    }

    /// Reads a chunk that is not at the place behind the last one.
    #[inline(never)]
    fn read_other(&self, seq: u64, buffer: &mut [u8]) -> Result<Descriptor, ReadError> {
        match self.poll(seq) {
            Poll::Ready(descriptor) => self.copy(&descriptor, buffer).map(|()| descriptor),
            Poll::Pending => Err(ReadError::Pending),
            Poll::Overtaken { tail_seq } => Err(ReadError::Overtaken { tail_seq }),
            Poll::Gone => Err(ReadError::Gone),
            Poll::Corrupt => Err(ReadError::Corrupt),
        }
    }

    /// Borrows the payload of `descriptor` in place.
    ///
    /// # Safety
    /// This process writes the ring, and the chunk is not overwritten while the slice lives. For
    /// this the writer is given a `gate_seq` of at most `descriptor.seq`, and its window is not
    /// given back. `descriptor` is from this reader or from the writer of the same generation.
    #[inline]
    pub unsafe fn borrow(&self, descriptor: &Descriptor) -> &[u8] {
        let start = self.payload_start(descriptor);
        let address = self.segment.byte_address(start, descriptor.length as usize);
        // SAFETY: in bounds by `byte_address`, initialized (zeroed when allocated), and not written
        // while the slice lives, by contract.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), descriptor.length as usize) }
    }

    /// Returns the start of a payload in the segment. It is in bounds for any descriptor.
    #[inline]
    fn payload_start(&self, descriptor: &Descriptor) -> usize {
        let room = self.geometry.data_bytes() - FRAME_BYTES;
        assert!(descriptor.length <= room);
        assert!(descriptor.offset <= room - descriptor.length);
        self.geometry.data_start() + (descriptor.offset + FRAME_BYTES) as usize
    }

    /// Checks after a copy that the copied data was still chunk `seq`.
    #[inline(always)]
    fn recheck(&self, seq: u64) -> Result<(), ReadError> {
        if !is_flawed(Flaw::ReaderFence) {
            fence(Ordering::Acquire); // ring:claim, ring:generation
        }
        if is_flawed(Flaw::TailCheck) {
            return Ok(());
        }
        let tail_seq = self.word(TAIL_SEQ_WORD).load(Ordering::Relaxed); // ring:tail
        if !is_flawed(Flaw::ReaderFence) {
            fence(Ordering::Acquire); // ring:tail; also: a tail that fell shows the new generation
        }
        if self.word(GENERATION_WORD).load(Ordering::Relaxed) != self.generation {
            return Err(ReadError::Gone);
        }
        if tail_seq <= seq {
            return Ok(());
        }
        Err(self.overtaken(tail_seq))
    }

    /// Finds the reason for a tail behind the chunk: it was overtaken, or head and tail are of two
    /// rings or false.
    #[cold]
    fn overtaken(&self, tail_seq: u64) -> ReadError {
        // A tail is at most one beyond a head that was stored before it.
        let head_seq = self.word(HEAD_SEQ_WORD).load(Ordering::Relaxed);
        match tail_seq - 1 > head_seq {
            true => self.ahead_of_head(tail_seq),
            false => ReadError::Overtaken { tail_seq },
        }
    }

    /// Finds the reason for a tail that is ahead of the head. A writer that skips moves the tail
    /// first. Otherwise they are of two rings, or the writer is hostile.
    #[cold]
    fn ahead_of_head(&self, tail_seq: u64) -> ReadError {
        fence(Ordering::Acquire);
        let generation = self.word(GENERATION_WORD).load(Ordering::Relaxed);
        if generation != self.generation {
            return ReadError::Gone;
        }
        let version = load_acquire(self.word(TAIL_VERSION_WORD)); // ring:totals
        let is_skipping = !version.is_multiple_of(2) || tail_seq - 1 <= self.head_seq();
        if is_skipping { ReadError::Overtaken { tail_seq } } else { ReadError::Corrupt }
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        self.segment.word(index)
    }

    /// The newest chunk; 0 if none exists. It is a hint: it may change at any moment, and a hostile
    /// writer can store anything.
    #[inline]
    pub fn head_seq(&self) -> u64 {
        load_acquire(self.word(HEAD_SEQ_WORD)) // ring:publish
    }

    /// True if chunk `seq` is or was in the ring. Chunks are visible a moment before the head
    /// includes them, and their writer may lose the processor in between.
    pub fn has_been(&self, seq: u64) -> bool {
        seq <= self.head_seq() || !matches!(self.poll(seq), Poll::Pending | Poll::Gone)
    }

    /// The oldest chunk that is held. It is a hint, like [`RingReader::head_seq`].
    #[inline]
    pub fn tail_seq(&self) -> u64 {
        load_acquire(self.word(TAIL_SEQ_WORD)) // ring:tail
    }

    /// Payload bytes of all chunks so far. It is a hint; the descriptors hold exact numbers.
    pub fn total_bytes(&self) -> u64 {
        self.word(TOTAL_BYTES_WORD).load(Ordering::Relaxed)
    }

    /// The tail and the totals of one and the same moment. `None` if the window belongs to another
    /// execution, or if its writer stays in the middle of a change. In the latter case call it
    /// again later, a bounded number of times.
    pub fn tail_totals(&self) -> Option<TailTotals> {
        for _ in 0..SEQLOCK_ATTEMPTS_MAX {
            let version = load_acquire(self.word(TAIL_VERSION_WORD)); // ring:totals
            let tail_seq = self.word(TAIL_SEQ_WORD).load(Ordering::Relaxed);
            let mut kinds = KindTotals::default();
            for (kind, total) in kinds.each_mut().iter_mut().enumerate() {
                let word = TAIL_TOTALS_WORD + 2 * kind;
                total.chunks = self.word(word).load(Ordering::Relaxed);
                total.bytes = self.word(word + 1).load(Ordering::Relaxed);
            }
            fence(Ordering::Acquire); // ring:totals, ring:generation
            let version_after = self.word(TAIL_VERSION_WORD).load(Ordering::Relaxed);
            fence(Ordering::Acquire); // A version that fell shows the new generation.
            if self.word(GENERATION_WORD).load(Ordering::Relaxed) != self.generation {
                return None;
            }
            if version == version_after && version.is_multiple_of(2) {
                return Some(TailTotals { tail_seq, kinds });
            }
            spin_hint();
        }
        None
    }

    /// Sleeps until the head is no longer `seen_head_seq`, at most `timeout`. It may wake early. A
    /// caller that wants to be woken has to announce it (its reader page says `asleep`).
    pub fn wait(&self, seen_head_seq: u64, timeout: Duration) -> WaitOutcome {
        futex::wait(self.word(HEAD_SEQ_WORD), seen_head_seq as u32, timeout)
    }

    /// Wakes everyone who waits for the head to move. It is for a process that may write the ring,
    /// but whose writer is on another thread.
    pub fn wake(&self) {
        futex::wake_all(self.head_word());
    }

    /// The word whose low half moves with every chunk, for [`futex::wait_any`].
    pub fn head_word(&self) -> &AtomicU64 {
        self.word(HEAD_SEQ_WORD)
    }

    /// The sizes of the ring, checked when it was attached.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The generation of the window that this reader reads.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The clock anchor, which turns the monotonic time of a chunk into wall time.
    pub fn anchor(&self) -> ClockAnchor {
        self.anchor
    }
}

impl From<ReadError> for Poll {
    #[inline]
    fn from(error: ReadError) -> Poll {
        match error {
            ReadError::Pending => Poll::Pending,
            ReadError::Overtaken { tail_seq } => Poll::Overtaken { tail_seq },
            ReadError::Gone => Poll::Gone,
            ReadError::Corrupt | ReadError::BufferTooSmall { .. } => Poll::Corrupt,
        }
    }
}

impl fmt::Debug for RingReader {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RingReader({:?}, generation {})", self.geometry, self.generation)
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Pending => write!(out, "the chunk has not been written yet"),
            ReadError::Overtaken { tail_seq } => {
                write!(out, "the chunk has been overwritten; the oldest held is {tail_seq}")
            }
            ReadError::Gone => write!(out, "the ring has ended, and its memory now serves another"),
            ReadError::Corrupt => {
                write!(out, "the ring contains values that no writer can have written")
            }
            ReadError::BufferTooSmall { length } => {
                write!(out, "the payload has {length} bytes, and the buffer is smaller")
            }
        }
    }
}

impl std::error::Error for ReadError {}
