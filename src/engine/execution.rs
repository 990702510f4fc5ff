//! One execution: its state, its log, its subscribers, its timers.
//!
//! `gating.rs` decides how far the producer may go, and `timers.rs` for how long it may be silent.
//!
//! Invariants ([`Execution::audit`]):
//! - E1: the log only grows while the producer is active or stopping.
//! - E2: the gate is at or before every gating cursor, and before the chunks that are kept for
//!   subscribers that may come back. It moves back only when a reader attaches or
//!   comes level.
//! - E3: an outcome is decided once.
//! - E4: a timer is armed only in the states that it belongs to. It is noted in one place until it
//!   fires or is disarmed.
//! - E5: a producer waits only for a gating reader that has not read (or acknowledged) everything,
//!   or for the ring's hold for its first reader.
//! - E6: chunks that a client may come back for and has not acknowledged are not overwritten.
//! - E7: the disk is asked only for chunks before the ring, for a subscriber that is not level, and
//!   for one stretch at a time. Only the answer moves its cursor.

use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Handle, Instant, ProgressToken};
use crate::engine::action::{Action, Verdict};
use crate::engine::audience::Audience;
use crate::engine::effects::Effects;
use crate::engine::ended::Links;
use crate::engine::event::{OpenSpec, RingFacts, Start};
use crate::engine::gating::Gating;
use crate::engine::log::ChunkLog;
use crate::engine::policy::Log;
use crate::engine::progress::{Reported, Reports};
use crate::engine::reserve::Replay;
use crate::engine::subscriber::Local;
use crate::engine::timers::{Timer, note};
use crate::engine::wheel::TimerId;
use crate::limits;
use crate::stream::{ExecutionState, Exit, KindTotals, Kinds, Outcome, Totals};

/// The state of the producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Producer {
    /// The producer has not started: the execution waits for a ring, or for subscribers.
    Waiting,
    /// The tool runs.
    Active,
    /// The producer was told to stop.
    Stopping,
    /// The producer is gone, and the execution will end with this outcome. Nobody is told before
    /// the disk keeps it.
    Leaving(Outcome),
    /// The producer is gone. Nothing more will be published.
    Gone,
}

/// One run of one tool.
#[derive(Debug)]
pub(super) struct Execution {
    pub id: ExecutionId,
    /// The progress token, until it is forgotten.
    pub token: Option<ProgressToken>,
    pub spec: OpenSpec,
    pub ring: Option<RingFacts>,
    pub state: ExecutionState,
    pub producer: Producer,
    pub outcome: Option<Outcome>,
    /// The outcome after the producer, which was told to stop, has stopped.
    pub stop_outcome: Option<Outcome>,
    pub error: Option<Box<str>>,
    /// The exit status of the process that it ran.
    pub exit: Option<Exit>,
    pub log: ChunkLog,
    pub audience: Audience,
    /// True if local subscribers may have something pending.
    pub dirty: bool,
    pub gating: Gating,
    /// The time at which the producer started, or last published or reported. It moves forward by
    /// the time for which the producer was held back since then.
    pub active_at: Instant,
    /// True if the producer has published or reported at least once.
    pub has_reported: bool,
    /// The first chunk whose publication has rare consequences: see [`Execution::next_trip_seq`].
    pub trip_seq: u64,
    /// The value of [`crate::engine::Engine::burst_chunks`].
    pub burst_chunks: u32,
    pub progress: Reports,
    pub opened_at: Instant,
    pub ended_at: Option<Instant>,
    pub timers: Timers,
    /// The place in the list of ended executions.
    pub links: Links,
}

/// The armed timers of an execution.
#[derive(Debug, Default)]
pub(super) struct Timers {
    pub start: Option<TimerId>,
    pub hold: Option<TimerId>,
    pub stall: Option<TimerId>,
    /// The cursor of the slowest gating reader when `stall` was armed, and the time of that.
    pub stall_from: (u64, Instant),
    pub silence: Option<TimerId>,
    pub total: Option<TimerId>,
    pub sleep: Option<TimerId>,
    pub retention: Option<TimerId>,
    pub progress: Option<TimerId>,
}

const _: () = {
    assert!(limits::BURST_CHUNKS_MAX > 0); // A shard takes some chunks in each turn.
    assert!(limits::DELIVERY_CHUNKS_MAX >= limits::BURST_CHUNKS_MAX); // One delivery takes a burst.
    assert!(limits::READERS_PER_EXECUTION_MAX <= limits::SUBSCRIBERS_MAX);
    assert!(limits::SUBSCRIBERS_PER_EXECUTION_MAX <= limits::SUBSCRIBERS_MAX);
};

impl Timers {
    /// True if no timer is armed. An execution is removed in this state only.
    pub fn is_empty(&self) -> bool {
        let Timers { start, hold, stall, silence, total, sleep, retention, progress, .. } = self;
        let all = [start, hold, stall, silence, total, sleep, retention, progress];
        all.into_iter().all(Option::is_none)
    }
}

impl Execution {
    pub fn new(id: ExecutionId, spec: OpenSpec, now: Instant) -> Execution {
        spec.ring.assert_sound();
        let mut log = ChunkLog::detached();
        if spec.kept {
            log.keep();
        }
        Execution {
            id,
            token: None,
            spec,
            ring: None,
            state: ExecutionState::Queued,
            producer: Producer::Waiting,
            outcome: None,
            stop_outcome: None,
            error: None,
            exit: None,
            log,
            audience: Audience::default(),
            dirty: false,
            gating: Gating::default(),
            active_at: now,
            has_reported: false,
            trip_seq: u64::MAX,
            burst_chunks: limits::BURST_CHUNKS_MAX,
            progress: Reports::new(spec.progress, spec.bytes_expected),
            opened_at: now,
            ended_at: None,
            timers: Timers::default(),
            links: Links::default(),
        }
    }

    /// Moves to the next state. The life cycle has no way back, and none around a state.
    pub fn enter(&mut self, state: ExecutionState) {
        let is_next = match (self.state, state) {
            (ExecutionState::Queued, ExecutionState::Running) => {
                self.ring.is_some() && self.outcome.is_none()
            }
            (ExecutionState::Queued | ExecutionState::Running, ExecutionState::Draining) => {
                self.outcome.is_some()
            }
            (ExecutionState::Draining, ExecutionState::Ended(outcome)) => {
                self.outcome == Some(outcome)
            }
            _ => planted(Planted::EndTwiceInCancelRace),
        };
        assert!(is_next); // E3
        self.state = state;
    }

    /// Notes the next state of the producer, which has no way back either.
    pub fn set_producer(&mut self, producer: Producer) {
        let is_next = match (self.producer, producer) {
            (Producer::Waiting, Producer::Active) => self.state == ExecutionState::Running,
            (Producer::Active, Producer::Stopping) => self.stop_outcome.is_some(),
            (Producer::Active | Producer::Stopping, Producer::Leaving(_)) => self.spec.kept,
            (_, Producer::Gone) => self.producer != Producer::Gone,
            _ => planted(Planted::EndTwiceInCancelRace),
        };
        assert!(is_next); // E1
        self.producer = producer;
    }

    /// The name of this execution in actions and timers.
    #[inline]
    pub fn handle(&self) -> Handle {
        self.id.slot
    }

    /// The dimensions of the ring, or the expected ones while the execution has none.
    pub fn ring_facts(&self) -> RingFacts {
        assert!(self.ring.is_some() || !matches!(self.state, ExecutionState::Running));
        self.ring.unwrap_or(self.spec.ring)
    }

    /// True if nothing more will be published.
    pub fn closed(&self) -> bool {
        self.outcome.is_some()
    }

    /// True if the tool need not wait for more subscribers.
    pub fn start_is_due(&self) -> bool {
        match self.spec.start {
            Start::Now => true,
            Start::AfterSubscribers { count, .. } => {
                self.audience.count() >= count || self.timers.start.is_none()
            }
        }
    }

    /// Updates the limits that depend on the subscribers and on the ring.
    pub fn audience_changed(&mut self) {
        self.trip_seq = self.next_trip_seq();
        self.burst_chunks = self.audience.smallest_burst();
        let bound = self.audience.bound(self.ring_facts());
        self.log.bound_deliveries(bound.map(Replay::delivery));
    }

    /// Returns the first chunk that has rare consequences: one that puts a local `disconnect`
    /// subscriber over its limit. It is 0 while the producer has not reported, or while progress is
    /// derived.
    pub fn next_trip_seq(&self) -> u64 {
        if !self.has_reported || self.derives_progress() {
            return 0;
        }
        self.audience.next_trip_seq(self.log.head_seq())
    }

    /// Gives an execution its ring: it runs from now on.
    pub fn set_ring(&mut self, ring: RingFacts) {
        assert!(self.ring.is_none()); // Each execution has one ring.
        self.ring = Some(ring);
        match self.log.head_seq() {
            0 => {
                self.log = ChunkLog::new(ring.slot_count);
                if self.spec.kept {
                    self.log.keep();
                }
            }
            _ => {
                assert!(self.spec.kept); // Without a ring nothing was published (E1).
                self.log.grow(ring.slot_count);
            }
        }
        self.enter(ExecutionState::Running);
        let filters = |local: &Local| !local.terms.kinds.is_all();
        if self.audience.locals.positions().any(|(local, _)| filters(local)) {
            self.log.keep_kind_totals();
        }
        self.audience.set_ring(ring);
        self.audience_changed();
    }

    /// Gives an execution a larger ring, which holds the same chunks.
    pub fn grow_ring(&mut self, ring: RingFacts) {
        let before = self.ring.replace(ring).expect("only a ring grows");
        assert!(ring.slot_count > before.slot_count);
        assert!(ring.data_bytes > before.data_bytes);
        assert!(ring.chunks_max > before.chunks_max);
        // They would look at the old ring.
        assert!(self.audience.remotes.iter().all(|remote| remote.gone));
        self.log.grow(ring.slot_count);
        self.audience.grow_ring(before, ring);
        self.gating.grow_ring(ring);
        self.audience_changed();
    }

    /// Notes what the disk keeps of an execution that goes on. Its ring will hold nothing of that.
    pub fn pass_kept(&mut self, before: &KindTotals) {
        assert!(self.spec.kept);
        assert!(self.ring.is_none());
        let all = before.of(Kinds::ALL);
        if all.chunks > 0 {
            self.log.skip(before);
        }
    }

    /// Becomes an execution that has ended so, whose ring holds nothing.
    pub fn revive(&mut self, verdict: &Verdict) {
        assert!(verdict.totals.of(Kinds::ALL).chunks == verdict.head_seq);
        self.pass_kept(&verdict.totals);
        (self.error, self.exit) = (verdict.error.clone(), verdict.exit);
        self.outcome = Some(verdict.outcome);
        self.set_producer(Producer::Gone);
        self.enter(ExecutionState::Draining);
    }

    /// Closes the execution: nothing more will be published. Its timers are disarmed, and the
    /// readers on other threads get the last report and the verdict.
    pub fn close(&mut self, outcome: Outcome, effects: &mut Effects) {
        assert!(self.outcome.is_none() || planted(Planted::EndTwiceInCancelRace)); // E3
        self.outcome = Some(outcome);
        self.set_producer(Producer::Gone);
        self.enter(ExecutionState::Draining);
        self.stop_gating();
        self.audience.locals.apart(); // Each of them has its end pending.
        self.derive_progress();
        let last_report = self.progress.close().filter(|_| !self.audience.remotes.is_empty());
        let verdict = self.verdict_of(outcome);
        // An error text belongs to a failure, or to the reason of a stop.
        let has_reason = outcome == Outcome::Failed || self.stop_outcome.is_some();
        assert!(self.error.is_none() || has_reason);
        self.disarm(effects);
        if let Some(progress) = last_report {
            effects.push(Action::Report(self.handle(), progress));
        }
        effects.push(Action::Verdict(self.handle(), Box::new(verdict)));
        effects.count_outcome(outcome);
    }

    /// Lets the disk keep the end. The producer is gone, and nothing is due any more.
    pub fn leave(&mut self, outcome: Outcome, effects: &mut Effects) {
        self.set_producer(Producer::Leaving(outcome));
        self.stop_gating();
        self.disarm(effects);
        effects.push(Action::KeepEnd(self.handle(), Box::new(self.verdict_of(outcome))));
    }

    /// Disarms the timers of an execution whose producer is gone, or that is suspended.
    pub fn disarm(&mut self, effects: &mut Effects) {
        let timers = std::mem::take(&mut self.timers);
        let Timers { start, hold, stall, sleep, progress, silence, total, retention, .. } = timers;
        assert!(retention.is_none());
        for timer in [start, hold, stall, sleep, progress, silence, total] {
            effects.disarm(timer);
        }
    }

    /// Returns its end, once it is closed.
    pub fn verdict(&self) -> Option<Verdict> {
        self.outcome.map(|outcome| self.verdict_of(outcome))
    }

    fn verdict_of(&self, outcome: Outcome) -> Verdict {
        Verdict {
            outcome,
            head_seq: self.log.head_seq(),
            totals: self.log.kind_totals(),
            error: self.error.clone(),
            exit: self.exit,
        }
    }

    /// True if the next chunk counts as a progress report, because the tool reports nothing itself.
    pub fn derives_progress(&self) -> bool {
        self.progress.derives() && self.timers.progress.is_none() && !self.closed()
    }

    /// Updates the derived progress, unless the tool reports its own.
    pub fn derive_progress(&mut self) {
        let published = Totals { chunks: self.log.head_seq(), bytes: self.log.total_bytes() };
        self.progress.derive(published);
    }

    /// Reports the newest progress now, or when the interval has passed.
    pub fn conflate_progress(&mut self, effects: &mut Effects) -> Reported {
        if self.timers.progress.is_some() {
            return Reported::Nothing; // The scheduled report will carry the newest number.
        }
        match self.progress.next_due() {
            Some(due) if due > effects.now => {
                assert!(!self.closed()); // E4
                let timer = effects.arm_at(due, Timer::Progress(self.handle()));
                note(&mut self.timers.progress, timer);
                Reported::Nothing
            }
            _ => self.report_progress(effects),
        }
    }

    /// Marks the newest progress to be reported to all subscribers.
    pub fn report_progress(&mut self, effects: &mut Effects) -> Reported {
        let Some(progress) = self.progress.report(effects.now) else { return Reported::Nothing };
        self.audience.locals.apart();
        if !self.audience.remotes.is_empty() {
            effects.push(Action::Report(self.handle(), progress));
        }
        Reported::ToSubscribers
    }

    /// Checks E1 to E7.
    pub fn audit(&self) {
        self.log.audit();
        if self.state == ExecutionState::Queued {
            assert!(self.ring.is_none());
            assert_eq!(self.producer, Producer::Waiting);
        }
        if let ExecutionState::Ended(outcome) = self.state {
            assert_eq!(self.outcome, Some(outcome));
        }
        if self.closed() {
            assert_eq!(self.producer, Producer::Gone);
            assert!(!self.gated());
            assert!(self.timers.silence.is_none() && self.timers.total.is_none());
            assert!(self.timers.sleep.is_none() && self.timers.start.is_none());
        } else {
            assert!(matches!(self.state, ExecutionState::Queued | ExecutionState::Running));
            assert!(self.timers.retention.is_none());
        }
        self.audience.locals.audit(self.progress.to_report());
        self.audit_gate();
    }
}
