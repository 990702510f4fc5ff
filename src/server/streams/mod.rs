//! Streams: a connection that follows executions, of its own shard or of others, in any format.
//!
//! - `follow.rs` makes a request into subscribers and begins the reply; `attached.rs` is the state
//!   in between.
//! - `front.rs` does this for the formats of front ends.
//! - `output.rs` answers with the payload alone.
//! - `join.rs` gives readers to other shards, and begins the streams for which readers were asked.

pub(in crate::server) mod attached;
pub(in crate::server) mod follow;
pub(in crate::server) mod front;
mod join;
mod output;

pub(in crate::server) use follow::{
    attach_connection, begin, cancel_with, follow, follow_new, follow_with, unfollow,
};
pub(in crate::server) use front::{follow_in_words, front_of, give_held};
pub(in crate::server) use join::{join_for, join_late, on_joined};
pub(in crate::server) use output::{end_whole, gather_kept, held_payload, send_output};
