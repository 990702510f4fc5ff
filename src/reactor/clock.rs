//! The only module that reads clocks.
//!
//! It reads CLOCK_MONOTONIC in nanoseconds, through the vDSO: no system call, 21 ns on a virtual
//! machine. All processes of a machine share that clock, so stamps in shared memory compare.
//! CLOCK_BOOTTIME is not used, because timeouts should not fire all at once after a suspend.

use crate::base::Instant;

/// The clock, as a value: for benchmarks and for readers on threads without a reactor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// The current instant.
    #[inline]
    pub fn now() -> Instant {
        let time = read(libc::CLOCK_MONOTONIC);
        Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// The wall-clock time in microseconds since 1970. It may jump in both directions when it is
    /// set.
    pub fn wall_us() -> u64 {
        let time = read(libc::CLOCK_REALTIME);
        time.tv_sec.max(0) as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
    }
}

#[inline]
fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place to write a timespec to.
    let code = unsafe { libc::clock_gettime(clock, &mut time) };
    assert!(code == 0); // Both clocks exist on every Linux.
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back_and_agrees_with_the_standard_library() {
        let mut last = Clock::now();
        for _ in 0..10_000 {
            let now = Clock::now();
            assert!(now >= last);
            last = now;
        }
        #[allow(clippy::disallowed_methods)] // The clock this file is checked against.
        let system = std::time::SystemTime::now();
        let system_us = system.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
        assert!(Clock::wall_us().abs_diff(system_us) < 3_600_000_000); // Same unit and origin.
    }
}
