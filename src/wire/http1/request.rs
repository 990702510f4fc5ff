//! A reader of requests for servers.

use super::body::{BodyLength, BodyPart, BodyReader};
use super::head::RequestHead;
use super::refusal::Refusal;
use super::scan::HeadScan;
use crate::limits;

/// Finds requests in the bytes of one connection, which arrive in pieces.
///
/// Each request is a [`RequestPart::Head`], pieces of its body, and a [`RequestPart::End`]. Then
/// the next one may begin. Bytes after an end stay in the input. A server that replies to one
/// request after the other keeps these bytes. It reads no more from the connection until it has
/// replied.
///
/// A head that comes whole is parsed in place; only a head that comes in pieces is buffered.
/// Between requests, and while a body is read, the reader has no memory of its own.
///
/// ```
/// use streamdoor::wire::http1::{Method, RequestPart, RequestReader};
///
/// let mut reader = RequestReader::new();
/// let mut input = &b"POST /a?b=c HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nab"[..];
/// let Some(RequestPart::Head(head)) = reader.read(&mut input)? else { panic!("it is whole") };
/// assert_eq!((head.method, head.target.path, head.target.query), (Method::Post, "/a", "b=c"));
/// assert_eq!(reader.read(&mut input)?, Some(RequestPart::Body(b"ab")));
/// assert_eq!(reader.read(&mut input)?, None); // All of it is taken: the rest has to come.
/// let mut input = &b"cGET"[..];
/// assert_eq!(reader.read(&mut input)?, Some(RequestPart::Body(b"c")));
/// assert_eq!(reader.read(&mut input)?, Some(RequestPart::End));
/// assert_eq!(input, b"GET"); // The next one.
/// # Ok::<(), streamdoor::wire::http1::Refusal>(())
/// ```
#[derive(Debug)]
pub struct RequestReader {
    state: RequestState,
    scan: HeadScan,
    /// The beginning of a head that comes in pieces, or the last one that did.
    kept: Vec<u8>,
    keeps_alive: bool,
    begins_as_head: bool,
}

#[derive(Debug)]
enum RequestState {
    Head,
    Body(BodyReader),
    Refused(Refusal),
}

/// A part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestPart<'a> {
    /// The head.
    Head(RequestHead<'a>),
    /// The next bytes of the body, at least one.
    Body(&'a [u8]),
    /// The end of the request. Requests without a body have one, too.
    End,
}

impl Default for RequestReader {
    fn default() -> RequestReader {
        RequestReader::new()
    }
}

impl RequestReader {
    /// Creates the reader of a new connection.
    pub fn new() -> RequestReader {
        let scan = HeadScan::default();
        let (state, kept) = (RequestState::Head, Vec::new());
        RequestReader { state, scan, kept, keeps_alive: true, begins_as_head: false }
    }

    /// Returns the next part. It consumes the bytes of the part from the front of `input`. `None`
    /// means that all of `input` is consumed and more is needed.
    ///
    /// # Errors
    /// [`Refusal`], and the same for every later call. Reply with its status, and close the
    /// connection.
    pub fn read<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<RequestPart<'a>>, Refusal> {
        match &mut self.state {
            RequestState::Refused(refusal) => Err(*refusal),
            RequestState::Head => self.read_head(input),
            RequestState::Body(body) => {
                self.kept = Vec::new();
                match body.read(input) {
                    Ok(Some(BodyPart::Piece(piece))) => Ok(Some(RequestPart::Body(piece))),
                    Ok(Some(BodyPart::End)) => {
                        self.state = RequestState::Head;
                        Ok(Some(RequestPart::End))
                    }
                    Ok(None) => Ok(None),
                    Err(refusal) => {
                        self.state = RequestState::Refused(refusal);
                        Err(refusal)
                    }
                }
            }
        }
    }

    /// Sets the size limit of the body of this request, which is [`limits::HTTP_BODY_BYTES_MAX`]
    /// otherwise. Call it between the head and the next part. A longer body is refused with the
    /// next part at the latest.
    ///
    /// # Errors
    /// [`Refusal::BodyTooLong`] if the length is already known, which is before [`super::CONTINUE`]
    /// is sent.
    pub fn limit_body(&mut self, bytes_max: u64) -> Result<(), Refusal> {
        let RequestState::Body(body) = &mut self.state else { return Ok(()) };
        body.set_limit(bytes_max);
        if body.is_too_long() {
            self.state = RequestState::Refused(Refusal::BodyTooLong);
            return Err(Refusal::BodyTooLong);
        }
        Ok(())
    }

    /// Checks whether the connection may end here.
    ///
    /// # Errors
    /// [`Refusal::Truncated`] in the middle of a request; an earlier refusal.
    pub fn finish(&self) -> Result<(), Refusal> {
        match &self.state {
            RequestState::Refused(refusal) => Err(*refusal),
            _ if self.is_between_requests() => Ok(()),
            _ => Err(Refusal::Truncated),
        }
    }

    /// True if nothing of the next request has come yet. An idle connection in this state may be
    /// closed if others need its place.
    pub fn is_between_requests(&self) -> bool {
        matches!(self.state, RequestState::Head) && self.scan.is_at_start()
    }

    /// True if a part of the body of the last request is yet to come. A server that replies now has
    /// to close the connection, or to read the body first.
    pub fn is_in_body(&self) -> bool {
        matches!(&self.state, RequestState::Body(body) if !body.is_at_end())
    }

    /// True if another request may follow the reply to the last one. Call it when the head of the
    /// reply is written.
    pub fn keeps_alive(&self) -> bool {
        let is_refused = matches!(self.state, RequestState::Refused(_));
        self.keeps_alive && !is_refused && !self.is_in_body()
    }

    /// True if the last request begins like one of `HEAD`, even if it is refused or incomplete. A
    /// reply that refuses it has no body either.
    pub fn begins_as_head(&self) -> bool {
        self.begins_as_head
    }

    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept.capacity()
    }

    fn read_head<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<RequestPart<'a>>, Refusal> {
        self.begins_as_head = begins_as_head(&self.kept, input);
        let head_bytes = match self.scan.feed(input) {
            Ok(Some(head_bytes)) => head_bytes,
            Ok(None) => {
                self.kept.extend_from_slice(std::mem::take(input));
                return Ok(None);
            }
            Err(refusal) => {
                self.state = RequestState::Refused(refusal);
                return Err(refusal);
            }
        };
        self.scan = HeadScan::default();
        let (piece, rest) = input.split_at(head_bytes);
        *input = rest;
        let head = if self.kept.is_empty() {
            RequestHead::parse(piece)
        } else {
            self.kept.extend_from_slice(piece);
            RequestHead::parse(&self.kept)
        };
        match head {
            Ok(head) => {
                let length = head.body;
                assert!(length != BodyLength::UntilClose);
                self.state =
                    RequestState::Body(BodyReader::new(length, limits::HTTP_BODY_BYTES_MAX));
                self.keeps_alive = head.keeps_alive;
                Ok(Some(RequestPart::Head(head)))
            }
            Err(refusal) => {
                self.state = RequestState::Refused(refusal);
                Err(refusal)
            }
        }
    }
}

/// True if the bytes begin like a `HEAD` request, perhaps after one empty line. Bytes after a
/// refused byte do not matter, because no `HEAD ` can follow one.
fn begins_as_head(kept: &[u8], input: &[u8]) -> bool {
    let mut first = [0; 7];
    for (to, from) in first.iter_mut().zip(kept.iter().chain(input)) {
        *to = *from;
    }
    first.strip_prefix(b"\r\n").unwrap_or(&first).starts_with(b"HEAD ")
}
