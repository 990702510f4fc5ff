//! The numbers of a running server, for a thread beside its shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::server::metrics::{ProcessMetrics, ShardMetrics, Snapshot};
use crate::server::process_usage::ProcessUsage;
use crate::server::renewal::call_when_free;
use crate::server::{NodeStatus, ServerHandle, ServerShard, UpstreamMeter, turn};
use crate::trace::Metric;

/// Reads the numbers that `/metrics` shows. A shard that has ended keeps its last ones.
///
/// ```
/// use std::sync::Arc;
/// use streamdoor::server::ServerShardConfig;
/// use streamdoor::{Server, ServerConfig};
///
/// let config = ServerConfig {
///     shards: vec![ServerShardConfig::default()],
///     listen: vec!["127.0.0.1:0".parse()?],
///     connections_max: 100,
/// };
/// let server = Server::start(config, Arc::new(|_shard| {}))?;
/// let metrics = server.meter().read();
/// assert!(metrics.iter().any(|metric| metric.otel_name == "streamdoor.turns"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Meter {
    handles: Vec<ServerHandle>,
    shards: BTreeMap<u32, ShardMetrics>,
    process: ProcessMetrics,
    upstreams: Arc<[UpstreamMeter]>,
    node: Option<NodeStatus>,
}

impl Meter {
    pub(in crate::server) fn new(handles: Vec<ServerHandle>) -> Meter {
        let (shards, process) = (BTreeMap::new(), ProcessMetrics::default());
        Meter { handles, shards, process, upstreams: Arc::default(), node: None }
    }

    /// Keeps what a shard has left behind.
    pub fn keep(&mut self, last: ShardMetrics) {
        self.shards.insert(last.shard, last);
    }

    /// Asks all shards, and returns the metrics of the server. It waits for the shards.
    pub fn read(&mut self) -> Vec<Metric> {
        for handle in &self.handles {
            let ask = |shard: &mut ServerShard| {
                let upstreams = Arc::clone(&shard.guests.upstreams);
                let of_process = (turn::process_metrics(shard), shard.guests.cluster.status());
                (turn::metrics_of(shard), of_process, upstreams)
            };
            if let Some((metrics, of_process, upstreams)) = call_when_free(handle, ask) {
                self.shards.insert(metrics.shard, metrics);
                ((self.process, self.node), self.upstreams) = (of_process, upstreams);
            }
        }
        self.process.usage = ProcessUsage::read();
        let snapshot = Snapshot {
            shards: self.shards.values().cloned().collect(),
            process: self.process.clone(),
            upstreams: Arc::clone(&self.upstreams),
            node: self.node.clone(),
        };
        snapshot.metrics()
    }
}
