//! Buffers that connections borrow: for what is theirs alone and for its pieces, between two
//! flushes, and for what the kernel did not take, until it does. An idle connection has none.
//!
//! There are two sizes, so that who puts aside a whole flush does not find what somebody wrote a
//! gap into: it would have to grow, long after everything had its size.

use super::connection::{PIECES_MAX, Pieces};
use crate::limits;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Buffers {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    /// Room for [`PIECES_MAX`] pieces each, as often as it was needed at once.
    pieces: Vec<Pieces>,
}

impl Buffers {
    pub fn new() -> Buffers {
        let kept = || Vec::with_capacity(limits::CARRIES_KEPT);
        let pieces = Vec::with_capacity(limits::CARRIES_KEPT);
        Buffers { small: kept(), large: kept(), pieces }
    }

    /// Sees to it that so many connections can put something aside at once, or as many as are
    /// provided for. Memory that nobody writes to is none yet.
    pub fn provide(&mut self, connection_count: usize) {
        while self.large.len() < connection_count.min(limits::CARRIES_KEPT) {
            self.large.push(Vec::with_capacity(limits::CARRY_BYTES));
        }
        while self.pieces.len() < connection_count.min(limits::CARRIES_KEPT) {
            self.pieces.push(Pieces::with_capacity(PIECES_MAX));
        }
        self.pieces.reserve(connection_count);
    }

    /// Sees to it that there is a small one more, for who is told something at any time.
    pub fn provide_small(&mut self) {
        if self.small.len() < limits::CARRIES_KEPT {
            self.small.push(Vec::with_capacity(limits::BUFFER_BYTES));
        }
    }

    /// One for a few events, if there is one.
    #[inline]
    pub fn small(&mut self) -> Option<Vec<u8>> {
        self.small.pop()
    }

    /// Room for the pieces of one flush, if there is some.
    #[inline]
    pub fn pieces(&mut self) -> Option<Pieces> {
        self.pieces.pop()
    }

    /// Room for pieces that is not needed any more.
    #[inline]
    pub fn give_back_pieces(&mut self, mut pieces: Pieces) {
        pieces.clear();
        self.pieces.push(pieces);
    }

    /// One with room for so many bytes, and for a flush of short events in any case.
    pub fn large(&mut self, bytes: usize) -> Vec<u8> {
        match self.large.iter().rposition(|buffer| buffer.capacity() >= bytes) {
            Some(at) => self.large.swap_remove(at),
            None => {
                self.large.pop(); // The larger one comes back in its place.
                let is_short = bytes <= limits::CARRY_BYTES;
                Vec::with_capacity(if is_short {
                    limits::CARRY_BYTES
                } else {
                    bytes.next_power_of_two()
                })
            }
        }
    }

    /// One that is not needed any more.
    pub fn give_back(&mut self, mut buffer: Vec<u8>) {
        let kept = match buffer.capacity() {
            0 => return,
            limits::FLUSH_BYTES.. => &mut self.large,
            _ => &mut self.small,
        };
        if kept.len() < limits::CARRIES_KEPT && buffer.capacity() <= limits::CARRY_KEPT_BYTES_MAX {
            buffer.clear();
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_needs_much_finds_a_buffer_that_need_not_grow() {
        let mut buffers = Buffers::new();
        assert_eq!(buffers.small(), None);
        let first = buffers.large(1);
        assert!(first.capacity() >= limits::CARRY_BYTES);
        buffers.give_back(first);
        buffers.give_back(vec![0; 100]);
        buffers.give_back(Vec::new());
        let larger = buffers.large(limits::CARRY_BYTES + 1);
        assert!(larger.is_empty() && larger.capacity() > limits::CARRY_BYTES);
        assert!(buffers.large.is_empty()); // It takes the place of the first.
        buffers.give_back(larger);
        assert!(buffers.large(10).capacity() > limits::CARRY_BYTES);
        assert!(buffers.small().is_some_and(|small| small.is_empty()));
        assert_eq!(buffers.small(), None);
    }

    #[test]
    fn as_many_are_there_as_there_are_connections() {
        let mut buffers = Buffers::new();
        buffers.provide(3);
        buffers.provide(2);
        assert_eq!(buffers.large.len(), 3);
        let lent = buffers.large(1);
        buffers.provide(3);
        buffers.give_back(lent);
        assert_eq!(buffers.large.len(), 4);
        buffers.provide(1_000_000);
        assert_eq!(buffers.large.len(), limits::CARRIES_KEPT);
    }

    #[test]
    fn what_is_kept_is_bounded_in_number_and_size() {
        let mut buffers = Buffers::new();
        for _ in 0..2 * limits::CARRIES_KEPT {
            buffers.give_back(Vec::with_capacity(limits::FLUSH_BYTES));
            buffers.give_back(Vec::with_capacity(10));
        }
        assert_eq!(buffers.large.len(), limits::CARRIES_KEPT);
        assert_eq!(buffers.small.len(), limits::CARRIES_KEPT);
        let mut buffers = Buffers::new();
        buffers.give_back(Vec::with_capacity(limits::CARRY_KEPT_BYTES_MAX + 1));
        assert!(buffers.large.is_empty());
    }
}
