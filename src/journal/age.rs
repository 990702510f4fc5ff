//! The clock by which segments age.
//!
//! A wall clock jumps. Therefore:
//!
//! - A1: the clock of ages never goes back. Behind the largest time that it has seen, it goes on
//!   with the shard's clock, and what is written meanwhile carries its time.
//! - A2: nothing is too old before [`JOURNAL_SETTLING_TIME`] has passed since the start. A machine
//!   often starts with a wrong time and corrects it soon. The time is taken only after that.
//! - A3: the wall clock is looked at again at the latest after [`JOURNAL_LOOK_INTERVAL`].

use std::time::Duration;

use super::Moment;
use crate::base::Instant;
use crate::limits::{JOURNAL_LOOK_INTERVAL, JOURNAL_RETRY_DELAY, JOURNAL_SETTLING_TIME};

/// The clock by which segments age.
#[derive(Debug)]
pub struct AgeClock {
    /// The time on both clocks at the last look, or at the start.
    seen: Moment,
    /// The time of the first look.
    settled_at: Instant,
    /// The time of the next look.
    look_at: Instant,
}

impl AgeClock {
    /// Starts at `now`. `seen_us` is the largest time in the files.
    pub fn new(now: Instant, seen_us: u64) -> AgeClock {
        let settled_at = now + JOURNAL_SETTLING_TIME;
        AgeClock { seen: Moment { now, wall_us: seen_us }, settled_at, look_at: settled_at }
    }

    /// The time that something carries which is written now, in microseconds since 1970.
    pub fn wall_us(&self, moment: Moment) -> u64 {
        moment.wall_us.max(self.passed_us(moment.now)) // A1
    }

    fn passed_us(&self, now: Instant) -> u64 {
        let passed = now.since(self.seen.now).as_micros() as u64;
        self.seen.wall_us.saturating_add(passed)
    }

    /// The time of the next look.
    pub fn look_at(&self) -> Instant {
        self.look_at
    }

    /// Takes the time of the wall clock.
    pub fn look(&mut self, moment: Moment) {
        self.seen = Moment { wall_us: self.wall_us(moment), ..moment };
    }

    /// Plans the next look for the time after `until_us`, within bounds.
    pub fn plan(&mut self, until_us: u64, now: Instant) {
        let rest_us = until_us.saturating_add(1).saturating_sub(self.passed_us(now));
        let rest = Duration::from_micros(rest_us).clamp(JOURNAL_RETRY_DELAY, JOURNAL_LOOK_INTERVAL);
        self.look_at = (now + rest).max(self.settled_at); // A2, A3
    }

    /// True if it was later than `until_us` at the last look.
    pub fn is_past(&self, until_us: u64) -> bool {
        self.seen.now >= self.settled_at && self.seen.wall_us > until_us // A2
    }
}
