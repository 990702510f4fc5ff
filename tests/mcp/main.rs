//! MCP over HTTP, with clients that check every byte: the replies to single requests, many clients
//! at once, and clients that disappear.
#![cfg(feature = "cli")]

mod client;
mod cuts;
#[path = "../echo/mod.rs"]
mod echo;
mod nonces;
mod probes;
#[path = "../served/mod.rs"]
mod served;
mod sessions;
