//! The exclusive right to write one window of memory.
//!
//! The holder of a [`Lease`] can make a [`RingWriter`](super::RingWriter) of it, and gets it back
//! from [`into_lease`](super::RingWriter::into_lease). Therefore two writers of one window cannot
//! exist. A window cannot be given to another execution while its writer is still on some thread. A
//! lease is not cloneable; readers hold the [`Segment`] below it.

use super::layout::Geometry;
use super::segment::Segment;

/// One window, which only the holder may write.
#[must_use = "a lease that is dropped is lost to its pool: give it back"]
pub struct Lease {
    pub(super) segment: Segment,
    pub(super) geometry: Geometry,
    /// The generation of the next writer's ring. It is never 0 and never repeats for this window.
    pub(super) generation: u64,
    /// Its place in the pool; `None` if it is not from a pool.
    pub(super) place: Option<WindowPosition>,
}

/// The position of a window in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowPosition {
    pub(super) class_index: u8,
    pub(super) window_index: u32,
}

impl Lease {
    /// Makes a window on the heap, for tests and for rings that never leave a process without
    /// memfd.
    pub fn heap(geometry: Geometry) -> Lease {
        let segment = Segment::heap(geometry.window_bytes() / 8);
        assert!(segment.bytes() == geometry.window_bytes());
        Lease { segment, geometry, generation: 1, place: None }
    }

    /// Makes a lease of all of `segment`, which has no other writer.
    pub(super) fn whole(segment: Segment, geometry: Geometry) -> Lease {
        assert!(segment.bytes() >= geometry.window_bytes());
        Lease { segment, geometry, generation: 1, place: None }
    }

    /// The sizes of the ring that fits into the window.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Size of the window, in bytes.
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
