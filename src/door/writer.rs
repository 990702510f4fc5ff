//! A producer in another process: it publishes into a ring that the server has made for it, and the
//! server looks.

use std::fmt;
use std::num::NonZeroU8;
use std::sync::mpsc;
use std::thread::JoinHandle;

use super::connection::{LifeLine, Talk};
use super::error::{DoorError, WriteError};
use super::reader::wrong;
use crate::base::{ExecutionId, Instant};
use crate::endpoint::ProduceGrant;
use crate::engine::{Gate, Kind, Outcome};
use crate::limits;
use crate::memory::atomic::full_fence;
use crate::memory::layout::KindTotals;
use crate::memory::{
    self, CHUNK_MORE, ChunkHeader, ControlView, FinalRecord, OwnerWord, ProducerPage,
    ProgressRecord, RingWriter, Room, ShortText,
};
use crate::reactor::Clock;
use crate::shard::delivery::{code_of_outcome, outcome_of_code};

/// Publishes one execution of a server in another process.
///
/// Dropping it without [`Writer::complete`] or [`Writer::fail`] makes the execution fail: "the
/// producer left".
pub struct Writer {
    writer: RingWriter,
    page: ProducerPage,
    control: ControlView,
    line: LifeLine,
    grant: ProduceGrant,
    progress: ProgressRecord,
    /// When the last chunk was about to be published.
    published: Instant,
    /// For this chunk the server was knocked for last; once for each sleep of it.
    knocked_seq: u64,
    /// The oldest chunk that was held when it was last looked how much room there is.
    tail_seq: u64,
    is_short: bool,
    /// Its end was told.
    is_finished: bool,
    owner: Option<OwnerThread>,
}

impl Writer {
    pub(super) fn new(grant: ProduceGrant, mut talk: Talk) -> Result<Writer, DoorError> {
        let [ring, control, page] = talk.descriptors()?;
        let writer = RingWriter::open(ring).map_err(wrong("ring"))?;
        let (control, _) = ControlView::open(control, 0).map_err(wrong("control page"))?;
        let page = ProducerPage::open(page).map_err(wrong("producer's page"))?;
        let owner = OwnerThread::start(page.owner().clone())?;
        let line = talk.into_line()?;
        // Everything is mapped. What follows in words is for people: until the server has sealed
        // what it gave and started the execution, the gate is shut.
        line.knock();
        let none = ShortText::new("");
        let progress = ProgressRecord {
            progress: 0.0,
            total: None,
            reports: 0,
            message: none,
            context: ShortText::new(""),
        };
        let tail_seq = writer.tail_seq();
        Ok(Writer {
            writer,
            page,
            control,
            line,
            grant,
            progress,
            published: Instant::ZERO,
            knocked_seq: 0,
            tail_seq,
            is_short: false,
            is_finished: false,
            owner: Some(owner),
        })
    }

    /// What it produces.
    pub fn execution(&self) -> ExecutionId {
        self.grant.execution
    }

    /// Under what its progress is told, if there is such a thing.
    pub fn token(&self) -> Option<&str> {
        self.grant.token.as_deref()
    }

    /// Sends a chunk, or several where `payload` is longer than the ring takes at once (all but the
    /// last of them flagged `more`), and returns the number of the last one. Waits while a `block`
    /// reader has to read first.
    ///
    /// # Errors
    /// [`WriteError::Stopped`], [`WriteError::ServerGone`]: return. Some pieces of a long payload
    /// may have been sent.
    pub fn send(&mut self, payload: &[u8]) -> Result<u64, WriteError> {
        self.send_as(Kind::Output, Kind::Output as u8, payload)
    }

    /// As [`Writer::send`], with a kind and a key (below 64).
    ///
    /// # Errors
    /// As [`Writer::send`].
    ///
    /// # Panics
    /// If `key` is 64 or more.
    pub fn send_as(&mut self, kind: Kind, key: u8, payload: &[u8]) -> Result<u64, WriteError> {
        let piece_bytes_max = self.chunk_bytes_max() as usize;
        let mut rest = payload;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(piece_bytes_max));
            let flags = if after.is_empty() { 0 } else { CHUNK_MORE };
            let seq = self.send_piece(header(kind, key, flags), piece)?;
            if after.is_empty() {
                return Ok(seq);
            }
            rest = after;
        }
    }

    /// Sends a chunk for each of these payloads, as so many calls of [`Writer::send_as`], for less:
    /// as many as the ring takes are there at once, with the same time, and whoever sleeps is woken
    /// once. Returns the number of the last one; 0 if nothing was ever sent.
    ///
    /// # Errors
    /// As [`Writer::send`]; some may have been sent.
    ///
    /// # Panics
    /// If `key` is 64 or more.
    pub fn send_all<'a>(
        &mut self,
        kind: Kind,
        key: u8,
        payloads: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<u64, WriteError> {
        let (header, piece_bytes_max) = (header(kind, key, 0), self.chunk_bytes_max() as usize);
        let mut now = Clock::now();
        let mut gate_seq = 0;
        self.writer.begin_batch();
        for payload in payloads {
            if payload.len() <= piece_bytes_max {
                match self.write(header, payload, || now) {
                    Ok(Some((gate, _))) => {
                        gate_seq = gate;
                        continue;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        self.end_batch(now, gate_seq);
                        return Err(error);
                    }
                }
            }
            // It is too long, or there is no room.
            self.end_batch(now, gate_seq);
            self.send_as(kind, key, payload)?;
            now = Clock::now();
            self.writer.begin_batch();
        }
        self.end_batch(now, gate_seq);
        Ok(self.writer.head_seq())
    }

    fn end_batch(&mut self, now: Instant, gate_seq: u64) {
        if self.writer.end_batch() > 0 {
            self.was_published(now, gate_seq);
        }
    }

    /// Sends one chunk if that is possible at once, and returns its number. `None`: a `block`
    /// reader has to read first.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was sent.
    ///
    /// # Panics
    /// If `key` is 64 or more.
    pub fn try_send(
        &mut self,
        kind: Kind,
        key: u8,
        payload: &[u8],
    ) -> Result<Option<u64>, WriteError> {
        let sent = self.try_piece(header(kind, key, 0), payload)?;
        if sent.is_none() {
            self.ask_for_room()?;
        }
        Ok(sent)
    }

    /// Room in the ring for a chunk of up to `length` bytes, to be filled in place and then
    /// [published](Writer::publish): no copy at all. What stands in it is left over from older
    /// chunks. Waits while a `block` reader has to read first.
    ///
    /// ```no_run
    /// # use streamdoor::door::{Writer, WriteError};
    /// # use streamdoor::engine::Kind;
    /// fn square(writer: &mut Writer, numbers: &[u8]) -> Result<u64, WriteError> {
    ///     let room = writer.lend(numbers.len())?;
    ///     for (square, number) in room.iter_mut().zip(numbers) {
    ///         *square = number.wrapping_mul(*number);
    ///     }
    ///     Ok(writer.publish(Kind::Output, 0, numbers.len()))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`WriteError`]; nothing was lent.
    pub fn lend(&mut self, length: usize) -> Result<&mut [u8], WriteError> {
        loop {
            let epoch = self.control.gate_epoch();
            if let Some(gate_seq) = self.gate_for(length)? {
                match self.writer.lend(length, gate_seq).map(|_| ()) {
                    Ok(()) => {
                        let room = self.writer.lend(length, gate_seq);
                        return Ok(room.expect("it was just there"));
                    }
                    Err(memory::WriteError::TooLarge { length_max, .. }) => {
                        return Err(WriteError::TooLarge { chunk_bytes_max: length_max });
                    }
                    Err(memory::WriteError::Gated { .. }) => {}
                }
            }
            self.wait_for_room(epoch)?;
        }
    }

    /// Publishes the first `length` bytes of what was lent last; returns the chunk's number.
    ///
    /// # Panics
    /// If nothing was lent since the last chunk, or less than `length`; if `key` is 64 or more.
    pub fn publish(&mut self, kind: Kind, key: u8, length: usize) -> u64 {
        let now = Clock::now();
        let seq = self.writer.publish(header(kind, key, 0), length, now);
        let (gate_seq, ..) = self.control.gate();
        self.was_published(now, gate_seq);
        seq
    }

    /// Says how far the work is, of how much if that is known; in words, if there are any. The
    /// newest report counts.
    pub fn progress(&mut self, progress: f64, total: Option<f64>, message: &str) {
        let message = ShortText::new(message);
        let reports = self.progress.reports + 1;
        self.progress = ProgressRecord { progress, total, reports, message, ..self.progress };
        self.page.set_progress(&self.progress);
        self.tell();
    }

    /// Says how many chunks there will be.
    pub fn expect_total(&mut self, chunk_count: u64) {
        self.page.set_chunks_expected(chunk_count);
        self.tell();
    }

    /// Is nothing taken any more? Who is busy for long without sending asks now and then.
    pub fn is_stopped(&self) -> bool {
        self.control.is_closed() || self.control.final_record().is_some()
    }

    /// The longest payload that one chunk can have.
    pub fn chunk_bytes_max(&self) -> u32 {
        self.writer.geometry().length_max()
    }

    /// Says that everything was published, and waits until the server has taken it.
    ///
    /// # Errors
    /// [`DoorError::Stopped`]: the execution has ended otherwise. [`DoorError::ServerGone`].
    pub fn complete(mut self) -> Result<(), DoorError> {
        self.finish(Outcome::Completed, "");
        self.wait_for_end(Outcome::Completed)
    }

    /// Says that it went wrong, and waits until the server knows.
    ///
    /// # Errors
    /// As [`Writer::complete`].
    pub fn fail(mut self, text: &str) -> Result<(), DoorError> {
        self.finish(Outcome::Failed, text);
        self.wait_for_end(Outcome::Failed)
    }

    fn send_piece(&mut self, header: ChunkHeader, piece: &[u8]) -> Result<u64, WriteError> {
        loop {
            let epoch = self.control.gate_epoch();
            if let Some(seq) = self.try_piece(header, piece)? {
                return Ok(seq);
            }
            self.wait_for_room(epoch)?;
        }
    }

    fn try_piece(&mut self, header: ChunkHeader, piece: &[u8]) -> Result<Option<u64>, WriteError> {
        // The clock is read when the bytes are on their way to where they are read.
        let Some((gate_seq, now)) = self.write(header, piece, Clock::now)? else { return Ok(None) };
        self.was_published(now, gate_seq);
        Ok(Some(self.writer.head_seq()))
    }

    /// Writes one chunk, if that is possible at once, and returns the gate and the time at that
    /// moment; nobody is told.
    #[inline]
    fn write(
        &mut self,
        header: ChunkHeader,
        piece: &[u8],
        now: impl FnOnce() -> Instant,
    ) -> Result<Option<(u64, Instant)>, WriteError> {
        let Some(gate_seq) = self.gate_for(piece.len())? else { return Ok(None) };
        match self.writer.lend(piece.len(), gate_seq.min(self.writer.batch_seq())) {
            Ok(room) => room.copy_from_slice(piece),
            Err(memory::WriteError::Gated { .. }) => return Ok(None),
            Err(memory::WriteError::TooLarge { length_max, .. }) => {
                return Err(WriteError::TooLarge { chunk_bytes_max: length_max });
            }
        }
        let now = now();
        self.writer.publish(header, piece.len(), now);
        Ok(Some((gate_seq, now)))
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

    #[cold]
    fn stopped(&self) -> WriteError {
        WriteError::Stopped(self.outcome())
    }

    fn outcome(&self) -> Option<Outcome> {
        self.control.final_record().and_then(|record| outcome_of_code(record.verdict.get()))
    }

    /// Wakes who sleeps and is to see the chunk that was just published. `before`: a moment before.
    #[inline]
    fn was_published(&mut self, before: Instant, gate_seq: u64) {
        full_fence(); // control:server-asleep, page:asleep
        // A reader polls for a while before it sleeps. So if the last chunk was published less than
        // that ago, nobody sleeps who has seen it; and who has not was woken for it. The earlier
        // moment is one before that chunk, the later one behind this one: the time between is never
        // too short.
        if self.control.has_direct_readers()
            && Clock::now().since(self.published) >= limits::DOOR_SPIN
        {
            self.writer.wake();
        }
        self.published = before;
        if let Some(from_seq) = self.control.server_asleep()
            && self.writer.head_seq() >= from_seq.get()
            && self.knocked_seq != from_seq.get()
        {
            self.knocked_seq = from_seq.get(); // It rises from one sleep to the next.
            self.line.knock();
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
            self.line.knock();
        }
    }

    /// Says that it is held back; the server then asks who is in the way.
    fn ask_for_room(&mut self) -> Result<(), WriteError> {
        self.page.owner().set_room(Room::None);
        self.line.knock();
        if self.line.is_known_gone() { Err(WriteError::ServerGone) } else { Ok(()) }
    }

    /// Waits until the gate may have moved since `epoch` was read.
    #[cold]
    fn wait_for_room(&mut self, epoch: u64) -> Result<(), WriteError> {
        self.ask_for_room()?;
        let result = self.wait_for_gate(epoch);
        self.is_short = false;
        self.page.owner().set_room(Room::Enough);
        result
    }

    fn wait_for_gate(&self, epoch: u64) -> Result<(), WriteError> {
        while self.control.gate_epoch() == epoch {
            if self.is_stopped() {
                return Err(self.stopped());
            }
            if !self.line.is_up() {
                return Err(WriteError::ServerGone);
            }
            self.control.wait_gate(epoch); // For a few ms at most.
        }
        Ok(())
    }

    fn finish(&mut self, outcome: Outcome, text: &str) {
        let verdict = NonZeroU8::new(code_of_outcome(outcome)).expect("codes begin with 1");
        let (head_seq, totals) = (self.writer.head_seq(), KindTotals::default());
        self.page.finish(&FinalRecord { verdict, head_seq, totals }, text);
        self.is_finished = true;
        self.line.knock();
    }

    fn wait_for_end(&self, expected: Outcome) -> Result<(), DoorError> {
        loop {
            let epoch = self.control.gate_epoch();
            let is_gone = !self.line.is_up();
            if let Some(record) = self.control.final_record() {
                return match outcome_of_code(record.verdict.get()) {
                    Some(outcome) if outcome == expected => Ok(()),
                    Some(outcome) => Err(DoorError::Stopped(outcome)),
                    None => Err(crate::shard::Flaw::Verdict.into()),
                };
            }
            if is_gone {
                return Err(DoorError::ServerGone);
            }
            self.control.wait_gate(epoch);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let is_ours = self.line.is_ours();
        if is_ours && !self.is_finished {
            let has_panicked = std::thread::panicking();
            let text = if has_panicked { "the producer panicked" } else { "the producer left" };
            self.finish(Outcome::Failed, text);
        }
        if let Some(owner) = self.owner.take() {
            owner.stop(is_ours);
        }
    }
}

/// Holds the owner word, and does nothing else; see [`crate::memory::owner`].
struct OwnerThread {
    _stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl OwnerThread {
    /// Returns when the word is held.
    fn start(word: OwnerWord) -> Result<OwnerThread, DoorError> {
        let (stop, stopped) = mpsc::channel::<()>();
        let (held, is_held) = mpsc::channel();
        let run = move || {
            let failed = held.clone();
            let result = word.hold(|| {
                let _ = held.send(Ok(()));
                let _ = stopped.recv(); // Until the other end is dropped.
            });
            if let Err(error) = result {
                let _ = failed.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name("door-owner".to_owned()).spawn(run)?;
        match is_held.recv() {
            Ok(Ok(())) => Ok(OwnerThread { _stop: stop, thread }),
            Ok(Err(error)) => Err(DoorError::Os(error)),
            Err(_) => Err(DoorError::Os(std::io::ErrorKind::Other.into())),
        }
    }

    /// Lets the word go. A forked child has no such thread.
    fn stop(self, is_ours: bool) {
        drop(self._stop);
        if is_ours {
            let _ = self.thread.join();
        }
    }
}

fn header(kind: Kind, key: u8, flags: u16) -> ChunkHeader {
    assert!((key as usize) < limits::KEYS_MAX);
    ChunkHeader { kind: kind as u8, key, flags }
}

impl fmt::Debug for Writer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Writer(of {}, {:?})", self.grant.execution, self.writer)
    }
}
