//! Door rings: rings that other processes can open.
//!
//! Each execution has one fresh memfd, which is allocated, mapped, then sealed. From then on nobody
//! can map it for writing, not even this process again. Once its descriptor has left the process,
//! the window is never leased to another execution. A reader that kept the mapping would see the
//! new bytes.
//!
//! A ring that another process writes ([`ProducerRing`]) is made here too, and handed over for
//! writing once. When its writer has mapped it, it is sealed the same way. Until then no reader
//! gets it, because the writer could remove its pages under a reader.
//! Tests: `shared_tests.rs`, `tests/ring_process.rs`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::layout::{ClockAnchor, Geometry};
use super::lease::Lease;
use super::memfd::{DOOR_SEALS, ForeignFile, Memfd, OpenError};
use super::reader::RingReader;
use super::segment::Segment;
use super::shared::SharedFile;
use super::writer::{RingWriter, Start};
use crate::limits::DOOR_RING_BYTES;

/// Memory for a ring that other processes read: allocated, touched, sealed, and zero. The kernel
/// clears each page when it is made, which takes time. A thread that others wait for should not
/// make it.
pub struct DoorMemory {
    geometry: Geometry,
    class_bytes: u32,
    segment: Segment,
    read_only: OwnedFd,
}

impl DoorMemory {
    /// Allocates a window of `class_bytes`, one of [`DOOR_RING_BYTES`].
    ///
    /// # Errors
    /// The kernel's error: no memory, no descriptors, no memfd, no /proc.
    ///
    /// # Panics
    /// If no class has `class_bytes`.
    pub fn buy(class_bytes: u32) -> io::Result<DoorMemory> {
        assert!(DOOR_RING_BYTES.contains(&class_bytes));
        let geometry = Geometry::of_class(class_bytes);
        assert!(geometry.window_bytes() == class_bytes as usize); // Readers check the size.
        let memfd = Memfd::create(c"streamdoor-door")?;
        memfd.allocate(0, geometry.window_bytes() as u64)?;
        let segment = memfd.map(geometry.window_bytes())?;
        super::segment::populate(&segment, 0, segment.bytes());
        memfd.seal(DOOR_SEALS)?; // Only the existing mapping stays writable.
        let read_only = memfd.reopen_read_only()?;
        Ok(DoorMemory { geometry, class_bytes, segment, read_only })
    }

    /// The size class of the window, in bytes.
    pub fn class_bytes(&self) -> u32 {
        self.class_bytes
    }

    /// Makes a ring in this memory that continues at `start`.
    pub fn into_ring(self, anchor: ClockAnchor, start: &Start) -> DoorRing {
        let DoorMemory { geometry, segment, read_only, class_bytes } = self;
        assert!(segment.bytes() == class_bytes as usize);
        let writer = RingWriter::starting(Lease::whole(segment, geometry), anchor, start);
        DoorRing { writer, read_only }
    }
}

/// A ring with a descriptor for readers in other processes.
pub struct DoorRing {
    /// The one writer of the ring.
    pub writer: RingWriter,
    read_only: OwnedFd,
}

impl DoorRing {
    /// Creates a new ring that fills a window of `class_bytes`, one of [`DOOR_RING_BYTES`].
    ///
    /// # Errors
    /// The kernel's error: no memory, no descriptors, no memfd, no /proc.
    ///
    /// # Panics
    /// If no class has `class_bytes`.
    pub fn create(class_bytes: u32, anchor: ClockAnchor) -> io::Result<DoorRing> {
        DoorRing::starting(class_bytes, anchor, &Start::default())
    }

    /// Creates a ring like [`DoorRing::create`], which continues at `start`.
    ///
    /// # Errors
    /// The kernel's error, as in [`DoorRing::create`].
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

    /// Splits the ring into the writer, for the producer, and the descriptor, for the door.
    pub fn into_parts(self) -> (RingWriter, OwnedFd) {
        (self.writer, self.read_only)
    }
}

/// A ring that another process writes. The server makes it and reads it as hostile memory.
pub struct ProducerRing {
    shared: SharedFile,
    reader: RingReader,
}

impl ProducerRing {
    /// Creates a new, empty ring that fills a window of `class_bytes`, one of [`DOOR_RING_BYTES`].
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Panics
    /// If no class has `class_bytes`.
    pub fn create(class_bytes: u32, anchor: ClockAnchor) -> io::Result<ProducerRing> {
        assert!(DOOR_RING_BYTES.contains(&class_bytes));
        let geometry = Geometry::of_class(class_bytes);
        assert!(geometry.window_bytes() == class_bytes as usize); // The producer checks the size.
        let memfd = Memfd::create(c"streamdoor-producer")?;
        memfd.allocate(0, geometry.window_bytes() as u64)?;
        let segment = memfd.map(geometry.window_bytes())?;
        let writer = RingWriter::new(Lease::whole(segment, geometry), anchor);
        let generation = writer.generation();
        assert!(writer.head_seq() == 0); // It is handed over empty.
        drop(writer); // The writable mapping goes with it.
        let shared = SharedFile::new(memfd, geometry.window_bytes())?;
        let segment = shared.segment().clone();
        let reader = RingReader::of_writer(segment, geometry, generation, anchor);
        Ok(ProducerRing { shared, reader })
    }

    /// The descriptor for the producer, which can write until [`ProducerRing::close`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.descriptor()
    }

    /// Seals the ring after the producer has mapped it, so that nobody else maps it for writing.
    /// Returns the descriptor for readers.
    ///
    /// # Errors
    /// [`OpenError::NotSealed`] if the producer has prevented the seals, or the kernel's error. In
    /// either case no reader may get this ring, and the server must not read it.
    pub fn close(&self) -> Result<OwnedFd, OpenError> {
        self.shared.close()?;
        self.shared.reopen_read_only().map_err(OpenError::Os)
    }

    /// The server's reader of the ring, which checks everything it reads. Use it after
    /// [`ProducerRing::close`].
    pub fn reader(&self) -> &RingReader {
        &self.reader
    }
}

impl RingWriter {
    /// Opens a ring that another process has made for this one to write ([`ProducerRing`]), from
    /// the descriptor that it handed over. The descriptor is closed; the mapping stays.
    ///
    /// # Errors
    /// [`OpenError`] if the file is not a sealed, empty ring, or the kernel refuses to map it.
    pub fn open(fd: OwnedFd) -> Result<RingWriter, OpenError> {
        let file = ForeignFile::check(fd, super::memfd::SHARED_SEALS, &DOOR_RING_BYTES)?;
        RingWriter::of_empty(file.map_writable()?)
    }

    /// Makes a writer of a whole segment that holds an empty ring.
    fn of_empty(segment: Segment) -> Result<RingWriter, OpenError> {
        let header = super::format::read_header(&segment).map_err(OpenError::Header)?;
        let reader = RingReader::attach(segment.clone()).map_err(OpenError::Header)?;
        if reader.head_seq() != 0 || reader.tail_seq() != 1 {
            return Err(OpenError::NotEmpty);
        }
        assert!(header.generation > 0); // `read_header` has refused others.
        let mut lease = Lease::whole(segment, header.geometry);
        lease.generation = header.generation;
        Ok(RingWriter::of_formatted(lease, header.anchor, &Start::default()).share())
    }
}
