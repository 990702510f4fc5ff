//! Stratum 4: what stands at the end of a connection. Bytes in, calls out; answers in, bytes out.
//!
//! Machines without a syscall, a clock or a socket: the shard moves the bytes and carries out the
//! calls. Reading order: [`Call`], which is all that a client can ask for.
#![forbid(unsafe_code)]

mod answer;
mod body;
mod call;
#[cfg(test)]
mod call_tests;
mod connection;
#[cfg(test)]
mod connection_tests;
pub mod documents;
#[cfg(test)]
mod documents_tests;
mod error;
#[cfg(test)]
mod exchange;
mod execute;
mod fields;
mod openapi;
#[cfg(test)]
mod openapi_tests;
mod parameters;
#[cfg(test)]
mod refusal_tests;
mod routes;
mod schemas;

pub use answer::{Answer, JSON};
pub use call::{Call, Execute, Follow, MetricsFormat, PolicyWish, StreamFormat, Wishes};
pub use connection::{Due, HttpConnection, Step, StreamBody};
pub use error::ApiError;
