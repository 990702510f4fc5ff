//! What a front end is told, in terms of no format.
//!
//! Operations come in an order that every client takes: `Start` first; one step at a time; within
//! it one block of prose at a time, and any number of calls, each `CallOpen`, `CallArguments`*,
//! `CallReady`, (`Output` | `Progress` | `Gap`)*, `CallEnd`; all of them closed before `StepEnd`;
//! all steps before `End`; `Close` last.

use serde_json::Value;

use super::call::Call;
use crate::agent::Usage;
use crate::engine::{Exit, Outcome};

/// One thing that a front end is told.
#[derive(Debug)]
pub(super) enum Op<'a> {
    /// The run goes on from here.
    Start,
    /// A step begins.
    StepStart { number: u32, model: &'a str },
    /// A block of prose begins.
    Open(Block),
    /// More of it; never empty.
    Delta { block: Block, text: &'a str },
    /// It ends.
    Shut(Block),
    /// A call begins.
    CallOpen { call: &'a Call, step: u32 },
    /// More of its arguments; never empty.
    CallArguments { call: &'a Call, text: &'a str },
    /// Its arguments are there. If `is_told`, all of them were [`Op::CallArguments`].
    CallReady { call: &'a Call, input: Input<'a>, is_told: bool },
    /// More of its output.
    Output { call: &'a Call, output: Output<'a> },
    /// How far it is; or, of no call, the run.
    Progress { call: Option<&'a Call>, progress: Progress<'a> },
    /// What will not come: of a call's output, or of the stream.
    Gap { call: Option<&'a Call>, gap: Gap<'a> },
    /// A call is over.
    CallEnd { call: &'a Call, end: CallEnd<'a> },
    /// The step is over.
    StepEnd(StepEnd<'a>),
    /// The run is over.
    End(&'a Ending),
    /// The stream ends before the run does, while this block is open.
    Detached { block: Option<Block>, reason: &'a str, resume_from: u64 },
    /// Nothing comes any more.
    Close,
}

/// A stretch of text, or of thoughts, of one step. It is named after where it begins, so that
/// everybody who reads the same log calls it the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub prose: Prose,
    /// Of which step.
    pub step: u32,
    /// Bytes of the step's prose of this sort before it.
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prose {
    Text,
    Reasoning,
}

/// Arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Input<'a> {
    /// Good ones.
    Valid(&'a Value),
    /// The front of good ones: the rest was lost.
    Cut(&'a str),
    /// No tool was given these.
    Invalid { text: &'a str, problem: &'a str },
    /// They were lost.
    Unknown,
}

/// A piece of a call's output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Output<'a> {
    /// What is not UTF-8 was replaced; never empty.
    pub text: &'a str,
    /// What it is, in the words of every wire.
    pub kind: &'a str,
    /// Bytes of the output before it.
    pub offset: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Progress<'a> {
    pub progress: f64,
    pub total: Option<f64>,
    pub percentage: Option<f64>,
    pub message: Option<&'a str>,
    pub context: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap<'a> {
    pub from_seq: u64,
    pub to_seq: u64,
    pub chunk_count: u64,
    pub byte_count: u64,
    pub reason: &'a str,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CallEnd<'a> {
    pub outcome: Outcome,
    /// What the model is told, or all that is known of it.
    pub output: &'a str,
    /// There was more.
    pub is_truncated: bool,
    /// How much there was, if that is known.
    pub output_bytes: Option<u64>,
    pub exit: Option<Exit>,
    pub error: Option<&'a str>,
    pub duration_us: Option<u64>,
}

impl CallEnd<'_> {
    /// Why it has no result, if it has none.
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

/// What came of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StepEnd<'a> {
    pub number: u32,
    /// `continue` or `stop`, and why; `None` if its end was lost.
    pub decision: Option<(&'a str, &'a str)>,
    /// The model's turn came to no end of its own: the run's end says why.
    pub is_broken: bool,
    pub usage: Option<Usage>,
    pub duration_us: Option<u64>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ending {
    pub how: How,
    /// Why: the name of a reason.
    pub reason: String,
    pub usage: Option<Usage>,
    pub step_count: Option<u32>,
    pub model: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum How {
    Completed,
    Failed {
        code: String,
        message: String,
    },
    /// Somebody wanted it to stop.
    Cancelled,
    /// It was stopped although nobody wanted that: `code` says whether by time or by the server.
    Stopped {
        code: &'static str,
        message: &'static str,
    },
}
