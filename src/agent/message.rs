//! The messages of a conversation with a model, independent of any wire.
//!
//! A conversation is a list of [`Message`]s, oldest first. Some wires require data to be sent back
//! verbatim, such as signed thoughts or encrypted reasoning. [`ReasoningBlock`]s and
//! [`CallMade::extra`] hold this data; other wires leave it out.

use std::ops::AddAssign;

use serde_json::Value;

use crate::agent::model::Wire;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Instructions for the model.
    System(String),
    /// A message of the user.
    User(String),
    /// A message of the model.
    Assistant(AssistantMessage),
    /// The result of a tool call.
    Tool(ToolResult),
}

/// The message of a model in one turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AssistantMessage {
    /// The text; may be empty.
    pub text: String,
    /// The tool calls, in the order in which the model made them.
    pub calls: Vec<CallMade>,
    /// The data that the wire requires back verbatim, in the order in which it came.
    pub reasoning: Vec<ReasoningBlock>,
}

/// A tool call, as the model made it.
#[derive(Clone, Debug, PartialEq)]
pub struct CallMade {
    /// The id that the result of this call refers to.
    pub id: String,
    /// The tool's local name. A wire's own spelling of it is translated before it gets here.
    pub name: String,
    /// The arguments as the model wrote them. They may be invalid JSON.
    pub arguments: String,
    /// Data that came with the call and must go back with it, e.g. Google's thought signature.
    pub extra: Option<Value>,
}

/// Data that a wire requires back verbatim, and its position in the message.
#[derive(Clone, Debug, PartialEq)]
pub struct ReasoningBlock {
    /// The wire that requires it.
    pub wire: Wire,
    /// The data as it came: a content block, an output item, or fields of a message.
    pub value: Value,
    /// Number of bytes of the message's text before it.
    pub text_bytes: usize,
    /// Number of the message's calls before it.
    pub call_count: usize,
}

/// The result of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult {
    /// The call's id.
    pub call_id: String,
    /// The text for the model.
    pub output: String,
    /// True if `output` is the text of an error.
    pub is_error: bool,
}

/// The description of a tool for the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDescription {
    /// The local name. A wire that allows fewer characters uses a derived name.
    pub name: String,
    /// The purpose of the tool.
    pub description: String,
    /// The JSON schema of the arguments.
    pub schema: Value,
}

/// Token counts. Within a turn, a later count replaces an earlier one; the counts of several turns
/// are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of tokens that the model read, cached ones included.
    pub input_tokens: u64,
    /// Number of tokens that the model wrote, reasoning included.
    pub output_tokens: u64,
    /// The part of `output_tokens` that is reasoning.
    pub reasoning_tokens: Option<u64>,
    /// The part of `input_tokens` that came from the provider's cache.
    pub cached_input_tokens: Option<u64>,
}

impl AddAssign for Usage {
    /// Adds the counts of another turn. An optional count that only one of them has is taken from
    /// that one.
    fn add_assign(&mut self, other: Usage) {
        let add = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.reasoning_tokens = add(self.reasoning_tokens, other.reasoning_tokens);
        self.cached_input_tokens = add(self.cached_input_tokens, other.cached_input_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_turns_are_added_and_what_is_not_known_stays_so() {
        let mut all = Usage::default();
        all += Usage { input_tokens: 3, output_tokens: 4, ..Usage::default() };
        assert_eq!((all.reasoning_tokens, all.cached_input_tokens), (None, None));
        all += Usage {
            input_tokens: u64::MAX,
            output_tokens: 1,
            reasoning_tokens: Some(1),
            cached_input_tokens: None,
        };
        all += Usage { reasoning_tokens: Some(2), ..Usage::default() };
        assert_eq!((all.input_tokens, all.output_tokens), (u64::MAX, 5));
        assert_eq!((all.reasoning_tokens, all.cached_input_tokens), (Some(3), None));
    }
}
