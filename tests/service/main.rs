//! The server under a service manager: SIGHUP, states and watchdog, inherited sockets.
#![cfg(all(feature = "cli", feature = "tls"))]

mod activation;
mod reload;
mod states;

#[path = "../served/mod.rs"]
mod served;
#[path = "../tls/world.rs"]
mod world;
