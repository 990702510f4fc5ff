//! Door rings: rings that other processes can open.
//!
//! One fresh memfd per execution, bought, mapped, then sealed: from then on nobody can map it for
//! writing, not even this process again. Once its descriptor has left the process the window is
//! never leased to another execution (a reader that kept the mapping would see its bytes).
//! Tests: below, `tests/ring_process.rs`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::layout::{ClockAnchor, Geometry};
use super::lease::Lease;
use super::memfd::{DOOR_SEALS, Memfd};
use super::writer::RingWriter;

/// A ring with a descriptor to hand out.
pub struct DoorRing {
    /// The one writer.
    pub writer: RingWriter,
    read_only: OwnedFd,
}

impl DoorRing {
    /// A new ring that fills a window of `class_bytes`, one of
    /// [`RING_CLASS_BYTES`](crate::limits::RING_CLASS_BYTES).
    ///
    /// # Errors
    /// What the kernel says: no memory, no descriptors, no memfd, no /proc.
    ///
    /// # Panics
    /// If no class has `class_bytes`.
    pub fn create(class_bytes: u32, anchor: ClockAnchor) -> io::Result<DoorRing> {
        assert!(crate::limits::RING_CLASS_BYTES.contains(&class_bytes));
        let geometry = Geometry::of_class(class_bytes);
        let memfd = Memfd::create(c"streamdoor-door")?;
        memfd.allocate(0, geometry.window_bytes() as u64)?;
        let segment = memfd.map(geometry.window_bytes())?;
        super::segment::populate(&segment, 0, segment.bytes());
        memfd.seal(DOOR_SEALS)?; // After the map: what is mapped stays writable, nothing new is.
        let read_only = memfd.reopen_read_only()?;
        let writer = RingWriter::new(Lease::whole(segment, geometry), anchor);
        Ok(DoorRing { writer, read_only })
    }

    /// The descriptor for readers: read-only, close-on-exec.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// Writer and descriptor, apart: the one goes to the producer, the other to the door.
    pub fn into_parts(self) -> (RingWriter, OwnedFd) {
        (self.writer, self.read_only)
    }
}
