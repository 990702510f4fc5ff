//! `streamdoor serve` as a process, and its clients: curl, a browser, connections that break,
//! restarts.
#![cfg(feature = "cli")]

mod again;
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
#[path = "../served/mod.rs"]
mod served;
mod server;
mod shards;
mod stopped;
