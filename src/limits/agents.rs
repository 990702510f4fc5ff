//! Those of agents, their models, and the servers of these.

use std::time::Duration;

use super::HTTP_BODY_BYTES_MAX;

// --- Models --------------------------------------------------------------------------------------

/// What stands before the paths of a model's server.
pub const MODEL_PATH_BYTES_MAX: usize = 1 << 10;
/// The name of a model's server: what DNS allows.
pub const MODEL_HOST_BYTES_MAX: usize = 253;
/// A key for a model: tokens of clouds have thousands of characters.
pub const MODEL_KEY_BYTES_MAX: usize = 4 << 10;
/// A frame of a model's answer, and an answer that comes in one piece.
pub const MODEL_FRAME_BYTES_MAX: usize = 4 << 20;
/// All that a model says in one turn: text, reasoning, arguments, and what it wants back.
pub const MODEL_ANSWER_BYTES_MAX: usize = 8 << 20;
/// The arguments of one call.
pub const MODEL_ARGUMENTS_BYTES_MAX: usize = 1 << 20;
/// Calls of one turn.
pub const MODEL_CALLS_MAX: usize = 128;
/// Items of output in one answer.
pub const MODEL_ITEMS_MAX: usize = 1_024;
/// The id and the name of a call.
pub const MODEL_NAME_BYTES_MAX: usize = 512;
/// What is read of a refusal's body.
pub const MODEL_ERROR_BYTES_MAX: usize = 64 << 10;
/// What is quoted of what a model's server says about a failure.
pub const MODEL_ERROR_QUOTE_BYTES_MAX: usize = 512;
/// What Messages is told where nobody says how many tokens an answer may have: it has to be told.
pub const MODEL_TOKENS_DEFAULT: u32 = 8_192;
/// The longest name of a tool that every wire takes.
pub const MODEL_TOOL_NAME_BYTES_MAX: usize = 64;
/// How often a turn is asked for again at most, whatever a run says.
pub const MODEL_RETRIES_MAX: u32 = 8;
/// The longest that the first retry waits: how long is left to chance; each next one twice as long,
/// ...
pub const MODEL_RETRY_DELAY: Duration = Duration::from_millis(500);
/// ... up to this.
pub const MODEL_RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// The longest wait that a model's server can ask for; who asks for more is not waited for.
pub const MODEL_RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

const _: () = {
    assert!(MODEL_ARGUMENTS_BYTES_MAX <= MODEL_ANSWER_BYTES_MAX);
    assert!(MODEL_FRAME_BYTES_MAX <= MODEL_ANSWER_BYTES_MAX);
    assert!(MODEL_ERROR_QUOTE_BYTES_MAX < MODEL_ERROR_BYTES_MAX);
    assert!(AGENT_RETRIES <= MODEL_RETRIES_MAX);
    assert!(MODEL_RETRIES_MAX < 16); // A delay is doubled so often.
};

// --- Exchanges with their servers ----------------------------------------------------------------

/// How long it may take to find a model's server, connect, and agree on keys.
pub const MODEL_CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// How long a model may think before the first byte of its answer.
pub const MODEL_FIRST_BYTE_DEADLINE: Duration = Duration::from_secs(120);
/// How long it may be silent in the middle of one: providers send signs of life.
pub const MODEL_SILENCE_DEADLINE: Duration = Duration::from_secs(60);
/// How long one turn of a model may take altogether.
pub const MODEL_TOTAL_DEADLINE: Duration = Duration::from_secs(1_800);
/// When an address of a model's server has not answered for so long, the next one is tried, too.
pub const MODEL_CONNECT_STAGGER: Duration = Duration::from_millis(250);
/// Addresses of one name that are tried at most.
pub const MODEL_ADDRESSES_MAX: usize = 8;
/// How long the addresses of a name are used without asking again.
pub const MODEL_ADDRESSES_KEPT: Duration = Duration::from_secs(30);
/// Threads of one shard that ask for the addresses of names ...
pub const RESOLVER_THREADS_MAX: usize = 4;
/// ... and how long such a thread waits for the next name.
pub const RESOLVER_IDLE: Duration = Duration::from_secs(10);
/// Exchanges with models of one shard at once: one for each execution, and so many more.
pub const MODEL_EXCHANGES_SPARE: u32 = 64;
/// Servers of models that one shard knows at once.
pub const MODEL_SITES_MAX: u32 = 256;
/// Connections to one of them that are kept for the next request ...
pub const MODEL_KEPT_PER_SITE: usize = 64;
/// ... to all of them together ...
pub const MODEL_KEPT_MAX: usize = 512;
/// ... and for how long: shorter than what servers commonly keep theirs.
pub const MODEL_KEPT_IDLE: Duration = Duration::from_secs(30);
/// The rest of an answer that nobody wants any more has so long to come ...
pub const MODEL_DRAIN_DEADLINE: Duration = Duration::from_secs(1);
/// ... and so many bytes, and then its connection is kept, too ...
pub const MODEL_DRAIN_BYTES_MAX: usize = 64 << 10;
/// ... if no more than these are drained already.
pub const MODEL_DRAINED_MAX: usize = 512;
/// The longest answer of a model.
pub const MODEL_BODY_BYTES_MAX: u64 = 64 << 20;
/// Buffers for what was received and not heard yet that are kept, and how large each may be.
pub const MODEL_BUFFERS_KEPT: usize = 64;
/// See [`MODEL_BUFFERS_KEPT`].
pub const MODEL_BUFFER_BYTES_MAX: usize = 128 << 10;
/// Deadlines of exchanges that one turn sees to.
pub const MODEL_DEADLINES_PER_TURN: u32 = 64;

const _: () = {
    assert!(MODEL_CONNECT_STAGGER.as_nanos() < MODEL_CONNECT_DEADLINE.as_nanos());
    assert!(MODEL_KEPT_PER_SITE <= MODEL_KEPT_MAX);
};

// --- Runs ----------------------------------------------------------------------------------------

/// What a run is called.
pub const AGENT_ID_BYTES_MAX: usize = 64;
/// Tools that a run may call.
pub const AGENT_TOOLS_MAX: usize = 128;
/// The name of a tool.
pub const AGENT_TOOL_NAME_BYTES_MAX: usize = 64;
/// A model's id of a call; a longer one is replaced by one of ours.
pub const AGENT_CALL_ID_BYTES_MAX: usize = 128;
/// Tools of a run that run at once, by default.
pub const AGENT_PARALLEL_CALLS: u32 = 8;
/// Calls that are carried out in one step, by default.
pub const AGENT_CALLS_PER_STEP: u32 = 32;
/// The most that both can be set to.
pub const AGENT_CALLS_PER_STEP_MAX: u32 = 128;
/// Steps of a run, by default.
pub const AGENT_STEPS: u32 = 32;
/// The most that they can be set to.
pub const AGENT_STEPS_MAX: u32 = 10_000;
/// How long a run may take, by default.
pub const AGENT_DURATION: Duration = Duration::from_secs(3_600);
/// The most that it can be set to.
pub const AGENT_DURATION_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Bytes that a run streams, by default.
pub const AGENT_BYTES: u64 = 1 << 30;
/// Bytes that a turn can be told, by default.
pub const AGENT_CONVERSATION_BYTES: usize = 4 << 20;
/// The most that they can be set to.
pub const AGENT_CONVERSATION_BYTES_MAX: usize = 64 << 20;
/// Bytes of a tool's output that the model is told, by default.
pub const AGENT_OUTPUT_BYTES: usize = 64 << 10;
/// The most that they can be set to.
pub const AGENT_OUTPUT_BYTES_MAX: usize = 4 << 20;
/// How often a turn is asked for again, by default.
pub const AGENT_RETRIES: u32 = 4;
/// The longest JSON of a part, by default: what fits a chunk of a ring of 64 KiB.
pub const AGENT_PART_BYTES: usize = 11 << 10;
/// The least that it can be set to: ids, names and numbers fit, and some text.
pub const AGENT_PART_BYTES_MIN: usize = 2 << 10;
/// Words of an error, a problem or a reason in a part, before they are spelled in JSON.
pub const AGENT_WORDS_BYTES_MAX: usize = 512;
/// Parts that may wait to be taken; then no more is taken in. One event may make more of them.
pub const AGENT_PARTS_WAITING: usize = 64;
/// The text of one step, as whoever puts parts together keeps it.
pub const AGENT_FOLD_BYTES_MAX: usize = 8 << 20;

const _: () = {
    assert!(AGENT_PART_BYTES_MIN <= AGENT_PART_BYTES);
    assert!(AGENT_OUTPUT_BYTES <= AGENT_CONVERSATION_BYTES);
    assert!(AGENT_CALLS_PER_STEP <= AGENT_CALLS_PER_STEP_MAX);
    assert!(AGENT_PARALLEL_CALLS <= AGENT_CALLS_PER_STEP);
    assert!(AGENT_CALLS_PER_STEP_MAX as usize <= MODEL_CALLS_MAX);
    assert!(AGENT_FOLD_BYTES_MAX >= MODEL_ANSWER_BYTES_MAX); // Whoever folds has whole texts.
    assert!(AGENT_TOOL_NAME_BYTES_MAX <= MODEL_TOOL_NAME_BYTES_MAX);
};

// --- Runs on a shard -----------------------------------------------------------------------------

/// The ring of a run: some hundred deltas.
pub const AGENT_RING_BYTES: u32 = 64 << 10;
/// How long a run may be silent: longer than any model that is still waited for.
pub const AGENT_INACTIVITY: Duration = Duration::from_secs(600);
/// Chunks of one of its tools that a run takes at once.
pub const AGENT_TOOL_WINDOW_CHUNKS: u32 = 16;
/// Levels of agents that a run may have beneath it, if it says so.
pub const AGENT_DEPTH_MAX: u32 = 4;
/// What an agent is asked to do, or told to be.
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

/// A script.
pub const SCRIPT_BYTES_MAX: usize = 16 << 20;
/// Turns of a script.
pub const SCRIPT_TURNS_MAX: usize = 4_096;
/// One pause, and one pace.
pub const SCRIPT_PAUSE_MAX: Duration = Duration::from_secs(3_600);
/// A request to a scripted model: a long conversation.
pub const SCRIPT_BODY_BYTES_MAX: u64 = 16 << 20;
/// Bytes of all requests to it that have not been answered yet.
pub const SCRIPT_BODIES_BYTES_MAX: u64 = 256 << 20;
/// Bytes of an answer that wait to be sent; the script stands still behind them.
pub const SCRIPT_SEND_BYTES: usize = 64 << 10;
/// Bytes that may come behind a request while it is answered.
pub const SCRIPT_AHEAD_BYTES: usize = 64 << 10;
/// Different requests whose attempts are counted; then the oldest is forgotten.
pub const SCRIPT_ATTEMPTS_MAX: usize = 65_536;
/// What a plain answer, or one that repeats itself at its end, may have.
pub const SCRIPT_ANSWER_BYTES_MAX: usize = 64 << 20;
