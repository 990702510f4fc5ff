//! A cache line that goes to another cpu and comes back. No wait between two threads can be
//! shorter.
//!
//! Each direction has a line of its own. A sample is the mean of [`TRIPS_PER_SAMPLE`] trips,
//! because a clock read costs a fifth of a trip. The tail is thus that of means.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::common::Failure;
use crate::common::machine::{now_ns, pin_thread};
use crate::common::params::Fanout;
use crate::common::report::histogram_of;

const TRIPS_PER_SAMPLE: u64 = 16;
/// The number that makes the answering thread exit.
const LAST: u64 = u64::MAX;

#[derive(Default)]
#[repr(align(128))] // Two lines, because the processor fetches them in pairs.
struct Line(AtomicU64);

/// Measures the nanoseconds of a round trip between the two cpus of `params`, for its duration.
///
/// # Errors
/// [`Failure::Environment`] if a thread cannot be pinned.
pub fn measure(params: &Fanout) -> Result<Histogram<u64>, Failure> {
    let (there, back) = (Line::default(), Line::default());
    let ready = Barrier::new(2);
    pin_thread(params.producer_cpu)?;
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            // Answers even if pinning fails, because the other side waits for answers.
            let pinned = pin_thread(params.subscribers_cpu);
            ready.wait(); // Until then, it may need the cpu on which the other would spin.
            answer(&there, &back);
            pinned
        });
        ready.wait();
        let samples_ns = ask(&there, &back, params.warmup, params.duration);
        answering.join().expect("the answering thread does not panic")?;
        Ok(histogram_of(&samples_ns))
    })
}

fn answer(there: &Line, back: &Line) {
    let mut seen = 0;
    while seen != LAST {
        // acquire: pairs with release in `ask`.
        let number = there.0.load(Ordering::Acquire);
        if number != seen {
            seen = number;
            back.0.store(number, Ordering::Release);
        }
    }
}

fn ask(there: &Line, back: &Line, warmup: Duration, duration: Duration) -> Vec<u32> {
    let mut samples_ns = Vec::new();
    let start_ns = now_ns();
    let counted_ns = start_ns + warmup.as_nanos() as u64;
    let end_ns = counted_ns + duration.as_nanos() as u64;
    let mut number = 0;
    let mut before_ns = start_ns;
    while before_ns < end_ns {
        for _ in 0..TRIPS_PER_SAMPLE {
            number += 1;
            there.0.store(number, Ordering::Release);
            // acquire: pairs with release in `answer`.
            while back.0.load(Ordering::Acquire) != number {}
        }
        let after_ns = now_ns();
        if before_ns >= counted_ns {
            let sample_ns = (after_ns - before_ns) / TRIPS_PER_SAMPLE;
            samples_ns.push(sample_ns.min(u64::from(u32::MAX)) as u32);
        }
        before_ns = after_ns;
    }
    there.0.store(LAST, Ordering::Release);
    samples_ns
}
