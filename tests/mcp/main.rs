//! MCP over HTTP, by clients that look at every byte: what a server has to answer to what, many
//! clients at once, and those who go away without a word.
#![cfg(all(feature = "cli", feature = "server"))]

mod client;
mod cuts;
#[path = "../echo/mod.rs"]
mod echo;
mod nonces;
mod probes;
#[path = "../served/mod.rs"]
mod served;
mod sessions;
