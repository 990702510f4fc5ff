//! A reader of responses for clients.
//!
//! It is as strict as the server's side. If the connection ends before a response does, that is an
//! error. A body that ends with the connection is complete as far as HTTP can tell. Its content has
//! to show whether it is complete.

use std::fmt;

use super::body::{BodyLength, BodyPart, BodyReader};
use super::head::{FramingHeaders, Headers, Method, Version, framing, refusal_of, version_of};
use super::refusal::Refusal;
use super::response::Status;
use super::scan::HeadScan;
use crate::limits;

/// Finds responses in the bytes of one connection, which arrive in pieces.
///
/// ```
/// use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
///
/// let mut reader = ResponseReader::new();
/// reader.expect(Method::Get);
/// let mut input = &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"[..];
/// let Some(ResponsePart::Head(head)) = reader.read(&mut input)? else { panic!("it is whole") };
/// assert!(head.status.is_success());
/// assert_eq!(reader.read(&mut input)?, Some(ResponsePart::Body(b"ab")));
/// assert_eq!(reader.read(&mut input)?, None); // The end is not whole.
/// assert!(reader.finish().is_err());
/// # Ok::<(), streamdoor::wire::http1::ResponseError>(())
/// ```
#[derive(Debug)]
pub struct ResponseReader {
    state: ResponseState,
    method: Method,
    scan: HeadScan,
    kept: Vec<u8>,
    interim_count: u32,
}

#[derive(Debug)]
enum ResponseState {
    /// No request waits for its response.
    Idle,
    Head,
    Body(BodyReader),
    Failed(ResponseError),
}

/// A part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponsePart<'a> {
    /// The head.
    Head(ResponseInfo<'a>),
    /// The next bytes of the body, at least one.
    Body(&'a [u8]),
    /// The end of the response.
    End,
}

/// The head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseInfo<'a> {
    /// The status of the response.
    pub status: Status,
    /// The HTTP version of the response.
    pub version: Version,
    /// The length of the body.
    pub body: BodyLength,
    /// True if the connection may carry another request.
    pub keeps_alive: bool,
    /// All headers.
    pub headers: Headers<'a>,
}

/// The reason why a response cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// It breaks a rule that applies to requests as well.
    Malformed(Refusal),
    /// The first line is not of the form `HTTP/1.1 200 OK`, with a status of three digits.
    BadStatusLine,
    /// The server wants to change the protocol (status 101).
    Upgraded,
    /// More interim responses came than [`limits::HTTP_INTERIM_RESPONSES_MAX`].
    TooManyInterim,
    /// Bytes came without a request.
    Unasked,
    /// The connection ended before the response did. Another attempt may help.
    Truncated,
}

impl Default for ResponseReader {
    fn default() -> ResponseReader {
        ResponseReader::new()
    }
}

impl ResponseReader {
    /// Creates the reader of a new connection.
    pub fn new() -> ResponseReader {
        ResponseReader {
            state: ResponseState::Idle,
            method: Method::Get,
            scan: HeadScan::default(),
            kept: Vec::new(),
            interim_count: 0,
        }
    }

    /// Announces that a request with this method was sent. The method determines whether the
    /// response has a body.
    ///
    /// # Panics
    /// If the response to the last one has not ended.
    pub fn expect(&mut self, method: Method) {
        assert!(!matches!(self.state, ResponseState::Head | ResponseState::Body(_)));
        self.method = method;
        self.interim_count = 0;
        if matches!(self.state, ResponseState::Idle) {
            self.state = ResponseState::Head;
        }
    }

    /// Returns the next part. It consumes the bytes of the part from the front of `input`. `None`
    /// means that all of `input` is consumed and more is needed. Interim responses are skipped.
    ///
    /// # Errors
    /// [`ResponseError`], and the same for every later call.
    pub fn read<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<ResponsePart<'a>>, ResponseError> {
        match &mut self.state {
            ResponseState::Failed(error) => Err(*error),
            ResponseState::Idle if input.is_empty() => Ok(None),
            ResponseState::Idle => Err(self.fail(ResponseError::Unasked)),
            ResponseState::Head => self.read_head(input),
            ResponseState::Body(body) => {
                self.kept = Vec::new();
                match body.read(input) {
                    Ok(Some(BodyPart::Piece(piece))) => Ok(Some(ResponsePart::Body(piece))),
                    Ok(Some(BodyPart::End)) => {
                        self.state = ResponseState::Idle;
                        Ok(Some(ResponsePart::End))
                    }
                    Ok(None) => Ok(None),
                    Err(refusal) => Err(self.fail(ResponseError::Malformed(refusal))),
                }
            }
        }
    }

    /// Sets the size limit of the body of this response. Without it the body has no limit. Call it
    /// between the head and the next part.
    pub fn limit_body(&mut self, bytes_max: u64) {
        if let ResponseState::Body(body) = &mut self.state {
            body.set_limit(bytes_max);
        }
    }

    /// Ends the connection. Returns [`ResponsePart::End`] for a body that ends with the connection,
    /// and `None` if no response was expected.
    ///
    /// # Errors
    /// [`ResponseError::Truncated`] in the middle of a response; an earlier error.
    pub fn finish(&mut self) -> Result<Option<ResponsePart<'static>>, ResponseError> {
        match &self.state {
            ResponseState::Failed(error) => Err(*error),
            ResponseState::Idle => Ok(None),
            ResponseState::Body(body) if body.is_at_end() || body.ends_with_connection() => {
                self.state = ResponseState::Idle;
                Ok(Some(ResponsePart::End))
            }
            ResponseState::Head | ResponseState::Body(_) => {
                Err(self.fail(ResponseError::Truncated))
            }
        }
    }

    fn fail(&mut self, error: ResponseError) -> ResponseError {
        self.state = ResponseState::Failed(error);
        error
    }

    fn read_head<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<ResponsePart<'a>>, ResponseError> {
        let piece = loop {
            let head_bytes = match self.scan.feed(input) {
                Ok(Some(head_bytes)) => head_bytes,
                Ok(None) => {
                    self.kept.extend_from_slice(std::mem::take(input));
                    return Ok(None);
                }
                Err(refusal) => return Err(self.fail(ResponseError::Malformed(refusal))),
            };
            self.scan = HeadScan::default();
            let (piece, rest) = input.split_at(head_bytes);
            *input = rest;
            if !self.kept.is_empty() {
                self.kept.extend_from_slice(piece);
            }
            let head = if self.kept.is_empty() { piece } else { &self.kept };
            match check_status_line(head) {
                Ok(200..) => break piece,
                Ok(101) => return Err(self.fail(ResponseError::Upgraded)),
                Ok(_) if self.interim_count == limits::HTTP_INTERIM_RESPONSES_MAX => {
                    return Err(self.fail(ResponseError::TooManyInterim));
                }
                Ok(_) => {
                    self.interim_count += 1;
                    self.kept.clear();
                }
                Err(error) => return Err(self.fail(error)),
            }
        };
        let head = if self.kept.is_empty() { piece } else { &self.kept };
        match ResponseInfo::parse(head, self.method) {
            Ok(head) => {
                self.state = ResponseState::Body(BodyReader::new(head.body, u64::MAX));
                Ok(Some(ResponsePart::Head(head)))
            }
            Err(error) => {
                self.state = ResponseState::Failed(error);
                Err(error)
            }
        }
    }
}

/// Parses the status in `HTTP/1.1 200 OK`. `httparse` would also accept a line of digits alone.
fn check_status_line(head: &[u8]) -> Result<u16, ResponseError> {
    let line = head.trim_ascii_start();
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "));
    match rest {
        Some([a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ' | b'\r', ..]) => {
            let digits = [a, b, c].map(|digit| u16::from(digit - b'0'));
            Ok(100 * digits[0] + 10 * digits[1] + digits[2])
        }
        _ => Err(ResponseError::BadStatusLine),
    }
}

impl<'a> ResponseInfo<'a> {
    fn parse(bytes: &'a [u8], method: Method) -> Result<ResponseInfo<'a>, ResponseError> {
        let mut storage = [httparse::EMPTY_HEADER; limits::HTTP_HEADERS_MAX as usize];
        let mut response = httparse::Response::new(&mut storage);
        match response.parse(bytes) {
            Ok(httparse::Status::Complete(used)) if used == bytes.len() => {}
            Ok(_) => return Err(ResponseError::BadStatusLine), // It found another end than ours.
            Err(error) => {
                return Err(match refusal_of(error, bytes) {
                    Refusal::BadFirstLine => ResponseError::BadStatusLine,
                    refusal => ResponseError::Malformed(refusal),
                });
            }
        }
        let version = version_of(response.version);
        let status = response.code.and_then(Status::new).ok_or(ResponseError::BadStatusLine)?;
        let headers = Headers::new(bytes, response.headers);
        let said = FramingHeaders::by(response.headers);
        let length = framing(&said, version).map_err(ResponseError::Malformed)?;
        let body = match length {
            _ if method == Method::Head || status.is_bodiless() => BodyLength::None,
            Some(length) => length,
            None => BodyLength::UntilClose,
        };
        let keeps_alive = said.keeps_alive(version) && body != BodyLength::UntilClose;
        Ok(ResponseInfo { status, version, body, keeps_alive, headers })
    }
}

impl fmt::Display for ResponseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResponseError::Malformed(refusal) => {
                write!(out, "the response is malformed: {refusal}")
            }
            ResponseError::BadStatusLine => {
                out.write_str("the first line is not a status line of HTTP/1.1")
            }
            ResponseError::Upgraded => {
                out.write_str("the server changed the protocol without a request")
            }
            ResponseError::TooManyInterim => {
                let count_max = limits::HTTP_INTERIM_RESPONSES_MAX;
                write!(out, "the server sent more than {count_max} interim responses")
            }
            ResponseError::Unasked => out.write_str("the server sent a response without a request"),
            ResponseError::Truncated => {
                out.write_str("the connection ended before the response did")
            }
        }
    }
}

impl std::error::Error for ResponseError {}
