//! The state of a server at one moment, and its change between two moments.

use std::time::Duration;

use streamdoor::base::{ExecutionId, Instant};
use streamdoor::client::{Client, ClientError, Metrics, ProgressOf, Status, Summary};
use streamdoor::reactor::Clock;
use streamdoor::stream::ExecutionState;

/// Maximum number of executions whose subscribers are inspected in each sample.
const INSPECTED_MAX: usize = 64;
/// The names of the server's histograms.
const LATENCY: &str = "delivery_latency_seconds";
const STALLS: &str = "stall_duration_seconds";

/// The state of a server at one moment.
#[derive(Clone, Debug)]
pub struct TopSample {
    pub at: Instant,
    /// The time that the request for the metrics took.
    pub scrape: Duration,
    pub metrics: Metrics,
    /// Running executions come first. Within each group, the youngest comes first.
    pub executions: Vec<Summary>,
    pub progress: Vec<ProgressOf>,
    /// The statuses of executions with subscribers.
    pub statuses: Vec<Status>,
}

impl TopSample {
    /// Takes a sample.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn take(client: &Client) -> Result<TopSample, ClientError> {
        let began = Clock::now();
        let metrics = client.metrics()?;
        let at = Clock::now();
        let scrape = at.since(began);
        let mut executions = client.executions()?;
        executions.sort_by_key(|summary| (has_ended(summary.state), summary.age_ms));
        let progress = client.progress()?;
        let followed = executions.iter().filter(|summary| summary.subscribers > 0);
        let mut statuses = Vec::new();
        for summary in followed.take(INSPECTED_MAX) {
            match client.inspect(summary.execution) {
                Ok(status) => statuses.push(status),
                Err(ClientError::Refused(_)) => {} // The server has removed it meanwhile.
                Err(error) => return Err(error),
            }
        }
        Ok(TopSample { at, scrape, metrics, executions, progress, statuses })
    }

    /// Returns the status of an execution, if it was inspected.
    pub fn status(&self, execution: ExecutionId) -> Option<&Status> {
        self.statuses.iter().find(|status| status.execution == execution)
    }

    /// Returns the number of executions whose state is wanted.
    pub fn count(&self, is_wanted: impl Fn(ExecutionState) -> bool) -> usize {
        self.executions.iter().filter(|summary| is_wanted(summary.state)).count()
    }

    /// Returns the lags of subscribers, in chunks and in bytes. Each list is sorted by itself.
    pub fn lags(&self) -> (Vec<u64>, Vec<u64>) {
        let subscribers = self.statuses.iter().flat_map(|status| &status.subscribers);
        let (mut chunks, mut bytes): (Vec<u64>, Vec<u64>) =
            subscribers.map(|subscriber| (subscriber.lag_chunks, subscriber.lag_bytes)).unzip();
        chunks.sort_unstable();
        bytes.sort_unstable();
        (chunks, bytes)
    }
}

/// The change between two samples.
pub struct Between<'a> {
    before: Option<&'a TopSample>,
    now: &'a TopSample,
}

impl<'a> Between<'a> {
    /// Compares `now` with an earlier sample, if one exists.
    pub fn new(before: Option<&'a TopSample>, now: &'a TopSample) -> Between<'a> {
        Between { before, now }
    }

    /// Returns the growth of a counter per second. `None` if it is unknown or has shrunk, for
    /// example after a restart.
    pub fn rate(&self, name: &str) -> Option<f64> {
        let before = self.before?;
        per_second(
            before.metrics.sum(name)?,
            self.now.metrics.sum(name)?,
            self.now.at.since(before.at),
        )
    }

    /// Returns the latencies of deliveries since publication, in seconds, between the two samples.
    /// Without an earlier sample, returns all of them.
    pub fn latencies(&self) -> Latencies {
        self.durations(LATENCY)
    }

    /// Returns the durations of stalled turns in the same way. The turn that wrote the metrics of
    /// the earlier sample is left out, because the view would report itself. It is taken to be the
    /// longest turn that is not longer than that request took.
    pub fn stalls(&self) -> Latencies {
        let mut stalls = self.durations(STALLS);
        if let Some(before) = self.before {
            stalls.leave_out(before.scrape.as_secs_f64());
        }
        stalls
    }

    /// Returns the stalled turns per second, without that of the view itself.
    pub fn stall_rate(&self) -> Option<f64> {
        let took = self.now.at.since(self.before?.at);
        self.rate("stalls_total")?; // It is unknown after a restart.
        per_second(0.0, self.stalls().count(), took)
    }

    fn durations(&self, name: &str) -> Latencies {
        let mut buckets = self.now.metrics.buckets(name);
        let earlier = self.before.map_or(Vec::new(), |before| before.metrics.buckets(name));
        for bucket in &mut buckets {
            let before = earlier.iter().find(|earlier| earlier.0 == bucket.0);
            bucket.1 = (bucket.1 - before.map_or(0.0, |before| before.1)).max(0.0);
        }
        Latencies { buckets }
    }

    /// Returns the chunks and bytes of an execution per second. An execution that is new since the
    /// earlier sample began at 0.
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

/// A histogram of durations: pairs of an upper bound and the number of durations up to it.
pub struct Latencies {
    buckets: Vec<(f64, f64)>,
}

impl Latencies {
    /// Returns the number of durations.
    pub fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |bucket| bucket.1)
    }

    /// Removes the longest duration whose bucket begins below `limit_s`, if one exists.
    fn leave_out(&mut self, limit_s: f64) {
        let mut below = (0.0, 0.0);
        let mut found = None;
        for (at, &(bound, count)) in self.buckets.iter().enumerate() {
            if count > below.1 && below.0 < limit_s {
                found = Some(at);
            }
            below = (bound, count);
        }
        if let Some(at) = found {
            self.buckets[at..].iter_mut().for_each(|bucket| bucket.1 -= 1.0);
        }
    }

    /// Returns the duration below which `percent` of all lie. Durations are taken as spread evenly
    /// within a bucket. For the last bucket, which has no upper bound, returns its lower bound.
    /// `None` if the histogram is empty.
    pub fn percentile(&self, percent: u32) -> Option<f64> {
        let rank = self.count() * f64::from(percent) / 100.0;
        let mut below = (0.0, 0.0);
        for &(bound, count) in self.buckets.iter().filter(|_| rank > 0.0) {
            if count >= rank && bound.is_finite() {
                let share = (rank - below.1) / (count - below.1);
                return Some(below.0 + share * (bound - below.0));
            }
            if count >= rank {
                return Some(below.0);
            }
            below = (bound, count);
        }
        None
    }
}

fn per_second(before: f64, now: f64, took: Duration) -> Option<f64> {
    let grown = now - before;
    (grown >= 0.0 && !took.is_zero()).then(|| grown / took.as_secs_f64())
}

/// Returns the value at or below which `percent` of all values lie (nearest rank).
pub fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// True if the execution has ended.
pub fn has_ended(state: ExecutionState) -> bool {
    matches!(state, ExecutionState::Ended(_))
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
    fn percentiles_of_latencies_lie_within_their_buckets() {
        let of = |buckets: &[(f64, f64)]| Latencies { buckets: buckets.to_vec() };
        assert_eq!(of(&[]).percentile(50), None);
        assert_eq!(of(&[(1.0, 0.0), (f64::INFINITY, 0.0)]).percentile(99), None);
        let some = of(&[(1.0, 0.0), (2.0, 50.0), (4.0, 100.0), (f64::INFINITY, 200.0)]);
        assert_eq!((some.percentile(25), some.percentile(50)), (Some(2.0), Some(4.0)));
        assert_eq!((some.percentile(10), some.percentile(99)), (Some(1.4), Some(4.0)));
        assert_eq!(some.count(), 200.0);
    }

    #[test]
    fn the_view_leaves_out_its_own_stall() {
        let counts = |limit_s: f64, buckets: &[(f64, f64)]| {
            let mut latencies = Latencies { buckets: buckets.to_vec() };
            latencies.leave_out(limit_s);
            latencies.buckets.iter().map(|bucket| bucket.1).collect::<Vec<_>>()
        };
        let some = [(1.0, 1.0), (2.0, 3.0), (4.0, 4.0), (f64::INFINITY, 4.0)];
        assert_eq!(counts(1.5, &some), [1.0, 2.0, 3.0, 3.0]);
        assert_eq!(counts(9.0, &some), [1.0, 3.0, 3.0, 3.0]);
        assert_eq!(counts(9.0, &[(1.0, 1.0)]), [0.0]);
        assert_eq!(counts(9.0, &[(1.0, 0.0), (f64::INFINITY, 0.0)]), [0.0, 0.0]);
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
