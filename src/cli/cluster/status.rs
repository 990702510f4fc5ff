//! `streamdoor cluster status`: the nodes, the log and the executions of a cluster.

use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::cluster::member::About;
use streamdoor::nats::inspect::{Executions, Node, Server};
use streamdoor::nats::link::{Link, LinkError};
use streamdoor::nats::stores::differences;

use super::super::console::print_out;
use super::super::options::spelled;
use super::super::words::{counted, in_units, time};
use super::super::{CliError, printable};
use super::{ClusterOptions, refused, with_link};

/// The state of a cluster.
struct State {
    server: Server,
    nodes: Vec<Node>,
    /// The description of the log, as NATS writes it.
    log: Value,
    executions: Executions,
    differences: Vec<String>,
}

/// Shows the state.
pub fn run(options: &ClusterOptions, as_json: bool) -> Result<(), CliError> {
    let (name, state) = with_link(options, async |link| {
        let name = link.names().cluster().to_owned();
        let state = state(link).await.map_err(refused)?;
        Ok((name, state))
    })?;
    let Some(state) = state else {
        return Err(CliError::Failed(format!(
            "there are no stores of the cluster {name}: `streamdoor cluster init` makes them, or \
             --cluster-name is another"
        )));
    };
    match as_json {
        true => print_out!("{}", printable::json(&state.to_json(&name))),
        false => print_out!("{}", state.to_text(&name)),
    }
    match state.differences.is_empty() {
        true => Ok(()),
        false => Err(CliError::Told),
    }
}

/// Asks for everything. `None`: one of the stores is missing.
async fn state(link: &Link) -> Result<Option<State>, LinkError> {
    let [log, leases, directory] = link.names().streams();
    let Some(log) = link.stream(&log).await? else { return Ok(None) };
    for stream in [leases, directory] {
        if link.stream(&stream).await?.is_none() {
            return Ok(None);
        }
    }
    Ok(Some(State {
        server: link.server(),
        nodes: link.nodes_seen().await?,
        log,
        executions: link.executions().await?,
        differences: differences(link).await?,
    }))
}

impl State {
    fn log_number(&self, part: &str, name: &str) -> u64 {
        self.log[part][name].as_u64().unwrap_or(0)
    }

    fn retention(&self) -> Duration {
        Duration::from_nanos(self.log_number("config", "max_age"))
    }

    fn running(&self) -> u64 {
        self.executions.running.values().sum()
    }

    /// Number of running executions of a node.
    fn running_at(&self, node: &Node) -> u64 {
        let key = (node.name.clone(), node.held.by.0);
        self.executions.running.get(&key).copied().unwrap_or(0)
    }

    fn to_json(&self, name: &str) -> Value {
        let nodes: Vec<Value> = self
            .nodes
            .iter()
            .map(|node| {
                json!({
                    "node": node.name,
                    "incarnation": format!("{:016x}", node.held.by.0),
                    "url": node.about.url,
                    "version": node.about.version,
                    "guarded": node.about.is_guarded,
                    "renewed_ms": node.renewed.map(|age| age.as_millis() as u64),
                    "running": self.running_at(node),
                })
            })
            .collect();
        json!({
            "cluster": name,
            "server_version": self.server.version,
            "nodes": nodes,
            "log": {
                "records": self.log_number("state", "messages"),
                "bytes": self.log_number("state", "bytes"),
                "max_bytes": self.log_number("config", "max_bytes"),
                "retention_s": self.retention().as_secs(),
                "replicas": self.log_number("config", "num_replicas"),
            },
            "executions": {
                "running": self.running(),
                "ended": self.executions.ended,
                "has_more": self.executions.has_more,
            },
            "streams": self.executions.streams,
            "differences": self.differences,
        })
    }

    fn to_text(&self, name: &str) -> String {
        let mut text = format!("cluster {name}, nats-server {}\n\n", self.server.version);
        text += &format!("{}\n", counted(self.nodes.len() as u64, "node"));
        for node in &self.nodes {
            let lease = match node.renewed {
                Some(age) => format!("lease renewed {} ago", time(age)),
                None => "lease is over".to_owned(),
            };
            let running = self.running_at(node);
            let (name, life) = (&node.name, node.held.by.0);
            let About { url, version, is_guarded } = &node.about;
            let known = |text: &Option<Box<str>>| text.as_deref().unwrap_or("?").to_owned();
            let access = match is_guarded {
                None => "",
                Some(true) => ", with tokens",
                Some(false) => ", without tokens",
            };
            text += &format!("  {name:<16} {life:016x}  {lease}, {running} running\n");
            text += &format!("  {:16} version {}, at {}{access}\n", "", known(version), known(url));
        }
        let of = |part, name| in_units(self.log_number(part, name) as f64);
        text += &format!(
            "log: {}, {} of {}, kept for {}, on {}\n",
            counted(self.log_number("state", "messages"), "record"),
            of("state", "bytes"),
            of("config", "max_bytes"),
            spelled(self.retention()),
            counted(self.log_number("config", "num_replicas"), "server"),
        );
        let more = if self.executions.has_more { ", and more" } else { "" };
        let (running, ended) = (self.running(), self.executions.ended);
        text += &format!("executions: {running} running, {ended} ended{more}\n");
        let streams = self.executions.streams.iter();
        let streams: Vec<String> =
            streams.map(|(node, count)| format!("{count} of the node {node}")).collect();
        if !streams.is_empty() {
            text += &format!("streams: {}\n", streams.join(", "));
        }
        match self.differences.is_empty() {
            true => text += "stores: as they have to be",
            false => text += &format!("stores:\n  {}", self.differences.join("\n  ")),
        }
        text
    }
}
