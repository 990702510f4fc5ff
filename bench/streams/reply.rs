//! The parser of the replies of one connection: their heads, and the bytes of their bodies as they
//! come.

/// The longest head.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 48;

/// The head of a reply whose body has come.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    /// `Stream-Next-Offset`.
    pub next_offset: String,
    /// `Stream-Up-To-Date`.
    pub is_up_to_date: bool,
}

/// The replies of one connection.
#[derive(Debug, Default)]
pub struct Replies {
    reply: Reply,
    /// The received part of a head, or of the line of a chunk.
    line: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Head,
    /// Number of bytes of the body that are still to come.
    Sized(u64),
    ChunkSize,
    /// The same of a chunk, with the two of its line end.
    Chunk(u64),
    /// The line behind the last chunk. Trailers are not expected.
    Last,
    /// The body ends with the connection.
    Endless,
}

impl Replies {
    /// Returns the parser for a new connection.
    pub fn new() -> Replies {
        Replies::default()
    }

    /// True once the head of the reply that is coming has come.
    pub fn has_head(&self) -> bool {
        !matches!(self.state, State::Head)
    }

    /// Takes received bytes up to the end of a reply, and removes them. Calls `body` with those of
    /// the body. Returns the reply once it is complete.
    ///
    /// # Errors
    /// A text that says what is wrong with them.
    pub fn take(
        &mut self,
        bytes: &mut &[u8],
        mut body: impl FnMut(&[u8]),
    ) -> Result<Option<Reply>, String> {
        while !bytes.is_empty() {
            match self.state {
                State::Head => {
                    if self.has_line(bytes, b"\r\n\r\n")? && self.read_head()? {
                        return Ok(Some(self.complete()));
                    }
                }
                State::Sized(left) => {
                    let count = split(bytes, left, &mut body);
                    self.state = State::Sized(left - count);
                    if left == count {
                        return Ok(Some(self.complete()));
                    }
                }
                State::ChunkSize => {
                    if self.has_line(bytes, b"\r\n")? {
                        let text = std::str::from_utf8(&self.line).unwrap_or_default();
                        let size = u64::from_str_radix(text.trim(), 16);
                        let size = size.map_err(|_| format!("the size of a chunk is {text:?}"))?;
                        self.line.clear();
                        self.state = if size == 0 { State::Last } else { State::Chunk(size + 2) };
                    }
                }
                State::Chunk(left) => {
                    let count = match left {
                        0..=2 => split(bytes, left, |_| {}),
                        _ => split(bytes, left - 2, &mut body),
                    };
                    let left = left - count;
                    self.state = if left == 0 { State::ChunkSize } else { State::Chunk(left) };
                }
                State::Last => {
                    if self.has_line(bytes, b"\r\n")? {
                        return Ok(Some(self.complete()));
                    }
                }
                State::Endless => {
                    split(bytes, u64::MAX, &mut body);
                }
            }
        }
        Ok(None)
    }

    fn complete(&mut self) -> Reply {
        self.line.clear();
        self.state = State::Head;
        std::mem::take(&mut self.reply)
    }

    /// Moves bytes to the line until it ends with `end`. Returns true if it does.
    fn has_line(&mut self, bytes: &mut &[u8], end: &[u8]) -> Result<bool, String> {
        while let Some((&byte, rest)) = bytes.split_first() {
            self.line.push(byte);
            *bytes = rest;
            if byte == b'\n' && self.line.ends_with(end) {
                return Ok(true);
            }
            if self.line.len() > HEAD_BYTES_MAX {
                return Err("a head is too long".into());
            }
        }
        Ok(false)
    }

    /// Returns true if there is no body.
    fn read_head(&mut self) -> Result<bool, String> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        head.parse(&self.line).map_err(|error| format!("a head: {error}"))?;
        self.reply.status = head.code.unwrap_or(0);
        let mut state = State::Endless;
        for header in head.headers.iter() {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            let value = std::str::from_utf8(header.value).unwrap_or_default();
            if is("content-length") {
                let length = value.parse().map_err(|_| format!("a length is {value:?}"))?;
                state = State::Sized(length);
            } else if is("transfer-encoding") {
                state = State::ChunkSize;
            } else if is("stream-next-offset") {
                value.clone_into(&mut self.reply.next_offset);
            } else if is("stream-up-to-date") {
                self.reply.is_up_to_date = true;
            }
        }
        self.line.clear();
        self.state = state;
        Ok(matches!(state, State::Sized(0)) || matches!(self.reply.status, 204 | 304))
    }
}

/// Gives at most `left` bytes to `body` and removes them. Returns their number.
fn split(bytes: &mut &[u8], left: u64, mut body: impl FnMut(&[u8])) -> u64 {
    let count = left.min(bytes.len() as u64);
    let (own, rest) = bytes.split_at(count as usize);
    if !own.is_empty() {
        body(own);
    }
    *bytes = rest;
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_found_wherever_they_are_cut() {
        let text = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: 7\r\n\r\n\
            HTTP/1.1 200 OK\r\ncontent-length: 3\r\nstream-up-to-date: true\r\n\r\nabc\
            HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n\
            HTTP/1.1 200 OK\r\n\r\nghi";
        for cut in 1..text.len() {
            let (mut replies, mut found, mut body) = (Replies::new(), Vec::new(), Vec::new());
            for mut piece in [&text[..cut], &text[cut..]] {
                while !piece.is_empty() {
                    let taken = replies.take(&mut piece, |bytes| body.extend_from_slice(bytes));
                    found.extend(taken.expect("it is right"));
                }
            }
            let found: Vec<(u16, &str, bool)> = found
                .iter()
                .map(|reply| (reply.status, &*reply.next_offset, reply.is_up_to_date))
                .collect();
            assert_eq!(found, [(204, "7", false), (200, "", true), (200, "", false)], "{cut}");
            assert_eq!(body, b"abcdefghi", "{cut}");
        }
    }
}
