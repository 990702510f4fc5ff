//! The Model Context Protocol, hosted: sessions, calls, what they are told, and what is kept for
//! them. How the protocol is spelled and what may be asked when is `crate::mcp`'s.
//!
//! A call of a tool is an execution with two subscribers of the shard's own thread, like closures.
//! One keeps what comes for the answer ([`Keep`]); when that is too much for one, it takes no more,
//! and the answer is a door to read the rest through. The other makes notifications of it, if the
//! client wants some; while its connection takes no bytes, it is given nothing, and its policy
//! decides. What follows from all that (an answer is due, a door has something new) is seen to at
//! the end of the turn, in `settle.rs`: nothing is answered in the middle of a delivery.
//!
//! Reading order: this file, the tables; `call.rs`, `keep.rs`, `sessions.rs`, what is in them;
//! `notice.rs` (notifications, the hot path); `receive.rs` (HTTP) and `lines.rs` (connections of
//! lines), where messages come from; `ask.rs`, what is asked; `tools.rs`, `doors.rs`, `tasks.rs`,
//! `questions.rs` (tools that ask first), `resources.rs`, `listen.rs`; `settle.rs` and `answer.rs`,
//! how it ends.
//!
//! Invariants (M1 and M2 in `sessions.rs`, M3 and M4 in `call.rs`):
//! - M5: a keep that has not ended has a subscriber, unless its tool still asks.
//! - M6: a keep that is full was told to take nothing, and no other.

mod answer;
mod ask;
mod call;
mod doors;
mod far;
mod keep;
mod lines;
mod listen;
mod notice;
mod questions;
mod receive;
mod resources;
mod result;
mod sessions;
mod settle;
mod tasks;
mod tools;
mod trace;

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::metrics::{McpCounts, McpMetrics};
use super::super::{Places, Shard, ShardConfig};
use super::clock::earlier;
use crate::base::{Foreign, Handle, Instant, Pool, Principal, SubscriberId};
use crate::endpoint::StreamBody;
use crate::engine::wheel::{TimerId, Wheel};
use crate::limits;
use crate::mcp::cursor::List;
use crate::mcp::request_state::Seal;
use crate::mcp::{Catalog, ServerInfo};
use crate::reactor::Reactor;
use call::McpCall;
use keep::{Keep, Role};
pub use lines::LineOptions;
use lines::Lines;
use notice::Notice;
use sessions::{SessionName, Sessions};

/// Who hears what a subscriber is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Ear {
    /// It is kept.
    Keep(Handle),
    /// It becomes notifications of this call.
    Call(Handle),
}

/// What a connection is for the protocol.
#[derive(Debug)]
pub(in crate::shard::serve) struct Link {
    part: Part,
    /// The stream that its answer has become.
    body: Option<StreamBody>,
    /// Whose deliveries become messages on it.
    pub feeds: SmallVec<[SubscriberId; 1]>,
}

/// What it carries.
#[derive(Debug)]
enum Part {
    /// What one call is told.
    Call(Handle),
    /// What a session is told that belongs to no call.
    Session(SessionName),
    /// Messages in both directions, each on a line.
    Lines(Box<Lines>),
}

impl Link {
    fn new(part: Part) -> Link {
        Link { part, body: None, feeds: SmallVec::new() }
    }

    /// Is it a connection of lines?
    pub fn is_of_lines(&self) -> bool {
        matches!(self.part, Part::Lines(_))
    }

    fn is_of_call(&self) -> bool {
        matches!(self.part, Part::Call(_))
    }

    fn session(&self) -> Option<SessionName> {
        match self.part {
            Part::Session(name) => Some(name),
            Part::Call(_) | Part::Lines(_) => None,
        }
    }

    fn lines(&mut self) -> Option<&mut Lines> {
        match &mut self.part {
            Part::Lines(lines) => Some(lines),
            Part::Call(_) | Part::Session(_) => None,
        }
    }
}

/// Something that is to be seen to at the end of the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// It has more, is full, or has ended.
    Keep(Handle),
    /// It may be over.
    Call(Handle),
    /// The list is another one, for this principal or for all.
    Changed(List, Option<Principal>),
    /// Something that is watched has changed.
    Look,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The client has not answered what it was asked, nothing new has come, or it was cut off for
    /// too long.
    Call(Handle),
    /// A door was not read, or a task is over for long enough.
    Keep(Handle),
    /// Resources that somebody wants to know about are looked at.
    Look,
}

/// What the protocol's clients are told of the server, whatever they ask.
pub(in crate::shard) struct McpSetUp {
    pub server: Arc<ServerInfo>,
    pub catalog: Foreign<Arc<Catalog>>,
    /// Seals what tools want to remember.
    pub seal: Seal,
    /// Of all shards of the server.
    pub places: Places,
}

impl McpSetUp {
    /// With the key and the places of the server or, if there is only one shard, with a key that
    /// nobody knows, and places of its own. Where everybody has to say who he is, he may list what
    /// is his.
    pub fn new(config: &ShardConfig) -> std::io::Result<McpSetUp> {
        let mut drawn = [0; 32];
        let key = match config.mcp_key {
            Some(key) => key,
            None => {
                crate::reactor::random_bytes(&mut drawn)?;
                drawn
            }
        };
        let server =
            ServerInfo { lists_tasks: config.access.is_guarded(), ..ServerInfo::default() };
        let (server, catalog, seal) = (server.into(), Foreign::default(), Seal::new(&key));
        Ok(McpSetUp {
            server,
            catalog,
            seal,
            places: config.mcp_places.clone().unwrap_or_default(),
        })
    }
}

impl<R: Reactor + 'static> Shard<R> {
    /// What clients of the Model Context Protocol find beside tools and executions: prompts and
    /// resources. It replaces what was there; who wants to know that prompts have changed is told.
    /// That there are any is told at the beginning, so the first are set before anybody is served.
    pub fn set_catalog(&mut self, catalog: impl Into<Arc<Catalog>>) {
        let catalog: Arc<Catalog> = catalog.into();
        let has_prompts = !catalog.prompts.is_empty();
        Arc::make_mut(&mut self.mcp.server).has_prompts = has_prompts;
        self.mcp.catalog = Foreign::new(catalog);
        if let Some(serve) = &mut self.serve {
            serve.mcp.note(News::Changed(List::Prompts, None));
        }
    }
}

/// The tables.
pub(in crate::shard) struct Mcp {
    /// Which one this is.
    shard: u8,
    /// The time of the last look.
    now: Instant,
    sessions: Sessions,
    calls: Pool<Box<McpCall>>,
    keeps: Pool<Box<Keep>>,
    timers: Wheel<Due>,
    news: Vec<News>,
    notice: Notice,
    watches: listen::Watches,
    /// Of the tools that everybody has.
    tools_revision: u64,
    kept: answer::Kept,
    counts: McpCounts,
    /// Of the request that is looked at, until somebody takes it along.
    span: Option<Box<crate::trace::Span>>,
}

impl Mcp {
    pub fn new(shard: u8, now: Instant) -> Mcp {
        let timers_max = limits::MCP_CALLS_MAX + limits::MCP_KEEPS_MAX + 1;
        Mcp {
            shard,
            now,
            sessions: Sessions::new(),
            calls: Pool::new(limits::MCP_CALLS_MAX),
            keeps: Pool::new(limits::MCP_KEEPS_MAX),
            timers: Wheel::new(timers_max, now),
            news: Vec::with_capacity(64),
            notice: Notice::default(),
            watches: listen::Watches::default(),
            tools_revision: 0,
            kept: answer::Kept::default(),
            counts: McpCounts::default(),
            span: None,
        }
    }

    /// Is there anything to be seen to?
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty() || self.notice.is_open()
    }

    /// What was counted so far, and what there is now.
    pub fn metrics(&self) -> McpMetrics {
        let count = |is_it: fn(&Role) -> bool| {
            self.keeps.iter().filter(|(_, keep)| is_it(&keep.role)).count() as u64
        };
        McpMetrics {
            counts: self.counts,
            sessions: self.sessions.iter().count() as u64,
            doors: count(|role| matches!(role, Role::Door)),
            tasks: count(|role| matches!(role, Role::Task(_))),
        }
    }

    /// Of the request that is looked at, for who answers it later.
    pub fn take_span(&mut self) -> Option<Box<crate::trace::Span>> {
        self.span.take()
    }

    fn note(&mut self, news: News) {
        if !self.news.contains(&news) {
            self.news.push(news);
        }
    }

    /// The tools of this principal, or of all, are others now.
    pub fn note_tools(&mut self, principal: Option<Principal>) {
        self.note(News::Changed(List::Tools, principal));
    }

    /// Those of the server have this revision.
    #[inline]
    pub fn look_at_tools(&mut self, revision: u64) {
        if self.tools_revision != revision {
            self.tools_revision = revision;
            self.note(News::Changed(List::Tools, None));
        }
    }

    /// When something is due next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        let kept = earlier(self.sessions.next_deadline(), self.kept.next_deadline());
        earlier(self.timers.next_deadline(), kept)
    }

    /// What was kept for a session that is no more.
    fn forget_session(&mut self, name: SessionName) {
        self.kept.forget(name);
        self.watches.forget_session(name);
    }

    /// Sets the one timer of something anew, or none.
    fn set_timer(
        &mut self,
        armed: Option<TimerId>,
        next: Option<(Due, Instant)>,
    ) -> Option<TimerId> {
        if let Some(armed) = armed {
            self.timers.cancel(armed);
        }
        let (due, at) = next?;
        Some(self.timers.arm(at, due).expect("there is one for each call and each keep"))
    }
}
