//! Measures a producer's silence, without the engine, and decides whether that is a timeout.

use std::time::Duration;

use crate::base::Instant;
use crate::engine::Timeouts;
use crate::limits;

/// The silence of one producer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub timeouts: Timeouts,
    started_at: Option<Instant>,
    heard_at: Instant,
    was_heard: bool,
    /// The time at which it was refused room, until it may have room again.
    held_since: Option<Instant>,
    /// The time at which it was stopped: later events of it do not count.
    stopped_at: Option<Instant>,
    /// The time of an event during the shard's turn, which may have looked before.
    unseen_at: Option<Instant>,
    /// The time for which a reader has held it back since its last event.
    held: Duration,
}

impl Patience {
    pub fn new(timeouts: Timeouts) -> Patience {
        Patience {
            timeouts,
            started_at: None,
            heard_at: Instant::ZERO,
            was_heard: false,
            held_since: None,
            stopped_at: None,
            unseen_at: None,
            held: Duration::ZERO,
        }
    }

    pub fn start(&mut self, now: Instant) {
        self.started_at = Some(now);
        self.heard_at = now;
        (self.held_since, self.held) = (None, Duration::ZERO); // It had to wait for its start.
    }

    /// Notes that it is stopped.
    pub fn stop(&mut self, now: Instant) {
        self.stopped_at.get_or_insert(now);
    }

    /// Notes a chunk or a progress report.
    pub fn hear(&mut self, now: Instant) {
        if self.stopped_at.is_some() {
            return;
        }
        self.heard_at = now;
        self.was_heard = true;
        self.held = Duration::ZERO;
        self.held_since = None;
    }

    /// Notes an event that the shard sees in its next turn at the latest.
    pub fn hear_in_turn(&mut self, now: Instant) {
        self.unseen_at = Some(now);
    }

    /// Begins the shard's next turn.
    pub fn turn(&mut self) {
        if let Some(unseen_at) = self.unseen_at.take() {
            self.hear(unseen_at);
        }
    }

    /// Notes that it found no room.
    pub fn hold(&mut self, now: Instant) {
        self.held_since.get_or_insert(now);
    }

    /// Notes that it may have room again.
    pub fn let_go(&mut self, now: Instant) {
        if let Some(since) = self.held_since.take() {
            self.held += now.since(since.max(self.heard_at));
        }
    }

    /// The time for which it was silent of its own accord.
    fn silence(&self, now: Instant) -> Duration {
        let held_now = self.held_since.map_or(Duration::ZERO, |since| now.since(since));
        now.since(self.heard_at).saturating_sub(self.held + held_now)
    }

    /// Checks that its timeout was due. A tool on a thread is held back before its shard knows.
    pub fn check_end(&self, text: &str, is_thread: bool) -> Result<(), String> {
        let now = self.stopped_at.ok_or("timed out without being told to stop")?;
        let Timeouts { first_chunk, inactivity, total } = self.timeouts;
        let taken = self.started_at.map_or(Duration::ZERO, |started_at| now.since(started_at));
        let was_held = self.held > Duration::ZERO || self.held_since.is_some();
        let (waited, limit, fits) = match text.strip_prefix("timed out: ").unwrap_or("") {
            text if text.starts_with("not done within") => (taken, total, true),
            text if text.starts_with("no first chunk") => {
                (self.silence(now), first_chunk, !self.was_heard)
            }
            text if text.starts_with("nothing more") => {
                (self.silence(now), inactivity, self.was_heard)
            }
            _ => return Err(format!("timed out without a reason: {text:?}")),
        };
        match limit {
            Some(limit) if fits && (waited >= limit || is_thread && was_held) => Ok(()),
            _ => Err(format!("{text:?} after {waited:?}: {self:?}")),
        }
    }

    /// The timeout that should have ended it by now, if any.
    pub fn overdue(&self, now: Instant) -> Option<String> {
        let started_at = self.started_at.filter(|_| self.stopped_at.is_none())?;
        let Timeouts { first_chunk, inactivity, total } = self.timeouts;
        let late = Duration::from_nanos(3 << limits::WHEEL_TICK_SHIFT);
        let is_over = |waited: Duration, limit: Option<Duration>| {
            limit.is_some_and(|limit| waited > limit + late)
        };
        let silence_max = if self.was_heard { inactivity } else { first_chunk };
        if is_over(now.since(started_at), total) {
            return Some(format!("it takes longer than {total:?}"));
        }
        let is_held = self.held_since.is_some();
        let is_silent = !is_held && is_over(self.silence(now), silence_max);
        is_silent.then(|| format!("it is silent for longer than {silence_max:?}: {self:?}"))
    }
}
