//! The end of a turn: events of keeps and calls are handled, and answers are given.

use crate::base::Handle;
use crate::engine::Event;
use crate::mcp::Era;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::ServerShard;
use crate::server::guests::Guests;
use crate::server::mcp::call::{Asker, Outlet, Stage};
use crate::server::mcp::kept_output::Role;
use crate::server::mcp::{
    Due, Link, News, Part, answer, ask, lines, listen, open_streams, recalled, receive, result,
    tasks,
};
/// Handles all queued events. Gathered notifications are written in the flush.
pub(in crate::server) fn settle_mcp<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    loop {
        let mcp = &mut shard.guests.mcp;
        mcp.now = now;
        match mcp.take_news() {
            None => return,
            Some(News::Output(keep)) => settle_keep(shard, keep),
            Some(News::Call(call)) => settle_call(shard, call),
            Some(News::Changed(list, principal)) => listen::tell_changed(shard, list, principal),
            Some(News::Look) => listen::tell_updates(shard),
        }
    }
}

fn settle_keep<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let mcp = &shard.guests.mcp;
    let Some(keep) = mcp.keeps.get(handle) else { return };
    let run = keep.execution.and_then(|id| shard.run_of(id));
    let has_panicked = run.is_some_and(|run| run.has_panicked);
    let mcp = &mut shard.guests.mcp;
    let keep = mcp.keeps.get_mut(handle).expect("as above");
    keep.has_panicked |= has_panicked;
    let is_cut_short = keep.is_full() && keep.over.is_none();
    match &keep.role {
        Role::Answer(call) => {
            let call = *call;
            if keep.is_a_stream() {
                open_streams::answer_with_stream(shard, call, handle);
            } else {
                settle_call(shard, call);
            }
        }
        Role::Stream => open_streams::settle_readers(shard, handle),
        Role::Task(task) => {
            shard.worked |= task.is_recalled(); // A call may wait for it.
            if is_cut_short {
                recalled::cut_short(shard, handle);
            }
            tasks::settle_task(shard, handle);
        }
        Role::Resource => shard.worked = true, // A call may wait for it.
    }
}

/// Answers a call if its output is complete and all its notifications were sent.
fn settle_call<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get(handle) else { return };
    match &call.stage {
        Stage::Runs(keep) => {
            let keep = *keep;
            let Some(kept) = mcp.keeps.get(keep) else { return };
            if kept.over.is_none() || call.notifier.is_some() {
                return;
            }
            let execution = kept.execution;
            let reply = result::result_of(shard, keep, &listen::call_context(shard, handle));
            let mcp = &mut shard.guests.mcp;
            mcp.calls.get_mut(handle).expect("it was just there").ran = execution;
            forget_keep(shard, keep);
            answer::answer_call(shard, handle, reply);
        }
        // With a timer, it settles, and is sent when that is over.
        Stage::Answered(bytes) if call.notifier.is_none() && call.timer.is_none() => {
            let bytes = bytes.to_vec();
            answer::say_answer(shard, handle, bytes);
        }
        _ => {}
    }
}

/// Removes a keep that is not needed any more.
pub(in crate::server) fn forget_keep<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let mcp = &mut shard.guests.mcp;
    let Some(mut keep) = mcp.keeps.remove(handle) else { return };
    mcp.set_timer(keep.timer.take(), None);
    if let Some(subscriber) = keep.subscriber {
        shard.pump(); // Earlier actions come first.
        shard.ask_at_once(Event::Unsubscribe(subscriber));
    }
}

/// Handles the loss of a connection. In the handshake era, its call continues. In the stateless
/// era, the loss cancels the call.
pub(in crate::server) fn lose_link<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    link: Link,
) {
    match link.part {
        Part::Session(name) => receive::lose_stream(shard, name),
        Part::Lines(lines) => lines::lose_lines(shard, id, *lines),
        Part::Call(handle) => {
            let mcp = &mut shard.guests.mcp;
            let Some(call) = mcp.calls.get_mut(handle) else { return };
            match call.asker {
                Asker::Session(_) if call.context.version.era() == Era::Handshake => {
                    answer::mute(shard, handle);
                    settle_detached(shard, handle);
                }
                Asker::Session(_) | Asker::Alone(_) => {
                    call.outlet = Outlet::Nowhere;
                    ask::cancel_mcp(shard, handle);
                }
            }
        }
    }
}

/// Settles a call that has lost its connection. A call that only waits is closed.
fn settle_detached<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get(handle) else { return };
    match &call.stage {
        Stage::Runs(_) | Stage::Answered(_) => mcp.note(News::Call(handle)),
        Stage::Asks(_) => {} // The client comes back, or the time is up.
        Stage::Awaits(_) | Stage::Reads(..) | Stage::Listens(_) | Stage::Begins => {
            answer::close_call(shard, handle);
        }
    }
}

/// Handles expired deadlines.
pub(in crate::server) fn fire_mcp_deadlines<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    loop {
        let mcp = &mut shard.guests.mcp;
        mcp.kept.expire(now);
        if let Some(session) = mcp.sessions.expire(now) {
            mcp.counts.sessions_idled_out += 1;
            mcp.forget_session(session.name);
            continue;
        }
        let Some(due) = mcp.timers.pop_expired(now) else { return };
        shard.worked = true;
        match due {
            Due::Call(handle) => call_is_due(shard, handle),
            Due::Output(handle) => keep_is_due(shard, handle),
            Due::Look => listen::look_at_resources(shard),
        }
    }
}

fn call_is_due<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    call.timer = None;
    match &call.stage {
        Stage::Asks(_) => {
            let text = "the client has not answered the tool's questions";
            let reply = open_streams::refusal(shard, &listen::call_context(shard, handle), text);
            answer::answer_call(shard, handle, reply);
        }
        Stage::Reads(keep, offset) => {
            let (keep, offset) = (*keep, *offset);
            open_streams::answer_read(shard, handle, keep, offset, true);
        }
        Stage::Answered(bytes) => {
            let bytes = bytes.to_vec(); // The settling of lines is over.
            answer::say_answer(shard, handle, bytes);
        }
        Stage::Runs(_) => mcp.tell_held(hub, handle),
        Stage::Awaits(_) | Stage::Listens(_) | Stage::Begins => {}
    }
}

fn keep_is_due<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let mcp = &mut shard.guests.mcp;
    let Some(keep) = mcp.keeps.get_mut(handle) else { return };
    keep.timer = None;
    let execution = keep.execution;
    match &keep.role {
        Role::Stream => open_streams::stream_is_due(shard, handle),
        Role::Task(_) => {
            tasks::forget_task(shard, handle);
            if let Some(execution) = execution {
                let _ = shard.cancel(execution);
            }
        }
        Role::Resource => forget_keep(shard, handle),
        Role::Answer(_) => {}
    }
}
