//! Connections without a request, in the order in which they became idle. The first one is evicted
//! first. The list is linked through a table of slots, so that it allocates and searches nothing.

/// The list of idle connections. Slots count from 1 here, and 0 means none.
#[derive(Debug)]
pub(in crate::server) struct Line {
    links: Vec<Link>,
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    before: u32,
    behind: u32,
}

impl Line {
    /// Creates a list with memory for this many slots.
    pub fn new(places_max: u32) -> Line {
        Line { links: Vec::with_capacity(places_max as usize + 1), first: 0, last: 0 }
    }

    /// Returns the connection that is in the list longest.
    pub fn first(&self) -> Option<u32> {
        self.first.checked_sub(1)
    }

    /// Puts a connection at the end, and removes it from its old position.
    pub fn append(&mut self, index: u32) {
        self.leave(index);
        let place = index + 1;
        if place as usize >= self.links.len() {
            self.links.resize(place as usize + 1, Link::default());
        }
        self.links[place as usize] = Link { before: self.last, behind: 0 };
        match self.last {
            0 => self.first = place,
            last => self.links[last as usize].behind = place,
        }
        self.last = place;
    }

    /// Removes a connection, if it is in the list.
    pub fn leave(&mut self, index: u32) {
        let place = index + 1;
        let Some(&Link { before, behind }) = self.links.get(place as usize) else { return };
        if before == 0 && self.first != place {
            return; // It is not in the list.
        }
        match before {
            0 => self.first = behind,
            before => self.links[before as usize].behind = behind,
        }
        match behind {
            0 => self.last = before,
            behind => self.links[behind as usize].before = before,
        }
        self.links[place as usize] = Link::default();
    }

    /// Iterates over the list in order. For tests and invariants.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let next = |&place: &u32| Some(self.links[place as usize].behind).filter(|&b| b != 0);
        std::iter::successors(Some(self.first).filter(|&first| first != 0), next).map(|p| p - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    #[test]
    fn the_line_is_what_a_list_is() {
        let mut random = Random::new(1);
        let (mut line, mut model) = (Line::new(4), Vec::new());
        for _ in 0..10_000 {
            let index = random.below(12) as u32;
            model.retain(|other| *other != index);
            if random.chance(1, 2) {
                line.append(index);
                model.push(index);
            } else {
                line.leave(index);
            }
            assert_eq!(line.iter().collect::<Vec<_>>(), model);
            assert_eq!(line.first(), model.first().copied());
        }
    }
}
