//! The timers of the engine, and the time limits of a producer.
//!
//! Each armed timer is noted in one place of its execution or subscriber (E4). That bounds their
//! number: the wheel has room for the sum of all places, so arming a timer never fails.

use std::time::Duration;

use crate::base::planted::{Planted, planted};
use crate::base::{Handle, Instant, SubscriberId};
use crate::engine::EngineLimits;
use crate::engine::effects::Effects;
use crate::engine::execution::{Execution, Producer, Timers};
use crate::engine::wheel::TimerId;
use crate::limits;

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
pub(super) fn fired(place: &mut Option<TimerId>) {
    let timer = place.take();
    assert!(timer.is_some() || planted(Planted::TimerFiresAfterCancel)); // E4
}

/// The limit of [`crate::engine::Timeouts`] that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    FirstChunk,
    Inactivity,
    Total,
}

fn in_words(what: &str, limit: Option<Duration>) -> String {
    format!("timed out: {what} {:?}", limit.expect("it was passed"))
}

impl Execution {
    /// Starts the time limits of a producer that begins.
    pub fn start_timeouts(&mut self, effects: &mut Effects) {
        assert!(self.producer == Producer::Active);
        self.active_at = effects.now;
        self.listen(effects);
        if let Some(total) = self.spec.timeouts.total {
            let timer = effects.arm(total, Timer::Total(self.handle()));
            note(&mut self.timers.total, timer);
        }
    }

    /// The longest silence that the producer is allowed now.
    fn silence_max(&self) -> Option<Duration> {
        if self.has_reported {
            self.spec.timeouts.inactivity
        } else {
            self.spec.timeouts.first_chunk
        }
    }

    /// Arms the silence timer of a producer, unless a reader holds it back.
    pub fn listen(&mut self, effects: &mut Effects) {
        if self.producer != Producer::Active || self.gated() || self.timers.silence.is_some() {
            return;
        }
        let Some(silence_max) = self.silence_max() else { return };
        assert!(!self.closed()); // E4: an active producer's execution is open.
        let deadline = self.active_at + silence_max;
        let timer = effects.arm_at(deadline, Timer::Silence(self.handle()));
        note(&mut self.timers.silence, timer);
    }

    /// Notes the first chunk or report of a producer. From now on `inactivity` is its limit.
    pub fn note_first_report(&mut self, effects: &mut Effects) {
        assert!(!self.has_reported); // The first is heard once.
        self.has_reported = true;
        effects.disarm(self.timers.silence.take());
        self.listen(effects);
    }

    /// Notes that the newest chunks were published earlier than they were reported.
    pub fn note_earlier_activity(&mut self, at: Instant, now: Instant) {
        self.active_at = at.min(now).max(self.opened_at);
        assert!(self.active_at >= self.opened_at); // `at` comes from another process.
    }

    /// Handles the silence timer: the producer has timed out, or has published since and is given
    /// the rest. A chunk does not move the timer; it only stores its time.
    pub fn silent(&mut self, effects: &mut Effects) -> Option<Timeout> {
        fired(&mut self.timers.silence);
        let silent_for = effects.now.since(self.active_at);
        let is_held = self.gated() && !planted(Planted::InactivityWhileGated);
        if !is_held && self.silence_max().is_some_and(|silence_max| silent_for >= silence_max) {
            return Some(match self.has_reported {
                true => Timeout::Inactivity,
                false => Timeout::FirstChunk,
            });
        }
        self.listen(effects);
        None
    }

    /// The error text of a producer that has exceeded a limit.
    pub fn timeout_text(&self, timeout: Timeout) -> String {
        let timeouts = self.spec.timeouts;
        match timeout {
            Timeout::FirstChunk => in_words("no first chunk within", timeouts.first_chunk),
            Timeout::Inactivity => in_words("nothing more within", timeouts.inactivity),
            Timeout::Total => in_words("not done within", timeouts.total),
        }
    }
}
