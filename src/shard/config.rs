//! How a shard is set up.

use std::time::Duration;

use crate::engine::EngineLimits;
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::reactor::{Choice, Idle};

/// How a shard is set up. `..Default::default()` fills in what [`crate::limits`] says.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// How much the engine holds.
    pub engine: EngineLimits,
    /// How much memory rings take.
    pub rings: RingPoolConfig,
    /// Which way to the kernel.
    pub reactor: Choice,
    /// What to do when there is nothing to do.
    pub idle: Idle,
    /// `backoff` polls so long after the last event before it blocks.
    pub spin: Duration,
    /// The core that a spawned shard is pinned to.
    pub cpu: Option<usize>,
    /// Threads for tools that block.
    pub tool_threads_max: usize,
    /// Seed of the nonces in ids; the operating system's randomness if `None`.
    pub seed: Option<u64>,
}

impl Default for ShardConfig {
    fn default() -> ShardConfig {
        ShardConfig {
            engine: EngineLimits::default(),
            rings: RingPoolConfig::default(),
            reactor: Choice::Auto,
            idle: Idle::Backoff,
            spin: limits::SPIN_DEFAULT,
            cpu: None,
            tool_threads_max: limits::TOOL_THREADS_MAX,
            seed: None,
        }
    }
}
