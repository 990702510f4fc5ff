//! The move of a ring to a larger window.
//!
//! Nobody else reads the ring at that moment: readers on other threads would look at the old window
//! for ever. The chunks keep their numbers, their times and their totals, so the next one follows
//! as if nothing had happened.
//! Tests: below, and `shard/growth_tests.rs`.

use super::lease::Lease;
use super::writer::{RingWriter, Start};

/// True if the ring can move now: no room is lent, and no batch has begun.
pub fn can_move(ring: &RingWriter) -> bool {
    !ring.has_lent() && ring.batch_seq() == u64::MAX
}

/// Makes a ring in a larger window with a copy of all chunks that `ring` holds. The caller gives
/// the present window back.
///
/// # Panics
/// If the window is not larger, or the ring cannot move ([`can_move`]).
#[must_use]
pub fn continued_in(ring: &RingWriter, lease: Lease) -> RingWriter {
    assert!(can_move(ring));
    assert!(lease.geometry().data_bytes() > ring.geometry().data_bytes());
    assert!(lease.geometry().slot_count() > ring.geometry().slot_count());
    let tail_seq = ring.tail_seq();
    let total_bytes = match ring.is_held(tail_seq) {
        true => ring.descriptor(tail_seq).bytes_before(),
        false => ring.total_bytes(),
    };
    let start = Start { seq: tail_seq, total_bytes, kinds: *ring.tail_totals() };
    let mut larger = RingWriter::starting(lease, ring.anchor(), &start);
    for seq in tail_seq..=ring.head_seq() {
        let (descriptor, payload) = ring.chunk(seq);
        let room = larger.lend(payload.len(), tail_seq);
        room.expect("all of them fit into more room").copy_from_slice(payload);
        let copied = larger.publish(descriptor.header, payload.len(), descriptor.published());
        assert!(copied == seq);
    }
    assert!(larger.head_seq() == ring.head_seq());
    assert!(larger.total_bytes() == ring.total_bytes());
    larger
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::layout::{ChunkHeader, ClockAnchor, Geometry};
    use super::*;
    use crate::base::{Instant, Random};
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
                let header = ChunkHeader {
                    kind: random.below(3) as u8,
                    key: 5,
                    flags: random.below(2) as u16,
                };
                let payload = vec![random.below(256) as u8; random.below(length_max + 1) as usize];
                let now = Instant::from_nanos(random.below(1 << 40));
                ring.write(header, &payload, now, u64::MAX).unwrap();
            }
            let mut larger = continued_in(&ring, lease(1 + random.below(2) as usize));
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
        assert!(can_move(&ring));
        ring.lend(8, u64::MAX).unwrap();
        assert!(!can_move(&ring));
        ring.publish(ChunkHeader::default(), 3, Instant::ZERO);
        assert!(can_move(&ring));
        ring.begin_batch();
        assert!(!can_move(&ring));
        ring.end_batch();
        assert!(can_move(&ring));
    }

    #[test]
    #[should_panic(expected = "data_bytes")]
    fn a_ring_does_not_move_to_a_window_of_its_size() {
        drop(continued_in(&writer(1), lease(1)));
    }
}
