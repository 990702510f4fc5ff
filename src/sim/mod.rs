//! Stratum 6: the seeded world. The same seed gives the same run, byte for byte.
//!
//! No real time, no thread, no randomness of the system. [`world`] has time, pipes and faults.
//! [`reactor`] is the kernel of that world: a third backend of [`crate::reactor::Reactor`], whose
//! sockets are in `socket.rs`. Clients connect to them through [`network`]. [`disk`] outlives the
//! reactors that use it, and has crashes and faults of its own. [`campaign`] drives a
//! real shard in it: producers and subscribers of all kinds, faults, and an oracle. The oracle
//! knows what each subscriber must have received.
//!
//! Reading order:
//!
//! - `run.rs`: one run from beginning to end.
//! - `stage.rs`: what all actors share, with the time and the memory of the world.
//! - `model.rs`: the facts about an execution.
//! - `follower.rs`, `ending.rs` and `expect.rs`: the oracle.
//! - The actors: `caller.rs`, `requests.rs`, `producer.rs`, `thread.rs`, `joins.rs`, `watcher.rs`,
//!   `door.rs`.
//! - `between.rs`: steps of other threads in the middle of the actors' steps.
//!
//! `outgoing_tests.rs` has a shard that makes HTTP requests. `server/` has the whole server in the
//! same world.

mod between;
mod caller;
pub mod campaign;
#[cfg(test)]
mod campaigns;
#[cfg(all(test, feature = "server"))]
mod cluster;
#[cfg(test)]
mod contract;
#[cfg(all(test, feature = "server"))]
mod corpus_tests;
mod coverage;
pub mod disk;
#[cfg(feature = "server")]
mod door;
mod ending;
mod expect;
mod follower;
#[cfg(test)]
mod idle_tests;
mod joins;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod kept;
#[cfg(test)]
mod kept_tests;
#[cfg(test)]
mod late_tests;
mod model;
pub mod network;
#[cfg(all(test, feature = "server"))]
mod outgoing_tests;
#[cfg(all(test, feature = "server"))]
mod passing_tests;
mod patience;
mod plan;
#[cfg(feature = "server")]
mod process;
#[cfg(all(test, feature = "server"))]
mod process_tests;
mod producer;
#[cfg(test)]
mod progress_tests;
pub mod reactor;
#[cfg(all(test, feature = "server"))]
mod replica;
#[cfg(all(test, feature = "cluster"))]
mod replicated_tests;
mod requests;
mod run;
mod scene;
#[cfg(feature = "server")]
pub mod server;
mod socket;
mod stage;
mod thread;
#[cfg(test)]
mod timeseries_tests;
mod twice;
mod watcher;
pub mod world;

/// The shard of the shard's campaign. With the server, other processes can share its executions.
#[cfg(feature = "server")]
pub(crate) type SimShard = crate::server::ServerShard<reactor::SimReactor>;
#[cfg(not(feature = "server"))]
pub(crate) type SimShard = crate::shard::Shard<reactor::SimReactor>;

/// The settings of its guests.
#[cfg(feature = "server")]
fn guests() -> crate::server::GuestConfig {
    let doors = crate::server::Doors::new(crate::limits::DOORS_CEILING);
    crate::server::GuestConfig { doors, ..Default::default() }
}
#[cfg(not(feature = "server"))]
fn guests() {}

/// Creates it.
#[cfg(feature = "server")]
fn shard(
    reactor: reactor::SimReactor,
    config: crate::server::ServerShardConfig,
) -> std::io::Result<SimShard> {
    crate::server::ServerShard::over(reactor, config)
}
#[cfg(not(feature = "server"))]
fn shard(
    reactor: reactor::SimReactor,
    config: crate::shard::ShardConfig,
) -> std::io::Result<SimShard> {
    crate::shard::Shard::with_reactor(reactor, config)
}
