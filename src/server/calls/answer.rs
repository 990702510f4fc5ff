//! Carries out calls, and answers them.

use std::time::Duration;

use crate::base::{ExecutionId, Principal};
use crate::endpoint::front::bodies;
use crate::endpoint::{
    Answer, ApiError, DeliveryOptions, Execute, FrontOptions, FrontProtocol, FrontRun,
    IdempotencyKey, PolicyChoice, StreamFormat, documents,
};
use crate::engine::{CancelError, Hold, Start, Status as ExecutionStatus};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::calls::keys::Found;
use crate::server::calls::{memory, responses, runs, tasks, threads};
use crate::server::conversations::Entering;
use crate::server::executions::{options_of, refusal};
use crate::server::guests::Guests;
use crate::server::hub::Answered;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::hub::stream::{Gathered, Purpose};
use crate::server::{ServerShard, executions, hub, records, streams, workers};
use crate::shard::{ExecuteError, ExecuteOptions, Outlet};
use crate::stream::{Durability, ExecutionState, Outcome, Policy};
use crate::tool::{AGENT, Prepared, StartError};
use crate::wire::http1::Status;
use crate::wire::write_json;

pub(in crate::server) fn cancel_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
) -> Result<Answer, ApiError> {
    let status = match shard.cancel(id) {
        Ok(()) => Status::ACCEPTED,
        Err(CancelError::Ended(_)) => Status::OK, // The execution has ended, as requested.
        Err(error @ CancelError::NotFound) => return Err(error.into()),
    };
    // This may have freed a ring for a queued execution, and removed the cancelled one.
    let state =
        shard.inspect(id).map_or(ExecutionState::Ended(Outcome::Cancelled), |found| found.state);
    Ok(Answer::json(status, &documents::state(id, state)))
}

pub(in crate::server) fn run_tool<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    mut execute: Execute,
    owner: Principal,
) -> Answered {
    if let Some(answered) = answer_repeated(shard, id, &execute, owner) {
        return answered;
    }
    if let Some(front) = execute.front.as_mut().filter(|f| f.protocol == FrontProtocol::Task) {
        front.thread_id.get_or_insert_with(|| threads::new_thread_name(shard).into());
    }
    match memory::go_on(shard, &mut execute, owner) {
        Ok(None) => begin_run(shard, id, execute, owner),
        Ok(Some(status)) => streams::gather_kept(shard, id, status, Purpose::Run(execute.into())),
        Err(error) => {
            let command = execute.front.and_then(|front| front.protocol.command());
            refuse_run(shard, id, command, &error)
        }
    }
}

/// Opens an execution, and answers with it.
fn begin_run<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execute: Execute,
    owner: Principal,
) -> Answered {
    let front = execute.front.unwrap_or_default();
    let (protocol, command) = (front.protocol, front.protocol.command());
    let (mut options, policy) = options_of(execute.opening, owner);
    let hold = options.hold;
    if matches!((options.start, &execute.stream), (Start::Now, Some(_))) {
        // A client that asks for the stream at once must miss nothing of it.
        options.start = Start::AfterSubscribers { count: 1, deadline: limits::ATTACH_DEADLINE };
    }
    let asked = execute.stream.as_ref().and_then(|(_, delivery_options)| delivery_options.policy);
    let asked = asked.or(policy.map(|action| action.policy));
    let prepared = workers::prepare_tool(shard, owner, &execute.tool, &execute.arguments);
    let is_for_front = matches!(execute.stream, Some((StreamFormat::Front(_), _)));
    let opened = prepared.map_err(ExecuteError::Start).and_then(|mut prepared| {
        prepared.trace = execute.trace.clone();
        options.goes_on = workers::kept::may_go_on(&prepared.work, options.deliver);
        let arguments = is_for_front.then_some(&execute.arguments);
        open(shard, prepared, options, (asked, policy), (&front, arguments))
    });
    let execution = match opened {
        Ok(execution) => execution,
        Err(ExecuteError::Start(StartError::UnknownTool { .. })) if execute.tool == AGENT => {
            let text = "this server has no model, so it runs no agents";
            let error = ApiError::new(Status::NOT_FOUND, "no_model", text);
            return refuse_run(shard, id, command, &error);
        }
        Err(error) => return refuse_run(shard, id, command, &refusal(error)),
    };
    records::log_started(shard, id, execution, &execute.tool);
    if let Some(key) = execute.key {
        note_key(shard, (owner, key), execution, hold);
    }
    if let Some(thread) = &front.thread_id {
        threads::announce_run(shard, execution, owner, thread);
    }
    if let Some(stream) = execute.stream {
        let answered = streams::follow_new(shard, id, execution, stream, options_for(*front));
        if answered.is_now() {
            let _ = shard.cancel(execution); // No client knows its id.
        } else if execute.cancels {
            streams::cancel_with(shard, id, execution);
        }
        return answered;
    }
    match protocol {
        FrontProtocol::Own => answer_begun(shard, id, execution, (&execute.tool, hold), None),
        FrontProtocol::Command(command) => {
            let reply = bodies::command_carried_out(command, &execution.to_string());
            hub::answer(shard, id, &reply)
        }
        FrontProtocol::Run => runs::answer_begun(shard, id, execution),
        FrontProtocol::Response => responses::answer_begun(shard, id, execution),
        FrontProtocol::Task => tasks::answer_begun(shard, id, execution, front.history_max),
    }
}

/// Returns the options of the stream of a run that begins.
fn options_for(front: FrontRun) -> FrontOptions {
    let FrontRun { passed_over, is_plain, reply_to, history_max, .. } = front;
    FrontOptions { passed_over, is_plain, reply_to, history_max, ..FrontOptions::default() }
}

/// Runs an agent that goes on with a conversation, now that this was read from the disk.
pub(in crate::server) fn run_remembering<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    gathered: Gathered,
) -> Answered {
    let messages = memory::messages_in(shard, &gathered);
    let Purpose::Run(mut execute) = gathered.purpose else { unreachable!("its caller looked") };
    let front = execute.front.get_or_insert_default();
    if messages.is_none() {
        let command = front.protocol.command();
        return refuse_run(shard, id, command, &memory::forgotten());
    }
    front.remembered = messages;
    let owner = hub::principal_of(shard, id);
    run_tool(shard, id, *execute, owner)
}

/// Opens an execution with the policy that it names, its thread, and the arguments that a front end
/// reports. `asked` is the policy of its first subscriber.
fn open<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    mut prepared: Prepared,
    options: ExecuteOptions,
    (asked, policy): (Option<Policy>, Option<PolicyChoice>),
    (front, arguments): (&FrontRun, Option<&serde_json::Value>),
) -> Result<ExecutionId, ExecuteError> {
    let is_kept = shard.durability_of(options.durability) != Durability::None;
    let unchosen = executions::unchosen_policy(prepared.tool.as_deref(), is_kept);
    let policy_then = asked.or(Some(unchosen.policy));
    let need = &mut prepared.need;
    need.ring_bytes = executions::served_ring_bytes(shard, policy_then).max(need.ring_bytes);
    let mut guest = Guests::prepare(shard, &prepared.work, &options)?;
    guest.policy = policy;
    let thread = front.thread_id.clone();
    guest.enters = thread.map(|thread| Entering { thread, run_id: front.run_id.clone() }.into());
    if let Some(kept) = &front.kept {
        guest.arguments = short(kept, limits::FRONT_CONVERSATION_BYTES_MAX);
    } else if guest.agent.is_none() {
        // Parts of an agent tell its arguments.
        guest.arguments = arguments.and_then(|all| short(all, limits::FRONT_ARGUMENTS_BYTES_MAX));
    }
    shard.open_execution(prepared, options, guest)
}

/// Answers a request whose key an earlier request has used.
fn answer_repeated<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execute: &Execute,
    owner: Principal,
) -> Option<Answered> {
    let is_known = |owner, execution| executions::is_found(shard, execution, owner);
    match shard.guests.keys.find(owner, execute.key.as_ref()?, is_known) {
        Found::Nothing => None,
        Found::Execution(begun, hold) => {
            Some(answer_begun(shard, id, begun, (&execute.tool, hold), execute.stream))
        }
        Found::OtherRequest => {
            let text = "idempotency-key: an earlier request with this key was another one";
            let error = ApiError::new(Status::UNPROCESSABLE_CONTENT, "key_reused", text);
            Some(hub::answer_error(shard, id, &error.field("idempotency-key")))
        }
    }
}

/// Notes the execution that a request with a key has begun.
fn note_key<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    (owner, key): (Principal, IdempotencyKey),
    execution: ExecutionId,
    hold: Hold,
) {
    let executions_max = shard.engine.limits().executions_max as usize;
    let mut keys = std::mem::take(&mut shard.guests.keys);
    let is_known = |owner, execution| executions::is_found(shard, execution, owner);
    keys.note(owner, key, (execution, hold), executions_max, is_known);
    shard.guests.keys = keys;
}

/// Answers with an execution that was begun by this request or by an earlier one with its key.
fn answer_begun<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    (tool, hold): (&str, Hold),
    stream: Option<(StreamFormat, DeliveryOptions)>,
) -> Answered {
    if let Some(stream) = stream {
        return streams::follow_new(shard, id, execution, stream, FrontOptions::default());
    }
    let status = shard.inspect(execution).expect("it can be found");
    let ticket = executions::ticket_for(shard, execution);
    let (token, state) = (status.token, status.state);
    let document = documents::created(execution, token, tool, state, hold, ticket.as_deref());
    let answer = Answer::created(&document, documents::location(execution));
    executions::answer_when_kept(shard, id, execution, answer)
}

/// Returns a copy of a value, if its text has at most this many bytes.
fn short(value: &serde_json::Value, bytes_max: usize) -> Option<Box<serde_json::Value>> {
    let mut spelled = Vec::new();
    write_json(&mut spelled, value);
    (spelled.len() <= bytes_max).then(|| value.clone().into())
}

/// Registers a new run in its thread, if it has one.
pub(in crate::server) fn enter_thread<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) {
    let begun_us = records::wall_us(shard);
    let guest = &mut shard.run_mut(execution.slot).guest;
    let (owner, Some(enters)) = (guest.owner, guest.enters.take()) else { return };
    let Entering { thread, run_id } = *enters;
    let conversations = &shard.guests.conversations;
    let seat = conversations.enter(owner, &thread, execution, run_id, begun_us);
    shard.run_mut(execution.slot).guest.thread = Some(seat.into());
}

/// Answers why a run did not start, in the format of commands if the request was one.
fn refuse_run<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    command: Option<u64>,
    error: &ApiError,
) -> Answered {
    if command.is_some() {
        let reply = bodies::command_refused(command, "invalid_argument", &error.message);
        return hub::answer(shard, id, &reply);
    }
    hub::answer_error(shard, id, error)
}

/// Answers at the end of the execution, or after the time that the client is ready to wait.
pub(in crate::server) fn await_result<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    wait: Duration,
) -> Answered {
    let now = shard.now;
    match shard.inspect(execution) {
        Err(error) => hub::answer_error(shard, id, &error.into()),
        Ok(status) if is_complete(&status) => give_result(shard, id, status),
        Ok(status) if wait.is_zero() => give_state(shard, id, &status),
        Ok(_) => {
            let hub = &mut shard.guests.hub;
            hub.wait_for(execution, id);
            let connection = hub.connection(id).expect("its request is being answered");
            connection.doing = Doing::Result;
            hub.set_timer(id, Some((Timer::Result, now + wait)));
            Answered::Later
        }
    }
}

fn give_result<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    mut status: ExecutionStatus,
) -> Answered {
    status.state = status.outcome.map_or(status.state, ExecutionState::Ended);
    let is_kept = shard.run_of(status.id).is_some_and(|run| run.has_history());
    if is_kept && status.tail_seq > 1 {
        return streams::gather_kept(shard, id, status, Purpose::Result);
    }
    let (data, _) = streams::held_payload(shard, &status, |_| true);
    hub::answer(shard, id, &Answer::json(Status::OK, &documents::result(&status, &data)))
}

fn give_state<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    status: &ExecutionStatus,
) -> Answered {
    let document = documents::state(status.id, status.state);
    hub::answer(shard, id, &Answer::json(Status::ACCEPTED, &document))
}

/// Answers all connections that wait for the end of this execution.
pub(in crate::server) fn answer_waiting<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) {
    loop {
        let hub = &mut shard.guests.hub;
        let Some(id) = hub.take_waiting_for(execution) else { return };
        answer_waited(shard, id, execution);
    }
}

/// Answers a client that has waited long enough.
pub(in crate::server) fn answer_late<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let hub = &mut shard.guests.hub;
    let execution = hub.take_waiting(id).expect("its timer was armed for it");
    answer_waited(shard, id, execution);
}

fn answer_waited<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
) {
    let hub = &mut shard.guests.hub;
    let connection = hub.connection(id).expect("a closed connection waits for nothing");
    connection.doing = Doing::Requests;
    let answered = match shard.inspect(execution) {
        Err(error) => hub::answer_error(shard, id, &error.into()),
        Ok(status) if is_complete(&status) => give_result(shard, id, status),
        Ok(status) => give_state(shard, id, &status),
    };
    if answered.is_now() {
        shard.guests.hub.resume_later(id);
    }
}

/// True if its result is complete. Subscribers may still have chunks to read.
fn is_complete(status: &ExecutionStatus) -> bool {
    status.state.is_over()
}
