//! What is known of a run: after each step, and at its end.
//!
//! A [`State`] is made from parts alone, by [`crate::agent::Fold`]: the run's own hooks are shown
//! what every client can know, and whether a provider streams or answers in one piece makes no
//! difference to it.

use std::fmt;
use std::time::Duration;

use crate::agent::message::Usage;
use crate::agent::model::FinishReason;
use crate::agent::part::{Arguments, CancelReason};
use crate::base::ExecutionId;
use crate::engine::{Exit, Outcome};

/// A run, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Which run.
    pub agent_id: String,
    /// What the user wants.
    pub task: String,
    /// The model that is asked.
    pub model: String,
    /// The steps that are over.
    pub steps: Vec<StepState>,
    /// What all turns have cost.
    pub usage: Usage,
    /// How it ended, if it has.
    pub end: Option<End>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// How.
    pub how: Ended,
    /// Why.
    pub reason: Reason,
    /// How long it took, in µs.
    pub duration_us: u64,
}

/// How a run ended: as its last part says.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// By itself, or at one of its limits: the reason says which.
    Completed,
    /// It could not go on.
    Failed(Failure),
    /// Somebody stopped it.
    Cancelled(CancelReason),
}

/// A step that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct StepState {
    /// From 1.
    pub number: u32,
    /// All that the model said.
    pub text: String,
    /// It said more: some deltas were missed, or it is too long.
    pub text_truncated: bool,
    /// The calls that it made, in its order.
    pub tool_calls: Vec<ToolExecution>,
    /// How its turn ended; `None` if it did not come to an end of its own.
    pub finish_reason: Option<FinishReason>,
    /// Does the run go on, and why?
    pub outcome: Continuation,
    /// What the turn has cost, if the provider says so.
    pub usage: Option<Usage>,
    /// How long it took, in µs.
    pub duration_us: u64,
}

/// One call of a tool, when it is over.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolExecution {
    /// The call's id.
    pub tool_call_id: String,
    /// The tool.
    pub name: String,
    /// The tool's own execution, if it was started.
    pub execution: Option<ExecutionId>,
    /// What it was given.
    pub arguments: Arguments,
    /// What it said, as the model is told.
    pub output: String,
    /// It said more.
    pub output_truncated: bool,
    /// How many bytes it said in all.
    pub output_bytes: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// How its process ended, if it ran one.
    pub exit: Option<Exit>,
    /// What went wrong, if something did.
    pub error: Option<String>,
    /// When it was started (if never: when it was called), in µs since 1970.
    pub started_us: u64,
    /// How long it took, in µs.
    pub duration_us: u64,
}

/// A step, as its last part says it.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// From 1.
    pub number: u32,
    /// What the model said.
    pub text: String,
    /// It said more.
    pub text_truncated: bool,
    /// Its calls, in the model's order.
    pub tool_calls: Vec<StepCall>,
    /// There were more of them.
    pub tool_calls_truncated: bool,
    /// How its turn ended; `None` (`null`) if it did not come to an end of its own.
    pub finish_reason: Option<FinishReason>,
    /// How long it took, in µs.
    pub duration_us: u64,
}

/// A call, as the end of its step says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepCall {
    /// Its id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// Does a run go on after a step, and why?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Does it?
    pub decision: Decision,
    /// Why.
    pub reason: Reason,
}

/// Does a run go on?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is another step.
    Continue,
    /// There is none.
    Stop,
}

/// Why a run goes on after a step, or does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It goes on: the model is told what its calls have given.
    ToolCalls,
    /// It goes on: the provider wants to be asked again.
    Paused,
    /// The model is done.
    Stop,
    /// The model had no room for more.
    Length,
    /// The provider has suppressed the rest.
    ContentFilter,
    /// The model will not.
    Refusal,
    /// The model ended for a reason of its provider's.
    Other(String),
    /// There were as many steps as there may be.
    StepsMax,
    /// The turns have cost as many tokens as they may.
    TokensMax,
    /// It took as long as it may.
    DurationMax,
    /// It has said as many bytes as it may.
    BytesMax,
    /// The next turn would have to be told more bytes than it may.
    ConversationMax,
    /// A hook wanted it to stop, for this reason.
    Hook(String),
    /// It could not go on.
    Failed,
    /// Somebody stopped it.
    Cancelled(CancelReason),
}

/// What went wrong with a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// A short name: the provider's own, or ours for what went wrong between.
    pub code: String,
    /// In words.
    pub message: String,
    /// The same run might do better later.
    pub is_retryable: bool,
}

/// A run at its end, as its last part says it.
#[derive(Clone, Debug, PartialEq)]
pub struct FinalState {
    /// Steps that it took.
    pub step_count: u32,
    /// What the model said in the last of them.
    pub text: String,
    /// It said more.
    pub text_truncated: bool,
    /// What all turns have cost.
    pub usage: Usage,
    /// Why it ended.
    pub reason: Reason,
    /// Calls of all steps.
    pub tool_call_count: u32,
    /// How long it took, in µs.
    pub duration_us: u64,
}

impl State {
    /// What the model said in the last step: the answer, if the run came to its end.
    pub fn text(&self) -> &str {
        self.steps.last().map_or("", |step| &step.text)
    }

    /// Calls of all steps.
    pub fn tool_call_count(&self) -> usize {
        self.steps.iter().map(|step| step.tool_calls.len()).sum()
    }

    /// The same without what differs from run to run although the work is the same: times, and
    /// the ids of executions. Equal runs are equal in this.
    #[must_use]
    pub fn without_times(&self) -> State {
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
    /// The name, as every wire spells it.
    pub fn name(self) -> &'static str {
        match self {
            Decision::Continue => "continue",
            Decision::Stop => "stop",
        }
    }
}

impl Reason {
    /// Those without words of their own.
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

    /// The name, as every wire spells it.
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

    /// Words that belong to it: `detail` in JSON.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Reason::Other(text) | Reason::Hook(text) => Some(text),
            _ => None,
        }
    }

    /// Is it one of the run's own limits?
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
    /// How the execution ends whose work the run is.
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

/// As every wire spells a duration: whole µs.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
