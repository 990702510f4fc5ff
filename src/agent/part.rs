//! The parts of a run: the records that its readers receive while it happens and when it ends.
//!
//! Part `n` of a run is chunk `n` of its execution. The chunk's payload is the part's JSON on one
//! line: `type`, `seq`, `agent_id`, `step_number`, `timestamp_us`, then the fields of its type.
//!
//! [`Partial`] parts report progress; a reader that loses some of them loses no result. [`Final`]
//! parts report a complete result. Every part fits into one chunk, so long texts in final parts are
//! cut. A field `…_truncated` marks the cut, and the deltas before the part hold the whole text.
//!
//! The module [`order`](crate::agent::order) lists the guarantees for readers and checks them.
//! Tests: `part_tests.rs`.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::agent::message::Usage;
use crate::agent::state::{Continuation, Failure, FinalState, StepSummary, ToolExecution};
use crate::base::ExecutionId;
use crate::stream::{Gap, Kind};

/// One part of a run.
///
/// ```
/// use streamdoor::agents::{Body, RunPart, Partial};
/// let line = br#"{"type":"TextDelta","seq":3,"agent_id":"a1","step_number":1,
///     "timestamp_us":1700000000000000,"delta":"Hello","offset":0}"#;
/// let part = RunPart::parse(line)?;
/// assert_eq!((part.name(), part.seq), ("TextDelta", 3));
/// let Body::Partial(Partial::TextDelta { delta, .. }) = &part.body else { panic!() };
/// assert_eq!(delta, "Hello");
///
/// let mut json = Vec::new();
/// part.write_json(&mut json);
/// assert_eq!(RunPart::parse(&json)?, part);
/// # Ok::<(), streamdoor::agents::PartError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RunPart {
    /// The sequence number: 1, 2, 3 … without gaps.
    pub seq: u64,
    /// The id of the run.
    pub agent_id: Arc<str>,
    /// The number of the step, from 1; 0 before the first step.
    pub step_number: u32,
    /// The time of day, in µs since 1970.
    pub timestamp_us: u64,
    /// The content of the part.
    pub body: Body,
}

/// The content of a part.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A part that reports progress.
    Partial(Partial),
    /// A part that reports a result.
    Final(Final),
}

/// A part that reports progress.
#[derive(Clone, Debug, PartialEq)]
pub enum Partial {
    /// The run has started; always the first part.
    ExecutionStarted {
        /// The task: the user's last message.
        task: String,
        /// True if the task is longer.
        task_truncated: bool,
        /// The name of the model.
        model: String,
        /// The names of the tools that the model may call.
        tools: Vec<String>,
        /// True if the list of tools is longer.
        tools_truncated: bool,
    },
    /// A step has started: a turn of the model and the calls that it makes.
    StepStarted,
    /// More text of the model.
    TextDelta {
        /// The new text.
        delta: String,
        /// Number of bytes of this step's text before the delta.
        offset: u64,
        /// All of this step's text including the delta, if
        /// [`Config::accumulate`](crate::agent::Config) is set and it fits.
        accumulated_text: Option<String>,
        /// True if the accumulated text was requested and no longer fits.
        accumulated_truncated: bool,
    },
    /// More of the model's reasoning.
    ReasoningDelta {
        /// The new text.
        delta: String,
        /// Number of bytes of this step's reasoning before the delta.
        offset: u64,
    },
    /// The model has begun a tool call. Its arguments follow.
    ToolCallStarted {
        /// The id of the call in every part: the model's own id if that is printable and unique in
        /// the run, otherwise a generated one.
        tool_call_id: Arc<str>,
        /// The name of the tool.
        tool_name: Arc<str>,
    },
    /// More of a call's arguments, as the model writes them.
    ToolCallArgsDelta {
        /// The id of the call.
        tool_call_id: Arc<str>,
        /// A piece of JSON text.
        delta: String,
        /// Number of bytes of the arguments before the delta.
        offset: u64,
    },
    /// More of a tool's output.
    ToolOutputChunk {
        /// The id of the call.
        tool_call_id: Arc<str>,
        /// The tool's own execution, which a client can also subscribe to.
        execution: Option<ExecutionId>,
        /// The sequence number of the chunk in that execution. Several parts share it if the chunk
        /// did not fit into one part.
        output_seq: u64,
        /// Number of bytes of the tool's output before this piece.
        offset: u64,
        /// The kind of the chunk.
        kind: Kind,
        /// The bytes: `encoding` and `data` in JSON.
        data: Data,
        /// True if the next part continues the same item.
        more: bool,
    },
    /// The progress of a tool.
    ToolProgress {
        /// The id of the call.
        tool_call_id: Arc<str>,
        /// The reported progress.
        progress: PartProgress,
    },
    /// A gap in the output of a tool that was faster than the run and did not wait.
    Gap {
        /// The id of the call.
        tool_call_id: Arc<str>,
        /// The missed chunks.
        gap: Gap,
    },
}

/// A part that reports a result.
#[derive(Clone, Debug, PartialEq)]
pub enum Final {
    /// The arguments of a call are complete, and valid or not.
    ToolCallArgsCompleted {
        /// The id of the call.
        tool_call_id: Arc<str>,
        /// The name of the tool.
        tool_name: Arc<str>,
        /// The arguments.
        arguments: Arguments,
    },
    /// A tool has completed its work.
    ToolCallCompleted {
        /// The id of the call.
        tool_call_id: Arc<str>,
        /// The result of the call.
        execution: Box<ToolExecution>,
    },
    /// A tool failed, took too long, or was not started; `error` gives the reason.
    ToolCallFailed {
        /// The id of the call.
        tool_call_id: Arc<str>,
        /// The result of the call.
        execution: Box<ToolExecution>,
    },
    /// A tool was cancelled, or the run that it belongs to was stopped.
    ToolCallCancelled {
        /// The id of the call.
        tool_call_id: Arc<str>,
        /// The result of the call.
        execution: Box<ToolExecution>,
    },
    /// A step has ended, with all its calls.
    StepCompleted {
        /// The summary of the step.
        step: StepSummary,
        /// The decision whether the run continues, with its reason.
        outcome: Continuation,
        /// The token counts of the model's turn, if the provider reports them.
        usage: Option<Usage>,
    },
    /// The last part: the run came to its own end, or reached one of its limits.
    ExecutionCompleted {
        /// The final state of the run.
        final_state: FinalState,
    },
    /// The last part: the run failed.
    ExecutionFailed {
        /// The failure.
        error: Failure,
        /// The final state of the run.
        final_state: FinalState,
    },
    /// The last part: the run was cancelled.
    ExecutionCancelled {
        /// The reason.
        reason: CancelReason,
        /// The final state of the run.
        final_state: FinalState,
    },
}

/// Bytes of a tool's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Bytes that are valid UTF-8: `"encoding":"text"`.
    Text(String),
    /// Other bytes: `"encoding":"base64"`.
    Bytes(Vec<u8>),
}

/// The progress of a tool, as the tool reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartProgress {
    /// The amount done, in the tool's own unit.
    pub progress: f64,
    /// The total amount, if known.
    pub total: Option<f64>,
    /// The progress in percent.
    pub percentage: Option<f64>,
    /// A message for people.
    pub message: Option<String>,
    /// Further data from the tool.
    pub context: Option<Value>,
}

/// The arguments of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Arguments {
    /// A JSON object: `arguments` in JSON.
    Valid(Value),
    /// The front of an object's text that does not fit into the part: `arguments_text`, with
    /// `arguments_truncated`. [`crate::agent::Fold`] restores the object from the deltas.
    Cut(String),
    /// Invalid text that was given to no tool: `invalid_arguments`, possibly cut, and `problem`.
    Invalid {
        /// The text that the model wrote.
        text: String,
        /// True if the model wrote more.
        text_truncated: bool,
        /// The problem with the text.
        problem: String,
    },
}

/// The reason for which a run was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// A client cancelled the run.
    Cancelled,
    /// The run's execution took too long, or was silent for too long.
    TimedOut,
    /// The server shuts down.
    Shutdown,
}

impl CancelReason {
    /// All reasons.
    pub const ALL: [CancelReason; 3] =
        [CancelReason::Cancelled, CancelReason::TimedOut, CancelReason::Shutdown];

    /// Returns the name, which is the same on every wire.
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
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Data::Text(text) => text.as_bytes(),
            Data::Bytes(bytes) => bytes,
        }
    }
}

impl RunPart {
    /// Returns the name of the part's type, which is the same on every wire.
    pub fn name(&self) -> &'static str {
        match &self.body {
            Body::Partial(partial) => partial.name(),
            Body::Final(last) => last.name(),
        }
    }

    /// Returns the type as a number below 64. It is the key of the part's chunk, so a `conflate`
    /// subscriber receives the newest part of each type. Numbers never change.
    pub fn code(&self) -> u8 {
        match &self.body {
            Body::Partial(partial) => partial.code(),
            Body::Final(last) => last.code(),
        }
    }

    /// Returns the kind of the part's chunk.
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

    /// True if this is the last part of its run.
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

    /// Returns the id of the call that the part belongs to, if it belongs to one.
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

/// The name of every type, by its code.
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

/// Returns the name of the type with this code, which is also a chunk's key. A wire can name a
/// run's chunk without reading its payload.
pub fn part_name(code: u8) -> Option<&'static str> {
    PART_NAMES.get(usize::from(code)).copied()
}

impl Partial {
    /// Returns the name of the part's type, which is the same on every wire.
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
    /// Returns the name of the part's type, which is the same on every wire.
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
