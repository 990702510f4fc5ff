//! Stratum 3: the Model Context Protocol, as machines without a clock, a connection or a thread.
//!
//! Messages go in, read by [`crate::wire::jsonrpc`]; what they ask comes out, checked. What is
//! answered goes in as plain values, and documents come out, each in the words of its version.
//! Who runs tools, keeps sessions and moves bytes is `shard`.
//!
//! There are two eras of the protocol, on the same address and on the same lines: [`era_of`] tells
//! them apart. [`Session`] is the one with a handshake (2024-11-05 to 2025-11-25), [`admit`] the
//! stateless one (2026-07-28). Both give [`Incoming`].
//!
//! | file | what it knows |
//! |---|---|
//! | `version`, `fault` | versions; codes of errors and their statuses |
//! | `client`, `server` | what each side can do |
//! | `context`, `ask`, `params` | what is the same in all requests; what each of them asks |
//! | `session`, `stateless`, `headers` | who is let in |
//! | `results`, `call`, `tasks`, `questions` | documents that are answers |
//! | `notify`, `progress` | what is told meanwhile |
//! | `catalog`, `completion`, `cursor` | what can be listed, and how it is found |
//! | `request_state`, `door` | what a client brings back; results that are read piece by piece |
//! | `upstream` | the other side: how a client asks, and what it makes of what it hears |
//!
//! Absent: any state of an execution, anything that waits. Tests: beside each file, named after
//! rules of the specification; their comments cite them by version and section.
#![forbid(unsafe_code)]

mod ask;
#[cfg(test)]
mod ask_tests;
mod call;
#[cfg(test)]
mod call_tests;
pub mod catalog;
mod client;
pub mod completion;
mod context;
pub mod cursor;
pub mod door;
mod fault;
mod headers;
pub mod notify;
#[cfg(test)]
mod notify_tests;
mod params;
pub mod progress;
pub mod questions;
mod relayed;
pub mod request_state;
pub mod results;
#[cfg(test)]
mod results_tests;
mod server;
mod session;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod shapes;
mod stateless;
#[cfg(test)]
mod stateless_tests;
pub mod tasks;
#[cfg(test)]
mod tasks_tests;
#[cfg(test)]
mod testing;
pub mod upstream;
mod version;

pub use ask::{Ask, Complete, Filter, Incoming, Target, Told};
pub use call::{CallMeta, Collected, End, Rest, block, text_block};
pub use catalog::Catalog;
pub use client::{ClientCapabilities, ClientInfo, TASKS_EXTENSION};
pub use context::{
    Context, Level, META_CAPABILITIES, META_CLIENT, META_EVENTS, META_EXECUTION, META_LOG_LEVEL,
    META_SERVER, META_STREAM, META_SUBSCRIPTION, META_TASK, META_VERSION, Retry, TaskWish,
};
pub use fault::{Fault, codes};
pub use headers::{Declared, Headers, declared};
pub use results::Results;
pub use server::ServerInfo;
pub use session::Session;
pub use stateless::{admit, era_of};
pub use version::{Era, Version};
