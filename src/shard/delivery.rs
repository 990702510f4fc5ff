//! The deliveries to a subscriber, which are the same for every kind of subscriber.

use crate::base::{ExecutionId, Instant};
use crate::memory::{CHUNK_MORE, ClockAnchor, Descriptor};
use crate::stream::{DetachReason, End, EndState, Exit, Gap, Kind, Outcome, Progress};

/// One delivery to a subscriber. Deliveries come in the order of the log, and the last one is
/// `End`.
///
/// ```
/// use streamdoor::Delivery;
///
/// fn show(delivery: Delivery<'_>) {
///     match delivery {
///         Delivery::Chunk(chunk) => println!("chunk {}: {} bytes", chunk.seq, chunk.data.len()),
///         Delivery::Gap(gap) => println!("missed {} to {}", gap.from_seq, gap.to_seq),
///         Delivery::Progress(reported) => println!("{} done", reported.progress.progress),
///         Delivery::End(ended) => println!("{}", ended.end.state),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Delivery<'a> {
    /// A piece of the result.
    Chunk(Chunk<'a>),
    /// The exact range of chunks that the subscriber will not be given.
    Gap(Gap),
    /// The progress of the tool.
    Progress(Reported<'a>),
    /// The end: nothing more comes.
    End(Ended<'a>),
}

/// A piece of a result. Its bytes are borrowed until the subscriber is used again.
///
/// ```
/// use streamdoor::{Chunk, Kind};
///
/// fn print(chunk: Chunk<'_>) {
///     match chunk.kind {
///         Kind::Stderr => eprint!("{}", String::from_utf8_lossy(chunk.data)),
///         _ => print!("{}", String::from_utf8_lossy(chunk.data)),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The execution that published it.
    pub execution: ExecutionId,
    /// Its number: 1, 2, 3 …, without holes.
    pub seq: u64,
    /// Total number of chunks that the tool will publish, if it has said so.
    pub chunks_expected: Option<u64>,
    /// The kind of the chunk.
    pub kind: Kind,
    /// The key for `conflate`, below 64.
    pub key: u8,
    /// True if the next chunk continues what the tool sent in one call.
    pub more: bool,
    /// Number of payload bytes of the execution before this chunk.
    pub offset: u64,
    /// The payload; empty if the subscriber reads headers only.
    pub data: &'a [u8],
    /// The time of its publication, on the monotonic clock.
    pub published_at: Instant,
    anchor: ClockAnchor,
}

impl<'a> Chunk<'a> {
    /// Creates a chunk from the contents of a ring. `None` if another process wrote an unknown kind
    /// there.
    #[inline]
    pub(crate) fn new(
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

    /// Turns into the chunk behind it, of the same kind and time.
    #[inline(always)]
    pub(crate) fn become_next(&mut self, descriptor: &Descriptor, data: &'a [u8]) {
        self.seq = descriptor.seq;
        self.offset = descriptor.total_bytes.wrapping_sub(u64::from(descriptor.length));
        self.data = data;
    }

    /// Returns the time of its publication, in µs since 1970.
    pub fn timestamp_us(&self) -> u64 {
        self.anchor.wall_us_at(self.published_at.nanos())
    }
}

/// The progress of a tool, with its texts.
///
/// ```
/// use streamdoor::Reported;
///
/// fn show(reported: Reported<'_>) {
///     let percentage = reported.progress.percentage().unwrap_or(0.0);
///     println!("{percentage:.0} % {}", reported.message.unwrap_or(""));
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Reported<'a> {
    /// The progress in numbers.
    pub progress: Progress,
    /// The message for people.
    pub message: Option<&'a str>,
    /// The context, as JSON from the tool.
    pub context: Option<&'a str>,
}

/// The end of a subscription.
///
/// ```
/// use streamdoor::{EndState, Ended, Outcome};
///
/// fn result(ended: Ended<'_>) -> Result<(), String> {
///     match ended.end.state {
///         EndState::Ended(Outcome::Completed) => Ok(()),
///         state => Err(ended.error.map_or_else(|| state.to_string(), str::to_owned)),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// The way in which it ended, with the totals of what the subscriber was given and what it
    /// missed.
    pub end: End,
    /// The error text, if the execution failed.
    pub error: Option<&'a str>,
}

/// Returns the code of an outcome in shared memory. 0 stands for no outcome.
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

/// Returns the exit status of a process as one number, which is never 0.
pub(crate) fn code_of_exit(exit: Exit) -> u64 {
    let (kind, number) = match exit {
        Exit::Code(code) => (1, code),
        Exit::Signal(signal) => (2, signal),
    };
    kind << 32 | u64::from(number as u32)
}

/// Returns the exit status for a number, which may come from another process.
pub(crate) fn exit_of_code(code: u64) -> Option<Exit> {
    let number = code as u32 as i32;
    match code >> 32 {
        1 => Some(Exit::Code(number)),
        2 => Some(Exit::Signal(number)),
        _ => None,
    }
}

/// Returns the outcome of the execution; `None` if only the subscription ended.
pub fn outcome_of(end: &End) -> Option<Outcome> {
    match end.state {
        EndState::Ended(outcome) => Some(outcome),
        EndState::Detached { .. } => None,
    }
}
