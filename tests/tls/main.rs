//! `streamdoor serve` with TLS: curl, streams, several shards, and connections that are not TLS.
#![cfg(all(feature = "cli", feature = "tls"))]

mod clients;
mod refused;
mod start;
mod world;

#[path = "../served/mod.rs"]
mod served;
