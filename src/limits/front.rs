//! Limits of front ends: data of a stream that is kept for the formats of their clients.

use super::{AGENT_OUTPUT_BYTES, HTTP_BODIES_BYTES_MAX};

/// Bytes of a call's output that are kept for formats that repeat the whole output.
pub const FRONT_OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Minimum of new output before the whole output is sent again. It doubles each time.
pub const FRONT_SNAPSHOT_BYTES_MIN: usize = 1 << 10;
/// Bytes of a block's prose that are kept for formats that repeat it whole at its end.
pub const FRONT_PROSE_BYTES_MAX: usize = 1 << 20;
/// Bytes of the items of a response that are kept, because its end has all of them.
pub const FRONT_RESPONSE_BYTES_MAX: usize = 8 << 20;
/// Bytes of states of a run that are written, however short the newest one is. After them, all
/// together are at most 4 times as long as the newest.
pub const FRONT_STATES_BYTES_FREE: usize = 256 << 10;
/// The same for copies of one message.
pub const FRONT_COPIES_BYTES_FREE: usize = 16 << 10;
/// Bytes of a conversation that a thread remembers for its next run.
pub const FRONT_CONVERSATION_BYTES_MAX: usize = 64 << 10;
/// Bytes of a tool's arguments that are kept for clients of front ends.
pub const FRONT_ARGUMENTS_BYTES_MAX: usize = 16 << 10;
/// Tasks of A2A in one answer, unless its client wants fewer or more.
pub const TASKS_PAGE_DEFAULT: usize = 50;
/// Maximum number of tasks in one answer, as the specification of A2A has it.
pub const TASKS_PAGE_MAX: usize = 100;
/// Executions among which tasks are searched.
pub const TASKS_LISTED_MAX: u32 = 10_000;
/// Threads in one answer.
pub const LISTED_THREADS_MAX: usize = 1_000;
/// Bytes of a client's name for a thread, or for a run on it.
pub const THREAD_ID_BYTES_MAX: usize = 256;
/// Bytes of a conversation that a front end sends with each run, which includes the output of its
/// tools.
pub const CONVERSATION_BODY_BYTES_MAX: u64 = 8 << 20;

const _: () = {
    assert!(AGENT_OUTPUT_BYTES <= FRONT_OUTPUT_BYTES_MAX); // The model's output is sent whole.
    assert!(FRONT_SNAPSHOT_BYTES_MIN < FRONT_OUTPUT_BYTES_MAX);
    assert!(CONVERSATION_BODY_BYTES_MAX < HTTP_BODIES_BYTES_MAX as u64);
};
