//! The turn of a server's shard. It takes what the reactor, the other shards and the clock have
//! brought, and passes each thing to the guest that it is for. At its end everything is sent.
//!
//! This module joins the guests: it may call all of them, and none of them calls it.
//!
//! - `sockets.rs` (received bytes, ends, losses), `admit.rs` (new connections).
//! - `requests.rs` (the requests of the HTTP API), `parts.rs` (those that all shards answer).
//! - `recall.rs` (those that name executions which only the disk has).
//! - `messages.rs` (other shards), `moves.rs` (connections from and to them), `remotes.rs` (their
//!   rings).
//! - `timers.rs` (deadlines), `flush.rs` (the end of the turn), `ends.rs` (the end of the server).

mod admit;
mod ends;
mod flush;
mod messages;
mod moves;
mod parts;
pub(in crate::server) mod recall;
mod remotes;
mod requests;
mod sockets;
mod timers;

pub(in crate::server) use ends::{close_connections, drain};
pub(in crate::server) use flush::{flush_connections, flush_if_due, note_ended};
pub(in crate::server) use messages::{on_message, settle_deaths};
pub(in crate::server) use parts::{metrics_of, process_metrics};
pub(in crate::server) use remotes::poll_remotes;
pub(in crate::server) use sockets::serve_sockets;
pub(in crate::server) use timers::fire_timers;
