//! Sockets of the io_uring backend: multishot accepts and receives, with buffers that the kernel
//! chooses.
//!
//! Descriptors are blocking ones (the kernel waits by itself only for these), and sends pass
//! MSG_DONTWAIT. Like `uring_wakes.rs` this module builds entries and takes answers; the ring is in
//! `uring.rs`. This file has the connections, the handling of entries and answers, and the owner's
//! calls. `uring_net/accept.rs` has the listeners; the other steps are beside it. Invariants:
//! - N1 an `Armed` operation has exactly one entry with the kernel; an `Owed` one is in `owed`.
//! - N2 a slot, and its descriptor, is free again only when nothing of it is armed. A released
//!   connection is closed to its owner from then on, and leaves at that point, too.
//! - N3 a paused connection holds the bytes that raced with the pause in memory of its own.

mod accept;
mod connections;
mod receive;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use accept::Listeners;
use io_uring::{cqueue, opcode, squeue, types};

use crate::base::{Handle, Instant, Pool};
use crate::limits::RECEIVE_BUFFER_BYTES;
use crate::reactor::ends::ConnectionEnds;
use crate::reactor::released::SocketHistory;
use crate::reactor::uring_buffers::{GROUP, ReceiveBuffers};
use crate::reactor::uring_wakes::{PURPOSE_SHIFT, Purpose, user_data};
use crate::reactor::{
    AdoptError, Clock, ConnectAddress, ConnectError, ConnectionId, IoError, ListenAddress,
    ListenError, ListenOptions, ListenerId, Net, Peer, ReleasedSocket, SendError, SocketCounters,
    SocketEvent, SocketLimits,
};

/// The state of an accept, a receive or a wait for writability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    Idle,
    /// Its entry has to be pushed.
    Owed,
    /// The kernel has it.
    Armed,
}

struct Connection {
    ends: ConnectionEnds,
    history: SocketHistory,
    receive: Flight,
    writable: Flight,
    /// Requested, and not reported yet. `history.broken` has the reason of a failure that is known.
    is_connecting: bool,
    is_receiving: bool,
    is_cut: bool,
    is_closing: bool,
    is_releasing: bool,
    /// The bytes that arrived during a pause of receiving: N3.
    held: Vec<u8>,
    held_end: Option<Option<IoError>>,
}

impl Connection {
    fn new(ends: ConnectionEnds, history: SocketHistory) -> Connection {
        Connection {
            ends,
            history,
            receive: Flight::Idle,
            writable: Flight::Idle,
            is_connecting: false,
            is_receiving: true,
            is_cut: false,
            is_closing: false,
            is_releasing: false,
            held: Vec::new(),
            held_end: None,
        }
    }
}

/// The memory of each of 10,000 idle subscribers here.
const _: () = assert!(size_of::<Connection>() <= 128);

enum PendingEvent {
    Accepted(ListenerId, ConnectionId, Peer),
    /// The outcome of a connection attempt is available.
    Connected(ConnectionId),
    Received {
        id: ConnectionId,
        buffer: u16,
        size_bytes: u32,
    },
    /// Bytes are held.
    Held(ConnectionId),
    Ended(ConnectionId, Option<IoError>),
    Writable(ConnectionId),
    /// Queued behind all other events of the connection.
    Released(ConnectionId),
}

/// The bytes that the owner may read until its next call.
enum Lent {
    Nothing,
    Buffer(u16),
    Held(ConnectionId, Vec<u8>),
}

/// Operations that are under way on a connection at once: receive, wait for writability, and
/// cancel.
const EVENTS_EACH: usize = 3;

/// Operations for the kernel, in the order in which they are wanted.
type Owed = VecDeque<(Purpose, Handle)>;

/// Listeners and connections of a [`crate::reactor::UringReactor`].
pub struct UringNet {
    listeners: Listeners,
    connections: Pool<Connection>,
    closing_count: u32,
    pub owed: Owed,
    events: VecDeque<PendingEvent>,
    pub buffers: ReceiveBuffers,
    /// Receives that found no free buffer.
    starved: VecDeque<Handle>,
    lent: Lent,
}

impl UringNet {
    pub fn new(buffers: ReceiveBuffers, limits: SocketLimits) -> UringNet {
        assert!(limits.connections_max < 1 << PURPOSE_SHIFT);
        assert!(limits.listeners_max < 1 << PURPOSE_SHIFT);
        UringNet {
            listeners: Listeners::new(limits.listeners_max),
            connections: Pool::new(limits.connections_max),
            closing_count: 0,
            owed: VecDeque::new(),
            events: VecDeque::new(),
            buffers,
            starved: VecDeque::new(),
            lent: Lent::Nothing,
        }
    }

    /// Gives a connection a slot, and reserves room in the queues. Later events of it allocate
    /// nothing.
    fn insert(&mut self, slot: Connection) -> Result<Handle, Connection> {
        let room = EVENTS_EACH * (self.connections.count() as usize + 1);
        self.events.reserve(room.saturating_sub(self.events.len()));
        self.owed.reserve(room.saturating_sub(self.owed.len()));
        self.starved.reserve(room.saturating_sub(self.starved.len()));
        self.connections.insert(slot)
    }

    pub fn event_count(&self) -> usize {
        self.events.len()
    }

    /// True while a listener or a connection holds a slot.
    pub fn is_in_use(&self) -> bool {
        self.connections.count() > 0 || !self.listeners.is_empty()
    }

    pub fn retry_at(&self) -> Option<Instant> {
        self.listeners.retry_at()
    }

    /// Ends the pause of listeners if it is over.
    pub fn retry(&mut self) {
        if self.retry_at().is_some_and(|at| at <= Clock::now()) {
            self.listeners.resume(&mut self.owed);
        }
    }

    /// The entry that is owed; `None` if it is not wanted any more.
    pub fn entry(&mut self, purpose: Purpose, handle: Handle) -> Option<squeue::Entry> {
        let cancel = |target| opcode::AsyncCancel::new(user_data(target, handle)).build();
        let entry = match purpose {
            Purpose::Accept => self.listeners.entry(handle)?,
            Purpose::Receive => {
                let slot = self.connections.get_mut(handle)?;
                arm(&mut slot.receive)?;
                let fd = types::Fd(slot.ends.input());
                match slot.ends.is_input_pipe() {
                    false => opcode::RecvMulti::new(fd, GROUP).build(),
                    true => read_into_group(fd),
                }
            }
            Purpose::Writable => {
                let slot = self.connections.get_mut(handle)?;
                arm(&mut slot.writable)?;
                let fd = types::Fd(slot.ends.output());
                opcode::PollAdd::new(fd, libc::POLLOUT as u32).build()
            }
            Purpose::CancelAccept => {
                self.listeners.is_armed(handle).then(|| cancel(Purpose::Accept))?
            }
            Purpose::CancelReceive => {
                self.connections.get(handle).filter(|slot| slot.receive == Flight::Armed)?;
                cancel(Purpose::Receive)
            }
            Purpose::CancelWritable => {
                self.connections.get(handle).filter(|slot| slot.writable == Flight::Armed)?;
                cancel(Purpose::Writable)
            }
            _ => unreachable!("of the table"),
        };
        Some(entry.user_data(user_data(purpose, handle)))
    }

    /// Takes one answer of the kernel.
    pub fn on_answer(
        &mut self,
        purpose: Purpose,
        handle: Handle,
        answer: (i32, u32),
        counters: &mut SocketCounters,
    ) {
        let (result, flags) = answer;
        match purpose {
            Purpose::Accept => self.on_accept(handle, result, cqueue::more(flags), counters),
            Purpose::Receive => self.on_receive(handle, result, flags, counters),
            Purpose::Writable => self.on_writable(handle, counters),
            // ENOENT: the operation was between two steps of the kernel. `entry` checks whether it
            // still exists.
            Purpose::CancelAccept | Purpose::CancelReceive | Purpose::CancelWritable => {
                if result == -libc::ENOENT {
                    self.owed.push_back((purpose, handle));
                }
            }
            _ => unreachable!("of the table"),
        }
    }

    fn on_accept(
        &mut self,
        handle: Handle,
        result: i32,
        has_more: bool,
        counters: &mut SocketCounters,
    ) {
        self.listeners.on_answer(handle, result, has_more, &mut self.owed, counters);
        self.settle_arrivals(counters);
        if self.connections.count() == self.connections.capacity() {
            self.listeners.pause(handle, &mut self.owed, counters); // Until one is closed.
        }
        self.listeners.want_accept(handle, &mut self.owed);
    }

    fn on_writable(&mut self, handle: Handle, counters: &mut SocketCounters) {
        let Some(slot) = self.connections.get_mut(handle) else { return };
        slot.writable = Flight::Idle;
        let is_ours = !slot.is_closing && !slot.is_releasing;
        if is_ours && slot.is_connecting {
            self.events.push_back(PendingEvent::Connected(ConnectionId(handle)));
        } else if is_ours && std::mem::take(&mut slot.is_cut) {
            self.events.push_back(PendingEvent::Writable(ConnectionId(handle)));
        }
        self.settle(handle, counters);
    }

    /// Finishes a close or a release of the connection, once the kernel has answered everything:
    /// N2.
    fn settle(&mut self, handle: Handle, counters: &mut SocketCounters) {
        let Some(slot) = self.connections.get(handle) else { return };
        if slot.receive == Flight::Armed || slot.writable == Flight::Armed {
            return;
        }
        if slot.is_closing {
            self.connections.remove(handle);
            self.closing_count -= 1;
            self.offer_place(counters);
        } else if slot.is_releasing {
            self.events.push_back(PendingEvent::Released(ConnectionId(handle)));
        }
    }

    /// Offers a free slot to connections that were accepted already, then to the listeners.
    fn offer_place(&mut self, counters: &mut SocketCounters) {
        self.settle_arrivals(counters);
        if !self.listeners.has_arrivals() {
            self.listeners.resume(&mut self.owed);
        }
    }

    /// Cancels the operations of a connection that the kernel has, and drops the owed ones. The
    /// answers tell when this is done.
    fn call_back(&mut self, handle: Handle) {
        let Some(slot) = self.connections.get_mut(handle) else { return };
        for (flight, cancel) in [
            (&mut slot.receive, Purpose::CancelReceive),
            (&mut slot.writable, Purpose::CancelWritable),
        ] {
            match *flight {
                Flight::Armed => self.owed.push_back((cancel, handle)),
                Flight::Owed | Flight::Idle => *flight = Flight::Idle,
            }
        }
    }

    /// Closes everything: for the drop.
    pub fn close_all(&mut self, counters: &mut SocketCounters) {
        self.listeners.close_all(&mut self.owed);
        for index in 0..self.connections.capacity() {
            if let Some(handle) = self.connections.handle_at(index) {
                self.close(ConnectionId(handle), counters);
            }
        }
    }
}

impl Net for UringNet {
    fn listen(
        &mut self,
        address: &ListenAddress,
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        self.listeners.open(address, options, &mut self.owed)
    }

    fn listen_address(&self, id: ListenerId) -> Option<ListenAddress> {
        self.listeners.address(id)
    }

    fn close_listener(&mut self, id: ListenerId) {
        self.listeners.close(id, &mut self.owed);
    }

    fn connect(&mut self, address: &ConnectAddress) -> Result<ConnectionId, ConnectError> {
        self.begin_connect(address)
    }

    fn set_receiving(&mut self, id: ConnectionId, is_receiving: bool) {
        let Some(slot) = owned(&mut self.connections, id) else { return };
        slot.is_receiving = is_receiving;
        if !is_receiving {
            match slot.receive {
                Flight::Armed => self.owed.push_back((Purpose::CancelReceive, id.0)),
                Flight::Owed | Flight::Idle => slot.receive = Flight::Idle,
            }
            return;
        }
        if !slot.held.is_empty() {
            self.events.push_back(PendingEvent::Held(id));
        }
        if let Some(error) = slot.held_end.take() {
            self.events.push_back(PendingEvent::Ended(id, error));
        }
        self.want_receive(id.0);
    }

    fn bound_sending(&mut self, id: ConnectionId, bytes: u32) {
        if let Some(slot) = owned(&mut self.connections, id) {
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
        let slot = owned(&mut self.connections, id).ok_or(SendError::Unknown)?;
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
        match error {
            Some(error) if sent_bytes == 0 => return Err(SendError::Broken(error)),
            Some(_) => self.events.push_back(PendingEvent::Writable(id)), // A retry returns it.
            None if sent_bytes < slices.iter().map(|slice| slice.len()).sum() => {
                counters.cut_count += 1;
                slot.is_cut = true;
                if slot.writable == Flight::Idle {
                    slot.writable = Flight::Owed;
                    self.owed.push_back((Purpose::Writable, id.0));
                }
            }
            None => {}
        }
        Ok(sent_bytes)
    }

    fn finish(&mut self, id: ConnectionId) {
        if let Some(slot) = settled(&mut self.connections, id) {
            slot.ends.finish();
        }
    }

    fn close(&mut self, id: ConnectionId, counters: &mut SocketCounters) {
        let Some(slot) = live(&mut self.connections, id) else { return };
        slot.is_closing = true;
        slot.held = Vec::new();
        self.closing_count += 1;
        counters.closed_count += 1;
        slot.ends.shutdown(); // Mostly ends what is in flight.
        self.call_back(id.0);
        self.settle(id.0, counters);
    }

    fn release(&mut self, id: ConnectionId, counters: &mut SocketCounters) {
        self.start_release(id, counters);
    }

    fn adopt(
        &mut self,
        socket: ReleasedSocket,
        counters: &mut SocketCounters,
    ) -> Result<ConnectionId, AdoptError> {
        self.take_in(socket, counters)
    }

    fn next_event(&mut self, counters: &mut SocketCounters) -> Option<SocketEvent<'_>> {
        if let Lent::Buffer(number) = std::mem::replace(&mut self.lent, Lent::Nothing) {
            self.give_back(number);
        }
        loop {
            match self.events.pop_front()? {
                PendingEvent::Accepted(listener, connection, peer) => {
                    return Some(SocketEvent::Accepted { listener, connection, peer });
                }
                PendingEvent::Connected(id) => match self.outcome_of_connect(id, counters) {
                    None => {}
                    Some(Ok(peer)) => {
                        return Some(SocketEvent::Connected { connection: id, peer });
                    }
                    Some(Err(error)) => {
                        let error = Some(error);
                        return Some(SocketEvent::Ended { connection: id, error });
                    }
                },
                PendingEvent::Writable(connection) => {
                    if owned(&mut self.connections, connection).is_some() {
                        return Some(SocketEvent::Writable { connection });
                    }
                }
                PendingEvent::Received { id, buffer, size_bytes } => {
                    if self.keep(id, buffer, size_bytes) {
                        self.lent = Lent::Buffer(buffer);
                        let bytes = self.buffers.bytes(buffer, size_bytes);
                        return Some(SocketEvent::Received { connection: id, bytes });
                    }
                }
                PendingEvent::Held(id) => {
                    if self.lend_held(id) {
                        break;
                    }
                }
                PendingEvent::Ended(id, error) => {
                    if self.lend_held(id) {
                        self.events.push_front(PendingEvent::Ended(id, error));
                        break;
                    }
                    let Some(slot) = live(&mut self.connections, id) else { continue };
                    if slot.is_receiving {
                        return Some(SocketEvent::Ended { connection: id, error });
                    }
                    slot.held_end = Some(error);
                }
                PendingEvent::Released(id) => {
                    if let Some(socket) = self.let_go(id, counters) {
                        return Some(SocketEvent::Released { connection: id, socket });
                    }
                }
            }
        }
        let Lent::Held(connection, bytes) = &self.lent else { return None };
        Some(SocketEvent::Received { connection: *connection, bytes })
    }

    fn connection_count(&self) -> usize {
        (self.connections.count() - self.closing_count) as usize
    }
}

/// One read of a pipe, when it has bytes, into a buffer that the kernel chooses.
fn read_into_group(fd: types::Fd) -> squeue::Entry {
    let read = opcode::Read::new(fd, std::ptr::null_mut(), RECEIVE_BUFFER_BYTES);
    let read = read.offset(u64::MAX).buf_group(GROUP); // Pipes have no offset.
    read.build().flags(squeue::Flags::BUFFER_SELECT)
}

/// A connection that was not closed.
fn live(connections: &mut Pool<Connection>, id: ConnectionId) -> Option<&mut Connection> {
    connections.get_mut(id.0).filter(|slot| !slot.is_closing)
}

/// The connection, if the owner may use it: live, and not being released.
fn owned(connections: &mut Pool<Connection>, id: ConnectionId) -> Option<&mut Connection> {
    live(connections, id).filter(|slot| !slot.is_releasing)
}

/// The connection, if the owner may use it and its connect has been reported.
fn settled(connections: &mut Pool<Connection>, id: ConnectionId) -> Option<&mut Connection> {
    owned(connections, id).filter(|slot| !slot.is_connecting)
}

/// Moves the operation from owed to armed. Returns `None` if it is not owed any more.
fn arm(flight: &mut Flight) -> Option<()> {
    let is_owed = *flight == Flight::Owed;
    is_owed.then(|| *flight = Flight::Armed)
}
