//! Tests of subscribers that come back for the chunks that they were given last, over a real ring.

use super::*;
use crate::base::{ExecutionId, Random};
use crate::engine::{RingFacts, SubscribeSpec};
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::stream::{Kind, Policy};
use crate::tool::{Need, Prepared, Work};

fn shard() -> Shard {
    let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
    let memory = MemoryWatch::ByHand;
    let config = ShardConfig { rings, seed: Some(1), memory, ..Default::default() };
    Shard::new(config).unwrap().0
}

fn feed(shard: &mut Shard, ring_bytes: u32) -> (ExecutionId, RingFacts) {
    let need = Need { ring_bytes, chunk_bytes: 0, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
    let id = shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
    (id, shard.inspect(id).unwrap().ring.unwrap())
}

fn replaying() -> SubscribeSpec {
    SubscribeSpec { policy: Policy::Block, replays: true, ..Default::default() }
}

/// Returns the first of the newest chunks that fit in half of the slots and half of the payload
/// area.
fn reserved_from(ring: RingFacts, lengths: &[u32]) -> u64 {
    let (mut chunks, mut bytes) = (0, 0);
    let fits = |&&length: &&u32| {
        chunks += 1;
        bytes += 32 + length.next_multiple_of(8);
        chunks <= ring.slot_count / 2 && bytes <= ring.data_bytes / 2
    };
    let count = lengths.iter().rev().take_while(fits).count();
    (lengths.len() - count) as u64 + 1
}

#[test]
fn who_has_read_everything_holds_nobody_up_and_the_newest_chunks_stay() {
    for class_bytes in limits::RING_CLASS_BYTES.into_iter().take(3) {
        for limit_bytes in [None, Some(1)] {
            let mut shard = shard();
            let (id, ring) = feed(&mut shard, class_bytes);
            let spec = SubscribeSpec { limit_bytes, ..replaying() };
            shard.subscribe(id, spec, |_| {}).unwrap();
            let mut random = Random::new(u64::from(class_bytes));
            let mut lengths = Vec::new();
            let longest = vec![7; ring.chunk_bytes_max as usize];
            for _ in 0..2_000 {
                let length = match random.below(4) {
                    0 => random.below(u64::from(ring.chunk_bytes_max) + 1) as usize,
                    1 => random.below(20) as usize,
                    2 => ring.chunk_bytes_max as usize - random.below(9) as usize,
                    _ => ring.chunk_bytes_max as usize,
                };
                // The chunk is published at once, without waiting for a timer or another turn.
                let published = shard.publish(id, Kind::Output, &longest[..length]);
                assert!(published.is_ok(), "{ring:?}, chunk {}: {published:?}", lengths.len() + 1);
                // Chunks that were given before are still held, as far as that was promised.
                let tail_seq = shard.inspect(id).unwrap().tail_seq;
                assert!(tail_seq <= reserved_from(ring, &lengths), "{ring:?}");
                lengths.push(length as u32);
            }
            assert!(shard.inspect(id).unwrap().tail_seq > 1_000);
        }
    }
}
