//! The waits between attempts to reconnect.

use std::time::Duration;

use crate::base::Random;
use crate::limits;

/// The attempts in a row, and the waits before them. Each wait is twice as long as the one before.
/// Up to half of it is added at random, so that clients that were cut off together do not return
/// together. While the server keeps the place of a `block` subscriber, the waits stay short
/// ([`limits::CLIENT_RETRY_IN_GRACE`]): a client that waits for longer would lose chunks.
#[derive(Debug)]
pub(super) struct Backoff {
    random: Random,
    /// The planned wait before the first attempt.
    retry: Duration,
    attempts: u32,
    attempts_max: u32,
    /// The planned wait before the last attempt.
    planned: Duration,
    /// All waits before the attempts made in a row.
    waited: Duration,
}

impl Backoff {
    /// At most `attempts_max` attempts in a row. The first waits for `retry`.
    pub fn new(seed: u64, retry: Duration, attempts_max: u32) -> Backoff {
        let (random, zero) = (Random::new(seed), Duration::ZERO);
        let mut backoff =
            Backoff { random, retry, attempts: 0, attempts_max, planned: zero, waited: zero };
        backoff.set_retry(retry);
        backoff
    }

    /// Sets the wait that the server gave.
    pub fn set_retry(&mut self, retry: Duration) {
        self.retry = retry.clamp(limits::CLIENT_RETRY_MIN, limits::CLIENT_RETRY_MAX);
    }

    /// Starts anew after a success.
    pub fn reset(&mut self) {
        (self.attempts, self.waited) = (0, Duration::ZERO);
    }

    /// Number of attempts made in a row.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The wait before the next attempt, at least `wait_min`. `None` if no attempt is left.
    pub fn next(&mut self, wait_min: Duration) -> Option<Duration> {
        if self.attempts == self.attempts_max {
            return None;
        }
        let longest = match self.waited < limits::RECONNECT_GRACE {
            true => self.retry.max(limits::CLIENT_RETRY_IN_GRACE),
            false => limits::CLIENT_RETRY_MAX,
        };
        self.planned = match self.attempts {
            0 => self.retry,
            _ => (self.planned * 2).min(longest),
        };
        self.attempts += 1;
        let wait = self.planned.max(wait_min.min(limits::CLIENT_RETRY_MAX));
        let wait = wait.mul_f64(1.0 + self.random.unit() / 2.0);
        self.waited += wait;
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_short_within_the_grace_and_double_after_it() {
        let retry = Duration::from_millis(100);
        let mut backoff = Backoff::new(1, retry, 70);
        let (mut planned, mut waited) = (retry, Duration::ZERO);
        for attempt in 0..70 {
            let longest = match waited < limits::RECONNECT_GRACE {
                true => limits::CLIENT_RETRY_IN_GRACE,
                false => limits::CLIENT_RETRY_MAX,
            };
            if attempt > 0 {
                planned = (planned * 2).min(longest);
            }
            let wait = backoff.next(Duration::ZERO).unwrap();
            assert!((planned..=planned.mul_f64(1.5)).contains(&wait), "{attempt}: {wait:?}");
            waited += wait;
        }
        assert_eq!(backoff.next(Duration::ZERO), None);
        backoff.reset();
        let first_waits = Duration::from_millis(100)..=Duration::from_millis(150);
        assert!(first_waits.contains(&backoff.next(Duration::ZERO).unwrap()));
    }

    #[test]
    fn what_a_server_wants_has_bounds() {
        let mut backoff = Backoff::new(1, Duration::MAX, 3);
        let longest_waits = limits::CLIENT_RETRY_MAX..=limits::CLIENT_RETRY_MAX.mul_f64(1.5);
        assert!(longest_waits.contains(&backoff.next(Duration::MAX).unwrap()));
        backoff.set_retry(Duration::ZERO);
        backoff.reset();
        assert!(backoff.next(Duration::ZERO).unwrap() >= limits::CLIENT_RETRY_MIN);
        assert!(backoff.next(Duration::from_secs(7)).unwrap() >= Duration::from_secs(7));
    }

    #[test]
    fn a_default_client_tries_often_within_the_grace_and_longer_than_the_retention() {
        for seed in 0..100 {
            let (retry, attempts_max) =
                (limits::CLIENT_RETRY_DEFAULT, limits::CLIENT_RECONNECTS_MAX);
            let mut backoff = Backoff::new(seed, retry, attempts_max);
            let mut times = vec![Duration::ZERO];
            while let Some(wait) = backoff.next(Duration::ZERO) {
                times.push(*times.last().unwrap() + wait);
            }
            let in_grace = times.iter().filter(|time| **time < limits::RECONNECT_GRACE).count() - 1;
            assert!((6..=9).contains(&in_grace), "{in_grace}");
            assert!(*times.last().unwrap() > limits::RECONNECT_GRACE + limits::RETENTION);
        }
    }

    #[test]
    fn two_clients_do_not_wait_the_same() {
        let second = Duration::from_secs(1);
        let wait = |seed| Backoff::new(seed, second, 1).next(Duration::ZERO).unwrap();
        let waits: Vec<Duration> = (0..100).map(wait).collect();
        let distinct = waits.iter().filter(|wait| **wait != waits[0]).count();
        assert!(distinct > 90);
    }
}
