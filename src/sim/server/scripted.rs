//! The server of a model in the simulated world: it follows a script, at the addresses and over the
//! sockets of that world.

use super::timed_play::TimedPlay;
use crate::agent::script::{Script, ScriptConnection, ScriptedModel};
use crate::base::Instant;
use crate::reactor::ListenAddress;
use crate::server::{ModelSettings, ServerShard};
use crate::sim::network::SimClient;
use crate::sim::reactor::SimReactor;
use crate::sim::world::{EAGAIN, SimWorld};

/// The wall-clock time at which the world began.
const WALL_US: u64 = 1_700_000_000_000_000;

/// The server of a model, as in the module's text.
pub(super) struct SimModel {
    address: ListenAddress,
    model: ScriptedModel,
    connections: Vec<ModelConnection>,
    /// Connections that were accepted.
    pub accepted_count: u64,
    /// Connections that the other end has closed while a reply was under way.
    pub left_count: u64,
}

struct ModelConnection {
    client: SimClient,
    connection: ScriptConnection,
    /// True if the whole reply was sent.
    is_finished: bool,
}

impl SimModel {
    /// A server that follows this script.
    pub fn new(world: &SimWorld, script: Script) -> SimModel {
        let address = "127.0.0.1:9000".parse().expect("it is an address");
        let address = world.listen(&address).expect("nobody else listens there");
        let model = ScriptedModel::new(script);
        SimModel { address, model, connections: Vec::new(), accepted_count: 0, left_count: 0 }
    }

    /// The settings for a shard that uses this model.
    pub fn settings(wire: &str) -> ModelSettings {
        let base_url = "http://127.0.0.1:9000/v1";
        ModelSettings::new("scripted", wire, base_url, "demo", None).expect("it is right")
    }

    /// Number of open connections.
    pub fn open_count(&self) -> usize {
        self.connections.len()
    }

    /// Does the work that is due now. Returns true if any work was done.
    pub fn step(&mut self, world: &SimWorld) -> bool {
        let mut has_worked = false;
        while let Some(client) = world.answer(&self.address) {
            self.accepted_count += 1;
            has_worked = true;
            let connection = ScriptConnection::new();
            self.connections.push(ModelConnection { client, connection, is_finished: false });
        }
        for at in (0..self.connections.len()).rev() {
            match self.talk(world, at) {
                Some(did) => has_worked |= did,
                None => {
                    let talk = self.connections.swap_remove(at);
                    world.client_close(talk.client);
                    talk.connection.end(&mut self.model);
                    has_worked = true;
                }
            }
        }
        has_worked
    }

    /// Continues a connection. Returns `None` if it is over.
    fn talk(&mut self, world: &SimWorld, at: usize) -> Option<bool> {
        let now = world.now();
        let time = (now, WALL_US + now.nanos() / 1_000);
        let ModelConnection { client, connection, is_finished } = &mut self.connections[at];
        let mut has_worked = false;
        let mut buffer = [0; 4_096];
        loop {
            match world.client_receive(*client, &mut buffer) {
                Ok(0) => {
                    self.left_count += u64::from(connection.next_deadline().is_some());
                    return None;
                }
                Ok(count) => connection.receive(&mut self.model, &buffer[..count], time),
                Err(EAGAIN) => break,
                Err(_) => return None,
            }
            has_worked = true;
        }
        connection.turn(&mut self.model, time);
        while !connection.unsent().is_empty() {
            match world.client_send(*client, connection.unsent()) {
                Ok(count) => connection.sent(count),
                Err(EAGAIN) => break,
                Err(_) => return None,
            }
            has_worked = true;
        }
        if connection.is_over() && !std::mem::replace(is_finished, true) {
            world.client_finish(*client);
            has_worked = true;
        }
        Some(has_worked)
    }

    /// The time at which it has more to send.
    pub fn next_deadline(&self) -> Option<Instant> {
        let all = self.connections.iter();
        all.filter_map(|talk| talk.connection.next_deadline()).min()
    }
}

/// A play of one shard and the model that its agents ask.
pub(super) trait Asking {
    fn asked(&mut self) -> PlayParts<'_>;
}

/// The parts of such a play.
pub(super) struct PlayParts<'a> {
    pub world: &'a SimWorld,
    pub shard: &'a mut ServerShard<SimReactor>,
    pub model: &'a mut SimModel,
}

impl<T: Asking> TimedPlay for T {
    fn world(&mut self) -> &SimWorld {
        self.asked().world
    }

    fn turn_once(&mut self) -> bool {
        let PlayParts { world, shard, model } = self.asked();
        shard.turn() | model.step(world)
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        let PlayParts { shard, model, .. } = self.asked();
        shard.next_deadline().into_iter().chain(model.next_deadline()).min()
    }

    fn park(&mut self, until: Instant) {
        self.asked().shard.park(Some(until));
    }
}
