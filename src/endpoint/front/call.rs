//! An open call: what the client has of it, and what may have to be sent again.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use smallvec::SmallVec;

use crate::agent::Arguments;
use crate::limits;
use crate::stream::Kind;

/// The state of an open call.
#[derive(Debug)]
pub(super) struct FrontCall {
    pub id: Arc<str>,
    pub name: Arc<str>,
    /// The id of the tool's own execution, if it is known.
    pub execution: Option<String>,
    /// True if the client knows the call.
    pub is_open: bool,
    /// True if the client has the arguments.
    pub is_ready: bool,
    /// Arguments that the client has, from the first byte on, without a gap.
    pub arguments: String,
    /// True if none of the arguments was lost so far.
    pub is_whole: bool,
    /// The arguments as they were sent, for readers that come later.
    pub input: Option<Arguments>,
    /// Output that is kept, from the first piece that came; see [`FrontCall::keep`].
    pub output: String,
    /// True if some output was lost, or is not kept.
    pub is_cut: bool,
    /// Bytes of the output that came or were lost: the offset of the next piece.
    pub output_bytes: u64,
    tail: Tail,
}

/// Bytes that may become a character when more of them come.
#[derive(Debug, Default)]
struct Tail {
    bytes: SmallVec<[u8; 4]>,
    kind: Kind,
}

impl FrontCall {
    pub fn new(id: &Arc<str>, name: &Arc<str>) -> FrontCall {
        FrontCall {
            id: Arc::clone(id),
            name: Arc::clone(name),
            execution: None,
            is_open: false,
            is_ready: false,
            arguments: String::new(),
            is_whole: true,
            input: None,
            output: String::new(),
            is_cut: false,
            output_bytes: 0,
            tail: Tail::default(),
        }
    }

    /// Takes a piece of the arguments. Returns true if it follows what the client has.
    pub fn take_arguments(&mut self, delta: &str, offset: u64) -> bool {
        let is_next = offset == self.arguments.len() as u64;
        let fits = self.arguments.len() + delta.len() <= limits::MODEL_ARGUMENTS_BYTES_MAX;
        self.is_whole &= is_next && fits;
        if self.is_whole {
            self.arguments.push_str(delta);
        }
        self.is_whole
    }

    /// Returns the arguments joined from their pieces, if all pieces came. For arguments that are
    /// too long for one part.
    pub fn whole_arguments(&self) -> Option<Value> {
        let value: Value = serde_json::from_str(&self.arguments).ok()?;
        (self.is_whole && value.is_object()).then_some(value)
    }

    /// Returns the next piece of the output as text. Characters that were cut apart are joined.
    pub fn take_output<'a>(&mut self, bytes: &'a [u8], kind: Kind, offset: u64) -> Cow<'a, str> {
        let mut text = String::new();
        if offset != self.output_bytes {
            self.is_cut = true;
            self.tail.give_up(&mut text);
        }
        if kind != self.tail.kind {
            self.tail.give_up(&mut text); // Two streams in one: their bytes do not belong together.
        }
        self.output_bytes = offset.saturating_add(bytes.len() as u64);
        if text.is_empty()
            && self.tail.bytes.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return Cow::Borrowed(text);
        }
        self.tail.kind = kind;
        self.tail.take(bytes, &mut text);
        Cow::Owned(text)
    }

    /// Returns the text of the bytes that are left when the output ends, and their kind.
    pub fn end_output(&mut self) -> (String, Kind) {
        let mut text = String::new();
        self.tail.give_up(&mut text);
        (text, self.tail.kind)
    }

    /// Keeps output for sending it again, as far as its limit allows.
    pub fn keep(&mut self, text: &str) {
        let room = limits::FRONT_OUTPUT_BYTES_MAX.saturating_sub(self.output.len());
        let cut = text.floor_char_boundary(room);
        self.output.push_str(&text[..cut]);
        self.is_cut |= cut < text.len();
    }

    pub fn kept_bytes(&self) -> usize {
        self.arguments.capacity() + self.output.capacity()
    }
}

impl Tail {
    /// Appends complete characters, and keeps bytes that may become one.
    fn take(&mut self, bytes: &[u8], text: &mut String) {
        let joined: Cow<'_, [u8]> = if self.bytes.is_empty() {
            bytes.into()
        } else {
            [&self.bytes[..], bytes].concat().into()
        };
        self.bytes.clear();
        let mut rest = &joined[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(good) => return text.push_str(good),
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(good).expect("the prefix is valid UTF-8"));
                    let Some(length) = error.error_len() else {
                        self.bytes.extend_from_slice(bad);
                        return;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &bad[length..];
                }
            }
        }
    }

    /// Replaces bytes that can no longer become a character.
    fn give_up(&mut self, text: &mut String) {
        if !self.bytes.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.bytes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> FrontCall {
        FrontCall::new(&"call_1".into(), &"search".into())
    }

    #[test]
    fn output_is_the_same_text_however_it_is_cut() {
        let bytes = "aä€😀\u{10ffff}z".bytes().chain(*b"\xff\xc3\xe2\x82");
        let bytes: Vec<u8> = bytes.collect();
        let expected = String::from_utf8_lossy(&bytes).into_owned();
        for size in 1..=bytes.len() {
            let (mut call, mut text, mut offset) = (call(), String::new(), 0);
            for piece in bytes.chunks(size) {
                text.push_str(&call.take_output(piece, Kind::Output, offset));
                offset += piece.len() as u64;
            }
            text.push_str(&call.end_output().0);
            assert_eq!(text, expected, "pieces of {size}");
            assert!(!call.is_cut);
        }
    }

    #[test]
    fn a_hole_and_another_stream_give_a_begun_character_up() {
        let mut call = call();
        assert_eq!(call.take_output(b"a\xe2", Kind::Stdout, 0), "a");
        assert_eq!(call.take_output(b"b", Kind::Stderr, 2), "\u{fffd}b");
        assert_eq!(call.take_output(b"\xe2", Kind::Stderr, 3), "");
        assert!(!call.is_cut);
        assert_eq!(call.take_output(b"c", Kind::Stderr, 9), "\u{fffd}c");
        assert!(call.is_cut);
    }

    #[test]
    fn arguments_with_a_hole_are_not_told_on() {
        let mut call = call();
        assert!(call.take_arguments("{\"a\":", 0) && call.take_arguments("1}", 5));
        assert_eq!(call.whole_arguments(), Some(serde_json::json!({"a": 1})));
        assert!(!call.take_arguments("}", 8) && !call.take_arguments("x", 7));
        assert_eq!(call.whole_arguments(), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut call = call();
        let text = "ä".repeat(limits::FRONT_OUTPUT_BYTES_MAX / 2);
        call.keep("a");
        call.keep(&text);
        assert_eq!(call.output.len(), limits::FRONT_OUTPUT_BYTES_MAX - 1);
        assert!(call.is_cut);
    }
}
