//! `streamdoor::client` and its commands against scripted servers, which answer and cut connections
//! as a test wants.
#![cfg(feature = "server")]

#[cfg(feature = "cli")]
mod commands;
mod requests;
mod server;
mod streams;
