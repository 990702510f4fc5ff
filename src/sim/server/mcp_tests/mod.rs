//! MCP in simulated time.
//!
//! `client.rs` is the client, over HTTP. The tests:
//!
//! - `calls.rs`: calls that are answered once, cancelled, held back.
//! - `cut.rs`: connections that break.
//! - `kept.rs`: results that are fetched later, as streams and as tasks.
//! - `lines.rs`: connections of lines, and the events that are held back on them.
//! - `sessions.rs`: the lifetime of sessions, and their own notifications.
//! - `shards.rs`: executions on other shards.
//! - `together.rs`: the state that all shards share.

mod calls;
mod client;
mod cut;
mod kept;
mod lines;
mod sessions;
mod shards;
mod together;
