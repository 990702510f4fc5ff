//! `streamdoor::client`, `streamdoor call` and `streamdoor watch` against a real server: what is
//! told is whole, also where connections break, subscribers lag, and the server ends.
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
