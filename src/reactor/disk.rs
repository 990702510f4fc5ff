//! Files as a shard sees them: names of files, requests, completions. Plain values; the system
//! calls are in `disk_files.rs`.
//!
//! A disk is one directory and the files in it. Absent: any knowledge of what the bytes mean,
//! directories below, and retries of failed operations (those are their owner's business).

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::base::{Handle, PageBuffer};
use crate::limits::{DISK_FILES_MAX, DISK_NAME_BYTES_MAX, DISK_OPERATIONS_MAX};

/// One open file of one reactor. After [`DiskWork::Close`] it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub Handle);

/// The name of a file in the directory of a disk: 1 to [`DISK_NAME_BYTES_MAX`] of the characters
/// `a-z`, `A-Z`, `0-9`, `-`, `_` and `.`, and not a `.` first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(Box<str>);

/// The error for a text that is no [`FileName`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileNameError {
    given: String,
}

impl FileName {
    /// Checks `text`.
    ///
    /// # Errors
    /// [`FileNameError`]: it is empty or too long, or has other characters.
    pub fn new(text: &str) -> Result<FileName, FileNameError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = (1..=DISK_NAME_BYTES_MAX).contains(&text.len());
        match fits && text.bytes().all(is_plain) && !text.starts_with('.') {
            true => Ok(FileName(text.into())),
            false => Err(FileNameError { given: text.chars().take(128).collect() }),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FileName {
    type Err = FileNameError;
    fn from_str(text: &str) -> Result<FileName, FileNameError> {
        FileName::new(text)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for FileNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "file name {:?}: must be 1 to {DISK_NAME_BYTES_MAX} of the characters a-z, A-Z, 0-9, \
             -, _ and ., and not a . first",
            self.given
        )
    }
}

impl std::error::Error for FileNameError {}

/// One operation for a disk. `token` comes back with its completion, and means nothing here.
#[derive(Debug)]
pub struct DiskRequest {
    /// A number of the caller's.
    pub token: u64,
    /// The operation.
    pub work: DiskWork,
}

/// An operation. Offsets and sizes are in bytes.
#[derive(Debug)]
pub enum DiskWork {
    /// Reads into the first `bytes` of `buffer`. Answered with [`DiskAnswer::Bytes`]: fewer only at
    /// the end of the file.
    Read {
        /// The file.
        file: FileId,
        /// The first byte of the file that is read.
        offset: u64,
        /// The place for what is read. It comes back with the completion.
        buffer: PageBuffer,
        /// Number of bytes: at least 1, and at most those of `buffer`.
        bytes: u32,
        /// True if the bytes come from the disk, and not from what the page cache has of it. After
        /// a sync that failed, that may be what the disk does not have. Whole pages at multiples of
        /// 4 KiB go past the page cache, where that is possible.
        is_fresh: bool,
    },
    /// Writes the first `bytes` of `buffer`, all of them.
    Write {
        /// The file.
        file: FileId,
        /// The place of the first byte.
        offset: u64,
        /// The bytes. It comes back with the completion, after an error too.
        buffer: PageBuffer,
        /// Number of bytes: at least 1, and at most those of `buffer`.
        bytes: u32,
        /// True if these bytes are durable when the write completes. Writes before it may not be.
        /// Whole pages at multiples of 4 KiB then go past the page cache, where that is possible.
        sync: bool,
    },
    /// Makes the data of the file durable: all writes that completed before this was submitted.
    Sync {
        /// The file.
        file: FileId,
    },
    /// Lists the files. Answered with [`DiskAnswer::Names`]. Entries that are no files, or whose
    /// names are no [`FileName`], are left out.
    List,
    /// Opens a file that exists, and follows no symbolic link. Answered with [`DiskAnswer::File`].
    Open {
        /// Its name.
        name: FileName,
    },
    /// Makes a new file of `bytes`, durable with its name, and opens it. It reads as zeros. The
    /// disk has room for all of it, but nothing is written: the first write of a place changes
    /// metadata. An error leaves no file behind if the directory still can be changed. Answered
    /// with [`DiskAnswer::File`].
    Create {
        /// Its name. If there is such a file already, that is an error.
        name: FileName,
        /// Its size.
        bytes: u64,
    },
    /// Gives a file another name, durably. A file that had it is removed.
    Rename {
        /// The present name.
        from: FileName,
        /// The new name.
        to: FileName,
    },
    /// Removes a file, durably. Its bytes are freed when it is not open any more.
    Remove {
        /// Its name.
        name: FileName,
    },
    /// Closes a file, at once for its name. Operations on it that are in flight still complete.
    Close {
        /// The file.
        file: FileId,
    },
}

/// The completion of one [`DiskRequest`].
#[derive(Debug)]
pub struct DiskDone {
    /// The number of the request.
    pub token: u64,
    /// The outcome. Names, offsets and full disks are errors as the kernel gives them.
    pub result: Result<DiskAnswer, io::Error>,
    /// The buffer of a read or write.
    pub buffer: Option<PageBuffer>,
}

/// The outcome of an operation that succeeded.
#[derive(Debug, PartialEq, Eq)]
pub enum DiskAnswer {
    /// A write, sync, rename, remove or close.
    Done,
    /// Number of bytes that were read.
    Bytes(u32),
    /// The file that was opened or created.
    File {
        /// Its name for further operations.
        file: FileId,
        /// Its size in bytes.
        bytes: u64,
    },
    /// The files by name, with their sizes in bytes.
    Names(Vec<(FileName, u64)>),
}

/// The directory of a disk.
#[derive(Debug)]
pub enum DiskDirectory {
    /// A directory by its path. The simulator knows those that a test has given it.
    Path(PathBuf),
    /// A directory that is open, and was checked by its owner. The simulator has none.
    Opened(OwnedFd),
}

/// The settings of a disk.
#[derive(Debug)]
pub struct DiskSetup {
    /// The directory that all names are in.
    pub directory: DiskDirectory,
    /// Operations whose completions were not taken yet: 1 to [`DISK_OPERATIONS_MAX`].
    pub in_flight_max: u32,
    /// Files that are open: 1 to [`DISK_FILES_MAX`]. Each takes up to two descriptors.
    pub files_max: u32,
    /// True if all writes of whole pages go past the page cache, and not only those that are
    /// durable when they complete. If the file system refuses, they go through it.
    pub is_direct: bool,
}

impl DiskSetup {
    /// The directory at `path`, with the largest limits, and writes through the page cache.
    pub fn at(path: &Path) -> DiskSetup {
        DiskSetup {
            directory: DiskDirectory::Path(path.to_path_buf()),
            in_flight_max: DISK_OPERATIONS_MAX,
            files_max: DISK_FILES_MAX,
            is_direct: false,
        }
    }

    /// Checks the limits, and that there is no disk yet.
    ///
    /// # Errors
    /// A limit is out of its range, or `has_disk`.
    pub(crate) fn check(&self, has_disk: bool) -> io::Result<()> {
        if has_disk {
            let text = "a reactor has one disk only";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let is_valid = (1..=DISK_OPERATIONS_MAX).contains(&self.in_flight_max)
            && (1..=DISK_FILES_MAX).contains(&self.files_max);
        match is_valid {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "limits of a disk")),
        }
    }
}

/// The disk of a backend, once it was opened. Its functions keep the promises of the functions of
/// [`crate::reactor::Reactor`] with similar names.
pub trait Disk {
    /// [`crate::reactor::Reactor::submit_disk`].
    ///
    /// # Errors
    /// Too many operations are in flight; the request comes back.
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest>;

    /// [`crate::reactor::Reactor::next_disk_event`].
    fn next_event(&mut self) -> Option<DiskDone>;
}

/// Checks a range of a file against the buffer for it.
///
/// # Errors
/// EINVAL: no byte, more than the buffer has, or beyond the largest offset.
pub(crate) fn check_range(offset: u64, bytes: u32, buffer: &PageBuffer) -> io::Result<()> {
    let fits = bytes > 0 && bytes as usize <= buffer.len();
    let end = offset.checked_add(bytes.into()).filter(|end| i64::try_from(*end).is_ok());
    match fits && end.is_some() {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// The error for a [`FileId`] that names nothing.
pub(crate) fn unknown_file() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

/// The error for a file more than may be open.
pub(crate) fn too_many_files() -> io::Error {
    io::Error::from_raw_os_error(libc::EMFILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_plain_and_in_one_directory() {
        let long = "x".repeat(DISK_NAME_BYTES_MAX);
        for text in ["a", "000000000017.seg", "spare-1.prep", "A_b", &long] {
            assert_eq!(FileName::new(text).unwrap().to_string(), text);
        }
        let longer = "x".repeat(DISK_NAME_BYTES_MAX + 1);
        for text in ["", ".", "..", ".hidden", "a/b", "/", "a b", "ä", "a\0", &longer] {
            let error = text.parse::<FileName>().unwrap_err();
            assert!(error.to_string().contains("must be 1 to 64"), "{error}");
        }
    }

    #[test]
    fn a_range_fits_the_buffer_and_the_file() {
        let buffer = PageBuffer::new(4_096);
        assert!(check_range(0, 4_096, &buffer).is_ok());
        assert!(check_range(i64::MAX as u64 - 1, 1, &buffer).is_ok());
        for (offset, bytes) in [(0, 0), (0, 4_097), (i64::MAX as u64, 1), (u64::MAX, 1)] {
            assert!(check_range(offset, bytes, &buffer).is_err(), "{offset} {bytes}");
        }
    }
}
