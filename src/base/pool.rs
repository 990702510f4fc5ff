//! A table of fixed size over [`slab::Slab`] whose slots count their generations.
//!
//! Memory is allocated by [`Pool::new`] and never again. A [`Handle`] names one value in one slot.
//! After the slot was freed the handle is stale, even if the slot holds another value. A slot whose
//! generation would wrap is retired, so that no handle becomes valid again (mio's RUSTSEC-2024-0019
//! shows the cost of a reused token).

use slab::Slab;

use crate::base::planted::{Planted, planted};

/// The name of one value in one slot of one [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// The slot: 0-based, below the pool's capacity.
    pub index: u32,
    /// Number of values that the slot held before.
    pub generation: u32,
}

/// A fixed table of `T`.
#[derive(Debug)]
pub struct Pool<T> {
    slots: Slab<Option<T>>,
    generations: Box<[u32]>,
    capacity: u32,
    retired_count: u32,
}

impl<T> Pool<T> {
    /// Creates a table of `capacity` free slots.
    pub fn new(capacity: u32) -> Pool<T> {
        let slots = Slab::with_capacity(capacity as usize);
        let generations = vec![0; capacity as usize].into_boxed_slice();
        Pool { slots, generations, capacity, retired_count: 0 }
    }

    /// Puts `value` into a free slot. The most recently freed slot is used first, because its
    /// memory is warm.
    ///
    /// # Errors
    /// Returns `value` if the table is full.
    pub fn insert(&mut self, value: T) -> Result<Handle, T> {
        if self.slots.len() as u32 == self.capacity {
            return Err(value);
        }
        let index = self.slots.insert(Some(value)) as u32;
        assert!(index < self.capacity);
        Ok(Handle { index, generation: self.generations[index as usize] })
    }

    /// Removes and returns the value of `handle`; `None` if the handle is stale.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        self.get(handle)?;
        let index = handle.index as usize;
        match self.generations[index].checked_add(1) {
            Some(generation) => {
                self.generations[index] = generation;
                self.slots.remove(index)
            }
            None => {
                // Retired: the slot stays occupied, without a value.
                self.retired_count += 1;
                self.slots[index].take()
            }
        }
    }

    /// The value of `handle`; `None` if the handle is stale.
    #[inline]
    pub fn get(&self, handle: Handle) -> Option<&T> {
        let value = self.slots.get(handle.index as usize)?.as_ref()?;
        let is_present = self.generations[handle.index as usize] == handle.generation;
        (is_present || planted(Planted::StaleGenerationTaken)).then_some(value)
    }

    /// The same as [`Pool::get`], mutable.
    #[inline]
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let value = self.slots.get_mut(handle.index as usize)?.as_mut()?;
        let is_present = self.generations[handle.index as usize] == handle.generation;
        (is_present || planted(Planted::StaleGenerationTaken)).then_some(value)
    }

    /// The present value of slot `index`, for internal indices that cannot be stale.
    #[inline]
    pub fn at(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    /// The same as [`Pool::at`], mutable.
    #[inline]
    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// The handle of the present value of slot `index`.
    pub fn handle_at(&self, index: u32) -> Option<Handle> {
        self.at(index)?;
        Some(Handle { index, generation: self.generations[index as usize] })
    }

    /// Every value with its handle, in the order of the slots.
    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.slots.iter().filter_map(|(index, value)| {
            let handle = Handle { index: index as u32, generation: self.generations[index] };
            value.as_ref().map(|value| (handle, value))
        })
    }

    /// Number of values in the table.
    pub fn count(&self) -> u32 {
        self.slots.len() as u32 - self.retired_count
    }

    /// Number of values that the table has room for.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_finds_nobody() {
        let mut pool = Pool::new(2);
        let first = pool.insert("a").unwrap();
        assert_eq!(pool.remove(first), Some("a"));
        let second = pool.insert("b").unwrap();
        assert_eq!(first.index, second.index);
        assert_eq!(pool.get(first), None);
        assert_eq!(pool.remove(first), None);
        assert_eq!(pool.get(second), Some(&"b"));
    }

    #[test]
    fn a_full_pool_gives_the_value_back() {
        let mut pool = Pool::new(1);
        pool.insert(1).unwrap();
        assert_eq!(pool.insert(2), Err(2));
        assert_eq!(pool.count(), 1);
    }

    #[test]
    fn a_slot_whose_generation_would_wrap_is_retired() {
        let mut pool = Pool::new(1);
        pool.generations[0] = u32::MAX;
        let last = pool.insert("last").unwrap();
        assert_eq!(pool.remove(last), Some("last"));
        assert_eq!(pool.count(), 0);
        assert_eq!(pool.insert("never"), Err("never"));
        assert_eq!(pool.get(last), None);
    }
}
