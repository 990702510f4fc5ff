//! The input and output of a run: its events and its actions.
//!
//! The run numbers exchanges (`exchange`) and calls (`call`) from 1 and uses each number once. A
//! retry of a model's turn is a new exchange. An event for an exchange or call that is over is
//! ignored, because it may have been in flight when the run gave it up.

use std::fmt;

use serde_json::Value;

use crate::agent::net_fault::NetFault;
use crate::agent::part::CancelReason;
use crate::base::ExecutionId;
use crate::stream::{Exit, Gap, Kind, Outcome};

/// An event for [`crate::agent::RunMachine::handle`].
#[derive(Clone, Debug)]
pub enum RunEvent<'a> {
    /// The run begins.
    Started,

    // --- The model's answer to `RunAction::Ask` ---
    /// The head of the answer was received.
    Answered {
        /// The exchange.
        exchange: u32,
        /// The HTTP status.
        status: u16,
        /// The value of the header `Retry-After`.
        retry_after: Option<&'a str>,
        /// The value of the header `retry-after-ms`.
        retry_after_ms: Option<&'a str>,
    },
    /// More bytes of the body, sent while [`crate::agent::RunMachine::wants_body`].
    Body {
        /// The exchange.
        exchange: u32,
        /// The bytes, split at any place.
        bytes: &'a [u8],
    },
    /// The body is complete.
    BodyEnded {
        /// The exchange.
        exchange: u32,
    },
    /// The exchange failed, before or during the answer.
    Broken {
        /// The exchange.
        exchange: u32,
        /// The fault.
        fault: NetFault,
    },

    // --- A tool, after `RunAction::Start` ---
    /// The tool was started.
    ToolStarted {
        /// The call.
        call: u32,
        /// The execution of the tool.
        execution: ExecutionId,
    },
    /// The tool was not started, e.g. because the arguments do not match its schema or no room is
    /// left.
    ToolRefused {
        /// The call.
        call: u32,
        /// The reason, as text for the model.
        text: &'a str,
    },
    /// A chunk of the tool's output, sent while [`crate::agent::RunMachine::wants_output`].
    ToolChunk {
        /// The call.
        call: u32,
        /// The sequence number of the chunk in the tool's execution.
        seq: u64,
        /// Number of output bytes before this chunk.
        offset: u64,
        /// The kind of the chunk.
        kind: Kind,
        /// The payload.
        bytes: &'a [u8],
        /// True if the next chunk continues the same item.
        more: bool,
    },
    /// The tool reported progress.
    ToolProgress {
        /// The call.
        call: u32,
        /// The progress.
        progress: ToolProgress<'a>,
    },
    /// Output of the tool was missed.
    ToolGap {
        /// The call.
        call: u32,
        /// The missed chunks.
        gap: Gap,
    },
    /// The tool has ended. No further event follows for this call.
    ToolEnded {
        /// The call.
        call: u32,
        /// The outcome of the execution.
        outcome: Outcome,
        /// The exit of the tool's process, if it ran one.
        exit: Option<Exit>,
        /// The error, if the tool reported one.
        error: Option<&'a str>,
    },

    // --- From outside ---
    /// The run is cancelled.
    Cancel(CancelReason),
    /// Time has passed: the run checks its deadlines.
    Tick,
}

/// The progress of a tool, as the tool reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ToolProgress<'a> {
    /// The amount done, in the tool's own unit.
    pub progress: f64,
    /// The total amount, if known.
    pub total: Option<f64>,
    /// The progress in percent.
    pub percentage: Option<f64>,
    /// A message for people.
    pub message: Option<&'a str>,
    /// Further data from the tool, as JSON text.
    pub context: Option<&'a str>,
}

/// An action that the driver of a run carries out.
#[derive(Clone, PartialEq)]
pub enum RunAction {
    /// Sends a request to the model's server. The driver reports the answer as events. At most one
    /// exchange is open at a time.
    Ask {
        /// The number of the new exchange.
        exchange: u32,
        /// A complete HTTP/1.1 request, head and body. It contains the key.
        request: Vec<u8>,
    },
    /// Closes the connection of an exchange immediately. Nothing more of it is needed.
    HangUp {
        /// The exchange.
        exchange: u32,
    },
    /// Releases an exchange: its answer is complete, although its body has not ended yet. If the
    /// body ends soon, the connection can be reused.
    Release {
        /// The exchange.
        exchange: u32,
    },
    /// Starts a tool.
    Start {
        /// The number of the new call.
        call: u32,
        /// The name of the tool.
        tool: String,
        /// The arguments, a JSON object. The tool's side checks it against the schema.
        arguments: Value,
    },
    /// Stops a tool. Nothing more of it is needed, not even its end.
    Stop {
        /// The call.
        call: u32,
    },
    /// Reports the progress of the run in words.
    Report {
        /// A message for people.
        message: String,
    },
}

impl fmt::Debug for RunAction {
    /// Writes a request as its length only, because it contains the key.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunAction::Ask { exchange, request } => {
                write!(out, "Ask({exchange}, {} bytes)", request.len())
            }
            RunAction::HangUp { exchange } => write!(out, "HangUp({exchange})"),
            RunAction::Release { exchange } => write!(out, "Release({exchange})"),
            RunAction::Start { call, tool, arguments } => {
                write!(out, "Start({call}, {tool}, {arguments})")
            }
            RunAction::Stop { call } => write!(out, "Stop({call})"),
            RunAction::Report { message } => write!(out, "Report({message})"),
        }
    }
}
