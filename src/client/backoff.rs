//! The waits between attempts to reconnect.

use std::time::Duration;

use crate::base::Random;
use crate::limits;

/// The attempts in a row, and the waits before them. Each wait is twice as long as the one before.
/// Up to half of it is added at random, so that clients that were cut off together do not return
/// together.
#[derive(Debug)]
pub(super) struct Backoff {
    random: Random,
    /// The planned wait before the first attempt.
    retry: Duration,
    attempts: u32,
    attempts_max: u32,
}

impl Backoff {
    /// At most `attempts_max` attempts in a row. The first waits for `retry`.
    pub fn new(seed: u64, retry: Duration, attempts_max: u32) -> Backoff {
        let random = Random::new(seed);
        let mut backoff = Backoff { random, retry, attempts: 0, attempts_max };
        backoff.set_retry(retry);
        backoff
    }

    /// Sets the wait that the server gave.
    pub fn set_retry(&mut self, retry: Duration) {
        self.retry = retry.clamp(limits::CLIENT_RETRY_MIN, limits::CLIENT_RETRY_MAX);
    }

    /// Starts anew after a success.
    pub fn reset(&mut self) {
        self.attempts = 0;
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
        let factor = 1u32.checked_shl(self.attempts).unwrap_or(u32::MAX);
        self.attempts += 1;
        let longest = limits::CLIENT_RETRY_MAX;
        let planned = self.retry.saturating_mul(factor).min(longest);
        let wait = planned.max(wait_min.min(longest));
        Some(wait.mul_f64(1.0 + self.random.unit() / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_attempts_end() {
        let mut backoff = Backoff::new(1, Duration::from_millis(100), 70);
        for attempt in 0..70u32 {
            let wait = backoff.next(Duration::ZERO).unwrap();
            let planned = Duration::from_millis(100 << attempt.min(20));
            let planned = planned.min(limits::CLIENT_RETRY_MAX);
            assert!(wait >= planned && wait <= planned.mul_f64(1.5), "{attempt}: {wait:?}");
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
    fn two_clients_do_not_wait_the_same() {
        let second = Duration::from_secs(1);
        let wait = |seed| Backoff::new(seed, second, 1).next(Duration::ZERO).unwrap();
        let waits: Vec<Duration> = (0..100).map(wait).collect();
        let distinct = waits.iter().filter(|wait| **wait != waits[0]).count();
        assert!(distinct > 90);
    }
}
