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
//! use std::{cell::Cell, rc::Rc};
//!
//! use serde_json::json;
//! use streamdoor::{Delivery, ExecuteOptions, Shard, ShardConfig, SubscribeSpec, ToolSpec};
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
//! // An execution of the tool. Its beginning is kept until the first subscriber comes.
//! let id = shard.execute("count", &json!({"to": 100}), ExecuteOptions::default())?;
//!
//! // A subscriber. It gets everything, in order, and then one end.
//! let (received, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
//! let (count, end) = (Rc::clone(&received), Rc::clone(&done));
//! shard.subscribe(id, SubscribeSpec::default(), move |delivery| match delivery {
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
//! use streamdoor::{Delivery, Shard, ShardConfig, ToolSpec};
//!
//! let (shard, _report) = Shard::spawn(ShardConfig::default(), |shard| {
//!     let (spec, tools) = (ToolSpec::new("greet", "Says hello."), shard.tools_mut());
//!     tools.insert_closure(spec, |_, out| Ok(out.send(b"hello")?)).expect("its name is new");
//! })?;
//! let mut subscriber = shard.run("greet", serde_json::json!({}))?;
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
//! and `streamdoor watch` use it:
//!
//! ```
//! # #[cfg(not(feature = "server"))]
//! # fn main() {}
//! # #[cfg(feature = "server")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::{sync::Arc, time::Duration};
//!
//! use streamdoor::client::{ExecuteOptions, FollowOptions, StreamEvent};
//! use streamdoor::server::ServerShardConfig;
//! use streamdoor::{Client, Server, ServerConfig, ServerShard, ToolSpec};
//!
//! let config = ServerConfig {
//!     shards: vec![ServerShardConfig::default(); 2],
//!     listen: vec!["127.0.0.1:0".parse()?], // Any free port.
//!     connections_max: 100,
//! };
//! let set_up = |shard: &mut ServerShard| {
//!     let (spec, tools) = (ToolSpec::new("greet", "Says hello."), shard.tools_mut());
//!     tools.insert_closure(spec, |_, out| Ok(out.send(b"hello")?)).expect("its name is new");
//! };
//! let server = Server::start(config, Arc::new(set_up))?;
//!
//! let client = Client::new(&format!("http://{}", server.addresses()[0]))?;
//! let (execute, follow) = (ExecuteOptions::default(), FollowOptions::default());
//! for event in client.call("greet", &serde_json::json!({}), &execute, follow)? {
//!     if let StreamEvent::Chunk(chunk) = event? {
//!         assert_eq!(chunk.data, b"hello");
//!     }
//! }
//! server.drain(Duration::from_secs(1));
//! # Ok(())
//! # }
//! ```
//!
//! A `Door` is for programs on the same machine, which read or write a ring in shared memory.
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
//! | `cluster` | servers that serve each other's executions, on NATS JetStream |
//!
//! All but `cluster` are on by default. Without them the library is the embedded core: shards,
//! executions, subscribers on threads and in closures.
//!
//! # Where to read on
//!
//! The types that most programs need are at the root of this crate. The types in their fields and
//! signatures are in modules by theme. [`internals`] has the map of the other modules, the path of
//! one chunk, the words and the invariants.

#![cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "the shard has verbs that only the guests of a server use")
)]

#[cfg(not(target_os = "linux"))]
compile_error!("streamdoor runs on Linux only: it needs memfd seals, futexes and io_uring");

// The face: names at the root, and modules by theme.

#[doc(inline)]
pub use crate::base::{ExecutionId, SubscriberId};
#[cfg(feature = "server")]
#[doc(inline)]
pub use crate::client::Client;
#[cfg(feature = "server")]
#[doc(inline)]
pub use crate::door::Door;
#[doc(inline)]
pub use crate::engine::{Hold, Start, Status, SubscribeSpec};
#[cfg(feature = "server")]
#[doc(inline)]
pub use crate::server::{GuestConfig, Server, ServerConfig, ServerShard};
#[doc(inline)]
pub use crate::shard::{
    Audience, Chunk, Delivery, Ended, ExecuteOptions, Polled, Reported, Shard, ShardConfig,
    ShardHandle, ShardThread, Subscriber,
};
#[doc(inline)]
pub use crate::stream::{
    DetachReason, End, EndState, ExecutionState, Exit, Gap, GapReason, Kind, Kinds, Outcome,
    Policy, Progress, Totals,
};
#[doc(inline)]
pub use crate::tool::{Context, Output, Step, Tool, ToolError, ToolSpec, Tools};

/// The errors of shards, handles and tools. Those of a server, a client and a door are in their
/// own modules.
pub mod errors {
    #[doc(inline)]
    pub use crate::base::Panicked;
    #[doc(inline)]
    pub use crate::base::id::ParseIdError;
    #[doc(inline)]
    pub use crate::engine::{AcknowledgeError, CancelError, NotFound, OpenError, SubscribeError};
    #[doc(inline)]
    pub use crate::reactor::{idle::IdleParseError, probe::ChoiceParseError};
    #[doc(inline)]
    pub use crate::shard::{
        CallError, ExecuteError, HandleError, JoinError, JoinFault, PublishError, RunError,
        Shortage,
    };
    #[doc(inline)]
    pub use crate::stream::{UnknownKind, UnknownPolicy};
    #[doc(inline)]
    pub use crate::tool::{ArgumentError, EmitError, SendError, SpecError, StartError, Stopped};
    #[doc(inline)]
    pub use crate::{journal::Refused as JournalRefusal, tool::SyncError};
}

/// The options of shards, executions and subscribers.
pub mod options {
    #[doc(inline)]
    pub use crate::base::{Principal, ProgressToken};
    #[doc(inline)]
    pub use crate::engine::{
        Coalesce, EngineLimits, From, OnStall, ProgressSource, SubscriberPlace, Timeouts,
    };
    #[doc(inline)]
    pub use crate::memory::RingPoolConfig;
    #[doc(inline)]
    pub use crate::reactor::{Choice, Idle, SocketLimits, Watch};
    #[doc(inline)]
    pub use crate::shard::{JournalConfig, JournalError, MemoryWatch};
    #[doc(inline)]
    pub use crate::stream::{Deliver, Durability, LagLimit, OnFull, Terms};
}

/// The times and counts that a shard reports about itself.
pub mod readings {
    #[doc(inline)]
    pub use crate::base::Instant;
    #[doc(inline)]
    pub use crate::engine::{RingFacts, SubscriberStatus};
    #[doc(inline)]
    pub use crate::journal::{Counters as JournalCounters, Fault as JournalFault};
    #[doc(inline)]
    pub use crate::memory::pressure::Decisive;
    #[doc(inline)]
    pub use crate::memory::{Pressure, Readings, RingPoolUsage};
    #[doc(inline)]
    pub use crate::reactor::Report;
    #[doc(inline)]
    pub use crate::reactor::{
        probe::Found,
        uring::{Flavor, UringError},
    };
    #[doc(inline)]
    pub use crate::shard::{JournalStatus, MemoryStatus, Recall};
    #[doc(inline)]
    pub use crate::trace::{Counters, Duty, Latency, Stalls};
}

/// The parts of tools: their descriptions, their work, their progress, and their questions.
pub mod tools {
    #[doc(inline)]
    pub use crate::base::Guarded;
    #[doc(inline)]
    pub use crate::memory::ChunkHeader;
    #[doc(inline)]
    pub use crate::stream::{Measure, ProgressReport};
    #[cfg(feature = "tools")]
    #[doc(inline)]
    pub use crate::tool::CommandPolicy;
    #[cfg(feature = "server")]
    #[doc(inline)]
    pub use crate::tool::Folder;
    #[doc(inline)]
    pub use crate::tool::{
        Abilities, Arguments, Asking, Blocking, Completion, Files, Gather, Need, OnStop, Prepared,
        Question, QuestionMethod, Replies, Report, StopSignal, SubscribeDefaults, TaskSupport,
        VirtualTool, Work,
    };
    #[cfg(any(feature = "tools", feature = "server"))]
    #[doc(inline)]
    pub use crate::tool::{Environment, Variable, VariableParseError};
    #[doc(inline)]
    pub use crate::trace::{TraceContext, TraceParent};
}

/// Runs of language models inside a server's shard.
#[cfg(feature = "server")]
pub mod agents {
    #[doc(inline)]
    pub use crate::agent::model::{
        BaseUrl, Effort, Endpoint, EndpointError, FinishReason, Secret, Wire,
    };
    #[doc(inline)]
    pub use crate::agent::{
        Arguments, AssistantMessage, Body, CallMade, CancelReason, Config, ConfigError,
        Continuation, Data, Decision, Ended, Failure, Final, FinalState, Fold, Folded, Hooks,
        Iterate, Message, NoHooks, PartError, PartProgress, Partial, Reason, ReasoningBlock,
        RunEnd, RunPart, RunState, StepCall, StepChoice, StepState, StepSummary, Strategy,
        ToolDescription, ToolExecution, ToolResult, UnknownStrategy, Usage,
    };
    #[doc(inline)]
    pub use crate::server::{
        AgentRun, AgentSettings, AgentSteps, AgentStream, ModelError, ModelSettings, ToolChoice,
    };
}

#[cfg(feature = "server")]
pub mod client;
#[cfg(feature = "server")]
pub mod door;
pub mod internals;
#[cfg(feature = "server")]
pub mod server;

// The inside. The program, the tests and the benchmarks use it, so it is visible, but it is not
// part of the stable interface (`internals.rs`).

#[cfg(feature = "server")]
#[doc(hidden)]
pub mod agent;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod api;
#[doc(hidden)]
pub mod base;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod cluster;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod endpoint;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod journal;
#[doc(hidden)]
pub mod limits;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod mcp;
#[doc(hidden)]
pub mod memory;
#[cfg(feature = "cluster")]
#[doc(hidden)]
pub mod nats;
#[doc(hidden)]
pub mod reactor;
#[doc(hidden)]
pub mod shard;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod sim;
#[doc(hidden)]
pub mod stream;
#[doc(hidden)]
pub mod tool;
#[doc(hidden)]
pub mod trace;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod upstream;
#[doc(hidden)]
pub mod wire;

// The name by which tests and fuzz targets know the library.
#[cfg(test)]
extern crate self as streamdoor;

/// The guide: one page for each kind of user.
pub mod guide {
    #[doc = include_str!("guide/agents.md")]
    pub mod agents {}
    #[doc = include_str!("guide/changelog.md")]
    pub mod changelog {}
    #[doc = include_str!("guide/cluster.md")]
    pub mod cluster {}
    #[doc = include_str!("guide/command_line.md")]
    pub mod command_line {}
    #[doc = include_str!("guide/configuration.md")]
    pub mod configuration {}
    #[doc = include_str!("guide/contributing.md")]
    pub mod contributing {}
    #[doc = include_str!("guide/embedding.md")]
    pub mod embedding {}
    #[doc = include_str!("guide/errors.md")]
    pub mod errors {}
    #[doc = include_str!("guide/front_ends.md")]
    pub mod front_ends {}
    #[doc = include_str!("guide/gateway.md")]
    pub mod gateway {}
    #[doc = include_str!("guide/http.md")]
    pub mod http {}
    #[doc = include_str!("guide/mcp.md")]
    pub mod mcp {}
    #[doc = include_str!("guide/operations.md")]
    pub mod operations {}
    #[doc = include_str!("guide/performance.md")]
    pub mod performance {}
    #[doc = include_str!("guide/security.md")]
    pub mod security {}
    #[doc = include_str!("guide/shared_memory.md")]
    pub mod shared_memory {}
    #[doc = include_str!("guide/streams.md")]
    pub mod streams {}
    #[doc = include_str!("guide/troubleshooting.md")]
    pub mod troubleshooting {}
    #[doc = include_str!("guide/workers.md")]
    pub mod workers {}
}
