//! Tools as state machines: stepped on the shard's thread, never blocking.

use serde_json::Value;
use smallvec::SmallVec;

use crate::base::Instant;
use crate::engine::{Exit, Gate, Kind, Measure, ProgressReport};
use crate::limits;
use crate::memory::{ChunkHeader, RingWriter, WriteError};
use crate::tool::ToolError;
use crate::trace::TraceContext;

/// A tool that runs on its shard's own thread, one short step at a time.
///
/// ```
/// use streamdoor::tool::{Context, EmitError, Step, Tool};
///
/// struct Count(u32);
///
/// impl Tool for Count {
///     fn step(&mut self, context: &mut Context<'_>) -> Step {
///         while self.0 > 0 {
///             match context.emit(self.0.to_string().as_bytes()) {
///                 Ok(_) => self.0 -= 1,
///                 Err(EmitError::Blocked) => return Step::Blocked,
///                 Err(EmitError::TooLarge { .. }) => unreachable!("ten digits fit any ring"),
///             }
///         }
///         Step::Done
///     }
/// }
/// ```
pub trait Tool: Send {
    /// Does some work: at most a few µs of it, for everybody else on this thread waits. It is not
    /// called again after [`Step::Done`], [`Step::Failed`] or a cancellation; its destructor is.
    fn step(&mut self, context: &mut Context<'_>) -> Step;
}

/// What a tool wants next.
#[derive(Debug)]
pub enum Step {
    /// To be stepped again in the next turn.
    Again,
    /// To be stepped again when there is room: an emit was refused with [`EmitError::Blocked`].
    Blocked,
    /// To be stepped again at that time.
    Sleep(Instant),
    /// It has done its work.
    Done,
    /// It can not.
    Failed(ToolError),
}

/// What a tool says about itself in passing; the shard tells the engine.
#[derive(Debug, Default)]
pub struct Notes {
    /// How many chunks there will be.
    pub chunks_expected: Option<u64>,
    /// How far it is, oldest first.
    pub reports: SmallVec<[Report; 1]>,
    /// How the process ended that it has run.
    pub exit: Option<Exit>,
}

impl Notes {
    /// Adds a report. One that is only a number takes the place of another such; of more than
    /// [`limits::PROGRESS_PENDING_MAX`] the oldest goes.
    pub fn push(&mut self, report: Report) {
        match self.reports.last_mut() {
            Some(last) if report.is_number() && last.is_number() => *last = report,
            _ => {
                if self.reports.len() == limits::PROGRESS_PENDING_MAX {
                    self.reports.remove(0);
                }
                self.reports.push(report);
            }
        }
    }

    /// Adds what was said later.
    pub fn append(&mut self, later: Notes) {
        self.chunks_expected = later.chunks_expected.or(self.chunks_expected);
        self.exit = later.exit.or(self.exit);
        later.reports.into_iter().for_each(|report| self.push(report));
    }
}

/// How far a tool is, in any of four forms; see [`ProgressReport`].
///
/// ```
/// use streamdoor::tool::Report;
/// let report = Report::amount(3.0, Some(5.0)).with_message("step 3 of 5");
/// # drop(report);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    measure: Measure,
    message: Option<Box<str>>,
    context: Option<Box<str>>,
}

impl Report {
    /// So many percent, from 0 to 100.
    pub fn percentage(percentage: f64) -> Report {
        Report { measure: Measure::Percentage(percentage), ..Default::default() }
    }

    /// So much, of so much if that is known, in the tool's own unit.
    pub fn amount(current: f64, total: Option<f64>) -> Report {
        Report { measure: Measure::Absolute { current, total }, ..Default::default() }
    }

    /// In words.
    pub fn message(message: &str) -> Report {
        Report::default().with_message(message)
    }

    /// In JSON, as it is worth knowing.
    pub fn context(context: &Value) -> Report {
        Report::default().with_context(context)
    }

    /// And in words.
    #[must_use]
    pub fn with_message(mut self, message: &str) -> Report {
        self.message = Some(message.into());
        self
    }

    /// And in JSON.
    #[must_use]
    pub fn with_context(mut self, context: &Value) -> Report {
        self.context = Some(context.to_string().into());
        self
    }

    fn is_number(&self) -> bool {
        self.message.is_none() && self.context.is_none()
    }

    /// As the engine is told.
    pub fn as_event(&self) -> ProgressReport<'_> {
        ProgressReport {
            measure: self.measure,
            message: self.message.as_deref(),
            context: self.context.as_deref(),
        }
    }
}

/// A tool's way out of its step.
pub struct Context<'a> {
    now: Instant,
    writer: &'a mut RingWriter,
    gate: Gate,
    notes: &'a mut Notes,
    trace: &'a TraceContext,
}

/// Why a chunk was not emitted. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// Return [`Step::Blocked`]: a `block` subscriber has to read first.
    Blocked,
    /// Split it: a chunk of this ring has at most so many bytes.
    TooLarge {
        /// The most.
        chunk_bytes_max: u32,
    },
}

impl<'a> Context<'a> {
    /// For whoever steps a tool.
    pub fn new(
        now: Instant,
        writer: &'a mut RingWriter,
        gate: Gate,
        notes: &'a mut Notes,
        trace: &'a TraceContext,
    ) -> Context<'a> {
        Context { now, writer, gate, notes, trace }
    }

    /// What the run is a part of.
    pub fn trace(&self) -> &TraceContext {
        self.trace
    }

    /// The time of this step.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The longest payload that one chunk can have.
    pub fn chunk_bytes_max(&self) -> u32 {
        self.writer.geometry().length_max()
    }

    #[inline]
    fn admits(&self, length: usize) -> bool {
        self.gate.admits(self.writer.head_seq(), self.writer.total_bytes(), length)
    }

    /// Publishes a chunk of kind `Output`; returns its number.
    ///
    /// # Errors
    /// [`EmitError`]; nothing was published.
    #[inline]
    pub fn emit(&mut self, payload: &[u8]) -> Result<u64, EmitError> {
        self.emit_as(Kind::Output, Kind::Output as u8, payload)
    }

    /// Publishes a chunk of this kind and key (below 64); returns its number.
    ///
    /// # Errors
    /// [`EmitError`]; nothing was published.
    #[inline]
    pub fn emit_as(&mut self, kind: Kind, key: u8, payload: &[u8]) -> Result<u64, EmitError> {
        if !self.admits(payload.len()) {
            return Err(EmitError::Blocked);
        }
        let header = ChunkHeader { kind: kind as u8, key, flags: 0 };
        Ok(self.writer.write(header, payload, self.now, self.gate.gate_seq)?)
    }

    /// Room in the ring for a chunk, to be filled in place and published: no copy.
    ///
    /// # Errors
    /// [`EmitError`]; nothing was lent.
    pub fn lend(&mut self, length: usize) -> Result<&mut [u8], EmitError> {
        if !self.admits(length) {
            return Err(EmitError::Blocked);
        }
        Ok(self.writer.lend(length, self.gate.gate_seq)?)
    }

    /// Publishes the first `length` bytes of what was lent; returns the chunk's number.
    ///
    /// # Panics
    /// If nothing was lent since the last chunk, or less than `length`.
    pub fn publish(&mut self, kind: Kind, key: u8, length: usize) -> u64 {
        let header = ChunkHeader { kind: kind as u8, key, flags: 0 };
        self.writer.publish(header, length, self.now)
    }

    /// Says how many chunks there will be.
    pub fn expect_total(&mut self, chunk_count: u64) {
        self.notes.chunks_expected = Some(chunk_count);
    }

    /// Says how far the work is, of how much if that is known.
    pub fn progress(&mut self, current: f64, total: Option<f64>) {
        self.report(Report::amount(current, total));
    }

    /// Says how far the work is, in any form.
    pub fn report(&mut self, report: Report) {
        self.notes.push(report);
    }
}

impl From<WriteError> for EmitError {
    fn from(error: WriteError) -> EmitError {
        match error {
            WriteError::Gated { .. } => EmitError::Blocked,
            WriteError::TooLarge { length_max, .. } => {
                EmitError::TooLarge { chunk_bytes_max: length_max }
            }
        }
    }
}
