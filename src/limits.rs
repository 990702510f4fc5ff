//! Every capacity and duration of the program, once, with its unit. Relations between them are
//! checked by the compiler, with the reason beside them.

mod agents;
mod ahead;
mod front;
mod pressure;
mod upstreams;

pub use agents::*;
pub use ahead::*;
pub use front::*;
pub use pressure::*;
pub use upstreams::*;

use std::time::Duration;

// --- Executions and subscribers -----------------------------------------------------------------

/// Executions of one shard by default, running and retained together.
pub const EXECUTIONS_MAX: u32 = 1_024;
/// The most that `executions_max` can be set to: what 24 bits of an id can name, in round numbers.
pub const EXECUTIONS_CEILING: u32 = 1 << 20;
/// Executions that may wait for a ring; one more is answered `Busy`.
pub const EXECUTIONS_QUEUED_MAX: u32 = 256;
/// What `Busy` tells the caller to wait.
pub const BUSY_RETRY_AFTER: Duration = Duration::from_millis(250);
/// Subscribers of one execution.
pub const SUBSCRIBERS_PER_EXECUTION_MAX: u32 = 10_240;
/// Subscribers of one shard.
pub const SUBSCRIBERS_MAX: u32 = 16_384;
/// The most that `subscribers_max` can be set to.
pub const SUBSCRIBERS_CEILING: u32 = 1 << 20;
/// Subscribers of one execution that live on other threads: the gate scans their cursors.
pub const READERS_PER_EXECUTION_MAX: u32 = 64;
/// Chunk kinds: running totals are kept for each.
pub const KINDS_MAX: usize = 16;
/// Keys that `conflate` tells apart: they are the bits of one word.
pub const KEYS_MAX: usize = 64;

// --- Policies ------------------------------------------------------------------------------------

/// Default limit of `drop` and `drop_oldest`, from the erlmcp streaming seed.
pub const DROP_LIMIT_CHUNKS: u32 = 10;
/// Default limit of `buffer`, from the erlmcp streaming seed.
pub const BUFFER_LIMIT_CHUNKS: u32 = 100;
/// Default limit of `disconnect`.
pub const DISCONNECT_LIMIT_CHUNKS: u32 = 1_000;

/// Chunks that a shard takes from one producer before its own subscribers are given them.
pub const BURST_CHUNKS_MAX: u32 = 64;
/// Chunks of one delivery: between two of them a connection can say that it is full.
pub const DELIVERY_CHUNKS_MAX: u32 = 64;
/// Payload bytes of one delivery, its first chunk apart.
pub const DELIVERY_BYTES_MAX: u64 = 64 << 10;

// --- Durations -----------------------------------------------------------------------------------

/// How long a `block` subscriber may hold a producer back.
pub const BLOCK_DEADLINE: Duration = Duration::from_secs(30);
/// The time that a cancelled execution waits for a `block` subscriber that takes nothing.
pub const CANCELLED_STALL: Duration = Duration::from_secs(5);
/// How long `start: after_subscribers` and `hold: until_read` wait for somebody.
pub const ATTACH_DEADLINE: Duration = Duration::from_secs(30);
/// How long a `block` subscriber whose connection broke keeps its place.
pub const RECONNECT_GRACE: Duration = Duration::from_secs(10);
/// How long an ended execution can still be read.
pub const RETENTION: Duration = Duration::from_secs(60);
/// Longest delay that a subscriber may ask coalescing to add.
pub const COALESCE_DELAY_MAX: Duration = Duration::from_secs(1);
/// How long a tool may take until its first chunk or progress report.
pub const TIMEOUT_FIRST_CHUNK: Duration = Duration::from_secs(30);
/// How long a tool may be silent after that: the erlmcp progress seed's 30 s.
pub const TIMEOUT_INACTIVITY: Duration = Duration::from_secs(30);
/// A turn of a shard's loop that takes longer is counted as a stall: everybody waits meanwhile.
pub const STALL_THRESHOLD: Duration = Duration::from_micros(100);

// --- Timer wheel ---------------------------------------------------------------------------------

/// One tick of the wheel is 2^14 ns = 16.4 µs.
pub const WHEEL_TICK_SHIFT: u32 = 14;

// --- Rings ---------------------------------------------------------------------------------------

/// Sizes of the windows that rings are made of, whole: header, descriptors and data.
pub const RING_CLASS_BYTES: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Sizes of the rings that other processes can open: one more than [`RING_CLASS_BYTES`], so that a
/// relay of any ring can be the next larger one, and so holds all that it holds.
pub const DOOR_RING_BYTES: [u32; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20];
/// The payload of each chunk in a ring begins at a multiple of this.
pub const CHUNK_ALIGN_BYTES: u64 = 8;
/// What a tool gets that declares no need.
pub const RING_NEED_BYTES_DEFAULT: u32 = 16 << 10;
/// What it gets at least where connections follow it: half of the 256 slots, 128 ms of a thousand
/// chunks a second, may be under way in buffers and be lost there.
pub const RING_SERVED_BYTES: u32 = 64 << 10;
/// The size of a ring, at least, that connections follow under `block`: half of it is kept for
/// clients that come back. The bytes that a client has not read are in our kernel's buffer and in
/// the client's, which takes 64 KiB on Linux before the client has read anything.
pub const RING_REPLAYED_BYTES: u32 = 256 << 10;
/// The bytes that a chunk takes on a connection, at least, beside its payload: its number, its
/// offset and its kind.
pub const CHUNK_FRAME_BYTES_MIN: u32 = 64;
/// Ring memory touched at start.
pub const RINGS_PREALLOC_BYTES: u64 = 16 << 20;
/// Ring memory of one shard, at most.
pub const RINGS_BYTES_MAX: u64 = 256 << 20;
/// What a producer in another process gets that does not say what it needs.
pub const DOOR_RING_BYTES_DEFAULT: u32 = 1 << 20;
/// Bytes of a ring for each of its slots.
pub const RING_BYTES_PER_SLOT: u32 = 256;
/// Executions that other processes share, at once: the registry of the sift seed.
pub const DOORS_MAX: u32 = 8;
/// The most that can be set: one thread sleeps on a word of each.
pub const DOORS_CEILING: u32 = 64;
/// What all pages of one such execution take beside its ring: control page with desk slots, pages
/// of readers and of the producer.
pub const DOOR_PAGES_BYTES: u64 = 272 << 10;
/// Chunks taken from a producer in another process in one turn.
pub const GUEST_CHUNKS_PER_TURN: u32 = 1_024;
/// Payload bytes taken from a producer in another process in one turn.
pub const GUEST_BYTES_PER_TURN: u64 = 1 << 20;
/// A producer's word that it lives changes twice in an honest life; after so many changes it is
/// not slept on any more.
pub const DOOR_OWNER_CHANGES_MAX: u32 = 16;
/// Readers in other processes of one execution.
pub const DOOR_READERS_PER_EXECUTION_MAX: u32 = 64;
/// A reader or producer in another process looks at least this often whether the server lives.
pub const DOOR_SLEEP_MAX: Duration = Duration::from_millis(250);
/// A reader in another process polls at least this long before it sleeps; a producer that publishes
/// faster than that wakes nobody.
pub const DOOR_SPIN: Duration = Duration::from_micros(50);
/// A reader that polls and finds nothing looks at the clock once per so many polls, ...
pub const DOOR_POLLS_PER_LOOK: u32 = 64;
/// ... and whether the server lives once per this.
pub const DOOR_LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// The longest line of what a server grants.
pub const DOOR_GRANT_BYTES_MAX: usize = 16 << 10;
/// How long a server may take to answer at a door.
pub const DOOR_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Mappings of named rings in one process, at once.
pub const GUARDED_MAPPINGS_MAX: usize = 64;
/// Files of other processes among which left-over named rings are looked for.
pub const NAMED_FILES_MAX: usize = 4_096;
/// The longest error text that is kept with an ended execution.
pub const ERROR_TEXT_BYTES_MAX: usize = 256;
/// One sleep of a reader that shares memory with another process: a hostile page can only delay.
pub const READER_SLEEP_MAX: Duration = Duration::from_millis(5);

/// Address space is reserved for the most; memory is bought in steps of this size (or one window,
/// where that is larger), so that one purchase stalls its shard for tens of microseconds only.
pub const RING_GROWTH_STEP_BYTES: u32 = 128 << 10;
/// Idle windows go back to the kernel in steps of this size, one a turn: some 15 µs each, where a
/// whole megabyte would be 200, and a turn is to stay below [`STALL_THRESHOLD`].
pub const RING_RELEASE_STEP_BYTES: u32 = 64 << 10;
/// Where the kernel cannot wait for two words at once, a wait for the first is cut to this.
pub const WAIT_EITHER_FALLBACK: Duration = Duration::from_millis(1);
/// A consistent read of several words is tried this often (some 10 µs), then it is "not now": its
/// writer has lost its core in the middle of a change, or is hostile.
pub const SEQLOCK_ATTEMPTS_MAX: u32 = 100;

// --- Progress ------------------------------------------------------------------------------------

/// Shortest time between two progress reports to one subscriber.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// The longest message of a progress report.
pub const PROGRESS_MESSAGE_BYTES_MAX: usize = 256;
/// The longest context of a progress report, as JSON.
pub const PROGRESS_CONTEXT_BYTES_MAX: usize = 1_024;
/// Progress reports of a tool on a thread that may wait for its shard; then the oldest go.
pub const PROGRESS_PENDING_MAX: usize = 64;

// --- Shard ---------------------------------------------------------------------------------------

/// Commands that may wait in a shard's mailbox.
pub const MAILBOX_COMMANDS_MAX: usize = 1_024;
/// Commands taken from the mailbox in one turn.
pub const MAILBOX_COMMANDS_PER_TURN: u32 = 64;
/// Completions taken from the reactor in one turn.
pub const COMPLETIONS_PER_TURN: usize = 256;
/// `backoff` polls this long after the last event before it blocks.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(50);
/// Characters of a tool's name: what every MCP client takes.
pub const TOOL_NAME_CHARS_MAX: usize = 64;
/// Values that one completion gives: what MCP allows.
pub const COMPLETION_VALUES_MAX: usize = 100;
/// Threads for tools that block.
pub const TOOL_THREADS_MAX: usize = 16;
/// Tools that may wait for a thread.
pub const TOOL_QUEUE_MAX: usize = 1_024;

// --- Server --------------------------------------------------------------------------------------

/// Shards of one server. (An execution's id has room for more.)
pub const SHARDS_MAX: usize = 64;
/// How long a server that was told to stop waits until everything was sent.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// The longest file of settings.
pub const CONFIG_FILE_BYTES_MAX: usize = 256 << 10;
/// Names that a setting can list.
pub const SETTING_ITEMS_MAX: usize = 256;
/// The longest duration that can be set, in seconds: a year.
pub const SETTING_SECONDS_MAX: u64 = 365 * 24 * 3_600;
/// Threads for tools of one shard, at most.
pub const TOOL_THREADS_CEILING: usize = 1_024;
/// The most that rings can be allowed to take, of one shard: address space is reserved for it.
pub const RINGS_BYTES_CEILING: u64 = 1 << 40;
/// Descriptors of the process: standard streams, signals, files of the kernel, and some to spare.
pub const DESCRIPTORS_OF_PROCESS: u64 = 32;
/// Descriptors of one shard: its reactor, the arenas of its rings, doors, and some to spare.
pub const DESCRIPTORS_PER_SHARD: u64 = 64;
/// Descriptors of each execution that other processes share beyond [`DOORS_MAX`]: its ring, its
/// control page, the page of its producer.
pub const DESCRIPTORS_PER_DOOR: u64 = 6;
/// Descriptors that one tool has open: the pipes of a command, the files of a search.
pub const DESCRIPTORS_PER_TOOL_THREAD: u64 = 8;

// --- Tools that come with the program ------------------------------------------------------------

/// The longest regular expression, and the longest glob, that a search takes.
pub const SEARCH_PATTERN_BYTES_MAX: usize = 4 << 10;
/// Globs of one search.
pub const SEARCH_GLOBS_MAX: usize = 64;
/// Memory of a compiled regular expression, and of what is built of it while it runs.
pub const SEARCH_REGEX_BYTES_MAX: usize = 4 << 20;
/// A longer line ends the search of its file.
pub const SEARCH_LINE_BYTES_MAX: usize = 16 << 20;
/// What is shown of a line that matches.
pub const SEARCH_TEXT_BYTES_MAX: usize = 1 << 10;
/// Words of one command.
pub const COMMAND_ARGUMENTS_MAX: usize = 1_024;
/// Environment variables of one command, beside those that it inherits.
pub const COMMAND_VARIABLES_MAX: usize = 1_024;
/// All of its words and variables together; more than this Linux takes for none of them.
pub const COMMAND_WORDS_BYTES_MAX: usize = 128 << 10;
/// What can be given to a command's standard input.
pub const COMMAND_STDIN_BYTES_MAX: usize = 1 << 20;
/// How long a command may be silent: a compiler is, for minutes.
pub const COMMAND_INACTIVITY: Duration = Duration::from_secs(600);
/// From SIGTERM to SIGKILL.
pub const COMMAND_GRACE: Duration = Duration::from_secs(2);
/// How long what a command has left behind may go on writing into its pipes.
pub const COMMAND_LINGER: Duration = Duration::from_millis(500);
/// A command that is silent is looked at this often: should it stop?
pub const COMMAND_LOOK: Duration = Duration::from_millis(20);
/// Processes that a command has left behind are looked for and killed this often, until none is
/// found. A second time is for what was born meanwhile; more is for what multiplies on purpose.
pub const COMMAND_KILL_ROUNDS_MAX: u32 = 64;
/// And this often on kernels that tell nobody when a process has ended.
pub const COMMAND_LOOK_WITHOUT_PIDFD: Duration = Duration::from_millis(2);

// --- Trace ---------------------------------------------------------------------------------------

/// Events that a shard's flight recorder remembers: 32 KiB.
pub const FLIGHT_EVENTS_MAX: usize = 1_024;
/// A longer latency is recorded as this one, and counted apart.
pub const HISTOGRAM_DURATION_MAX: Duration = Duration::from_secs(60);
/// Decimal digits that a histogram keeps of each value.
pub const HISTOGRAM_DIGITS: u8 = 3;
/// Upper bounds of the buckets in which latencies are counted: 1, 2.5 and 5 of each decade.
pub const LATENCY_BUCKETS_NS: [u64; 22] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];
/// Chunks of one turn whose latency is measured at its end; of more, some are measured earlier.
pub const DELIVERIES_NOTED_MAX: usize = 1_024;
/// Records that may wait to be written to the log; one more is dropped, and counted.
pub const LOG_RECORDS_MAX: usize = 512;
/// Numbers and texts of one record.
pub const LOG_FIELDS_MAX: usize = 8;
/// Each text of a record; a longer one is cut, and shows it.
pub const LOG_TEXT_BYTES_MAX: usize = 64;
/// The message of a panic in code that others wrote; a longer one is cut.
pub const PANIC_TEXT_BYTES_MAX: usize = 1_024;
/// What is written at once, and a bit.
pub const LOG_BATCH_BYTES: usize = 64 << 10;
/// How long the end of the program waits for the log to be written.
pub const LOG_CLOSE_WAIT: Duration = Duration::from_secs(1);

// --- Reactor -------------------------------------------------------------------------------------

/// Entries of io_uring's submission queue: what one system call can submit.
pub const URING_SUBMISSIONS: u32 = 256;
/// Entries of io_uring's completion queue. Beyond, the kernel keeps them, which costs it memory.
pub const URING_COMPLETIONS: u32 = 4_096;
/// Messages that wake other reactors, on their way at once; beyond, an eventfd is written to.
pub const URING_MESSAGES_MAX: u32 = 64;
/// A poll of the mio backend looks into epoll on nth call only: a system call is 0.12 µs,
/// the rest of an idle turn a quarter of that.
pub const REACTOR_POLLS_PER_LOOK: u32 = 8;
/// Events taken from epoll at once; the rest is taken by the next look.
pub const REACTOR_EVENTS_PER_LOOK: usize = 256;
/// A reactor that is dropped waits for the kernel so many times ...
pub const REACTOR_DROP_ROUNDS_MAX: u32 = 50;
/// ... at most this long each. After that it leaks the buffers that were not given back.
pub const REACTOR_DROP_ROUND: Duration = Duration::from_millis(100);
/// `backoff`: silences shorter than this part of the budget do not count as silences.
pub const IDLE_SILENCE_FLOOR_FRACTION: u32 = 16;
/// `backoff`: where polling is not worth it, so many silences are slept through between two tries.
pub const IDLE_PROBE_SILENCES: u32 = 8;
/// `backoff`: each silence weighs 2^-2 in the share of those that were worth it.
pub const IDLE_SHARE_SMOOTHING_SHIFT: u32 = 2;

// --- HTTP, SSE, NDJSON ---------------------------------------------------------------------------

/// Tokens of a server. Each request with one is compared with all of them.
pub const TOKENS_MAX: usize = 256;
/// A token has at least so many characters: drawn from 16 different ones alone, 128 bits.
pub const TOKEN_CHARS_MIN: usize = 32;
/// And at most so many.
pub const TOKEN_CHARS_MAX: usize = 512;
/// The name of a principal.
pub const PRINCIPAL_NAME_CHARS_MAX: usize = 64;
/// A file of tokens, with its comments.
pub const TOKEN_FILE_BYTES_MAX: usize = 256 << 10;
/// Origins whose pages may ask. A connection keeps the place of its own in a byte.
pub const ORIGINS_MAX: usize = 256;
/// How long a ticket opens a stream. `EventSource` comes back with the address that it was given
/// first, so this is how long a page can follow across broken connections without asking for a new
/// one; and how long an address that got into somebody's log is worth something.
pub const TICKET_TTL: Duration = Duration::from_secs(3_600);
/// How long a browser need not ask again whether a page may ask.
pub const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(600);
/// The first line of a message, method, target and version together: what Apache takes.
pub const HTTP_FIRST_LINE_BYTES_MAX: u32 = 8 << 10;
/// One header with its name.
pub const HTTP_HEADER_BYTES_MAX: u32 = 8 << 10;
/// Headers of one message.
pub const HTTP_HEADERS_MAX: u32 = 64;
/// A head: the first line and all headers.
pub const HTTP_HEAD_BYTES_MAX: u32 = 16 << 10;
/// The body of a request, unless its route allows more or less.
pub const HTTP_BODY_BYTES_MAX: u64 = 1 << 20;
/// Extensions of one chunk of a body. Nobody uses any.
pub const HTTP_EXTENSION_BYTES_MAX: u32 = 256;
/// Extensions of all chunks of a body: else a byte of data could cost 256 (CVE-2023-39326).
pub const HTTP_EXTENSIONS_BYTES_MAX: u32 = 4 << 10;
/// Trailers behind a body; they are dropped.
pub const HTTP_TRAILERS_BYTES_MAX: u32 = 4 << 10;
/// Interim responses (1xx) that a client skips before the one that it waits for.
pub const HTTP_INTERIM_RESPONSES_MAX: u32 = 16;
/// All bodies together that have begun to come to a shard: who sends more of one then is refused.
/// What has come whole is not counted, so that a short request gets through.
pub const HTTP_BODIES_BYTES_MAX: usize = 64 << 20;
/// The body of a request for a route that needs a number or two.
pub const HTTP_SMALL_BODY_BYTES_MAX: u64 = 4 << 10;
/// Arrays and objects within each other in the body of a request. `serde_json` stops at 128.
pub const JSON_DEPTH_MAX: u32 = 64;
/// What is kept of requests behind one that is not answered yet; then no more is received.
pub const HTTP_PIPELINED_BYTES_MAX: usize = 16 << 10;
/// Requests that come together and need nobody else are answered together, up to so many bytes.
/// Behind that the connection is closed: a small request can have a large answer.
pub const HTTP_ANSWERS_BYTES_MAX: usize = 256 << 10;
/// What a client is told to wait for a server that shuts down.
pub const SHUTDOWN_RETRY_AFTER: Duration = Duration::from_secs(5);
/// How long a request for a result waits for the end, unless it says ...
pub const RESULT_WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// ... and at most.
pub const RESULT_WAIT_MAX: Duration = Duration::from_secs(60);
/// The longest of the durations that a request may set for an execution: a week.
pub const EXECUTION_DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Bytes that are company enough for a chunk, where a request names a delay only.
pub const COALESCE_BYTES_DEFAULT: u64 = 16 << 10;
/// Names and values in a query string.
pub const HTTP_QUERY_PAIRS_MAX: usize = 64;
/// Executions that one connection follows: each event says for each how far it is.
pub const STREAM_CURSORS_MAX: usize = 32;
/// One of them, as text, with what stands between it and the next: a name and three numbers.
pub const STREAM_CURSOR_BYTES_MAX: usize = 96;
/// How long the shards may take to say whether a connection of another one may follow there.
pub const JOIN_DEADLINE: Duration = Duration::from_secs(5);
/// A line of SSE or NDJSON that a client takes: the longest chunk, all of it escaped, and a bit.
pub const STREAM_LINE_BYTES_MAX: usize = 8 << 20;
/// The data of one event that a client of SSE takes, all lines together.
pub const SSE_EVENT_BYTES_MAX: usize = 16 << 20;

// --- Connections ---------------------------------------------------------------------------------

/// A chunk as one event: the longest one, all of it escaped, and what stands around it.
pub const FRAME_BYTES_MAX: usize =
    6 * (RING_CLASS_BYTES[RING_CLASS_BYTES.len() - 1] as usize / 4) + (4 << 10);
/// Encoded chunks of one shard that are kept for others: what several readers of the largest ring
/// are apart from each other, in two formats.
pub const FRAME_CACHE_BYTES: usize = 8 << 20;
/// How many these are at most.
pub const FRAME_CACHE_FRAMES: usize = 1 << 14;
/// So many events, or ...
pub const FLUSH_EVENTS: u32 = 64;
/// ... so many bytes of them are enough for a send: what is published meanwhile waits for the next.
pub const FLUSH_BYTES: usize = 64 << 10;
/// What a connection gets first for bytes of its own: a head, or the gaps and the progress of one
/// flush.
pub const BUFFER_BYTES: usize = 4 << 10;
/// The buffer in which a connection puts a flush of short events aside, and what is said behind it.
pub const CARRY_BYTES: usize = FLUSH_BYTES + BUFFER_BYTES;
/// Buffers of each size, for own bytes and for what the kernel did not take, that are kept for the
/// next who needs one.
pub const CARRIES_KEPT: usize = 64;
/// Such a buffer is kept if it is not larger than this.
pub const CARRY_KEPT_BYTES_MAX: usize = 256 << 10;
/// What all connections of one shard wait to send, together: who would need more goes.
pub const CARRIES_BYTES_MAX: usize = 256 << 20;
/// Events of sockets that one turn looks at.
pub const SOCKET_EVENTS_PER_TURN: u32 = 1_024;
/// The head of a request has to be there whole so long after its first byte, however it trickles
/// in; that of a connection's first request so long after the connection.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// The body of a request may take this long in any case ...
pub const REQUEST_BODY_GRACE: Duration = Duration::from_secs(10);
/// ... and a second more for each so many bytes of it that have come.
pub const REQUEST_BODY_BYTES_PER_S: u64 = 1 << 10;
/// Connections of one address (of one /64 of IPv6) to one shard. This machine's own do not count.
pub const CONNECTIONS_PER_ADDRESS_MAX: u32 = 256;
/// When so many percent of the places are taken, each new connection costs the place of the one
/// that has been without a request longest.
pub const CONNECTIONS_EVICT_PERCENT: u64 = 90;
/// But nobody who has been without one for less than this: its request may be there already.
pub const CONNECTIONS_EVICT_IDLE_MIN: Duration = Duration::from_secs(1);
/// This part of the places, and one, is kept to tell those that there is none for them, ...
pub const CONNECTIONS_RESERVE_FRACTION: u32 = 64;
/// ... and so many of them at most.
pub const CONNECTIONS_RESERVE_MAX: u32 = 256;
/// When they may try again.
pub const CONNECTIONS_RETRY_AFTER: Duration = Duration::from_secs(2);
/// Refused connections are told to the log together, this often at most.
pub const REFUSALS_LOG_INTERVAL: Duration = Duration::from_secs(1);
/// What is sealed for TLS at once: plain bytes of one portion ...
pub const TLS_SEAL_BYTES: usize = 128 << 10;
/// ... what is added to them, for each record of 16 KiB and for what else there is to say, ...
pub const TLS_OVERHEAD_BYTES: usize = 4 << 10;
/// ... and what may wait for a peer altogether, that asks for answers in the handshake's protocol
/// and does not read them.
pub const TLS_SEALED_BYTES_MAX: usize = 256 << 10;
/// The longest file of certificates or keys.
pub const TLS_FILE_BYTES_MAX: u64 = 1 << 20;
/// A connection between two requests is closed after this long.
pub const CONNECTION_IDLE: Duration = Duration::from_secs(60);
/// A stream says that it lives if it has said nothing else for this long.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Streams whose time comes within this long say so together: idle ones wake their core 10 times a
/// second, however many they are.
pub const KEEP_ALIVE_STEP: Duration = Duration::from_millis(100);
/// Deadlines of connections that one turn sees to: each may be a send to a cold socket, some 10 µs,
/// and what is due meanwhile waits for all of them.
pub const CONNECTION_DEADLINES_PER_TURN: u32 = 8;
/// Who takes nothing for so long is gone, whatever its kernel says.
pub const SEND_STALL: Duration = Duration::from_secs(300);
/// What was sent last may be under way for so long when a connection is closed.
pub const LINGER: Duration = Duration::from_secs(2);
/// How often a server that drains looks whether it has.
pub const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// How long a browser waits before it comes back, at least; with up to as much again on top.
pub const RETRY: Duration = Duration::from_millis(500);

const _: () = {
    assert!(BUFFER_BYTES < FLUSH_BYTES && FLUSH_BYTES <= CARRY_KEPT_BYTES_MAX); // Two sizes.
    assert!(FRAME_CACHE_FRAMES.is_power_of_two()); // A place is a mask.
    // A portion finds a buffer that is kept, and is no reason to refuse a peer.
    assert!(TLS_SEAL_BYTES + TLS_OVERHEAD_BYTES <= CARRY_KEPT_BYTES_MAX);
    assert!(TLS_SEAL_BYTES + TLS_OVERHEAD_BYTES < TLS_SEALED_BYTES_MAX);
    assert!(FRAME_CACHE_BYTES >= 2 * FRAME_BYTES_MAX); // One is sent while the next is made.
    assert!(HTTP_FIRST_LINE_BYTES_MAX <= HTTP_HEAD_BYTES_MAX); // Else it could not be reached.
    assert!(HTTP_HEADER_BYTES_MAX <= HTTP_HEAD_BYTES_MAX);
    // `Last-Event-ID` fits.
    assert!(STREAM_CURSORS_MAX * STREAM_CURSOR_BYTES_MAX < HTTP_HEADER_BYTES_MAX as usize);
    // JSON spells a control character in six.
    assert!(6 * RING_CLASS_BYTES[RING_CLASS_BYTES.len() - 1] as usize <= STREAM_LINE_BYTES_MAX);
    assert!(STREAM_LINE_BYTES_MAX <= SSE_EVENT_BYTES_MAX);
    assert!(JSON_DEPTH_MAX < 128); // Else it could not be reached.
    assert!(HTTP_SMALL_BODY_BYTES_MAX < HTTP_BODY_BYTES_MAX);
    assert!(TOKENS_MAX < 1 << 16); // A principal is a number of 16 bits.
    assert!(TOKENS_MAX * (PRINCIPAL_NAME_CHARS_MAX + TOKEN_CHARS_MAX + 2) < TOKEN_FILE_BYTES_MAX);
    assert!(TOKEN_CHARS_MAX < HTTP_HEADER_BYTES_MAX as usize);
    assert!(SETTING_ITEMS_MAX <= ORIGINS_MAX && ORIGINS_MAX <= 1 << 8);
    assert!(RESULT_WAIT_DEFAULT.as_secs() <= RESULT_WAIT_MAX.as_secs());
};

// --- Client --------------------------------------------------------------------------------------

/// How long a server may take to accept a connection.
pub const CLIENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take over an answer, or over the beginning of a stream.
pub const CLIENT_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// A longer answer is refused; streams have no end, but limits for each event.
pub const CLIENT_ANSWER_BYTES_MAX: u64 = 16 << 20;
/// A stream on which nothing comes for so long is cut: three signs of life are missing.
pub const CLIENT_SILENCE_MAX: Duration = Duration::from_secs(45);
/// How long the server can be asked to wait for the end of an execution.
pub const CLIENT_RESULT_WAIT_S_MAX: u32 = 60;
/// Attempts in a row to take up a stream again. With the waits between them: some two minutes,
/// longer than [`RECONNECT_GRACE`] and [`RETENTION`].
pub const CLIENT_RECONNECTS_MAX: u32 = 8;
/// The wait before the first of these attempts, unless the server says another.
pub const CLIENT_RETRY_DEFAULT: Duration = Duration::from_secs(1);
/// No server can make a client come back faster ...
pub const CLIENT_RETRY_MIN: Duration = Duration::from_millis(10);
/// ... or wait longer.
pub const CLIENT_RETRY_MAX: Duration = Duration::from_secs(30);
/// A connection that lasted for so long was a good one, even if nothing came.
pub const CLIENT_CALM: Duration = Duration::from_secs(30);
/// Chunks that a client under `block` may be sent before it acknowledges. The ring allows fewer.
pub const CLIENT_ACK_WINDOW: u32 = 1_024;
/// One receive of a client, at most.
pub const CLIENT_RECEIVE_BYTES: usize = 64 << 10;
/// Characters of a server's error message that are shown.
pub const CLIENT_MESSAGE_CHARS_MAX: usize = 1_024;

const _: () = {
    // All that a ring holds fits into an answer, escaped.
    let ring_bytes = RING_CLASS_BYTES[RING_CLASS_BYTES.len() - 1] as u64;
    assert!(6 * ring_bytes <= CLIENT_ANSWER_BYTES_MAX / 2);
    assert!(CLIENT_RETRY_MIN.as_nanos() < CLIENT_RETRY_DEFAULT.as_nanos());
    assert!(CLIENT_RETRY_DEFAULT.as_nanos() < CLIENT_RETRY_MAX.as_nanos());
};

// --- Virtual tools and their workers -------------------------------------------------------------

/// Tools of one principal whose work is done by clients.
pub const VIRTUAL_TOOLS_PER_PRINCIPAL_MAX: usize = 64;
/// What `PUT` says of such a tool.
pub const VIRTUAL_TOOL_BYTES_MAX: u64 = 64 << 10;
/// The description of such a tool.
pub const VIRTUAL_DESCRIPTION_BYTES_MAX: u64 = 4 << 10;
/// Parts of its schema, with everything in its place that it refers to: what one value is checked
/// by. Schemas that refer to themselves are refused.
pub const VIRTUAL_SCHEMA_PARTS_MAX: u32 = 2_000;
/// Arguments of one call, as JSON: they are kept until it has ended.
pub const VIRTUAL_ARGUMENTS_BYTES_MAX: usize = 256 << 10;
/// Workers of one principal, connected and lost together.
pub const WORKERS_PER_PRINCIPAL_MAX: usize = 256;
/// Calls that one worker has at once.
pub const CALLS_PER_WORKER_MAX: usize = 16;
/// Tools that a worker names, if it does not take calls of all.
pub const WORKER_TOOLS_MAX: usize = VIRTUAL_TOOLS_PER_PRINCIPAL_MAX;
/// Characters of a session's name.
pub const SESSION_CHARS_MAX: usize = 128;
/// How long a worker may be gone before what it was doing has failed.
pub const WORKER_GRACE: Duration = Duration::from_secs(5);
/// A worker on whose connection so much waits to be sent is given no more.
pub const WORKER_UNSENT_BYTES_MAX: usize = 64 << 10;
/// One part of a result, as JSON.
pub const PART_BYTES_MAX: u64 = 256 << 10;
/// The longest text of what went wrong that a worker sends. The first
/// [`ERROR_TEXT_BYTES_MAX`] bytes are kept.
pub const PART_ERROR_BYTES_MAX: u64 = 4 << 10;
/// How long the answer to a part is delayed because there is no room for it; then it is refused.
pub const PART_WAIT: Duration = Duration::from_secs(2);
/// What a worker is told to wait then.
pub const PART_RETRY_AFTER: Duration = Duration::from_secs(1);
/// A body of many parts on which nothing comes for so long is given up.
pub const PARTS_INACTIVITY: Duration = Duration::from_secs(60);
/// Parts of one body that are taken in one turn; those behind them wait for the next.
pub const PARTS_PER_TURN: u32 = 64;
/// Longest time that a part may wait for company ...
pub const GATHER_DELAY_MAX: Duration = COALESCE_DELAY_MAX;
/// ... and most bytes that gathered parts may have.
pub const GATHER_BYTES_MAX: u64 = 64 << 10;
/// How long, where it is not said.
pub const GATHER_DELAY_DEFAULT: Duration = Duration::from_millis(5);
/// How many bytes, where it is not said.
pub const GATHER_BYTES_DEFAULT: u64 = 4 << 10;

const _: () = {
    assert!(GATHER_BYTES_MAX <= PART_BYTES_MAX); // What is held of a call is a part or less.
    assert!(PART_BYTES_MAX <= HTTP_BODY_BYTES_MAX);
    assert!(VIRTUAL_ARGUMENTS_BYTES_MAX as u64 <= HTTP_BODY_BYTES_MAX); // Else it is not reached.
    assert!(VIRTUAL_DESCRIPTION_BYTES_MAX < VIRTUAL_TOOL_BYTES_MAX);
    assert!(WORKER_GRACE.as_nanos() < TIMEOUT_INACTIVITY.as_nanos()); // It is what is told first.
};

// --- Sockets -------------------------------------------------------------------------------------

/// Connections of one shard, unless the server's bill of descriptors says otherwise.
pub const CONNECTIONS_MAX: u32 = 16_384;
/// Addresses that one shard listens on.
pub const LISTENERS_MAX: u32 = 16;
/// Connections that wait in the kernel until they are accepted; `somaxconn` may cut it.
pub const LISTEN_BACKLOG: u32 = 4_096;
/// A listener that found no descriptor tries again after this long, or when one was closed here.
pub const LISTENER_PAUSE: Duration = Duration::from_millis(100);
/// What the kernel may hold of one connection, sent and unacknowledged. It doubles the number, and
/// counts its own overhead: two full segments of loopback.
pub const SEND_BUFFER_BYTES: u32 = 256 << 10;
/// TCP_NOTSENT_LOWAT: above this much that is not even sent, the kernel takes no more, so that
/// slowness shows here.
pub const TCP_NOT_SENT_BYTES: u32 = 16 << 10;
/// Slices of one system call: the kernel's UIO_MAXIOV.
pub const SEND_SLICES_MAX: usize = 1_024;
/// A silent TCP peer is asked whether it is there after this long ...
pub const KEEPALIVE_IDLE_S: u32 = 60;
/// ... again after this long each ...
pub const KEEPALIVE_INTERVAL_S: u32 = 15;
/// ... and given up after so many questions.
pub const KEEPALIVE_COUNT: u32 = 4;
/// One receive of the mio backend, at most; one such buffer for all connections.
pub const RECEIVE_SCRATCH_BYTES: usize = 64 << 10;
/// One receive of the io_uring backend, at most.
pub const RECEIVE_BUFFER_BYTES: u32 = 4 << 10;
/// Receive buffers of one shard for io_uring: 1 MiB. An idle connection holds none.
pub const RECEIVE_BUFFERS: u16 = 256;

const _: () = {
    assert!(RECEIVE_BUFFERS.is_power_of_two()); // The kernel masks an index with it.
    assert!(DOOR_SPIN.as_nanos() <= SPIN_DEFAULT.as_nanos()); // Who sleeps has polled so long.
    assert!(CONNECTIONS_MAX < 1 << 24); // A completion names 24 bits of slot.
    assert!(KINDS_MAX <= 16); // A filter is 16 bits.
    assert!(KEYS_MAX <= 64); // The set of keys seen is 64 bits.
    assert!(ERROR_TEXT_BYTES_MAX.is_multiple_of(8)); // Texts are stored as whole words.
    assert!(PROGRESS_MESSAGE_BYTES_MAX.is_multiple_of(8));
    assert!(PROGRESS_CONTEXT_BYTES_MAX.is_multiple_of(8));
    assert!(EXECUTIONS_CEILING <= 1 << 24); // An id prints 24 bits of index.
    assert!(EXECUTIONS_MAX <= EXECUTIONS_CEILING);
    assert!(SUBSCRIBERS_MAX <= SUBSCRIBERS_CEILING);
    assert!(SUBSCRIBERS_CEILING <= 1 << 24); // An id prints 24 bits of index.
    assert!(SHARDS_MAX <= 1 << 8); // An id prints 8 bits of shard.
    assert!(TOOL_THREADS_MAX <= TOOL_THREADS_CEILING);
    assert!(RINGS_BYTES_MAX <= RINGS_BYTES_CEILING);
    assert!(LOG_TEXT_BYTES_MAX >= 8 && LOG_TEXT_BYTES_MAX < 1 << 8); // A length is a byte.
    assert!(LOG_FIELDS_MAX < 1 << 8);
    assert!(RINGS_PREALLOC_BYTES <= RINGS_BYTES_MAX);
    assert!(DROP_LIMIT_CHUNKS < RING_CLASS_BYTES[0] / 256); // The smallest ring has 16 slots.
    assert!(URING_SUBMISSIONS.is_power_of_two()); // Else the kernel rounds up.
    assert!(URING_COMPLETIONS.is_power_of_two());
    assert!(URING_COMPLETIONS > 2 * URING_SUBMISSIONS); // Also what earlier entries still give.
    let mut level = 0;
    while level < PRESSURE_CLASS_BYTES.len() {
        let mut class = 0;
        while RING_CLASS_BYTES[class] != PRESSURE_CLASS_BYTES[level] {
            class += 1; // Out of bounds, and no build, if it is none of the classes.
        }
        assert!(level == 0 || PRESSURE_CLASS_BYTES[level] < PRESSURE_CLASS_BYTES[level - 1]);
        level += 1;
    }
    assert!(PRESSURE_CLASS_BYTES[0] == RING_CLASS_BYTES[RING_CLASS_BYTES.len() - 1]);
    assert!(RINGS_PREALLOC_FRACTION_MIN >= 1);
    assert!(RING_RELEASE_STEP_BYTES.is_power_of_two()); // Steps tile the larger windows.
    let mut class = 0;
    while class < RING_CLASS_BYTES.len() {
        assert!(RING_CLASS_BYTES[class].is_power_of_two()); // Windows tile their arena.
        assert!(class == 0 || RING_CLASS_BYTES[class] > RING_CLASS_BYTES[class - 1]);
        class += 1;
    }
};

// --- Model Context Protocol ----------------------------------------------------------------------

/// The longest id of a request, and the longest token, that a client may choose.
pub const MCP_ID_BYTES_MAX: usize = 256;
/// The longest body of a request, and ...
pub const MCP_BODY_BYTES_MAX: u64 = 4 << 20;
/// ... the longest line on standard input.
pub const MCP_LINE_BYTES_MAX: usize = 1 << 20;
/// How long an answer may be made to wait behind the last notification of its call.
pub const STDIO_SETTLE_MAX: Duration = Duration::from_secs(10);
/// Requests whose spans wait to be sent away; more are dropped and counted.
pub const SPANS_MAX: usize = 4_096;
/// Spans of one request to who collects them.
pub const SPANS_PER_EXPORT_MAX: usize = 256;
/// A span waits so long for others to be sent along with it.
pub const SPANS_EXPORT_INTERVAL: Duration = Duration::from_millis(500);
/// How long who collects them may take over anything.
pub const SPANS_EXPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections beside the standard streams. More take longer to be ready for.
pub const STDIO_CONNECTIONS_MAX: u64 = 256;
/// Memory of rings that is bought before the first answer: half of it is for 16 calls.
pub const STDIO_RINGS_PREALLOC_BYTES: u64 = 2 << 20;
/// What a thread carries at once between a file or a terminal and a shard.
pub const STDIO_CARRY_BYTES: usize = 64 << 10;
/// What a result holds by itself; of a longer one it says how it begins, and gives a stream.
pub const MCP_RESULT_BYTES_MAX: usize = 64 << 10;
/// So much of its beginning.
pub const MCP_SUMMARY_BYTES: usize = 8 << 10;
/// One answer of `stream_read`: that of the sift seed.
pub const MCP_READ_BYTES_MAX: usize = 32 << 10;
/// How long such an answer waits for something to say: as in the seed.
pub const MCP_READ_WAIT: Duration = Duration::from_secs(5);
/// Streams that one principal has open, on all shards together: as in the seed.
pub const MCP_STREAMS_PER_PRINCIPAL_MAX: usize = 8;
/// Payload bytes that share one notification.
pub const MCP_NOTIFICATION_BYTES_MAX: usize = 16 << 10;
/// Sessions of one shard; with tokens a quarter of them for each principal.
pub const MCP_SESSIONS_MAX: usize = 1_024;
/// How long a session is kept on which nothing happens.
pub const MCP_SESSION_IDLE: Duration = Duration::from_secs(3_600);
/// Requests of one session that are under way.
pub const MCP_REQUESTS_PER_SESSION_MAX: usize = 256;
/// Resources that one session, or one `subscriptions/listen`, is told of; and tasks.
pub const MCP_SUBSCRIPTIONS_MAX: usize = 256;
/// Names on one page of a list.
pub const MCP_PAGE_ITEMS: usize = 100;
/// The longest URI, and the longest name of anything.
pub const MCP_URI_BYTES_MAX: usize = 4 << 10;
/// Questions of a tool that are put at once.
pub const MCP_QUESTIONS_MAX: usize = 16;
/// What a tool may have to remember while its questions are answered, as JSON.
pub const MCP_STATE_BYTES_MAX: usize = 16 << 10;
/// How long the answers may take.
pub const MCP_STATE_TTL: Duration = Duration::from_secs(3_600);
/// How long a client may keep what it was told about the server, and lists.
pub const MCP_CACHE_DISCOVER: Duration = Duration::from_secs(60);
/// The same of a list, which changes when a worker comes or goes.
pub const MCP_CACHE_LIST: Duration = Duration::from_secs(1);
/// How long a task is kept, unless its client says otherwise.
pub const MCP_TASK_TTL_DEFAULT: Duration = RETENTION;
/// The longest that a client can say.
pub const MCP_TASK_TTL_MAX: Duration = Duration::from_secs(24 * 3_600);
/// How often a client should ask how far a task is.
pub const MCP_TASK_POLL: Duration = Duration::from_millis(500);

const _: () = {
    assert!(MCP_SUMMARY_BYTES < MCP_RESULT_BYTES_MAX);
    assert!(2 * MCP_READ_BYTES_MAX <= MCP_RESULT_BYTES_MAX); // One is sent while the next is made.
    assert!(6 * MCP_READ_BYTES_MAX < MCP_LINE_BYTES_MAX); // JSON spells a control character in six.
    assert!(6 * MCP_RESULT_BYTES_MAX < MCP_LINE_BYTES_MAX);
    assert!(MCP_NOTIFICATION_BYTES_MAX <= MCP_READ_BYTES_MAX);
    // A sealed state stands in a line, in base 64.
    assert!(2 * MCP_STATE_BYTES_MAX < MCP_LINE_BYTES_MAX);
};

// What the shard keeps for it.

/// Requests of one shard that are being carried out.
pub const MCP_CALLS_MAX: u32 = 2_048;
/// Outputs that are kept for answers, tasks and doors.
pub const MCP_KEEPS_MAX: u32 = 2_048;
/// The time that a door is kept that nobody reads. Its tool waits only for as long as for any
/// `block` subscriber.
pub const MCP_DOOR_IDLE: Duration = Duration::from_secs(600);
/// How long the answer is kept of who was cut off, ...
pub const MCP_ANSWER_KEPT: Duration = Duration::from_secs(300);
/// ... how many such answers, ...
pub const MCP_ANSWERS_MAX: usize = 1_024;
/// ... and what they have in all.
pub const MCP_ANSWERS_BYTES_MAX: usize = 16 << 20;
/// On lines a notification that all is done waits for the answer for so long.
pub const MCP_WHOLE_HELD: Duration = Duration::from_millis(20);
/// The time that requests on lines may go on when nothing more comes there. Clients wait for a
/// program's end about twice as long before they kill it.
pub const MCP_LAST_ANSWERS: Duration = Duration::from_secs(1);
/// How long a client has to answer what a tool asks.
pub const MCP_ASK_DEADLINE: Duration = Duration::from_secs(600);
/// Tasks of one principal, on all shards together.
pub const MCP_TASKS_MAX: usize = 256;
/// How often resources are looked at that somebody is told of.
pub const MCP_UPDATE_INTERVAL: Duration = Duration::from_secs(1);

const _: () = {
    assert!(MCP_RESULT_BYTES_MAX >= DELIVERY_BYTES_MAX as usize); // A delivery is taken whole.
    assert!(MCP_DOOR_IDLE.as_nanos() < EXECUTION_DURATION_MAX.as_nanos());
};
