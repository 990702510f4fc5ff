//! What belongs to somebody is "not found" for everybody else, exactly as if it had never been.
//!
//! Calls are checked here before they are carried out, in [`Shard::is_open_to`]; what comes to an
//! execution in another way than by a call has to ask [`Shard::is_owned`].

use super::super::Shard;
use crate::base::{ExecutionId, Principal};
use crate::endpoint::Call;
use crate::reactor::{ConnectionId, Reactor};

impl<R: Reactor + 'static> Shard<R> {
    /// Who has sent the request that this connection is being answered.
    pub(super) fn principal_of(&mut self, id: ConnectionId) -> Principal {
        let connection = self.serve.as_mut().and_then(|serve| serve.connection(id));
        connection.map_or(Principal::ANYONE, |connection| connection.http.principal())
    }

    /// Is everything that a call is about there, and this principal's? Executions of other shards
    /// are theirs to say; what is found there is checked there.
    pub(super) fn is_open_to(&self, call: &Call, principal: Principal) -> bool {
        match call {
            Call::Inspect(id)
            | Call::Cancel(id)
            | Call::Result(id, _)
            | Call::Output(id, _)
            | Call::Acknowledge(id, ..)
            | Call::Unsubscribe(id, _) => self.is_owned(*id, principal),
            Call::ReadDoor(door) => self.is_owned(door.execution, principal),
            Call::Deliver(deliver) => self.is_owned(deliver.part.call, principal),
            // All before any: whose the second is must not show in what is said of the first.
            Call::Follow(follow) => {
                let mut ids = follow.executions.iter().map(|(id, _)| *id);
                ids.all(|id| self.is_apart(id) || self.is_owned(id, principal))
            }
            Call::Progress(token) => {
                let found = self.engine.find_token(*token);
                found.is_some_and(|id| self.is_owned(id, principal))
            }
            // Of lists everybody is given a part.
            Call::Executions | Call::AllProgress => true,
            Call::Tools | Call::Execute(_) | Call::Produce(_) | Call::Metrics(_) | Call::Ready => {
                true
            }
            // One's own are looked for among one's own.
            Call::VirtualTools
            | Call::PutVirtualTool(_)
            | Call::DeleteVirtualTool(_)
            | Call::Work(_) => true,
            // Everything that it names is looked for among one's own.
            Call::Mcp(_) | Call::Thread(_) => true,
        }
    }

    /// Is it there, and this principal's?
    pub(super) fn is_owned(&self, id: ExecutionId, principal: Principal) -> bool {
        let run = self.runs.get(id.slot.index as usize).and_then(Option::as_ref);
        run.is_some_and(|run| run.id == id && run.owner == principal)
    }
}
