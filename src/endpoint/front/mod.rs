//! The formats of front ends by other authors: AI SDK, AG-UI and LangGraph, written from the same
//! log.
//!
//! A [`Front`] takes the items of a subscriber one by one, and writes what the client of one format
//! reads. `story.rs` turns items into operations whose order is valid whatever was lost before;
//! `op.rs` defines that order. A speller for each format writes them. Thus one place avoids
//! everything that clients refuse, and a format is a table of names.
//!
//! A stream may start in the middle. The items before its start that are still held are given to
//! [`Front::prime`], which writes nothing. [`Front::reopen`] then opens again what is open. If
//! earlier items were lost, later ones fill in what they know. For example, a call whose start is
//! lost gets its name from the first item that contains the name.
//!
//! Invariants, each checked in `check/`, which refuses what the real client refuses:
//! - F1: everything that is opened is closed before the end, and no event refers to anything that
//!   is not open.
//! - F2: one start comes first, and at most one end comes last; only the terminator follows it.
//! - F3: bytes written grow linearly in the bytes of the log, however small its chunks are.
//! - F4: for each open call, the memory kept is bounded by [`crate::limits`].
//!
//! [`ask`] reads the requests of these clients.
//!
//! Tests: `rules_tests.rs` (rule by rule), `random_tests.rs` (random logs), and
//! `tests/front_clients`, which runs the real clients.

mod ag_ui;
mod ai_sdk;
pub mod ask;
pub(crate) mod bodies;
mod call;
#[cfg(test)]
mod call_tests;
#[cfg(test)]
pub(crate) mod check;
mod format;
mod json;
mod langgraph;
mod op;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod runs;
mod story;

use serde_json::Value;

pub use format::{Channels, Format, FormatError, SdkVersion, Spelling};

use crate::agent;
use crate::wire::events;
use op::Op;
use story::Story;

/// The names by which a front end knows an execution and what belongs to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    /// The id of the execution.
    pub execution: String,
    /// The conversation: the client's name of it, or the id of the execution.
    pub thread_id: String,
    /// The run: the client's name of it, or the id of the execution.
    pub run_id: String,
    /// The id of the message that the run writes.
    pub message_id: String,
    /// The tool that runs.
    pub tool: String,
    /// The arguments of the tool, as far as the client may know them.
    pub arguments: Value,
}

impl Names {
    /// Derives all names from the id of the execution.
    pub fn new(execution: &str, tool: &str) -> Names {
        Names {
            execution: execution.to_owned(),
            thread_id: execution.to_owned(),
            run_id: execution.to_owned(),
            message_id: format!("msg-{execution}"),
            tool: tool.to_owned(),
            arguments: Value::Null,
        }
    }
}

/// The source of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A run of an agent: chunks are parts.
    Agent,
    /// Any other tool: a message with one call, whose output grows.
    Tool,
}

/// An item that a subscriber receives.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// The agreed terms.
    Started(&'a events::Started<'a>),
    /// A part of a run.
    Part(&'a agent::Part),
    /// A piece of a result. In a run of an agent it is read as a part.
    Chunk(&'a events::Chunk<'a>),
    /// Chunks that will not be delivered.
    Gap(&'a events::Gap<'a>),
    /// The progress of the tool.
    Progress(&'a events::Progress<'a>),
    /// The end of the stream.
    End(&'a events::End<'a>),
}

/// The reader of a stream that starts in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A reader that has nothing: what is open is sent in full.
    New,
    /// A reader that has everything before the start: what is open is only opened. Clients of AI
    /// SDK never resume in this sense. They read the stream from its start, as new readers.
    Returning,
}

/// Writes a log in one format. See the module's text.
#[derive(Debug)]
pub struct Front {
    names: Names,
    story: Story,
    speller: Speller,
}

/// The origin of the last event that a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The part or chunk it came from. The client may lack other events of that part.
    pub part: u64,
    /// True if the event was written when a stream was reopened after that part. The stream is then
    /// reopened there once more, as for a new reader, and the events that the client lacks are
    /// sent.
    pub is_reopened: bool,
}

#[derive(Debug)]
enum Speller {
    AiSdk(ai_sdk::AiSdk),
    AgUi(ag_ui::AgUi),
    LangGraph(langgraph::LangGraph),
}

impl Front {
    /// Creates a front for a stream of `source`.
    pub fn new(format: Format, names: Names, source: Source) -> Front {
        let speller = match format {
            Format::AiSdk { sdk } => Speller::AiSdk(ai_sdk::AiSdk::new(sdk)),
            Format::AgUi => Speller::AgUi(ag_ui::AgUi::default()),
            Format::LangGraph { spelling } => {
                Speller::LangGraph(langgraph::LangGraph::new(spelling))
            }
        };
        // A call's output is kept if the format sends it again as a whole.
        let keeps_outputs = matches!(format, Format::AiSdk { .. }) || source == Source::Tool;
        Front { story: Story::new(source, keeps_outputs), names, speller }
    }

    /// LangGraph: sets the number of the run in its thread. Event numbers grow from run to run,
    /// because a client keeps one number for all runs.
    pub fn set_run(&mut self, ordinal: u32) {
        if let Speller::LangGraph(speller) = &mut self.speller {
            speller.set_run(ordinal);
        }
    }

    /// LangGraph: writes only these channels. The numbers of events do not depend on the channels.
    pub fn set_channels(&mut self, channels: Channels) {
        if let Speller::LangGraph(speller) = &mut self.speller {
            speller.set_channels(channels);
        }
    }

    /// LangGraph: sets the last event that the client has read. Events up to it are not written
    /// again. Returns the origin of that event if it belongs to this run; the caller must replay
    /// the log from there.
    pub fn set_since(&mut self, since: u64) -> Option<Since> {
        match &mut self.speller {
            Speller::LangGraph(speller) => speller.set_since(since),
            Speller::AiSdk(_) | Speller::AgUi(_) => None,
        }
    }

    /// Returns the part or chunk from which the LangGraph event of this number came.
    pub fn part_of(event: u64) -> u64 {
        langgraph::part_of(event)
    }

    /// Appends the events of `item`, if it has any in this format.
    pub fn write(&mut self, item: Item<'_>, out: &mut Vec<u8>) {
        if let Speller::LangGraph(speller) = &mut self.speller {
            speller.begin(item);
        }
        let Front { names, story, speller } = self;
        story.take(item, names, &mut |op, time_us| speller.write(op, names, time_us, out));
    }

    /// AG-UI: appends the names of the page's own tools, which the server does not call.
    pub fn write_passed_over(&mut self, tools: &[String], out: &mut Vec<u8>) {
        if let Speller::AgUi(_) = &self.speller {
            ag_ui::write_passed_over(tools, out);
        }
    }

    /// Takes an item that is before the start of the stream.
    pub fn prime(&mut self, item: Item<'_>) {
        self.story.set_priming(true);
        if matches!(self.speller, Speller::LangGraph(_)) {
            self.write(item, &mut Vec::new());
        } else {
            self.story.take(item, &self.names, &mut |_, _| ());
        }
    }

    /// Appends the beginning of a stream whose start was primed.
    pub fn reopen(&mut self, reader: Reader, out: &mut Vec<u8>) {
        let Front { names, story, speller } = self;
        match speller {
            // The client's state has outlived the connection. The blocks of its message are counted
            // from the primed items. If the beginning of the message is lost, that count may be
            // wrong.
            Speller::LangGraph(speller) if reader == Reader::Returning => speller.go_on(),
            _ => {
                if let Speller::LangGraph(speller) = speller {
                    speller.reset();
                }
                if let Speller::AgUi(speller) = speller {
                    speller.set_reader(reader);
                }
                // A client of AI SDK creates its message anew whenever a stream starts.
                let reader = match speller {
                    Speller::AiSdk(_) => Reader::New,
                    Speller::AgUi(_) | Speller::LangGraph(_) => reader,
                };
                let mut tell = |op: &Op<'_>, time_us: u64| speller.write(op, names, time_us, out);
                story.reopen(reader, &mut tell);
            }
        }
        self.story.set_priming(false);
    }

    /// Returns the number of bytes kept of earlier items.
    pub fn kept_bytes(&self) -> usize {
        let speller_bytes = match &self.speller {
            Speller::LangGraph(speller) => speller.kept_bytes(),
            Speller::AiSdk(_) | Speller::AgUi(_) => 0,
        };
        self.story.kept_bytes() + speller_bytes
    }
}

impl Speller {
    fn write(&mut self, op: &Op<'_>, names: &Names, time_us: u64, out: &mut Vec<u8>) {
        match self {
            Speller::AiSdk(speller) => speller.write(op, names, out),
            Speller::AgUi(speller) => speller.write(op, names, time_us, out),
            Speller::LangGraph(speller) => speller.write(op, names, time_us, out),
        }
    }
}
