//! What is counted of other MCP servers whose tools are offered here: by threads of theirs, told by
//! whichever shard is asked for numbers.

use std::sync::Arc;

use crate::memory::atomic::{AtomicU64, Ordering};

/// Something that is counted of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamCount {
    /// Calls that were begun.
    Calls,
    /// Of these, those that have failed: the tool, its server, or the way to it.
    Failures,
    /// Times that it was started, or greeted anew.
    Starts,
    /// Bytes that came from it.
    ReceivedBytes,
    /// Bytes that were sent to it.
    SentBytes,
    /// Messages from which nothing follows: they break a rule, or belong to nothing.
    Ignored,
}

impl UpstreamCount {
    pub(super) const ALL: [(UpstreamCount, &'static str, &'static str); 6] = [
        (UpstreamCount::Calls, "upstream_calls", "Calls of tools of another MCP server."),
        (UpstreamCount::Failures, "upstream_failures", "Of these, those that have failed."),
        (UpstreamCount::Starts, "upstream_starts", "Times that such a server was started."),
        (UpstreamCount::ReceivedBytes, "upstream_received_bytes", "Bytes that came from it."),
        (UpstreamCount::SentBytes, "upstream_sent_bytes", "Bytes that were sent to it."),
        (UpstreamCount::Ignored, "upstream_ignored", "Messages of it that mean nothing here."),
    ];
}

/// What is counted of one upstream. Clones count together.
#[derive(Clone, Debug)]
pub struct UpstreamMeter(Arc<Meter>);

#[derive(Debug)]
struct Meter {
    name: Box<str>,
    counts: [AtomicU64; UpstreamCount::ALL.len()],
}

impl UpstreamMeter {
    /// Of the upstream of this name.
    pub fn new(name: &str) -> UpstreamMeter {
        UpstreamMeter(Arc::new(Meter { name: name.into(), counts: Default::default() }))
    }

    /// Counts so much more.
    pub fn add(&self, count: UpstreamCount, more: u64) {
        self.0.counts[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn count(&self, count: UpstreamCount) -> u64 {
        self.0.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Whose it is.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}
