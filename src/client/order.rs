//! Is everything there, once, and in order? What the server says is compared with what it said
//! before, also over broken connections.
//!
//! Where all kinds are followed, chunks and gaps follow each other without a hole up to the end.
//! With a filter only their order can be seen, and the sums at the end of a stream that was never
//! cut.

use super::error::ClientError;
use super::event::{Chunk, Ended, Started};
use crate::engine::{EndState, Gap, Totals};

/// What was told so far.
#[derive(Debug)]
pub(super) struct Order {
    /// All kinds are followed.
    is_whole: bool,
    /// The last chunk given or told of; `None` until the server has said where it begins.
    told_seq: Option<u64>,
    /// Payload bytes up to `told_seq`, where its chunk was given.
    told_bytes: Option<u64>,
    /// What the first subscriber was given.
    given: Totals,
    /// The connection was cut: another subscriber, or a part of the first.
    is_resumed: bool,
}

impl Order {
    /// Everything behind `after` is owed to us; `None`: from wherever the server begins.
    pub fn new(is_whole: bool, after: Option<u64>) -> Order {
        Order {
            is_whole,
            told_seq: after,
            told_bytes: None,
            given: Totals::ZERO,
            is_resumed: false,
        }
    }

    /// The last chunk given or told of: what to go on behind.
    pub fn told_seq(&self) -> Option<u64> {
        self.told_seq
    }

    fn told(&self) -> u64 {
        self.told_seq.unwrap_or(0)
    }

    /// There is a new connection.
    pub fn resume(&mut self) {
        self.is_resumed = true;
    }

    /// A connection's first event.
    pub fn started(&mut self, started: &Started) -> Result<(), ClientError> {
        let before_seq = started.from_seq - 1; // It is not 0: that was checked.
        match self.told_seq {
            None => self.told_seq = Some(before_seq),
            Some(told_seq) if before_seq > told_seq => {
                return Err(self.hole(started.from_seq));
            }
            Some(_) => {} // What is told again is left out.
        }
        Ok(())
    }

    /// Is the chunk new? `id` is how far the server says the stream is with it.
    pub fn chunk(&mut self, chunk: &Chunk, id: Option<u64>) -> Result<bool, ClientError> {
        check_id(id, chunk.seq)?;
        if chunk.seq <= self.told() {
            return Ok(false);
        }
        self.advance(chunk.seq)?;
        let is_next = chunk.seq - 1 == self.told();
        let is_right = match self.told_bytes {
            Some(told_bytes) if is_next => chunk.offset == told_bytes,
            Some(told_bytes) => chunk.offset >= told_bytes,
            None => true,
        };
        if !is_right {
            let seq = chunk.seq;
            return Err(ClientError::protocol(format!("chunk {seq} is at a wrong offset")));
        }
        let bytes = chunk.data.len() as u64;
        self.told_seq = Some(chunk.seq);
        self.told_bytes = Some(chunk.offset + bytes); // It fits: that was checked.
        self.given.chunks += 1;
        self.given.bytes += bytes;
        Ok(true)
    }

    /// Is the gap new?
    pub fn gap(&mut self, gap: &Gap, id: Option<u64>) -> Result<bool, ClientError> {
        check_id(id, gap.to_seq)?;
        if gap.to_seq <= self.told() {
            return Ok(false);
        }
        if gap.from_seq <= self.told() {
            return Err(ClientError::protocol("a gap tells of chunks that were given"));
        }
        self.advance(gap.from_seq)?;
        self.told_seq = Some(gap.to_seq);
        self.told_bytes = None;
        Ok(true)
    }

    /// Something else came. With a filter it can say that chunks of other kinds have passed.
    pub fn passed(&mut self, id: Option<u64>) {
        if let Some(seq) = id.filter(|seq| !self.is_whole && *seq > self.told()) {
            self.told_seq = Some(seq);
        }
    }

    /// Was everything told before the end?
    pub fn end(&self, ended: &Ended, id: Option<u64>) -> Result<(), ClientError> {
        let behind_seq = match ended.end.state {
            EndState::Ended(_) => id,
            EndState::Detached { resume_from, .. } => Some(resume_from),
        };
        if let Some(seq) = behind_seq {
            self.advance(seq)?;
        }
        let (given, told) = (self.given, ended.end.given);
        if !self.is_resumed && given != told {
            return Err(ClientError::protocol(format!(
                "{} chunks of {} bytes came, and the end tells of {} of {}",
                given.chunks, given.bytes, told.chunks, told.bytes
            )));
        }
        Ok(())
    }

    /// Nothing is left out before `seq`.
    fn advance(&self, seq: u64) -> Result<(), ClientError> {
        match self.is_whole && seq.saturating_sub(1) > self.told() {
            true => Err(self.hole(seq)),
            false => Ok(()),
        }
    }

    fn hole(&self, found_seq: u64) -> ClientError {
        ClientError::Hole { expected_seq: self.told().saturating_add(1), found_seq }
    }
}

/// The cursor that comes with an event points behind it.
fn check_id(id: Option<u64>, seq: u64) -> Result<(), ClientError> {
    match id {
        Some(id) if id != seq => {
            Err(ClientError::protocol(format!("the cursor of chunk {seq} is {id}")))
        }
        _ => Ok(()),
    }
}
