//! `streamdoor stdio` as a process, over all kinds of standard streams.
#![cfg(all(feature = "cli", feature = "server"))]

mod calls;
mod ends;
mod lines;
mod program;
mod spans;
mod streams;
