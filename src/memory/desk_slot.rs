//! What a [`Desk`](super::Desk) is to a reader on another thread, to one in another process: a few
//! words behind the control page of its execution, where the server leaves word for it alone.
//!
//! Written by the server only ([`DeskSlot`]); the reader looks ([`DeskView`]). What the reader
//! tells stands in its own page.
//!
//! - `desk:detached`: the reason is stored, then the epoch moves; a reader that sees the epoch sees
//!   the reason. The epoch is what a sleeping reader waits on, beside the head of its ring.
//!
//! Tests: `shared_tests.rs`.

use super::atomic::{AtomicU64, Ordering, load_acquire};
use super::futex;
use super::segment::Segment;

const EPOCH: usize = 0;
const DETACHED: usize = 1;
/// A pair of cache lines: nobody else's words are near.
pub(super) const SLOT_WORDS: usize = 16;

/// The server's side of one reader's slot.
pub struct DeskSlot {
    segment: Segment,
}

/// The reader's side.
#[derive(Clone)]
pub struct DeskView {
    segment: Segment,
}

impl DeskSlot {
    /// All of `segment`, for a reader that comes now: it is attached.
    pub(super) fn take(segment: Segment) -> DeskSlot {
        let slot = DeskSlot { segment };
        slot.segment.word(DETACHED).store(0, Ordering::Release);
        slot.knock();
        slot
    }

    /// The server lets the reader go, for a reason that is not 0.
    pub fn detach(&self, reason: u32) {
        assert!(reason != 0);
        let detached = self.segment.word(DETACHED);
        detached.store(u64::from(reason), Ordering::Release); // desk:detached
        self.knock();
    }

    /// The server has written something that the reader should look at. If the reader sleeps, which
    /// is to be asked after one full fence, [`DeskSlot::wake`] has to follow.
    pub fn knock(&self) {
        let epoch = self.segment.word(EPOCH);
        let next = epoch.load(Ordering::Relaxed).wrapping_add(1);
        epoch.store(next, Ordering::Release); // desk:detached
    }

    /// Ends the sleep of a reader that was knocked for.
    pub fn wake(&self) {
        futex::wake_all(self.segment.word(EPOCH));
    }
}

impl DeskView {
    pub(super) fn at(segment: Segment) -> DeskView {
        DeskView { segment }
    }

    /// Why the reader was let go; 0 if it was not.
    #[inline]
    pub fn detached(&self) -> u32 {
        load_acquire(self.segment.word(DETACHED)) as u32 // desk:detached
    }

    /// Moves when the server has knocked.
    #[inline]
    pub fn epoch(&self) -> u64 {
        load_acquire(self.segment.word(EPOCH)) // desk:detached
    }

    /// The word to sleep on.
    pub fn epoch_word(&self) -> &AtomicU64 {
        self.segment.word(EPOCH)
    }
}
