//! Chunks by hand: the owner of an execution publishes, reports and finishes it on the shard's own
//! thread.

use std::fmt;

use smallvec::SmallVec;

use super::Shard;
use super::outlet::Outlet;
use super::run::{Producer, Ring, Run};
use crate::base::{ExecutionId, Instant};
use crate::engine::{ChunkFacts, Event, Gate, NotFound, ProducerEnd};
use crate::limits;
use crate::memory::{CHUNK_MORE, ChunkHeader, RingWriter, WriteError};
use crate::reactor::Reactor;
use crate::stream::Kind;
use crate::tool::{Notes, Report, Work};

/// The reason why a chunk was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishError {
    /// Give up: the execution does not exist, has ended, or is not fed by hand.
    NotFound,
    /// Wait: a `block` subscriber has to read first, or the execution has not begun yet.
    Blocked,
    /// Split it: it is longer than a chunk of this ring may be.
    TooLarge {
        /// The maximum, in bytes.
        chunk_bytes_max: u32,
    },
}

impl<R: Reactor + 'static, O: Outlet<R>> Shard<R, O> {
    /// Publishes a chunk of an execution that is fed by hand, and gives it to the subscribers of
    /// this thread. Returns its number.
    ///
    /// # Errors
    /// [`PublishError`]; nothing was published.
    #[inline]
    pub fn publish(
        &mut self,
        id: ExecutionId,
        kind: Kind,
        payload: &[u8],
    ) -> Result<u64, PublishError> {
        let now = self.reactor.now();
        self.publish_at(id, kind, kind as u8, payload, now)
    }

    /// Like [`Shard::publish`], at the time `now`, which is stored in the chunk, and with a key
    /// below 64.
    ///
    /// # Errors
    /// [`PublishError`]; nothing was published.
    ///
    /// # Panics
    /// If `key` is 64 or more.
    #[inline]
    pub fn publish_at(
        &mut self,
        id: ExecutionId,
        kind: Kind,
        key: u8,
        payload: &[u8],
        now: Instant,
    ) -> Result<u64, PublishError> {
        assert!((key as usize) < limits::KEYS_MAX);
        let header = ChunkHeader { kind: kind as u8, key, flags: 0 };
        self.now = self.now.max(now);
        let (gate, writer) = self.fed_writer(id)?;
        match write_within(gate, writer, header, payload, now) {
            Ok(seq) => {
                let (length, tail_seq) = (payload.len() as u32, writer.tail_seq());
                let facts = ChunkFacts { length, kind, key, tail_seq };
                self.ingest_written(id.slot.index, &[facts]);
                Ok(seq)
            }
            Err(PublishError::Blocked) => {
                let payload = std::slice::from_ref(&payload);
                self.publish_each(id, header, payload, now).map_err(|(_, error)| error)
            }
            Err(error) => Err(error),
        }
    }

    /// Publishes several chunks, and only then gives them to the subscribers of this thread. This
    /// is less work for each chunk. Returns the number of the last one.
    ///
    /// # Errors
    /// The number of chunks that were published, and the reason why the next one was not.
    pub fn publish_batch(
        &mut self,
        id: ExecutionId,
        kind: Kind,
        payloads: &[&[u8]],
        now: Instant,
    ) -> Result<u64, (usize, PublishError)> {
        let header = ChunkHeader { kind: kind as u8, key: kind as u8, flags: 0 };
        self.publish_each(id, header, payloads, now)
    }

    fn publish_each(
        &mut self,
        id: ExecutionId,
        header: ChunkHeader,
        payloads: &[&[u8]],
        now: Instant,
    ) -> Result<u64, (usize, PublishError)> {
        self.now = self.now.max(now);
        let index = id.slot.index;
        let mut count = 0;
        while count < payloads.len() {
            match self.write_burst(id, header, &payloads[count..], now) {
                Ok(written) => count += written,
                Err(PublishError::Blocked) if self.look_for_room(index) => {}
                Err(error) => return Err((count, error)),
            }
        }
        let run = self.runs[index as usize].as_ref();
        Ok(run.map_or(0, Run::head_seq))
    }

    /// Writes at least one chunk, and at most as many as the engine takes at once. Tells the
    /// engine. Returns their number.
    fn write_burst(
        &mut self,
        id: ExecutionId,
        header: ChunkHeader,
        payloads: &[&[u8]],
        now: Instant,
    ) -> Result<usize, PublishError> {
        let burst = self.engine.burst_chunks(id.slot) as usize;
        let (gate, writer) = self.fed_writer(id)?;
        let kind = Kind::new(header.kind).expect("the header was made from a kind");
        let mut facts: SmallVec<[ChunkFacts; limits::BURST_CHUNKS_MAX as usize]> = SmallVec::new();
        for payload in payloads.iter().take(burst) {
            match write_within(gate, writer, header, payload, now) {
                Ok(_) => {
                    let (length, tail_seq) = (payload.len() as u32, writer.tail_seq());
                    facts.push(ChunkFacts { length, kind, key: header.key, tail_seq });
                }
                Err(error) if facts.is_empty() => return Err(error),
                Err(_) => break, // It comes again, if it does, after these are ingested.
            }
        }
        self.ingest_burst(id.slot.index, &facts);
        Ok(facts.len())
    }

    #[inline(never)] // The path of a single chunk is separate from it.
    fn ingest_burst(&mut self, index: u32, facts: &[ChunkFacts]) {
        self.ingest_written(index, facts);
    }

    /// Returns the writer of an execution that is fed by hand, and its gate.
    #[inline]
    fn fed_writer(&mut self, id: ExecutionId) -> Result<(Gate, &mut RingWriter), PublishError> {
        let run = self.runs.get_mut(id.slot.index as usize).and_then(Option::as_mut);
        let run = run.filter(|run| run.id == id).ok_or(PublishError::NotFound)?;
        let gate = run.allowed();
        match (&run.producer, &mut run.ring) {
            (Producer::Feed, Ring::Here(writer)) => Ok((gate, writer)),
            (Producer::Waiting(work), _) if matches!(**work, Work::Feed) => {
                Err(PublishError::Blocked)
            }
            _ => Err(PublishError::NotFound),
        }
    }

    /// Looks for room when the gate is shut. Readers that have moved or left have rung, and are
    /// handled without waiting for the next turn. Otherwise the engine is told, once. Returns true
    /// if the gate has changed.
    fn look_for_room(&mut self, index: u32) -> bool {
        let allowed = |shard: &Self| shard.runs[index as usize].as_ref().map(Run::allowed);
        let before = allowed(self);
        if self.reactor.poll() > 0 {
            self.answer_bell();
            self.pump();
        }
        self.say_that_it_is_gated(index);
        allowed(self) != before
    }

    /// Tells the engine that there is no room, once for each time that the gate is shut.
    pub(crate) fn say_that_it_is_gated(&mut self, index: u32) {
        let run = self.runs.get_mut(index as usize).and_then(Option::as_mut);
        let stops_here = run.is_some_and(|run| {
            let has_begun = !matches!(run.producer, Producer::Waiting(_));
            has_begun && !std::mem::replace(&mut run.blocked, true)
        });
        if stops_here {
            self.ask_for_room(index);
        }
    }

    /// Publishes as much of a payload as there is room for, in pieces that the ring takes. All but
    /// the last piece are flagged `more`. Returns the number of bytes that were published. The
    /// kernel is not asked for moved readers: the caller will be told when there is room again.
    ///
    /// # Errors
    /// [`PublishError::NotFound`]; the execution may have ended after a part was published.
    pub(crate) fn publish_pieces(
        &mut self,
        id: ExecutionId,
        kind: Kind,
        payload: &[u8],
    ) -> Result<usize, PublishError> {
        let (index, now) = (id.slot.index, self.now);
        let mut taken = 0;
        while taken < payload.len() {
            let (_, writer) = self.fed_writer(id)?;
            let piece_bytes_max = writer.geometry().length_max() as usize;
            let rest = &payload[taken..];
            let piece = &rest[..rest.len().min(piece_bytes_max)];
            let flags = if piece.len() < rest.len() { CHUNK_MORE } else { 0 };
            let header = ChunkHeader { kind: kind as u8, key: kind as u8, flags };
            match self.write_burst(id, header, &[piece], now) {
                Ok(_) => taken += piece.len(),
                Err(PublishError::Blocked) => {
                    let allowed =
                        |shard: &Self| shard.runs[index as usize].as_ref().map(Run::allowed);
                    let before = allowed(self);
                    self.say_that_it_is_gated(index);
                    if allowed(self) == before {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Ends an execution that is fed by hand: as completed with `Ok`, as failed with an error text.
    ///
    /// # Errors
    /// [`NotFound`] if the execution does not exist, has ended, or is not fed by hand.
    pub fn finish(&mut self, id: ExecutionId, result: Result<(), &str>) -> Result<(), NotFound> {
        let run = self.runs.get_mut(id.slot.index as usize).and_then(Option::as_mut);
        let run = run.filter(|run| run.id == id && matches!(run.producer, Producer::Feed));
        let run = run.ok_or(NotFound)?;
        run.producer = Producer::Gone;
        self.look_at_clock();
        let end = match result {
            Ok(()) => ProducerEnd::Done,
            Err(text) => ProducerEnd::Failed(text),
        };
        self.tell(Event::ProducerEnded(id.slot, end));
        self.pump();
        Ok(())
    }

    /// Announces the total number of chunks of an execution that is fed by hand.
    ///
    /// # Errors
    /// [`NotFound`], as for [`Shard::finish`].
    pub fn expect_total(&mut self, id: ExecutionId, chunk_count: u64) -> Result<(), NotFound> {
        let notes = Notes { chunks_expected: Some(chunk_count), ..Default::default() };
        self.note_fed(id, &notes)
    }

    /// Reports the progress of an execution that is fed by hand.
    ///
    /// # Errors
    /// [`NotFound`], as for [`Shard::finish`].
    pub fn report(&mut self, id: ExecutionId, report: Report) -> Result<(), NotFound> {
        let mut notes = Notes::default();
        notes.push(report);
        self.note_fed(id, &notes)
    }

    fn note_fed(&mut self, id: ExecutionId, notes: &Notes) -> Result<(), NotFound> {
        let run = self.runs.get(id.slot.index as usize).and_then(Option::as_ref);
        run.filter(|run| run.id == id && matches!(run.producer, Producer::Feed)).ok_or(NotFound)?;
        self.look_at_clock();
        self.pass_on(id.slot, notes);
        self.pump();
        Ok(())
    }
}

/// Writes one chunk, if the gate admits it.
#[inline]
fn write_within(
    gate: Gate,
    writer: &mut RingWriter,
    header: ChunkHeader,
    payload: &[u8],
    now: Instant,
) -> Result<u64, PublishError> {
    if !gate.admits(writer.head_seq(), writer.total_bytes(), payload.len()) {
        return Err(PublishError::Blocked);
    }
    writer.write(header, payload, now, gate.gate_seq).map_err(|error| match error {
        WriteError::Gated { .. } => PublishError::Blocked,
        WriteError::TooLarge { length_max, .. } => {
            PublishError::TooLarge { chunk_bytes_max: length_max }
        }
    })
}

impl fmt::Display for PublishError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::NotFound => out.write_str("no execution with this id is fed by hand"),
            PublishError::Blocked => {
                out.write_str("wait for a `block` subscriber, or for the execution to begin")
            }
            PublishError::TooLarge { chunk_bytes_max } => {
                write!(out, "a chunk of this ring may have at most {chunk_bytes_max} bytes")
            }
        }
    }
}

impl std::error::Error for PublishError {}
