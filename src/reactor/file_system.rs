//! The file system of a directory, and its promise for files that are synced.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// The promise of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// A sync puts bytes on a disk of this machine, in the place that they had before.
    Disk,
    /// The same, but each write gets a new place.
    CopyOnWrite,
    /// A layer over another file system, as of a container.
    Overlay,
    /// Memory. Nothing survives a power cut.
    Memory,
    /// Another machine has the files. Its promise for syncs and locks is unknown here.
    Network,
    /// A program or a host has the files, or the file system is not in the table.
    Unknown,
}

impl FileSystemKind {
    /// True if `RWF_DSYNC` makes a write durable. Other file systems may ignore it.
    pub fn has_durable_writes(self) -> bool {
        use FileSystemKind::{CopyOnWrite, Disk, Overlay};
        matches!(self, Disk | CopyOnWrite | Overlay)
    }
}

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its name; `unknown` if it is not in the table.
    pub name: &'static str,
    /// Its promise.
    pub kind: FileSystemKind,
}

/// File systems by the magic numbers of `linux/magic.h`.
const KNOWN: [(u32, &str, FileSystemKind); 20] = [
    (0x0000_EF53, "ext4", FileSystemKind::Disk), // Also ext2 and ext3.
    (0x5846_5342, "xfs", FileSystemKind::Disk),
    (0xF2F5_2010, "f2fs", FileSystemKind::Disk),
    (0x9123_683E, "btrfs", FileSystemKind::CopyOnWrite),
    (0x794C_7630, "overlayfs", FileSystemKind::Overlay),
    (0x0102_1994, "tmpfs", FileSystemKind::Memory),
    (0x8584_58F6, "ramfs", FileSystemKind::Memory),
    (0x9584_58F6, "hugetlbfs", FileSystemKind::Memory),
    (0x0000_6969, "nfs", FileSystemKind::Network),
    (0x0000_517B, "smb", FileSystemKind::Network),
    (0xFF53_4D42, "cifs", FileSystemKind::Network),
    (0xFE53_4D42, "smb2", FileSystemKind::Network),
    (0x00C3_6400, "ceph", FileSystemKind::Network),
    (0x5346_414F, "afs", FileSystemKind::Network),
    (0x6B41_4653, "afs", FileSystemKind::Network),
    (0x7375_7245, "coda", FileSystemKind::Network),
    (0x0000_564C, "ncp", FileSystemKind::Network),
    (0x7461_636F, "ocfs2", FileSystemKind::Network), // Other machines write to the disk, too.
    (0x0102_1997, "9p", FileSystemKind::Unknown),    // The host of a sandbox, or a network.
    (0x6573_5546, "fuse", FileSystemKind::Unknown),  // A program, which may use a network.
];

impl FileSystem {
    /// The file system of an open file or directory.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(file: impl AsFd) -> io::Result<FileSystem> {
        let file = file.as_fd().as_raw_fd();
        let mut found = MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: the pointer leads to memory for one `statfs`, which the kernel writes.
        if unsafe { libc::fstatfs(file, found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled it, because the call has succeeded.
        let found = unsafe { found.assume_init() };
        Ok(FileSystem::of_magic(found.f_type as u32)) // All numbers have 32 bits.
    }

    fn of_magic(magic: u32) -> FileSystem {
        let known = KNOWN.iter().find(|(number, ..)| *number == magic);
        let unknown = FileSystem { name: "unknown", kind: FileSystemKind::Unknown };
        known.map_or(unknown, |&(_, name, kind)| FileSystem { name, kind })
    }

    /// Refuses a network file system for files that one process owns and syncs.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`], with a text.
    pub fn refuse_network(self) -> io::Result<()> {
        if self.kind != FileSystemKind::Network {
            return Ok(());
        }
        let text = format!(
            "the directory is on a network file system ({}), where a lock and a sync promise too \
             little; choose a directory on a disk of this machine",
            self.name
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn network_file_systems_are_refused_and_others_are_not() {
        for (magic, name, kind) in KNOWN {
            let system = FileSystem::of_magic(magic);
            assert_eq!(system, FileSystem { name, kind });
            let refused = system.refuse_network();
            assert_eq!(refused.is_err(), kind == FileSystemKind::Network, "{name}");
            if let Err(error) = refused {
                assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                assert!(error.to_string().contains(&format!("({name})")), "{error}");
            }
        }
        assert_eq!(FileSystem::of_magic(0x6968).kind, FileSystemKind::Unknown);
    }

    #[test]
    fn the_kernel_tells_the_file_system_of_a_directory() {
        let of = |path: &str| FileSystem::of(File::open(path).unwrap()).unwrap();
        assert_eq!(of("/proc").name, "unknown");
        match std::fs::read_to_string("/proc/mounts") {
            Ok(mounts) if mounts.contains(" /dev/shm tmpfs ") => {
                assert_eq!(of("/dev/shm").kind, FileSystemKind::Memory);
            }
            _ => println!("not run: /dev/shm is no tmpfs"),
        }
    }
}
