//! `streamdoor cat`, `pipe`, `serve --named-doors` and `doctor` as processes. Output equals input,
//! exit codes report how a run ended, and nothing is left behind.
#![cfg(all(feature = "cli", feature = "server", feature = "tools"))]

mod cat;
mod doctor;
mod named;
mod pipe;
mod runs;
mod test_server;
