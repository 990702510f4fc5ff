//! The executions of a shard, as clients of the server see them: the owner, the description, the
//! terms of new executions and of their subscribers.
//!
//! An object of one principal is "not found" for all others, exactly as if it did not exist. A
//! request is checked before it is carried out. Code that reaches an execution in another way has
//! to check [`is_owned`].

mod ended;

pub use ended::{EndedCounts, EndedExecutions};

use std::time::Duration;

use crate::base::{ExecutionId, Handle, Principal, SubscriberId};
use crate::endpoint::documents::Clock;
use crate::endpoint::{ApiError, DeliveryOptions, ListAsk, Opening, PolicyChoice, documents};
use crate::engine::{From, NotFound, SubscribeSpec};
use crate::limits;
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::shard::{ExecuteError, ExecuteOptions};
use crate::stream::{Deliver, OnFull, Outcome, Policy};
use crate::wire::http1::Status;

/// Counts an execution that has just ended. Returns the time from its request to its end.
pub(in crate::server) fn count_ended<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: Handle,
    outcome: Outcome,
) -> Duration {
    // The engine may have forgotten it already.
    let run = shard.runs[execution.index as usize].as_ref().expect("it has just ended");
    let took = shard.now.since(run.opened_at);
    let tool = run.tool.as_ref().map(|tool| &*tool.name);
    shard.guests.ended.count(tool, outcome, took);
    took
}

/// True if the execution exists and belongs to this principal.
pub(in crate::server) fn is_owned<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
    principal: Principal,
) -> bool {
    let run = shard.runs.get(id.slot.index as usize).and_then(Option::as_ref);
    run.is_some_and(|run| run.id == id && run.guest.owner == principal)
}

/// True if the execution belongs to this principal, and the engine has not forgotten it. An
/// execution without retention is forgotten before its end is carried out.
pub(in crate::server) fn is_found<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
    principal: Principal,
) -> bool {
    is_owned(shard, id, principal) && shard.engine.execution_id(id.slot) == Some(id)
}

/// Returns the executions of this shard that are on the page, and one more if there is one.
pub(in crate::server) fn list<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    ask: &ListAsk,
    principal: Principal,
) -> serde_json::Value {
    let own = shard.runs.iter().flatten().filter(|run| run.guest.owner == principal);
    let ids: Vec<ExecutionId> = own.map(|run| run.id).collect();
    let clock = clock(shard);
    let mut all = Vec::with_capacity(ids.len());
    for id in ids {
        let Ok(status) = shard.inspect(id) else { continue };
        let tool = tool_name(shard, id);
        let place = clock.place_of(&status);
        if ask.takes(&tool, status.state) && ask.after.as_ref().is_none_or(|after| place > *after) {
            all.push((place, status, tool));
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.truncate(ask.limit as usize + 1);
    documents::executions(all.iter().map(|(_, status, tool)| (status, tool.as_str())), clock)
}

fn clock<R: Reactor + 'static>(shard: &ServerShard<R>) -> Clock {
    Clock { now: shard.now, anchor: shard.anchor }
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
    Ok(documents::execution(&status, &tool, texts, &subscribers, ticket, clock(shard)))
}

/// Returns the ticket that opens the stream of an execution to its owner, if streams need one.
pub(in crate::server) fn ticket_for<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
) -> Option<String> {
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
        grows: false,
        durability: None,
        deliver: Deliver::AtOnce,
        on_full: OnFull::Gap,
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
        ExecuteError::NoJournal { .. }
        | ExecuteError::NothingKept { .. }
        | ExecuteError::NotKept(_) => {
            unreachable!("a server has no journal, and asks for none")
        }
    }
}

/// Returns the subscription of a client, with the execution's defaults for what it leaves open.
pub(in crate::server) fn spec_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: ExecutionId,
    delivery_options: &DeliveryOptions,
    from: From,
) -> SubscribeSpec {
    let run = shard.runs.get(execution.slot.index as usize).and_then(Option::as_ref);
    let run = run.filter(|run| run.id == execution);
    let default = run.and_then(|run| {
        let of_tool = run.tool.as_ref().map(|tool| tool.subscribers);
        run.guest.policy.or(of_tool.map(|default| PolicyChoice {
            policy: default.policy,
            limit_chunks: default.limit_chunks,
            limit_bytes: default.limit_bytes,
        }))
    });
    let spec = delivery_options.spec(default.unwrap_or_default(), from);
    // The last bytes may be lost with the connection. The client resumes for them.
    SubscribeSpec { replays: spec.policy == Policy::Block, ..spec }
}

/// Checks that the subscriber belongs to this execution.
pub(in crate::server) fn check_subscriber<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    subscriber: SubscriberId,
) -> Result<(), ApiError> {
    let all = shard.subscribers(execution)?;
    match all.iter().any(|status| status.id == subscriber) {
        true => Ok(()),
        false => Err(NotFound.into()),
    }
}
