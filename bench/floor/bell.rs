//! What readers of a bare ring sleep on: a futex, and a count of those who sleep.
//!
//! Who is about to sleep says so in the count, looks once more, and sleeps on the head; the writer
//! stores the head and wakes if somebody sleeps. Each has a fence between its store and its look:
//! one of both sees the other.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The two words, each in a line of its own, of one process or of memory that several have.
pub struct Bell<'a> {
    /// Of what was written, for those who sleep: another number each time.
    pub head: &'a AtomicU64,
    /// How many do, or are about to.
    pub asleep: &'a AtomicU64,
    /// Whether all of them are in one process: the kernel then finds them sooner.
    pub is_private: bool,
}

const _: () = assert!(cfg!(target_endian = "little"));

impl Bell<'_> {
    /// Everything until `head_seq` was written: whoever sleeps looks again.
    #[inline(always)]
    pub fn ring(&self, head_seq: u64) {
        self.head.store(head_seq, Ordering::Release);
        fence(Ordering::SeqCst); // With the one in `sleep_unless`: one of both sees the other.
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    /// Sleeps until the bell rings, or for no reason, unless there is news already.
    pub fn sleep_unless(&self, is_news: impl FnOnce() -> bool) {
        self.asleep.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // With the one in `ring`.
        let seen = self.head.load(Ordering::Acquire);
        if !is_news() {
            self.sleep(seen);
        }
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }

    fn wake(&self) {
        let (operation, everybody) = (self.operation(libc::FUTEX_WAKE), i32::MAX);
        // SAFETY: the address is a key only.
        unsafe { libc::syscall(libc::SYS_futex, self.word(), operation, everybody) };
    }

    fn sleep(&self, seen: u64) {
        let operation = self.operation(libc::FUTEX_WAIT);
        let for_ever = std::ptr::null::<libc::timespec>();
        // SAFETY: an aligned word that outlives the call is compared, and nothing written.
        unsafe { libc::syscall(libc::SYS_futex, self.word(), operation, seen as u32, for_ever) };
    }

    /// The half of the head that the kernel compares.
    fn word(&self) -> *const AtomicU32 {
        (&raw const *self.head).cast() // The low one: little end first.
    }

    fn operation(&self, operation: i32) -> i32 {
        operation | if self.is_private { libc::FUTEX_PRIVATE_FLAG } else { 0 }
    }
}
