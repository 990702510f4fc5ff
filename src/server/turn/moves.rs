//! The choice of the shard that answers a request, and the arrival of connections that move.

use serde_json::Value;

use crate::endpoint::{Answer, ApiCall, ApiError, ConnectionStep};
use crate::reactor::{ConnectionId, Reactor, ReleasedSocket};
use crate::server::hub::connection::{Connection, Doing};
use crate::server::peers::ToPeer;
use crate::server::peers::moves::Moving;
use crate::server::turn::sockets;
use crate::server::{
    ServerShard, calls, durable, hub, mcp, peers, records, subscriptions, workers,
};
use crate::shard::handle::Command;
use crate::tool::AGENT;

/// Returns the other shard that has to answer this call, if there is one.
pub(in crate::server) fn home_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: &ApiCall,
) -> Option<usize> {
    let home = match call.home() {
        Some(home) => peers::home_of(shard, home),
        None => {
            // A run goes on where its thread is, even without the tools of workers.
            let principal = hub::principal_of(shard, id);
            calls::home_of_memory(shard, call, principal)
                .or_else(|| workshop_of(shard, id, call))
                .or_else(|| named_home(shard, id, call))?
        }
    };
    (home != peers::own_index(shard) && home < shard.guests.peers.count()).then_some(home)
}

/// Returns the shard that the name in the call selects: a thread or an idempotency key.
fn named_home<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: &ApiCall,
) -> Option<usize> {
    if matches!(call, ApiCall::Thread(_) | ApiCall::Execute(_)) {
        let principal = hub::principal_of(shard, id);
        return calls::home_of_named(shard, call, principal);
    }
    if let ApiCall::Durable(call) = call {
        let principal = hub::principal_of(shard, id);
        if call.is_control() {
            return subscriptions::home_of(shard, call, principal);
        }
        return durable::home_of(shard, call, principal);
    }
    None
}

/// Returns the shard of the principal's workers and calls, if the call is about virtual tools.
/// All of a principal live on one shard.
fn workshop_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: &ApiCall,
) -> Option<usize> {
    let principal = hub::principal_of(shard, id);
    let is_there = match call {
        ApiCall::Work(_) | ApiCall::PutVirtualTool(_) | ApiCall::DeleteVirtualTool(_) => true,
        ApiCall::Execute(execute) if execute.tool == AGENT => {
            workers::may_call_virtual(shard, principal, &execute.arguments)
        }
        ApiCall::Execute(execute) => workers::is_virtual(shard, principal, &execute.tool),
        ApiCall::Mcp(request) => {
            let tool = request.called_tool();
            tool.is_some_and(|tool| match tool == AGENT {
                true => workers::may_call_virtual(shard, principal, &Value::Null),
                false => workers::is_virtual(shard, principal, tool),
            })
        }
        _ => false,
    };
    is_there.then(|| usize::from(principal.0) % shard.guests.peers.listening_count().max(1))
}

/// Sends a connection whose socket was released to its new shard.
pub(in crate::server) fn send_off<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    socket: ReleasedSocket,
) {
    let hub = &mut shard.guests.hub;
    let Some(connection) = hub.forget(id) else { return };
    let rest = connection.unsent();
    let Connection { http, session, is_at_door, doing, .. } = *connection;
    let Doing::Moving(to) = doing else { unreachable!("nothing else is released") };
    let (home, call) = *to;
    let moving = Box::new(Moving { socket, http, session, is_at_door, call, rest });
    let Some(mailbox) = shard.guests.peers.mailbox(home) else { unreachable!("it was found") };
    match mailbox.put(Command::Message(ToPeer::Arrive(moving))) {
        Ok(()) => {
            let waker = mailbox.waker().clone();
            shard.reactor.wake(&waker);
        }
        Err((error, Command::Message(ToPeer::Arrive(moving)))) => {
            let error = peers::peer_refusal(home, error);
            send_back(shard, *moving, &error);
        }
        Err(_) => unreachable!("the refused command comes back"),
    }
}

/// Takes a connection from another shard, with a call to answer here.
pub(in crate::server) fn take_in<R: Reactor + 'static>(shard: &mut ServerShard<R>, moving: Moving) {
    let call = moving.call.clone();
    match adopt(shard, moving) {
        Some(id) => sockets::take_step(shard, id, ConnectionStep::Call(call)),
        None => mcp::let_go_asked(shard, &call),
    }
}

/// Takes a connection back that the other shard does not accept now, and answers it with an
/// error.
fn send_back<R: Reactor + 'static>(shard: &mut ServerShard<R>, moving: Moving, error: &ApiError) {
    mcp::let_go_asked(shard, &moving.call);
    if let Some(id) = adopt(shard, moving) {
        hub::answer(shard, id, &Answer::error(error));
        sockets::converse(shard, id, |http, around, out| http.resume(around, out));
    }
}

/// Registers a moved connection, whose call is not answered yet. `None` if no place is free.
fn adopt<R: Reactor + 'static>(shard: &mut ServerShard<R>, moving: Moving) -> Option<ConnectionId> {
    let Moving { socket, http, session, is_at_door, rest, .. } = moving;
    let peer = socket.peer();
    if hub::open_hub(shard).is_err() {
        return None;
    }
    let Ok(id) = shard.reactor.adopt(socket) else {
        records::log_connection(shard, "connection_refused", peer);
        return None; // The error holds the socket, and dropping it closes the socket.
    };
    let hub = &mut shard.guests.hub;
    hub.accept(id, peer, shard.now);
    let connection = hub.writable(id).expect("it was just accepted");
    connection.http = http;
    connection.session = session;
    connection.is_at_door = is_at_door;
    connection.write(|out| out.extend_from_slice(&rest));
    Some(id)
}
