//! Tools as closures on threads of the pool: the output that such a thread writes to.
//!
//! The thread owns the writer of the ring, and publishes by itself. Backpressure makes the thread
//! wait until the gate moves. The thread wakes the shard with [`Host::wake_shard`], which costs
//! nothing while the shard is awake. No lock is taken per chunk.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::base::Instant;
use crate::base::plain::length_of_whole_characters;
use crate::base::planted::{Planted, planted};
use crate::engine::Gate;
use crate::limits;
use crate::memory::atomic::full_fence;
use crate::memory::{
    Asleep, CHUNK_MORE, ChunkHeader, ControlView, Exchange, RingWriter, WriteError,
};
use crate::stream::{Exit, Kind};
use crate::tool::step::{Report, SyncError, SyncWish, ToolUpdate};
use crate::trace::TraceContext;

/// The services that a tool's thread needs from its shard.
pub trait Host: Send + Sync {
    /// The current time.
    fn now(&self) -> Instant;
    /// Makes the shard handle this execution soon.
    fn wake_shard(&self);
    /// Wakes a reader that the shard would wake later, if there is one.
    fn wake_prompt_reader(&self, exchange: &Exchange);
    /// Passes notes to the shard, after those that it has not handled yet.
    fn update(&self, update: ToolUpdate);
    /// Sets the hook that the shard calls when it stops the execution, in place of the former one.
    /// Once this has returned, the former hook is not called any more.
    fn keep_stop_hook(&self, hook: Option<StopHook>);
    /// Calls the hook, if one is set.
    fn call_stop_hook(&self);
}

/// A function that is called when an execution is stopped.
pub type StopHook = Box<dyn Fn() + Send>;

/// The stop flag of an execution, for code that is called back by a library. The default belongs to
/// no execution, and is never set.
#[derive(Clone, Default)]
pub struct StopSignal(Arc<Exchange>);

impl StopSignal {
    /// True if the execution was stopped.
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

/// The output of a closure.
///
/// ```no_run
/// # use streamdoor::{Output, ToolError};
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

/// The execution was cancelled or has no possible reader any more: return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the execution was stopped")
    }
}

impl std::error::Error for Stopped {}

/// The reason why [`Output::try_send`] sent nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// Wait: a `block` subscriber has to read first.
    Blocked,
    /// Return: the execution was stopped.
    Stopped,
    /// Split the payload: it is longer than the longest chunk of this ring.
    TooLarge {
        /// The longest payload of one chunk.
        chunk_bytes_max: u32,
    },
}

impl Output {
    /// Used by the thread that runs a tool.
    pub(crate) fn new(
        writer: RingWriter,
        control: ControlView,
        exchange: Arc<Exchange>,
        host: Arc<dyn Host>,
        trace: TraceContext,
    ) -> Output {
        Output { writer, control, exchange, host, trace }
    }

    /// The trace of the caller, to be passed to helpers: see [`TraceContext::variables`].
    pub fn trace(&self) -> &TraceContext {
        &self.trace
    }

    /// Sends a chunk. A `payload` longer than the longest chunk becomes several, all but the last
    /// of them flagged `more`. Text is cut between characters. Waits while a `block` subscriber has
    /// to read first.
    ///
    /// # Errors
    /// [`Stopped`]: return. Some chunks of a long payload may have been sent.
    pub fn send(&mut self, payload: &[u8]) -> Result<(), Stopped> {
        self.send_as(Kind::Output, Kind::Output as u8, payload)
    }

    /// Like [`Output::send`], with a kind and a key (below 64).
    ///
    /// # Errors
    /// [`Stopped`]: return. Some chunks of a long payload may have been sent.
    ///
    /// # Panics
    /// If `key` is 64 or more.
    pub fn send_as(&mut self, kind: Kind, key: u8, payload: &[u8]) -> Result<(), Stopped> {
        self.send_flagged(kind, key, payload, 0)
    }

    /// Like [`Output::send_as`], for a payload that continues in a later call: all chunks are
    /// flagged `more`.
    ///
    /// # Errors
    /// [`Stopped`]: return. Some chunks of a long payload may have been sent.
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
            let mut length = rest.len().min(piece_bytes_max);
            if length < rest.len() {
                length = length_of_whole_characters(&rest[..length]);
            }
            let (piece, after) = rest.split_at(length);
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
                    self.host.wake_shard();
                    self.control.wait_gate(epoch);
                }
            }
        }
    }

    /// Sends one chunk if that is possible at once, and returns its number. It serves tools that do
    /// other work instead of waiting, and simulated tools.
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
            self.exchange.set_gated(true); // The shard reacts to every wake-up that finds this set.
            return written;
        }
        full_fence(); // exchange:sleep, and the shard's own before it blocks
        match self.exchange.asleep() {
            asleep if asleep.is_none() => self.host.wake_shard(),
            asleep => self.wake_all(asleep),
        }
        written
    }

    /// Wakes readers and the shard.
    #[cold]
    fn wake_all(&self, asleep: Asleep) {
        if asleep.is_on_futex() && !planted(Planted::LostWake) {
            self.writer.wake();
        }
        self.host.wake_shard();
        if asleep.is_in_reactor() {
            self.host.wake_prompt_reader(&self.exchange);
        }
    }

    /// Like [`Output::try_send`], and wakes the shard if the chunk has to wait, so that a later
    /// attempt can succeed. Returns true if the chunk was sent.
    ///
    /// # Errors
    /// [`Stopped`]: return.
    ///
    /// # Panics
    /// If the chunk is longer than the longest chunk of the ring.
    #[cfg(feature = "sqlite")]
    pub(super) fn offer(&mut self, header: ChunkHeader, piece: &[u8]) -> Result<bool, Stopped> {
        match self.try_send(header, piece) {
            Ok(_) => Ok(true),
            Err(SendError::Stopped) => Err(Stopped),
            Err(SendError::TooLarge { .. }) => unreachable!("pieces were cut to fit"),
            Err(SendError::Blocked) => {
                self.host.wake_shard();
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

    /// Waits until everything that was sent is on the disk of the journal, synced, whatever the
    /// durability of the execution is. Chunks are given to subscribers meanwhile.
    ///
    /// ```no_run
    /// # use streamdoor::{Output, ToolError};
    /// fn pay(out: &mut Output) -> Result<(), ToolError> {
    ///     out.send(b"the money is sent\n")?;
    ///     out.sync()?; // No power cut makes anybody forget it.
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn sync(&mut self) -> Result<(), SyncError> {
        if self.is_stopped() {
            return Err(SyncError::Stopped);
        }
        let (answer, answered) = sync_channel(1);
        let seq = self.writer.head_seq();
        let sync = Some(SyncWish { seq, answer });
        self.host.update(ToolUpdate { sync, ..Default::default() });
        answered.recv().unwrap_or(Err(SyncError::Stopped))
    }

    /// States the number of chunks that the tool expects to publish.
    pub fn expect_total(&mut self, chunk_count: u64) {
        self.host.update(ToolUpdate { chunks_expected: Some(chunk_count), ..Default::default() });
    }

    /// Reports the done amount of work, and the total if it is known.
    pub fn progress(&mut self, current: f64, total: Option<f64>) {
        self.report(Report::amount(current, total));
    }

    /// Reports progress in any form.
    pub fn report(&mut self, report: Report) {
        let mut updates = ToolUpdate::default();
        updates.push(report);
        self.host.update(updates);
    }

    /// States the exit of the process that the tool ran. It is part of the end event. The tool's
    /// own result decides if the execution has failed.
    pub fn exit(&mut self, exit: Exit) {
        self.host.update(ToolUpdate { exit: Some(exit), ..Default::default() });
    }

    /// True if the execution was stopped. A tool that works for long without sending checks this
    /// regularly.
    pub fn is_stopped(&self) -> bool {
        self.exchange.is_closed()
    }

    /// Sleeps for `time`, or until the execution is stopped.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use streamdoor::{Output, ToolError};
    /// fn tick(out: &mut Output) -> Result<(), ToolError> {
    ///     loop {
    ///         out.sleep(Duration::from_secs(1))?; // `?` leaves at once when it is cancelled.
    ///         out.send(b"tick\n")?;
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Stopped`]: return.
    pub fn sleep(&self, time: Duration) -> Result<(), Stopped> {
        let until = self.now() + time;
        loop {
            let epoch = self.control.gate_epoch(); // The stop moves it.
            if self.is_stopped() {
                return Err(Stopped);
            }
            let left = until.since(self.now());
            if left.is_zero() {
                return Ok(());
            }
            self.control.wait_gate_for(epoch, left);
        }
    }

    /// A handle to the same flag, for code without access to the `Output`.
    pub fn stop_signal(&self) -> StopSignal {
        StopSignal(Arc::clone(&self.exchange))
    }

    /// Calls `hook` when the execution is stopped, or at once if it was stopped already. It serves
    /// tools that wait in a library with an interrupt of its own. The shard's thread calls the
    /// hook, which may take a µs and must not block. An execution has one hook at a time, until the
    /// returned value is dropped. Dropping waits for a call in progress.
    pub fn on_stop(&self, hook: impl Fn() + Send + 'static) -> OnStop {
        let host = Arc::clone(&self.host);
        host.keep_stop_hook(Some(Box::new(hook)));
        if self.is_stopped() {
            host.call_stop_hook(); // The shard may have looked before the hook was set.
        }
        OnStop(host)
    }

    /// The current time, by the clock of the chunks.
    pub fn now(&self) -> Instant {
        self.host.now()
    }

    /// The longest payload of one chunk.
    pub fn chunk_bytes_max(&self) -> u32 {
        self.writer.geometry().length_max()
    }

    /// Returns the writer of the ring when the tool has ended.
    pub(crate) fn into_writer(self) -> RingWriter {
        self.writer
    }
}
