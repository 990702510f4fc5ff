//! Where a shard leaves word for one reader on another thread of this process, and the reader for
//! its shard; and a flag for word that needs no text.
//!
//! - `desk:detached`: the reason is stored, then the epoch moves; a reader that sees the epoch sees
//!   the reason. The epoch is what a sleeping reader waits on, beside the head of its ring.
//! - `desk:acked`: the same, of the last chunk that the reader's client has acknowledged.
//! - `desk:left`: what the reader has shown of its cursor is shown before it leaves.
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
    acked_seq: AtomicU64,
    left: AtomicU32,
    dozes: Flag,
}

/// A reader is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It wants no more.
    Done,
    /// Its connection broke: it may come back.
    Lost,
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

    /// Everything through this chunk was dealt with. [`Desk::knock`] has to follow.
    pub fn acknowledge(&self, seq: u64) {
        self.acked_seq.store(seq, Ordering::Relaxed); // desk:acked
    }

    /// The last chunk that was acknowledged, as far as the reader was knocked for; 0: none.
    pub fn acked_seq(&self) -> u64 {
        self.acked_seq.load(Ordering::Relaxed) // desk:acked
    }

    /// Set while the reader sleeps in a reactor: for `Exchange::doze` and `Exchange::rouse`.
    pub fn dozes(&self) -> &Flag {
        &self.dozes
    }

    /// The reader is gone. Only the first word of that counts.
    pub fn leave(&self, how: Left) {
        let code = match how {
            Left::Done => 1,
            Left::Lost => 2,
        };
        if self.left.load(Ordering::Relaxed) == 0 {
            self.left.store(code, Ordering::Release); // desk:left
        }
    }

    /// Is the reader gone, and how?
    pub fn left(&self) -> Option<Left> {
        match self.left.load(Ordering::Acquire) {
            0 => None, // desk:left
            1 => Some(Left::Done),
            _ => Some(Left::Lost),
        }
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

    /// Is it set? Who asks leaves it so.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Was it set since the last time?
    #[inline]
    pub fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Acquire) != 0
    }
}
