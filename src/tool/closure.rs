//! Tools as closures on threads of their own: the writing end that such a thread is given.
//!
//! The thread owns the ring's writer. It publishes by itself and is slowed by waiting, on its own
//! thread, for the gate to move; the shard is told by a ring of its bell, which costs nothing while
//! the shard is awake. Nothing is locked on the way of a chunk.

use std::fmt;
use std::sync::Arc;

use crate::base::Instant;
use crate::base::planted::{Planted, planted};
use crate::engine::{Exit, Gate, Kind};
use crate::limits;
use crate::memory::atomic::full_fence;
use crate::memory::{CHUNK_MORE, ChunkHeader, ControlView, Exchange, RingWriter, WriteError};
use crate::tool::step::{Notes, Report};
use crate::trace::TraceContext;

/// What a tool's thread needs of the world it runs in.
pub trait Host: Send + Sync {
    /// The time.
    fn now(&self) -> Instant;
    /// Makes the shard look at this execution soon.
    fn ring(&self);
    /// Hands notes to the shard, behind those that it has not seen yet.
    fn note(&self, notes: Notes);
    /// Keeps what the shard is to call when it stops the execution, instead of what was kept
    /// before. Once this has returned, what was kept before is not called any more.
    fn keep_stop_hook(&self, hook: Option<StopHook>);
    /// Calls what is kept, if anything is.
    fn call_stop_hook(&self);
}

/// Called when an execution is stopped.
pub type StopHook = Box<dyn Fn() + Send>;

/// Was an execution stopped? For what runs inside a library that calls back. The default is that
/// of no execution: it never was.
#[derive(Clone, Default)]
pub struct StopSignal(Arc<Exchange>);

impl StopSignal {
    /// Was it?
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.0.is_closed()
    }
}

/// Keeps a hook of [`Output::on_stop`] in place until it is dropped.
#[must_use = "the hook goes with it"]
pub struct OnStop(Arc<dyn Host>);

impl Drop for OnStop {
    fn drop(&mut self) {
        self.0.keep_stop_hook(None);
    }
}

/// Where a closure's results go.
///
/// ```no_run
/// # use streamdoor::tool::{Output, ToolError};
/// fn count(out: &mut Output) -> Result<(), ToolError> {
///     out.expect_total(3);
///     for number in 0..3 {
///         out.send(format!("{number}").as_bytes())?; // `?` leaves when it is cancelled.
///     }
///     Ok(())
/// }
/// ```
pub struct Output {
    writer: RingWriter,
    control: ControlView,
    exchange: Arc<Exchange>,
    host: Arc<dyn Host>,
    trace: TraceContext,
}

/// The execution was cancelled, or nobody can read it any more: return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the execution was stopped")
    }
}

impl std::error::Error for Stopped {}

/// Why [`Output::try_send`] sent nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// Wait: a `block` subscriber has to read first.
    Blocked,
    /// Return: the execution was stopped.
    Stopped,
    /// Split it: a chunk of this ring has at most so many bytes.
    TooLarge {
        /// The most.
        chunk_bytes_max: u32,
    },
}

impl Output {
    /// For whoever runs a tool.
    pub fn new(
        writer: RingWriter,
        control: ControlView,
        exchange: Arc<Exchange>,
        host: Arc<dyn Host>,
        trace: TraceContext,
    ) -> Output {
        Output { writer, control, exchange, host, trace }
    }

    /// What the run is a part of, to be told to whoever does some of its work: see
    /// [`TraceContext::variables`].
    pub fn trace(&self) -> &TraceContext {
        &self.trace
    }

    /// Sends a chunk, or several where `payload` is longer than the ring takes at once (all but the
    /// last of them flagged `more`). Waits while a `block` subscriber has to read first.
    ///
    /// # Errors
    /// [`Stopped`]: return. Some pieces of a long payload may have been sent.
    pub fn send(&mut self, payload: &[u8]) -> Result<(), Stopped> {
        self.send_as(Kind::Output, Kind::Output as u8, payload)
    }

    /// As [`Output::send`], with a kind and a key (below 64).
    ///
    /// # Errors
    /// [`Stopped`]: return. Some pieces of a long payload may have been sent.
    ///
    /// # Panics
    /// If `key` is 64 or more.
    pub fn send_as(&mut self, kind: Kind, key: u8, payload: &[u8]) -> Result<(), Stopped> {
        self.send_flagged(kind, key, payload, 0)
    }

    /// As [`Output::send_as`], of a payload that is not over with this: all chunks are flagged
    /// `more`.
    ///
    /// # Errors
    /// [`Stopped`]: return. Some pieces of a long payload may have been sent.
    ///
    /// # Panics
    /// If `key` is 64 or more.
    pub fn send_part(&mut self, kind: Kind, key: u8, payload: &[u8]) -> Result<(), Stopped> {
        self.send_flagged(kind, key, payload, CHUNK_MORE)
    }

    fn send_flagged(
        &mut self,
        kind: Kind,
        key: u8,
        payload: &[u8],
        last_flags: u16,
    ) -> Result<(), Stopped> {
        let piece_bytes_max = self.chunk_bytes_max() as usize;
        let mut rest = payload;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(piece_bytes_max));
            let flags = if after.is_empty() { last_flags } else { CHUNK_MORE };
            self.send_piece(ChunkHeader { kind: kind as u8, key, flags }, piece)?;
            if after.is_empty() {
                return Ok(());
            }
            rest = after;
        }
    }

    fn send_piece(&mut self, header: ChunkHeader, piece: &[u8]) -> Result<(), Stopped> {
        loop {
            let epoch = self.control.gate_epoch();
            match self.try_send(header, piece) {
                Ok(_) => return Ok(()),
                Err(SendError::Stopped) => return Err(Stopped),
                Err(SendError::TooLarge { .. }) => unreachable!("pieces were cut to fit"),
                Err(SendError::Blocked) => {
                    self.host.ring();
                    self.control.wait_gate(epoch);
                }
            }
        }
    }

    /// Sends one chunk if that is possible at once; returns its number. For tools that have
    /// something better to do than to wait, and for simulated ones.
    ///
    /// # Errors
    /// [`SendError`]; nothing was sent.
    ///
    /// # Panics
    /// If `header.key` is 64 or more.
    pub fn try_send(&mut self, header: ChunkHeader, payload: &[u8]) -> Result<u64, SendError> {
        assert!((header.key as usize) < limits::KEYS_MAX);
        self.exchange.begin_write().map_err(|_| SendError::Stopped)?;
        let written = self.write_within_gate(header, payload);
        self.exchange.end_write();
        if written == Err(SendError::Blocked) {
            self.exchange.set_gated(true); // The shard answers every bell that finds this set.
            return written;
        }
        full_fence(); // exchange:sleep, and the shard's own before it blocks
        if self.exchange.has_sleepers() && !planted(Planted::LostWake) {
            self.writer.wake();
        }
        self.host.ring();
        written
    }

    /// Like [`Output::try_send`], and tells the shard of a chunk that has to wait, so that it is
    /// worth trying again. Returns whether the chunk was sent.
    ///
    /// # Errors
    /// [`Stopped`]: return.
    ///
    /// # Panics
    /// If the chunk is longer than the ring takes.
    #[cfg(feature = "sqlite")]
    pub(super) fn offer(&mut self, header: ChunkHeader, piece: &[u8]) -> Result<bool, Stopped> {
        match self.try_send(header, piece) {
            Ok(_) => Ok(true),
            Err(SendError::Stopped) => Err(Stopped),
            Err(SendError::TooLarge { .. }) => unreachable!("pieces were cut to fit"),
            Err(SendError::Blocked) => {
                self.host.ring();
                Ok(false)
            }
        }
    }

    fn write_within_gate(&mut self, header: ChunkHeader, payload: &[u8]) -> Result<u64, SendError> {
        let (gate_seq, credit_seq, credit_bytes, read_seq) = self.control.gate();
        let gate = Gate { gate_seq, credit_seq, credit_bytes, read_seq };
        let chunk_bytes_max = self.chunk_bytes_max();
        if payload.len() > chunk_bytes_max as usize {
            return Err(SendError::TooLarge { chunk_bytes_max });
        }
        if !gate.admits(self.writer.head_seq(), self.writer.total_bytes(), payload.len()) {
            return Err(SendError::Blocked);
        }
        match self.writer.write(header, payload, self.host.now(), gate_seq) {
            Ok(seq) => Ok(seq),
            Err(WriteError::Gated { .. }) => Err(SendError::Blocked),
            Err(WriteError::TooLarge { length_max, .. }) => {
                Err(SendError::TooLarge { chunk_bytes_max: length_max })
            }
        }
    }

    /// Says how many chunks there will be.
    pub fn expect_total(&mut self, chunk_count: u64) {
        self.host.note(Notes { chunks_expected: Some(chunk_count), ..Default::default() });
    }

    /// Says how far the work is, of how much if that is known.
    pub fn progress(&mut self, current: f64, total: Option<f64>) {
        self.report(Report::amount(current, total));
    }

    /// Says how far the work is, in any form.
    pub fn report(&mut self, report: Report) {
        let mut notes = Notes::default();
        notes.push(report);
        self.host.note(notes);
    }

    /// Says how the process ended that the tool has run. It stands in the end; whether the tool has
    /// failed is for its result to say.
    pub fn exit(&mut self, exit: Exit) {
        self.host.note(Notes { exit: Some(exit), ..Default::default() });
    }

    /// Was the execution stopped? A tool that is busy for long without sending asks now and then.
    pub fn is_stopped(&self) -> bool {
        self.exchange.is_closed()
    }

    /// The same question, for who has no `Output` at hand.
    pub fn stop_signal(&self) -> StopSignal {
        StopSignal(Arc::clone(&self.exchange))
    }

    /// Has `hook` called when the execution is stopped, or at once if it was already: for a tool
    /// that sits in a library with an interrupt of its own. The shard's thread calls it, so it may
    /// take a µs and must not block. One at a time, until what is returned is dropped; what is
    /// dropped waits for a call that is under way.
    pub fn on_stop(&self, hook: impl Fn() + Send + 'static) -> OnStop {
        let host = Arc::clone(&self.host);
        host.keep_stop_hook(Some(Box::new(hook)));
        if self.is_stopped() {
            host.call_stop_hook(); // The shard may have looked for it before it was there.
        }
        OnStop(host)
    }

    /// The time, as it stands in chunks.
    pub fn now(&self) -> Instant {
        self.host.now()
    }

    /// The longest payload that one chunk can have.
    pub fn chunk_bytes_max(&self) -> u32 {
        self.writer.geometry().length_max()
    }

    /// The ring's writer, back from the tool.
    pub fn into_writer(self) -> RingWriter {
        self.writer
    }
}
