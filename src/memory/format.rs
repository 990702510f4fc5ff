//! Formatting a window as an empty ring, and reading the header of an existing ring.
//!
//! A window may have held an earlier ring whose readers still look at it. Therefore the generation
//! is stored first (`ring:generation`): a reader that sees any part of the new ring also sees the
//! new generation. Only the index words that the earlier ring used are cleared.
//! Tests: `writer.rs`, `memfd.rs`, `loom_tests.rs`.

use std::ops::Range;

use super::atomic::{Flaw, Ordering, fence, is_flawed};
use super::layout::{
    ClockAnchor, DATA_BYTES_WORD, GENERATION_WORD, Geometry, HEAD_SEQ_WORD, LAYOUT_VERSION, MAGIC,
    MAGIC_WORD, MONO_NS_WORD, SLOT_COUNT_WORD, TAIL_SEQ_WORD, TAIL_TOTALS_WORD, TAIL_VERSION_WORD,
    TOTAL_BYTES_WORD, VERSION_WORD, WALL_US_WORD, WINDOW_BYTES_WORD,
};
use super::lease::Lease;
use super::segment::Segment;
use super::writer::Start;

/// Clears the index words of chunks from `seqs`, of which there are at most as many as slots.
pub(super) fn clear_index(segment: &Segment, geometry: Geometry, seqs: Range<u64>) {
    assert!(segment.bytes() >= geometry.window_bytes());
    assert!(seqs.end - seqs.start <= u64::from(geometry.slot_count()));
    for seq in seqs {
        segment.word(geometry.index_word(seq)).store(0, Ordering::Relaxed);
    }
}

/// Formats the window of `lease` as an empty ring of generation `lease.generation`, which begins at
/// `start`.
pub(super) fn format(lease: &Lease, anchor: ClockAnchor, start: &Start) {
    let Lease { segment, geometry, generation, .. } = lease;
    assert!(start.seq > 0);
    assert!(*generation > 0); // Zeroed memory has generation 0, which no ring has.
    assert!(segment.bytes() >= geometry.window_bytes());
    let old_head_seq = segment.word(HEAD_SEQ_WORD).load(Ordering::Relaxed);
    if !is_flawed(Flaw::Generation) {
        segment.word(GENERATION_WORD).store(*generation, Ordering::Relaxed);
        fence(Ordering::Release); // ring:generation
    }
    let used_slots = old_head_seq.min(u64::from(geometry.slot_count()));
    clear_index(segment, *geometry, 1..used_slots + 1);
    segment.word(geometry.frame_word(0)).store(0, Ordering::Relaxed); // The next place.
    for (kind, total) in start.kinds.each().iter().enumerate() {
        segment.word(TAIL_TOTALS_WORD + 2 * kind).store(total.chunks, Ordering::Relaxed);
        segment.word(TAIL_TOTALS_WORD + 2 * kind + 1).store(total.bytes, Ordering::Relaxed);
    }
    for (word, value) in [
        (TAIL_VERSION_WORD, 0),
        (TOTAL_BYTES_WORD, start.total_bytes),
        (HEAD_SEQ_WORD, start.seq - 1),
        (VERSION_WORD, LAYOUT_VERSION),
        (WINDOW_BYTES_WORD, geometry.window_bytes() as u64),
        (SLOT_COUNT_WORD, u64::from(geometry.slot_count())),
        (DATA_BYTES_WORD, u64::from(geometry.data_bytes())),
        (WALL_US_WORD, anchor.wall_us),
        (MONO_NS_WORD, anchor.mono_ns),
    ] {
        segment.word(word).store(value, Ordering::Relaxed);
    }
    // Release: a reader that sees this tail, lower than the one before, sees the new generation
    // too.
    segment.word(TAIL_SEQ_WORD).store(start.seq, Ordering::Release); // ring:tail, ring:generation
    segment.word(MAGIC_WORD).store(MAGIC, Ordering::Release);
}

/// The checked contents of a header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) geometry: Geometry,
    pub(super) generation: u64,
    pub(super) anchor: ClockAnchor,
}

/// The first fault that was found in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// The segment is too small for a header.
    Short,
    /// The magic number is not that of a ring.
    Magic,
    /// The ring is of another version of this program.
    Version {
        /// The version that was found.
        found: u64,
    },
    /// The sizes do not fit each other or the segment.
    Sizes,
    /// The ring was never written.
    Generation,
}

/// Reads the header of `segment`. Another process may be writing it, so each word is loaded once.
pub(super) fn read_header(segment: &Segment) -> Result<Header, HeaderFault> {
    if segment.bytes() < super::layout::HEADER_WORDS * 8 {
        return Err(HeaderFault::Short);
    }
    let load = |word: usize| super::atomic::load_acquire(segment.word(word));
    if load(MAGIC_WORD) != MAGIC {
        return Err(HeaderFault::Magic);
    }
    let version = load(VERSION_WORD);
    if version != LAYOUT_VERSION {
        return Err(HeaderFault::Version { found: version });
    }
    let sizes = (load(WINDOW_BYTES_WORD), load(SLOT_COUNT_WORD), load(DATA_BYTES_WORD));
    let geometry = Geometry::parse(sizes.0, sizes.1, sizes.2).ok_or(HeaderFault::Sizes)?;
    if geometry.window_bytes() > segment.bytes() {
        return Err(HeaderFault::Sizes);
    }
    // Each index word, and each byte of a frame, is inside of the segment.
    assert!(geometry.data_start() + geometry.data_bytes() as usize <= segment.bytes());
    let generation = load(GENERATION_WORD);
    if generation == 0 {
        return Err(HeaderFault::Generation);
    }
    let anchor = ClockAnchor { wall_us: load(WALL_US_WORD), mono_ns: load(MONO_NS_WORD) };
    Ok(Header { geometry, generation, anchor })
}

impl std::fmt::Display for HeaderFault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HeaderFault::Short => write!(out, "too small for the header of a ring"),
            HeaderFault::Magic => write!(out, "not a ring: wrong magic number"),
            HeaderFault::Version { found } => {
                write!(out, "ring layout version {found}; this program reads {LAYOUT_VERSION}")
            }
            HeaderFault::Sizes => {
                write!(out, "the sizes in the header do not fit a ring of this size")
            }
            HeaderFault::Generation => write!(out, "the ring was never written"),
        }
    }
}

impl std::error::Error for HeaderFault {}
