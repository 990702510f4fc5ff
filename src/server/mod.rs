//! The server: the guests of a shard, and all shards of a server together.
//!
//! A [`ServerShard`] is a shard with guests. Each guest is a struct with tables of its own:
//!
//! - `hub`: the connections, their output and their deadlines;
//! - `streams`: connections that follow executions;
//! - `executions`: what clients may know of executions, and `conversations`: threads of these;
//! - `calls`: the calls of the HTTP API that run tools;
//! - `durable`: streams that clients write, of the Durable Streams protocol;
//! - `subscriptions`: workers that are woken when such streams have more;
//! - `mcp`: the Model Context Protocol;
//! - `workers`: tools whose work is done by clients;
//! - `agents`: runs of models, and `outgoing`: connections to the servers of models;
//! - `shm`: processes that share memory;
//! - `peers`: the other shards of the server;
//! - `cluster`: the other nodes.
//!
//! A guest calls those below it only; `tests/tidy/guests.rs` has the order. `turn` joins them.
//! `guests.rs` is all that the shard knows of them. `launch.rs` starts the shards of
//! a server, `ends.rs` reports their ends, `meter.rs` reads their numbers, and `records.rs` writes
//! the log.

mod agents;
mod api;
mod archive;
mod calls;
mod cluster;
mod conversations;
mod durable;
mod ends;
#[cfg(test)]
#[path = "ends_tests.rs"]
mod ends_tests;
mod executions;
mod guests;
#[cfg(test)]
mod guests_tests;
mod hub;
mod launch;
mod log;
mod mcp;
mod meter;
pub(crate) mod metrics;
#[cfg(test)]
mod metrics_tests;
pub(crate) mod outgoing;
mod peers;
mod places;
mod process_usage;
mod records;
mod renewal;
mod shm;
mod spans;
mod streams;
mod subscriptions;
mod turn;
mod upstreams;
mod workers;

pub use crate::endpoint::{
    Access, HostError, HostName, Origin, OriginError, TokenFault, Tokens, TokensError,
};
pub use crate::reactor::socket::AddressParseError;
pub use crate::reactor::{IoError, ListenAddress, ListenError, ListenOptions};
pub use crate::trace::log::WordError;
pub use crate::trace::{Level, LogFormat, Record, Span};

#[doc(hidden)] // In `crate::agents`.
pub use agents::{
    AgentRun, AgentSettings, AgentSteps, AgentStream, ModelError, ModelSettings, ToolChoice,
};
#[cfg(test)]
pub(crate) use cluster::Lookup;
#[doc(hidden)] // The thread of a node uses it.
pub use cluster::{
    ClaimWish, ClusterLine, Found, FromCluster, Holder, Listed, Listing, Located, Mirrored,
    NodeCounters, NodeStatus, ReaderName, ToCluster,
};
pub use conversations::Conversations;
pub use durable::StreamPaths;
pub use ends::{ShardEnd, ShardEnds};
pub use guests::{GuestConfig, Guests, ServerHandle, ServerShard, ServerShardConfig, ServerThread};
pub use hub::TlsConfig;
#[cfg(feature = "tls")]
pub use hub::TlsError;
pub use launch::{Drained, Server, ServerConfig, ServerError, SetUp};
pub use log::{Log, LogClosed};
pub use mcp::LineOptions;
pub use meter::Meter;
pub use outgoing::OutgoingConfig;
#[cfg(feature = "tls")]
pub use outgoing::Roots;
#[doc(hidden)] // The thread of a node uses it.
pub use peers::Ticket;
#[cfg(any(test, fuzzing))]
pub(crate) use peers::messages::{Fate, ToPeer, set_courier};
pub use places::Places;
pub use renewal::Renewal;
#[cfg(any(test, fuzzing))]
pub(crate) use shm::by_hand::{AtDoor, HandLine, ProducerAtDoor};
pub use shm::{Doors, NamedDoors};
pub use spans::{Exported, Spans};
pub use upstreams::{UpstreamCount, UpstreamMeter};
