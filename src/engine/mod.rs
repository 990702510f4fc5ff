//! Stratum 1: the deterministic core. It works on numbers only; [`crate::memory`] holds the bytes.
//!
//! The engine decides everything about executions, subscribers, policies, gaps, ends and timers,
//! and carries nothing out. It has no clock: `now` is an argument, and [`Engine::next_deadline`]
//! returns the next deadline. It makes no syscall, starts no thread, touches no payload byte and
//! contains no `unsafe`. The same events at the same times produce the same actions (A7). One
//! thread owns an engine.
//!
//! Read [`Event`] and [`Action`] first, which are its whole behaviour, then [`policy`].
//! `lifecycle.rs` covers an execution from opening to removal, `attach.rs` a subscriber, and
//! `remote.rs` a subscriber on another thread. `deliver.rs` is the chunk path, and `timers.rs` the
//! timers.
//!
//! ```
//! use streamdoor::base::Instant;
//! use streamdoor::engine::{Action, Engine, Event, OpenSpec, Reply, RingFacts};
//!
//! let mut engine = Engine::new(Default::default(), Instant::ZERO);
//! let ring =
//!     RingFacts { slot_count: 16, chunks_max: 14, chunk_bytes_max: 512, data_bytes: 2_048 };
//! engine.handle(Event::Open(OpenSpec::new(ring)), Instant::ZERO);
//! let Some(Action::Reply(Reply::Opened(Ok(id)))) = engine.next_action() else { panic!() };
//! let Some(Action::Lease(execution, _)) = engine.next_action() else { panic!() };
//! engine.handle(Event::Leased(execution, ring), Instant::ZERO);
//! # let _ = id;
//! ```
#![forbid(unsafe_code)]

mod action;
mod attach;
mod deliver;
mod event;
mod execution;
mod gate;
mod lifecycle;
mod locals;
mod log;
pub mod policy;
mod progress;
mod remote;
mod reserve;
mod resume;
mod status;
mod subscriber;
mod timers;
pub mod wheel;

#[cfg(test)]
mod delivery_tests;
#[cfg(test)]
mod found_tests;
#[cfg(test)]
mod resume_tests;
#[cfg(test)]
mod tests;

use crate::stream::{ExecutionState, KindTotals, Terms};
use std::collections::VecDeque;

pub use action::{
    AcknowledgeError, Action, CancelError, NotFound, OpenError, Reply, RingFit, SubscribeError,
    Subscribed, Verdict,
};
pub use deliver::FanOut;
pub use event::{
    ChunkFacts, Coalesce, Event, From, Hold, OnStall, OpenSpec, ProducerEnd, RingFacts, Secret,
    Start, SubscribeSpec, SubscriberPlace, Timeouts,
};
pub use gate::Gate;
pub use policy::{Cursor, Log, Owed};
pub use progress::ProgressSource;
pub use reserve::Replay;
pub use status::{Status, SubscriberStatus};

use crate::base::{Handle, Instant, Pool, SubscriberId};
use crate::limits;
use crate::trace::Counters;
use execution::Execution;
use subscriber::{Local, Remote};
use timers::Timer;
use wheel::Wheel;

/// The limits of one engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// The number of this shard, which is part of every execution's id.
    pub shard: u8,
    /// Number of executions, running and ended together.
    pub executions_max: u32,
    /// Number of executions that may wait for a ring.
    pub queued_max: u32,
    /// Number of subscribers of all executions together.
    pub subscribers_max: u32,
    /// Number of local subscribers of one execution.
    pub subscribers_per_execution_max: u32,
}

impl Default for EngineLimits {
    /// The limits of `limits.rs`, for shard 0.
    fn default() -> EngineLimits {
        EngineLimits {
            shard: 0,
            executions_max: limits::EXECUTIONS_MAX,
            queued_max: limits::EXECUTIONS_QUEUED_MAX,
            subscribers_max: limits::SUBSCRIBERS_MAX,
            subscribers_per_execution_max: limits::SUBSCRIBERS_PER_EXECUTION_MAX,
        }
    }
}

/// Pending actions for which memory is allocated at the start. An event that ends more subscribers
/// than that allocates (A3).
const WISHES_EXPECTED: usize = 256;

const _: () = {
    assert!(limits::EXECUTIONS_QUEUED_MAX <= limits::EXECUTIONS_MAX); // Those are executions, too.
    assert!(limits::EXECUTIONS_MAX > 0);
    assert!(limits::SUBSCRIBERS_MAX > 0);
    // The readers of one execution elsewhere can be detached by one event without an allocation.
    assert!(limits::READERS_PER_EXECUTION_MAX as usize <= WISHES_EXPECTED);
};

/// The place of a subscriber in the lists of its execution.
#[derive(Clone, Copy, Debug)]
struct Seat {
    execution: Handle,
    place: SubscriberPlace,
    /// The index into the execution's list of that place.
    at: u32,
}

/// The state of all executions and subscribers of one shard.
#[derive(Debug)]
pub struct Engine {
    limits: EngineLimits,
    executions: Pool<Execution>,
    seats: Pool<Seat>,
    wheel: Wheel<Timer>,
    /// Pending actions, oldest first. Deliveries are not among them: each is computed on request.
    actions: VecDeque<Action>,
    /// Executions whose local subscribers may have something pending.
    dirty: VecDeque<Handle>,
    scan: Option<deliver::Scan>,
    /// The current `Deliver`, and the subscribers that it goes to.
    fan_out: FanOut,
    recipients: Vec<SubscriberId>,
    /// Set if the delivery goes to all local subscribers of its execution, beginning with this one.
    /// `recipients` is not used then.
    abreast_from: Option<u32>,
    /// Executions without a ring, in the order in which they were opened.
    queue: VecDeque<Handle>,
    /// The `Lease` that is in progress. Only one is at a time, which keeps the queue in order.
    leasing: Option<RingFit>,
    /// The ends of the list of ended executions, which is linked through their own slots.
    oldest_ended: Option<u32>,
    newest_ended: Option<u32>,
    shutting_down: bool,
    /// True if a timer was armed since the last [`Engine::take_has_armed`].
    has_armed: bool,
    /// The time of the event that is being handled.
    now: Instant,
    counters: Counters,
}

impl Engine {
    /// Creates an engine without executions.
    ///
    /// # Panics
    /// If `executions_max` or `subscribers_max` is 0 or above its ceiling.
    pub fn new(limits: EngineLimits, now: Instant) -> Engine {
        assert!(limits.executions_max > 0);
        assert!(limits.executions_max <= crate::limits::EXECUTIONS_CEILING);
        assert!(limits.subscribers_max > 0);
        assert!(limits.subscribers_max <= crate::limits::SUBSCRIBERS_CEILING);
        Engine {
            limits,
            executions: Pool::new(limits.executions_max),
            seats: Pool::new(limits.subscribers_max),
            wheel: Wheel::new(timers::timers_max(&limits), now),
            actions: VecDeque::with_capacity(WISHES_EXPECTED),
            dirty: VecDeque::with_capacity(limits.executions_max as usize),
            scan: None,
            fan_out: FanOut {
                execution: Handle { index: 0, generation: 0 },
                from_seq: 0,
                until_seq: 0,
                filters: false,
            },
            recipients: Vec::with_capacity(limits.subscribers_per_execution_max as usize),
            abreast_from: None,
            queue: VecDeque::with_capacity(limits.queued_max as usize),
            leasing: None,
            oldest_ended: None,
            newest_ended: None,
            shutting_down: false,
            has_armed: false,
            now,
            counters: Counters::default(),
        }
    }

    /// Handles an event. [`Engine::next_action`] returns the actions that follow from it.
    #[inline(always)] // The variant is known at the call site.
    pub fn handle(&mut self, event: Event, now: Instant) {
        self.now = now;
        match event {
            Event::Published(execution, facts) => self.published(execution, facts),
            Event::Demand(subscriber, count) => self.demand(subscriber, count),
            event => self.handle_rare(event),
        }
    }

    fn handle_rare(&mut self, event: Event) {
        match event {
            Event::Open(spec) => self.open(spec),
            Event::Subscribe(id, spec) => self.subscribe(id, &spec),
            Event::Unsubscribe(subscriber) => self.unsubscribe(subscriber),
            Event::Cancel(id) => self.cancel(id),
            Event::Acknowledge(subscriber, seq) => self.acknowledge(subscriber, seq),
            Event::Reattach(subscriber) => self.reattach(subscriber),
            Event::Inspect(id) => self.inspect(id),
            Event::ForgetToken(token) => self.forget_token(token),
            Event::Leased(execution, ring) => self.leased(execution, ring),
            Event::LeaseFailed(execution) => self.lease_failed(execution),
            Event::LeaseRefused(execution, text) => self.lease_refused(execution, text),
            Event::RingReturned => self.request_lease(),
            Event::Published(..) | Event::Demand(..) => unreachable!("handled on the fast path"),
            Event::Gated(execution) => self.gated(execution),
            Event::RoomWanted(execution) => _ = self.update_gate(execution),
            Event::HeldFrom(execution, seq) => {
                self.with(execution, |e| e.log.give_up_before(seq));
            }
            Event::ActiveAt(execution, at) => self.note_earlier_activity(execution, at),
            Event::TotalExpected(execution, count) => self.total_expected(execution, count),
            Event::Progressed(execution, report) => self.progressed(execution, &report),
            Event::Exited(execution, exit) => self.exited(execution, exit),
            Event::Sleeping(execution, until) => self.sleeping(execution, until),
            Event::ProducerEnded(execution, end) => self.producer_ended(execution, end),
            Event::Lost(subscriber) => self.lost(subscriber),
            Event::Moved(subscriber) => self.connection_moved(subscriber),
            Event::Broken(subscriber) => self.broken(subscriber),
            Event::Overtaken(subscriber, from_seq, to_seq) => {
                self.overtaken(subscriber, from_seq, to_seq);
            }
            Event::ReaderAt(subscriber, next_seq) => self.reader_at(subscriber, next_seq),
            Event::ReaderGone(subscriber) => self.reader_gone(subscriber),
            Event::ReaderWild(subscriber) => self.reader_wild(subscriber),
            Event::Tick => self.fire_timers(),
            Event::Shutdown => self.shut_down(),
        }
    }

    /// Returns the next action; `None` if nothing is left to do until the next event.
    ///
    /// Deliveries come after all other actions. Each is computed only now, from what the ring holds
    /// at this moment.
    #[inline]
    pub fn next_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() && self.next_fan_out() {
            let FanOut { execution, from_seq, until_seq, .. } = self.fan_out;
            assert!(from_seq < until_seq); // `FanOut::of` let no other one in.
            return Some(Action::Deliver { execution, from_seq, until_seq });
        }
        self.actions.pop_front()
    }

    /// Returns the next action that is not a delivery. It is for a caller that has just learned
    /// from [`Engine::next_fan_out`] that no delivery is next.
    #[inline]
    pub(crate) fn next_queued_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The subscribers that the last [`Action::Deliver`] goes to. The slice is valid until the next
    /// action is requested.
    #[inline]
    pub fn recipients(&self) -> &[SubscriberId] {
        match self.abreast_from {
            None => &self.recipients,
            Some(first) => {
                let execution = self.executions.get(self.fan_out.execution);
                execution.expect("chunks are being given").locals.names(first)
            }
        }
    }

    /// The time at which [`Event::Tick`] is due next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }

    /// Returns true if a timer was armed since the last call. A chunk alone can arm one (for
    /// coalescing) without an action that shows it.
    #[inline]
    pub fn take_has_armed(&mut self) -> bool {
        std::mem::take(&mut self.has_armed)
    }

    /// The counters of everything that has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The terms of a local subscriber.
    pub fn terms(&self, subscriber: SubscriberId) -> Option<Terms> {
        self.local(subscriber).map(|local| local.terms)
    }

    /// The execution's log as the policies see it; `None` for a stale handle.
    pub fn log(&self, execution: Handle) -> Option<&impl Log> {
        Some(&self.executions.get(execution)?.log)
    }

    /// The limits that this engine was created with.
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// The id of an execution; `None` for a stale handle.
    pub fn execution_id(&self, execution: Handle) -> Option<crate::base::ExecutionId> {
        Some(self.executions.get(execution)?.id)
    }

    /// The largest number of chunks that the shard may report at once, for a local subscriber to
    /// stay within its lag limit. With larger batches a fast reader would lose chunks.
    #[inline]
    pub fn burst_chunks(&self, execution: Handle) -> u32 {
        let Some(execution) = self.executions.get(execution) else { return 1 };
        assert!(execution.burst_chunks > 0);
        execution.burst_chunks
    }

    /// Totals by kind of all chunks before `seq`, which is held or the next one.
    pub fn totals_before(&self, execution: Handle, seq: u64) -> Option<KindTotals> {
        self.executions.get(execution).map(|e| e.log.kind_totals_before(seq))
    }

    /// Number of subscribers of an execution, local and remote.
    pub fn subscriber_count(&self, execution: Handle) -> u32 {
        self.executions.get(execution).map_or(0, |e| e.subscriber_count())
    }

    /// True if a reader or the hold may keep the producer of an execution waiting.
    pub fn is_held_back(&self, execution: Handle) -> bool {
        self.executions.get(execution).is_some_and(Execution::is_held_back)
    }

    /// True if the engine itself waits for the chunks of an execution. If not, and if no subscriber
    /// does, the shard may report them later, many at once.
    pub fn is_in_a_hurry(&self, execution: Handle) -> bool {
        let Some(e) = self.executions.get(execution) else { return false };
        !e.has_reported || e.gated() || e.derives_progress()
    }

    /// Number of executions, queued and ended ones included.
    pub fn execution_count(&self) -> u32 {
        self.executions.count()
    }

    /// Returns a local subscriber, whose cursor may be out of date.
    fn local(&self, subscriber: SubscriberId) -> Option<&Local> {
        let seat = self.seats.get(subscriber.0)?;
        if seat.place != SubscriberPlace::Local {
            return None;
        }
        let e = self.executions.get(seat.execution).expect("a seat's execution lives");
        let local = &e.locals.without_cursors()[seat.at as usize];
        assert!(local.id == subscriber);
        Some(local)
    }

    fn local_mut(&mut self, subscriber: SubscriberId) -> Option<&mut Local> {
        let seat = self.seats.get(subscriber.0)?;
        if seat.place != SubscriberPlace::Local {
            return None;
        }
        let e = self.executions.get_mut(seat.execution).expect("a seat's execution lives");
        let local = &mut e.locals.apart()[seat.at as usize];
        assert!(local.id == subscriber);
        Some(local)
    }

    fn remote_mut(&mut self, subscriber: SubscriberId) -> Option<&mut Remote> {
        let seat = self.seats.get(subscriber.0)?;
        if seat.place != SubscriberPlace::Remote {
            return None;
        }
        let e = self.executions.get_mut(seat.execution).expect("a seat's execution lives");
        let remote = &mut e.remotes[seat.at as usize];
        assert!(remote.id == subscriber);
        Some(remote)
    }

    /// Checks every invariant. It walks everything, so it is for tests only.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit(&self) {
        self.wheel.audit();
        for (handle, execution) in self.executions.iter() {
            assert_eq!(execution.id.slot, handle);
            execution.audit();
            for (at, local) in execution.locals.without_cursors().iter().enumerate() {
                if !local.gone {
                    let seat = self.seats.get(local.id.0).expect("a subscriber has a seat");
                    assert_eq!((seat.execution, seat.at), (handle, at as u32));
                    assert_eq!(seat.place, SubscriberPlace::Local);
                }
            }
            for (at, remote) in execution.remotes.iter().enumerate() {
                let seat = self.seats.get(remote.id.0).expect("a subscriber has a seat");
                assert_eq!((seat.execution, seat.at), (handle, at as u32));
                assert_eq!(seat.place, SubscriberPlace::Remote);
            }
            let queued = self.queue.contains(&handle);
            assert_eq!(queued, execution.state == ExecutionState::Queued);
        }
        for (_, seat) in self.seats.iter() {
            assert!(self.executions.get(seat.execution).is_some());
        }
        let mut at = self.oldest_ended;
        let mut ended_count = 0;
        while let Some(index) = at {
            let execution = self.executions.at(index).expect("the list holds living executions");
            assert!(matches!(execution.state, ExecutionState::Ended(_)));
            at = execution.newer;
            ended_count += 1;
        }
        let ended =
            self.executions.iter().filter(|(_, e)| matches!(e.state, ExecutionState::Ended(_)));
        assert_eq!(ended.count(), ended_count);
    }
}
