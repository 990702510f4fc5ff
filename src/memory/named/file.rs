//! Files of named rings: creation, opening, listing and removal. A file is checked completely
//! before a byte of it is used.
//!
//! - A file is created with O_CREAT, O_EXCL, O_NOFOLLOW. An existing file or link is neither opened
//!   nor followed.
//! - A valid file belongs to this user, has mode 0600, is plain, and has one name. It has one of
//!   the sizes of rings, and the number in its head (the epoch) is that of its name.
//! - The owner takes a lock on it (of the open file, F_OFD_SETLK) before the head is written. The
//!   kernel releases the lock when the file is closed or the owner dies. Therefore nobody has to
//!   compare process ids, which are reused.
//! - A process that holds the lock may remove the file. A creator whose file was removed meanwhile
//!   creates another.
//!
//! Not defended: processes of the same user can write to these files, truncate, lock and remove
//! them. A truncated file kills no process (`guard.rs`). Their writes are checked like any data
//! from another process.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{NamedError, NamedFault};
use crate::base::ExecutionId;
use crate::limits::DOOR_RING_BYTES;

/// The prefix of the id in each name.
pub const PREFIX: &str = "streamdoor-";
/// Size of the head before the ring in each file, in bytes.
pub(super) const HEAD_BYTES: u64 = 4096;
/// The text "sdname".
const MAGIC: u64 = 0x0102_656d_616e_6473;
/// The version of the head that `mod.rs` describes.
const VERSION: u64 = 1;
/// Number of words of the head: magic, version, and the epoch's halves.
const HEAD_WORDS: usize = 4;
const MODE: u32 = 0o600;
/// Number of attempts to create a file, if sweeping processes take it for a dead one.
const ATTEMPTS_MAX: u32 = 100;
/// The pause between two attempts. A process that has locked the file is about to remove it.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1);

const _: () = {
    assert!(HEAD_WORDS * 8 <= HEAD_BYTES as usize);
    assert!(HEAD_WORDS * 8 == 16 + size_of::<u128>()); // Magic, version, and the epoch.
    assert!(MODE & 0o077 == 0); // Nobody but its owner opens it.
    assert!(ATTEMPTS_MAX > 0);
    assert!(!PREFIX.is_empty()); // A sweep looks at files of this name only.
};

/// A file of this process, locked. The drop removes its name.
pub(super) struct NamedFile {
    pub(super) file: File,
    pub(super) path: PathBuf,
}

/// Returns the file name of the ring of `id`.
pub fn name_of(id: ExecutionId) -> String {
    format!("{PREFIX}{id}")
}

/// Returns the execution id in a file name.
pub(super) fn id_of(name: &str) -> Option<ExecutionId> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

impl NamedFile {
    /// Creates a file in `folder`, with its head and room for a ring of `class_bytes`, all of it
    /// allocated.
    pub(super) fn create(
        folder: &Path,
        id: ExecutionId,
        class_bytes: u32,
    ) -> Result<NamedFile, NamedError> {
        let path = folder.join(name_of(id));
        assert!(id_of(&name_of(id)) == Some(id)); // Readers find the id in the name.
        for attempt in 0..ATTEMPTS_MAX {
            let made = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true) // O_CREAT and O_EXCL.
                .mode(MODE)
                .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
                .open(&path);
            let file = match made {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt > 0 => {
                    std::thread::sleep(ATTEMPT_INTERVAL);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => break,
                Err(error) => return Err(NamedError::Os(error)),
            };
            if lock(&file).map_err(NamedError::Os)? && has_name(&file)? {
                let named = NamedFile { file, path };
                named.fill(id, class_bytes)?; // If it fails, the drop removes the name.
                return Ok(named);
            }
            // A sweeping process holds the file and will remove it.
        }
        Err(NamedError::Fault(NamedFault::Taken))
    }

    fn fill(&self, id: ExecutionId, class_bytes: u32) -> Result<(), NamedError> {
        assert!(DOOR_RING_BYTES.contains(&class_bytes)); // Readers check the size.
        let bytes = HEAD_BYTES + u64::from(class_bytes);
        self.file.set_permissions(Permissions::from_mode(MODE)).map_err(NamedError::Os)?;
        self.file.write_all_at(&head(id), 0).map_err(NamedError::Os)?;
        allocate(&self.file, bytes).map_err(NamedError::Os)?;
        let metadata = self.file.metadata().map_err(NamedError::Os)?;
        check(&metadata).map_err(NamedError::Fault)?;
        match metadata.len() == bytes {
            true => Ok(()),
            false => Err(NamedError::Fault(NamedFault::Size { bytes: metadata.len() })),
        }
    }
}

impl Drop for NamedFile {
    /// Removes the name, if it is still that of this file.
    fn drop(&mut self) {
        if is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path); // If refused, a later sweep finds it.
        }
    }
}

/// Opens the ring at `path` for reading, if it is one. Returns the file and its size in bytes.
pub(super) fn open(path: &Path) -> Result<(File, u64), NamedError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let id = id_of(name).ok_or(NamedError::Fault(NamedFault::Name))?;
    let file = open_checked(path, false)?;
    let bytes = file.metadata().map_err(NamedError::Os)?.len();
    let is_size = |class: &u32| HEAD_BYTES + u64::from(*class) == bytes;
    if !DOOR_RING_BYTES.iter().any(is_size) {
        return Err(NamedError::Fault(NamedFault::Size { bytes }));
    }
    check_head(&file, id)?;
    assert!(bytes > HEAD_BYTES); // One of the sizes above.
    Ok((file, bytes))
}

/// Opens the file at `path` if it is a plain file that belongs to this user alone. It never blocks,
/// as the open of a pipe would, and follows no link.
fn open_checked(path: &Path, for_writing: bool) -> Result<File, NamedError> {
    let opened = OpenOptions::new()
        .read(true)
        .write(for_writing)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => NamedError::Fault(NamedFault::Link),
        Some(libc::ENXIO | libc::EISDIR | libc::ENODEV) => NamedError::Fault(NamedFault::Kind),
        _ => NamedError::Os(error),
    })?;
    check(&file.metadata().map_err(NamedError::Os)?).map_err(NamedError::Fault)?;
    Ok(file)
}

fn check(metadata: &Metadata) -> Result<(), NamedFault> {
    // SAFETY: takes no arguments, and cannot fail.
    let user = unsafe { libc::geteuid() };
    let (mode, names_count) = (metadata.mode() & 0o7777, metadata.nlink());
    if !metadata.is_file() {
        return Err(NamedFault::Kind);
    }
    if metadata.uid() != user {
        return Err(NamedFault::Owner { uid: metadata.uid() });
    }
    if mode != MODE {
        return Err(NamedFault::Mode { mode });
    }
    if names_count != 1 {
        return Err(NamedFault::Names { count: names_count });
    }
    Ok(())
}

fn head(id: ExecutionId) -> [u8; HEAD_WORDS * 8] {
    let epoch = id.to_bits();
    let mut bytes = [0; HEAD_WORDS * 8];
    let words = [MAGIC, VERSION, epoch as u64, (epoch >> 64) as u64];
    for (place, word) in bytes.chunks_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Checks the head with a read, and not through a mapping, because the file may have been
/// truncated.
fn check_head(file: &File, id: ExecutionId) -> Result<(), NamedError> {
    let mut found = [0; HEAD_WORDS * 8];
    match file.read_exact_at(&mut found, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(NamedError::Fault(NamedFault::Head));
        }
        Err(error) => return Err(NamedError::Os(error)),
    }
    let expected = head(id);
    match (found[..16] == expected[..16], found[16..] == expected[16..]) {
        (true, true) => Ok(()),
        (false, _) => Err(NamedError::Fault(NamedFault::Head)),
        (true, false) => Err(NamedError::Fault(NamedFault::Epoch)),
    }
}

/// The state of a file that was found.
#[derive(Debug)]
pub enum Verdict {
    /// Its owner lives, or another process holds the lock.
    Held,
    /// Its owner is gone, and the file was removed.
    Removed {
        /// Size that it had, in bytes.
        bytes: u64,
    },
    /// Its owner is gone. The file was left in place, as requested.
    Stale {
        /// Size of the file, in bytes.
        bytes: u64,
    },
    /// It is not a named ring of ours, despite its name. It was not touched.
    Foreign(NamedError),
}

/// Examines all files in `folder` that have the name of a named ring. If `removes` is true, it
/// removes those of ours whose owner is gone.
///
/// # Errors
/// If the folder cannot be read.
pub fn sweep(folder: &Path, removes: bool) -> io::Result<Vec<(String, Verdict)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(crate::limits::NAMED_FILES_MAX) {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let verdict = match look(&folder.join(name), id_of(name), removes) {
            Ok(verdict) => verdict,
            // It was removed meanwhile.
            Err(NamedError::Os(error)) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(NamedError::Fault(NamedFault::Names { count: 0 })) => continue,
            Err(error) => Verdict::Foreign(error),
        };
        found.push((name.to_owned(), verdict));
    }
    assert!(found.len() <= crate::limits::NAMED_FILES_MAX);
    found.sort_by(|(name, _), (other, _)| name.cmp(other));
    Ok(found)
}

fn look(path: &Path, id: Option<ExecutionId>, removes: bool) -> Result<Verdict, NamedError> {
    let id = id.ok_or(NamedError::Fault(NamedFault::Name))?;
    let file = open_checked(path, true)?;
    if is_held(&file).map_err(NamedError::Os)? {
        return Ok(Verdict::Held);
    }
    // From here on no process makes a ring of it.
    if removes && !(lock(&file).map_err(NamedError::Os)? && is_at(&file, path)) {
        return Ok(Verdict::Held);
    }
    let bytes = file.metadata().map_err(NamedError::Os)?.len();
    // An empty one is from a process that died between its creation and the write of its head.
    if bytes > 0 {
        check_head(&file, id)?;
    }
    if !removes {
        return Ok(Verdict::Stale { bytes });
    }
    std::fs::remove_file(path).map_err(NamedError::Os)?;
    Ok(Verdict::Removed { bytes })
}

/// True if `path` still refers to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let place = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(own), Ok(found)) => place(own) == place(found),
        _ => false,
    }
}

fn has_name(file: &File) -> Result<bool, NamedError> {
    Ok(file.metadata().map_err(NamedError::Os)?.nlink() > 0)
}

/// Locks the whole file until it is closed or its owner has died. Returns `false` if another
/// process holds the lock.
fn lock(file: &File) -> io::Result<bool> {
    match lock_call(file, libc::F_OFD_SETLK) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// True if another process has locked the file. It does not change the lock.
pub(super) fn is_held(file: &File) -> io::Result<bool> {
    lock_call(file, libc::F_OFD_GETLK).map(|found| i32::from(found.l_type) != libc::F_UNLCK)
}

fn lock_call(file: &File, command: i32) -> io::Result<libc::flock> {
    let mut whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: reads and writes `whole`, which lives during the call; the descriptor is open.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut whole) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(whole) }
}

/// Allocates the first `bytes` bytes.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    assert!(bytes > HEAD_BYTES);
    loop {
        // SAFETY: takes numbers only; the descriptor is open.
        let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as i64) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
