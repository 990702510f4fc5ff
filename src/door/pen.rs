//! The memory of a producer in another process, and what it writes there. Its way to the server is
//! a [`Bell`]: the connection of a [`super::Writer`], or the simulator's.

use std::num::NonZeroU8;
use std::os::fd::OwnedFd;

use super::error::{DoorError, WriteError};
use super::reader::wrong;
use crate::base::Instant;
use crate::engine::{Gate, Kind, Outcome};
use crate::limits;
use crate::memory::atomic::full_fence;
use crate::memory::layout::KindTotals;
use crate::memory::{
    self, ChunkHeader, ControlView, FinalRecord, ProducerPage, ProgressRecord, RingWriter, Room,
    ShortText,
};
use crate::shard::delivery::{code_of_outcome, outcome_of_code};

/// The way to a server, and the clock that both share.
pub(crate) trait Bell {
    /// Makes the server look at what was written.
    fn knock(&self);

    /// True if the server was found to be gone.
    fn is_known_gone(&self) -> bool;

    /// The time.
    fn now(&self) -> Instant;
}

/// See the module's text.
pub(crate) struct Pen<B> {
    writer: RingWriter,
    page: ProducerPage,
    control: ControlView,
    bell: B,
    progress: ProgressRecord,
    /// When the last chunk was about to be published.
    published: Instant,
    /// For this chunk the server was knocked for last; once for each sleep of it.
    knocked_seq: u64,
    /// The oldest chunk that was held when it was last looked how much room there is.
    tail_seq: u64,
    is_short: bool,
}

impl<B: Bell> Pen<B> {
    /// Maps what a server has made for this producer: its ring, the control page and its own page.
    /// The gate is shut until the server has sealed them and started the execution.
    ///
    /// # Errors
    /// [`DoorError`]: one of them breaks the rules of its kind.
    pub fn open([ring, control, page]: [OwnedFd; 3], bell: B) -> Result<Pen<B>, DoorError> {
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
        Ok(Pen {
            writer,
            page,
            control,
            bell,
            progress,
            published,
            knocked_seq,
            tail_seq,
            is_short,
        })
    }

    /// The way to the server.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// Moves whenever the gate does; futex: [`Pen::wait_gate`].
    pub fn gate_epoch(&self) -> u64 {
        self.control.gate_epoch()
    }

    /// Sleeps for some ms at most, until the gate moves from `epoch`.
    pub fn wait_gate(&self, epoch: u64) {
        self.control.wait_gate(epoch);
    }

    /// The producer's own page.
    pub fn page(&self) -> &ProducerPage {
        &self.page
    }

    /// The number of the newest chunk; 0 if there is none.
    pub fn head_seq(&self) -> u64 {
        self.writer.head_seq()
    }

    /// The longest payload that one chunk can have.
    pub fn chunk_bytes_max(&self) -> u32 {
        self.writer.geometry().length_max()
    }

    /// True if the server takes nothing any more.
    pub fn is_stopped(&self) -> bool {
        self.control.is_closed() || self.final_record().is_some()
    }

    /// The server's record of the end; `None` before the end.
    pub fn final_record(&self) -> Option<FinalRecord> {
        self.control.final_record()
    }

    /// Its outcome, if the record names one that there is.
    pub fn outcome(&self) -> Option<Outcome> {
        self.final_record().and_then(|record| outcome_of_code(record.verdict.get()))
    }

    /// Publishes one chunk, if that is possible at once, and returns its number.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was published.
    pub fn try_piece(
        &mut self,
        header: ChunkHeader,
        piece: &[u8],
    ) -> Result<Option<u64>, WriteError> {
        // The clock is read when the bytes are on their way to where they are read.
        let Some((gate_seq, now)) = self.write(header, piece, Bell::now)? else { return Ok(None) };
        self.was_published(now, gate_seq);
        Ok(Some(self.writer.head_seq()))
    }

    /// The chunks that follow are there together, once [`Pen::end_batch`] is called.
    pub fn begin_batch(&mut self) {
        self.writer.begin_batch();
    }

    /// Publishes the chunks of a batch. `now` and `gate_seq` are what [`Pen::write`] was given and
    /// has returned last.
    pub fn end_batch(&mut self, now: Instant, gate_seq: u64) {
        if self.writer.end_batch() > 0 {
            self.was_published(now, gate_seq);
        }
    }

    /// Writes one chunk, if that is possible at once, and returns the gate and the time at that
    /// moment; nobody is told.
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
        let now = now(&self.bell);
        self.writer.publish(header, piece.len(), now);
        Ok(Some((gate_seq, now)))
    }

    /// Room for a chunk of up to `length` bytes, if there is some at once.
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

    /// Publishes the first `length` bytes of what was lent last; returns the chunk's number.
    ///
    /// # Panics
    /// If nothing was lent since the last chunk, or less than `length`.
    pub fn publish(&mut self, header: ChunkHeader, length: usize) -> u64 {
        let now = self.bell.now();
        let seq = self.writer.publish(header, length, now);
        let (gate_seq, ..) = self.control.gate();
        self.was_published(now, gate_seq);
        seq
    }

    /// Says how far the work is. The newest report counts.
    pub fn progress(&mut self, progress: f64, total: Option<f64>, message: &str) {
        let message = ShortText::new(message);
        let reports = self.progress.reports + 1;
        self.progress = ProgressRecord { progress, total, reports, message, ..self.progress };
        self.page.set_progress(&self.progress);
        self.tell();
    }

    /// Says how many chunks there will be.
    pub fn expect_total(&self, chunk_count: u64) {
        self.page.set_chunks_expected(chunk_count);
        self.tell();
    }

    /// Says that the gate holds the producer back; the server then asks the readers in its way.
    ///
    /// # Errors
    /// [`WriteError::ServerGone`].
    pub fn ask_for_room(&self) -> Result<(), WriteError> {
        self.page.owner().set_room(Room::None);
        self.bell.knock();
        if self.bell.is_known_gone() { Err(WriteError::ServerGone) } else { Ok(()) }
    }

    /// Says that it is held back no more.
    pub fn has_room(&mut self) {
        self.is_short = false;
        self.page.owner().set_room(Room::Enough);
    }

    /// Says that nothing more comes, and why.
    pub fn finish(&self, outcome: Outcome, text: &str) {
        let verdict = NonZeroU8::new(code_of_outcome(outcome)).expect("codes begin with 1");
        let (head_seq, totals) = (self.writer.head_seq(), KindTotals::default());
        self.page.finish(&FinalRecord { verdict, head_seq, totals }, text);
        self.bell.knock();
    }

    /// The gate, if a chunk of `length` bytes may be published at all at this moment.
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

    /// Wakes the readers and the server that sleep until the next chunk. `before` is a moment
    /// before it was published.
    #[inline]
    fn was_published(&mut self, before: Instant, gate_seq: u64) {
        full_fence(); // control:server-asleep, page:asleep
        // A reader polls for a while before it sleeps. So if the last chunk was published less than
        // that ago, each reader that has seen it is awake, and the others were woken for it. The
        // earlier moment is one before that chunk, the later one behind this one: the time between
        // is never too short.
        if self.control.has_direct_readers()
            && self.bell.now().since(self.published) >= limits::DOOR_SPIN
        {
            self.writer.wake();
        }
        self.published = before;
        if let Some(from_seq) = self.control.server_asleep()
            && self.writer.head_seq() >= from_seq.get()
            && self.knocked_seq != from_seq.get()
        {
            self.knocked_seq = from_seq.get(); // It rises from one sleep to the next.
            self.bell.knock();
        }
        if self.writer.tail_seq() != self.tail_seq {
            self.look_for_room(gate_seq);
        }
        self.writer.fetch_room();
    }

    /// Has the server move the gate before it is in the way. Looked for when the tail has moved,
    /// which it does for many chunks at once.
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

    /// Makes the server look, if it sleeps.
    #[inline]
    fn tell(&self) {
        full_fence(); // control:server-asleep
        if self.control.server_asleep().is_some() {
            self.bell.knock();
        }
    }
}

impl<B> std::fmt::Debug for Pen<B> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.writer.fmt(out)
    }
}

/// The header of a chunk.
///
/// # Panics
/// If `key` is 64 or more.
pub(super) fn header(kind: Kind, key: u8, flags: u16) -> ChunkHeader {
    assert!((key as usize) < limits::KEYS_MAX);
    ChunkHeader { kind: kind as u8, key, flags }
}
