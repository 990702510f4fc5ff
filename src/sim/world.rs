//! The world that simulated reactors and actors share. It has virtual time from zero, one seeded
//! source of randomness, alarms, the network (`network.rs`), disks (`disk.rs`), and the faults of
//! the kernel.
//!
//! One thread. Absent: real time, threads, descriptors. Invariant: time never goes back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::base::{Instant, Random};
use crate::reactor::{IoError, Waker};
use crate::sim::disk::SimDisk;
use crate::sim::network::Network;

/// 2026-01-01 in microseconds: the wall-clock time at virtual time zero.
pub const WALL_ORIGIN_US: u64 = 1_767_225_600_000_000;

/// The faults of the kernel. Chances are per mille.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimFaults {
    /// The longest time between readiness and transfer.
    pub delay_max: Duration,
    /// Chance of a transfer of fewer bytes than possible: any number from one up.
    pub short_chance: u64,
    /// Chance of "not ready after all".
    pub again_chance: u64,
    /// Chance of EINTR.
    pub interrupt_chance: u64,
    /// True if the events of one moment are shuffled.
    pub is_shuffled: bool,
}

impl SimFaults {
    /// A kernel that does everything at once and in order.
    pub const NONE: SimFaults = SimFaults {
        delay_max: Duration::ZERO,
        short_chance: 0,
        again_chance: 0,
        interrupt_chance: 0,
        is_shuffled: false,
    };
    /// All faults at once, often.
    pub const ALL: SimFaults = SimFaults {
        delay_max: Duration::from_micros(30),
        short_chance: 500,
        again_chance: 200,
        interrupt_chance: 200,
        is_shuffled: true,
    };
}

/// The world that reactors and actors share. Clones are the same world.
#[derive(Clone, Debug)]
pub struct SimWorld {
    pub(super) world: Rc<RefCell<World>>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) horizon: Option<Instant>,
    pub(super) random: Random,
    pub(super) faults: SimFaults,
    alarms: Vec<(Instant, Waker)>,
    pub(super) network: Network,
    /// The disks, by the paths of their directories.
    pub(super) disks: BTreeMap<PathBuf, SimDisk>,
}

pub(super) const EAGAIN: IoError = IoError(libc::EAGAIN);

impl SimWorld {
    /// A world at time zero.
    pub fn new(seed: u64, faults: SimFaults) -> SimWorld {
        let world = World {
            now: Instant::ZERO,
            horizon: None,
            random: Random::new(seed),
            faults,
            alarms: Vec::new(),
            network: Network::default(),
            disks: BTreeMap::new(),
        };
        SimWorld { world: Rc::new(RefCell::new(world)) }
    }

    /// The virtual time.
    pub fn now(&self) -> Instant {
        self.world.borrow().now
    }

    /// Moves time to `instant`, and rings the alarms on the way.
    ///
    /// # Panics
    /// `instant` is in the past.
    pub fn advance_to(&self, instant: Instant) {
        self.world.borrow_mut().advance_to(instant);
    }

    /// Sets the horizon. No wait moves time past it; a wait returns there without another reason.
    pub fn set_horizon(&self, horizon: Option<Instant>) {
        self.world.borrow_mut().horizon = horizon;
    }

    /// Sets the faults of the kernel from now on.
    pub fn set_faults(&self, faults: SimFaults) {
        self.world.borrow_mut().faults = faults;
    }

    /// Makes `disk` the directory at `path`. A disk that was there before is so no more.
    pub fn put_disk(&self, path: &Path, disk: &SimDisk) {
        self.world.borrow_mut().disks.insert(path.to_path_buf(), disk.clone());
    }

    /// Wakes a reactor when time reaches `instant`.
    pub fn wake_at(&self, instant: Instant, waker: Waker) {
        self.world.borrow_mut().alarms.push((instant, waker));
    }
}

impl World {
    pub(super) fn delay(&mut self) -> Duration {
        let delay_max_ns = self.faults.delay_max.as_nanos() as u64;
        Duration::from_nanos(self.random.between(0, delay_max_ns))
    }

    pub(super) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.iter().map(|(at, _)| *at).min()
    }

    fn advance_to(&mut self, instant: Instant) {
        assert!(instant >= self.now, "time does not go back");
        self.now = instant;
        self.alarms.retain(|(at, waker)| {
            let is_due = *at <= instant;
            if is_due {
                waker.wake();
            }
            !is_due
        });
    }
}
