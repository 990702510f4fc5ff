//! Named rings: a door for programs that can open and map a file, but cannot receive a descriptor
//! over a socket.
//!
//! ```text
//! /dev/shm/streamdoor-<id>
//!   byte    0  magic, version, epoch (the 128 bits of the id)
//!   byte  512  the control page: end, error text, progress (`control.rs`)
//!   byte 4096  the ring (`layout.rs`), to the end of the file
//! ```
//!
//! The server does not see a reader by name. Such a reader does not hold the producer back and has
//! no slot, so it may be overtaken at any time. The lock of the file shows that its owner has died
//! ([`NamedView`]).
//!
//! A file cannot be sealed. Other processes of the same user can write to it and truncate it. That
//! kills neither this process nor a [`NamedView`] (`guard.rs`). No other door is affected, because
//! a named ring is a copy. Programs that map the file by themselves have to expect SIGBUS, or to
//! read it with `pread`. With `RemoveIPC=yes`, systemd removes it when its user logs out.
//!
//! Reading order: this file, then `file.rs` (the checks of files).
//! Tests: `tests.rs`.

mod file;
#[cfg(all(test, not(miri)))]
mod tests;

use std::fs::File;
use std::path::Path;
use std::{fmt, io};

use file::{HEAD_BYTES, NamedFile};
pub use file::{PREFIX, Verdict, name_of, sweep};
use memmap2::MmapOptions;

use super::control::{CONTROL_MAGIC, CONTROL_WORDS, ControlPage, ControlView};
use super::format::HeaderFault;
use super::layout::{ClockAnchor, Geometry};
use super::lease::Lease;
use super::reader::RingReader;
use super::segment::{PAGE_BYTES, Segment, populate};
use super::writer::{RingWriter, Start};
use crate::base::ExecutionId;
use crate::limits::DOOR_RING_BYTES;

/// The folder of named rings.
pub const FOLDER: &str = "/dev/shm";

const CONTROL_START: usize = 512;

const _: () = {
    assert!(CONTROL_START + CONTROL_WORDS * 8 <= HEAD_BYTES as usize);
    assert!(CONTROL_START.is_multiple_of(128)); // Its groups are on pairs of lines.
    assert!((HEAD_BYTES as usize).is_multiple_of(PAGE_BYTES)); // The ring begins on a page.
};

/// A ring with a name, on its owner's side. The drop removes the name.
pub struct NamedRing {
    /// The one writer.
    pub writer: RingWriter,
    /// The progress and the end of the execution. [`NamedRing::wake_readers`] has to follow a
    /// store.
    pub control: ControlPage,
    segment: Segment,
    file: NamedFile,
}

/// A ring with a name, on a reader's side. It checks everything it reads.
pub struct NamedView {
    /// The ring.
    pub ring: RingReader,
    /// The progress and the end of the execution.
    pub control: ControlView,
    segment: Segment,
    file: File,
}

/// The reason why a named ring was not created or opened.
#[derive(Debug)]
pub enum NamedError {
    /// The file has a fault that forbids its use.
    Fault(NamedFault),
    /// The file does not contain a valid ring.
    Header(HeaderFault),
    /// The kernel refused: no room, no such file, no permission.
    Os(io::Error),
}

/// The fault of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedFault {
    /// A file of that name exists already.
    Taken,
    /// Its name is not that of a named ring.
    Name,
    /// It is a symbolic link.
    Link,
    /// It is not a plain file, but a folder, a pipe, a device or a socket.
    Kind,
    /// It belongs to another user.
    Owner {
        /// The user whom it belongs to.
        uid: u32,
    },
    /// Its mode is not 0600.
    Mode {
        /// The mode of the file.
        mode: u32,
    },
    /// It has more or fewer than one name.
    Names {
        /// Number of names in all; 0 if it was removed.
        count: u64,
    },
    /// Its size is not that of a named ring.
    Size {
        /// Size of the file, in bytes.
        bytes: u64,
    },
    /// Its start is not the head of a named ring of this version.
    Head,
    /// It is the ring of another execution.
    Epoch,
}

impl NamedRing {
    /// Creates a ring in `folder` for the execution `id`. It fills a window of `class_bytes`, one
    /// of [`DOOR_RING_BYTES`].
    ///
    /// # Errors
    /// [`NamedError`]. No file is left behind.
    ///
    /// # Panics
    /// If no class has `class_bytes`.
    pub fn create(
        folder: &Path,
        id: ExecutionId,
        class_bytes: u32,
        anchor: ClockAnchor,
        start: &Start,
    ) -> Result<NamedRing, NamedError> {
        assert!(DOOR_RING_BYTES.contains(&class_bytes));
        let geometry = Geometry::of_class(class_bytes);
        let file = NamedFile::create(folder, id, class_bytes)?;
        let bytes = HEAD_BYTES as usize + geometry.window_bytes();
        let mapping = MmapOptions::new().len(bytes).map_raw(&file.file).map_err(NamedError::Os)?;
        let segment = Segment::guarded(mapping).map_err(NamedError::Os)?;
        assert!(segment.bytes() == bytes);
        populate(&segment, 0, segment.bytes());
        let control = segment.part(CONTROL_START, CONTROL_WORDS * 8);
        let control = ControlPage::at(&control, CONTROL_MAGIC);
        let window = segment.part(HEAD_BYTES as usize, geometry.window_bytes());
        let writer = RingWriter::starting(Lease::whole(window, geometry), anchor, start);
        Ok(NamedRing { writer, control, segment, file })
    }

    /// Size of the ring in the file system, in bytes.
    pub fn bytes(&self) -> u64 {
        self.segment.bytes() as u64
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Wakes sleeping readers after a store to [`NamedRing::control`], as no new chunk wakes them.
    pub fn wake_readers(&self) {
        self.control.wake_producer(); // The readers sleep on the same word.
    }

    /// True if the file was truncated, or the file system had no room. No reader then sees what is
    /// written.
    pub fn is_lost(&self) -> bool {
        self.segment.is_lost()
    }
}

impl Drop for NamedRing {
    /// Closes the control page, so that remaining readers see that nothing more comes.
    fn drop(&mut self) {
        self.control.close();
        self.wake_readers();
    }
}

impl NamedView {
    /// Opens the ring at `path`, whose file name contains the id of its execution.
    ///
    /// # Errors
    /// [`NamedError`] if the file is not a named ring of this user, or the kernel refuses to open
    /// it.
    pub fn open(path: &Path) -> Result<NamedView, NamedError> {
        let (file, bytes) = file::open(path)?;
        let mapping = MmapOptions::new().len(bytes as usize).map_raw_read_only(&file);
        let segment = Segment::guarded(mapping.map_err(NamedError::Os)?).map_err(NamedError::Os)?;
        let control = segment.part(CONTROL_START, CONTROL_WORDS * 8);
        let control = ControlView::at(&control, CONTROL_MAGIC);
        let control = control.ok_or(NamedError::Fault(NamedFault::Head))?;
        let window = segment.part(HEAD_BYTES as usize, bytes as usize - HEAD_BYTES as usize);
        let ring = RingReader::attach(window).map_err(NamedError::Header)?;
        Ok(NamedView { ring, control, segment, file })
    }

    /// True if the owner has closed the ring or died. The published chunks can still be read.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn is_left(&self) -> io::Result<bool> {
        Ok(self.control.is_closed() || !file::is_held(&self.file)?)
    }

    /// True if the file was truncated. All reads return zero since then.
    pub fn is_lost(&self) -> bool {
        self.segment.is_lost()
    }
}

impl fmt::Display for NamedFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamedFault::Taken => write!(out, "a file of this name already exists"),
            NamedFault::Name => write!(out, "this is not the name of a named ring"),
            NamedFault::Link => write!(out, "a symbolic link, which is not followed"),
            NamedFault::Kind => write!(out, "not a regular file"),
            NamedFault::Owner { uid } => write!(out, "it belongs to user {uid}"),
            NamedFault::Mode { mode } => write!(out, "its mode is {mode:03o} instead of 600"),
            NamedFault::Names { count } => write!(out, "it has {count} names instead of 1"),
            NamedFault::Size { bytes } => write!(out, "no named ring has {bytes} bytes"),
            NamedFault::Head => write!(out, "it does not begin like a named ring of this version"),
            NamedFault::Epoch => write!(out, "it is the ring of another execution"),
        }
    }
}

impl fmt::Display for NamedError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamedError::Fault(fault) => fault.fmt(out),
            NamedError::Header(fault) => fault.fmt(out),
            NamedError::Os(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for NamedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NamedError::Fault(_) => None,
            NamedError::Header(fault) => Some(fault),
            NamedError::Os(error) => Some(error),
        }
    }
}
