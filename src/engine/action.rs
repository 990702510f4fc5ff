//! What the engine wishes to be done. With [`crate::engine::Event`] this is its whole behaviour.

use std::fmt;

use crate::base::{ExecutionId, Handle, SubscriberId};
use crate::engine::chunk::{Gap, KindTotals, Totals};
use crate::engine::exit::Exit;
use crate::engine::gate::Gate;
use crate::engine::policy::{Cursor, Terms};
use crate::engine::progress::Progress;
use crate::engine::reserve::Replay;
use crate::engine::status::Status;

/// The ring that is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingFit {
    /// One as large as the tool asked for, or the largest that is allowed now.
    Whole,
    /// A smaller one will do.
    Any,
}

/// A wish of the engine, to be carried out by the shard in order.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Action {
    /// The answer to the question that was just handled.
    Reply(Reply),

    // --- Rings ---
    /// Find a ring; answer with `Leased` or `LeaseFailed`.
    Lease(Handle, RingFit),
    /// The execution is forgotten: take its ring back, and all else that belonged to it.
    Release(Handle),
    /// The producer is allowed so much from now on. Wakes one that waits for it.
    SetGate(Handle, Gate),
    /// From now on (or no more) say where the readers on other threads stand whenever one moves.
    WatchReaders(Handle, bool),

    // --- Producers ---
    /// Let the producer begin.
    StartProducer(Handle),
    /// Its sleep is over.
    WakeProducer(Handle),
    /// Make it stop, and say `ProducerEnded` once nothing more can come.
    StopProducer(Handle),

    // --- Subscribers of this thread ---
    /// Give the chunks `from_seq..until_seq`, those of its kinds, to each of
    /// [`crate::engine::Engine::recipients`].
    Deliver {
        /// Of which execution.
        execution: Handle,
        /// The first chunk.
        from_seq: u64,
        /// One past the last chunk.
        until_seq: u64,
    },
    /// Tell what it missed.
    Gap(SubscriberId, Handle, Gap),
    /// Tell how far the producer is.
    Progress(SubscriberId, Handle, Progress),
    /// Tell that nothing more comes, and forget it.
    End(SubscriberId, Handle, End),
    /// Forget it without a word: it has left.
    Forget(SubscriberId),

    // --- Readers on other threads ---
    /// Write how far the producer is where all readers see it, and wake them.
    Report(Handle, Progress),
    /// The execution has ended: write this where all readers see it, and wake them.
    Verdict(Handle, Box<Verdict>),
    /// A reader's own end: write it where that reader sees it, and wake it.
    DetachReader(SubscriberId, Handle, DetachReason),
}

/// An answer. Each question has its own.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Reply {
    /// To `Open`.
    Opened(Result<ExecutionId, OpenError>),
    /// To `Subscribe`.
    Subscribed(Result<Subscribed, SubscribeError>),
    /// To `Unsubscribe`: what it had been given and had missed.
    Unsubscribed(Result<End, NotFound>),
    /// To `Cancel`.
    Cancelled(Result<(), CancelError>),
    /// To `Acknowledge`.
    Acknowledged(Result<(), AcknowledgeError>),
    /// To `Reattach`.
    Reattached(Result<Subscribed, NotFound>),
    /// To `Inspect`.
    Inspected(Result<Box<Status>, NotFound>),
    /// To `ForgetToken`.
    TokenForgotten(Result<(), NotFound>),
}

/// A subscription as it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subscribed {
    /// Its name.
    pub subscriber: SubscriberId,
    /// Of which execution.
    pub execution: Handle,
    /// What was agreed, defaults filled in.
    pub terms: Terms,
    /// Where it begins.
    pub cursor: Cursor,
    /// The chunks that are kept for it, if it is one that replays.
    pub replay: Option<Replay>,
}

/// Where an execution is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It waits for a ring.
    Queued,
    /// It has one; the tool runs, or waits for subscribers.
    Running,
    /// The tool has ended; `block` subscribers still read.
    Draining,
    /// It is over, and can be read until its retention ends.
    Ended(Outcome),
}

/// How an execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The tool has done its work.
    Completed,
    /// The tool could not.
    Failed,
    /// Somebody stopped it.
    Cancelled,
    /// It took too long.
    TimedOut,
}

impl State {
    /// The name, as every wire spells it.
    pub fn name(self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Running => "running",
            State::Draining => "draining",
            State::Ended(outcome) => outcome.name(),
        }
    }
}

impl Outcome {
    /// The name, as every wire spells it.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
            Outcome::TimedOut => "timed_out",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// The last word to one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// How it ended.
    pub state: EndState,
    /// What it was given.
    pub given: Totals,
    /// What its gaps counted.
    pub missed: Totals,
    /// All chunks of its kinds that the execution published before the subscriber's place: at the
    /// execution's end all there are, else those before `resume_from`. They count from chunk 1,
    /// over however many connections they were given.
    pub published: Totals,
    /// How long it was subscribed, in µs.
    pub duration_us: u64,
    /// How the process ended that the tool has run, if it has.
    pub exit: Option<Exit>,
}

/// How it ended for one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndState {
    /// The execution is over, and the subscriber has been given or told of all of it.
    Ended(Outcome),
    /// The subscriber's own end; the execution goes on without it.
    Detached {
        /// Why.
        reason: DetachReason,
        /// The first chunk that it was neither given nor told of.
        resume_from: u64,
    },
}

impl fmt::Display for EndState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndState::Ended(outcome) => out.pad(outcome.name()),
            EndState::Detached { reason, .. } => write!(out, "detached: {}", reason.name()),
        }
    }
}

/// Why a subscriber was let go before the execution's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DetachReason {
    /// Its lag passed its limit under `disconnect`.
    Lag,
    /// It held the producer back past the deadline.
    Stall,
    /// Its connection broke and did not come back in time, its closure panicked, or its shard died.
    Lost,
    /// The server stops.
    Shutdown,
    /// The ring was needed for another execution, the retention is over, or the reader wrote
    /// nonsense into shared memory.
    Evicted,
    /// Its owner removed it.
    Removed,
}

impl DetachReason {
    /// Every reason.
    pub const ALL: [DetachReason; 6] = [
        DetachReason::Lag,
        DetachReason::Stall,
        DetachReason::Lost,
        DetachReason::Shutdown,
        DetachReason::Evicted,
        DetachReason::Removed,
    ];

    /// The name, as every wire spells it.
    pub fn name(self) -> &'static str {
        match self {
            DetachReason::Lag => "lag",
            DetachReason::Stall => "stall",
            DetachReason::Lost => "lost",
            DetachReason::Shutdown => "shutdown",
            DetachReason::Evicted => "evicted",
            DetachReason::Removed => "removed",
        }
    }
}

/// The end of an execution, for readers on other threads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// How it ended.
    pub outcome: Outcome,
    /// The last chunk there is.
    pub head_seq: u64,
    /// All chunks published.
    pub totals: KindTotals,
    /// What went wrong, if it failed.
    pub error: Option<Box<str>>,
    /// How the process ended that the tool has run, if it has.
    pub exit: Option<Exit>,
}

/// No such execution or subscriber (any more), or it is somebody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NotFound;

/// Why an execution could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenError {
    /// Wait: all rings are taken, and the queue for them is full.
    Busy {
        /// For so long.
        retry_after_ms: u32,
    },
    /// Wait until one ends: as many run as are allowed.
    TooMany {
        /// How many that is.
        executions_max: u32,
    },
    /// Fix the call: a number in it is out of bounds.
    Invalid {
        /// Which.
        field: &'static str,
    },
    /// Give up: the shard takes no more.
    ShuttingDown,
}

/// Why a subscription was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubscribeError {
    /// Give up: there is no such execution (any more).
    NotFound,
    /// Fix the call: the limit is 0, or above what the ring holds.
    Limit {
        /// What was asked for.
        limit_chunks: u32,
        /// The most that this ring allows.
        limit_chunks_max: u32,
    },
    /// Fix the call: `field` is out of bounds.
    Invalid {
        /// Which.
        field: &'static str,
    },
    /// Start elsewhere: that chunk does not exist yet.
    NotYet {
        /// The next chunk there will be.
        next_seq: u64,
    },
    /// Start elsewhere, or say what was seen before: that chunk is no longer held.
    NoLongerHeld {
        /// The oldest chunk that is.
        tail_seq: u64,
    },
    /// Wait until one leaves: this execution, or the shard, has as many as are allowed.
    TooMany {
        /// How many that is.
        subscribers_max: u32,
    },
    /// Give up: the shard is shutting down.
    ShuttingDown,
}

/// Why a cancellation did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelError {
    /// There is no such execution (any more).
    NotFound,
    /// It has ended by itself already.
    Ended(Outcome),
}

/// Why an acknowledgement did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcknowledgeError {
    /// There is no such subscriber (any more).
    NotFound,
    /// It did not ask for acknowledgements.
    NotAsked,
    /// It acknowledged what it was not given yet.
    NotGiven {
        /// The next chunk that it will be given.
        next_seq: u64,
    },
}

impl fmt::Display for NotFound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("not found: it is over and forgotten, or was never there")
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Busy { retry_after_ms } => {
                write!(out, "all rings are taken; try again in {retry_after_ms} ms")
            }
            OpenError::TooMany { executions_max } => {
                write!(out, "{executions_max} executions are running, as many as are allowed")
            }
            OpenError::Invalid { field } => write!(out, "`{field}` is out of bounds"),
            OpenError::ShuttingDown => out.write_str("shutting down"),
        }
    }
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubscribeError::NotFound => NotFound.fmt(out),
            SubscribeError::Limit { limit_chunks, limit_chunks_max } => {
                write!(
                    out,
                    "a limit of {limit_chunks} chunks; this ring allows 1 to {limit_chunks_max}"
                )
            }
            SubscribeError::Invalid { field } => write!(out, "`{field}` is out of bounds"),
            SubscribeError::NotYet { next_seq } => {
                write!(out, "that chunk is not there yet; the next one is {next_seq}")
            }
            SubscribeError::NoLongerHeld { tail_seq } => {
                write!(out, "that chunk is no longer held; the oldest is {tail_seq}")
            }
            SubscribeError::TooMany { subscribers_max } => {
                write!(out, "there are {subscribers_max} subscribers, as many as are allowed")
            }
            SubscribeError::ShuttingDown => out.write_str("shutting down"),
        }
    }
}

impl fmt::Display for CancelError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CancelError::NotFound => NotFound.fmt(out),
            CancelError::Ended(outcome) => write!(out, "it has {outcome} already"),
        }
    }
}

impl fmt::Display for AcknowledgeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcknowledgeError::NotFound => NotFound.fmt(out),
            AcknowledgeError::NotAsked => out.write_str("it did not ask for acknowledgements"),
            AcknowledgeError::NotGiven { next_seq } => {
                write!(out, "it was given nothing from chunk {next_seq} on yet")
            }
        }
    }
}

impl std::error::Error for NotFound {}
impl std::error::Error for OpenError {}
impl std::error::Error for SubscribeError {}
impl std::error::Error for CancelError {}
impl std::error::Error for AcknowledgeError {}
