//! The draws of one seed before it begins: the faults and features of its world, their rates, and
//! small sizes (swarm testing). Each is off in half of all seeds, so that the others also run
//! without it.
//!
//! Plain numbers, no behaviour. Chances are per mille.

use std::time::Duration;

use crate::base::Random;
use crate::engine::{EngineLimits, Hold, OnStall, Start, Timeouts};
use crate::limits;
use crate::memory::Geometry;
use crate::shard::ExecuteOptions;
use crate::sim::model::Producer;
use crate::tool::Need;

/// Number of kinds of producers. Without a server no door exists for other processes.
const PRODUCERS: usize = if cfg!(feature = "server") { 4 } else { 3 };

/// The world of one seed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub engine: EngineLimits,
    /// Memory for rings: so little that leases fail, queue and evict.
    pub rings_bytes_max: u64,
    /// The largest ring that is requested, as an index into [`limits::RING_CLASS_BYTES`].
    pub class_max: usize,
    /// Number of actions that have to happen before the faults stop.
    pub actions_min: u64,
    pub executions_min: usize,
    pub subscribers_min: usize,
    /// Maximum of chunks of one execution, except endless ones.
    pub chunks_max: u64,
    /// Maximum of chunks that a producer publishes at once.
    pub burst_max: u64,
    /// The longest time that passes between two steps, except the long ones.
    pub pause_max: Duration,
    pub long_pause: u64,
    /// True if the shard sometimes comes late to its deadlines.
    pub is_late: bool,
    /// A tool's thread writes in the middle of the shard's work.
    pub preempt: u64,
    pub cancel: u64,
    pub tool_fails: u64,
    pub tool_panics: u64,
    pub tool_endless: u64,
    pub thread_stuck: u64,
    pub start_waits: u64,
    pub holds: u64,
    pub timeouts: u64,
    pub stall_fails: u64,
    pub closure_panics: u64,
    pub reader_stuck: u64,
    pub reader_dies: u64,
    pub reader_leaves: u64,
    pub connection_breaks: u64,
    pub slow_readers: u64,
    pub filters: u64,
    pub byte_limits: u64,
    pub acks: u64,
    /// Subscribers under `block` that come back for the chunks that they were given last.
    pub replays: u64,
    pub coalesces: u64,
    pub headers_only: u64,
    pub progress: u64,
    pub misuse: u64,
    /// Memory becomes short, or less so.
    pub memory: u64,
    /// The faults end with the shard's shutdown.
    pub shuts_down: bool,
    /// Weights of: a tool's steps, chunks by hand, a tool's thread, a producer in another process.
    pub producers: [u64; PRODUCERS],
    /// Weights of: closure, polled, on another thread.
    pub places: [u64; 3],
    /// A reader of another thread is one of another process instead, at the door.
    #[cfg_attr(not(feature = "server"), expect(dead_code, reason = "there is no door"))]
    pub doors: u64,
    /// A client requests the readers of an execution.
    pub looks: u64,
    /// Rings start small and grow.
    pub grows: u64,
}

/// Off in half of all seeds, else anything up to `most`.
fn rate(random: &mut Random, most: u64) -> u64 {
    match random.chance(1, 2) {
        true => 0,
        false => random.between(1, most),
    }
}

impl Plan {
    pub fn draw(random: &mut Random) -> Plan {
        fn weights<const N: usize>(random: &mut Random) -> [u64; N] {
            [(); N].map(|()| random.between(0, 3) + 1)
        }
        Plan {
            engine: EngineLimits {
                shard: random.below(256) as u8,
                executions_max: random.between(3, 24) as u32,
                queued_max: random.between(1, 4) as u32,
                subscribers_max: random.between(12, 96) as u32,
                subscribers_per_execution_max: random.between(3, 24) as u32,
            },
            rings_bytes_max: random.between(1 << 20, 2 << 20),
            class_max: match random.below(10) {
                0 | 1 => 4,
                2 => 3,
                3 | 4 => 2,
                5 | 6 => 1,
                _ => 0,
            },
            actions_min: random.between(2_000, 3_000),
            executions_min: random.between(8, 16) as usize,
            subscribers_min: random.between(32, 64) as usize,
            chunks_max: random.between(10, 400),
            burst_max: random.between(1, 40),
            pause_max: Duration::from_nanos(1 << random.between(12, 25)),
            long_pause: rate(random, 60),
            is_late: random.chance(1, 5),
            preempt: rate(random, 300),
            cancel: rate(random, 30),
            tool_fails: rate(random, 200),
            tool_panics: rate(random, 200),
            tool_endless: rate(random, 200),
            thread_stuck: rate(random, 300),
            start_waits: rate(random, 300),
            holds: rate(random, 300),
            timeouts: rate(random, 400),
            stall_fails: rate(random, 500),
            closure_panics: rate(random, 20),
            reader_stuck: rate(random, 60),
            reader_dies: rate(random, 20),
            reader_leaves: rate(random, 20),
            connection_breaks: rate(random, 40),
            slow_readers: rate(random, 800),
            filters: rate(random, 500),
            byte_limits: rate(random, 500),
            acks: rate(random, 300),
            replays: rate(random, 1_000),
            coalesces: rate(random, 300),
            headers_only: rate(random, 300),
            progress: rate(random, 200),
            misuse: rate(random, 50),
            memory: rate(random, 200),
            shuts_down: random.chance(1, 8),
            producers: weights(random),
            places: weights(random),
            doors: rate(random, 1_000),
            looks: rate(random, 1_000),
            grows: rate(random, 700),
        }
    }

    /// Draws the kind of an execution's producer.
    pub fn producer(&self, random: &mut Random) -> Producer {
        #[cfg(feature = "server")]
        let producers = [Producer::Steps, Producer::Feed, Producer::Thread, Producer::Process];
        #[cfg(not(feature = "server"))]
        let producers = [Producer::Steps, Producer::Feed, Producer::Thread];
        producers[pick(random, &self.producers)]
    }

    /// Draws the need of an execution.
    pub fn need(&self, random: &mut Random, producer: Producer) -> Need {
        let class = random.below(self.class_max as u64 + 1) as usize;
        let ring_bytes = limits::RING_CLASS_BYTES[class];
        let mut need = Need { ring_bytes, chunk_bytes: 0, ..Default::default() };
        if random.chance(1, 4) {
            need.chunk_bytes = random.below(u64::from(need.ring_bytes / 8)) as u32;
        }
        if random.chance(self.misuse, 1_000) {
            need.chunk_bytes = u32::MAX;
        }
        if producer.is_in_process() {
            need.chunk_bytes = Geometry::of_class(need.ring_bytes).length_max();
        }
        need
    }

    /// Draws the options of an execution.
    pub fn options(&self, random: &mut Random) -> ExecuteOptions {
        let mut options = ExecuteOptions {
            retention: Some(self.retention(random)),
            block_deadline: Some(self.block_deadline(random)),
            hold: Hold::Newest,
            ..Default::default()
        };
        let deadline = Duration::from_millis(1 << random.between(0, 14));
        if random.chance(self.start_waits, 1_000) {
            options.start = Start::AfterSubscribers { count: random.below(5) as u32, deadline };
        }
        if random.chance(self.holds, 1_000) {
            options.hold = Hold::UntilRead { deadline };
        }
        if random.chance(self.timeouts, 1_000) {
            options.timeouts = Some(self.timeouts(random));
        }
        if random.chance(self.stall_fails, 1_000) {
            options.on_stall = OnStall::Fail;
        }
        options.grows = random.chance(self.grows, 1_000);
        if random.chance(self.misuse, 1_000) {
            options.start = Start::AfterSubscribers { count: u32::MAX, deadline };
        }
        options
    }

    /// Time for which an ended execution is kept.
    pub fn retention(&self, random: &mut Random) -> Duration {
        match random.below(5) {
            0 => Duration::ZERO,
            1 => Duration::from_micros(random.below(1_000)),
            2 => Duration::from_millis(random.below(1_000)),
            _ => limits::RETENTION,
        }
    }

    /// The times that a producer may be silent, and may take.
    pub fn timeouts(&self, random: &mut Random) -> Timeouts {
        let mut limit = || {
            let most = 1 << random.between(11, 26);
            let limit = Duration::from_micros(random.between(1_000, most));
            random.chance(1, 2).then_some(limit)
        };
        Timeouts { first_chunk: limit(), inactivity: limit(), total: limit() }
    }

    /// Time for which a `block` subscriber may hold a producer back.
    pub fn block_deadline(&self, random: &mut Random) -> Duration {
        match random.below(3) {
            0 => Duration::from_micros(random.between(1, 10_000)),
            1 => Duration::from_millis(random.between(1, 1_000)),
            _ => limits::BLOCK_DEADLINE,
        }
    }
}

/// The index of one of the weights, drawn by weight.
pub(super) fn pick(random: &mut Random, weights: &[u64]) -> usize {
    let mut left = random.below(weights.iter().sum());
    for (index, &weight) in weights.iter().enumerate() {
        if left < weight {
            return index;
        }
        left -= weight;
    }
    unreachable!("one of them was drawn")
}
