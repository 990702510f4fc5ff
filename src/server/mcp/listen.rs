//! Notifications of changes: of lists, of tasks, of resources.
//!
//! Executions change with every chunk. Watched executions are therefore checked at intervals, and
//! at once when they have ended. Differences are notified.

use crate::base::{ExecutionId, Handle, Principal};
use crate::engine::wheel::TimerId;
use crate::limits;
use crate::mcp::cursor::List;
use crate::mcp::results::{ExecutionUri, Results};
use crate::mcp::{Context, Filter, McpFault, notify};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::guests::Guests;
use crate::server::mcp::answer::{Reply, Source};
use crate::server::mcp::call::{Asker, McpCall, Stage};
use crate::server::mcp::sessions::SessionName;
use crate::server::mcp::{Due, answer, ask, far, link, receive, resources};
use crate::stream::{ExecutionState, Outcome};
use crate::wire::jsonrpc::Id;

/// The receiver of notifications about a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watcher {
    Session(SessionName),
    Call(Handle),
}

/// A watched execution.
#[derive(Debug)]
struct Watch {
    watcher: Watcher,
    uri: String,
    execution: ExecutionId,
    seen: Option<Glance>,
}

/// The facts of an execution whose change is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Glance {
    state: u8,
    head_seq: u64,
    reports: u64,
}

/// All watched executions.
#[derive(Debug, Default)]
pub(in crate::server) struct Watches {
    all: Vec<Watch>,
    timer: Option<TimerId>,
}

impl Watches {
    /// Removes the watches of a call.
    pub fn forget(&mut self, call: Handle) {
        self.all.retain(|watch| watch.watcher != Watcher::Call(call));
    }

    /// Removes the watches of a session.
    pub fn forget_session(&mut self, name: SessionName) {
        self.all.retain(|watch| watch.watcher != Watcher::Session(name));
    }

    /// True if this execution is watched.
    pub fn has(&self, execution: ExecutionId) -> bool {
        self.all.iter().any(|watch| watch.execution == execution)
    }
}

/// Starts a stream of changes (B29). Its first message says which of the wanted changes are
/// sent.
pub(in crate::server) fn listen_mcp<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    context: Box<Context>,
    mut filter: Filter,
) -> Option<Reply> {
    let (owner, id) = (source.owner, context.id.clone());
    let server = ask::server_info(shard);
    filter.tools &= server.tells_tools;
    filter.prompts &= server.tells_prompts;
    filter.resources &= server.tells_resources;
    filter.uris.retain(|uri| resources::is_resource(shard, owner, uri));
    let uris = filter.uris.clone();
    let opened =
        answer::open_call(shard, source, context, Stage::Listens(Box::new(filter.clone())));
    let handle = match opened {
        Ok(handle) => handle,
        Err(fault) => return Some(Err(fault)),
    };
    let Guests { hub, mcp, .. } = &mut shard.guests;
    mcp.notify(hub, handle, |out| notify::acknowledged(out, &id, &filter));
    for uri in uris {
        watch(shard, Watcher::Call(handle), &uri);
    }
    None
}

/// Watches an execution for a session.
pub(in crate::server) fn watch_for_session<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
    uri: &str,
) {
    watch(shard, Watcher::Session(name), uri);
}

/// Ends the watch of a resource by a session.
pub(in crate::server) fn unwatch_for_session<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
    uri: &str,
) {
    let mcp = &mut shard.guests.mcp;
    let is_it = |watch: &crate::server::mcp::listen::Watch| {
        watch.watcher == Watcher::Session(name) && watch.uri == uri
    };
    mcp.watches.all.retain(|watch| !is_it(watch));
}

fn watch<R: Reactor + 'static>(shard: &mut ServerShard<R>, watcher: Watcher, uri: &str) {
    let Some(ExecutionUri::State(execution) | ExecutionUri::Output(execution)) =
        ExecutionUri::parse(uri)
    else {
        return; // No other resource changes.
    };
    let seen = glance(shard, execution);
    let now = shard.now;
    let mcp = &mut shard.guests.mcp;
    let watches = &mut mcp.watches;
    let is_known = |watch: &Watch| watch.watcher == watcher && watch.uri == uri;
    if !watches.all.iter().any(is_known) {
        watches.all.push(Watch { watcher, uri: uri.to_owned(), execution, seen });
    }
    if watches.timer.is_none() {
        let until = now + limits::MCP_UPDATE_INTERVAL;
        mcp.watches.timer = mcp.set_timer(None, Some((Due::Look, until)));
    }
}

fn glance<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) -> Option<Glance> {
    let status = shard.inspect(execution).ok()?;
    let state = match status.state {
        ExecutionState::Queued => 0,
        ExecutionState::Running => 1,
        ExecutionState::Draining => 2,
        ExecutionState::Ended(Outcome::Completed) => 3,
        ExecutionState::Ended(Outcome::Failed) => 4,
        ExecutionState::Ended(Outcome::Cancelled) => 5,
        ExecutionState::Ended(Outcome::TimedOut) => 6,
    };
    let reports = status.progress.map_or(0, |progress| progress.report_count);
    Some(Glance { state, head_seq: status.head_seq, reports })
}

/// Checks all watched executions and sets the next check.
pub(in crate::server) fn look_at_resources<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let mcp = &mut shard.guests.mcp;
    mcp.watches.timer = None;
    tell_updates(shard);
    let now = shard.now;
    let mcp = &mut shard.guests.mcp;
    if !mcp.watches.all.is_empty() {
        let until = now + limits::MCP_UPDATE_INTERVAL;
        mcp.watches.timer = mcp.set_timer(None, Some((Due::Look, until)));
    }
}

pub(in crate::server) fn tell_updates<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let mcp = &mut shard.guests.mcp;
    let watches = std::mem::take(&mut mcp.watches.all);
    let mut kept = Vec::with_capacity(watches.len());
    for mut watch in watches {
        let glance = glance(shard, watch.execution);
        if glance != watch.seen {
            watch.seen = glance;
            tell_update(shard, &watch);
        }
        if glance.is_some() {
            kept.push(watch); // A forgotten execution does not change any more.
        }
    }
    let mcp = &mut shard.guests.mcp;
    mcp.watches.all.append(&mut kept);
}

fn tell_update<R: Reactor + 'static>(shard: &mut ServerShard<R>, watch: &Watch) {
    let Guests { hub, mcp, .. } = &mut shard.guests;
    match watch.watcher {
        Watcher::Call(handle) => {
            let Some(call) = mcp.calls.get(handle) else { return };
            let id = call.context.id.clone();
            mcp.notify(hub, handle, |out| notify::resources_updated(out, &watch.uri, Some(&id)));
        }
        Watcher::Session(name) => {
            let mut bytes = Vec::new();
            notify::resources_updated(&mut bytes, &watch.uri, None);
            far::tell_session(shard, name, bytes);
        }
    }
}

/// Notifies clients that a list has changed, for this principal or for all.
pub(in crate::server) fn tell_changed<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    list: List,
    principal: Option<Principal>,
) {
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let concerns = |owner: Principal| principal.is_none_or(|principal| principal == owner);
    let told = mcp
        .sessions
        .iter()
        .filter(|session| concerns(session.owner) && session.machine.is_initialized());
    let outlets: Vec<_> = told.filter_map(crate::server::mcp::sessions::Session::outlet).collect();
    for outlet in outlets {
        mcp.counts.notifications += 1;
        link::write_event(hub, outlet, None, |out| notify::list_changed(out, list, None));
    }
    let wants = |call: &McpCall| match &call.stage {
        Stage::Listens(filter) => {
            let is_wanted = match list {
                List::Tools => filter.tools,
                List::Prompts => filter.prompts,
                List::Resources | List::Templates => filter.resources,
                List::Tasks => false,
            };
            is_wanted && concerns(call.owner)
        }
        _ => false,
    };
    let calls = mcp.calls.iter().filter(|(_, call)| wants(call));
    let calls: Vec<(Handle, Id)> =
        calls.map(|(handle, call)| (handle, call.context.id.clone())).collect();
    for (handle, id) in calls {
        mcp.notify(hub, handle, |out| notify::list_changed(out, list, Some(&id)));
    }
}

/// Ends the protocol's waiting requests and streams because the server ends.
pub(in crate::server) fn end_mcp<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let mcp = &mut shard.guests.mcp;
    let waiting = |call: &McpCall| !matches!(call.stage, Stage::Runs(_) | Stage::Answered(_));
    let calls = mcp.calls.iter().filter(|(_, call)| waiting(call));
    let calls: Vec<Handle> = calls.map(|(handle, _)| handle).collect();
    for handle in calls {
        let context = call_context(shard, handle);
        let mcp = &shard.guests.mcp;
        let listens =
            mcp.calls.get(handle).is_some_and(|call| matches!(call.stage, Stage::Listens(_)));
        let server = ask::server_info(shard);
        let reply = match listens {
            true => Ok(Results::new(context.version, &server).listened(&context.id).into()),
            false => Err(McpFault::busy("the server is ending")),
        };
        answer::answer_call(shard, handle, reply);
    }
    let hub = &mut shard.guests.hub;
    let connections = hub.connections();
    let linked = connections.filter(|c| c.mcp.as_ref().is_some_and(|link| !link.is_of_call()));
    let linked: Vec<_> = linked.map(|connection| connection.id).collect();
    for id in linked {
        let hub = &mut shard.guests.hub;
        let Some(connection) = hub.writable(id) else { continue };
        match connection.mcp.as_ref().is_some_and(|link| link.is_of_lines()) {
            true => {
                connection.is_last = true;
                connection.has_ended = true;
            }
            false => {
                if let Some(name) = connection.mcp.as_ref().and_then(|link| link.session()) {
                    receive::lose_stream(shard, name);
                }
                let hub = &mut shard.guests.hub;
                link::release(hub, id);
                if let Some(connection) = hub.writable(id) {
                    connection.is_last = true;
                }
            }
        }
    }
}

/// Returns the context of a call.
pub(in crate::server) fn call_context<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    handle: Handle,
) -> Context {
    let mcp = &shard.guests.mcp;
    let call = mcp.calls.get(handle).expect("the caller has looked");
    call.context.clone()
}

/// Returns the session of a request, if it has one.
pub(in crate::server) fn session_of(source: &Source) -> Option<SessionName> {
    match source.asker {
        Asker::Session(name) => Some(name),
        Asker::Alone(_) => None,
    }
}
