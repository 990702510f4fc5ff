//! One request of a client that is not answered at once: who asked, where what it is told goes,
//! what it waits for, and how far its notifications are.
//!
//! Invariants (held by [`super::Mcp::audit`]):
//! - M3: a call is answered once: whoever answers takes it out of the table, or leaves nothing in
//!   it but the answer, for who comes back.
//! - M4: where a call's notifications go, its connection knows it, and nobody else's.

use serde_json::{Map, Value};

use super::sessions::SessionName;
use crate::base::{Handle, Principal, SubscriberId};
use crate::mcp::{Context, Level};
use crate::reactor::ConnectionId;
use crate::tool::{Question, Replies};

/// Who has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Asker {
    /// A session, of this shard or of another.
    Session(SessionName),
    /// A request that stands for itself, on this connection.
    Alone(ConnectionId),
}

/// Where what a call has to say goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlet {
    /// The answer of this connection, which is nothing yet: one message, or a stream.
    Open(ConnectionId),
    /// The stream that this connection's answer has become.
    Stream(ConnectionId),
    /// A connection of lines.
    Lines(ConnectionId),
    /// Nobody hears it now.
    Nowhere,
}

impl Outlet {
    pub fn connection(self) -> Option<ConnectionId> {
        match self {
            Outlet::Open(id) | Outlet::Stream(id) | Outlet::Lines(id) => Some(id),
            Outlet::Nowhere => None,
        }
    }
}

/// What it waits for.
#[derive(Debug)]
pub(super) enum Stage {
    /// The client's answers to what its tool asks.
    Asks(Box<Asks>),
    /// The output of its tool.
    Runs(Handle),
    /// The end of a task.
    Awaits(Handle),
    /// Something new behind this offset of a door.
    Reads(Handle, Option<u64>),
    /// Nothing: it is told of what it wants to know, until it goes.
    Listens,
    /// Who asked: this is the answer.
    Answered(Box<[u8]>),
}

/// A tool asks before it runs.
#[derive(Debug)]
pub(super) struct Asks {
    pub tool: String,
    pub arguments: Map<String, Value>,
    /// What is known by now, and what the tool wants to remember.
    pub replies: Replies,
    /// What is still to be answered, and by which name.
    pub open: Vec<(u64, Question)>,
}

/// How far its notifications are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached {
    /// The last number, if there was one.
    pub progress: Option<f64>,
    /// The last chunk that was told, and the bytes up to there.
    pub seq: u64,
    pub bytes: u64,
    /// Messages, each of which has a number.
    pub count: u64,
    /// Partial results.
    pub partials: u64,
}

impl Reached {
    /// A number that is above the one before: `wanted`, if it is.
    pub fn raise(&mut self, wanted: f64) -> f64 {
        let next = match self.progress {
            Some(last) if wanted <= last => last + last.abs().max(1.0) * 1e-9,
            _ => wanted,
        };
        self.progress = Some(next);
        next
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct McpCall {
    pub asker: Asker,
    pub owner: Principal,
    pub context: Context,
    pub outlet: Outlet,
    pub stage: Stage,
    /// Gives it what becomes notifications.
    pub notifier: Option<SubscriberId>,
    pub reached: Reached,
    /// Messages of the log that are less important are not told; `None`: none is.
    pub level: Option<Level>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_only_rise() {
        let mut reached = Reached::default();
        let told: Vec<f64> =
            [0.0, 0.0, 50.0, 50.0, 20.0, 1e12, 1e12].map(|wanted| reached.raise(wanted)).into();
        assert!(told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
        assert_eq!((told[0], told[2], told[5]), (0.0, 50.0, 1e12));
        let mut below = Reached::default();
        assert!(below.raise(-5.0) < below.raise(-5.0));
    }
}
