//! When to poll and when to block. Pure: reads no clock, makes no system call.
//!
//! A blocked core costs some 22 µs to wake on a virtual machine, a polling one 0.1 µs; but a core
//! that polls while nothing comes burns what others could use, and where cores are few the host
//! takes it away for milliseconds. So `backoff` polls for a while after the last event, and learns
//! how long the silences are: when they outlast the budget, polling them buys nothing.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::base::Instant;
use crate::limits::{IDLE_GAP_CLAMP, IDLE_GAP_FLOOR_FRACTION, IDLE_GAP_SMOOTHING_SHIFT};

/// How a shard spends the time in which nothing happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Polls for ever. At most one such thread where cores are few.
    Spin,
    /// Polls a while, then blocks.
    #[default]
    Backoff,
    /// Blocks at once.
    Block,
}

/// A word that names no [`Idle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleParseError {
    given: String,
}

impl fmt::Display for IdleParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "idle strategy {:?}: expected spin, backoff or block", self.given)
    }
}

impl std::error::Error for IdleParseError {}

impl FromStr for Idle {
    type Err = IdleParseError;
    fn from_str(text: &str) -> Result<Idle, IdleParseError> {
        match text {
            "spin" => Ok(Idle::Spin),
            "backoff" => Ok(Idle::Backoff),
            "block" => Ok(Idle::Block),
            _ => Err(IdleParseError { given: text.chars().take(32).collect() }),
        }
    }
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Idle::Spin => "spin",
            Idle::Backoff => "backoff",
            Idle::Block => "block",
        })
    }
}

/// What a shard does at the end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Take another turn at once.
    Poll,
    /// Block, with this deadline.
    Wait {
        /// None: until something happens.
        until: Option<Instant>,
    },
}

/// Decides, turn by turn. One per shard.
#[derive(Clone, Debug)]
pub struct IdleStrategy {
    idle: Idle,
    budget: Duration,
    /// When the present silence began; None while turns find work.
    silent_since: Option<Instant>,
    /// The length of a typical silence, smoothed. Starts at zero: the benefit of the doubt.
    gap_typical: Duration,
}

impl IdleStrategy {
    /// `budget`: how long `backoff` polls after the last event, [`crate::limits::SPIN_DEFAULT`] by
    /// default. Zero makes it `block`.
    pub fn new(idle: Idle, budget: Duration) -> IdleStrategy {
        IdleStrategy { idle, budget, silent_since: None, gap_typical: Duration::ZERO }
    }

    /// What to do after a turn that found work, or did not, and ended at `now`; `deadline` is when
    /// the shard has to be awake again.
    pub fn decide(&mut self, worked: bool, now: Instant, deadline: Option<Instant>) -> Decision {
        if worked {
            self.end_silence(now);
            return Decision::Poll;
        }
        let silent_since = *self.silent_since.get_or_insert(now);
        let due = deadline.is_some_and(|deadline| deadline <= now);
        if due || self.is_polling(silent_since, now, deadline) {
            return Decision::Poll;
        }
        Decision::Wait { until: deadline }
    }

    fn is_polling(&self, since: Instant, now: Instant, deadline: Option<Instant>) -> bool {
        match self.idle {
            Idle::Spin => true,
            Idle::Block => false,
            // A timer is an event whose gap is known.
            Idle::Backoff if deadline.is_some_and(|at| at.since(now) < self.budget) => true,
            Idle::Backoff => self.gap_typical <= self.budget && now.since(since) < self.budget,
        }
    }

    fn end_silence(&mut self, now: Instant) {
        let Some(since) = self.silent_since.take() else { return };
        let gap = now.since(since);
        if gap < self.budget / IDLE_GAP_FLOOR_FRACTION {
            return; // The same burst: nine gaps of 1 µs do not make one of 100 µs worth polling.
        }
        // Clamped, so that one long night needs few events to be forgotten.
        let gap = gap.min(self.budget * IDLE_GAP_CLAMP);
        let weight = 1 << IDLE_GAP_SMOOTHING_SHIFT;
        self.gap_typical = (self.gap_typical * (weight - 1) + gap) / weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_micros(50);
    const FAR: Option<Instant> = Some(Instant::from_nanos(10_000_000_000));

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    /// Events every `gap_us`, turns of 1 µs: how long is polled in the last of `count` silences.
    fn polled_us(strategy: &mut IdleStrategy, start_us: u64, gap_us: u64, count: u64) -> u64 {
        let mut polled = 0;
        for event in 0..count {
            let event_us = start_us + event * gap_us;
            assert_eq!(strategy.decide(true, at(event_us), FAR), Decision::Poll);
            polled = (1..gap_us)
                .take_while(|us| strategy.decide(false, at(event_us + us), FAR) == Decision::Poll)
                .count() as u64;
        }
        polled
    }

    #[test]
    fn spin_never_blocks_and_block_always_does() {
        let mut spin = IdleStrategy::new(Idle::Spin, BUDGET);
        let mut block = IdleStrategy::new(Idle::Block, BUDGET);
        for us in (0..10_000_000).step_by(100_000) {
            assert_eq!(spin.decide(false, at(us), None), Decision::Poll);
            assert_eq!(block.decide(false, at(us), FAR), Decision::Wait { until: FAR });
            assert_eq!(block.decide(true, at(us), FAR), Decision::Poll);
        }
        assert_eq!(block.decide(false, at(10_000_000), FAR), Decision::Poll); // It is due.
    }

    #[test]
    fn backoff_polls_for_its_budget_and_then_blocks() {
        let mut strategy = IdleStrategy::new(Idle::Backoff, BUDGET);
        assert_eq!(strategy.decide(true, at(0), None), Decision::Poll);
        for us in 1..51 {
            assert_eq!(strategy.decide(false, at(us), None), Decision::Poll, "{us}");
        }
        assert_eq!(strategy.decide(false, at(51), None), Decision::Wait { until: None });
        assert_eq!(strategy.decide(false, at(52), FAR), Decision::Wait { until: FAR });
    }

    #[test]
    fn backoff_blocks_at_once_when_gaps_outlast_the_budget_and_learns_both_ways() {
        let mut strategy = IdleStrategy::new(Idle::Backoff, BUDGET);
        assert_eq!(polled_us(&mut strategy, 0, 100, 20), 0);
        assert_eq!(polled_us(&mut strategy, 10_000, 30, 20), 29);
        let one_night_later = 100_000_000;
        let far = polled_us(&mut strategy, one_night_later, 30, 20);
        assert_eq!(far, 29);
    }

    #[test]
    fn a_burst_does_not_make_long_gaps_look_short() {
        let mut strategy = IdleStrategy::new(Idle::Backoff, BUDGET);
        let mut polled = 0;
        for round in 0..30 {
            let start_us = round * 200;
            for event in 0..10 {
                strategy.decide(true, at(start_us + event * 2), FAR);
                strategy.decide(false, at(start_us + event * 2 + 1), FAR);
            }
            polled = (20..200)
                .take_while(|us| strategy.decide(false, at(start_us + us), FAR) == Decision::Poll)
                .count();
        }
        assert_eq!(polled, 0);
    }

    #[test]
    fn backoff_polls_towards_a_deadline_that_is_near() {
        let mut strategy = IdleStrategy::new(Idle::Backoff, BUDGET);
        polled_us(&mut strategy, 0, 100, 20);
        let deadline = Some(at(10_000));
        assert_eq!(strategy.decide(false, at(9_949), deadline), Decision::Wait { until: deadline });
        assert_eq!(strategy.decide(false, at(9_951), deadline), Decision::Poll);
        assert_eq!(strategy.decide(false, at(10_500), deadline), Decision::Poll);
    }

    #[test]
    fn names_parse_back_and_others_are_refused() {
        for idle in [Idle::Spin, Idle::Backoff, Idle::Block] {
            assert_eq!(idle.to_string().parse(), Ok(idle));
        }
        let error = "Spin".parse::<Idle>().unwrap_err().to_string();
        assert!(error.contains("Spin") && error.contains("backoff"), "{error}");
    }
}
