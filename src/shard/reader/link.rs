//! What lies between a subscriber and its shard: the same words in the same process, or in files
//! that two processes share. The reading itself, with its policies, gaps and ends, is one.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use crate::base::{ExecutionId, Instant};
use crate::engine::Exit;
use crate::memory::atomic::AtomicU64;
use crate::memory::{ClockAnchor, ControlView, Desk, Exchange, Left, ReaderPage, RingReader};
use crate::shard::run::Bell;

/// What is wrong with what somebody else wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// What stands in the ring, no writer of ours can have written.
    Ring,
    /// A chunk is of a kind that there is not.
    Kind,
    /// The ring counts chunks that it cannot have had.
    Totals,
    /// The execution ended in a way that there is not.
    Verdict,
    /// The file of a named ring was cut off.
    Lost,
}

impl std::fmt::Display for Flaw {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Flaw::Ring => "the ring holds what no writer can have written",
            Flaw::Kind => "the ring holds a chunk of a kind that there is not",
            Flaw::Totals => "the ring counts chunks that it cannot have had",
            Flaw::Verdict => "the execution ended in a way that there is not",
            Flaw::Lost => "somebody has cut off the file that the ring is in",
        })
    }
}

/// What every subscriber reads from, and where it is read: in this process or in another one.
pub struct Shared {
    /// Of which execution.
    pub id: ExecutionId,
    /// Its ring.
    pub reader: RingReader,
    /// What the shard tells everybody.
    pub control: ControlView,
    /// What the shard is told.
    pub page: ReaderPage,
    /// Turns the times of chunks into wall time.
    pub anchor: ClockAnchor,
}

/// How a subscriber is linked to its shard.
pub trait Link {
    /// What becomes of a [`Flaw`]: nothing, where this process has written everything.
    type Fault: Copy;
    /// Did another process write what is read? Then it is hostile.
    const IS_FOREIGN: bool;

    /// What it has on either side.
    fn shared(&self) -> &Shared;

    /// Moves when the shard has knocked.
    fn epoch(&self) -> u64;
    /// The word of it, to sleep on.
    fn epoch_word(&self) -> &AtomicU64;
    /// Why the shard has let it go; 0 if it has not.
    fn detached(&self) -> u32;
    /// The last chunk that was acknowledged.
    fn acked_seq(&self) -> u64;

    /// It is about to sleep on the head of the ring and on the epoch; then it looks once more.
    fn fall_asleep(&self);
    /// It is awake again.
    fn wake_up(&self);
    /// Until when it sleeps at most before it asks [`Link::is_up`].
    fn sleep_until(&self, deadline: Instant) -> Instant;
    /// Can the shard still be there?
    fn is_up(&self) -> bool;

    /// Makes the shard look where it stands.
    fn ring(&self);
    /// Says that it goes.
    fn leave(&self, how: Left);
    /// How the process ended that the execution has run; once there is a verdict.
    fn exit(&self) -> Option<Exit>;
    /// One flaw was found.
    fn fault(&self, flaw: Flaw) -> Self::Fault;
}

/// In the same process.
pub struct Near {
    pub(in crate::shard) shared: Shared,
    pub(in crate::shard) desk: Arc<Desk>,
    pub(in crate::shard) bell: Arc<Bell>,
    pub(in crate::shard) exchange: Arc<Exchange>,
    pub(in crate::shard) exit: Arc<OnceLock<Exit>>,
}

impl Link for Near {
    type Fault = Infallible;
    const IS_FOREIGN: bool = false;

    #[inline]
    fn shared(&self) -> &Shared {
        &self.shared
    }

    #[inline]
    fn epoch(&self) -> u64 {
        self.desk.epoch()
    }

    fn epoch_word(&self) -> &AtomicU64 {
        self.desk.epoch_word()
    }

    #[inline]
    fn detached(&self) -> u32 {
        self.desk.detached()
    }

    #[inline]
    fn acked_seq(&self) -> u64 {
        self.desk.acked_seq()
    }

    fn fall_asleep(&self) {
        self.exchange.fall_asleep();
    }

    fn wake_up(&self) {
        self.exchange.wake_up();
    }

    fn sleep_until(&self, deadline: Instant) -> Instant {
        deadline
    }

    #[inline]
    fn is_up(&self) -> bool {
        true // It ends with a word at the desk.
    }

    fn ring(&self) {
        self.bell.waker.wake();
    }

    fn leave(&self, how: Left) {
        self.exchange.rouse(self.desk.dozes()); // Nobody is to wake it for anything.
        self.desk.leave(how);
        self.bell.departed.set();
        self.bell.waker.wake();
    }

    fn exit(&self) -> Option<Exit> {
        self.exit.get().copied() // Set before the verdict was.
    }

    #[cold]
    fn fault(&self, flaw: Flaw) -> Infallible {
        unreachable!("{flaw:?}: this process wrote it")
    }
}
