//! The exclusive right to write one window of memory.
//!
//! Whoever holds the [`Lease`] can make a [`RingWriter`](super::RingWriter) of it and gets it back
//! from [`into_lease`](super::RingWriter::into_lease): two writers of one window cannot exist, and
//! a window whose writer is still on some thread cannot be given to another execution. It is not
//! cloneable; readers hold the [`Segment`] below it.

use super::layout::Geometry;
use super::segment::Segment;

/// One window, to be written by its holder alone.
#[must_use = "a lease that is dropped is lost to its pool: give it back"]
pub struct Lease {
    pub(super) segment: Segment,
    pub(super) geometry: Geometry,
    /// Of the tenancy that starts with the next writer; never 0, never used before for this window.
    pub(super) generation: u64,
    /// Where it belongs, if it is from a pool.
    pub(super) place: Option<Place>,
}

/// A window of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) class_index: u8,
    pub(super) window_index: u32,
}

impl Lease {
    /// A window on the heap: for tests, and for rings that never leave a process without memfd.
    pub fn heap(geometry: Geometry) -> Lease {
        let segment = Segment::heap(geometry.window_bytes() / 8);
        Lease { segment, geometry, generation: 1, place: None }
    }

    /// All of `segment`, which nobody else writes.
    pub(super) fn whole(segment: Segment, geometry: Geometry) -> Lease {
        assert!(segment.bytes() >= geometry.window_bytes());
        Lease { segment, geometry, generation: 1, place: None }
    }

    /// The sizes of the ring that fits in.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Bytes of the window.
    pub fn window_bytes(&self) -> usize {
        self.geometry.window_bytes()
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lease { geometry, generation, place, .. } = self;
        write!(out, "Lease({geometry:?}, generation {generation}, {place:?})")
    }
}
