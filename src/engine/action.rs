//! The output of the engine. With [`crate::engine::Event`] this is its whole behaviour.

use std::fmt;

use crate::base::{ExecutionId, Handle, SubscriberId};
use crate::engine::gate::Gate;
use crate::engine::policy::Cursor;
use crate::engine::reserve::Replay;
use crate::engine::status::Status;
use crate::stream::{DetachReason, End, Exit, Gap, KindTotals, Outcome, Progress, Terms};

/// The size of ring that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingFit {
    /// A ring as large as the tool asked for, or the largest that is allowed now.
    Whole,
    /// A ring of any size.
    Any,
}

/// An instruction of the engine to the shard. The shard carries actions out in order.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Action {
    /// Answers the request that was just handled.
    Reply(Reply),

    // --- Rings ---
    /// Requests a ring. The shard answers with `Leased`, `LeaseFailed` or `LeaseRefused`.
    Lease(Handle, RingFit),
    /// Releases the ring of an execution that was forgotten, and everything else that belonged to
    /// it.
    Release(Handle),
    /// Sets the producer's gate. Wakes a producer that waits for it.
    SetGate(Handle, Gate),
    /// Starts (or stops) reports of the cursors of readers on other threads whenever one moves.
    WatchReaders(Handle, bool),

    // --- Producers ---
    /// Starts the producer.
    StartProducer(Handle),
    /// Wakes the producer, because its sleep is over.
    WakeProducer(Handle),
    /// Stops the producer. The shard reports `ProducerEnded` once nothing more can come.
    StopProducer(Handle),
    /// Keeps the end of an execution on disk. The shard answers with `EndKept` or `NotKept`. Until
    /// then nobody is told of the end.
    KeepEnd(Handle, Box<Verdict>),

    // --- Subscribers of this thread ---
    /// Gives each of [`crate::engine::Engine::recipients`] the chunks `from_seq..until_seq` of its
    /// kinds.
    Deliver {
        /// The execution that published them.
        execution: Handle,
        /// The first chunk.
        from_seq: u64,
        /// One past the last chunk.
        until_seq: u64,
    },
    /// Asks the disk for the chunks `from_seq..until_seq` of a subscriber's kinds. The shard gives
    /// them itself and answers with `Fetched`. Until then the subscriber is asked for no second
    /// stretch, and is given nothing else but progress. If it leaves meanwhile, no answer is
    /// needed.
    Fetch {
        /// The subscriber.
        subscriber: SubscriberId,
        /// The execution that published the chunks.
        execution: Handle,
        /// The first chunk, which is the subscriber's next one.
        from_seq: u64,
        /// One past the last chunk.
        until_seq: u64,
        /// Maximum number of chunks of its kinds that the answer may give, at least 1.
        chunks_max: u32,
    },
    /// Reports a gap to a subscriber.
    Gap(SubscriberId, Handle, Gap),
    /// Reports the producer's progress to a subscriber.
    Progress(SubscriberId, Handle, Progress),
    /// Reports the end to a subscriber, and forgets the subscriber.
    End(SubscriberId, Handle, End),
    /// Forgets a subscriber of this execution without a report, because it has left.
    Forget(SubscriberId, Handle),

    // --- Readers on other threads ---
    /// Writes the progress to where all readers see it, and wakes them.
    Report(Handle, Progress),
    /// Writes the end of the execution to where all readers see it, and wakes them.
    Verdict(Handle, Box<Verdict>),
    /// Writes the end of one reader to where that reader sees it, and wakes it.
    DetachReader(SubscriberId, Handle, DetachReason),
}

/// The answer to a request. Each kind of request has its own.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Reply {
    /// The answer to `Open`, to `Revive` and to `Resume`.
    Opened(Result<ExecutionId, OpenError>),
    /// The answer to `Suspend`.
    Suspended(Result<(), SuspendError>),
    /// The answer to `Subscribe`.
    Subscribed(Result<Subscribed, SubscribeError>),
    /// The answer to `Unsubscribe`: the totals of what the subscriber was given and what it missed.
    Unsubscribed(Result<End, NotFound>),
    /// The answer to `Cancel`.
    Cancelled(Result<(), CancelError>),
    /// The answer to `Acknowledge`.
    Acknowledged(Result<(), AcknowledgeError>),
    /// The answer to `Reattach`.
    Reattached(Result<Subscribed, NotFound>),
    /// The answer to `Inspect`.
    Inspected(Result<Box<Status>, NotFound>),
    /// The answer to `ForgetToken`.
    TokenForgotten(Result<(), NotFound>),
}

/// A subscription as it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subscribed {
    /// The id of the subscriber.
    pub subscriber: SubscriberId,
    /// The execution that it follows.
    pub execution: Handle,
    /// The terms, with defaults filled in.
    pub terms: Terms,
    /// The cursor at which it begins.
    pub cursor: Cursor,
    /// The chunks that are kept for the subscriber, if it replays.
    pub replay: Option<Replay>,
}

/// The end of an execution, for readers on other threads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// The way in which it ended.
    pub outcome: Outcome,
    /// The number of the last chunk.
    pub head_seq: u64,
    /// Totals of all published chunks.
    pub totals: KindTotals,
    /// The error text, if the execution failed.
    pub error: Option<Box<str>>,
    /// The exit status of the process that the tool ran, if it ran one.
    pub exit: Option<Exit>,
}

/// The execution or the subscriber does not exist (any more), or belongs to another caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NotFound;

/// The reason why an execution was not suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SuspendError {
    /// Give up: the execution does not exist, has ended, or is being stopped.
    NotFound,
    /// Wait: it has subscribers.
    Followed,
    /// Wait: the disk does not keep all of it yet.
    NotDurable,
}

/// The reason why an execution was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenError {
    /// All rings are taken, and the queue for them is full. Try again later.
    Busy {
        /// Time to wait before the next try, in ms.
        retry_after_ms: u32,
    },
    /// The maximum number of executions is running. Wait until one ends.
    TooMany {
        /// The maximum number of executions.
        executions_max: u32,
    },
    /// A number in the call is out of bounds. Fix the call.
    Invalid {
        /// The name of the field.
        field: &'static str,
    },
    /// The shard is shutting down. Give up.
    ShuttingDown,
}

/// The reason why a subscription was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubscribeError {
    /// The execution does not exist (any more). Give up.
    NotFound,
    /// The lag limit is 0, or above what the ring holds. Fix the call.
    Limit {
        /// The limit in the call.
        limit_chunks: u32,
        /// The highest limit that this ring allows.
        limit_chunks_max: u32,
    },
    /// A field of the call is out of bounds. Fix the call.
    Invalid {
        /// The name of the field.
        field: &'static str,
    },
    /// The chunk to begin with does not exist yet. Start elsewhere.
    NotYet {
        /// The number of the next chunk.
        next_seq: u64,
    },
    /// The chunk to begin with is no longer held. Start elsewhere, or say what was seen before it.
    NoLongerHeld {
        /// The oldest chunk that is held.
        tail_seq: u64,
    },
    /// The execution or the shard has the maximum number of subscribers. Wait until one leaves.
    TooMany {
        /// The maximum number of subscribers.
        subscribers_max: u32,
    },
    /// The chunks of the execution are given when they are durable, and a reader elsewhere would
    /// see them before. Subscribe on the thread of the shard.
    NotElsewhere,
    /// The shard is shutting down. Give up.
    ShuttingDown,
}

/// The reason why a cancellation had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelError {
    /// The execution does not exist (any more).
    NotFound,
    /// The execution has already ended.
    Ended(Outcome),
}

/// The reason why an acknowledgement had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcknowledgeError {
    /// The subscriber does not exist (any more).
    NotFound,
    /// The subscriber did not ask for acknowledgements.
    NotAsked,
    /// The subscriber acknowledged a chunk that it was not given yet.
    NotGiven {
        /// The next chunk that the subscriber will be given.
        next_seq: u64,
    },
}

impl fmt::Display for NotFound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("not found: it never existed, or it ended and its retention is over")
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Busy { retry_after_ms } => {
                write!(out, "all rings are in use; try again in {retry_after_ms} ms")
            }
            OpenError::TooMany { executions_max } => {
                write!(out, "{executions_max} executions are running, which is the maximum")
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
                    "the limit of {limit_chunks} chunks does not fit this ring, which allows 1 to \
                     {limit_chunks_max}"
                )
            }
            SubscribeError::Invalid { field } => write!(out, "`{field}` is out of bounds"),
            SubscribeError::NotYet { next_seq } => {
                write!(out, "this chunk is not published yet; the next one is {next_seq}")
            }
            SubscribeError::NoLongerHeld { tail_seq } => {
                write!(out, "this chunk is no longer held; the oldest is {tail_seq}")
            }
            SubscribeError::TooMany { subscribers_max } => {
                write!(out, "all {subscribers_max} places for subscribers are taken")
            }
            SubscribeError::NotElsewhere => out.write_str(
                "its chunks are given when they are durable, and only to subscribers on the thread \
                 of its shard",
            ),
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
            AcknowledgeError::NotAsked => {
                out.write_str("this subscriber did not ask for acknowledgements")
            }
            AcknowledgeError::NotGiven { next_seq } => {
                write!(out, "this subscriber was not yet given chunk {next_seq} or a later one")
            }
        }
    }
}

impl std::error::Error for NotFound {}
impl std::error::Error for OpenError {}
impl std::error::Error for SubscribeError {}
impl std::error::Error for CancelError {}
impl std::error::Error for AcknowledgeError {}
