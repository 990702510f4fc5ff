//! Sockets of the io_uring backend: multishot accepts and receives, buffers of the kernel's choice.
//!
//! Descriptors are blocking ones (the kernel waits by itself only for these), sends say
//! MSG_DONTWAIT. Like `uring_table.rs` this builds entries and takes answers; the ring is in
//! `uring.rs`.
//! Invariants:
//! - N1 what is `Armed` has exactly one entry with the kernel, what is `Owed` stands in `owed`.
//! - N2 a place, and its descriptor, is free again only when nothing of it is armed.
//! - N3 a connection that is paused holds what raced with the pause in memory of its own.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{cqueue, opcode, squeue, types};

use crate::base::{Handle, Instant, Pool};
use crate::limits::LISTENER_PAUSE;
use crate::reactor::listener::Listener;
use crate::reactor::socket_calls::{self as calls, AcceptRefusal};
use crate::reactor::uring_buffers::{GROUP, ReceiveBuffers};
use crate::reactor::uring_table::{PURPOSE_SHIFT, Purpose, user_data};
use crate::reactor::{
    Clock, ConnectionId, IoError, ListenAddress, ListenError, ListenOptions, ListenerId, Net, Peer,
    SendError, SocketCounters, SocketEvent, SocketLimits,
};

/// Where an accept, a receive or a wait for writability stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    Idle,
    /// Its entry is to be pushed.
    Owed,
    /// The kernel has it.
    Armed,
}

struct ListenerSlot {
    listener: Listener,
    accept: Flight,
    is_paused: bool,
    is_closing: bool,
}

struct Connection {
    fd: OwnedFd,
    receive: Flight,
    writable: Flight,
    is_receiving: bool,
    has_ended: bool,
    is_cut: bool,
    is_closing: bool,
    broken: Option<IoError>,
    /// What arrived while the owner did not want it: N3.
    held: Vec<u8>,
    held_end: Option<Option<IoError>>,
}

/// What each of 10,000 idle subscribers costs here.
const _: () = assert!(size_of::<Connection>() <= 128);

enum Happening {
    Accepted(ListenerId, ConnectionId, Peer),
    Received {
        id: ConnectionId,
        buffer: u16,
        size_bytes: u32,
    },
    /// Bytes are held.
    Held(ConnectionId),
    Ended(ConnectionId, Option<IoError>),
    Writable(ConnectionId),
}

/// What the owner looks at until its next call.
enum Lent {
    Nothing,
    Buffer(u16),
    Held(ConnectionId, Vec<u8>),
}

/// Listeners and connections of a [`crate::reactor::UringReactor`].
pub struct UringNet {
    listeners: Pool<ListenerSlot>,
    connections: Pool<Connection>,
    closing_count: u32,
    pub owed: VecDeque<(Purpose, Handle)>,
    events: VecDeque<Happening>,
    /// Accepted while there was no place: nobody is dropped.
    arrivals: VecDeque<(Handle, OwnedFd)>,
    pub buffers: ReceiveBuffers,
    /// Receives that found no buffer.
    starved: VecDeque<Handle>,
    lent: Lent,
    retry_at: Option<Instant>,
}

impl UringNet {
    pub fn new(buffers: ReceiveBuffers, limits: SocketLimits) -> UringNet {
        assert!(limits.connections_max < 1 << PURPOSE_SHIFT);
        assert!(limits.listeners_max < 1 << PURPOSE_SHIFT);
        UringNet {
            listeners: Pool::new(limits.listeners_max),
            connections: Pool::new(limits.connections_max),
            closing_count: 0,
            owed: VecDeque::new(),
            events: VecDeque::new(),
            arrivals: VecDeque::new(),
            buffers,
            starved: VecDeque::new(),
            lent: Lent::Nothing,
            retry_at: None,
        }
    }

    pub fn event_count(&self) -> usize {
        self.events.len()
    }

    /// Whether the kernel still has, or is to be given, anything of ours.
    pub fn is_in_use(&self) -> bool {
        self.connections.count() > 0 || self.listeners.count() > 0
    }

    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Ends the pause of listeners if it is over.
    pub fn retry(&mut self) {
        if self.retry_at.is_some_and(|at| at <= Clock::now()) {
            self.resume_listeners();
        }
    }

    /// The entry that is owed; None if it is not wanted any more.
    pub fn entry(&mut self, purpose: Purpose, handle: Handle) -> Option<squeue::Entry> {
        let cancel = |target| opcode::AsyncCancel::new(user_data(target, handle)).build();
        let entry = match purpose {
            Purpose::Accept => {
                let slot = self.listeners.get_mut(handle)?;
                let fd = types::Fd(slot.listener.fd());
                arm(&mut slot.accept)?;
                opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build()
            }
            Purpose::Receive => {
                let slot = self.connections.get_mut(handle)?;
                arm(&mut slot.receive)?;
                opcode::RecvMulti::new(types::Fd(slot.fd.as_raw_fd()), GROUP).build()
            }
            Purpose::Writable => {
                let slot = self.connections.get_mut(handle)?;
                arm(&mut slot.writable)?;
                let fd = types::Fd(slot.fd.as_raw_fd());
                opcode::PollAdd::new(fd, libc::POLLOUT as u32).build()
            }
            Purpose::CancelAccept => {
                self.listeners.get(handle).filter(|slot| slot.accept == Flight::Armed)?;
                cancel(Purpose::Accept)
            }
            Purpose::CancelReceive => {
                self.connections.get(handle).filter(|slot| slot.receive == Flight::Armed)?;
                cancel(Purpose::Receive)
            }
            Purpose::CancelWritable => {
                self.connections.get(handle).filter(|slot| slot.writable == Flight::Armed)?;
                cancel(Purpose::Writable)
            }
            Purpose::Work | Purpose::Cancel | Purpose::Wake => unreachable!("of the table"),
        };
        Some(entry.user_data(user_data(purpose, handle)))
    }

    /// One answer of the kernel.
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
            // ENOENT: it was between two steps of the kernel's own. `entry` looks whether it is
            // still there.
            Purpose::CancelAccept | Purpose::CancelReceive | Purpose::CancelWritable => {
                if result == -libc::ENOENT {
                    self.owed.push_back((purpose, handle));
                }
            }
            Purpose::Work | Purpose::Cancel | Purpose::Wake => unreachable!("of the table"),
        }
    }

    fn on_accept(
        &mut self,
        handle: Handle,
        result: i32,
        has_more: bool,
        counters: &mut SocketCounters,
    ) {
        let arrived = calls::adopt_answer(result);
        let Some(slot) = self.listeners.get_mut(handle) else { return };
        if !has_more {
            slot.accept = Flight::Idle;
        }
        if slot.is_closing {
            // What came too late shares the fate of the kernel's queue.
            if !has_more {
                self.listeners.remove(handle);
            }
            return;
        }
        match arrived {
            Ok(fd) => {
                self.arrivals.push_back((handle, fd));
                self.settle_arrivals(counters);
            }
            Err(IoError(libc::ECANCELED)) => {}
            Err(error) => match AcceptRefusal::of(error) {
                AcceptRefusal::Nobody => {}
                AcceptRefusal::Gone => counters.aborted_count += 1,
                AcceptRefusal::Exhausted => {
                    self.pause(handle, counters);
                    counters.exhausted_count += u64::from(calls::is_out_of_descriptors(error));
                    let again = Clock::now() + LISTENER_PAUSE;
                    self.retry_at = Some(self.retry_at.map_or(again, |at| at.min(again)));
                }
            },
        }
        if self.connections.count() == self.connections.capacity() {
            self.pause(handle, counters); // Until one is closed.
        }
        self.want_accept(handle);
    }

    fn want_accept(&mut self, handle: Handle) {
        let Some(slot) = self.listeners.get_mut(handle) else { return };
        if slot.accept == Flight::Idle && !slot.is_paused && !slot.is_closing {
            slot.accept = Flight::Owed;
            self.owed.push_back((Purpose::Accept, handle));
        }
    }

    fn pause(&mut self, handle: Handle, counters: &mut SocketCounters) {
        let Some(slot) = self.listeners.get_mut(handle) else { return };
        if std::mem::replace(&mut slot.is_paused, true) {
            return;
        }
        counters.paused_count += 1;
        match slot.accept {
            Flight::Armed => self.owed.push_back((Purpose::CancelAccept, handle)),
            Flight::Idle | Flight::Owed => slot.accept = Flight::Idle,
        }
    }

    fn resume_listeners(&mut self) {
        self.retry_at = None;
        for index in 0..self.listeners.capacity() {
            let Some(slot) = self.listeners.at_mut(index) else { continue };
            if std::mem::take(&mut slot.is_paused) {
                let handle = self.listeners.handle_at(index).expect("the slot is taken");
                self.want_accept(handle);
            }
        }
    }

    /// Gives places to those who were accepted.
    fn settle_arrivals(&mut self, counters: &mut SocketCounters) {
        while self.connections.count() < self.connections.capacity() {
            let Some((listener, fd)) = self.arrivals.pop_front() else { return };
            match self.adopt(listener, fd) {
                Ok((connection, peer)) => {
                    counters.accepted_count += 1;
                    let happening = Happening::Accepted(ListenerId(listener), connection, peer);
                    self.events.push_back(happening);
                }
                Err(_) => counters.aborted_count += 1,
            }
        }
    }

    /// Makes a connection of a descriptor; an error if its peer has gone.
    fn adopt(&mut self, listener: Handle, fd: OwnedFd) -> Result<(ConnectionId, Peer), IoError> {
        let peer = calls::peer(fd.as_raw_fd())?;
        if self.listeners.get(listener).is_some_and(|slot| slot.listener.is_unix()) {
            calls::set_send_buffer(fd.as_raw_fd())?;
        }
        let slot = Connection {
            fd,
            receive: Flight::Owed,
            writable: Flight::Idle,
            is_receiving: true,
            has_ended: false,
            is_cut: false,
            is_closing: false,
            broken: None,
            held: Vec::new(),
            held_end: None,
        };
        let handle = self.connections.insert(slot).map_err(|_| IoError(libc::EMFILE))?;
        self.owed.push_back((Purpose::Receive, handle));
        Ok((ConnectionId(handle), peer))
    }

    fn on_receive(
        &mut self,
        handle: Handle,
        result: i32,
        flags: u32,
        counters: &mut SocketCounters,
    ) {
        let buffer = cqueue::buffer_select(flags).filter(|number| self.buffers.take(*number));
        let is_over = !cqueue::more(flags);
        let slot = self.connections.get_mut(handle);
        let id = ConnectionId(handle);
        let mut is_kept = false;
        if let Some(slot) = slot {
            if is_over {
                slot.receive = Flight::Idle;
            }
            match (u32::try_from(result), buffer) {
                _ if slot.is_closing => {}
                (Ok(0), _) => {
                    slot.has_ended = true;
                    self.events.push_back(Happening::Ended(id, None));
                }
                (Ok(size_bytes), Some(buffer)) => {
                    is_kept = true;
                    counters.received_bytes += u64::from(size_bytes);
                    self.events.push_back(Happening::Received { id, buffer, size_bytes });
                }
                (Ok(_), None) => {
                    slot.has_ended = true; // Bytes in no buffer of ours: nothing can be trusted.
                    self.events.push_back(Happening::Ended(id, Some(IoError(libc::EIO))));
                }
                (Err(_), _) => match -result {
                    libc::ENOBUFS => counters.starved_count += 1,
                    libc::ECANCELED | libc::EINTR | libc::EAGAIN => {}
                    code => {
                        slot.has_ended = true;
                        self.events.push_back(Happening::Ended(id, Some(IoError(code))));
                    }
                },
            }
        }
        if let (false, Some(number)) = (is_kept, buffer) {
            self.give_back(number);
        }
        if is_over {
            self.want_receive(handle);
            self.free_if_over(handle, counters);
        }
    }

    /// Starts receiving if that is wanted and not going on.
    fn want_receive(&mut self, handle: Handle) {
        let Some(slot) = self.connections.get_mut(handle) else { return };
        let is_wanted = slot.is_receiving && !slot.has_ended && !slot.is_closing;
        if !is_wanted || slot.receive != Flight::Idle {
            return;
        }
        if self.buffers.has_free() {
            slot.receive = Flight::Owed;
            self.owed.push_back((Purpose::Receive, handle));
        } else {
            self.starved.push_back(handle); // Until one is given back.
        }
    }

    fn give_back(&mut self, number: u16) {
        self.buffers.give_back(number);
        while let Some(handle) = self.starved.pop_front() {
            self.want_receive(handle);
        }
    }

    fn on_writable(&mut self, handle: Handle, counters: &mut SocketCounters) {
        let Some(slot) = self.connections.get_mut(handle) else { return };
        slot.writable = Flight::Idle;
        if slot.is_closing {
            self.free_if_over(handle, counters);
        } else if std::mem::take(&mut slot.is_cut) {
            self.events.push_back(Happening::Writable(ConnectionId(handle)));
        }
    }

    /// Frees the place of a closed connection if the kernel has answered everything: N2.
    fn free_if_over(&mut self, handle: Handle, counters: &mut SocketCounters) {
        let Some(slot) = self.connections.get(handle) else { return };
        let is_armed = slot.receive == Flight::Armed || slot.writable == Flight::Armed;
        if !slot.is_closing || is_armed {
            return;
        }
        self.connections.remove(handle);
        self.closing_count -= 1;
        self.settle_arrivals(counters);
        if self.arrivals.is_empty() {
            self.resume_listeners();
        }
    }

    /// Whether bytes that arrived go to the owner now. Else they are held or nobody's.
    fn keep(&mut self, id: ConnectionId, buffer: u16, size_bytes: u32) -> bool {
        match live(&mut self.connections, id) {
            Some(slot) if slot.is_receiving && slot.held.is_empty() => return true,
            Some(slot) => {
                slot.held.extend_from_slice(self.buffers.bytes(buffer, size_bytes));
                if slot.is_receiving {
                    self.events.push_front(Happening::Held(id)); // In order: behind the older.
                }
            }
            None => {}
        }
        self.give_back(buffer);
        false
    }

    fn lend_held(&mut self, id: ConnectionId) -> bool {
        let Some(slot) = live(&mut self.connections, id) else { return false };
        if !slot.is_receiving || slot.held.is_empty() {
            return false;
        }
        self.lent = Lent::Held(id, std::mem::take(&mut slot.held));
        true
    }

    /// Closes everything: for the end.
    pub fn close_all(&mut self, counters: &mut SocketCounters) {
        for index in 0..self.listeners.capacity() {
            if let Some(handle) = self.listeners.handle_at(index) {
                self.close_listener(ListenerId(handle));
            }
        }
        self.arrivals.clear();
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
        let listeners_max = self.listeners.capacity();
        if self.listeners.count() == listeners_max {
            return Err(ListenError::TooMany { listeners_max });
        }
        let listener = Listener::open(address, options, true)?;
        let accept = Flight::Owed;
        let slot = ListenerSlot { listener, accept, is_paused: false, is_closing: false };
        let inserted = self.listeners.insert(slot);
        let handle = inserted.map_err(|_| ListenError::TooMany { listeners_max })?;
        self.owed.push_back((Purpose::Accept, handle));
        Ok(ListenerId(handle))
    }

    fn listen_address(&self, id: ListenerId) -> Option<ListenAddress> {
        let slot = self.listeners.get(id.0).filter(|slot| !slot.is_closing)?;
        Some(slot.listener.address().clone())
    }

    fn close_listener(&mut self, id: ListenerId) {
        let Some(slot) = self.listeners.get_mut(id.0) else { return };
        slot.is_closing = true;
        self.arrivals.retain(|(listener, _)| *listener != id.0);
        match slot.accept {
            Flight::Armed => self.owed.push_back((Purpose::CancelAccept, id.0)),
            Flight::Idle | Flight::Owed => drop(self.listeners.remove(id.0)),
        }
    }

    fn set_receiving(&mut self, id: ConnectionId, is_receiving: bool) {
        let Some(slot) = live(&mut self.connections, id) else { return };
        slot.is_receiving = is_receiving;
        if !is_receiving {
            match slot.receive {
                Flight::Armed => self.owed.push_back((Purpose::CancelReceive, id.0)),
                Flight::Owed | Flight::Idle => slot.receive = Flight::Idle,
            }
            return;
        }
        if !slot.held.is_empty() {
            self.events.push_back(Happening::Held(id));
        }
        if let Some(error) = slot.held_end.take() {
            self.events.push_back(Happening::Ended(id, error));
        }
        self.want_receive(id.0);
    }

    fn send(
        &mut self,
        id: ConnectionId,
        slices: &[IoSlice<'_>],
        counters: &mut SocketCounters,
    ) -> Result<usize, SendError> {
        let slot = live(&mut self.connections, id).ok_or(SendError::Unknown)?;
        if let Some(error) = slot.broken {
            return Err(SendError::Broken(error));
        }
        if slot.is_cut {
            return Ok(0);
        }
        let (sent_bytes, error) = calls::send(slot.fd.as_raw_fd(), slices);
        counters.sent_bytes += sent_bytes as u64;
        slot.broken = error;
        match error {
            Some(error) if sent_bytes == 0 => return Err(SendError::Broken(error)),
            Some(_) => self.events.push_back(Happening::Writable(id)), // "Again" tells the error.
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
        if let Some(slot) = live(&mut self.connections, id) {
            calls::shutdown(&slot.fd, libc::SHUT_WR);
        }
    }

    fn close(&mut self, id: ConnectionId, counters: &mut SocketCounters) {
        let Some(slot) = live(&mut self.connections, id) else { return };
        slot.is_closing = true;
        slot.held = Vec::new();
        self.closing_count += 1;
        counters.closed_count += 1;
        calls::shutdown(&slot.fd, libc::SHUT_RDWR); // Ends what is in flight, mostly.
        for (flight, cancel) in [
            (&mut slot.receive, Purpose::CancelReceive),
            (&mut slot.writable, Purpose::CancelWritable),
        ] {
            match *flight {
                Flight::Armed => self.owed.push_back((cancel, id.0)),
                Flight::Owed | Flight::Idle => *flight = Flight::Idle,
            }
        }
        self.free_if_over(id.0, counters);
    }

    fn next_event(&mut self, _: &mut SocketCounters) -> Option<SocketEvent<'_>> {
        if let Lent::Buffer(number) = std::mem::replace(&mut self.lent, Lent::Nothing) {
            self.give_back(number);
        }
        loop {
            match self.events.pop_front()? {
                Happening::Accepted(listener, connection, peer) => {
                    return Some(SocketEvent::Accepted { listener, connection, peer });
                }
                Happening::Writable(connection) => {
                    if live(&mut self.connections, connection).is_some() {
                        return Some(SocketEvent::Writable { connection });
                    }
                }
                Happening::Received { id, buffer, size_bytes } => {
                    if self.keep(id, buffer, size_bytes) {
                        self.lent = Lent::Buffer(buffer);
                        let bytes = self.buffers.bytes(buffer, size_bytes);
                        return Some(SocketEvent::Received { connection: id, bytes });
                    }
                }
                Happening::Held(id) => {
                    if self.lend_held(id) {
                        break;
                    }
                }
                Happening::Ended(id, error) => {
                    if self.lend_held(id) {
                        self.events.push_front(Happening::Ended(id, error));
                        break;
                    }
                    let Some(slot) = live(&mut self.connections, id) else { continue };
                    if slot.is_receiving {
                        return Some(SocketEvent::Ended { connection: id, error });
                    }
                    slot.held_end = Some(error);
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

fn live(connections: &mut Pool<Connection>, id: ConnectionId) -> Option<&mut Connection> {
    connections.get_mut(id.0).filter(|slot| !slot.is_closing)
}

/// From owed to armed; None if it is not owed any more.
fn arm(flight: &mut Flight) -> Option<()> {
    let is_owed = *flight == Flight::Owed;
    is_owed.then(|| *flight = Flight::Armed)
}
