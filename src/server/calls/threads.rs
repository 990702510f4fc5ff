//! Threads: requests of front ends that name a conversation.
//!
//! AI SDK rejoins the run that is under way, and can stop it. LangGraph follows a thread rather
//! than a run. After the end of a run its stream goes on with the next one, on the same connection.
//! Its clients keep one connection for each thread. Such a connection waits on the shard of the
//! last run. Before the first run, it waits on the shard that the thread's name selects
//! ([`home_of_named`]). A run that may call tools of workers can begin on another shard.
//! The connection is then cut. The client reconnects at once with its position, and moves to that
//! shard.
//!
//! A new run on a thread replaces one that is still under way, but does not stop it. A client stops
//! a run with `cancel_on_disconnect` or a request. LangGraph's clients are refused until the first
//! run has ended, because they rely on that.
//!
//! Invariant T1: a connection is in [`Hub::idle_threads`] if and only if it follows a thread and
//! no execution.

use serde_json::{Map, Value};
use smallvec::{SmallVec, smallvec};

use crate::agent::{Body, Final, RunPart};
use crate::api;
use crate::base::{ExecutionId, Principal};
use crate::endpoint::{
    Answer, ApiCall, ApiError, DeliveryOptions, Follow, FrontOptions, StreamFormat, ThreadAsk,
    ThreadCall,
};
use crate::engine::{From, NotFound};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::calls::{answer, runs};
use crate::server::hub::connection::{Doing, kernel_bytes_for};
use crate::server::hub::stream::Source;
use crate::server::hub::{Answered, Hub};
use crate::server::peers::ToPeer;
use crate::server::streams::attached::Attached;
use crate::server::streams::follow::StreamHead;
use crate::server::streams::front::{FrontState, Thread};
use crate::server::{ServerShard, executions, hub, peers, streams};
use crate::shard::act::read_chunk;
use crate::shard::journal::RESTARTED;
use crate::shard::run::Ring;
use crate::stream::ExecutionState;
use crate::wire::http1::Status;

/// Returns the shard that carries out a call whose name selects it. The name is a thread or an
/// idempotency key.
pub(in crate::server) fn home_of_named<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    call: &ApiCall,
    principal: Principal,
) -> Option<usize> {
    match call {
        ApiCall::Thread(call) => match shard.guests.conversations.newest(principal, &call.thread) {
            Some(execution) => Some(usize::from(execution.shard)),
            None if matches!(call.ask, ThreadAsk::Follow(..)) => {
                Some(home_of_name(shard, &call.thread))
            }
            None => None,
        },
        ApiCall::Execute(execute) => {
            if let Some(key) = &execute.key {
                return Some(home_of_name(shard, &key.text));
            }
            execute.remembering_thread().map(|thread| home_of_name(shard, thread))
        }
        _ => None,
    }
}

/// Returns the shard of the newest run of the thread that a new run goes on with.
pub(in crate::server) fn home_of_memory<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    call: &ApiCall,
    principal: Principal,
) -> Option<usize> {
    let ApiCall::Execute(execute) = call else { return None };
    let thread = execute.remembering_thread()?;
    let newest = shard.guests.conversations.newest(principal, thread)?;
    Some(peers::home_of(shard, newest.shard))
}

/// Returns the shard of the runs of a thread with this name, unless they may call tools of
/// workers.
fn home_of_name<R: Reactor + 'static>(shard: &ServerShard<R>, name: &str) -> usize {
    let mixed = name.bytes().fold(0_u32, |sum, byte| {
        sum.rotate_left(5).wrapping_add(u32::from(byte)).wrapping_mul(0x9e37_79b1)
    });
    (mixed >> 16) as usize % shard.guests.peers.listening_count().max(1)
}

/// Carries out a request about a thread.
pub(in crate::server) fn ask_thread<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ThreadCall,
    principal: Principal,
) -> Answered {
    let ThreadCall { thread, ask } = call;
    let newest = shard.guests.conversations.newest(principal, &thread);
    let newest = newest.filter(|execution| executions::is_owned(shard, *execution, principal));
    let answer = match ask {
        ThreadAsk::Rejoin(format, delivery_options) => {
            return rejoin(shard, id, newest, format, delivery_options);
        }
        ThreadAsk::Follow(format, action) => {
            let channels = action.channels.clone();
            let conversations = shard.guests.conversations.clone();
            let (name, waiting) = (thread, None);
            let thread = Thread { principal, name, format, channels, conversations, waiting };
            return follow_thread(shard, id, newest, thread, action);
        }
        ThreadAsk::Cancel => match newest {
            Some(execution) => answer::cancel_call(shard, execution),
            None => Err(NotFound.into()),
        },
        ThreadAsk::State { is_listed } => {
            return runs::answer_state(shard, id, (&thread, newest), is_listed);
        }
        ThreadAsk::Runs { offset, status } => Ok(runs::list(shard, newest, (offset, status))),
        ThreadAsk::Forget => return runs::forget_thread(shard, id, newest),
        ThreadAsk::Search(search) => Ok(runs::search(shard, &search, principal)),
        ThreadAsk::Describe => {
            let name = match &*thread {
                "" => new_thread_name(shard),
                name => name.to_owned(),
            };
            Ok(Answer::json(Status::OK, &describe_thread(shard, &name, newest)))
        }
    };
    let answer = answer.unwrap_or_else(|error| Answer::error(&error));
    hub::answer(shard, id, &answer)
}

/// True if a run has not ended.
pub(super) fn is_under_way<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) -> bool {
    let status = shard.inspect(execution);
    status.is_ok_and(|status| {
        matches!(status.state, ExecutionState::Queued | ExecutionState::Running)
    })
}

/// True if a page may not have seen the end of a run: it is under way, or a restart has ended it.
fn is_unread<R: Reactor + 'static>(shard: &mut ServerShard<R>, execution: ExecutionId) -> bool {
    let status = shard.inspect(execution);
    let is_cut = status.is_ok_and(|status| status.error.as_deref() == Some(RESTARTED));
    is_cut || is_under_way(shard, execution)
}

fn rejoin<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    newest: Option<ExecutionId>,
    format: StreamFormat,
    delivery_options: DeliveryOptions,
) -> Answered {
    let Some(execution) = newest.filter(|execution| is_unread(shard, *execution)) else {
        return hub::answer(shard, id, &Answer::empty(Status::NO_CONTENT));
    };
    let follow = Follow {
        executions: smallvec![(execution, From::Start)],
        is_combined: false,
        seen_ends: SmallVec::new(),
        format,
        delivery_options,
        front: FrontOptions::default(),
    };
    streams::follow(shard, id, &follow)
}

/// Answers with the stream of a thread: its newest run, if it has one, and all later ones.
fn follow_thread<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    newest: Option<ExecutionId>,
    thread: Thread,
    action: FrontOptions,
) -> Answered {
    let format = thread.format;
    let Some(execution) = newest else { return wait_on_thread(shard, id, thread) };
    let follow = Follow {
        executions: smallvec![(execution, From::Start)],
        is_combined: false,
        seen_ends: SmallVec::new(),
        format: StreamFormat::Front(format),
        delivery_options: DeliveryOptions::default(),
        front: action,
    };
    let begun =
        streams::follow_in_words(shard, id, follow.executions[0], &follow, (format, Some(thread)));
    begun.unwrap_or_else(|error| hub::answer_error(shard, id, &error))
}

/// Begins the stream of a thread that has no run.
fn wait_on_thread<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    mut thread: Thread,
) -> Answered {
    thread.waiting = Some(shard.guests.conversations.wait());
    let head = StreamHead::told(thread.format, FrontState::nothing_yet(thread));
    let answered = streams::begin(shard, id, head, Default::default());
    if answered == Answered::Later {
        shard.guests.hub.add_idle_thread(id);
    }
    answered
}

/// Announces a new run to the connections that wait on its thread.
pub(in crate::server) fn announce_run<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    principal: Principal,
    thread: &str,
) {
    if !shard.guests.conversations.has_waiting() {
        return;
    }
    for id in waiting_for(shard, principal, thread) {
        if begin_next_run(shard, id, execution).is_err() {
            cut_stream(shard, id);
        }
    }
    hub::tell_demands(shard);
    // If a shard's mailbox is full, its clients reconnect later by themselves.
    peers::send_all(shard, || ToPeer::RunBegan(principal, thread.into()));
}

/// Cuts the streams that wait here for a run of this thread, because one has begun elsewhere.
pub(in crate::server) fn cut_waiting<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    principal: Principal,
    thread: &str,
) {
    for id in waiting_for(shard, principal, thread) {
        cut_stream(shard, id);
    }
}

/// Returns the connections that wait here for a run of this thread, and removes them from the
/// list.
fn waiting_for<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    principal: Principal,
    name: &str,
) -> Vec<ConnectionId> {
    let hub = &mut shard.guests.hub;
    let (mut found, mut others) = (Vec::new(), Vec::new());
    for id in hub.take_idle_threads() {
        let is_it = |thread: &Thread| thread.principal == principal && *thread.name == *name;
        match thread_of(hub, id).is_some_and(|thread| is_it(thread)) {
            true => found.push(id),
            false => others.push(id),
        }
    }
    others.into_iter().for_each(|id| hub.add_idle_thread(id));
    found
}

/// Continues a waiting connection's stream with this run.
fn begin_next_run<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
) -> Result<(), ApiError> {
    let hub = &mut shard.guests.hub;
    let Some(thread) = thread_of(hub, id) else { return Ok(()) };
    thread.waiting = None;
    let (format, channels) = (thread.format, thread.channels.clone());
    let spec = executions::spec_of(shard, execution, &DeliveryOptions::default(), From::Start);
    let subscribed = streams::attach_connection(shard, execution, spec, id)?;
    let front = streams::front_of(shard, execution, format, &channels);
    let run = shard.runs[execution.slot.index as usize].as_ref().expect("it was just opened");
    let tool = run.tool.as_ref().map_or("", |tool| tool.name.as_str());
    let hub = &mut shard.guests.hub;
    let connection = hub.writable(id).expect("it is still there");
    let mut stream = connection.stream.take().expect("it follows its thread");
    stream.front.as_mut().expect("as above").begin_run(front);
    let mut followed = Attached::Here(subscribed).followed(execution);
    followed.source = Some(Source::Here(subscribed.subscriber));
    (stream.followed, stream.open_count) = (smallvec![followed], 1);
    let agreed = Attached::Here(subscribed).agreed().expect("it was just attached");
    run.names.write_started(tool, agreed, |event| {
        connection.write(|out| stream.write_event(out, event, true));
    });
    connection.bound_sending(kernel_bytes_for(agreed.replay), &mut shard.reactor);
    let takes = connection.takes;
    connection.stream = Some(stream);
    if !takes {
        hub.set_demand(subscribed.subscriber, 0);
    }
    Ok(())
}

/// Cuts a stream off. Its client reconnects and resumes.
fn cut_stream<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) {
    let hub = &mut shard.guests.hub;
    if let Some(connection) = hub.writable(id) {
        (connection.is_last, connection.is_aborted) = (true, true);
    }
}

/// Ends the streams that wait on threads, because the server drains.
pub(in crate::server) fn end_threads<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let hub = &mut shard.guests.hub;
    for id in hub.take_idle_threads() {
        let Some(connection) = hub.writable(id) else { continue };
        connection.stream = None;
        connection.converse(|http, out| http.end_stream(out));
        connection.doing = Doing::Requests;
        connection.is_last = true;
    }
}

/// Returns a new unique name: a UUID.
pub(super) fn new_thread_name<R: Reactor + 'static>(shard: &mut ServerShard<R>) -> String {
    let hub = &mut shard.guests.hub;
    let [high, low] = [hub.random_number(), hub.random_number()];
    let (node, low) = (low & 0xffff_ffff_ffff, low >> 48);
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{node:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | (low & 0x3fff)
    )
}

fn describe_thread<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: &str,
    newest: Option<ExecutionId>,
) -> Value {
    let is_busy = newest.is_some_and(|execution| is_under_way(shard, execution));
    api::spelled(&api::Thread {
        thread_id: name.to_owned(),
        status: if is_busy { "busy" } else { "idle" }.to_owned(),
        metadata: Map::new(),
        values: runs::values_of(shard, newest),
        interrupts: Map::new(),
    })
}

/// Returns the text of the last part of a run, if the run is over.
pub(super) fn last_words<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) -> Option<String> {
    let status = shard.inspect(execution).ok()?;
    let place = shard.place_of(execution).slot.index;
    let run = shard.runs[place as usize].as_ref()?;
    if status.head_seq == 0 || matches!(run.ring, Ring::None) {
        return None;
    }
    let (_, data) = read_chunk(run, status.head_seq, &mut shard.scratch).ok()?;
    words_of(&RunPart::parse(data).ok()?)
}

/// Returns the text of the last part of a run.
pub(super) fn words_of(last: &RunPart) -> Option<String> {
    let Body::Final(last) = &last.body else { return None };
    match last {
        Final::ExecutionCompleted { final_state }
        | Final::ExecutionFailed { final_state, .. }
        | Final::ExecutionCancelled { final_state, .. } => Some(final_state.text.clone()),
        _ => None,
    }
}

/// Returns the thread that a connection follows.
fn thread_of(hub: &mut Hub, id: ConnectionId) -> Option<&mut Thread> {
    hub.connection(id)?.stream.as_mut()?.front.as_mut()?.thread.as_mut()
}
