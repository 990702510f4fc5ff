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

pub(super) use refused::{models, refused, status_of};

/// One answer while it is written.
#[derive(Debug)]
pub(super) struct AnswerEncoder {
    wire: Wire,
    /// The number in the answer's own ids.
    number: u64,
    model: String,
    created_s: u64,
    includes_usage: bool,
    items: Vec<OutputItem>,
    /// True if the last item is open.
    is_open: bool,
    /// True if the texts of items are needed at the end.
    keeps_texts: bool,
    kept_bytes: usize,
    /// The sequence number of the next frame (Responses only).
    sequence_number: u64,
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
        AnswerEncoder {
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

    /// Sets whether a stream of Chat Completions reports the token counts.
    pub fn include_usage(&mut self, includes_usage: bool) {
        self.includes_usage = includes_usage;
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
        match self.wire {
            Wire::ChatCompletions => self.chat_begin(out),
            Wire::Responses => self.responses_begin(out),
            Wire::Messages => self.messages_begin(usage, out),
        }
    }

    /// Writes a token of a text.
    pub fn token(&mut self, kind: TokenKind, piece: &str, out: &mut Vec<u8>) {
        assert!(kind != TokenKind::Call);
        let is_same = self.is_open && self.items.last().is_some_and(|item| item.kind == kind);
        if !is_same {
            self.open(kind, String::new(), String::new(), out);
        }
        self.add(piece, out);
    }

    /// Writes the beginning of a call; its arguments are added.
    pub fn call(&mut self, id: Option<&str>, name: &str, out: &mut Vec<u8>) {
        let of_wire = if self.wire == Wire::Messages { "toolu" } else { "call" };
        let made_up = || format!("{of_wire}_{}_{}", self.number, self.call_count() + 1);
        let id = id.map_or_else(made_up, str::to_owned);
        self.open(TokenKind::Call, id, name.to_owned(), out);
    }

    /// Adds a token to the open item.
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

    /// Ends the arguments of the open call.
    pub fn end_call(&mut self, out: &mut Vec<u8>) {
        self.close(out);
    }

    fn open(&mut self, kind: TokenKind, id: String, name: String, out: &mut Vec<u8>) {
        self.close(out);
        self.items.push(OutputItem { kind, text: String::new(), id, name });
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

    /// Writes a keep-alive frame.
    pub fn ping(&self, out: &mut Vec<u8>) {
        match self.wire {
            Wire::ChatCompletions | Wire::Responses => out.extend_from_slice(b": ping\n\n"),
            Wire::Messages => self.messages_ping(out),
        }
    }

    /// Writes the last frames.
    pub fn finish(&mut self, finish: Finish, usage: ScriptedUsage, out: &mut Vec<u8>) {
        self.close(out);
        match self.wire {
            Wire::ChatCompletions => self.chat_finish(finish, usage, out),
            Wire::Responses => self.responses_finish(finish, usage, out),
            Wire::Messages => self.messages_finish(finish, usage, out),
        }
    }

    /// Writes the last frame of an answer that failed.
    pub fn error(&mut self, kind: &str, message: &str, out: &mut Vec<u8>) {
        match self.wire {
            Wire::ChatCompletions => frame(out, None, &refused::openai(kind, message)),
            Wire::Responses => self.responses_error(kind, message, out),
            Wire::Messages => frame(out, Some("error"), &refused::anthropic(kind, message)),
        }
    }

    /// Returns the answer as a document.
    pub fn whole(&self, finish: Finish, usage: ScriptedUsage) -> Value {
        assert!(self.keeps_texts);
        match self.wire {
            Wire::ChatCompletions => self.chat_whole(finish, usage),
            Wire::Responses => self.responses_whole(Some(finish), Some(usage)),
            Wire::Messages => self.messages_whole(finish, usage),
        }
    }

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
