//! HTTP/1.1 to the servers of models, on the shard's own reactor.
//!
//! An exchange is one request and its answer. Nothing here blocks, and nothing knows what the bytes
//! mean. The request is given as a whole. The answer is reported as a head, the body as it comes,
//! and exactly one end. A dropped exchange reports nothing more, and its connection is closed at
//! once.
//!
//! A connection is kept for the next exchange with the same server. The server may have closed it
//! meanwhile, in good order and before a byte of an answer. The exchange is then repeated once, on
//! a new connection. Nothing else is ever sent twice here. Other retries are left to the caller,
//! which knows what a request does.
//!
//! Deliberately absent: redirects (an error names the target), proxies (their environment variables
//! are ignored), compression (a compressed answer is an error), HTTP/2, cookies. Requests hold
//! keys: they are never logged, and `Debug` shows only their length.
//!
//! Reading order: this file, the shard's interface; `client.rs`, the state machine; `answer.rs`,
//! the traffic. Then `exchange.rs`, `line.rs` and `origin.rs`, its tables; `resolve.rs` and `tls/`.
//! Tests: `tests/` (real servers on loopback, both reactors), `tls/tests.rs`,
//! `sim/outgoing_tests.rs` (a seeded world).

mod answer;
mod client;
mod config;
mod exchange;
mod line;
mod origin;
mod resolve;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls/absent.rs"]
mod tls;

use std::fmt;
use std::time::Duration;

pub(in crate::server) use client::Outgoing;
pub use config::OutgoingConfig;
#[cfg(feature = "tls")]
pub use tls::Roots;

use crate::agent::NetFault;
use crate::base::{Handle, Instant};
use crate::limits;
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::wire::subscriptions::Reach;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// True for `https`.
    pub is_tls: bool,
    /// A name, or an IP address without brackets.
    pub host: Box<str>,
    pub port: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(out, "[{}]:{}", self.host, self.port),
            false => write!(out, "{}:{}", self.host, self.port),
        }
    }
}

/// The part of the server that an exchange is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A run of an agent, or the caller of [`ask_outside`].
    #[default]
    Agent,
    /// A subscription, which sends a webhook.
    Subscription,
}

/// Number of kinds of [`Asker`].
const ASKERS: usize = 2;

/// The deadlines of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// Time to resolve the name, connect, and complete the TLS handshake.
    pub connect: Duration,
    /// Time from then on until the first byte of an answer.
    pub first_byte: Duration,
    /// Time between two pieces of an answer, while it is read.
    pub between_bytes: Duration,
    /// Time for the whole exchange.
    pub total: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines {
            connect: limits::MODEL_CONNECT_DEADLINE,
            first_byte: limits::MODEL_FIRST_BYTE_DEADLINE,
            between_bytes: limits::MODEL_SILENCE_DEADLINE,
            total: limits::MODEL_TOTAL_DEADLINE,
        }
    }
}

/// The id of one exchange of one shard. It becomes invalid when the end was reported or the
/// exchange was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ExchangeId(pub Handle);

/// The owner of the socket of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Belongs {
    /// It is a connection to a server of a model, and the event was handled.
    Here,
    /// It is none of these.
    Elsewhere,
}

/// An event of an exchange: one head, then pieces of the body, then one of two ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResponseEvent {
    /// The head of the answer.
    Head {
        status: u16,
        retry_after: Option<Box<str>>,
        retry_after_ms: Option<Box<str>>,
        content_type: Option<Box<str>>,
    },
    /// The next bytes of the body, at least one. They are in the buffer that the caller passed.
    Body,
    /// The answer is complete.
    End,
    /// The exchange has failed: no more of the answer comes.
    Broken(NetFault),
}

/// Starts to send a whole request. [`poll_response`] reports its answer or its failure. The
/// first request opens the reactor's sockets.
pub(crate) fn ask_outside<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    to: &Target,
    request: Vec<u8>,
    deadlines: Deadlines,
) -> ExchangeId {
    ask_within(shard, (to, &Reach::Anywhere), request, deadlines, Asker::Agent)
}

/// Does the same as [`ask_outside`] for this part of the server. It connects only to addresses
/// within this reach.
pub(crate) fn ask_within<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    (to, reach): (&Target, &Reach),
    request: Vec<u8>,
    deadlines: Deadlines,
    asker: Asker,
) -> ExchangeId {
    let now = shard.reactor.now();
    if shard.guests.outgoing.is_none() {
        // If that fails, the exchange fails too.
        let _ = shard.reactor.open_sockets(shard.guests.socket_limits);
        let (executions_max, waker) = (shard.runs.capacity(), shard.reactor.waker());
        let made = Outgoing::new(&shard.guests.outgoing_config, executions_max, waker, now);
        shard.guests.outgoing = Some(Box::new(made));
    }
    let outgoing = shard.guests.outgoing.as_mut().expect("just made");
    let id = outgoing.ask((to, reach), request, deadlines, (asker, now));
    outgoing.settle(&mut shard.reactor, now);
    id
}

/// Drops an exchange: its connection is closed now, and it reports nothing more.
pub(crate) fn drop_exchange<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExchangeId) {
    with_outgoing(shard, |outgoing, _| outgoing.drop_exchange(id));
}

/// Drops an exchange whose answer holds nothing more of interest. Its connection is kept for
/// others if the rest of the answer, which is discarded, comes soon.
pub(crate) fn release_exchange<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExchangeId) {
    with_outgoing(shard, |outgoing, now| outgoing.release_exchange(id, now));
}

/// Sets whether more of the answer is received, which is true at first. Received bytes are
/// still reported.
pub(crate) fn set_exchange_reading<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExchangeId,
    is_reading: bool,
) {
    with_outgoing(shard, |outgoing, now| outgoing.set_reading(id, is_reading, now));
}

/// Returns the next event of an exchange of an agent. `body` has to be empty. With
/// [`ResponseEvent::Body`], the bytes are in it, and the next call reuses its memory.
pub(crate) fn poll_response<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    body: &mut Vec<u8>,
) -> Option<(ExchangeId, ResponseEvent)> {
    shard.guests.outgoing.as_mut()?.poll_response(Asker::Agent, body)
}

/// Does the same as [`poll_response`] for exchanges of this part of the server.
pub(crate) fn poll_response_for<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    asker: Asker,
    body: &mut Vec<u8>,
) -> Option<(ExchangeId, ResponseEvent)> {
    shard.guests.outgoing.as_mut()?.poll_response(asker, body)
}

/// Handles expired deadlines of exchanges.
pub(in crate::server) fn fire_outgoing_timers<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    let Some(outgoing) = &mut shard.guests.outgoing else { return };
    if outgoing.next_deadline().is_some_and(|deadline| deadline <= now) {
        shard.worked = true;
        with_outgoing(shard, |outgoing, _| outgoing.fire(now));
    }
}

/// Makes the reactor's calls that follow from events of sockets.
pub(in crate::server) fn settle_outgoing<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    with_outgoing(shard, |_, _| {});
}

/// Closes all connections to models' servers. For the end of a shard.
pub(in crate::server) fn close_outgoing<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    with_outgoing(shard, |outgoing, _| outgoing.close_all());
}

fn with_outgoing<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    change: impl FnOnce(&mut Outgoing, Instant),
) {
    let Some(outgoing) = &mut shard.guests.outgoing else { return };
    let now = shard.now;
    change(outgoing, now);
    outgoing.settle(&mut shard.reactor, now);
}
