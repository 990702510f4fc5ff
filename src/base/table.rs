//! A table of optional values that takes memory up to the largest index that was used.

use std::ops::{Index, IndexMut};

/// A table of `places_max` places, each of which is empty or holds a value.
///
/// Memory is allocated by [`Table::new`] and never again. It is first written when a place is used,
/// and until then the kernel provides none.
#[derive(Debug)]
pub struct Table<T> {
    /// The places up to the last one that was used.
    places: Vec<Option<T>>,
    places_max: u32,
}

impl<T> Table<T> {
    /// Creates a table whose places are empty.
    pub fn new(places_max: u32) -> Table<T> {
        Table { places: Vec::with_capacity(places_max as usize), places_max }
    }

    /// Number of places.
    pub fn capacity(&self) -> u32 {
        self.places_max
    }

    /// Number of places up to the last one that was used.
    pub fn used_count(&self) -> u32 {
        self.places.len() as u32
    }

    /// The place with this index; `None` if none so far out was used.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Option<T>> {
        self.places.get(index)
    }

    /// The same as [`Table::get`], mutable.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Option<T>> {
        self.places.get_mut(index)
    }

    /// The places, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Option<T>> {
        self.places.iter()
    }

    /// The same as [`Table::iter`], mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Option<T>> {
        self.places.iter_mut()
    }

    #[cold]
    fn extend_to(&mut self, index: usize) {
        assert!(index < self.places_max as usize);
        self.places.resize_with(index + 1, || None);
    }
}

/// A place that was not used is empty.
///
/// # Panics
/// If the table has no such place.
impl<T> Index<usize> for Table<T> {
    type Output = Option<T>;

    #[inline]
    fn index(&self, index: usize) -> &Option<T> {
        match self.places.get(index) {
            Some(place) => place,
            None => {
                assert!(index < self.places_max as usize);
                &None
            }
        }
    }
}

impl<T> IndexMut<usize> for Table<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut Option<T> {
        if index >= self.places.len() {
            self.extend_to(index);
        }
        &mut self.places[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_empty_until_they_are_used() {
        let mut table = Table::new(5);
        assert_eq!(table[4], None);
        assert_eq!((table.used_count(), table.capacity()), (0, 5));
        table[2] = Some("b");
        assert_eq!((table.used_count(), table[1], table[2]), (3, None, Some("b")));
        assert_eq!(table[3], None);
        assert_eq!(table.get(3), None);
        assert_eq!(table.get_mut(2), Some(&mut Some("b")));
        assert_eq!(table.iter_mut().flatten().count(), table.iter().flatten().count());
    }

    #[test]
    #[should_panic]
    fn a_table_has_no_place_beyond_its_last() {
        let mut table = Table::new(5);
        table[5] = Some("f");
    }
}
