//! Connections that move to another reactor, and those that come from one.

use super::{Connection, UringNet, live, owned, settled};
use crate::reactor::{AdoptError, ConnectionId, Net, ReleasedSocket, SocketCounters};

impl UringNet {
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
