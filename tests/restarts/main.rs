//! A server that is killed and started again: what was answered is there, whole, and ends once.
#![cfg(all(feature = "cli", feature = "server", feature = "tools"))]

#[path = "../served/mod.rs"]
mod served;

mod asking_tasks;
mod cursors;
mod mcp;
mod owners;
mod ranges;
mod refused;
mod removed;
mod resources;
mod shards;
mod streams;
mod tasks;
mod whole;
mod workers;
mod world;
