//! Sockets of the simulated reactor: the server's end of the world's network, with its faults.
//!
//! The faults use the freedom of the contract. Receives are short and late, sends are cut at any
//! length (even at none), and EINTR and EAGAIN take time. A pause may come while bytes are on their
//! way, which are then held. Events of different connections overtake each other. Slots of closed
//! connections stay taken for a while. A connection that is being released receives bytes until it
//! is given away. A connection attempt takes time, and its outcome is reported late.
//!
//! Invariant: S2 one event at a time of each kind and connection is under way.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use crate::base::{Handle, Instant, Pool};
use crate::limits::LISTENER_PAUSE;
use crate::reactor::released::{SocketHistory, SocketSource};
use crate::reactor::{
    AdoptError, ConnectAddress, ConnectError, ConnectionId, IoError, ListenAddress, ListenError,
    ListenOptions, ListenerId, Peer, ReleasedSocket, SendError, SocketCounters, SocketEvent,
    SocketLimits,
};
use crate::sim::network::{Called, STREAM_BYTES_MAX, StreamEnd};
use crate::sim::world::{EAGAIN, World};

const RECEIVE_BYTES_MAX: usize = 4_096;
/// Delay until the next try at a listener that has no room for one more.
const CONNECT_AGAIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Listener {
    index: usize,
    address: ListenAddress,
    looks_at: Option<Instant>,
    is_paused: bool,
}

#[derive(Debug)]
struct Connection {
    /// The end of the stream, or `None` for an attempt that has not succeeded.
    end: Option<StreamEnd>,
    history: SocketHistory,
    /// The connection attempt, until its outcome is reported.
    connecting: Option<Connecting>,
    receives_at: Option<Instant>,
    writes_at: Option<Instant>,
    is_receiving: bool,
    is_cut: bool,
    /// The time at which it is given away; nothing is under way any more then.
    releases_at: Option<Instant>,
    is_released: bool,
    /// Events that came during a pause of receiving.
    held: VecDeque<PendingEvent>,
    /// The time at which a closed connection frees its slot.
    frees_at: Option<Instant>,
}

/// A connection attempt, and the time of the kernel's next look. `None` if no server answers, or
/// the outcome is known.
#[derive(Debug)]
struct Connecting {
    address: ConnectAddress,
    looks_at: Option<Instant>,
}

#[derive(Debug)]
enum PendingEvent {
    Accepted(ListenerId, ConnectionId, Peer),
    Connected(ConnectionId, Result<Peer, IoError>),
    Received(ConnectionId, Vec<u8>),
    Ended(ConnectionId, Option<IoError>),
    Writable(ConnectionId),
    Released(ConnectionId),
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Accept(Handle),
    Connect(Handle),
    Receive(Handle),
    Write(Handle),
    Release(Handle),
}

/// Listeners and connections of one simulated reactor.
#[derive(Debug)]
pub(super) struct SimNet {
    listeners: Pool<Listener>,
    connections: Pool<Connection>,
    closing_count: u32,
    events: VecDeque<PendingEvent>,
    lent: Vec<u8>,
    retry_at: Option<Instant>,
}

impl SimNet {
    pub fn new(limits: SocketLimits) -> SimNet {
        SimNet {
            listeners: Pool::new(limits.listeners_max),
            connections: Pool::new(limits.connections_max),
            closing_count: 0,
            events: VecDeque::new(),
            lent: Vec::new(),
            retry_at: None,
        }
    }

    pub fn listen(
        &mut self,
        world: &mut World,
        address: &ListenAddress,
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        let listeners_max = self.listeners.capacity();
        let too_many = ListenError::TooMany { listeners_max };
        if self.listeners.count() == listeners_max {
            return Err(too_many);
        }
        let (index, address) = world.network.listen(address, options)?;
        let slot = Listener { index, address, looks_at: None, is_paused: false };
        self.listeners.insert(slot).map(ListenerId).map_err(|_| too_many)
    }

    pub fn listen_address(&self, id: ListenerId) -> Option<ListenAddress> {
        self.listeners.get(id.0).map(|slot| slot.address.clone())
    }

    pub fn close_listener(&mut self, world: &mut World, id: ListenerId) {
        if let Some(slot) = self.listeners.remove(id.0) {
            world.network.close_listener(slot.index);
        }
    }

    pub fn event_count(&self) -> usize {
        self.events.len()
    }

    pub fn connection_count(&self) -> usize {
        (self.connections.count() - self.closing_count) as usize
    }

    /// The time of the next event, as far as this reactor can know.
    pub fn next_pending_event(&self) -> Option<Instant> {
        let listeners = self.listeners.iter().filter_map(|(_, slot)| slot.looks_at);
        let connections = self.connections.iter().flat_map(|(_, slot)| {
            let connects_at = slot.connects_at();
            let times = [slot.receives_at, slot.writes_at, slot.releases_at, slot.frees_at];
            times.into_iter().chain([connects_at]).flatten()
        });
        listeners.chain(connections).chain(self.retry_at).min()
    }

    /// Lets the kernel do the work that is due at this moment.
    pub fn step(&mut self, world: &mut World, counters: &mut SocketCounters) {
        if self.retry_at.is_some_and(|at| at <= world.now) {
            self.resume_listeners();
        }
        world.network.close_dropped();
        self.free(world.now);
        let mut due = Vec::new();
        for index in 0..self.listeners.capacity() {
            let Some(slot) = self.listeners.at_mut(index) else { continue };
            if slot.looks_at.is_none() && !slot.is_paused && world.network.has_waiting(slot.index) {
                slot.looks_at = Some(world.now + world.delay());
            }
            if slot.looks_at.is_some_and(|at| at <= world.now) {
                due.push(Due::Accept(self.listeners.handle_at(index).expect("taken")));
            }
        }
        for index in 0..self.connections.capacity() {
            let Some(slot) = self.connections.at_mut(index) else { continue };
            slot.plan(world);
            let times = [slot.receives_at, slot.writes_at, slot.releases_at, slot.connects_at()];
            let handle = self.connections.handle_at(index).expect("taken");
            let kinds = [
                Due::Receive(handle),
                Due::Write(handle),
                Due::Release(handle),
                Due::Connect(handle),
            ];
            let pairs = times.into_iter().zip(kinds);
            let now = world.now;
            due.extend(
                pairs.filter_map(|(at, kind)| at.is_some_and(|at| at <= now).then_some(kind)),
            );
        }
        if world.faults.is_shuffled {
            for last in (1..due.len()).rev() {
                due.swap(last, world.random.below(last as u64 + 1) as usize);
            }
        }
        for due in due {
            self.look(world, due, counters);
        }
    }

    fn look(&mut self, world: &mut World, due: Due, counters: &mut SocketCounters) {
        let is_interrupted = world.random.chance(world.faults.interrupt_chance, 1_000);
        let is_later = is_interrupted || world.random.chance(world.faults.again_chance, 1_000);
        let again = is_later.then(|| world.now + Duration::from_nanos(1) + world.delay());
        match due {
            Due::Accept(handle) => {
                let slot = self.listeners.get_mut(handle).expect("due");
                slot.looks_at = again;
                if !is_later {
                    self.accept(world, handle, counters);
                }
            }
            Due::Connect(handle) => {
                let slot = self.connections.get_mut(handle).expect("due");
                slot.connecting.as_mut().expect("due").looks_at = again;
                if !is_later {
                    let outcome = slot.call(world, counters);
                    let id = ConnectionId(handle);
                    self.events.extend(outcome.map(|it| PendingEvent::Connected(id, it)));
                }
            }
            Due::Receive(handle) => {
                let slot = self.connections.get_mut(handle).expect("due");
                if slot.is_released {
                    return; // At the same moment: the bytes are for the next owner.
                }
                slot.receives_at = again;
                if !is_later {
                    let pending = slot.receive(world, ConnectionId(handle), counters);
                    self.events.extend(pending);
                }
            }
            Due::Write(handle) => {
                let slot = self.connections.get_mut(handle).expect("due");
                slot.writes_at = again;
                if !is_later {
                    slot.is_cut = false;
                    self.events.push_back(PendingEvent::Writable(ConnectionId(handle)));
                }
            }
            Due::Release(handle) => {
                let slot = self.connections.get_mut(handle).expect("due");
                slot.releases_at = again;
                if !is_later {
                    slot.is_released = true;
                    slot.receives_at = None;
                    self.events.push_back(PendingEvent::Released(ConnectionId(handle)));
                }
            }
        }
    }

    fn accept(&mut self, world: &mut World, handle: Handle, counters: &mut SocketCounters) {
        let slot = self.listeners.get_mut(handle).expect("due");
        if self.connections.count() == self.connections.capacity() {
            slot.is_paused = true; // Until a slot is free.
            counters.paused_count += 1;
            return;
        }
        match world.network.accept(slot.index) {
            Ok((end, peer)) => {
                counters.accepted_count += 1;
                let connection = Connection::new(Some(end), SocketHistory::none(peer));
                let id = self.connections.insert(connection).expect("there is a place");
                let id = ConnectionId(id);
                self.events.push_back(PendingEvent::Accepted(ListenerId(handle), id, peer));
            }
            Err(IoError(libc::EMFILE)) => {
                slot.is_paused = true;
                counters.paused_count += 1;
                counters.exhausted_count += 1;
                self.retry_at = Some(world.now + LISTENER_PAUSE);
            }
            Err(EAGAIN) => {}
            Err(_) => counters.aborted_count += 1,
        }
    }

    fn resume_listeners(&mut self) {
        self.retry_at = None;
        for index in 0..self.listeners.capacity() {
            if let Some(slot) = self.listeners.at_mut(index) {
                slot.is_paused = false;
            }
        }
    }

    fn free(&mut self, now: Instant) {
        for index in 0..self.connections.capacity() {
            let Some(slot) = self.connections.at(index) else { continue };
            if slot.frees_at.is_some_and(|at| at <= now) {
                let handle = self.connections.handle_at(index).expect("taken");
                self.connections.remove(handle);
                self.closing_count -= 1;
                self.resume_listeners();
            }
        }
    }

    fn live(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.0).filter(|slot| slot.frees_at.is_none())
    }

    /// The connection, if the owner may use it: live, and not being released.
    fn owned(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.live(id).filter(|slot| !slot.is_releasing())
    }

    /// The connection, if the owner may use it and its connect has been reported.
    fn settled(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.owned(id).filter(|slot| slot.connecting.is_none())
    }

    pub fn connect(
        &mut self,
        world: &mut World,
        address: &ConnectAddress,
    ) -> Result<ConnectionId, ConnectError> {
        let connections_max = self.connections.capacity();
        if self.connections.count() == connections_max {
            return Err(ConnectError::TooMany { connections_max });
        }
        if !world.network.has_descriptor() {
            let (address, error) = (address.clone(), IoError(libc::EMFILE));
            return Err(ConnectError::Failed { address, call: "socket", error });
        }
        world.network.take_descriptor();
        let mut slot = Connection::new(None, SocketHistory::none(Peer::of(address)));
        let looks_at = Some(world.now + world.delay());
        slot.connecting = Some(Connecting { address: address.clone(), looks_at });
        let handle = self.connections.insert(slot).expect("there is a place");
        Ok(ConnectionId(handle))
    }

    pub fn set_receiving(&mut self, id: ConnectionId, is_receiving: bool) {
        let Some(slot) = self.owned(id) else { return };
        slot.is_receiving = is_receiving;
        if is_receiving && !slot.held.is_empty() {
            // The older first: events in the queue come behind the held ones.
            let mut own = std::mem::take(&mut slot.held);
            let (newer, others) = std::mem::take(&mut self.events)
                .into_iter()
                .partition::<VecDeque<_>, _>(|event| event.is_received_by(id));
            own.extend(newer);
            self.events = others;
            self.events.extend(own);
        }
    }

    pub fn bound_sending(&mut self, world: &mut World, id: ConnectionId, bytes: u32) {
        if let Some(end) = self.owned(id).and_then(|slot| slot.end) {
            world.network.bound_sending(end, bytes);
        }
    }

    pub fn send(
        &mut self,
        world: &mut World,
        id: ConnectionId,
        slices: &[IoSlice<'_>],
        counters: &mut SocketCounters,
    ) -> Result<usize, SendError> {
        let slot = self.owned(id).ok_or(SendError::Unknown)?;
        if slot.connecting.is_some() {
            return Ok(0);
        }
        if let Some(error) = slot.history.broken {
            return Err(SendError::Broken(error));
        }
        if slot.is_cut {
            return Ok(0);
        }
        let wanted_bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut bytes = Vec::new();
        for slice in slices {
            let room_bytes = STREAM_BYTES_MAX - bytes.len(); // More is never taken.
            bytes.extend_from_slice(&slice[..slice.len().min(room_bytes)]);
        }
        if world.random.chance(world.faults.short_chance, 1_000) {
            bytes.truncate(world.random.between(0, bytes.len() as u64) as usize);
        }
        let sent_bytes = match world.network.send(slot.end.expect("it is there"), &bytes) {
            Ok(sent_bytes) => sent_bytes,
            Err(EAGAIN) => 0,
            Err(error) => {
                slot.history.broken = Some(error);
                return Err(SendError::Broken(error));
            }
        };
        counters.sent_bytes += sent_bytes as u64;
        if sent_bytes < wanted_bytes {
            slot.is_cut = true;
            counters.cut_count += 1;
        }
        Ok(sent_bytes)
    }

    pub fn finish(&mut self, world: &mut World, id: ConnectionId) {
        if let Some(end) = self.settled(id).and_then(|slot| slot.end) {
            world.network.finish(end);
        }
    }

    pub fn close(&mut self, world: &mut World, id: ConnectionId, counters: &mut SocketCounters) {
        let frees_at = world.now + world.delay();
        let Some(slot) = self.live(id) else { return };
        slot.frees_at = Some(frees_at);
        slot.receives_at = None;
        slot.writes_at = None;
        slot.releases_at = None;
        slot.held.clear();
        slot.connecting = None;
        match slot.end {
            Some(end) => world.network.close(end),
            None => world.network.give_back_descriptor(),
        }
        self.closing_count += 1;
        counters.closed_count += 1;
    }

    pub fn release(&mut self, world: &mut World, id: ConnectionId) {
        if self.settled(id).is_none_or(|slot| slot.end.is_none()) {
            return;
        }
        self.set_receiving(id, true); // Ends a pause: held events are reported.
        let releases_at = world.now + world.delay();
        let Some(slot) = self.owned(id) else { return };
        slot.releases_at = Some(releases_at); // Until then bytes may still come.
        slot.is_cut = false;
        slot.writes_at = None;
    }

    fn let_go(
        &mut self,
        world: &mut World,
        id: ConnectionId,
        counters: &mut SocketCounters,
    ) -> ReleasedSocket {
        let slot = self.connections.remove(id.0).expect("it is live");
        counters.released_count += 1;
        self.resume_listeners();
        let source =
            SocketSource::Simulated(Box::new(world.network.let_go(slot.end.expect("it is there"))));
        ReleasedSocket { source, history: slot.history }
    }

    pub fn adopt(
        &mut self,
        world: &mut World,
        socket: ReleasedSocket,
        counters: &mut SocketCounters,
    ) -> Result<ConnectionId, AdoptError> {
        let ReleasedSocket { source, history } = socket.find_place(&self.connections)?;
        let foreign = |source| AdoptError::Foreign { socket: ReleasedSocket { source, history } };
        let SocketSource::Simulated(any) = source else { return Err(foreign(source)) };
        let socket = any.downcast().map_err(|any| foreign(SocketSource::Simulated(any)))?;
        if !world.network.knows(&socket) {
            return Err(foreign(SocketSource::Simulated(socket)));
        }
        let end = world.network.take_in(*socket);
        let inserted = self.connections.insert(Connection::new(Some(end), history));
        counters.adopted_count += 1;
        Ok(ConnectionId(inserted.expect("there is a place")))
    }

    pub fn close_all(&mut self, world: &mut World, counters: &mut SocketCounters) {
        for index in 0..self.listeners.capacity() {
            if let Some(handle) = self.listeners.handle_at(index) {
                self.close_listener(world, ListenerId(handle));
            }
        }
        for index in 0..self.connections.capacity() {
            if let Some(handle) = self.connections.handle_at(index) {
                self.close(world, ConnectionId(handle), counters);
            }
        }
    }

    pub fn next_event(
        &mut self,
        world: &mut World,
        counters: &mut SocketCounters,
    ) -> Option<SocketEvent<'_>> {
        loop {
            let event = self.events.pop_front()?;
            if let PendingEvent::Accepted(listener, connection, peer) = event {
                return Some(SocketEvent::Accepted { listener, connection, peer });
            }
            let is_written = matches!(event, PendingEvent::Writable(_));
            let Some(slot) = self.live(event.connection()) else { continue };
            if let PendingEvent::Connected(connection, outcome) = event {
                slot.connecting = None;
                return Some(match outcome {
                    Ok(peer) => SocketEvent::Connected { connection, peer },
                    Err(error) => SocketEvent::Ended { connection, error: Some(error) },
                });
            }
            if is_written && slot.is_releasing() {
                continue;
            }
            if !slot.is_receiving && !is_written {
                slot.held.push_back(event);
                continue;
            }
            return Some(match event {
                PendingEvent::Received(connection, bytes) => {
                    self.lent = bytes;
                    SocketEvent::Received { connection, bytes: &self.lent }
                }
                PendingEvent::Ended(connection, error) => SocketEvent::Ended { connection, error },
                PendingEvent::Writable(connection) => SocketEvent::Writable { connection },
                PendingEvent::Released(connection) => {
                    let socket = self.let_go(world, connection, counters);
                    SocketEvent::Released { connection, socket }
                }
                PendingEvent::Accepted(..) | PendingEvent::Connected(..) => {
                    unreachable!("see above")
                }
            });
        }
    }
}

impl PendingEvent {
    fn connection(&self) -> ConnectionId {
        match self {
            PendingEvent::Accepted(_, id, _)
            | PendingEvent::Connected(id, _)
            | PendingEvent::Received(id, _)
            | PendingEvent::Ended(id, _)
            | PendingEvent::Writable(id)
            | PendingEvent::Released(id) => *id,
        }
    }

    fn is_received_by(&self, id: ConnectionId) -> bool {
        matches!(self, PendingEvent::Received(..) | PendingEvent::Ended(..))
            && self.connection() == id
    }
}

impl Connection {
    fn new(end: Option<StreamEnd>, history: SocketHistory) -> Connection {
        Connection {
            end,
            history,
            connecting: None,
            receives_at: None,
            writes_at: None,
            is_receiving: true,
            is_cut: false,
            releases_at: None,
            is_released: false,
            held: VecDeque::new(),
            frees_at: None,
        }
    }

    /// True if its owner has requested its release.
    fn is_releasing(&self) -> bool {
        self.releases_at.is_some() || self.is_released
    }

    fn connects_at(&self) -> Option<Instant> {
        self.connecting.as_ref()?.looks_at
    }

    /// Tries to connect. Returns the outcome, if it is known now.
    fn call(
        &mut self,
        world: &mut World,
        counters: &mut SocketCounters,
    ) -> Option<Result<Peer, IoError>> {
        let connecting = self.connecting.as_mut().expect("it was asked for");
        match world.network.call(&connecting.address, &mut world.random) {
            Called::Connected(end, peer) => {
                self.end = Some(end);
                self.history.peer = peer;
                counters.connected_count += 1;
                Some(Ok(peer))
            }
            Called::Failed(error) => {
                self.history.has_ended = true;
                self.history.broken = Some(error);
                counters.unconnected_count += 1;
                Some(Err(error))
            }
            Called::Later => {
                connecting.looks_at = Some(world.now + CONNECT_AGAIN + world.delay());
                None
            }
            Called::Never => None,
        }
    }

    /// Sets the times at which the kernel looks.
    fn plan(&mut self, world: &mut World) {
        if self.frees_at.is_some() || self.is_released || self.connecting.is_some() {
            return;
        }
        let Some(end) = self.end else { return };
        let is_asked = self.is_receiving && !self.history.has_ended;
        if self.receives_at.is_none() && is_asked && world.network.is_readable(end) {
            self.receives_at = Some(world.now + world.delay());
        }
        if self.writes_at.is_none() && self.is_cut && world.network.is_writable(end) {
            self.writes_at = Some(world.now + world.delay());
        }
    }

    fn receive(
        &mut self,
        world: &mut World,
        id: ConnectionId,
        counters: &mut SocketCounters,
    ) -> Option<PendingEvent> {
        let mut bytes = vec![0; RECEIVE_BYTES_MAX];
        if world.random.chance(world.faults.short_chance, 1_000) {
            let size_bytes = world.random.between(1, RECEIVE_BYTES_MAX as u64) as usize;
            bytes.truncate(size_bytes);
        }
        match world.network.receive(self.end.expect("it is there"), &mut bytes) {
            Err(EAGAIN) => None,
            Ok(0) => {
                self.history.has_ended = true;
                Some(PendingEvent::Ended(id, None))
            }
            Ok(count) => {
                counters.received_bytes += count as u64;
                bytes.truncate(count);
                Some(PendingEvent::Received(id, bytes))
            }
            Err(error) => {
                self.history.has_ended = true;
                Some(PendingEvent::Ended(id, Some(error)))
            }
        }
    }
}
