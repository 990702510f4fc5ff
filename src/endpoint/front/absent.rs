//! Stand-ins for a server without agents. It has no formats of front ends, so code that takes one
//! is never reached.

use std::convert::Infallible;

use serde_json::Value;

use crate::wire::events;

/// No format exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {}

/// A set of channels that no client follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Channels;

/// The names by which a front end knows an execution and what belongs to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    /// The conversation.
    pub thread_id: String,
    /// The run.
    pub run_id: String,
    /// The arguments of the tool.
    pub arguments: Value,
}

/// The source of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A run of an agent.
    Agent,
    /// Any other tool.
    Tool,
}

/// The reader of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A reader that has nothing.
    New,
    /// A reader that has everything before the start.
    Returning,
}

/// An item that a subscriber receives.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// The agreed terms.
    Started(&'a events::Started<'a>),
    /// A piece of a result.
    Chunk(&'a events::Chunk<'a>),
    /// Chunks that will not be delivered.
    Gap(&'a events::Gap<'a>),
    /// The progress of the tool.
    Progress(&'a events::Progress<'a>),
    /// The end of the stream.
    End(&'a events::End<'a>),
}

/// The origin of the last event that a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The part or chunk it came from.
    pub part: u64,
    /// True if the event was written when a stream was reopened after that part.
    pub is_reopened: bool,
}

/// A writer that cannot exist.
#[derive(Debug)]
pub struct Front(Infallible);

/// The error for an invalid parameter of a format. It never occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// The parameter that is wrong.
    pub parameter: &'static str,
    /// The values that it may have.
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

/// Bodies of requests. All of them have the server's own form.
pub(in crate::endpoint) mod bodies {
    use serde_json::Value;

    use crate::endpoint::{ApiError, FrontRun, front};

    /// A request for a run.
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
