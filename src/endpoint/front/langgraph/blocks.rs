//! The blocks of one message, written one after the other.
//!
//! A model may write two calls at once. Here a block begins when the previous one is finished.
//! Until then its content waits, which the limits of a turn bound.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

use super::{EventWriter, Input, Object};
use crate::endpoint::front::call::FrontCall;
use crate::endpoint::front::op::{Block, Prose};
use crate::limits;

/// The blocks of a message; see the module's text.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The id of the message.
    id: String,
    model: String,
    has_begun: bool,
    /// The index of the first block in `waiting`.
    index: u64,
    /// The blocks that are not finished. The first is being written, the others wait.
    waiting: VecDeque<Waiting>,
    /// True if the first block was begun.
    is_open: bool,
}

/// A block that is not finished.
#[derive(Debug)]
struct Waiting {
    what: BlockContent,
    /// The content that was not sent yet.
    held: String,
    /// All prose that was sent, for the end of the block. `None` if it is too long or incomplete.
    whole: Option<String>,
    end: Option<BlockEnd>,
}

#[derive(Debug)]
enum BlockContent {
    Prose(Prose),
    Call { id: Arc<str>, name: Arc<str> },
}

/// The end of a block.
#[derive(Debug)]
enum BlockEnd {
    Plain,
    Arguments(Value),
    Invalid { text: String, problem: String },
}

impl Blocks {
    pub fn new(id: String, model: String) -> Blocks {
        let waiting = VecDeque::new();
        Blocks { id, model, has_begun: false, index: 0, waiting, is_open: false }
    }

    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub fn kept_bytes(&self) -> usize {
        let whole = |block: &Waiting| block.whole.as_ref().map_or(0, String::capacity);
        self.waiting.iter().map(|block| block.held.capacity() + whole(block)).sum()
    }

    pub fn open(&mut self, block: Block, events: &mut EventWriter<'_>) {
        // The first block begins at offset 0. Otherwise its beginning is lost here, but the client
        // has it.
        let is_whole = block.offset == 0 || self.index > 0 || !self.waiting.is_empty();
        self.add(BlockContent::Prose(block.prose), is_whole, events);
    }

    pub fn call(&mut self, call: &FrontCall, events: &mut EventWriter<'_>) {
        let what = BlockContent::Call { id: Arc::clone(&call.id), name: Arc::clone(&call.name) };
        self.add(what, true, events);
    }

    fn add(&mut self, what: BlockContent, is_whole: bool, events: &mut EventWriter<'_>) {
        let (held, whole) = (String::new(), is_whole.then(String::new));
        self.waiting.push_back(Waiting { what, held, whole, end: None });
        self.flush(events);
    }

    /// Adds text to the open block of prose.
    pub fn prose(&mut self, text: &str, events: &mut EventWriter<'_>) {
        if let Some(block) = self.waiting.iter_mut().find(|block| block.is_open_prose()) {
            block.held.push_str(text);
        }
        self.flush(events);
    }

    pub fn shut(&mut self, events: &mut EventWriter<'_>) {
        if let Some(block) = self.waiting.iter_mut().find(|block| block.is_open_prose()) {
            block.end = Some(BlockEnd::Plain);
        }
        self.flush(events);
    }

    pub fn arguments(&mut self, call: &FrontCall, text: &str, events: &mut EventWriter<'_>) {
        if let Some(block) = self.waiting.iter_mut().find(|block| block.is_open_call(call)) {
            block.held.push_str(text);
        }
        self.flush(events);
    }

    pub fn ready(&mut self, call: &FrontCall, input: &Input<'_>, events: &mut EventWriter<'_>) {
        if let Some(block) = self.waiting.iter_mut().find(|block| block.is_open_call(call)) {
            let invalid = |text: &str, problem: &str| BlockEnd::Invalid {
                text: text.to_owned(),
                problem: problem.to_owned(),
            };
            block.end = Some(match input {
                Input::Valid(value) => BlockEnd::Arguments((*value).clone()),
                Input::Unknown => BlockEnd::Arguments(Value::Object(serde_json::Map::new())),
                Input::Cut(text) => invalid(text, "the rest was lost"),
                Input::Invalid { text, problem } => invalid(text, problem),
            });
        }
        self.flush(events);
    }

    /// Writes everything that can be written now.
    fn flush(&mut self, events: &mut EventWriter<'_>) {
        while let Some(first) = self.waiting.front_mut() {
            if !self.has_begun {
                self.has_begun = true;
                begin(&self.id, &self.model, events);
            }
            if !self.is_open {
                self.is_open = true;
                first.write_start(self.index, events);
            }
            first.write_held(self.index, events);
            if first.end.is_none() {
                return;
            }
            first.write_end(self.index, events);
            self.waiting.pop_front();
            self.index += 1;
            self.is_open = false;
        }
    }
}

fn begin(id: &str, model: &str, events: &mut EventWriter<'_>) {
    let names = events.names;
    events.message("message-start", |data, style| {
        data.text("role", "ai");
        data.text("id", id);
        data.object("metadata", |metadata| {
            if !model.is_empty() {
                metadata.text("model", model);
            }
            metadata.text(style.name("run_id", "runId"), &names.run_id);
            metadata.text(style.name("thread_id", "threadId"), &names.thread_id);
        });
    });
}

impl Waiting {
    fn is_open_prose(&self) -> bool {
        self.end.is_none() && matches!(self.what, BlockContent::Prose(_))
    }

    fn is_open_call(&self, call: &FrontCall) -> bool {
        self.end.is_none() && matches!(&self.what, BlockContent::Call { id, .. } if *id == call.id)
    }

    fn write_start(&self, index: u64, events: &mut EventWriter<'_>) {
        self.write(index, "content-block-start", events, |content| match &self.what {
            BlockContent::Prose(prose) => prose_fields(*prose, "", content),
            BlockContent::Call { id, name } => {
                call_fields("tool_call_chunk", id, name, content, |content| {
                    content.text("args", "");
                })
            }
        });
    }

    fn write_held(&mut self, index: u64, events: &mut EventWriter<'_>) {
        if self.held.is_empty() {
            return;
        }
        let held = &self.held;
        events.message("content-block-delta", |data, _| {
            data.number("index", index);
            data.object("delta", |delta| match self.what {
                BlockContent::Prose(Prose::Text) => {
                    delta.text("type", "text-delta");
                    delta.text("text", held);
                }
                BlockContent::Prose(Prose::Reasoning) => {
                    delta.text("type", "reasoning-delta");
                    delta.text("reasoning", held);
                }
                // This event appends. The older `block-delta` repeats the whole arguments each
                // time.
                BlockContent::Call { .. } => {
                    delta.text("type", "tool-call-delta");
                    delta.text("args", held);
                }
            });
        });
        if let (BlockContent::Prose(_), Some(whole)) = (&self.what, &mut self.whole) {
            if whole.len() + held.len() <= limits::FRONT_PROSE_BYTES_MAX {
                whole.push_str(held);
            } else {
                self.whole = None;
            }
        }
        self.held.clear();
    }

    fn write_end(&self, index: u64, events: &mut EventWriter<'_>) {
        self.write(index, "content-block-finish", events, |content| {
            match (&self.what, &self.end) {
                // If the prose is not repeated, the client keeps what it has.
                (BlockContent::Prose(prose), _) => {
                    prose_fields(*prose, self.whole.as_deref().unwrap_or_default(), content);
                }
                (BlockContent::Call { id, name }, Some(BlockEnd::Arguments(value))) => {
                    call_fields("tool_call", id, name, content, |content| {
                        content.value("args", value);
                    });
                }
                (BlockContent::Call { id, name }, Some(BlockEnd::Invalid { text, problem })) => {
                    call_fields("invalid_tool_call", id, name, content, |content| {
                        content.text("args", text);
                        content.text("error", problem);
                    });
                }
                (BlockContent::Call { .. }, Some(BlockEnd::Plain) | None) => {
                    unreachable!("a call has the end of a call")
                }
            }
        });
    }

    fn write(
        &self,
        index: u64,
        event: &str,
        events: &mut EventWriter<'_>,
        fill: impl FnOnce(&mut Object<'_>),
    ) {
        events.message(event, |data, _| {
            data.number("index", index);
            data.object("content", fill);
        });
    }
}

fn prose_fields(prose: Prose, text: &str, content: &mut Object<'_>) {
    let name = match prose {
        Prose::Text => "text",
        Prose::Reasoning => "reasoning",
    };
    content.text("type", name);
    content.text(name, text);
}

fn call_fields(
    what: &str,
    id: &str,
    name: &str,
    content: &mut Object<'_>,
    fill: impl FnOnce(&mut Object<'_>),
) {
    content.text("type", what);
    content.text("id", id);
    content.text("name", name);
    fill(content);
}
