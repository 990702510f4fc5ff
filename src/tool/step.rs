//! Tools as state machines: they run in steps on the shard's thread, and never block.

use std::fmt;
use std::sync::mpsc::SyncSender;

use serde_json::Value;
use smallvec::SmallVec;

use crate::base::Instant;
use crate::engine::Gate;
use crate::limits;
use crate::memory::{ChunkHeader, RingWriter};
use crate::stream::{Exit, Kind, Measure, ProgressReport};
use crate::tool::ToolError;
use crate::trace::TraceContext;

/// A tool that runs on its shard's own thread, one short step at a time.
///
/// ```
/// use streamdoor::{Context, Step, Tool, errors::EmitError};
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
    /// Does some work, for at most a few µs: all other work of this thread waits. It is not called
    /// again after [`Step::Done`], [`Step::Failed`] or a cancellation. The tool is then dropped.
    fn step(&mut self, context: &mut Context<'_>) -> Step;
}

/// The result of a step.
///
/// ```
/// use std::time::Duration;
/// use streamdoor::{Context, Step};
///
/// fn wait(context: &mut Context<'_>) -> Step {
///     Step::Sleep(context.now() + Duration::from_millis(10))
/// }
/// ```
#[derive(Debug)]
pub enum Step {
    /// Call it again in the next turn.
    Again,
    /// Call it again when the ring has room: an emit was refused with [`EmitError::Blocked`].
    Blocked,
    /// Call it again at this time.
    Sleep(Instant),
    /// The tool has finished.
    Done,
    /// The tool has failed.
    Failed(ToolError),
}

/// Statements of a tool about its run, which the shard passes to the engine.
#[derive(Debug, Default)]
pub struct ToolUpdate {
    /// Number of chunks that the tool expects to publish.
    pub chunks_expected: Option<u64>,
    /// The progress reports, oldest first.
    pub reports: SmallVec<[Report; 1]>,
    /// The exit of the process that the tool ran.
    pub exit: Option<Exit>,
    /// A call of [`Output::sync`](super::Output::sync) that waits.
    pub sync: Option<SyncWish>,
}

/// A wait for the disk.
#[derive(Clone, Debug)]
pub struct SyncWish {
    /// The last chunk that has to be on disk.
    pub seq: u64,
    /// The place for the answer. It is dropped without one if the execution is stopped.
    pub answer: SyncSender<Result<(), SyncError>>,
}

/// The reason why [`Output::sync`](super::Output::sync) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncError {
    /// Return: the execution was stopped.
    Stopped,
    /// Give up, or go on without the disk: the execution is not kept, or the disk has not taken
    /// all of its chunks.
    NotKept,
}

impl fmt::Display for SyncError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            SyncError::Stopped => "the execution was stopped",
            SyncError::NotKept => "the journal does not keep all chunks of the execution",
        })
    }
}

impl std::error::Error for SyncError {}

impl ToolUpdate {
    /// Adds a report. One without message and context replaces another such. If there are more than
    /// [`limits::PROGRESS_PENDING_MAX`], the oldest is dropped.
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

    /// Adds later notes.
    pub(crate) fn append(&mut self, later: ToolUpdate) {
        self.chunks_expected = later.chunks_expected.or(self.chunks_expected);
        self.exit = later.exit.or(self.exit);
        self.sync = later.sync.or(self.sync.take());
        later.reports.into_iter().for_each(|report| self.push(report));
    }
}

/// A progress report, in any of four forms; see [`ProgressReport`].
///
/// ```
/// use streamdoor::tools::Report;
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
    /// A report in percent, from 0 to 100.
    pub fn percentage(percentage: f64) -> Report {
        Report { measure: Measure::Percentage(percentage), ..Default::default() }
    }

    /// A report of the done amount, and of the total if it is known, in the tool's own unit.
    pub fn amount(current: f64, total: Option<f64>) -> Report {
        Report { measure: Measure::Absolute { current, total }, ..Default::default() }
    }

    /// A report with a message.
    pub fn message(message: &str) -> Report {
        Report::default().with_message(message)
    }

    /// A report with context as JSON.
    pub fn context(context: &Value) -> Report {
        Report::default().with_context(context)
    }

    /// Adds a message.
    #[must_use]
    pub fn with_message(mut self, message: &str) -> Report {
        self.message = Some(message.into());
        self
    }

    /// Adds context as JSON.
    #[must_use]
    pub fn with_context(mut self, context: &Value) -> Report {
        self.context = Some(context.to_string().into());
        self
    }

    fn is_number(&self) -> bool {
        self.message.is_none() && self.context.is_none()
    }

    /// The report in the form of the engine.
    pub fn as_event(&self) -> ProgressReport<'_> {
        ProgressReport {
            measure: self.measure,
            message: self.message.as_deref(),
            context: self.context.as_deref(),
        }
    }
}

/// The interface of a tool within its step.
///
/// ```
/// use streamdoor::errors::EmitError;
/// use streamdoor::{Context, Step, ToolError};
///
/// fn say_hello(context: &mut Context<'_>) -> Step {
///     match context.emit(b"hello") {
///         Ok(_seq) => Step::Done,
///         Err(EmitError::Blocked) => Step::Blocked,
///         Err(EmitError::TooLarge { .. }) => Step::Failed(ToolError::new("too long")),
///     }
/// }
/// ```
pub struct Context<'a> {
    now: Instant,
    writer: &'a mut RingWriter,
    gate: Gate,
    chunk_bytes_max: u32,
    chunk_bytes_wanted: usize,
    updates: &'a mut ToolUpdate,
    trace: &'a TraceContext,
}

/// The reason why a chunk was not emitted. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// Return [`Step::Blocked`]: a `block` subscriber has to read first, or the ring has to grow.
    Blocked,
    /// Split the payload: it is longer than the longest chunk of this ring.
    TooLarge {
        /// The longest payload of one chunk.
        chunk_bytes_max: u32,
    },
}

impl<'a> Context<'a> {
    /// Used by the caller of [`Tool::step`]. A ring that takes no chunk of `chunk_bytes_max` bytes
    /// yet grows after a step that is blocked.
    pub(crate) fn new(
        now: Instant,
        writer: &'a mut RingWriter,
        gate: Gate,
        chunk_bytes_max: u32,
        updates: &'a mut ToolUpdate,
        trace: &'a TraceContext,
    ) -> Context<'a> {
        Context { now, writer, gate, chunk_bytes_max, chunk_bytes_wanted: 0, updates, trace }
    }

    /// The length of a chunk for which the ring has to grow first; 0 without one.
    pub(crate) fn chunk_bytes_wanted(&self) -> usize {
        self.chunk_bytes_wanted
    }

    /// The trace of the caller.
    pub fn trace(&self) -> &TraceContext {
        self.trace
    }

    /// The time of this step.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The longest payload of one chunk.
    pub fn chunk_bytes_max(&self) -> u32 {
        self.chunk_bytes_max
    }

    /// Checks that a chunk of `length` bytes is within the gate, and that the ring takes it.
    #[inline]
    fn check(&mut self, length: usize) -> Result<(), EmitError> {
        if !self.gate.admits(self.writer.head_seq(), self.writer.total_bytes(), length) {
            return Err(EmitError::Blocked);
        }
        match length > self.writer.geometry().length_max() as usize {
            true => Err(self.too_long(length)),
            false => Ok(()),
        }
    }

    #[cold]
    fn too_long(&mut self, length: usize) -> EmitError {
        if length > self.chunk_bytes_max as usize {
            return EmitError::TooLarge { chunk_bytes_max: self.chunk_bytes_max };
        }
        self.writer.forget_lent();
        self.chunk_bytes_wanted = length; // The ring grows before the next step.
        EmitError::Blocked
    }

    /// Publishes a chunk of kind `Output`, and returns its number.
    ///
    /// # Errors
    /// [`EmitError`]; nothing was published.
    #[inline]
    pub fn emit(&mut self, payload: &[u8]) -> Result<u64, EmitError> {
        self.emit_as(Kind::Output, Kind::Output as u8, payload)
    }

    /// Publishes a chunk of this kind and key (below 64), and returns its number.
    ///
    /// # Errors
    /// [`EmitError`]; nothing was published.
    #[inline]
    pub fn emit_as(&mut self, kind: Kind, key: u8, payload: &[u8]) -> Result<u64, EmitError> {
        self.check(payload.len())?;
        let header = ChunkHeader { kind: kind as u8, key, flags: 0 };
        let written = self.writer.write(header, payload, self.now, self.gate.gate_seq);
        written.map_err(|_gated| EmitError::Blocked) // Its length was checked.
    }

    /// Reserves room in the ring for a chunk, to be filled in place and published without a copy.
    ///
    /// # Errors
    /// [`EmitError`]; nothing was reserved.
    pub fn lend(&mut self, length: usize) -> Result<&mut [u8], EmitError> {
        self.check(length)?;
        let lent = self.writer.lend(length, self.gate.gate_seq);
        lent.map_err(|_gated| EmitError::Blocked) // As above.
    }

    /// Publishes the first `length` bytes of the reserved room, and returns the chunk's number.
    ///
    /// # Panics
    /// If no room was reserved since the last chunk, or fewer than `length` bytes.
    pub fn publish(&mut self, kind: Kind, key: u8, length: usize) -> u64 {
        let header = ChunkHeader { kind: kind as u8, key, flags: 0 };
        self.writer.publish(header, length, self.now)
    }

    /// States the number of chunks that the tool expects to publish.
    pub fn expect_total(&mut self, chunk_count: u64) {
        self.updates.chunks_expected = Some(chunk_count);
    }

    /// Reports the done amount of work, and the total if it is known.
    pub fn progress(&mut self, current: f64, total: Option<f64>) {
        self.report(Report::amount(current, total));
    }

    /// Reports progress in any form.
    pub fn report(&mut self, report: Report) {
        self.updates.push(report);
    }
}
