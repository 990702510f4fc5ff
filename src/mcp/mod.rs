//! Stratum 3: the Model Context Protocol, as state machines without a clock, a connection or a
//! thread.
//!
//! Messages go in, parsed by [`crate::wire::jsonrpc`], and checked requests come out. Results go in
//! as plain values, and documents come out in the form of each version. The module `shard` runs
//! tools, keeps sessions and moves bytes.
//!
//! The protocol has two eras, on the same address and the same lines: [`era_of`] distinguishes
//! them. [`McpSession`] is the era with a handshake (2024-11-05 to 2025-11-25), and [`admit`] the
//! stateless one (2026-07-28). Both return [`Incoming`].
//!
//! | file | contents |
//! |---|---|
//! | `version`, `fault` | versions; error codes and their HTTP statuses |
//! | `client`, `server` | the capabilities of each side |
//! | `context`, `ask`, `params` | the common part of requests; the requests and their parameters |
//! | `session`, `stateless`, `headers` | admission of messages |
//! | `results`, `call`, `call_result`, `tasks`, `questions` | documents of results |
//! | `notify`, `progress` | notifications |
//! | `chunks` | the chunks of a notification, as a client reads them |
//! | `catalog`, `completion`, `cursor` | lists, completion and pages |
//! | `request_state`, `streams` | state that a client returns; results that are read in pieces |
//! | `upstream` | the other side: the requests of a client, and the messages that it receives |
//!
//! Absent: any state of an execution, and any wait. Tests: beside each file, named after rules of
//! the specification. Their comments cite the rules by version and section.
#![forbid(unsafe_code)]

mod ask;
#[cfg(test)]
mod ask_tests;
mod call;
mod call_result;
#[cfg(test)]
mod call_result_tests;
#[cfg(test)]
mod call_tests;
pub mod catalog;
pub mod chunks;
mod client;
pub(crate) mod completion;
mod context;
pub mod cursor;
mod fault;
mod headers;
pub mod notify;
#[cfg(test)]
mod notify_tests;
mod params;
pub mod progress;
pub(crate) mod questions;
mod relayed;
pub mod request_state;
pub(crate) mod results;
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
pub mod streams;
pub mod tasks;
#[cfg(test)]
mod tasks_tests;
#[cfg(test)]
mod testing;
pub mod upstream;
mod version;

pub use ask::{Ask, ClientNotification, Complete, CompletionTarget, Filter, Incoming};
pub use call::{CallMeta, Collected, Rest, ToolCallEnd, block, text_block};
pub use call_result::CallResult;
pub use catalog::Catalog;
pub use client::{ClientCapabilities, ClientInfo, TASKS_EXTENSION};
pub use context::{
    Context, Level, META_CAPABILITIES, META_CHUNKS, META_CLIENT, META_EVENTS, META_EXECUTION,
    META_LOG_LEVEL, META_SERVER, META_STREAM, META_SUBSCRIPTION, META_TASK, META_VERSION, Retry,
    TaskRequest,
};
pub use fault::{McpFault, codes};
pub use headers::{Declared, Headers, declared};
pub use results::Results;
pub use server::ServerInfo;
pub use session::McpSession;
pub use stateless::{admit, era_of};
pub use version::{Era, Version};
