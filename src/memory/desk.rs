//! Where a shard leaves word for one reader on another thread of this process, and the reader for
//! its shard; and a flag for word that needs no text.
//!
//! - `desk:detached`: the reason is stored, then the epoch moves; a reader that sees the epoch sees
//!   the reason. The epoch is what a sleeping reader waits on, beside the head of its ring.
//!
//! Tests: `shard/reader_tests.rs`, by way of their users.

use super::atomic::{AtomicU32, AtomicU64, Ordering, load_acquire};
use super::futex;

/// Between a shard and one reader.
#[derive(Default)]
#[repr(align(128))]
pub struct Desk {
    /// 0: attached.
    detached: AtomicU64,
    epoch: AtomicU64,
    left: AtomicU32,
}

impl Desk {
    /// Attached, and nothing to say.
    pub fn new() -> Desk {
        Desk::default()
    }

    /// The shard lets the reader go, for a reason that is not 0. The reader sees it when it looks.
    pub fn detach(&self, reason: u32) {
        assert!(reason != 0);
        self.detached.store(u64::from(reason), Ordering::Release); // desk:detached
        self.knock();
    }

    /// The shard has written something that the reader should look at. If readers sleep, which is
    /// to be asked after one full fence, [`Desk::wake`] has to follow.
    pub fn knock(&self) {
        let next = self.epoch.load(Ordering::Relaxed).wrapping_add(1);
        self.epoch.store(next, Ordering::Release); // desk:detached
    }

    /// Ends the sleep of a reader that was knocked for.
    pub fn wake(&self) {
        futex::wake_all(&self.epoch);
    }

    /// Why the reader was let go; 0 if it was not.
    #[inline]
    pub fn detached(&self) -> u32 {
        load_acquire(&self.detached) as u32 // desk:detached
    }

    /// Moves when the shard has knocked.
    #[inline]
    pub fn epoch(&self) -> u64 {
        load_acquire(&self.epoch) // desk:detached
    }

    /// The word to sleep on.
    pub fn epoch_word(&self) -> &AtomicU64 {
        &self.epoch
    }

    /// The reader is gone.
    pub fn leave(&self) {
        self.left.store(1, Ordering::Release);
    }

    /// Is the reader gone?
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) != 0
    }
}

/// Something has happened; look. Set by anybody, taken by one.
#[derive(Default)]
pub struct Flag(AtomicU32);

impl Flag {
    /// Sets it.
    #[inline]
    pub fn set(&self) {
        self.0.store(1, Ordering::Release);
    }

    /// Was it set since the last time?
    #[inline]
    pub fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Acquire) != 0
    }
}
