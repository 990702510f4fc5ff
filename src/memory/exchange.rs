//! State of one execution that the threads of this process share, beside its ring.
//!
//! The words have lines of their own: the number of sleeping readers, whether the producer may
//! still write, and whether it is writing. They replace a lock between a tool's thread and its
//! shard. A write costs two fences and never waits.
//!
//! - `exchange:close`: the writer stores that it writes, passes a full fence, then loads the closed
//!   word. The shard stores that the ring is closed, passes a full fence, then loads the writing
//!   word. Therefore the writer sees the end or the shard sees the writer. The head that the shard
//!   reads after the writer has finished is the last one.
//! - `exchange:sleep`: a reader counts itself as asleep, passes a full fence, then looks once more
//!   for a chunk. The publisher passes a full fence, then looks for sleepers.
//! - `exchange:reactor-sleep`: the same for readers that sleep in a reactor, each with a flag of
//!   its own. The side that takes the flag decrements the count. A reader is thus woken once for
//!   each sleep, and costs nothing until it sleeps again.
//! - `exchange:gated`: a shard that sees the writer wait sees the chunks that it wrote before.
//!
//! Tests: below; `loom_tests.rs` for both handshakes.

use super::atomic::{AtomicU32, AtomicU64, Ordering, full_fence};
use super::reader_signals::Flag;

/// A word with a pair of cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct PaddedWord(AtomicU32);

/// The two counts of sleeping readers: those on a futex in the lower half, and those in a reactor
/// in the upper one. A publisher loads both at once, because most find nobody.
#[repr(align(128))]
#[derive(Default)]
struct Sleepers(AtomicU64);

/// One reader on a futex.
const ON_FUTEX: u64 = 1;
/// One reader in a reactor.
const IN_REACTOR: u64 = 1 << 32;

/// The readers that slept when a publisher looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asleep(u64);

impl Asleep {
    /// True if no reader slept.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// True if any reader slept on a futex.
    #[inline]
    pub fn is_on_futex(self) -> bool {
        self.0 & (IN_REACTOR - 1) != 0
    }

    /// True if any reader slept in a reactor.
    #[inline]
    pub fn is_in_reactor(self) -> bool {
        self.0 >= IN_REACTOR
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<PaddedWord>() == 128); // The words of two sides share no pair of lines.
    assert!(size_of::<Sleepers>() == 128);
    assert!(size_of::<Exchange>() == 4 * 128);
};

/// The shared words of one execution.
#[derive(Default)]
pub struct Exchange {
    sleepers: Sleepers,
    closed: PaddedWord,
    writing: PaddedWord,
    gated: PaddedWord,
}

/// The error of a write to a closed ring, which accepts nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl Exchange {
    /// Creates the initial state: open, with no sleeper and no writer.
    pub fn new() -> Exchange {
        Exchange::default()
    }

    /// Marks the start of a write by the producer.
    ///
    /// # Errors
    /// [`Closed`] if the ring is closed.
    #[inline]
    pub fn begin_write(&self) -> Result<(), Closed> {
        self.writing.0.store(1, Ordering::Relaxed);
        full_fence(); // exchange:close
        if self.is_closed() {
            self.end_write();
            return Err(Closed);
        }
        Ok(())
    }

    /// Marks the end of a write by the producer.
    #[inline]
    pub fn end_write(&self) {
        self.writing.0.store(0, Ordering::Release); // exchange:close
    }

    /// Closes the ring, so that no further write begins. The head is final once
    /// [`Exchange::is_quiet`] returns true.
    pub fn close(&self) {
        self.closed.0.store(1, Ordering::Relaxed);
        full_fence(); // exchange:close
    }

    /// True if the producer is not in the middle of a write.
    pub fn is_quiet(&self) -> bool {
        self.writing.0.load(Ordering::Acquire) == 0 // exchange:close
    }

    /// True if the producer may not write any more.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.0.load(Ordering::Relaxed) != 0
    }

    /// Counts a reader as asleep. The caller has to look once more for its chunk before it sleeps.
    pub fn fall_asleep(&self) {
        let before = Asleep(self.sleepers.0.fetch_add(ON_FUTEX, Ordering::Relaxed));
        assert!(before.0 as u32 != u32::MAX);
        full_fence(); // exchange:sleep
    }

    /// Counts a reader as awake again.
    pub fn wake_up(&self) {
        let before = Asleep(self.sleepers.0.fetch_sub(ON_FUTEX, Ordering::Relaxed));
        assert!(before.is_on_futex()); // It was counted as asleep.
    }

    /// The readers that have to be woken. Call it after a publish and one full fence.
    #[inline]
    pub fn asleep(&self) -> Asleep {
        Asleep(self.sleepers.0.load(Ordering::Relaxed)) // exchange:sleep, exchange:reactor-sleep
    }

    /// Marks a reader as asleep in a reactor. The caller has to look once more for its chunk before
    /// it sleeps.
    pub fn sleep_in_reactor(&self, reactor_sleep: &Flag) {
        let before = self.sleepers.0.fetch_add(IN_REACTOR, Ordering::Relaxed);
        assert!(before < u64::MAX - IN_REACTOR);
        reactor_sleep.set();
        full_fence(); // exchange:reactor-sleep
    }

    /// Ends a sleep in a reactor. The reader and its waker may both call this. Returns `true` for
    /// the call that ended the sleep; the waker then has to wake the reader's reactor.
    pub fn end_reactor_sleep(&self, reactor_sleep: &Flag) -> bool {
        let is_first = reactor_sleep.take();
        if is_first {
            let before = Asleep(self.sleepers.0.fetch_sub(IN_REACTOR, Ordering::Relaxed));
            assert!(before.is_in_reactor()); // It was counted before its flag was set.
        }
        is_first
    }

    /// Stores whether the producer waits for the gate to move. After `true` the caller has to look
    /// at the gate once more.
    pub fn set_gated(&self, is_gated: bool) {
        self.gated.0.store(u32::from(is_gated), Ordering::Release); // exchange:gated
        full_fence();
    }

    /// True if the producer waits for the gate to move. The caller then sees all chunks of the
    /// producer.
    #[inline]
    pub fn is_gated(&self) -> bool {
        self.gated.0.load(Ordering::Acquire) != 0 // exchange:gated
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn after_the_close_nobody_begins_to_write() {
        let exchange = Exchange::new();
        exchange.begin_write().unwrap();
        exchange.close();
        assert!(!exchange.is_quiet());
        exchange.end_write();
        assert!(exchange.is_quiet());
        assert_eq!(exchange.begin_write(), Err(Closed));
        assert!(exchange.is_quiet());
    }

    #[test]
    fn a_reader_in_a_reactor_is_woken_once() {
        let (exchange, reactor_sleep) = (Exchange::new(), Flag::default());
        assert!(!exchange.end_reactor_sleep(&reactor_sleep) && exchange.asleep().is_none());
        exchange.sleep_in_reactor(&reactor_sleep);
        assert!(exchange.asleep().is_in_reactor() && !exchange.asleep().is_on_futex());
        exchange.fall_asleep();
        assert!(exchange.asleep().is_in_reactor() && exchange.asleep().is_on_futex());
        exchange.wake_up();
        assert!(exchange.end_reactor_sleep(&reactor_sleep));
        assert!(!exchange.end_reactor_sleep(&reactor_sleep) && exchange.asleep().is_none());
    }
}
