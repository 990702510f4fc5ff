//! Stratum 6: external MCP servers, whose tools are offered here as our own, over HTTP, to MCP
//! clients and to agents. Each call has any number of subscribers, with replay and policies.
//!
//! Their protocol is implemented in [`crate::mcp::upstream`], which has neither a clock nor a
//! connection. This module has both. An upstream is a program ([`UpstreamPlace::Program`]), with
//! many concurrent calls on its standard streams. Or it is a URL ([`UpstreamPlace::Url`]), where
//! each call is an exchange of its own. Nothing of it runs on a shard. A call waits on a thread for
//! tools that block, and publishes from there. A program has three threads of its own.
//!
//! | file | contents |
//! |---|---|
//! | `spec` | the description of an upstream |
//! | `upstreams` | all upstreams: their start, their tools, their end |
//! | `link`, `transport` | one upstream: its connection state; the greeting and the list of tools |
//! | `program`, `inbox` | its process; the received messages of one call |
//! | `http` | its URL: one exchange |
//! | `call` | one call, from its arguments to its end |
//! | `log` | its log records, with a rate limit |
//!
//! Invariants:
//! - U1: A call ends: with its answer, with the end of its upstream, or when it is stopped.
//! - U2: At most [`limits::UPSTREAM_WAITING_BYTES_MAX`] and one message wait for a call. Until
//!   there is room, its upstream is not read.
//! - U3: A program is reaped when it has ended, after its group was killed. None of its processes
//!   is left, and no unrelated process is killed.
//! - U4: A thread that waits for another thread holds no lock.
//!
//! [`limits::UPSTREAM_WAITING_BYTES_MAX`]: crate::limits::UPSTREAM_WAITING_BYTES_MAX
#![forbid(unsafe_code)]

mod call;
mod http;
mod inbox;
mod link;
mod log;
mod program;
mod spec;
mod transport;
mod upstreams;

pub use spec::{Key, SpecError, UpstreamPlace, UpstreamSpec, words_of};
pub use upstreams::{Upstreams, UpstreamsError};
