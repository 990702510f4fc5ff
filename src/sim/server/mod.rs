//! The whole server in the seeded world: HTTP bytes in, bytes out, over sockets that are short,
//! late, cut and reset; a real shard, its real connections, and clients that believe nothing.
//!
//! Reading order: `script.rs` (the tool: everybody can compute what it publishes), `exchange.rs` (a
//! request and its response), `follower.rs` and `oracle.rs` (a client that follows and checks),
//! `worker.rs` (one that works), `assistant.rs` (one of MCP), `run.rs` (a seed).
//!
//! What every client of a stream holds the server to: its chunks are the tool's, in order; what is
//! not there is in a gap, counted to the byte; there is one end, the last, and its sums are right;
//! whoever comes back with the last `id:` goes on exactly there.

mod actions;
mod agent_run;
#[cfg(test)]
mod agent_tests;
#[cfg(test)]
mod apart_tests;
mod assistant;
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
mod house;
#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod mcp_manners_tests;
#[cfg(test)]
mod mcp_tests;
mod oracle;
#[cfg(test)]
mod owner_tests;
mod passing;
mod run;
mod script;
mod scripted;
mod story;
#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "tls"))]
mod tls_tests;
mod worker;
#[cfg(test)]
mod workers_tests;

pub use agent_run::run_agent_seed;
pub use run::run_server_seed;

use crate::trace::Counters;

/// What one seed came to. Equal for equal seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeedSummary {
    /// The seed.
    pub seed: u64,
    /// The hash of all actions of its shards, in their order.
    pub actions_hash: u64,
    /// What happened how often, by name.
    pub happened: Vec<(&'static str, u64)>,
    /// Sends, frames and everything else that the shards counted.
    pub counters: Counters,
}
