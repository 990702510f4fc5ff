//! Time as a number. Code that needs the time gets `now` as an argument.
//!
//! No clock lives here. [`crate::reactor`] owns the only one, and the simulator another. A value
//! counts nanoseconds of CLOCK_MONOTONIC (in the simulator, of virtual time from zero). It is
//! therefore comparable between processes of one machine.

use std::ops::{Add, AddAssign};
use std::time::Duration;

/// A point in time: nanoseconds since an origin that only the clock knows. 64 bits last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin: zero of the simulator's clock, boot of a real machine.
    pub const ZERO: Instant = Instant(0);
    /// An instant after every deadline, used for "never".
    pub const FAR: Instant = Instant(u64::MAX);

    /// Returns the instant `nanos` ns after the origin.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Number of nanoseconds since the origin.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Returns `self - earlier`, or zero if `earlier` is the later one.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns `self + duration`, or [`Instant::FAR`] if 64 bits are too few.
    pub const fn saturating_add(self, duration: Duration) -> Instant {
        let nanos = duration.as_nanos();
        if nanos > u64::MAX as u128 {
            return Instant::FAR;
        }
        Instant(self.0.saturating_add(nanos as u64))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        self.saturating_add(duration)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = self.saturating_add(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_saturates_instead_of_wrapping() {
        assert_eq!(Instant::FAR + Duration::from_secs(1), Instant::FAR);
        assert_eq!(Instant::ZERO.since(Instant::FAR), Duration::ZERO);
        assert_eq!(Instant::ZERO + Duration::MAX, Instant::FAR);
        assert_eq!((Instant::ZERO + Duration::from_micros(3)).nanos(), 3_000);
    }
}
