//! The same log for the front ends that others have written: AI SDK, AG-UI, LangGraph.
//!
//! A [`Front`] takes what a subscriber is told, item by item, and writes what the client of one
//! format wants to read. `story.rs` turns items into operations that are in order whatever was
//! lost before (`op.rs` says what that means); a speller for each format writes them down. So
//! what a client refuses is avoided in one place, and a format is a table of names.
//!
//! A stream that starts in the middle: the items that are still held before its start are given to
//! [`Front::prime`], which writes nothing, and [`Front::reopen`] then opens again what is open.
//! What was lost before that is replaced by what is known: a call whose start is gone gets its name
//! when somebody says it.
//!
//! Invariants, each restated by a checker in `check/` that refuses what the real client refuses:
//! - F1: whatever is opened is closed before the end, and nothing is told of what is not open.
//! - F2: there is one start, the first, and at most one end; behind it only the terminator.
//! - F3: bytes written grow linearly in the bytes of the log, however small its chunks are.
//! - F4: what is kept is bounded by [`crate::limits`], for each call that is open.
//!
//! What clients ask for is read by [`ask`].
//!
//! Tests: `rules_tests.rs` (rule by rule), `random_tests.rs` (logs that nobody has thought of),
//! and `tests/front_clients`, where the real clients read.

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

/// What an execution and what belongs to it are called to a front end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    /// The execution.
    pub execution: String,
    /// The conversation: the client's own name of it, or the execution's.
    pub thread_id: String,
    /// The run: the client's own name of it, or the execution's.
    pub run_id: String,
    /// The message that the run writes.
    pub message_id: String,
    /// The tool that runs.
    pub tool: String,
    /// What it was given, as far as the client may know it.
    pub arguments: Value,
}

impl Names {
    /// All of them made from the execution's.
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

/// What is streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A run of an agent: chunks are parts.
    Agent,
    /// Any other tool: told as a message with one call, whose output grows.
    Tool,
}

/// What a subscriber is told.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// What was agreed.
    Started(&'a events::Started<'a>),
    /// A part of a run.
    Part(&'a agent::Part),
    /// A piece of a result. In an agent's run it is read as a part.
    Chunk(&'a events::Chunk<'a>),
    /// What will not come.
    Gap(&'a events::Gap<'a>),
    /// How far the tool is.
    Progress(&'a events::Progress<'a>),
    /// The last.
    End(&'a events::End<'a>),
}

/// Who reads a stream that starts in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Somebody who has nothing of it: what is open is told whole.
    New,
    /// Somebody who has read all that is before: what is open is opened only. Clients of AI SDK do
    /// not come back in this sense: they have the stream told from its start, as new ones.
    Returning,
}

/// Writes a log as one format has it. See the module's text.
#[derive(Debug)]
pub struct Front {
    names: Names,
    story: Story,
    speller: Speller,
}

/// What the last event came from that a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The part, or chunk: the client may not have all that came from it.
    pub part: u64,
    /// It was told when a stream was opened again behind that part; so it is to be opened there
    /// again, for a new reader, who is told what he has not.
    pub is_reopened: bool,
}

#[derive(Debug)]
enum Speller {
    AiSdk(ai_sdk::AiSdk),
    AgUi(ag_ui::AgUi),
    LangGraph(langgraph::LangGraph),
}

impl Front {
    /// For a stream of `source`.
    pub fn new(format: Format, names: Names, source: Source) -> Front {
        let speller = match format {
            Format::AiSdk { sdk } => Speller::AiSdk(ai_sdk::AiSdk::new(sdk)),
            Format::AgUi => Speller::AgUi(ag_ui::AgUi::default()),
            Format::LangGraph { spelling } => {
                Speller::LangGraph(langgraph::LangGraph::new(spelling))
            }
        };
        // Where a call's output is told again as a whole, it is kept.
        let keeps_outputs = matches!(format, Format::AiSdk { .. }) || source == Source::Tool;
        Front { story: Story::new(source, keeps_outputs), names, speller }
    }

    /// LangGraph: which run of its thread this is. Numbers of events grow from run to run, because
    /// a client keeps one number for all of them.
    pub fn set_run(&mut self, ordinal: u32) {
        if let Speller::LangGraph(speller) = &mut self.speller {
            speller.set_run(ordinal);
        }
    }

    /// LangGraph: only these channels are written. Numbers are the same whichever they are.
    pub fn set_channels(&mut self, channels: Channels) {
        if let Speller::LangGraph(speller) = &mut self.speller {
            speller.set_channels(channels);
        }
    }

    /// LangGraph: events up to this number were read before, and are not written again. Whoever
    /// comes back with it is given the log from what it came from on; that is given back, if it is
    /// of this run.
    pub fn set_since(&mut self, since: u64) -> Option<Since> {
        match &mut self.speller {
            Speller::LangGraph(speller) => speller.set_since(since),
            Speller::AiSdk(_) | Speller::AgUi(_) => None,
        }
    }

    /// Which part, or chunk, the event of a LangGraph stream came from that has this number.
    pub fn part_of(event: u64) -> u64 {
        langgraph::part_of(event)
    }

    /// Appends what `item` is to the client, which may be nothing.
    pub fn write(&mut self, item: Item<'_>, out: &mut Vec<u8>) {
        if let Speller::LangGraph(speller) = &mut self.speller {
            speller.begin(item);
        }
        let Front { names, story, speller } = self;
        story.take(item, names, &mut |op, time_us| speller.write(op, names, time_us, out));
    }

    /// AG-UI: appends that nothing here calls these tools of the page's own.
    pub fn write_passed_over(&mut self, tools: &[String], out: &mut Vec<u8>) {
        if let Speller::AgUi(_) = &self.speller {
            ag_ui::write_passed_over(tools, out);
        }
    }

    /// Takes an item that is before the stream's start.
    pub fn prime(&mut self, item: Item<'_>) {
        self.story.set_priming(true);
        if matches!(self.speller, Speller::LangGraph(_)) {
            self.write(item, &mut Vec::new());
        } else {
            self.story.take(item, &self.names, &mut |_, _| ());
        }
    }

    /// Appends what a stream begins with whose start was primed.
    pub fn reopen(&mut self, reader: Reader, out: &mut Vec<u8>) {
        let Front { names, story, speller } = self;
        match speller {
            // The client's state has outlived the connection. How many blocks its message has is
            // counted from what is primed: where the message's beginning is lost, it may be wrong.
            Speller::LangGraph(speller) if reader == Reader::Returning => speller.go_on(),
            _ => {
                if let Speller::LangGraph(speller) = speller {
                    speller.reset();
                }
                if let Speller::AgUi(speller) = speller {
                    speller.set_reader(reader);
                }
                // A client of AI SDK makes its message anew whenever a stream starts.
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

    /// Bytes that it keeps of what it was told.
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
