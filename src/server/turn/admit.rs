//! The admission of new connections.

use crate::endpoint::ApiError;
use crate::limits;
use crate::reactor::{ConnectionId, Peer, Reactor};
use crate::server::hub::Verdict;
use crate::server::hub::tls::ServerTls;
use crate::server::turn::sockets;
use crate::server::{ServerShard, peers, records, shm};
use crate::trace::Level;
use crate::wire::http1::Status;

/// Accepts or refuses a new connection.
pub(in crate::server) fn admit<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    peer: Peer,
    is_at_door: bool,
) {
    let hub = &mut shard.guests.hub;
    if is_at_door && !shm::lines::is_of_house(&peer) {
        shard.counters.doors_refused += 1;
        let text = "the door is for processes of the server's own user";
        turn_away(shard, id, peer, ApiError::new(Status::FORBIDDEN, "other_user", text), true);
        return;
    }
    if !hub.has_room_for(&peer) {
        shard.counters.connections_over_address += 1;
        shard.reactor.close(id);
        log_refused(shard, peer, "its address has too many connections");
        return;
    }
    match hub.judge(shard.now) {
        Verdict::Welcome => welcome(shard, id, peer, is_at_door),
        Verdict::Instead(first) => {
            shard.counters.connections_evicted += 1;
            sockets::drop_connection(shard, first);
            welcome(shard, id, peer, is_at_door);
        }
        Verdict::TurnAway(waits) => {
            shard.counters.connections_turned_away += 1;
            let text = "the server has its maximum number of connections";
            let status = Status::SERVICE_UNAVAILABLE;
            let error = ApiError::new(status, "too_many_connections", text);
            let error = error.retry_after(limits::CONNECTIONS_RETRY_AFTER);
            turn_away(shard, id, peer, error, waits);
        }
    }
}

fn welcome<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    peer: Peer,
    is_at_door: bool,
) {
    let hub = &mut shard.guests.hub;
    hub.accept(id, peer, shard.now);
    hub.connection(id).expect("it was just accepted").is_at_door = is_at_door;
    if let (Some(tls), Peer::Tcp(_)) = (&shard.guests.tls, peer) {
        let connection = hub.connection(id).expect("it was just accepted");
        connection.session = Some(ServerTls::new(tls));
    }
    records::log_connection(shard, "connection_opened", peer);
}

/// True if this peer speaks TLS.
fn has_tls<R: Reactor + 'static>(shard: &ServerShard<R>, peer: &Peer) -> bool {
    shard.guests.tls.is_some() && matches!(peer, Peer::Tcp(_))
}

fn turn_away<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    peer: Peer,
    error: ApiError,
    waits: bool,
) {
    log_refused(shard, peer, &error.message);
    if has_tls(shard, &peer) {
        shard.reactor.close(id); // A reply would need a TLS handshake, the most expensive step.
        return;
    }
    let hub = &mut shard.guests.hub;
    hub.accept(id, peer, shard.now);
    hub.connection(id).expect("it was just accepted").is_aborted = !waits;
    sockets::converse(shard, id, |http, around, out| http.turn_away(&error, around, out));
}

/// Logs a refused connection. Several within a short time share one record.
fn log_refused<R: Reactor + 'static>(shard: &mut ServerShard<R>, peer: Peer, reason: &str) {
    let now = shard.now;
    let hub = &mut shard.guests.hub;
    let Some(count) = hub.count_refused(now) else { return };
    let own = peers::own_index(shard) as u64;
    shard.guests.log.record(
        records::wall_us(shard),
        Level::Warn,
        "connections_refused",
        |record| {
            record.number("shard", own).number("count", count);
            record.show("last_peer", &peer).show("reason", &reason);
        },
    );
}
