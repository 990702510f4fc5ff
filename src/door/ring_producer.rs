//! The memory of a producer in another process, and the writes to it. The producer signals the
//! server through a [`ProducerSignal`]: the connection of a [`super::DoorWriter`], or the
//! simulator's.

use std::num::NonZeroU8;
use std::os::fd::OwnedFd;

use super::error::{DoorError, WriteError};
use super::reader::wrong;
use crate::base::Instant;
use crate::engine::Gate;
use crate::limits;
use crate::memory::atomic::full_fence;
use crate::memory::{
    self, ChunkHeader, ControlView, FinalRecord, ProducerPage, ProgressRecord, RingWriter, Room,
    ShortText,
};
use crate::shard::delivery::{code_of_outcome, outcome_of_code};
use crate::stream::{Kind, KindTotals, Outcome};

/// The signal to a server, and the clock that both sides share.
pub(crate) trait ProducerSignal {
    /// Makes the server examine what was written.
    fn knock(&self);

    /// True if the server was found to be gone.
    fn is_known_gone(&self) -> bool;

    /// The current time.
    fn now(&self) -> Instant;
}

/// Publishes into the memory that a server has made for this producer.
pub(crate) struct RingProducer<B> {
    writer: RingWriter,
    page: ProducerPage,
    control: ControlView,
    signal: B,
    progress: ProgressRecord,
    /// The time just before the last chunk was published.
    published: Instant,
    /// The number of the chunk for which the server was last knocked. Each sleep of the server gets
    /// one knock.
    knocked_seq: u64,
    /// The oldest chunk that the ring held when its room was last checked.
    tail_seq: u64,
    is_short: bool,
}

impl<B: ProducerSignal> RingProducer<B> {
    /// Maps the memory that a server has made for this producer: its ring, the control page and its
    /// own page. The gate is shut until the server has sealed them and started the execution.
    ///
    /// # Errors
    /// [`DoorError`]: one of them breaks the rules of its kind.
    pub fn open(
        [ring, control, page]: [OwnedFd; 3],
        signal: B,
    ) -> Result<RingProducer<B>, DoorError> {
        let writer = RingWriter::open(ring).map_err(wrong("ring"))?;
        let (control, _) = ControlView::open(control, 0).map_err(wrong("control page"))?;
        let page = ProducerPage::open(page).map_err(wrong("producer's page"))?;
        let none = ShortText::new("");
        let progress = ProgressRecord {
            progress: 0.0,
            total: None,
            reports: 0,
            message: none,
            context: ShortText::new(""),
        };
        let (published, tail_seq) = (Instant::ZERO, writer.tail_seq());
        let (knocked_seq, is_short) = (0, false);
        Ok(RingProducer {
            writer,
            page,
            control,
            signal,
            progress,
            published,
            knocked_seq,
            tail_seq,
            is_short,
        })
    }

    /// The signal to the server.
    pub fn signal(&self) -> &B {
        &self.signal
    }

    /// A counter that moves whenever the gate does. [`RingProducer::wait_gate`] sleeps on it.
    pub fn gate_epoch(&self) -> u64 {
        self.control.gate_epoch()
    }

    /// Sleeps until the gate moves from `epoch`, for a few milliseconds at most.
    pub fn wait_gate(&self, epoch: u64) {
        self.control.wait_gate(epoch);
    }

    /// The memory of the ring, for tests that overwrite it.
    #[cfg(test)]
    pub fn segment(&self) -> memory::Segment {
        self.writer.segment()
    }

    /// The producer's own page.
    pub fn page(&self) -> &ProducerPage {
        &self.page
    }

    /// Number of the newest chunk; 0 if none was published.
    pub fn head_seq(&self) -> u64 {
        self.writer.head_seq()
    }

    /// Largest payload of a chunk, in bytes.
    pub fn chunk_bytes_max(&self) -> u32 {
        self.writer.geometry().length_max()
    }

    /// True if the server takes no more chunks.
    pub fn is_stopped(&self) -> bool {
        self.control.is_closed() || self.final_record().is_some()
    }

    /// The server's record of the end; `None` before the end.
    pub fn final_record(&self) -> Option<FinalRecord> {
        self.control.final_record()
    }

    /// The outcome in the server's record of the end; `None` if the record names no known outcome.
    pub fn outcome(&self) -> Option<Outcome> {
        self.final_record().and_then(|record| outcome_of_code(record.verdict.get()))
    }

    /// Publishes one chunk if that is possible at once, and returns its number.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was published.
    pub fn try_piece(
        &mut self,
        header: ChunkHeader,
        piece: &[u8],
    ) -> Result<Option<u64>, WriteError> {
        // The clock is read after the bytes were copied into the ring.
        let Some((gate_seq, now)) = self.write(header, piece, ProducerSignal::now)? else {
            return Ok(None);
        };
        self.was_published(now, gate_seq);
        Ok(Some(self.writer.head_seq()))
    }

    /// Begins a batch. [`RingProducer::end_batch`] publishes the chunks that follow, all at the
    /// same moment.
    pub fn begin_batch(&mut self) {
        self.writer.begin_batch();
    }

    /// Publishes the chunks of a batch. `now` and `gate_seq` are the last time given to
    /// [`RingProducer::write`] and the last gate returned by it.
    pub fn end_batch(&mut self, now: Instant, gate_seq: u64) {
        if self.writer.end_batch() > 0 {
            self.was_published(now, gate_seq);
        }
    }

    /// Writes one chunk if that is possible at once, and returns the gate and the time at that
    /// moment. Wakes neither a reader nor the server.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was written.
    #[inline]
    pub fn write(
        &mut self,
        header: ChunkHeader,
        piece: &[u8],
        now: impl FnOnce(&B) -> Instant,
    ) -> Result<Option<(u64, Instant)>, WriteError> {
        let Some(gate_seq) = self.gate_for(piece.len())? else { return Ok(None) };
        match self.writer.lend(piece.len(), gate_seq.min(self.writer.batch_seq())) {
            Ok(room) => room.copy_from_slice(piece),
            Err(memory::WriteError::Gated { .. }) => return Ok(None),
            Err(memory::WriteError::TooLarge { length_max, .. }) => {
                return Err(WriteError::TooLarge { chunk_bytes_max: length_max });
            }
        }
        let now = now(&self.signal);
        self.writer.publish(header, piece.len(), now);
        Ok(Some((gate_seq, now)))
    }

    /// Returns room for a chunk of up to `length` bytes, if some is free at this moment.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was lent.
    pub fn try_lend(&mut self, length: usize) -> Result<Option<&mut [u8]>, WriteError> {
        let Some(gate_seq) = self.gate_for(length)? else { return Ok(None) };
        match self.writer.lend(length, gate_seq) {
            Ok(room) => Ok(Some(room)),
            Err(memory::WriteError::Gated { .. }) => Ok(None),
            Err(memory::WriteError::TooLarge { length_max, .. }) => {
                Err(WriteError::TooLarge { chunk_bytes_max: length_max })
            }
        }
    }

    /// Publishes the first `length` bytes of the room that was lent last; returns the chunk's
    /// number.
    ///
    /// # Panics
    /// Panics if no room was lent since the last chunk, or less than `length`.
    pub fn publish(&mut self, header: ChunkHeader, length: usize) -> u64 {
        let now = self.signal.now();
        let seq = self.writer.publish(header, length, now);
        let (gate_seq, ..) = self.control.gate();
        self.was_published(now, gate_seq);
        seq
    }

    /// Reports the progress of the work. The newest report replaces earlier ones.
    pub fn progress(&mut self, progress: f64, total: Option<f64>, message: &str) {
        let message = ShortText::new(message);
        let reports = self.progress.reports + 1;
        self.progress = ProgressRecord { progress, total, reports, message, ..self.progress };
        self.page.set_progress(&self.progress);
        self.tell();
    }

    /// Reports how many chunks the execution will have.
    pub fn expect_total(&self, chunk_count: u64) {
        self.page.set_chunks_expected(chunk_count);
        self.tell();
    }

    /// Reports that the gate holds the producer back. The server then asks the readers in its way.
    ///
    /// # Errors
    /// [`WriteError::ServerGone`].
    pub fn ask_for_room(&self) -> Result<(), WriteError> {
        self.page.owner().set_room(Room::None);
        self.signal.knock();
        if self.signal.is_known_gone() { Err(WriteError::ServerGone) } else { Ok(()) }
    }

    /// Reports that the gate no longer holds the producer back.
    pub fn has_room(&mut self) {
        self.is_short = false;
        self.page.owner().set_room(Room::Enough);
    }

    /// Reports the end of the output, with its outcome and an error text.
    pub fn finish(&self, outcome: Outcome, text: &str) {
        let verdict = NonZeroU8::new(code_of_outcome(outcome)).expect("codes are never 0");
        let (head_seq, totals) = (self.writer.head_seq(), KindTotals::default());
        self.page.finish(&FinalRecord { verdict, head_seq, totals }, text);
        self.signal.knock();
    }

    /// Returns the gate if a chunk of `length` bytes may be published at this moment.
    #[inline]
    fn gate_for(&self, length: usize) -> Result<Option<u64>, WriteError> {
        if self.control.is_closed() {
            return Err(self.stopped());
        }
        let (gate_seq, credit_seq, credit_bytes, read_seq) = self.control.gate();
        let gate = Gate { gate_seq, credit_seq, credit_bytes, read_seq };
        let is_admitted = gate.admits(self.writer.head_seq(), self.writer.total_bytes(), length);
        Ok(is_admitted.then_some(gate_seq))
    }

    /// The error of a write after the server has closed the execution.
    #[cold]
    pub fn stopped(&self) -> WriteError {
        WriteError::Stopped(self.outcome())
    }

    /// Wakes the readers and the server, if they sleep until the next chunk. `before` is a time
    /// before the chunk was published.
    #[inline]
    fn was_published(&mut self, before: Instant, gate_seq: u64) {
        full_fence(); // control:server-asleep, page:asleep
        // A reader polls for at least `DOOR_SPIN` before it sleeps. If the last chunk was published
        // less than that ago, each reader that has seen it is awake, and the others were woken for
        // it. The earlier time is read before that chunk and the later one behind this one, so the
        // difference is never too small.
        if self.control.has_direct_readers()
            && self.signal.now().since(self.published) >= limits::DOOR_SPIN
        {
            self.writer.wake();
        }
        self.published = before;
        if let Some(from_seq) = self.control.server_asleep()
            && self.writer.head_seq() >= from_seq.get()
            && self.knocked_seq != from_seq.get()
        {
            self.knocked_seq = from_seq.get(); // It rises from one sleep to the next.
            self.signal.knock();
        }
        if self.writer.tail_seq() != self.tail_seq {
            self.look_for_room(gate_seq);
        }
        self.writer.fetch_room();
    }

    /// Asks the server to move the gate before it holds the producer back. Called when the tail has
    /// moved, which one move does for many chunks.
    #[cold]
    fn look_for_room(&mut self, gate_seq: u64) {
        self.tail_seq = self.writer.tail_seq();
        let is_short = self.writer.is_short_of_room(gate_seq);
        if is_short != self.is_short {
            self.is_short = is_short;
            self.page.owner().set_room(if is_short { Room::Short } else { Room::Enough });
        }
        if is_short {
            self.tell();
        }
    }

    /// Knocks for the server if it sleeps.
    #[inline]
    fn tell(&self) {
        full_fence(); // control:server-asleep
        if self.control.server_asleep().is_some() {
            self.signal.knock();
        }
    }
}

impl<B> std::fmt::Debug for RingProducer<B> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.writer.fmt(out)
    }
}

/// Returns the header of a chunk.
///
/// # Panics
/// Panics if `key` is 64 or more.
pub(super) fn header(kind: Kind, key: u8, flags: u16) -> ChunkHeader {
    assert!((key as usize) < limits::KEYS_MAX);
    ChunkHeader { kind: kind as u8, key, flags }
}
