//! Named rings: the compatibility door, for programs that can open a file and map it, and be handed
//! nothing over a socket.
//!
//! ```text
//! /dev/shm/streamdoor-<id>
//!   byte    0  magic, version, epoch (the 128 bits of the id)
//!   byte  512  the control page: end, error text, progress (`control.rs`)
//!   byte 4096  the ring (`layout.rs`), to the end of the file
//! ```
//!
//! Whoever reads by name is seen by nobody: it holds no producer back and has no place, so that it
//! has to expect being overtaken. That the owner has died shows in its lock ([`NamedView`]).
//!
//! A file cannot be sealed. Other processes of the same user can write to it and cut it off: that
//! kills neither this process nor a [`NamedView`] (`guard.rs`), and no other door sees anything of
//! it, for what stands here is a copy. Programs that map the file by themselves have to expect
//! SIGBUS, or to read it with `pread`. `RemoveIPC=yes` of systemd removes it when its user logs
//! out.
//!
//! Reading order: here, `file.rs` (which files are believed). Tests: `tests.rs`.

mod file;
#[cfg(all(test, not(miri)))]
mod tests;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::MmapOptions;

use super::control::{CONTROL_MAGIC, CONTROL_WORDS, ControlPage, ControlView};
use super::format::HeaderFault;
use super::layout::{ClockAnchor, Geometry};
use super::lease::Lease;
use super::reader::RingReader;
use super::segment::{Segment, populate};
use super::writer::{RingWriter, Start};
use crate::base::ExecutionId;
use crate::limits::DOOR_RING_BYTES;

pub use file::{PREFIX, Verdict, name_of, sweep};

use file::{HEAD_BYTES, NamedFile};

/// Where named rings are.
pub const FOLDER: &str = "/dev/shm";

const CONTROL_START: usize = 512;
const _: () = assert!(CONTROL_START + CONTROL_WORDS * 8 <= HEAD_BYTES as usize);

/// A ring with a name, on its owner's side. The name goes with it.
pub struct NamedRing {
    /// The one writer.
    pub writer: RingWriter,
    /// How far the execution is, and how it ended; [`NamedRing::rouse`] has to follow.
    pub control: ControlPage,
    segment: Segment,
    file: NamedFile,
}

/// A ring with a name, on a reader's side. Believes nothing of what it reads.
pub struct NamedView {
    /// The ring.
    pub ring: RingReader,
    /// How far the execution is, and how it ended.
    pub control: ControlView,
    segment: Segment,
    file: File,
}

/// Why there is no named ring.
#[derive(Debug)]
pub enum NamedError {
    /// What is there is not to be believed.
    Fault(NamedFault),
    /// It is not the ring that it has to be.
    Header(HeaderFault),
    /// The kernel refused: no room, no such file, no permission.
    Os(io::Error),
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedFault {
    /// Somebody has put something there before.
    Taken,
    /// It is not called as a named ring is.
    Name,
    /// A symbolic link.
    Link,
    /// No plain file: a folder, a pipe, a device, a socket.
    Kind,
    /// Somebody else's.
    Owner {
        /// Whose.
        uid: u32,
    },
    /// Others may use it, or its owner may not.
    Mode {
        /// What it is, instead of 0600.
        mode: u32,
    },
    /// It has other names, too.
    Names {
        /// How many in all; 0: it was removed.
        count: u64,
    },
    /// No named ring has this size.
    Size {
        /// Bytes of the file.
        bytes: u64,
    },
    /// What stands at its beginning is nothing of ours, or of another version.
    Head,
    /// It is the ring of another execution.
    Epoch,
}

impl NamedRing {
    /// A new one in `folder` for the execution `id`, which fills a window of `class_bytes`, one of
    /// [`DOOR_RING_BYTES`].
    ///
    /// # Errors
    /// [`NamedError`]; there is no file of ours then.
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
        populate(&segment, 0, segment.bytes());
        let control = segment.part(CONTROL_START, CONTROL_WORDS * 8);
        let control = ControlPage::at(&control, CONTROL_MAGIC);
        let window = segment.part(HEAD_BYTES as usize, geometry.window_bytes());
        let writer = RingWriter::starting(Lease::whole(window, geometry), anchor, start);
        Ok(NamedRing { writer, control, segment, file })
    }

    /// How much of the file system it takes.
    pub fn bytes(&self) -> u64 {
        self.segment.bytes() as u64
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Wakes readers that sleep although there is something other than chunks, which was told on
    /// [`NamedRing::control`].
    pub fn rouse(&self) {
        self.control.wake_producer(); // The word that they sleep on is the same.
    }

    /// Has somebody cut it off, or was there no room for it? Nobody sees what is written then.
    pub fn is_lost(&self) -> bool {
        self.segment.is_lost()
    }
}

impl Drop for NamedRing {
    /// Says that nothing more comes, for whoever still reads.
    fn drop(&mut self) {
        self.control.close();
        self.rouse();
    }
}

impl NamedView {
    /// Opens the ring at `path`, whose name says which execution it is of.
    ///
    /// # Errors
    /// [`NamedError`].
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

    /// Has the owner let go, or died? What it has published before can still be read.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn is_left(&self) -> io::Result<bool> {
        Ok(self.control.is_closed() || !file::is_held(&self.file)?)
    }

    /// Has somebody cut it off? What is read is zero since.
    pub fn is_lost(&self) -> bool {
        self.segment.is_lost()
    }
}

impl fmt::Display for NamedFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamedFault::Taken => write!(out, "something of that name is there already"),
            NamedFault::Name => write!(out, "no named ring is called like that"),
            NamedFault::Link => write!(out, "a symbolic link, which is not followed"),
            NamedFault::Kind => write!(out, "no plain file"),
            NamedFault::Owner { uid } => write!(out, "it belongs to user {uid}"),
            NamedFault::Mode { mode } => write!(out, "its mode is {mode:03o} instead of 600"),
            NamedFault::Names { count } => write!(out, "it has {count} names instead of 1"),
            NamedFault::Size { bytes } => write!(out, "no named ring has {bytes} bytes"),
            NamedFault::Head => write!(out, "it does not begin as a named ring of this version"),
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
