//! Decides when to poll and when to block. Pure: reads no clock, makes no system call.
//!
//! A blocked core takes some 22 µs to wake on a virtual machine, a polling one 0.1 µs. But a core
//! that polls in vain takes processor time from others. If cores are few, the host suspends such
//! a core for milliseconds. The strategy `backoff` therefore polls for a while after the last
//! event, and learns how often that pays. If most silences outlast the budget, polling them gains
//! nothing. It learns only from silences that it polled. A silence that is slept through seems
//! longer by the time that waking takes. A thread that learned from those would never poll again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::base::Instant;
use crate::limits::{IDLE_PROBE_SILENCES, IDLE_SHARE_SMOOTHING_SHIFT, IDLE_SILENCE_FLOOR_FRACTION};

/// The strategy of a shard for the time in which nothing happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Polls without end. Use at most one such thread where cores are few.
    Spin,
    /// Polls for a while, then blocks.
    #[default]
    Backoff,
    /// Blocks at once.
    Block,
}

/// The error for a word that names no [`Idle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleParseError {
    given: String,
}

impl fmt::Display for IdleParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "idle strategy {:?}: must be spin, backoff or block", self.given)
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

/// The next step of a shard at the end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Take another turn at once.
    Poll,
    /// Block, with this deadline.
    Wait {
        /// The deadline, or `None` to block until something happens.
        until: Option<Instant>,
    },
}

/// The share that means all silences; see [`IdleStrategy::met_share`].
const ALL: u32 = 256;

/// The idle strategy of one shard, asked once a turn.
#[derive(Clone, Debug)]
pub struct IdleStrategy {
    idle: Idle,
    budget: Duration,
    /// Start of the present silence, or `None` while turns find work.
    silent_since: Option<Instant>,
    /// True if `backoff` polls in this silence, until its budget is spent.
    polls: bool,
    /// Share of the polled silences that ended within the budget, smoothed; 256 means all. It
    /// starts at 256, so `backoff` polls at first.
    met_share: u32,
    /// Number of silences since the last one that was learned from.
    unpolled: u32,
}

impl IdleStrategy {
    /// Makes a strategy. `budget` is the time for which `backoff` polls after the last event, by
    /// default [`crate::limits::SPIN_DEFAULT`]. Zero makes it `block`.
    pub fn new(idle: Idle, budget: Duration) -> IdleStrategy {
        IdleStrategy { idle, budget, silent_since: None, polls: true, met_share: ALL, unpolled: 0 }
    }

    /// Records that the turn that began at `now` found work. The caller has to report every such
    /// turn. Otherwise the time before seems to be one long silence, which is not worth polling.
    #[inline]
    pub fn worked(&mut self, now: Instant) {
        if let Some(since) = self.silent_since.take() {
            self.end_silence(now.since(since));
        }
    }

    /// Decides what to do after a turn that began at `now` and found no work. `deadline` is the
    /// time at which the shard has to be awake again.
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
            // The time of a timer is known in advance.
            Idle::Backoff if deadline.is_some_and(|at| at.since(now) < self.budget) => true,
            Idle::Backoff => self.polls && now.since(since) < self.budget,
        }
    }

    fn begin_silence(&mut self, now: Instant) -> Instant {
        self.silent_since = Some(now);
        // Polling pays, or it is time to check whether it pays by now.
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

    /// Sends an event every `gap_us`, with turns of 1 µs. Returns the time polled in each of
    /// `count` silences.
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
        // Polling is tried again from time to time.
        let probes = rare[3..].iter().filter(|&&us| us > 0).count() as u32;
        assert_eq!(probes, 61 / (IDLE_PROBE_SILENCES + 1), "{rare:?}");
        let frequent = polled_us(&mut strategy, 10_000, 30, 64);
        assert_eq!(frequent[40..], [29; 24], "{frequent:?}");
        let one_night_later = 9_000_000;
        assert_eq!(polled_us(&mut strategy, one_night_later, 30, 20), [29; 20]);
    }

    /// A thread that sleeps is late by the time that waking takes: silences of 40 µs then last 70.
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
