//! MCP in simulated time.
//!
//! `client.rs` is who asks, over HTTP. `calls.rs`: answered once, cancelled, held back; `cut.rs`:
//! connections that break; `kept.rs`: results that are fetched later, through doors and as tasks;
//! `lines.rs`: connections of lines, and what is held back on them; `sessions.rs`: how long they
//! last, and what they are told; `shards.rs`: what lives elsewhere; `together.rs`: what all shards
//! have in common.

mod calls;
mod client;
mod cut;
mod kept;
mod lines;
mod sessions;
mod shards;
mod together;
