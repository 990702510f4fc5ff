//! Carries out calls, and answers them.

use std::time::Duration;

use crate::base::{ExecutionId, Principal};
use crate::endpoint::front::bodies;
use crate::endpoint::{
    Answer, ApiCall, ApiError, Execute, FrontOptions, FrontRun, Opening, PolicyChoice,
    StreamFormat, documents,
};
use crate::engine::{CancelError, NotFound, Start, Status as ExecutionStatus};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::calls::{Answered, owner, threads};
use crate::server::hub::connection::{Doing, Timer};
use crate::server::{ServerShard, hub, mcp, peers, records, shm, workers};
use crate::shard::{ExecuteError, ExecuteOptions};
use crate::stream::{ExecutionState, Outcome, Policy};
use crate::tool::{AGENT, StartError};
use crate::wire::http1::Status;
use crate::wire::write_json;
/// Carries out a call of a client. Returns true if the reply is complete. Returns false if it
/// comes later, or if it is a stream that has begun.
pub(in crate::server) fn carry_out_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ApiCall,
) -> Answered {
    let is_draining = shard.guests.hub.is_draining();
    let principal = owner::principal_of(shard, id);
    match call {
        ApiCall::Execute(_)
        | ApiCall::Follow(_)
        | ApiCall::Output(..)
        | ApiCall::Work(_)
        | ApiCall::ReadDoor(_)
        | ApiCall::Produce(_)
        | ApiCall::Thread(_)
        | ApiCall::Ready
            if is_draining =>
        {
            answer_error(shard, id, &ApiError::shutting_down())
        }
        ref call if !owner::is_open_to(shard, call, principal) => {
            answer_error(shard, id, &NotFound.into())
        }
        ApiCall::Execute(execute) => run_tool(shard, id, *execute, principal),
        ApiCall::Follow(follow) => hub::follow(shard, id, &follow),
        ApiCall::Output(execution, kinds) => hub::send_output(shard, id, execution, kinds),
        ApiCall::Result(execution, wait) => await_result(shard, id, execution, wait),
        ApiCall::Executions | ApiCall::AllProgress | ApiCall::Metrics(_) => {
            peers::gather(shard, id, call, principal)
        }
        ApiCall::PutVirtualTool(_) | ApiCall::DeleteVirtualTool(_) => {
            workers::change_tools(shard, id, call, principal)
        }
        ApiCall::Work(work) => workers::let_work(shard, id, *work, principal),
        ApiCall::Deliver(deliver) => workers::deliver(shard, id, deliver, principal),
        ApiCall::Mcp(request) => mcp::answer_mcp(shard, id, *request, principal),
        ApiCall::ReadDoor(door) => shm::read_at_door(shard, id, &door),
        ApiCall::Produce(produce) => shm::produce_at_door(shard, id, *produce, principal),
        ApiCall::Thread(call) => threads::ask_thread(shard, id, *call, principal),
        other => {
            let reply = answer_now(shard, &other, principal);
            answer(shard, id, &reply.unwrap_or_else(|error| Answer::error(&error)))
        }
    }
}

/// Answers a call from the tables of this shard.
fn answer_now<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &ApiCall,
    principal: Principal,
) -> Result<Answer, ApiError> {
    let document = match call {
        ApiCall::Tools => {
            documents::tools(workers::tool_specs(shard, principal).map(|spec| &**spec))
        }
        ApiCall::VirtualTools => workers::list_virtual_tools(shard, principal),
        ApiCall::Inspect(execution) => describe(shard, *execution)?,
        ApiCall::Cancel(execution) => return cancel_call(shard, *execution),
        ApiCall::Acknowledge(execution, subscriber, seq) => {
            hub::check_subscriber(shard, *execution, *subscriber)?;
            shard.acknowledge(*subscriber, *seq)?;
            return Ok(Answer::empty(Status::NO_CONTENT));
        }
        ApiCall::Unsubscribe(execution, subscriber) => {
            hub::unfollow(shard, *execution, *subscriber)?;
            return Ok(Answer::empty(Status::NO_CONTENT));
        }
        ApiCall::Progress(token) => {
            let id = shard.find_token(*token)?;
            let status = shard.inspect(id)?;
            documents::progress(*token, &status, shard.engine.progress_texts(id.slot))
        }
        ApiCall::Ready if !shard.guests.peers.dead().is_empty() => {
            return Err(ApiError::shards_dead(shard.guests.peers.dead()));
        }
        ApiCall::Ready => documents::health("ready"),
        ApiCall::Execute(_)
        | ApiCall::Follow(_)
        | ApiCall::Output(..)
        | ApiCall::Result(..)
        | ApiCall::Executions
        | ApiCall::Metrics(_)
        | ApiCall::AllProgress
        | ApiCall::PutVirtualTool(_)
        | ApiCall::DeleteVirtualTool(_)
        | ApiCall::Work(_)
        | ApiCall::Mcp(_)
        | ApiCall::ReadDoor(_)
        | ApiCall::Produce(_)
        | ApiCall::Thread(_)
        | ApiCall::Deliver(_) => unreachable!("answered elsewhere"),
    };
    Ok(Answer::json(Status::OK, &document))
}

pub(in crate::server) fn list_executions<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    principal: Principal,
) -> serde_json::Value {
    let own = shard.runs.iter().flatten().filter(|run| run.guest.owner == principal);
    let ids: Vec<ExecutionId> = own.map(|run| run.id).collect();
    let mut all = Vec::with_capacity(ids.len());
    for id in ids {
        if let Ok(status) = shard.inspect(id) {
            all.push((status, tool_name(shard, id)));
        }
    }
    documents::executions(all.iter().map(|(status, tool)| (status, tool.as_str())), shard.now)
}

pub(in crate::server) fn describe<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
) -> Result<serde_json::Value, ApiError> {
    let subscribers = shard.subscribers(id)?;
    let status = shard.inspect(id)?;
    let texts = shard.engine.progress_texts(id.slot);
    let tool = tool_name(shard, id);
    let ticket = ticket_for(shard, id);
    let ticket = ticket.as_deref();
    Ok(documents::execution(&status, &tool, texts, &subscribers, ticket, shard.now))
}

/// Returns the ticket that opens the stream of an execution to its owner, if streams need one.
fn ticket_for<R: Reactor + 'static>(shard: &ServerShard<R>, id: ExecutionId) -> Option<String> {
    let run = shard.runs.get(id.slot.index as usize)?.as_ref();
    let owner = run.filter(|run| run.id == id)?.guest.owner;
    shard.guests.access.ticket(owner, id, shard.now)
}

/// Returns the name of the tool of an execution, or an empty string.
pub(in crate::server) fn tool_name<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
) -> String {
    shard.tool_of(id).map(|tool| tool.name.clone()).unwrap_or_default()
}

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

fn run_tool<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execute: Execute,
    owner: Principal,
) -> Answered {
    let front = execute.front.unwrap_or_default();
    let command = front.command;
    if let (Some(_), Some(thread)) = (command, &front.thread_id)
        && shard.guests.conversations.is_busy(owner, thread)
    {
        let text = "the last run of this thread has not ended";
        return refuse_run(shard, id, command, &ApiError::new(Status::CONFLICT, "busy", text));
    }
    let (mut options, policy) = options_of(execute.opening, owner);
    if matches!((options.start, &execute.stream), (Start::Now, Some(_))) {
        // A client that asks for the stream at once must miss nothing of it.
        options.start = Start::AfterSubscribers { count: 1, deadline: limits::ATTACH_DEADLINE };
    }
    let asked = execute.stream.as_ref().and_then(|(_, delivery_options)| delivery_options.policy);
    let asked = asked.or(policy.map(|action| action.policy));
    let prepared = workers::prepare_tool(shard, owner, &execute.tool, &execute.arguments);
    let opened = prepared.map_err(ExecuteError::Start).and_then(|mut prepared| {
        prepared.trace = execute.trace.clone();
        let of_tool = prepared.tool.as_ref().map(|tool| tool.subscribers.policy);
        let need = &mut prepared.need;
        need.ring_bytes = served_ring_bytes(shard, asked.or(of_tool)).max(need.ring_bytes);
        shard.execute_prepared(prepared, options)
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
    shard.run_mut(execution.slot).guest.policy = policy;
    records::log_started(shard, id, execution, &execute.tool);
    enter_thread(shard, execution, owner, &front);
    if let Some((StreamFormat::Front(_), _)) = &execute.stream {
        keep_arguments(shard, execution, execute.arguments);
    }
    if let Some((format, delivery_options)) = execute.stream {
        let action = FrontOptions { passed_over: front.passed_over, ..FrontOptions::default() };
        let answered = hub::follow_new(shard, id, execution, (format, delivery_options), action);
        if answered.is_now() {
            let _ = shard.cancel(execution); // No client knows its id.
        } else if execute.cancels {
            let hub = &mut shard.guests.hub;
            let stream = hub.connection(id).and_then(|c| c.stream.as_mut());
            stream.expect("it was just begun").cancels = Some(execution);
        }
        return answered;
    }
    if let Some(command) = command {
        let reply = bodies::command_carried_out(command, &execution.to_string());
        return answer(shard, id, &reply);
    }
    let status = shard.inspect(execution).expect("it was just opened");
    let ticket = ticket_for(shard, execution);
    let (token, tool) = (status.token, &execute.tool);
    let document = documents::created(execution, token, tool, status.state, ticket.as_deref());
    answer(shard, id, &Answer::created(&document, documents::location(execution)))
}

/// Keeps the arguments of a tool, if they are short. Parts of an agent tell its arguments.
fn keep_arguments<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    arguments: serde_json::Value,
) {
    let run = shard.run_mut(execution.slot);
    if run.names.has_parts {
        return;
    }
    let mut spelled = Vec::new();
    write_json(&mut spelled, &arguments);
    if spelled.len() <= limits::FRONT_ARGUMENTS_BYTES_MAX {
        run.guest.arguments = Some(arguments.into());
    }
}

/// Registers a run in its thread, if it has one.
fn enter_thread<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    owner: Principal,
    front: &FrontRun,
) {
    let Some(thread) = &front.thread_id else { return };
    let run_id = front.run_id.clone();
    let seat = shard.guests.conversations.enter(owner, thread, execution, run_id);
    shard.run_mut(execution.slot).guest.thread = Some(seat.into());
    threads::announce_run(shard, execution, owner, thread);
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
        return answer(shard, id, &reply);
    }
    let _ = command;
    answer_error(shard, id, error)
}

/// Returns the minimum size of the ring of an execution that connections follow with this
/// policy. Returns 0, and the tool's need decides, when leased rings hold half of all memory
/// and none can be freed.
pub(in crate::server) fn served_ring_bytes<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    policy: Option<Policy>,
) -> u32 {
    let has_half = shard.rings.usage().leased_bytes < shard.rings.bytes_max() / 2;
    let is_plentiful = has_half || shard.engine.can_spare_a_ring();
    match policy {
        _ if !is_plentiful => 0,
        Some(Policy::Block) => limits::RING_REPLAYED_BYTES,
        _ => limits::RING_SERVED_BYTES,
    }
}

/// Answers at the end of the execution, or after the time that the client is ready to wait.
fn await_result<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    wait: Duration,
) -> Answered {
    let now = shard.now;
    match shard.inspect(execution) {
        Err(error) => answer_error(shard, id, &error.into()),
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
    let mut data = Vec::new();
    if let Some(run) = shard.runs[status.id.slot.index as usize].as_ref() {
        for seq in status.tail_seq.max(1)..=status.head_seq {
            let read = crate::shard::act::read_chunk(run, seq, &mut shard.scratch);
            if let Ok((_, payload)) = read {
                data.extend_from_slice(payload);
                if run.names.has_parts {
                    data.push(b'\n'); // Each part is one line.
                }
            }
        }
    }
    answer(shard, id, &Answer::json(Status::OK, &documents::result(&status, &data)))
}

fn give_state<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    status: &ExecutionStatus,
) -> Answered {
    let document = documents::state(status.id, status.state);
    answer(shard, id, &Answer::json(Status::ACCEPTED, &document))
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
    match shard.inspect(execution) {
        Err(error) => answer_error(shard, id, &error.into()),
        Ok(status) if is_complete(&status) => give_result(shard, id, status),
        Ok(status) => give_state(shard, id, &status),
    };
    shard.guests.hub.resume_later(id);
}

/// Writes a complete reply. Always returns true.
pub(in crate::server) fn answer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    answer: &Answer,
) -> Answered {
    let hub = &mut shard.guests.hub;
    let around = hub.around(&shard.guests.access, shard.now);
    if let Some(connection) = hub.writable(id) {
        connection.converse(|http, out| http.answer(answer, &around, out));
    }
    Answered::Now
}

/// Writes a complete error reply. Always returns true.
pub(in crate::server) fn answer_error<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    error: &ApiError,
) -> Answered {
    let hub = &mut shard.guests.hub;
    let around = hub.around(&shard.guests.access, shard.now);
    if let Some(connection) = hub.writable(id) {
        connection.converse(|http, out| http.answer_error(error, &around, out));
    }
    Answered::Now
}

/// Returns the options of an execution of `owner`, and the policy of subscribers that choose none.
pub(in crate::server) fn options_of(
    opening: Opening,
    owner: Principal,
) -> (ExecuteOptions, Option<PolicyChoice>) {
    let Opening { start, hold, retention, block_deadline, on_stall, timeouts, progress, policy } =
        opening;
    let options = ExecuteOptions {
        start,
        hold,
        retention,
        block_deadline,
        on_stall,
        timeouts,
        progress,
        owner,
    };
    (options, policy)
}

/// Returns the error reply for a tool that was not run.
pub(in crate::server) fn refusal(error: ExecuteError) -> ApiError {
    let text = error.to_string();
    match error {
        ExecuteError::Start(error) => error.into(),
        ExecuteError::Open(error) => error.into(),
        ExecuteError::NoRandomness => {
            ApiError::new(Status::INTERNAL_SERVER_ERROR, "no_randomness", text)
        }
        ExecuteError::ChunkTooLarge { chunk_bytes_max, .. } => {
            ApiError::new(Status::BAD_REQUEST, "chunk_too_large", text)
                .limit(chunk_bytes_max.into())
        }
        ExecuteError::MemoryShort(_) => {
            ApiError::new(Status::SERVICE_UNAVAILABLE, "memory_short", text)
                .retry_after(limits::BUSY_RETRY_AFTER)
        }
    }
}

/// True if its result is complete. Subscribers may still have chunks to read.
fn is_complete(status: &ExecutionStatus) -> bool {
    matches!(status.state, ExecutionState::Draining | ExecutionState::Ended(_))
}
