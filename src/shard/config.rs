//! The configuration of a shard.

use std::sync::Arc;
use std::time::Duration;

use super::journal::JournalConfig;
use crate::engine::EngineLimits;
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::reactor::{Choice, Idle, SocketLimits, Watch};

/// The configuration of a shard. `..Default::default()` fills in the values of `limits.rs`.
///
/// ```
/// use std::time::Duration;
/// use streamdoor::options::Idle;
/// use streamdoor::{Shard, ShardConfig};
///
/// let config = ShardConfig {
///     idle: Idle::Block,
///     retention: Duration::from_secs(10),
///     ..Default::default()
/// };
/// let (shard, _report) = Shard::new(config)?;
/// # drop(shard);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShardConfig<G = ()> {
    /// The limits of the engine.
    pub engine: EngineLimits,
    /// The memory for rings.
    pub rings: RingPoolConfig,
    /// The backend of the reactor.
    pub reactor: Choice,
    /// The strategy for the time in which nothing happens.
    pub idle: Idle,
    /// Time for which [`Idle::Backoff`] polls after the last event before it blocks.
    pub spin: Duration,
    /// The core that a spawned shard is pinned to; none if `None`.
    pub cpu: Option<usize>,
    /// The limits for sockets, if the shard will listen. Their memory is then bought at the start,
    /// from a backend that can have sockets.
    pub sockets: Option<SocketLimits>,
    /// Time for which an execution can be read after its end, unless its options say otherwise.
    pub retention: Duration,
    /// Time for which a `block` subscriber may hold a producer back, unless the execution's options
    /// say otherwise.
    pub block_deadline: Duration,
    /// Maximum number of threads for tools that block.
    pub tool_threads_max: usize,
    /// The source of readings about the machine's memory.
    pub memory: MemoryWatch,
    /// The log on disk under the executions; none if `None`.
    pub journal: Option<JournalConfig>,
    /// The seed of the nonces in ids; the operating system's randomness if `None`.
    pub seed: Option<u64>,
    /// The settings of the guests that live in the shard's turn: those of a server, or none.
    pub guests: G,
}

/// The source of readings about the machine's memory.
///
/// It applies to spawned shards and to those driven by hand alike: both live in one process, under
/// one limit. It is ignored by a shard of [`Shard::with_reactor`](super::Shard::with_reactor). Such
/// a shard may live in a simulation, which has no relation to this machine's memory, and gets its
/// readings by hand.
#[derive(Clone, Debug, Default)]
pub enum MemoryWatch {
    /// The kernel. One thread for all shards of the process reads its files every second.
    #[default]
    System,
    /// The kernel, with other files and another interval.
    Of(Arc<Watch>),
    /// Only [`Shard::set_readings`](super::Shard::set_readings): no file is read.
    ByHand,
}

impl<G: Default> Default for ShardConfig<G> {
    fn default() -> ShardConfig<G> {
        ShardConfig {
            engine: EngineLimits::default(),
            rings: RingPoolConfig::default(),
            reactor: Choice::Auto,
            idle: Idle::Backoff,
            spin: limits::SPIN_DEFAULT,
            cpu: None,
            sockets: None,
            retention: limits::RETENTION,
            block_deadline: limits::BLOCK_DEADLINE,
            tool_threads_max: limits::TOOL_THREADS_MAX,
            memory: MemoryWatch::default(),
            journal: None,
            seed: None,
            guests: G::default(),
        }
    }
}
