//! Stands in for `shard::Server` until that is there: shards that listen, and answer nobody. To be
//! removed with it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use streamdoor::reactor::{ListenAddress, ListenError, ListenOptions, Reactor, Report};
use streamdoor::shard::{Log, Shard, ShardConfig, ShardThread};

pub struct ServerConfig {
    pub shards: Vec<ShardConfig>,
    pub listen: Vec<ListenAddress>,
    pub connections_max: u32,
    pub retention: Duration,
    pub block_deadline: Duration,
    pub log: Log,
}

#[derive(Debug)]
pub enum ServerError {
    Shard(io::Error),
    Listen(ListenError),
}

impl fmt::Display for ServerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerError::Shard(error) => error.fmt(out),
            ServerError::Listen(error) => error.fmt(out),
        }
    }
}

pub struct Server {
    shards: Vec<ShardThread>,
    reports: Vec<Report>,
    addresses: Vec<ListenAddress>,
}

impl Server {
    pub fn start(
        config: ServerConfig,
        set_up_tools: Arc<dyn Fn(&mut Shard) + Send + Sync>,
    ) -> Result<Server, ServerError> {
        let ServerConfig { shards, listen, connections_max, retention, block_deadline, log } =
            config;
        assert!(connections_max > 0 && !retention.is_zero() && !block_deadline.is_zero());
        drop(log);
        let mut server = Server { shards: Vec::new(), reports: Vec::new(), addresses: Vec::new() };
        for (number, shard) in shards.into_iter().enumerate() {
            let listen = if number == 0 { listen.clone() } else { Vec::new() };
            let set_up_tools = Arc::clone(&set_up_tools);
            let (sender, receiver) = channel();
            let set_up = move |shard: &mut Shard| {
                set_up_tools(shard);
                for address in listen {
                    let reactor = shard.reactor_mut();
                    let listener = reactor.listen(&address, ListenOptions::default());
                    let bound = listener.map(|listener| reactor.listen_address(listener));
                    let _ = sender.send(bound);
                }
            };
            let (thread, report) = Shard::spawn(shard, set_up).map_err(ServerError::Shard)?;
            server.shards.push(thread);
            server.reports.push(report);
            for bound in receiver {
                server.addresses.extend(bound.map_err(ServerError::Listen)?);
            }
        }
        Ok(server)
    }

    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    pub fn reports(&self) -> &[Report] {
        &self.reports
    }

    pub fn drain(&self, _deadline: Duration) {
        for shard in &self.shards {
            let _ = shard.call(|shard| shard.shut_down());
        }
    }
}
