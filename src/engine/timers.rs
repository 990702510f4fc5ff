//! What the wheel wakes the engine for.

use std::time::Duration;

use crate::base::{Handle, Instant, SubscriberId};
use crate::engine::action::{Action, DetachReason, Outcome};
use crate::engine::event::OnStall;
use crate::engine::subscriber::{Connection, Local};
use crate::engine::wheel::TimerId;
use crate::engine::{Engine, Execution};

/// A deadline of an execution or a subscriber. The handle may be stale when it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// `start: after_subscribers` has waited long enough.
    Start(Handle),
    /// `hold: until_read` has waited long enough.
    Hold(Handle),
    /// A gating reader has held the producer, or the drain, for too long.
    Stall(Handle),
    /// A tool's sleep is over.
    Sleep(Handle),
    /// An ended execution is to be forgotten.
    Retention(Handle),
    /// The next progress report may go out.
    Progress(Handle),
    /// Chunks have waited long enough for company.
    Coalesce(SubscriberId),
    /// A broken connection did not come back.
    Grace(SubscriberId),
}

impl Engine {
    /// Arms a timer. There is one for everything that may need one, by construction.
    pub(super) fn arm(&mut self, after: Duration, timer: Timer) -> TimerId {
        self.arm_at(self.now + after, timer)
    }

    pub(super) fn arm_at(&mut self, deadline: Instant, timer: Timer) -> TimerId {
        self.has_armed = true;
        self.wheel.arm(deadline, timer).expect("the wheel was made for all timers there can be")
    }

    pub(super) fn disarm(&mut self, timer: Option<TimerId>) {
        if let Some(timer) = timer {
            self.wheel.cancel(timer);
        }
    }

    pub(super) fn fire_timers(&mut self) {
        while let Some(timer) = self.wheel.pop_expired(self.now) {
            self.counters.timers_fired += 1;
            match timer {
                Timer::Coalesce(subscriber) => self.coalesced(subscriber),
                Timer::Grace(subscriber) => self.grace_over(subscriber),
                Timer::Start(execution) => {
                    self.with(execution, |e| e.timers.start = None);
                    self.start_if_due(execution);
                }
                Timer::Hold(execution) => {
                    self.with(execution, |e| e.timers.hold = None);
                    self.update_gate(execution);
                }
                Timer::Stall(execution) => self.stalled(execution),
                Timer::Sleep(execution) => {
                    self.with(execution, |e| e.timers.sleep = None);
                    self.wishes.push_back(Action::WakeProducer(execution));
                }
                Timer::Retention(execution) => {
                    self.counters.executions_forgotten += 1;
                    self.with(execution, |e| e.timers.retention = None);
                    self.forget(execution);
                }
                Timer::Progress(execution) => {
                    self.with(execution, |e| e.timers.progress = None);
                    self.tell_progress(execution);
                }
            }
        }
    }

    fn with(&mut self, execution: Handle, change: impl FnOnce(&mut Execution)) {
        // An execution disarms its timers before it goes.
        change(self.executions.get_mut(execution).expect("a timer's execution lives"));
    }

    fn coalesced(&mut self, subscriber: SubscriberId) {
        let seat = *self.seats.get(subscriber.0).expect("a timer's subscriber lives");
        let local = self.local_mut(subscriber).expect("only a local one coalesces");
        local.detail.coalesce_timer = None;
        local.flush = true;
        self.mark_dirty(seat.execution);
    }

    fn grace_over(&mut self, subscriber: SubscriberId) {
        let local = self.local_mut(subscriber).expect("a timer's subscriber lives");
        local.detail.grace_timer = None;
        assert_eq!(local.connection, Connection::Lost);
        self.detach(subscriber, DetachReason::Stall);
    }

    /// The slowest gating readers lose their place, or the execution its life. Who came while the
    /// deadline ran, to where they stand, has one of its own.
    fn stalled(&mut self, execution: Handle) {
        let now = self.now;
        let e = self.executions.get_mut(execution).expect("a timer's execution lives");
        e.timers.stall = None;
        // A ring that is held for its first reader is held by nobody who could be blamed.
        let Some(slowest_seq) = e.slowest_gating_seq() else { return };
        let deadline = e.spec.block_deadline;
        let is_slowest = |&(l, seq): &(&Local, u64)| l.gates() && seq == slowest_seq;
        let locals = e.locals.positions().filter(is_slowest).map(|(local, _)| local);
        let remotes = e.remotes.iter().filter(|r| r.gates() && r.next_seq == slowest_seq);
        let slowest =
            locals.map(|l| (l.id, l.detail.since)).chain(remotes.map(|r| (r.id, r.since)));
        let (stalled, others): (Vec<_>, Vec<_>) =
            slowest.partition(|(_, since)| now.since(*since) >= deadline);
        if e.spec.on_stall == OnStall::Fail && !e.closed() && !stalled.is_empty() {
            e.error = Some("a block subscriber held the producer past its deadline".into());
            self.stop(execution, Outcome::Failed);
            return;
        }
        for (subscriber, _) in stalled {
            self.detach(subscriber, DetachReason::Stall);
        }
        self.update_gate(execution);
        if let Some(since) = others.into_iter().map(|(_, since)| since).min()
            && let Some(e) = self.executions.get(execution)
            && (e.gated || e.closed())
        {
            let timer = e.timers.stall;
            self.disarm(timer);
            let timer = self.arm_at(since + deadline, Timer::Stall(execution));
            self.with(execution, |e| e.timers.stall = Some(timer));
        }
        self.settle(execution);
    }
}
