//! Connections that come and go: accepted ones, outgoing ones, and those that move between
//! reactors.
//!
//! The kernel is asked when an outgoing one is writable. Its outcome is read when it is reported.

use std::os::fd::AsRawFd;

use super::accept::Arrival;
use super::{Connection, Flight, PendingEvent, UringNet, live, owned, settled};
use crate::limits::SEND_BUFFER_BYTES;
use crate::reactor::connecting::{self, ConnectAttempt};
use crate::reactor::ends::ConnectionEnds;
use crate::reactor::released::SocketHistory;
use crate::reactor::socket_calls as calls;
use crate::reactor::uring_wakes::Purpose;
use crate::reactor::{
    AdoptError, ConnectAddress, ConnectError, ConnectionId, IoError, ListenerId, Net, Peer,
    ReleasedSocket, SocketCounters,
};

impl UringNet {
    /// Gives slots to accepted connections.
    pub(super) fn settle_arrivals(&mut self, counters: &mut SocketCounters) {
        while self.connections.count() < self.connections.capacity() {
            let Some(arrival) = self.listeners.next_arrival() else { return };
            let listener = ListenerId(arrival.listener);
            match self.settle_in(arrival) {
                Ok((connection, peer)) => {
                    counters.accepted_count += 1;
                    self.events.push_back(PendingEvent::Accepted(listener, connection, peer));
                }
                Err(_) => counters.aborted_count += 1,
            }
        }
    }

    /// Makes a connection of a descriptor. An error means that its peer has gone.
    fn settle_in(&mut self, arrival: Arrival) -> Result<(ConnectionId, Peer), IoError> {
        let Arrival { fd, is_unix, .. } = arrival;
        let peer = calls::peer(fd.as_raw_fd())?;
        if is_unix {
            calls::set_send_buffer(fd.as_raw_fd(), SEND_BUFFER_BYTES)?;
        }
        let slot = Connection::new(ConnectionEnds::of_socket(fd), SocketHistory::none(peer));
        let handle = self.insert(slot).map_err(|_| IoError(libc::EMFILE))?;
        self.want_receive(handle);
        Ok((ConnectionId(handle), peer))
    }

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

    /// Ends receiving; the kernel's answers complete the release.
    pub(super) fn start_release(&mut self, id: ConnectionId, counters: &mut SocketCounters) {
        if settled(&mut self.connections, id).is_none() {
            return;
        }
        self.set_receiving(id, true); // Ends a pause: held bytes are reported.
        let Some(slot) = owned(&mut self.connections, id) else { return };
        slot.is_releasing = true;
        self.call_back(id.0);
        self.settle(id.0, counters);
    }

    /// Returns the socket, now that nothing of it is left here. `None` if it was closed meanwhile.
    pub(super) fn let_go(
        &mut self,
        id: ConnectionId,
        counters: &mut SocketCounters,
    ) -> Option<ReleasedSocket> {
        let slot = live(&mut self.connections, id)?;
        assert!(slot.is_releasing && slot.held.is_empty()); // `Held` stands before `Released`.
        let slot = self.connections.remove(id.0)?;
        counters.released_count += 1;
        self.offer_place(counters);
        Some(ReleasedSocket::of_kernel(slot.ends, slot.history))
    }

    pub(super) fn take_in(
        &mut self,
        socket: ReleasedSocket,
        counters: &mut SocketCounters,
    ) -> Result<ConnectionId, AdoptError> {
        let connections_max = self.connections.capacity();
        let (ends, history) = socket.find_place(&self.connections)?.into_kernel()?;
        ends.set_input_blocking(true); // The kernel waits by itself only then.
        let inserted = self.insert(Connection::new(ends, history));
        let handle = inserted.map_err(|slot| {
            let socket = ReleasedSocket::of_kernel(slot.ends, slot.history);
            AdoptError::Full { socket, connections_max }
        })?;
        counters.adopted_count += 1;
        self.want_receive(handle);
        Ok(ConnectionId(handle))
    }
}
