//! The end of an execution, and the end that each of its subscribers is told.

use std::fmt;

use crate::stream::{Exit, Totals};

/// The state of an execution.
///
/// ```
/// use streamdoor::{ExecutionState, Outcome};
///
/// assert_eq!(ExecutionState::Running.name(), "running");
/// assert_eq!(ExecutionState::Ended(Outcome::Failed).name(), "failed");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExecutionState {
    /// The execution waits for a ring.
    Queued,
    /// The execution has a ring. The tool runs, or waits for subscribers.
    Running,
    /// The tool has ended, and `block` subscribers still read.
    Draining,
    /// The execution is over. It can be read until its retention ends.
    Ended(Outcome),
}

/// The way in which an execution ended.
///
/// ```
/// use streamdoor::Outcome;
///
/// assert_eq!(Outcome::Completed.to_string(), "completed");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The tool has finished its work.
    Completed,
    /// The tool has failed.
    Failed,
    /// The execution was cancelled.
    Cancelled,
    /// The execution exceeded a time limit.
    TimedOut,
}

impl ExecutionState {
    /// True if the execution publishes nothing more.
    pub fn is_over(self) -> bool {
        matches!(self, ExecutionState::Draining | ExecutionState::Ended(_))
    }

    /// All states, in the order of a life.
    pub const ALL: [ExecutionState; 7] = [
        ExecutionState::Queued,
        ExecutionState::Running,
        ExecutionState::Draining,
        ExecutionState::Ended(Outcome::Completed),
        ExecutionState::Ended(Outcome::Failed),
        ExecutionState::Ended(Outcome::Cancelled),
        ExecutionState::Ended(Outcome::TimedOut),
    ];

    /// The name on every wire.
    pub fn name(self) -> &'static str {
        match self {
            ExecutionState::Queued => "queued",
            ExecutionState::Running => "running",
            ExecutionState::Draining => "draining",
            ExecutionState::Ended(outcome) => outcome.name(),
        }
    }
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Outcome; 4] =
        [Outcome::Completed, Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut];

    /// The name on every wire.
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

/// The final report to one subscriber.
///
/// ```
/// use streamdoor::End;
///
/// /// True if the subscriber was given every chunk that it asked for.
/// fn is_whole(end: &End) -> bool {
///     end.missed.chunks == 0 && end.given == end.published
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// The way in which it ended.
    pub state: EndState,
    /// Totals of the chunks that the subscriber was given.
    pub given: Totals,
    /// Totals of the chunks that its gaps counted.
    pub missed: Totals,
    /// Totals of all published chunks of the subscriber's kinds, from chunk 1 to its place. At the
    /// execution's end these are all chunks, otherwise those before `resume_from`. Chunks that it
    /// was given over earlier connections are included.
    pub published: Totals,
    /// Time for which the subscriber was attached, in µs.
    pub duration_us: u64,
    /// The exit status of the process that the tool ran, if it ran one.
    pub exit: Option<Exit>,
}

/// The way in which an execution ended for one subscriber.
///
/// ```
/// use streamdoor::{EndState, Outcome};
///
/// assert_eq!(EndState::Ended(Outcome::TimedOut).to_string(), "timed_out");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndState {
    /// The execution is over. The subscriber was given every chunk, or was told of it in a gap.
    Ended(Outcome),
    /// The subscriber was detached. The execution continues without it.
    Detached {
        /// The reason for the detachment.
        reason: DetachReason,
        /// The first chunk that the subscriber was neither given nor told of in a gap.
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

/// The reason why a subscriber was detached before the execution's end.
///
/// ```
/// use streamdoor::DetachReason;
///
/// assert_eq!(DetachReason::Lag.name(), "lag");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DetachReason {
    /// The lag exceeded its limit under `disconnect`.
    Lag,
    /// The subscriber held the producer back past the deadline.
    Stall,
    /// The connection broke and did not come back in time, the closure panicked, or the shard died.
    Lost,
    /// The server shuts down.
    Shutdown,
    /// The ring was needed for another execution, the retention is over, or the reader wrote an
    /// impossible cursor into shared memory.
    Evicted,
    /// The subscriber's owner removed it.
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

    /// The name on every wire.
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
