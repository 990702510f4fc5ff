//! Who may come in, of a real server over sockets: what is refused everywhere, what belongs to
//! whom, and how the programs go about it.
#![cfg(feature = "server")]

#[cfg(feature = "cli")]
mod commands;
mod house;
mod matrix;
mod owners;
mod workers;
