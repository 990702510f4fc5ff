//! One execution: its state, its log, its subscribers, its timers.
//!
//! Invariants ([`Execution::audit`]):
//! - E1: the log only grows while the producer is active or stopping.
//! - E2: the gate is at or before every gating cursor, and before the chunks that are kept for
//!   subscribers that may come back. It moves back only when a reader attaches.
//! - E3: an outcome is decided once.
//! - E4: a timer is armed only in the states that it belongs to. It is noted in one place until it
//!   fires or is disarmed.
//! - E5: a producer waits only for a gating reader that has not read (or acknowledged) everything,
//!   or for the ring's hold for its first reader.
//! - E6: chunks that a client may come back for and has not acknowledged are not overwritten.

use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Instant, ProgressToken};
use crate::engine::event::{Hold, OpenSpec, RingFacts, Start};
use crate::engine::gate::Gate;
use crate::engine::locals::Locals;
use crate::engine::log::ChunkLog;
use crate::engine::policy::Log;
use crate::engine::progress::Tracker;
use crate::engine::reserve::{Replay, Reserve};
use crate::engine::subscriber::{Local, Remote};
use crate::engine::wheel::TimerId;
use crate::limits;
use crate::stream::{ExecutionState, Exit, Outcome, Policy};

/// The state of the producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Producer {
    /// The producer has not started: the execution waits for a ring, or for subscribers.
    Waiting,
    /// The tool runs.
    Active,
    /// The producer was told to stop.
    Stopping,
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
    pub locals: Locals,
    pub remotes: Vec<Remote>,
    /// True if local subscribers may have something pending.
    pub dirty: bool,
    /// True if a local subscriber was removed while the list was being walked.
    pub removed: bool,
    /// The index at which the next walk over the local subscribers begins, so that none is always
    /// last.
    pub turn: u32,
    /// The gate that was last set.
    pub gate: Gate,
    /// The chunks that are kept for subscribers that replay.
    pub reserve: Reserve,
    /// The time since which the producer has waited for the gate to move, if it waits.
    pub gated_at: Option<Instant>,
    /// The newest chunk when the gate was set again for a producer that no reader held back.
    pub gate_repeated_at: Option<u64>,
    /// The time at which the producer started, or last published or reported. It moves forward by
    /// the time for which the producer was held back since then.
    pub active_at: Instant,
    /// True if the producer has published or reported at least once.
    pub has_reported: bool,
    /// The first chunk whose publication has rare consequences: see [`Execution::next_trip_seq`].
    pub trip_seq: u64,
    /// The value of [`crate::engine::Engine::burst_chunks`].
    pub burst_chunks: u32,
    /// True if the shard was asked to report the cursors of readers on other threads.
    pub watching: bool,
    pub chunks_expected: Option<u64>,
    pub tracker: Tracker,
    pub progress_reported_at: Option<Instant>,
    /// Number of the report that local subscribers should have been given. Those below have one
    /// pending.
    pub progress_to_report: u64,
    pub opened_at: Instant,
    pub timers: Timers,
    /// The neighbours in the list of ended executions, oldest first.
    pub older: Option<u32>,
    pub newer: Option<u32>,
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
            log: ChunkLog::detached(),
            locals: Locals::default(),
            remotes: Vec::new(),
            dirty: false,
            removed: false,
            turn: 0,
            gate: Gate::OPEN,
            reserve: Reserve::default(),
            gated_at: None,
            gate_repeated_at: None,
            active_at: now,
            has_reported: false,
            trip_seq: u64::MAX,
            burst_chunks: limits::BURST_CHUNKS_MAX,
            watching: false,
            chunks_expected: None,
            tracker: Tracker::default(),
            progress_reported_at: None,
            progress_to_report: 0,
            opened_at: now,
            timers: Timers::default(),
            older: None,
            newer: None,
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
            (Producer::Waiting | Producer::Active | Producer::Stopping, Producer::Gone) => true,
            _ => planted(Planted::EndTwiceInCancelRace),
        };
        assert!(is_next); // E1
        self.producer = producer;
    }

    /// The dimensions of the ring, or the expected ones while the execution has none.
    pub fn ring_facts(&self) -> RingFacts {
        assert!(self.ring.is_some() || !matches!(self.state, ExecutionState::Running));
        self.ring.unwrap_or(self.spec.ring)
    }

    /// True if the producer waits for the gate to move.
    #[inline]
    pub fn gated(&self) -> bool {
        self.gated_at.is_some()
    }

    /// Notes that the producer waits no longer. The time for which it waited does not count as
    /// silence.
    pub fn ungate(&mut self, now: Instant) -> bool {
        let Some(gated_at) = self.gated_at.take() else { return false };
        if planted(Planted::InactivityWhileGated) {
            return true;
        }
        let (held_from, active_at) = (gated_at.max(self.active_at), self.active_at);
        self.active_at += now.since(held_from);
        assert!(self.active_at >= active_at); // The producer's time only gets longer.
        true
    }

    /// The longest silence that the producer is allowed now.
    pub fn silence_max(&self) -> Option<std::time::Duration> {
        if self.has_reported {
            self.spec.timeouts.inactivity
        } else {
            self.spec.timeouts.first_chunk
        }
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
                self.subscriber_count() >= count || self.timers.start.is_none()
            }
        }
    }

    /// True if the ring keeps its oldest chunks until the first subscriber attaches.
    pub fn holds(&self) -> bool {
        let can_hold = matches!(self.spec.hold, Hold::UntilRead { .. });
        assert!(can_hold || self.timers.hold.is_none()); // E4
        can_hold && self.timers.hold.is_some()
    }

    pub fn subscriber_count(&self) -> u32 {
        let locals = self.locals.positions().count();
        let remotes = self.remotes.iter().filter(|remote| !remote.gone).count();
        assert!(locals <= self.locals.len());
        assert!(remotes <= limits::READERS_PER_EXECUTION_MAX as usize);
        (locals + remotes) as u32
    }

    /// Computes the gate from the gating subscribers. Moves `reserve` to their slowest cursor.
    pub fn allowed(&self, reserve: &mut Reserve) -> Gate {
        let mut gate = if self.holds() { Gate::HELD } else { Gate::OPEN };
        let mut replay_seq = u64::MAX;
        for (local, next_seq) in self.locals.positions().filter(|(local, _)| local.gates()) {
            let limit = local.terms.limit;
            gate.read_seq = gate.read_seq.min(next_seq);
            match local.acked_seq() {
                _ if !local.replays => gate.gate_seq = gate.gate_seq.min(next_seq),
                None => replay_seq = replay_seq.min(next_seq),
                Some(acked_seq) => {
                    let kept_seq = self.log.first_unacked(acked_seq, next_seq, local.terms.kinds);
                    gate.gate_seq = gate.gate_seq.min(kept_seq);
                }
            }
            let chunks = u64::from(limit.chunks) + u64::from(planted(Planted::CreditOffByOne));
            gate.credit_seq = gate.credit_seq.min(next_seq.saturating_add(chunks));
            if limit.bytes != u64::MAX {
                let bytes_before = self.log.bytes_before(next_seq);
                gate.credit_bytes = gate.credit_bytes.min(bytes_before.saturating_add(limit.bytes));
            }
        }
        for remote in self.remotes.iter().filter(|remote| remote.gates()) {
            let limit = remote.terms.limit;
            gate.read_seq = gate.read_seq.min(remote.next_seq);
            match remote.acked_seq {
                _ if !remote.replays => gate.gate_seq = gate.gate_seq.min(remote.next_seq),
                None => replay_seq = replay_seq.min(remote.next_seq),
                Some(acked_seq) => {
                    let (next_seq, kinds) = (remote.next_seq, remote.terms.kinds);
                    let kept_seq = self.log.first_unacked(acked_seq, next_seq, kinds);
                    gate.gate_seq = gate.gate_seq.min(kept_seq);
                }
            }
            let credit_seq = remote.next_seq.saturating_add(limit.chunks.into());
            gate.credit_seq = gate.credit_seq.min(credit_seq);
            if limit.bytes != u64::MAX {
                let bytes_before = self.log.bytes_before(remote.next_seq);
                gate.credit_bytes = gate.credit_bytes.min(bytes_before.saturating_add(limit.bytes));
            }
        }
        if replay_seq != u64::MAX {
            gate.gate_seq = gate.gate_seq.min(reserve.before(replay_seq, &self.log));
        }
        gate.assert_sound(); // E2
        gate
    }

    /// Computes the gate, and stores how far the reserve has moved.
    pub fn move_reserve(&mut self) -> Gate {
        assert!(self.ring.is_some()); // Without a ring nothing is kept.
        let mut reserve = self.reserve;
        let gate = self.allowed(&mut reserve);
        self.reserve = reserve;
        gate
    }

    /// True if a reader or the hold may keep the producer waiting. Otherwise one more chunk of any
    /// length fits (V2 of the reserve).
    pub fn is_held_back(&self) -> bool {
        let head_seq = self.log.head_seq();
        let is_unacknowledged = |acked_seq: Option<u64>, next_seq, kinds| {
            let kept_seq = acked_seq.map(|seq| self.log.first_unacked(seq, next_seq, kinds));
            kept_seq.is_some_and(|kept_seq| kept_seq <= head_seq)
        };
        let has_unacknowledged = || {
            let locals = self.locals.positions().filter(|(l, _)| l.gates() && l.replays);
            let remotes = self.remotes.iter().filter(|r| r.gates() && r.replays);
            let mut locals = locals.map(|(l, seq)| (l.acked_seq(), seq, l.terms.kinds));
            let mut remotes = remotes.map(|r| (r.acked_seq, r.next_seq, r.terms.kinds));
            locals.any(|(acked, seq, kinds)| is_unacknowledged(acked, seq, kinds))
                || remotes.any(|(acked, seq, kinds)| is_unacknowledged(acked, seq, kinds))
        };
        self.holds() || !self.drained() || has_unacknowledged()
    }

    /// The slowest gating cursor; `None` without a gating reader.
    pub fn slowest_gating_seq(&self) -> Option<u64> {
        let locals = self.locals.positions().filter(|(l, _)| l.gates()).map(|(_, seq)| seq);
        let remotes = self.remotes.iter().filter(|r| r.gates()).map(|r| r.next_seq);
        locals.chain(remotes).min()
    }

    /// Updates the limits that depend on the subscribers and on the ring.
    pub fn audience_changed(&mut self) {
        self.trip_seq = self.next_trip_seq();
        self.burst_chunks = self.smallest_burst();
        let ring = self.ring_facts();
        let replays = |local: &Local| local.replays && local.detail.ack_window.is_none();
        let is_bounded = self.locals.positions().any(|(local, _)| replays(local));
        self.log.bound_deliveries(is_bounded.then(|| Replay::of(ring, None).delivery()));
    }

    /// The value of [`crate::engine::Engine::burst_chunks`].
    fn smallest_burst(&self) -> u32 {
        let bursts = self.locals.positions().map(|(local, _)| local.burst_chunks());
        let burst_chunks = bursts.min().unwrap_or(u32::MAX).min(limits::BURST_CHUNKS_MAX);
        assert!(burst_chunks > 0); // The shard would take no chunk, again and again.
        burst_chunks
    }

    /// True if every `block` subscriber has read everything.
    pub fn drained(&self) -> bool {
        self.slowest_gating_seq().is_none_or(|next_seq| next_seq > self.log.head_seq())
    }

    /// Returns the first chunk that will put a local `disconnect` subscriber over its limit in
    /// chunks. It is the next chunk where a limit in bytes makes that hard to foresee. It is 0
    /// while the producer has not reported, or while progress is derived.
    pub fn next_trip_seq(&self) -> u64 {
        if !self.has_reported || self.derives_progress() {
            return 0;
        }
        let foreseen = self.locals.positions().filter_map(|(local, next_seq)| {
            let terms = &local.terms;
            if terms.policy != Policy::Disconnect {
                return None;
            }
            if terms.limit.bytes != u64::MAX {
                return Some(self.log.head_seq() + 1);
            }
            // With a filter it can only be later, because fewer chunks count.
            let lag_from_seq = local.cursor.lag_begins(next_seq);
            Some((lag_from_seq + u64::from(terms.limit.chunks)).max(self.log.head_seq() + 1))
        });
        let trip_seq = foreseen.min().unwrap_or(u64::MAX);
        assert!(trip_seq > self.log.head_seq()); // It is a chunk to come.
        trip_seq
    }

    /// Checks E1 to E6.
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
        assert!(!self.gated() || self.is_held_back()); // E5
        let gate = self.allowed(&mut { self.reserve });
        assert!(self.gate.gate_seq <= gate.gate_seq || self.closed() || self.ring.is_none());
        self.locals.audit(self.progress_to_report);
        for (local, next_seq) in self.locals.positions() {
            // Unread chunks of a gating reader are still held, unless the reader attached late.
            assert!(!local.gates() || local.fresh || next_seq >= self.log.tail_seq());
            assert!(next_seq <= self.log.head_seq() + 1);
            assert!(local.demand == u32::MAX || local.demand <= 1 << 30);
            if let (true, true, Some(acked_seq)) = (local.replays, local.gates(), local.acked_seq())
            {
                let kept_seq = self.log.first_unacked(acked_seq, next_seq, local.terms.kinds);
                let is_kept = gate.gate_seq <= kept_seq && self.gate.gate_seq <= kept_seq;
                assert!(self.ring.is_none() || self.closed() || is_kept); // E6
            }
        }
    }
}
