//! What can happen to the engine. With [`crate::engine::Action`] this is its whole behaviour.
//!
//! Events are facts: somebody outside (the shard, on behalf of a caller, the kernel, a tool or a
//! ring) says what has happened. A question is a fact too ("this was asked") and is answered by
//! [`crate::engine::Action::Reply`], always the next action.

use std::time::Duration;

use crate::base::{ExecutionId, Handle, Instant, ProgressToken, SubscriberId};
use crate::engine::chunk::{Kind, Kinds, Totals};
use crate::engine::exit::Exit;
use crate::engine::policy::Policy;
use crate::engine::progress::{ProgressReport, ProgressSource};
use crate::limits;

/// A fact for [`crate::engine::Engine::handle`]. Those that name an [`ExecutionId`] come from a
/// caller and are checked; a [`Handle`] is one that the engine gave to the shard.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    // --- Questions: each is answered by `Action::Reply` ---
    /// A caller wants to run a tool.
    Open(OpenSpec),
    /// A caller wants to follow an execution.
    Subscribe(ExecutionId, SubscribeSpec),
    /// A caller wants no more. No end is sent: it knows.
    Unsubscribe(SubscriberId),
    /// A caller wants an execution to stop.
    Cancel(ExecutionId),
    /// A subscriber with acknowledgements has dealt with everything through `seq`.
    Acknowledge(SubscriberId, u64),
    /// A subscriber whose connection broke is back, and wants to go on where it was.
    Reattach(SubscriberId),
    /// A caller asks what an execution is doing.
    Inspect(ExecutionId),
    /// A caller wants a progress token to be good for nothing any more.
    ForgetToken(ProgressToken),

    // --- Rings ---
    /// The wish [`crate::engine::Action::Lease`] was granted.
    Leased(Handle, RingFacts),
    /// … or not: all rings are taken.
    LeaseFailed(Handle),
    /// … or never will be as things stand: the execution fails with this text, and those behind it
    /// have their turn.
    LeaseRefused(Handle, &'a str),
    /// A ring has come back: of a released execution, or from a tool's thread that had kept it for
    /// longer.
    RingReturned,

    // --- Producers ---
    /// These chunks are in the ring, and of those before them nothing before the last one's
    /// `tail_seq`.
    Published(Handle, &'a [ChunkFacts]),
    /// The producer cannot write within its gate. The shard has just reported the cursors of the
    /// readers on other threads. If no reader holds the producer back, the engine sets the same
    /// gate once more, and fails the execution at the block deadline if that does not help.
    Gated(Handle),
    /// The producer will have to wait soon. The shard has just told where the readers on other
    /// threads stand.
    RoomWanted(Handle),
    /// Of chunks that the engine was told of, none before this one is held any more.
    HeldFrom(Handle, u64),
    /// What was told of last had come by then: the shard was in no hurry.
    HeardAt(Handle, Instant),
    /// The producer says how many chunks there will be.
    TotalExpected(Handle, u64),
    /// The producer says how far it is.
    Progressed(Handle, ProgressReport<'a>),
    /// The process that the producer has run ended like this.
    Exited(Handle, Exit),
    /// The producer does nothing until then.
    Sleeping(Handle, Instant),
    /// The producer is gone; nothing more will be published.
    ProducerEnded(Handle, ProducerEnd<'a>),

    // --- Subscribers ---
    /// A subscriber can take this many chunks of its kinds now (`u32::MAX`: any number).
    Demand(SubscriberId, u32),
    /// A subscriber's connection broke. A `block` subscriber keeps its place for a while.
    Lost(SubscriberId),
    /// A subscriber's connection has taken a part of what it was given.
    Moved(SubscriberId),
    /// A subscriber's closure panicked: it is given nothing more, and never comes back.
    Broken(SubscriberId),
    /// Of what was to be delivered to a local subscriber, nothing was from chunk `.1` on: a
    /// producer on another thread was faster, and the ring holds nothing through chunk `.2` any
    /// more.
    Overtaken(SubscriberId, u64, u64),
    /// A reader on another thread stands before this chunk.
    ReaderAt(SubscriberId, u64),
    /// A reader on another thread is gone.
    ReaderGone(SubscriberId),
    /// A reader on another thread stands where it cannot: it is not believed any more.
    ReaderWild(SubscriberId),

    // --- The shard ---
    /// Time has come to look at the timers.
    Tick,
    /// No more executions; all subscribers are told `detached: shutdown`.
    Shutdown,
}

/// What nobody can guess, drawn for one execution: the engine has no randomness of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Secret {
    /// For its id.
    pub nonce: u64,
    /// For its progress token.
    pub token: u128,
}

/// How long an execution may take. `None`: as long as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From its start to its first chunk or progress report.
    pub first_chunk: Option<Duration>,
    /// From each chunk or progress report to the next. Like the first, it stands still while a
    /// reader holds the producer back.
    pub inactivity: Option<Duration>,
    /// From its start to its end, whatever happens.
    pub total: Option<Duration>,
}

impl Timeouts {
    /// It may take for ever.
    pub const NONE: Timeouts = Timeouts { first_chunk: None, inactivity: None, total: None };
}

impl Default for Timeouts {
    /// Those of [`crate::limits`]; no limit to the whole.
    fn default() -> Timeouts {
        Timeouts {
            first_chunk: Some(limits::TIMEOUT_FIRST_CHUNK),
            inactivity: Some(limits::TIMEOUT_INACTIVITY),
            total: None,
        }
    }
}

/// How an execution is to run.
#[derive(Clone, Copy, Debug)]
pub struct OpenSpec {
    /// When the tool starts.
    pub start: Start,
    /// What the ring does before anybody reads.
    pub hold: Hold,
    /// How long it can be read after its end.
    pub retention: Duration,
    /// How long a `block` subscriber may hold the producer back.
    pub block_deadline: Duration,
    /// What happens then.
    pub on_stall: OnStall,
    /// How long the producer may be silent, and may take.
    pub timeouts: Timeouts,
    /// For its names.
    pub secret: Secret,
    /// Where its progress comes from.
    pub progress: ProgressSource,
    /// Payload bytes that there will be in all, about, if that is known.
    pub bytes_expected: Option<u64>,
    /// The ring it will get if all goes well.
    pub ring: RingFacts,
}

impl OpenSpec {
    /// Starts at once, holds the newest, with the times of [`crate::limits`] and no timeouts. Its
    /// secret is none: who lets others in sets one.
    pub fn new(ring: RingFacts) -> OpenSpec {
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
            ring,
        }
    }
}

/// When a tool starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// As soon as there is a ring.
    #[default]
    Now,
    /// When that many subscribers are there; with fewer, when the deadline has passed.
    AfterSubscribers {
        /// How many.
        count: u32,
        /// How long to wait for them.
        deadline: Duration,
    },
}

/// What the ring does before anybody reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// It keeps the newest chunks, as always.
    #[default]
    Newest,
    /// It keeps the oldest: the producer waits when it is full, until the first subscriber comes
    /// or the deadline has passed.
    UntilRead {
        /// How long to wait for a subscriber.
        deadline: Duration,
    },
}

/// What happens to a `block` subscriber that held the producer back for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStall {
    /// The subscriber is detached, the execution goes on.
    #[default]
    Detach,
    /// The execution fails.
    Fail,
}

/// What the engine needs to know of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingFacts {
    /// Descriptors: a power of two.
    pub slot_count: u32,
    /// Chunks that are held for certain if they are small: no limit can be higher.
    pub chunks_max: u32,
    /// Longest payload of one chunk.
    pub chunk_bytes_max: u32,
    /// All of the area for payloads.
    pub data_bytes: u32,
}

/// One chunk, as it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFacts {
    /// Payload bytes.
    pub length: u32,
    /// What it is.
    pub kind: Kind,
    /// What it is about, below 64.
    pub key: u8,
    /// The oldest chunk that the ring still holds.
    pub tail_seq: u64,
}

/// How a producer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProducerEnd<'a> {
    /// It has done its work.
    Done,
    /// It could not; the text says why.
    Failed(&'a str),
    /// It was told to stop, and has.
    Stopped,
}

/// How a subscriber wants to follow an execution.
#[derive(Clone, Copy, Debug)]
pub struct SubscribeSpec {
    /// What happens when it lags.
    pub policy: Policy,
    /// How far it may lag in chunks; the policy's default if `None`.
    pub limit_chunks: Option<u32>,
    /// How far it may lag in bytes; unlimited if `None`.
    pub limit_bytes: Option<u64>,
    /// Which kinds it wants.
    pub kinds: Kinds,
    /// Where it begins.
    pub from: From,
    /// If set, nothing is sent beyond the last acknowledged chunk and that many more. Gaps are to
    /// be acknowledged, too; while nothing is, the window begins at the next chunk of its kinds.
    pub ack_window: Option<u32>,
    /// If set, chunks wait for company.
    pub coalesce: Option<Coalesce>,
    /// Where it lives.
    pub place: Place,
    /// How many chunks it can take now (`u32::MAX`: any number).
    pub demand: u32,
    /// True if chunks may be lost on their way to it, and it comes back for them. Under `block` the
    /// newest chunks before where it stands are then kept, up to half of the ring. With
    /// acknowledgements the chunks that it has not acknowledged are kept, and it is given no more
    /// than the ring can keep: [`Replay`](crate::engine::Replay). A subscriber that comes back with
    /// [`From::Seq`] and the same terms takes the place of the lost one. On another thread this is
    /// for readers of connections.
    pub replays: bool,
}

impl Default for SubscribeSpec {
    /// `drop` with its default limit, everything that is still held, any number of chunks.
    fn default() -> SubscribeSpec {
        SubscribeSpec {
            policy: Policy::default(),
            limit_chunks: None,
            limit_bytes: None,
            kinds: Kinds::ALL,
            from: From::Start,
            ack_window: None,
            coalesce: None,
            place: Place::Local,
            demand: u32::MAX,
            replays: false,
        }
    }
}

/// Where a subscriber begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// With the first chunk; what is no longer held is a gap in front.
    #[default]
    Start,
    /// With the next chunk that is published.
    Live,
    /// With chunk `seq`. If that is no longer held, `seen` (what the subscriber had been given and
    /// told of before `seq`) is needed to count the gap in front exactly.
    Seq {
        /// The first chunk wanted; at most one past the newest.
        seq: u64,
        /// Chunks and bytes of its kinds before `seq`, if it knows.
        seen: Option<Totals>,
    },
}

/// Several chunks in one delivery; their numbers and totals are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesce {
    /// No chunk waits longer than this.
    pub delay_max: Duration,
    /// So many bytes are enough for a delivery.
    pub bytes_max: u64,
}

/// Where a subscriber lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the engine's thread (a closure, a poll handle, a connection): the engine evaluates its
    /// policy and says what to give it.
    Local,
    /// On another thread: it evaluates the same policy over the same ring by itself.
    Remote,
}
