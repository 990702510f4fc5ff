//! Claims a directory for one process: it is made if it does not exist, checked, and locked.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::FileSystem;

/// A directory that no other process can claim until this is dropped.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
}

/// The name of the file whose lock is the claim.
pub const LOCK_FILE: &str = ".lock";

/// Claims a directory. Its parent is made too if it does not exist; both are for this user alone.
///
/// # Errors
/// The kernel's error, or a text. The directory may be another user's, open to others, on a network
/// file system, or used by another process. It may be no directory.
pub fn claim_directory(path: &Path) -> io::Result<(OwnedFd, Claim)> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make(parent)?;
    }
    make(path)?;
    let directory = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)?;
    check(&directory)?;
    FileSystem::of(&directory)?.refuse_network()?;
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path.join(LOCK_FILE))?;
    match lock.try_lock() {
        Ok(()) => Ok((directory.into(), Claim { _lock: lock })),
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process uses the directory"))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn check(directory: &File) -> io::Result<()> {
    let metadata = directory.metadata()?;
    let refuse = |text: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    // SAFETY: it has no arguments, and cannot fail.
    if metadata.uid() != unsafe { libc::geteuid() } {
        return refuse("the directory belongs to another user");
    }
    if metadata.mode() & 0o077 != 0 {
        return refuse("the directory is open to other users; allow only its owner (chmod 700)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("streamdoor-claim-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
        }
    }

    #[test]
    fn a_directory_is_made_and_is_claimed_once() {
        let folder = Folder::new("once");
        let path = folder.0.join("a").join("b");
        let claimed = claim_directory(&path).unwrap();
        for path in [&path, path.parent().unwrap()] {
            assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o700);
        }
        let error = claim_directory(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        drop(claimed);
        claim_directory(&path).unwrap();
    }

    #[test]
    fn what_others_may_touch_is_refused() {
        let folder = Folder::new("others");
        let path = folder.0.join("open");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(claim_directory(&path).unwrap_err().to_string().contains("chmod 700"));
        let link = folder.0.join("link");
        symlink(&path, &link).unwrap();
        claim_directory(&link).unwrap_err();
        let file = folder.0.join("file");
        std::fs::write(&file, b"").unwrap();
        claim_directory(&file).unwrap_err();
        claim_directory(&file.join("below")).unwrap_err();
    }
}
