//! Stratum 1: codecs, bytes <-> types. The only place that knows how things are spelled outside.
//!
//! Plain values go in, bytes are appended to a buffer of the caller's. Nothing here allocates (but
//! the caller's buffer, where it is too short, and a context of progress, which is parsed), reads a
//! clock, makes a system call or knows the engine; whoever has a delivery turns it into an
//! [`events::Event`].
//!
//! Tests: beside each file; `tests/allocations.rs`; `tests/run.rs` parses what a program printed.
#![forbid(unsafe_code)]

mod base64;
pub mod events;
#[cfg(test)]
mod events_tests;
mod json;
