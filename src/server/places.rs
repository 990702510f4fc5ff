//! The limits of what one principal may have, on all shards of a server together.
//!
//! The count is shared. It is read when something begins and when it ends, and never in between. A
//! [`Place`] counts until it is dropped, also if its shard is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::Principal;

/// The places of one server. All of its shards have clones.
#[derive(Clone, Debug, Default)]
pub struct Places {
    taken: Arc<Mutex<BTreeMap<(PlaceKind, Principal), usize>>>,
}

/// The kinds of things that are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::server) enum PlaceKind {
    /// Streams that are read through doors, and were not read to their ends.
    Streams,
    /// Tasks that clients can ask for.
    Tasks,
}

/// A place that is taken.
#[derive(Debug)]
#[must_use = "the place is given back when this is dropped"]
pub(in crate::server) struct Place {
    of: Places,
    key: (PlaceKind, Principal),
}

impl Places {
    /// Takes a place, if this principal has fewer than `most`.
    pub(in crate::server) fn take(
        &self,
        what: PlaceKind,
        principal: Principal,
        most: usize,
    ) -> Option<Place> {
        let key = (what, principal);
        let mut taken = self.taken();
        let count = taken.entry(key).or_default();
        if *count >= most {
            return None; // The count is not 0, so the entry stays.
        }
        *count += 1;
        drop(taken);
        Some(Place { of: self.clone(), key })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<(PlaceKind, Principal), usize>> {
        // No code under the lock can panic.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.taken();
        let count = taken.get_mut(&self.key).expect("it holds a place");
        *count -= 1;
        if *count == 0 {
            taken.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_one_principals_and_comes_back() {
        let places = Places::default();
        let (one, other) = (Principal(1), Principal(2));
        let elsewhere = places.clone();
        let first = places.take(PlaceKind::Streams, one, 2).unwrap();
        let second = elsewhere.take(PlaceKind::Streams, one, 2).unwrap();
        assert!(places.take(PlaceKind::Streams, one, 2).is_none());
        assert!(places.take(PlaceKind::Streams, other, 2).is_some());
        assert!(places.take(PlaceKind::Tasks, one, 2).is_some());
        drop(first);
        let third = elsewhere.take(PlaceKind::Streams, one, 2).unwrap();
        assert!(places.take(PlaceKind::Streams, one, 2).is_none());
        drop((second, third));
        assert!(places.taken().is_empty());
        assert!(places.take(PlaceKind::Streams, one, 0).is_none());
    }
}
