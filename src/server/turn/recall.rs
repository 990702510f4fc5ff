//! Calls that wait for the disk, or for another node.
//!
//! A call may name executions that only the disk has. The engine has forgotten them, or they are
//! from before a restart. Or another node of the cluster has them. Their records are read first,
//! and the call waits meanwhile ([`Doing::Recalling`]), with a timer. It is carried out like any
//! other once all of them were brought back. The questions of other shards wait in the same list.
//! A request of the Model Context Protocol may also wait until the output of such an execution was
//! read (`mcp/recalled.rs`).

use smallvec::SmallVec;

use crate::base::{ExecutionId, Principal};
use crate::endpoint::{ApiCall, ConnectionStep};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::cluster::Lookup;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::peers::join::Wanted;
use crate::server::peers::{Ticket, join};
use crate::server::turn::{messages, sockets};
use crate::server::{ServerShard, cluster, durable, executions, hub, mcp, peers, streams};
use crate::shard::Recall;

/// The calls that wait for executions from the disk.
#[derive(Default)]
pub(in crate::server) struct Recalls {
    waiting: Vec<Waiting>,
}

/// One of them.
enum Waiting {
    /// The call of a connection, if the connection still waits.
    Call(ConnectionId),
    /// The question of another shard.
    Join(u8, Ticket, Box<Wanted>),
}

impl Recalls {
    /// True if any call waits.
    #[inline]
    pub fn has_any(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// The executions that a call or a question names.
type Named = SmallVec<[ExecutionId; 1]>;

/// Returns the call, if it can be carried out now. Otherwise its connection waits.
pub(in crate::server) fn ready_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ApiCall,
) -> Option<ApiCall> {
    if !shard.has_journal() && !shard.guests.cluster.is_on() {
        return Some(call);
    }
    let principal = hub::principal_of(shard, id);
    match recall_for(shard, id, &call, principal) {
        Recall::Here => return Some(call),
        Recall::Later => {
            refuse(shard, id, &call);
            return None;
        }
        Recall::Soon => {}
    }
    let until = shard.now + limits::JOIN_DEADLINE;
    let hub = &mut shard.guests.hub;
    hub.connection(id).expect("its request was just read").doing = Doing::Recalling(call.into());
    hub.set_timer(id, Some((Timer::Join, until)));
    shard.guests.recalls.waiting.push(Waiting::Call(id));
    None
}

/// Returns the question, if it can be answered now.
pub(in crate::server) fn ready_join<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    asker: u8,
    ticket: Ticket,
    wanted: Box<Wanted>,
) -> Option<Box<Wanted>> {
    match recall_wanted(shard, &wanted) {
        Recall::Soon => {
            shard.guests.recalls.waiting.push(Waiting::Join(asker, ticket, wanted));
            None
        }
        Recall::Here | Recall::Later => Some(wanted),
    }
}

/// Carries out the calls whose executions were brought back.
pub(in crate::server) fn settle<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let waiting = std::mem::take(&mut shard.guests.recalls.waiting);
    for each in waiting {
        match each {
            Waiting::Call(id) => settle_call(shard, id),
            Waiting::Join(asker, ticket, wanted) => match recall_wanted(shard, &wanted) {
                Recall::Soon => {
                    let again = Waiting::Join(asker, ticket, wanted);
                    shard.guests.recalls.waiting.push(again);
                }
                Recall::Here | Recall::Later => messages::join(shard, asker, ticket, &wanted),
            },
        }
    }
}

fn settle_call<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) {
    let is_waiting = shard.guests.hub.connection(id).is_some_and(|connection| {
        matches!(connection.doing, Doing::Recalling(_)) // Else it is gone, or its time was up.
    });
    if !is_waiting {
        return;
    }
    let principal = hub::principal_of(shard, id);
    // Its body can be long: it is not copied in each turn.
    let connection = shard.guests.hub.connection(id).expect("it was just there");
    let doing = std::mem::replace(&mut connection.doing, Doing::Requests);
    let Doing::Recalling(call) = doing else { unreachable!("it was just looked at") };
    let recalled = recall_for(shard, id, &call, principal);
    let hub = &mut shard.guests.hub;
    if recalled == Recall::Soon {
        hub.connection(id).expect("it was just there").doing = Doing::Recalling(call);
        return shard.guests.recalls.waiting.push(Waiting::Call(id));
    }
    hub.set_timer(id, None);
    match recalled {
        Recall::Later => refuse(shard, id, &call),
        Recall::Here | Recall::Soon => {
            sockets::take_step(shard, id, ConnectionStep::Call(*call));
        }
    }
}

/// Refuses a call whose execution finds no place in memory.
fn refuse<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId, call: &ApiCall) {
    mcp::let_go_asked(shard, call);
    hub::answer_error(shard, id, &join::busy());
    shard.guests.hub.resume_later(id);
}

/// Refuses a call that has waited for too long.
pub(in crate::server) fn give_up<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let _ = cluster::take_holder(shard, id); // A late answer is for no other request.
    let connection = shard.guests.hub.connection(id).expect("the caller found it");
    if let Doing::Recalling(call) = &connection.doing {
        let call = call.clone();
        mcp::let_go_asked(shard, &call);
    }
    streams::join_late(shard, id);
}

/// Asks for everything that a call needs.
fn recall_for<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: &ApiCall,
    principal: Principal,
) -> Recall {
    let named = named_in(shard, call, principal);
    match (recall_all(shard, &named, principal), call) {
        (Recall::Here, ApiCall::Mcp(request)) => mcp::recall_mcp(shard, request, principal),
        (Recall::Here, ApiCall::Durable(call)) => durable::claim(shard, id, call, principal),
        (recalled, _) => recalled,
    }
}

/// Returns the executions of this shard that a call names.
fn named_in<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    call: &ApiCall,
    principal: Principal,
) -> Named {
    match call {
        ApiCall::Thread(call) => {
            let newest = shard.guests.conversations.newest(principal, &call.thread);
            newest.into_iter().collect()
        }
        ApiCall::Execute(execute) if execute.remembering_thread().is_some() => {
            let thread = execute.remembering_thread().unwrap_or_default();
            let newest = shard.guests.conversations.newest(principal, thread);
            newest.into_iter().collect()
        }
        ApiCall::Mcp(request) => {
            mcp::named_execution(shard, request, principal).into_iter().collect()
        }
        ApiCall::Progress(token) => executions::of_token(shard, *token).into_iter().collect(),
        ApiCall::Durable(call) if call.execution().is_none() => {
            let owner = shard.guests.access.name_of(principal);
            shard.guests.durable.executions_of(owner, &call.path).into_iter().collect()
        }
        // One that only the disk has takes no part. One of another node is taken by that node.
        ApiCall::Deliver(deliver) if shard.guests.archive.get(deliver.part.call).is_none() => {
            Named::from_elem(deliver.part.call, 1)
        }
        call => call.executions(),
    }
}

fn recall_wanted<R: Reactor + 'static>(shard: &mut ServerShard<R>, wanted: &Wanted) -> Recall {
    let named: Named = wanted.executions().iter().map(|(_, execution, _)| *execution).collect();
    recall_all(shard, &named, wanted.principal)
}

/// Asks for these executions, as far as they belong to the principal. Others are not found later.
/// One that the disk does not have may be one of another node.
fn recall_all<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    named: &[ExecutionId],
    principal: Principal,
) -> Recall {
    let mut recalled = Recall::Here;
    for &execution in named {
        let guests = &shard.guests;
        let entry = guests.archive.get(execution);
        let is_own = entry.is_some_and(|entry| entry.is_owned_by(principal, &guests.access));
        if peers::is_apart(shard, execution) {
            continue;
        }
        if !is_own {
            match cluster::locate(shard, execution, principal) {
                Lookup::Soon => recalled = Recall::Soon,
                Lookup::Later => return Recall::Later,
                Lookup::Here | Lookup::Nowhere => {}
            }
            continue;
        }
        let mut found = shard.recall(execution);
        if found == Ok(Recall::Later) && durable::has_freed_place(shard) {
            found = shard.recall(execution); // A stream that nobody uses has made room.
        }
        match found {
            Ok(Recall::Later) => return Recall::Later,
            Ok(Recall::Soon) => recalled = Recall::Soon,
            Ok(Recall::Here) | Err(_) => {}
        }
    }
    recalled
}
