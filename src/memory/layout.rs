//! The layout of a ring: sizes, word numbers, and the packing of a frame.
//!
//! Plain numbers, no memory access. A window is `header | index | data`:
//!
//! ```text
//! word   0  magic, version, window bytes, slots, data bytes, clock anchor (wall µs, mono ns)
//! word  16  generation, tail_seq, version of the tail totals       quiet: moves once per claim
//! word  32  head_seq, total_bytes                                  moves with every chunk
//! word  48  totals of what stood before the tail: 16 kinds × (count, bytes)
//! word  80  reserved: the owner word of an external producer
//! word 128  index: one word for each slot; chunk `seq` is in slot `seq % slots`
//! then      data: frames, one behind the other
//! ```
//!
//! A frame is a chunk: four words (seq, total_bytes, mono_ns, meta), then its payload, padded to a
//! multiple of 8. A frame never wraps. One that does not fit before the end of the area begins at
//! its start, and the rest is padding.
//!
//! *The next place* is the word behind the newest frame. The next chunk has its `seq` there, unless
//! it wraps. The writer keeps this word at 0 until then. A reader that has read a chunk therefore
//! finds the next one without a look at any other line. If the next chunk wraps, the word becomes
//! `WRAPPED`. The reader then finds the chunk by its index word, as anybody else does.
//!
//! An index word holds the place of its chunk and the low half of the chunk's number. It is never
//! taken for that of another chunk (`index_word`).
//!
//! Groups that different cores write or poll are 128 bytes apart (adjacent-line prefetch).

use crate::base::Instant;
use crate::limits::{
    CHUNK_ALIGN_BYTES, CHUNK_HEADER_BYTES, DOOR_RING_BYTES, KINDS_MAX, RING_BYTES_PER_SLOT,
    RING_CLASS_BYTES, RING_CLASS_BYTES_MAX,
};

/// The text "sdring", and a check of the byte order.
pub(super) const MAGIC: u64 = 0x0102_676e_6972_6473;
/// The version of everything in this file.
pub(super) const LAYOUT_VERSION: u64 = 2;

/// Number of words of the header: 1 KiB.
pub(super) const HEADER_WORDS: usize = 128;
/// Number of words of a frame in front of its payload.
pub(super) const FRAME_WORDS: usize = 4;
/// Number of bytes of a frame in front of its payload.
pub(super) const FRAME_BYTES: u32 = CHUNK_HEADER_BYTES as u32;
/// The alignment of the start of every frame and every payload, in bytes.
pub(super) const FRAME_ALIGN: u32 = CHUNK_ALIGN_BYTES as u32;
/// The value of the next place if the next chunk is elsewhere. No chunk has this number.
pub(super) const WRAPPED: u64 = u64::MAX;
/// The inverse of the largest part of the ring that a claim takes beyond its need.
pub(super) const CLAIM_PARTS: u32 = 8;

pub(super) const MAGIC_WORD: usize = 0;
pub(super) const VERSION_WORD: usize = 1;
pub(super) const WINDOW_BYTES_WORD: usize = 2;
pub(super) const SLOT_COUNT_WORD: usize = 3;
pub(super) const DATA_BYTES_WORD: usize = 4;
pub(super) const WALL_US_WORD: usize = 5;
pub(super) const MONO_NS_WORD: usize = 6;
pub(super) const GENERATION_WORD: usize = 16;
pub(super) const TAIL_SEQ_WORD: usize = 17;
pub(super) const TAIL_VERSION_WORD: usize = 18;
pub(super) const HEAD_SEQ_WORD: usize = 32;
pub(super) const TOTAL_BYTES_WORD: usize = 33;
pub(super) const TAIL_TOTALS_WORD: usize = 48;

/// Word numbers of a frame.
pub(super) const SEQ: usize = 0;
pub(super) const TOTAL_BYTES: usize = 1;
pub(super) const MONO_NS: usize = 2;
pub(super) const META: usize = 3;

const _: () = {
    assert!(cfg!(target_endian = "little")); // Futexes use the low half of a word.
    assert!(TAIL_TOTALS_WORD + 2 * KINDS_MAX <= 80); // The owner word begins there.
    assert!(HEADER_WORDS.is_multiple_of(LINE_PAIR_WORDS)); // The index begins on a line.
    assert_ascending(&[MAGIC_WORD, VERSION_WORD, WINDOW_BYTES_WORD, SLOT_COUNT_WORD]);
    assert_ascending(&[SLOT_COUNT_WORD, DATA_BYTES_WORD, WALL_US_WORD, MONO_NS_WORD]);
    assert_ascending(&[MONO_NS_WORD, GENERATION_WORD, TAIL_SEQ_WORD, TAIL_VERSION_WORD]);
    assert_ascending(&[TAIL_VERSION_WORD, HEAD_SEQ_WORD, TOTAL_BYTES_WORD, TAIL_TOTALS_WORD]);
    // Each group begins on a pair of cache lines of its own.
    assert!(GENERATION_WORD.is_multiple_of(LINE_PAIR_WORDS));
    assert!(HEAD_SEQ_WORD.is_multiple_of(LINE_PAIR_WORDS));
    assert!(TAIL_TOTALS_WORD.is_multiple_of(LINE_PAIR_WORDS));
    assert!(TAIL_VERSION_WORD / LINE_PAIR_WORDS < HEAD_SEQ_WORD / LINE_PAIR_WORDS);
    assert!(TOTAL_BYTES_WORD / LINE_PAIR_WORDS < TAIL_TOTALS_WORD / LINE_PAIR_WORDS);
    assert!(TAIL_TOTALS_WORD + 2 * KINDS_MAX <= HEADER_WORDS);
    assert_ascending(&[SEQ, TOTAL_BYTES, MONO_NS, META, FRAME_WORDS]);
    assert!(FRAME_WORDS * 8 == FRAME_BYTES as usize);
    assert!(FRAME_ALIGN.is_power_of_two()); // `padded` rounds up with a mask.
    assert!(FRAME_ALIGN == 8); // Payloads are moved as words where tools look for races.
    assert!(FRAME_BYTES.is_multiple_of(FRAME_ALIGN)); // Each payload is aligned, too.
    assert!(CLAIM_PARTS.is_power_of_two()); // An eighth of the slots is a whole number.
    assert!(KINDS_MAX <= 1 << 8); // A kind is a byte of the meta word.
};

/// Number of words of two cache lines, which are fetched together.
const LINE_PAIR_WORDS: usize = 16;

/// Checks that the words of a layout are in order, so that no two fields share one.
pub(super) const fn assert_ascending(words: &[usize]) {
    let mut index = 1;
    while index < words.len() {
        assert!(words[index - 1] < words[index]);
        index += 1;
    }
}

/// The sizes of one ring. All derive from two numbers. They are checked when read from shared
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    slot_count: u32,
    data_bytes: u32,
}

/// Checks the geometry of a size class: its window is filled, and it holds some chunks.
const fn assert_class(class_bytes: u32) {
    let geometry = Geometry::of_class(class_bytes);
    assert!(geometry.window_bytes() == class_bytes as usize);
    assert!(geometry.data_start() + geometry.data_bytes as usize == class_bytes as usize);
    assert!(geometry.slot_count * RING_BYTES_PER_SLOT == class_bytes);
    assert!(geometry.capacity_chunks() > 1); // A reader lags by one chunk at least.
    assert!(geometry.capacity_bytes() >= geometry.length_max()); // The longest chunk is held.
    // Padding with the next place, overshoot of an eviction, and a claim: what remains is
    // guaranteed.
    let lost_bytes = 2 * geometry.frame_bytes_max() + geometry.data_bytes / CLAIM_PARTS;
    assert!(geometry.capacity_bytes() + lost_bytes <= geometry.data_bytes);
}

const _: () = {
    let mut class = 0;
    while class < RING_CLASS_BYTES.len() {
        assert_class(RING_CLASS_BYTES[class]);
        class += 1;
    }
    let mut class = 0;
    while class < DOOR_RING_BYTES.len() {
        assert_class(DOOR_RING_BYTES[class]);
        class += 1;
    }
    // A relay of any ring can be one that holds more.
    assert!(2 * RING_CLASS_BYTES_MAX == DOOR_RING_BYTES[RING_CLASS_BYTES.len()]);
};

impl Geometry {
    /// The geometry of the ring that fills a window of `class_bytes`, one of
    /// [`crate::limits::RING_CLASS_BYTES`]. It has one slot per 256 bytes. The rest, behind the
    /// header and the index, holds data.
    ///
    /// # Panics
    /// If `class_bytes` is not a power of two from 4 KiB to 1 GiB.
    pub const fn of_class(class_bytes: u32) -> Geometry {
        assert!(class_bytes.is_power_of_two());
        assert!(class_bytes >= 4 << 10);
        assert!(class_bytes <= 1 << 30);
        let slot_count = class_bytes / RING_BYTES_PER_SLOT;
        let data_bytes = class_bytes - (HEADER_WORDS as u32 + slot_count) * 8;
        Geometry::custom(slot_count, data_bytes)
    }

    /// A geometry of `slot_count` slots and `data_bytes` bytes of frames.
    ///
    /// # Panics
    /// If `slot_count` is not a power of two from 8 to 2^24, or `data_bytes` not a multiple of 32
    /// from 160 to 2^30.
    pub const fn custom(slot_count: u32, data_bytes: u32) -> Geometry {
        assert!(Geometry::is_valid(slot_count as u64, data_bytes as u64));
        Geometry { slot_count, data_bytes }
    }

    const fn is_valid(slot_count: u64, data_bytes: u64) -> bool {
        slot_count.is_power_of_two()
            && slot_count >= CLAIM_PARTS as u64
            && slot_count <= 1 << 24
            && data_bytes >= 4 * (FRAME_BYTES + FRAME_ALIGN) as u64
            && data_bytes <= 1 << 30
            && data_bytes.is_multiple_of(4 * FRAME_ALIGN as u64)
    }

    /// Returns the geometry that a header claims, or `None` if no ring can have it. The three
    /// numbers come from memory that another process may write; the caller loaded each of them
    /// once.
    pub(super) fn parse(window_bytes: u64, slot_count: u64, data_bytes: u64) -> Option<Geometry> {
        if !Geometry::is_valid(slot_count, data_bytes) {
            return None;
        }
        let geometry = Geometry { slot_count: slot_count as u32, data_bytes: data_bytes as u32 };
        assert!(u64::from(geometry.slot_count) == slot_count); // `is_valid` has bounded both.
        assert!(u64::from(geometry.data_bytes) == data_bytes);
        (geometry.window_bytes() as u64 == window_bytes).then_some(geometry)
    }

    /// Size of the whole window, in bytes.
    pub const fn window_bytes(&self) -> usize {
        self.data_start() + self.data_bytes as usize
    }

    /// Number of slots, a power of two.
    pub const fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// Size of the data area, in bytes.
    pub const fn data_bytes(&self) -> u32 {
        self.data_bytes
    }

    /// The length limit of one frame, in bytes: a quarter of the data area.
    const fn frame_bytes_max(&self) -> u32 {
        self.data_bytes / 4
    }

    /// The length limit of one payload, in bytes: a quarter of the data area less a frame's header.
    /// A ring that is larger than each private one takes no longer chunks than that.
    pub const fn length_max(&self) -> u32 {
        const BOUND: u32 = Geometry::of_class(RING_CLASS_BYTES_MAX).frame_bytes_max();
        let frame_bytes_max = self.frame_bytes_max();
        (if frame_bytes_max < BOUND { frame_bytes_max } else { BOUND }) - FRAME_BYTES
    }

    /// Number of chunks that the ring holds at least, if their bytes fit. A claim may take an
    /// eighth more than it needs.
    pub const fn capacity_chunks(&self) -> u32 {
        self.slot_count - self.slot_count / CLAIM_PARTS
    }

    /// Number of bytes of frames that the ring holds at least. A frame has 32 bytes and its
    /// payload, rounded up to 8. Padding and the overshoot of an eviction each cost less than a
    /// quarter of the area. A claim may take an eighth beyond its need. The rest remains.
    pub const fn capacity_bytes(&self) -> u32 {
        self.data_bytes / 8 * 3
    }

    /// Start of the data area, in bytes from the start of the window.
    pub(super) const fn data_start(&self) -> usize {
        (HEADER_WORDS + self.slot_count as usize) * 8
    }

    /// The number of the index word of chunk `seq`.
    #[inline]
    pub(super) const fn index_word(&self, seq: u64) -> usize {
        HEADER_WORDS + (seq & (self.slot_count as u64 - 1)) as usize
    }

    /// The number of the first word of the frame at `offset`, which is in bytes of the data area.
    #[inline]
    pub(super) const fn frame_word(&self, offset: u32) -> usize {
        HEADER_WORDS + self.slot_count as usize + (offset / FRAME_ALIGN) as usize
    }

    /// The place behind a frame that ends at `offset`: the start of the area if that is its end.
    #[inline]
    pub(super) const fn next_place(&self, offset: u32) -> u32 {
        if offset == self.data_bytes { 0 } else { offset }
    }
}

/// The chunk flag for "the data that the tool sent at once continues in the next chunk".
pub const CHUNK_MORE: u16 = 1;

/// One moment on both clocks, with which a reader turns monotonic time into wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockAnchor {
    /// Microseconds since 1970 at that moment.
    pub wall_us: u64,
    /// Nanoseconds of CLOCK_MONOTONIC at that moment.
    pub mono_ns: u64,
}

impl ClockAnchor {
    /// The wall time in µs of the moment `mono_ns`. It saturates, as both numbers may come from
    /// outside.
    pub const fn wall_us_at(&self, mono_ns: u64) -> u64 {
        if mono_ns >= self.mono_ns {
            self.wall_us.saturating_add((mono_ns - self.mono_ns) / 1_000)
        } else {
            self.wall_us.saturating_sub((self.mono_ns - mono_ns) / 1_000)
        }
    }

    /// The moment on this clock that has the wall time of the moment `mono_ns` on another clock. It
    /// saturates.
    pub const fn moment_of(&self, mono_ns: u64, on: &ClockAnchor) -> u64 {
        let before_us = on.wall_us as i128 - self.wall_us as i128;
        let moment =
            self.mono_ns as i128 + 1_000 * before_us + mono_ns as i128 - on.mono_ns as i128;
        match moment {
            ..0 => 0,
            moment if moment > u64::MAX as i128 => u64::MAX,
            moment => moment as u64,
        }
    }
}

/// The attributes that the producer gives a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The kind, below `KINDS_MAX`.
    pub kind: u8,
    /// The key for `conflate`: only the newest chunk of a key matters.
    pub key: u8,
    /// Flags for the reader of the payload. The ring carries them unchanged.
    pub flags: u16,
}

/// The description of one chunk in a ring: everything but its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The number of the chunk: 1, 2, 3 … without gaps.
    pub seq: u64,
    /// Payload bytes of all chunks from the first through this one.
    pub total_bytes: u64,
    /// Time of publication, in nanoseconds of CLOCK_MONOTONIC.
    pub mono_ns: u64,
    /// Length of the payload, in bytes.
    pub length: u32,
    /// The kind, key and flags.
    pub header: ChunkHeader,
    /// Start of the frame in the data area, in bytes.
    pub(super) offset: u32,
}

impl Descriptor {
    /// The time at which the chunk was published.
    pub const fn published(&self) -> Instant {
        Instant::from_nanos(self.mono_ns)
    }

    /// Payload bytes of all chunks before this one.
    pub const fn bytes_before(&self) -> u64 {
        self.total_bytes.saturating_sub(self.length as u64)
    }

    /// Returns the facts of a chunk that is in no ring.
    pub(crate) const fn apart(
        seq: u64,
        total_bytes: u64,
        mono_ns: u64,
        length: u32,
        header: ChunkHeader,
    ) -> Descriptor {
        Descriptor { seq, total_bytes, mono_ns, length, header, offset: u32::MAX }
    }

    /// Returns the facts of the chunk behind this one, which is of the same kind and time. They do
    /// not say where it is.
    pub(crate) fn followed_by(&self, length: u32) -> Descriptor {
        let (seq, total_bytes) = (self.seq + 1, self.total_bytes + u64::from(length));
        Descriptor { seq, total_bytes, length, offset: u32::MAX, ..*self }
    }
}

/// Packs length, kind, key and flags into one word.
#[inline]
pub(super) const fn pack_meta(length: u32, header: ChunkHeader) -> u64 {
    length as u64
        | (header.kind as u64) << 32
        | (header.key as u64) << 40
        | (header.flags as u64) << 48
}

/// The inverse of [`pack_meta`]. It is defined for every word.
#[inline]
pub(super) const fn unpack_meta(meta: u64) -> (u32, ChunkHeader) {
    let header = ChunkHeader {
        kind: (meta >> 32) as u8,
        key: (meta >> 40) as u8,
        flags: (meta >> 48) as u16,
    };
    (meta as u32, header)
}

/// Number of bytes of the frame of a payload of `length` bytes.
#[inline]
pub(super) const fn frame_bytes(length: u32) -> u64 {
    let align = FRAME_ALIGN as u64;
    FRAME_BYTES as u64 + ((length as u64 + (align - 1)) & !(align - 1))
}

/// Packs the number of a chunk and the offset of its frame into its index word. It is never 0.
#[inline]
pub(super) const fn index_word(seq: u64, offset: u32) -> u64 {
    seq << 32 | (offset / FRAME_ALIGN + 1) as u64
}

/// The offset of the frame of chunk `seq` by an index word, or `None` if it is that of another. The
/// offset may be false: the word may come from memory that another process writes.
#[inline]
pub(super) const fn offset_of(seq: u64, index_word: u64) -> Option<u32> {
    let place = index_word as u32;
    if index_word >> 32 != seq & u32::MAX as u64 || place == 0 {
        return None;
    }
    (place - 1).checked_mul(FRAME_ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_ring_takes_longer_chunks_than_the_largest_private_one() {
        let longest = Geometry::of_class(RING_CLASS_BYTES_MAX).length_max();
        for class_bytes in DOOR_RING_BYTES {
            let length_max = Geometry::of_class(class_bytes).length_max();
            assert_eq!(length_max == longest, class_bytes >= RING_CLASS_BYTES_MAX);
            assert!(length_max <= longest);
        }
    }

    #[test]
    fn every_class_is_filled_to_the_last_byte() {
        for class_bytes in DOOR_RING_BYTES {
            let geometry = Geometry::of_class(class_bytes);
            assert_eq!(geometry.window_bytes(), class_bytes as usize);
            assert_eq!(geometry.slot_count(), class_bytes / 256);
            let parsed = Geometry::parse(
                u64::from(class_bytes),
                u64::from(geometry.slot_count()),
                u64::from(geometry.data_bytes()),
            );
            assert_eq!(parsed, Some(geometry));
        }
        assert_eq!(Geometry::of_class(4 << 10).slot_count(), 16);
        assert_eq!(Geometry::of_class(4 << 10).data_bytes(), 4096 - 1024 - 128);
    }

    #[test]
    fn sizes_that_no_ring_has_are_refused() {
        let (window, slots, data) = (4096, 16, 2944);
        assert!(Geometry::parse(window, slots, data).is_some());
        for (w, s, d) in [
            (window + 8, slots, data),
            (window, slots + 1, data),
            (window, 0, data),
            (window, slots, 0),
            (window, slots, data + 8),
            (window, u64::MAX, data),
            (window, slots, u64::MAX),
            (window, 1 << 63, data),
            (u64::MAX, u64::MAX, u64::MAX),
        ] {
            assert_eq!(Geometry::parse(w, s, d), None, "{w} {s} {d}");
        }
    }

    #[test]
    fn a_packed_word_gives_back_what_went_in() {
        let header = ChunkHeader { kind: 15, key: 63, flags: 0x8001 };
        assert_eq!(unpack_meta(pack_meta(u32::MAX, header)), (u32::MAX, header));
        assert_eq!([0, 1, 8, 9].map(frame_bytes), [32, 40, 40, 48]);
        assert_eq!(frame_bytes(u32::MAX), (1 << 32) + 32);
    }

    #[test]
    fn an_index_word_is_that_of_one_chunk_only() {
        let (seq, offset) = (7 << 40 | 5, (1 << 30) - 8);
        assert_eq!(offset_of(seq, index_word(seq, offset)), Some(offset));
        assert_eq!(offset_of(seq, index_word(seq, 0)), Some(0));
        for other in [0, seq - 1, seq + 256, u64::MAX] {
            assert_eq!(offset_of(other, index_word(seq, offset)), None);
        }
        assert_eq!(offset_of(0, 0), None); // An empty slot.
        assert_eq!(offset_of(1, 1 << 32 | u64::from(u32::MAX)), None); // Behind any area.
    }

    #[test]
    fn wall_time_follows_the_anchor_in_both_directions() {
        let anchor = ClockAnchor { wall_us: 1_000_000, mono_ns: 5_000_000 };
        assert_eq!(anchor.wall_us_at(5_003_000), 1_000_003);
        assert_eq!(anchor.wall_us_at(4_000_000), 999_000);
        assert_eq!(anchor.wall_us_at(u64::MAX), 1_000_000 + (u64::MAX - 5_000_000) / 1_000);
    }
}
