//! How a shard is set up.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::EngineLimits;
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::reactor::{Choice, Idle, SocketLimits, Watch};

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
    /// What sockets are to have, if it will listen: their memory is bought at once then, and a way
    /// to the kernel is chosen that has them.
    pub sockets: Option<SocketLimits>,
    /// Connections to this shard of one address, or of one /64 of IPv6, unless it is this machine's
    /// own. A further one is closed at once.
    #[cfg(feature = "server")]
    pub connections_per_address_max: u32,
    /// With what it shows who it is: then all that comes over TCP is TLS. Unix sockets have none.
    #[cfg(feature = "tls")]
    pub tls: Option<super::TlsConfig>,
    /// How long an execution can be read after its end, unless it says otherwise.
    pub retention: Duration,
    /// How long a `block` subscriber may hold a producer back, unless its execution says otherwise.
    pub block_deadline: Duration,
    /// How many executions other processes may share; a server's shards have these together.
    #[cfg(feature = "server")]
    pub doors: super::Doors,
    /// Whether executions can be read by name, too, where, and how many; likewise.
    #[cfg(feature = "server")]
    pub named_doors: Option<super::NamedDoors>,
    /// Where it tells what happens; nowhere by default.
    #[cfg(feature = "server")]
    pub log: super::Log,
    /// Where the spans of answered requests go; there are none by default.
    #[cfg(feature = "server")]
    pub spans: super::Spans,
    /// What is counted of other MCP servers whose tools are offered here; shards of one server have
    /// the same.
    #[cfg(feature = "server")]
    pub upstreams: Arc<[super::UpstreamMeter]>,
    /// Who may come in, once it listens.
    #[cfg(feature = "server")]
    pub access: Arc<crate::endpoint::Access>,
    /// Seals what tools want to be told again by clients of MCP. Shards of one server have the same
    /// one; `None`: one that nobody knows.
    #[cfg(feature = "server")]
    pub mcp_key: Option<[u8; 32]>,
    /// Where it is counted what clients of MCP have of doors and tasks. Shards of one server have
    /// clones of the same one; `None`: it counts for itself.
    #[cfg(feature = "server")]
    pub mcp_places: Option<super::Places>,
    /// Threads of front ends' clients. Shards of one server have clones of the same; `None`: it has
    /// its own.
    #[cfg(feature = "server")]
    pub conversations: Option<super::Conversations>,
    /// Models, and what agents may do; without a model there are no agents.
    #[cfg(feature = "server")]
    pub agents: super::AgentSettings,
    /// How the servers of models are found and believed.
    #[cfg(feature = "server")]
    pub outgoing: super::OutgoingConfig,
    /// Threads for tools that block.
    pub tool_threads_max: usize,
    /// Who says how short memory is.
    pub memory: MemoryWatch,
    /// Seed of the nonces in ids; the operating system's randomness if `None`.
    pub seed: Option<u64>,
}

/// Who says how short memory is.
///
/// Whether a shard is spawned or driven by hand makes no difference: both live in one process,
/// under one limit, and a container that is too small is too small for either. What makes one is
/// the reactor: a shard of [`Shard::with_reactor`](super::Shard::with_reactor) lives in a world of
/// its owner's (a simulator's, say), which this machine's memory has nothing to do with; it is told
/// by hand, whatever stands here.
#[derive(Clone, Debug, Default)]
pub enum MemoryWatch {
    /// The kernel, asked each second by a thread that all shards of the process share.
    #[default]
    System,
    /// The same with files and an interval of one's own.
    Of(Arc<Watch>),
    /// Nobody but [`Shard::set_readings`](super::Shard::set_readings): nothing is read.
    ByHand,
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
            sockets: None,
            #[cfg(feature = "server")]
            connections_per_address_max: limits::CONNECTIONS_PER_ADDRESS_MAX,
            #[cfg(feature = "tls")]
            tls: None,
            retention: limits::RETENTION,
            block_deadline: limits::BLOCK_DEADLINE,
            #[cfg(feature = "server")]
            doors: super::Doors::default(),
            #[cfg(feature = "server")]
            named_doors: None,
            #[cfg(feature = "server")]
            log: super::Log::off(),
            #[cfg(feature = "server")]
            spans: super::Spans::off(),
            #[cfg(feature = "server")]
            upstreams: Arc::default(),
            #[cfg(feature = "server")]
            access: Arc::default(),
            #[cfg(feature = "server")]
            mcp_key: None,
            #[cfg(feature = "server")]
            mcp_places: None,
            #[cfg(feature = "server")]
            conversations: None,
            #[cfg(feature = "server")]
            agents: super::AgentSettings::default(),
            #[cfg(feature = "server")]
            outgoing: super::OutgoingConfig::default(),
            tool_threads_max: limits::TOOL_THREADS_MAX,
            memory: MemoryWatch::default(),
            seed: None,
        }
    }
}
