//! A body of many values, each on a line of its own, read while it comes: each line is a call, and
//! the next one is looked at when that was carried out.
//!
//! Invariants:
//! - N1: a line is looked at as soon as its end is there, whatever is behind it.
//! - N2: what is kept is no more than came at once and one line: no byte is asked for before all
//!   lines that are there were taken.
//! - N3: each byte is looked at once, however the lines are cut.

use serde_json::json;

use crate::endpoint::answer::Answer;
use crate::endpoint::{ApiError, Call, Deliver, workers};
use crate::limits;
use crate::wire::http1::Status;

/// See the module's text.
#[derive(Debug, PartialEq)]
pub(super) struct Lines {
    /// Whose parts these are.
    session: Box<str>,
    bytes: Vec<u8>,
    /// What is before this was taken.
    taken: usize,
    /// What is before this, and behind `taken`, has no line feed.
    seen: usize,
    has_ended: bool,
    taken_count: u64,
    duplicate_count: u64,
}

impl Lines {
    pub fn new(session: Box<str>) -> Lines {
        Lines {
            session,
            bytes: Vec::new(),
            taken: 0,
            seen: 0,
            has_ended: false,
            taken_count: 0,
            duplicate_count: 0,
        }
    }

    /// The next bytes of the body.
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.taken); // Less than a line is left, or nothing was taken.
        self.seen -= self.taken;
        self.taken = 0;
        self.bytes.extend_from_slice(piece);
    }

    /// What it keeps.
    pub fn kept_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The body has ended, where it may: what is left is a line, too.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// The next part, if its line is there.
    pub fn next_call(&mut self) -> Option<Result<Call, ApiError>> {
        let (from, until) = self.next_line()?;
        let bytes_max = limits::PART_BYTES_MAX;
        if (until - from) as u64 > bytes_max {
            let text = format!("a line is longer than {bytes_max} bytes");
            let error = ApiError::new(Status::CONTENT_TOO_LARGE, "body_too_long", text);
            return Some(Err(self.in_its_place(error.limit(bytes_max))));
        }
        let part = workers::part(&self.bytes[from..until]);
        let session = self.session.clone();
        let deliver = |part| Call::Deliver(Deliver { session, part, is_of_many: true }.into());
        Some(part.map(deliver).map_err(|error| self.in_its_place(error)))
    }

    /// Where the next line is that is not empty; or what is too long for one already.
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

    /// The part that was looked at last was taken.
    pub fn count(&mut self, is_duplicate: bool) {
        self.taken_count += 1;
        self.duplicate_count += u64::from(is_duplicate);
    }

    /// What is wrong with the part that was looked at last: those before it were taken.
    pub fn in_its_place(&self, mut error: ApiError) -> ApiError {
        error.message = format!("part {}: {}", self.taken_count + 1, error.message);
        error
    }

    /// The answer to all of them.
    pub fn answer(&self) -> Answer {
        let mut document = json!({"success": true, "parts": self.taken_count});
        if self.duplicate_count > 0 {
            document["duplicates"] = self.duplicate_count.into();
        }
        Answer::json(Status::OK, &document)
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}
