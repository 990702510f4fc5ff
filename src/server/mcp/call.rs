//! One request of a client that is not answered at once: its sender, its way back, its stage, and
//! the position of its notifications.
//!
//! Invariants (`Hub::audit_mcp` checks M4):
//! - M3: a call is answered once. The answer removes it from the table or is all that is left in
//!   it, for a client that comes back.
//! - M4: the connection of a call's outlet is linked to this call and no other, or is one of lines.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::{ExecutionId, Handle, Principal, SubscriberId};
use crate::engine::wheel::TimerId;
use crate::mcp::progress::Rising;
use crate::mcp::{Context, Filter, Level};
use crate::reactor::ConnectionId;
use crate::server::mcp::sessions::SessionName;
use crate::shard::Chunk;
use crate::tool::{Question, ToolSpec};
use crate::wire::jsonrpc::Id;

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Asker {
    /// A session, of this shard or of another.
    Session(SessionName),
    /// A client without a session, on this connection.
    Alone(ConnectionId),
}

/// The destination of a call's notifications and answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Outlet {
    /// The answer of this connection, which is still undecided: one message, or a stream.
    Open(ConnectionId),
    /// The stream that this connection's answer has become.
    Stream(ConnectionId),
    /// A connection of lines.
    Lines(ConnectionId),
    /// No connection, for now.
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

/// The event that a call waits for.
#[derive(Debug)]
pub(in crate::server) enum Stage {
    /// The client's answers to its tool's questions.
    Asks(Box<Asks>),
    /// The output of its tool.
    Runs(Handle),
    /// The end of a task.
    Awaits(Handle),
    /// New output after this offset of a stream.
    Reads(Handle, Option<u64>),
    /// Nothing: the client is notified of changes until it leaves.
    Listens(Box<Filter>),
    /// The start of its tool.
    Begins,
    /// The client, which has to fetch this answer.
    Answered(Box<[u8]>),
}

/// The state of a tool that has questions before it runs.
#[derive(Debug)]
pub(in crate::server) struct Asks {
    pub spec: Arc<ToolSpec>,
    pub arguments: Value,
    /// The answers to the current questions.
    pub answers: Map<String, Value>,
    /// The state that the tool wants back.
    pub state: Option<Value>,
    /// The questions without an answer, each with its number.
    pub open: Vec<(u64, Question)>,
    /// Number of times that the tool has asked.
    pub rounds: u32,
}

/// The position of a call's notifications.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::server) struct Reached {
    pub rising: Rising,
    /// Number of the tool's last report that was sent.
    pub report_count: u64,
    /// The last chunk that was sent, and the bytes up to its end.
    pub seq: u64,
    pub bytes: u64,
    /// Number of messages. Each message has a number.
    pub count: u64,
    /// Number of partial results.
    pub partials: u64,
}

impl Reached {
    /// Notes that this chunk was sent, or is not wanted.
    pub fn come_past(&mut self, chunk: &Chunk<'_>) {
        self.come_to(chunk.seq, chunk.offset + chunk.data.len() as u64);
    }

    /// Moves the position forward, never back. Gathered chunks are sent late, and an unwanted chunk
    /// may have come meanwhile.
    pub fn come_to(&mut self, seq: u64, bytes: u64) {
        if seq > self.seq {
            (self.seq, self.bytes) = (seq, bytes);
        }
    }
}

/// The tokens of a call's notifications, shared with the code that writes them.
#[derive(Debug)]
pub(in crate::server) struct Tokens {
    pub progress: Option<Id>,
    pub partial: Option<Id>,
}

/// A call. See the module's text.
#[derive(Debug)]
pub(in crate::server) struct McpCall {
    /// The name of the call in the ids of its events: the first handle that it had.
    pub name: Option<Handle>,
    pub asker: Asker,
    pub owner: Principal,
    pub context: Context,
    pub tokens: Rc<Tokens>,
    pub outlet: Outlet,
    pub stage: Stage,
    /// The execution that was run for it, once it was answered.
    pub ran: Option<ExecutionId>,
    /// The subscriber whose deliveries become notifications.
    pub notifier: Option<SubscriberId>,
    pub reached: Reached,
    /// True if its notifications ended early because its client took nothing for too long.
    pub is_cut_short: bool,
    /// True if the client was sent an event id to resume from before anything else.
    pub is_primed: bool,
    /// The least important level of log messages that are sent; `None` if none are.
    pub level: Option<Level>,
    pub timer: Option<TimerId>,
    /// A notification that waits and is dropped when the answer comes first.
    pub held: Vec<u8>,
    /// True if it is among the events of this turn.
    pub has_news: bool,
    /// True if it calls a tool and its outcome was not counted yet.
    pub is_to_count: bool,
    /// Its span in a trace, until it is answered.
    pub span: Option<Box<crate::trace::Span>>,
}

impl McpCall {
    /// True if its client cannot come back for notifications that it has missed.
    pub fn is_heard_once(&self) -> bool {
        matches!(self.asker, Asker::Alone(_)) || matches!(self.outlet, Outlet::Lines(_))
    }
}
