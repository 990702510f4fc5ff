//! The calls of the HTTP API: what is carried out here, and how it is answered.
//!
//! `answer.rs` carries out calls, `owner.rs` says which principal may make them, and `threads.rs`
//! handles the requests of front ends that name a conversation (`conversations.rs`).

pub(in crate::server) mod answer;
pub(in crate::server) mod conversations;
mod owner;
mod threads;

pub(in crate::server) use answer::{
    answer, answer_error, answer_late, answer_waiting, carry_out_call, describe, list_executions,
    served_ring_bytes, tool_name,
};
pub(in crate::server) use owner::{is_owned, principal_of};
pub(in crate::server) use threads::{cut_waiting, end_threads, home_of_thread};

/// The state of a request that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Answered {
    /// Its reply is complete.
    Now,
    /// Its reply comes later, or is a stream that has begun.
    Later,
}

impl Answered {
    /// True if the reply is complete.
    pub fn is_now(self) -> bool {
        self == Answered::Now
    }
}
