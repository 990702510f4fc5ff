//! The events of a model's answer, independent of the wire.

use crate::agent::message::{ReasoningBlock, Usage};

/// An event of a model's answer.
///
/// Calls are numbered from 0 in the order in which they start. Each has one `CallStarted`, then any
/// number of `CallArguments`, then one `CallCompleted`; pieces of several calls may alternate.
/// [`ModelEvent::Finished`] comes exactly once, last, and after it no call is open.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelEvent {
    /// More text of the answer.
    Text(String),
    /// More reasoning, or more of its summary.
    Reasoning(String),
    /// The model begins a tool call.
    CallStarted {
        /// The number of the call.
        index: u32,
        /// The id that the model gave the call, if any. Two calls may have the same id.
        id: Option<String>,
        /// The local name of the tool, or the name as the model wrote it if no tool has it.
        name: String,
    },
    /// More arguments of a call.
    CallArguments {
        /// The number of the call.
        index: u32,
        /// A piece of JSON text, split anywhere between characters.
        piece: String,
    },
    /// The arguments of a call are complete. They may still be invalid JSON: if a limit cut the
    /// answer short, they may be cut off or empty.
    CallCompleted {
        /// The number of the call.
        index: u32,
        /// The data that must go back with the call:
        /// [`CallMade::extra`](crate::agent::CallMade::extra).
        extra: Option<serde_json::Value>,
    },
    /// Data that must go back with the message.
    Block(ReasoningBlock),
    /// The token counts so far, which replace earlier ones.
    Usage(Usage),
    /// The answer is complete.
    Finished(FinishReason),
}

/// The reason for which a model stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model has finished.
    Stop,
    /// The model waits for the results of its calls.
    ToolCalls,
    /// The model reached a token limit: its last output is cut off.
    Length,
    /// A filter suppressed the rest of the answer.
    ContentFilter,
    /// The model refused.
    Refusal,
    /// The provider paused the turn and expects another request with the answer so far.
    Paused,
    /// Another reason, as the wire names it.
    Other(String),
}

impl FinishReason {
    /// Returns the name of the reason in parts and for clients.
    pub fn as_str(&self) -> &str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Length => "length",
            FinishReason::ContentFilter => "content_filter",
            FinishReason::Refusal => "refusal",
            FinishReason::Paused => "paused",
            FinishReason::Other(other) => other,
        }
    }
}
