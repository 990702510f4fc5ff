//! The seam between a shard and the guests that live in its turn.
//!
//! A shard by itself is the embedded core: an engine, rings, tools and local subscribers. A server
//! adds connections, processes that share memory, workers, agents and other shards. They are the
//! shard's guests, and this trait is all that the shard knows of them. An embedder has none: `()`.
//!
//! The calls are in four groups: the parts of a turn, deliveries, the life of an execution, and
//! readers outside of this process. Each call gets the shard itself, except on the path of a chunk.
//! There the shard lends only what the guest needs.
//!
//! Invariants:
//! - U1: no call is made while the engine or a ring is between two states (S3).
//! - U2: a key that a guest has given to a subscriber is used until the subscriber's end, and the
//!   end is delivered exactly once.

use std::fmt;

use serde_json::Value;

use super::delivery::{Chunk, Delivery};
use super::events::Names;
use super::journal::EndedDetails;
use super::run::{Remote, Run};
use super::{ExecuteError, ExecuteOptions, Shard};
use crate::base::{ExecutionId, Handle, Instant, Panicked, SubscriberId};
use crate::engine::{Engine, Gate, Verdict};
use crate::memory::pressure::{Decisive, Diagnosis};
use crate::memory::{ControlPage, Pressure, ReaderPageView, WildCursor};
use crate::reactor::Reactor;
use crate::stream::{DetachReason, End, Totals};
use crate::tool::{AgentCall, RemoteCall, ToolError, Work};
use crate::trace::Counters;

/// The guests of a shard. See the module's text.
pub trait Outlet<R: Reactor + 'static>: Sized + 'static {
    /// The settings of the guests.
    type Config: Clone + fmt::Debug;
    /// The destination of a subscriber's deliveries.
    type Key: Copy + PartialEq + fmt::Debug;
    /// The state that the guests keep with an execution.
    type Run: GuestRun;
    /// A message from another shard.
    type Message: Send + 'static;

    // The parts of a turn, in their order.

    /// Takes over the chunks of producers outside of this process, before anything is answered.
    fn take_over(_shard: &mut Shard<R, Self>) {}
    /// Handles a ring of the signals, besides what the shard itself does.
    fn on_bell(_shard: &mut Shard<R, Self>) {}
    /// Handles the socket events of this turn.
    fn on_sockets(_shard: &mut Shard<R, Self>) {}
    /// Handles a message from another shard.
    fn on_message(_shard: &mut Shard<R, Self>, _message: Self::Message) {}
    /// Returns the time of the next deadline of a guest.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    /// Handles expired deadlines.
    fn on_deadline(_shard: &mut Shard<R, Self>) {}
    /// Takes over the chunks of producers outside of this process that cannot wait.
    fn take_over_urgent(_shard: &mut Shard<R, Self>) {}
    /// Handles the news of guests, after the tools of this turn.
    fn settle(_shard: &mut Shard<R, Self>) {}
    /// Sends the output of this turn.
    fn flush(_shard: &mut Shard<R, Self>) {}
    /// True if a guest has work for the next turn.
    fn is_busy(&self) -> bool {
        false
    }
    /// True if no guest has anything to do in a turn without events, now and at its deadlines.
    fn is_quiet(&self) -> bool {
        false
    }
    /// Prepares for a sleep of the shard. Returns false if a guest has something to do.
    fn may_sleep(_shard: &mut Shard<R, Self>) -> bool {
        true
    }
    /// Handles the end of a sleep.
    fn on_awake(_shard: &mut Shard<R, Self>) {}
    /// Ends everything, after the shard was shut down.
    fn close(_shard: &mut Shard<R, Self>) {}

    // Deliveries.

    /// Prepares for the delivery of chunks of this execution.
    fn begin_fan_out(&mut self, _engine: &Engine, _execution: Handle) {}
    /// Prepares for the delivery of the next chunk.
    fn begin_chunk(&mut self) {}
    /// Delivers a chunk to a subscriber.
    fn deliver(
        &mut self,
        to: Self::Key,
        subscriber: SubscriberId,
        chunk: &Chunk<'_>,
        with: Giving<'_, R>,
    );
    /// Delivers anything but a chunk. `run` is `None` if the execution has been released.
    fn tell(
        &mut self,
        to: Self::Key,
        subscriber: SubscriberId,
        run: Option<&Run<Self::Run>>,
        delivery: &Delivery<'_>,
    );
    /// Makes sure that the chunks of one more delivery can be recorded.
    fn make_room(_shard: &mut Shard<R, Self>) {}
    /// Sends what is queued in the middle of a fan-out, if it is enough.
    fn flush_if_due(_shard: &mut Shard<R, Self>) {}

    // The life of an execution.

    /// Returns the state that the guests keep with a new execution.
    ///
    /// # Errors
    /// The work cannot be done here.
    fn prepare(
        shard: &Shard<R, Self>,
        work: &Work,
        options: &ExecuteOptions,
    ) -> Result<Self::Run, ExecuteError>;
    /// Handles a new execution, before anything of it is kept.
    fn on_opened(_shard: &mut Shard<R, Self>, _id: ExecutionId) {}
    /// Returns everything that the guests want to know of a kept execution after a restart.
    fn describe(&self, _run: &Run<Self::Run>) -> Value {
        Value::Null
    }
    /// Returns the state that the guests keep with an execution that was brought back from the
    /// disk.
    fn restore(shard: &Shard<R, Self>, id: ExecutionId, described: &Value) -> Self::Run;
    /// True if a ring may have readers from its start that the shard does not know. It then stays
    /// where it is.
    fn has_fixed_rings(&self) -> bool {
        false
    }
    /// Handles the lease of a ring.
    fn on_leased(_shard: &mut Shard<R, Self>, _execution: Handle) {}
    /// Handles the start of an execution that is fed by hand.
    fn on_fed(_shard: &mut Shard<R, Self>, _execution: Handle) {}
    /// Starts work that a guest does.
    fn start(shard: &mut Shard<R, Self>, execution: Handle, work: GuestWork);
    /// Copies chunks through `until_seq` to memory outside of this process. The engine is told of
    /// them afterwards.
    fn copy_out(&mut self, _run: &mut Run<Self::Run>, _until_seq: u64, _scratch: &mut [u8]) {}
    /// Handles room for a producer that is not a tool of this process. `was_blocked` is true if the
    /// producer has waited for it.
    fn on_room(_shard: &mut Shard<R, Self>, _execution: Handle, _was_blocked: bool) {}
    /// Wakes a guest that produces, because its sleep is over.
    fn on_due(_shard: &mut Shard<R, Self>, _execution: Handle) {}
    /// Stops a guest that produces. Returns false if it has stopped at once. Otherwise it reports
    /// its end later.
    fn stop(_shard: &mut Shard<R, Self>, _execution: Handle) -> bool {
        false
    }
    /// Answers a question for old chunks of an execution whose log a guest has. The answer is
    /// `Shard::answer_question`, now or later.
    fn look_back(_shard: &mut Shard<R, Self>, _question: Question) {
        unreachable!("no guest has the log of an execution");
    }
    /// Lets the owner of a replica stop it.
    fn cancel_elsewhere(_shard: &mut Shard<R, Self>, _id: ExecutionId) {
        unreachable!("no guest has replicas");
    }
    /// True if a log takes executions of registered tools, for those that are replicated.
    fn has_log(&self) -> bool {
        false
    }
    /// Sends the end of a replicated execution to the log. `Shard::on_logged` reports it.
    fn log_end(
        _shard: &mut Shard<R, Self>,
        _execution: Handle,
        _details: &EndedDetails,
        _verdict: &Verdict,
    ) {
        unreachable!("nothing is replicated without a log");
    }
    /// Handles that the disk keeps more of an execution than before.
    fn on_kept(_shard: &mut Shard<R, Self>, _id: ExecutionId) {}
    /// Handles the end of an execution.
    fn on_ended(_shard: &mut Shard<R, Self>, _execution: Handle, _verdict: &Verdict) {}
    /// Handles the release of an execution.
    fn on_released(&mut self, _execution: Handle) {}

    // Readers outside of this process, and reports.

    /// Prepares an execution for one more reader in this process.
    fn before_subscribe(_shard: &mut Shard<R, Self>, _index: u32) {}
    /// Tells the engine of chunks that it was not told of one by one, before their lengths count.
    fn before_inspect(_shard: &mut Shard<R, Self>, _index: u32) {}
    /// Handles the removal of a reader elsewhere.
    fn on_reader_removed(
        _shard: &mut Shard<R, Self>,
        _index: u32,
        _remote: Remote<Reader<R, Self>>,
        _reason: DetachReason,
    ) {
    }
    /// Handles that the readers of an execution were woken.
    fn on_readers_woken(_shard: &mut Shard<R, Self>, _index: u32) {}
    /// Sends what the last wakes need, in the same turn.
    fn after_wake(_shard: &mut Shard<R, Self>) {}
    /// Reports something that an operator wants to know.
    fn report(_shard: &Shard<R, Self>, _notice: &ShardEvent<'_>) {}
    /// Adds the counters of the guests.
    fn add_counters(&self, _counters: &mut Counters) {}
    /// Checks every invariant of the guests. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    fn audit(_shard: &Shard<R, Self>) {}
}

/// The readers outside of this process, by the outlet.
pub type Reader<R, O> = <<O as Outlet<R>>::Run as GuestRun>::Reader;

/// The context of the delivery of a chunk, besides the guests' own tables.
pub struct Giving<'a, R> {
    /// The reactor of the shard.
    pub reactor: &'a mut R,
    /// The counters of the shard.
    pub counters: &'a mut Counters,
    /// The engine of the shard.
    pub engine: &'a Engine,
    /// The execution that published the chunk.
    pub execution: Handle,
    /// The names of the execution.
    pub names: &'a Names,
    /// The time of the turn.
    pub now: Instant,
    /// True if the chunk comes from its ring, and not from the disk.
    pub is_recent: bool,
}

/// A subscriber's question for chunks that the ring no longer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The subscriber.
    pub subscriber: SubscriberId,
    /// The execution that it follows.
    pub execution: Handle,
    /// The first chunk.
    pub from_seq: u64,
    /// One past the last chunk. The answer may be a part, from the first chunk on.
    pub until_seq: u64,
    /// Maximum number of chunks of the subscriber's kinds.
    pub chunks_max: u32,
    /// Totals of the chunks of its kinds before the first, if it knows them.
    pub seen: Option<Totals>,
}

/// Work that a guest does.
pub enum GuestWork {
    /// A worker's.
    Remote(Box<RemoteCall>),
    /// An agent's.
    Agent(Box<AgentCall>),
}

/// Something that an operator wants to know.
pub enum ShardEvent<'a> {
    /// A subscriber was detached, or its execution has ended.
    Ended(SubscriberId, Handle, &'a End),
    /// A reader was evicted, because its cursor is impossible.
    Evicted(u32, SubscriberId, &'a WildCursor),
    /// A tool's thread waited because its gate had not been published.
    GateToldLate(u32),
    /// The memory pressure has changed, from this one.
    Pressure(Pressure, Diagnosis),
    /// Disks have become busy, with this reading, or calm.
    Disks(Option<Decisive>),
    /// Foreign code has panicked: the event's name, the code, and the panic.
    Panic(&'a str, &'a dyn fmt::Display, &'a Panicked),
}

/// The state that the guests keep with an execution.
pub trait GuestRun: 'static {
    /// A reader outside of this process.
    type Reader: OutsideReader;

    /// Publishes the gate of a guest that produces.
    fn publish_gate(&mut self, _gate: Gate) {}
    /// Returns the gate that such a guest sees, if it may produce.
    fn published_gate(&self) -> Option<Gate> {
        None
    }
    /// True if readers outside of this process may sleep without being known.
    fn has_hidden_readers(&self) -> bool {
        false
    }
    /// True if this chunk is or was in memory outside of this process.
    fn has_been(&self, _seq: u64) -> bool {
        false
    }
    /// Writes to the control pages of readers outside of this process that the shard knows.
    fn write_pages(&mut self, _write: &mut dyn FnMut(&mut ControlPage)) {}
    /// Writes to the control page of readers that the shard does not know.
    fn write_hidden_page(&mut self, _write: &mut dyn FnMut(&mut ControlPage)) {}
    /// Wakes readers that the shard does not know.
    fn wake_hidden_readers(&self) {}
    /// Wakes readers outside of this process, because there are chunks. One full fence has been
    /// executed.
    fn wake_readers(&self, _remotes: &mut [Remote<Self::Reader>]) {}
}

/// A reader outside of this process.
pub trait OutsideReader: 'static {
    /// Returns its page, or the first chunk of its subscription as long as that may not be read.
    ///
    /// # Errors
    /// The cursor.
    fn page(&mut self) -> Result<&mut ReaderPageView, u64>;
    /// Returns what it reports as missed, in chunks and bytes.
    fn missed(&self) -> (u64, u64);
    /// Makes it look for something other than chunks.
    fn knock(&self);
    /// Tells it that it was detached, by this code.
    fn detach(&self, code: u32);
    /// Ends its sleep after a knock.
    fn wake(&mut self);
}

/// No guests: the embedded core.
impl<R: Reactor + 'static> Outlet<R> for () {
    type Config = ();
    type Key = Nowhere;
    type Run = ();
    type Message = Nowhere;

    #[inline]
    fn is_quiet(&self) -> bool {
        true
    }

    fn deliver(&mut self, to: Nowhere, _: SubscriberId, _: &Chunk<'_>, _: Giving<'_, R>) {
        match to {}
    }

    fn tell(&mut self, to: Nowhere, _: SubscriberId, _: Option<&Run<()>>, _: &Delivery<'_>) {
        match to {}
    }

    fn prepare(_: &Shard<R>, _: &Work, _: &ExecuteOptions) -> Result<(), ExecuteError> {
        Ok(())
    }

    fn restore(_: &Shard<R>, _: ExecutionId, _: &Value) {}

    fn start(shard: &mut Shard<R>, execution: Handle, work: GuestWork) {
        match work {
            // The owner publishes: see `Work::Remote`.
            GuestWork::Remote(_) => {}
            GuestWork::Agent(_) => {
                let text = "this shard has no agents";
                shard.producer_ended(execution, Err(ToolError::new(text)));
            }
        }
    }
}

/// A value that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nowhere {}

impl GuestRun for () {
    type Reader = Nowhere;
}

impl OutsideReader for Nowhere {
    fn page(&mut self) -> Result<&mut ReaderPageView, u64> {
        match *self {}
    }

    fn missed(&self) -> (u64, u64) {
        match *self {}
    }

    fn knock(&self) {
        match *self {}
    }

    fn detach(&self, _code: u32) {
        match *self {}
    }

    fn wake(&mut self) {
        match *self {}
    }
}
