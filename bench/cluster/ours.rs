//! Two nodes of streamdoor in this process, and a client of the second one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::ConnectOptions;
use serde_json::{Value, json};
use streamdoor::cluster::member::About;
use streamdoor::nats::node::{NewNode, Node, NodeOptions};
use streamdoor::server::{ListenAddress, Server, ServerConfig, ServerShard, ServerShardConfig};
use streamdoor::shard::{ExecuteOptions, JournalConfig};
use streamdoor::stream::OnFull;
use streamdoor::tool::ToolSpec;

use super::nats::NatsServer;
use super::{EVENTS, Params};
use crate::common::Failure;
use crate::common::cluster::{Found, Load, failed, payload, read_log, sample, stamp, wait_until};
use crate::common::machine::now_ns;
use crate::common::source::Arrivals;

/// The text of an event before a payload.
pub const MARK: &[u8] = b"\"data\":\"";
const CONNECTIONS_MAX: u32 = 1_100;
const LEASE: Duration = Duration::from_secs(6);
const JOIN_MAX: Duration = Duration::from_secs(10);

/// A node: a server, and its connection to NATS. It keeps its executions in a directory.
pub struct OurNode {
    server: Server,
    /// `None`: the server is alone.
    node: Option<Node>,
}

/// The directory of the journals.
pub struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
    }
}

fn start(
    nats: &NatsServer,
    name: &str,
    folder: &Folder,
    linger: Duration,
) -> Result<OurNode, Failure> {
    let new = NewNode::new().map_err(failed)?;
    let server = start_server(name, folder, Some(&new))?;
    let options = NodeOptions {
        servers: vec![nats.url().parse().map_err(failed)?],
        connect: ConnectOptions::new(),
        names: NatsServer::names(),
        node: name.into(),
        about: About::default(),
        secret: Arc::from(&[7; 32][..]),
        lease: LEASE,
        linger,
        stops_if_cut_off: false,
    };
    let node = new.start(options, server.handles().cloned().collect(), |_| {}).map_err(failed)?;
    let begun = now_ns();
    while !node.status().has_lease {
        if now_ns() - begun > JOIN_MAX.as_nanos() as u64 {
            return Err(failed("a node does not join"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(OurNode { server, node: Some(node) })
}

fn start_server(name: &str, folder: &Folder, new: Option<&NewNode>) -> Result<Server, Failure> {
    let mut shard = ServerShardConfig::default();
    shard.guests.cluster = new.map(NewNode::line);
    shard.journal = Some(JournalConfig::at(folder.0.join(name)));
    let listen = vec!["127.0.0.1:0".parse::<ListenAddress>().map_err(failed)?];
    let config = ServerConfig { shards: vec![shard], listen, connections_max: CONNECTIONS_MAX };
    Server::start(config, Arc::new(set_up)).map_err(failed)
}

/// Adds the tools: `paced` publishes at planned times, and `bulk` as fast as it can.
fn set_up(shard: &mut ServerShard) {
    let tools = shard.tools_mut();
    let paced = tools.insert_closure(ToolSpec::new("paced", "Publishes."), |arguments, out| {
        let number = |name: &str| arguments[name].as_u64().unwrap_or(0);
        let mut arrivals = Arrivals::new(number("rate") as u32, number("seed"));
        let (mut bytes, origin_ns) = (payload(number("size") as usize), number("origin_ns"));
        for _ in 0..number("chunks") {
            let planned_ns = origin_ns + arrivals.next_ns();
            wait_until(planned_ns);
            stamp(&mut bytes, planned_ns);
            out.send(&bytes)?;
        }
        Ok(())
    });
    paced.expect("its name is new");
    let bulk = tools.insert_closure(ToolSpec::new("bulk", "Publishes."), |arguments, out| {
        let number = |name: &str| arguments[name].as_u64().unwrap_or(0);
        let mut bytes = payload(number("size") as usize);
        for chunk in 1..=number("chunks") {
            stamp(&mut bytes, chunk);
            out.send(&bytes)?;
        }
        Ok(())
    });
    bulk.expect("its name is new");
}

impl OurNode {
    fn address(&self) -> String {
        let address = self.server.addresses()[0].to_string();
        address.trim_start_matches("http://").to_owned()
    }

    fn execute(&self, tool: &'static str, arguments: Value) -> Result<String, Failure> {
        // The log gets everything, however late it is.
        let options = ExecuteOptions { on_full: OnFull::Pause, ..ExecuteOptions::default() };
        let handle = self.server.handles().next().expect("it has a shard");
        let id = handle.execute(tool, arguments, options).map_err(failed)?;
        Ok(id.to_string())
    }

    /// Sends a request, and returns the connection.
    pub fn get(&self, path: &str) -> Result<TcpStream, Failure> {
        let mut socket = TcpStream::connect(self.address()).map_err(failed)?;
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).map_err(failed)?;
        Ok(socket)
    }
}

/// Starts nodes with these names, or a server that is alone.
///
/// # Errors
/// [`Failure::Failed`].
pub fn nodes(
    nats: &NatsServer,
    params: &Params,
    names: &[&str],
) -> Result<(Vec<OurNode>, Folder), Failure> {
    let folder = folders(names)?;
    let node = |name: &&str| match params.load.implementation {
        "alone" => Ok(OurNode { server: start_server(name, &folder, None)?, node: None }),
        _ => start(nats, name, &folder, params.linger),
    };
    let all = names.iter().map(node).collect::<Result<_, Failure>>()?;
    Ok((all, folder))
}

fn folders(names: &[&str]) -> Result<Folder, Failure> {
    let name = format!("streamdoor-bench-nodes-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    for node in names {
        // A journal belongs to its owner only.
        let mut directory = std::fs::DirBuilder::new();
        directory.recursive(true).mode(0o700).create(folder.0.join(node)).map_err(failed)?;
    }
    Ok(folder)
}

/// Measures chunks on their way from a tool of one node to a client of the other.
///
/// # Errors
/// [`Failure::Failed`].
pub fn live(nats: &NatsServer, params: &Params) -> Result<Found, Failure> {
    let (both, _folder) = nodes(nats, params, &["a", "b"])?;
    let found = follow(&both[0], &both[1], &params.load)?;
    end(both);
    Ok(found)
}

/// Measures chunks on their way from a tool to a client of the same node, or of a server that is
/// alone.
///
/// # Errors
/// [`Failure::Failed`].
pub fn local(nats: &NatsServer, params: &Params) -> Result<Found, Failure> {
    let (owner, _folder) = nodes(nats, params, &["a"])?;
    let found = follow(&owner[0], &owner[0], &params.load)?;
    end(owner);
    Ok(found)
}

fn follow(owner: &OurNode, other: &OurNode, load: &Load) -> Result<Found, Failure> {
    let id = execute_paced(owner, load)?;
    let socket = other.get(&format!("/v1/executions/{id}/events"))?;
    sample(socket, MARK, load.chunks())
}

/// Starts the tool that publishes at planned times. Returns the id.
///
/// # Errors
/// [`Failure::Failed`].
pub fn execute_paced(owner: &OurNode, load: &Load) -> Result<String, Failure> {
    let (warmup, counted) = load.chunks();
    let arguments = json!({
        "rate": load.rate,
        "seed": load.seed,
        "size": load.size_bytes,
        "chunks": warmup + counted,
        "origin_ns": now_ns() + 300_000_000,
    });
    owner.execute("paced", arguments)
}

/// Measures a client that reads an execution of the other node from its beginning.
///
/// # Errors
/// [`Failure::Failed`].
pub fn catch_up(nats: &NatsServer, params: &Params) -> Result<Found, Failure> {
    let (both, _folder) = nodes(nats, params, &["a", "b"])?;
    let (owner, other) = (&both[0], &both[1]);
    let Load { size_bytes, .. } = params.load;
    let chunks = params.load.log_chunks();
    let filled_ns = now_ns();
    let id = owner.execute("bulk", json!({ "size": size_bytes, "chunks": chunks }))?;
    let status = || owner.node.as_ref().map(Node::status).unwrap_or_default();
    while status().counters.mirrored == 0 {
        std::thread::sleep(Duration::from_millis(2)); // Its log does not have the end yet.
    }
    let begun = now_ns();
    let written_ns = begun - filled_ns;
    if params.load.implementation == EVENTS {
        let socket = other.get(&format!("/v1/executions/{id}/events"))?;
        let found = read_log(socket, MARK, &params.load, begun)?;
        end(both);
        return Ok(Found { written_ns, ..found });
    }
    let mut socket = other.get(&format!("/v1/executions/{id}/output"))?;
    let (mut bytes, mut buffer) = (0, vec![0; 256 << 10]);
    loop {
        let count = socket.read(&mut buffer).map_err(failed)?;
        bytes += count as u64;
        if count == 0 {
            break;
        }
    }
    let elapsed_ns = now_ns() - begun;
    end(both);
    let expected = (chunks * size_bytes) as u64;
    match bytes >= expected {
        true => Ok(Found { bytes: expected, elapsed_ns, written_ns, ..Found::default() }),
        false => Err(failed(format!("{bytes} of {expected} bytes have come"))),
    }
}

/// Ends nodes.
pub fn end(nodes: Vec<OurNode>) {
    for OurNode { server, node } in nodes {
        server.drain(Duration::from_secs(1));
        drop(node);
    }
}
