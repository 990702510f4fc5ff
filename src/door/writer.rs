//! A producer in another process. It publishes into a ring that the server has made for it, and the
//! server reads that ring.

use std::fmt;
use std::sync::mpsc;
use std::thread::JoinHandle;

use super::connection::{LifeLine, OpenConnection};
use super::error::{DoorError, WriteError};
use super::ring_producer::{ProducerSignal, RingProducer, header};
use crate::base::{ExecutionId, Instant};
use crate::endpoint::ProduceGrant;
use crate::memory::{CHUNK_MORE, ChunkHeader, OwnerWord};
use crate::reactor::Clock;
use crate::shard::delivery::outcome_of_code;
use crate::stream::{Kind, Outcome};

/// Publishes one execution of a server in another process.
///
/// Dropping it without [`DoorWriter::complete`] or [`DoorWriter::fail`] makes the execution fail.
/// The error is "the producer left", or "the producer panicked".
pub struct DoorWriter {
    producer: RingProducer<LifeLine>,
    grant: ProduceGrant,
    /// True if the end was reported.
    is_finished: bool,
    owner: Option<OwnerThread>,
}

impl DoorWriter {
    pub(super) fn new(
        grant: ProduceGrant,
        mut connection: OpenConnection,
    ) -> Result<DoorWriter, DoorError> {
        let descriptors = connection.descriptors()?;
        let producer = RingProducer::open(descriptors, connection.into_line()?)?;
        let owner = OwnerThread::start(producer.page().owner().clone())?;
        producer.signal().knock(); // Everything is mapped.
        Ok(DoorWriter { producer, grant, is_finished: false, owner: Some(owner) })
    }

    /// The execution that it produces.
    pub fn execution(&self) -> ExecutionId {
        self.grant.execution
    }

    /// The token of the execution's progress, if it has one.
    pub fn token(&self) -> Option<&str> {
        self.grant.token.as_deref()
    }

    /// Sends a chunk and returns its number. If `payload` is longer than one chunk can be, it is
    /// sent as several chunks. All but the last of them are flagged `more`, and the number is that
    /// of the last one. Waits while a `block` reader has to read first.
    ///
    /// # Errors
    /// [`WriteError::Stopped`] or [`WriteError::ServerGone`]: the producer should return. Some
    /// pieces of a long payload may have been sent.
    pub fn send(&mut self, payload: &[u8]) -> Result<u64, WriteError> {
        self.send_as(Kind::Output, Kind::Output as u8, payload)
    }

    /// Sends a chunk like [`DoorWriter::send`], with a kind and a key (below 64).
    ///
    /// # Errors
    /// The same as those of [`DoorWriter::send`].
    ///
    /// # Panics
    /// Panics if `key` is 64 or more.
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

    /// Sends a chunk for each of these payloads, and returns the number of the last one; 0 if no
    /// chunk was ever sent.
    ///
    /// It costs less than a call of [`DoorWriter::send_as`] for each payload. The ring takes as
    /// many chunks as it has room for, all with the same time. It publishes them at once, and
    /// sleeping readers are woken once.
    ///
    /// # Errors
    /// The same as those of [`DoorWriter::send`]; some payloads may have been sent.
    ///
    /// # Panics
    /// Panics if `key` is 64 or more.
    pub fn send_all<'a>(
        &mut self,
        kind: Kind,
        key: u8,
        payloads: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<u64, WriteError> {
        let (header, piece_bytes_max) = (header(kind, key, 0), self.chunk_bytes_max() as usize);
        let mut now = Clock::now();
        let mut gate_seq = 0;
        self.producer.begin_batch();
        for payload in payloads {
            if payload.len() <= piece_bytes_max {
                match self.producer.write(header, payload, |_| now) {
                    Ok(Some((gate, _))) => {
                        gate_seq = gate;
                        continue;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        self.producer.end_batch(now, gate_seq);
                        return Err(error);
                    }
                }
            }
            // The payload is too long for one chunk, or the ring has no room.
            self.producer.end_batch(now, gate_seq);
            self.send_as(kind, key, payload)?;
            now = Clock::now();
            self.producer.begin_batch();
        }
        self.producer.end_batch(now, gate_seq);
        Ok(self.producer.head_seq())
    }

    /// Sends one chunk if that is possible at once, and returns its number. `None`: a `block`
    /// reader has to read first.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was sent.
    ///
    /// # Panics
    /// Panics if `key` is 64 or more.
    pub fn try_send(
        &mut self,
        kind: Kind,
        key: u8,
        payload: &[u8],
    ) -> Result<Option<u64>, WriteError> {
        let sent = self.producer.try_piece(header(kind, key, 0), payload)?;
        if sent.is_none() {
            self.producer.ask_for_room()?;
        }
        Ok(sent)
    }

    /// Returns room in the ring for a chunk of up to `length` bytes. The caller fills it in place
    /// and then [publishes](DoorWriter::publish) it, so nothing is copied. The room holds bytes of
    /// older chunks. Waits while a `block` reader has to read first.
    ///
    /// ```no_run
    /// # use streamdoor::door::{DoorWriter, WriteError};
    /// # use streamdoor::Kind;
    /// fn square(writer: &mut DoorWriter, numbers: &[u8]) -> Result<u64, WriteError> {
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
            let epoch = self.producer.gate_epoch();
            if self.producer.try_lend(length)?.is_some() {
                let room = self.producer.try_lend(length)?;
                return Ok(room.expect("the room was checked above"));
            }
            self.wait_for_room(epoch)?;
        }
    }

    /// Publishes the first `length` bytes of the room that was lent last; returns the chunk's
    /// number.
    ///
    /// # Panics
    /// Panics if no room was lent since the last chunk, or less than `length`. Panics if `key` is
    /// 64 or more.
    pub fn publish(&mut self, kind: Kind, key: u8, length: usize) -> u64 {
        self.producer.publish(header(kind, key, 0), length)
    }

    /// Reports the progress of the work, its total if that is known, and a text for people. The
    /// newest report replaces earlier ones.
    pub fn progress(&mut self, progress: f64, total: Option<f64>, message: &str) {
        self.producer.progress(progress, total, message);
    }

    /// Reports how many chunks the execution will have.
    pub fn expect_total(&mut self, chunk_count: u64) {
        self.producer.expect_total(chunk_count);
    }

    /// True if the server takes no more chunks. A producer that works for long without sending
    /// should call this now and then.
    pub fn is_stopped(&self) -> bool {
        self.producer.is_stopped()
    }

    /// Largest payload of a chunk, in bytes.
    pub fn chunk_bytes_max(&self) -> u32 {
        self.producer.chunk_bytes_max()
    }

    /// Reports that everything was published, and waits until the server has taken it.
    ///
    /// # Errors
    /// [`DoorError::Stopped`]: the execution has ended with another outcome.
    /// [`DoorError::ServerGone`]: the server has gone. [`DoorError::Unsound`]: the server's record
    /// of the end is invalid.
    pub fn complete(mut self) -> Result<(), DoorError> {
        self.finish(Outcome::Completed, "");
        self.wait_for_end(Outcome::Completed)
    }

    /// Reports that the execution has failed, and waits until the server has recorded it.
    ///
    /// # Errors
    /// The same as those of [`DoorWriter::complete`].
    pub fn fail(mut self, text: &str) -> Result<(), DoorError> {
        self.finish(Outcome::Failed, text);
        self.wait_for_end(Outcome::Failed)
    }

    fn send_piece(&mut self, header: ChunkHeader, piece: &[u8]) -> Result<u64, WriteError> {
        loop {
            let epoch = self.producer.gate_epoch();
            if let Some(seq) = self.producer.try_piece(header, piece)? {
                return Ok(seq);
            }
            self.wait_for_room(epoch)?;
        }
    }

    /// Waits until the gate may have moved since `epoch` was read.
    #[cold]
    fn wait_for_room(&mut self, epoch: u64) -> Result<(), WriteError> {
        self.producer.ask_for_room()?;
        let result = self.wait_for_gate(epoch);
        self.producer.has_room();
        result
    }

    fn wait_for_gate(&self, epoch: u64) -> Result<(), WriteError> {
        while self.producer.gate_epoch() == epoch {
            if self.is_stopped() {
                return Err(self.producer.stopped());
            }
            if !self.producer.signal().is_up() {
                return Err(WriteError::ServerGone);
            }
            self.producer.wait_gate(epoch); // For a few ms at most.
        }
        Ok(())
    }

    fn finish(&mut self, outcome: Outcome, text: &str) {
        self.producer.finish(outcome, text);
        self.is_finished = true;
    }

    fn wait_for_end(&self, expected: Outcome) -> Result<(), DoorError> {
        loop {
            let epoch = self.producer.gate_epoch();
            let is_gone = !self.producer.signal().is_up();
            if let Some(record) = self.producer.final_record() {
                return match outcome_of_code(record.verdict.get()) {
                    Some(outcome) if outcome == expected => Ok(()),
                    Some(outcome) => Err(DoorError::Stopped(outcome)),
                    None => Err(crate::shard::Flaw::Verdict.into()),
                };
            }
            if is_gone {
                return Err(DoorError::ServerGone);
            }
            self.producer.wait_gate(epoch);
        }
    }
}

impl Drop for DoorWriter {
    fn drop(&mut self) {
        let is_ours = self.producer.signal().is_ours();
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

impl ProducerSignal for LifeLine {
    fn knock(&self) {
        LifeLine::knock(self);
    }

    fn is_known_gone(&self) -> bool {
        LifeLine::is_known_gone(self)
    }

    fn now(&self) -> Instant {
        Clock::now()
    }
}

/// Holds the owner word, and does nothing else; see [`crate::memory::owner`].
struct OwnerThread {
    _stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl OwnerThread {
    /// Starts the thread, and returns when it holds the word.
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

    /// Releases the word. A forked child has no such thread.
    fn stop(self, is_ours: bool) {
        drop(self._stop);
        if is_ours {
            let _ = self.thread.join();
        }
    }
}

impl fmt::Debug for DoorWriter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Writer(of {}, {:?})", self.grant.execution, self.producer)
    }
}
