//! `streamdoor::client`, `streamdoor call` and `streamdoor watch` against a real server. Streams
//! are whole even if connections break, subscribers lag, or the server ends.
#![cfg(feature = "server")]

#[cfg(feature = "cli")]
mod commands;
mod cuts;
#[cfg(feature = "cli")]
mod faults;
mod proxy;
mod requests;
mod streams;
mod world;
