//! The layout of a ring: sizes, word numbers, and the packing of a descriptor.
//!
//! Plain numbers, no memory access. A window is `header | descriptors | data`:
//!
//! ```text
//! word   0  magic, version, window bytes, slots, data bytes, clock anchor (wall µs, mono ns)
//! word  16  generation, tail_seq, version of the tail totals       quiet: moves once per claim
//! word  32  head_seq, total_bytes                                  moves with every chunk
//! word  48  totals of what stood before the tail: 16 kinds × (count, bytes)
//! word  80  reserved: the owner word of an external producer
//! word 128  descriptors, 8 words (one cache line) each; chunk `seq` is in slot `seq % slots`
//! then      payload bytes; each starts on a multiple of 8 and never wraps, the rest is padding
//! ```
//!
//! Groups that different cores write or poll are 128 bytes apart (adjacent-line prefetch).

use crate::base::Instant;
use crate::limits::{
    CHUNK_ALIGN_BYTES, DOOR_RING_BYTES, KINDS_MAX, RING_BYTES_PER_SLOT, RING_CLASS_BYTES,
};

/// The text "sdring", and a check of the byte order.
pub(super) const MAGIC: u64 = 0x0102_676e_6972_6473;
/// The version of everything in this file.
pub(super) const LAYOUT_VERSION: u64 = 1;

/// Number of words of the header: 1 KiB.
pub(super) const HEADER_WORDS: usize = 128;
/// Number of words of one descriptor: one cache line.
pub(super) const DESCRIPTOR_WORDS: usize = 8;
/// The alignment of the start of every payload, in bytes.
pub(super) const PAYLOAD_ALIGN: u32 = CHUNK_ALIGN_BYTES as u32;
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

/// Word numbers of a descriptor, within its line.
pub(super) const SEQ: usize = 0;
pub(super) const POSITION: usize = 1;
pub(super) const TOTAL_BYTES: usize = 2;
pub(super) const MONO_NS: usize = 3;
pub(super) const META: usize = 4;
pub(super) const OFFSET: usize = 5;

const _: () = {
    assert!(cfg!(target_endian = "little")); // Futexes use the low half of a word.
    assert!(TAIL_TOTALS_WORD + 2 * KINDS_MAX <= 80); // The owner word begins there.
    assert!(HEADER_WORDS.is_multiple_of(DESCRIPTOR_WORDS)); // Descriptors are aligned lines.
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
    // A descriptor is one line, and its fields are in order.
    assert_ascending(&[SEQ, POSITION, TOTAL_BYTES, MONO_NS, META, OFFSET, DESCRIPTOR_WORDS]);
    assert!(size_of::<Descriptor>() <= DESCRIPTOR_WORDS * 8);
    assert!(PAYLOAD_ALIGN.is_power_of_two()); // `padded` rounds up with a mask.
    assert!(PAYLOAD_ALIGN == 8); // Payloads are moved as words where tools look for races.
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
    // Padding, overshoot of an eviction, and a claim: what remains is guaranteed.
    let lost_bytes = 2 * geometry.length_max() + geometry.data_bytes / CLAIM_PARTS;
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
    let largest = RING_CLASS_BYTES[RING_CLASS_BYTES.len() - 1];
    assert!(largest < DOOR_RING_BYTES[DOOR_RING_BYTES.len() - 1]);
};

impl Geometry {
    /// The geometry of the ring that fills a window of `class_bytes`, one of
    /// [`crate::limits::RING_CLASS_BYTES`]. It has one descriptor per 256 bytes, and three quarters
    /// of the window (less the header) hold data.
    ///
    /// # Panics
    /// If `class_bytes` is not a power of two from 4 KiB to 1 GiB.
    pub const fn of_class(class_bytes: u32) -> Geometry {
        assert!(class_bytes.is_power_of_two());
        assert!(class_bytes >= 4 << 10);
        assert!(class_bytes <= 1 << 30);
        let slot_count = class_bytes / RING_BYTES_PER_SLOT;
        let data_bytes = class_bytes / 4 * 3 - HEADER_WORDS as u32 * 8;
        Geometry::custom(slot_count, data_bytes)
    }

    /// A geometry of `slot_count` descriptors and `data_bytes` bytes of payload.
    ///
    /// # Panics
    /// If `slot_count` is not a power of two from 8 to 2^24, or `data_bytes` not a multiple of 32
    /// from 32 to 2^30.
    pub const fn custom(slot_count: u32, data_bytes: u32) -> Geometry {
        assert!(Geometry::is_valid(slot_count as u64, data_bytes as u64));
        Geometry { slot_count, data_bytes }
    }

    const fn is_valid(slot_count: u64, data_bytes: u64) -> bool {
        slot_count.is_power_of_two()
            && slot_count >= CLAIM_PARTS as u64
            && slot_count <= 1 << 24
            && data_bytes >= 4 * PAYLOAD_ALIGN as u64
            && data_bytes <= 1 << 30
            && data_bytes.is_multiple_of(4 * PAYLOAD_ALIGN as u64)
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
        (HEADER_WORDS + self.slot_count as usize * DESCRIPTOR_WORDS) * 8 + self.data_bytes as usize
    }

    /// Number of descriptors, a power of two.
    pub const fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// Size of the data area, in bytes.
    pub const fn data_bytes(&self) -> u32 {
        self.data_bytes
    }

    /// The length limit of one payload, in bytes: a quarter of the data area.
    pub const fn length_max(&self) -> u32 {
        self.data_bytes / 4
    }

    /// Number of chunks that the ring holds at least, if their bytes fit. A claim may take an
    /// eighth more than it needs.
    pub const fn capacity_chunks(&self) -> u32 {
        self.slot_count - self.slot_count / CLAIM_PARTS
    }

    /// Number of payload bytes that the ring holds at least, each chunk rounded up to 8. Padding
    /// and the overshoot of an eviction each cost less than a quarter of the area. A claim may take
    /// an eighth beyond its need. The rest remains.
    pub const fn capacity_bytes(&self) -> u32 {
        self.data_bytes / 8 * 3
    }

    /// Start of the data area, in bytes from the start of the window.
    pub(super) const fn data_start(&self) -> usize {
        (HEADER_WORDS + self.slot_count as usize * DESCRIPTOR_WORDS) * 8
    }

    /// The index of the slot of chunk `seq`.
    #[inline]
    pub(super) const fn slot_index(&self, seq: u64) -> usize {
        (seq & (self.slot_count as u64 - 1)) as usize
    }

    /// The index of the line of the window that holds the descriptor of chunk `seq`.
    #[inline]
    pub(super) const fn descriptor_line(&self, seq: u64) -> usize {
        HEADER_WORDS / DESCRIPTOR_WORDS + self.slot_index(seq)
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
    /// Start of the payload in the endless sequence of data areas. It only ever grows.
    pub position: u64,
    /// Payload bytes of all chunks from the first through this one.
    pub total_bytes: u64,
    /// Time of publication, in nanoseconds of CLOCK_MONOTONIC.
    pub mono_ns: u64,
    /// Length of the payload, in bytes.
    pub length: u32,
    /// The kind, key and flags.
    pub header: ChunkHeader,
    /// Start of the payload in the data area, in bytes.
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

/// Rounds `length` up to the next possible start of a payload.
#[inline]
pub(super) const fn padded(length: u32) -> u64 {
    (length as u64 + (PAYLOAD_ALIGN as u64 - 1)) & !(PAYLOAD_ALIGN as u64 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_filled_to_the_last_byte() {
        for class_bytes in RING_CLASS_BYTES {
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
        assert_eq!(Geometry::of_class(4 << 10).data_bytes(), 2 << 10);
    }

    #[test]
    fn sizes_that_no_ring_has_are_refused() {
        let (window, slots, data) = (4096, 16, 2048);
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
        assert_eq!([padded(0), padded(1), padded(8), padded(9)], [0, 8, 8, 16]);
        assert_eq!(padded(u32::MAX), 1 << 32);
    }

    #[test]
    fn wall_time_follows_the_anchor_in_both_directions() {
        let anchor = ClockAnchor { wall_us: 1_000_000, mono_ns: 5_000_000 };
        assert_eq!(anchor.wall_us_at(5_003_000), 1_000_003);
        assert_eq!(anchor.wall_us_at(4_000_000), 999_000);
        assert_eq!(anchor.wall_us_at(u64::MAX), 1_000_000 + (u64::MAX - 5_000_000) / 1_000);
    }
}
