//! For tests: a server to which requests are said, and whose answers are heard, in simulated time.

use std::time::Duration;

use super::script::{self, Script};
use crate::engine::EngineLimits;
use crate::memory::RingPoolConfig;
use crate::reactor::{ListenAddress, ListenOptions};
use crate::shard::{Shard, ShardConfig};
use crate::sim::network::SimClient;
use crate::sim::reactor::SimReactor;
use crate::sim::world::{EAGAIN, SimFaults, SimWorld};

/// A server of one shard, in a world without faults.
pub(super) struct House {
    pub world: SimWorld,
    pub shard: Shard<SimReactor>,
    pub address: ListenAddress,
}

impl House {
    pub fn new() -> House {
        let world = SimWorld::new(1, SimFaults::NONE);
        let config = ShardConfig {
            engine: EngineLimits { executions_max: 8, ..EngineLimits::default() },
            rings: RingPoolConfig { prealloc_bytes: 0, bytes_max: 1 << 20 },
            seed: Some(1),
            ..ShardConfig::default()
        };
        let mut shard = Shard::with_reactor(SimReactor::new(&world, 1), config).unwrap();
        shard.tools_mut().insert(script::spec(), script::prepare).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let address = shard.listen(&any, ListenOptions::default()).unwrap();
        House { world, shard, address }
    }

    pub fn turn(&mut self) {
        while self.shard.turn() {}
    }

    pub fn pass(&mut self, duration: Duration) {
        let until = self.world.now() + duration;
        while self.world.now() < until {
            let due = self.shard.next_deadline().filter(|&due| due <= until).unwrap_or(until);
            self.world.set_horizon(Some(due));
            self.shard.park(Some(due));
            self.world.set_horizon(None);
            self.turn();
        }
        self.shard.audit();
    }

    pub fn say(&mut self, client: SimClient, text: &str) {
        assert_eq!(self.world.client_send(client, text.as_bytes()), Ok(text.len()));
        self.pass(Duration::from_millis(1));
    }

    /// A new connection that has said this.
    pub fn visit(&mut self, text: &str) -> SimClient {
        let client = self.world.connect(&self.address).unwrap();
        self.say(client, text);
        client
    }

    /// What the client has coming; with `<end>` if the server has finished.
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

    /// Runs a script; its name.
    pub fn run(&mut self, script: Script, more: &str) -> String {
        let body = format!("{{\"tool\":\"script\",\"arguments\":{}{more}}}", script.arguments());
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

    pub fn get(&mut self, path: &str) -> String {
        let client = self.visit(&get(path));
        let heard = self.hear(client);
        self.world.client_close(client);
        heard
    }
}

pub(super) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}
