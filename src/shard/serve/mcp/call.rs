//! One request of a client that is not answered at once: who asked, where what it is told goes,
//! what it waits for, and how far its notifications are.
//!
//! Invariants (held by [`super::Mcp::audit`]):
//! - M3: a call is answered once: whoever answers takes it out of the table, or leaves nothing in
//!   it but the answer, for who comes back.
//! - M4: where a call's notifications go, its connection knows it, and nobody else's.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::sessions::SessionName;
use crate::base::{ExecutionId, Handle, Principal, SubscriberId};
use crate::engine::wheel::TimerId;
use crate::mcp::progress::Rising;
use crate::mcp::{Context, Filter, Level};
use crate::reactor::ConnectionId;
use crate::shard::Chunk;
use crate::tool::{Question, ToolSpec};
use crate::wire::jsonrpc::Id;

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
    Listens(Box<Filter>),
    /// It is about to run.
    Begins,
    /// Who asked: this is the answer.
    Answered(Box<[u8]>),
}

/// A tool asks before it runs.
#[derive(Debug)]
pub(super) struct Asks {
    pub spec: Arc<ToolSpec>,
    pub arguments: Value,
    /// What was answered of what it asks now.
    pub answers: Map<String, Value>,
    /// What it wants to be told again.
    pub state: Option<Value>,
    /// What is still to be answered, and by which name.
    pub open: Vec<(u64, Question)>,
    /// So often it has asked.
    pub rounds: u32,
}

/// How far its notifications are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached {
    pub rising: Rising,
    /// The tool's last report that was told.
    pub report_count: u64,
    /// The last chunk that was told, and the bytes up to there.
    pub seq: u64,
    pub bytes: u64,
    /// Messages, each of which has a number.
    pub count: u64,
    /// Partial results.
    pub partials: u64,
}

impl Reached {
    /// This chunk was told, or nobody wants to hear of it.
    pub fn come_past(&mut self, chunk: &Chunk<'_>) {
        self.come_to(chunk.seq, chunk.offset + chunk.data.len() as u64);
    }

    /// Never back: chunks that were gathered are told late, and something that nobody wants to hear
    /// of may have come meanwhile.
    pub fn come_to(&mut self, seq: u64, bytes: u64) {
        if seq > self.seq {
            (self.seq, self.bytes) = (seq, bytes);
        }
    }
}

/// What its notifications are known by, where they are written from.
#[derive(Debug)]
pub(super) struct Tokens {
    pub progress: Option<Id>,
    pub partial: Option<Id>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct McpCall {
    /// What the ids of its events call it: the first place that it had.
    pub name: Option<Handle>,
    pub asker: Asker,
    pub owner: Principal,
    pub context: Context,
    pub tokens: Rc<Tokens>,
    pub outlet: Outlet,
    pub stage: Stage,
    /// What was run for it, once it was answered.
    pub ran: Option<ExecutionId>,
    /// Gives it what becomes notifications.
    pub notifier: Option<SubscriberId>,
    pub reached: Reached,
    /// Its client has taken nothing for so long that it is told nothing more before the answer.
    pub is_cut_short: bool,
    /// It was told an id to come back with before anything else.
    pub is_primed: bool,
    /// Messages of the log that are less important are not told; `None`: none is.
    pub level: Option<Level>,
    pub timer: Option<TimerId>,
    /// A notification that waits for the answer, and is dropped when it comes.
    pub held: Vec<u8>,
    /// It calls a tool, and its outcome is still to be counted.
    pub is_to_count: bool,
    /// What it is in a trace, until it is answered.
    pub span: Option<Box<crate::trace::Span>>,
}
