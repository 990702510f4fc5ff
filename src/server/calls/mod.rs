//! The calls of the HTTP API: what is carried out here, and how it is answered.
//!
//! `answer.rs` carries out calls, `owner.rs` says which principal may make them, and `threads.rs`
//! handles the requests of front ends that name a conversation (`conversations.rs`).

pub(in crate::server) mod answer;
pub(in crate::server) mod conversations;
mod owner;
mod threads;
