//! `streamdoor::client` and its commands, against servers that follow a script: they answer what a
//! test wants, and cut where it wants.
#![cfg(feature = "server")]

#[cfg(feature = "cli")]
mod commands;
mod requests;
mod server;
mod streams;
