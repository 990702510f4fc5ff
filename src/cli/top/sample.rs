//! What a server is doing at one moment, and what became of it between two.

use std::time::Duration;

use streamdoor::base::{ExecutionId, Instant};
use streamdoor::client::{Client, ClientError, Metrics, ProgressOf, Status, Summary};
use streamdoor::engine::State;
use streamdoor::reactor::Clock;

/// Executions that are asked for everything about their subscribers, at each look.
const INSPECTED_MAX: usize = 64;

/// One look.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Instant,
    pub metrics: Metrics,
    /// Those that run first; of these the youngest first.
    pub executions: Vec<Summary>,
    pub progress: Vec<ProgressOf>,
    /// Of those that have subscribers.
    pub statuses: Vec<Status>,
}

impl Sample {
    /// Looks.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn take(client: &Client) -> Result<Sample, ClientError> {
        let metrics = client.metrics()?;
        let at = Clock::now();
        let mut executions = client.executions()?;
        executions.sort_by_key(|summary| (has_ended(summary.state), summary.age_ms));
        let progress = client.progress()?;
        let followed = executions.iter().filter(|summary| summary.subscribers > 0);
        let mut statuses = Vec::new();
        for summary in followed.take(INSPECTED_MAX) {
            match client.inspect(summary.execution) {
                Ok(status) => statuses.push(status),
                Err(ClientError::Refused(_)) => {} // It was forgotten meanwhile.
                Err(error) => return Err(error),
            }
        }
        Ok(Sample { at, metrics, executions, progress, statuses })
    }

    /// Everything about one execution, if it was asked for.
    pub fn status(&self, execution: ExecutionId) -> Option<&Status> {
        self.statuses.iter().find(|status| status.execution == execution)
    }

    /// How many executions are in such a state.
    pub fn count(&self, is_wanted: impl Fn(State) -> bool) -> usize {
        self.executions.iter().filter(|summary| is_wanted(summary.state)).count()
    }

    /// How far subscribers lag, in chunks and in bytes: each number sorted for itself.
    pub fn lags(&self) -> (Vec<u64>, Vec<u64>) {
        let subscribers = self.statuses.iter().flat_map(|status| &status.subscribers);
        let (mut chunks, mut bytes): (Vec<u64>, Vec<u64>) =
            subscribers.map(|subscriber| (subscriber.lag_chunks, subscriber.lag_bytes)).unzip();
        chunks.sort_unstable();
        bytes.sort_unstable();
        (chunks, bytes)
    }
}

/// What was counted between two looks.
pub struct Between<'a> {
    before: Option<&'a Sample>,
    now: &'a Sample,
}

impl<'a> Between<'a> {
    /// `before`: an earlier look, if there is one.
    pub fn new(before: Option<&'a Sample>, now: &'a Sample) -> Between<'a> {
        Between { before, now }
    }

    /// By how much a counter grew in a second. `None`: nobody knows, or the server is another one.
    pub fn rate(&self, name: &str) -> Option<f64> {
        let before = self.before?;
        per_second(
            before.metrics.sum(name)?,
            self.now.metrics.sum(name)?,
            self.now.at.since(before.at),
        )
    }

    /// Chunks and bytes of an execution in a second. What is younger than the last look began at 0.
    pub fn rates_of(&self, summary: &Summary) -> Option<(f64, f64)> {
        let before = self.before?;
        let took = self.now.at.since(before.at);
        let earlier = before.executions.iter().find(|other| other.execution == summary.execution);
        let (chunks, bytes) = earlier.map_or((0, 0), |earlier| (earlier.chunks, earlier.bytes));
        Some((
            per_second(chunks as f64, summary.chunks as f64, took)?,
            per_second(bytes as f64, summary.bytes as f64, took)?,
        ))
    }
}

fn per_second(before: f64, now: f64, took: Duration) -> Option<f64> {
    let grown = now - before;
    (grown >= 0.0 && !took.is_zero()).then(|| grown / took.as_secs_f64())
}

/// The value below which so many percent are (nearest rank).
pub fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Nothing more comes of it.
pub fn has_ended(state: State) -> bool {
    matches!(state, State::Ended(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        assert_eq!(percentile(&[], 50), None);
        let seen: Vec<u64> = (1..=200).collect();
        assert_eq!(percentile(&seen, 50), Some(100));
        assert_eq!(percentile(&seen, 99), Some(198));
        assert_eq!(percentile(&seen, 100), Some(200));
        assert_eq!(percentile(&[7], 1), Some(7));
    }

    #[test]
    fn a_rate_needs_time_and_a_counter_that_grows() {
        let second = Duration::from_secs(2);
        assert_eq!(per_second(1.0, 5.0, second), Some(2.0));
        assert_eq!(per_second(5.0, 1.0, second), None);
        assert_eq!(per_second(1.0, 5.0, Duration::ZERO), None);
        assert_eq!(per_second(1.0, f64::NAN, second), None);
    }
}
