//! The calls of the HTTP API that run tools, wait for results, and name conversations.
//!
//! `answer.rs` runs tools and answers with results. `threads.rs` handles the requests of front
//! ends that name a conversation.

pub(in crate::server) mod answer;
mod threads;

pub(in crate::server) use answer::{
    answer_late, answer_waiting, await_result, cancel_call, run_tool,
};
pub(in crate::server) use threads::{ask_thread, cut_waiting, end_threads, home_of_thread};
