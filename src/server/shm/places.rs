//! The limit of executions that other processes share, common to all shards of a server. The
//! threads that allocate their memory and watch their producers belong to it.

use std::fmt;
use std::sync::Arc;

use crate::limits;
use crate::memory::atomic::{AtomicU32, Ordering};
use crate::memory::{OwnerView, RingReader};
use crate::reactor::Waker;
use crate::server::shm::buyer::{Buyer, Job};
use crate::server::shm::watcher::{Watcher, Watching};

/// The limit of executions that other processes may share. Clones share one limit: the shards of a
/// server use the same places.
#[derive(Clone)]
pub struct Doors {
    shared: Arc<Shared>,
}

struct Shared {
    places_max: u32,
    taken_count: AtomicU32,
    watcher: Watcher,
    buyer: Buyer,
}

/// A taken place. The drop frees it.
pub(in crate::server) struct Place {
    shared: Arc<Shared>,
}

impl Doors {
    /// Returns a limit of `places_max` executions, at most `limits::DOORS_CEILING`.
    ///
    /// ```
    /// use streamdoor::server::{Doors, GuestConfig};
    /// let guests = GuestConfig { doors: Doors::new(2), ..GuestConfig::default() };
    /// assert_eq!(guests.doors.places_max(), 2);
    /// ```
    pub fn new(places_max: u32) -> Doors {
        let places_max = places_max.min(limits::DOORS_CEILING);
        let (taken_count, watcher) = (AtomicU32::new(0), Watcher::default());
        let buyer = Buyer::default();
        Doors { shared: Arc::new(Shared { places_max, taken_count, watcher, buyer }) }
    }

    /// Returns the limit, whether its places are taken or not.
    pub fn places_max(&self) -> u32 {
        self.shared.places_max
    }

    /// Takes a place, if one is free.
    pub(in crate::server) fn take(&self) -> Option<Place> {
        let places_max = self.shared.places_max;
        let count = &self.shared.taken_count;
        let taken = count.fetch_add(1, Ordering::Relaxed);
        let place = Place { shared: Arc::clone(&self.shared) }; // The drop undoes the count.
        (taken < places_max).then_some(place)
    }

    /// Runs the job, which allocates memory, on another thread.
    pub(in crate::server) fn buy(&self, job: Job) {
        self.shared.buyer.buy(job);
    }

    /// Wakes the shard and the ring's readers when the producer dies, until the result is dropped.
    pub(in crate::server) fn watch(
        &self,
        owner: OwnerView,
        waker: Waker,
        ring: RingReader,
    ) -> Option<Watching> {
        self.shared.watcher.watch(owner, waker, ring)
    }
}

impl Default for Doors {
    /// The limit is `limits::DOORS_MAX`.
    fn default() -> Doors {
        Doors::new(limits::DOORS_MAX)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.taken_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Doors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken_count = self.shared.taken_count.load(Ordering::Relaxed);
        write!(out, "Doors({taken_count} of {})", self.shared.places_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_places_as_were_said_and_each_comes_back() {
        let doors = Doors::new(2);
        let (first, second) = (doors.take().unwrap(), doors.clone().take().unwrap());
        assert!(doors.take().is_none() && doors.take().is_none());
        drop(first);
        let third = doors.take().unwrap();
        assert!(doors.take().is_none());
        drop((second, third));
        assert_eq!(format!("{doors:?}"), "Doors(0 of 2)");
        assert!(Doors::new(0).take().is_none());
    }
}
