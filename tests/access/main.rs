//! Access control of a real server over sockets: what is refused everywhere, who owns what, and how
//! the programs handle tokens.
#![cfg(feature = "server")]

#[cfg(feature = "cli")]
mod commands;
mod matrix;
mod operations;
mod owners;
mod test_server;
mod workers;
