//! What is said to a model and by it, in terms of no wire.
//!
//! A conversation is a list of [`Message`]s, oldest first. What a wire wants back in its own words
//! (signed thoughts, encrypted reasoning) is kept verbatim in [`ReasoningBlock`]s and in
//! [`CallMade::extra`], and is left out where another wire is spoken.

use std::ops::AddAssign;

use serde_json::Value;

use crate::agent::model::Wire;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// How the model is to behave.
    System(String),
    /// What somebody asks.
    User(String),
    /// What the model said.
    Assistant(AssistantMessage),
    /// What came of one of its calls.
    Tool(ToolResult),
}

/// What a model said in one turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AssistantMessage {
    /// Its text; may be empty.
    pub text: String,
    /// The tools that it called, in the order in which it did.
    pub calls: Vec<CallMade>,
    /// What its wire wants back verbatim, in the order in which it came.
    pub reasoning: Vec<ReasoningBlock>,
}

/// A call of a tool, as a model made it.
#[derive(Clone, Debug, PartialEq)]
pub struct CallMade {
    /// What its result is to refer to.
    pub id: String,
    /// The tool's name as it is known here; a wire's own spelling of it never gets this far.
    pub name: String,
    /// JSON as the model wrote it, which may be none.
    pub arguments: String,
    /// What came with the call and has to go back with it, e.g. Google's thought signature.
    pub extra: Option<Value>,
}

/// Something that a wire wants back verbatim, and where it stood.
#[derive(Clone, Debug, PartialEq)]
pub struct ReasoningBlock {
    /// Who wants it back.
    pub wire: Wire,
    /// As it came: a block of content, an item of output, or fields of a message.
    pub value: Value,
    /// So many bytes of the message's text stood before it, ...
    pub text_bytes: usize,
    /// ... and so many of its calls.
    pub call_count: usize,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult {
    /// The call's id.
    pub call_id: String,
    /// What the model is told.
    pub output: String,
    /// It is the text of an error.
    pub is_error: bool,
}

/// A tool, as a model is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDescription {
    /// Its name here. Wires that take fewer characters are given another one.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON schema of its arguments.
    pub schema: Value,
}

/// Tokens that were counted. Within a turn a later count takes the place of an earlier one; counts
/// of several turns are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All that the model read, cached or not.
    pub input_tokens: u64,
    /// All that it wrote, reasoning included.
    pub output_tokens: u64,
    /// Of these, its reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Of what it read, what it had read before.
    pub cached_input_tokens: Option<u64>,
}

impl AddAssign for Usage {
    /// Adds another turn's. What only one of them knows is as that one says.
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
