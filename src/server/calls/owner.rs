//! Ownership. An object of one principal is "not found" for all others, exactly as if it did not
//! exist.
//!
//! [`Shard::is_open_to`] checks calls before they are carried out. Code that reaches an execution
//! in another way has to check [`Shard::is_owned`].

use crate::base::{ExecutionId, Principal};
use crate::endpoint::ApiCall;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::{ServerShard, peers};
/// Returns the principal of the request that this connection is being answered.
pub(in crate::server) fn principal_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) -> Principal {
    let connection = shard.guests.hub.connection(id);
    connection.map_or(Principal::ANYONE, |connection| connection.http.principal())
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
        | ApiCall::Result(id, _)
        | ApiCall::Output(id, _)
        | ApiCall::Acknowledge(id, ..)
        | ApiCall::Unsubscribe(id, _) => is_owned(shard, *id, principal),
        ApiCall::ReadDoor(door) => is_owned(shard, door.execution, principal),
        ApiCall::Deliver(deliver) => is_owned(shard, deliver.part.call, principal),
        // All are checked together, so that the answer for one tells nothing about another.
        ApiCall::Follow(follow) => {
            let mut ids = follow.executions.iter().map(|(id, _)| *id);
            ids.all(|id| peers::is_apart(shard, id) || is_owned(shard, id, principal))
        }
        ApiCall::Progress(token) => {
            let found = shard.engine.find_token(*token);
            found.is_some_and(|id| is_owned(shard, id, principal))
        }
        // In lists everyone gets their own entries.
        ApiCall::Executions | ApiCall::AllProgress => true,
        ApiCall::Tools
        | ApiCall::Execute(_)
        | ApiCall::Produce(_)
        | ApiCall::Metrics(_)
        | ApiCall::Ready => true,
        // These names are looked up among the caller's own.
        ApiCall::VirtualTools
        | ApiCall::PutVirtualTool(_)
        | ApiCall::DeleteVirtualTool(_)
        | ApiCall::Work(_) => true,
        // All names in them are looked up among the caller's own.
        ApiCall::Mcp(_) | ApiCall::Thread(_) => true,
    }
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
