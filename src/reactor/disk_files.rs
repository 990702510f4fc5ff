//! The system calls of a disk: a directory, and the open files in it.
//!
//! Used by the threads of `disk_thread.rs`, which may block. Absent: the names of open files for
//! their owner (`disk_table.rs`). Invariant: a sync is one system call, and is never repeated. The
//! kernel reports a failed write-back once, and calls the pages clean after that.
//!
//! A write that has to be durable is one system call as well (`RWF_DSYNC`), and goes past the page
//! cache. That takes half the time of a write into the page cache and a sync. Other writes go into
//! the page cache: the kernel takes those twice as fast (`bench/runs/2026-11-28-disk`). File
//! systems whose promise is unknown get a write and a sync, and so does a ring (`uring_disk.rs`).
//!
//! A read that has to come from the disk goes past the page cache, too. The kernel needs 10 to 14
//! ms for 4 MiB that it reads into an empty page cache, and 2 ms past it.

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::ptr::NonNull;

use crate::limits::{DISK_NAMES_MAX, DISK_PAGE_BYTES};
use crate::reactor::disk::{DiskDirectory, FileName};
use crate::reactor::file_system::FileSystem;

/// Files belong to the user of the process, and to nobody else.
const MODE: libc::c_uint = 0o600;

/// The directory of a disk.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    is_direct: bool,
    /// True if a write can be durable by itself.
    has_durable_writes: bool,
}

/// An open file. The descriptors close when the last operation on it is over.
#[derive(Debug)]
pub struct OpenFile {
    /// Reads and writes through the page cache.
    cached: File,
    /// The same file without the page cache, for reads and writes of whole pages.
    direct: Option<File>,
    /// True if all writes of whole pages go past the page cache.
    is_direct: bool,
    has_durable_writes: bool,
}

/// Turns the answer of a system call into a result.
fn checked(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn text_of(name: &FileName) -> CString {
    CString::new(name.as_str()).expect("a checked name has no zero byte")
}

/// Drops what the page cache has of a part of a file and need not write. An error means that it
/// stays.
fn drop_clean_pages(file: &File, offset: u64, bytes: usize) {
    let page = DISK_PAGE_BYTES as u64;
    let (first, end) = (offset / page * page, (offset + bytes as u64).next_multiple_of(page));
    let (first, bytes) = (first as libc::off_t, (end - first) as libc::off_t);
    // SAFETY: an open descriptor, and a request that touches no memory of this process.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), first, bytes, libc::POSIX_FADV_DONTNEED) };
}

/// True if a file that was opened past the page cache takes pages of 4 KiB, as far as the kernel
/// says (since Linux 6.1).
fn takes_pages(file: &File) -> bool {
    // SAFETY: plain numbers, for which all zero is a value.
    let mut facts = unsafe { std::mem::zeroed::<libc::statx>() };
    let (fd, flags, mask) = (file.as_raw_fd(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: an open file, an empty text that ends with zero, and a place for the facts.
    let code = unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, &raw mut facts) };
    if code != 0 || facts.stx_mask & mask == 0 {
        return true;
    }
    let pages = 1..=DISK_PAGE_BYTES as u32;
    pages.contains(&facts.stx_dio_offset_align) && pages.contains(&facts.stx_dio_mem_align)
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
        let has_durable_writes = FileSystem::of(&fd)?.kind.has_durable_writes();
        Ok(Directory { fd, is_direct, has_durable_writes })
    }

    fn open_at(&self, name: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
        let flags = flags | libc::O_CLOEXEC;
        // SAFETY: an open directory, and a text that ends with zero and outlives the call.
        let raw = unsafe { libc::openat(self.fd.as_raw_fd(), name.as_ptr(), flags, MODE) };
        let raw = checked(raw)?;
        // SAFETY: just made, and not owned elsewhere.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    /// The second descriptor of a file, past the page cache; `None` if the file system has no such,
    /// or wants larger pages there.
    fn open_direct(&self, name: &CStr) -> io::Result<Option<File>> {
        if !self.is_direct && !self.has_durable_writes {
            return Ok(None);
        }
        match self.open_at(name, libc::O_RDWR | libc::O_NOFOLLOW | libc::O_DIRECT) {
            Ok(fd) => Ok(Some(File::from(fd)).filter(takes_pages)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn with_both(&self, cached: File, name: &CStr) -> io::Result<OpenFile> {
        let direct = self.open_direct(name)?;
        let Directory { is_direct, has_durable_writes, .. } = *self;
        Ok(OpenFile { cached, direct, is_direct, has_durable_writes })
    }

    /// Opens a file, and returns it with its size.
    ///
    /// # Errors
    /// The kernel's error, or EINVAL if it is no regular file.
    pub fn open_file(&self, name: &FileName) -> io::Result<(OpenFile, u64)> {
        let name = text_of(name);
        let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let cached = File::from(self.open_at(&name, flags)?);
        let facts = cached.metadata()?;
        if !facts.is_file() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok((self.with_both(cached, &name)?, facts.len()))
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
            .and_then(|()| self.with_both(cached, &text));
        if made.is_err() {
            // The first error is the one to report.
            let _ = self.remove_file(name);
        }
        made
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

/// Writes as much as the kernel takes.
fn write_at(fd: RawFd, offset: u64, bytes: &[u8], is_durable: bool) -> io::Result<usize> {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let too_far = |_| io::Error::from_raw_os_error(libc::EFBIG);
    let offset = libc::off_t::try_from(offset).map_err(too_far)?;
    let flags = if is_durable { libc::RWF_DSYNC } else { 0 };
    // SAFETY: the one part is the memory of `bytes`, which the kernel only reads.
    let count = unsafe { libc::pwritev2(fd, &raw const part, 1, offset, flags) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
}

/// True if the bytes are whole pages.
fn is_whole(offset: u64, bytes: usize) -> bool {
    bytes.is_multiple_of(DISK_PAGE_BYTES) && offset.is_multiple_of(DISK_PAGE_BYTES as u64)
}

/// The way of a write to a file.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The descriptor.
    pub fd: RawFd,
    /// True if the write is durable by itself, with `RWF_DSYNC`.
    pub is_durable: bool,
}

impl OpenFile {
    /// The descriptor for syncs.
    pub fn sync_fd(&self) -> RawFd {
        self.cached.as_raw_fd()
    }

    /// The descriptor for a read of `bytes` at `offset`. `is_fresh`: past the page cache, if that
    /// is possible.
    pub fn read_fd(&self, offset: u64, bytes: usize, is_fresh: bool) -> RawFd {
        self.file_for(offset, bytes, is_fresh).as_raw_fd()
    }

    /// True if `bytes` at `offset` can be read past the page cache.
    pub fn reads_past_cache(&self, offset: u64, bytes: usize) -> bool {
        self.direct.is_some() && is_whole(offset, bytes)
    }

    /// The way past the page cache for whole pages, if it is wanted and there is one.
    fn file_for(&self, offset: u64, bytes: usize, is_direct: bool) -> &File {
        let may_be_direct = is_direct && is_whole(offset, bytes);
        self.direct.as_ref().filter(|_| may_be_direct).unwrap_or(&self.cached)
    }

    /// The way to write `bytes` at `offset`. `sync`: they have to be durable.
    pub fn way(&self, offset: u64, bytes: usize, sync: bool) -> Way {
        let is_durable = sync && self.has_durable_writes;
        let file = self.file_for(offset, bytes, self.is_direct || is_durable);
        Way { fd: file.as_raw_fd(), is_durable }
    }

    /// Fills `into` from the file, as far as it reaches. `is_fresh`: with what the disk has.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&self, offset: u64, into: &mut [u8], is_fresh: bool) -> io::Result<usize> {
        if is_fresh && !self.reads_past_cache(offset, into.len()) {
            drop_clean_pages(&self.cached, offset, into.len());
        }
        let mut read = 0;
        while read < into.len() {
            let (at, rest) = (offset + read as u64, &mut into[read..]);
            match self.file_for(at, rest.len(), is_fresh).read_at(rest, at) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Writes all of `bytes`. `sync`: they are durable afterwards.
    ///
    /// # Errors
    /// The kernel's error; a part may have been written.
    pub fn write(&self, offset: u64, bytes: &[u8], sync: bool) -> io::Result<()> {
        let (mut written, mut must_sync) = (0, false);
        while written < bytes.len() {
            let (at, rest) = (offset + written as u64, &bytes[written..]);
            let Way { fd, is_durable } = self.way(at, rest.len(), sync);
            must_sync |= sync && !is_durable;
            match write_at(fd, at, rest, is_durable) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if must_sync { self.sync_data() } else { Ok(()) }
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
