//! Stratum 1: codecs, bytes <-> types. The only place that knows how things are spelled outside.
//!
//! Plain values go in, bytes are appended to a buffer of the caller's. Nothing that encodes
//! allocates (but the caller's buffer, where it is too short, and a context of progress, which is
//! parsed); nothing here reads a clock, makes a system call or knows the engine; whoever has a
//! delivery turns it into an [`events::Event`].
//!
//! What decodes is a machine: bytes are pushed in as they come, cut anywhere, and values come out.
//! Each takes the front of the input that it is given, says the same however the input is cut, and
//! looks at each byte a bounded number of times. What it keeps for itself is bounded by
//! [`crate::limits`]; after an error it says nothing but that error again.
//!
//! Tests: beside each file; `tests/allocations.rs`; `tests/run.rs` parses what a program printed.
#![forbid(unsafe_code)]

pub(crate) mod base64;
pub mod events;
#[cfg(test)]
mod events_tests;
#[cfg(feature = "server")]
pub mod http1;
pub(crate) mod json;
#[cfg(feature = "server")]
pub mod jsonrpc;
mod lines;
#[cfg(feature = "server")]
pub(crate) mod members;
pub mod ndjson;
#[cfg(feature = "agent")]
pub(crate) mod object;
#[cfg(feature = "server")]
pub mod otlp;
#[cfg(feature = "server")]
mod split;
pub mod sse;
#[cfg(feature = "server")]
pub(crate) mod strict;
#[cfg(feature = "server")]
pub mod toml;

#[cfg(feature = "server")]
pub(crate) use base64::write as write_base64;
#[cfg(feature = "server")]
pub(crate) use json::write_value as write_json;
#[cfg(feature = "server")]
pub use split::{LineSplitter, Split};
