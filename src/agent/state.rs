//! The state of a run, after each step and at its end.
//!
//! [`crate::agent::Fold`] builds a [`RunState`] from parts alone. The run's own hooks therefore see
//! the same state as its clients. Whether a provider streams makes no difference to it.

use std::fmt;
use std::time::Duration;

use crate::agent::message::Usage;
use crate::agent::model::FinishReason;
use crate::agent::part::{Arguments, CancelReason};
use crate::base::ExecutionId;
use crate::stream::{Exit, Outcome};

/// A run, as far as its parts are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunState {
    /// The id of the run.
    pub agent_id: String,
    /// The task: the user's last message.
    pub task: String,
    /// The name of the model.
    pub model: String,
    /// The completed steps.
    pub steps: Vec<StepState>,
    /// The sum of the token counts of all turns.
    pub usage: Usage,
    /// The end of the run, if it has ended.
    pub end: Option<RunEnd>,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEnd {
    /// The outcome.
    pub how: Ended,
    /// The reason.
    pub reason: Reason,
    /// The duration, in µs.
    pub duration_us: u64,
}

/// The outcome of a run, as reported by its last part.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// The run ended by itself or at one of its limits; the reason says which.
    Completed,
    /// The run failed.
    Failed(Failure),
    /// The run was cancelled.
    Cancelled(CancelReason),
}

/// A completed step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepState {
    /// The number of the step, from 1.
    pub number: u32,
    /// All text of the model in this step.
    pub text: String,
    /// True if the model wrote more text: some deltas were missed, or the text is too long.
    pub text_truncated: bool,
    /// The tool calls, in the model's order.
    pub tool_calls: Vec<ToolExecution>,
    /// The reason for which the model stopped; `None` if its turn was broken off.
    pub finish_reason: Option<FinishReason>,
    /// The decision whether the run continues, with its reason.
    pub outcome: Continuation,
    /// The token counts of the turn, if the provider reports them.
    pub usage: Option<Usage>,
    /// The duration, in µs.
    pub duration_us: u64,
}

/// A completed call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolExecution {
    /// The id of the call.
    pub tool_call_id: String,
    /// The name of the tool.
    pub name: String,
    /// The tool's own execution, if it was started.
    pub execution: Option<ExecutionId>,
    /// The arguments of the call.
    pub arguments: Arguments,
    /// The output of the tool, shortened as for the model.
    pub output: String,
    /// True if the tool wrote more output.
    pub output_truncated: bool,
    /// Number of bytes of all output.
    pub output_bytes: u64,
    /// The outcome of the call.
    pub outcome: Outcome,
    /// The exit of the tool's process, if it ran one.
    pub exit: Option<Exit>,
    /// The error, if there was one.
    pub error: Option<String>,
    /// The time at which the tool was started, in µs since 1970. For a tool that was never started,
    /// the time of the call.
    pub started_us: u64,
    /// The duration, in µs.
    pub duration_us: u64,
}

/// The summary of a step in its last part.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSummary {
    /// The number of the step, from 1.
    pub number: u32,
    /// The text of the model.
    pub text: String,
    /// True if the model wrote more text.
    pub text_truncated: bool,
    /// The tool calls, in the model's order.
    pub tool_calls: Vec<StepCall>,
    /// True if the list of calls is longer.
    pub tool_calls_truncated: bool,
    /// The reason for which the model stopped; `None` (`null`) if its turn was broken off.
    pub finish_reason: Option<FinishReason>,
    /// The duration, in µs.
    pub duration_us: u64,
}

/// The summary of a call in the last part of its step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepCall {
    /// The id of the call.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The outcome of the call.
    pub outcome: Outcome,
}

/// The decision whether a run continues after a step, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The decision.
    pub decision: Decision,
    /// The reason.
    pub reason: Reason,
}

/// Whether a run continues after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Another step follows.
    Continue,
    /// No step follows.
    Stop,
}

/// The reason for which a run continues after a step, or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The run continues: the model receives the results of its calls.
    ToolCalls,
    /// The run continues: the provider paused the turn and expects another request.
    Paused,
    /// The model has finished.
    Stop,
    /// The model reached a token limit.
    Length,
    /// The provider suppressed the rest of the answer.
    ContentFilter,
    /// The model refused.
    Refusal,
    /// The model stopped for a reason specific to its provider.
    Other(String),
    /// The run reached its maximum number of steps.
    StepsMax,
    /// The run reached its maximum number of tokens.
    TokensMax,
    /// The run reached its maximum duration.
    DurationMax,
    /// The run exceeded its maximum number of streamed bytes.
    BytesMax,
    /// The messages for the next turn exceed their maximum size.
    ConversationMax,
    /// A hook stopped the run, for this reason.
    Hook(String),
    /// The run failed.
    Failed,
    /// The run was cancelled.
    Cancelled(CancelReason),
}

/// The failure of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// A short name: the provider's own, or one of this crate for a failure in between.
    pub code: String,
    /// A message for people.
    pub message: String,
    /// True if the same run can succeed later.
    pub is_retryable: bool,
}

/// The state of a run in its last part.
#[derive(Clone, Debug, PartialEq)]
pub struct FinalState {
    /// Number of steps.
    pub step_count: u32,
    /// The text of the model in the last step.
    pub text: String,
    /// True if the model wrote more text.
    pub text_truncated: bool,
    /// The sum of the token counts of all turns.
    pub usage: Usage,
    /// The reason for the end.
    pub reason: Reason,
    /// Number of calls in all steps.
    pub tool_call_count: u32,
    /// The duration, in µs.
    pub duration_us: u64,
}

impl RunState {
    /// Returns the text of the last step, which is the answer if the run came to its own end.
    pub fn text(&self) -> &str {
        self.steps.last().map_or("", |step| &step.text)
    }

    /// Number of calls in all steps.
    pub fn tool_call_count(&self) -> usize {
        self.steps.iter().map(|step| step.tool_calls.len()).sum()
    }

    /// Returns a copy without the values that differ between runs of equal work: times, and the ids
    /// of executions. Equal runs have equal copies.
    #[must_use]
    pub fn without_times(&self) -> RunState {
        let mut state = self.clone();
        if let Some(end) = &mut state.end {
            end.duration_us = 0;
        }
        for step in &mut state.steps {
            step.duration_us = 0;
            for call in &mut step.tool_calls {
                (call.execution, call.started_us, call.duration_us) = (None, 0, 0);
            }
        }
        state
    }
}

impl Decision {
    /// Returns the name, which is the same on every wire.
    pub fn name(self) -> &'static str {
        match self {
            Decision::Continue => "continue",
            Decision::Stop => "stop",
        }
    }
}

impl Reason {
    /// The reasons that carry no text of their own.
    pub(super) const PLAIN: [Reason; 15] = [
        Reason::ToolCalls,
        Reason::Paused,
        Reason::Stop,
        Reason::Length,
        Reason::ContentFilter,
        Reason::Refusal,
        Reason::StepsMax,
        Reason::TokensMax,
        Reason::DurationMax,
        Reason::BytesMax,
        Reason::ConversationMax,
        Reason::Failed,
        Reason::Cancelled(CancelReason::Cancelled),
        Reason::Cancelled(CancelReason::TimedOut),
        Reason::Cancelled(CancelReason::Shutdown),
    ];

    /// Returns the name, which is the same on every wire.
    pub fn name(&self) -> &'static str {
        match self {
            Reason::ToolCalls => "tool_calls",
            Reason::Paused => "paused",
            Reason::Stop => "stop",
            Reason::Length => "length",
            Reason::ContentFilter => "content_filter",
            Reason::Refusal => "refusal",
            Reason::Other(_) => "other",
            Reason::StepsMax => "steps_max",
            Reason::TokensMax => "tokens_max",
            Reason::DurationMax => "duration_max",
            Reason::BytesMax => "bytes_max",
            Reason::ConversationMax => "conversation_bytes_max",
            Reason::Hook(_) => "hook",
            Reason::Failed => "failed",
            Reason::Cancelled(reason) => reason.name(),
        }
    }

    /// Returns the text that belongs to the reason: `detail` in JSON.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Reason::Other(text) | Reason::Hook(text) => Some(text),
            _ => None,
        }
    }

    /// True if the reason is one of the run's own limits.
    pub fn is_limit(&self) -> bool {
        matches!(
            self,
            Reason::StepsMax
                | Reason::TokensMax
                | Reason::DurationMax
                | Reason::BytesMax
                | Reason::ConversationMax
        )
    }
}

impl Ended {
    /// Returns the outcome of the execution that carries out the run.
    pub fn outcome(&self) -> Outcome {
        match self {
            Ended::Completed => Outcome::Completed,
            Ended::Failed(_) => Outcome::Failed,
            Ended::Cancelled(CancelReason::TimedOut) => Outcome::TimedOut,
            Ended::Cancelled(_) => Outcome::Cancelled,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Failure {}

/// Returns the duration in whole µs, the unit of every wire.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
