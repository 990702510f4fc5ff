//! Every capacity and duration of the program, defined once, with its unit. Relations between them
//! are checked by the compiler, with the reason beside them.

mod agents;
mod ahead;
mod cluster;
mod disk;
mod durable;
mod front;
mod journal;
mod pressure;
mod sending;
mod trace;
mod upstreams;

pub use agents::*;
pub use ahead::*;
pub use cluster::*;
pub use disk::*;
pub use durable::*;
pub use front::*;
pub use journal::*;
pub use pressure::*;
pub use sending::*;
pub use trace::*;
pub use upstreams::*;

use std::time::Duration;

// --- Executions and subscribers -----------------------------------------------------------------

/// Executions of one shard by default, running and retained together.
pub const EXECUTIONS_MAX: u32 = 1_024;
/// Maximum of `executions_max`, well within the 24 bits of an id.
pub const EXECUTIONS_CEILING: u32 = 1 << 20;
/// Executions that may wait for a ring; one more is answered with `Busy`.
pub const EXECUTIONS_QUEUED_MAX: u32 = 256;
/// Time after which a caller that was answered with `Busy` may retry.
pub const BUSY_RETRY_AFTER: Duration = Duration::from_millis(250);
/// Local subscribers of one execution.
pub const SUBSCRIBERS_PER_EXECUTION_MAX: u32 = 10_240;
/// Subscribers of one shard.
pub const SUBSCRIBERS_MAX: u32 = 16_384;
/// Maximum of `subscribers_max`.
pub const SUBSCRIBERS_CEILING: u32 = 1 << 20;
/// Subscribers of one execution on other threads. The gate scans their cursors.
pub const READERS_PER_EXECUTION_MAX: u32 = 64;
/// Kinds of chunks, for each of which running totals are kept.
pub const KINDS_MAX: usize = 16;
/// Keys that `conflate` distinguishes, as the bits of one word.
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
/// Chunks of one delivery. Between two deliveries a connection can report that it is full.
pub const DELIVERY_CHUNKS_MAX: u32 = 64;
/// Payload bytes of one delivery, without its first chunk.
pub const DELIVERY_BYTES_MAX: u64 = 64 << 10;

// --- Durations -----------------------------------------------------------------------------------

/// Time for which a `block` subscriber may hold a producer back.
pub const BLOCK_DEADLINE: Duration = Duration::from_secs(30);
/// Time for which a cancelled execution waits for a `block` subscriber that takes nothing.
pub const CANCELLED_STALL: Duration = Duration::from_secs(5);
/// Time for which `start: after_subscribers` and `hold: until_read` wait for subscribers.
pub const ATTACH_DEADLINE: Duration = Duration::from_secs(30);
/// Time for which a `block` subscriber whose connection broke keeps its place.
pub const RECONNECT_GRACE: Duration = Duration::from_secs(10);
/// Time for which an ended execution can still be read.
pub const RETENTION: Duration = Duration::from_secs(60);
/// Time after which readers of a kept execution are looked for again, if its retention is shorter.
pub const RETENTION_LOOK: Duration = Duration::from_secs(1);
/// Longest delay that a subscriber may request for coalescing.
pub const COALESCE_DELAY_MAX: Duration = Duration::from_secs(1);
/// Time that a tool may take until its first chunk or progress report.
pub const TIMEOUT_FIRST_CHUNK: Duration = Duration::from_secs(30);
/// Time for which a tool may be silent after that: 30 s, from the erlmcp progress seed.
pub const TIMEOUT_INACTIVITY: Duration = Duration::from_secs(30);
/// Duration of a shard's turn above which it counts as a stall, because all its clients wait
/// meanwhile.
pub const STALL_THRESHOLD: Duration = Duration::from_micros(100);

// --- Timer wheel ---------------------------------------------------------------------------------

/// The shift from nanoseconds to ticks of the wheel: a tick is 2^14 ns = 16.4 µs.
pub const WHEEL_TICK_SHIFT: u32 = 14;

// --- Rings ---------------------------------------------------------------------------------------

/// Sizes of the windows that rings are made of, including header, index and data.
pub const RING_CLASS_BYTES: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Size of the largest of these windows. It bounds the length of every chunk.
pub const RING_CLASS_BYTES_MAX: u32 = RING_CLASS_BYTES[RING_CLASS_BYTES.len() - 1];
/// Sizes of the rings that other processes can open. They go beyond [`RING_CLASS_BYTES`], so a
/// relay of any ring can be the next larger one and hold all that it holds. A producer in another
/// process can have each of them: many chunks of 32 KiB fit in a large one.
pub const DOOR_RING_BYTES: [u32; 8] =
    [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20];
/// Size of the largest ring of a producer in another process.
pub const DOOR_RING_BYTES_MAX: u32 = DOOR_RING_BYTES[DOOR_RING_BYTES.len() - 1];
/// The alignment of each chunk's payload in a ring.
pub const CHUNK_ALIGN_BYTES: u64 = 8;
/// Number of bytes in front of a chunk's payload in a ring: number, total, time, length and kind.
pub const CHUNK_HEADER_BYTES: u64 = 32;
/// Maximum number of bytes that a chunk takes in a ring beside its payload.
pub const CHUNK_EXTRA_BYTES_MAX: u64 = CHUNK_HEADER_BYTES + CHUNK_ALIGN_BYTES - 1;
/// Ring size for a tool that declares no need.
pub const RING_NEED_BYTES_DEFAULT: u32 = 16 << 10;
/// Minimum size of a ring that connections follow. Half of its 256 slots may be in transit in
/// buffers and be lost there: 128 ms of a thousand chunks a second.
pub const RING_SERVED_BYTES: u32 = 64 << 10;
/// Minimum size of a ring that connections follow under `block`. Half of it is kept for clients
/// that come back. Bytes that a client has not read are in the kernel buffers of both ends. The
/// client's takes 64 KiB on Linux before the client has read anything.
pub const RING_REPLAYED_BYTES: u32 = 256 << 10;
/// Minimum number of bytes that a chunk takes on a connection beside its payload: its number, its
/// offset and its kind.
pub const CHUNK_FRAME_BYTES_MIN: u32 = 64;
/// Ring memory that is touched at start. An idle shard prepares more of what is asked for
/// ([`RING_RESERVE_BYTES`]).
pub const RINGS_PREALLOC_BYTES: u64 = 1 << 20;
/// Maximum of ring memory of one shard.
pub const RINGS_BYTES_MAX: u64 = 256 << 20;
/// The part of [`RINGS_BYTES_MAX`] up to which rings that start small grow to keep old chunks:
/// 8 MiB of 256. That is the whole ring for 128 calls, and a small one for 2,000.
pub const RINGS_HISTORY_FRACTION: u64 = 32;
/// Ring size for a producer in another process that declares no need.
pub const DOOR_RING_BYTES_DEFAULT: u32 = 1 << 20;
/// Bytes of a ring for each of its slots.
pub const RING_BYTES_PER_SLOT: u32 = 256;
/// Executions that other processes share at once, as in the registry of the sift seed.
pub const DOORS_MAX: u32 = 8;
/// Maximum of that setting, because one thread sleeps on a word of each.
pub const DOORS_CEILING: u32 = 64;
/// Memory of all pages of one such execution beside its ring. These are the control page with desk
/// slots, and the pages of readers and of the producer.
pub const DOOR_PAGES_BYTES: u64 = 272 << 10;
/// Chunks taken from a producer in another process in one turn.
pub const GUEST_CHUNKS_PER_TURN: u32 = 1_024;
/// Minimum number of chunks of a producer in another process that are passed over, which means that
/// only the newest is looked at. A look at fewer costs no more.
pub const GUEST_CHUNKS_PASSED_MIN: u64 = 4;
/// Payload bytes taken from a producer in another process in one turn.
pub const GUEST_BYTES_PER_TURN: u64 = 1 << 20;
/// Changes of a producer's owner word after which the server no longer sleeps on it. A correct
/// producer changes the word twice.
pub const DOOR_OWNER_CHANGES_MAX: u32 = 16;
/// Readers in other processes of one execution.
pub const DOOR_READERS_PER_EXECUTION_MAX: u32 = 64;
/// Longest sleep of a reader or producer in another process before it checks that the server is
/// alive.
pub const DOOR_SLEEP_MAX: Duration = Duration::from_millis(250);
/// Time for which a reader in another process polls before it sleeps. A producer that publishes
/// again within this time wakes no reader.
pub const DOOR_SPIN: Duration = Duration::from_micros(50);
/// Polls without a chunk after which a reader reads the clock once.
pub const DOOR_POLLS_PER_LOOK: u32 = 64;
/// Interval at which such a reader checks the server, and a shard polls producers elsewhere.
pub const DOOR_LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// The longest line of a server's grant.
pub const DOOR_GRANT_BYTES_MAX: usize = 16 << 10;
/// Time that a server may take to answer at a door.
pub const DOOR_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Mappings of named rings in one process, at once.
pub const GUARDED_MAPPINGS_MAX: usize = 64;
/// Directory entries that a sweep for left-over named rings examines.
pub const NAMED_FILES_MAX: usize = 4_096;
/// The longest error text that is kept with an ended execution.
pub const ERROR_TEXT_BYTES_MAX: usize = 256;
/// Longest single sleep of a reader that shares memory with another process: a hostile page can
/// only delay it.
pub const READER_SLEEP_MAX: Duration = Duration::from_millis(5);

/// Step in which ring memory is allocated within the reserved address space (or one window, where
/// that is larger). One allocation then stalls its shard for tens of microseconds only.
pub const RING_GROWTH_STEP_BYTES: u32 = 128 << 10;
/// Step in which idle windows are returned to the kernel, one step a turn. A step takes some 15 µs;
/// a whole megabyte would take 200, and a turn has to stay below [`STALL_THRESHOLD`].
pub const RING_RELEASE_STEP_BYTES: u32 = 64 << 10;
/// Longest wait for the first of two words, where the kernel cannot wait for two words at once.
pub const WAIT_ANY_FALLBACK: Duration = Duration::from_millis(1);
/// Attempts at a consistent read of several words (some 10 µs in all). If all fail, the writer has
/// lost its core in the middle of a change, or is hostile.
pub const SEQLOCK_ATTEMPTS_MAX: u32 = 100;

// --- Progress ------------------------------------------------------------------------------------

/// Shortest time between two progress reports to one subscriber.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// The longest message of a progress report.
pub const PROGRESS_MESSAGE_BYTES_MAX: usize = 256;
/// The longest context of a progress report, as JSON.
pub const PROGRESS_CONTEXT_BYTES_MAX: usize = 1_024;
/// Pending progress reports of a tool on a thread. When there are more, the oldest are dropped.
pub const PROGRESS_PENDING_MAX: usize = 64;

// --- Shard ---------------------------------------------------------------------------------------

/// Commands that may wait in a shard's mailbox.
pub const MAILBOX_COMMANDS_MAX: usize = 1_024;
/// Commands taken from the mailbox in one turn.
pub const MAILBOX_COMMANDS_PER_TURN: u32 = 64;
/// Completions taken from the reactor in one turn.
pub const COMPLETIONS_PER_TURN: usize = 256;
/// Time for which `backoff` polls after the last event before it blocks.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(50);
/// Polls of a reader on another thread after which it lets other threads of its core go on.
pub const POLLS_PER_YIELD: u32 = 32;
/// Characters of a tool's name: the most that every MCP client accepts.
pub const TOOL_NAME_CHARS_MAX: usize = 64;
/// Values in one completion: the most that MCP allows.
pub const COMPLETION_VALUES_MAX: usize = 100;
/// Threads for tools that block.
pub const TOOL_THREADS_MAX: usize = 16;
/// Tools that may wait for a thread.
pub const TOOL_QUEUE_MAX: usize = 1_024;

// --- Server --------------------------------------------------------------------------------------

/// Shards of one server. (An execution's id could name more.)
pub const SHARDS_MAX: usize = 64;
/// Time for which a server that shuts down waits until everything was sent.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// The longest file of settings.
pub const CONFIG_FILE_BYTES_MAX: usize = 256 << 10;
/// Names in one list of a setting.
pub const SETTING_ITEMS_MAX: usize = 256;
/// The longest duration that can be set, in seconds: a year.
pub const SETTING_SECONDS_MAX: u64 = 365 * 24 * 3_600;
/// Maximum number of threads for tools of one shard.
pub const TOOL_THREADS_CEILING: usize = 1_024;
/// Maximum of the ring memory of one shard that can be set. Address space is reserved for it.
pub const RINGS_BYTES_CEILING: u64 = 1 << 40;
/// Descriptors of the process: standard streams, signals, files of the kernel, and a reserve.
pub const DESCRIPTORS_OF_PROCESS: u64 = 32;
/// Descriptors of one shard: its reactor, the arenas of its rings, doors, and a reserve.
pub const DESCRIPTORS_PER_SHARD: u64 = 64;
/// Descriptors of each execution that other processes share beyond [`DOORS_MAX`]: its ring, its
/// control page, the page of its producer.
pub const DESCRIPTORS_PER_DOOR: u64 = 6;
/// Descriptors that one tool opens: the pipes of a command, the files of a search.
pub const DESCRIPTORS_PER_TOOL_THREAD: u64 = 8;

// --- Tools that come with the program ------------------------------------------------------------

/// The longest regular expression, and the longest glob, that a search accepts.
pub const SEARCH_PATTERN_BYTES_MAX: usize = 4 << 10;
/// Globs of one search.
pub const SEARCH_GLOBS_MAX: usize = 64;
/// Memory of a compiled regular expression, and of its caches while it runs.
pub const SEARCH_REGEX_BYTES_MAX: usize = 4 << 20;
/// Length of a line above which the search of its file ends.
pub const SEARCH_LINE_BYTES_MAX: usize = 16 << 20;
/// Bytes of a matching line that are shown.
pub const SEARCH_TEXT_BYTES_MAX: usize = 1 << 10;
/// Arguments of one command.
pub const COMMAND_ARGUMENTS_MAX: usize = 1_024;
/// Environment variables of one command, beside those that it inherits.
pub const COMMAND_VARIABLES_MAX: usize = 1_024;
/// Bytes of its arguments and variables together. Linux accepts no longer single one.
pub const COMMAND_WORDS_BYTES_MAX: usize = 128 << 10;
/// Bytes of a command's standard input.
pub const COMMAND_STDIN_BYTES_MAX: usize = 1 << 20;
/// Time for which a command may be silent: a compiler is silent for minutes.
pub const COMMAND_INACTIVITY: Duration = Duration::from_secs(600);
/// Time from SIGTERM to SIGKILL.
pub const COMMAND_GRACE: Duration = Duration::from_secs(2);
/// Time for which processes left behind by a command may still write into its pipes.
pub const COMMAND_LINGER: Duration = Duration::from_millis(500);
/// Interval at which a silent command is checked for a request to stop.
pub const COMMAND_LOOK: Duration = Duration::from_millis(20);
/// Rounds in which the processes left behind by a command are killed, until none is found. A second
/// round is for processes born in the meantime; more are for processes that multiply on purpose.
pub const COMMAND_KILL_ROUNDS_MAX: u32 = 64;
/// The same as [`COMMAND_LOOK`], on kernels without a report when a process has ended.
pub const COMMAND_LOOK_WITHOUT_PIDFD: Duration = Duration::from_millis(2);

// --- Reactor -------------------------------------------------------------------------------------

/// Entries of io_uring's submission queue: the most that one system call can submit.
pub const URING_SUBMISSIONS: u32 = 256;
/// Entries of io_uring's completion queue. The kernel keeps what is beyond, at a cost of memory.
pub const URING_COMPLETIONS: u32 = 4_096;
/// Messages in flight that wake other reactors. Beyond these, an eventfd is written.
pub const URING_MESSAGES_MAX: u32 = 64;
/// Polls of the mio backend of which one looks into epoll. A system call takes 0.12 µs, the rest of
/// an idle turn a quarter of that.
pub const REACTOR_POLLS_PER_LOOK: u32 = 8;
/// Events taken from epoll at once. The next look takes the rest.
pub const REACTOR_EVENTS_PER_LOOK: usize = 256;
/// Rounds for which a reactor that is dropped waits for the kernel. After these it leaks the
/// buffers that were not returned.
pub const REACTOR_DROP_ROUNDS_MAX: u32 = 50;
/// Longest duration of one such round.
pub const REACTOR_DROP_ROUND: Duration = Duration::from_millis(100);
/// Fraction of the budget of `backoff` below which a silence does not count as one.
pub const IDLE_SILENCE_FLOOR_FRACTION: u32 = 16;
/// Silences that `backoff` sleeps through between two attempts, where polling is not worth it.
pub const IDLE_PROBE_SILENCES: u32 = 8;
/// Weight of each silence, 2^-2, in the share of silences for which polling by `backoff` was worth
/// it.
pub const IDLE_SHARE_SMOOTHING_SHIFT: u32 = 2;

// --- HTTP, SSE, NDJSON ---------------------------------------------------------------------------

/// Tokens of a server. Each request with a token is compared with all of them.
pub const TOKENS_MAX: usize = 256;
/// Principals that have had a token since the start of a server. Each is remembered when its token
/// is gone, because its executions may still exist.
pub const PRINCIPALS_MAX: usize = 4_096;
/// Minimum length of a token, in characters: 128 bits even if drawn from only 16 different ones.
pub const TOKEN_CHARS_MIN: usize = 32;
/// Maximum length of a token, in characters.
pub const TOKEN_CHARS_MAX: usize = 512;
/// Characters of a principal's name.
pub const PRINCIPAL_NAME_CHARS_MAX: usize = 64;
/// Bytes of a file of tokens, with its comments.
pub const TOKEN_FILE_BYTES_MAX: usize = 256 << 10;
/// Origins whose pages may send requests. A connection stores the index of its own in a byte.
pub const ORIGINS_MAX: usize = 256;
/// Time for which a ticket opens a stream. `EventSource` reconnects with its first address. A page
/// can thus follow across broken connections for this long without a new ticket. An address that
/// got into a log is valid for as long.
pub const TICKET_TTL: Duration = Duration::from_secs(3_600);
/// Time for which a browser need not repeat a preflight request.
pub const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(600);
/// Bytes of the first line of a message (method, target and version): the limit of Apache.
pub const HTTP_FIRST_LINE_BYTES_MAX: u32 = 8 << 10;
/// Bytes of one header with its name.
pub const HTTP_HEADER_BYTES_MAX: u32 = 8 << 10;
/// Headers of one message.
pub const HTTP_HEADERS_MAX: u32 = 64;
/// Bytes of a head: the first line and all headers.
pub const HTTP_HEAD_BYTES_MAX: u32 = 16 << 10;
/// Bytes of a request's body, unless its route allows more or less.
pub const HTTP_BODY_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the extensions of one chunk of a body. They are not used in practice.
pub const HTTP_EXTENSION_BYTES_MAX: u32 = 256;
/// Bytes of the extensions of all chunks of a body: else a byte of data could cost 256
/// (CVE-2023-39326).
pub const HTTP_EXTENSIONS_BYTES_MAX: u32 = 4 << 10;
/// Bytes of the trailers behind a body. They are dropped.
pub const HTTP_TRAILERS_BYTES_MAX: u32 = 4 << 10;
/// Interim responses (1xx) that a client skips before the final one.
pub const HTTP_INTERIM_RESPONSES_MAX: u32 = 16;
/// Bytes of all incomplete bodies that a shard is receiving. A request that would exceed them is
/// refused. Complete bodies are not counted, so a short request gets through.
pub const HTTP_BODIES_BYTES_MAX: usize = 64 << 20;
/// Bytes of a request's body on a route that needs a number or two.
pub const HTTP_SMALL_BODY_BYTES_MAX: u64 = 4 << 10;
/// Nesting depth of arrays and objects in a request's body. `serde_json` stops at 128.
pub const JSON_DEPTH_MAX: u32 = 64;
/// Bytes of pipelined requests behind an unanswered one. Beyond these, nothing more is received.
pub const HTTP_PIPELINED_BYTES_MAX: usize = 16 << 10;
/// Bytes of answers to pipelined requests that are answered together. Beyond these the client has
/// to read first, because a small request can have a large answer.
pub const HTTP_ANSWERS_BYTES_MAX: usize = 256 << 10;
/// Length of the shortest document that is compressed. A shorter one fits into one packet anyway.
pub const COMPRESSED_BYTES_MIN: usize = 1 << 10;
/// Length of the longest document that is compressed for one answer. All streams of the shard wait
/// for it, some 0.1 ms. Documents that never change are compressed once, before the shards start,
/// and have no such limit.
pub const COMPRESSED_BYTES_MAX: usize = 8 << 10;
/// Time after which a client may retry when the server shuts down.
pub const SHUTDOWN_RETRY_AFTER: Duration = Duration::from_secs(5);
/// Time for which a request for a result waits for the end, unless it names another.
pub const RESULT_WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// Longest time that such a request can name.
pub const RESULT_WAIT_MAX: Duration = Duration::from_secs(60);
/// Maximum number of executions in one reply. The client asks for the rest.
pub const LISTED_EXECUTIONS_MAX: u32 = 1_000;
/// The longest duration that a request may set for an execution: a week.
pub const EXECUTION_DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Bytes that are enough for a coalesced delivery, where a request names only a delay.
pub const COALESCE_BYTES_DEFAULT: u64 = 16 << 10;
/// Names and values in a query string.
pub const HTTP_QUERY_PAIRS_MAX: usize = 64;
/// Executions that one connection follows. Each event carries a cursor for each of them.
pub const STREAM_CURSORS_MAX: usize = 32;
/// Bytes of one such cursor as text, with its separator: a name and three numbers.
pub const STREAM_CURSOR_BYTES_MAX: usize = 96;
/// Time that other shards have to say whether a connection may follow an execution of theirs.
pub const JOIN_DEADLINE: Duration = Duration::from_secs(5);
/// Number of bytes at the end of a payload on disk that a document about its execution has.
pub const RESULT_KEPT_BYTES_MAX: usize = 1 << 20;
/// Bytes of a line of SSE or NDJSON that a client accepts: the longest chunk, fully escaped, and
/// more.
pub const STREAM_LINE_BYTES_MAX: usize = 8 << 20;
/// Bytes of the data of one event that an SSE client accepts, in all its lines.
pub const SSE_EVENT_BYTES_MAX: usize = 16 << 20;

// --- Connections ---------------------------------------------------------------------------------

/// Socket events that one turn handles.
pub const SOCKET_EVENTS_PER_TURN: u32 = 1_024;
/// Requests of one connection that are answered in one turn, some 50 µs of work. Those behind them
/// wait for the next. 20 at once moved the p99 of the streams of others.
pub const REQUESTS_PER_TURN: u32 = 8;
/// Time from a request's first byte to its complete head. For the first request of a connection, it
/// starts with the connection.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// Time that the body of a request may always take.
pub const REQUEST_BODY_GRACE: Duration = Duration::from_secs(10);
/// Bytes of a body that extend that time by one second.
pub const REQUEST_BODY_BYTES_PER_S: u64 = 1 << 10;
/// Connections of one address (of one /64 of IPv6) to one shard. This machine's own do not count.
pub const CONNECTIONS_PER_ADDRESS_MAX: u32 = 256;
/// Percentage of occupied places from which each new connection evicts the one that has been
/// without a request longest.
pub const CONNECTIONS_EVICT_PERCENT: u64 = 90;
/// Minimum idle time of an evicted connection: until then its request may have arrived already.
pub const CONNECTIONS_EVICT_IDLE_MIN: Duration = Duration::from_secs(1);
/// The part of the places (plus one) that is reserved for refusing connections.
pub const CONNECTIONS_RESERVE_FRACTION: u32 = 64;
/// Maximum number of places for refusing connections.
pub const CONNECTIONS_RESERVE_MAX: u32 = 256;
/// Time after which a refused client may retry.
pub const CONNECTIONS_RETRY_AFTER: Duration = Duration::from_secs(2);
/// Interval at which refused connections are logged together.
pub const REFUSALS_LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Answers that wait to be logged, at most. Others are only counted.
pub const ANSWERS_TO_LOG_MAX: usize = 64;
/// Bytes of the path of a refused request in the log.
pub const REFUSED_PATH_BYTES_MAX: usize = LOG_TEXT_BYTES_MAX;
/// Plain bytes of one portion that is sealed for TLS at once.
pub const TLS_SEAL_BYTES: usize = 128 << 10;
/// Bytes that sealing adds to a portion: for each record of 16 KiB, and for other messages of TLS.
pub const TLS_OVERHEAD_BYTES: usize = 4 << 10;
/// Sealed bytes that may wait for a peer. A peer could request answers of the handshake protocol
/// and not read them.
pub const TLS_SEALED_BYTES_MAX: usize = 256 << 10;
/// The longest file of certificates or keys.
pub const TLS_FILE_BYTES_MAX: u64 = 1 << 20;
/// Time after which an idle connection between two requests is closed.
pub const CONNECTION_IDLE: Duration = Duration::from_secs(60);
/// Time without other output after which a stream sends a keep-alive.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Interval to which keep-alives are aligned: any number of idle streams wakes its core at most 10
/// times a second.
pub const KEEP_ALIVE_STEP: Duration = Duration::from_millis(100);
/// Deadlines of connections that one turn handles. Each may be a send to a cold socket, some 10 µs,
/// and everything due in the meantime waits for them.
pub const CONNECTION_DEADLINES_PER_TURN: u32 = 8;
/// Time without progress after which a blocked peer is dropped, whatever its kernel reports.
pub const SEND_STALL: Duration = Duration::from_secs(300);
/// Time that a new connection has for its first request while the server drains.
pub const DRAIN_FIRST_REQUEST: Duration = Duration::from_millis(500);
/// Time that the last bytes have to arrive when a connection is closed.
pub const LINGER: Duration = Duration::from_secs(2);
/// Interval at which a draining server checks whether it is done.
pub const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// Minimum time that a browser waits before it reconnects. Up to as much again is added.
pub const RETRY: Duration = Duration::from_millis(500);

const _: () = {
    // A portion fits a buffer that is kept, and is no reason to refuse a peer.
    assert!(TLS_SEAL_BYTES + TLS_OVERHEAD_BYTES <= CARRY_KEPT_BYTES_MAX);
    assert!(TLS_SEAL_BYTES + TLS_OVERHEAD_BYTES < TLS_SEALED_BYTES_MAX);
    assert!(HTTP_FIRST_LINE_BYTES_MAX <= HTTP_HEAD_BYTES_MAX); // Else unreachable.
    assert!(HTTP_HEADER_BYTES_MAX <= HTTP_HEAD_BYTES_MAX);
    // `Last-Event-ID` fits.
    assert!(STREAM_CURSORS_MAX * STREAM_CURSOR_BYTES_MAX < HTTP_HEADER_BYTES_MAX as usize);
    // JSON escapes a control character in six bytes.
    assert!(6 * RING_CLASS_BYTES[RING_CLASS_BYTES.len() - 1] as usize <= STREAM_LINE_BYTES_MAX);
    assert!(STREAM_LINE_BYTES_MAX <= SSE_EVENT_BYTES_MAX);
    assert!(JSON_DEPTH_MAX < 128); // Else unreachable.
    assert!(HTTP_SMALL_BODY_BYTES_MAX < HTTP_BODY_BYTES_MAX);
    // A principal is a number of 16 bits. A text of tokens is read before they are counted.
    assert!(TOKENS_MAX <= PRINCIPALS_MAX && PRINCIPALS_MAX + TOKENS_MAX < 1 << 16);
    assert!(TOKENS_MAX * (PRINCIPAL_NAME_CHARS_MAX + TOKEN_CHARS_MAX + 2) < TOKEN_FILE_BYTES_MAX);
    assert!(TOKEN_CHARS_MAX < HTTP_HEADER_BYTES_MAX as usize);
    assert!(SETTING_ITEMS_MAX <= ORIGINS_MAX && ORIGINS_MAX <= 1 << 8);
    assert!(RESULT_WAIT_DEFAULT.as_secs() <= RESULT_WAIT_MAX.as_secs());
};

// --- Client --------------------------------------------------------------------------------------

/// Time for which a client waits for a connection to be accepted.
pub const CLIENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a client waits for an answer, or for the beginning of a stream.
pub const CLIENT_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an answer; a longer one is refused. Streams have limits for each event only.
pub const CLIENT_ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Time without data after which a client closes a stream: three keep-alives are missing.
pub const CLIENT_SILENCE_MAX: Duration = Duration::from_secs(45);
/// Longest time for which the server can be asked to wait for an execution's end, in seconds.
pub const CLIENT_RESULT_WAIT_MAX: Duration = Duration::from_secs(60);
/// Attempts in a row to resume a stream. With the waits between them they take some two minutes,
/// longer than [`RECONNECT_GRACE`] and [`RETENTION`].
pub const CLIENT_RECONNECTS_MAX: u32 = 16;
/// Wait before the first of these attempts, unless the server names another.
pub const CLIENT_RETRY_DEFAULT: Duration = Duration::from_secs(1);
/// Minimum wait before a client reconnects, whatever the server names.
pub const CLIENT_RETRY_MIN: Duration = Duration::from_millis(10);
/// Longest wait between two attempts within [`RECONNECT_GRACE`], unless the server names a longer
/// one. There are some eight attempts before a `block` subscriber loses its place.
pub const CLIENT_RETRY_IN_GRACE: Duration = Duration::from_secs(1);
/// Maximum wait before a client reconnects, whatever the server names.
pub const CLIENT_RETRY_MAX: Duration = Duration::from_secs(30);
/// Age of a connection from which it counts as a success, even if nothing was received.
pub const CLIENT_CALM: Duration = Duration::from_secs(30);
/// Chunks that a client under `block` may be sent before it acknowledges. The ring allows fewer.
pub const CLIENT_ACK_WINDOW: u32 = 1_024;
/// Maximum number of bytes of one receive of a client.
pub const CLIENT_RECEIVE_BYTES: usize = 64 << 10;
/// Characters of a server's error message that are shown.
pub const CLIENT_MESSAGE_CHARS_MAX: usize = 1_024;

const _: () = {
    // Everything that a ring holds fits in an answer, escaped.
    let ring_bytes = RING_CLASS_BYTES[RING_CLASS_BYTES.len() - 1] as u64;
    assert!(6 * ring_bytes <= CLIENT_ANSWER_BYTES_MAX / 2);
    assert!(CLIENT_RETRY_MIN.as_nanos() < CLIENT_RETRY_DEFAULT.as_nanos());
    assert!(CLIENT_RETRY_DEFAULT.as_nanos() < CLIENT_RETRY_MAX.as_nanos());
};

// --- Virtual tools and their workers -------------------------------------------------------------

/// Tools of one principal whose work is done by clients.
pub const VIRTUAL_TOOLS_PER_PRINCIPAL_MAX: usize = 64;
/// Bytes of the body of a `PUT` for such a tool.
pub const VIRTUAL_TOOL_BYTES_MAX: u64 = 64 << 10;
/// Bytes of the description of such a tool.
pub const VIRTUAL_DESCRIPTION_BYTES_MAX: u64 = 4 << 10;
/// Parts of its schema with all references expanded, which bounds the cost of checking a value.
/// Schemas that refer to themselves are refused.
pub const VIRTUAL_SCHEMA_PARTS_MAX: u32 = 2_000;
/// Bytes of the arguments of one call, as JSON. They are kept until the call has ended.
pub const VIRTUAL_ARGUMENTS_BYTES_MAX: usize = 256 << 10;
/// Workers of one principal, connected and lost together.
pub const WORKERS_PER_PRINCIPAL_MAX: usize = 256;
/// Calls that one worker has at once.
pub const CALLS_PER_WORKER_MAX: usize = 16;
/// Tools that a worker names, if it does not take calls of all.
pub const WORKER_TOOLS_MAX: usize = VIRTUAL_TOOLS_PER_PRINCIPAL_MAX;
/// Characters of an idempotency key.
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 255;
/// Characters of a session's name.
pub const SESSION_CHARS_MAX: usize = 128;
/// Time for which a worker may be disconnected before its calls fail.
pub const WORKER_GRACE: Duration = Duration::from_secs(5);
/// Time that a worker has to come back after a restart before its calls fail.
pub const WORKER_RESTART_GRACE: Duration = Duration::from_secs(30);
/// Bytes of the arguments of a call that goes on after a restart, as JSON.
pub const CALL_KEPT_ARGUMENTS_BYTES_MAX: usize = 8 << 10;
/// Unsent bytes on a worker's connection above which it is given no more calls.
pub const WORKER_UNSENT_BYTES_MAX: usize = 64 << 10;
/// Bytes of one part of a result, as JSON.
pub const PART_BYTES_MAX: u64 = 256 << 10;
/// Bytes of the error text that a worker sends. The first [`ERROR_TEXT_BYTES_MAX`] bytes are kept.
pub const PART_ERROR_BYTES_MAX: u64 = 4 << 10;
/// Time for which a part waits for room. After that it is refused.
pub const PART_WAIT: Duration = Duration::from_secs(2);
/// Time after which a worker may retry a refused part.
pub const PART_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time without data after which a body of many parts is given up.
pub const PARTS_INACTIVITY: Duration = Duration::from_secs(60);
/// Parts of one body that are taken in one turn. Those behind them wait for the next.
pub const PARTS_PER_TURN: u32 = 64;
/// Longest time for which a part may wait to be gathered with others.
pub const GATHER_DELAY_MAX: Duration = COALESCE_DELAY_MAX;
/// Maximum number of bytes of gathered parts.
pub const GATHER_BYTES_MAX: u64 = 64 << 10;
/// Default of the time to gather.
pub const GATHER_DELAY_DEFAULT: Duration = Duration::from_millis(5);
/// Default of the bytes to gather.
pub const GATHER_BYTES_DEFAULT: u64 = 4 << 10;

const _: () = {
    assert!(GATHER_BYTES_MAX <= PART_BYTES_MAX); // What is held of a call is at most a part.
    assert!(PART_BYTES_MAX <= HTTP_BODY_BYTES_MAX);
    assert!(VIRTUAL_ARGUMENTS_BYTES_MAX as u64 <= HTTP_BODY_BYTES_MAX); // Else unreachable.
    assert!(VIRTUAL_DESCRIPTION_BYTES_MAX < VIRTUAL_TOOL_BYTES_MAX);
    assert!(WORKER_GRACE.as_nanos() < TIMEOUT_INACTIVITY.as_nanos()); // Its error comes first.
};

// --- Sockets -------------------------------------------------------------------------------------

/// Connections of one shard, unless the server's descriptors allow fewer.
pub const CONNECTIONS_MAX: u32 = 16_384;
/// Addresses that one shard listens on.
pub const LISTENERS_MAX: u32 = 16;
/// Connections that wait in the kernel to be accepted. `somaxconn` may reduce it.
pub const LISTEN_BACKLOG: u32 = 4_096;
/// Pause of a listener that found no free descriptor. It ends early when the shard closes one.
pub const LISTENER_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of one connection that the kernel may hold, sent and unacknowledged. It doubles the
/// number, and counts its own overhead: two full segments of loopback.
pub const SEND_BUFFER_BYTES: u32 = 256 << 10;
/// TCP_NOTSENT_LOWAT: unsent bytes above which the kernel accepts no more, so that a slow peer is
/// noticed here.
pub const TCP_NOT_SENT_BYTES: u32 = 16 << 10;
/// Slices of one system call: the kernel's UIO_MAXIOV.
pub const SEND_SLICES_MAX: usize = 1_024;
/// Seconds of silence after which a TCP peer is probed.
pub const KEEPALIVE_IDLE_S: u32 = 60;
/// Seconds between two probes.
pub const KEEPALIVE_INTERVAL_S: u32 = 15;
/// Unanswered probes after which the peer is given up.
pub const KEEPALIVE_COUNT: u32 = 4;
/// Maximum number of bytes of one receive of the mio backend. All connections share one such
/// buffer.
pub const RECEIVE_SCRATCH_BYTES: usize = 64 << 10;
/// Maximum number of bytes of one receive of the io_uring backend.
pub const RECEIVE_BUFFER_BYTES: u32 = 4 << 10;
/// Receive buffers of one shard for io_uring: 1 MiB. An idle connection holds none.
pub const RECEIVE_BUFFERS: u16 = 256;
/// Receive buffers that are in use at the start, and that are added whenever all are full.
pub const RECEIVE_BUFFERS_STEP: u16 = 32;

const _: () = {
    assert!(RECEIVE_BUFFERS.is_power_of_two()); // The kernel masks an index with it.
    assert!(RECEIVE_BUFFERS_STEP > 0 && RECEIVE_BUFFERS_STEP <= RECEIVE_BUFFERS);
    assert!(DOOR_SPIN.as_nanos() <= SPIN_DEFAULT.as_nanos()); // A sleeper has polled so long.
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
            class += 1; // Out of bounds (a build error) if it is not one of the classes.
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

/// Bytes of a request's id, and of a progress token, that a client may choose.
pub const MCP_ID_BYTES_MAX: usize = 256;
/// Bytes of a request's body.
pub const MCP_BODY_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a line on standard input.
pub const MCP_LINE_BYTES_MAX: usize = 1 << 20;
/// Longest delay of an answer behind the last notification of its call that can be set.
pub const STDIO_SETTLE_MAX: Duration = Duration::from_secs(10);
/// Spans that wait to be exported. Further ones are dropped and counted.
pub const SPANS_MAX: usize = 4_096;
/// Spans of one request to the collector.
pub const SPANS_PER_EXPORT_MAX: usize = 256;
/// Time for which a span waits to be exported together with others.
pub const SPANS_EXPORT_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two exports of the metrics, unless a setting says another.
pub const METRICS_EXPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Time that the collector may take for one step of an export.
pub const SPANS_EXPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections beside the standard streams. More would take longer to prepare.
pub const STDIO_CONNECTIONS_MAX: u64 = 256;
/// Bytes that a thread moves at once between a file or a terminal and a shard.
pub const STDIO_CARRY_BYTES: usize = 64 << 10;
/// Bytes of a result that is sent whole. A longer one is sent as its beginning and a stream.
pub const MCP_RESULT_BYTES_MAX: usize = 64 << 10;
/// Bytes of that beginning.
pub const MCP_SUMMARY_BYTES: usize = 8 << 10;
/// Bytes of one answer of `stream_read`, from the sift seed.
pub const MCP_READ_BYTES_MAX: usize = 32 << 10;
/// Time for which such an answer waits for data, from the sift seed.
pub const MCP_READ_WAIT: Duration = Duration::from_secs(5);
/// Open streams of one principal, on all shards together, from the sift seed.
pub const MCP_STREAMS_PER_PRINCIPAL_MAX: usize = 8;
/// Payload bytes that share one notification.
pub const MCP_NOTIFICATION_BYTES_MAX: usize = 16 << 10;
/// Bytes of chunks' text that a notification holds twice: as its message, and in each chunk. A
/// longer text is only in the message.
pub const MCP_TEXT_TWICE_BYTES_MAX: usize = 256;
/// Sessions of one shard. With tokens, each principal may have a quarter of them.
pub const MCP_SESSIONS_MAX: usize = 1_024;
/// Time without requests after which a session is removed.
pub const MCP_SESSION_IDLE: Duration = Duration::from_secs(3_600);
/// Requests of one session that are in progress.
pub const MCP_REQUESTS_PER_SESSION_MAX: usize = 256;
/// Resources, and tasks, that one session or one `subscriptions/listen` is subscribed to.
pub const MCP_SUBSCRIPTIONS_MAX: usize = 256;
/// Items on one page of a list.
pub const MCP_PAGE_ITEMS: usize = 100;
/// Bytes of a URI, and of any name.
pub const MCP_URI_BYTES_MAX: usize = 4 << 10;
/// Questions that a tool asks at once.
pub const MCP_QUESTIONS_MAX: usize = 16;
/// Bytes of the state that a tool may keep while its questions are answered, as JSON.
pub const MCP_STATE_BYTES_MAX: usize = 16 << 10;
/// Time that the answers may take.
pub const MCP_STATE_TTL: Duration = Duration::from_secs(3_600);
/// Time for which a client may cache the description of the server.
pub const MCP_CACHE_DISCOVER: Duration = Duration::from_secs(60);
/// Time for which a client may cache a list, which changes when a worker comes or goes.
pub const MCP_CACHE_LIST: Duration = Duration::from_secs(1);
/// Time for which a task is kept, unless its client names another.
pub const MCP_TASK_TTL_DEFAULT: Duration = RETENTION;
/// The longest such time that a client can name.
pub const MCP_TASK_TTL_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Interval at which a client should poll a task.
pub const MCP_TASK_POLL: Duration = Duration::from_millis(500);

const _: () = {
    assert!(MCP_SUMMARY_BYTES < MCP_RESULT_BYTES_MAX);
    assert!(2 * MCP_READ_BYTES_MAX <= MCP_RESULT_BYTES_MAX); // One is sent while the next is made.
    assert!(6 * MCP_READ_BYTES_MAX < MCP_LINE_BYTES_MAX); // JSON escapes a character in six.
    assert!(6 * MCP_RESULT_BYTES_MAX < MCP_LINE_BYTES_MAX);
    assert!(MCP_NOTIFICATION_BYTES_MAX <= MCP_READ_BYTES_MAX);
    assert!(MCP_TEXT_TWICE_BYTES_MAX < MCP_NOTIFICATION_BYTES_MAX); // The longer ones are worth it.
    // A sealed state fits in a line, in base 64.
    assert!(2 * MCP_STATE_BYTES_MAX < MCP_LINE_BYTES_MAX);
};

// The shard's own limits for it.

/// Requests of one shard that are in progress.
pub const MCP_CALLS_MAX: u32 = 2_048;
/// Outputs that are kept for answers, tasks and streams of MCP.
pub const MCP_KEEPS_MAX: u32 = 2_048;
/// Time for which a stream of MCP without a reader is kept. Its tool waits only for as long as for
/// any `block` subscriber.
pub const MCP_STREAM_IDLE: Duration = Duration::from_secs(600);
/// Time for which the answer for a client that was cut off is kept.
pub const MCP_ANSWER_KEPT: Duration = Duration::from_secs(300);
/// Number of such answers.
pub const MCP_ANSWERS_MAX: usize = 1_024;
/// Bytes of all such answers.
pub const MCP_ANSWERS_BYTES_MAX: usize = 16 << 20;
/// Time for which a final notification on lines is held back for its answer.
pub const MCP_WHOLE_HELD: Duration = Duration::from_millis(20);
/// Time for which requests on lines may continue after the end of input. Clients wait for a
/// program's end about twice as long before they kill it.
pub const MCP_LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Time that a client has to answer a tool's question.
pub const MCP_ASK_DEADLINE: Duration = Duration::from_secs(600);
/// Tasks of one principal, on all shards together.
pub const MCP_TASKS_MAX: usize = 256;
/// Interval at which subscribed resources are checked for changes.
pub const MCP_UPDATE_INTERVAL: Duration = Duration::from_secs(1);

const _: () = {
    assert!(MCP_RESULT_BYTES_MAX >= DELIVERY_BYTES_MAX as usize); // A delivery is taken whole.
    assert!(MCP_STREAM_IDLE.as_nanos() < EXECUTION_DURATION_MAX.as_nanos());
};
