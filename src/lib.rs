//! streamdoor streams the results of tools to many subscribers while the tools still run.
//!
//! One append-only log of chunks per execution, in a preallocated ring of shared memory; any number
//! of subscribers, each with its own cursor and its own declared backpressure policy; exact reports
//! of what was missed, and exactly one end. One thread per core runs it, over io_uring or mio.
//! Everything is built to keep the tail of the latency short, in microseconds.
//!
//! # Embedded
//!
//! Drive a [`shard::Shard`] by hand, on your own thread; a tool is a closure or a state machine:
//!
//! ```
//! use std::{cell::Cell, rc::Rc};
//!
//! use serde_json::json;
//! use streamdoor::engine::{Policy, Start, SubscribeSpec};
//! use streamdoor::shard::{Delivery, ExecuteOptions, Shard, ShardConfig};
//! use streamdoor::tool::ToolSpec;
//!
//! let (mut shard, report) = Shard::new(ShardConfig::default())?;
//! println!("{report}"); // Which way to the kernel was found.
//!
//! // A tool: it runs on a thread of its own, and may take its time.
//! shard.tools_mut().insert_closure(ToolSpec::new("count", "Counts."), |arguments, out| {
//!     for number in 0..arguments["to"].as_u64().unwrap_or(0) {
//!         out.send(format!("number {number}").as_bytes())?; // `?` leaves when it is cancelled.
//!     }
//!     Ok(())
//! }).expect("it is described right");
//!
//! // An execution of it, which waits for its first subscriber.
//! let start = Start::AfterSubscribers { count: 1, deadline: std::time::Duration::from_secs(5) };
//! let options = ExecuteOptions { start, ..Default::default() };
//! let id = shard.execute("count", &json!({"to": 100}), options)?;
//!
//! // A subscriber: everything, in order, and then one end.
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
//! Or let [`shard::Shard::spawn`] run it on a thread of its own, and read from any other.
//!
//! # Served
//!
//! With the feature `server`, `shard::Server` runs several shards at the same addresses, and
//! whoever speaks HTTP runs tools and follows them, as server-sent events or as lines of JSON;
//! `streamdoor serve` is that as a program. `client` asks one from outside, and blocks;
//! `streamdoor call` and `streamdoor watch` are that as programs. `door` is for programs beside the
//! server: they read a ring, or write one, in memory that both share.
//!
//! # The map
//!
//! A module imports only from those above it (`tests/tidy.rs` holds the table):
//!
//! ```text
//!   base    trace    stream       0  values; counters, histograms; the words of streams
//!      │      │
//!   engine  memory   wire         1  moves numbers │ holds bytes │ spells both for the outside
//!      │      │
//!    tool   reactor               2  what runs            │ talks to the kernel, owns the clock
//!      │      │    agent  mcp     3  a model and its tools │ messages of MCP ↔ what they ask
//!      └──┬───┘       endpoint    4  bytes of a connection ↔ calls and answers
//!         ├───────────────┘
//!       shard                     5  the loop, where everything meets; serves connections
//!         │
//!       client   door              6  asks a server from outside │ shares memory
//!         │       │
//!      upstream   │                6  servers of others, whose tools are offered here
//!                sim               7  a seeded world around shards and those that share memory
//! ```
//!
//! Three sentences to remember: *engine moves numbers, memory holds bytes, reactor talks to the
//! kernel. Only `shard` knows all three. Time comes in as `now` and goes out as `next_deadline`.*
//!
//! Reading order: [`engine::Event`] and [`engine::Action`] (the whole behaviour),
//! [`engine::policy`], [`memory::writer`] (the protocol of the ring), `shard/mod.rs` (one turn as a
//! recipe); for the server `endpoint::Call` (all that can be asked) and `shard/serve/mod.rs`.
//!
//! # Follow one chunk
//!
//! A tool calls [`tool::Context::emit`]: [`memory::RingWriter`] claims room, copies the bytes and
//! publishes the descriptor. After the step the shard tells the engine its length and kind
//! ([`engine::Event::Published`]), which notes the numbers and nothing else. The shard then asks
//! for wishes: the engine walks the subscribers, evaluates each one's policy, and wishes one
//! [`engine::Action::Deliver`] for all that are owed the same chunks. The shard borrows the bytes
//! from the ring and calls their closures. A [`shard::Subscriber`] on another thread needs none of
//! that: it polls the descriptor's cache line, and evaluates the same policy by itself. If it
//! sleeps, it is woken before the turn sends anything to anybody.
//!
//! A connection is a subscriber of its shard, with a queue instead of a closure: a chunk is encoded
//! once for all who follow it in the same way (`shard/serve/frames.rs`), and at the end of the turn
//! each connection is sent what is queued for it, at once. While the kernel takes no more of it, it
//! is given nothing, and its policy says what becomes of it. If it follows executions of several
//! shards at once, it is a reader of the others' rings, as a subscriber on another thread is.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | execution | one run of one tool: an id, a state, a ring, one producer, 0..n subscribers |
//! | chunk | one piece of a result: number (1, 2, 3 …, no holes), kind, key, bytes, time |
//! | ring | the segment of shared memory that holds an execution's newest chunks |
//! | producer | who writes chunks: a tool on the shard's thread or its own, or by hand |
//! | subscriber | who reads: a closure, a poll handle, another thread, another process |
//! | cursor | the next chunk that a subscriber will be given; in an `id:`, the last that it was |
//! | lag | how far the cursor is behind the head, in chunks and in bytes |
//! | policy | what happens when a subscriber's lag reaches its limit: [`engine::Policy`] |
//! | gap | word of exactly what was missed, in its place in the order; loss is never silent |
//! | end | exactly one per subscriber, after its last chunk |
//! | shard | one thread: one engine, one reactor, one pool of rings |
//! | door | a ring opened from another process |
//! | endpoint | the end of a connection: bytes in, calls out; answers in, bytes out |
//! | virtual tool | a tool whose work is done by a client: by a worker, which sends its results |
//! | server | shards that listen at the same addresses: `shard::Server` |
//! | principal | who asks, by his token; to whom executions belong: `endpoint::Access` |
//! | ticket | what opens one stream to a page, which cannot send a token |
//! | client | who asks a server from outside, over HTTP: `client` |
//! | upstream | an MCP server of others, whose tools are offered as our own: `upstream` |
//!
//! # Invariants (most are about what is absent)
//!
//! - A1 `engine`, `wire`, `mcp`, `agent` and `endpoint` contain no syscall, clock, thread, OS
//!   randomness or `unsafe`.
//! - A2 Only [`wire`], `mcp` and `agent` spell events for the outside; the engine knows no JSON, no
//!   HTTP, no MCP.
//! - A3 After start the path publish → deliver allocates nothing: `tests/allocations.rs`. Exempt
//!   are a tool's own work, opening and ending executions, attaching and detaching subscribers.
//! - A4 Every queue, table, loop and retry has a limit in [`limits`]. Rings shrink to a tenth of
//!   what a cgroup allows, and when memory is short: [`memory::pressure`] has the table.
//! - A5 A number that left our hands comes back with its generation, and is checked before use.
//! - A6 Kernel, tools, other processes and the contents of shared memory are *outside*: what they
//!   give is checked and answered with errors. Our own state is asserted, in release too; a tool's
//!   panic fails its own execution alone.
//! - A7 The same seed and the same inputs give the same actions: the simulator hashes them, twice.
//! - A8 One writer per word of shared memory. All atomics go through [`memory::atomic`].
//! - A9 No callbacks inside the core: wishes are values, results come back as values.

#[cfg(not(target_os = "linux"))]
compile_error!("streamdoor runs on Linux only: memfd seals, futexes and io_uring are its ground");

#[cfg(feature = "server")]
pub mod agent;
pub mod base;
#[cfg(feature = "server")]
pub mod client;
#[cfg(feature = "server")]
pub mod door;
#[cfg(feature = "server")]
pub mod endpoint;
pub mod engine;
pub mod limits;
#[cfg(feature = "server")]
pub mod mcp;
pub mod memory;
pub mod reactor;
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

// The name by which tests and fuzz targets know the library.
#[cfg(test)]
extern crate self as streamdoor;

/// The example of README.md, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
