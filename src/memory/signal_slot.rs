//! The server's messages for one reader in another process: a few words behind the control page of
//! its execution. A slot is for such a reader what a [`ReaderSignals`](super::ReaderSignals) is for
//! one on another thread.
//!
//! Only the server writes ([`SignalSlot`]); the reader looks ([`SignalView`]). The reader's own
//! messages are in its own page.
//!
//! - `signals:detached`: the reason is stored, then the epoch moves. A reader that sees the epoch
//!   sees the reason. A sleeping reader waits on the epoch, beside the head of its ring.
//!
//! Tests: `shared_tests.rs`.

use super::atomic::{AtomicU64, Ordering, load_acquire};
use super::futex;
use super::layout::assert_ascending;
use super::segment::Segment;

const EPOCH: usize = 0;
const DETACHED: usize = 1;
/// Number of words of one slot: a pair of cache lines, so that no other word is near.
pub(super) const SLOT_WORDS: usize = 16;

const _: () = {
    assert_ascending(&[EPOCH, DETACHED, SLOT_WORDS]);
    assert!((SLOT_WORDS * 8).is_multiple_of(128)); // The slots of two readers share no line.
};

/// The server's side of one reader's slot.
pub struct SignalSlot {
    segment: Segment,
}

/// The reader's side of its slot.
#[derive(Clone)]
pub struct SignalView {
    segment: Segment,
}

impl SignalSlot {
    /// Makes a slot of all of `segment`, for a new reader. It is attached.
    pub(super) fn take(segment: Segment) -> SignalSlot {
        assert!(segment.bytes() == SLOT_WORDS * 8);
        let slot = SignalSlot { segment };
        slot.segment.word(DETACHED).store(0, Ordering::Release);
        slot.knock();
        slot
    }

    /// Detaches the reader, for a reason that is not 0.
    pub fn detach(&self, reason: u32) {
        assert!(reason != 0);
        let detached = self.segment.word(DETACHED);
        detached.store(u64::from(reason), Ordering::Release); // signals:detached
        self.knock();
    }

    /// Announces that the server has written something for the reader. If the reader sleeps
    /// (checked after one full fence), [`SignalSlot::wake`] has to follow.
    pub fn knock(&self) {
        let epoch = self.segment.word(EPOCH);
        let next = epoch.load(Ordering::Relaxed).wrapping_add(1);
        epoch.store(next, Ordering::Release); // signals:detached
    }

    /// Ends the sleep of the reader after [`SignalSlot::knock`].
    pub fn wake(&self) {
        futex::wake_all(self.segment.word(EPOCH));
    }
}

impl SignalView {
    pub(super) fn at(segment: Segment) -> SignalView {
        assert!(segment.bytes() == SLOT_WORDS * 8);
        SignalView { segment }
    }

    /// The reason why the reader was detached; 0 if it was not.
    #[inline]
    pub fn detached(&self) -> u32 {
        load_acquire(self.segment.word(DETACHED)) as u32 // signals:detached
    }

    /// The epoch, which changes with each [`SignalSlot::knock`].
    #[inline]
    pub fn epoch(&self) -> u64 {
        load_acquire(self.segment.word(EPOCH)) // signals:detached
    }

    /// The word of the epoch, on which the reader sleeps.
    pub fn epoch_word(&self) -> &AtomicU64 {
        self.segment.word(EPOCH)
    }
}
