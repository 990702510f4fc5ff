//! Names for the objects that C holds. A name is a number that is looked up, so that a closed one
//! does no harm.
//!
//! A name is an index into a table and a counter of the uses of that entry, so it is never used
//! again. Only one thread at a time can use an object. Another thread gets an error and does not
//! wait.

use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::error::Fault;

/// The same as `SD_NAMES_MAX`.
pub const NAMES_MAX: usize = 1_024;

/// Objects of one kind, by their names.
pub struct Names<T> {
    /// The number that distinguishes names of this kind from those of others.
    kind: u64,
    places: [Mutex<Place<T>>; NAMES_MAX],
}

struct Place<T> {
    turn: u32,
    thing: Option<T>,
}

const KIND_SHIFT: u32 = 60;
const TURN_SHIFT: u32 = 16;

impl<T> Names<T> {
    /// Returns an empty table. `kind` is from 1 to 15.
    pub const fn new(kind: u64) -> Names<T> {
        assert!(kind > 0 && kind < 16);
        Names { kind, places: [const { Mutex::new(Place { turn: 0, thing: None }) }; NAMES_MAX] }
    }

    /// Inserts an object and returns its name.
    ///
    /// # Errors
    /// [`Fault::TooMany`]; the object is dropped.
    pub fn insert(&self, thing: T) -> Result<u64, Fault> {
        for (index, place) in self.places.iter().enumerate() {
            // An entry in use is taken, because it has not been closed.
            let Ok(mut place) = lock(place) else { continue };
            if place.thing.is_none() && place.turn < u32::MAX {
                place.turn += 1;
                place.thing = Some(thing);
                return Ok(self.name(place.turn, index));
            }
        }
        Err(Fault::TooMany)
    }

    /// Calls `act` with the object called `name`.
    ///
    /// # Errors
    /// [`Fault::Name`], [`Fault::Busy`], or the error of `act`.
    pub fn with<R>(
        &self,
        name: u64,
        act: impl FnOnce(&mut T) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        self.at(name, |place| act(place.as_mut().expect("`at` has looked")))
    }

    /// Removes the object called `name`, and its name.
    ///
    /// # Errors
    /// [`Fault::Name`], [`Fault::Busy`].
    pub fn remove(&self, name: u64) -> Result<T, Fault> {
        self.at(name, |place| Ok(place.take().expect("`at` has looked")))
    }

    fn at<R>(
        &self,
        name: u64,
        act: impl FnOnce(&mut Option<T>) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let index = (name & ((1 << TURN_SHIFT) - 1)) as usize;
        let mut place = lock(self.places.get(index).ok_or(Fault::Name)?)?;
        if place.thing.is_none() || name != self.name(place.turn, index) {
            return Err(Fault::Name);
        }
        act(&mut place.thing)
    }

    fn name(&self, turn: u32, index: usize) -> u64 {
        self.kind << KIND_SHIFT | u64::from(turn) << TURN_SHIFT | index as u64
    }
}

/// Locks an entry, unless it is in use.
fn lock<T>(place: &Mutex<Place<T>>) -> Result<MutexGuard<'_, Place<T>>, Fault> {
    match place.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::WouldBlock) => Err(Fault::Busy),
        Err(TryLockError::Poisoned(poisoned)) => {
            // A panic has passed through the object, so it must not be used any more.
            let mut guard = poisoned.into_inner();
            guard.thing = None;
            place.clear_poison();
            Ok(guard)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_its_thing_until_that_is_taken_away() {
        static NAMES: Names<&str> = Names::new(3);
        let first = NAMES.insert("first").unwrap();
        let second = NAMES.insert("second").unwrap();
        assert_eq!(NAMES.with(second, |thing| Ok(*thing)), Ok("second"));
        assert_eq!(NAMES.remove(first), Ok("first"));
        assert_eq!(NAMES.remove(first), Err(Fault::Name));
        let third = NAMES.insert("third").unwrap();
        assert_ne!(third, first); // The same entry.
        assert_eq!(NAMES.with(first, |_| Ok(())), Err(Fault::Name));
        for name in [0, u64::MAX, second ^ 1, second ^ 1 << KIND_SHIFT, second | 1 << 50] {
            assert_eq!(NAMES.with(name, |_| Ok(())), Err(Fault::Name), "{name:x}");
        }
    }

    #[test]
    fn a_thing_has_one_user_at_a_time_and_there_are_so_many_things() {
        static NAMES: Names<usize> = Names::new(4);
        let names: Vec<u64> = (0..NAMES_MAX).map(|n| NAMES.insert(n).unwrap()).collect();
        assert_eq!(NAMES.insert(0), Err(Fault::TooMany));
        let inside = NAMES.with(names[5], |_| {
            assert_eq!(NAMES.with(names[5], |_| Ok(())), Err(Fault::Busy));
            NAMES.with(names[6], |thing| Ok(*thing))
        });
        assert_eq!(inside, Ok(6));
        NAMES.remove(names[9]).unwrap();
        assert!(NAMES.insert(9).is_ok());
    }

    #[test]
    fn what_a_panic_left_behind_is_gone() {
        static NAMES: Names<String> = Names::new(5);
        let name = NAMES.insert("x".to_owned()).unwrap();
        let act = |_: &mut String| -> Result<(), Fault> { panic!("on purpose") };
        let panicked = std::thread::spawn(move || NAMES.with(name, act));
        assert!(panicked.join().is_err());
        assert_eq!(NAMES.with(name, |_| Ok(())), Err(Fault::Name));
        assert!(NAMES.insert("y".to_owned()).is_ok());
    }
}
