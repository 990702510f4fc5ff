//! Admission of connections: the limit for each address, the eviction of idle connections, and the
//! refusal of new ones.
//!
//! Each shard has its share of the places, and counts by itself. Up to
//! [`limits::CONNECTIONS_EVICT_PERCENT`] of them, every connection is accepted. Above that, a new
//! connection replaces the one that has been without a request longest. Connections with a request
//! or a stream are never replaced, nor are those that were accepted or answered a moment ago. If
//! none can be replaced, the new connection takes a free place. The last places are reserved for
//! telling clients that the server is full, so that accepting never stops. With three places or
//! fewer none is reserved.

use crate::base::Instant;
use crate::endpoint::{ApiError, AwaitedEvent};
use crate::limits;
use crate::reactor::{ConnectionId, Peer, Reactor};
use crate::server::hub::connection::{Connection, Doing};
use crate::server::hub::tls::ServerTls;
use crate::server::hub::{Hub, receive};
use crate::server::{ServerShard, peers, records};
use crate::trace::Level;
use crate::wire::http1::Status;

/// The places of one shard.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Places {
    /// The number of places.
    max: u32,
    /// From this number of connections on, a new one replaces an idle one.
    evict_from: u32,
    /// From this number of connections on, new ones are refused.
    turn_away_from: u32,
}

impl Places {
    pub fn new(max: u32) -> Places {
        let percent = limits::CONNECTIONS_EVICT_PERCENT;
        let evict_from = (u64::from(max) * percent / 100).max(1) as u32;
        let wanted = max.div_ceil(limits::CONNECTIONS_RESERVE_FRACTION) + 1;
        let reserve = wanted.min(limits::CONNECTIONS_RESERVE_MAX).min(max / 4);
        let turn_away_from = max - reserve;
        Places { max, evict_from: evict_from.min(turn_away_from), turn_away_from }
    }
}

/// The treatment of a new connection.
enum Verdict {
    Welcome,
    /// Accept it after this one was dropped.
    Instead(ConnectionId),
    /// Refuse it with a reply. If true, the connection stays until the client has read the reply.
    /// Another place is free for the next client.
    TurnAway(bool),
}

/// Refused connections that were not logged yet.
#[derive(Debug, Default)]
pub(in crate::server) struct Untold {
    count: u64,
    /// The earliest time of the next record.
    next_at: Option<Instant>,
}

impl Hub {
    fn judge(&self, now: Instant) -> Verdict {
        let Places { max, evict_from, turn_away_from } = self.places;
        let count = self.connection_count;
        if count < evict_from {
            return Verdict::Welcome;
        }
        // A connection that was answered in this turn stands at the end, with its answer not sent
        // yet. Nobody stands behind it.
        let first =
            self.waiting_line.first().and_then(|at| self.connections[at as usize].as_deref());
        let may_go = |connection: &&Connection| {
            let idle = now.since(connection.idle_from);
            idle >= limits::CONNECTIONS_EVICT_IDLE_MIN && !connection.has_pieces()
        };
        match first.filter(may_go) {
            Some(connection) => Verdict::Instead(connection.id),
            None if count < turn_away_from => Verdict::Welcome,
            None => Verdict::TurnAway(count + 1 < max),
        }
    }

    /// Puts a connection into the line of those without a request, or takes it out.
    pub(in crate::server) fn settle_place(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.connection(id) else { return };
        let is_between = matches!(connection.doing, Doing::Requests)
            && connection.http.due() == AwaitedEvent::Request
            && !connection.is_last
            && !connection.is_blocked;
        match is_between {
            true => {
                connection.idle_from = now;
                self.waiting_line.append(id.0.index);
            }
            false => self.waiting_line.leave(id.0.index),
        }
    }
}
/// Accepts or refuses a new connection.
pub(in crate::server) fn admit<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    peer: Peer,
    is_at_door: bool,
) {
    let hub = &mut shard.guests.hub;
    if is_at_door && !Hub::is_of_house(&peer) {
        shard.counters.doors_refused += 1;
        let text = "the door is for processes of the server's own user";
        turn_away(shard, id, peer, ApiError::new(Status::FORBIDDEN, "other_user", text), true);
        return;
    }
    if !hub.addresses.has_room(&peer) {
        shard.counters.connections_over_address += 1;
        shard.reactor.close(id);
        log_refused(shard, peer, "its address has too many connections");
        return;
    }
    match hub.judge(shard.now) {
        Verdict::Welcome => welcome(shard, id, peer, is_at_door),
        Verdict::Instead(first) => {
            shard.counters.connections_evicted += 1;
            receive::drop_connection(shard, first);
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
    receive::converse(shard, id, |http, around, out| http.turn_away(&error, around, out));
}

/// Logs a refused connection. Several within a short time share one record.
fn log_refused<R: Reactor + 'static>(shard: &mut ServerShard<R>, peer: Peer, reason: &str) {
    let now = shard.now;
    let hub = &mut shard.guests.hub;
    hub.untold.count += 1;
    if hub.untold.next_at.is_some_and(|at| now < at) {
        return;
    }
    let count = std::mem::take(&mut hub.untold.count);
    hub.untold.next_at = Some(now + limits::REFUSALS_LOG_INTERVAL);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_places_are_kept_and_one_is_always_usable() {
        for (max, evict_from, turn_away_from) in
            [(1, 1, 1), (3, 2, 3), (10, 8, 8), (100, 90, 97), (16_384, 14_745, 16_128)]
        {
            let places = Places::new(max);
            assert_eq!((places.evict_from, places.turn_away_from), (evict_from, turn_away_from));
        }
        assert_eq!(
            Places::new(1 << 24).turn_away_from,
            (1 << 24) - limits::CONNECTIONS_RESERVE_MAX
        );
    }
}
