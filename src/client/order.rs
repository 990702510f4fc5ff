//! Checks that every chunk comes once and in order. The server's events are compared with the
//! earlier ones, also across connections.
//!
//! If all kinds are followed, chunks and gaps follow each other without a hole up to the end. With
//! a filter only their order and the final totals can be checked. These are the totals of a stream
//! that was never cut, and those of the execution.
//!
//! The chunks that came or were reported missing are counted. A client that reconnects sends these
//! counts, so that the server can count a gap of chunks that it no longer holds.

use super::error::ClientError;
use super::event::{ChunkEvent, EndEvent, StartedEvent};
use crate::stream::{EndState, Gap, Outcome, Totals};
use crate::wire::sse::{Reached, SeenTotals};

/// The progress of a stream, over all its connections.
#[derive(Debug)]
pub(super) struct Order {
    /// True if all kinds are followed.
    is_whole: bool,
    /// The last chunk that came or was reported missing. `None` until the server has said where it
    /// begins.
    reported_seq: Option<u64>,
    /// Payload bytes of all kinds up to there, if known.
    reported_bytes: Option<u64>,
    /// The chunks of the wanted kinds that came or were reported missing up to there. `None` if
    /// neither the events nor the server tell.
    seen: Option<SeenTotals>,
    /// The newest chunk of the execution, once its end has come.
    head_seq: Option<u64>,
    /// The chunks and bytes that came, over all connections.
    given: Totals,
    /// The chunks and bytes that gaps reported missing, over all connections.
    missed: Totals,
    /// True after a reconnect. The server's totals may then be those of another subscriber, or only
    /// a part.
    is_resumed: bool,
}

impl Order {
    /// Expects every chunk after the position `after`. `None`: the server chooses the first.
    pub fn new(is_whole: bool, after: Option<Reached>) -> Order {
        let mut order = Order {
            is_whole,
            reported_seq: after.map(|reached| reached.seq),
            reported_bytes: None,
            seen: None,
            head_seq: None,
            given: Totals::ZERO,
            missed: Totals::ZERO,
            is_resumed: false,
        };
        order.know(match after {
            Some(Reached { seq: 0, .. }) => Some(SeenTotals { chunks: 0, bytes: 0 }),
            other => other.and_then(|reached| reached.seen),
        });
        order
    }

    /// The last chunk that came or was reported missing.
    pub fn reported_seq(&self) -> Option<u64> {
        self.reported_seq
    }

    /// The chunks and bytes that came, over all connections.
    pub fn given(&self) -> Totals {
        self.given
    }

    /// The chunks and bytes that gaps reported missing, over all connections.
    pub fn missed(&self) -> Totals {
        self.missed
    }

    /// The position to continue after, with the counts if they are known.
    pub fn reached(&self) -> Option<Reached> {
        let seq = self.head_seq.or(self.reported_seq)?;
        Some(Reached { seq, seen: self.seen, has_ended: self.head_seq.is_some() })
    }

    fn reported(&self) -> u64 {
        self.reported_seq.unwrap_or(0)
    }

    /// Handles a new connection.
    pub fn resume(&mut self) {
        self.is_resumed = true;
    }

    /// Checks the first event of a connection.
    pub fn started(&mut self, started: &StartedEvent) -> Result<(), ClientError> {
        let before_seq = started.from_seq - 1; // It is not 0: that was checked.
        match self.reported_seq {
            None => self.reported_seq = Some(before_seq),
            Some(reported_seq) if before_seq > reported_seq => {
                return Err(self.hole(started.from_seq));
            }
            Some(_) => {} // Repeated events are left out.
        }
        Ok(())
    }

    /// Checks a chunk. Returns true if it is new. `id` is the server's position after it.
    pub fn chunk(&mut self, chunk: &ChunkEvent, id: Option<Reached>) -> Result<bool, ClientError> {
        check_seq(id, chunk.seq)?;
        if chunk.seq <= self.reported() {
            return Ok(false);
        }
        self.advance(chunk.seq)?;
        let is_next = chunk.seq - 1 == self.reported();
        let is_right = match self.reported_bytes {
            Some(reported_bytes) if is_next => chunk.offset == reported_bytes,
            Some(reported_bytes) => chunk.offset >= reported_bytes,
            None => true,
        };
        if !is_right {
            let seq = chunk.seq;
            return Err(ClientError::protocol(format!("chunk {seq} is at a wrong offset")));
        }
        let bytes = chunk.data.len() as u64;
        let end_offset = chunk.offset + bytes; // It fits: that was checked.
        let counted = match self.is_whole {
            true => Some(SeenTotals { chunks: chunk.seq, bytes: end_offset }),
            false => self.seen.and_then(|seen| plus(seen, 1, bytes)),
        };
        let seen = agreed(counted, id)?;
        self.reported_seq = Some(chunk.seq);
        self.reported_bytes = Some(end_offset);
        self.know(seen);
        self.given.chunks += 1;
        self.given.bytes += bytes;
        Ok(true)
    }

    /// Checks a part of an agent's run. Returns true if it is new. A part has no offset.
    pub fn part(&mut self, seq: u64, bytes: u64, id: Option<Reached>) -> Result<bool, ClientError> {
        check_seq(id, seq)?;
        if seq <= self.reported() {
            return Ok(false);
        }
        self.advance(seq)?;
        let reported_bytes = self.reported_bytes.and_then(|reported| reported.checked_add(bytes));
        let counted = match self.is_whole {
            true => reported_bytes.map(|bytes| SeenTotals { chunks: seq, bytes }),
            false => self.seen.and_then(|seen| plus(seen, 1, bytes)),
        };
        let seen = agreed(counted, id)?;
        (self.reported_seq, self.reported_bytes) = (Some(seq), None);
        self.know(seen);
        self.given.chunks += 1;
        self.given.bytes += bytes;
        Ok(true)
    }

    /// Checks a gap. Returns true if it is new.
    pub fn gap(&mut self, gap: &Gap, id: Option<Reached>) -> Result<bool, ClientError> {
        check_seq(id, gap.to_seq)?;
        if gap.to_seq <= self.reported() {
            return Ok(false);
        }
        if gap.from_seq <= self.reported() {
            return Err(ClientError::protocol("a gap reports chunks that have already come"));
        }
        self.advance(gap.from_seq)?;
        let others = gap.to_seq - gap.from_seq; // It is not less: that was checked.
        if self.is_whole && gap.chunk_count.checked_sub(1) != Some(others) {
            return Err(ClientError::protocol("a gap reports fewer chunks than are missing"));
        }
        let counted = self.seen.and_then(|seen| plus(seen, gap.chunk_count, gap.byte_count));
        let seen = agreed(counted, id)?;
        self.reported_seq = Some(gap.to_seq);
        self.reported_bytes = None;
        self.know(seen);
        let missed = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
        self.missed = self.missed + missed;
        Ok(true)
    }

    /// Checks the position in any other event. With a filter it can show that chunks of other kinds
    /// have passed.
    pub fn passed(&mut self, id: Option<Reached>) -> Result<(), ClientError> {
        let reported = self.reported();
        let Some(reached) =
            id.filter(|id| id.seq == reported || (id.seq > reported && !self.is_whole))
        else {
            return Ok(());
        };
        let seen = agreed(self.seen, id)?;
        if reached.seq > reported {
            (self.reported_seq, self.reported_bytes) = (Some(reached.seq), None);
        }
        self.know(seen);
        Ok(())
    }

    /// Checks that nothing is missing before the end, and that its totals are right.
    pub fn end(&mut self, ended: &EndEvent, id: Option<Reached>) -> Result<(), ClientError> {
        let id = id.filter(|id| id.has_ended); // The id of an earlier event stays in force.
        let head_seq = match ended.end.state {
            EndState::Ended(_) => Some(id.map_or(self.reported(), |id| id.seq)),
            EndState::Detached { resume_from, .. } => {
                self.advance(resume_from)?;
                None
            }
        };
        if let Some(head_seq) = head_seq {
            self.advance(head_seq.saturating_add(1))?;
        }
        let (given, reported) = (self.given, ended.end.given);
        if !self.is_resumed && given != reported {
            return Err(ClientError::protocol(format!(
                "{} chunks of {} bytes came, but the end reports {} of {}",
                given.chunks, given.bytes, reported.chunks, reported.bytes
            )));
        }
        let published = ended.end.published;
        if self.was_cut_short(ended) {
            self.know(None);
        } else if let Some(seen) = self.seen
            && published != (Totals { chunks: seen.chunks, bytes: seen.bytes })
        {
            return Err(ClientError::protocol(format!(
                "{} chunks of {} bytes came or were reported missing, but the execution has \
                 published {} of {}",
                seen.chunks, seen.bytes, published.chunks, published.bytes
            )));
        }
        agreed(self.seen, id.filter(|_| head_seq.is_some()))?;
        self.head_seq = head_seq;
        Ok(())
    }

    /// True if the newest chunks that came were lost with the server, which has started again.
    fn was_cut_short(&self, ended: &EndEvent) -> bool {
        let has_failed = ended.end.state == EndState::Ended(Outcome::Failed);
        let is_short = self.seen.is_some_and(|seen| ended.end.published.chunks < seen.chunks);
        self.is_resumed && has_failed && is_short
    }

    /// Sets the counts up to `reported_seq`.
    fn know(&mut self, seen: Option<SeenTotals>) {
        self.seen = seen;
        if self.is_whole {
            self.reported_bytes = seen.map(|seen| seen.bytes);
        }
    }

    /// Fails if a chunk is missing before `seq`.
    fn advance(&self, seq: u64) -> Result<(), ClientError> {
        match self.is_whole && seq.saturating_sub(1) > self.reported() {
            true => Err(self.hole(seq)),
            false => Ok(()),
        }
    }

    fn hole(&self, found_seq: u64) -> ClientError {
        ClientError::Hole { expected_seq: self.reported().saturating_add(1), found_seq }
    }
}

/// Checks that the cursor of an event names its last chunk.
fn check_seq(id: Option<Reached>, seq: u64) -> Result<(), ClientError> {
    match id {
        Some(id) if id.seq != seq => {
            Err(ClientError::protocol(format!("the cursor of chunk {seq} names chunk {}", id.seq)))
        }
        _ => Ok(()),
    }
}

/// The counts after an event, from our own counting or from the server. Both must be equal.
fn agreed(
    counted: Option<SeenTotals>,
    id: Option<Reached>,
) -> Result<Option<SeenTotals>, ClientError> {
    let said = id.and_then(|reached| reached.seen);
    match (counted, said) {
        (Some(counted), Some(said)) if counted != said => Err(ClientError::protocol(format!(
            "{} chunks of {} bytes came or were reported missing, but the cursor counts {} of {}",
            counted.chunks, counted.bytes, said.chunks, said.bytes
        ))),
        _ => Ok(counted.or(said)),
    }
}

/// Adds to the counts. `None` on overflow.
fn plus(seen: SeenTotals, chunks: u64, bytes: u64) -> Option<SeenTotals> {
    let (chunks, bytes) = (seen.chunks.checked_add(chunks)?, seen.bytes.checked_add(bytes)?);
    Some(SeenTotals { chunks, bytes })
}
