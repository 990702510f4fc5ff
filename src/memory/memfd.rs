//! Memory that can be handed to another process: anonymous files, allocated, sealed, mapped.
//!
//! Rules, each with what went wrong without it:
//! - space is bought with `fallocate`, never with `ftruncate` alone: on a full system the first
//!   touch of an unbought page kills with SIGBUS;
//! - a file is sealed against shrinking before anyone else has it: a peer that truncates it would
//!   kill us the same way;
//! - mode 0600, and descriptors are handed out read-only: a memfd is born 0777, and a read-only
//!   descriptor can be reopened for writing by whoever the mode lets in;
//! - what another process hands us is refused unless its seals are in place.
//!
//! RLIMIT_FSIZE counts these files, too: a process that has one, and does not catch SIGXFSZ, is
//! killed by buying more. The program does (`cli/signals.rs`).
//!
//! Not defended: ptrace and /proc/pid/mem of the same user. Tests: below, `tests/ring_process.rs`.

use std::ffi::CStr;
use std::fmt;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::{Mutex, PoisonError};

use memmap2::MmapOptions;

use super::format::HeaderFault;
use super::reader::RingReader;
use super::segment::{Segment, WeakSegment};
use crate::limits::DOOR_RING_BYTES;

/// Seals of a ring that others may read: no size change, no new writer, and no way back.
pub(super) const DOOR_SEALS: i32 =
    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
/// Seals of what another process is to map for writing, until it has.
pub(super) const GUEST_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
/// Seals of a file that still grows and never leaves the process.
pub(super) const ARENA_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;

/// An anonymous file of ours.
pub(super) struct Memfd {
    file: File,
}

impl Memfd {
    /// An empty file, readable and writable by this user only, closed on exec.
    pub(super) fn create(name: &CStr) -> io::Result<Memfd> {
        let base_flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // MFD_NOEXEC_SEAL is of Linux 6.3; where it is required by sysctl, it is known.
        let fd = memfd_create(name, base_flags | libc::MFD_NOEXEC_SEAL)
            .or_else(|_| memfd_create(name, base_flags))?;
        let file = File::from(fd);
        file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(Memfd { file })
    }

    /// Buys `bytes` bytes from `offset` on; the file grows where it has to.
    pub(super) fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        loop {
            // SAFETY: takes numbers only; the descriptor is open as long as `file`.
            let result =
                unsafe { libc::fallocate(self.file.as_raw_fd(), 0, offset as i64, bytes as i64) };
            if result == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Adds `seals`.
    pub(super) fn seal(&self, seals: i32) -> io::Result<()> {
        // SAFETY: takes numbers only; the descriptor is open as long as `file`.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Maps the first `bytes` bytes for writing. They may lie beyond the end of the file as long as
    /// nobody touches them there.
    pub(super) fn map(&self, bytes: usize) -> io::Result<Segment> {
        MmapOptions::new().len(bytes).map_raw(&self.file).map(Segment::mapped)
    }

    /// As [`Memfd::map`], for reading.
    pub(super) fn map_read_only(&self, bytes: usize) -> io::Result<Segment> {
        MmapOptions::new().len(bytes).map_raw_read_only(&self.file).map(Segment::mapped)
    }

    /// Its seals.
    pub(super) fn seals(&self) -> io::Result<i32> {
        seals_of(self.file.as_raw_fd())
    }

    /// Writes words at its start, before it is sealed.
    pub(super) fn write_words(&self, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.file.write_all_at(&bytes, 0)
    }

    /// Its descriptor, which can do everything that its seals let it.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What the kernel has given for it, without what was given back.
    #[cfg(all(test, not(loom)))]
    pub(super) fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    /// A descriptor of the same file that cannot write.
    pub(super) fn reopen_read_only(&self) -> io::Result<OwnedFd> {
        File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd())).map(OwnedFd::from)
    }
}

fn memfd_create(name: &CStr, flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: reads the string `name`, which is terminated.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The seals of a file; an error if it is of a kind that has none.
fn seals_of(fd: RawFd) -> io::Result<i32> {
    // SAFETY: takes numbers only.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 { Err(io::Error::last_os_error()) } else { Ok(seals) }
}

/// Why a descriptor from outside was not taken as a ring.
#[derive(Debug)]
pub enum OpenError {
    /// It is no memfd, or lacks seals without which its owner could kill us or fool us.
    NotSealed {
        /// The seals that it has, as in fcntl(2).
        found: i32,
        /// Those that it has to have.
        needed: i32,
    },
    /// It has a size that no ring has.
    WrongSize {
        /// Bytes of the file.
        bytes: u64,
    },
    /// What stands at its start is not the header of a ring.
    Header(HeaderFault),
    /// What stands in it is not what was to be handed over: a page of another kind or version.
    WrongPage,
    /// A ring to be written that is not empty.
    NotEmpty,
    /// The kernel refused.
    Os(io::Error),
}

impl RingReader {
    /// Opens a ring that another process made, from a descriptor that it handed over. The
    /// descriptor is closed; the mapping stays.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(fd: OwnedFd) -> Result<RingReader, OpenError> {
        let file = Foreign::check(fd, DOOR_SEALS, &DOOR_RING_BYTES)?;
        RingReader::attach(file.map_read_only()?).map_err(OpenError::Header)
    }
}

/// A file that another process handed over: of the right kind, and of a size that stays.
pub(super) struct Foreign {
    file: File,
    bytes: usize,
}

impl Foreign {
    /// Takes a descriptor if it is of a memfd with at least these seals, of one of these sizes.
    pub(super) fn check(fd: OwnedFd, seals: i32, sizes: &[u32]) -> Result<Foreign, OpenError> {
        let file = File::from(fd);
        let metadata = file.metadata().map_err(OpenError::Os)?;
        // What has no seals (a plain file, a pipe, a socket) answers EINVAL: that is none found.
        let found = if metadata.is_file() { seals_of(file.as_raw_fd()).unwrap_or(0) } else { 0 };
        if found & seals != seals {
            return Err(OpenError::NotSealed { found, needed: seals });
        }
        let bytes = metadata.len(); // Final: sealed against shrinking and growing.
        if !sizes.iter().any(|size| u64::from(*size) == bytes) {
            return Err(OpenError::WrongSize { bytes });
        }
        Ok(Foreign { file, bytes: bytes as usize })
    }

    /// Maps it for reading, once for all of this process that read it: many mappings of the same
    /// memory are many entries in what the processor keeps of page tables.
    pub(super) fn map_read_only(&self) -> Result<Segment, OpenError> {
        let identity = Identity::of(&self.file).map_err(OpenError::Os)?;
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|(_, segment)| segment.is_alive());
        let found = shared.iter().find(|(other, _)| *other == identity);
        if let Some(segment) = found.and_then(|(_, segment)| segment.upgrade()) {
            return Ok(segment);
        }
        let mapped = MmapOptions::new().len(self.bytes).populate().map_raw_read_only(&self.file);
        let segment = mapped.map(Segment::mapped).map_err(OpenError::Os)?;
        shared.push((identity, segment.downgrade()));
        Ok(segment)
    }

    pub(super) fn map_writable(&self) -> Result<Segment, OpenError> {
        let mapped = MmapOptions::new().len(self.bytes).populate().map_raw(&self.file);
        mapped.map(Segment::mapped).map_err(OpenError::Os)
    }
}

/// What of others' files this process has mapped for reading.
static SHARED: Mutex<Vec<(Identity, WeakSegment)>> = Mutex::new(Vec::new());

/// Which file it is. The numbers of memfds come again after four thousand million of them; not in
/// the same nanosecond.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
    bytes: u64,
}

impl Identity {
    fn of(file: &File) -> io::Result<Identity> {
        let metadata = file.metadata()?;
        Ok(Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            bytes: metadata.len(),
        })
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotSealed { found, needed } => {
                write!(out, "not a sealed memfd: seals {found:#x}, needed {needed:#x}")
            }
            OpenError::WrongSize { bytes } => {
                write!(out, "neither a ring nor a page: nothing of ours has {bytes} bytes")
            }
            OpenError::Header(fault) => fault.fmt(out),
            OpenError::WrongPage => write!(
                out,
                "not the page that it has to be, or of another \
                                                 version"
            ),
            OpenError::NotEmpty => write!(out, "a ring to be written that is not empty"),
            OpenError::Os(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Header(fault) => Some(fault),
            OpenError::Os(error) => Some(error),
            OpenError::NotSealed { .. }
            | OpenError::WrongSize { .. }
            | OpenError::WrongPage
            | OpenError::NotEmpty => None,
        }
    }
}
