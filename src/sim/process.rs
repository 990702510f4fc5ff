//! A simulated producer in another process. It has mapped a ring and two pages, writes as the
//! client library does, and knocks on a line whose signals may be late. It may write in the middle
//! of the shard's work; it may die without a signal.

use std::cell::Cell;

use crate::base::Instant;
use crate::door::WriteError;
use crate::door::ring_producer::{ProducerSignal, RingProducer};
use crate::memory::ChunkHeader;
use crate::server::{HandLine, ProducerAtDoor};
use crate::sim::door::LifeLines;
use crate::sim::model::{FAILURE_TEXT, ReportedEnd};
use crate::stream::Outcome;
use crate::tool::SendError;

/// The state of such a producer.
pub(super) struct Process {
    producer: RingProducer<Knocks>,
    /// True if it has signalled that everything is mapped.
    has_mapped: bool,
    /// True if it has received the signal to begin.
    has_begun: bool,
    /// The gate epoch at which it had no room, while it waits for the gate to move.
    waits_from: Option<u64>,
    /// True if it has reported its end, or left.
    has_finished: bool,
}

/// Its line to the shard.
struct Knocks {
    line: HandLine,
    lines: LifeLines,
    now: Cell<Instant>,
}

impl ProducerSignal for Knocks {
    fn knock(&self) {
        self.lines.knock(self.line);
    }

    fn is_known_gone(&self) -> bool {
        false
    }

    fn now(&self) -> Instant {
        self.now.get()
    }
}

impl Process {
    /// Maps the memory that was granted.
    pub fn new(granted: ProducerAtDoor, lines: &LifeLines) -> Process {
        let ProducerAtDoor { memory, line } = granted;
        let signal = Knocks { line, lines: lines.clone(), now: Cell::new(Instant::ZERO) };
        let producer =
            RingProducer::open(memory, signal).expect("a shard grants what can be mapped");
        Process {
            producer,
            has_mapped: false,
            has_begun: false,
            waits_from: None,
            has_finished: false,
        }
    }

    /// The time at which it got the processor.
    pub fn now(&self) -> Instant {
        self.producer.signal().now()
    }

    pub fn chunk_bytes_max(&self) -> u32 {
        self.producer.chunk_bytes_max()
    }

    /// The memory of its ring, for tests that overwrite it.
    #[cfg(test)]
    pub fn segment(&self) -> crate::memory::Segment {
        self.producer.segment()
    }

    /// Gives it the processor. Returns false if it waits for the signal to begin.
    pub fn run(&mut self, now: Instant) -> bool {
        self.producer.signal().now.set(now);
        if !std::mem::replace(&mut self.has_mapped, true) {
            self.producer.signal().knock();
        }
        self.has_begun || self.producer.is_stopped()
    }

    /// Its line.
    pub fn line(&self) -> HandLine {
        self.producer.signal().line
    }

    /// Its line, until it has received the signal to begin.
    pub fn waits_on(&self) -> Option<HandLine> {
        (!self.has_begun).then(|| self.producer.signal().line)
    }

    /// Receives the signal to begin.
    pub fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Reports the number of chunks published, and the total.
    pub fn progress(&mut self, total: Option<f64>) {
        self.producer.progress(self.producer.head_seq() as f64, total, "counted");
        if let Some(total) = total {
            self.producer.expect_total(total as u64);
        }
    }

    /// Sends a chunk as [`crate::door::DoorWriter::send`] does: without room it waits until the
    /// gate moves.
    pub fn try_send(&mut self, header: ChunkHeader, payload: &[u8]) -> Result<u64, SendError> {
        let epoch = self.producer.gate_epoch();
        if let Some(from) = self.waits_from {
            if self.producer.is_stopped() {
                return Err(SendError::Stopped);
            }
            if from == epoch {
                return Err(SendError::Blocked);
            }
            self.waits_from = None;
            self.producer.has_room();
        }
        match self.producer.try_piece(header, payload) {
            Ok(Some(seq)) => Ok(seq),
            Ok(None) => {
                self.waits_from = Some(epoch);
                self.producer.ask_for_room().expect("its server is there");
                Err(SendError::Blocked)
            }
            Err(WriteError::TooLarge { chunk_bytes_max }) => {
                Err(SendError::TooLarge { chunk_bytes_max })
            }
            Err(WriteError::Stopped(_) | WriteError::ServerGone) => Err(SendError::Stopped),
        }
    }

    /// Reports its end. One that panics dies without a report.
    pub fn finish(&mut self, told: ReportedEnd) {
        if std::mem::replace(&mut self.has_finished, true) {
            return;
        }
        match told {
            ReportedEnd::Done => self.producer.finish(Outcome::Completed, ""),
            ReportedEnd::Failed => self.producer.finish(Outcome::Failed, FAILURE_TEXT),
            ReportedEnd::Panicked | ReportedEnd::Stopped => self.leave(),
        }
    }

    /// True if it has reported its end, or left.
    pub fn has_finished(&self) -> bool {
        self.has_finished
    }

    /// True if the shard takes nothing any more.
    pub fn is_over(&self) -> bool {
        self.producer.is_stopped()
    }

    /// Ends its line.
    pub fn leave(&self) {
        let Knocks { line, lines, .. } = self.producer.signal();
        lines.end(*line);
    }
}
