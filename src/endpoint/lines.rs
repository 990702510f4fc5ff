//! A request body with one JSON value per line, read while it arrives. Each line is a call, and the
//! next line is read after that call was carried out.
//!
//! Invariants:
//! - N1: a line is read as soon as its end has arrived, whatever follows it.
//! - N2: the buffer holds at most one line and the bytes that arrived at once. No bytes are
//!   requested before all complete lines were taken.
//! - N3: each byte is scanned once, however the lines are cut.

use crate::endpoint::answer::Answer;
use crate::endpoint::{ApiCall, ApiError, Deliver, documents, workers};
use crate::limits;
use crate::wire::http1::Status;

/// The state of such a body; see the module's text.
#[derive(Debug, PartialEq)]
pub(super) struct LinesBody {
    /// The worker that sends the parts.
    session: Box<str>,
    bytes: Vec<u8>,
    /// The position up to which lines were taken.
    taken: usize,
    /// The position up to which bytes were scanned. The bytes from `taken` to here contain no line
    /// feed.
    seen: usize,
    has_ended: bool,
    taken_count: u64,
    duplicate_count: u64,
}

impl LinesBody {
    pub fn new(session: Box<str>) -> LinesBody {
        LinesBody {
            session,
            bytes: Vec::new(),
            taken: 0,
            seen: 0,
            has_ended: false,
            taken_count: 0,
            duplicate_count: 0,
        }
    }

    /// Appends the next bytes of the body.
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.taken); // The rest is less than a line, or nothing was taken.
        self.seen -= self.taken;
        self.taken = 0;
        self.bytes.extend_from_slice(piece);
    }

    /// Returns the capacity of the buffer, in bytes.
    pub fn kept_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Marks the end of the body. The bytes that are left are a line, too.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Returns the call of the next line, if the line is complete.
    pub fn next_call(&mut self) -> Option<Result<ApiCall, ApiError>> {
        let (from, until) = self.next_line()?;
        let bytes_max = limits::PART_BYTES_MAX;
        if (until - from) as u64 > bytes_max {
            let text = format!("a line is longer than {bytes_max} bytes");
            let error = ApiError::new(Status::CONTENT_TOO_LARGE, "body_too_long", text);
            return Some(Err(self.in_its_place(error.limit(bytes_max))));
        }
        let part = workers::part(&self.bytes[from..until]);
        let session = self.session.clone();
        let deliver = |part| {
            ApiCall::Deliver(Deliver { session, part, producer: None, is_of_many: true }.into())
        };
        Some(part.map(deliver).map_err(|error| self.in_its_place(error)))
    }

    /// Returns the range of the next line that is not empty, or of a rest that is already too long.
    fn next_line(&mut self) -> Option<(usize, usize)> {
        loop {
            let rest = &self.bytes[self.seen..];
            let found = rest.iter().position(|byte| *byte == b'\n').map(|at| self.seen + at);
            let (from, until) = match found {
                Some(at) => (self.taken, at),
                None if self.has_ended && self.taken < self.bytes.len() => {
                    (self.taken, self.bytes.len())
                }
                None => {
                    self.seen = self.bytes.len();
                    let is_long = (self.seen - self.taken) as u64 > limits::PART_BYTES_MAX;
                    return is_long.then_some((self.taken, self.seen));
                }
            };
            self.taken = self.bytes.len().min(until + 1);
            self.seen = self.taken;
            if !self.bytes[from..until].trim_ascii().is_empty() {
                return Some((from, until));
            }
        }
    }

    /// Counts the part of the line that was read last as accepted.
    pub fn count(&mut self, is_duplicate: bool) {
        self.taken_count += 1;
        self.duplicate_count += u64::from(is_duplicate);
    }

    /// Adds the number of the part that was read last to an error. The parts before it were
    /// accepted.
    pub fn in_its_place(&self, mut error: ApiError) -> ApiError {
        error.message = format!("part {}: {}", self.taken_count + 1, error.message);
        error
    }

    /// Returns the answer to all parts.
    pub fn answer(&self) -> Answer {
        let document = documents::delivered_parts(self.taken_count, self.duplicate_count);
        Answer::json(Status::OK, &document)
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}
