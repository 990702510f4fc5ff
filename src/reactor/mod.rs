//! Stratum 2: the kernel. One trait for sockets, a doorbell and a deadline, with two backends:
//! io_uring and mio. The third backend is the simulator's, `sim::reactor`.
//!
//! Owned by one shard thread, except [`Waker`] and [`Clock`], which any thread may use. Absent:
//! timers (the engine owns the wheel; here a time is only the deadline of a wait), any knowledge
//! of what the bytes mean, and callbacks. Everything that happened is a value, [`SocketEvent`].
//!
//! Reading order: this file (the contract), [`waker`], [`polled`] (the simpler backend), [`uring`],
//! [`probe`] (the choice between the two), [`idle`] (when to poll and when to block). Then sockets:
//! [`socket`] (their values), [`released`] (sockets on their way to another reactor), `ends.rs`
//! (their descriptors), `socket_calls.rs`, `listener.rs` and `connecting.rs` (shared by both
//! backends), `polled_net.rs`, `uring_net.rs` (with `uring_net/`), `uring_buffers.rs`.
//! Beside all that, [`watch`] looks after the machine's memory.
//! Tests: `sim/contract/` runs one list against all three.

pub mod clock;
mod connecting;
mod counters;
mod ends;
pub mod idle;
mod inventory;
mod listener;
pub mod polled;
mod polled_net;
pub mod probe;
mod random;
pub mod readings;
pub mod released;
pub mod socket;
mod socket_calls;
pub mod thread;
pub mod uring;
mod uring_buffers;
mod uring_net;
mod uring_setup;
mod uring_wakes;
pub mod waker;
pub mod watch;

#[cfg(test)]
mod descriptors_test;
#[cfg(test)]
mod ends_test;
#[cfg(test)]
mod testing;

pub use clock::Clock;
pub use counters::{Counters, IoError};
pub use ends::End;
pub use idle::{Decision, Idle, IdleStrategy};
pub use inventory::{UringOperation, uring_operations};
pub use polled::PolledReactor;
pub use probe::{AnyReactor, Choice, OpenError, Report, open, open_with_sockets};
pub use random::random_bytes;
pub use released::{AdoptError, ReleasedSocket};
pub use socket::{
    ConnectAddress, ConnectError, ConnectionId, ListenAddress, ListenError, ListenOptions,
    ListenerId, Peer, SendError, SocketCounters, SocketEvent, SocketLimits,
};
pub use uring::UringReactor;
pub use waker::Waker;
pub use watch::{Member, Outlook, Watch};

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use crate::base::Instant;

/// The kernel as one shard sees it.
///
/// The contract, which `sim/contract/` holds all backends to. Numbers that are missing were given
/// to reads and writes of single buffers, which nobody used; they are not given again:
///
/// - **R1 thread.** A reactor is made, used and dropped on one thread. It blocks SIGPIPE there, for
///   good: a write to a closed pipe is an error value, never the end of the process.
/// - **R9 poll.** Never blocks. Finds the events that have come, at the latest on the
///   [`crate::limits::REACTOR_POLLS_PER_LOOK`]th call (a system call is not paid on each).
/// - **R10 wait.** Returns when an event waits to be taken or a wake-up came that no poll has seen,
///   at once if it came first; else at the deadline, never before it. No other reason, except the
///   horizon of the simulator.
/// - **R11 wake.** Wake-ups between two polls are one. A poll sees them without a system call, and
///   what was written to memory before the wake is visible after that poll.
/// - **R12 drop.** Cancels, reaps and frees everything first; no descriptor leaks. Memory that the
///   kernel would not give back is leaked, never freed.
/// - **R13 descriptors.** Flags of a descriptor that others may share are never changed.
/// - **R14 clock.** [`Reactor::now`] never goes back and is the same clock as the deadlines.
///
/// Sockets, held to the same list by `sim/contract/`:
///
/// - **R15 names.** A [`ConnectionId`] or [`ListenerId`] that was closed, or never given, names
///   nothing: sends say so, everything else does nothing. No event tells of it any more, but a
///   connection that was accepted before its listener was closed is still told of.
/// - **R16 accept.** Every connection that comes is told of once, with its peer, and receives from
///   then on. One that is gone before is counted instead. Nobody is accepted to be dropped: while
///   [`SocketLimits`] are reached, or descriptors or memory are used up, listeners pause, clients
///   wait in the kernel's queue, and the pause ends when a connection is closed here, or after
///   [`crate::limits::LISTENER_PAUSE`]. A pause takes no processor time and is counted.
/// - **R17 events.** Of one connection they come in order: accepted, its bytes, its end.
///   [`Reactor::poll`] counts them and [`Reactor::wait`] ends for them, at times in vain: what is
///   ready for the kernel may be nothing in the end.
/// - **R18 receive.** Bytes are handed out in the reactor's memory, valid until the next call; a
///   connection without unread bytes holds no memory for them. After
///   [`Reactor::set_receiving`]`(.., false)` nothing is received, nor the end told, until it is
///   true again. Nothing is lost by it. Between two polls a connection gives a bounded number of
///   bytes, so taking events until there is none comes to an end whatever the peers do.
/// - **R19 end.** One [`SocketEvent::Ended`]: the peer has finished (what it sent before was told
///   before), or the connection broke. Sending may go on after the first.
/// - **R20 send.** [`Reactor::send`] moves what the kernel takes at this moment, in order, and
///   returns how much; the slices are the caller's again when it returns. If that was not all, one
///   [`SocketEvent::Writable`] follows when it is worth trying again; until then sends move nothing
///   and cost no system call. Slices may be empty and many.
///   With [`Reactor::send_with_descriptors`] descriptors go with the first byte that is moved, all
///   of them or, if none is, none; who reads that byte has copies of them. For Unix sockets: a
///   kernel drops them on TCP, and the simulator says that it has none.
/// - **R21 finish and close.** [`Reactor::finish`] ends sending, after what was sent.
///   [`Reactor::close`] ends both directions; what the kernel took is still delivered, unless the
///   peer sends into the closed connection (so let it finish first). The descriptor and the place
///   are free again when the kernel has answered everything that was in flight.
/// - **R22 nothing else.** A reactor without sockets does no work for them.
/// - **R23 release.** After [`Reactor::release`] nothing is received any more but what is under
///   way: it is told, also during a pause, and an end that was found. Then one
///   [`SocketEvent::Released`] gives the socket away, and name and place are free. What is still
///   in the kernel waits for who adopts it: each byte, and the end, is told once by one of the two.
///   Until that event the owner can only close the connection, after which there is none; to
///   sends, and all else, the name is nothing, and no [`SocketEvent::Writable`] comes: the
///   next owner just tries.
/// - **R24 adopt.** [`Reactor::adopt`] makes a released socket one of this reactor's, under a new
///   name, without an event. It receives at once and sends at once; an end that was told before is
///   not told again, and sends that were broken stay broken. Whoever can not be adopted is given
///   back; a [`ReleasedSocket`] that is dropped is closed, as by [`Reactor::close`].
///   It takes a connection out of two ends in the same way: [`ReleasedSocket::of_ends`]. What of
///   these others share is not ended with it.
/// - **R25 wake another.** [`Reactor::wake`] does what [`Waker::wake`] does, with this reactor's
///   means: the other one may sleep until this one polls, blocks or is dropped.
/// - **R26 connect.** [`Reactor::connect`] never waits, and gives a name or an error that has left
///   nothing behind. Of the name one of two is told, once: [`SocketEvent::Connected`], and from
///   then on it is a connection as one that was accepted; or [`SocketEvent::Ended`] with the
///   reason, during a pause of receiving too, and then sends are broken for that reason and there
///   is nothing to do but [`Reactor::close`]. However soon it is known what comes of it, it is told
///   by an event. Until then sends move nothing, at no cost and without a
///   [`SocketEvent::Writable`] that follows; a pause of receiving is remembered; finishes and
///   releases do nothing; a close gives the try up, after which there is no event. A reactor does
///   not give up by itself: the kernel does after minutes. It holds a place from the beginning, as
///   any connection does. A Unix listener whose queue is full refuses (EAGAIN).
/// - **R27 bound sending.** After [`Reactor::bound_sending`] the kernel takes no more bytes while
///   it holds about that many (with its own overhead, and at least its own minimum of some
///   kilobytes) that the peer's kernel has not confirmed. One send may move more. Bytes that the
///   kernel holds already stay. On a Unix socket a byte is confirmed when the peer has read it.
pub trait Reactor {
    /// The time, read now: one turn reads it once and hands it down.
    fn now(&mut self) -> Instant;

    /// Microseconds since 1970, for what people and other machines read. It may jump.
    fn wall_us(&mut self) -> u64;

    /// A handle that ends the present or next [`Reactor::wait`], from any thread.
    fn waker(&self) -> Waker;

    /// Wakes another reactor, with this one's next system call if that is cheaper (R25).
    fn wake(&mut self, waker: &Waker) {
        waker.wake();
    }

    /// Finds the events that have come. Returns the number that wait in
    /// [`Reactor::next_socket_event`], plus one if a wake-up came.
    fn poll(&mut self) -> usize;

    /// Blocks until an event, a wake-up or `until`, whichever is first.
    fn wait(&mut self, until: Option<Instant>);

    /// What happened so far.
    fn counters(&self) -> &Counters;

    /// Buys the memory for sockets, once; the first [`Reactor::listen`] does it with the default.
    ///
    /// # Errors
    /// What the kernel lacks; io_uring before Linux 6.0 does.
    fn open_sockets(&mut self, limits: SocketLimits) -> io::Result<()>;

    /// What does the work for sockets, once they were opened. For backends: everybody else calls
    /// the functions below.
    fn net(&self) -> Option<&dyn Net>;

    /// As [`Reactor::net`], with what it counts into.
    fn net_mut(&mut self) -> Option<(&mut dyn Net, &mut SocketCounters)>;

    /// Accepts connections there from now on.
    ///
    /// # Errors
    /// [`ListenError`]; nothing is left behind then.
    fn listen(
        &mut self,
        address: &ListenAddress,
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        let opened = self.open_sockets(SocketLimits::default());
        opened.map_err(|error| ListenError::without_sockets(address, &error))?;
        let (net, _) = self.net_mut().expect("just opened");
        net.listen(address, options)
    }

    /// Where it listens indeed, with the port that the kernel chose.
    fn listen_address(&self, listener: ListenerId) -> Option<ListenAddress> {
        self.net()?.listen_address(listener)
    }

    /// Listens there no more. Clients in the kernel's queue are refused; connections live on.
    fn close_listener(&mut self, listener: ListenerId) {
        if let Some((net, _)) = self.net_mut() {
            net.close_listener(listener);
        }
    }

    /// Begins to connect: [`SocketEvent::Connected`] or [`SocketEvent::Ended`] follows (R26).
    ///
    /// # Errors
    /// [`ConnectError`]; nothing is left behind then.
    fn connect(&mut self, address: &ConnectAddress) -> Result<ConnectionId, ConnectError> {
        let opened = self.open_sockets(SocketLimits::default());
        opened.map_err(|error| ConnectError::without_sockets(address, &error))?;
        let (net, _) = self.net_mut().expect("just opened");
        net.connect(address)
    }

    /// Whether the bytes of `connection` are received; true at first.
    fn set_receiving(&mut self, connection: ConnectionId, is_receiving: bool) {
        if let Some((net, _)) = self.net_mut() {
            net.set_receiving(connection, is_receiving);
        }
    }

    /// Bounds what the kernel holds of `connection`, sent and not confirmed by the peer's kernel
    /// (R27). The bound at first is [`crate::limits::SEND_BUFFER_BYTES`].
    fn bound_sending(&mut self, connection: ConnectionId, bytes: u32) {
        if let Some((net, _)) = self.net_mut() {
            net.bound_sending(connection, bytes);
        }
    }

    /// Sends what the kernel takes at once (R20).
    ///
    /// # Errors
    /// [`SendError`]: there will be no more sending.
    fn send(
        &mut self,
        connection: ConnectionId,
        slices: &[IoSlice<'_>],
    ) -> Result<usize, SendError> {
        self.send_with_descriptors(connection, slices, &[])
    }

    /// As [`Reactor::send`], with descriptors that go with the first byte: they were sent if
    /// anything was.
    ///
    /// # Errors
    /// [`SendError`]: there will be no more sending.
    fn send_with_descriptors(
        &mut self,
        connection: ConnectionId,
        slices: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<usize, SendError> {
        let (net, counters) = self.net_mut().ok_or(SendError::Unknown)?;
        net.send(connection, slices, descriptors, counters)
    }

    /// Sends no more: the peer reads the end after what was sent.
    fn finish(&mut self, connection: ConnectionId) {
        if let Some((net, _)) = self.net_mut() {
            net.finish(connection);
        }
    }

    /// Ends the connection; its name is nothing from now on (R21).
    fn close(&mut self, connection: ConnectionId) {
        if let Some((net, counters)) = self.net_mut() {
            net.close(connection, counters);
        }
    }

    /// Gives the socket away: [`SocketEvent::Released`] follows what was received (R23).
    fn release(&mut self, connection: ConnectionId) {
        if let Some((net, counters)) = self.net_mut() {
            net.release(connection, counters);
        }
    }

    /// Takes a socket that another reactor, or this one, has released (R24).
    ///
    /// # Errors
    /// [`AdoptError`], which gives it back.
    fn adopt(&mut self, socket: ReleasedSocket) -> Result<ConnectionId, AdoptError> {
        if let Err(error) = self.open_sockets(SocketLimits::default()) {
            return Err(AdoptError::without_sockets(socket, &error));
        }
        let (net, counters) = self.net_mut().expect("just opened");
        net.adopt(socket, counters)
    }

    /// The next event of a socket, if one is waiting.
    fn next_socket_event(&mut self) -> Option<SocketEvent<'_>> {
        let (net, counters) = self.net_mut()?;
        net.next_event(counters)
    }

    /// Connections that were told of, asked for or adopted, and are neither closed nor given away.
    fn connection_count(&self) -> usize {
        self.net().map_or(0, |net| net.connection_count())
    }
}

/// What a backend does for sockets, once they were opened: what the functions of the same names of
/// [`Reactor`] promise.
#[expect(missing_docs, reason = "each says what it does where everybody calls it")]
pub trait Net {
    fn listen(
        &mut self,
        address: &ListenAddress,
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError>;
    fn listen_address(&self, listener: ListenerId) -> Option<ListenAddress>;
    fn close_listener(&mut self, listener: ListenerId);
    fn connect(&mut self, address: &ConnectAddress) -> Result<ConnectionId, ConnectError>;
    fn set_receiving(&mut self, connection: ConnectionId, is_receiving: bool);
    fn bound_sending(&mut self, connection: ConnectionId, bytes: u32);
    fn send(
        &mut self,
        connection: ConnectionId,
        slices: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
        counters: &mut SocketCounters,
    ) -> Result<usize, SendError>;
    fn finish(&mut self, connection: ConnectionId);
    fn close(&mut self, connection: ConnectionId, counters: &mut SocketCounters);
    fn release(&mut self, connection: ConnectionId, counters: &mut SocketCounters);
    fn adopt(
        &mut self,
        socket: ReleasedSocket,
        counters: &mut SocketCounters,
    ) -> Result<ConnectionId, AdoptError>;
    fn next_event(&mut self, counters: &mut SocketCounters) -> Option<SocketEvent<'_>>;
    fn connection_count(&self) -> usize;
}
