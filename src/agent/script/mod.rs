//! A model that follows a script: what it says, how fast, and how it misbehaves. It speaks OpenAI's
//! chat completions, OpenAI's Responses and Anthropic's Messages, as streams and as plain answers.
//!
//! [`Script`] is the file, read. [`Model`] counts what came; each connection is a [`Connection`]:
//! bytes in, bytes out, and a time at which it has more to say. Nothing here knows a socket or a
//! clock: `streamdoor model-script` gives it both, the simulator and tests give it theirs. What a
//! turn is depends on the request's content alone, so a thousand conversations need no memory of
//! them. (`attempt` and `request` do count.)
//!
//! Absent: connections that were kept waiting by a slow client longer than it likes. Each has a
//! bounded memory, and the reactor bounds their number.
//!
//! # Scripts
#![doc = include_str!("format.md")]

mod answer;
mod asked;
mod connection;
#[cfg(test)]
mod connection_tests;
mod file;
mod pieces;
mod spell;
#[cfg(test)]
mod spell_tests;

use std::time::Duration;

pub use asked::Asked;
pub use connection::{Connection, Model};
pub use file::ScriptError;

use super::model::Wire;

/// What a script is, for people.
pub const FORMAT: &str = include_str!("format.md");

/// What a scripted model says, and when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// The names of models; any, if there is none.
    pub models: Vec<String>,
    /// Who asks has to have it.
    pub key: Option<String>,
    /// It answers in one piece also who asks for a stream.
    pub plain: bool,
    /// In the order of the file.
    pub turns: Vec<Turn>,
}

/// One answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// Whom it is for; without it, whoever has come so far in his conversation.
    pub when: Option<When>,
    /// What happens, in this order.
    pub events: Vec<Event>,
    /// The connection is closed behind so many bytes of the body.
    pub cut_after_bytes: Option<u64>,
}

/// Conditions on a request. All that are there must hold.
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

/// What a model does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It says something.
    Text(Speech),
    /// It thinks.
    Reasoning(Speech),
    /// It refuses.
    Refusal(Speech),
    /// It calls a tool.
    Call {
        /// Its name for this call; else one is made up.
        id: Option<String>,
        /// Which tool.
        name: String,
        /// With what: JSON, or what it takes for JSON.
        arguments: Speech,
    },
    /// Nothing, for so long.
    Pause(Duration),
    /// A sign of life.
    Ping,
    /// What it wants to be paid for.
    Usage(UsageSaid),
    /// The end, for this reason.
    Finish(Finish),
    /// The end, in the middle of the stream.
    Error {
        /// Its name, as `overloaded_error`.
        kind: String,
        /// In words.
        message: String,
    },
    /// Another answer than a stream.
    Status(StatusSaid),
    /// Bytes that may be anything.
    Raw(Vec<u8>),
    /// The end, and not in good order.
    Cut(Cut),
    /// Nothing, for ever.
    Hang,
}

/// A text that comes in tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Speech {
    /// All of it.
    pub text: String,
    /// What comes at once.
    pub tokens: Tokens,
    /// How long until the next token.
    pub pace: Duration,
    /// So often.
    pub repeat: u64,
}

/// How a text is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// Behind each word's white space.
    Words,
    /// Not at all.
    Whole,
    /// Behind so many characters, at least 1.
    Characters(usize),
}

/// What a model says that it used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the field")]
pub struct UsageSaid {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub reasoning_tokens: Option<u64>,
    pub cached_input_tokens: Option<u64>,
}

/// Why an answer ends.
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

/// An answer with another status than 200, or a body of the script's own.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusSaid {
    /// 200 to 999.
    pub status: u16,
    /// Sent as they are.
    pub headers: Vec<(String, String)>,
    /// The error's name; else what goes with the status.
    pub kind: Option<String>,
    /// In words.
    pub message: String,
    /// Instead of an error as the wire spells it.
    pub body: Option<String>,
}

/// Where a stream is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The connection is closed here.
    Connection,
    /// It is closed within the next frame.
    Frame,
    /// The body ends in good order here.
    Answer,
}

impl Script {
    /// The turn for a request, by its place; `None`: the script has none for it.
    pub fn turn_for(&self, asked: &Asked) -> Option<usize> {
        let turns = || self.turns.iter().enumerate();
        let meant = turns().find(|(_, turn)| turn.when.as_ref().is_some_and(|w| w.holds(asked)));
        let place = usize::try_from(asked.step.saturating_sub(1)).unwrap_or(usize::MAX);
        let next = || turns().filter(|(_, turn)| turn.when.is_none()).nth(place);
        meant.or_else(next).map(|(at, _)| at)
    }
}

impl When {
    fn holds(&self, asked: &Asked) -> bool {
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
