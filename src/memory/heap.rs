//! The settings of glibc's allocator, for a program that is a server. A library leaves them alone.

/// Lets all threads allocate from one heap.
///
/// Each thread has a heap of its own by default. Such a heap grows page by page, with a system call
/// for each. The one heap of the process grows in steps of 128 KiB.
///
/// Call it before other threads begin. It is for a process with one shard: two that allocate at the
/// same time wait for each other.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: any number of heaps is allowed. It is changed under the lock of the first heap. A
    // thread that asks for a heap meanwhile gets one of its own or the first one.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

/// Returns freed memory to the kernel: what only the start of a program needed.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it frees nothing that is in use, and may be called at any time.
    unsafe {
        libc::malloc_trim(0)
    };
}
