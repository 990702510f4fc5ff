//! Output as a stream: a window onto a result that is too long for one reply, or is requested piece
//! by piece. It follows the sift seed: `stream_open`, `stream_read` and `stream_close` are its
//! tools.
//!
//! The window holds the output that was not read yet, and the last reply. A client can read that
//! reply again, by its offset, until it reads the next one. The tool waits while the window is
//! full. Each read makes room, because a reply that was sent counts as read.

mod tools;

use serde_json::{Value, json};

use super::catalog::encoded;
use crate::limits;

pub use tools::{STREAM_CLOSE, STREAM_OPEN, STREAM_READ, StreamCall, is_tool, specs};

/// The part of a stream that is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamWindow {
    bytes: Vec<u8>,
    /// The offset of the first of `bytes`.
    start: u64,
    /// The offset of a read that names none.
    next: u64,
    /// The offset at which the client goes on. Output before it is dropped.
    goes_on_at: u64,
    is_ended: bool,
}

/// The result of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading<'w> {
    /// Bytes of the stream before the piece.
    pub offset: u64,
    /// The piece that was read.
    pub piece: WindowPiece<'w>,
    /// True if nothing follows.
    pub is_done: bool,
    /// Bytes that the stream has so far.
    pub total_written: u64,
}

/// A piece of a stream. Text is not cut inside a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowPiece<'w> {
    /// Text.
    Text(&'w str),
    /// Bytes that are no text.
    Bytes(&'w [u8]),
}

/// The reason why nothing can be read at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The stream has no bytes there yet: wait.
    Empty,
    /// The bytes were read and discarded.
    Gone {
        /// The lowest offset that can be read.
        oldest: u64,
    },
    /// The offset is beyond the bytes written so far.
    Ahead {
        /// Bytes that the stream has so far.
        total_written: u64,
    },
}

impl StreamWindow {
    /// Returns an empty window.
    pub fn new() -> StreamWindow {
        StreamWindow::default()
    }

    /// Returns an empty window for a client that has read everything before `offset`. The output is
    /// pushed from its beginning.
    pub fn going_on_at(offset: u64) -> StreamWindow {
        StreamWindow { goes_on_at: offset, ..StreamWindow::default() }
    }

    /// Number of bytes for which the window has room.
    pub fn room(&self) -> usize {
        let unread_bytes = self.total_written() - self.next;
        limits::MCP_RESULT_BYTES_MAX.saturating_sub(unread_bytes as usize)
    }

    /// Appends output. A piece that begins while the window has room may be longer than the room.
    ///
    /// # Panics
    /// Panics if the stream has ended.
    pub fn push(&mut self, bytes: &[u8]) {
        assert!(!self.is_ended);
        let dropped_bytes = self.goes_on_at.saturating_sub(self.total_written());
        let dropped_bytes = dropped_bytes.min(bytes.len() as u64);
        (self.start, self.next) = (self.start + dropped_bytes, self.next + dropped_bytes);
        self.bytes.extend_from_slice(&bytes[dropped_bytes as usize..]);
    }

    /// Ends the stream: no output follows.
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// True if no output follows.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// True if the stream has ended and all of it was read.
    pub fn is_done(&self) -> bool {
        self.is_ended && self.next == self.total_written()
    }

    /// Bytes that were appended so far.
    pub fn total_written(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Reads from `offset`, or from the end of the last piece. Discards all bytes before it.
    ///
    /// # Errors
    /// [`ReadError`]; nothing is discarded.
    pub fn read(&mut self, offset: Option<u64>) -> Result<Reading<'_>, ReadError> {
        let offset = offset.unwrap_or(self.next);
        let total_written = self.total_written();
        if offset < self.start {
            return Err(ReadError::Gone { oldest: self.start });
        }
        if offset > total_written {
            let is_to_come = offset <= self.goes_on_at && !self.is_ended;
            return Err(if is_to_come {
                ReadError::Empty
            } else {
                ReadError::Ahead { total_written }
            });
        }
        let skipped = (offset - self.start) as usize;
        let length = cut(&self.bytes[skipped..], self.is_ended);
        if length == 0 && !self.is_ended {
            return Err(ReadError::Empty);
        }
        self.bytes.drain(..skipped);
        self.start = offset;
        self.next = offset + length as u64;
        let is_done = self.is_done();
        let bytes = &self.bytes[..length];
        let piece = std::str::from_utf8(bytes).map_or(WindowPiece::Bytes(bytes), WindowPiece::Text);
        Ok(Reading { offset, piece, is_done, total_written })
    }
}

/// Returns how many of `bytes` make one piece. A character is not cut, unless its end is missing
/// when the stream has ended.
fn cut(bytes: &[u8], is_ended: bool) -> usize {
    let length = bytes.len().min(limits::MCP_READ_BYTES_MAX);
    if is_ended && length == bytes.len() {
        return length;
    }
    // A character has at most four bytes, so only one of the last three can begin one that is cut.
    for back in 1..=length.min(3) {
        let first = bytes[length - back];
        let needed = match first {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => break,
        };
        return if needed > back { length - back } else { length };
    }
    length
}

impl Reading<'_> {
    /// The result of `stream_read`.
    pub fn to_json(&self, stream_id: &str) -> Value {
        let (byte_count, chunk, encoding) = match self.piece {
            WindowPiece::Text(text) => (text.len(), text.to_owned(), "text"),
            WindowPiece::Bytes(bytes) => (bytes.len(), encoded(bytes), "base64"),
        };
        json!({
            "stream_id": stream_id,
            "offset": self.offset,
            "bytes_read": byte_count,
            "done": self.is_done,
            "total_written": self.total_written,
            "chunk": chunk,
            "encoding": encoding,
        })
    }
}

/// The result of `stream_read` if no output came within [`limits::MCP_READ_WAIT`].
pub fn timed_out(stream_id: &str, window: &StreamWindow) -> Value {
    json!({
        "stream_id": stream_id,
        "offset": window.next,
        "bytes_read": 0,
        "done": false,
        "total_written": window.total_written(),
        "chunk": "",
        "encoding": "text",
        "timed_out": true,
    })
}

/// The result of `stream_close`.
pub fn closed(stream_id: &str, total_bytes: u64) -> Value {
    json!({ "stream_id": stream_id, "status": "closed", "total_bytes": total_bytes })
}

/// The result of `stream_open`.
pub fn opened(stream_id: &str, tool: &str) -> Value {
    json!({ "stream_id": stream_id, "tool": tool, "status": "open" })
}

/// The sentence for a client that reads at a wrong offset; `None` for [`ReadError::Empty`].
pub fn read_problem(error: ReadError) -> Option<String> {
    match error {
        ReadError::Empty => None,
        ReadError::Gone { oldest } => Some(format!(
            "`offset`: these bytes are gone; the stream is available from {oldest} on"
        )),
        ReadError::Ahead { total_written } => {
            Some(format!("`offset`: the stream has only {total_written} bytes so far"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    fn read(window: &mut StreamWindow, offset: Option<u64>) -> (u64, Vec<u8>, bool) {
        let reading = window.read(offset).expect("expected something to read");
        let bytes = match reading.piece {
            WindowPiece::Text(text) => text.as_bytes(),
            WindowPiece::Bytes(bytes) => bytes,
        };
        (reading.offset, bytes.to_vec(), reading.is_done)
    }

    #[test]
    fn all_that_is_written_is_read_once_and_in_order_however_it_comes() {
        let mut random = Random::new(1);
        for round in 0..200 {
            let text: String = (0..random.below(60_000))
                .map(|_| ['a', '\u{e9}', '\u{20ac}', '\u{1f600}'][random.below(4) as usize])
                .collect();
            let mut rest = text.as_bytes();
            let (mut window, mut all) = (StreamWindow::new(), String::new());
            loop {
                if !rest.is_empty() {
                    let length = window.room().min(rest.len()).min(random.below(50_000) as usize);
                    window.push(&rest[..length]);
                    rest = &rest[length..];
                }
                if rest.is_empty() && !window.is_ended() {
                    window.end();
                }
                match window.read(None) {
                    Ok(Reading { piece: WindowPiece::Text(piece), is_done, offset, .. }) => {
                        assert!(piece.len() <= limits::MCP_READ_BYTES_MAX);
                        assert_eq!(offset, all.len() as u64);
                        all.push_str(piece);
                        if is_done {
                            break;
                        }
                    }
                    Err(ReadError::Empty) => {}
                    other => panic!("round {round}: {other:?}"),
                }
            }
            assert_eq!(all, text, "round {round}");
            assert!(window.is_done());
        }
    }

    #[test]
    fn a_lost_answer_is_had_again_by_its_offset() {
        let mut window = StreamWindow::new();
        window.push(b"first");
        assert_eq!(read(&mut window, None), (0, b"first".to_vec(), false));
        window.push(b", second");
        assert_eq!(read(&mut window, Some(0)), (0, b"first, second".to_vec(), false));
        assert_eq!(read(&mut window, Some(0)), (0, b"first, second".to_vec(), false));
        assert_eq!(read(&mut window, Some(7)), (7, b"second".to_vec(), false));
        assert_eq!(window.read(Some(6)), Err(ReadError::Gone { oldest: 7 }));
        assert_eq!(window.read(Some(14)), Err(ReadError::Ahead { total_written: 13 }));
        assert_eq!(window.read(None), Err(ReadError::Empty));
        assert_eq!(window.read(Some(7)).unwrap().offset, 7); // Bytes not read are not discarded.
        window.end();
        assert_eq!(read(&mut window, None), (13, vec![], true));
        assert_eq!(read(&mut window, None), (13, vec![], true));
    }

    #[test]
    fn a_client_goes_on_in_a_new_window_where_it_was() {
        let mut window = StreamWindow::going_on_at(5);
        assert_eq!(window.read(Some(5)), Err(ReadError::Empty));
        window.push(b"abc");
        assert_eq!((window.total_written(), window.room()), (3, limits::MCP_RESULT_BYTES_MAX));
        assert_eq!(window.read(Some(5)), Err(ReadError::Empty));
        assert_eq!(window.read(Some(6)), Err(ReadError::Ahead { total_written: 3 }));
        window.push(b"defgh");
        assert_eq!(window.read(Some(2)), Err(ReadError::Gone { oldest: 5 }));
        assert_eq!(read(&mut window, Some(5)), (5, b"fgh".to_vec(), false));
        window.push(b"ij");
        window.end();
        assert_eq!(read(&mut window, None), (8, b"ij".to_vec(), true));
        let mut window = StreamWindow::going_on_at(5);
        window.end();
        assert_eq!(window.read(Some(5)), Err(ReadError::Ahead { total_written: 0 }));
    }

    #[test]
    fn the_window_is_full_until_somebody_reads() {
        let mut window = StreamWindow::new();
        let max = limits::MCP_RESULT_BYTES_MAX;
        window.push(&vec![b'a'; max]);
        assert_eq!(window.room(), 0);
        assert_eq!(read(&mut window, None).1.len(), limits::MCP_READ_BYTES_MAX);
        assert_eq!(window.room(), limits::MCP_READ_BYTES_MAX); // A read makes room.
        window.push(&vec![b'b'; limits::MCP_READ_BYTES_MAX]);
        assert_eq!(window.room(), 0);
        assert_eq!(read(&mut window, Some(0)).0, 0); // The reply was lost: it is sent again.
        assert_eq!(window.room(), 0);
        assert_eq!(read(&mut window, None).0, limits::MCP_READ_BYTES_MAX as u64);
        assert_eq!(window.room(), limits::MCP_READ_BYTES_MAX);
        assert_eq!(window.total_written(), (max + limits::MCP_READ_BYTES_MAX) as u64);
    }

    #[test]
    fn a_character_is_never_cut_and_bytes_are_given_as_they_are() {
        let mut window = StreamWindow::new();
        window.push(b"a\xe2\x82");
        assert_eq!(read(&mut window, None), (0, b"a".to_vec(), false));
        assert_eq!(window.read(None), Err(ReadError::Empty)); // The rest may come.
        window.push(b"\xac");
        assert_eq!(read(&mut window, None), (1, "\u{20ac}".as_bytes().to_vec(), false));
        window.push(b"\xff\xe2\x82");
        let reading = window.read(None).unwrap();
        assert_eq!(reading.piece, WindowPiece::Bytes(b"\xff"));
        assert_eq!(reading.to_json("s")["encoding"], "base64");
        window.end();
        assert_eq!(read(&mut window, None), (5, b"\xe2\x82".to_vec(), true));
    }

    #[test]
    fn answers_are_as_the_seed_has_them() {
        let mut window = StreamWindow::new();
        let waited = timed_out("s", &window);
        assert_eq!((&waited["bytes_read"], &waited["done"]), (&json!(0), &json!(false)));
        assert_eq!(waited["timed_out"], true);
        window.push(b"abc");
        window.end();
        let read = window.read(None).unwrap().to_json("s");
        let expected = json!({
            "stream_id": "s", "offset": 0, "bytes_read": 3, "done": true, "total_written": 3,
            "chunk": "abc", "encoding": "text",
        });
        assert_eq!(read, expected);
        let documents = [opened("s", "t"), read, closed("s", 3)];
        for (spec, document) in specs().iter().zip(documents) {
            let schema = spec.output_schema.as_ref().unwrap();
            for name in schema["required"].as_array().unwrap() {
                assert!(document.get(name.as_str().unwrap()).is_some(), "{name}");
            }
        }
        assert_eq!(closed("s", 3)["status"], "closed");
        assert_eq!(read_problem(ReadError::Empty), None);
        assert!(read_problem(ReadError::Gone { oldest: 7 }).unwrap().contains("from 7 on"));
        assert!(read_problem(ReadError::Ahead { total_written: 9 }).unwrap().contains('9'));
    }
}
