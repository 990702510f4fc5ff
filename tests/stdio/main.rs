//! `streamdoor stdio` as a process, over everything that standard streams can be.
#![cfg(all(feature = "cli", feature = "server"))]

mod calls;
mod ends;
mod lines;
mod program;
mod spans;
mod streams;
