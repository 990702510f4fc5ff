//! Requests of the HTTP API: each is passed to the guest that carries it out.

use crate::base::Principal;
use crate::endpoint::{Answer, ApiCall, ApiError, Elsewhere, documents};
use crate::engine::NotFound;
use crate::journal::Refused;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::turn::parts;
use crate::server::{
    ServerShard, agents, calls, cluster, durable, executions, hub, mcp, peers, shm, streams,
    subscriptions, workers,
};
use crate::shard::ExecuteError;
use crate::wire::http1::Status;

/// Carries out a call of a client.
pub(in crate::server) fn carry_out_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ApiCall,
) -> Answered {
    let principal = hub::principal_of(shard, id);
    if let Some(error) = refusal_of(shard, &call, principal) {
        return hub::answer_error(shard, id, &error);
    }
    match call {
        ApiCall::Execute(execute) => calls::run_tool(shard, id, *execute, principal),
        ApiCall::Follow(follow) => streams::follow(shard, id, &follow),
        ApiCall::Forget(execution) => executions::forget(shard, id, execution),
        ApiCall::Output(execution, ask) => streams::send_output(shard, id, execution, &ask),
        ApiCall::Result(execution, wait) => calls::await_result(shard, id, execution, wait),
        ApiCall::Executions(_) | ApiCall::Tasks(_) | ApiCall::AllProgress | ApiCall::Metrics(_) => {
            parts::gather(shard, id, &call, principal)
        }
        ApiCall::PutVirtualTool(_) | ApiCall::DeleteVirtualTool(_) => {
            workers::change_tools(shard, id, call, principal)
        }
        ApiCall::Work(work) => workers::let_work(shard, id, *work, principal),
        ApiCall::Deliver(deliver) => workers::deliver(shard, id, deliver, principal),
        ApiCall::Mcp(request) => mcp::answer_mcp(shard, id, *request, principal),
        ApiCall::ReadDoor(door) if executions::is_on_disk_only(shard, door.execution) => {
            let text = "the execution is on disk only; read its events over HTTP";
            let error = ApiError::new(Status::GONE, "no_longer_held", text);
            hub::answer_error(shard, id, &error)
        }
        ApiCall::ReadDoor(door) => shm::read_at_door(shard, id, &door),
        ApiCall::Produce(produce) => shm::produce_at_door(shard, id, *produce, principal),
        ApiCall::Thread(call) => calls::ask_thread(shard, id, *call, principal),
        ApiCall::Response(call) => calls::ask_response(shard, id, call),
        ApiCall::Task(call) => calls::ask_task(shard, id, *call),
        ApiCall::Durable(call) if call.is_control() => {
            subscriptions::answer(shard, id, *call, principal)
        }
        ApiCall::Durable(call) => durable::answer(shard, id, *call, principal),
        other => {
            let reply = answer_now(shard, &other, principal);
            hub::answer(shard, id, &reply.unwrap_or_else(|error| Answer::error(&error)))
        }
    }
}

/// Returns the error for a call that is not carried out here, or not for this principal.
fn refusal_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &ApiCall,
    principal: Principal,
) -> Option<ApiError> {
    match call {
        ApiCall::Execute(_)
        | ApiCall::Follow(_)
        | ApiCall::Output(..)
        | ApiCall::Work(_)
        | ApiCall::ReadDoor(_)
        | ApiCall::Produce(_)
        | ApiCall::Thread(_)
        | ApiCall::Response(_)
        | ApiCall::Durable(_)
        | ApiCall::Ready
            if shard.guests.hub.is_draining() =>
        {
            Some(ApiError::shutting_down())
        }
        call if !is_open_to(shard, call, principal) => Some(NotFound.into()),
        call => elsewhere(shard, call).map(ApiError::elsewhere),
    }
}

/// Returns the other node that alone carries out such a call about one of its executions.
fn elsewhere<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &ApiCall,
) -> Option<Elsewhere> {
    let execution = match call {
        ApiCall::Forget(id) => *id,
        ApiCall::ReadDoor(door) if executions::is_on_disk_only(shard, door.execution) => {
            door.execution
        }
        ApiCall::Deliver(deliver) => deliver.part.call,
        // One that is not a subscriber here may be one there.
        ApiCall::Acknowledge(id, subscriber, _) | ApiCall::Unsubscribe(id, subscriber)
            if executions::check_subscriber(shard, *id, *subscriber).is_err() =>
        {
            *id
        }
        _ => return None,
    };
    cluster::elsewhere(shard, execution)
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
        ApiCall::Inspect(execution) => executions::describe(shard, *execution)?,
        ApiCall::Cancel(execution) => return calls::cancel_call(shard, *execution),
        ApiCall::Acknowledge(execution, subscriber, seq) => {
            executions::check_subscriber(shard, *execution, *subscriber)?;
            shard.acknowledge(*subscriber, *seq)?;
            return Ok(Answer::empty(Status::NO_CONTENT));
        }
        ApiCall::Unsubscribe(execution, subscriber) => {
            streams::unfollow(shard, *execution, *subscriber)?;
            return Ok(Answer::empty(Status::NO_CONTENT));
        }
        ApiCall::Progress(token) => {
            let id = executions::of_token(shard, *token).ok_or(NotFound)?;
            let status = shard.inspect(id)?;
            let texts = shard.engine.progress_texts(shard.place_of(id).slot);
            documents::progress(*token, &status, texts)
        }
        ApiCall::Ready if !shard.guests.peers.dead().is_empty() => {
            return Err(ApiError::shards_dead(shard.guests.peers.dead()));
        }
        ApiCall::Ready if shard.has_failed_disk() => {
            return Err(executions::refusal(ExecuteError::NotKept(Refused::Broken)));
        }
        ApiCall::Ready => documents::health("ready"),
        ApiCall::Assistants(ask) => {
            return calls::assistants(shard, &agents::model_names(shard), ask);
        }
        ApiCall::AgentCard(origin) => {
            let has_models = !agents::model_names(shard).is_empty();
            return Ok(calls::card(shard, origin, has_models, principal));
        }
        ApiCall::Execute(_)
        | ApiCall::Follow(_)
        | ApiCall::Output(..)
        | ApiCall::Forget(_)
        | ApiCall::Result(..)
        | ApiCall::Executions(_)
        | ApiCall::Metrics(_)
        | ApiCall::AllProgress
        | ApiCall::PutVirtualTool(_)
        | ApiCall::DeleteVirtualTool(_)
        | ApiCall::Work(_)
        | ApiCall::Mcp(_)
        | ApiCall::ReadDoor(_)
        | ApiCall::Produce(_)
        | ApiCall::Thread(_)
        | ApiCall::Response(_)
        | ApiCall::Task(_)
        | ApiCall::Tasks(_)
        | ApiCall::Durable(_)
        | ApiCall::Deliver(_) => unreachable!("answered elsewhere"),
    };
    Ok(Answer::json(Status::OK, &document))
}

/// True if all that a call names exists and belongs to this principal. Executions of other
/// shards are checked there.
pub(in crate::server) fn is_open_to<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    call: &ApiCall,
    principal: Principal,
) -> bool {
    match call {
        ApiCall::Inspect(id)
        | ApiCall::Cancel(id)
        | ApiCall::Forget(id)
        | ApiCall::Result(id, _)
        | ApiCall::Output(id, _)
        | ApiCall::Acknowledge(id, ..)
        | ApiCall::Unsubscribe(id, _) => executions::is_owned(shard, *id, principal),
        ApiCall::ReadDoor(door) => executions::is_owned(shard, door.execution, principal),
        ApiCall::Response(call) => executions::is_owned(shard, call.execution, principal),
        ApiCall::Task(call) => executions::is_owned(shard, call.execution, principal),
        ApiCall::Deliver(deliver) => executions::is_owned(shard, deliver.part.call, principal),
        // All are checked together, so that the answer for one tells nothing about another.
        ApiCall::Follow(follow) => {
            let mut ids = follow.executions.iter().map(|(id, _)| *id);
            ids.all(|id| peers::is_apart(shard, id) || executions::is_owned(shard, id, principal))
        }
        ApiCall::Progress(token) => {
            let found = executions::of_token(shard, *token);
            found.is_some_and(|id| executions::is_owned(shard, id, principal))
        }
        // In lists everyone gets their own entries.
        ApiCall::Executions(_) | ApiCall::Tasks(_) | ApiCall::AllProgress => true,
        ApiCall::Tools
        | ApiCall::Execute(_)
        | ApiCall::Produce(_)
        | ApiCall::Metrics(_)
        | ApiCall::Assistants(_)
        | ApiCall::AgentCard(_)
        | ApiCall::Ready => true,
        // These names are looked up among the caller's own.
        ApiCall::VirtualTools
        | ApiCall::PutVirtualTool(_)
        | ApiCall::DeleteVirtualTool(_)
        | ApiCall::Work(_) => true,
        // All names in them are looked up among the caller's own.
        ApiCall::Mcp(_) | ApiCall::Thread(_) | ApiCall::Durable(_) => true,
    }
}
