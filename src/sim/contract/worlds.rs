//! The surroundings of the conformance list: reactors, wake-ups from elsewhere, and common steps of
//! the tests.

use std::time::Duration;

use streamdoor::base::Random;
use streamdoor::limits::REACTOR_POLLS_PER_LOOK;
use streamdoor::reactor::{Reactor, Waker};
use streamdoor::sim::reactor::SimReactor;
use streamdoor::sim::world::SimWorld;

/// The surroundings of a reactor in the conformance list.
pub trait ContractWorld {
    type R: Reactor;
    const IS_REAL: bool;
    fn reactor(&self) -> Self::R;
    fn wake_later(&self, waker: Waker, delay: Duration);
}

pub struct Real<R> {
    pub make: fn() -> R,
}

impl<R: Reactor> ContractWorld for Real<R> {
    type R = R;
    const IS_REAL: bool = true;
    fn reactor(&self) -> R {
        (self.make)()
    }
    fn wake_later(&self, waker: Waker, delay: Duration) {
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            waker.wake();
        });
    }
}

impl ContractWorld for SimWorld {
    type R = SimReactor;
    const IS_REAL: bool = false;
    fn reactor(&self) -> SimReactor {
        SimReactor::new(self)
    }
    fn wake_later(&self, waker: Waker, delay: Duration) {
        self.wake_at(self.now() + delay, waker);
    }
}

/// Polls often enough to see everything that has come (R9).
pub fn poll_all<R: Reactor>(reactor: &mut R) -> usize {
    let mut count = 0;
    for _ in 0..REACTOR_POLLS_PER_LOOK {
        count += reactor.poll();
    }
    count
}

pub fn pattern(seed: u64, size_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; size_bytes];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// Number of descriptors that the process has open.
pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
