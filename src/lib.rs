//! streamdoor streams the results of tools to many subscribers while the tools still run.
//!
//! Each execution of a tool has one append-only log of chunks, in a preallocated ring of shared
//! memory. Any number of subscribers read it. Each subscriber has its own cursor and its own
//! backpressure policy, is told exactly what it missed, and gets exactly one end. One thread per
//! core runs everything, over io_uring or mio. The design keeps the tail of the latency short, in
//! microseconds.
//!
//! # Embed it
//!
//! A [`Shard`] belongs to one thread and is driven by hand. A tool is a closure, or a state machine
//! ([`Tool`]):
//!
//! ```
//! use std::{cell::Cell, rc::Rc, time::Duration};
//!
//! use serde_json::json;
//! use streamdoor::{
//!     Delivery, ExecuteOptions, Policy, Shard, ShardConfig, Start, SubscribeSpec, ToolSpec,
//! };
//!
//! let (mut shard, report) = Shard::new(ShardConfig::default())?;
//! println!("{report}"); // The reactor that was chosen.
//!
//! // A tool. It runs on a thread of its own, and may block.
//! shard.tools_mut().insert_closure(ToolSpec::new("count", "Counts."), |arguments, out| {
//!     for number in 0..arguments["to"].as_u64().unwrap_or(0) {
//!         out.send(format!("number {number}").as_bytes())?; // `?` returns after a cancellation.
//!     }
//!     Ok(())
//! })?;
//!
//! // An execution of the tool. It waits for its first subscriber.
//! let start = Start::AfterSubscribers { count: 1, deadline: Duration::from_secs(5) };
//! let options = ExecuteOptions { start, ..Default::default() };
//! let id = shard.execute("count", &json!({"to": 100}), options)?;
//!
//! // A subscriber. It gets everything, in order, and then one end.
//! let (received, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
//! let (count, end) = (Rc::clone(&received), Rc::clone(&done));
//! let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
//! shard.subscribe(id, spec, move |delivery| match delivery {
//!     Delivery::Chunk(_chunk) => count.set(count.get() + 1),
//!     Delivery::Gap(_) | Delivery::Progress(_) => {}
//!     Delivery::End(_) => end.set(true),
//! })?;
//!
//! while !done.get() {
//!     if !shard.turn() {
//!         shard.park(None);
//!     }
//! }
//! assert_eq!(received.get(), 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Shard::spawn`] runs a shard on a thread of its own instead. Its [`ShardHandle`] starts
//! executions and attaches a [`Subscriber`] on any other thread:
//!
//! ```
//! use streamdoor::{Delivery, ExecuteOptions, Policy, Shard, ShardConfig, SubscribeSpec};
//! use streamdoor::{Start, ToolSpec};
//!
//! let (shard, _report) = Shard::spawn(ShardConfig::default(), |shard| {
//!     let (spec, tools) = (ToolSpec::new("greet", "Says hello."), shard.tools_mut());
//!     tools.insert_closure(spec, |_, out| Ok(out.send(b"hello")?)).expect("its name is new");
//! })?;
//! let start = Start::AfterSubscribers { count: 1, deadline: std::time::Duration::from_secs(5) };
//! let options = ExecuteOptions { start, ..Default::default() };
//! let id = shard.execute("greet", serde_json::json!({}), options)?;
//! let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
//! let mut subscriber = shard.subscribe(id, spec)?;
//! loop {
//!     match subscriber.next() {
//!         Delivery::Chunk(chunk) => assert_eq!(chunk.data, b"hello"),
//!         Delivery::End(ended) => break println!("{}", ended.end.state),
//!         Delivery::Gap(_) | Delivery::Progress(_) => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Serve it
//!
//! With the feature `server`, a `Server` runs several shards at the same addresses. Clients start
//! tools over HTTP or MCP, and follow them as server-sent events or as lines of JSON. The program
//! `streamdoor serve` is such a server. A `Client` is the blocking counterpart; `streamdoor call`
//! and `streamdoor watch` use it. A `Door` is for programs on the same machine, which read or write
//! a ring in shared memory.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `server` | HTTP/1.1, MCP, agent runs, workers, shared-memory doors, the clients |
//! | `tls` | TLS for the server and the clients |
//! | `tools` | the tools that come with the program, and checks of whole JSON schemas |
//! | `sqlite` | the tool `query_database` |
//! | `cli` | the program `streamdoor` |
//!
//! All are on by default. Without them the library is the embedded core: shards, executions,
//! subscribers on threads and in closures.
//!
//! # Where to read on
//!
//! The types that most programs need are at the root of this crate. [`internals`] has the map of
//! the modules, the path of one chunk, the words and the invariants.

#![cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "the shard has verbs that only the guests of a server use")
)]

#[cfg(not(target_os = "linux"))]
compile_error!("streamdoor runs on Linux only: it needs memfd seals, futexes and io_uring");

#[cfg(feature = "server")]
pub mod agent;
#[cfg(feature = "server")]
pub mod api;
pub mod base;
#[cfg(feature = "server")]
pub mod client;
#[cfg(feature = "server")]
pub mod door;
#[cfg(feature = "server")]
pub mod endpoint;
pub mod engine;
pub mod internals;
pub mod limits;
#[cfg(feature = "server")]
pub mod mcp;
pub mod memory;
pub mod reactor;
#[cfg(feature = "server")]
pub mod server;
pub mod shard;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod sim;
pub mod stream;
pub mod tool;
pub mod trace;
#[cfg(feature = "server")]
pub mod upstream;
pub mod wire;

#[cfg(feature = "server")]
#[doc(inline)]
pub use crate::client::Client;
#[cfg(feature = "server")]
#[doc(inline)]
pub use crate::door::Door;
#[cfg(feature = "server")]
#[doc(inline)]
pub use crate::server::{GuestConfig, Server, ServerConfig, ServerError, ServerShard};

#[doc(inline)]
pub use crate::base::{ExecutionId, SubscriberId};
#[doc(inline)]
pub use crate::engine::{
    CancelError, Hold, OnStall, Start, Status, SubscribeError, SubscribeSpec, Timeouts,
};
#[doc(inline)]
pub use crate::shard::{
    Chunk, Delivery, Ended, ExecuteError, ExecuteOptions, HandleError, PublishError, Reported,
    Shard, ShardConfig, ShardHandle, ShardThread, Subscriber,
};
#[doc(inline)]
pub use crate::stream::{
    DetachReason, End, EndState, ExecutionState, Exit, Gap, GapReason, Kind, Kinds, LagLimit,
    Measure, Outcome, Policy, Progress, ProgressReport, Totals,
};
#[doc(inline)]
pub use crate::tool::{Context, Output, Step, Tool, ToolError, ToolSpec, Tools};

// The name by which tests and fuzz targets know the library.
#[cfg(test)]
extern crate self as streamdoor;

/// The example of README.md, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
