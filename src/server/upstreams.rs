//! The counts of other MCP servers whose tools are offered here. Threads of these servers count,
//! and the shard that is asked for metrics reports.

use std::sync::Arc;

use crate::memory::atomic::{AtomicU64, Ordering};

/// A count of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamCount {
    /// Calls that were begun.
    Calls,
    /// Calls that failed because of the tool, its server, or the way to it.
    Failures,
    /// Times that the server was started, or its session was initialized again.
    Starts,
    /// Bytes that were received from it.
    ReceivedBytes,
    /// Bytes that were sent to it.
    SentBytes,
    /// Messages without effect, because they break a rule or belong to nothing.
    Ignored,
}

impl UpstreamCount {
    pub(in crate::server) const ALL: [(UpstreamCount, &'static str, &'static str); 6] = [
        (UpstreamCount::Calls, "upstream_calls", "Tool calls to another MCP server."),
        (
            UpstreamCount::Failures,
            "upstream_failures",
            "Tool calls to another MCP server that failed.",
        ),
        (
            UpstreamCount::Starts,
            "upstream_starts",
            "Starts and new sessions of another MCP server.",
        ),
        (
            UpstreamCount::ReceivedBytes,
            "upstream_received_bytes",
            "Bytes received from another MCP server.",
        ),
        (UpstreamCount::SentBytes, "upstream_sent_bytes", "Bytes sent to another MCP server."),
        (
            UpstreamCount::Ignored,
            "upstream_ignored",
            "Messages of another MCP server without effect.",
        ),
    ];
}

/// The counts of one upstream. Clones count together.
#[derive(Clone, Debug)]
pub struct UpstreamMeter(Arc<Meter>);

#[derive(Debug)]
struct Meter {
    name: Box<str>,
    counts: [AtomicU64; UpstreamCount::ALL.len()],
}

impl UpstreamMeter {
    /// Creates the counts of the upstream of this name.
    pub fn new(name: &str) -> UpstreamMeter {
        UpstreamMeter(Arc::new(Meter { name: name.into(), counts: Default::default() }))
    }

    /// Adds `more` to a count.
    pub fn add(&self, count: UpstreamCount, more: u64) {
        self.0.counts[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// Returns a count.
    pub fn count(&self, count: UpstreamCount) -> u64 {
        self.0.counts[count as usize].load(Ordering::Relaxed)
    }

    /// The name of the upstream.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}
