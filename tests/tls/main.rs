//! `streamdoor serve` with TLS: curl, streams, several shards, and what is no TLS.
#![cfg(all(feature = "cli", feature = "tls"))]

mod clients;
mod refused;
mod start;
mod world;

#[path = "../served/mod.rs"]
mod served;
