//! The futex on which readers of a bare ring sleep, and a count of the sleeping readers.
//!
//! Before a reader sleeps, it increments the count, checks once more, and sleeps on the head. The
//! writer stores the head, and wakes the readers if the count is not 0. Each side has a fence
//! between its store and its check, so at least one of them sees the other.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The two words, each in a cache line of its own, in one process or in shared memory.
pub struct Bell<'a> {
    /// The head of the ring, on which readers sleep. Each write changes it.
    pub head: &'a AtomicU64,
    /// Number of readers that sleep or are about to.
    pub asleep: &'a AtomicU64,
    /// True if all of them are in one process. The kernel then finds them faster.
    pub is_private: bool,
}

const _: () = assert!(cfg!(target_endian = "little"));

impl Bell<'_> {
    /// Publishes that everything up to `head_seq` was written, and wakes sleeping readers.
    #[inline(always)]
    pub fn ring(&self, head_seq: u64) {
        self.head.store(head_seq, Ordering::Release);
        fence(Ordering::SeqCst); // Pairs with the one in `sleep_unless`: one side sees the other.
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    /// Sleeps until the bell rings, unless `is_news` returns true. May wake spuriously.
    pub fn sleep_unless(&self, is_news: impl FnOnce() -> bool) {
        self.asleep.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // Pairs with the one in `ring`.
        let seen = self.head.load(Ordering::Acquire);
        if !is_news() {
            self.sleep(seen);
        }
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }

    fn wake(&self) {
        let (operation, everybody) = (self.operation(libc::FUTEX_WAKE), i32::MAX);
        // SAFETY: the address is only a key.
        unsafe { libc::syscall(libc::SYS_futex, self.word(), operation, everybody) };
    }

    fn sleep(&self, seen: u64) {
        let operation = self.operation(libc::FUTEX_WAIT);
        let for_ever = std::ptr::null::<libc::timespec>();
        // SAFETY: an aligned word that outlives the call is compared, and nothing is written.
        unsafe { libc::syscall(libc::SYS_futex, self.word(), operation, seen as u32, for_ever) };
    }

    /// Returns the half of the head that the kernel compares.
    fn word(&self) -> *const AtomicU32 {
        (&raw const *self.head).cast() // The low half: little end first.
    }

    fn operation(&self, operation: i32) -> i32 {
        operation | if self.is_private { libc::FUTEX_PRIVATE_FLAG } else { 0 }
    }
}
