//! The system calls of a disk: a directory, and the open files in it.
//!
//! Used by the threads of `disk_thread.rs`, which may block. Absent: the names of open files for
//! their owner (`disk_table.rs`). Invariant: a sync is one system call, and is never repeated. The
//! kernel reports a failed write-back once, and calls the pages clean after that.

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::ptr::NonNull;

use crate::limits::{DISK_NAMES_MAX, DISK_PAGE_BYTES};
use crate::reactor::disk::{DiskDirectory, FileName};

/// Files belong to the user of the process, and to nobody else.
const MODE: libc::c_uint = 0o600;

/// The directory of a disk.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    is_direct: bool,
}

/// An open file. The descriptors close when the last operation on it is over.
#[derive(Debug)]
pub struct OpenFile {
    /// Reads, and writes through the page cache.
    cached: File,
    /// The same file without the page cache, for writes of whole pages.
    direct: Option<File>,
}

/// Turns the answer of a system call into a result.
fn checked(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn text_of(name: &FileName) -> CString {
    CString::new(name.as_str()).expect("a checked name has no zero byte")
}

/// Drops what the page cache has of a file and need not write. An error means that it stays.
fn drop_clean_pages(file: &File) {
    // SAFETY: an open descriptor, and a request that touches no memory of this process.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

impl Directory {
    /// Opens the directory of a disk.
    ///
    /// # Errors
    /// The kernel's error: it does not exist, is no directory, or may not be read.
    pub fn open(directory: DiskDirectory, is_direct: bool) -> io::Result<Directory> {
        let fd = match directory {
            DiskDirectory::Opened(fd) => fd,
            DiskDirectory::Path(path) => {
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(libc::O_DIRECTORY);
                options.open(path)?.into()
            }
        };
        Ok(Directory { fd, is_direct })
    }

    fn open_at(&self, name: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
        let flags = flags | libc::O_CLOEXEC;
        // SAFETY: an open directory, and a text that ends with zero and outlives the call.
        let raw = unsafe { libc::openat(self.fd.as_raw_fd(), name.as_ptr(), flags, MODE) };
        let raw = checked(raw)?;
        // SAFETY: just made, and not owned elsewhere.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    /// The second descriptor of a file, past the page cache; `None` if the file system has no such.
    fn open_direct(&self, name: &CStr) -> io::Result<Option<File>> {
        if !self.is_direct {
            return Ok(None);
        }
        match self.open_at(name, libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_DIRECT) {
            Ok(fd) => Ok(Some(File::from(fd))),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a file, and returns it with its size. `is_fresh` drops its clean pages.
    ///
    /// # Errors
    /// The kernel's error, or EINVAL if it is no regular file.
    pub fn open_file(&self, name: &FileName, is_fresh: bool) -> io::Result<(OpenFile, u64)> {
        let name = text_of(name);
        let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let cached = File::from(self.open_at(&name, flags)?);
        let facts = cached.metadata()?;
        if !facts.is_file() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if is_fresh {
            drop_clean_pages(&cached);
        }
        let direct = self.open_direct(&name)?;
        Ok((OpenFile { cached, direct }, facts.len()))
    }

    /// Makes a file with room for `bytes`, which read as zeros, durable with its name.
    ///
    /// # Errors
    /// The kernel's error. The file is removed again, unless that fails too.
    pub fn create_file(&self, name: &FileName, bytes: u64) -> io::Result<OpenFile> {
        let text = text_of(name);
        let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CREAT | libc::O_EXCL;
        let cached = File::from(self.open_at(&text, flags)?);
        let made = reserve(&cached, bytes)
            .and_then(|()| sync_whole(cached.as_raw_fd()))
            .and_then(|()| self.sync())
            .and_then(|()| self.open_direct(&text));
        match made {
            Ok(direct) => Ok(OpenFile { cached, direct }),
            Err(error) => {
                // The first error is the one to report.
                let _ = self.remove_file(name);
                Err(error)
            }
        }
    }

    /// Gives a file another name, durably.
    ///
    /// # Errors
    /// The kernel's error. If that of the sync, the name may be either after a power cut.
    pub fn rename_file(&self, from: &FileName, to: &FileName) -> io::Result<()> {
        let (from, to, fd) = (text_of(from), text_of(to), self.fd.as_raw_fd());
        // SAFETY: an open directory, and texts that end with zero and outlive the call.
        checked(unsafe { libc::renameat(fd, from.as_ptr(), fd, to.as_ptr()) })?;
        self.sync()
    }

    /// Removes a file, durably.
    ///
    /// # Errors
    /// The same as of [`Directory::rename_file`].
    pub fn remove_file(&self, name: &FileName) -> io::Result<()> {
        let name = text_of(name);
        // SAFETY: an open directory, and a text that ends with zero and outlives the call.
        checked(unsafe { libc::unlinkat(self.fd.as_raw_fd(), name.as_ptr(), 0) })?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        sync_whole(self.fd.as_raw_fd())
    }

    /// The regular files with plain names, by name, with their sizes.
    ///
    /// # Errors
    /// The kernel's error, or EOVERFLOW if there are more than [`DISK_NAMES_MAX`].
    pub fn names(&self) -> io::Result<Vec<(FileName, u64)>> {
        let mut entries = Entries::open(self)?;
        let mut names = Vec::new();
        while let Some(name) = entries.next_name()? {
            let Some(bytes) = self.size_of(&name)? else { continue };
            if names.len() == DISK_NAMES_MAX {
                return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
            }
            names.push((name, bytes));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The size of a file; `None` if it is no regular one, or gone meanwhile.
    fn size_of(&self, name: &FileName) -> io::Result<Option<u64>> {
        let name = text_of(name);
        // SAFETY: plain numbers, for which all zero is a value.
        let mut facts = unsafe { std::mem::zeroed::<libc::stat>() };
        let (fd, flags) = (self.fd.as_raw_fd(), libc::AT_SYMLINK_NOFOLLOW);
        // SAFETY: an open directory, a text that ends with zero, and a place for the facts.
        match checked(unsafe { libc::fstatat(fd, name.as_ptr(), &mut facts, flags) }) {
            Ok(_) if facts.st_mode & libc::S_IFMT == libc::S_IFREG => {
                Ok(Some(facts.st_size as u64))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The entries of a directory, read through a descriptor of their own.
struct Entries(NonNull<libc::DIR>);

impl Entries {
    fn open(directory: &Directory) -> io::Result<Entries> {
        let fd = directory.open_at(c".", libc::O_RDONLY | libc::O_DIRECTORY)?;
        let raw = fd.into_raw_fd();
        // SAFETY: an open directory, which belongs to the stream from now on.
        match NonNull::new(unsafe { libc::fdopendir(raw) }) {
            Some(stream) => Ok(Entries(stream)),
            None => {
                let error = io::Error::last_os_error();
                // SAFETY: the stream was not made, so the descriptor is still ours.
                drop(unsafe { OwnedFd::from_raw_fd(raw) });
                Err(error)
            }
        }
    }

    /// The next plain name.
    fn next_name(&mut self) -> io::Result<Option<FileName>> {
        loop {
            // SAFETY: the address of this thread's errno.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: valid on this thread. Only errno tells an error from the end.
            unsafe { *errno = 0 };
            // SAFETY: an open stream that only this thread uses.
            let entry = unsafe { libc::readdir(self.0.as_ptr()) };
            if entry.is_null() {
                let error = io::Error::last_os_error();
                return if error.raw_os_error() == Some(0) { Ok(None) } else { Err(error) };
            }
            // SAFETY: the entry is valid until the next call, and nothing writes it meanwhile.
            let text = unsafe { &raw const (*entry).d_name };
            // SAFETY: the kernel's names end with zero.
            let text = unsafe { CStr::from_ptr(text.cast()) };
            if let Some(name) = text.to_str().ok().and_then(|text| FileName::new(text).ok()) {
                return Ok(Some(name));
            }
        }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // SAFETY: open, and closed once. It closes its descriptor.
        unsafe { libc::closedir(self.0.as_ptr()) };
    }
}

/// Reserves blocks for `bytes`. The library writes to each of them if the file system cannot.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let too_large = |_| io::Error::from_raw_os_error(libc::EFBIG);
    let length = libc::off_t::try_from(bytes).map_err(too_large)?;
    loop {
        // SAFETY: an open file, and numbers.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Syncs data and metadata, once.
fn sync_whole(fd: RawFd) -> io::Result<()> {
    // SAFETY: takes a number.
    checked(unsafe { libc::fsync(fd) }).map(|_| ())
}

impl OpenFile {
    /// The descriptor for reads.
    pub fn read_fd(&self) -> RawFd {
        self.cached.as_raw_fd()
    }

    /// The descriptor for a write to this place: past the page cache if the pages are whole ones.
    pub fn write_fd(&self, offset: u64, bytes: usize) -> RawFd {
        self.writer(offset, bytes).as_raw_fd()
    }

    fn writer(&self, offset: u64, bytes: usize) -> &File {
        let is_whole =
            bytes.is_multiple_of(DISK_PAGE_BYTES) && offset.is_multiple_of(DISK_PAGE_BYTES as u64);
        self.direct.as_ref().filter(|_| is_whole).unwrap_or(&self.cached)
    }

    /// Fills `into` from the file, as far as it reaches.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < into.len() {
            match self.cached.read_at(&mut into[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The kernel's error; a part may have been written.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            let (at, rest) = (offset + written as u64, &bytes[written..]);
            match self.writer(at, rest.len()).write_at(rest, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Syncs the data, and the metadata that is needed to read it, once.
    ///
    /// # Errors
    /// The kernel's error, which is final for all that the sync should have covered.
    pub fn sync_data(&self) -> io::Result<()> {
        // SAFETY: takes a number.
        checked(unsafe { libc::fdatasync(self.cached.as_raw_fd()) }).map(|_| ())
    }
}
