//! The parts of a run: what its readers are told while it happens, and when it is over.
//!
//! Part `n` of a run is chunk `n` of its execution, and its JSON is the chunk's payload: one line,
//! `type`, `seq`, `agent_id`, `step_number`, `timestamp_us`, then the fields of its own.
//!
//! [`Partial`] parts tell of what goes on: who loses some of them loses no result. [`Final`] parts
//! tell of what is over, and say all of it. Because every part fits one chunk, long texts in final
//! parts are cut, which a field `…_truncated` says; the whole is in the deltas before them.
//!
//! What a reader can rely on is a list in `order.rs`, which also checks it. Tests:
//! `part_tests.rs`.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::agent::message::Usage;
use crate::agent::state::{Continuation, Failure, FinalState, Step, ToolExecution};
use crate::base::ExecutionId;
use crate::engine::{Gap, Kind};

/// One part of a run.
///
/// ```
/// use streamdoor::agent::{Body, Part, Partial};
/// let line = br#"{"type":"TextDelta","seq":3,"agent_id":"a1","step_number":1,
///     "timestamp_us":1700000000000000,"delta":"Hello","offset":0}"#;
/// let part = Part::parse(line)?;
/// assert_eq!((part.name(), part.seq), ("TextDelta", 3));
/// let Body::Partial(Partial::TextDelta { delta, .. }) = &part.body else { panic!() };
/// assert_eq!(delta, "Hello");
///
/// let mut json = Vec::new();
/// part.write_json(&mut json);
/// assert_eq!(Part::parse(&json)?, part);
/// # Ok::<(), streamdoor::agent::PartError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// 1, 2, 3 … without holes.
    pub seq: u64,
    /// Which run.
    pub agent_id: Arc<str>,
    /// In which step, from 1; 0 before the first.
    pub step_number: u32,
    /// When, in µs since 1970.
    pub timestamp_us: u64,
    /// What.
    pub body: Body,
}

/// What a part tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Something goes on.
    Partial(Partial),
    /// Something is over.
    Final(Final),
}

/// Something goes on.
#[derive(Clone, Debug, PartialEq)]
pub enum Partial {
    /// The run has begun: always the first part.
    ExecutionStarted {
        /// What the user wants: the last words of his.
        task: String,
        /// The task is longer.
        task_truncated: bool,
        /// The model that is asked.
        model: String,
        /// Names of the tools that it may call.
        tools: Vec<String>,
        /// There are more of them.
        tools_truncated: bool,
    },
    /// A step has begun: a turn of the model, and the calls that it makes.
    StepStarted,
    /// More text of the model.
    TextDelta {
        /// The text.
        delta: String,
        /// Bytes of this step's text before it.
        offset: u64,
        /// All of this step's text including the delta, if the run was asked to say so, for as
        /// long as it fits.
        accumulated_text: Option<String>,
        /// It was to be said and does not fit any more.
        accumulated_truncated: bool,
    },
    /// More of what the model thinks aloud.
    ReasoningDelta {
        /// The text.
        delta: String,
        /// Bytes of this step's reasoning before it.
        offset: u64,
    },
    /// The model begins to call a tool. Its arguments follow.
    ToolCallStarted {
        /// What the call is called in every other part: the model's own id where that is unique
        /// in the run, and fit to be printed.
        tool_call_id: Arc<str>,
        /// The tool.
        tool_name: Arc<str>,
    },
    /// More of a call's arguments, as the model writes them.
    ToolCallArgsDelta {
        /// Which call.
        tool_call_id: Arc<str>,
        /// A piece of JSON text.
        delta: String,
        /// Bytes of the arguments before it.
        offset: u64,
    },
    /// More of a tool's output.
    ToolOutputChunk {
        /// Which call.
        tool_call_id: Arc<str>,
        /// The tool's own execution, which can be followed, too.
        execution: Option<ExecutionId>,
        /// The number of the chunk there. Several parts have the same if a chunk did not fit one.
        output_seq: u64,
        /// Bytes of the tool's output before it.
        offset: u64,
        /// What it is.
        kind: Kind,
        /// The bytes: `encoding` and `data` in JSON.
        data: Data,
        /// What belongs together goes on in the next one.
        more: bool,
    },
    /// How far a tool is.
    ToolProgress {
        /// Which call.
        tool_call_id: Arc<str>,
        /// How far.
        progress: ProgressSaid,
    },
    /// Output of a tool that was missed: it was faster than the run, and did not wait.
    Gap {
        /// Which call.
        tool_call_id: Arc<str>,
        /// What was missed.
        gap: Gap,
    },
}

/// Something is over.
#[derive(Clone, Debug, PartialEq)]
pub enum Final {
    /// All of a call's arguments are there, and good, or not.
    ToolCallArgsCompleted {
        /// Which call.
        tool_call_id: Arc<str>,
        /// The tool.
        tool_name: Arc<str>,
        /// The arguments.
        arguments: Arguments,
    },
    /// A tool has done its work.
    ToolCallCompleted {
        /// Which call.
        tool_call_id: Arc<str>,
        /// What came of it.
        execution: Box<ToolExecution>,
    },
    /// A tool could not, took too long, or was not even started: `error` says why.
    ToolCallFailed {
        /// Which call.
        tool_call_id: Arc<str>,
        /// What came of it.
        execution: Box<ToolExecution>,
    },
    /// Somebody stopped a tool, or the run it belongs to.
    ToolCallCancelled {
        /// Which call.
        tool_call_id: Arc<str>,
        /// What came of it.
        execution: Box<ToolExecution>,
    },
    /// A step is over, with all its calls.
    StepCompleted {
        /// What it was.
        step: Step,
        /// Does the run go on, and why?
        outcome: Continuation,
        /// What the model's turn has cost, if the provider says so.
        usage: Option<Usage>,
    },
    /// The last part: the run came to an end of its own, or to one of its limits.
    ExecutionCompleted {
        /// What came of it.
        final_state: FinalState,
    },
    /// The last part: the run could not go on.
    ExecutionFailed {
        /// Why.
        error: Failure,
        /// What came of it.
        final_state: FinalState,
    },
    /// The last part: somebody stopped the run.
    ExecutionCancelled {
        /// Why.
        reason: CancelReason,
        /// What came of it.
        final_state: FinalState,
    },
}

/// Bytes of a tool's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// They are UTF-8: `"encoding":"text"`.
    Text(String),
    /// They are not: `"encoding":"base64"`.
    Bytes(Vec<u8>),
}

/// How far a tool says it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProgressSaid {
    /// So much is done.
    pub progress: f64,
    /// Of so much, if that is known.
    pub total: Option<f64>,
    /// How much of the whole that is, in percent.
    pub percentage: Option<f64>,
    /// In words.
    pub message: Option<String>,
    /// What else the tool said.
    pub context: Option<Value>,
}

/// Arguments of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Arguments {
    /// An object: `arguments` in JSON.
    Valid(Value),
    /// An object that does not fit the part: `arguments_text`, the front of its text, with
    /// `arguments_truncated`. [`crate::agent::Fold`] puts it together from the deltas.
    Cut(String),
    /// Text that no tool was given: `invalid_arguments`, perhaps cut, and `problem`.
    Invalid {
        /// What the model wrote.
        text: String,
        /// It wrote more.
        text_truncated: bool,
        /// What is wrong with it.
        problem: String,
    },
}

/// Why a run was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// Somebody wanted it to stop.
    Cancelled,
    /// Its execution took too long, or was silent for too long.
    TimedOut,
    /// The server stops.
    Shutdown,
}

impl CancelReason {
    /// Every one.
    pub const ALL: [CancelReason; 3] =
        [CancelReason::Cancelled, CancelReason::TimedOut, CancelReason::Shutdown];

    /// The name, as every wire spells it.
    pub fn name(self) -> &'static str {
        match self {
            CancelReason::Cancelled => "cancelled",
            CancelReason::TimedOut => "timed_out",
            CancelReason::Shutdown => "shutdown",
        }
    }
}

impl fmt::Display for CancelReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl Data {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Data::Text(text) => text.as_bytes(),
            Data::Bytes(bytes) => bytes,
        }
    }
}

impl Part {
    /// The type's name, as every wire spells it.
    pub fn name(&self) -> &'static str {
        match &self.body {
            Body::Partial(partial) => partial.name(),
            Body::Final(last) => last.name(),
        }
    }

    /// The type as a number below 64: the key of its chunk, so that a `conflate` subscriber is
    /// given the newest of each type. Numbers never change.
    pub fn code(&self) -> u8 {
        match &self.body {
            Body::Partial(partial) => partial.code(),
            Body::Final(last) => last.code(),
        }
    }

    /// The kind of its chunk.
    pub fn kind(&self) -> Kind {
        match &self.body {
            Body::Partial(Partial::TextDelta { .. } | Partial::ReasoningDelta { .. }) => Kind::Text,
            Body::Partial(Partial::ToolCallStarted { .. }) => Kind::ToolCall,
            Body::Partial(Partial::ToolCallArgsDelta { .. })
            | Body::Final(Final::ToolCallArgsCompleted { .. }) => Kind::ToolArguments,
            Body::Partial(Partial::ToolOutputChunk { .. }) => Kind::Output,
            Body::Partial(_) | Body::Final(_) => Kind::Json,
        }
    }

    /// Is this the last part of its run?
    pub fn is_end(&self) -> bool {
        matches!(
            self.body,
            Body::Final(
                Final::ExecutionCompleted { .. }
                    | Final::ExecutionFailed { .. }
                    | Final::ExecutionCancelled { .. }
            )
        )
    }

    /// The call that it is about, if it is about one.
    pub fn tool_call_id(&self) -> Option<&Arc<str>> {
        match &self.body {
            Body::Partial(partial) => match partial {
                Partial::ToolCallStarted { tool_call_id, .. }
                | Partial::ToolCallArgsDelta { tool_call_id, .. }
                | Partial::ToolOutputChunk { tool_call_id, .. }
                | Partial::ToolProgress { tool_call_id, .. }
                | Partial::Gap { tool_call_id, .. } => Some(tool_call_id),
                Partial::ExecutionStarted { .. }
                | Partial::StepStarted
                | Partial::TextDelta { .. }
                | Partial::ReasoningDelta { .. } => None,
            },
            Body::Final(last) => match last {
                Final::ToolCallArgsCompleted { tool_call_id, .. }
                | Final::ToolCallCompleted { tool_call_id, .. }
                | Final::ToolCallFailed { tool_call_id, .. }
                | Final::ToolCallCancelled { tool_call_id, .. } => Some(tool_call_id),
                Final::StepCompleted { .. }
                | Final::ExecutionCompleted { .. }
                | Final::ExecutionFailed { .. }
                | Final::ExecutionCancelled { .. } => None,
            },
        }
    }
}

/// Every type's name, by its code.
pub const PART_NAMES: [&str; 17] = [
    "ExecutionStarted",
    "StepStarted",
    "TextDelta",
    "ReasoningDelta",
    "ToolCallStarted",
    "ToolCallArgsDelta",
    "ToolCallArgsCompleted",
    "ToolOutputChunk",
    "ToolProgress",
    "Gap",
    "ToolCallCompleted",
    "ToolCallFailed",
    "ToolCallCancelled",
    "StepCompleted",
    "ExecutionCompleted",
    "ExecutionFailed",
    "ExecutionCancelled",
];

/// The name of the type of that code, which is also a chunk's key: what a wire calls a chunk of a
/// run without looking into it.
pub fn part_name(code: u8) -> Option<&'static str> {
    PART_NAMES.get(usize::from(code)).copied()
}

impl Partial {
    /// The type's name, as every wire spells it.
    pub fn name(&self) -> &'static str {
        PART_NAMES[usize::from(self.code())]
    }

    fn code(&self) -> u8 {
        match self {
            Partial::ExecutionStarted { .. } => 0,
            Partial::StepStarted => 1,
            Partial::TextDelta { .. } => 2,
            Partial::ReasoningDelta { .. } => 3,
            Partial::ToolCallStarted { .. } => 4,
            Partial::ToolCallArgsDelta { .. } => 5,
            Partial::ToolOutputChunk { .. } => 7,
            Partial::ToolProgress { .. } => 8,
            Partial::Gap { .. } => 9,
        }
    }
}

impl Final {
    /// The type's name, as every wire spells it.
    pub fn name(&self) -> &'static str {
        PART_NAMES[usize::from(self.code())]
    }

    fn code(&self) -> u8 {
        match self {
            Final::ToolCallArgsCompleted { .. } => 6,
            Final::ToolCallCompleted { .. } => 10,
            Final::ToolCallFailed { .. } => 11,
            Final::ToolCallCancelled { .. } => 12,
            Final::StepCompleted { .. } => 13,
            Final::ExecutionCompleted { .. } => 14,
            Final::ExecutionFailed { .. } => 15,
            Final::ExecutionCancelled { .. } => 16,
        }
    }
}
