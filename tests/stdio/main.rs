//! `streamdoor stdio` as a process, over all kinds of standard streams.
#![cfg(feature = "cli")]

mod calls;
mod ends;
mod lines;
mod program;
mod spans;
mod streams;
