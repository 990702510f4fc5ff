//! What a subscriber is given, the same wherever it lives.

use crate::base::{ExecutionId, Instant};
use crate::engine::{DetachReason, End, EndState, Exit, Gap, Kind, Outcome, Progress};
use crate::memory::{CHUNK_MORE, ClockAnchor, Descriptor};

/// One thing that a subscriber is given. In the order of the log, and last of all one `End`.
#[derive(Clone, Copy, Debug)]
pub enum Delivery<'a> {
    /// A piece of the result.
    Chunk(Chunk<'a>),
    /// What will not come, exactly.
    Gap(Gap),
    /// How far the tool is.
    Progress(Reported<'a>),
    /// Nothing more comes.
    End(Ended<'a>),
}

/// A piece of a result. The bytes are borrowed until the next call that gives something.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Of which execution.
    pub execution: ExecutionId,
    /// 1, 2, 3 … without holes.
    pub seq: u64,
    /// How many chunks there will be, if the tool said so.
    pub chunks_expected: Option<u64>,
    /// What it is.
    pub kind: Kind,
    /// What it is about.
    pub key: u8,
    /// What the tool sent at once goes on in the next chunk.
    pub more: bool,
    /// Payload bytes of the execution before this chunk.
    pub offset: u64,
    /// The payload.
    pub data: &'a [u8],
    /// When it was published, on the monotonic clock.
    pub published_at: Instant,
    anchor: ClockAnchor,
}

impl<'a> Chunk<'a> {
    /// From what the ring holds; `None` if another process wrote nonsense there.
    #[inline]
    pub(super) fn new(
        execution: ExecutionId,
        chunks_expected: Option<u64>,
        descriptor: &Descriptor,
        data: &'a [u8],
        anchor: ClockAnchor,
    ) -> Option<Chunk<'a>> {
        Some(Chunk {
            execution,
            seq: descriptor.seq,
            chunks_expected,
            kind: Kind::new(descriptor.header.kind)?,
            key: descriptor.header.key,
            more: descriptor.header.flags & CHUNK_MORE != 0,
            offset: descriptor.total_bytes.wrapping_sub(u64::from(descriptor.length)),
            data,
            published_at: Instant::from_nanos(descriptor.mono_ns),
            anchor,
        })
    }

    /// When it was published, in µs since 1970.
    pub fn timestamp_us(&self) -> u64 {
        self.anchor.wall_us_at(self.published_at.nanos())
    }
}

/// How far the tool is, and what it says to that.
#[derive(Clone, Copy, Debug)]
pub struct Reported<'a> {
    /// In numbers.
    pub progress: Progress,
    /// In words.
    pub message: Option<&'a str>,
    /// In JSON: what the tool thinks worth knowing.
    pub context: Option<&'a str>,
}

/// The last word.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// How it ended, and what the subscriber had been given and had missed.
    pub end: End,
    /// What went wrong, if the execution failed.
    pub error: Option<&'a str>,
}

/// Codes for words in shared memory; 0 is "not".
pub(crate) fn code_of_outcome(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Completed => 1,
        Outcome::Failed => 2,
        Outcome::Cancelled => 3,
        Outcome::TimedOut => 4,
    }
}

pub(crate) fn outcome_of_code(code: u8) -> Option<Outcome> {
    [Outcome::Completed, Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut]
        .into_iter()
        .find(|&outcome| code_of_outcome(outcome) == code)
}

pub(crate) fn code_of_detach(reason: DetachReason) -> u32 {
    match reason {
        DetachReason::Lag => 1,
        DetachReason::Stall => 2,
        DetachReason::Shutdown => 3,
        DetachReason::Evicted => 4,
        DetachReason::Lost => 5,
        DetachReason::Removed => 6,
    }
}

pub(super) fn detach_of_code(code: u32) -> Option<DetachReason> {
    DetachReason::ALL.into_iter().find(|&reason| code_of_detach(reason) == code)
}

/// How a process ended, as one number that is not 0.
pub(crate) fn code_of_exit(exit: Exit) -> u64 {
    let (kind, number) = match exit {
        Exit::Code(code) => (1, code),
        Exit::Signal(signal) => (2, signal),
    };
    kind << 32 | u64::from(number as u32)
}

/// The inverse; the number may come from another process.
#[cfg(feature = "server")]
pub(crate) fn exit_of_code(code: u64) -> Option<Exit> {
    let number = code as u32 as i32;
    match code >> 32 {
        1 => Some(Exit::Code(number)),
        2 => Some(Exit::Signal(number)),
        _ => None,
    }
}

/// Is this the execution's own end, and which?
pub fn outcome_of(end: &End) -> Option<Outcome> {
    match end.state {
        EndState::Ended(outcome) => Some(outcome),
        EndState::Detached { .. } => None,
    }
}
