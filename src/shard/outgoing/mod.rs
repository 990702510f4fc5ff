//! HTTP/1.1 to the servers of models, on the shard's own reactor.
//!
//! An exchange is one request and its answer. Nothing here waits, and nothing knows what the bytes
//! mean: the request comes whole, and of the answer are told the head, the body as it comes, and
//! exactly one end. Whoever gives an exchange up hears nothing more of it, and its connection is
//! closed at once.
//!
//! A connection is kept for the next exchange with the same server. One that turns out to have
//! been closed meanwhile, in good order and before a byte of an answer, costs nothing: its exchange
//! is repeated once, on a new one. Nothing else is ever sent twice here; that is for whoever knows
//! what a request does.
//!
//! Deliberately absent: redirects (an error says where one pointed), proxies (their variables in
//! the environment are not looked at), compression (an answer that has it is an error), HTTP/2,
//! cookies. Requests hold keys: they are never logged, and `Debug` shows how long they are.
//!
//! Reading order: here, what a shard's owner asks for; `client.rs`, the machine; `answer.rs`, bytes
//! both ways; `exchange.rs`, `line.rs` and `site.rs`, its tables; `resolve.rs` and `tls/`.
//! Tests: `tests.rs` (real servers on loopback, both reactors), `tls/tests.rs`,
//! `sim/outgoing_tests.rs` (a seeded world).

mod answer;
mod client;
mod config;
mod exchange;
mod line;
mod resolve;
mod site;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls/absent.rs"]
mod tls;

pub(super) use client::Outgoing;
pub use config::OutgoingConfig;
#[cfg(feature = "tls")]
pub use tls::Roots;

use std::fmt;
use std::time::Duration;

use super::Shard;
use crate::agent::NetFault;
use crate::base::{Handle, Instant};
use crate::limits;
use crate::reactor::Reactor;

/// Whom to ask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// Is it `https`?
    pub is_tls: bool,
    /// A name, or an address without brackets.
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

/// How long an exchange may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// To find its address, connect, and agree on keys.
    pub connect: Duration,
    /// From then on until the first byte of an answer.
    pub first_byte: Duration,
    /// Between two pieces of an answer, while it is read.
    pub between_bytes: Duration,
    /// Altogether.
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

/// One exchange of one shard. Once its end was heard, or it was dropped, it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ExchangeId(pub Handle);

/// What was heard of an exchange: a head, then its body in pieces, then one of two ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// An answer begins.
    Head {
        status: u16,
        retry_after: Option<Box<str>>,
        retry_after_ms: Option<Box<str>>,
        content_type: Option<Box<str>>,
    },
    /// The next bytes of its body; never none. They are in the buffer that was handed in.
    Body,
    /// The answer is whole.
    End,
    /// There is no more of it, or nothing at all.
    Broken(NetFault),
}

impl<R: Reactor + 'static> Shard<R> {
    /// Sends a whole request, and tells of its answer through [`Shard::next_heard`]. What goes
    /// wrong is told there, too. Sockets are opened with the first one.
    pub(crate) fn ask_outside(
        &mut self,
        to: &Target,
        request: Vec<u8>,
        deadlines: Deadlines,
    ) -> ExchangeId {
        let now = self.reactor.now();
        if self.outgoing.is_none() {
            // Should there be none, the exchange is told so.
            let _ = self.reactor.open_sockets(self.socket_limits);
            let (executions_max, waker) = (self.runs.len() as u32, self.reactor.waker());
            let made = Outgoing::new(&self.agents.outgoing, executions_max, waker, now);
            self.outgoing = Some(Box::new(made));
        }
        let outgoing = self.outgoing.as_mut().expect("just made");
        let id = outgoing.ask(to, request, deadlines, now);
        outgoing.settle(&mut self.reactor, now);
        id
    }

    /// Gives an exchange up: its connection is closed now, and nothing more is heard of it.
    pub(crate) fn drop_exchange(&mut self, id: ExchangeId) {
        self.with_outgoing(|outgoing, _| outgoing.drop_exchange(id));
    }

    /// Nothing more is heard of an exchange whose answer has said all that there is to say. Its
    /// connection is kept for others if the rest of it, which is thrown away, comes soon.
    pub(crate) fn release_exchange(&mut self, id: ExchangeId) {
        self.with_outgoing(|outgoing, now| outgoing.release_exchange(id, now));
    }

    /// Whether more of the answer is received; true at first. What has come is still heard.
    pub(crate) fn set_exchange_reading(&mut self, id: ExchangeId, is_reading: bool) {
        self.with_outgoing(|outgoing, now| outgoing.set_reading(id, is_reading, now));
    }

    /// What was heard next. `body` is handed in empty; with [`Heard::Body`] the bytes are in it,
    /// and its memory is handed back with the next call.
    pub(crate) fn next_heard(&mut self, body: &mut Vec<u8>) -> Option<(ExchangeId, Heard)> {
        self.outgoing.as_mut()?.next_heard(body)
    }

    /// Fires what is due of exchanges.
    pub(super) fn fire_outgoing_timers(&mut self) {
        let now = self.now;
        let Some(outgoing) = &mut self.outgoing else { return };
        if outgoing.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.worked = true;
            self.with_outgoing(|outgoing, _| outgoing.fire(now));
        }
    }

    /// Does with the reactor what follows from what was heard.
    pub(super) fn settle_outgoing(&mut self) {
        self.with_outgoing(|_, _| {});
    }

    /// Closes every connection to a model. For the end of a shard.
    pub(super) fn close_outgoing(&mut self) {
        self.with_outgoing(|outgoing, _| outgoing.close_all());
    }

    fn with_outgoing(&mut self, change: impl FnOnce(&mut Outgoing, Instant)) {
        let Some(outgoing) = &mut self.outgoing else { return };
        let now = self.now;
        change(outgoing, now);
        outgoing.settle(&mut self.reactor, now);
    }
}
