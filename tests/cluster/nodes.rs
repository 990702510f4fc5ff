//! A cluster of one server of NATS, and the nodes that are started.

use std::time::Duration;

use async_nats::ConnectOptions;
use serde_json::{Value, json};
use streamdoor::nats::link::Link;
use streamdoor::nats::names::Names;
use streamdoor::nats::secret;
use streamdoor::nats::stores::Stores;

use crate::nats_server::NatsServer;
use crate::served::Server;
use crate::world::{self, Folder};

const STORES: Stores =
    Stores { bytes_max: 1 << 30, retention: Duration::from_secs(3_600), replicas: 1 };

/// A cluster.
pub struct Cluster {
    pub nats: NatsServer,
    folder: Folder,
}

impl Cluster {
    /// Makes a cluster. Returns `None`, and says so, if no server of NATS is installed.
    pub fn start(name: &str) -> Option<Cluster> {
        let nats = NatsServer::start()?;
        let folder = Folder::new(&format!("cluster-{name}"));
        secret::make(&folder.path().join("secret")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = ConnectOptions::new().connect(nats.url()).await.expect("it connects");
            let link = Link::new(client, Names::new("default").unwrap());
            STORES.create(&link).await.expect("the stores");
        });
        Some(Cluster { nats, folder })
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
        let (url, root) = (self.nats.url(), self.folder.path().display().to_string());
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
