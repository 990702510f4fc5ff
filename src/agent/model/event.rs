//! What a model's answer says, piece by piece, whichever wire it came over.

use crate::agent::message::{ReasoningBlock, Usage};

/// A piece of a model's answer.
///
/// Calls are numbered from 0 in the order in which they start. Each has one `CallStarted`, then any
/// number of `CallArguments`, then one `CallCompleted`; pieces of several calls may alternate.
/// [`ModelEvent::Finished`] comes exactly once, last, and after it no call is open.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelEvent {
    /// It says this next.
    Text(String),
    /// It thinks this next, or this summary of it.
    Reasoning(String),
    /// It begins to call a tool.
    CallStarted {
        /// Which call.
        index: u32,
        /// As the model names the call, if it does; two calls may have the same.
        id: Option<String>,
        /// The tool, by its name here; as the model wrote it if no tool is called so.
        name: String,
    },
    /// The arguments go on with this.
    CallArguments {
        /// Of which call.
        index: u32,
        /// Text of JSON, cut anywhere between characters.
        piece: String,
    },
    /// The model is done with this call's arguments. Whether they are JSON is another question:
    /// those of an answer that was cut short by a limit are not, and may be empty.
    CallCompleted {
        /// Which call.
        index: u32,
        /// What has to go back with it: [`CallMade::extra`](crate::agent::CallMade::extra).
        extra: Option<serde_json::Value>,
    },
    /// Something that has to go back with the message.
    Block(ReasoningBlock),
    /// How many tokens so far; takes the place of what was said before.
    Usage(Usage),
    /// The answer is complete.
    Finished(FinishReason),
}

/// Why a model stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It has said all that it wanted.
    Stop,
    /// It waits for what comes of its calls.
    ToolCalls,
    /// It had no room for more: what it said last is cut off.
    Length,
    /// Somebody between filtered it.
    ContentFilter,
    /// It declined.
    Refusal,
    /// It wants to be asked again with what it said so far.
    Paused,
    /// Something else, in the wire's words.
    Other(String),
}

impl FinishReason {
    /// As parts and clients spell it.
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
