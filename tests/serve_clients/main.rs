//! `streamdoor serve` as a process, and its clients: curl, a browser, connections that break.
#![cfg(feature = "cli")]

mod browser;
mod checks;
#[path = "../chromium/mod.rs"]
mod chromium;
mod curl;
mod cut;
mod events;
mod http;
mod proxy;
mod reactors;
mod refused;
mod server;
mod shards;
mod stopped;
