//! Stratum 1: the deterministic core. It works on numbers only; [`crate::memory`] holds the bytes.
//!
//! The engine decides everything about executions, subscribers, policies, gaps, ends and timers,
//! and carries nothing out. It has no clock: `now` is an argument, and [`Engine::next_deadline`]
//! returns the next deadline. It makes no syscall, starts no thread, touches no payload byte and
//! contains no `unsafe`. The same events at the same times produce the same actions (A7). One
//! thread owns an engine.
//!
//! Read [`Event`] and [`Action`] first, which are its whole behaviour, then [`policy`].
//! `mod.rs` has the chunk path, `lifecycle.rs` covers an execution from opening to removal, and
//! `attach.rs` a subscriber. The engine holds five parts:
//!
//! - `registry.rs`: all executions, and the seats of their subscribers;
//! - `deliver.rs`: the chunks that are given next;
//! - `waiting.rs`: the executions without a ring;
//! - `ended.rs`: the ended executions, in the order of their eviction;
//! - `effects.rs`: pending actions, timers and counts.
//!
//! One execution is `execution.rs` (its states), `gating.rs` (how far its producer may go) and
//! `timers.rs` (how long it may be silent). It holds its `log.rs`, its `audience.rs` and its
//! `progress.rs`. One subscriber is `subscriber.rs`, or `remote.rs` on another thread.
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
mod admission;
mod attach;
mod audience;
mod deliver;
mod effects;
mod ended;
mod event;
mod execution;
mod gate;
mod gating;
mod lifecycle;
mod locals;
mod log;
pub mod policy;
mod progress;
mod registry;
mod remote;
mod reserve;
mod resume;
mod status;
mod subscriber;
mod timers;
mod waiting;
pub mod wheel;

#[cfg(test)]
mod delivery_tests;
#[cfg(test)]
mod fetch_model_tests;
#[cfg(test)]
mod fetch_tests;
#[cfg(test)]
mod found_tests;
#[cfg(test)]
mod resume_tests;
#[cfg(test)]
mod tests;

pub use action::{
    AcknowledgeError, Action, CancelError, NotFound, OpenError, Reply, RingFit, SubscribeError,
    Subscribed, SuspendError, Verdict,
};
pub use deliver::FanOut;
pub use event::{
    ChunkFacts, Coalesce, Event, Fetched, From, Hold, OnStall, OpenSpec, ProducerEnd, RingFacts,
    Secret, Start, SubscribeSpec, SubscriberPlace, Timeouts,
};
pub use gate::Gate;
pub use policy::{Cursor, Log, Owed};
pub use progress::ProgressSource;
pub use reserve::Replay;
pub use status::{Status, SubscriberStatus};

use crate::base::{ExecutionId, Handle, Instant, ProgressToken, SubscriberId};
use crate::limits;
use crate::stream::{DetachReason, ExecutionState, KindTotals, Outcome, Progress, Terms, Totals};
use crate::trace::Counters;
use deliver::{Deliveries, Step};
use effects::Effects;
use ended::EndedList;
use execution::{Execution, Producer};
use progress::Reported;
use registry::Registry;
use waiting::WaitingLine;

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

const _: () = {
    assert!(limits::EXECUTIONS_QUEUED_MAX <= limits::EXECUTIONS_MAX); // Those are executions, too.
    assert!(limits::EXECUTIONS_MAX > 0);
    assert!(limits::SUBSCRIBERS_MAX > 0);
};

/// The state of all executions and subscribers of one shard.
#[derive(Debug)]
pub struct Engine {
    limits: EngineLimits,
    registry: Registry,
    effects: Effects,
    deliveries: Deliveries,
    /// Executions without a ring.
    line: WaitingLine,
    ended: EndedList,
    shutting_down: bool,
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
            registry: Registry::new(&limits),
            effects: Effects::new(timers::timers_max(&limits), now),
            deliveries: Deliveries::new(&limits),
            line: WaitingLine::new(limits.queued_max),
            ended: EndedList::default(),
            shutting_down: false,
        }
    }

    /// Handles an event. [`Engine::next_action`] returns the actions that follow from it.
    #[inline(always)] // The variant is known at the call site.
    pub fn handle(&mut self, event: Event, now: Instant) {
        self.effects.now = now;
        match event {
            Event::Published(execution, facts) => self.published(execution, facts, false),
            Event::Demand(subscriber, count) => self.demand(subscriber, count),
            event => self.handle_rare(event),
        }
    }

    fn handle_rare(&mut self, event: Event) {
        assert!(!self.deliveries.is_made_up()); // Its recipients might leave.
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
            Event::Grown(execution, ring) => self.grown(execution, ring),
            Event::LeaseFailed(execution) => self.lease_failed(execution),
            Event::LeaseRefused(execution, text) => self.lease_refused(execution, text),
            Event::RingReturned => self.request_lease(),
            Event::Published(..) | Event::Demand(..) => unreachable!("handled on the fast path"),
            Event::PassedOver(execution, through) => self.passed_over(execution, through),
            Event::Skipped(execution, through) => self.skipped(execution, through),
            Event::Found(execution, before, newest) => {
                self.registry.living_mut(execution).log.found(before, newest);
            }
            Event::Gated(execution) => self.gated(execution),
            Event::HeldByDisk(execution) => self.held_by_disk(execution),
            Event::DiskMoved(execution) => self.disk_moved(execution),
            Event::RoomWanted(execution) => self.update_gate(execution),
            Event::HeldFrom(execution, seq) => {
                self.registry.living_mut(execution).log.give_up_before(seq);
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
            Event::Revive(spec, verdict) => self.revive(spec, verdict),
            Event::Resume(spec, before) => self.resume(spec, before),
            Event::Suspend(id) => self.suspend(id),
            Event::EndKept(execution) => self.end_kept(execution),
            Event::NotKept(execution, text) => self.not_kept(execution, text),
            Event::GivenUp(execution, text) => self.fail(execution, text),
            Event::KeptFrom(execution, seq, before) => self.kept_from(execution, seq, before),
            Event::Fetched { subscriber, from_seq, until_seq, result } => {
                self.fetched(subscriber, from_seq..until_seq, result);
            }
            Event::Overtaken(subscriber, from_seq, to_seq) => {
                self.overtaken(subscriber, from_seq, to_seq);
            }
            Event::ReaderAt(subscriber, next_seq) => self.reader_at(subscriber, next_seq),
            Event::ReaderLevel(subscriber, is_level) => self.reader_level(subscriber, is_level),
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
        if self.effects.is_empty() && self.next_fan_out() {
            let FanOut { execution, from_seq, until_seq, .. } = *self.deliveries.fan_out();
            assert!(from_seq < until_seq); // `FanOut::of` let no other one in.
            return Some(Action::Deliver { execution, from_seq, until_seq });
        }
        self.effects.pop()
    }

    /// Returns the next action that is not a delivery. It is for a caller that has just learned
    /// from [`Engine::next_fan_out`] that no delivery is next.
    #[inline]
    pub(crate) fn next_queued_action(&mut self) -> Option<Action> {
        self.effects.pop()
    }

    /// True if no action is pending: [`Engine::next_action`] would return `None`.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.effects.is_empty() && self.deliveries.is_idle()
    }

    /// The subscribers that the last [`Action::Deliver`] goes to. The slice is valid until the next
    /// action is requested.
    #[inline]
    pub fn recipients(&self) -> &[SubscriberId] {
        self.deliveries.recipients(&self.registry.executions)
    }

    /// Returns true if the next action is a delivery, which is then in [`Engine::fan_out`]. It is
    /// the fast path of [`Engine::next_action`] for the one action that occurs with every chunk.
    #[inline]
    pub fn next_fan_out(&mut self) -> bool {
        !self.deliveries.is_idle() && self.make_up_delivery()
    }

    /// The delivery that [`Engine::next_fan_out`] has found.
    #[inline]
    pub fn fan_out(&self) -> &FanOut {
        self.deliveries.fan_out()
    }

    #[inline]
    fn make_up_delivery(&mut self) -> bool {
        while self.effects.is_empty() {
            match self.deliveries.step(&mut self.registry.executions, &mut self.effects) {
                Step::Nothing => return false,
                Step::Deliver => return true,
                Step::Told => {}
                Step::Rest(subscriber, reason) => self.rest(subscriber, reason),
                Step::Done(execution) => self.walked(execution),
            }
        }
        false
    }

    /// Handles the end of a walk over the subscribers of an execution.
    fn walked(&mut self, execution: Handle) {
        let Some(e) = self.registry.executions.get(execution) else { return };
        let waits = e.gated() || e.closed();
        self.registry.compact(execution);
        if waits {
            self.update_gate(execution);
            self.settle(execution);
        }
    }

    /// Like [`Event::Published`]. If nothing but one delivery to all local subscribers follows, it
    /// is made up at once, and the result is true. [`Engine::next_fan_out`] or
    /// [`Engine::take_fan_out`] must be called before the next event.
    #[inline(always)]
    pub(crate) fn publish(
        &mut self,
        execution: Handle,
        chunks: &[ChunkFacts],
        now: Instant,
    ) -> bool {
        self.effects.now = now;
        let is_first = self.is_settled();
        self.published(execution, chunks, is_first);
        self.deliveries.is_made_up()
    }

    /// Takes the delivery that [`Engine::publish`] has made up.
    #[inline(always)]
    pub(crate) fn take_fan_out(&mut self) {
        self.deliveries.take_made_up();
    }

    /// Handles chunks. Their delivery may be made up at once if `is_first`: nothing is pending.
    #[inline(always)] // The number of chunks, most often one, is known at the call site.
    fn published(&mut self, execution: Handle, chunks: &[ChunkFacts], is_first: bool) {
        let e = self.registry.executions.get_mut(execution).expect("a publishing execution lives");
        assert!(matches!(e.producer, Producer::Active | Producer::Stopping)); // E1
        e.active_at = self.effects.now;
        let bytes_before = e.log.total_bytes();
        for &facts in chunks {
            e.log.push(facts);
        }
        self.effects.counters.chunks_published += chunks.len() as u64;
        self.effects.counters.bytes_published += e.log.total_bytes() - bytes_before;
        if e.log.head_seq() >= e.trip_seq {
            self.deliveries.mark(execution, e);
            self.trip(execution);
        } else if !is_first || !self.deliveries.make_up(execution, e) {
            self.deliveries.mark(execution, e);
        }
    }

    /// Handles chunks that were not looked at one by one. `through` are the totals of all chunks.
    fn passed_over(&mut self, execution: Handle, through: Totals) {
        let e = self.registry.living_mut(execution);
        assert!(matches!(e.producer, Producer::Active | Producer::Stopping)); // E1
        assert!(!e.audience.needs_facts()); // Nobody would be given them.
        e.active_at = self.effects.now;
        self.effects.counters.chunks_published += through.chunks - e.log.head_seq();
        self.effects.counters.bytes_published += through.bytes - e.log.total_bytes();
        e.log.pass_over(through);
        if e.log.head_seq() >= e.trip_seq {
            self.trip(execution);
        }
    }

    /// Handles chunks that the ring never had. `through` are the totals of all chunks, by kind.
    fn skipped(&mut self, execution: Handle, through: &KindTotals) {
        let e = self.registry.living_mut(execution);
        assert!(matches!(e.producer, Producer::Active | Producer::Stopping)); // E1
        e.active_at = self.effects.now;
        e.log.skip(through);
        e.audience.leave_ring();
        e.audience_changed();
        e.update_gate(&mut self.effects);
        self.deliveries.mark(execution, e);
        if e.log.head_seq() >= e.trip_seq {
            self.trip(execution);
        }
    }

    /// Handles the rare consequences of a chunk. Ends `disconnect` subscribers that are over their
    /// limit, even if they request nothing; notes the first chunk; and counts chunks as progress.
    #[cold]
    fn trip(&mut self, execution: Handle) {
        let e = self.registry.living_mut(execution);
        assert!(e.log.head_seq() >= e.trip_seq);
        let derives_progress = e.derives_progress();
        if !e.has_reported {
            e.note_first_report(&mut self.effects);
        }
        if derives_progress {
            e.derive_progress();
            if e.conflate_progress(&mut self.effects) == Reported::ToSubscribers {
                self.deliveries.mark(execution, e);
            }
        }
        for subscriber in e.audience.over_limit(&e.log) {
            self.detach(subscriber, DetachReason::Lag);
        }
        let e = self.registry.living_mut(execution);
        assert!(e.has_reported); // Its first chunk is noted from here on.
        e.trip_seq = e.next_trip_seq();
    }

    /// Notes that the execution's local subscribers may have something pending.
    fn mark_dirty(&mut self, execution: Handle) {
        if let Some(e) = self.registry.executions.get_mut(execution) {
            self.deliveries.mark(execution, e);
        }
    }

    /// The time at which [`Event::Tick`] is due next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.effects.next_deadline()
    }

    /// Returns true if a timer was armed since the last call. A chunk alone can arm one (for
    /// coalescing) without an action that shows it.
    #[inline]
    pub fn take_has_armed(&mut self) -> bool {
        self.effects.take_has_armed()
    }

    /// The counters of everything that has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.effects.counters
    }

    /// The terms of a local subscriber.
    pub fn terms(&self, subscriber: SubscriberId) -> Option<Terms> {
        self.registry.local(subscriber).map(|local| local.terms)
    }

    /// The execution's log as the policies see it; `None` for a stale handle.
    pub fn log(&self, execution: Handle) -> Option<&impl Log> {
        Some(&self.registry.executions.get(execution)?.log)
    }

    /// Totals of all chunks of an execution before `seq`, by kind; `None` if the ring does not
    /// reach back to that chunk.
    pub fn kind_totals_before(&self, execution: Handle, seq: u64) -> Option<KindTotals> {
        let log = &self.registry.executions.get(execution)?.log;
        let is_held = log.tail_seq() <= seq && seq <= log.head_seq() + 1;
        is_held.then(|| log.kind_totals_before(seq))
    }

    /// Totals of the chunks of a local subscriber's kinds before its next one, which the ring holds
    /// no longer. `None` if the subscriber began there.
    pub fn seen_before_fetch(&self, subscriber: SubscriberId) -> Option<Totals> {
        let cursor = self.registry.local(subscriber)?.cursor;
        (cursor.is_away() && !cursor.is_claimed()).then_some(cursor.seen)
    }

    /// True if an execution of this id exists.
    pub fn is_known(&self, id: ExecutionId) -> bool {
        self.registry.find(id).is_some()
    }

    /// The limits that this engine was created with.
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// The id of an execution; `None` for a stale handle.
    pub fn execution_id(&self, execution: Handle) -> Option<ExecutionId> {
        Some(self.registry.executions.get(execution)?.id)
    }

    /// The largest number of chunks that the shard may report at once, for a local subscriber to
    /// stay within its lag limit. With larger batches a fast reader would lose chunks.
    #[inline]
    pub fn burst_chunks(&self, execution: Handle) -> u32 {
        let Some(execution) = self.registry.executions.get(execution) else { return 1 };
        assert!(execution.burst_chunks > 0);
        execution.burst_chunks
    }

    /// True if no subscriber needs the length or the kind of each chunk of an execution. Then
    /// [`Event::PassedOver`] may tell of them.
    pub fn may_pass_over(&self, execution: Handle) -> bool {
        let execution = self.registry.executions.get(execution);
        execution.is_some_and(|e| !e.audience.needs_facts())
    }

    /// Totals by kind of all chunks before `seq`, which is held or the next one.
    pub fn totals_before(&self, execution: Handle, seq: u64) -> Option<KindTotals> {
        self.registry.executions.get(execution).map(|e| e.log.kind_totals_before(seq))
    }

    /// Number of subscribers of an execution, local and remote.
    pub fn subscriber_count(&self, execution: Handle) -> u32 {
        self.registry.executions.get(execution).map_or(0, |e| e.audience.count())
    }

    /// True if a reader or the hold may keep the producer of an execution waiting.
    pub fn is_held_back(&self, execution: Handle) -> bool {
        self.registry.executions.get(execution).is_some_and(Execution::is_held_back)
    }

    /// True if the engine itself waits for the chunks of an execution. If not, and if no subscriber
    /// does, the shard may report them later, many at once.
    pub fn is_in_a_hurry(&self, execution: Handle) -> bool {
        let Some(e) = self.registry.executions.get(execution) else { return false };
        !e.has_reported || e.gated() || e.derives_progress()
    }

    /// Number of executions, queued and ended ones included.
    pub fn execution_count(&self) -> u32 {
        self.registry.executions.count()
    }

    /// The outcome that an execution will have once its producer, which was told to stop, has
    /// stopped.
    pub fn stop_outcome(&self, execution: Handle) -> Option<Outcome> {
        self.registry.executions.get(execution)?.stop_outcome
    }

    /// The time of the last event.
    pub fn now(&self) -> Instant {
        self.effects.now
    }

    /// The progress of an execution, if any was reported or derived.
    pub fn progress(&self, execution: Handle) -> Option<Progress> {
        self.registry.executions.get(execution)?.progress.newest()
    }

    /// The newest progress of an execution, if its subscribers were told of any.
    pub fn reported_progress(&self, execution: Handle) -> Option<Progress> {
        let progress = &self.registry.executions.get(execution)?.progress;
        progress.newest().filter(|_| progress.to_report() > 0)
    }

    /// The end of an execution, once it is closed.
    pub fn verdict(&self, execution: Handle) -> Option<Verdict> {
        self.registry.executions.get(execution)?.verdict()
    }

    /// The message and the context of the last report of an execution.
    pub fn progress_texts(&self, execution: Handle) -> (Option<&str>, Option<&str>) {
        self.registry.executions.get(execution).map_or((None, None), |e| e.progress.texts())
    }

    /// The execution that a reader on another thread follows; `None` for a local or unknown
    /// subscriber.
    pub fn followed_by_remote(&self, subscriber: SubscriberId) -> Option<Handle> {
        self.registry.followed_by_remote(subscriber)
    }

    /// True if the execution has exactly one subscriber, and that one is local.
    pub fn is_alone(&self, execution: Handle) -> bool {
        let audience = self.registry.executions.get(execution).map(|e| &e.audience);
        audience.is_some_and(|a| a.locals.len() == 1 && a.remotes.is_empty())
    }

    /// The state and the number of subscribers of each execution.
    pub fn census(&self) -> impl Iterator<Item = (ExecutionState, u32)> {
        self.registry.executions.iter().map(|(_, e)| (e.state, e.audience.count()))
    }

    /// Returns the status of each subscriber of an execution.
    ///
    /// # Errors
    /// [`NotFound`] if the execution does not exist.
    pub fn subscribers(&self, id: ExecutionId) -> Result<Vec<SubscriberStatus>, NotFound> {
        self.registry.find(id).map(SubscriberStatus::all_of).ok_or(NotFound)
    }

    /// The progress token of an execution, unless it was forgotten.
    pub fn token(&self, id: ExecutionId) -> Option<ProgressToken> {
        self.registry.find(id)?.token
    }

    /// The execution that a token stands for, unless the token was forgotten.
    pub fn find_token(&self, token: ProgressToken) -> Option<ExecutionId> {
        let execution = self.registry.executions.get(token.slot)?;
        assert!(execution.id.slot == token.slot);
        (execution.token == Some(token)).then_some(execution.id)
    }

    /// The tokens of all executions that have not ended, with their progress.
    pub fn tokens(&self) -> impl Iterator<Item = (ProgressToken, ExecutionId, Option<Progress>)> {
        let active = self.registry.executions.iter().filter(|(_, e)| !e.closed());
        active.filter_map(|(_, e)| Some((e.token?, e.id, e.progress.newest())))
    }

    fn inspect(&mut self, id: ExecutionId) {
        let status = self.registry.find(id).map(|e| Box::new(Status::of(e)));
        self.effects.reply(Reply::Inspected(status.ok_or(NotFound)));
    }

    fn forget_token(&mut self, token: ProgressToken) {
        let found = self.find_token(token).ok_or(NotFound);
        if let Ok(id) = found {
            self.registry.living_mut(id.slot).token = None;
        }
        self.effects.reply(Reply::TokenForgotten(found.map(|_| ())));
    }

    /// Checks every invariant. It walks everything, so it is for tests only.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit(&self) {
        self.effects.audit();
        self.registry.audit();
        for (handle, execution) in self.registry.executions.iter() {
            let queued = self.line.contains(handle);
            assert_eq!(queued, execution.state == ExecutionState::Queued);
        }
        self.ended.audit(&self.registry.executions);
    }
}
