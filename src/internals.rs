//! The inside of the crate, for readers of its code: the map, the path of one chunk, the words and
//! the invariants.
//!
//! The modules below that have no page of their own are not part of the stable interface. They are
//! `pub` for the program, the tests and the benchmarks only, and change without notice.
//!
//! # The map
//!
//! A module imports only from modules of a lower stratum (`tests/tidy.rs` holds the table):
//!
//! ```text
//!   base    trace    stream       0  values; counters, histograms; the words of streams
//!      │      │        │
//!   engine  memory   wire         1  moves numbers │ holds bytes │ spells both for the outside
//!      │      │
//!    tool   reactor               2  runs the work       │ talks to the kernel, owns the clock
//!      └──┬───┘
//!       shard         agent  mcp  3  the embedded core  │ models and their tools │ messages of MCP
//!         │           api         3  the documents of the HTTP API: values ↔ JSON
//!         │           cluster     3  logs that every node of a cluster reads
//!         │           endpoint    4  bytes of a connection ↔ requests and replies
//!         ├───────────────┘
//!       server                    5  the guests of a shard: connections, workers, processes, …
//!         │
//!       client   door              6  asks a server from outside │ shares memory
//!         │       │
//!      upstream   │                6  MCP servers of others, whose tools are offered here
//!        nats     │                6  the logs of a cluster on NATS JetStream
//!                sim               7  tests only: a seeded world around shards
//! ```
//!
//! Three sentences to remember: *The engine moves numbers, memory holds bytes, the reactor talks to
//! the kernel. Only `shard` knows all three. Time goes in as `now` and comes out as
//! `next_deadline`.*
//!
//! Reading order: `engine::Event` and `engine::Action` (the whole behaviour),
//! `engine::policy`, `memory::writer` (the protocol of the ring), `shard/mod.rs`
//! (one turn as a recipe). For the server: `endpoint::ApiCall` (all requests),
//! `server/mod.rs`, `server/guests.rs` and `server/turn`.
//!
//! `tests/tidy/guests.rs` has the order of the guests of a server. A guest calls lower ones only,
//! and its table is visible in its own folder only. `server/turn` joins the guests: it takes what
//! came in a turn, passes each thing on, and sends at the end.
//!
//! # The path of one chunk
//!
//! A tool calls [`crate::tool::Context::emit`]. `memory::RingWriter` claims room, copies
//! the bytes and publishes the descriptor. After the step the shard tells the engine the length and
//! the kind (`engine::Event::Published`). The engine notes the numbers and nothing else.
//!
//! The shard then asks for actions. The engine walks the subscribers and evaluates the policy of
//! each. It returns one `engine::Action::Deliver` for all subscribers that are owed the
//! same chunks. The shard borrows the bytes from the ring and calls their closures.
//!
//! A [`crate::Subscriber`] on another thread needs none of that. It polls the cache line of the
//! descriptor and evaluates the same policy by itself. If it sleeps, it is woken before the turn
//! sends anything to a connection.
//!
//! A connection is a subscriber of its shard, with a queue instead of a closure. A chunk is encoded
//! once for all connections that follow it in the same way (`server/hub/frames.rs`). At the end of
//! the turn each connection is sent its queue in one call. While the kernel takes no more bytes of
//! it, the connection is given nothing, and its policy decides what it misses. A connection that
//! follows executions of several shards reads the rings of the other shards, as a subscriber on
//! another thread does.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | execution | one run of one tool: an id, a state, a ring, one producer, 0..n subscribers |
//! | chunk | one piece of a result: number (1, 2, 3 …, no holes), kind, key, bytes, time |
//! | ring | the segment of shared memory that holds an execution's newest chunks |
//! | producer | the writer of chunks: a tool on the shard's thread or its own, or the caller |
//! | subscriber | a reader: a closure, a poll handle, another thread, another process |
//! | cursor | the next chunk that a subscriber will be given; in an `id:`, the last one given |
//! | lag | the distance from the cursor to the head, in chunks and in bytes |
//! | policy | the rule for a subscriber whose lag reaches its limit: [`crate::Policy`] |
//! | gap | the exact report of missed chunks, in its place in the order; loss is never silent |
//! | end | the last delivery of a subscriber, after its last chunk; each has exactly one |
//! | shard | one thread: one engine, one reactor, one pool of rings |
//! | door | a ring that another process has opened |
//! | endpoint | the end of a connection: bytes in, requests out; replies in, bytes out |
//! | virtual tool | a tool whose work is done by a client, the worker, which sends its results |
//! | server | shards that listen at the same addresses: `server::Server` |
//! | principal | the caller that a token stands for; the owner of executions: `endpoint::Access` |
//! | ticket | a secret that opens one stream to a page, which cannot send a token |
//! | client | a program that asks a server over HTTP: `client` |
//! | upstream | an MCP server of others, whose tools are offered as our own: `upstream` |
//!
//! # Invariants (most are about what is absent)
//!
//! - A1 `engine`, `wire`, `mcp`, `agent` and `endpoint` contain no syscall, clock, thread, OS
//!   randomness or `unsafe`.
//! - A2 Only `wire`, `mcp` and `agent` spell events for the outside. The engine knows no
//!   JSON, no HTTP, no MCP.
//! - A3 After start the path publish → deliver allocates nothing: `tests/allocations.rs`. Exempt
//!   are a tool's own work, opening and ending executions, attaching and detaching subscribers.
//! - A4 Every queue, table, loop and retry has a limit in `limits.rs`. Rings shrink to a
//!   tenth of what a cgroup allows, and if memory is short (`memory::pressure`).
//! - A5 A number that left our hands comes back with its generation, and is checked before use.
//! - A6 The kernel, tools, other processes and the contents of shared memory are *outside*. Their
//!   values are checked, and wrong ones are answered with errors. Our own state is asserted, in
//!   release too. A tool's panic fails its own execution alone.
//! - A7 The same seed and the same inputs give the same actions. The simulator runs each seed twice
//!   and compares the hashes.
//! - A8 Each word of shared memory has one writer. All atomics go through
//!   `memory::atomic`.
//! - A9 The core makes no callbacks. Actions are values, and results come back as values.
