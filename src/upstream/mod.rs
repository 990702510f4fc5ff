//! Stratum 6: MCP servers of others, whose tools are offered here as our own: to agents, over HTTP,
//! to clients of MCP, each call with as many subscribers as there are, replay and policies.
//!
//! What they say is understood in [`crate::mcp::upstream`], which has neither clock nor connection.
//! Here is what has: one program for each upstream ([`Place::Program`], on whose standard streams
//! many calls are under way at once), or one address ([`Place::Url`], where each call is an
//! exchange of its own). Nothing of it happens on a shard: a call waits on a thread for tools that
//! block, and publishes from there; a program has three threads of its own.
//!
//! | file | what it does |
//! |---|---|
//! | `spec` | what is known of an upstream before it is there |
//! | `house` | all of them: started together, offered, ended |
//! | `link`, `asks` | one of them: there, or not, or about to be; greeting and list |
//! | `program`, `inbox` | its process, and what has come of it for one call |
//! | `site` | its address: one exchange |
//! | `call` | one call, from its arguments to its end |
//! | `say` | what the log is told of it, and not too often |
//!
//! Invariants:
//! - U1: a call ends: with its answer, with the end of its upstream, or when it is stopped.
//! - U2: what waits for a call is at most [`limits::UPSTREAM_WAITING_BYTES_MAX`] and one message;
//!   until there is room, its upstream is not read.
//! - U3: a program is waited for when it has ended, and its group is killed before: nothing of it
//!   is left, and no stranger is killed.
//! - U4: a lock is never held while something is awaited that only another thread can bring about.
//!
//! [`limits::UPSTREAM_WAITING_BYTES_MAX`]: crate::limits::UPSTREAM_WAITING_BYTES_MAX
#![forbid(unsafe_code)]

mod asks;
mod call;
mod house;
mod inbox;
mod link;
mod program;
mod say;
mod site;
mod spec;

pub use house::{Upstreams, UpstreamsError};
pub use spec::{Key, Place, SpecError, UpstreamSpec, words_of};
