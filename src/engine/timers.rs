//! What the wheel wakes the engine for.

use std::time::Duration;

use crate::base::planted::{Planted, planted};
use crate::base::{Handle, Instant, SubscriberId};
use crate::engine::action::{Action, DetachReason, Outcome};
use crate::engine::event::OnStall;
use crate::engine::execution::Producer;
use crate::engine::policy::Log;
use crate::engine::subscriber::{Connection, Local};
use crate::engine::wheel::TimerId;
use crate::engine::{Engine, Execution};
use crate::limits;

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
    /// The producer may have been silent for too long.
    Silence(Handle),
    /// The execution has taken too long.
    Total(Handle),
    /// An ended execution is to be forgotten.
    Retention(Handle),
    /// The next progress report may go out.
    Progress(Handle),
    /// Chunks have waited long enough for company.
    Coalesce(SubscriberId),
    /// A broken connection did not come back.
    Grace(SubscriberId),
}

/// Which limit of [`crate::engine::Timeouts`] was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timeout {
    FirstChunk,
    Inactivity,
    Total,
}

fn in_words(what: &str, limit: Option<Duration>) -> String {
    format!("timed out: {what} {:?}", limit.expect("it was passed"))
}

impl Execution {
    /// The time that a gating reader may stand still. It is short behind a cancellation.
    pub(super) fn stall_deadline(&self) -> Duration {
        match self.outcome {
            Some(Outcome::Cancelled) => self.spec.block_deadline.min(limits::CANCELLED_STALL),
            _ => self.spec.block_deadline,
        }
    }
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
                Timer::Silence(execution) => self.silent(execution),
                Timer::Total(execution) => {
                    self.with(execution, |e| e.timers.total = None);
                    self.time_out(execution, Timeout::Total);
                }
                Timer::Retention(execution) => {
                    self.counters.executions_forgotten += 1;
                    self.with(execution, |e| e.timers.retention = None);
                    self.forget(execution);
                }
                Timer::Progress(execution) => self.progress_due(execution),
            }
        }
    }

    pub(super) fn with(&mut self, execution: Handle, change: impl FnOnce(&mut Execution)) {
        // An execution disarms its timers before it goes.
        change(self.executions.get_mut(execution).expect("a timer's execution lives"));
    }

    /// The producer begins: from here on it is listened to.
    pub(super) fn start_timeouts(&mut self, execution: Handle) {
        let now = self.now;
        let e = self.executions.get_mut(execution).expect("it is being started");
        e.heard_at = now;
        let total = e.spec.timeouts.total;
        self.listen(execution);
        if let Some(total) = total {
            let timer = self.arm(total, Timer::Total(execution));
            self.with(execution, |e| e.timers.total = Some(timer));
        }
    }

    /// Has the silence of a producer measured, unless a reader holds it back.
    pub(super) fn listen(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a living execution");
        if e.producer != Producer::Active || e.gated() || e.timers.silence.is_some() {
            return;
        }
        let Some(silence_max) = e.silence_max() else { return };
        let deadline = e.heard_at + silence_max;
        let timer = self.arm_at(deadline, Timer::Silence(execution));
        self.with(execution, |e| e.timers.silence = Some(timer));
    }

    /// The first that is heard of a producer: another limit holds from now on.
    pub(super) fn heard_first(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a living execution");
        e.heard = true;
        let timer = e.timers.silence.take();
        self.disarm(timer);
        self.listen(execution);
    }

    /// What was published last had come some time ago.
    pub(super) fn heard_earlier(&mut self, execution: Handle, at: Instant) {
        let now = self.now;
        if let Some(e) = self.executions.get_mut(execution) {
            e.heard_at = at.min(now).max(e.opened_at);
        }
    }

    /// Was the producer silent all the time? What it published meanwhile has not moved the timer:
    /// a chunk costs no more than the note of when it came.
    fn silent(&mut self, execution: Handle) {
        let now = self.now;
        let e = self.executions.get_mut(execution).expect("a timer's execution lives");
        e.timers.silence = None;
        let timeout = if e.heard { Timeout::Inactivity } else { Timeout::FirstChunk };
        let silent_for = now.since(e.heard_at);
        let is_held = e.gated() && !planted(Planted::InactivityWhileGated);
        if !is_held && e.silence_max().is_some_and(|silence_max| silent_for >= silence_max) {
            self.time_out(execution, timeout);
        } else {
            self.listen(execution);
        }
    }

    fn time_out(&mut self, execution: Handle, timeout: Timeout) {
        let e = self.executions.get_mut(execution).expect("a timer's execution lives");
        if e.producer != Producer::Active {
            return; // It is being stopped for another reason.
        }
        let timeouts = e.spec.timeouts;
        let text = match timeout {
            Timeout::FirstChunk => in_words("no first chunk within", timeouts.first_chunk),
            Timeout::Inactivity => in_words("nothing more within", timeouts.inactivity),
            Timeout::Total => in_words("not done within", timeouts.total),
        };
        e.error = Some(text.into());
        self.stop(execution, Outcome::TimedOut);
    }

    fn coalesced(&mut self, subscriber: SubscriberId) {
        let seat = *self.seats.get(subscriber.0).expect("a timer's subscriber lives");
        let local = self.local_mut(subscriber).expect("only a local one coalesces");
        local.detail.coalesce_timer = None;
        local.flush = true;
        self.mark_dirty(seat.execution);
    }

    fn grace_over(&mut self, subscriber: SubscriberId) {
        if let Some(remote) = self.remote_mut(subscriber) {
            remote.grace_timer = None;
        } else {
            let local = self.local_mut(subscriber).expect("a timer's subscriber lives");
            local.detail.grace_timer = None;
            assert_eq!(local.connection, Connection::Lost);
        }
        self.detach(subscriber, DetachReason::Lost);
    }

    /// Fails the execution if its producer still waits for nobody behind the same chunk.
    fn fail_if_stuck(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a timer's execution lives");
        if e.told_again_at == Some(e.log.head_seq()) && e.producer == Producer::Active {
            e.error = Some("the producer waited for room, and nobody held it back".into());
            self.counters.producers_stuck += 1;
            self.stop(execution, Outcome::Failed);
        }
    }

    pub(super) fn connection_moved(&mut self, subscriber: SubscriberId) {
        let now = self.now;
        if let Some(local) = self.local_mut(subscriber) {
            local.detail.moved_at = now;
        }
    }

    /// The slowest gating readers lose their place, or the execution its life. Who came while the
    /// deadline ran, to where they stand, has one of its own.
    fn stalled(&mut self, execution: Handle) {
        let now = self.now;
        let e = self.executions.get_mut(execution).expect("a timer's execution lives");
        e.timers.stall = None;
        if !e.gated() && !e.closed() {
            self.fail_if_stuck(execution);
            return;
        }
        // A ring that is held for its first reader is held by nobody who could be blamed.
        let Some(slowest_seq) = e.slowest_gating_seq() else { return };
        let (from_seq, from) = e.timers.stall_from;
        if e.closed() && slowest_seq > from_seq {
            return self.wait_for_readers(execution);
        }
        let deadline = e.stall_deadline();
        // In the middle of a chunk a reader moves, too, if only for as long as any may stand still.
        let until = from + e.spec.block_deadline;
        let moves =
            |l: &Local| e.closed() && now < until && now.since(l.detail.moved_at) < deadline;
        let is_slowest = |&(l, seq): &(&Local, u64)| l.gates() && seq == slowest_seq;
        let locals = e.locals.positions().filter(is_slowest).map(|(local, _)| local);
        let since = |l: &Local| if moves(l) { l.detail.moved_at } else { l.detail.since };
        let remotes = e.remotes.iter().filter(|r| r.gates() && r.next_seq == slowest_seq);
        let slowest = locals.map(|l| (l.id, since(l))).chain(remotes.map(|r| (r.id, r.since)));
        let (stalled, others): (Vec<_>, Vec<_>) =
            slowest.partition(|(_, since)| now.since(*since) >= deadline);
        let is_active = e.producer == Producer::Active; // One that stops has last words, maybe.
        if e.spec.on_stall == OnStall::Fail && is_active && !stalled.is_empty() {
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
            && (e.gated() || e.closed())
        {
            let timer = e.timers.stall;
            self.disarm(timer);
            let timer = self.arm_at(since + deadline, Timer::Stall(execution));
            self.with(execution, |e| e.timers.stall = Some(timer));
        }
        self.settle(execution);
    }
}
