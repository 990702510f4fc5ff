//! The move of a ring to a larger window.
//!
//! Nobody else reads the ring at that moment: readers on other threads would look at the old window
//! for ever. The chunks keep their numbers, their times and their totals, so the next one follows
//! as if nothing had happened.
//! Tests: below, and `shard/growth_tests.rs`.

use super::lease::Lease;
use super::writer::{RingWriter, Start};
use crate::base::Instant;

impl RingWriter {
    /// True if the ring can move now: no room is lent, and no batch has begun.
    pub fn can_move(&self) -> bool {
        !self.has_lent() && self.batch_seq() == u64::MAX
    }

    /// Makes a ring in a larger window with a copy of all chunks that this one holds. The caller
    /// gives the present window back.
    ///
    /// # Panics
    /// If the window is not larger, or the ring cannot move ([`RingWriter::can_move`]).
    #[must_use]
    pub fn continue_in(&self, lease: Lease) -> RingWriter {
        assert!(self.can_move());
        assert!(lease.geometry().data_bytes() > self.geometry().data_bytes());
        assert!(lease.geometry().slot_count() > self.geometry().slot_count());
        let bytes_before = match self.is_held(self.tail_seq()) {
            true => {
                let first = self.descriptor(self.tail_seq());
                first.total_bytes - u64::from(first.length)
            }
            false => self.total_bytes(),
        };
        let start =
            Start { seq: self.tail_seq(), total_bytes: bytes_before, kinds: *self.tail_totals() };
        let mut larger = RingWriter::starting(lease, self.anchor(), &start);
        for seq in self.tail_seq()..=self.head_seq() {
            let (descriptor, payload) = self.chunk(seq);
            let published_at = Instant::from_nanos(descriptor.mono_ns);
            let room = larger.lend(payload.len(), start.seq);
            room.expect("all of them fit into more room").copy_from_slice(payload);
            let copied = larger.publish(descriptor.header, payload.len(), published_at);
            assert!(copied == seq);
        }
        assert!(larger.head_seq() == self.head_seq());
        assert!(larger.total_bytes() == self.total_bytes());
        larger
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::layout::{ChunkHeader, ClockAnchor, Geometry};
    use super::*;
    use crate::base::Random;
    use crate::limits::RING_CLASS_BYTES;

    fn lease(class: usize) -> Lease {
        Lease::heap(Geometry::of_class(RING_CLASS_BYTES[class]))
    }

    fn writer(class: usize) -> RingWriter {
        RingWriter::new(lease(class), ClockAnchor { wall_us: 7, mono_ns: 9 })
    }

    #[test]
    fn everything_held_is_there_and_the_next_chunk_follows() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut ring = writer(0);
            let length_max = u64::from(ring.geometry().length_max());
            for _ in 0..random.below(60) {
                let header =
                    ChunkHeader { kind: random.below(3) as u8, key: 5, flags: random.below(2) as u16 };
                let payload = vec![random.below(256) as u8; random.below(length_max + 1) as usize];
                let now = Instant::from_nanos(random.below(1 << 40));
                ring.write(header, &payload, now, u64::MAX).unwrap();
            }
            let mut larger = ring.continue_in(lease(1 + random.below(2) as usize));
            larger.audit();
            assert_eq!(larger.tail_seq(), ring.tail_seq());
            assert_eq!(larger.tail_totals(), ring.tail_totals());
            for seq in ring.tail_seq()..=ring.head_seq() {
                let ((before, bytes), (after, copied)) = (ring.chunk(seq), larger.chunk(seq));
                assert_eq!((before.seq, before.total_bytes), (after.seq, after.total_bytes));
                assert_eq!((before.mono_ns, before.header), (after.mono_ns, after.header));
                assert_eq!(bytes, copied, "seed {seed}, chunk {seq}");
            }
            let next = larger.write(ChunkHeader::default(), b"next", Instant::ZERO, u64::MAX);
            assert_eq!(next, Ok(ring.head_seq() + 1));
            assert_eq!(larger.total_bytes(), ring.total_bytes() + 4);
            larger.audit();
        }
    }

    #[test]
    fn a_ring_with_lent_room_stays() {
        let mut ring = writer(0);
        assert!(ring.can_move());
        ring.lend(8, u64::MAX).unwrap();
        assert!(!ring.can_move());
        ring.publish(ChunkHeader::default(), 3, Instant::ZERO);
        assert!(ring.can_move());
        ring.begin_batch();
        assert!(!ring.can_move());
        ring.end_batch();
        assert!(ring.can_move());
    }

    #[test]
    #[should_panic(expected = "data_bytes")]
    fn a_ring_does_not_move_to_a_window_of_its_size() {
        drop(writer(1).continue_in(lease(1)));
    }
}
