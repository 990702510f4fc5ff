//! Complete answers to the requests of connections.

use std::sync::Arc;

use crate::base::Principal;
use crate::endpoint::{Answer, ApiError, HttpConnection, Surroundings};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::connection::Doing;
use crate::server::{ServerShard, records};

/// The state of a request that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Answered {
    /// Its reply is complete.
    Now,
    /// Its reply comes later, or is a stream that has begun.
    Later,
}

impl Answered {
    /// True if the reply is complete.
    pub fn is_now(self) -> bool {
        self == Answered::Now
    }
}

/// Returns the principal of the request that this connection is being answered.
pub(in crate::server) fn principal_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) -> Principal {
    let connection = shard.guests.hub.connection(id);
    connection.map_or(Principal::ANYONE, |connection| connection.http.principal())
}

/// True if the connection reads a stream of the Durable Streams protocol.
pub(in crate::server) fn has_reader<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ConnectionId,
) -> bool {
    let stream = shard.guests.hub.connection_at(id).and_then(|found| found.stream.as_ref());
    stream.is_some_and(|stream| stream.reader.is_some())
}

/// Returns the scheme of the URLs that the client of this connection uses.
pub(in crate::server) fn scheme_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ConnectionId,
) -> &'static str {
    let connection = shard.guests.hub.connection_at(id);
    let is_sealed = connection.is_some_and(|connection| connection.session.is_some());
    if is_sealed { "https" } else { "http" }
}

/// Makes a connection wait for the answer to its request, without a timer. Always returns
/// [`Answered::Later`].
pub(in crate::server) fn wait<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) -> Answered {
    let hub = &mut shard.guests.hub;
    hub.connection(id).expect("its request is being answered").doing = Doing::Elsewhere;
    hub.set_timer(id, None);
    Answered::Later
}

/// Answers a connection that has waited since [`wait`], unless it is gone.
pub(in crate::server) fn answer_waiting<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    answered: &Answer,
) {
    let Some(connection) = shard.guests.hub.connection(id) else { return };
    if !matches!(connection.doing, Doing::Elsewhere) {
        return; // It is closing.
    }
    connection.doing = Doing::Requests;
    answer(shard, id, answered);
    shard.guests.hub.resume_later(id);
}

/// Writes a complete reply. Always returns [`Answered::Now`].
pub(in crate::server) fn answer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    answer: &Answer,
) -> Answered {
    reply(shard, id, |http, around, out| http.answer_apart(answer, around, out))
}

/// Writes a complete error reply. Always returns [`Answered::Now`].
pub(in crate::server) fn answer_error<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    error: &ApiError,
) -> Answered {
    reply(shard, id, |http, around, out| {
        http.answer_error(error, around, out);
        None
    })
}

/// A body that comes next, and that other replies have, too.
type SharedBody = Option<Arc<Vec<u8>>>;

fn reply<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    write: impl FnOnce(&mut HttpConnection, &Surroundings<'_>, &mut Vec<u8>) -> SharedBody,
) -> Answered {
    let hub = &mut shard.guests.hub;
    let around = hub.around(id, (&shard.guests.access, &shard.guests.tally), shard.now);
    if let Some(connection) = hub.writable(id) {
        let body = connection.converse(|http, out| write(http, &around, out));
        if let Some(body) = body {
            connection.push_body(body);
        }
    }
    records::log_answered(shard);
    Answered::Now
}
