//! The effects of an event: actions for the shard, armed and disarmed timers, and counts.
//!
//! Each part of the engine is handed the effects and adds its own. Nothing here knows executions
//! or subscribers; they are named by their handles only.

use std::collections::VecDeque;
use std::time::Duration;

use crate::base::Instant;
use crate::base::planted::{Planted, planted};
use crate::engine::action::{Action, Reply};
use crate::engine::timers::Timer;
use crate::engine::wheel::{TimerId, Wheel};
use crate::limits;
use crate::stream::{DetachReason, Gap, Outcome};
use crate::trace::Counters;

/// Pending actions for which memory is allocated at the start. An event that ends more subscribers
/// than that allocates (A3).
const ACTIONS_EXPECTED: usize = 256;

const _: () = {
    // The readers of one execution elsewhere can be detached by one event without an allocation.
    assert!(limits::READERS_PER_EXECUTION_MAX as usize <= ACTIONS_EXPECTED);
};

/// The effects of the events so far that the shard has not taken yet, at the time of the last one.
#[derive(Debug)]
pub(super) struct Effects {
    /// The time of the event that is being handled.
    pub now: Instant,
    pub counters: Counters,
    /// Pending actions, oldest first. Deliveries are not among them: each is computed on request.
    actions: VecDeque<Action>,
    wheel: Wheel<Timer>,
    /// True if a timer was armed since the last [`Effects::take_has_armed`].
    has_armed: bool,
}

impl Effects {
    /// Creates an empty list of actions, and a wheel with room for `timers_max` timers.
    pub fn new(timers_max: u32, now: Instant) -> Effects {
        assert!(timers_max > 0);
        Effects {
            now,
            counters: Counters::default(),
            actions: VecDeque::with_capacity(ACTIONS_EXPECTED),
            wheel: Wheel::new(timers_max, now),
            has_armed: false,
        }
    }

    /// True if no action is pending.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Removes and returns the oldest pending action.
    #[inline]
    pub fn pop(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Queues an action behind all others.
    #[inline]
    pub fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Queues the answer to a request, before all other actions that follow from it.
    pub fn reply(&mut self, reply: Reply) {
        // The shard has taken the answer to the last request before it passes on another one.
        assert!(!matches!(self.actions.front(), Some(Action::Reply(_))));
        self.actions.push_front(Action::Reply(reply));
    }

    /// Queues an action before all others.
    pub fn push_first(&mut self, action: Action) {
        self.actions.push_front(action);
    }

    /// Arms a timer. The caller notes it.
    pub fn arm(&mut self, after: Duration, timer: Timer) -> TimerId {
        self.arm_at(self.now + after, timer)
    }

    /// Arms a timer that fires at `deadline`. The caller notes it.
    pub fn arm_at(&mut self, deadline: Instant, timer: Timer) -> TimerId {
        self.has_armed = true;
        self.wheel.arm(deadline, timer).expect("the wheel was made for all timers there can be")
    }

    /// Disarms a timer that was noted, if there is one.
    pub fn disarm(&mut self, timer: Option<TimerId>) {
        if let Some(timer) = timer {
            let cancelled = self.wheel.cancel(timer);
            assert!(cancelled.is_some()); // E4: a noted timer is armed.
        }
    }

    /// Removes and returns a timer whose deadline has passed.
    pub fn pop_expired(&mut self) -> Option<Timer> {
        let timer = self.wheel.pop_expired(self.now)?;
        self.counters.timers_fired += 1;
        Some(timer)
    }

    /// The earliest deadline of a timer.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }

    /// Returns true if a timer was armed since the last call.
    #[inline]
    pub fn take_has_armed(&mut self) -> bool {
        std::mem::take(&mut self.has_armed)
    }

    /// Counts a gap that is being reported.
    pub fn count_gap(&mut self, gap: &Gap) {
        assert!(gap.from_seq <= gap.to_seq);
        assert!(gap.chunk_count > 0); // A gap without a missed chunk is none.
        assert!(gap.chunk_count <= gap.to_seq - gap.from_seq + 1); // P2
        self.counters.gaps_delivered += 1;
        self.counters.chunks_missed += gap.chunk_count;
        self.counters.bytes_missed += gap.byte_count;
    }

    /// Counts the outcome of an execution. Each has one.
    pub fn count_outcome(&mut self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Completed => &mut self.counters.executions_completed,
            Outcome::Failed => &mut self.counters.executions_failed,
            Outcome::Cancelled => &mut self.counters.executions_cancelled,
            Outcome::TimedOut => &mut self.counters.executions_timed_out,
        };
        *counter += 1;
        let Counters {
            executions_opened,
            executions_completed,
            executions_failed,
            executions_cancelled,
            executions_timed_out,
            ..
        } = self.counters;
        let stopped = executions_cancelled + executions_timed_out;
        let ended = executions_completed + executions_failed + stopped;
        assert!(ended <= executions_opened || planted(Planted::EndTwiceInCancelRace)); // E3
    }

    /// Counts a subscriber that is detached before its execution ends.
    pub fn count_detached(&mut self, reason: DetachReason) {
        let counter = match reason {
            DetachReason::Lag => &mut self.counters.subscribers_detached_lag,
            DetachReason::Stall => &mut self.counters.subscribers_detached_stall,
            DetachReason::Lost => &mut self.counters.subscribers_detached_lost,
            DetachReason::Shutdown => &mut self.counters.subscribers_detached_shutdown,
            DetachReason::Evicted => &mut self.counters.subscribers_detached_evicted,
            DetachReason::Removed => &mut self.counters.subscribers_detached_left,
        };
        *counter += 1;
        self.count_end();
    }

    /// Counts the end of one subscriber. Each subscriber has at most one.
    pub fn count_end(&mut self) {
        self.counters.ends_delivered += 1;
        assert!(self.counters.ends_delivered <= self.counters.subscribers_attached);
    }

    /// Checks the wheel.
    pub fn audit(&self) {
        self.wheel.audit();
    }
}
