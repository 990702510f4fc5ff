//! The calls of the HTTP API that run tools, wait for results, and name conversations.
//!
//! `answer.rs` runs tools and answers with results. `keys.rs` recognizes repeated requests.
//! `threads.rs` handles the requests of front ends that name a conversation. Others know an
//! execution as a response (`responses.rs`), a run of LangGraph (`runs.rs`) or a task (`tasks.rs`).
//! `memory.rs` has the conversation with which a run goes on, and `held.rs` the object of a run.

pub(in crate::server) mod answer;
mod held;
mod keys;
mod memory;
mod responses;
mod runs;
mod tasks;
mod threads;

pub use keys::Keys;

pub(in crate::server) use answer::{
    answer_late, answer_waiting, await_result, cancel_call, enter_thread, run_remembering, run_tool,
};
pub(in crate::server) use responses::ask_response;
pub(in crate::server) use runs::assistants;
pub(in crate::server) use tasks::{ask_task, card, list_part, page};
pub(in crate::server) use threads::{
    ask_thread, cut_waiting, end_threads, home_of_memory, home_of_named,
};
