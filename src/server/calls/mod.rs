//! The calls of the HTTP API that run tools, wait for results, and name conversations.
//!
//! `answer.rs` runs tools and answers with results. `keys.rs` recognizes repeated requests.
//! `threads.rs` handles the requests of front ends that name a conversation, and `responses.rs`
//! those that know an execution as a response.

pub(in crate::server) mod answer;
mod keys;
mod responses;
mod threads;

pub use keys::Keys;

pub(in crate::server) use answer::{
    answer_late, answer_waiting, await_result, cancel_call, enter_thread, run_tool,
};
pub(in crate::server) use responses::ask_response;
pub(in crate::server) use threads::{ask_thread, cut_waiting, end_threads, home_of_named};
