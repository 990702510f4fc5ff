//! Limits of files: what the reactor reads, writes and syncs without waiting.

use std::time::Duration;

use super::URING_SUBMISSIONS;

/// The alignment of buffers for a disk, and of their sizes. Writes past the page cache need it.
pub const DISK_PAGE_BYTES: usize = 4 << 10;
/// Bytes of a file's name.
pub const DISK_NAME_BYTES_MAX: usize = 64;
/// Files of a directory that is listed. A longer list is an error.
pub const DISK_NAMES_MAX: usize = 1 << 16;
/// Maximum of the operations that are in flight on the disk of one reactor.
pub const DISK_OPERATIONS_MAX: u32 = 128;
/// Maximum of the files that are open on the disk of one reactor. Each takes up to two descriptors.
pub const DISK_FILES_MAX: u32 = 256;
/// Threads of the mio backend that sync. Syncs of this many files do not wait for each other.
pub const DISK_SYNC_THREADS: usize = 2;
/// Threads that open, make, rename and remove files. A file that is being filled with zeros does
/// not hold up the opening of another.
pub const DISK_KEEPER_THREADS: usize = 2;
/// Stack of a thread that serves a disk. Its largest buffers are on the heap.
pub const DISK_THREAD_STACK_BYTES: usize = 256 << 10;
/// Attempts of one read or write that the kernel interrupts without moving a byte.
pub const DISK_ATTEMPTS_MAX: u32 = 64;
/// Longest time for which a dropped reactor over io_uring waits for its disk. After it, the memory
/// of what is in flight is leaked.
pub const DISK_DROP_WAIT: Duration = Duration::from_secs(60);

const _: () = {
    assert!(DISK_PAGE_BYTES.is_power_of_two());
    assert!(DISK_OPERATIONS_MAX < 1 << 24); // The name of an operation has 24 bits of index.
    assert!(2 * DISK_OPERATIONS_MAX <= URING_SUBMISSIONS); // A write and its sync are two entries.
    assert!(DISK_SYNC_THREADS >= 2);
};
