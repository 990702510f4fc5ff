//! Sockets of the mio backend.
//!
//! Each is registered once, edge-triggered. Epoll reports what became possible, and the system call
//! follows when the owner asks for events. Therefore data that the owner does not ask for costs
//! nothing, and all connections share one receive buffer. Invariants:
//! - N1 a socket with something to try is in `touched` or `later`, once.
//! - N2 `may_receive` falls only when the kernel says EAGAIN, the end or an error: no edge is
//!   forgotten. `is_cut` rises only after EAGAIN, so an edge follows.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use crate::base::{Handle, Instant, Pool};
use crate::limits::{LISTENER_PAUSE, RECEIVE_SCRATCH_BYTES, SEND_BUFFER_BYTES};
use crate::reactor::connecting::{self, ConnectAttempt};
use crate::reactor::ends::ConnectionEnds;
use crate::reactor::listener::{self, Listener};
use crate::reactor::released::SocketHistory;
use crate::reactor::socket_calls::{self as calls, AcceptRefusal};
use crate::reactor::{
    AdoptError, Clock, ConnectAddress, ConnectError, ConnectionId, IoError, ListenAddress,
    ListenError, ListenOptions, ListenerId, Net, Peer, ReleasedSocket, SendError, SocketCounters,
    SocketEvent, SocketLimits,
};

/// Set in the low half of a token: a socket, not a descriptor number, which is never negative.
const SOCKET_BIT: usize = 1 << 31;
/// Set in addition for a listener.
const LISTENER_BIT: usize = 1 << 30;
const INDEX_MASK: usize = (1 << 24) - 1;

/// True if `token` is of a socket. The caller has to handle the doorbell's token before.
pub fn is_socket(token: Token) -> bool {
    token.0 & SOCKET_BIT != 0
}

struct ListenerSlot {
    listener: Listener,
    is_touched: bool,
    /// True while descriptors, memory or slots are used up. Not tried until that may have changed.
    is_paused: bool,
}

struct Connection {
    ends: ConnectionEnds,
    history: SocketHistory,
    /// Requested, and not reported yet. `history.broken` has the reason of a failure that is known.
    is_connecting: bool,
    /// Removed from epoll already; given away when the owner asks for events.
    is_releasing: bool,
    is_touched: bool,
    is_receiving: bool,
    may_receive: bool,
    /// A send moved less than requested; further sends are not tried.
    is_cut: bool,
    may_send: bool,
}

impl Connection {
    fn new(ends: ConnectionEnds, history: SocketHistory) -> Connection {
        Connection {
            ends,
            history,
            is_connecting: false,
            is_releasing: false,
            is_touched: false,
            is_receiving: true,
            may_receive: true, // The request has mostly arrived already.
            is_cut: false,
            may_send: false,
        }
    }
}

/// The memory of each of 10,000 idle subscribers here.
const _: () = assert!(size_of::<Connection>() <= 128);

#[derive(Clone, Copy)]
enum Touched {
    Listener(Handle),
    Connection(Handle),
}

enum PendingEvent {
    Accepted(ListenerId, ConnectionId, Peer),
    Connected(ConnectionId, Peer),
    Received(ConnectionId, usize),
    Ended(ConnectionId, Option<IoError>),
    Writable(ConnectionId),
    Released(ConnectionId, ReleasedSocket),
}

/// Listeners and connections of a [`crate::reactor::PolledReactor`].
pub struct PolledNet {
    registry: Registry,
    listeners: Pool<ListenerSlot>,
    connections: Pool<Connection>,
    touched: VecDeque<Touched>,
    /// Tried in this turn already, so a fast sender does not delay all other sockets.
    later: VecDeque<Touched>,
    scratch: Box<[u8]>,
    /// The time at which paused listeners are tried again.
    retry_at: Option<Instant>,
}

impl PolledNet {
    pub fn new(registry: Registry, limits: SocketLimits) -> PolledNet {
        assert!(limits.connections_max as usize <= INDEX_MASK);
        assert!(limits.listeners_max as usize <= INDEX_MASK);
        PolledNet {
            registry,
            listeners: Pool::new(limits.listeners_max),
            connections: Pool::new(limits.connections_max),
            touched: VecDeque::new(),
            later: VecDeque::new(),
            scratch: vec![0; RECEIVE_SCRATCH_BYTES].into_boxed_slice(),
            retry_at: None,
        }
    }

    /// True if epoll has to be asked.
    pub fn is_watching(&self) -> bool {
        self.listeners.count() > 0 || self.connections.count() > 0
    }

    pub fn event_count(&self) -> usize {
        self.touched.len() + self.later.len()
    }

    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Begins a poll or a wait: sockets may be tried again, and paused listeners if it is time.
    pub fn begin_turn(&mut self) {
        self.touched.append(&mut self.later);
        if self.retry_at.is_some_and(|at| at <= Clock::now()) {
            self.resume_listeners();
        }
    }

    /// Takes an event of epoll for a socket.
    pub fn on_event(&mut self, event: &mio::event::Event) {
        let bits = event.token().0;
        let handle = Handle { index: (bits & INDEX_MASK) as u32, generation: (bits >> 32) as u32 };
        if bits & LISTENER_BIT != 0 {
            self.touch_listener(handle);
            return;
        }
        let Some(slot) = self.connections.get_mut(handle) else { return };
        let is_over = event.is_error() || event.is_write_closed();
        slot.may_receive |= event.is_readable() || event.is_read_closed() || is_over;
        let wants_to_send = slot.is_cut || slot.is_connecting;
        slot.may_send |= wants_to_send && (event.is_writable() || is_over);
        self.touch(handle);
    }

    /// Queues the connection in `touched` if it has something to try.
    fn touch(&mut self, handle: Handle) {
        let Some(slot) = self.connections.get_mut(handle) else { return };
        let can_receive = slot.may_receive && slot.is_receiving && !slot.history.has_ended;
        let can_send = slot.is_cut && slot.may_send;
        let is_worth_a_try = match slot.is_connecting {
            true => slot.may_send,
            false => can_receive || can_send,
        };
        if is_worth_a_try && !slot.is_touched {
            slot.is_touched = true;
            self.touched.push_back(Touched::Connection(handle));
        }
    }

    fn touch_listener(&mut self, handle: Handle) {
        let Some(slot) = self.listeners.get_mut(handle) else { return };
        if !slot.is_touched && !slot.is_paused {
            slot.is_touched = true;
            self.touched.push_back(Touched::Listener(handle));
        }
    }

    /// The connection, if the owner may use it: not closed, and not being released.
    fn owned(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.0).filter(|slot| !slot.is_releasing)
    }

    /// The connection, if the owner may use it and its connect has been reported.
    fn settled(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.owned(id).filter(|slot| !slot.is_connecting)
    }

    /// Reports the outcome of a connection attempt.
    fn try_connecting(
        &mut self,
        handle: Handle,
        counters: &mut SocketCounters,
    ) -> Option<PendingEvent> {
        let slot = self.connections.get_mut(handle)?;
        if !std::mem::take(&mut slot.may_send) {
            return None; // It was touched for another reason.
        }
        slot.is_connecting = false;
        let id = ConnectionId(handle);
        let known = slot.history.broken.map_or(Ok(()), Err);
        match known.and_then(|()| connecting::outcome(slot.ends.input())) {
            Ok(peer) => {
                slot.history.peer = peer;
                slot.may_receive = true;
                counters.connected_count += 1;
                self.touch(handle);
                Some(PendingEvent::Connected(id, peer))
            }
            Err(error) => {
                slot.history.has_ended = true;
                slot.history.broken = Some(error);
                counters.unconnected_count += 1;
                Some(PendingEvent::Ended(id, Some(error)))
            }
        }
    }

    fn accept(&mut self, handle: Handle, counters: &mut SocketCounters) -> Option<PendingEvent> {
        let slot = self.listeners.get_mut(handle)?;
        slot.is_touched = false;
        if self.connections.count() == self.connections.capacity() {
            slot.is_paused = true; // Until one is closed.
            counters.paused_count += 1;
            return None;
        }
        let is_unix = slot.listener.is_unix();
        let fd = match calls::accept(slot.listener.fd()) {
            Ok(fd) => fd,
            Err(error) => {
                match AcceptRefusal::of(error) {
                    AcceptRefusal::Nobody => {}
                    AcceptRefusal::Gone => {
                        counters.aborted_count += 1;
                        self.touch_listener(handle);
                    }
                    AcceptRefusal::Exhausted => self.pause(handle, error, counters),
                }
                return None;
            }
        };
        self.touch_listener(handle); // The queue may hold more.
        match self.settle_in(fd, is_unix) {
            Ok((connection, peer)) => {
                counters.accepted_count += 1;
                Some(PendingEvent::Accepted(ListenerId(handle), connection, peer))
            }
            Err(_) => {
                counters.aborted_count += 1;
                None
            }
        }
    }

    /// Makes a connection of a descriptor. An error means that its peer has gone.
    fn settle_in(&mut self, fd: OwnedFd, is_unix: bool) -> Result<(ConnectionId, Peer), IoError> {
        let peer = calls::peer(fd.as_raw_fd())?;
        if is_unix {
            calls::set_send_buffer(fd.as_raw_fd(), SEND_BUFFER_BYTES)?;
        }
        let connection = self
            .insert(Connection::new(ConnectionEnds::of_socket(fd), SocketHistory::none(peer)))
            .map_err(|(_, error)| error)?;
        Ok((connection, peer))
    }

    /// Gives a connection a slot and registers it with epoll. An error returns it with the reason.
    fn insert(&mut self, slot: Connection) -> Result<ConnectionId, (Connection, IoError)> {
        slot.ends.set_input_blocking(false);
        // Allocated here, because events of a connection allocate nothing.
        let room = self.connections.count() as usize + self.listeners.count() as usize + 1;
        self.touched.reserve(room.saturating_sub(self.touched.len()));
        self.later.reserve(room.saturating_sub(self.later.len()));
        let (input, output) = (slot.ends.input(), slot.ends.own_output());
        let inserted = self.connections.insert(slot);
        let handle = inserted.map_err(|slot| (slot, IoError(libc::EMFILE)))?;
        if let Err(error) = self.watch(input, output, token(handle, SOCKET_BIT)) {
            let slot = self.connections.remove(handle).expect("just inserted");
            return Err((slot, code(&error)));
        }
        self.touch(handle);
        Ok(ConnectionId(handle))
    }

    /// Registers both directions of a connection with epoll.
    fn watch(&self, input: RawFd, output: Option<RawFd>, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        let Some(output) = output else {
            return self.registry.register(&mut SourceFd(&input), token, both);
        };
        self.registry.register(&mut SourceFd(&input), token, Interest::READABLE)?;
        let watched = self.registry.register(&mut SourceFd(&output), token, Interest::WRITABLE);
        watched.inspect_err(|_| unwatch(&self.registry, input, None))
    }

    fn pause(&mut self, handle: Handle, error: IoError, counters: &mut SocketCounters) {
        let Some(slot) = self.listeners.get_mut(handle) else { return };
        slot.is_paused = true;
        counters.paused_count += 1;
        counters.exhausted_count += u64::from(calls::is_out_of_descriptors(error));
        let again = Clock::now() + LISTENER_PAUSE;
        self.retry_at = Some(self.retry_at.map_or(again, |at| at.min(again)));
    }

    fn resume_listeners(&mut self) {
        self.retry_at = None;
        for index in 0..self.listeners.capacity() {
            let Some(slot) = self.listeners.at_mut(index) else { continue };
            if std::mem::take(&mut slot.is_paused) {
                let handle = self.listeners.handle_at(index).expect("the slot is taken");
                self.touch_listener(handle);
            }
        }
    }

    fn try_connection(
        &mut self,
        handle: Handle,
        counters: &mut SocketCounters,
    ) -> Option<PendingEvent> {
        let slot = self.connections.get_mut(handle)?;
        slot.is_touched = false;
        let id = ConnectionId(handle);
        if slot.is_releasing {
            let slot = self.connections.remove(handle)?;
            counters.released_count += 1;
            self.resume_listeners();
            return Some(PendingEvent::Released(
                id,
                ReleasedSocket::of_kernel(slot.ends, slot.history),
            ));
        }
        if slot.is_connecting {
            return self.try_connecting(handle, counters);
        }
        if slot.is_cut && slot.may_send {
            slot.is_cut = false;
            slot.may_send = false;
            self.touch(handle);
            return Some(PendingEvent::Writable(id));
        }
        if !slot.may_receive || !slot.is_receiving || slot.history.has_ended {
            return None;
        }
        match slot.ends.receive(&mut self.scratch) {
            Err(IoError(libc::EAGAIN)) => {
                slot.may_receive = false;
                None
            }
            Ok(0) => {
                slot.history.has_ended = true;
                Some(PendingEvent::Ended(id, None))
            }
            Err(error) => {
                slot.history.has_ended = true;
                Some(PendingEvent::Ended(id, Some(error)))
            }
            Ok(size_bytes) => {
                counters.received_bytes += size_bytes as u64;
                slot.is_touched = true;
                self.later.push_back(Touched::Connection(handle)); // One receive a turn.
                Some(PendingEvent::Received(id, size_bytes))
            }
        }
    }
}

impl Net for PolledNet {
    fn listen(
        &mut self,
        address: &ListenAddress,
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        let slot = |listener| ListenerSlot { listener, is_touched: true, is_paused: false };
        let handle = listener::open_into(&mut self.listeners, address, options, false, slot)?;
        let fd = self.listeners.get(handle).expect("just inserted").listener.fd();
        let token = token(handle, SOCKET_BIT | LISTENER_BIT);
        if let Err(error) = self.registry.register(&mut SourceFd(&fd), token, Interest::READABLE) {
            self.listeners.remove(handle);
            let address = address.clone();
            return Err(ListenError::Failed { address, call: "epoll_ctl", error: code(&error) });
        }
        self.touched.push_back(Touched::Listener(handle));
        Ok(ListenerId(handle))
    }

    fn listen_address(&self, id: ListenerId) -> Option<ListenAddress> {
        self.listeners.get(id.0).map(|slot| slot.listener.address().clone())
    }

    fn close_listener(&mut self, id: ListenerId) {
        if let Some(slot) = self.listeners.remove(id.0) {
            let _ = self.registry.deregister(&mut SourceFd(&slot.listener.fd()));
        }
    }

    fn connect(&mut self, address: &ConnectAddress) -> Result<ConnectionId, ConnectError> {
        let connections_max = self.connections.capacity();
        if self.connections.count() == connections_max {
            return Err(ConnectError::TooMany { connections_max });
        }
        let ConnectAttempt { fd, outcome } = connecting::begin(address)?;
        let mut slot =
            Connection::new(ConnectionEnds::of_socket(fd), SocketHistory::none(Peer::of(address)));
        slot.is_connecting = true;
        slot.may_send = outcome.is_some();
        slot.history.broken = outcome.and_then(Result::err);
        self.insert(slot).map_err(|(_, error)| ConnectError::Failed {
            address: address.clone(),
            call: "epoll_ctl",
            error,
        })
    }

    fn set_receiving(&mut self, id: ConnectionId, is_receiving: bool) {
        if let Some(slot) = self.owned(id) {
            slot.is_receiving = is_receiving;
            self.touch(id.0);
        }
    }

    fn bound_sending(&mut self, id: ConnectionId, bytes: u32) {
        if let Some(slot) = self.owned(id) {
            slot.ends.bound_sending(bytes);
        }
    }

    fn send(
        &mut self,
        id: ConnectionId,
        slices: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
        counters: &mut SocketCounters,
    ) -> Result<usize, SendError> {
        let slot = self.owned(id).ok_or(SendError::Unknown)?;
        if slot.is_connecting {
            return Ok(0);
        }
        if let Some(error) = slot.history.broken {
            return Err(SendError::Broken(error));
        }
        if slot.is_cut {
            return Ok(0);
        }
        let (sent_bytes, error) = slot.ends.send(slices, descriptors);
        counters.sent_bytes += sent_bytes as u64;
        slot.history.broken = error;
        if let (0, Some(error)) = (sent_bytes, error) {
            return Err(SendError::Broken(error));
        }
        if error.is_some() || sent_bytes < slices.iter().map(|slice| slice.len()).sum() {
            counters.cut_count += 1;
            slot.is_cut = true;
            slot.may_send = error.is_some(); // Then the retry returns the error.
            self.touch(id.0);
        }
        Ok(sent_bytes)
    }

    fn finish(&mut self, id: ConnectionId) {
        if let Some(slot) = self.settled(id) {
            slot.ends.finish();
        }
    }

    fn close(&mut self, id: ConnectionId, counters: &mut SocketCounters) {
        let Some(slot) = self.connections.remove(id.0) else { return };
        counters.closed_count += 1;
        unwatch(&self.registry, slot.ends.input(), slot.ends.own_output());
        slot.ends.shutdown();
        drop(slot);
        self.resume_listeners();
    }

    fn release(&mut self, id: ConnectionId, _: &mut SocketCounters) {
        // Bytes are received only when the owner asks for events, so none are under way.
        let Some(slot) = self.settled(id) else { return };
        slot.is_releasing = true;
        let (input, output) = (slot.ends.input(), slot.ends.own_output());
        if !std::mem::replace(&mut slot.is_touched, true) {
            self.touched.push_back(Touched::Connection(id.0));
        }
        unwatch(&self.registry, input, output);
    }

    fn adopt(
        &mut self,
        socket: ReleasedSocket,
        counters: &mut SocketCounters,
    ) -> Result<ConnectionId, AdoptError> {
        let (ends, history) = socket.find_place(&self.connections)?.into_kernel()?;
        let inserted = self.insert(Connection::new(ends, history));
        counters.adopted_count += u64::from(inserted.is_ok());
        inserted.map_err(|(slot, error)| {
            let socket = ReleasedSocket::of_kernel(slot.ends, slot.history);
            AdoptError::Refused { socket, error }
        })
    }

    fn next_event(&mut self, counters: &mut SocketCounters) -> Option<SocketEvent<'_>> {
        let pending = loop {
            let pending = match self.touched.pop_front()? {
                Touched::Listener(handle) => self.accept(handle, counters),
                Touched::Connection(handle) => self.try_connection(handle, counters),
            };
            if let Some(pending) = pending {
                break pending;
            }
        };
        Some(match pending {
            PendingEvent::Accepted(listener, connection, peer) => {
                SocketEvent::Accepted { listener, connection, peer }
            }
            PendingEvent::Connected(connection, peer) => {
                SocketEvent::Connected { connection, peer }
            }
            PendingEvent::Received(connection, size_bytes) => {
                SocketEvent::Received { connection, bytes: &self.scratch[..size_bytes] }
            }
            PendingEvent::Ended(connection, error) => SocketEvent::Ended { connection, error },
            PendingEvent::Writable(connection) => SocketEvent::Writable { connection },
            PendingEvent::Released(connection, socket) => {
                SocketEvent::Released { connection, socket }
            }
        })
    }

    fn connection_count(&self) -> usize {
        self.connections.count() as usize
    }
}

fn unwatch(registry: &Registry, input: RawFd, output: Option<RawFd>) {
    let _ = registry.deregister(&mut SourceFd(&input));
    if let Some(output) = output {
        let _ = registry.deregister(&mut SourceFd(&output));
    }
}

fn token(handle: Handle, bits: usize) -> Token {
    assert!(handle.index as usize <= INDEX_MASK);
    Token(handle.index as usize | bits | (handle.generation as usize) << 32)
}

fn code(error: &io::Error) -> IoError {
    IoError(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use crate::limits::RECEIVE_SCRATCH_BYTES;
    use crate::reactor::{ListenAddress, ListenOptions, PolledReactor, Reactor, SocketEvent};
    use std::io::Write;
    use std::net::TcpStream;

    #[test]
    fn one_sender_is_received_from_once_a_turn() {
        let mut reactor = PolledReactor::new().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = reactor.listen(&any, ListenOptions::default()).unwrap();
        let Some(ListenAddress::Tcp(address)) = reactor.listen_address(listener) else {
            panic!("no address");
        };
        let mut client = TcpStream::connect(address).unwrap();
        client.set_nonblocking(true).unwrap();
        let bytes = vec![7; 4 << 20];
        let (mut sent, mut received) = (0, 0);
        while received < bytes.len() {
            if sent < bytes.len() {
                sent += client.write(&bytes[sent..]).unwrap_or(0);
            }
            reactor.wait(None);
            reactor.poll();
            let before = received;
            while let Some(event) = reactor.next_socket_event() {
                if let SocketEvent::Received { bytes, .. } = event {
                    received += bytes.len();
                }
            }
            assert!(received - before <= RECEIVE_SCRATCH_BYTES, "more than one in a turn");
        }
    }
}
