//! `streamdoor::client`, `streamdoor call` and `streamdoor watch` against a real server: what is
//! told is whole, also where connections break, subscribers lag, and the server ends.
#![cfg(feature = "server")]

#[cfg(feature = "cli")]
mod commands;
mod cuts;
mod proxy;
mod requests;
mod streams;
mod world;
