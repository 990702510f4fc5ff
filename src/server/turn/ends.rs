//! The end of a server.

use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Draining;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::turn::{flush, sockets};
use crate::server::{ServerShard, calls, hub, mcp, workers};

/// Begins to end the server. It accepts no more connections, stops what runs, and tells
/// subscribers `detached: shutdown`. Pending output is still sent: call [`ServerShard::turn`] until
/// [`ServerShard::connection_count`] is 0, or until a deadline of the caller.
pub(in crate::server) fn drain<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let hub = &mut shard.guests.hub;
    if hub.begin_draining() == Draining::Already {
        return;
    }
    hub::stop_listening(shard);
    shard.shut_down();
    flush::flush_connections(shard);
    workers::end_workers(shard);
    mcp::end_mcp(shard);
    calls::end_threads(shard);
    let hub = &shard.guests.hub;
    let connections = hub.connections();
    let told = connections.filter(|c| matches!(c.doing, Doing::Closing) && c.has_read_all());
    let told: Vec<ConnectionId> = told.map(|connection| connection.id).collect();
    for id in told {
        sockets::drop_connection(shard, id);
    }
    // A client that has just connected is sending its first request.
    let (_, new) = shard.guests.hub.waiting();
    for id in new {
        let until = shard.now + limits::DRAIN_FIRST_REQUEST;
        shard.guests.hub.set_timer(id, Some((Timer::Request, until)));
    }
    // From now on this closes connections that wait for another request.
    flush::flush_connections(shard);
}

/// Closes the connections that wait for another request while the server drains.
pub(in crate::server) fn close_idle<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let (used, _) = shard.guests.hub.waiting();
    for id in used {
        sockets::drop_connection(shard, id);
    }
}

/// Sends what can be sent and closes all connections. For the end of a shard.
pub(in crate::server) fn close_connections<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    flush::flush_connections(shard);
    let connections = shard.guests.hub.connections();
    let all: Vec<ConnectionId> = connections.map(|connection| connection.id).collect();
    for id in all {
        sockets::drop_connection(shard, id);
    }
}
