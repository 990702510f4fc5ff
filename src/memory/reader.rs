//! The reading side of a ring, for any thread and any process.
//!
//! The reader relies on nothing: data in shared memory may be torn, overwritten or hostile. Each
//! word is loaded once, and payload bytes are copied to the caller's private buffer. Only then does
//! the reader check whether the writer had claimed them meanwhile. It stores nothing, so a
//! read-only mapping is enough.
//!
//! - `ring:publish`: a reader that sees a descriptor's `seq` sees the chunk;
//! - `ring:claim`: a reader that saw anything of a newer chunk sees the tail that gave up the older
//!   one;
//! - `ring:generation`: a reader that saw anything of the window's next ring sees its generation.
//!
//! Tests: below, `model_tests.rs`, `loom_tests.rs`, `tests/ring_process.rs`.

use std::fmt;
use std::time::Duration;

use super::atomic::{AtomicU64, Flaw, Ordering, fence, is_flawed, load_acquire, spin_hint};
use super::copy;
use super::format::{HeaderFault, read_header};
use super::futex::{self, WaitOutcome};
use super::layout::{
    ClockAnchor, DESCRIPTOR_WORDS, Descriptor, GENERATION_WORD, Geometry, HEAD_SEQ_WORD, META,
    MONO_NS, OFFSET, POSITION, SEQ, TAIL_SEQ_WORD, TAIL_TOTALS_WORD, TAIL_VERSION_WORD,
    TOTAL_BYTES, TOTAL_BYTES_WORD, unpack_meta,
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
        RingReader { segment, geometry, generation, anchor }
    }

    /// Looks for chunk `seq`. Loads the line of its descriptor, and the line of the tail, which
    /// rarely changes.
    #[inline]
    pub fn poll(&self, seq: u64) -> Poll {
        let line = self.segment.line(self.geometry.descriptor_line(seq));
        let found_seq = load_acquire(&line[SEQ]); // ring:publish
        if found_seq != seq {
            return self.poll_other(seq, found_seq);
        }
        let found = self.descriptor(seq, line);
        match (self.recheck(seq), found) {
            (Err(loss), _) => loss.into(),
            (Ok(()), Some(descriptor)) => Poll::Ready(descriptor),
            (Ok(()), None) => Poll::Corrupt,
        }
    }

    /// Returns the content of a descriptor, if a writer of ours can have written it. Only the
    /// re-check shows whether its fields belong together.
    #[inline(always)]
    fn descriptor(&self, seq: u64, line: &[AtomicU64; DESCRIPTOR_WORDS]) -> Option<Descriptor> {
        let position = line[POSITION].load(Ordering::Relaxed);
        let total_bytes = line[TOTAL_BYTES].load(Ordering::Relaxed);
        let mono_ns = line[MONO_NS].load(Ordering::Relaxed);
        let (length, header) = unpack_meta(line[META].load(Ordering::Relaxed));
        let offset = line[OFFSET].load(Ordering::Relaxed);
        let is_sound = length <= self.geometry.length_max()
            && offset <= u64::from(self.geometry.data_bytes() - length)
            && offset.is_multiple_of(8)
            && (header.kind as usize) < KINDS_MAX;
        let offset = offset as u32;
        is_sound.then_some(Descriptor {
            seq,
            position,
            total_bytes,
            mono_ns,
            length,
            header,
            offset,
        })
    }

    /// Returns the result if the slot of `seq` holds another chunk, or none.
    #[inline]
    fn poll_other(&self, seq: u64, found_seq: u64) -> Poll {
        if found_seq < seq {
            // An older chunk, an empty slot, or the next ring of the window.
            let generation = self.word(GENERATION_WORD).load(Ordering::Relaxed);
            return if generation == self.generation { Poll::Pending } else { Poll::Gone };
        }
        match self.recheck(seq) {
            Err(loss) => loss.into(),
            Ok(()) => Poll::Corrupt, // It was overwritten without a claim.
        }
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
        let line = self.segment.line(self.geometry.descriptor_line(seq));
        let found_seq = load_acquire(&line[SEQ]); // ring:publish
        if found_seq < seq && self.word(GENERATION_WORD).load(Ordering::Relaxed) == self.generation
        {
            return Err(ReadError::Pending);
        }
        if found_seq == seq
            && let Some(descriptor) = self.descriptor(seq, line)
        {
            self.copy(&descriptor, buffer)?;
            return Ok(descriptor);
        }
        self.read_other(seq, buffer)
    }

    /// Looks again after no chunk could be copied, and copies it if it is there by now.
    #[cold]
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
        let data_bytes = self.geometry.data_bytes();
        assert!(descriptor.length <= data_bytes);
        assert!(descriptor.offset <= data_bytes - descriptor.length);
        self.geometry.data_start() + descriptor.offset as usize
    }

    /// Checks after a copy that the copied data was still chunk `seq`.
    #[inline(always)]
    fn recheck(&self, seq: u64) -> Result<(), ReadError> {
        if !is_flawed(Flaw::ReaderFence) {
            fence(Ordering::Acquire); // ring:claim, ring:generation
        }
        if is_flawed(Flaw::TailCheck) {
            let found_seq =
                self.segment.line(self.geometry.descriptor_line(seq))[SEQ].load(Ordering::Relaxed);
            return if found_seq == seq { Ok(()) } else { Err(ReadError::Gone) };
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
        if tail_seq - 1 > head_seq {
            // Tail and head are of two rings, or of a hostile writer.
            fence(Ordering::Acquire);
            let generation = self.word(GENERATION_WORD).load(Ordering::Relaxed);
            let is_gone = generation != self.generation;
            return if is_gone { ReadError::Gone } else { ReadError::Corrupt };
        }
        ReadError::Overtaken { tail_seq }
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

    /// The word whose low half moves with every chunk, for [`futex::wait_either`].
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
