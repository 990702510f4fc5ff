//! Stratum 1: the deterministic heart. It moves numbers; [`crate::memory`] holds the bytes.
//!
//! Executions, subscribers, policies, gaps, ends, timers: everything that is decided is decided
//! here, and nothing is done here. There is no clock (`now` comes in, [`Engine::next_deadline`]
//! goes out), no syscall, no thread, no payload byte and no `unsafe`. The same events at the same
//! times give the same actions (A7); one thread owns an engine.
//!
//! Reading order: [`Event`] and [`Action`], which are its whole behaviour; [`policy`]; then
//! `lifecycle.rs` (an execution from birth to oblivion), `attach.rs` (a subscriber), `afar.rs` (one
//! of another thread), `deliver.rs` (the chunk path), `timers.rs`.
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
mod afar;
mod attach;
mod chunk;
mod deliver;
mod event;
mod execution;
mod exit;
mod gate;
mod lifecycle;
mod locals;
mod log;
pub mod policy;
mod progress;
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

use std::collections::VecDeque;

pub use action::{
    AcknowledgeError, Action, CancelError, DetachReason, End, EndState, NotFound, OpenError,
    Outcome, Reply, RingFit, State, SubscribeError, Subscribed, Verdict,
};
pub use chunk::{Gap, GapReason, Kind, KindTotals, Kinds, Meta, Totals, UnknownKind};
pub use deliver::FanOut;
pub use event::{
    ChunkFacts, Coalesce, Event, From, Hold, OnStall, OpenSpec, Place, ProducerEnd, RingFacts,
    Secret, Start, SubscribeSpec, Timeouts,
};
pub use exit::Exit;
pub use gate::Gate;
pub use policy::{Cursor, LagLimit, Log, Owed, Policy, Terms, UnknownPolicy};
pub use progress::{Measure, Progress, ProgressReport, ProgressSource};
pub use reserve::Replay;
pub use status::{Status, SubscriberStatus};

use crate::base::{Handle, Instant, Pool, SubscriberId};
use crate::limits;
use crate::trace::Counters;
use execution::Execution;
use subscriber::{Local, Remote};
use timers::Timer;
use wheel::Wheel;

/// How much one engine may hold.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// Which shard this is; part of every execution's id.
    pub shard: u8,
    /// Executions, running and ended together.
    pub executions_max: u32,
    /// Executions that wait for a ring.
    pub queued_max: u32,
    /// Subscribers of all executions together.
    pub subscribers_max: u32,
    /// Subscribers of one execution.
    pub subscribers_per_execution_max: u32,
}

impl Default for EngineLimits {
    /// Those of [`crate::limits`].
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

/// Where a subscriber is to be found.
#[derive(Clone, Copy, Debug)]
struct Seat {
    execution: Handle,
    place: Place,
    /// Index into the execution's list of that place.
    at: u32,
}

/// The state of all executions and subscribers of one shard.
#[derive(Debug)]
pub struct Engine {
    limits: EngineLimits,
    executions: Pool<Execution>,
    seats: Pool<Seat>,
    wheel: Wheel<Timer>,
    /// Wishes, oldest first; deliveries are made up one by one when they are asked for.
    wishes: VecDeque<Action>,
    /// Executions whose local subscribers may have something coming.
    dirty: VecDeque<Handle>,
    scan: Option<deliver::Scan>,
    /// The present `Deliver`, and to whom it goes.
    fan_out: FanOut,
    recipients: Vec<SubscriberId>,
    /// It goes to all subscribers of its execution, this one of them first; not to `recipients`.
    abreast_from: Option<u32>,
    /// Executions without a ring, first come first served.
    queue: VecDeque<Handle>,
    /// The `Lease` that is under way: one at a time, so that the queue stays a queue.
    leasing: Option<RingFit>,
    /// Ended executions, a list through their own slots.
    oldest_ended: Option<u32>,
    newest_ended: Option<u32>,
    shutting_down: bool,
    /// A timer was armed since somebody asked.
    has_armed: bool,
    /// The time of the event that is being handled.
    now: Instant,
    counters: Counters,
}

impl Engine {
    /// An engine without executions.
    ///
    /// # Panics
    /// If a limit is 0 or above its ceiling.
    pub fn new(limits: EngineLimits, now: Instant) -> Engine {
        assert!(limits.executions_max > 0);
        assert!(limits.executions_max <= crate::limits::EXECUTIONS_CEILING);
        assert!(limits.subscribers_max > 0);
        // Two of an execution's eight timers exclude each other; a subscriber has at most two.
        let timer_count = 8 * limits.executions_max + 2 * limits.subscribers_max;
        Engine {
            limits,
            executions: Pool::new(limits.executions_max),
            seats: Pool::new(limits.subscribers_max),
            wheel: Wheel::new(timer_count, now),
            wishes: VecDeque::with_capacity(256),
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

    /// Takes a fact. What follows from it is in [`Engine::next_action`].
    #[inline(always)] // Which fact it is, is known where it is told.
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
            Event::HeardAt(execution, at) => self.heard_earlier(execution, at),
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

    /// The next wish; `None` when there is none until something happens.
    ///
    /// Deliveries come after everything else, and each is decided only now: with what the ring
    /// holds at this moment.
    #[inline]
    pub fn next_action(&mut self) -> Option<Action> {
        if self.wishes.is_empty() && self.next_fan_out() {
            let FanOut { execution, from_seq, until_seq, .. } = self.fan_out;
            return Some(Action::Deliver { execution, from_seq, until_seq });
        }
        self.wishes.pop_front()
    }

    /// As [`Engine::next_action`], for who was just told that the next one is no delivery
    /// ([`Engine::next_fan_out`]).
    #[inline]
    pub(crate) fn next_wish(&mut self) -> Option<Action> {
        self.wishes.pop_front()
    }

    /// To whom the [`Action::Deliver`] that was given last goes; until the next action is asked
    /// for.
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

    /// When [`Event::Tick`] is due next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }

    /// Was a timer armed since this was asked last? A chunk alone can do that (it waits for
    /// company), without a wish that shows it.
    #[inline]
    pub fn take_has_armed(&mut self) -> bool {
        std::mem::take(&mut self.has_armed)
    }

    /// What has happened so far, in numbers.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What was agreed with a local subscriber.
    pub fn terms(&self, subscriber: SubscriberId) -> Option<Terms> {
        self.local(subscriber).map(|local| local.terms)
    }

    /// The execution's log as the policies see it; `None` for a stale handle.
    pub fn log(&self, execution: Handle) -> Option<&impl Log> {
        Some(&self.executions.get(execution)?.log)
    }

    /// How much it may hold.
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// The name of an execution; `None` for a stale handle.
    pub fn execution_id(&self, execution: Handle) -> Option<crate::base::ExecutionId> {
        Some(self.executions.get(execution)?.id)
    }

    /// The smallest number of chunks that a local subscriber may lag by: more are not to be told
    /// of at once, or the shard's own batching would make a fast reader lose chunks.
    #[inline]
    pub fn burst_chunks(&self, execution: Handle) -> u32 {
        let Some(execution) = self.executions.get(execution) else { return 1 };
        execution.burst_chunks
    }

    /// All chunks of an execution before chunk `seq`, which is held or the next one.
    pub fn totals_before(&self, execution: Handle, seq: u64) -> Option<KindTotals> {
        self.executions.get(execution).map(|e| e.log.kind_totals_before(seq))
    }

    /// How many subscribers an execution has, wherever they are.
    pub fn subscriber_count(&self, execution: Handle) -> u32 {
        self.executions.get(execution).map_or(0, |e| e.subscriber_count())
    }

    /// True if a reader or the hold may keep the producer of an execution waiting.
    pub fn is_held_back(&self, execution: Handle) -> bool {
        self.executions.get(execution).is_some_and(Execution::is_held_back)
    }

    /// Does the engine itself wait for the chunks of an execution? If not, and no subscriber does,
    /// it may be told of them later, many at once.
    pub fn is_in_a_hurry(&self, execution: Handle) -> bool {
        let Some(e) = self.executions.get(execution) else { return false };
        !e.heard || e.gated() || e.derives_progress()
    }

    /// Executions there are, and the queue among them.
    pub fn execution_count(&self) -> u32 {
        self.executions.count()
    }

    /// Its cursor may be out of date.
    fn local(&self, subscriber: SubscriberId) -> Option<&Local> {
        let seat = self.seats.get(subscriber.0)?;
        if seat.place != Place::Local {
            return None;
        }
        Some(&self.executions.get(seat.execution)?.locals.without_cursors()[seat.at as usize])
    }

    fn local_mut(&mut self, subscriber: SubscriberId) -> Option<&mut Local> {
        let seat = self.seats.get(subscriber.0)?;
        if seat.place != Place::Local {
            return None;
        }
        Some(&mut self.executions.get_mut(seat.execution)?.locals.apart()[seat.at as usize])
    }

    fn remote_mut(&mut self, subscriber: SubscriberId) -> Option<&mut Remote> {
        let seat = self.seats.get(subscriber.0)?;
        if seat.place != Place::Remote {
            return None;
        }
        Some(&mut self.executions.get_mut(seat.execution)?.remotes[seat.at as usize])
    }

    /// Checks every invariant. For tests: it walks everything.
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
                    assert_eq!(seat.place, Place::Local);
                }
            }
            for (at, remote) in execution.remotes.iter().enumerate() {
                let seat = self.seats.get(remote.id.0).expect("a subscriber has a seat");
                assert_eq!((seat.execution, seat.at), (handle, at as u32));
                assert_eq!(seat.place, Place::Remote);
            }
            let queued = self.queue.contains(&handle);
            assert_eq!(queued, execution.state == State::Queued);
        }
        for (_, seat) in self.seats.iter() {
            assert!(self.executions.get(seat.execution).is_some());
        }
        let mut at = self.oldest_ended;
        let mut ended_count = 0;
        while let Some(index) = at {
            let execution = self.executions.at(index).expect("the list holds living executions");
            assert!(matches!(execution.state, State::Ended(_)));
            at = execution.newer;
            ended_count += 1;
        }
        let ended = self.executions.iter().filter(|(_, e)| matches!(e.state, State::Ended(_)));
        assert_eq!(ended.count(), ended_count);
    }
}
