//! Limits of agents, of their models, and of the servers of these models.

use std::time::Duration;

use super::HTTP_BODY_BYTES_MAX;

// --- Models --------------------------------------------------------------------------------------

/// Bytes of the prefix of all paths of a model's server.
pub const MODEL_PATH_BYTES_MAX: usize = 1 << 10;
/// Bytes of the name of a model's server: the maximum of DNS.
pub const MODEL_HOST_BYTES_MAX: usize = 253;
/// Bytes of a key for a model. Tokens of clouds have thousands of characters.
pub const MODEL_KEY_BYTES_MAX: usize = 4 << 10;
/// Bytes of a frame of a model's answer, and of an answer that comes in one piece.
pub const MODEL_FRAME_BYTES_MAX: usize = 4 << 20;
/// Bytes of a model's answer in one turn: text, reasoning, arguments, and data to be sent back.
pub const MODEL_ANSWER_BYTES_MAX: usize = 8 << 20;
/// Bytes of the arguments of one call.
pub const MODEL_ARGUMENTS_BYTES_MAX: usize = 1 << 20;
/// Calls of one turn.
pub const MODEL_CALLS_MAX: usize = 128;
/// Items of output in one answer.
pub const MODEL_ITEMS_MAX: usize = 1_024;
/// Bytes of the id and of the name of a call.
pub const MODEL_NAME_BYTES_MAX: usize = 512;
/// Bytes of an error response's body that are read.
pub const MODEL_ERROR_BYTES_MAX: usize = 64 << 10;
/// Bytes of a model server's error text that are quoted.
pub const MODEL_ERROR_QUOTE_BYTES_MAX: usize = 512;
/// Maximum tokens of an answer for Messages, which requires a number, where none is configured.
pub const MODEL_TOKENS_DEFAULT: u32 = 8_192;
/// Bytes of the longest tool name that every wire accepts.
pub const MODEL_TOOL_NAME_BYTES_MAX: usize = 64;
/// Maximum number of retries of a turn, whatever a run configures.
pub const MODEL_RETRIES_MAX: u32 = 8;
/// Longest wait before the first retry. The wait is random below this bound, which doubles each
/// time.
pub const MODEL_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum of that bound.
pub const MODEL_RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// Longest wait that a model's server can request. If it requests more, the turn fails.
pub const MODEL_RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

const _: () = {
    assert!(MODEL_ARGUMENTS_BYTES_MAX <= MODEL_ANSWER_BYTES_MAX);
    assert!(MODEL_FRAME_BYTES_MAX <= MODEL_ANSWER_BYTES_MAX);
    assert!(MODEL_ERROR_QUOTE_BYTES_MAX < MODEL_ERROR_BYTES_MAX);
    assert!(AGENT_RETRIES <= MODEL_RETRIES_MAX);
    assert!(MODEL_RETRIES_MAX < 16); // A delay is doubled this often.
};

// --- Exchanges with the servers of models --------------------------------------------------------

/// Time to resolve a model's server, connect, and complete the TLS handshake.
pub const MODEL_CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Time that a model may take before the first byte of its answer.
pub const MODEL_FIRST_BYTE_DEADLINE: Duration = Duration::from_secs(120);
/// Time for which it may be silent within an answer: providers send keep-alives.
pub const MODEL_SILENCE_DEADLINE: Duration = Duration::from_secs(60);
/// Time that one turn of a model may take altogether.
pub const MODEL_TOTAL_DEADLINE: Duration = Duration::from_secs(1_800);
/// Time without a connection to one address of a server after which the next one is tried, too.
pub const MODEL_CONNECT_STAGGER: Duration = Duration::from_millis(250);
/// Maximum number of addresses of one name that are tried.
pub const MODEL_ADDRESSES_MAX: usize = 8;
/// Time for which the addresses of a name are cached.
pub const MODEL_ADDRESSES_KEPT: Duration = Duration::from_secs(30);
/// Threads of one shard that resolve names.
pub const RESOLVER_THREADS_MAX: usize = 4;
/// Time for which such a thread waits for the next name.
pub const RESOLVER_IDLE: Duration = Duration::from_secs(10);
/// Exchanges with models of one shard at once, beyond one for each execution.
pub const MODEL_EXCHANGES_SPARE: u32 = 64;
/// Servers of models that one shard knows at once.
pub const MODEL_SITES_MAX: u32 = 256;
/// Idle connections to one of them that are kept for reuse.
pub const MODEL_KEPT_PER_SITE: usize = 64;
/// Idle connections to all of them that are kept for reuse.
pub const MODEL_KEPT_MAX: usize = 512;
/// Time for which these are kept. It is shorter than what servers commonly use.
pub const MODEL_KEPT_IDLE: Duration = Duration::from_secs(30);
/// Time for the rest of an answer that is no longer wanted. After it the connection is closed.
pub const MODEL_DRAIN_DEADLINE: Duration = Duration::from_secs(1);
/// Bytes of such a rest that are read, so that the connection can be kept.
pub const MODEL_DRAIN_BYTES_MAX: usize = 64 << 10;
/// Connections whose rest is read at the same time.
pub const MODEL_DRAINED_MAX: usize = 512;
/// Bytes of the longest answer of a model.
pub const MODEL_BODY_BYTES_MAX: u64 = 64 << 20;
/// Free buffers for received bytes that are kept for reuse.
pub const MODEL_BUFFERS_KEPT: usize = 64;
/// Size of the largest such buffer that is kept.
pub const MODEL_BUFFER_BYTES_MAX: usize = 128 << 10;
/// Deadlines of exchanges that one turn handles.
pub const MODEL_DEADLINES_PER_TURN: u32 = 64;

const _: () = {
    assert!(MODEL_CONNECT_STAGGER.as_nanos() < MODEL_CONNECT_DEADLINE.as_nanos());
    assert!(MODEL_KEPT_PER_SITE <= MODEL_KEPT_MAX);
};

// --- Runs ----------------------------------------------------------------------------------------

/// Bytes of a run's id.
pub const AGENT_ID_BYTES_MAX: usize = 64;
/// Tools that a run may call.
pub const AGENT_TOOLS_MAX: usize = 128;
/// Bytes of a tool's name.
pub const AGENT_TOOL_NAME_BYTES_MAX: usize = 64;
/// Bytes of a model's id of a call. A longer id is replaced by one of our own.
pub const AGENT_CALL_ID_BYTES_MAX: usize = 128;
/// Tool calls of a run that run at once, by default.
pub const AGENT_PARALLEL_CALLS: u32 = 8;
/// Calls that are carried out in one step, by default.
pub const AGENT_CALLS_PER_STEP: u32 = 32;
/// Maximum of both settings.
pub const AGENT_CALLS_PER_STEP_MAX: u32 = 128;
/// Steps of a run, by default.
pub const AGENT_STEPS: u32 = 32;
/// Maximum number of steps that can be set.
pub const AGENT_STEPS_MAX: u32 = 10_000;
/// Time that a run may take, by default.
pub const AGENT_DURATION: Duration = Duration::from_secs(3_600);
/// Maximum of that time that can be set.
pub const AGENT_DURATION_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Bytes that a run streams, by default.
pub const AGENT_BYTES: u64 = 1 << 30;
/// Bytes of the conversation that is sent in a turn, by default.
pub const AGENT_CONVERSATION_BYTES: usize = 4 << 20;
/// Maximum of these bytes that can be set.
pub const AGENT_CONVERSATION_BYTES_MAX: usize = 64 << 20;
/// Bytes of a tool's output that are sent to the model, by default.
pub const AGENT_OUTPUT_BYTES: usize = 64 << 10;
/// Maximum of these bytes that can be set.
pub const AGENT_OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Number of retries of a turn, by default.
pub const AGENT_RETRIES: u32 = 4;
/// Bytes of the longest JSON of a part, by default: what fits a chunk of a ring of 64 KiB.
pub const AGENT_PART_BYTES: usize = 11 << 10;
/// Minimum of these bytes that can be set: ids, names and numbers fit, and some text.
pub const AGENT_PART_BYTES_MIN: usize = 2 << 10;
/// Bytes of an error, a problem or a reason in a part, before JSON escaping.
pub const AGENT_WORDS_BYTES_MAX: usize = 512;
/// Pending parts above which no more input is taken. One event may produce more of them.
pub const AGENT_PARTS_WAITING: usize = 64;
/// Bytes of the text of one step that a client keeps when it assembles parts.
pub const AGENT_FOLD_BYTES_MAX: usize = 8 << 20;

const _: () = {
    assert!(AGENT_PART_BYTES_MIN <= AGENT_PART_BYTES);
    assert!(AGENT_OUTPUT_BYTES <= AGENT_CONVERSATION_BYTES);
    assert!(AGENT_CALLS_PER_STEP <= AGENT_CALLS_PER_STEP_MAX);
    assert!(AGENT_PARALLEL_CALLS <= AGENT_CALLS_PER_STEP);
    assert!(AGENT_CALLS_PER_STEP_MAX as usize <= MODEL_CALLS_MAX);
    assert!(AGENT_FOLD_BYTES_MAX >= MODEL_ANSWER_BYTES_MAX); // A fold has whole texts.
    assert!(AGENT_TOOL_NAME_BYTES_MAX <= MODEL_TOOL_NAME_BYTES_MAX);
};

// --- Runs on a shard -----------------------------------------------------------------------------

/// Ring size of a run: some hundred deltas.
pub const AGENT_RING_BYTES: u32 = 64 << 10;
/// Time for which a run may be silent, longer than the deadline of any model.
pub const AGENT_INACTIVITY: Duration = Duration::from_secs(600);
/// Chunks of one of its tools that a run takes at once.
pub const AGENT_TOOL_WINDOW_CHUNKS: u32 = 16;
/// Maximum depth of agents beneath a run that can be set.
pub const AGENT_DEPTH_MAX: u32 = 4;
/// Bytes of an agent's task, or of its instructions.
pub const AGENT_TEXT_BYTES_MAX: usize = 256 << 10;
/// Messages that a run begins with.
pub const AGENT_MESSAGES_MAX: usize = 1_024;
/// Models of a server.
pub const MODELS_MAX: usize = 64;

const _: () = {
    assert!(MODEL_FIRST_BYTE_DEADLINE.as_nanos() < AGENT_INACTIVITY.as_nanos());
    assert!(AGENT_TEXT_BYTES_MAX as u64 <= HTTP_BODY_BYTES_MAX);
    assert!(AGENT_TOOL_WINDOW_CHUNKS > 1);
};

// --- Scripted models -----------------------------------------------------------------------------

/// Bytes of a script.
pub const SCRIPT_BYTES_MAX: usize = 16 << 20;
/// Turns of a script.
pub const SCRIPT_TURNS_MAX: usize = 4_096;
/// Longest pause, and longest pace.
pub const SCRIPT_PAUSE_MAX: Duration = Duration::from_secs(3_600);
/// Bytes of a request to a scripted model: a long conversation.
pub const SCRIPT_BODY_BYTES_MAX: u64 = 16 << 20;
/// Bytes of all requests to it that have not been answered yet.
pub const SCRIPT_BODIES_BYTES_MAX: u64 = 256 << 20;
/// Unsent bytes of an answer above which the script waits.
pub const SCRIPT_SEND_BYTES: usize = 64 << 10;
/// Bytes that may follow a request while it is answered.
pub const SCRIPT_AHEAD_BYTES: usize = 64 << 10;
/// Different requests whose attempts are counted. Beyond these the oldest is forgotten.
pub const SCRIPT_ATTEMPTS_MAX: usize = 65_536;
/// Bytes of an answer that is not streamed, or that repeats itself at its end.
pub const SCRIPT_ANSWER_BYTES_MAX: usize = 64 << 20;
