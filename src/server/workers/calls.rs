//! Calls of virtual tools. Workers get them and answer them part by part.
//!
//! The id of a call is the id of its execution. A worker's parts are published as any chunks are.
//! If there is no room, a part stays with the connection that sent it ([`Doing::Part`]). It is
//! tried again when the gate opens or the call ends, and refused when its time is up.

use std::mem;

use smallvec::SmallVec;

use crate::base::{ExecutionId, Handle, Principal};
use crate::endpoint::{
    Answer, ApiError, Deliver, DurableHeaders, ProducerAt, StreamBody, Work, documents,
};
use crate::engine::NotFound;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::Guests;
use crate::server::hub::Answered;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::hub::frames::Encoding;
use crate::server::hub::stream::Stream;
use crate::server::workers::open_call::{Gone, OpenCall, Publish, Taken};
use crate::server::workers::{Due, EnterError, kept};
use crate::server::{ServerShard, executions, hub};
use crate::shard::run::Producer;
use crate::stream::Outcome;
use crate::tool::RemoteCall;
use crate::wire::http1::Status;
use crate::wire::sse;
/// Begins the call of an execution whose work is done by a worker.
pub(in crate::server) fn begin_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: Handle,
    call: RemoteCall,
) {
    let run = shard.run_mut(execution);
    run.guest.is_remote = true;
    run.guest.call = Some(Box::new(OpenCall::new(call)));
    let (id, owner, tool) = (run.id, run.guest.owner, run.tool.clone());
    let name = tool.as_ref().map_or("", |tool| tool.name.as_str());
    shard.guests.workers.begin(owner, id, name);
}

/// Notes that an execution has ended. Its worker, if it has one, is told so, unless the worker
/// itself sent the last part.
pub(in crate::server) fn note_call_ended<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: Handle,
    outcome: Outcome,
) {
    let run = shard.run_mut(execution);
    if run.guest.is_remote {
        let (id, owner) = (run.id, run.guest.owner);
        let is_own = run.guest.call.as_ref().is_some_and(|call| call.result().is_some());
        shard.guests.workers.note_ended(id, owner, (!is_own).then_some(outcome));
    }
}

/// Lets a worker take calls. Its stream begins, or the request is refused.
pub(in crate::server) fn let_work<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    work: Work,
    principal: Principal,
) -> Answered {
    if let Err(error) = shard.guests.workers.may_enter(principal, &work.session) {
        return hub::answer_error(shard, id, &entrance_error(error));
    }
    let now = shard.now;
    let hub = &mut shard.guests.hub;
    let (retry, beat) = (hub.retry(), hub.first_beat());
    let around = hub.around(id, (&shard.guests.access, &shard.guests.tally), now);
    let connection = hub.writable(id).expect("its request is being answered");
    let media_type = sse::MEDIA_TYPE;
    let body = connection.converse(|http, out| http.begin_stream(media_type, &around, out));
    if body == StreamBody::None {
        return Answered::Now;
    }
    let stream = Stream {
        encoding: Encoding::Sse,
        front: None,
        body,
        is_combined: false,
        followed: SmallVec::new(),
        open_count: 0,
        cancels: None,
        window: None,
        gathered: None,
        reader: None,
    };
    connection.write(|out| stream.write_retry(out, retry));
    connection.doing = Doing::Stream;
    connection.stream = Some(Box::new(stream));
    connection.worker = Some(Box::new((principal, work.session.clone())));
    hub.set_timer(id, Some((Timer::Beat, now + beat)));
    for call in shard.guests.workers.enter(principal, &work.session, work.tools, id) {
        tell_call(shard, id, call); // The worker is back, and may have forgotten its calls.
    }
    Answered::Later
}

/// Notes that the connection of a worker is gone.
pub(in crate::server) fn lose_worker<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    (principal, session): (Principal, Box<str>),
) {
    let now = shard.now;
    shard.guests.workers.leave(principal, &session, now);
}

/// Takes a part that a worker delivers. It is answered, or waits for room.
pub(in crate::server) fn deliver<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    deliver: Box<Deliver>,
    principal: Principal,
) -> Answered {
    let call = deliver.part.call;
    let others_wait = shard.guests.workers.parts.iter().any(|(other, _)| *other == call);
    match accept_part(shard, &deliver, principal, others_wait) {
        Ok(Taken::NotYet) => {
            hold_part(shard, id, deliver);
            Answered::Later
        }
        result => answer_part(shard, id, &deliver, result),
    }
}

/// Makes a part wait for room, together with its connection.
fn hold_part<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    deliver: Box<Deliver>,
) {
    let until = shard.now + limits::PART_WAIT;
    shard.guests.workers.parts.push((deliver.part.call, id));
    let hub = &mut shard.guests.hub;
    // A body of many parts waits as long as it takes: its connection is not read meanwhile.
    let timer = (!deliver.is_of_many).then_some((Timer::Part, until));
    hub.connection(id).expect("its request is being answered").doing = Doing::Part(deliver);
    hub.set_timer(id, timer);
}

/// Takes a part if it is the next one and there is room.
fn accept_part<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    deliver: &Deliver,
    principal: Principal,
    others_wait: bool,
) -> Result<Taken, NotFound> {
    let part = &deliver.part;
    let id = part.call;
    if !executions::is_owned(shard, id, principal) {
        return Err(NotFound);
    }
    let run = shard.run_of(id).expect("it is owned");
    let is_over = !matches!(run.producer, Producer::Feed);
    let call = run.guest.call.as_ref().ok_or(NotFound)?;
    if call.session.as_ref() != Some(&deliver.session) {
        return Err(NotFound);
    }
    let newer = deliver.producer.as_ref().and_then(|at| call.newer_life(at));
    if let Some(epoch) = newer {
        return Ok(Taken::Stale { epoch });
    }
    if let Some(judged) = call.judge(part.seq, is_over) {
        return Ok(judged);
    }
    if others_wait {
        return Ok(Taken::NotYet);
    }
    kept::note_part(shard, id, part);
    let taken = look_at_call(shard, id, |call, publish| {
        let taken = call.take(part.content.as_ref(), part.end.as_ref(), publish);
        if let (Ok(Taken::Now), Some(at)) = (&taken, &deliver.producer) {
            call.note_producer(at);
        }
        taken
    });
    match taken {
        Some(Ok(Taken::Now)) => {
            if let Some(report) = &part.progress {
                // This part may have ended the execution.
                let _ = shard.report(id, report.clone());
            }
            finish_call(shard, id);
            Ok(Taken::Now)
        }
        Some(Ok(other)) => Ok(other),
        Some(Err(Gone)) => Ok(Taken::Over),
        None => Err(NotFound),
    }
}

/// Changes a call. The closure gets a way to publish its bytes.
fn look_at_call<R: Reactor + 'static, T>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    look: impl FnOnce(&mut OpenCall, &mut Publish<'_>) -> T,
) -> Option<T> {
    let mut call = shard.run_of_mut(id)?.guest.call.take()?;
    let result =
        look(&mut call, &mut |kind, bytes| shard.publish_pieces(id, kind, bytes).map_err(|_| Gone));
    match call.gathers_for() {
        Some(delay) => {
            let deadline = shard.guests.workers.arm(shard.now + delay, Due::Gathered(id));
            call.deadline = Some(deadline);
        }
        None if !call.is_gathering() => disarm_call(shard, &mut call),
        None => {}
    }
    match shard.run_of_mut(id) {
        Some(run) => run.guest.call = Some(call),
        // The chunks just published have caused the removal of the execution.
        None => disarm_call(shard, &mut call),
    }
    Some(result)
}

fn disarm_call<R: Reactor + 'static>(shard: &mut ServerShard<R>, call: &mut OpenCall) {
    if let Some(deadline) = call.deadline.take() {
        shard.guests.workers.disarm(deadline);
    }
}

/// Ends the execution of a call whose last part is published.
fn finish_call<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExecutionId) {
    let result = shard.run_of(id).and_then(|run| run.guest.call.as_ref()?.result().cloned());
    if let Some(result) = result {
        let result = result.as_ref().map(|_| ()).map_err(|text| &**text);
        let _ = shard.finish(id, result); // It may have ended otherwise.
    }
}

/// Answers a part that does not wait. Always returns [`Answered::Now`].
fn answer_part<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    deliver: &Deliver,
    result: Result<Taken, NotFound>,
) -> Answered {
    let is_duplicate = result == Ok(Taken::Before);
    let error = match result {
        Ok(Taken::Now | Taken::Before) if deliver.is_of_many => {
            let hub = &mut shard.guests.hub;
            if let Some(connection) = hub.connection(id) {
                connection.http.take_part(is_duplicate);
            }
            return Answered::Now;
        }
        Ok(Taken::Now | Taken::Before) => {
            let answer = match &deliver.producer {
                Some(at) => answer_producer(at, is_duplicate),
                None => Answer::json(Status::OK, &documents::delivered(is_duplicate)),
            };
            return executions::answer_when_kept(shard, id, deliver.part.call, answer);
        }
        Ok(Taken::NotYet) => {
            let text = "a block subscriber has to read first; nothing of this part was taken";
            ApiError::new(Status::TOO_MANY_REQUESTS, "no_room", text)
                .retry_after(limits::PART_RETRY_AFTER)
        }
        Ok(Taken::Stale { epoch }) => {
            let text = "producer-epoch: the producer has begun a newer life";
            let error = ApiError::new(Status::FORBIDDEN, "stale_epoch", text);
            let headers = DurableHeaders::default().with("producer-epoch", epoch.to_string());
            return hub::answer(shard, id, &Answer::error(&error).with_headers(headers));
        }
        Ok(Taken::Hole { next_seq }) => {
            let text = format!("seq: the next part has to be {next_seq}");
            let error = ApiError::new(Status::CONFLICT, "part_missing", text);
            let error = error.field("seq").limit(next_seq);
            let Some(at) = &deliver.producer else { return hub::answer_error(shard, id, &error) };
            let headers = DurableHeaders::default()
                .with("producer-expected-seq", (next_seq - 1).to_string())
                .with("producer-received-seq", at.seq.to_string());
            return hub::answer(shard, id, &Answer::error(&error).with_headers(headers));
        }
        Ok(Taken::Over) => call_ended(shard, deliver.part.call),
        Err(NotFound) => NotFound.into(),
    };
    hub::answer_error(shard, id, &error)
}

/// Returns the answer to a part whose producer may repeat it.
fn answer_producer(at: &ProducerAt, is_duplicate: bool) -> Answer {
    let status = if is_duplicate { Status::NO_CONTENT } else { Status::OK };
    let headers = DurableHeaders::default()
        .with("producer-epoch", at.epoch.to_string())
        .with("producer-seq", at.seq.to_string());
    Answer::durable(status, headers, Vec::new())
}

/// Returns the error for parts after the last one, or after the end of the execution.
fn call_ended<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExecutionId) -> ApiError {
    let Ok(status) = shard.inspect(id) else { return NotFound.into() };
    let state = status.state.name();
    let text = format!("the call takes no more parts: its execution is {state}");
    ApiError::new(Status::GONE, "call_ended", text)
}

/// Takes parts that wait for this call, as far as there is room now.
fn look_at_parts<R: Reactor + 'static>(shard: &mut ServerShard<R>, call: ExecutionId) {
    while let Some(at) = shard.guests.workers.parts.iter().position(|(other, _)| *other == call) {
        let (_, id) = shard.guests.workers.parts[at];
        let hub = &mut shard.guests.hub;
        let connection = hub.connection(id).expect("a closed connection waits for nothing");
        let principal = connection.http.principal();
        let Doing::Part(deliver) = mem::replace(&mut connection.doing, Doing::Requests) else {
            unreachable!("it waits with its part");
        };
        let result = accept_part(shard, &deliver, principal, false);
        if result == Ok(Taken::NotYet) {
            let hub = &mut shard.guests.hub;
            let connection = hub.connection(id).expect("no connection is dropped in between");
            connection.doing = Doing::Part(deliver);
            return;
        }
        shard.guests.workers.parts.retain(|(_, waiting)| *waiting != id);
        answer_part(shard, id, &deliver, result);
        go_on_behind_part(shard, id);
    }
}

fn go_on_behind_part<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) {
    let hub = &mut shard.guests.hub;
    hub.set_timer(id, None);
    hub.resume_later(id);
}

/// Refuses a part that has waited for room long enough.
pub(in crate::server) fn refuse_part<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let hub = &mut shard.guests.hub;
    let connection = hub.connection(id).expect("a closed connection has no timer");
    let Doing::Part(deliver) = mem::replace(&mut connection.doing, Doing::Requests) else {
        unreachable!("its timer was armed for it");
    };
    forget_part(shard, id, deliver.part.call);
    answer_part(shard, id, &deliver, Ok(Taken::NotYet));
    go_on_behind_part(shard, id);
}

/// Removes a part that waits. The parts behind it are tried.
pub(in crate::server) fn forget_part<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ExecutionId,
) {
    shard.guests.workers.parts.retain(|(_, waiting)| *waiting != id);
    shard.guests.workers.note_room(call);
}

/// Handles calls that have begun, have ended or have room.
pub(in crate::server) fn settle_calls<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    while let Some((call, owner, outcome)) = shard.guests.workers.take_ended() {
        settle_ended(shard, call, owner, outcome);
    }
    while let Some(call) = shard.guests.workers.take_roomy() {
        let _ = look_at_call(shard, call, |call, publish| call.go_on(publish));
        finish_call(shard, call);
        look_at_parts(shard, call);
    }
    loop {
        let Guests { hub, workers, .. } = &mut shard.guests;
        let is_free = |id| hub.connection(id).is_some_and(|connection| connection.is_free());
        let Some((call, session, id)) = workers.assign(is_free) else { return };
        let call_of = shard.run_of_mut(call).and_then(|run| run.guest.call.as_mut());
        call_of.expect("a call that has ended does not wait").session = Some(session);
        kept::note_call(shard, call);
        tell_call(shard, id, call);
    }
}

fn settle_ended<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: ExecutionId,
    owner: Principal,
    outcome: Option<Outcome>,
) {
    let connection = shard.guests.workers.remove_call(owner, call);
    if let (Some(id), Some(outcome)) = (connection, outcome) {
        let document = documents::cancelled_call(call, outcome);
        tell_worker(shard, id, "cancel", &document);
    }
    let mut deadline = None;
    if let Some(call) = shard.run_of_mut(call).and_then(|run| run.guest.call.as_mut()) {
        call.let_go();
        deadline = call.deadline.take();
    }
    if let Some(deadline) = deadline {
        shard.guests.workers.disarm(deadline);
    }
    look_at_parts(shard, call);
}

/// Sends a call to its worker, for the first time or again.
fn tell_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ExecutionId,
) {
    let Some(run) = shard.run_of(call) else { return };
    let Some(open) = &run.guest.call else { return };
    let name = run.tool.as_ref().map_or("", |tool| tool.name.as_str());
    let (arguments, next_seq) = (&open.arguments, open.next_seq());
    let (timeouts, trace) = (&run.timeouts, &run.trace);
    let document = documents::tool_call(call, name, arguments, timeouts, next_seq, trace);
    tell_worker(shard, id, "tool_call", &document);
}

fn tell_worker<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    name: &str,
    document: &str,
) {
    let hub = &mut shard.guests.hub;
    let Some(connection) = hub.writable(id) else { return };
    let Some(stream) = connection.stream.take() else { return };
    connection.write(|out| stream.write_named(out, name, document));
    connection.stream = Some(stream);
}

/// Handles expired deadlines of workers and calls.
pub(in crate::server) fn fire_worker_deadlines<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    while let Some(due) = shard.guests.workers.pop_due(shard.now) {
        shard.worked = true;
        match due {
            Due::Back(principal, session) => {
                for call in shard.guests.workers.dismiss(principal, &session) {
                    let _ = shard
                        .finish(call, Err("its worker disconnected and did not return in time"));
                }
            }
            Due::Restarted(principal, session) => {
                for call in shard.guests.workers.dismiss(principal, &session) {
                    let _ = shard.finish(call, Err("restarted: its worker did not return in time"));
                }
            }
            Due::Gathered(id) => {
                let _ = look_at_call(shard, id, |call, publish| {
                    call.deadline = None;
                    call.publish_held(publish)
                });
                finish_call(shard, id);
            }
        }
    }
}

/// Ends the streams of all workers, because the server drains.
pub(in crate::server) fn end_workers<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let all: Vec<ConnectionId> = shard.guests.workers.connections().collect();
    for id in all {
        let hub = &mut shard.guests.hub;
        let Some(connection) = hub.writable(id) else { continue };
        connection.stream = None;
        connection.converse(|http, out| http.end_stream(out));
        connection.doing = Doing::Requests;
        connection.is_last = true;
        if let Some(worker) = connection.worker.take() {
            lose_worker(shard, *worker);
        }
    }
}

/// Checks the state of calls. For tests.
///
/// # Panics
/// If it is inconsistent.
pub(in crate::server) fn audit_calls<R: Reactor + 'static>(shard: &ServerShard<R>) {
    shard.guests.workers.audit(|id| shard.run_of(id).is_some_and(|run| run.guest.call.is_some()));
    for run in shard.runs.iter().flatten() {
        run.guest.call.iter().for_each(|call| call.audit());
    }
    let connections = shard.guests.hub.connections();
    let waiting = connections.filter(|connection| matches!(connection.doing, Doing::Part(_)));
    assert_eq!(waiting.count(), shard.guests.workers.parts.len());
}

fn entrance_error(error: EnterError) -> ApiError {
    match error {
        EnterError::Present => {
            let text = "a worker of this name is already connected";
            ApiError::new(Status::CONFLICT, "session_in_use", text).field("x-session-id")
        }
        EnterError::TooMany => {
            let most = limits::WORKERS_PER_PRINCIPAL_MAX;
            let text = format!("you have {most} workers already; disconnect one first");
            ApiError::new(Status::TOO_MANY_REQUESTS, "too_many_workers", text)
                .limit(most as u64)
                .retry_after(limits::BUSY_RETRY_AFTER)
        }
    }
}
