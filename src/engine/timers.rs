//! The timers of the engine, and their consequences.
//!
//! Each armed timer is noted in one place of its execution or subscriber (E4). That bounds their
//! number: the wheel has room for the sum of all places, so arming a timer never fails.

use std::time::Duration;

use crate::base::planted::{Planted, planted};
use crate::base::{Handle, Instant, SubscriberId};
use crate::engine::action::Action;
use crate::engine::event::OnStall;
use crate::engine::execution::{Producer, Timers};
use crate::engine::policy::Log;
use crate::engine::subscriber::{ConnectionState, Local};
use crate::engine::wheel::TimerId;
use crate::engine::{Engine, EngineLimits, Execution};
use crate::limits;
use crate::stream::{DetachReason, Outcome};

/// A deadline of an execution or a subscriber. The handle may be stale when it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The deadline for `start: after_subscribers`.
    Start(Handle),
    /// The deadline for `hold: until_read`.
    Hold(Handle),
    /// The deadline for a gating reader that holds the producer, or the drain.
    Stall(Handle),
    /// The end of a tool's sleep.
    Sleep(Handle),
    /// The deadline for a silent producer. It may have published since the timer was armed.
    Silence(Handle),
    /// The deadline for the whole execution.
    Total(Handle),
    /// The end of an ended execution's retention.
    Retention(Handle),
    /// The time of the next progress report.
    Progress(Handle),
    /// The deadline for chunks that wait to be coalesced.
    Coalesce(SubscriberId),
    /// The deadline for the return of a broken connection.
    Grace(SubscriberId),
}

/// The timers of one execution that can be armed at once.
const TIMERS_PER_EXECUTION: u32 = {
    let mut sum = 0;
    sum += 1; // `Timers::start`: the tool waits for its first subscribers.
    sum += 1; // `Timers::hold`: the ring is held for its first reader.
    sum += 1; // `Timers::stall`: a reader holds the producer, or the drain.
    sum += 1; // `Timers::silence`: the next chunk or report is due.
    sum += 1; // `Timers::total`: the run is limited.
    sum += 1; // `Timers::sleep`: the tool sleeps.
    sum += 1; // `Timers::retention`: the execution has ended.
    sum += 1; // `Timers::progress`: a report waits for its interval.
    sum
};

/// The timers of one subscriber that can be armed at once.
const TIMERS_PER_SUBSCRIBER: u32 = {
    let mut sum = 0;
    sum += 1; // `Detail::coalesce_timer`: chunks wait for others.
    sum += 1; // `Detail::grace_timer` or `Remote::grace_timer`: the connection broke.
    sum
};

/// The timers of one shard that can be armed at once.
pub(super) const fn timers_max(limits: &EngineLimits) -> u32 {
    let mut sum = 0;
    sum += limits.executions_max * TIMERS_PER_EXECUTION;
    sum += limits.subscribers_max * TIMERS_PER_SUBSCRIBER;
    assert!(sum > 0);
    sum
}

const _: () = {
    // Each place for a timer of an execution is a part of the sum.
    let places_bytes = TIMERS_PER_EXECUTION as usize * size_of::<Option<TimerId>>();
    assert!(size_of::<Timers>() == places_bytes + size_of::<(u64, Instant)>());
    let executions_max = limits::EXECUTIONS_CEILING as u64;
    let subscribers_max = limits::SUBSCRIBERS_CEILING as u64;
    let timers_max = executions_max * TIMERS_PER_EXECUTION as u64
        + subscribers_max * TIMERS_PER_SUBSCRIBER as u64;
    assert!(timers_max < u32::MAX as u64); // The index of a timer is 32 bits.
    assert!(size_of::<Timer>() <= 16); // A node of the wheel stays within a cache line.
};

/// Notes an armed timer in its place (E4). The place is empty, because a timer without a note could
/// not be disarmed.
pub(super) fn note(place: &mut Option<TimerId>, timer: TimerId) {
    assert!(place.is_none());
    *place = Some(timer);
}

/// Empties the place of a timer that has fired. The other half of [`note`]: what fires was noted.
fn fired(place: &mut Option<TimerId>) {
    let timer = place.take();
    assert!(timer.is_some() || planted(Planted::TimerFiresAfterCancel)); // E4
}

/// The limit of [`crate::engine::Timeouts`] that was exceeded.
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
    /// Time for which a gating reader may stand still. It is short after a cancellation.
    pub(super) fn stall_deadline(&self) -> Duration {
        let deadline = match self.outcome {
            Some(Outcome::Cancelled) => self.spec.block_deadline.min(limits::CANCELLED_STALL),
            _ => self.spec.block_deadline,
        };
        assert!(deadline <= self.spec.block_deadline);
        deadline
    }
}

impl Engine {
    pub(super) fn fire_timers(&mut self) {
        while let Some(timer) = self.effects.pop_expired() {
            match timer {
                Timer::Coalesce(subscriber) => self.coalesced(subscriber),
                Timer::Grace(subscriber) => self.grace_over(subscriber),
                Timer::Start(execution) => {
                    self.with(execution, |e| fired(&mut e.timers.start));
                    self.start_if_due(execution);
                }
                Timer::Hold(execution) => {
                    self.with(execution, |e| fired(&mut e.timers.hold));
                    self.update_gate(execution);
                }
                Timer::Stall(execution) => self.stalled(execution),
                Timer::Sleep(execution) => {
                    self.with(execution, |e| fired(&mut e.timers.sleep));
                    self.effects.push(Action::WakeProducer(execution));
                }
                Timer::Silence(execution) => self.silent(execution),
                Timer::Total(execution) => {
                    self.with(execution, |e| fired(&mut e.timers.total));
                    self.time_out(execution, Timeout::Total);
                }
                Timer::Retention(execution) => {
                    self.effects.counters.executions_forgotten += 1;
                    self.with(execution, |e| fired(&mut e.timers.retention));
                    self.forget(execution);
                }
                Timer::Progress(execution) => {
                    self.with(execution, |e| fired(&mut e.timers.progress));
                    self.progress_due(execution);
                }
            }
        }
        assert!(self.next_deadline().is_none_or(|deadline| deadline > self.effects.now));
    }

    pub(super) fn with(&mut self, execution: Handle, change: impl FnOnce(&mut Execution)) {
        // An execution disarms its timers before it is removed.
        change(self.executions.get_mut(execution).expect("a timer's execution lives"));
    }

    /// Starts the time limits of a producer that begins.
    pub(super) fn start_timeouts(&mut self, execution: Handle) {
        let now = self.effects.now;
        let e = self.executions.get_mut(execution).expect("it is being started");
        assert!(e.producer == Producer::Active);
        e.active_at = now;
        let total = e.spec.timeouts.total;
        self.listen(execution);
        if let Some(total) = total {
            let timer = self.effects.arm(total, Timer::Total(execution));
            self.with(execution, |e| note(&mut e.timers.total, timer));
        }
    }

    /// Arms the silence timer of a producer, unless a reader holds it back.
    pub(super) fn listen(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a living execution");
        if e.producer != Producer::Active || e.gated() || e.timers.silence.is_some() {
            return;
        }
        let Some(silence_max) = e.silence_max() else { return };
        assert!(!e.closed()); // E4: an active producer's execution is open.
        let deadline = e.active_at + silence_max;
        let timer = self.effects.arm_at(deadline, Timer::Silence(execution));
        self.with(execution, |e| note(&mut e.timers.silence, timer));
    }

    /// Notes the first chunk or report of a producer. From now on `inactivity` is its limit.
    pub(super) fn note_first_report(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a living execution");
        assert!(!e.has_reported); // The first is heard once.
        e.has_reported = true;
        let timer = e.timers.silence.take();
        self.effects.disarm(timer);
        self.listen(execution);
    }

    /// Notes that the newest chunks were published earlier than they were reported.
    pub(super) fn note_earlier_activity(&mut self, execution: Handle, at: Instant) {
        let now = self.effects.now;
        if let Some(e) = self.executions.get_mut(execution) {
            e.active_at = at.min(now).max(e.opened_at);
            assert!(e.active_at >= e.opened_at); // `at` comes from another process.
        }
    }

    /// Handles the silence timer: the producer has timed out, or has published since and is given
    /// the rest. A chunk does not move the timer; it only stores its time.
    fn silent(&mut self, execution: Handle) {
        let now = self.effects.now;
        let e = self.executions.get_mut(execution).expect("a timer's execution lives");
        fired(&mut e.timers.silence);
        let timeout = if e.has_reported { Timeout::Inactivity } else { Timeout::FirstChunk };
        let silent_for = now.since(e.active_at);
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
        fired(&mut local.detail.coalesce_timer);
        assert!(local.coalesces);
        local.flush = true;
        self.mark_dirty(seat.execution);
    }

    fn grace_over(&mut self, subscriber: SubscriberId) {
        if let Some(remote) = self.remote_mut(subscriber) {
            fired(&mut remote.grace_timer);
        } else {
            let local = self.local_mut(subscriber).expect("a timer's subscriber lives");
            fired(&mut local.detail.grace_timer);
            assert_eq!(local.connection, ConnectionState::Lost);
        }
        self.detach(subscriber, DetachReason::Lost);
    }

    /// Fails the execution if its producer still waits behind the same chunk without a gating
    /// reader.
    fn fail_if_stuck(&mut self, execution: Handle) {
        let e = self.executions.get_mut(execution).expect("a timer's execution lives");
        if e.gate_repeated_at == Some(e.log.head_seq()) && e.producer == Producer::Active {
            e.error = Some("the producer waited for room, and nobody held it back".into());
            self.effects.counters.producers_stuck += 1;
            self.stop(execution, Outcome::Failed);
        }
    }

    pub(super) fn connection_moved(&mut self, subscriber: SubscriberId) {
        let now = self.effects.now;
        if let Some(local) = self.local_mut(subscriber) {
            local.detail.moved_at = now;
        }
    }

    /// Detaches the slowest gating readers, or fails the execution. A reader that came to the same
    /// place while the deadline ran has a deadline of its own.
    fn stalled(&mut self, execution: Handle) {
        let now = self.effects.now;
        let e = self.executions.get_mut(execution).expect("a timer's execution lives");
        fired(&mut e.timers.stall);
        if !e.gated() && !e.closed() {
            self.fail_if_stuck(execution);
            return;
        }
        // The hold for the first reader has a deadline of its own, and no reader is to blame.
        let Some(slowest_seq) = e.slowest_gating_seq() else { return };
        let (from_seq, from) = e.timers.stall_from;
        if e.closed() && slowest_seq > from_seq {
            return self.wait_for_readers(execution);
        }
        let deadline = e.stall_deadline();
        // During the drain a reader also moves within a chunk, but for at most `block_deadline`.
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
        assert!(!stalled.is_empty() || !others.is_empty()); // Some reader has the slowest cursor.
        let is_active = e.producer == Producer::Active; // A producer that stops may still publish.
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
            && let Some(e) = self.executions.get_mut(execution)
            && (e.gated() || e.closed())
        {
            let timer = e.timers.stall.take();
            self.effects.disarm(timer);
            let timer = self.effects.arm_at(since + deadline, Timer::Stall(execution));
            self.with(execution, |e| note(&mut e.timers.stall, timer));
        }
        self.settle(execution);
    }
}
