//! What a model says, spelled as one of the wires does it: frame by frame, and whole.
//!
//! An answer is a list of items: thoughts, texts, calls. The last one is open while tokens are
//! added to it; another kind of token closes it, and opens the next.

mod chat;
mod messages;
mod refused;
mod responses;

use serde_json::Value;

use super::{Finish, UsageSaid};
use crate::agent::model::Wire;
use crate::wire::write_json;

pub(super) use refused::{models, refused, status_of};

/// One answer, while it is spelled.
#[derive(Debug)]
pub(super) struct Speller {
    wire: Wire,
    /// What the answer's own names are made of.
    number: u64,
    model: String,
    created_s: u64,
    includes_usage: bool,
    items: Vec<Item>,
    /// Tokens are added to the last item.
    is_open: bool,
    /// Texts of items are needed again at the end.
    keeps_texts: bool,
    kept_bytes: usize,
    /// Responses: of the next frame.
    sequence_number: u64,
}

/// What the tokens of an item are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Reasoning,
    Refusal,
    Call,
}

#[derive(Debug)]
struct Item {
    kind: Kind,
    /// The text, or the arguments of a call.
    text: String,
    /// Of a call.
    id: String,
    name: String,
}

impl Speller {
    pub fn new(wire: Wire, model: &str, number: u64, created_s: u64) -> Speller {
        Speller {
            wire,
            number,
            model: model.to_owned(),
            created_s,
            includes_usage: false,
            items: Vec::new(),
            is_open: false,
            keeps_texts: wire == Wire::Responses,
            kept_bytes: 0,
            sequence_number: 0,
        }
    }

    /// The stream of chat completions says what was used.
    pub fn include_usage(&mut self, includes_usage: bool) {
        self.includes_usage = includes_usage;
    }

    /// The answer will be asked for as a whole.
    pub fn keep_texts(&mut self) {
        self.keeps_texts = true;
    }

    /// What is kept for that.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// The first frames.
    pub fn begin(&mut self, usage: UsageSaid, out: &mut Vec<u8>) {
        match self.wire {
            Wire::ChatCompletions => self.chat_begin(out),
            Wire::Responses => self.responses_begin(out),
            Wire::Messages => self.messages_begin(usage, out),
        }
    }

    /// A token of a text.
    pub fn token(&mut self, kind: Kind, piece: &str, out: &mut Vec<u8>) {
        assert!(kind != Kind::Call);
        let is_same = self.is_open && self.items.last().is_some_and(|item| item.kind == kind);
        if !is_same {
            self.open(kind, String::new(), String::new(), out);
        }
        self.add(piece, out);
    }

    /// The beginning of a call; its arguments are added.
    pub fn call(&mut self, id: Option<&str>, name: &str, out: &mut Vec<u8>) {
        let of_wire = if self.wire == Wire::Messages { "toolu" } else { "call" };
        let made_up = || format!("{of_wire}_{}_{}", self.number, self.call_count() + 1);
        let id = id.map_or_else(made_up, str::to_owned);
        self.open(Kind::Call, id, name.to_owned(), out);
    }

    /// Adds to the item that is open.
    pub fn add(&mut self, piece: &str, out: &mut Vec<u8>) {
        assert!(self.is_open);
        if self.keeps_texts {
            self.items.last_mut().expect("it is open").text += piece;
            self.kept_bytes += piece.len();
        }
        match self.wire {
            Wire::ChatCompletions => self.chat_add(piece, out),
            Wire::Responses => self.responses_add(piece, out),
            Wire::Messages => self.messages_add(piece, out),
        }
    }

    /// All arguments of the call are there.
    pub fn end_call(&mut self, out: &mut Vec<u8>) {
        self.close(out);
    }

    fn open(&mut self, kind: Kind, id: String, name: String, out: &mut Vec<u8>) {
        self.close(out);
        self.items.push(Item { kind, text: String::new(), id, name });
        self.is_open = true;
        match self.wire {
            Wire::ChatCompletions => self.chat_open(out),
            Wire::Responses => self.responses_open(out),
            Wire::Messages => self.messages_open(out),
        }
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        match self.wire {
            Wire::ChatCompletions => {}
            Wire::Responses => self.responses_close(out),
            Wire::Messages => self.messages_close(out),
        }
    }

    /// A sign of life.
    pub fn ping(&self, out: &mut Vec<u8>) {
        match self.wire {
            Wire::ChatCompletions | Wire::Responses => out.extend_from_slice(b": ping\n\n"),
            Wire::Messages => self.messages_ping(out),
        }
    }

    /// The last frames.
    pub fn finish(&mut self, finish: Finish, usage: UsageSaid, out: &mut Vec<u8>) {
        self.close(out);
        match self.wire {
            Wire::ChatCompletions => self.chat_finish(finish, usage, out),
            Wire::Responses => self.responses_finish(finish, usage, out),
            Wire::Messages => self.messages_finish(finish, usage, out),
        }
    }

    /// The last frame of an answer that failed.
    pub fn error(&mut self, kind: &str, message: &str, out: &mut Vec<u8>) {
        match self.wire {
            Wire::ChatCompletions => frame(out, None, &refused::openai(kind, message)),
            Wire::Responses => self.responses_error(kind, message, out),
            Wire::Messages => frame(out, Some("error"), &refused::anthropic(kind, message)),
        }
    }

    /// All of it, for who asked for no stream.
    pub fn whole(&self, finish: Finish, usage: UsageSaid) -> Value {
        assert!(self.keeps_texts);
        match self.wire {
            Wire::ChatCompletions => self.chat_whole(finish, usage),
            Wire::Responses => self.responses_whole(Some(finish), Some(usage)),
            Wire::Messages => self.messages_whole(finish, usage),
        }
    }

    fn item(&self) -> &Item {
        self.items.last().expect("one was opened")
    }

    /// Its place in the answer.
    fn item_index(&self) -> usize {
        self.items.len() - 1
    }

    fn call_count(&self) -> usize {
        self.items.iter().filter(|item| item.kind == Kind::Call).count()
    }

    /// All texts of a kind, one behind the other; none: there was no such item.
    fn joined(&self, kind: Kind) -> Option<String> {
        let mut texts = self.items.iter().filter(|item| item.kind == kind).peekable();
        texts.peek()?;
        Some(texts.map(|item| item.text.as_str()).collect())
    }
}

fn frame(out: &mut Vec<u8>, event: Option<&str>, data: &Value) {
    if let Some(event) = event {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(event.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    write_json(out, data);
    out.extend_from_slice(b"\n\n");
}
