//! A cluster of one or three servers of NATS, and the nodes that are started.

use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use serde_json::{Value, json};
use streamdoor::nats::link::Link;
use streamdoor::nats::names::Names;
use streamdoor::nats::secret;
use streamdoor::nats::stores::Stores;

use crate::nats_server::{NatsServer, Place};
use crate::served::{Server, ports};
use crate::world::{self, Folder};

/// Bytes of a log.
const LOG_BYTES_MAX: u64 = 1 << 30;
const RETENTION: Duration = Duration::from_secs(3_600);
/// Number of times that servers are asked which have just begun.
const ATTEMPTS_MAX: u32 = 300;

/// A cluster.
pub struct Cluster {
    pub nats: NatsServer,
    /// The other servers, if there are three.
    pub others: Vec<NatsServer>,
    folder: Folder,
}

impl Cluster {
    /// Makes a cluster. Returns `None`, and says so, if no server of NATS is installed.
    pub fn start(name: &str) -> Option<Cluster> {
        Cluster::of(name, NatsServer::start()?, Vec::new())
    }

    /// Makes a cluster of three servers that each have everything.
    pub fn start_three(name: &str) -> Option<Cluster> {
        Cluster::start_three_at(name, &Place::default())
    }

    /// Makes a cluster of three servers, each at such a place.
    pub fn start_three_at(name: &str, place: &Place) -> Option<Cluster> {
        let (places, routes) = ([(); 3].map(|()| place.clone()), [(); 3].map(|()| ports::free()));
        let mut servers = NatsServer::start_together(&places, &routes, "")?;
        Cluster::of(name, servers.remove(0), servers)
    }

    fn of(name: &str, nats: NatsServer, others: Vec<NatsServer>) -> Option<Cluster> {
        let folder = Folder::new(&format!("cluster-{name}"));
        secret::make(&folder.path().join("secret")).unwrap();
        let cluster = Cluster { nats, others, folder };
        let replicas = if cluster.others.is_empty() { 1 } else { 3 };
        let stores = Stores { bytes_max: LOG_BYTES_MAX, retention: RETENTION, replicas };
        cluster.with_link(async |link| {
            // Three servers need a moment until they have agreed on a leader.
            for _ in 0..ATTEMPTS_MAX {
                match stores.create(&link).await {
                    Ok(()) => return,
                    Err(error) if replicas == 1 => panic!("{error}"),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
            panic!("the servers do not become one");
        });
        Some(cluster)
    }

    /// The servers, the first one first.
    pub fn servers(&mut self) -> Vec<&mut NatsServer> {
        [&mut self.nats].into_iter().chain(&mut self.others).collect()
    }

    /// The addresses of all servers, with commas.
    fn urls(&self) -> String {
        let all = [&self.nats].into_iter().chain(&self.others).map(NatsServer::url);
        all.collect::<Vec<_>>().join(",")
    }

    /// Does something with a connection.
    pub fn with_link<T>(&self, work: impl AsyncFnOnce(Link) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let servers = self.urls();
            let servers: Vec<ServerAddr> =
                servers.split(',').map(|url| url.parse().expect("a URL")).collect();
            let client = ConnectOptions::new().connect(servers).await.expect("it connects");
            work(Link::new(client, Names::new("default").unwrap())).await
        })
    }

    /// The folder of the cluster.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Starts a node with a journal, and waits until it has joined.
    pub fn node(&self, name: &str, arguments: &[&str]) -> Server {
        let node = self.node_that_waits(name, arguments);
        node.wait_for("cluster_joined");
        node
    }

    /// Starts a node, and waits until it listens.
    pub fn node_that_waits(&self, name: &str, arguments: &[&str]) -> Server {
        let secret = self.folder.path().join("secret").display().to_string();
        let (url, root) = (self.urls(), self.folder.path().display().to_string());
        let journal = self.folder.path().join(format!("journal-{name}")).display().to_string();
        let mut all = vec!["--cluster", &url, "--cluster-secret-file", &secret, "--node", name];
        all.extend(["--cluster-lease", "2s", "--idle", "block", "--files-root", &root]);
        all.extend(["--journal", &journal]);
        all.extend(arguments);
        Server::start(&all)
    }
}

/// Starts a tool that publishes this many chunks, one each `delay_ms`. Returns the id.
pub fn slow(node: &Server, chunks: u64, delay_ms: u64) -> String {
    let arguments = json!({ "chunks": chunks, "delay_ms": delay_ms });
    world::execute(node, &json!({ "tool": "slow_data_processor", "arguments": arguments }))
}

/// The events of these kinds.
pub fn only<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}
