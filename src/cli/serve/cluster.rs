//! The server as a node of a cluster.

#[cfg(feature = "cluster")]
use std::sync::Arc;

use streamdoor::server::{Server, ServerShardConfig};
#[cfg(feature = "cluster")]
use streamdoor::{
    cluster::member::About,
    endpoint::Origin,
    nats::connect::{Checked, ConnectSettings},
    nats::node::{NewNode, Node, NodeEvent, NodeOptions},
    nats::secret,
    reactor::ListenAddress,
    trace::Level,
};

#[cfg(feature = "cluster")]
use super::super::settings::Isolated;
use super::super::settings::Settings;
use super::journal::Secrets;
use super::{CliError, Log};
#[cfg(feature = "cluster")]
use super::{log_event, shown};

/// A node that has not begun yet.
#[cfg(feature = "cluster")]
pub struct ClusterSetup {
    new: NewNode,
    options: NodeOptions,
}

/// A program that knows no clusters has none.
#[cfg(not(feature = "cluster"))]
pub enum ClusterSetup {}

/// The node of a running server. Dropping it ends the node.
#[cfg(feature = "cluster")]
pub type ClusterNode = Node;
#[cfg(not(feature = "cluster"))]
pub enum ClusterNode {}

#[cfg(feature = "cluster")]
impl ClusterSetup {
    /// Reads what the settings say of a cluster; `None` if they name none.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn of(settings: &Settings) -> Result<Option<ClusterSetup>, CliError> {
        if settings.cluster.is_empty() {
            return Ok(None);
        }
        let wrong = |text: String| CliError::Environment(format!("cluster: {text}"));
        let connect = ConnectSettings {
            servers: settings.cluster.iter().map(|url| url.0.clone()).collect(),
            cluster: settings.cluster_name.0.clone(),
            credentials_file: settings.cluster_credentials_file.0.clone(),
            tls_ca: settings.cluster_tls_ca.0.clone(),
        };
        let Checked { servers, options, names } =
            connect.check().map_err(|error| wrong(error.to_string()))?;
        let Some(path) = &settings.cluster_secret_file.0 else {
            let text = "cluster_secret_file is needed: streamdoor cluster init --secret-file FILE \
                        makes one, and all nodes have the same";
            return Err(wrong(text.to_owned()));
        };
        let secret = secret::read(path);
        let secret = secret.map_err(|error| wrong(format!("{}: {error}", path.display())))?;
        let node = node_name(&settings.node.0).map_err(wrong)?;
        let lease = settings.cluster_lease.0;
        let secret = Arc::from(secret);
        let url = advertised(&settings.cluster_advertise.0).map_err(wrong)?;
        let version = Some(env!("CARGO_PKG_VERSION").into());
        let is_guarded = Some(settings.token_file.0.is_some());
        let about = About { url, version, is_guarded };
        let options = NodeOptions {
            servers,
            connect: options,
            names,
            node,
            about,
            secret,
            lease,
            linger: settings.cluster_linger.0,
            stops_if_cut_off: settings.cluster_isolated == Isolated::Stop,
        };
        let new = NewNode::new().map_err(|error| wrong(error.to_string()))?;
        Ok(Some(ClusterSetup { new, options }))
    }

    /// Makes the shards a node.
    pub fn prepare(&self, shards: &mut [ServerShardConfig]) {
        for shard in shards {
            shard.guests.cluster = Some(self.new.line());
            shard.guests.mcp_key = Some(self.secrets().mcp);
        }
    }

    /// The secrets that all nodes have.
    pub fn secrets(&self) -> Secrets {
        let derived = |purpose| secret::derived(&self.options.secret, purpose);
        Secrets { tickets: derived(secret::TICKETS), mcp: derived(secret::MCP_STATE) }
    }

    /// Starts the node.
    ///
    /// # Errors
    /// If the machine lacks a thread.
    pub fn start(
        mut self,
        server: &Server,
        log: &Log,
        is_tls: bool,
    ) -> Result<ClusterNode, CliError> {
        let about = &mut self.options.about;
        about.url = about.url.take().or_else(|| url_of(server, is_tls));
        let (log, node) = (log.clone(), self.options.node.clone());
        let tell = move |event: &NodeEvent<'_>| tell(&log, &node, event);
        let started = self.new.start(self.options, server.handles().cloned().collect(), tell);
        started.map_err(|error| CliError::Environment(format!("cluster: {error}")))
    }
}

#[cfg(not(feature = "cluster"))]
impl ClusterSetup {
    /// Refuses settings that name a cluster.
    ///
    /// # Errors
    /// If they do.
    pub fn of(settings: &Settings) -> Result<Option<ClusterSetup>, CliError> {
        match settings.cluster.is_empty() {
            true => Ok(None),
            false => Err(CliError::Environment(
                "cluster: this program was built without the feature cluster".to_owned(),
            )),
        }
    }

    /// Makes the shards a node.
    pub fn prepare(&self, _shards: &mut [ServerShardConfig]) {
        match *self {}
    }

    /// The secrets that all nodes have.
    pub fn secrets(&self) -> Secrets {
        match *self {}
    }

    /// Starts the node.
    ///
    /// # Errors
    /// None.
    pub fn start(
        self,
        _server: &Server,
        _log: &Log,
        _is_tls: bool,
    ) -> Result<ClusterNode, CliError> {
        match self {}
    }
}

/// The name of this node: the one of the settings, or that of the machine.
#[cfg(feature = "cluster")]
fn node_name(setting: &str) -> Result<Box<str>, String> {
    use streamdoor::cluster::directory::is_node_name;
    let name = match setting {
        "" => {
            let machine = std::fs::read_to_string("/proc/sys/kernel/hostname");
            let machine = machine.map_err(|error| format!("node: {error}"))?;
            machine.trim().split('.').next().unwrap_or_default().to_owned()
        }
        name => name.to_owned(),
    };
    match is_node_name(&name) {
        true => Ok(name.into()),
        false => Err(format!("node: {name:?}: must be at most 32 letters, digits, - and _")),
    }
}

/// The URL at which clients reach this node, if the settings name one.
#[cfg(feature = "cluster")]
fn advertised(setting: &str) -> Result<Option<Box<str>>, String> {
    let is_http = setting.starts_with("http://") || setting.starts_with("https://");
    match setting.parse::<Origin>() {
        _ if setting.is_empty() => Ok(None),
        Ok(origin) if is_http => Ok(Some(origin.as_str().into())),
        _ => Err(format!("cluster_advertise: {setting:?}: must be as http://HOST:PORT")),
    }
}

/// The URL of the first TCP address that the server listens on. One that stands for all addresses
/// of the machine is no address for a client.
#[cfg(feature = "cluster")]
fn url_of(server: &Server, is_tls: bool) -> Option<Box<str>> {
    let is_named = |address: &&ListenAddress| match address {
        ListenAddress::Tcp(tcp) => !tcp.ip().is_unspecified(),
        _ => false,
    };
    let tcp = server.addresses().iter().find(is_named);
    tcp.map(|address| shown(address, is_tls).into())
}

/// Logs what an operator wants to know of the node.
#[cfg(feature = "cluster")]
fn tell(log: &Log, node: &str, event: &NodeEvent<'_>) {
    let (level, name) = match event {
        NodeEvent::Connected => (Level::Info, "cluster_connected"),
        NodeEvent::Away(_) => (Level::Warn, "cluster_away"),
        NodeEvent::Joined => (Level::Info, "cluster_joined"),
        NodeEvent::NameTaken(_) => (Level::Error, "cluster_name_taken"),
        NodeEvent::Lost(_) => (Level::Warn, "cluster_node_lost"),
        NodeEvent::CutOff => (Level::Warn, "cluster_cut_off"),
        NodeEvent::Apart(_) => (Level::Warn, "cluster_node_apart"),
        NodeEvent::Fenced(_) => (Level::Warn, "cluster_fenced"),
        NodeEvent::Failed(_) => (Level::Error, "cluster_failed"),
    };
    log_event(log, level, name, |line| match event {
        NodeEvent::Connected | NodeEvent::Joined | NodeEvent::CutOff => line.text("node", node),
        NodeEvent::Away(error) => line.text("reason", &error.to_string()),
        NodeEvent::NameTaken(name) => {
            line.text("node", name);
            line.text("consequence", "nothing of this server is written to the cluster");
            line.text("advice", "--node NAME chooses another name");
        }
        NodeEvent::Lost(name) => line.text("node", name),
        NodeEvent::Apart(name) => {
            line.text("node", name);
            line.text("reason", "one of the two nodes has a token file, and the other has none");
            line.text("consequence", "neither finds the executions of the other");
            line.text("advice", "give all nodes the same token file");
        }
        NodeEvent::Fenced(tag) => line.text("tag", tag.as_str()),
        NodeEvent::Failed(reason) => line.text("reason", reason),
    });
}
