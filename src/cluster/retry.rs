//! Pauses between attempts.

use std::time::Duration;

use crate::base::Instant;
use crate::limits::{CLUSTER_RETRY_FIRST, CLUSTER_RETRY_MAX};

/// The pauses before attempts that have failed one after the other. Each is twice as long as the
/// one before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pauses {
    next: Option<Duration>,
}

impl Pauses {
    /// The time of the next attempt.
    pub fn after(&mut self, now: Instant) -> Instant {
        let pause = self.next.unwrap_or(CLUSTER_RETRY_FIRST);
        self.next = Some((2 * pause).min(CLUSTER_RETRY_MAX));
        now + pause
    }

    /// An attempt has succeeded.
    pub fn reset(&mut self) {
        self.next = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_maximum_and_begin_again() {
        let mut pauses = Pauses::default();
        let all: Vec<u128> = (0..8).map(|_| pauses.after(Instant::ZERO).nanos() as u128).collect();
        let ms = [50, 100, 200, 400, 800, 1_600, 2_000, 2_000];
        assert_eq!(all, ms.map(|ms| ms * 1_000_000));
        pauses.reset();
        assert_eq!(pauses.after(Instant::ZERO), Instant::ZERO + CLUSTER_RETRY_FIRST);
    }
}
