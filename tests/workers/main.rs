//! Virtual tools with the real server: the example worker under Node, killed workers, and long
//! bodies over sockets.
#![cfg(feature = "cli")]

mod bodies;
mod client;
mod kill;
mod node;
mod scenes;
#[path = "../served/mod.rs"]
mod served;
mod shards;
