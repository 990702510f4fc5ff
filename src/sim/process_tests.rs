//! Tests of producers in other processes, which share a thread with the shard here.

use std::time::Duration;

use crate::base::ExecutionId;
use crate::engine::{Start, Status};
use crate::memory::{ChunkHeader, RingPoolConfig};
use crate::server::{Doors, GuestConfig, HandLine, ServerShard};
use crate::shard::{ExecuteOptions, MemoryWatch, ShardConfig};
use crate::sim::door::LifeLines;
use crate::sim::process::Process;
use crate::sim::reactor::SimReactor;
use crate::sim::world::{SimFaults, SimWorld};
use crate::stream::{Kind, Outcome};

const HEADER: ChunkHeader = ChunkHeader { kind: Kind::Output as u8, key: 0, flags: 0 };

/// A shard on this thread.
pub(super) struct World {
    pub shard: ServerShard<SimReactor>,
    world: SimWorld,
}

impl World {
    pub fn new() -> World {
        let world = SimWorld::new(1, SimFaults::NONE);
        let config = ShardConfig {
            rings: RingPoolConfig { prealloc_bytes: 0, ..Default::default() },
            memory: MemoryWatch::ByHand,
            seed: Some(1),
            guests: GuestConfig { doors: Doors::new(1), ..Default::default() },
            ..Default::default()
        };
        let shard = ServerShard::over(SimReactor::new(&world), config).unwrap();
        World { shard, world }
    }

    /// A producer that has mapped its memory, and its line.
    pub fn produce(&mut self, options: ExecuteOptions) -> (ExecutionId, Process, HandLine) {
        let (id, granted) = self.shard.produce_by_hand(4 << 10, options).unwrap();
        let mut process = Process::new(granted.unwrap(), &LifeLines::default());
        let line = process.waits_on().unwrap();
        assert!(!process.run(self.world.now()));
        self.shard.hear_by_hand(line);
        (id, process, line)
    }

    pub fn settle(&mut self) {
        while self.shard.turn() {}
    }

    pub fn status(&mut self, id: ExecutionId) -> Status {
        self.shard.inspect(id).unwrap()
    }
}

#[test]
fn what_a_producer_has_published_before_it_is_stopped_is_in_the_log() {
    let mut world = World::new();
    let (id, mut process, line) = world.produce(ExecuteOptions::default());
    world.settle();
    assert!(world.shard.has_begun_by_hand(line));
    for seq in 1..=9 {
        assert_eq!(process.try_send(HEADER, b"a chunk"), Ok(seq));
    }
    world.shard.cancel(id).unwrap(); // The shard has not looked at it since.
    assert!(process.is_over());
    assert!(process.try_send(HEADER, b"too late").is_err());
    world.settle();
    let status = world.status(id);
    assert_eq!((status.outcome, status.head_seq), (Some(Outcome::Cancelled), 9));
    assert_eq!(status.totals.bytes, 63);
    assert_eq!(status.tail_seq, 1, "all of it can still be read");
}

#[test]
fn a_producer_that_dies_before_its_start_has_failed() {
    let mut world = World::new();
    let deadline = Duration::from_secs(60);
    let start = Start::AfterSubscribers { count: 1, deadline };
    let (id, _process, line) = world.produce(ExecuteOptions { start, ..Default::default() });
    world.settle();
    assert!(!world.shard.has_begun_by_hand(line));
    world.shard.lose_by_hand(line);
    world.settle();
    let status = world.status(id);
    assert_eq!(status.outcome, Some(Outcome::Failed));
    assert_eq!(status.error.as_deref(), Some("the producer is gone"));
}
