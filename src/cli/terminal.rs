//! Chunks as text for a terminal. Their content is not trusted, so it passes `printable.rs`. Binary
//! chunks are only counted.

use serde_json::Value;
use streamdoor::stream::Kind;
use streamdoor::wire::events::{ChunkEvent, PartEvent, WireEvent};

use super::printable::printable;

/// The state of the output so far.
#[derive(Default)]
pub struct TerminalText {
    /// The incomplete character at the end of the last chunk.
    carried: Vec<u8>,
    is_within_line: bool,
}

impl TerminalText {
    /// True if the current line of the terminal has text on it.
    pub fn is_within_line(&self) -> bool {
        self.is_within_line
    }

    /// Appends the text of an event. `more` is true if it is a chunk that the next one continues.
    pub fn show(&mut self, event: &WireEvent<'_>, more: bool, out: &mut Vec<u8>) {
        match event {
            WireEvent::Chunk(chunk) => self.chunk(chunk, more, out),
            WireEvent::Part(part) => self.part(part, out),
            WireEvent::Gap(gap) => {
                let (count, from, to) = (gap.chunk_count, gap.from_seq, gap.to_seq);
                let s = if count == 1 { "" } else { "s" };
                let text = format!("[missed {count} chunk{s}, {from} to {to} ({})]", gap.reason);
                self.own_line(&text, out);
            }
            WireEvent::Started(_) | WireEvent::Progress(_) => {}
            WireEvent::End(_) => self.end_line(out),
        }
    }

    fn chunk(&mut self, chunk: &ChunkEvent<'_>, more: bool, out: &mut Vec<u8>) {
        if chunk.data.contains(&0) {
            self.carried.clear();
            let text = format!("[chunk {}: {} bytes, binary]", chunk.seq, chunk.data.len());
            return self.own_line(&text, out);
        }
        self.data(chunk.data, out);
        let kind = chunk.kind.parse().unwrap_or(Kind::Output);
        // A result without a line end is a line of its own, and not a piece of a file.
        let is_message = kind == Kind::Output && !chunk.data.contains(&b'\n');
        if !more && (is_record(kind) || is_message) {
            self.end_line(out);
        }
    }

    /// Appends a part of an agent's run: the text of the model, and a line for each tool.
    fn part(&mut self, part: &PartEvent<'_>, out: &mut Vec<u8>) {
        let Ok(said) = serde_json::from_slice::<Value>(part.json) else { return };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match part.name() {
            "TextDelta" => self.data(text(&said["delta"]).as_bytes(), out),
            "ToolCallStarted" => {
                let line = format!("[{}]", text(&said["tool_name"]));
                self.line(&line, out);
            }
            name @ ("ToolCallFailed" | "ToolCallCancelled") => {
                let execution = &said["execution"];
                let how = name.trim_start_matches("ToolCall").to_lowercase();
                let line = format!("[{}: {how}]", text(&execution["name"]));
                self.line(&line, out);
            }
            "StepCompleted" => self.end_line(out),
            "ExecutionFailed" => self.line(&text(&said["error"]["message"]), out),
            _ => {}
        }
    }

    /// Appends untrusted text as a line of its own.
    fn line(&mut self, text: &str, out: &mut Vec<u8>) {
        self.end_line(out);
        self.data(text.as_bytes(), out);
        self.end_line(out);
    }

    fn data(&mut self, data: &[u8], out: &mut Vec<u8>) {
        self.carried.extend_from_slice(data);
        let bytes = std::mem::take(&mut self.carried);
        let mut pieces = bytes.utf8_chunks().peekable();
        while let Some(piece) = pieces.next() {
            self.push(piece.valid(), out);
            let is_begun = pieces.peek().is_none()
                && std::str::from_utf8(piece.invalid()).is_err_and(|e| e.error_len().is_none());
            if is_begun {
                self.carried.extend_from_slice(piece.invalid());
            } else if !piece.invalid().is_empty() {
                self.push("\u{fffd}", out);
            }
        }
    }

    fn push(&mut self, text: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(printable(text).as_bytes());
        if let Some(last) = text.chars().next_back() {
            self.is_within_line = last != '\n';
        }
    }

    fn own_line(&mut self, text: &str, out: &mut Vec<u8>) {
        self.end_line(out);
        out.extend_from_slice(text.as_bytes());
        out.push(b'\n');
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        if self.is_within_line {
            out.push(b'\n');
            self.is_within_line = false;
        }
    }
}

/// True if a chunk of this kind is complete in itself, and not a piece of a longer text.
fn is_record(kind: Kind) -> bool {
    match kind {
        Kind::Row
        | Kind::Match
        | Kind::Sample
        | Kind::ToolCall
        | Kind::Json
        | Kind::Log
        | Kind::Content
        | Kind::Structured => true,
        Kind::Output
        | Kind::Stdout
        | Kind::Stderr
        | Kind::Text
        | Kind::ToolArguments
        | Kind::Custom => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let (mut text, mut out) = (TerminalText::default(), Vec::new());
        pieces.iter().for_each(|piece| text.data(piece, &mut out));
        text.end_line(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_is_shown_as_it_is_also_where_a_chunk_ends_within_a_character() {
        assert_eq!(shown(&[b"one\n", b"\ttwo"]), "one\n\ttwo\n");
        let euro = "€".as_bytes();
        assert_eq!(shown(&[&euro[..1], &euro[1..2], &euro[2..]]), "€\n");
        assert_eq!(shown(&[b"a", euro, b"\n"]), "a€\n");
    }

    #[test]
    fn what_would_command_the_terminal_does_not() {
        assert_eq!(shown(&[b"\x1b[2J\x07\r\x7f"]), "^[[2J^G^M^?\n");
        assert_eq!(shown(&["\u{9b}31m".as_bytes()]), "<U+009B>31m\n");
        assert_eq!(shown(&[b"a\xFFb", b"\xE2\x82", b"c"]), "a\u{fffd}b\u{fffd}c\n");
    }
}
