//! The chunks of a progress notification, as a client reads them.
//!
//! Usually an entry of the list has the data of its chunk. If the message is the text of all chunks
//! and is long, an entry has the encoding `message` and a length instead. Its data are that many
//! bytes of the message, behind the part of the chunk before it.
//!
//! A server may send anything, so nothing here panics or allocates more than the notification has.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

use super::context::META_CHUNKS;
use crate::wire::base64;
use crate::wire::json::whole_number;

/// A chunk of a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedChunk<'a> {
    /// The number of the chunk: 1, 2, 3 …
    pub seq: u64,
    /// The kind of the chunk.
    pub kind: &'a str,
    /// Payload bytes of the execution before this chunk.
    pub offset: u64,
    /// The payload.
    pub data: Cow<'a, [u8]>,
}

/// The reason why chunks cannot be read. Entries are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkError {
    /// The member with the chunks is no list.
    NoList,
    /// An entry lacks this member, or it is invalid.
    Member {
        /// The position of the entry.
        index: usize,
        /// The name of the member.
        name: &'static str,
    },
    /// An entry's length ends beyond the message, or within a character.
    Length {
        /// The position of the entry.
        index: usize,
        /// The length.
        length: u64,
        /// Bytes of the message that are behind the parts of the chunks before.
        left_bytes: usize,
    },
    /// The message is longer than all lengths together.
    Left {
        /// Bytes of the message that belong to no chunk.
        left_bytes: usize,
    },
}

impl fmt::Display for ChunkError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChunkError::NoList => write!(out, "`_meta.{META_CHUNKS}` is not a list"),
            ChunkError::Member { index, name } => {
                write!(out, "`{name}` of chunk {index} is missing or invalid")
            }
            ChunkError::Length { index, length, left_bytes } => write!(
                out,
                "the length {length} of chunk {index} fits no part of the message, which has \
                 {left_bytes} more bytes"
            ),
            ChunkError::Left { left_bytes } => {
                write!(out, "the last {left_bytes} bytes of the message belong to no chunk")
            }
        }
    }
}

impl std::error::Error for ChunkError {}

/// Reads the chunks from the parameters of a progress notification, in their order.
///
/// # Errors
/// The list or an entry is malformed, or the lengths are not those of the message.
pub fn read(params: &Value) -> Result<Vec<ReceivedChunk<'_>>, ChunkError> {
    let list = match params.get("_meta").and_then(|meta| meta.get(META_CHUNKS)) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(ChunkError::NoList),
    };
    let message = params.get("message").and_then(Value::as_str).unwrap_or_default();
    let mut parts = Parts { left: message, has_begun: false };
    let chunks: Result<Vec<_>, _> = list
        .iter()
        .enumerate()
        .map(|(index, entry)| read_chunk(index, entry, &mut parts))
        .collect();
    match parts.left.len() {
        left_bytes if parts.has_begun && left_bytes > 0 => {
            chunks.and(Err(ChunkError::Left { left_bytes }))
        }
        _ => chunks,
    }
}

/// The message, as far as chunks have taken their parts of it.
struct Parts<'a> {
    left: &'a str,
    has_begun: bool,
}

impl<'a> Parts<'a> {
    /// Takes the next part. Returns `None` if no character ends there.
    fn take(&mut self, length: u64) -> Option<&'a str> {
        let (part, left) = self.left.split_at_checked(usize::try_from(length).ok()?)?;
        (self.left, self.has_begun) = (left, true);
        Some(part)
    }
}

fn read_chunk<'a>(
    index: usize,
    entry: &'a Value,
    parts: &mut Parts<'a>,
) -> Result<ReceivedChunk<'a>, ChunkError> {
    let invalid = |name| ChunkError::Member { index, name };
    let number = |name| entry.get(name).and_then(whole_number).ok_or(invalid(name));
    let text = |name| entry.get(name).and_then(Value::as_str).ok_or(invalid(name));
    let data = match text("encoding")? {
        "text" => Cow::Borrowed(text("data")?.as_bytes()),
        "base64" => Cow::Owned(base64::read(text("data")?).ok_or(invalid("data"))?),
        "message" => {
            let (length, left_bytes) = (number("length")?, parts.left.len());
            let part = parts.take(length);
            let part = part.ok_or(ChunkError::Length { index, length, left_bytes })?;
            Cow::Borrowed(part.as_bytes())
        }
        _ => return Err(invalid("encoding")),
    };
    Ok(ReceivedChunk { seq: number("seq")?, kind: text("kind")?, offset: number("offset")?, data })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The parameters of a notification with this message, and chunks with these lengths.
    fn cut(message: &str, lengths: &[Value]) -> Value {
        let chunks: Vec<Value> = (lengths.iter().enumerate())
            .map(|(at, length)| {
                json!({"seq": at + 1, "kind": "output", "offset": 0, "encoding": "message",
                    "length": length})
            })
            .collect();
        json!({"message": message, "_meta": {META_CHUNKS: chunks}})
    }

    #[test]
    fn lengths_cut_the_message_into_chunks() {
        let params =
            cut("a\u{e9}\u{1f980}b", &[json!(0), json!(3), json!(4.0), json!(1), json!(0)]);
        let chunks = read(&params).unwrap();
        let data: Vec<&[u8]> = chunks.iter().map(|chunk| &*chunk.data).collect();
        assert_eq!(data, ["", "a\u{e9}", "\u{1f980}", "b", ""].map(str::as_bytes));
        assert_eq!(read(&json!({})), Ok(vec![]));
        assert_eq!(read(&json!({"message": "m", "_meta": {META_CHUNKS: null}})), Ok(vec![]));
    }

    #[test]
    fn lengths_that_are_not_those_of_the_message_are_refused() {
        let length = |index, length, left_bytes| ChunkError::Length { index, length, left_bytes };
        let member = |index| ChunkError::Member { index, name: "length" };
        for (lengths, expected) in [
            (vec![json!(8)], length(0, 8, 7)),           // Beyond the end.
            (vec![json!(3), json!(5)], length(1, 5, 4)), // In sum.
            (vec![json!(2), json!(5)], length(0, 2, 7)), // Within a character.
            (vec![json!(4), json!(3)], length(0, 4, 7)),
            (vec![json!(u64::MAX)], length(0, u64::MAX, 7)),
            (vec![json!(3), json!(u64::MAX), json!(5)], length(1, u64::MAX, 4)), // Overflows.
            (vec![json!(3)], ChunkError::Left { left_bytes: 4 }),
            (vec![json!(0)], ChunkError::Left { left_bytes: 7 }),
            (vec![json!(-1)], member(0)),
            (vec![json!(3), json!(0.5)], member(1)),
            (vec![json!(3), json!("4")], member(1)),
            (vec![json!(7), json!(null)], member(1)),
        ] {
            let params = cut("a\u{e9}\u{1f980}", &lengths);
            assert_eq!(read(&params), Err(expected), "{lengths:?}");
        }
        // A message that is missing or no text has no parts.
        let mut params = cut("", &[json!(1)]);
        for message in [json!(null), json!(7), json!(["a"])] {
            params["message"] = message;
            assert_eq!(read(&params), Err(length(0, 1, 0)));
        }
        let text = read(&params).unwrap_err().to_string();
        assert!(text.contains("the length 1 of chunk 0"), "{text}");
    }

    #[test]
    fn entries_of_another_form_are_refused() {
        let good = json!({
            "seq": 1, "kind": "output", "offset": 0, "encoding": "base64", "data": "/w==",
        });
        let params = |entry: &Value| json!({"_meta": {META_CHUNKS: [entry]}});
        assert_eq!(*read(&params(&good)).unwrap()[0].data, [0xff]);
        for (name, wrong) in [
            ("seq", json!(-1)),
            ("seq", json!(null)),
            ("kind", json!(1)),
            ("offset", json!("0")),
            ("encoding", json!("utf-16")),
            ("encoding", json!(null)),
            ("data", json!("%")),
            ("data", json!(null)),
        ] {
            let mut entry = good.clone();
            entry[name] = wrong;
            assert_eq!(read(&params(&entry)), Err(ChunkError::Member { index: 0, name }));
        }
        for entry in [json!(null), json!([]), json!("x")] {
            let expected = ChunkError::Member { index: 0, name: "encoding" };
            assert_eq!(read(&params(&entry)), Err(expected));
        }
        assert_eq!(read(&json!({"_meta": {META_CHUNKS: {}}})), Err(ChunkError::NoList));
    }
}
