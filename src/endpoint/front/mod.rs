//! The formats of front ends by other authors, written from the same log: AI SDK, AG-UI, LangGraph,
//! the Responses API and A2A. LangGraph has two: streams of threads, and runs.
//!
//! A [`Front`] takes the items of a subscriber one by one, and writes what the client of one format
//! reads. `sequencer.rs` turns items into operations whose order is valid whatever was lost before;
//! `op.rs` defines that order. Each format has a writer for them. Thus one place avoids
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

mod a2a;
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
mod graph;
mod json;
mod langgraph;
mod modes;
mod numbers;
mod op;
#[cfg(test)]
mod random_tests;
mod responses;
#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod runs;
mod sequencer;

use serde_json::Value;

pub use a2a::TaskAnswer;
pub use format::{Channels, FormatError, FrontFormat, SdkVersion, Spelling};
pub use graph::GraphAnswer;
pub use modes::{StreamMode, StreamModes};

use crate::agent;
use crate::wire::events;
use op::Op;
use sequencer::Sequencer;

/// The names by which a front end knows an execution and what belongs to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrontNames {
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
    /// The time of its creation, in seconds since 1970.
    pub created_s: u64,
}

impl FrontNames {
    /// Derives all names from the id of the execution.
    pub fn new(execution: &str, tool: &str) -> FrontNames {
        FrontNames {
            execution: execution.to_owned(),
            thread_id: execution.to_owned(),
            run_id: execution.to_owned(),
            message_id: format!("msg-{execution}"),
            tool: tool.to_owned(),
            arguments: Value::Null,
            created_s: 0,
        }
    }
}

/// The source of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamSource {
    /// A run of an agent: chunks are parts.
    Agent,
    /// Any other tool: a message with one call, whose output grows.
    Tool,
}

/// An item that a subscriber receives.
#[derive(Clone, Copy, Debug)]
pub enum FrontItem<'a> {
    /// The agreed terms.
    Started(&'a events::StartedEvent<'a>),
    /// A part of a run.
    Part(&'a agent::RunPart),
    /// A piece of a result. In a run of an agent it is read as a part.
    Chunk(&'a events::ChunkEvent<'a>),
    /// Chunks that will not be delivered.
    Gap(&'a events::GapEvent<'a>),
    /// The progress of the tool.
    Progress(&'a events::ProgressEvent<'a>),
    /// The end of the stream.
    End(&'a events::EndEvent<'a>),
}

/// The reader of a stream that starts in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontReader {
    /// A reader that has nothing: what is open is sent in full.
    New,
    /// A reader that has everything before the start: what is open is only opened. Clients of AI
    /// SDK never resume in this sense. They read the stream from its start, as new readers.
    Returning,
}

/// Writes a log in one format. See the module's text.
#[derive(Debug)]
pub struct Front {
    names: FrontNames,
    sequencer: Sequencer,
    writer: FormatWriter,
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
enum FormatWriter {
    AiSdk(ai_sdk::AiSdk),
    AgUi(ag_ui::AgUi),
    LangGraph(langgraph::LangGraph),
    Graph(Box<graph::Graph>),
    A2a(Box<a2a::A2a>),
    Responses(Box<responses::Responses>),
}

impl Front {
    /// Creates a front for a stream of `source`.
    pub fn new(format: FrontFormat, names: FrontNames, source: StreamSource) -> Front {
        let writer = match format {
            FrontFormat::AiSdk { sdk } => FormatWriter::AiSdk(ai_sdk::AiSdk::new(sdk)),
            FrontFormat::AgUi => FormatWriter::AgUi(ag_ui::AgUi::default()),
            FrontFormat::LangGraph { spelling } => {
                FormatWriter::LangGraph(langgraph::LangGraph::new(spelling))
            }
            FrontFormat::Graph { answer } => FormatWriter::Graph(graph::Graph::new(answer).into()),
            FrontFormat::A2a { answer } => FormatWriter::A2a(a2a::A2a::new(answer).into()),
            FrontFormat::Responses { is_document } => {
                FormatWriter::Responses(responses::Responses::new(is_document).into())
            }
        };
        // A call's output is kept if the format sends it again as a whole.
        let keeps_outputs =
            matches!(format, FrontFormat::AiSdk { .. }) || source == StreamSource::Tool;
        Front { sequencer: Sequencer::new(source, keeps_outputs), names, writer }
    }

    /// LangGraph: sets the number of the run in its thread. Event numbers grow from run to run,
    /// because a client keeps one number for all runs.
    pub fn set_run(&mut self, ordinal: u32) {
        if let FormatWriter::LangGraph(writer) = &mut self.writer {
            writer.set_run(ordinal);
        }
    }

    /// LangGraph: writes only these channels. The numbers of events do not depend on the channels.
    pub fn set_channels(&mut self, channels: Channels) {
        if let FormatWriter::LangGraph(writer) = &mut self.writer {
            writer.set_channels(channels);
        }
    }

    /// Responses: writes only the events of the specification. The numbers of events do not depend
    /// on that.
    pub fn be_plain(&mut self) {
        if let FormatWriter::Responses(writer) = &mut self.writer {
            writer.be_plain();
        }
    }

    /// A2A: sets the JSON-RPC request that is answered, if it is one, as the JSON text of its id.
    /// The task then has at most so many messages of its history.
    pub fn reply_to(&mut self, request: Option<Box<str>>, history_max: Option<usize>) {
        if let FormatWriter::A2a(writer) = &mut self.writer {
            writer.reply_to(request, history_max);
        }
    }

    /// LangGraph and Responses: sets the last event that the client has read. Events up to it are
    /// not written again. Returns the origin of that event if the caller may replay the log from
    /// there; otherwise it must replay all of it.
    pub fn set_since(&mut self, since: u64) -> Option<Since> {
        match &mut self.writer {
            FormatWriter::LangGraph(writer) => writer.set_since(since),
            FormatWriter::A2a(_) => Some(a2a::A2a::since(since)),
            FormatWriter::Graph(writer) => {
                writer.set_since(since);
                None
            }
            FormatWriter::Responses(writer) => {
                writer.set_since(since);
                None
            }
            FormatWriter::AiSdk(_) | FormatWriter::AgUi(_) => None,
        }
    }

    /// Returns the part or chunk from which the LangGraph event of this number came.
    pub fn part_of(event: u64) -> u64 {
        langgraph::part_of(event)
    }

    /// Appends the events of `item`, if it has any in this format.
    pub fn write(&mut self, item: FrontItem<'_>, out: &mut Vec<u8>) {
        match &mut self.writer {
            FormatWriter::LangGraph(writer) => writer.begin(item),
            FormatWriter::Graph(writer) => writer.begin(item),
            FormatWriter::A2a(writer) => writer.begin(item),
            FormatWriter::Responses(writer) => writer.begin(item),
            FormatWriter::AiSdk(_) | FormatWriter::AgUi(_) => {}
        }
        let Front { names, sequencer, writer } = self;
        sequencer.take(item, names, &mut |op, time_us| writer.write(op, names, time_us, out));
    }

    /// AG-UI: appends the names of the page's own tools, which the server does not call.
    pub fn write_passed_over(&mut self, tools: &[String], out: &mut Vec<u8>) {
        if let FormatWriter::AgUi(_) = &self.writer {
            ag_ui::write_passed_over(tools, out);
        }
    }

    /// Takes an item that is before the start of the stream.
    pub fn prime(&mut self, item: FrontItem<'_>) {
        self.sequencer.set_priming(true);
        match self.writer {
            FormatWriter::AiSdk(_) | FormatWriter::AgUi(_) => {
                self.sequencer.take(item, &self.names, &mut |_, _| ());
            }
            // These count what was written.
            _ => self.write(item, &mut Vec::new()),
        }
    }

    /// Appends the beginning of a stream whose start was primed.
    pub fn reopen(&mut self, reader: FrontReader, out: &mut Vec<u8>) {
        let Front { names, sequencer, writer } = self;
        match writer {
            // The client's state has outlived the connection. The blocks of its message are counted
            // from the primed items. If the beginning of the message is lost, that count may be
            // wrong.
            FormatWriter::LangGraph(writer) if reader == FrontReader::Returning => writer.go_on(),
            FormatWriter::A2a(writer) => writer.snapshot(names, out),
            _ => {
                match writer {
                    FormatWriter::LangGraph(writer) => writer.reset(),
                    FormatWriter::Graph(writer) => writer.reset(),
                    FormatWriter::Responses(writer) => writer.reset(),
                    FormatWriter::AgUi(writer) => writer.set_reader(reader),
                    FormatWriter::AiSdk(_) | FormatWriter::A2a(_) => {}
                }
                // A client of AI SDK creates its message anew whenever a stream starts. One of
                // Responses or of runs reads all of it, or only what follows a number.
                let reader = match writer {
                    FormatWriter::AgUi(_) | FormatWriter::LangGraph(_) => reader,
                    _ => FrontReader::New,
                };
                let mut emit = |op: &Op<'_>, time_us: u64| writer.write(op, names, time_us, out);
                sequencer.reopen(reader, &mut emit);
            }
        }
        self.sequencer.set_priming(false);
    }

    /// Returns the headers of the answer that depend on the run.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        match &self.writer {
            FormatWriter::Graph(writer) => writer.headers(&self.names),
            _ => Vec::new(),
        }
    }

    /// Returns the answer of a run that has not ended, as far as it has come. The object of a
    /// response has this status.
    pub fn document(&self, status: &str) -> Value {
        match &self.writer {
            FormatWriter::Graph(writer) => writer.document(&self.names),
            FormatWriter::A2a(writer) => writer.document(&self.names),
            FormatWriter::Responses(writer) => writer.document(&self.names, status),
            _ => Value::Null, // The others have none.
        }
    }

    /// Returns the number of bytes kept of earlier items.
    pub fn kept_bytes(&self) -> usize {
        let writer_bytes = match &self.writer {
            FormatWriter::LangGraph(writer) => writer.kept_bytes(),
            FormatWriter::Graph(writer) => writer.kept_bytes(),
            FormatWriter::A2a(writer) => writer.kept_bytes(),
            FormatWriter::Responses(writer) => writer.kept_bytes(),
            FormatWriter::AiSdk(_) | FormatWriter::AgUi(_) => 0,
        };
        self.sequencer.kept_bytes() + writer_bytes
    }
}

impl FormatWriter {
    fn write(&mut self, op: &Op<'_>, names: &FrontNames, time_us: u64, out: &mut Vec<u8>) {
        match self {
            FormatWriter::AiSdk(writer) => writer.write(op, names, out),
            FormatWriter::AgUi(writer) => writer.write(op, names, time_us, out),
            FormatWriter::LangGraph(writer) => writer.write(op, names, time_us, out),
            FormatWriter::Graph(writer) => writer.write(op, names, out),
            FormatWriter::A2a(writer) => writer.write(op, names, time_us, out),
            FormatWriter::Responses(writer) => writer.write(op, names, out),
        }
    }
}
