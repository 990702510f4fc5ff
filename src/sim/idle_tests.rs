//! Tests of when a shard sleeps, and when it polls.

use std::time::Duration;

use crate::engine::SubscribeSpec;
use crate::memory::RingPoolConfig;
use crate::shard::{ExecuteOptions, MemoryWatch, Shard, ShardConfig};
use crate::sim::reactor::SimReactor;
use crate::sim::world::{SimFaults, SimWorld};
use crate::tool::{Prepared, Work};

/// This holds at any age of the shard: every wake-up ends a silence.
#[test]
fn called_every_30_us_a_shard_polls_and_called_every_ms_it_sleeps() {
    let world = SimWorld::new(1, SimFaults::NONE);
    let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
    let memory = MemoryWatch::ByHand;
    let config = ShardConfig { rings, memory, seed: Some(1), ..Default::default() };
    let mut shard = Shard::with_reactor(SimReactor::new(&world), config).unwrap();
    let prepared = Prepared::new(Work::Feed);
    let id = shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
    let _stays = shard.subscribe_remote(id, SubscribeSpec::default()).unwrap();
    let mut sleeps = |count: u32, gap: Duration| {
        let before = shard.counters().wakes;
        for _ in 0..count {
            let leaves = shard.subscribe_remote(id, SubscribeSpec::default()).unwrap();
            let at = world.now() + gap;
            world.set_horizon(Some(at));
            while world.now() < at {
                if !shard.turn() {
                    shard.park(None);
                }
            }
            drop(leaves); // The drop wakes the shard.
            assert!(shard.turn());
        }
        shard.counters().wakes - before
    };
    assert_eq!(sleeps(20, Duration::from_millis(1)), 20);
    sleeps(100, Duration::from_micros(30)); // It learns the new rate.
    assert_eq!(sleeps(1_000, Duration::from_micros(30)), 0);
    sleeps(100, Duration::from_millis(1));
    assert_eq!(sleeps(1_000, Duration::from_millis(1)), 1_000);
}
