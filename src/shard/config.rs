//! The configuration of a shard.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::EngineLimits;
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::reactor::{Choice, Idle, SocketLimits, Watch};

/// The configuration of a shard. `..Default::default()` fills in the values of [`crate::limits`].
#[derive(Clone, Debug)]
pub struct ShardConfig {
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
    /// Maximum number of connections to this shard from one address, or from one /64 of IPv6. The
    /// machine's own addresses have no such limit. A connection beyond it is closed at once.
    #[cfg(feature = "server")]
    pub connections_per_address_max: u32,
    /// The certificate and key of the server. With it, all TCP connections use TLS. Unix sockets
    /// never do.
    #[cfg(feature = "tls")]
    pub tls: Option<super::TlsConfig>,
    /// Time for which an execution can be read after its end, unless its options say otherwise.
    pub retention: Duration,
    /// Time for which a `block` subscriber may hold a producer back, unless the execution's options
    /// say otherwise.
    pub block_deadline: Duration,
    /// Number of executions that other processes may share. The shards of a server share one
    /// number.
    #[cfg(feature = "server")]
    pub doors: super::Doors,
    /// The folder for rings that can be read by name, and their number; `None`: executions have no
    /// such rings. The shards of a server share one number.
    #[cfg(feature = "server")]
    pub named_doors: Option<super::NamedDoors>,
    /// The log; off by default.
    #[cfg(feature = "server")]
    pub log: super::Log,
    /// The sink for the spans of answered requests; off by default.
    #[cfg(feature = "server")]
    pub spans: super::Spans,
    /// The counts of the MCP servers whose tools are offered here. The shards of a server have
    /// clones of the same ones.
    #[cfg(feature = "server")]
    pub upstreams: Arc<[super::UpstreamMeter]>,
    /// The rules of admission for clients, once the shard listens.
    #[cfg(feature = "server")]
    pub access: Arc<crate::endpoint::Access>,
    /// The key that seals the `requestState` of MCP clients. The shards of a server have the same
    /// one; `None`: a random one.
    #[cfg(feature = "server")]
    pub mcp_key: Option<[u8; 32]>,
    /// The counts of doors and tasks of each MCP client. The shards of a server have clones of the
    /// same one; `None`: the shard has its own.
    #[cfg(feature = "server")]
    pub mcp_places: Option<super::Places>,
    /// The threads of front ends' clients. The shards of a server have clones of the same ones;
    /// `None`: the shard has its own.
    #[cfg(feature = "server")]
    pub conversations: Option<super::Conversations>,
    /// The models, and the limits of agents. Without a model there are no agents.
    #[cfg(feature = "server")]
    pub agents: super::AgentSettings,
    /// The settings for connections to servers of models: names and trusted certificates.
    #[cfg(feature = "server")]
    pub outgoing: super::OutgoingConfig,
    /// Maximum number of threads for tools that block.
    pub tool_threads_max: usize,
    /// The source of readings about the machine's memory.
    pub memory: MemoryWatch,
    /// The seed of the nonces in ids; the operating system's randomness if `None`.
    pub seed: Option<u64>,
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
