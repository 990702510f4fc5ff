//! The results of calls, built from kept output, and streams that are cut off and resumed.

use std::sync::Arc;

use serde_json::Value;

use crate::base::{Handle, Principal};
use crate::engine::{Event, From};
use crate::limits;
use crate::mcp::results::Results;
use crate::mcp::{Context, McpFault, Rest, ToolCallEnd};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::ServerShard;
use crate::server::guests::Guests;
use crate::server::hub::Answered;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::mcp::answer::Reply;
use crate::server::mcp::call::{Asker, Outlet, Stage};
use crate::server::mcp::kept_output::{Content, Role};
use crate::server::mcp::notifications::EventId;
use crate::server::mcp::open_streams::meta_of;
use crate::server::mcp::sessions::SessionName;
use crate::server::mcp::{Link, News, Part, answer, ask, link, open_streams, questions, tools};
use crate::stream::{Kind, Kinds, Totals};
/// Returns the reply to a call whose execution is over.
pub(in crate::server) fn result_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    keep: Handle,
    context: &Context,
) -> Reply {
    let server = ask::server_info(shard);
    let results = Results::new(context.version, &server);
    let mcp = &shard.guests.mcp;
    let keep = mcp.keeps.get(keep).ok_or_else(|| McpFault::internal("the output is gone"))?;
    let is_cut_short = match &keep.role {
        Role::Answer(call) => mcp.calls.get(*call).is_some_and(|call| call.is_cut_short),
        Role::Stream | Role::Task(_) | Role::Resource => false,
    };
    let is_told = context.progress_token.is_some() || context.partial_token.is_some();
    let id = keep.execution.ok_or_else(|| McpFault::internal("the tool was not run"))?;
    let over = keep.over.as_ref().ok_or_else(|| McpFault::internal("the execution is not over"))?;
    if keep.has_panicked {
        return Err(McpFault::internal("the tool has panicked"));
    }
    let events = open_streams::events_of(shard, id);
    let name = id.to_string();
    let meta = meta_of(&name, keep.token.as_deref(), events.as_deref());
    let problem = over.problem();
    let end = ToolCallEnd { outcome: over.outcome(), error: problem.as_deref() };
    let spec = Arc::clone(&keep.tool);
    let fits = |output: &Value| {
        shard.tools.check_output(&spec.name, output).map_err(|error| error.to_string())
    };
    Ok(match &keep.content {
        Content::All(collected) => results.call(collected, end, &spec, meta, &fits).into(),
        Content::Beginning(collected) if problem.is_some() => {
            results.call(collected, end, &spec, meta, &fits).into()
        }
        Content::Beginning(collected) => {
            let rest = match keep.is_streamed {
                false => Rest::Held(&name),
                true if !is_told => Rest::Lost,
                true if is_cut_short => Rest::CutShort,
                true => Rest::Told,
            };
            results.call_in_part(collected.output(), rest, &spec, meta).into()
        }
        Content::Window(_) | Content::End(_) => {
            results.call_in_part(&keep.beginning, Rest::Stream(&name), &spec, meta).into()
        }
    })
}

/// Ends the stream of a call. Its client has to come back for the answer.
pub(in crate::server) fn send_away<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    let Outlet::Stream(id) = call.outlet else { return };
    link::write_retry(hub, id);
    answer::mute(shard, handle);
    link::release(&mut shard.guests.hub, id);
}

/// Resumes the stream of a call after this event. Returns `None` if no such call exists.
pub(in crate::server) fn resume_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    name: SessionName,
    owner: Principal,
    behind: &str,
) -> Option<Answered> {
    let event = EventId::parse(behind)?;
    let asker = Asker::Session(name);
    let mcp = &mut shard.guests.mcp;
    if mcp.kept.was_answered(event.handle, name, event.count) {
        return end_at_once(shard, id, name, event.handle);
    }
    let is_its =
        |call: &crate::server::mcp::call::McpCall| call.asker == asker && call.owner == owner;
    let is_it = |handle: Handle, call: &crate::server::mcp::call::McpCall| {
        is_its(call) && call.name.unwrap_or(handle) == event.handle
    };
    let found = mcp.calls.iter().find(|(handle, call)| is_it(*handle, call));
    let found = found.map(|(handle, _)| handle);
    let handle = match found {
        Some(handle) => handle,
        None => {
            let call = mcp.kept.take(event.handle, name)?;
            let handle = mcp.calls.insert(call).ok()?;
            if let Some(session) = mcp.sessions.get(name) {
                session.call_count += 1;
            }
            handle
        }
    };
    take_from(shard, handle);
    let now = shard.now;
    let Guests { hub, mcp, .. } = &mut shard.guests;
    mcp.sessions.touch(name, now);
    let connection = hub.connection(id)?;
    connection.mcp = Some(Box::new(Link::new(Part::Call(handle))));
    connection.doing = Doing::Mcp;
    hub.set_timer(id, Some((Timer::McpBeat, now + limits::KEEP_ALIVE)));
    let call = mcp.calls.get_mut(handle)?;
    call.outlet = Outlet::Stream(id);
    call.reached.count = call.reached.count.max(event.count);
    (call.reached.seq, call.reached.bytes) = (event.seq, event.bytes); // It resumes there.
    link::begin_stream(hub, id, mcp.now);
    notify_from(shard, handle, event);
    questions::ask_open_again(shard, handle);
    let mcp = &mut shard.guests.mcp;
    mcp.note(News::Call(handle));
    shard.pump();
    Some(Answered::Later)
}

/// Ends the stream at once because the client has the answer already.
fn end_at_once<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    name: SessionName,
    call: Handle,
) -> Option<Answered> {
    let now = shard.now;
    let Guests { hub, mcp, .. } = &mut shard.guests;
    mcp.sessions.touch(name, now);
    let connection = hub.connection(id)?;
    connection.mcp = Some(Box::new(Link::new(Part::Call(call))));
    link::begin_stream(hub, id, mcp.now);
    link::release(hub, id);
    Some(Answered::Later)
}

/// Takes a call from its previous connection, whose loss was not noticed yet.
fn take_from<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    let before = call.outlet;
    answer::mute(shard, handle);
    let hub = &mut shard.guests.hub;
    if let Outlet::Stream(id) | Outlet::Open(id) = before {
        if let Some(connection) = hub.connection(id) {
            connection.mcp = None;
            connection.is_aborted = true;
        }
        hub.lose(id);
    }
}

/// Sends the chunks after an event again, from the log of the execution. The notifier of the
/// lost connection keeps the log until the new one does.
fn notify_from<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle, event: EventId) {
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    let lost = call.notifier.take();
    attach_behind(shard, handle, event);
    if let Some(lost) = lost {
        shard.ask_at_once(Event::Unsubscribe(lost)); // Its slot may be taken over already.
    }
}

fn attach_behind<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle, event: EventId) {
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get(handle) else { return };
    let execution = match call.stage {
        Stage::Runs(keep) => mcp.keeps.get(keep).and_then(|keep| keep.execution),
        Stage::Answered(_) => call.ran,
        _ => None,
    };
    let wants_chunks =
        call.context.progress_token.is_some() || call.context.partial_token.is_some();
    let kinds = match (wants_chunks, call.level) {
        (true, _) => Kinds::ALL,
        (false, Some(_)) => Kinds::NONE.with(Kind::Log),
        (false, None) => return,
    };
    let Some(execution) = execution else { return };
    // With a selection of kinds, the event does not say how much there was.
    let seen = kinds.is_all().then_some(Totals { chunks: event.seq, bytes: event.bytes });
    let from = From::Seq { seq: event.seq + 1, seen };
    shard.pump();
    tools::attach_notifier(shard, handle, execution, from, kinds);
}

/// Sends a keep-alive comment on a connection that was silent, and sets the next one.
pub(in crate::server) fn beat_mcp<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let now = shard.now;
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let Some(connection) = hub.connection(id) else { return };
    let silence = now.since(connection.sent_at);
    if connection.is_blocked && silence >= limits::SEND_STALL {
        hub.lose(id);
        return;
    }
    let is_blocked = connection.is_blocked;
    let next_at = match silence >= limits::KEEP_ALIVE / 2 || is_blocked {
        true => now + limits::KEEP_ALIVE,
        false => connection.sent_at + limits::KEEP_ALIVE,
    };
    let call = match connection.mcp.as_ref().map(|link| &link.part) {
        Some(Part::Call(handle)) => Some(*handle),
        _ => None,
    };
    if silence >= limits::KEEP_ALIVE / 2 && !is_blocked {
        if let Some(call) = call.and_then(|handle| mcp.calls.get_mut(handle))
            && let Outlet::Open(_) = call.outlet
        {
            call.outlet = Outlet::Stream(id);
            // A client that waits for long gets a sign of life.
            link::begin_stream(hub, id, mcp.now);
        }
        link::write_keep_alive(hub, id);
    }
    hub.set_timer(id, Some((Timer::McpBeat, next_at)));
}
