//! Stratum 3: the loop, which connects the engine, memory and the reactor. The engine moves
//! numbers, memory holds bytes, and the reactor talks to the kernel. Only the shard knows all
//! three.
//!
//! A [`Shard`] belongs to one thread. Drive it by hand ([`Shard::turn`], [`Shard::park`]), or let
//! [`Shard::spawn`] do it on a thread of its own and keep a [`ShardHandle`]. Subscribers on the
//! same thread are closures ([`Shard::subscribe`]) or are polled ([`Shard::subscribe_polled`]).
//! [`Shard::subscribe_remote`] and [`ShardHandle::subscribe`] return a [`Subscriber`] for another
//! thread.
//!
//! Read [`Shard::turn`] first, which is the recipe. `api.rs` and `feed.rs` are the methods for the
//! shard's owner. `act.rs` carries out the engine's actions, and `give.rs` gives chunks to
//! subscribers. `produce.rs` steps tools and reports what was published. `reader.rs` is the
//! subscriber on another thread, and `pages.rs` the memory that it shares with the shard.
//! `handle.rs` is the way in from other threads. `outlet.rs` is the seam to the guests of a server.
//!
//! Invariants:
//! - S1: the engine is told of a chunk before any local subscriber is given it, in order.
//! - S2: a ring's writer gets no gate beyond the last one that the engine set, nor beyond the
//!   chunks that the engine was told of.
//! - S3: no user code runs while the engine or a ring is between two states. A panic of user code
//!   ends its own subscription, execution or call, and nothing else: `panics.rs`.

pub(crate) mod act;
mod api;
mod config;
pub(crate) mod delivery;
pub(crate) mod events;
mod execute;
mod feed;
mod give;
pub(crate) mod growth;
pub(crate) mod handle;
#[doc(hidden)]
pub mod journal;
mod memory;
pub(crate) mod outlet;
pub(crate) mod pages;
pub(crate) mod panics;
mod produce;
pub(crate) mod reader;
pub(crate) mod replica;
pub(crate) mod run;
mod secrets;
mod verbs;
mod window;

#[cfg(test)]
mod gate_tests;
#[cfg(test)]
mod growth_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod readers_tests;
#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, io};

pub use api::Polled;
pub use config::{MemoryWatch, ShardConfig};
pub use delivery::{Chunk, Delivery, Ended, Reported, outcome_of};
pub use events::{Agreed, Names};
pub use execute::{ExecuteError, ExecuteOptions};
pub use feed::PublishError;
use handle::Command;
pub use handle::{CallError, HandleError, RunError, ShardHandle, ShardThread};
use journal::{Claimed, Keeping};
pub use journal::{JournalConfig, JournalError, JournalStatus, Recall};
pub use memory::{MemoryStatus, Shortage};
use outlet::GuestRun;
pub use outlet::Outlet;
pub use reader::Subscriber;
pub use reader::audience::{AUDIENCE_MEMBERS_MAX, Audience, JoinError, JoinFault};
pub use reader::link::Flaw;
use reader::refill::Refill;
use run::{Ring, Run, ShardSignals};
use secrets::Secrets;

use crate::base::{ExecutionId, Guarded, Handle, Instant, SubscriberId, Table};
use crate::engine::{Action, Engine, Event};
use crate::limits;
use crate::memory::{ClockAnchor, Descriptor, Flag, RingPool};
use crate::reactor::{AnyReactor, Decision, IdleStrategy, Reactor, Report};
use crate::stream::{End, Gap, Kinds, Progress};
use crate::tool::{Job, ThreadPool, Tools};
use crate::trace::{Code, Counters, Duties, Duty, FlightRecorder, Stalls, probe};

/// The engine, rings, tools and subscribers of one thread.
///
/// Its parameters are its reactor and its guests. Programs leave them at their defaults, or use
/// `ServerShard`.
///
/// ```
/// use streamdoor::{Shard, ShardConfig};
///
/// let (mut shard, report) = Shard::new(ShardConfig::default())?;
/// println!("{report}");
/// while shard.turn() {} // Until nothing is left to do.
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Shard<R: Reactor + 'static = AnyReactor, O: Outlet<R> = ()> {
    pub(crate) reactor: R,
    pub(crate) engine: Engine,
    pub(crate) secrets: Secrets,
    pub(crate) rings: RingPool,
    memory: memory::Memory,
    pub(crate) tools: Tools,
    threads: Threads,
    idle: IdleStrategy,
    pub(crate) anchor: ClockAnchor,
    pub(crate) signals: Arc<ShardSignals>,
    mailbox: Receiver<Command<R, O>>,
    mailbox_sender: SyncSender<Command<R, O>>,
    pub(crate) mailbox_pending: bool,
    /// One entry per execution, by the index of the engine's handle.
    pub(crate) runs: Table<Run<O::Run>>,
    /// The id of the engine for the id that everybody else knows, where the two differ.
    places: HashMap<ExecutionId, ExecutionId>,
    /// One entry per subscriber, by the index of its id. It is as long as subscribers were seated.
    pub(crate) sinks: Vec<Sink<O::Key>>,
    /// Executions whose tool is stepped in this turn or in the next.
    pub(crate) runnable: VecDeque<u32>,
    /// Executions whose ring is written by a tool's thread.
    pub(crate) away: Vec<u32>,
    /// Executions whose readers' cursors are sampled whenever the signals rings.
    pub(crate) watched: Vec<u32>,
    /// Executions that published chunks since their remote readers were last woken.
    pub(crate) published: Vec<u32>,
    /// Space for copies of payloads that a tool's thread might overwrite.
    pub(crate) scratch: Box<[u8]>,
    /// The chunk that a polled subscriber is being given, from its delivery to the end of the poll.
    asked_for: Option<AskedFor>,
    /// The bytes of that chunk, if the ring does not keep them for so long.
    asked_for_bytes: Box<[u8]>,
    /// The chunks that are being given to the engine's recipients.
    fan: Option<Fan>,
    /// The subscriber whose closure is running with a delivery that is no chunk.
    calling: Option<SubscriberId>,
    pub(crate) now: Instant,
    /// The time of the engine's next timer. It is stale after any event but a published chunk.
    deadline: Option<Instant>,
    pub(crate) deadline_stale: bool,
    pub(crate) worked: bool,
    pub(crate) closing: bool,
    stopped: bool,
    /// True if an assertion of the shard has failed: its state may be inconsistent.
    is_broken: bool,
    pub(crate) counters: Counters,
    /// The duties of this turn. `stalls` counts those of turns that took too long.
    pub(crate) did: Duties,
    pub(crate) stalls: Stalls,
    flight: FlightRecorder,
    /// Called with each action of the engine and its recipients. The simulator hashes them.
    observer: Option<Observer>,
    /// The error text of the execution whose end was polled last.
    last_error: Option<Box<str>>,
    /// The texts of the progress that was polled last.
    last_texts: Texts,
    /// The bytes of the chunk from the disk that was polled last.
    last_kept: Box<[u8]>,
    jobs: VecDeque<Guarded<Box<Job>>>,
    /// The log on disk under the executions.
    pub(crate) keeping: Option<Box<Keeping>>,
    retention: Duration,
    pub(crate) block_deadline: Duration,
    /// The guests that live in its turn.
    pub(crate) guests: O,
}

/// Returns a buffer for the longest chunk that a ring takes.
fn room_for_a_chunk() -> Box<[u8]> {
    let chunk_bytes_max =
        *limits::RING_CLASS_BYTES.last().expect("the list of classes is not empty") / 4;
    vec![0; chunk_bytes_max as usize].into_boxed_slice()
}

/// The closure of [`Shard::subscribe`].
type Closure = Box<dyn FnMut(&Delivery<'_>)>;

/// The closure of [`Shard::observe`].
type Observer = Guarded<Box<dyn FnMut(&Action, &[SubscriberId])>>;

/// The progress of a fan-out: chunk after chunk, recipient after recipient.
#[derive(Debug)]
pub(crate) struct Fan {
    execution: Handle,
    next_seq: u64,
    until_seq: u64,
    /// Index of the next recipient.
    at: usize,
}

/// The threads on which blocking tools run.
enum Threads {
    Pool(ThreadPool),
    /// The owner runs them: [`Shard::next_job`].
    ByHand,
}

/// The destination of a local subscriber's deliveries, and the kinds that it wants.
pub(crate) struct Sink<K> {
    /// The subscriber itself. The engine may reuse its place before the shard has delivered its
    /// end.
    pub(crate) subscriber: Option<SubscriberId>,
    pub(crate) kinds: Kinds,
    pub(crate) call: Call<K>,
}

/// The way in which deliveries are given.
pub(crate) enum Call<K> {
    Nobody,
    Closure(Guarded<Closure>),
    Polled(Inbox),
    Guest(K),
    /// Chunks from the disk, for a reader on another thread. It reads all others by itself.
    Refill(Arc<Refill>),
}

impl<K> Sink<K> {
    const NONE: Sink<K> = Sink { subscriber: None, kinds: Kinds::ALL, call: Call::Nobody };
}

/// Deliveries that wait for a polled subscriber.
type Inbox = Rc<RefCell<VecDeque<Item>>>;

/// A chunk that was delivered to a polled subscriber and not returned yet. Other actions may be
/// carried out in between: the gate may open for a tool's thread, or the ring may go to another
/// execution.
struct AskedFor {
    execution: Handle,
    id: ExecutionId,
    chunks_expected: Option<u64>,
    descriptor: Descriptor,
    /// The clocks of its time, if they are not the shard's.
    clocks: Option<ClockAnchor>,
    /// True if the bytes were copied.
    is_copied: bool,
}

impl AskedFor {
    /// Copies the bytes to `kept` if a tool's thread may overwrite the chunk.
    fn new<X: GuestRun>(
        run: &Run<X>,
        descriptor: Descriptor,
        data: &[u8],
        kept: &mut [u8],
    ) -> AskedFor {
        let is_copied = matches!(run.ring, Ring::Away(_));
        if is_copied {
            kept[..data.len()].copy_from_slice(data);
        }
        let Run { handle, id, chunks_expected, .. } = *run;
        let clocks = run.ring_clocks();
        AskedFor { execution: handle, id, chunks_expected, descriptor, clocks, is_copied }
    }
}

/// The texts of a progress report: its message and its context.
type Texts = [Option<Box<str>>; 2];

/// A delivery for a polled subscriber.
#[derive(Debug)]
pub(crate) enum Item {
    Chunk {
        seq: u64,
    },
    /// A chunk from the disk.
    Kept(Box<KeptItem>),
    Gap(Gap),
    Progress(Progress, Texts),
    End(End, Option<Box<str>>),
}

/// A chunk from the disk, with everything about its execution: that may be forgotten before the
/// subscriber takes the chunk.
#[derive(Debug)]
pub(crate) struct KeptItem {
    id: ExecutionId,
    chunks_expected: Option<u64>,
    descriptor: Descriptor,
    anchor: ClockAnchor,
    bytes: Box<[u8]>,
}

impl Shard<AnyReactor> {
    /// Creates a shard for the calling thread, with the reactor that the kernel allows. The report
    /// says which one that is, and why.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// ```
    /// use streamdoor::{Shard, ShardConfig};
    /// let (shard, report) = Shard::new(ShardConfig::default())?;
    /// println!("{report}");
    /// # drop(shard);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(config: ShardConfig) -> io::Result<(Shard, Report)> {
        Shard::open_with(config, |_, _| Ok(()))
    }
}

impl<R: Reactor + 'static> Shard<R> {
    /// Creates a shard over this reactor.
    ///
    /// # Errors
    /// The kernel's error, when memory for the rings is allocated.
    #[doc(hidden)]
    pub fn with_reactor(reactor: R, config: ShardConfig) -> io::Result<Shard<R>> {
        Shard::assemble(reactor, config, (), None)
    }
}

impl<O: Outlet<AnyReactor>> Shard<AnyReactor, O> {
    /// Creates a shard for the calling thread with these guests, with the reactor that the kernel
    /// allows. `guests` is called with the settings and the reactor.
    pub(crate) fn open_with(
        mut config: ShardConfig<O::Config>,
        guests: impl FnOnce(&ShardConfig<O::Config>, &mut AnyReactor) -> io::Result<O>,
    ) -> io::Result<(Shard<AnyReactor, O>, Report)> {
        let opened = match config.sockets {
            Some(limits) => crate::reactor::open_with_sockets(config.reactor, limits),
            None => crate::reactor::open(config.reactor),
        };
        let (mut reactor, report) = opened.map_err(io::Error::other)?;
        let member = memory::join(&mut config, reactor.waker())?;
        let guests = guests(&config, &mut reactor)?;
        let claimed = journal::claim(&config)?;
        let mut shard = Shard::assemble(reactor, config, guests, claimed)?;
        memory::watch_memory(&mut shard, member);
        Ok((shard, report))
    }
}

impl<R: Reactor + 'static, O: Outlet<R>> Shard<R, O> {
    /// Creates a shard over this reactor, with these guests.
    pub(crate) fn assemble(
        mut reactor: R,
        config: ShardConfig<O::Config>,
        guests: O,
        claimed: Option<Claimed>,
    ) -> io::Result<Shard<R, O>> {
        let mut secrets = Secrets::new(config.seed);
        let keeping = match &config.journal {
            Some(journal) => {
                let new = secrets.draw()?.token;
                let shard = config.engine.shard;
                Some(Box::new(Keeping::open(&mut reactor, journal, claimed, shard, new)?))
            }
            None => None,
        };
        let now = reactor.now();
        // Chunks from the disk have the times that they had at first.
        let anchor = match &keeping {
            Some(keeping) => keeping.anchor(),
            None => ClockAnchor { wall_us: reactor.wall_us(), mono_ns: now.nanos() },
        };
        let executions_max = config.engine.executions_max as usize;
        let (mailbox_sender, mailbox) = std::sync::mpsc::sync_channel(limits::MAILBOX_COMMANDS_MAX);
        Ok(Shard {
            engine: Engine::new(config.engine, now),
            secrets,
            rings: RingPool::new(config.rings)?,
            memory: memory::Memory::default(),
            tools: Tools::built_in(),
            threads: Threads::Pool(ThreadPool::new(config.tool_threads_max)),
            idle: IdleStrategy::new(config.idle, config.spin),
            anchor,
            signals: Arc::new(ShardSignals {
                waker: reactor.waker(),
                thread: OnceLock::new(),
                departed: Flag::default(),
                asked_disk: Flag::default(),
            }),
            mailbox,
            mailbox_sender,
            mailbox_pending: false,
            runs: Table::new(config.engine.executions_max),
            places: HashMap::new(),
            sinks: Vec::with_capacity(config.engine.subscribers_max as usize),
            runnable: VecDeque::with_capacity(executions_max),
            away: Vec::with_capacity(64),
            watched: Vec::with_capacity(64),
            published: Vec::with_capacity(executions_max),
            scratch: room_for_a_chunk(),
            fan: None,
            asked_for: None,
            asked_for_bytes: room_for_a_chunk(),
            calling: None,
            now,
            deadline: None,
            deadline_stale: true,
            worked: false,
            closing: false,
            stopped: false,
            is_broken: false,
            counters: Counters::default(),
            did: Duties::default(),
            stalls: Stalls::default(),
            flight: FlightRecorder::new(),
            observer: None,
            last_error: None,
            last_texts: Texts::default(),
            last_kept: Box::default(),
            jobs: VecDeque::new(),
            keeping,
            retention: config.retention,
            block_deadline: config.block_deadline,
            guests,
            reactor,
        })
    }

    /// Takes one turn of the loop. Never blocks. Returns true if there was anything to do.
    pub fn turn(&mut self) -> bool {
        self.now = self.reactor.now();
        self.worked = false;
        self.did = Duties::default();
        probe!(turn_begin, self.now.nanos());
        self.wake_readers(); // For chunks that were published since the last turn.
        let has_events = self.reactor.poll() > 0;
        if !has_events && self.is_quiet() {
            self.counters.turns += 1;
            self.counters.turns_idle += 1;
            probe!(turn_end, false, 0);
            return false;
        }
        self.do_duties(has_events)
    }

    /// True if a turn without events of the reactor has nothing to do.
    #[inline]
    fn is_quiet(&mut self) -> bool {
        !self.mailbox_pending
            && self.runnable.is_empty()
            && self.away.is_empty()
            && self.engine.is_settled()
            && !self.rings.has_excess()
            && self.guests.is_quiet()
            && self.keeping.as_ref().is_none_or(|keeping| keeping.is_quiet(self.now))
            && !self.deadline_is_due()
    }

    /// Carries out the duties of a turn, in their order. Returns true if there were any.
    fn do_duties(&mut self, has_events: bool) -> bool {
        if has_events {
            self.did.note(Duty::Reactor);
            O::take_over(self); // Replies then cover all chunks.
            self.answer_bell();
            O::on_sockets(self);
            journal::on_disk_events(self);
        }
        if self.mailbox_pending {
            self.did.note(Duty::Commands);
            self.open_mailbox();
        }
        if self.deadline_is_due() {
            self.did.note(Duty::Timers);
            produce::take_over_threads(self); // A tool that has just published is not silent.
            O::take_over(self);
            self.tell(Event::Tick);
            self.pump(); // A tool that its timer woke continues in this turn.
        }
        if self.guests.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.did.note(Duty::Timers);
            O::on_deadline(self);
        }
        if !self.runnable.is_empty() {
            self.did.note(Duty::Tools);
            produce::step_tools(self);
        }
        if !self.away.is_empty() {
            produce::take_over_threads(self);
        }
        O::take_over_urgent(self);
        self.pump();
        O::settle(self);
        self.wake_readers(); // They wake up while this thread sends.
        O::flush(self);
        journal::end_turn(self); // Nobody waits for old chunks with the new ones.
        if self.rings.has_excess() {
            self.did.note(Duty::Rings);
            memory::give_back_step(self);
        }
        self.counters.turns += 1;
        self.counters.turns_idle += u64::from(!self.worked);
        if self.worked {
            self.idle.worked(self.now);
        }
        probe!(turn_end, self.worked, self.did.bits());
        self.worked
    }

    /// Waits between two turns, for as long as the idle strategy decides. Returns at once, or when
    /// there may be something to do, and at `until` at the latest. Does nothing after a turn that
    /// found something to do.
    pub fn park(&mut self, until: Option<Instant>) {
        if self.worked {
            return;
        }
        let busy = !self.runnable.is_empty() || self.mailbox_pending || self.guests.is_busy();
        let own = if busy { Some(self.now) } else { self.next_deadline() };
        let deadline = match (own, until) {
            (Some(own), Some(until)) => Some(own.min(until)),
            (own, until) => own.or(until),
        };
        match self.idle.decide(self.now, deadline) {
            Decision::Poll => std::hint::spin_loop(),
            Decision::Wait { .. } if self.rings.is_scarce() => {
                if self.rings.restock_step() {
                    memory::warm_heap();
                }
            }
            Decision::Wait { .. } if !O::may_sleep(self) => {}
            Decision::Wait { until } => {
                self.reactor.wait(until);
                self.counters.wakes += 1;
                O::on_awake(self);
            }
        }
    }

    /// Returns the time at which the next timer is due.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        if self.deadline_stale {
            self.deadline_stale = false;
            self.deadline = self.engine.next_deadline();
        }
        let of_disk = self.keeping.as_ref().and_then(|keeping| keeping.deadline(self.now));
        [self.deadline, self.guests.next_deadline(), of_disk].into_iter().flatten().min()
    }

    #[inline]
    fn deadline_is_due(&mut self) -> bool {
        if self.deadline_stale {
            self.next_deadline();
        }
        self.deadline.is_some_and(|deadline| deadline <= self.now)
    }

    /// Passes an event to the engine that may move its timers.
    pub(crate) fn tell(&mut self, event: Event) {
        self.worked = true;
        self.deadline_stale = true;
        self.engine.handle(event, self.now);
    }

    /// Handles a ring of the signals: another thread has something for the shard.
    fn answer_bell(&mut self) {
        self.worked = true;
        self.mailbox_pending = true; // Until a look finds it empty, as no thread rings twice.
        if self.signals.departed.take() {
            self.dismiss_departed();
        }
        if self.signals.asked_disk.take() {
            journal::refill(self);
        }
        memory::look_at_memory(self);
        O::on_bell(self);
        for at in (0..self.watched.len()).rev() {
            let Some(&index) = self.watched.get(at) else { continue };
            self.sample_readers(index);
            self.pump();
            if self.watched.contains(&index)
                && let Some(run) = &mut self.runs[index as usize]
            {
                run.knock(); // Each reader rings once for each knock.
            }
        }
    }

    fn open_mailbox(&mut self) {
        self.worked = true;
        for _ in 0..limits::MAILBOX_COMMANDS_PER_TURN {
            let Ok(command) = self.mailbox.try_recv() else {
                self.mailbox_pending = false;
                return;
            };
            self.counters.mailbox_commands += 1;
            handle::obey(self, command);
        }
    }

    /// The time of this turn.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the counters of everything that has happened so far.
    pub fn counters(&self) -> Counters {
        let mut counters = *self.engine.counters();
        counters.merge(&self.counters);
        self.guests.add_counters(&mut counters);
        counters.ring_bytes_released = self.rings.usage().released_bytes_total;
        if let Some(keeping) = &self.keeping {
            keeping.add_counters(&mut counters);
        }
        counters
    }

    /// The duties and durations of turns that took too long, as counted by [`Shard::run`].
    pub fn stalls(&self) -> &Stalls {
        &self.stalls
    }

    /// The tools of this shard.
    pub fn tools_mut(&mut self) -> &mut Tools {
        &mut self.tools
    }

    /// The reactor, for an owner that drives the shard by hand.
    #[doc(hidden)]
    pub fn reactor_mut(&mut self) -> &mut R {
        &mut self.reactor
    }

    /// Checks every invariant. For tests.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn audit(&self) {
        self.engine.audit();
        self.rings.audit();
        O::audit(self);
        for run in self.runs.iter().flatten() {
            assert!(run.ingested_seq <= run.head_seq());
            journal::audit_late(run);
            assert!(run.is_gate_told(), "S2: the published gate of {}", run.id);
            if let run::Ring::Here(writer) = &run.ring {
                writer.audit();
            }
        }
    }

    /// Records what happened in the flight recorder.
    #[inline]
    pub(crate) fn record(&mut self, code: Code, a: u64, b: u64) {
        self.flight.record(self.now, code, a, b);
    }
}

impl<O: Outlet<AnyReactor>> Shard<AnyReactor, O> {
    /// Takes turns until a handle stops the shard, then shuts it down.
    pub fn run(&mut self) {
        self.signals.belong_here();
        let mut last_turn = None;
        while !self.stopped {
            let worked = self.turn();
            // If one turn follows another directly, the time between their starts is what the first
            // one took. No clock is read for this.
            if let Some((before, did)) = last_turn {
                let took = self.now.since(before);
                if took > limits::STALL_THRESHOLD {
                    self.count_stall(did, took.as_nanos() as u64);
                }
            }
            last_turn = worked.then_some((self.now, self.did));
            if !worked {
                self.park(None);
            }
        }
        self.shut_down();
        O::close(self);
    }

    #[cold]
    fn count_stall(&mut self, did: Duties, took_ns: u64) {
        self.counters.stalls += 1;
        self.stalls.record(did, took_ns);
        self.record(Code::Stalled, did.bits(), took_ns);
    }
}

impl<R: Reactor + 'static, O: Outlet<R>> fmt::Debug for Shard<R, O> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.engine.execution_count();
        write!(out, "Shard({count} executions, {:?})", self.rings.usage())
    }
}

impl<R: Reactor + 'static, O: Outlet<R>> Drop for Shard<R, O> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // An assertion of the shard or of its caller has failed. The last events help to
            // explain it.
            let _ = self.flight.dump(&mut std::io::stderr().lock());
            return;
        }
        self.shut_down();
    }
}
