//! A scripted model server: a script says what it answers, how fast, and how it misbehaves. It
//! speaks OpenAI's Chat Completions, OpenAI's Responses and Anthropic's Messages, as streams and as
//! documents.
//!
//! [`Script`] is the parsed file. [`ScriptedModel`] counts the requests. Each connection is a
//! [`ScriptConnection`]: bytes go in, bytes come out, and a deadline says when it has more to send.
//! Nothing here uses a socket or a clock; `streamdoor model-script`, the simulator and tests
//! provide them. The turn depends on the request's content alone, so conversations need no memory.
//! Only `attempt` and `request` are counted.
//!
//! Deliberately absent: a deadline for slow clients. Each connection has bounded memory, and the
//! reactor bounds the number of connections.
//!
//! # Scripts
#![doc = include_str!("format.md")]

mod answer;
mod connection;
#[cfg(test)]
mod connection_tests;
mod encode;
#[cfg(test)]
mod encode_tests;
mod file;
mod pieces;
mod request;

use std::time::Duration;

pub use connection::{ScriptConnection, ScriptedModel};
pub use file::ScriptError;
pub use request::ModelRequest;

use super::model::Wire;

/// The description of the script format for people.
pub const FORMAT: &str = include_str!("format.md");

/// The answers of a scripted model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// The names of models; if empty, every name is accepted.
    pub models: Vec<String>,
    /// The key that a request must carry.
    pub key: Option<String>,
    /// True if a request for a stream is answered with a document.
    pub plain: bool,
    /// The turns, in the order of the file.
    pub turns: Vec<Turn>,
}

/// One answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// The condition of the turn. Turns without a condition answer the steps of a conversation in
    /// order.
    pub when: Option<When>,
    /// The events of the answer, in order.
    pub events: Vec<ScriptEvent>,
    /// Number of bytes of the body after which the connection is closed.
    pub cut_after_bytes: Option<u64>,
}

/// Conditions on a request. All that are set must hold.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "each is described in `format.md`")]
pub struct When {
    pub step: Option<u64>,
    pub tool_results: Option<u64>,
    pub user: Option<String>,
    pub system: Option<String>,
    pub result: Option<String>,
    pub model: Option<String>,
    pub wire: Option<Wire>,
    pub attempt: Option<u64>,
    pub request: Option<u64>,
    pub stream: Option<bool>,
}

/// An event of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ScriptEvent {
    /// The model writes text.
    Text(Speech),
    /// The model reasons.
    Reasoning(Speech),
    /// The model refuses.
    Refusal(Speech),
    /// The model calls a tool.
    Call {
        /// The id of the call; generated if `None`.
        id: Option<String>,
        /// The name of the tool.
        name: String,
        /// The arguments: JSON, or text that is not JSON.
        arguments: Speech,
    },
    /// A pause of this duration.
    Pause(Duration),
    /// A keep-alive frame.
    Ping,
    /// The token counts, sent instead of counted ones.
    Usage(ScriptedUsage),
    /// The end of the answer, for this reason.
    Finish(Finish),
    /// The end of the answer by an error, in the middle of the stream.
    Error {
        /// The type of the error, e.g. `overloaded_error`.
        kind: String,
        /// A message for people.
        message: String,
    },
    /// A document with a status instead of a stream.
    Status(ScriptedStatus),
    /// Bytes that are sent as they are.
    Raw(Vec<u8>),
    /// A broken end.
    Cut(Cut),
    /// Silence forever; the connection stays open.
    Hang,
}

/// A text that is sent token by token.
#[derive(Clone, Debug, PartialEq)]
pub struct Speech {
    /// The whole text.
    pub text: String,
    /// The size of a token.
    pub tokens: Tokens,
    /// The delay after each token.
    pub pace: Duration,
    /// The number of times the text is sent.
    pub repeat: u64,
}

/// The size of the tokens of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// A word with the white space behind it.
    Words,
    /// The whole text.
    Whole,
    /// This many characters, at least 1.
    Characters(usize),
}

/// The token counts that a model reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the field")]
pub struct ScriptedUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub reasoning_tokens: Option<u64>,
    pub cached_input_tokens: Option<u64>,
}

/// The reason for the end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the field")]
pub enum Finish {
    Stop,
    ToolCalls,
    Length,
    ContentFilter,
    Refusal,
    Pause,
}

/// An answer with another status than 200, or with a body given by the script.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptedStatus {
    /// The HTTP status, from 200 to 999.
    pub status: u16,
    /// Additional headers, sent as they are.
    pub headers: Vec<(String, String)>,
    /// The type of the error; if `None`, it follows from the status.
    pub kind: Option<String>,
    /// A message for people.
    pub message: String,
    /// The body, sent instead of the wire's error.
    pub body: Option<String>,
}

/// The place at which a stream is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The connection is closed immediately.
    Connection,
    /// The connection is closed within the next frame.
    Frame,
    /// The body ends properly, without the last frames.
    Answer,
}

impl Script {
    /// Returns the index of the turn for a request; `None` if the script has none.
    pub fn turn_for(&self, asked: &ModelRequest) -> Option<usize> {
        let turns = || self.turns.iter().enumerate();
        let meant = turns().find(|(_, turn)| turn.when.as_ref().is_some_and(|w| w.holds(asked)));
        let place = usize::try_from(asked.step.saturating_sub(1)).unwrap_or(usize::MAX);
        let next = || turns().filter(|(_, turn)| turn.when.is_none()).nth(place);
        meant.or_else(next).map(|(at, _)| at)
    }
}

impl When {
    fn holds(&self, asked: &ModelRequest) -> bool {
        let equal = |wanted: Option<u64>, is: u64| wanted.is_none_or(|wanted| wanted == is);
        let within = |wanted: &Option<String>, text: &str| {
            wanted.as_ref().is_none_or(|wanted| text.contains(wanted.as_str()))
        };
        equal(self.step, asked.step)
            && equal(self.tool_results, asked.tool_results)
            && equal(self.attempt, asked.attempt)
            && equal(self.request, asked.request)
            && within(&self.user, &asked.user)
            && within(&self.system, &asked.system)
            && within(&self.result, &asked.result)
            && within(&self.model, &asked.model)
            && self.wire.is_none_or(|wire| wire == asked.wire)
            && self.stream.is_none_or(|stream| stream == asked.stream)
    }
}
