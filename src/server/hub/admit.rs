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
use crate::limits;
use crate::reactor::ConnectionId;
use crate::server::hub::connection::Connection;

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

    /// Decides about a new connection beside `count` others. `first` has waited longest for a
    /// request.
    pub fn judge(&self, count: u32, first: Option<&Connection>, now: Instant) -> Verdict {
        if count < self.evict_from {
            return Verdict::Welcome;
        }
        let may_go = |connection: &&Connection| {
            let idle = now.since(connection.idle_from);
            idle >= limits::CONNECTIONS_EVICT_IDLE_MIN && !connection.has_pieces()
        };
        match first.filter(may_go) {
            Some(connection) => Verdict::Instead(connection.id),
            None if count < self.turn_away_from => Verdict::Welcome,
            None => Verdict::TurnAway(count + 1 < self.max),
        }
    }
}

/// The treatment of a new connection.
#[derive(Debug)]
pub(in crate::server) enum Verdict {
    Welcome,
    /// Accept it after this one was dropped.
    Instead(ConnectionId),
    /// Refuse it with a reply. If true, the connection stays until the client has read the reply.
    /// Another place is free for the next client.
    TurnAway(bool),
}

/// Refused connections that were not logged yet.
#[derive(Debug, Default)]
pub(in crate::server) struct RefusedCount {
    count: u64,
    /// The earliest time of the next record.
    next_at: Option<Instant>,
}

impl RefusedCount {
    /// Counts one. Returns the number to log, if it is time for a record.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.next_at.is_some_and(|at| now < at) {
            return None;
        }
        self.next_at = Some(now + limits::REFUSALS_LOG_INTERVAL);
        Some(std::mem::take(&mut self.count))
    }
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
