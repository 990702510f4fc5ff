//! Messages between a shard and one reader on another thread of this process, and a flag for
//! messages without content.
//!
//! - `signals:detached`: the reason is stored, then the epoch moves. A reader that sees the epoch
//!   sees the reason. A sleeping reader waits on the epoch, beside the head of its ring.
//! - `signals:acked`: the same, for the last chunk that the reader's client has acknowledged.
//! - `signals:left`: the reader stores its cursor before it leaves.
//!
//! Tests: `shard/tests.rs` and the simulator, by way of their users.

use super::atomic::{AtomicU32, AtomicU64, Ordering, load_acquire};
use super::futex;

/// The messages between a shard and one reader.
#[derive(Default)]
#[repr(align(128))]
pub struct ReaderSignals {
    /// The reason of the detachment; 0 while the reader is attached.
    detached: AtomicU64,
    epoch: AtomicU64,
    acked_seq: AtomicU64,
    left: AtomicU32,
    reactor_sleep: Flag,
}

/// The way in which a reader left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveReason {
    /// The reader wants no more.
    Done,
    /// The connection of the reader broke, and the reader may come back.
    Lost,
}

// A pair of cache lines, and no other word near.
#[cfg(not(loom))]
const _: () = assert!(size_of::<ReaderSignals>() == 128);

impl ReaderSignals {
    /// Creates the state of an attached reader, without a message.
    pub fn new() -> ReaderSignals {
        ReaderSignals::default()
    }

    /// Detaches the reader, for a reason that is not 0. The reader sees it at its next look.
    pub fn detach(&self, reason: u32) {
        assert!(reason != 0);
        self.detached.store(u64::from(reason), Ordering::Release); // signals:detached
        self.knock();
    }

    /// Announces that the shard has written something for the reader. If readers sleep (checked
    /// after one full fence), [`ReaderSignals::wake`] has to follow.
    pub fn knock(&self) {
        let next = self.epoch.load(Ordering::Relaxed).wrapping_add(1);
        self.epoch.store(next, Ordering::Release); // signals:detached
    }

    /// Ends the sleep of the reader after [`ReaderSignals::knock`].
    pub fn wake(&self) {
        futex::wake_all(&self.epoch);
    }

    /// The reason why the reader was detached; 0 if it was not.
    #[inline]
    pub fn detached(&self) -> u32 {
        let reason = load_acquire(&self.detached); // signals:detached
        assert!(reason <= u64::from(u32::MAX)); // `detach` stores no larger one.
        reason as u32
    }

    /// The epoch, which changes with each [`ReaderSignals::knock`].
    #[inline]
    pub fn epoch(&self) -> u64 {
        load_acquire(&self.epoch) // signals:detached
    }

    /// The word of the epoch, on which the reader sleeps.
    pub fn epoch_word(&self) -> &AtomicU64 {
        &self.epoch
    }

    /// Stores that everything through this chunk was acknowledged. [`ReaderSignals::knock`] has to
    /// follow.
    pub fn acknowledge(&self, seq: u64) {
        assert!(seq >= self.acked_seq.load(Ordering::Relaxed)); // Only the shard stores it.
        self.acked_seq.store(seq, Ordering::Relaxed); // signals:acked
    }

    /// The last acknowledged chunk, as of the last [`ReaderSignals::knock`]; 0 if there is none.
    pub fn acked_seq(&self) -> u64 {
        self.acked_seq.load(Ordering::Relaxed) // signals:acked
    }

    /// The flag that is set while the reader sleeps in a reactor, for `Exchange::sleep_in_reactor`
    /// and `Exchange::end_reactor_sleep`.
    pub fn reactor_sleep(&self) -> &Flag {
        &self.reactor_sleep
    }

    /// Stores that the reader left. Only the first call counts.
    pub fn leave(&self, how: LeaveReason) {
        let code = match how {
            LeaveReason::Done => 1,
            LeaveReason::Lost => 2,
        };
        if self.left.load(Ordering::Relaxed) == 0 {
            self.left.store(code, Ordering::Release); // signals:left
        }
    }

    /// Returns how the reader left; `None` while it is there.
    pub fn left(&self) -> Option<LeaveReason> {
        match self.left.load(Ordering::Acquire) {
            0 => None, // signals:left
            1 => Some(LeaveReason::Done),
            2 => Some(LeaveReason::Lost),
            code => unreachable!("`leave` stores no {code}"),
        }
    }
}

/// A flag that any thread sets and one thread takes, for "look again".
#[derive(Default)]
pub struct Flag(AtomicU32);

impl Flag {
    /// Sets the flag.
    #[inline]
    pub fn set(&self) {
        self.0.store(1, Ordering::Release);
    }

    /// True if the flag is set. It stays set.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Clears the flag and returns whether it was set.
    #[inline]
    pub fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Acquire) != 0
    }
}
