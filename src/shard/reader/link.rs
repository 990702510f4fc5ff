//! The link between a subscriber and its shard: words in the memory of one process, or in files
//! that two processes share. The reading itself, with its policies, gaps and ends, is the same for
//! both.

use std::convert::Infallible;
use std::sync::Arc;

use super::refill::Refill;
use crate::base::{ExecutionId, Instant};
use crate::memory::atomic::AtomicU64;
use crate::memory::{
    ClockAnchor, ControlView, Exchange, LeaveReason, ReaderPage, ReaderSignals, RingReader,
};
use crate::shard::delivery::exit_of_code;
use crate::shard::run::ShardSignals;
use crate::stream::Exit;

/// A fault in data that another process wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The ring contains something that no writer of ours can have written.
    Ring,
    /// A chunk has an unknown kind.
    Kind,
    /// The ring counts chunks that it cannot have had.
    Totals,
    /// The execution has an unknown outcome.
    Verdict,
    /// The file of a named ring was cut off.
    Lost,
}

impl std::fmt::Display for Flaw {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Flaw::Ring => "the ring contains values that no writer can have written",
            Flaw::Kind => "the ring contains a chunk of an unknown kind",
            Flaw::Totals => "the ring's totals are impossible",
            Flaw::Verdict => "the execution ended with an unknown outcome",
            Flaw::Lost => "the file of the ring was truncated",
        })
    }
}

/// The memory that every subscriber reads, in this process or in another one.
pub struct LinkParts {
    /// The execution that it belongs to.
    pub id: ExecutionId,
    /// The ring of the execution.
    pub reader: RingReader,
    /// The page on which the shard writes for all readers.
    pub control: ControlView,
    /// The page on which the reader writes for the shard.
    pub page: ReaderPage,
    /// Converts the times of chunks to wall time.
    pub anchor: ClockAnchor,
}

/// The link between a subscriber and its shard.
pub trait Link {
    /// The consequence of a [`Flaw`]; nothing if this process has written everything.
    type Fault: Copy;
    /// True if another process writes what is read. It is then not trusted.
    const IS_FOREIGN: bool;

    /// The memory that both sides use.
    fn shared(&self) -> &LinkParts;

    /// True if both read the same ring of the same execution.
    fn reads_like(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.shared(), other.shared());
        let is_same_memory = std::ptr::eq(ours.reader.head_word(), theirs.reader.head_word());
        ours.id == theirs.id && is_same_memory
    }

    /// The epoch, which changes with each knock of the shard.
    fn epoch(&self) -> u64;
    /// The word of the epoch, to sleep on.
    fn epoch_word(&self) -> &AtomicU64;
    /// The reason why the shard has detached the subscriber; 0 if it has not.
    fn detached(&self) -> u32;
    /// The last chunk that was acknowledged.
    fn acked_seq(&self) -> u64;

    /// Announces a sleep on the head of the ring and on the epoch. The caller then looks once more.
    fn fall_asleep(&self);
    /// Ends the sleep.
    fn wake_up(&self);
    /// Returns the time until which it may sleep before it calls [`Link::is_up`].
    fn sleep_until(&self, deadline: Instant) -> Instant;
    /// True if the shard may still be there.
    fn is_up(&self) -> bool;

    /// Makes the shard read the cursor.
    fn ring(&self);
    /// The way to chunks that only the disk holds, if there is one.
    fn refill(&self) -> Option<&Refill> {
        None
    }
    /// Makes the shard read what is new in [`Link::refill`].
    fn ask(&self) {}
    /// Reports that the subscriber leaves.
    fn leave(&self, how: LeaveReason);
    /// The exit status of the process that the execution has run, once there is a verdict.
    fn exit(&self) -> Option<Exit>;
    /// Reports a flaw that was found.
    fn fault(&self, flaw: Flaw) -> Self::Fault;
}

/// The link within one process.
pub struct ThreadLink {
    pub(crate) shared: LinkParts,
    pub(crate) reader_signals: Arc<ReaderSignals>,
    pub(crate) signals: Arc<ShardSignals>,
    pub(crate) exchange: Arc<Exchange>,
    /// Present if the execution is kept on disk.
    pub(crate) refill: Option<Arc<Refill>>,
}

impl Link for ThreadLink {
    type Fault = Infallible;
    const IS_FOREIGN: bool = false;

    #[inline]
    fn shared(&self) -> &LinkParts {
        &self.shared
    }

    #[inline]
    fn epoch(&self) -> u64 {
        self.reader_signals.epoch()
    }

    fn epoch_word(&self) -> &AtomicU64 {
        self.reader_signals.epoch_word()
    }

    #[inline]
    fn detached(&self) -> u32 {
        self.reader_signals.detached()
    }

    #[inline]
    fn acked_seq(&self) -> u64 {
        self.reader_signals.acked_seq()
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
        true // The shard reports its end in the signals.
    }

    fn ring(&self) {
        self.signals.waker.wake();
    }

    fn refill(&self) -> Option<&Refill> {
        self.refill.as_deref()
    }

    fn ask(&self) {
        self.signals.asked_disk.set();
        self.signals.waker.wake();
    }

    fn leave(&self, how: LeaveReason) {
        self.exchange.end_reactor_sleep(self.reader_signals.reactor_sleep()); // No further wake-up.
        self.reader_signals.leave(how);
        self.signals.departed.set();
        self.signals.waker.wake();
    }

    fn exit(&self) -> Option<Exit> {
        exit_of_code(self.shared.control.exit()) // It was set before the verdict.
    }

    #[cold]
    fn fault(&self, flaw: Flaw) -> Infallible {
        unreachable!("{flaw:?}: this process wrote it")
    }
}
