//! Door rings: rings that other processes can open.
//!
//! One fresh memfd per execution, bought, mapped, then sealed: from then on nobody can map it for
//! writing, not even this process again. Once its descriptor has left the process the window is
//! never leased to another execution (a reader that kept the mapping would see its bytes).
//!
//! A ring that another process writes ([`ProducerRing`]) is made here too, and handed over for
//! writing once; when its writer has mapped it, it is sealed the same way. Between the two nobody
//! else is given it, for until then its pages could be taken out under a reader.
//! Tests: `shared_tests.rs`, `tests/ring_process.rs`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::layout::{ClockAnchor, Geometry};
use super::lease::Lease;
use super::memfd::{DOOR_SEALS, Foreign, Memfd, OpenError};
use super::reader::RingReader;
use super::segment::Segment;
use super::shared::Guest;
use super::writer::{RingWriter, Start};
use crate::limits::DOOR_RING_BYTES;

/// Memory for a ring that other processes read: bought, touched and sealed, and zero. To make it
/// takes the kernel its time, to clear each page: not for a thread that others wait for.
pub struct DoorMemory {
    geometry: Geometry,
    class_bytes: u32,
    segment: Segment,
    read_only: OwnedFd,
}

impl DoorMemory {
    /// A window of `class_bytes`, one of [`DOOR_RING_BYTES`].
    ///
    /// # Errors
    /// What the kernel says: no memory, no descriptors, no memfd, no /proc.
    ///
    /// # Panics
    /// If no class has `class_bytes`.
    pub fn buy(class_bytes: u32) -> io::Result<DoorMemory> {
        assert!(DOOR_RING_BYTES.contains(&class_bytes));
        let geometry = Geometry::of_class(class_bytes);
        let memfd = Memfd::create(c"streamdoor-door")?;
        memfd.allocate(0, geometry.window_bytes() as u64)?;
        let segment = memfd.map(geometry.window_bytes())?;
        super::segment::populate(&segment, 0, segment.bytes());
        memfd.seal(DOOR_SEALS)?; // After the map: what is mapped stays writable, nothing new is.
        let read_only = memfd.reopen_read_only()?;
        Ok(DoorMemory { geometry, class_bytes, segment, read_only })
    }

    /// Of which class it is.
    pub fn class_bytes(&self) -> u32 {
        self.class_bytes
    }

    /// A ring in it that goes on where another one is.
    pub fn into_ring(self, anchor: ClockAnchor, start: &Start) -> DoorRing {
        let DoorMemory { geometry, segment, read_only, .. } = self;
        let writer = RingWriter::starting(Lease::whole(segment, geometry), anchor, start);
        DoorRing { writer, read_only }
    }
}

/// A ring with a descriptor to hand out.
pub struct DoorRing {
    /// The one writer.
    pub writer: RingWriter,
    read_only: OwnedFd,
}

impl DoorRing {
    /// A new ring that fills a window of `class_bytes`, one of [`DOOR_RING_BYTES`].
    ///
    /// # Errors
    /// What the kernel says: no memory, no descriptors, no memfd, no /proc.
    ///
    /// # Panics
    /// If no class has `class_bytes`.
    pub fn create(class_bytes: u32, anchor: ClockAnchor) -> io::Result<DoorRing> {
        DoorRing::starting(class_bytes, anchor, &Start::default())
    }

    /// As [`DoorRing::create`], of a ring that goes on where another one is.
    ///
    /// # Errors
    /// What the kernel says.
    ///
    /// # Panics
    /// If no class has `class_bytes`.
    pub fn starting(class_bytes: u32, anchor: ClockAnchor, start: &Start) -> io::Result<DoorRing> {
        Ok(DoorMemory::buy(class_bytes)?.into_ring(anchor, start))
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

/// A ring that another process writes: made by the server, which reads it as hostile memory.
pub struct ProducerRing {
    guest: Guest,
    reader: RingReader,
}

impl ProducerRing {
    /// A new, empty ring that fills a window of `class_bytes`, one of [`DOOR_RING_BYTES`].
    ///
    /// # Errors
    /// What the kernel says.
    ///
    /// # Panics
    /// If no class has `class_bytes`.
    pub fn create(class_bytes: u32, anchor: ClockAnchor) -> io::Result<ProducerRing> {
        assert!(DOOR_RING_BYTES.contains(&class_bytes));
        let geometry = Geometry::of_class(class_bytes);
        let memfd = Memfd::create(c"streamdoor-producer")?;
        memfd.allocate(0, geometry.window_bytes() as u64)?;
        let segment = memfd.map(geometry.window_bytes())?;
        let writer = RingWriter::new(Lease::whole(segment, geometry), anchor);
        let generation = writer.generation();
        drop(writer); // And the mapping that can write.
        let guest = Guest::new(memfd, geometry.window_bytes())?;
        let segment = guest.segment().clone();
        let reader = RingReader::of_writer(segment, geometry, generation, anchor);
        Ok(ProducerRing { guest, reader })
    }

    /// The descriptor for the producer, which can write until [`ProducerRing::close`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.guest.descriptor()
    }

    /// The producer has mapped it: from now on nobody maps it for writing. What comes back is the
    /// descriptor for readers.
    ///
    /// # Errors
    /// [`OpenError::NotSealed`] if the producer has prevented that, or what the kernel says. Then
    /// nobody may be given this ring, and it is not to be looked at.
    pub fn close(&self) -> Result<OwnedFd, OpenError> {
        self.guest.close()?;
        self.guest.reopen_read_only().map_err(OpenError::Os)
    }

    /// A reader of it, which believes nothing that stands there; once it is closed.
    pub fn reader(&self) -> &RingReader {
        &self.reader
    }
}

impl RingWriter {
    /// Opens a ring that another process has made for this one to write ([`ProducerRing`]), from
    /// the descriptor that it handed over. The descriptor is closed; the mapping stays.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(fd: OwnedFd) -> Result<RingWriter, OpenError> {
        let file = Foreign::check(fd, super::memfd::GUEST_SEALS, &DOOR_RING_BYTES)?;
        RingWriter::of_empty(file.map_writable()?)
    }

    /// Of a whole segment in which an empty ring stands.
    fn of_empty(segment: Segment) -> Result<RingWriter, OpenError> {
        let header = super::format::read_header(&segment).map_err(OpenError::Header)?;
        let reader = RingReader::attach(segment.clone()).map_err(OpenError::Header)?;
        if reader.head_seq() != 0 || reader.tail_seq() != 1 {
            return Err(OpenError::NotEmpty);
        }
        let mut lease = Lease::whole(segment, header.geometry);
        lease.generation = header.generation;
        Ok(RingWriter::of_formatted(lease, header.anchor, &Start::default()))
    }
}
