//! Connections that move to the shard of the execution that their request names. There they are
//! like any others, and no chunks cross between cores.
//!
//! The request has been read, and its reply has not begun. These parts move: the socket, the HTTP
//! machine with its buffered input, the TLS session, the call, and unsent bytes of earlier replies.

use crate::endpoint::{ApiCall, HttpConnection};
use crate::reactor::{ConnectionId, Reactor, ReleasedSocket};
use crate::server::ServerShard;
use crate::server::hub::connection::Doing;
use crate::server::hub::tls::ServerTls;

/// A connection on its way to another shard.
pub struct Moving {
    pub(in crate::server) socket: ReleasedSocket,
    pub(in crate::server) http: HttpConnection,
    pub(in crate::server) session: Option<Box<ServerTls>>,
    pub(in crate::server) is_at_door: bool,
    pub(in crate::server) call: ApiCall,
    /// Bytes to send before the reply.
    pub(in crate::server) rest: Vec<u8>,
}

impl Moving {
    /// Returns the call that the other shard answers.
    pub fn call(&self) -> &ApiCall {
        &self.call
    }
}

/// Begins to move a connection. The reactor releases its socket later, and `turn/moves.rs` sends it
/// off.
pub(in crate::server) fn begin_move<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ApiCall,
    home: usize,
) {
    let hub = &mut shard.guests.hub;
    hub.flush(&mut shard.reactor, &mut shard.counters, shard.now);
    hub.set_timer(id, None);
    let Some(connection) = hub.connection(id) else { return };
    connection.doing = Doing::Moving(Box::new((home, call)));
    connection.is_blocked = true; // Pending output is not sent from here.
    hub.settle_place(id, shard.now);
    shard.reactor.release(id);
}
