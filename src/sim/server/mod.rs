//! The whole server in the seeded world: HTTP bytes in, bytes out, over sockets that are short,
//! late, cut and reset. It has a real shard and real connections, and clients that check
//! everything.
//!
//! Reading order:
//!
//! - `script.rs`: the tool, whose chunks every client can compute.
//! - `exchange.rs`: a request and its response.
//! - `follower.rs` and `oracle.rs`: a client that follows and checks.
//! - `worker.rs`: a client that works.
//! - `mcp_client.rs`: a client of MCP.
//! - `run.rs`: a seed.
//! - `streams_run.rs`: a seed with a journal, crashes, and clients of Durable Streams.
//!
//! Every client of a stream holds the server to this. The chunks are the tool's, in order. Missing
//! chunks are in a gap, counted to the byte. One end comes, as the last event, and its sums are
//! right. A client that comes back with the last `id:` resumes exactly there.

mod actions;
mod agent_run;
#[cfg(test)]
mod agent_tests;
#[cfg(test)]
mod apart_tests;
mod audience;
#[cfg(test)]
mod ends_tests;
mod exchange;
mod follower;
#[cfg(test)]
mod front_run;
#[cfg(test)]
mod front_tests;
#[cfg(test)]
mod keys_tests;
#[cfg(test)]
mod limits_tests;
mod mcp_client;
#[cfg(test)]
mod mcp_manners_tests;
#[cfg(test)]
mod mcp_tests;
mod model_scripts;
mod oracle;
#[cfg(test)]
mod owner_tests;
mod run;
mod script;
mod scripted;
#[cfg(test)]
pub(in crate::sim) mod streams_run;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;
mod timed_play;
#[cfg(all(test, feature = "tls"))]
mod tls_tests;
mod worker;
#[cfg(test)]
mod workers_tests;

pub use agent_run::run_agent_seed;
pub use run::run_server_seed;

use crate::trace::Counters;

/// The result of one seed. Equal for equal seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeedSummary {
    /// The seed.
    pub seed: u64,
    /// The hash of all actions of its shards, in their order.
    pub actions_hash: u64,
    /// The number of times that each event happened, by name.
    pub happened: Vec<(&'static str, u64)>,
    /// Sends, frames and everything else that the shards counted.
    pub counters: Counters,
}
