//! The chunks that are kept for readers that may come back: the newest before their cursor.
//!
//! A connection that breaks may lose the chunks that were sent on it last. The gate of a subscriber
//! that replays therefore trails its cursor, by at most half of the ring's slots and half of its
//! payload area. The producer can always continue when all subscribers have read everything.
//!
//! The other half of the promise is a bound on what is sent ([`Replay`]). With acknowledgements the
//! engine gives no chunk that the reserve could not keep together with all unacknowledged ones.
//! Without them the engine gives small deliveries, and the transport bounds the bytes that it has
//! accepted and not yet sent.
//!
//! Invariants:
//! - V1: as the cursor moves forward, the start of the reserve before it never moves back.
//! - V2: behind the reserve, one more chunk of any length always has room. It takes a slot, its own
//!   bytes, and the bytes left empty at the end of the area. These are fewer than its length: see
//!   [`Reserve::of`].

use crate::engine::event::RingFacts;
use crate::engine::log::ChunkLog;
use crate::engine::policy::Log;
use crate::limits;

/// The promise to a `block` subscriber that may come back: the chunks that are kept for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replay {
    /// Maximum number of chunks that are kept.
    pub chunks: u32,
    /// Maximum number of bytes that they take in the ring. A single chunk is always kept.
    pub bytes: u32,
    /// True if these are the chunks that the client has not acknowledged, and no others are sent
    /// ahead. False if these are the newest chunks that were sent.
    pub until_acknowledged: bool,
}

impl Replay {
    /// Returns the promise in this ring to a subscriber with this window of acknowledgements.
    pub(super) fn of(ring: RingFacts, ack_window: Option<u32>) -> Replay {
        let Reserve { chunks_max, bytes_max, .. } = Reserve::of(ring);
        let chunks = ack_window.unwrap_or(u32::MAX).min(chunks_max as u32).max(1);
        assert!(chunks <= ring.slot_count);
        assert!(bytes_max <= u64::from(ring.data_bytes / 2)); // The other half is the producer's.
        Replay { chunks, bytes: bytes_max as u32, until_acknowledged: ack_window.is_some() }
    }

    /// The maximum number of chunks and of payload bytes of one delivery to a subscriber without
    /// acknowledgements. Its transport holds about twice as much. The rest is for the buffers of
    /// the client's kernel, which confirms bytes that the client has not read.
    pub fn delivery(self) -> (u64, u64) {
        (u64::from(self.chunks / 32).max(1), u64::from(self.bytes / 32))
    }
}

/// The reserve: chunks from `from_seq` to before `next_seq`. It moves forward in O(1) per chunk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reserve {
    from_seq: u64,
    next_seq: u64,
    /// Number of bytes that these chunks take in the payload area.
    bytes: u64,
    chunks_max: u64,
    bytes_max: u64,
}

/// Number of bytes that a chunk takes in the ring.
pub(super) fn frame_bytes(length: u32) -> u64 {
    limits::CHUNK_HEADER_BYTES + u64::from(length).next_multiple_of(limits::CHUNK_ALIGN_BYTES)
}

const _: () = {
    assert!(limits::CHUNK_ALIGN_BYTES.is_power_of_two());
    assert!(limits::CHUNK_ALIGN_BYTES == 8); // `memory` stores payloads as whole words.
    assert!(limits::CHUNK_HEADER_BYTES.is_multiple_of(limits::CHUNK_ALIGN_BYTES)); // And frames.
};

impl Reserve {
    /// Creates an empty reserve for this ring.
    pub fn of(ring: RingFacts) -> Reserve {
        ring.assert_sound();
        let data_bytes = u64::from(ring.data_bytes);
        let longest = frame_bytes(ring.chunk_bytes_max);
        let bytes_max = (data_bytes / 2).min(data_bytes.saturating_sub(2 * longest));
        let chunks_max = u64::from(ring.slot_count / 2);
        assert!(chunks_max < u64::from(ring.slot_count)); // V2
        assert!(bytes_max == 0 || bytes_max + 2 * longest <= data_bytes); // V2
        Reserve { from_seq: 0, next_seq: 0, bytes: 0, chunks_max, bytes_max }
    }

    /// Returns the first chunk that is kept for a subscriber whose next chunk is `next_seq`.
    pub fn before(&mut self, next_seq: u64, log: &ChunkLog) -> u64 {
        assert!(next_seq <= log.head_seq() + 1); // E2
        if next_seq < self.next_seq || self.from_seq < log.tail_seq() {
            self.begin_before(next_seq, log);
        }
        while self.next_seq < next_seq {
            self.bytes += frame_bytes(log.meta(self.next_seq).length);
            self.next_seq += 1;
            while !self.fits() {
                self.bytes -= frame_bytes(log.meta(self.from_seq).length);
                self.from_seq += 1;
            }
        }
        assert!(self.from_seq <= self.next_seq);
        assert!(self.fits()); // V2
        self.from_seq
    }

    fn fits(&self) -> bool {
        self.next_seq - self.from_seq <= self.chunks_max && self.bytes <= self.bytes_max
    }

    /// Builds the reserve anew from `next_seq` backwards. This is needed when a subscriber is
    /// further back than any before, or when chunks of the last reserve are gone.
    fn begin_before(&mut self, next_seq: u64, log: &ChunkLog) {
        *self = Reserve { from_seq: next_seq, next_seq, bytes: 0, ..*self };
        while self.from_seq > log.tail_seq() {
            let length = frame_bytes(log.meta(self.from_seq - 1).length);
            let chunks = self.next_seq - self.from_seq;
            if chunks == self.chunks_max || self.bytes + length > self.bytes_max {
                return;
            }
            self.bytes += length;
            self.from_seq -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;
    use crate::engine::event::ChunkFacts;
    use crate::stream::Kind;

    const RING: RingFacts =
        RingFacts { slot_count: 16, chunks_max: 14, chunk_bytes_max: 480, data_bytes: 2_048 };

    /// The same reserve, computed directly from its definition.
    fn expected(next_seq: u64, log: &ChunkLog) -> u64 {
        let fits = |from_seq: u64| {
            let bytes: u64 =
                (from_seq..next_seq).map(|seq| frame_bytes(log.meta(seq).length)).sum();
            next_seq - from_seq <= 8 && bytes <= 1_024
        };
        let tail_seq = log.tail_seq().min(next_seq);
        (tail_seq..=next_seq).find(|&seq| fits(seq)).expect("nothing always fits")
    }

    #[test]
    fn it_is_the_newest_chunks_that_fit_wherever_one_stands() {
        let mut random = Random::new(5);
        for _ in 0..50 {
            let mut log = ChunkLog::new(16);
            let mut reserve = Reserve::of(RING);
            let (mut next_seq, mut before) = (1, 0);
            for _ in 0..200 {
                let bits = random.between(0, 9);
                let length = random.between(0, 480 >> (9 - bits)) as u32;
                let tail_seq = log.tail_seq().max((log.head_seq() + 2).saturating_sub(14));
                log.push(ChunkFacts { length, kind: Kind::Output, key: 0, tail_seq });
                if random.chance(1, 3) {
                    next_seq = random.between(next_seq.max(log.tail_seq()), log.head_seq() + 1);
                }
                if random.chance(1, 20) {
                    next_seq = random.between(log.tail_seq(), log.head_seq() + 1); // Another one.
                    before = 0;
                }
                if next_seq < log.tail_seq() {
                    continue;
                }
                let from_seq = reserve.before(next_seq, &log);
                assert_eq!(from_seq, expected(next_seq, &log));
                assert!(from_seq >= before); // V1
                before = from_seq;
            }
        }
    }

    #[test]
    fn who_stands_before_what_is_held_reserves_nothing() {
        let mut log = ChunkLog::new(16);
        for seq in 1..=20u64 {
            let tail_seq = seq.saturating_sub(5).max(1);
            log.push(ChunkFacts { length: 1, kind: Kind::Output, key: 0, tail_seq });
        }
        let mut reserve = Reserve::of(RING);
        assert_eq!(reserve.before(3, &log), 3);
        assert_eq!(reserve.before(15, &log), 15);
        assert_eq!(reserve.before(18, &log), 15);
        assert_eq!(reserve.before(21, &log), 15);
        assert_eq!(reserve.before(3, &log), 3);
    }
}
