//! A server that knows no agents tells no front ends of them: there is no format, so whatever takes
//! one is never reached.

use std::convert::Infallible;

use serde_json::Value;

use crate::wire::events;

/// There is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {}

/// Those that nobody follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Channels;

/// What an execution and what belongs to it would be called.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    /// The conversation.
    pub thread_id: String,
    /// The run.
    pub run_id: String,
    /// What the tool was given.
    pub arguments: Value,
}

/// What would be streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A run of an agent.
    Agent,
    /// Any other tool.
    Tool,
}

/// Who would read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Somebody who has nothing of it.
    New,
    /// Somebody who has read all that is before.
    Returning,
}

/// What a subscriber is told.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// What was agreed.
    Started(&'a events::Started<'a>),
    /// A piece of a result.
    Chunk(&'a events::Chunk<'a>),
    /// What will not come.
    Gap(&'a events::Gap<'a>),
    /// How far the tool is.
    Progress(&'a events::Progress<'a>),
    /// The last.
    End(&'a events::End<'a>),
}

/// What the last event came from that a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The part, or chunk.
    pub part: u64,
    /// It was told when that part was opened again.
    pub is_reopened: bool,
}

/// Nobody has one.
#[derive(Debug)]
pub struct Front(Infallible);

/// There is no wrong one either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// Which parameter is wrong.
    pub parameter: &'static str,
    /// What it may be.
    pub allowed: &'static str,
}

#[expect(missing_docs, reason = "see what is there with agents")]
impl Format {
    pub fn from_parameters(
        _format: &str,
        _sdk_version: Option<&str>,
        _spelling: Option<&str>,
    ) -> Result<Format, FormatError> {
        unreachable!("no such name is read")
    }

    pub fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {}
    }

    pub fn event_of(self, _id: &str, _execution: &str) -> Option<u64> {
        match self {}
    }
}

#[expect(missing_docs, reason = "see what is there with agents")]
impl Names {
    pub fn new(_execution: &str, _tool: &str) -> Names {
        Names::default()
    }
}

#[expect(missing_docs, reason = "see what is there with agents")]
impl Front {
    pub fn new(format: Format, _names: Names, _source: Source) -> Front {
        match format {}
    }

    pub fn set_channels(&mut self, _channels: Channels) {
        match self.0 {}
    }

    pub fn set_run(&mut self, _ordinal: u32) {
        match self.0 {}
    }

    pub fn set_since(&mut self, _since: u64) -> Option<Since> {
        match self.0 {}
    }

    pub fn write(&mut self, _item: Item<'_>, _out: &mut Vec<u8>) {
        match self.0 {}
    }

    pub fn write_passed_over(&mut self, _tools: &[String], _out: &mut Vec<u8>) {
        match self.0 {}
    }

    pub fn prime(&mut self, _item: Item<'_>) {
        match self.0 {}
    }

    pub fn reopen(&mut self, _reader: Reader, _out: &mut Vec<u8>) {
        match self.0 {}
    }
}

/// Bodies of requests: all of them are in our own words.
pub(in crate::endpoint) mod bodies {
    use serde_json::Value;

    use crate::endpoint::{ApiError, FrontRun, front};

    /// A run, as its client asks for it.
    #[derive(Debug)]
    #[expect(dead_code, reason = "there are no other words")]
    pub enum Run {
        Own(Value),
        Front { members: Value, format: front::Format, front: FrontRun },
    }

    pub fn run_of(body: Value) -> Result<Run, ApiError> {
        Ok(Run::Own(body))
    }
}
