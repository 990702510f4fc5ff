//! Responses, appended to the caller's buffer. Nothing allocates.
//!
//! The headers of a response have one order: `date`, those of the caller, those about the body,
//! `connection`. Values may come from outside, and one that would end its line is refused.

use std::fmt;

use super::body::{is_text, is_token};
use super::head::Version;
use crate::wire::digits::hex_digits;
use crate::wire::json;

/// The interim response to `Expect: 100-continue`, which permits the body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The bytes after the content of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";
/// The end of a complete chunked body. An incomplete one ends with its connection.
pub const BODY_END: &[u8] = b"0\r\n\r\n";
/// Number of digits of the size that [`begin_chunk`] makes room for.
const CHUNK_DIGITS: usize = 8;

/// A status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

macro_rules! statuses {
    ($($name:ident $code:literal $reason:literal,)*) => {
        #[allow(missing_docs)] // The names of RFC 9110.
        impl Status {
            $(pub const $name: Status = Status($code);)*
            /// All statuses that have a name here.
            pub const ALL: &[Status] = &[$(Status::$name,)*];

            /// The reason phrase of the code; empty for a code without a name here.
            pub fn reason(self) -> &'static str {
                match self.0 {
                    $($code => $reason,)*
                    _ => "",
                }
            }
        }
    };
}

statuses! {
    OK 200 "OK",
    CREATED 201 "Created",
    ACCEPTED 202 "Accepted",
    NO_CONTENT 204 "No Content",
    PARTIAL_CONTENT 206 "Partial Content",
    NOT_MODIFIED 304 "Not Modified",
    TEMPORARY_REDIRECT 307 "Temporary Redirect",
    BAD_REQUEST 400 "Bad Request",
    UNAUTHORIZED 401 "Unauthorized",
    FORBIDDEN 403 "Forbidden",
    NOT_FOUND 404 "Not Found",
    METHOD_NOT_ALLOWED 405 "Method Not Allowed",
    NOT_ACCEPTABLE 406 "Not Acceptable",
    REQUEST_TIMEOUT 408 "Request Timeout",
    CONFLICT 409 "Conflict",
    GONE 410 "Gone",
    LENGTH_REQUIRED 411 "Length Required",
    CONTENT_TOO_LARGE 413 "Content Too Large",
    URI_TOO_LONG 414 "URI Too Long",
    UNSUPPORTED_MEDIA_TYPE 415 "Unsupported Media Type",
    RANGE_NOT_SATISFIABLE 416 "Range Not Satisfiable",
    EXPECTATION_FAILED 417 "Expectation Failed",
    MISDIRECTED_REQUEST 421 "Misdirected Request",
    UNPROCESSABLE_CONTENT 422 "Unprocessable Content",
    TOO_MANY_REQUESTS 429 "Too Many Requests",
    HEADERS_TOO_LARGE 431 "Request Header Fields Too Large",
    INTERNAL_SERVER_ERROR 500 "Internal Server Error",
    NOT_IMPLEMENTED 501 "Not Implemented",
    SERVICE_UNAVAILABLE 503 "Service Unavailable",
    GATEWAY_TIMEOUT 504 "Gateway Timeout",
    VERSION_NOT_SUPPORTED 505 "HTTP Version Not Supported",
    INSUFFICIENT_STORAGE 507 "Insufficient Storage",
}

impl Status {
    /// Makes a status of a code that is not interim; `None` if `code` is not such a code.
    pub fn new(code: u16) -> Option<Status> {
        (200..1_000).contains(&code).then_some(Status(code))
    }

    /// The code as a number.
    pub fn code(self) -> u16 {
        self.0
    }

    /// True if the status is 2xx.
    pub fn is_success(self) -> bool {
        self.0 / 100 == 2
    }

    /// True if no body ever follows the status, even if the headers announce one.
    pub fn is_bodiless(self) -> bool {
        matches!(self, Status::NO_CONTENT | Status::NOT_MODIFIED)
    }
}

/// The framing of a response, which determines the end of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// This number of bytes follows. A response to `HEAD` announces the same, and no body follows.
    Length(u64),
    /// The body follows in chunks.
    Chunked,
    /// The body ends when the connection is closed.
    UntilClose,
}

impl Framing {
    /// The framing of a body of unknown length, for a client of this version.
    pub fn of_stream(version: Version) -> Framing {
        match version {
            Version::Http11 => Framing::Chunked,
            Version::Http10 => Framing::UntilClose,
        }
    }
}

/// The error of a header whose value would end its line, or whose name is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderError;

/// The head of a response that is being written.
///
/// ```
/// use streamdoor::wire::http1::{Framing, ResponseHead, Status, http_date};
///
/// let mut out = Vec::with_capacity(512);
/// let date = http_date(784_111_777);
/// let mut head = ResponseHead::begin(&mut out, Status::OK, &date);
/// head.header("content-type", "application/json")?;
/// head.finish(Framing::Length(2), true);
/// out.extend_from_slice(b"{}");
/// assert_eq!(
///     String::from_utf8(out)?,
///     "HTTP/1.1 200 OK\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
///      content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a head must be finished"]
#[derive(Debug)]
pub struct ResponseHead<'a> {
    out: &'a mut Vec<u8>,
    status: Status,
}

impl<'a> ResponseHead<'a> {
    /// Appends the first line and the date, which is [`super::http_date`] of now.
    pub fn begin(out: &'a mut Vec<u8>, status: Status, date: &[u8; 29]) -> ResponseHead<'a> {
        out.extend_from_slice(b"HTTP/1.1 ");
        json::write_u64(out, status.code().into());
        out.push(b' ');
        out.extend_from_slice(status.reason().as_bytes());
        out.extend_from_slice(b"\r\ndate: ");
        out.extend_from_slice(date);
        out.extend_from_slice(CHUNK_END);
        ResponseHead { out, status }
    }

    /// Appends a header. The caller must not append those that [`ResponseHead::finish`] writes.
    ///
    /// # Errors
    /// [`HeaderError`]; nothing is written.
    pub fn header(&mut self, name: &str, value: &str) -> Result<(), HeaderError> {
        let is_name = !name.is_empty() && name.bytes().all(is_token);
        if !is_name || !value.bytes().all(is_text) {
            return Err(HeaderError);
        }
        for part in [name.as_bytes(), b": ", value.as_bytes(), CHUNK_END] {
            self.out.extend_from_slice(part);
        }
        Ok(())
    }

    /// Appends the rest of the head. `keeps_alive` tells whether the connection may carry another
    /// request. It may not if the body ends with the connection.
    pub fn finish(self, framing: Framing, keeps_alive: bool) {
        match framing {
            // Such a header would be wrong here: RFC 9110, section 8.6.
            _ if self.status.is_bodiless() => {}
            Framing::Length(bytes) => {
                self.out.extend_from_slice(b"content-length: ");
                json::write_u64(self.out, bytes);
                self.out.extend_from_slice(CHUNK_END);
            }
            Framing::Chunked => self.out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            Framing::UntilClose => {}
        }
        if !keeps_alive || framing == Framing::UntilClose {
            self.out.extend_from_slice(b"connection: close\r\n");
        }
        self.out.extend_from_slice(CHUNK_END);
    }
}

/// Appends the bytes before the content of a chunk of `content_bytes`. [`CHUNK_END`] follows the
/// content. The size must not be 0, because that would end the body.
#[inline]
pub fn write_chunk_size(out: &mut Vec<u8>, content_bytes: usize) {
    assert!(content_bytes > 0);
    let digit_count = (usize::BITS - content_bytes.leading_zeros()).div_ceil(4);
    for place in (0..digit_count).rev() {
        out.push(hex_digit(content_bytes >> (4 * place)));
    }
    out.extend_from_slice(CHUNK_END);
}

/// A chunk whose content is being appended.
#[must_use = "a chunk must be ended"]
#[derive(Debug)]
pub struct OpenChunk {
    content_at: usize,
}

/// Begins a chunk, with room for its size. The caller appends its content to `out` next.
#[inline]
pub fn begin_chunk(out: &mut Vec<u8>) -> OpenChunk {
    out.extend_from_slice(b"00000000\r\n");
    OpenChunk { content_at: out.len() }
}

/// Ends a chunk: it fills in its size and appends its end. A chunk without content is removed.
///
/// # Panics
/// If the content has 2^32 bytes or more.
#[inline]
pub fn end_chunk(out: &mut Vec<u8>, chunk: OpenChunk) {
    let size_at = chunk.content_at - CHUNK_END.len() - CHUNK_DIGITS;
    let content_bytes = out.len() - chunk.content_at;
    if content_bytes == 0 {
        out.truncate(size_at);
        return;
    }
    let content_bytes = u32::try_from(content_bytes).expect("no chunk has 4 GiB");
    out[size_at..size_at + CHUNK_DIGITS].copy_from_slice(&hex_digits(content_bytes));
    out.extend_from_slice(CHUNK_END);
}

/// Returns the digit of the lowest four bits.
fn hex_digit(bits: usize) -> u8 {
    b"0123456789abcdef"[bits & 15]
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.0, self.reason())
    }
}

impl fmt::Display for HeaderError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a header has control characters or an invalid name")
    }
}

impl std::error::Error for HeaderError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    const DATE: [u8; 29] = *b"Sun, 06 Nov 1994 08:49:37 GMT";

    fn head(status: Status, framing: Framing, keeps_alive: bool) -> String {
        let mut out = Vec::new();
        let mut head = ResponseHead::begin(&mut out, status, &DATE);
        head.header("cache-control", "no-cache").unwrap();
        head.finish(framing, keeps_alive);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn heads_are_spelled_so() {
        let start = |first: &str| {
            format!(
                "HTTP/1.1 {first}\r\ndate: {}\r\ncache-control: no-cache\r\n",
                "Sun, 06 Nov 1994 08:49:37 GMT"
            )
        };
        let table = [
            (
                head(Status::OK, Framing::Length(0), true),
                start("200 OK") + "content-length: 0\r\n\r\n",
            ),
            (
                head(Status::BAD_REQUEST, Framing::Length(17), false),
                start("400 Bad Request") + "content-length: 17\r\nconnection: close\r\n\r\n",
            ),
            (
                head(Status::OK, Framing::Chunked, true),
                start("200 OK") + "transfer-encoding: chunked\r\n\r\n",
            ),
            (
                head(Status::OK, Framing::UntilClose, true),
                start("200 OK") + "connection: close\r\n\r\n",
            ),
            (head(Status::NO_CONTENT, Framing::Length(0), true), start("204 No Content") + "\r\n"),
        ];
        for (got, expected) in table {
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn a_header_that_would_end_its_line_is_refused() {
        let mut out = Vec::new();
        let mut head = ResponseHead::begin(&mut out, Status::OK, &DATE);
        for (name, value) in [
            ("x", "a\r\nset-cookie: b"),
            ("x", "a\n"),
            ("x", "\r"),
            ("x", "a\0b"),
            ("x", "\u{7f}"),
            ("", "a"),
            ("x y", "a"),
            ("x:", "a"),
            ("x\r\ny", "a"),
            ("ä", "a"),
        ] {
            assert_eq!(head.header(name, value), Err(HeaderError), "{name:?} {value:?}");
        }
        head.header("x-ok", "\ttext, ä").unwrap();
        head.finish(Framing::Length(0), true);
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("GMT\r\nx-ok: \ttext, ä\r\ncontent-length: 0\r\n\r\n"), "{text}");
    }

    #[test]
    fn chunk_sizes_are_what_the_standard_library_says() {
        let mut random = Random::new(1);
        for round in 0..10_000 {
            let size = ((random.next_u64() >> random.below(64)) as usize).max(1);
            let mut out = Vec::new();
            write_chunk_size(&mut out, size);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{size:x}\r\n"), "round {round}");
        }
    }

    #[test]
    fn an_open_chunk_gets_its_size_or_disappears() {
        let mut out = b"before".to_vec();
        let empty = begin_chunk(&mut out);
        end_chunk(&mut out, empty);
        assert_eq!(out, b"before");
        let chunk = begin_chunk(&mut out);
        out.extend_from_slice(&[b'x'; 0x1a]);
        end_chunk(&mut out, chunk);
        let expected = format!("before0000001a\r\n{}\r\n", "x".repeat(0x1a));
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        for bytes in [1, 9, 10, 0xff, 0xabc, 0x1_2345] {
            let mut out = Vec::new();
            let chunk = begin_chunk(&mut out);
            out.resize(out.len() + bytes, b'x');
            end_chunk(&mut out, chunk);
            assert!(out.starts_with(format!("{bytes:08x}\r\nx").as_bytes()), "{bytes}");
            assert!(out.ends_with(b"x\r\n"));
        }
    }
}
