//! Operations: what a front end receives, independent of the format.
//!
//! Their order is valid for every client:
//! - `Start` comes first, and `Close` last.
//! - One step is open at a time. All steps end before `End`.
//! - A step has one open block of prose at a time, and any number of open calls. All of them are
//!   closed before `StepEnd`.
//! - A call is `CallOpen`, any number of `CallArguments`, `CallReady`, any number of `OutputOp`,
//!   `ProgressOp` and `GapOp`, and `CallEnd`.

use serde_json::Value;

use super::call::FrontCall;
use crate::agent::Usage;
use crate::stream::{Exit, Outcome};

/// One operation.
#[derive(Debug)]
pub(super) enum Op<'a> {
    /// The start of the run, or of its continuation.
    Start,
    /// A step begins.
    StepStart { number: u32, model: &'a str },
    /// A block of prose begins.
    Open(Block),
    /// More text of the block; never empty.
    Delta { block: Block, text: &'a str },
    /// The block ends.
    Shut(Block),
    /// A call begins.
    CallOpen { call: &'a FrontCall, step: u32 },
    /// More of the arguments of a call; never empty.
    CallArguments { call: &'a FrontCall, text: &'a str },
    /// The arguments of a call are complete. If `is_sent`, all of them came as
    /// [`Op::CallArguments`].
    CallReady { call: &'a FrontCall, input: Input<'a>, is_sent: bool },
    /// More output of a call.
    Output { call: &'a FrontCall, output: OutputOp<'a> },
    /// The progress of a call or, without one, of the run.
    Progress { call: Option<&'a FrontCall>, progress: ProgressOp<'a> },
    /// Output of a call that will not come or, without a call, items of the stream.
    Gap { call: Option<&'a FrontCall>, gap: GapOp<'a> },
    /// A call ends.
    CallEnd { call: &'a FrontCall, end: CallEnd<'a> },
    /// The step ends.
    StepEnd(StepEnd<'a>),
    /// The run ends.
    End(&'a Ending),
    /// The stream ends before the run does. This block is open, if any.
    Detached { block: Option<Block>, reason: &'a str, resume_from: u64 },
    /// Nothing follows.
    Close,
}

/// A stretch of text or of reasoning in one step. Its name is its position, so that it is the same
/// for all readers of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub prose: Prose,
    /// The number of the step.
    pub step: u32,
    /// Bytes of this kind of prose that the step has before the block.
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prose {
    Text,
    Reasoning,
}

/// The arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Input<'a> {
    /// Valid arguments.
    Valid(&'a Value),
    /// The beginning of arguments whose rest was lost.
    Cut(&'a str),
    /// Invalid arguments. No tool was called with them.
    Invalid { text: &'a str, problem: &'a str },
    /// Arguments that were lost.
    Unknown,
}

/// A piece of a call's output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OutputOp<'a> {
    /// The text; never empty. Bytes that are not UTF-8 were replaced.
    pub text: &'a str,
    /// The kind of the output, by its name on the wire.
    pub kind: &'a str,
    /// Bytes of the output before this piece.
    pub offset: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProgressOp<'a> {
    pub progress: f64,
    pub total: Option<f64>,
    pub percentage: Option<f64>,
    pub message: Option<&'a str>,
    pub context: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GapOp<'a> {
    pub from_seq: u64,
    pub to_seq: u64,
    pub chunk_count: u64,
    pub byte_count: u64,
    pub reason: &'a str,
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CallEnd<'a> {
    pub outcome: Outcome,
    /// The output as the model receives it, or all that is known of it.
    pub output: &'a str,
    /// True if the output was longer.
    pub is_truncated: bool,
    /// Length of the whole output in bytes, if it is known.
    pub output_bytes: Option<u64>,
    pub exit: Option<Exit>,
    pub error: Option<&'a str>,
    pub duration_us: Option<u64>,
}

impl CallEnd<'_> {
    /// Returns the reason why the call failed, if it did.
    pub fn problem(&self) -> Option<String> {
        let said = self.error.map(str::to_owned);
        match self.outcome {
            Outcome::Completed => None,
            Outcome::Failed => said
                .or_else(|| self.exit.map(|exit| exit.to_string()))
                .or_else(|| Some("the tool has failed".to_owned())),
            Outcome::Cancelled => said.or_else(|| Some("it was cancelled".to_owned())),
            Outcome::TimedOut => said.or_else(|| Some("it took too long".to_owned())),
        }
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StepEnd<'a> {
    pub number: u32,
    /// `continue` or `stop`, with a reason; `None` if the end of the step was lost.
    pub decision: Option<(&'a str, &'a str)>,
    /// True if the model's turn was broken off. The end of the run gives the reason.
    pub is_broken: bool,
    pub usage: Option<Usage>,
    pub duration_us: Option<u64>,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ending {
    pub how: RunOutcome,
    /// The name of the reason.
    pub reason: String,
    pub usage: Option<Usage>,
    pub step_count: Option<u32>,
    pub model: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum RunOutcome {
    Completed,
    /// A limit of the run, or a hook, ended the run before the model did.
    Limited,
    Failed {
        code: String,
        message: String,
    },
    /// The run was cancelled on request.
    Cancelled,
    /// The run was stopped without a request. `code` says whether a time limit or the server
    /// stopped it.
    Stopped {
        code: &'static str,
        message: &'static str,
    },
}
