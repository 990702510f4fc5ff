//! When to poll and when to block. Pure: reads no clock, makes no system call.
//!
//! A blocked core costs some 22 µs to wake on a virtual machine, a polling one 0.1 µs; but a core
//! that polls while nothing comes burns what others could use, and where cores are few the host
//! takes it away for milliseconds. So `backoff` polls for a while after the last event, and learns
//! how often that is worth it: where most silences outlast the budget, polling them buys nothing.
//! It learns only from silences that it did poll. One that is slept through seems longer than it is
//! by the time that waking takes, and a thread that went by those would never poll again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::base::Instant;
use crate::limits::{IDLE_PROBE_SILENCES, IDLE_SHARE_SMOOTHING_SHIFT, IDLE_SILENCE_FLOOR_FRACTION};

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

/// All silences; see [`IdleStrategy::met_share`].
const ALL: u32 = 256;

/// Decides, turn by turn. One per shard.
#[derive(Clone, Debug)]
pub struct IdleStrategy {
    idle: Idle,
    budget: Duration,
    /// When the present silence began; None while turns find work.
    silent_since: Option<Instant>,
    /// `backoff` polls in this silence, until its budget is spent.
    polls: bool,
    /// Of the silences that were polled, how many ended within the budget: 256 are all, smoothed.
    /// Starts there: the benefit of the doubt.
    met_share: u32,
    /// Silences since the last one that something was learned from.
    unpolled: u32,
}

impl IdleStrategy {
    /// `budget`: how long `backoff` polls after the last event, [`crate::limits::SPIN_DEFAULT`] by
    /// default. Zero makes it `block`.
    pub fn new(idle: Idle, budget: Duration) -> IdleStrategy {
        IdleStrategy { idle, budget, silent_since: None, polls: true, met_share: ALL, unpolled: 0 }
    }

    /// A turn found work; it began at `now`. Every one of them is to be told, or what came before
    /// seems to be one long silence, in which nothing is worth polling.
    #[inline]
    pub fn worked(&mut self, now: Instant) {
        if let Some(since) = self.silent_since.take() {
            self.end_silence(now.since(since));
        }
    }

    /// What to do after a turn that found no work, and began at `now`; `deadline` is when the shard
    /// has to be awake again.
    pub fn decide(&mut self, now: Instant, deadline: Option<Instant>) -> Decision {
        let silent_since = self.silent_since.unwrap_or_else(|| self.begin_silence(now));
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
            Idle::Backoff => self.polls && now.since(since) < self.budget,
        }
    }

    fn begin_silence(&mut self, now: Instant) -> Instant {
        self.silent_since = Some(now);
        // Worth it, or time to see whether it is by now.
        self.polls = self.met_share >= ALL / 2 || self.unpolled >= IDLE_PROBE_SILENCES;
        now
    }

    fn end_silence(&mut self, silence: Duration) {
        if silence < self.budget / IDLE_SILENCE_FLOOR_FRACTION {
            return; // The same burst: nine gaps of 1 µs do not make one of 100 µs worth polling.
        }
        if !self.polls {
            self.unpolled += 1;
            return;
        }
        self.unpolled = 0;
        let met = if silence < self.budget { ALL } else { 0 };
        let weight = 1 << IDLE_SHARE_SMOOTHING_SHIFT;
        self.met_share = (self.met_share * (weight - 1) + met) / weight;
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

    /// Events every `gap_us`, turns of 1 µs: how long is polled in each of `count` silences.
    fn polled_us(
        strategy: &mut IdleStrategy,
        start_us: u64,
        gap_us: u64,
        count: u64,
    ) -> Vec<usize> {
        let silence = |event| {
            let event_us = start_us + event * gap_us;
            strategy.worked(at(event_us));
            (1..gap_us)
                .take_while(|us| strategy.decide(at(event_us + us), FAR) == Decision::Poll)
                .count()
        };
        (0..count).map(silence).collect()
    }

    #[test]
    fn spin_never_blocks_and_block_always_does() {
        let mut spin = IdleStrategy::new(Idle::Spin, BUDGET);
        let mut block = IdleStrategy::new(Idle::Block, BUDGET);
        for us in (0..10_000_000).step_by(100_000) {
            assert_eq!(spin.decide(at(us), None), Decision::Poll);
            assert_eq!(block.decide(at(us), FAR), Decision::Wait { until: FAR });
            block.worked(at(us));
        }
        assert_eq!(block.decide(at(10_000_000), FAR), Decision::Poll); // It is due.
    }

    #[test]
    fn backoff_polls_for_its_budget_and_then_blocks() {
        let mut strategy = IdleStrategy::new(Idle::Backoff, BUDGET);
        strategy.worked(at(0));
        for us in 1..51 {
            assert_eq!(strategy.decide(at(us), None), Decision::Poll, "{us}");
        }
        assert_eq!(strategy.decide(at(51), None), Decision::Wait { until: None });
        assert_eq!(strategy.decide(at(52), FAR), Decision::Wait { until: FAR });
    }

    #[test]
    fn backoff_blocks_at_once_when_silences_outlast_the_budget_and_learns_both_ways() {
        let mut strategy = IdleStrategy::new(Idle::Backoff, BUDGET);
        let rare = polled_us(&mut strategy, 0, 100, 64);
        assert_eq!(rare[..4], [50, 50, 50, 0]);
        // Now and then it is tried again.
        let probes = rare[3..].iter().filter(|&&us| us > 0).count() as u32;
        assert_eq!(probes, 61 / (IDLE_PROBE_SILENCES + 1), "{rare:?}");
        let frequent = polled_us(&mut strategy, 10_000, 30, 64);
        assert_eq!(frequent[40..], [29; 24], "{frequent:?}");
        let one_night_later = 9_000_000;
        assert_eq!(polled_us(&mut strategy, one_night_later, 30, 20), [29; 20]);
    }

    /// Who sleeps is late by the time that waking takes: silences of 40 µs last 70 then.
    #[test]
    fn who_has_slept_for_long_finds_out_that_polling_is_worth_it_again() {
        let mut strategy = IdleStrategy::new(Idle::Backoff, BUDGET);
        polled_us(&mut strategy, 0, 1_000, 20);
        let mut now_us = 100_000;
        let mut slept = Vec::new();
        for _ in 0..100 {
            strategy.worked(at(now_us));
            let sleeps = (1..40).any(|us| strategy.decide(at(now_us + us), FAR) != Decision::Poll);
            now_us += if sleeps { 70 } else { 40 };
            slept.push(sleeps);
        }
        assert!(slept[..10].contains(&true), "{slept:?}");
        assert!(!slept[50..].contains(&true), "{slept:?}");
    }

    #[test]
    fn a_burst_does_not_make_long_gaps_look_short() {
        let mut strategy = IdleStrategy::new(Idle::Backoff, BUDGET);
        let mut tries = 0;
        for round in 0..30 {
            let start_us = round * 200;
            for event in 0..10 {
                strategy.worked(at(start_us + event * 2));
                strategy.decide(at(start_us + event * 2 + 1), FAR);
            }
            let polled = (20..200)
                .take_while(|us| strategy.decide(at(start_us + us), FAR) == Decision::Poll)
                .count();
            tries += usize::from(polled > 1);
        }
        assert_eq!(tries, 3 + 27 / (IDLE_PROBE_SILENCES as usize + 1));
    }

    #[test]
    fn backoff_polls_towards_a_deadline_that_is_near() {
        let mut strategy = IdleStrategy::new(Idle::Backoff, BUDGET);
        polled_us(&mut strategy, 0, 100, 20);
        let deadline = Some(at(10_000));
        assert_eq!(strategy.decide(at(9_949), deadline), Decision::Wait { until: deadline });
        assert_eq!(strategy.decide(at(9_951), deadline), Decision::Poll);
        assert_eq!(strategy.decide(at(10_500), deadline), Decision::Poll);
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
