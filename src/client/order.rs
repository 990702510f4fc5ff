//! Is everything there, once, and in order? What the server says is compared with what it said
//! before, also over broken connections.
//!
//! Where all kinds are followed, chunks and gaps follow each other without a hole up to the end.
//! With a filter only their order can be seen, and the sums at the end: those of a stream that was
//! never cut, and those of the execution.
//!
//! What was given and told missing is summed up, too: whoever comes back says it, and then the
//! server can count what is missing in between, also when it has forgotten those chunks.

use super::error::ClientError;
use super::event::{Chunk, Ended, Started};
use crate::engine::{EndState, Gap, Totals};
use crate::wire::sse::{Reached, Seen};

/// What was told so far.
#[derive(Debug)]
pub(super) struct Order {
    /// All kinds are followed.
    is_whole: bool,
    /// The last chunk given or told of; `None` until the server has said where it begins.
    told_seq: Option<u64>,
    /// Payload bytes of all kinds up to there, if they are known.
    told_bytes: Option<u64>,
    /// What of the wanted kinds was given or told missing up to there; `None` where neither what
    /// came nor the server says it.
    seen: Option<Seen>,
    /// The execution's end was told, with this cursor.
    end_seq: Option<u64>,
    /// The chunks and bytes that came, over all connections.
    given: Totals,
    /// The chunks and bytes that gaps told missing, over all connections.
    missed: Totals,
    /// The connection was cut: another subscriber, or a part of the first.
    is_resumed: bool,
}

impl Order {
    /// Everything behind `after` is owed to us; `None`: from wherever the server begins.
    pub fn new(is_whole: bool, after: Option<Reached>) -> Order {
        let mut order = Order {
            is_whole,
            told_seq: after.map(|reached| reached.seq),
            told_bytes: None,
            seen: None,
            end_seq: None,
            given: Totals::ZERO,
            missed: Totals::ZERO,
            is_resumed: false,
        };
        order.know(match after {
            Some(Reached { seq: 0, .. }) => Some(Seen { chunks: 0, bytes: 0 }),
            other => other.and_then(|reached| reached.seen),
        });
        order
    }

    /// The last chunk given or told of.
    pub fn told_seq(&self) -> Option<u64> {
        self.told_seq
    }

    /// The chunks and bytes that came, over all connections.
    pub fn given(&self) -> Totals {
        self.given
    }

    /// The chunks and bytes that gaps told missing, over all connections.
    pub fn missed(&self) -> Totals {
        self.missed
    }

    /// What to go on behind, with all that is known of it.
    pub fn reached(&self) -> Option<Reached> {
        let seq = self.end_seq.or(self.told_seq)?;
        Some(Reached { seq, seen: self.seen })
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
    pub fn chunk(&mut self, chunk: &Chunk, id: Option<Reached>) -> Result<bool, ClientError> {
        check_seq(id, chunk.seq)?;
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
        let end_offset = chunk.offset + bytes; // It fits: that was checked.
        let counted = match self.is_whole {
            true => Some(Seen { chunks: chunk.seq, bytes: end_offset }),
            false => self.seen.and_then(|seen| plus(seen, 1, bytes)),
        };
        let seen = agreed(counted, id)?;
        self.told_seq = Some(chunk.seq);
        self.told_bytes = Some(end_offset);
        self.know(seen);
        self.given.chunks += 1;
        self.given.bytes += bytes;
        Ok(true)
    }

    /// Is the part of an agent's run new? It does not say at which offset it stands.
    pub fn part(&mut self, seq: u64, bytes: u64, id: Option<Reached>) -> Result<bool, ClientError> {
        check_seq(id, seq)?;
        if seq <= self.told() {
            return Ok(false);
        }
        self.advance(seq)?;
        let told_bytes = self.told_bytes.and_then(|told| told.checked_add(bytes));
        let counted = match self.is_whole {
            true => told_bytes.map(|bytes| Seen { chunks: seq, bytes }),
            false => self.seen.and_then(|seen| plus(seen, 1, bytes)),
        };
        let seen = agreed(counted, id)?;
        (self.told_seq, self.told_bytes) = (Some(seq), None);
        self.know(seen);
        self.given.chunks += 1;
        self.given.bytes += bytes;
        Ok(true)
    }

    /// Is the gap new?
    pub fn gap(&mut self, gap: &Gap, id: Option<Reached>) -> Result<bool, ClientError> {
        check_seq(id, gap.to_seq)?;
        if gap.to_seq <= self.told() {
            return Ok(false);
        }
        if gap.from_seq <= self.told() {
            return Err(ClientError::protocol("a gap tells of chunks that were given"));
        }
        self.advance(gap.from_seq)?;
        let others = gap.to_seq - gap.from_seq; // It is not less: that was checked.
        if self.is_whole && gap.chunk_count.checked_sub(1) != Some(others) {
            return Err(ClientError::protocol("a gap tells of fewer chunks than are missing"));
        }
        let counted = self.seen.and_then(|seen| plus(seen, gap.chunk_count, gap.byte_count));
        let seen = agreed(counted, id)?;
        self.told_seq = Some(gap.to_seq);
        self.told_bytes = None;
        self.know(seen);
        let missed = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
        self.missed = self.missed + missed;
        Ok(true)
    }

    /// Something else came. With a filter it can say that chunks of other kinds have passed.
    pub fn passed(&mut self, id: Option<Reached>) -> Result<(), ClientError> {
        let told = self.told();
        let Some(reached) = id.filter(|id| id.seq == told || (id.seq > told && !self.is_whole))
        else {
            return Ok(());
        };
        let seen = agreed(self.seen, id)?;
        if reached.seq > told {
            (self.told_seq, self.told_bytes) = (Some(reached.seq), None);
        }
        self.know(seen);
        Ok(())
    }

    /// Was everything told before the end?
    pub fn end(&mut self, ended: &Ended, id: Option<Reached>) -> Result<(), ClientError> {
        let (is_own, behind_seq) = match ended.end.state {
            EndState::Ended(_) => (true, id.map_or(self.told().saturating_add(1), |id| id.seq)),
            EndState::Detached { resume_from, .. } => (false, resume_from),
        };
        self.advance(behind_seq)?;
        let (given, told) = (self.given, ended.end.given);
        if !self.is_resumed && given != told {
            return Err(ClientError::protocol(format!(
                "{} chunks of {} bytes came, and the end tells of {} of {}",
                given.chunks, given.bytes, told.chunks, told.bytes
            )));
        }
        let published = ended.end.published;
        if let Some(seen) = self.seen
            && published != (Totals { chunks: seen.chunks, bytes: seen.bytes })
        {
            return Err(ClientError::protocol(format!(
                "{} chunks of {} bytes came or were told missing, and the execution has published \
                 {} of {}",
                seen.chunks, seen.bytes, published.chunks, published.bytes
            )));
        }
        let said = id.filter(|_| is_own).and_then(|reached| reached.seen);
        // The end counts as a chunk in its cursor, where that leaves their number out.
        let agrees = |said: Seen| self.seen.is_none_or(|seen| seen.bytes == said.bytes);
        if !said.is_none_or(agrees) {
            return Err(ClientError::protocol(
                "the cursor of the end counts other bytes than came",
            ));
        }
        self.end_seq = is_own.then_some(behind_seq);
        Ok(())
    }

    /// So much was seen up to `told_seq`.
    fn know(&mut self, seen: Option<Seen>) {
        self.seen = seen;
        if self.is_whole {
            self.told_bytes = seen.map(|seen| seen.bytes);
        }
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
fn check_seq(id: Option<Reached>, seq: u64) -> Result<(), ClientError> {
    match id {
        Some(id) if id.seq != seq => {
            Err(ClientError::protocol(format!("the cursor of chunk {seq} is {}", id.seq)))
        }
        _ => Ok(()),
    }
}

/// What was seen: what was counted and what the server says, which must be the same.
fn agreed(counted: Option<Seen>, id: Option<Reached>) -> Result<Option<Seen>, ClientError> {
    let said = id.and_then(|reached| reached.seen);
    match (counted, said) {
        (Some(counted), Some(said)) if counted != said => Err(ClientError::protocol(format!(
            "{} chunks of {} bytes came or were told missing, and the cursor counts {} of {}",
            counted.chunks, counted.bytes, said.chunks, said.bytes
        ))),
        _ => Ok(counted.or(said)),
    }
}

/// With so many more. `None`: nobody can have seen so much.
fn plus(seen: Seen, chunks: u64, bytes: u64) -> Option<Seen> {
    let (chunks, bytes) = (seen.chunks.checked_add(chunks)?, seen.bytes.checked_add(bytes)?);
    Some(Seen { chunks, bytes })
}
