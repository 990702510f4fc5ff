//! Buffers that connections borrow. They hold a connection's own bytes and pieces until the next
//! flush, and bytes that the kernel has not taken yet. An idle connection has none.
//!
//! Buffers have two sizes. A connection that puts aside a whole flush gets a large one: a small one
//! would have to grow late, after all memory was allocated.

use crate::limits;
use crate::server::hub::connection::{PIECES_MAX, Pieces};

/// The spare buffers of a shard. See the module's text.
#[derive(Debug)]
pub(in crate::server) struct Buffers {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    /// Lists with room for [`PIECES_MAX`] pieces each, as many as were ever needed at once.
    pieces: Vec<Pieces>,
}

impl Buffers {
    pub fn new() -> Buffers {
        let kept = || Vec::with_capacity(limits::CARRIES_KEPT);
        let pieces = Vec::with_capacity(limits::CARRIES_KEPT);
        Buffers { small: kept(), large: kept(), pieces }
    }

    /// Makes sure that this many connections can put bytes aside at once, up to the limit. The
    /// kernel provides the memory only when it is written.
    pub fn provide(&mut self, connection_count: usize) {
        while self.large.len() < connection_count.min(limits::CARRIES_KEPT) {
            self.large.push(Vec::with_capacity(limits::CARRY_BYTES));
        }
        while self.pieces.len() < connection_count.min(limits::CARRIES_KEPT) {
            self.pieces.push(Pieces::with_capacity(PIECES_MAX));
        }
        self.pieces.reserve(connection_count);
    }

    /// Adds a small buffer, for a connection that is written to at any time.
    pub fn provide_small(&mut self) {
        if self.small.len() < limits::CARRIES_KEPT {
            self.small.push(Vec::with_capacity(limits::BUFFER_BYTES));
        }
    }

    /// Returns a buffer for a few events, if one is spare.
    #[inline]
    pub fn small(&mut self) -> Option<Vec<u8>> {
        self.small.pop()
    }

    /// Returns a list for the pieces of one flush, if one is spare.
    #[inline]
    pub fn pieces(&mut self) -> Option<Pieces> {
        self.pieces.pop()
    }

    /// Takes back a list of pieces.
    #[inline]
    pub fn give_back_pieces(&mut self, mut pieces: Pieces) {
        pieces.clear();
        self.pieces.push(pieces);
    }

    /// Returns a buffer with room for `bytes`, and at least for a flush of short events.
    pub fn large(&mut self, bytes: usize) -> Vec<u8> {
        match self.large.iter().rposition(|buffer| buffer.capacity() >= bytes) {
            Some(at) => self.large.swap_remove(at),
            None => {
                self.large.pop(); // The larger one takes its place later.
                let is_short = bytes <= limits::CARRY_BYTES;
                Vec::with_capacity(if is_short {
                    limits::CARRY_BYTES
                } else {
                    bytes.next_power_of_two()
                })
            }
        }
    }

    /// Takes back a buffer.
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
        assert!(buffers.large.is_empty()); // The larger one has taken the place of the first.
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
