//! The Model Context Protocol, hosted: sessions, calls, their notifications and the output kept for
//! them. `crate::mcp` has the protocol's encoding and the rules for its messages.
//!
//! A call of a tool is an execution with two subscribers on the shard's own thread. One keeps the
//! output for the answer ([`KeptOutput`]). When that is too long for an answer, it takes no more,
//! and the answer is a stream through which the client reads the rest.
//!
//! The other turns output into notifications, if the client wants some. While the client's
//! connection takes no bytes, this subscriber has no demand, and its policy decides. The
//! consequences (an answer is due, a stream has new output) are handled at the end of the turn, in
//! `settle.rs`. No answer is sent in the middle of a delivery.
//!
//! Reading order:
//! - this file, the tables; `call.rs`, `kept_output.rs`, `sessions.rs`, their entries;
//! - `notifications.rs`, notifications, the hot path;
//! - `receive.rs` (HTTP) and `lines.rs` (connections of lines), the sources of messages;
//! - `ask.rs`, requests; `tools.rs`, `open_streams.rs`, `tasks.rs`, `questions.rs` (tools that have
//!   questions first), `resources.rs`, `listen.rs`;
//! - `task_record.rs`, tasks with open questions on the disk; `recalled.rs`, tasks and outputs that
//!   only the disk has;
//! - `settle.rs` and `answer.rs`, the ends of calls.
//!
//! Invariants (M1 and M2 in `sessions.rs`, M3 and M4 in `call.rs`):
//! - M5: a keep that has not ended has a subscriber, unless its tool still has questions.
//! - M6: the subscriber of a keep was told to deliver as many chunks as its window has room for.

mod answer;
mod ask;
mod call;
mod far;
mod kept_output;
mod lines;
mod link;
mod listen;
mod notifications;
mod open_streams;
mod questions;
mod recalled;
mod receive;
mod resources;
mod result;
mod sessions;
mod settle;
mod task_record;
mod tasks;
mod tools;
mod trace;

use std::sync::Arc;

use call::McpCall;
pub(in crate::server) use far::{
    answer_listed, cancel_here, end_far_session, finish_here, let_go_asked, list_part,
    tell_session_here,
};
use kept_output::{KeptOutput, Role};
pub use lines::LineOptions;
pub(in crate::server) use lines::{
    cancel_all_of, end_lines, is_of_lines, open_lines, receive_lines,
};
pub(in crate::server) use link::Link;
use link::Part;
pub(in crate::server) use listen::end_mcp;
use notifications::Gathered;
pub(in crate::server) use recalled::{named_execution, recall_mcp};
pub(in crate::server) use receive::answer_mcp;
pub(in crate::server) use result::beat_mcp;
pub use sessions::SessionName;
use sessions::Sessions;
pub(in crate::server) use settle::{fire_mcp_deadlines, lose_link, settle_mcp};
pub(in crate::server) use task_record::{rest as rest_records, take_up as take_up_tasks};

use crate::base::{ExecutionId, Guarded, Handle, Instant, Pool, Principal};
use crate::engine::wheel::{TimerId, Wheel};
use crate::limits;
use crate::mcp::cursor::List;
use crate::mcp::request_state::Seal;
use crate::mcp::{Catalog, Filter, ServerInfo};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Hub;
use crate::server::hub::clock::earlier;
use crate::server::hub::connection::{Connection, Doing};
use crate::server::mcp::call::{Asker, Stage};
use crate::server::mcp::tasks::Task;
use crate::server::metrics::{McpCounts, McpMetrics};
use crate::server::{GuestConfig, Places, ServerShard};
use crate::wire::jsonrpc::Id;

/// The receiver of a subscriber's deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpReceiver {
    /// A keep, which stores them.
    Output(Handle),
    /// A call, whose notifications they become.
    Call(Handle),
}

/// An event to handle at the end of the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// A keep has more output, is full, or has ended.
    Output(Handle),
    /// A call may be over.
    Call(Handle),
    /// A list has changed, for this principal or for all.
    Changed(List, Option<Principal>),
    /// A watched execution has changed.
    Look,
}

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// A call's client has not answered questions, no new output has come, or an answer or a
    /// notification has waited long enough.
    Call(Handle),
    /// A stream was not read, or the time of a task is over.
    Output(Handle),
    /// Watched resources are checked.
    Look,
}

/// Sets the prompts and resources that clients of the Model Context Protocol find, besides
/// tools and executions. This replaces the previous catalog, and clients that want to know of
/// changed prompts are notified. Clients learn only when they connect whether prompts exist.
/// Set the first prompts before the first client is served.
pub(in crate::server) fn set_catalog<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    catalog: impl Into<Arc<Catalog>>,
) {
    let catalog: Arc<Catalog> = catalog.into();
    let has_prompts = !catalog.prompts.is_empty();
    Arc::make_mut(&mut shard.guests.mcp.server).has_prompts = has_prompts;
    shard.guests.mcp.catalog = Guarded::new(catalog);
    let mcp = &mut shard.guests.mcp;
    mcp.note(News::Changed(List::Prompts, None));
}

/// The tables of the protocol.
pub(in crate::server) struct Mcp {
    server: Arc<ServerInfo>,
    catalog: Guarded<Arc<Catalog>>,
    /// Seals the state that tools want back.
    seal: Seal,
    /// The limits of places, common to all shards of the server.
    places: Places,
    /// True once a client has used the protocol. Until then all tables are empty, and a turn passes
    /// them by.
    is_used: bool,
    /// The index of this shard.
    shard: u8,
    /// The time of the current turn.
    now: Instant,
    sessions: Sessions,
    calls: Pool<Box<McpCall>>,
    keeps: Pool<Box<KeptOutput>>,
    timers: Wheel<Due>,
    news: Vec<News>,
    gathered: Gathered,
    watches: listen::Watches,
    /// The revision of the server's tools that clients know of.
    tools_revision: u64,
    kept: answer::KeptAnswers,
    /// The records of tasks that leave the engine as soon as the disk has them.
    resting: Vec<ExecutionId>,
    counts: McpCounts,
    /// The span of the current request, until a call takes it.
    span: Option<Box<crate::trace::Span>>,
}

impl Mcp {
    /// Creates the tables of a shard, with the key and the places of its server. A server of one
    /// shard may have none: it then gets a random key and places of its own. Clients may list their
    /// tasks only if all have to authenticate.
    ///
    /// # Errors
    /// The kernel's error, when a key is drawn.
    pub fn new(config: &GuestConfig, shard: u8, now: Instant) -> std::io::Result<Mcp> {
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
        let timers_max = limits::MCP_CALLS_MAX + limits::MCP_KEEPS_MAX + 1;
        Ok(Mcp {
            server: server.into(),
            catalog: Guarded::default(),
            seal: Seal::new(&key),
            places: config.mcp_places.clone().unwrap_or_default(),
            is_used: false,
            shard,
            now,
            sessions: Sessions::new(),
            calls: Pool::new(limits::MCP_CALLS_MAX),
            keeps: Pool::new(limits::MCP_KEEPS_MAX),
            timers: Wheel::new(timers_max, now),
            news: Vec::with_capacity(64),
            gathered: Gathered::default(),
            watches: listen::Watches::default(),
            tools_revision: 0,
            kept: answer::KeptAnswers::default(),
            resting: Vec::new(),
            counts: McpCounts::default(),
            span: None,
        })
    }

    /// True if events are queued or a notification is gathered.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.is_used && (!self.news.is_empty() || self.gathered.is_open())
    }

    /// Returns the counters, and the current numbers of sessions, open streams and tasks.
    pub fn metrics(&self) -> McpMetrics {
        let count = |is_it: fn(&Role) -> bool| {
            self.keeps.iter().filter(|(_, keep)| is_it(&keep.role)).count() as u64
        };
        McpMetrics {
            counts: self.counts,
            sessions: self.sessions.iter().count() as u64,
            open_streams: count(|role| matches!(role, Role::Stream)),
            tasks: count(|role| matches!(role, Role::Task(_))),
        }
    }

    /// Takes the span of the current request, for an answer that comes later.
    pub fn take_span(&mut self) -> Option<Box<crate::trace::Span>> {
        self.span.take()
    }

    /// True once a client has used the protocol.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// True if records of tasks are to leave the engine.
    pub fn has_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Notes that a client uses the protocol.
    fn begin_use(&mut self, now: Instant) {
        if !self.is_used {
            (self.is_used, self.now) = (true, now);
        }
    }

    fn note(&mut self, news: News) {
        if !self.is_used {
            return; // Nobody listens to changes.
        }
        let was_noted = match news {
            News::Output(handle) => {
                let keep = self.keeps.get_mut(handle);
                keep.is_none_or(|keep| std::mem::replace(&mut keep.has_news, true))
            }
            News::Call(handle) => {
                let call = self.calls.get_mut(handle);
                call.is_none_or(|call| std::mem::replace(&mut call.has_news, true))
            }
            News::Changed(..) | News::Look => self.news.contains(&news),
        };
        if !was_noted {
            self.news.push(news);
        }
    }

    /// Removes and returns the next event. Its keep or call may be gone.
    fn take_news(&mut self) -> Option<News> {
        let news = self.news.pop()?;
        match news {
            News::Output(handle) => {
                if let Some(keep) = self.keeps.get_mut(handle) {
                    keep.has_news = false;
                }
            }
            News::Call(handle) => {
                if let Some(call) = self.calls.get_mut(handle) {
                    call.has_news = false;
                }
            }
            News::Changed(..) | News::Look => {}
        }
        Some(news)
    }

    /// Queues a change of the tools of this principal.
    pub fn note_tools(&mut self, principal: Principal) {
        self.note(News::Changed(List::Tools, Some(principal)));
    }

    /// Queues a change of the server's tools if their revision is new.
    #[inline]
    pub fn look_at_tools(&mut self, revision: u64) {
        if self.tools_revision != revision {
            self.tools_revision = revision;
            self.note(News::Changed(List::Tools, None));
        }
    }

    /// Returns the time of the next deadline.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.is_used {
            return None;
        }
        let kept = earlier(self.sessions.next_deadline(), self.kept.next_deadline());
        earlier(self.timers.next_deadline(), kept)
    }

    /// Drops what was kept for a session that has ended.
    fn forget_session(&mut self, name: SessionName) {
        self.kept.forget(name);
        self.watches.forget_session(name);
    }

    /// Replaces a timer by the next one, or by none.
    fn set_timer(
        &mut self,
        armed: Option<TimerId>,
        next: Option<(Due, Instant)>,
    ) -> Option<TimerId> {
        if let Some(armed) = armed {
            self.timers.cancel(armed);
        }
        let (due, at) = next?;
        Some(self.timers.arm(at, due).expect("the wheel has room for each call and each keep"))
    }

    /// Returns this principal's listening calls whose filter fits.
    fn listeners(&self, owner: Principal, wants: impl Fn(&Filter) -> bool) -> Vec<(Handle, Id)> {
        let wanted = |call: &McpCall| match &call.stage {
            Stage::Listens(filter) => call.owner == owner && wants(filter),
            _ => false,
        };
        let calls = self.calls.iter().filter(|(_, call)| wanted(call));
        calls.map(|(handle, call)| (handle, call.context.id.clone())).collect()
    }

    /// Returns the calls that listen to a task.
    fn listeners_of_task(&self, owner: Principal, name: &str) -> Vec<(Handle, Id)> {
        self.listeners(owner, |filter| filter.tasks.iter().any(|task| task == name))
    }

    /// Queues a check if an ended execution is watched.
    pub(in crate::server) fn note_ended(&mut self, execution: ExecutionId) {
        if self.watches.has(execution) {
            self.note(News::Look);
        }
    }

    fn task(&self, handle: Handle) -> Option<&Task> {
        match &self.keeps.get(handle)?.role {
            Role::Task(task) => Some(task),
            Role::Answer(_) | Role::Stream | Role::Resource => None,
        }
    }

    fn task_mut(&mut self, handle: Handle) -> Option<&mut Task> {
        match &mut self.keeps.get_mut(handle)?.role {
            Role::Task(task) => Some(task),
            Role::Answer(_) | Role::Stream | Role::Resource => None,
        }
    }

    /// Returns the calls that wait for the result of a task.
    fn awaiting(&self, handle: Handle) -> Vec<Handle> {
        let is_it = |stage: &Stage| matches!(stage, Stage::Awaits(keep) if *keep == handle);
        let calls = self.calls.iter().filter(|(_, call)| is_it(&call.stage));
        calls.map(|(call, _)| call).collect()
    }

    /// Checks the invariants of sessions, calls and keeps. For tests.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn audit(&self, hub: &Hub) {
        let is_empty = self.sessions.iter().next().is_none()
            && self.calls.iter().next().is_none()
            && self.keeps.iter().next().is_none();
        assert!(self.is_used || is_empty);
        self.sessions.audit();
        self.kept.audit();
        self.timers.audit();
        let linked = |id: ConnectionId| {
            let connection = hub.connection_at(id)?;
            connection.mcp.as_deref()
        };
        for (handle, call) in self.calls.iter() {
            if let Some(id) = call.outlet.connection() {
                let link = linked(id).expect("the connection of a call's outlet is linked");
                let is_its = match &link.part {
                    Part::Call(its) => *its == handle,
                    Part::Lines(_) => true,
                    Part::Session(_) => false,
                };
                assert!(is_its); // M4
                assert!(call.notifier.is_none_or(|notifier| link.feeds.contains(&notifier)));
            }
            if let Stage::Runs(keep) = call.stage {
                let keep = self.keeps.get(keep).expect("a running call has a keep");
                assert!(matches!(keep.role, Role::Answer(its) if its == handle));
            }
        }
        for session in self.sessions.iter() {
            let is_its = |call: &McpCall| call.asker == Asker::Session(session.name);
            let count = self.calls.iter().filter(|(_, call)| is_its(call)).count();
            assert_eq!(count, session.call_count);
        }
        for (_, keep) in self.keeps.iter() {
            let is_asking = keep.execution.is_none();
            assert!(is_asking || keep.over.is_some() || keep.subscriber.is_some()); // M5
            if let Role::Answer(call) = keep.role {
                assert!(self.calls.get(call).is_some());
            }
        }
        let is_mcp = |connection: &Connection| matches!(connection.doing, Doing::Mcp);
        for connection in hub.connections() {
            assert_eq!(is_mcp(connection), connection.mcp.is_some(), "{connection:?}");
        }
    }
}
