//! A server in a world without faults, for tests of its behaviour.

use std::time::Duration;

use super::script::{self, Script};
use super::scripted::SimModel;
use crate::base::Instant;
use crate::engine::EngineLimits;
use crate::memory::RingPoolConfig;
use crate::reactor::{ListenAddress, ListenOptions, SocketLimits};
use crate::server::{
    Conversations, GuestConfig, LineOptions, Places, ServerShard, ServerShardConfig,
};
use crate::shard::ShardConfig;
use crate::sim::network::SimClient;
use crate::sim::reactor::SimReactor;
use crate::sim::world::{EAGAIN, SimFaults, SimWorld};

/// Options of an execution that publishes nothing for a long time: its subscribers are idle.
pub(super) const NOTHING: &str = ",\"start\":{\"after_subscribers\":99,\"deadline_ms\":3600000}";
pub(super) const SHORT: Script =
    Script { seed: 7, chunk_count: 5, chunk_bytes_max: 8, fails: false, is_remote: false };

/// The server and its world, as in the module's text.
pub(super) struct TestServer {
    pub world: SimWorld,
    pub shards: Vec<ServerShard<SimReactor>>,
    pub address: ListenAddress,
    /// The shard that has no turn for now.
    pub absent: Option<usize>,
    /// The server of its model, if it has one.
    pub model: Option<SimModel>,
}

impl TestServer {
    /// A server of one shard.
    pub fn new() -> TestServer {
        TestServer::of(1)
    }

    /// A server of `shard_count` shards.
    pub fn of(shard_count: u8) -> TestServer {
        TestServer::with_rings(shard_count, 1 << 20, ShardConfig::default())
    }

    /// A server of one shard with this configuration.
    pub fn with(config: ServerShardConfig) -> TestServer {
        TestServer::with_rings(1, 1 << 20, config)
    }

    /// A server of one shard with `connections_max` slots.
    pub fn with_places(connections_max: u32) -> TestServer {
        let sockets = SocketLimits { connections_max, ..SocketLimits::default() };
        TestServer::with(ShardConfig { sockets: Some(sockets), ..ShardConfig::default() })
    }

    /// A server with `bytes_max` of memory for the rings of each shard.
    pub fn with_rings(shard_count: u8, bytes_max: u64, set_up: ServerShardConfig) -> TestServer {
        TestServer::with_executions(8, shard_count, bytes_max, set_up)
    }

    /// A server that also has room for `executions_max` executions on each shard.
    pub fn with_executions(
        executions_max: u32,
        shard_count: u8,
        bytes_max: u64,
        set_up: ServerShardConfig,
    ) -> TestServer {
        let world = SimWorld::new(1, SimFaults::NONE);
        let mut address: ListenAddress = "127.0.0.1:0".parse().unwrap();
        let mut shards = Vec::new();
        let (places, conversations) = (Places::default(), Conversations::default());
        for shard in 0..shard_count {
            let config = ShardConfig {
                engine: EngineLimits { shard, executions_max, ..EngineLimits::default() },
                rings: RingPoolConfig { prealloc_bytes: 0, bytes_max, ..RingPoolConfig::default() },
                seed: Some(1),
                guests: GuestConfig {
                    mcp_places: Some(places.clone()),
                    conversations: Some(conversations.clone()),
                    ..set_up.clone().guests
                },
                ..set_up.clone()
            };
            let mut shard = ServerShard::over(SimReactor::new(&world), config).unwrap();
            shard.tools_mut().insert(script::spec(), script::prepare).unwrap();
            let options = ListenOptions { shares_port: shard_count > 1 };
            address = shard.listen(&address, options).unwrap();
            shards.push(shard);
        }
        ServerShard::introduce(&mut shards);
        TestServer { world, shards, address, absent: None, model: None }
    }

    fn present(&mut self) -> impl Iterator<Item = &mut ServerShard<SimReactor>> {
        let absent = self.absent;
        let shards = self.shards.iter_mut().enumerate();
        shards.filter(move |(at, _)| Some(*at) != absent).map(|(_, shard)| shard)
    }

    pub fn turn(&mut self) {
        while self.turn_once() {}
    }

    pub fn turn_once(&mut self) -> bool {
        let has_worked = self.present().map(ServerShard::turn).fold(false, |a, b| a | b);
        self.model.as_mut().is_some_and(|m| m.step(&self.world)) | has_worked
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        let due = self.present().filter_map(ServerShard::next_deadline).min();
        let of_model = self.model.as_ref().and_then(SimModel::next_deadline);
        due.into_iter().chain(of_model).min()
    }

    pub fn pass(&mut self, duration: Duration) {
        let until = self.world.now() + duration;
        while self.world.now() < until {
            let due = self.next_deadline().filter(|&due| due <= until).unwrap_or(until);
            self.world.set_horizon(Some(due));
            self.present().next().expect("one is there").park(Some(due));
            self.world.set_horizon(None);
            self.turn();
        }
        self.shards.iter().for_each(ServerShard::audit);
    }

    pub fn say(&mut self, client: SimClient, text: &str) {
        assert_eq!(self.world.client_send(client, text.as_bytes()), Ok(text.len()));
        self.pass(Duration::from_millis(1));
    }

    /// Makes a connection and sends the text on it.
    pub fn visit(&mut self, text: &str) -> SimClient {
        let client = self.world.connect(&self.address).unwrap();
        self.say(client, text);
        client
    }

    /// Makes a connection of lines, as standard input and output are one.
    pub fn lines(&mut self, settle: Duration) -> SimClient {
        let (client, socket) = self.world.pair();
        let options = LineOptions { settle, ..LineOptions::default() };
        self.shards[0].open_lines(socket, options).unwrap();
        client
    }

    /// The text that the client has received, with `<end>` if the server has finished.
    pub fn hear(&mut self, client: SimClient) -> String {
        let mut heard = Vec::new();
        let mut buffer = [0; 4_096];
        loop {
            match self.world.client_receive(client, &mut buffer) {
                Ok(0) => {
                    heard.extend_from_slice(b"<end>");
                    break;
                }
                Ok(count) => heard.extend_from_slice(&buffer[..count]),
                Err(EAGAIN) => break,
                Err(error) => {
                    heard.extend_from_slice(format!("<{error}>").as_bytes());
                    break;
                }
            }
            self.turn();
        }
        String::from_utf8_lossy(&heard).into_owned()
    }

    /// The text that has come to the client by now. The server has no turn.
    pub fn take(&mut self, client: SimClient) -> String {
        let (mut heard, mut buffer) = (Vec::new(), [0; 4_096]);
        while let Ok(count @ 1..) = self.world.client_receive(client, &mut buffer) {
            heard.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8_lossy(&heard).into_owned()
    }

    /// Runs a script. Returns the id of the execution.
    pub fn run(&mut self, script: Script, more: &str) -> String {
        self.run_tool("script", script, more)
    }

    /// Runs a script with the tool of that name. Returns the id of the execution.
    pub fn run_tool(&mut self, tool: &str, script: Script, more: &str) -> String {
        let arguments = script.arguments();
        let body = format!("{{\"tool\":\"{tool}\",\"arguments\":{arguments}{more}}}");
        let length = body.len();
        let client = self.visit(&format!(
            "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ));
        let heard = self.hear(client);
        assert!(heard.starts_with("HTTP/1.1 201"), "{heard}");
        self.world.client_close(client);
        let at = heard.find("\"execution\":\"").expect(&heard) + 13;
        heard[at..at + 26].to_owned()
    }

    /// The response to a GET of `path`.
    pub fn get(&mut self, path: &str) -> String {
        let client = self.visit(&get(path));
        let heard = self.hear(client);
        self.world.client_close(client);
        heard
    }
}

/// A request without a body.
pub(super) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}
