//! The time from a call to its first notification: its options, and its measurement.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::server::Server;
use crate::common::Failure;
use crate::common::machine::{now_ns, preemption_count};

/// The upper bound of the histogram. Longer times are counted as this one.
const NS_MAX: u64 = 60_000_000_000;

/// The calls for the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Firsts {
    /// The minimum number of calls.
    pub calls: u32,
    /// The time in which the server is idle, before each call.
    pub pause: Duration,
    /// Number of concurrent calls. At 0, calls follow one another.
    pub at_once: u32,
}

/// The result.
pub struct Taken {
    /// One value for each call.
    pub histogram: Histogram<u64>,
    /// Number of preemptions by the kernel during the calls.
    pub preemptions: u64,
}

impl Default for Firsts {
    fn default() -> Firsts {
        Firsts { calls: 200, pause: Duration::ZERO, at_once: 0 }
    }
}

impl Firsts {
    /// True if the first notification is the main subject of the run.
    pub fn is_the_question(&self) -> bool {
        self.at_once > 0 || !self.pause.is_zero()
    }

    /// Returns the options that result in these calls.
    pub fn words(&self) -> String {
        let mut words = format!("--first {}", self.calls);
        if !self.pause.is_zero() {
            words += &format!(" --first-pause {}", self.pause.as_secs_f64());
        }
        if self.at_once > 0 {
            words += &format!(" --first-at-once {}", self.at_once);
        }
        words
    }

    /// Makes all calls.
    ///
    /// # Errors
    /// [`Failure::Failed`] if a reply is missing or wrong.
    pub fn take_of(&self, server: &mut Server) -> Result<Taken, Failure> {
        let histogram = Histogram::new_with_bounds(1, NS_MAX, 3);
        let mut histogram = histogram.expect("the bounds are constants that it accepts");
        let before = (server.usage()?.preemptions, preemption_count());
        if self.at_once > 0 {
            let mut calls = server.at_once(self.at_once)?;
            for _ in 0..self.calls.div_ceil(self.at_once) {
                self.rest();
                calls.call(&mut histogram)?;
            }
        } else {
            for _ in 0..self.calls {
                self.rest();
                histogram.saturating_record(server.first()?);
            }
        }
        let after = (server.usage()?.preemptions, preemption_count());
        let preemptions = after.0.saturating_sub(before.0) + after.1 - before.1;
        Ok(Taken { histogram, preemptions })
    }

    /// Lets the server rest. The receiver goes on polling the clock.
    fn rest(&self) {
        let until_ns = now_ns() + self.pause.as_nanos() as u64;
        while now_ns() < until_ns {
            std::hint::spin_loop();
        }
    }
}
