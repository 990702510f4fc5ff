//! Those of front ends: what is kept of a stream to tell it as their clients want it.

use super::{AGENT_OUTPUT_BYTES, HTTP_BODIES_BYTES_MAX};

/// Output of a call that is kept for formats that tell it whole, again and again.
pub const FRONT_OUTPUT_BYTES_MAX: usize = 1 << 20;
/// The least output between two times that it is told whole; then twice as much, and so on.
pub const FRONT_SNAPSHOT_BYTES_MIN: usize = 1 << 10;
/// Prose of a block that is kept for formats that tell it whole at its end.
pub const FRONT_PROSE_BYTES_MAX: usize = 1 << 20;
/// Arguments of a tool that are kept for who is told in the words of a front end what it runs with.
pub const FRONT_ARGUMENTS_BYTES_MAX: usize = 16 << 10;
/// What a client calls a thread, or a run on it.
pub const THREAD_ID_BYTES_MAX: usize = 256;
/// A conversation that a front end sends with each run: what its tools have put out is in it.
pub const CONVERSATION_BODY_BYTES_MAX: u64 = 8 << 20;

const _: () = {
    assert!(AGENT_OUTPUT_BYTES <= FRONT_OUTPUT_BYTES_MAX); // What the model is told is told whole.
    assert!(FRONT_SNAPSHOT_BYTES_MIN < FRONT_OUTPUT_BYTES_MAX);
    assert!(CONVERSATION_BODY_BYTES_MAX < HTTP_BODIES_BYTES_MAX as u64);
};
