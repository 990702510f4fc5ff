//! The input of the engine. With [`crate::engine::Action`] this is its whole behaviour.
//!
//! Events are facts. The shard reports them on behalf of a caller, the kernel, a tool or a ring. A
//! request is a fact, too. The engine answers it by [`crate::engine::Action::Reply`], which is
//! always the next action.

use std::time::Duration;

use crate::base::{ExecutionId, Handle, Instant, ProgressToken, SubscriberId};
use crate::engine::action::Verdict;
use crate::engine::progress::ProgressSource;
use crate::limits;
use crate::stream::{Exit, GapReason, Kind, KindTotals, Kinds, Policy, ProgressReport, Totals};

/// A fact for [`crate::engine::Engine::handle`]. An [`ExecutionId`] comes from a caller and is
/// checked; a [`Handle`] is one that the engine gave to the shard.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    // --- Requests: each is answered by `Action::Reply` ---
    /// A caller wants to run a tool.
    Open(OpenSpec),
    /// A caller wants an execution back that has ended so. The disk keeps all of it, and no ring
    /// holds anything.
    Revive(OpenSpec, &'a Verdict),
    /// A caller wants an execution to go on that the engine does not have. The disk keeps all of it
    /// so far, these are the totals, and its ring begins behind them.
    Resume(OpenSpec, &'a KindTotals),
    /// A caller wants the engine to forget an execution that goes on. The disk keeps all of it, and
    /// [`Event::Resume`] brings it back. No end is told.
    Suspend(ExecutionId),
    /// A caller wants to follow an execution.
    Subscribe(ExecutionId, SubscribeSpec),
    /// A caller ends its subscription. No end is sent, because the caller knows.
    Unsubscribe(SubscriberId),
    /// A caller wants an execution to stop.
    Cancel(ExecutionId),
    /// A subscriber with acknowledgements has processed everything through `seq`.
    Acknowledge(SubscriberId, u64),
    /// A subscriber whose connection broke is back and continues at its cursor.
    Reattach(SubscriberId),
    /// A caller asks for the status of an execution.
    Inspect(ExecutionId),
    /// A caller revokes a progress token.
    ForgetToken(ProgressToken),

    // --- Rings ---
    /// A ring was found for [`crate::engine::Action::Lease`].
    Leased(Handle, RingFacts),
    /// No ring was found for [`crate::engine::Action::Lease`]: all are taken.
    LeaseFailed(Handle),
    /// No ring can be found for [`crate::engine::Action::Lease`] as things stand. The execution
    /// fails with this text, and the next one in the queue has its turn.
    LeaseRefused(Handle, &'a str),
    /// The ring has grown to these dimensions. It holds what it held before. Nobody reads it on
    /// another thread, and no subscriber was promised chunks that it may come back for.
    Grown(Handle, RingFacts),
    /// A ring has come back from a released execution, or from a tool's thread that had kept it for
    /// longer.
    RingReturned,

    // --- Producers ---
    /// These chunks were published. The ring no longer holds anything before the last one's
    /// `tail_seq`.
    Published(Handle, &'a [ChunkFacts]),
    /// Chunks were published that no subscriber needs one by one ([`Engine::may_pass_over`]). These
    /// are the totals of all chunks from the first. Until [`Event::Found`] none of them counts as
    /// held.
    ///
    /// [`Engine::may_pass_over`]: crate::engine::Engine::may_pass_over
    PassedOver(Handle, Totals),
    /// The ring was looked through: it holds these newest chunks, and these are the totals of all
    /// before them.
    Found(Handle, &'a KindTotals, &'a [ChunkFacts]),
    /// The next chunks are missing in the log that the ring is filled from. These are the totals of
    /// all chunks up to the first one that is there, and the ring holds none of them. Subscribers
    /// find out what is missing where the log is kept.
    Skipped(Handle, &'a KindTotals),
    /// The producer cannot write within its gate. The shard has just reported the cursors of the
    /// readers on other threads. If no reader holds the producer back, the engine sets the same
    /// gate again. If that does not help, it fails the execution at the block deadline.
    Gated(Handle),
    /// The producer cannot write within its gate, because the shard reports chunks only when the
    /// disk has them. No reader is to blame, and the producer does not count as silent.
    HeldByDisk(Handle),
    /// The disk has moved, and the producer may look again.
    DiskMoved(Handle),
    /// The producer will have to wait soon. The shard has just reported the cursors of the readers
    /// on other threads.
    RoomWanted(Handle),
    /// The ring no longer holds any chunk before this one that was reported to the engine.
    HeldFrom(Handle, u64),
    /// The producer published its newest chunks at this time; the shard reported them later.
    ActiveAt(Handle, Instant),
    /// The producer says how many chunks it will publish.
    TotalExpected(Handle, u64),
    /// The producer reports its progress.
    Progressed(Handle, ProgressReport<'a>),
    /// The process that the producer ran has ended.
    Exited(Handle, Exit),
    /// The producer sleeps until this time.
    Sleeping(Handle, Instant),
    /// A guest gives the execution up. It fails with this text.
    GivenUp(Handle, &'a str),
    /// The producer is gone; nothing more will be published.
    ProducerEnded(Handle, ProducerEnd<'a>),

    // --- The disk ---
    /// The disk keeps the end that [`crate::engine::Action::KeepEnd`] has announced.
    EndKept(Handle),
    /// The disk keeps nothing more of an execution, although that was promised. The execution fails
    /// with this text.
    NotKept(Handle, &'a str),
    /// The disk holds no chunk of an execution before this one any more, but everything from it to
    /// what the ring holds. These are the totals of all chunks before it. It never moves back.
    KeptFrom(Handle, u64, &'a KindTotals),
    /// The answer to [`crate::engine::Action::Fetch`], for the stretch `from_seq..until_seq`. It
    /// begins where the question begins. It may be a part of what was asked for, but is not empty.
    /// An answer for a subscriber that has left is ignored.
    Fetched {
        /// The subscriber that was asked for.
        subscriber: SubscriberId,
        /// The first chunk of the stretch: the subscriber's next one.
        from_seq: u64,
        /// One past the last chunk of the stretch.
        until_seq: u64,
        /// The content of the stretch.
        result: Fetched,
    },

    // --- Subscribers ---
    /// A subscriber can take this many chunks of its kinds now (`u32::MAX`: any number).
    Demand(SubscriberId, u32),
    /// A subscriber's connection broke. A `block` subscriber keeps its place for a while. It does
    /// not if its execution is kept on disk, because it finds everything there later.
    Lost(SubscriberId),
    /// A subscriber's connection has accepted a part of what it was given.
    Moved(SubscriberId),
    /// A subscriber's closure panicked. It is given nothing more and cannot come back.
    Broken(SubscriberId),
    /// The producer's thread overwrote chunks `.1..=.2` before they could be delivered to this
    /// local subscriber. It was given nothing from chunk `.1` on.
    Overtaken(SubscriberId, u64, u64),
    /// A reader on another thread has moved its cursor before this chunk.
    ReaderAt(SubscriberId, u64),
    /// A reader on another thread has come level (`true`), or is given chunks from the disk.
    ReaderLevel(SubscriberId, bool),
    /// A reader on another thread is gone.
    ReaderGone(SubscriberId),
    /// A reader on another thread has an impossible cursor. The engine evicts it.
    ReaderWild(SubscriberId),

    // --- The shard ---
    /// The next deadline has passed.
    Tick,
    /// The shard shuts down. The engine opens no more executions, stops those that run, and
    /// detaches all subscribers with `detached: shutdown`.
    Shutdown,
}

/// The content of a stretch of chunks that the disk was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// The shard has just given the subscriber the chunks of its kinds, all of them.
    Given {
        /// Totals of these chunks.
        totals: Totals,
        /// The last of these chunks; ignored if there is none.
        last_seq: u64,
    },
    /// The stretch cannot be given. The engine tells the subscriber of the gap, unless no chunk of
    /// its kinds is missing.
    Lost {
        /// The reason: `corrupt`, `expired` or `unwritten`.
        reason: GapReason,
        /// Totals of the chunks of its kinds in the stretch.
        totals: Totals,
    },
}

/// Unguessable numbers for one execution. The engine has no source of randomness of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Secret {
    /// The nonce of the execution's id.
    pub nonce: u64,
    /// The secret of the execution's progress token.
    pub token: u128,
}

/// The time limits of an execution. `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time from the start to the first chunk or progress report.
    pub first_chunk: Option<Duration>,
    /// Time from each chunk or progress report to the next. Like `first_chunk`, it is paused while
    /// a reader holds the producer back.
    pub inactivity: Option<Duration>,
    /// Time from the start to the end. It is never paused.
    pub total: Option<Duration>,
}

impl Timeouts {
    /// No time limits.
    pub const NONE: Timeouts = Timeouts { first_chunk: None, inactivity: None, total: None };
}

impl Default for Timeouts {
    /// The limits of `limits.rs`, and none for the total time.
    fn default() -> Timeouts {
        Timeouts {
            first_chunk: Some(limits::TIMEOUT_FIRST_CHUNK),
            inactivity: Some(limits::TIMEOUT_INACTIVITY),
            total: None,
        }
    }
}

/// The parameters of an execution.
#[derive(Clone, Copy, Debug)]
pub struct OpenSpec {
    /// The condition on which the tool starts.
    pub start: Start,
    /// The behaviour of the ring before the first subscriber comes.
    pub hold: Hold,
    /// Time for which the execution can be read after its end.
    pub retention: Duration,
    /// Time for which a `block` subscriber may hold the producer back.
    pub block_deadline: Duration,
    /// The consequence when `block_deadline` passes.
    pub on_stall: OnStall,
    /// The time limits of the producer.
    pub timeouts: Timeouts,
    /// The secrets of the execution's id and progress token.
    pub secret: Secret,
    /// The source of the execution's progress.
    pub progress: ProgressSource,
    /// Approximate number of payload bytes in all, if known.
    pub bytes_expected: Option<u64>,
    /// True if the disk keeps every chunk from the first, until [`Event::KeptFrom`] says otherwise.
    pub kept: bool,
    /// The ring that the execution is expected to get.
    pub ring: RingFacts,
}

impl OpenSpec {
    /// Creates a spec that starts at once, holds the newest chunks, has the times of
    /// [`crate::limits`] and no timeouts. Its secret is 0: a caller that serves others has to set
    /// one.
    ///
    /// # Panics
    /// If no ring can have these dimensions.
    pub fn new(ring: RingFacts) -> OpenSpec {
        ring.assert_sound();
        OpenSpec {
            start: Start::Now,
            hold: Hold::Newest,
            retention: limits::RETENTION,
            block_deadline: limits::BLOCK_DEADLINE,
            on_stall: OnStall::Detach,
            timeouts: Timeouts::NONE,
            secret: Secret::default(),
            progress: ProgressSource::Tool,
            bytes_expected: None,
            kept: false,
            ring,
        }
    }
}

/// The condition on which a tool starts.
///
/// ```
/// use std::time::Duration;
/// use streamdoor::{ExecuteOptions, Start};
///
/// let start = Start::AfterSubscribers { count: 2, deadline: Duration::from_secs(5) };
/// let options = ExecuteOptions { start, ..Default::default() };
/// assert_ne!(options.start, Start::Now);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Starts as soon as a ring is available.
    #[default]
    Now,
    /// Starts once this many subscribers are attached, or when the deadline has passed.
    AfterSubscribers {
        /// Number of subscribers.
        count: u32,
        /// Time to wait for them.
        deadline: Duration,
    },
}

/// The behaviour of a ring before the first subscriber comes.
///
/// ```
/// use std::time::Duration;
/// use streamdoor::{ExecuteOptions, Hold};
///
/// let hold = Hold::UntilRead { deadline: Duration::from_secs(5) };
/// let options = ExecuteOptions { hold, ..Default::default() };
/// assert_ne!(options.hold, Hold::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The ring keeps the newest chunks, as it always does later.
    Newest,
    /// The ring keeps the oldest chunks. A producer that has filled it waits until the first
    /// subscriber comes or the deadline has passed.
    UntilRead {
        /// Time to wait for a subscriber.
        deadline: Duration,
    },
}

impl Default for Hold {
    /// [`Hold::UntilRead`] for [`limits::ATTACH_DEADLINE`]: a subscriber that comes in this time
    /// misses nothing.
    fn default() -> Hold {
        Hold::UntilRead { deadline: limits::ATTACH_DEADLINE }
    }
}

/// The consequence for a `block` subscriber that held the producer back for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStall {
    /// The subscriber is detached, and the execution continues.
    #[default]
    Detach,
    /// The execution fails.
    Fail,
}

/// The dimensions of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingFacts {
    /// Number of descriptors, a power of two.
    pub slot_count: u32,
    /// Number of small chunks that the ring holds for certain. No lag limit can be higher.
    pub chunks_max: u32,
    /// Longest payload of one chunk, in bytes.
    pub chunk_bytes_max: u32,
    /// Size of the payload area, in bytes.
    pub data_bytes: u32,
}

impl RingFacts {
    /// Checks that the dimensions fit each other. The shard takes them from its own rings.
    ///
    /// # Panics
    /// If they do not.
    pub(super) fn assert_sound(&self) {
        assert!(self.slot_count.is_power_of_two()); // The log masks a chunk's number with it.
        assert!(self.chunks_max > 0); // Some lag limit is allowed.
        assert!(self.chunks_max <= self.slot_count);
        assert!(self.chunk_bytes_max > 0);
        assert!(self.chunk_bytes_max <= self.data_bytes);
    }
}

const _: () = {
    // Timers are armed with these times: a time of zero would be over when it begins.
    assert!(!limits::RETENTION.is_zero());
    assert!(!limits::TIMEOUT_FIRST_CHUNK.is_zero());
    assert!(!limits::TIMEOUT_INACTIVITY.is_zero());
    assert!(!limits::BLOCK_DEADLINE.is_zero());
    // A cancellation makes the deadline of a reader shorter.
    assert!(limits::CANCELLED_STALL.as_nanos() < limits::BLOCK_DEADLINE.as_nanos());
    // A reader that coalesces is not detached because of it.
    assert!(limits::COALESCE_DELAY_MAX.as_nanos() < limits::BLOCK_DEADLINE.as_nanos());
};

/// One published chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFacts {
    /// Number of payload bytes.
    pub length: u32,
    /// The kind of the chunk.
    pub kind: Kind,
    /// The key for `conflate`, below 64.
    pub key: u8,
    /// The oldest chunk that the ring still holds.
    pub tail_seq: u64,
}

/// The way in which a producer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProducerEnd<'a> {
    /// The producer has finished its work.
    Done,
    /// The producer failed, for the reason in the text.
    Failed(&'a str),
    /// The producer has stopped on request.
    Stopped,
    /// The producer is elsewhere, and a time limit has ended it there.
    TimedOut,
}

/// The parameters of a subscription.
///
/// ```
/// use streamdoor::options::From;
/// use streamdoor::{Kind, Kinds, Policy, SubscribeSpec};
///
/// // Every line of standard error that is still to come.
/// let spec = SubscribeSpec {
///     policy: Policy::Block,
///     kinds: Kinds::NONE.with(Kind::Stderr),
///     from: From::Live,
///     ..Default::default()
/// };
/// assert!(!spec.kinds.contains(Kind::Stdout));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SubscribeSpec {
    /// The policy for a subscriber that lags.
    pub policy: Policy,
    /// Lag limit in chunks; the policy's default if `None`.
    pub limit_chunks: Option<u32>,
    /// Lag limit in bytes; unlimited if `None`.
    pub limit_bytes: Option<u64>,
    /// The kinds of chunks that the subscriber wants.
    pub kinds: Kinds,
    /// The chunk to begin with.
    pub from: From,
    /// Number of chunks that may be sent beyond the last acknowledged one; unlimited if `None`.
    /// Gaps have to be acknowledged, too. While everything is acknowledged, the window begins at
    /// the next chunk of the subscriber's kinds.
    pub ack_window: Option<u32>,
    /// The bounds within which chunks are coalesced, if they are.
    pub coalesce: Option<Coalesce>,
    /// The thread that the subscriber lives on.
    pub place: SubscriberPlace,
    /// Number of chunks that the subscriber can take now (`u32::MAX`: any number).
    pub demand: u32,
    /// True if chunks may be lost on the way to the subscriber and its client comes back for them.
    /// Under `block` the ring then keeps the newest chunks before the cursor, in up to half of its
    /// space. With acknowledgements the ring keeps the unacknowledged chunks, and the subscriber is
    /// given no more than the ring can keep: `engine::Replay`. A subscriber that
    /// comes back with [`From::Seq`] and the same terms takes the place of the lost one. On another
    /// thread this is for readers that serve connections. For a subscriber that reads from the disk
    /// the ring keeps nothing: what was lost comes from there.
    pub replays: bool,
    /// False for a reader in another process, which is given no chunks from the disk. The shard
    /// sets it.
    pub reads_disk: bool,
}

impl Default for SubscribeSpec {
    /// `block`, from the first chunk, with unlimited demand.
    fn default() -> SubscribeSpec {
        SubscribeSpec {
            policy: Policy::default(),
            limit_chunks: None,
            limit_bytes: None,
            kinds: Kinds::ALL,
            from: From::Start,
            ack_window: None,
            coalesce: None,
            place: SubscriberPlace::Local,
            demand: u32::MAX,
            replays: false,
            reads_disk: true,
        }
    }
}

/// The chunk that a subscriber begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// The first chunk. Chunks that are no longer held become a gap in front.
    #[default]
    Start,
    /// The next chunk that is published.
    Live,
    /// Chunk `seq`. If it is no longer held, `seen` is needed to count the gap in front exactly,
    /// unless the disk holds it.
    Seq {
        /// The first chunk wanted; at most one past the newest.
        seq: u64,
        /// Chunks and bytes of the subscriber's kinds before `seq`, given or counted in gaps, if it
        /// knows them.
        seen: Option<Totals>,
    },
}

/// The bounds for several chunks in one delivery. Their numbers and totals are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesce {
    /// Longest time that a chunk waits.
    pub delay_max: Duration,
    /// Number of bytes that are enough for a delivery.
    pub bytes_max: u64,
}

/// The thread that a subscriber lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriberPlace {
    /// The engine's thread (a closure, a poll handle, a connection). The engine evaluates the
    /// policy and decides what the subscriber is given.
    Local,
    /// Another thread. The reader evaluates the same policy over the same ring by itself.
    Remote,
}
