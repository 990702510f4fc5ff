//! The work `fan-out`: one execution, and the clients of three nodes or of a server that is alone.
//! The result is the processor time of the servers for each event that they send.
//!
//! One thread reads for all clients. Its time does not count, and neither does that of NATS.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::Duration;

use super::nats::NatsServer;
use super::ours::{MARK, end, execute_paced, nodes};
use super::{Failure, Params};
use crate::common::cluster::{Found, Stamps, failed};
use crate::common::machine::cpu_ns_of_threads;

/// The threads of a server.
const THREADS: &[&str] = &["shard", "cluster"];
const PAUSE: Duration = Duration::from_millis(1);

/// A client.
struct Client {
    socket: TcpStream,
    stamps: Stamps,
    seen: u64,
}

/// Measures the processor time for each event.
///
/// # Errors
/// [`Failure::Failed`].
pub fn fanout(nats: &NatsServer, params: &Params) -> Result<Found, Failure> {
    let names: &[&str] = match params.load.implementation {
        "alone" => &["a"],
        _ => &["a", "b", "c"],
    };
    let (all, _folder) = nodes(nats, params, names)?;
    let (warmup, counted) = params.load.chunks();
    let id = execute_paced(&all[0], &params.load)?;
    let mut clients = Vec::new();
    for node in &all {
        for _ in 0..params.readers {
            let socket = node.get(&format!("/v1/executions/{id}/events?policy=replay"))?;
            socket.set_nonblocking(true).map_err(failed)?;
            clients.push(Client { socket, stamps: Stamps::behind(MARK), seen: 0 });
        }
    }
    let mut before = None;
    while clients.iter().any(|client| client.seen < warmup + counted) {
        for client in clients.iter_mut().filter(|client| client.seen < warmup + counted) {
            client.read(warmup + counted)?;
        }
        if before.is_none() && clients.iter().all(|client| client.seen >= warmup) {
            let given: u64 = clients.iter().map(|client| client.seen).sum();
            before = Some((given, cpu_ns_of_threads(THREADS)?));
        }
        std::thread::sleep(PAUSE);
    }
    let (given_before, cpu_before_ns) = before.ok_or_else(|| failed("nothing was counted"))?;
    let given: u64 = clients.iter().map(|client| client.seen).sum();
    let found = Found {
        deliveries: given - given_before,
        cpu_ns: cpu_ns_of_threads(THREADS)? - cpu_before_ns,
        ..Found::default()
    };
    end(all);
    Ok(found)
}

impl Client {
    /// Reads what has come of so many chunks.
    fn read(&mut self, chunks: u64) -> Result<(), Failure> {
        let mut buffer = [0; 16 << 10];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) if self.seen == chunks => return Ok(()),
                Ok(0) => return Err(failed(format!("a client was given {} chunks", self.seen))),
                Ok(count) => {
                    let seen = &mut self.seen;
                    self.stamps.read(&buffer[..count], |_| *seen += 1);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}
