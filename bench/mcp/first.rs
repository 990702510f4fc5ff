//! The time from a call to its first notification: how it is asked for, and taken.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::server::Server;
use crate::common::Failure;
use crate::common::machine::{now_ns, preemption_count};

/// The bounds of the histogram; what is longer is counted as the longest.
const NS_MAX: u64 = 60_000_000_000;

/// Which calls are made for it.
#[derive(Clone, Copy, Debug)]
pub struct Firsts {
    /// How many, at least.
    pub calls: u32,
    /// How long the server has nothing to do, before each.
    pub pause: Duration,
    /// So many at once; 0: one after the other.
    pub at_once: u32,
}

/// What was found.
pub struct Taken {
    /// One value for each call.
    pub histogram: Histogram<u64>,
    /// How often the kernel ran somebody else meanwhile.
    pub preemptions: u64,
}

impl Default for Firsts {
    fn default() -> Firsts {
        Firsts { calls: 200, pause: Duration::ZERO, at_once: 0 }
    }
}

impl Firsts {
    /// Was it asked for more than in passing?
    pub fn is_the_question(&self) -> bool {
        self.at_once > 0 || !self.pause.is_zero()
    }

    /// As it can be typed.
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

    /// Makes them all.
    ///
    /// # Errors
    /// [`Failure::Failed`] if one of them is not answered as it should be.
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

    /// The server does; the receiver goes on polling, of the clock.
    fn rest(&self) {
        let until_ns = now_ns() + self.pause.as_nanos() as u64;
        while now_ns() < until_ns {
            std::hint::spin_loop();
        }
    }
}
