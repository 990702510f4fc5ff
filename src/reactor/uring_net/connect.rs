//! Outgoing connections. The kernel is asked when they are writable; their outcome is read when it
//! is reported.

use super::{Connection, Flight, PendingEvent, UringNet, owned};
use crate::reactor::connecting::{self, ConnectAttempt};
use crate::reactor::ends::ConnectionEnds;
use crate::reactor::released::SocketHistory;
use crate::reactor::uring_wakes::Purpose;
use crate::reactor::{ConnectAddress, ConnectError, ConnectionId, IoError, Peer, SocketCounters};

impl UringNet {
    pub(super) fn begin_connect(
        &mut self,
        address: &ConnectAddress,
    ) -> Result<ConnectionId, ConnectError> {
        let connections_max = self.connections.capacity();
        if self.connections.count() == connections_max {
            return Err(ConnectError::TooMany { connections_max });
        }
        let ConnectAttempt { fd, outcome } = connecting::begin(address)?;
        let mut slot =
            Connection::new(ConnectionEnds::of_socket(fd), SocketHistory::none(Peer::of(address)));
        slot.is_connecting = true;
        let is_known = outcome.is_some();
        slot.history.broken = outcome.and_then(Result::err);
        if !is_known {
            slot.writable = Flight::Owed;
        }
        let inserted = self.insert(slot);
        let handle = inserted.map_err(|_| ConnectError::TooMany { connections_max })?;
        match is_known {
            true => self.events.push_back(PendingEvent::Connected(ConnectionId(handle))),
            false => self.owed.push_back((Purpose::Writable, handle)),
        }
        Ok(ConnectionId(handle))
    }

    /// Returns the peer, or the error of the attempt; `None` if the outcome is not wanted any more.
    pub(super) fn outcome_of_connect(
        &mut self,
        id: ConnectionId,
        counters: &mut SocketCounters,
    ) -> Option<Result<Peer, IoError>> {
        let slot = owned(&mut self.connections, id)?;
        slot.is_connecting = false;
        let known = slot.history.broken.map_or(Ok(()), Err);
        let outcome = known.and_then(|()| connecting::outcome(slot.ends.input()));
        match outcome {
            Ok(peer) => {
                slot.history.peer = peer;
                counters.connected_count += 1;
                self.want_receive(id.0);
            }
            Err(error) => {
                slot.history.has_ended = true;
                slot.history.broken = Some(error);
                counters.unconnected_count += 1;
            }
        }
        Some(outcome)
    }
}
