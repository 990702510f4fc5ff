//! What can happen to a run, and what it wants: together its whole behaviour.
//!
//! Numbers of turns and calls are the run's own, from 1, each used once. What comes for one that is
//! over is passed over: it was on its way when the run gave it up.

use std::fmt;

use serde_json::Value;

use crate::agent::net_fault::NetFault;
use crate::agent::part::CancelReason;
use crate::base::ExecutionId;
use crate::engine::{Exit, Gap, Kind, Outcome};

/// A fact for [`crate::agent::Run::handle`].
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// The run may begin.
    Started,

    // --- The model's answer to `Action::Ask` ---
    /// Its head is there.
    Answered {
        /// To which turn.
        turn: u32,
        /// The status.
        status: u16,
        /// The header `Retry-After`.
        retry_after: Option<&'a str>,
        /// The header `retry-after-ms`.
        retry_after_ms: Option<&'a str>,
    },
    /// More of its body, while [`crate::agent::Run::wants_body`].
    Body {
        /// Of which turn.
        turn: u32,
        /// Cut anywhere.
        bytes: &'a [u8],
    },
    /// Its body is whole.
    BodyEnded {
        /// Of which turn.
        turn: u32,
    },
    /// It came to nothing, or not to its end.
    Broken {
        /// Of which turn.
        turn: u32,
        /// What happened.
        fault: NetFault,
    },

    // --- A tool, after `Action::Start` ---
    /// It runs.
    ToolStarted {
        /// Which call.
        call: u32,
        /// Its execution.
        execution: ExecutionId,
    },
    /// It was not started: the arguments do not fit its schema, there is no room, …
    ToolRefused {
        /// Which call.
        call: u32,
        /// Why, for the model.
        text: &'a str,
    },
    /// A chunk of its output, while [`crate::agent::Run::wants_output`].
    ToolChunk {
        /// Which call.
        call: u32,
        /// The chunk's number there.
        seq: u64,
        /// Bytes of the output before it.
        offset: u64,
        /// What it is.
        kind: Kind,
        /// The payload.
        bytes: &'a [u8],
        /// What belongs together goes on in the next chunk.
        more: bool,
    },
    /// How far it is.
    ToolProgress {
        /// Which call.
        call: u32,
        /// How far.
        progress: ToolProgress<'a>,
    },
    /// Output that was missed.
    ToolGap {
        /// Which call.
        call: u32,
        /// What was.
        gap: Gap,
    },
    /// It is over. Nothing more of it comes.
    ToolEnded {
        /// Which call.
        call: u32,
        /// How.
        outcome: Outcome,
        /// How its process ended, if it ran one.
        exit: Option<Exit>,
        /// What went wrong.
        error: Option<&'a str>,
    },

    // --- From outside ---
    /// Stop.
    Cancel(CancelReason),
    /// Time has come to look at the deadlines.
    Tick,
}

/// How far a tool is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ToolProgress<'a> {
    /// So much is done.
    pub progress: f64,
    /// Of so much, if that is known.
    pub total: Option<f64>,
    /// How much of the whole that is, in percent.
    pub percentage: Option<f64>,
    /// In words.
    pub message: Option<&'a str>,
    /// What else the tool said, as JSON.
    pub context: Option<&'a str>,
}

/// A wish of a run.
#[derive(Clone, PartialEq)]
pub enum Action {
    /// Send this to the model's server, and say what comes back. Never while another turn is open.
    Ask {
        /// What the exchange is called from now on.
        turn: u32,
        /// A whole HTTP/1.1 request, head and body, with the key in it.
        request: Vec<u8>,
    },
    /// Close the exchange's connection at once: nothing more of it is wanted.
    HangUp {
        /// Which.
        turn: u32,
    },
    /// The exchange's answer was read to its end, although its body has not ended yet: nothing
    /// more of it is wanted, and if the body ends soon, the connection can be used again.
    Release {
        /// Which.
        turn: u32,
    },
    /// Start a tool.
    Start {
        /// What the call is called from now on.
        call: u32,
        /// Which tool.
        tool: String,
        /// An object. Whether it fits the tool's schema is for the tool's side to check.
        arguments: Value,
    },
    /// Stop a tool: nothing more of it is wanted, not even its end.
    Stop {
        /// Which call.
        call: u32,
    },
}

impl fmt::Debug for Action {
    /// Without the bytes of a request: the key is among them.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Ask { turn, request } => write!(out, "Ask({turn}, {} bytes)", request.len()),
            Action::HangUp { turn } => write!(out, "HangUp({turn})"),
            Action::Release { turn } => write!(out, "Release({turn})"),
            Action::Start { call, tool, arguments } => {
                write!(out, "Start({call}, {tool}, {arguments})")
            }
            Action::Stop { call } => write!(out, "Stop({call})"),
        }
    }
}
