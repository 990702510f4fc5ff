//! What the threads of this process tell each other about one execution, beside its ring.
//!
//! Words on lines of their own: how many readers sleep, whether the producer may still write, and
//! whether it is writing. They replace a lock between a tool's thread and its shard:
//! writing costs two fences, never a wait.
//!
//! - `exchange:close`: the writer says that it writes, passes a full fence, then looks whether it
//!   may; the shard says that it may not, passes a full fence, then looks whether it does. So
//!   either the writer sees the end or the shard sees the writer, and the head that the shard reads
//!   once nobody writes is the last one.
//! - `exchange:sleep`: a reader counts itself as asleep, passes a full fence, then looks once more
//!   for a chunk; who publishes passes a full fence, then looks for sleepers.
//! - `exchange:doze`: the same for readers that sleep in a reactor, each with a flag of its own
//!   besides: whoever takes the flag counts the reader off, so that it is woken once for each sleep
//!   and nothing is paid while it has not fallen asleep again.
//! - `exchange:gated`: a shard that sees the writer wait sees the chunks that it wrote before.
//!
//! Tests: below; `loom_tests.rs` for both handshakes.

use super::atomic::{AtomicU32, Ordering, full_fence};
use super::desk::Flag;

/// A word on a pair of cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU32);

/// Both are looked at together.
#[repr(align(128))]
#[derive(Default)]
struct Sleepers {
    /// On a futex.
    asleep_count: AtomicU32,
    /// In a reactor.
    dozing_count: AtomicU32,
}

/// The words of one execution.
#[derive(Default)]
pub struct Exchange {
    sleepers: Sleepers,
    closed: Line,
    writing: Line,
    gated: Line,
}

/// The ring is closed: nothing more will be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl Exchange {
    /// Nobody sleeps, nobody writes, and whoever wants to may.
    pub fn new() -> Exchange {
        Exchange::default()
    }

    /// The producer begins to write.
    ///
    /// # Errors
    /// [`Closed`] if it may not (any more).
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

    /// The producer has written.
    #[inline]
    pub fn end_write(&self) {
        self.writing.0.store(0, Ordering::Release); // exchange:close
    }

    /// From now on nobody begins to write. Ask [`Exchange::is_quiet`] before the head is final.
    pub fn close(&self) {
        self.closed.0.store(1, Ordering::Relaxed);
        full_fence(); // exchange:close
    }

    /// Has the producer finished what it was writing?
    pub fn is_quiet(&self) -> bool {
        self.writing.0.load(Ordering::Acquire) == 0 // exchange:close
    }

    /// May the producer still write?
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.0.load(Ordering::Relaxed) != 0
    }

    /// A reader is about to sleep; it has to look once more for what it waits for.
    pub fn fall_asleep(&self) {
        self.sleepers.asleep_count.fetch_add(1, Ordering::Relaxed);
        full_fence(); // exchange:sleep
    }

    /// It is awake again.
    pub fn wake_up(&self) {
        self.sleepers.asleep_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Does any reader have to be woken? To be asked after a publish and one full fence.
    #[inline]
    pub fn has_sleepers(&self) -> bool {
        self.sleepers.asleep_count.load(Ordering::Relaxed) != 0 // exchange:sleep
    }

    /// A reader is about to sleep in a reactor; it has to look once more for what it waits for.
    pub fn doze(&self, dozes: &Flag) {
        self.sleepers.dozing_count.fetch_add(1, Ordering::Relaxed);
        dozes.set();
        full_fence(); // exchange:doze
    }

    /// Ends a sleep in a reactor, by whoever comes first: the reader, or who has something for it.
    /// `true`: by this call. Then, if the reader sleeps, its reactor has to be woken.
    pub fn rouse(&self, dozes: &Flag) -> bool {
        let is_first = dozes.take();
        if is_first {
            self.sleepers.dozing_count.fetch_sub(1, Ordering::Relaxed);
        }
        is_first
    }

    /// Does any reader sleep in a reactor? To be asked as [`Exchange::has_sleepers`] is.
    #[inline]
    pub fn has_dozers(&self) -> bool {
        self.sleepers.dozing_count.load(Ordering::Relaxed) != 0 // exchange:doze
    }

    /// The producer waits for the gate to move, or waits no more. After `true` it has to look at
    /// the gate once more.
    pub fn set_gated(&self, is_gated: bool) {
        self.gated.0.store(u32::from(is_gated), Ordering::Release); // exchange:gated
        full_fence();
    }

    /// True if the producer waits for the gate to move. The caller then sees all its chunks.
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
    fn who_dozes_is_roused_once() {
        let (exchange, dozes) = (Exchange::new(), Flag::default());
        assert!(!exchange.rouse(&dozes) && !exchange.has_dozers());
        exchange.doze(&dozes);
        assert!(exchange.has_dozers() && !exchange.has_sleepers());
        assert!(exchange.rouse(&dozes));
        assert!(!exchange.rouse(&dozes) && !exchange.has_dozers());
    }
}
