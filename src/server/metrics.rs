//! The numbers of a server at one moment, as one list of metrics.
//!
//! The shards count in plain numbers and copy them out between two turns ([`ShardMetrics`]).
//! `list.rs` makes metrics of them, off the chunk path. `text.rs` writes these for `/metrics`, and
//! `wire::otlp` writes them for a collector.
//!
//! Tests: `metrics_tests.rs`, with a strict reader.

mod list;
mod text;

use std::sync::Arc;

use crate::endpoint::RequestCounts;
use crate::memory::pressure::Decisive;
use crate::memory::{Pressure, RingPoolUsage};
use crate::reactor;
use crate::server::executions::EndedCounts;
use crate::server::process_usage::ProcessUsage;
use crate::server::{NodeStatus, UpstreamMeter};
use crate::trace::{Counters, Latencies, Stalls};

pub use text::render;

/// The numbers of a server at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The numbers of the shards.
    pub shards: Vec<ShardMetrics>,
    /// The numbers of the process.
    pub process: ProcessMetrics,
    /// The counts of other MCP servers whose tools are offered here.
    pub upstreams: Arc<[UpstreamMeter]>,
    /// The numbers of the node, if the server is one of a cluster.
    pub node: Option<NodeStatus>,
}

/// The numbers of one shard at one moment.
#[derive(Clone, Debug)]
pub struct ShardMetrics {
    /// The number of the shard.
    pub shard: u32,
    /// The counters of its loop and its engine.
    pub counters: Counters,
    /// The delivery times of chunks.
    pub latencies: Box<Latencies>,
    /// The duties and durations of turns that took too long.
    pub stalls: Box<Stalls>,
    /// The counters of its reactor.
    pub reactor: reactor::Counters,
    /// The memory that its rings take.
    pub rings: RingPoolUsage,
    /// Maximum number of bytes that its rings may take.
    pub rings_bytes_max: u64,
    /// The memory pressure.
    pub pressure: Pressure,
    /// The reading that decided the pressure.
    pub decided_by: Option<Decisive>,
    /// The reading about disks that has reached its threshold.
    pub busy_disks: Option<Decisive>,
    /// Number of executions, by state.
    pub executions: ExecutionCounts,
    /// Number of subscribers.
    pub subscribers: u64,
    /// Number of connections.
    pub connections: u64,
    /// Number of connections that are streams.
    pub streams: u64,
    /// Number of bytes that wait to be sent because the kernel did not accept them.
    pub waiting_bytes: u64,
    /// Number of runs of agents.
    pub agents: u64,
    /// Number of executions that other processes share.
    pub doors: u64,
    /// Number of bytes of memory that other processes share.
    pub door_bytes: u64,
    /// The numbers of clients of the Model Context Protocol.
    pub mcp: McpMetrics,
    /// The counts of answered requests.
    pub requests: RequestCounts,
    /// The scheme of their URLs: `http` or `https`.
    pub scheme: &'static str,
    /// The counts of ended executions by the name of their tool.
    pub ended: Vec<(String, EndedCounts)>,
}

/// The numbers of clients of the Model Context Protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct McpMetrics {
    /// The counters.
    pub counts: McpCounts,
    /// Number of sessions.
    pub sessions: u64,
    /// Number of streams that clients read piece by piece.
    pub open_streams: u64,
    /// Number of tasks, running and ended.
    pub tasks: u64,
}

/// The counters for clients of the Model Context Protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct McpCounts {
    /// Ended calls of tools, by [`Era`] and by [`McpOutcome`].
    pub calls: [[u64; McpOutcome::NAMES.len()]; 2],
    /// Notifications sent.
    pub notifications: u64,
    /// Notifications sent that report a gap.
    pub gaps: u64,
    /// Sessions that were evicted to make room for others.
    pub sessions_evicted: u64,
    /// Sessions that were not used for too long.
    pub sessions_idled_out: u64,
}

/// The way in which a call of a tool ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpOutcome {
    /// The client got a result.
    Completed,
    /// The client got a result that is an error: the tool failed, or did not run.
    ToolError,
    /// The client got questions, and has to call again.
    InputRequired,
    /// The client got an error.
    Refused,
    /// The client got nothing, because it cancelled the call or is gone.
    Cancelled,
}

impl McpOutcome {
    /// The names, in the order of the variants.
    pub const NAMES: [&str; 5] =
        ["completed", "tool_error", "input_required", "refused", "cancelled"];
}

/// Number of executions by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutionCounts {
    /// Executions that wait for a ring.
    pub queued: u64,
    /// Executions that run, or wait for subscribers.
    pub running: u64,
    /// Executions whose tools have ended while `block` subscribers still read.
    pub draining: u64,
    // Executions that have ended in this way and can still be read.
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub timed_out: u64,
}

/// The numbers of the process at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessMetrics {
    /// Maximum number of connections.
    pub connections_max: u64,
    /// Records that the log had no room for.
    pub log_records_dropped: u64,
    /// Spans that the queue had no room for.
    pub spans_dropped: u64,
    /// Number of shards that were started.
    pub shard_count: u32,
    /// The numbers of the shards that have died.
    pub dead_shards: Vec<u32>,
    /// The kernel's numbers of the process.
    pub usage: ProcessUsage,
}
