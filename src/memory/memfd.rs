//! Memory that can be handed to another process: anonymous files, allocated, sealed and mapped.
//!
//! Rules, each with its reason:
//! - Space is allocated with `fallocate`, never with `ftruncate` alone. On a full system the first
//!   touch of an unallocated page kills the process with SIGBUS.
//! - A file is sealed against shrinking before another process has it. A peer that truncates it
//!   would kill this process the same way.
//! - Files have mode 0600, and descriptors are handed out read-only. A memfd is created with mode
//!   0777, and any user whom the mode admits can reopen a read-only descriptor for writing.
//! - A descriptor from another process is refused unless its seals are in place.
//!
//! RLIMIT_FSIZE counts these files too. If a process has this limit and does not catch SIGXFSZ, a
//! larger allocation kills it. The program catches the signal (`cli/signals.rs`).
//!
//! Not defended: ptrace and /proc/pid/mem of the same user.
//! Tests: below, `tests/ring_process.rs`.

use std::ffi::CStr;
use std::fs::{File, Permissions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::{Mutex, PoisonError};
use std::{fmt, io};

use memmap2::MmapOptions;

use super::format::HeaderFault;
use super::reader::RingReader;
use super::segment::{PAGE_BYTES, Segment, WeakSegment};
use crate::limits::DOOR_RING_BYTES;

/// The seals of a ring that others may read: no size change, no new writer, no further seals.
pub(super) const DOOR_SEALS: i32 =
    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
/// The seals of a file that another process may map for writing, until it has done so.
pub(super) const SHARED_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
/// The seals of a file that still grows and never leaves the process.
pub(super) const ARENA_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;

const _: () = {
    // No file of ours can be truncated under a mapping.
    assert!(DOOR_SEALS & libc::F_SEAL_SHRINK != 0);
    assert!(SHARED_SEALS & libc::F_SEAL_SHRINK != 0);
    assert!(ARENA_SEALS & libc::F_SEAL_SHRINK != 0);
    assert!(DOOR_SEALS & SHARED_SEALS == SHARED_SEALS); // A guest's file is closed by adding seals.
    assert!(SHARED_SEALS & libc::F_SEAL_SEAL == 0); // More seals have to follow.
    assert!(SHARED_SEALS & libc::F_SEAL_FUTURE_WRITE == 0); // The guest maps it for writing.
    assert!(ARENA_SEALS & libc::F_SEAL_GROW == 0); // An arena grows.
    assert!(DOOR_SEALS & libc::F_SEAL_WRITE == 0); // Its owner goes on writing.
};

/// An anonymous file of this process.
pub(super) struct Memfd {
    file: File,
}

impl Memfd {
    /// Creates an empty file, readable and writable by this user only, closed on exec.
    pub(super) fn create(name: &CStr) -> io::Result<Memfd> {
        let base_flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // MFD_NOEXEC_SEAL exists since Linux 6.3. A kernel whose sysctl requires it knows it.
        let fd = memfd_create(name, base_flags | libc::MFD_NOEXEC_SEAL)
            .or_else(|_| memfd_create(name, base_flags))?;
        let file = File::from(fd);
        file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(Memfd { file })
    }

    /// Allocates `bytes` bytes from `offset` on. The file grows as needed.
    pub(super) fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        assert!(bytes > 0); // The kernel refuses an empty range.
        assert!(offset <= i64::MAX as u64 - bytes);
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

    /// Adds `seals` to the file.
    pub(super) fn seal(&self, seals: i32) -> io::Result<()> {
        assert!(seals != 0);
        // SAFETY: takes numbers only; the descriptor is open as long as `file`.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Maps the first `bytes` bytes for writing. They may lie beyond the end of the file as long as
    /// no access touches them there.
    pub(super) fn map(&self, bytes: usize) -> io::Result<Segment> {
        let segment = MmapOptions::new().len(bytes).map_raw(&self.file).map(Segment::mapped)?;
        assert!(segment.bytes() == bytes);
        Ok(segment)
    }

    /// Maps the first `bytes` bytes for reading, like [`Memfd::map`].
    pub(super) fn map_read_only(&self, bytes: usize) -> io::Result<Segment> {
        let mapping = MmapOptions::new().len(bytes).map_raw_read_only(&self.file)?;
        let segment = Segment::mapped(mapping);
        assert!(segment.bytes() == bytes);
        Ok(segment)
    }

    /// Returns the seals of the file.
    pub(super) fn seals(&self) -> io::Result<i32> {
        seals_of(self.file.as_raw_fd())
    }

    /// Writes words at the start of the file, before it is sealed.
    pub(super) fn write_words(&self, words: &[u64]) -> io::Result<()> {
        assert!(words.len() * 8 <= PAGE_BYTES); // Pages are written, and rings are mapped.
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.file.write_all_at(&bytes, 0)
    }

    /// Returns the descriptor of the file, which permits everything that the seals permit.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Number of bytes that the kernel holds for the file, without those that were released.
    #[cfg(all(test, not(loom)))]
    pub(super) fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    /// Returns a descriptor of the same file that cannot write.
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

/// Returns the seals of a file, or an error if files of its kind have none.
fn seals_of(fd: RawFd) -> io::Result<i32> {
    // SAFETY: takes numbers only.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 { Err(io::Error::last_os_error()) } else { Ok(seals) }
}

/// The reason why a descriptor from outside was not accepted.
#[derive(Debug)]
pub enum OpenError {
    /// It is not a memfd, or lacks seals that protect this process from its owner.
    NotSealed {
        /// The seals that it has, as in fcntl(2).
        found: i32,
        /// The seals that it needs.
        needed: i32,
    },
    /// Its size is not one of the expected sizes.
    WrongSize {
        /// Size of the file, in bytes.
        bytes: u64,
    },
    /// Its start is not a valid header of a ring.
    Header(HeaderFault),
    /// It holds a page of another kind or version.
    WrongPage,
    /// The ring that this process should write is not empty.
    NotEmpty,
    /// The kernel refused a call.
    Os(io::Error),
}

impl RingReader {
    /// Opens a ring that another process made, from a descriptor that it handed over. The
    /// descriptor is closed; the mapping stays.
    ///
    /// # Errors
    /// [`OpenError`] if the descriptor is not that of a sealed ring, or the kernel refuses to map
    /// it.
    pub fn open(fd: OwnedFd) -> Result<RingReader, OpenError> {
        let file = ForeignFile::check(fd, DOOR_SEALS, &DOOR_RING_BYTES)?;
        RingReader::attach(file.map_read_only()?).map_err(OpenError::Header)
    }
}

/// A file that another process handed over, of the right kind and of a fixed size.
pub(super) struct ForeignFile {
    file: File,
    bytes: usize,
}

impl ForeignFile {
    /// Accepts a descriptor of a memfd that has at least these seals and one of these sizes.
    pub(super) fn check(fd: OwnedFd, seals: i32, sizes: &[u32]) -> Result<ForeignFile, OpenError> {
        assert!(seals & SHARED_SEALS == SHARED_SEALS); // Its size is final.
        assert!(!sizes.is_empty());
        let file = File::from(fd);
        let metadata = file.metadata().map_err(OpenError::Os)?;
        // For a file without seals (a plain file, a pipe, a socket) the kernel answers EINVAL: no
        // seals.
        let found = if metadata.is_file() { seals_of(file.as_raw_fd()).unwrap_or(0) } else { 0 };
        if found & seals != seals {
            return Err(OpenError::NotSealed { found, needed: seals });
        }
        let bytes = metadata.len(); // Final: sealed against shrinking and growing.
        if !sizes.iter().any(|size| u64::from(*size) == bytes) {
            return Err(OpenError::WrongSize { bytes });
        }
        Ok(ForeignFile { file, bytes: bytes as usize })
    }

    /// Maps the file for reading, once for all readers in this process. More mappings of the same
    /// memory would need more page table entries in the processor's cache.
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
        assert!(segment.bytes() == self.bytes);
        shared.push((identity, segment.downgrade()));
        Ok(segment)
    }

    pub(super) fn map_writable(&self) -> Result<Segment, OpenError> {
        let mapped = MmapOptions::new().len(self.bytes).populate().map_raw(&self.file);
        let segment = mapped.map(Segment::mapped).map_err(OpenError::Os)?;
        assert!(segment.bytes() == self.bytes);
        Ok(segment)
    }
}

/// The files of other processes that this process has mapped for reading.
static SHARED: Mutex<Vec<(Identity, WeakSegment)>> = Mutex::new(Vec::new());

/// The identity of a file. The inode numbers of memfds repeat after 2^32 files, but not within the
/// same nanosecond.
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
                write!(out, "neither a ring nor a page, which never have {bytes} bytes")
            }
            OpenError::Header(fault) => fault.fmt(out),
            OpenError::WrongPage => write!(out, "not the expected page, or of another version"),
            OpenError::NotEmpty => write!(out, "a ring to write that is not empty"),
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
