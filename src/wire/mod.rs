//! Stratum 1: codecs, bytes <-> types. No other module knows the external formats.
//!
//! Encoders take plain values and append bytes to the caller's buffer. They do not allocate, with
//! two exceptions: a buffer that is too small grows, and a progress context is parsed. Nothing here
//! reads a clock, makes a system call or knows the engine. The caller turns a delivery into an
//! [`events::WireEvent`].
//!
//! Decoders are state machines: bytes go in as they arrive, cut anywhere, and values come out. Each
//! consumes the front of its input, and its result does not depend on the cuts. It examines each
//! byte a bounded number of times. [`crate::limits`] bounds the memory of its own. After an error
//! it returns only that error.
//!
//! Tests: beside each file; `tests/allocations.rs`; `tests/run.rs` parses what a program printed.
#![forbid(unsafe_code)]

pub(crate) mod base64;
pub(crate) mod digits;
#[cfg(feature = "server")]
pub mod durable;
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
#[cfg(feature = "server")]
pub(crate) mod object;
#[cfg(feature = "server")]
pub mod otlp;
#[cfg(feature = "server")]
mod split;
pub mod sse;
#[cfg(feature = "server")]
pub(crate) mod strict;
#[cfg(feature = "server")]
pub mod subscriptions;
#[cfg(feature = "server")]
pub mod toml;

#[cfg(feature = "server")]
pub(crate) use base64::write as write_base64;
#[cfg(feature = "server")]
pub(crate) use json::write_value as write_json;
#[cfg(feature = "server")]
pub use split::{LineSplitter, Split};
