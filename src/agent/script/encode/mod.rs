//! Writes a model's answer in the format of one wire, as frames or as a document.
//!
//! An answer is a list of items: thoughts, texts, calls. Tokens are added to the last item, which
//! is open. A token of another kind closes it and opens the next one.

mod chat;
mod messages;
mod refused;
mod responses;

use serde_json::Value;

use super::{Finish, ScriptedUsage};
use crate::agent::model::Wire;
use crate::wire::write_json;
use chat::ChatFrames;
use responses::ResponsesFrames;

pub(super) use refused::{models, refused, status_of};

/// One answer while it is written.
#[derive(Debug)]
pub(super) struct AnswerEncoder {
    answer: Answer,
    frames: WireFrames,
    /// True if the last item is open.
    is_open: bool,
    /// True if the texts of items are needed at the end.
    keeps_texts: bool,
    kept_bytes: usize,
}

/// The content of an answer so far.
#[derive(Debug)]
struct Answer {
    /// The number in the answer's own ids.
    number: u64,
    model: String,
    created_s: u64,
    items: Vec<OutputItem>,
}

/// The frames of one wire, which writes an answer in its own way.
#[derive(Debug)]
enum WireFrames {
    Chat(ChatFrames),
    Responses(ResponsesFrames),
    Messages,
}

/// The kind of an item's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Text,
    Reasoning,
    Refusal,
    Call,
}

#[derive(Debug)]
struct OutputItem {
    kind: TokenKind,
    /// The text, or the arguments of a call.
    text: String,
    /// The id and the name of a call; otherwise empty.
    id: String,
    name: String,
}

impl AnswerEncoder {
    pub fn new(wire: Wire, model: &str, number: u64, created_s: u64) -> AnswerEncoder {
        let frames = match wire {
            Wire::ChatCompletions => WireFrames::Chat(ChatFrames::default()),
            Wire::Responses => WireFrames::Responses(ResponsesFrames::default()),
            Wire::Messages => WireFrames::Messages,
        };
        AnswerEncoder {
            answer: Answer { number, model: model.to_owned(), created_s, items: Vec::new() },
            frames,
            is_open: false,
            keeps_texts: wire == Wire::Responses,
            kept_bytes: 0,
        }
    }

    /// Sets whether a stream of Chat Completions reports the token counts.
    pub fn include_usage(&mut self, includes_usage: bool) {
        if let WireFrames::Chat(frames) = &mut self.frames {
            frames.includes_usage = includes_usage;
        }
    }

    /// Keeps the texts, because the answer is needed as a document.
    pub fn keep_texts(&mut self) {
        self.keeps_texts = true;
    }

    /// Number of bytes of the texts that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Writes the first frames.
    pub fn begin(&mut self, usage: ScriptedUsage, out: &mut Vec<u8>) {
        match &mut self.frames {
            WireFrames::Chat(frames) => frames.begin(&self.answer, out),
            WireFrames::Responses(frames) => frames.begin(&self.answer, out),
            WireFrames::Messages => messages::begin(&self.answer, usage, out),
        }
    }

    /// Writes a token of a text.
    pub fn token(&mut self, kind: TokenKind, piece: &str, out: &mut Vec<u8>) {
        assert!(kind != TokenKind::Call);
        let is_same =
            self.is_open && self.answer.items.last().is_some_and(|item| item.kind == kind);
        if !is_same {
            self.open(kind, String::new(), String::new(), out);
        }
        self.add(piece, out);
    }

    /// Writes the beginning of a call; its arguments are added.
    pub fn call(&mut self, id: Option<&str>, name: &str, out: &mut Vec<u8>) {
        let of_wire = match self.frames {
            WireFrames::Messages => "toolu",
            WireFrames::Chat(_) | WireFrames::Responses(_) => "call",
        };
        let made_up =
            || format!("{of_wire}_{}_{}", self.answer.number, self.answer.call_count() + 1);
        let id = id.map_or_else(made_up, str::to_owned);
        self.open(TokenKind::Call, id, name.to_owned(), out);
    }

    /// Adds a token to the open item.
    pub fn add(&mut self, piece: &str, out: &mut Vec<u8>) {
        assert!(self.is_open);
        if self.keeps_texts {
            self.answer.items.last_mut().expect("it is open").text += piece;
            self.kept_bytes += piece.len();
        }
        match &mut self.frames {
            WireFrames::Chat(frames) => frames.add(&self.answer, piece, out),
            WireFrames::Responses(frames) => frames.add(&self.answer, piece, out),
            WireFrames::Messages => messages::add(&self.answer, piece, out),
        }
    }

    /// Ends the arguments of the open call.
    pub fn end_call(&mut self, out: &mut Vec<u8>) {
        self.close(out);
    }

    fn open(&mut self, kind: TokenKind, id: String, name: String, out: &mut Vec<u8>) {
        self.close(out);
        self.answer.items.push(OutputItem { kind, text: String::new(), id, name });
        self.is_open = true;
        match &mut self.frames {
            WireFrames::Chat(frames) => frames.open(&self.answer, out),
            WireFrames::Responses(frames) => frames.open(&self.answer, out),
            WireFrames::Messages => messages::open(&self.answer, out),
        }
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        match &mut self.frames {
            WireFrames::Chat(_) => {}
            WireFrames::Responses(frames) => frames.close(&self.answer, out),
            WireFrames::Messages => messages::close(&self.answer, out),
        }
    }

    /// Writes a keep-alive frame.
    pub fn ping(&self, out: &mut Vec<u8>) {
        match &self.frames {
            WireFrames::Chat(_) | WireFrames::Responses(_) => out.extend_from_slice(b": ping\n\n"),
            WireFrames::Messages => messages::ping(out),
        }
    }

    /// Writes the last frames.
    pub fn finish(&mut self, finish: Finish, usage: ScriptedUsage, out: &mut Vec<u8>) {
        self.close(out);
        match &mut self.frames {
            WireFrames::Chat(frames) => frames.finish(&self.answer, finish, usage, out),
            WireFrames::Responses(frames) => frames.finish(&self.answer, finish, usage, out),
            WireFrames::Messages => messages::finish(finish, usage, out),
        }
    }

    /// Writes the last frame of an answer that failed.
    pub fn error(&mut self, kind: &str, message: &str, out: &mut Vec<u8>) {
        match &mut self.frames {
            WireFrames::Chat(_) => frame(out, None, &refused::openai(kind, message)),
            WireFrames::Responses(frames) => frames.error(kind, message, out),
            WireFrames::Messages => frame(out, Some("error"), &refused::anthropic(kind, message)),
        }
    }

    /// Returns the answer as a document.
    pub fn whole(&self, finish: Finish, usage: ScriptedUsage) -> Value {
        assert!(self.keeps_texts);
        match &self.frames {
            WireFrames::Chat(frames) => frames.whole(&self.answer, finish, usage),
            WireFrames::Responses(_) => responses::whole(&self.answer, Some(finish), Some(usage)),
            WireFrames::Messages => messages::whole(&self.answer, finish, usage),
        }
    }
}

impl Answer {
    fn item(&self) -> &OutputItem {
        self.items.last().expect("one was opened")
    }

    /// Returns the index of the last item in the answer.
    fn item_index(&self) -> usize {
        self.items.len() - 1
    }

    fn call_count(&self) -> usize {
        self.items.iter().filter(|item| item.kind == TokenKind::Call).count()
    }

    /// Returns the joined texts of a kind; `None` if the answer has no item of that kind.
    fn joined(&self, kind: TokenKind) -> Option<String> {
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
