//! Stratum 2: the kernel. One trait for sockets, a disk, a doorbell and a deadline, with two
//! backends: io_uring and mio. The third backend is the simulator's, `sim::reactor`.
//!
//! Owned by one shard thread, except [`Waker`] and [`Clock`], which any thread may use. Everything
//! that happened is a value, [`SocketEvent`] or [`DiskDone`]. Absent: callbacks, and any knowledge
//! of what the bytes mean. Timers are absent too: the engine owns the wheel, and a time is only the
//! deadline of a wait here.
//!
//! Reading order:
//!
//! - This file is the contract.
//! - [`waker`], `polled` (the simpler backend), `uring`.
//! - `probe` chooses between the two; `idle` decides when to poll and when to block.
//! - `socket` has the values of sockets, `ends.rs` their descriptors.
//! - `released` has sockets on their way to another reactor.
//! - `socket_calls.rs`, `listener.rs` and `connecting.rs` are shared by both backends.
//! - `polled_net.rs`, `uring_net.rs` (with `uring_net/`), `uring_buffers.rs`.
//! - `disk` has the values of files, `disk_files.rs` their system calls. `disk_claim.rs` and
//!   `file_system.rs` check a directory before its use, and `private_file.rs` a file with secrets.
//! - `disk_thread.rs` and `disk_table.rs` are shared by `polled_disk.rs` and `uring_disk.rs`.
//! - `watch` observes the machine's memory, separately from all that. `alarm` is a timer for a
//!   thread with a runtime of its own.
//!
//! Tests: `sim/contract/` runs one list against all three backends.

pub mod alarm;
pub(crate) mod clock;
mod connecting;
mod counters;
pub(crate) mod disk;
mod disk_claim;
mod disk_files;
pub(crate) mod disk_table;
mod disk_thread;
mod ends;
mod file_system;
pub(crate) mod idle;
mod inventory;
mod listener;
pub(crate) mod polled;
mod polled_disk;
mod polled_net;
mod private_file;
pub(crate) mod probe;
mod random;
pub mod readings;
pub(crate) mod released;
pub(crate) mod socket;
mod socket_calls;
pub mod thread;
pub(crate) mod uring;
mod uring_buffers;
mod uring_disk;
mod uring_net;
mod uring_setup;
mod uring_wakes;
pub mod waker;
pub(crate) mod watch;

#[cfg(test)]
mod descriptors_test;
#[cfg(test)]
mod disk_test;
#[cfg(test)]
mod ends_test;
#[cfg(test)]
mod testing;

pub use clock::Clock;
pub use counters::{Counters, IoError};
pub use disk::{
    Disk, DiskAnswer, DiskDirectory, DiskDone, DiskRequest, DiskSetup, DiskWork, FileId, FileName,
    FileNameError,
};
pub use disk_claim::{Claim, LOCK_FILE, claim_directory};
pub use ends::HalfConnection;
pub use file_system::{FileSystem, FileSystemKind};
pub use idle::{Decision, Idle, IdleStrategy};
pub use inventory::{UringOperation, uring_operations};
pub use polled::PolledReactor;
pub use private_file::read_private;
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
/// The contract follows, and `sim/contract/` holds all backends to it. Missing numbers belonged to
/// reads and writes of single buffers, which had no users. They are not assigned again.
///
/// - **R1 thread.** A reactor is made, used and dropped on one thread. It blocks SIGPIPE on that
///   thread for good. A write to a closed pipe is an error value, and never the end of the process.
/// - **R9 poll.** [`Reactor::poll`] never blocks. It finds the events that have come, at the latest
///   on the [`crate::limits::REACTOR_POLLS_PER_LOOK`]th call, because not every call pays for a
///   system call.
/// - **R10 wait.** [`Reactor::wait`] returns when an event waits to be taken or a wake-up came that
///   no poll has seen. It returns at once if that came first. Otherwise it returns at the deadline,
///   and never before it. It returns for no other reason, except the horizon of the simulator.
/// - **R11 wake.** Wake-ups between two polls count as one. A poll sees them without a system call.
///   Writes to memory before the wake-up are visible after that poll.
/// - **R12 drop.** A drop first cancels, reaps and frees everything, and leaks no descriptor.
///   Memory that the kernel does not give back is leaked, never freed.
/// - **R13 descriptors.** The flags of a descriptor that others may share never change.
/// - **R14 clock.** [`Reactor::now`] never goes back and is the same clock as the deadlines.
///
/// The rules for sockets are on the same list of `sim/contract/`:
///
/// - **R15 names.** A [`ConnectionId`] or [`ListenerId`] that was closed, or never assigned, names
///   nothing: sends return an error, and all other calls do nothing. No event reports it any more.
///   A connection that was accepted before its listener was closed is still reported.
/// - **R16 accept.** Every incoming connection is reported once, with its peer, and receives from
///   then on. A connection that is gone before its report is counted instead. No connection is
///   accepted only to be dropped. Listeners pause while [`SocketLimits`] are reached, or
///   descriptors or memory are used up, and clients wait in the kernel's queue. The pause ends when
///   a connection is closed here, or after [`crate::limits::LISTENER_PAUSE`]. A pause takes no
///   processor time and is counted.
/// - **R17 events.** The events of one connection come in order: accepted, its bytes, its end.
///   [`Reactor::poll`] counts events and [`Reactor::wait`] returns for them, at times in vain: a
///   socket that the kernel calls ready may yield no event.
/// - **R18 receive.** Received bytes are in the reactor's memory and valid until the next call. A
///   connection without unread bytes holds no memory for them. After
///   [`Reactor::set_receiving`]`(.., false)` nothing is received, and the end is not reported,
///   until it is true again. Nothing is lost by it. Between two polls a connection yields a bounded
///   number of bytes. A loop that takes events until none is left therefore ends, whatever the
///   peers do.
/// - **R19 end.** One [`SocketEvent::Ended`] reports that the peer has finished or that the
///   connection broke. If the peer has finished, all bytes that it sent were reported before, and
///   sending may go on.
/// - **R20 send.** [`Reactor::send`] moves the bytes that the kernel takes at this moment, in
///   order, and returns their number. The slices are the caller's again when it returns. If bytes
///   remain, one [`SocketEvent::Writable`] follows when another try is worthwhile. Until then sends
///   move nothing and cost no system call. Slices may be empty and many. With
///   [`Reactor::send_with_descriptors`] all descriptors go with the first byte that is moved, or
///   none if no byte is moved. The reader of that byte has copies of them. Descriptors are for Unix
///   sockets: a kernel drops them on TCP, and the simulator returns an error.
/// - **R21 finish and close.** [`Reactor::finish`] ends sending, after the bytes that were sent.
///   [`Reactor::close`] ends both directions. Bytes that the kernel took are still delivered,
///   unless the peer sends into the closed connection (so let the peer finish first). The
///   descriptor and the slot are free again when the kernel has answered everything that was in
///   flight.
/// - **R22 nothing else.** A reactor without sockets does no work for them.
/// - **R23 release.** After [`Reactor::release`] only data already under way is received. It is
///   reported, even during a pause, and so is an end that was found. Then one
///   [`SocketEvent::Released`] gives the socket away, and its name and slot are free. Data still in
///   the kernel waits for the next owner. Each byte, and the end, is reported once, by one of the
///   two reactors. Until that event the owner can only close the connection, and after a close the
///   event does not come. For sends, and all other calls, the name is invalid already. No
///   [`SocketEvent::Writable`] comes: the next owner just tries.
/// - **R24 adopt.** [`Reactor::adopt`] makes a released socket one of this reactor's, under a new
///   name and without an event. It receives at once and sends at once. An end that was reported
///   before is not reported again, and sends that were broken stay broken. A socket that cannot be
///   adopted is given back. A [`ReleasedSocket`] that is dropped is closed, as by
///   [`Reactor::close`]. A connection of two ends ([`ReleasedSocket::of_ends`]) is adopted in the
///   same way. Descriptors of these ends that others share do not end with the connection.
/// - **R25 wake another.** [`Reactor::wake`] does the same as [`Waker::wake`], with this reactor's
///   means. The other reactor may sleep until this one polls, blocks or is dropped.
/// - **R26 connect.** [`Reactor::connect`] never waits. It returns a name, or an error that has
///   left nothing behind. One of two events is reported for the name, once. After
///   [`SocketEvent::Connected`] the connection is like one that was accepted.
///   [`SocketEvent::Ended`] carries the reason of a failure, during a pause of receiving too. After
///   it, sends are broken for that reason, and only [`Reactor::close`] remains to be called. An
///   event reports the outcome, however soon it is known. Until then sends move nothing, at no cost
///   and without a [`SocketEvent::Writable`] that follows. A pause of receiving is remembered, and
///   finishes and releases do nothing. A close gives up the attempt, and no event follows. A
///   reactor does not give up by itself: the kernel does, after minutes. The connection holds a
///   slot from the beginning, as any connection does. A Unix listener whose queue is full refuses
///   (EAGAIN).
/// - **R27 bound sending.** [`Reactor::bound_sending`] bounds the bytes that the kernel holds and
///   the peer's kernel has not confirmed. The kernel takes no more bytes while it holds about that
///   many. The bound includes the kernel's own overhead, and is at least its own minimum of some
///   kilobytes. One send may move more. Bytes that the kernel holds already stay. On a Unix socket
///   a byte is confirmed when the peer has read it.
///
/// The rules for the disk are on that list, too:
///
/// - **R28 completion.** Each request that [`Reactor::submit_disk`] took has exactly one
///   [`DiskDone`], whatever happens, and the buffer comes back with it. Errors are values, also for
///   names, files and ranges that are wrong. Completions are events of [`Reactor::poll`] and
///   [`Reactor::wait`]. A completion may also count as a wake-up.
/// - **R29 whole.** A write moves all its bytes or is an error. A read moves fewer bytes only at
///   the end of the file. The backend continues the kernel's partial moves.
/// - **R30 order.** Operations that are in flight together are in no order. A read or write sees
///   all operations whose completions were taken before it was submitted. Reads, and writes without
///   a sync, do not wait for a sync that is in flight. Two files can be synced at the same time.
/// - **R31 sync.** A sync covers the writes of its file that completed before it was submitted, and
///   a write with a sync covers itself too. A power cut loses none of these after `Ok`. An error is
///   final for all of them: the backend never syncs again on its own, and a later `Ok` says nothing
///   about them. Creating, renaming and removing files is durable when it completes.
/// - **R32 thread.** No operation blocks the reactor's thread, beyond a submission to the kernel.
/// - **R33 bound.** At most [`DiskSetup::in_flight_max`] operations are in flight: their
///   completions were not taken. One more comes back as an error.
/// - **R34 files.** A [`FileId`] that was closed, or never assigned, names nothing: its operations
///   complete with EBADF. Operations in flight on a file that is closed complete as others do. At
///   most [`DiskSetup::files_max`] files are open. One more completes with EMFILE and changes
///   nothing.
/// - **R35 drop.** A drop carries out the operations in flight, waits for them, and drops their
///   completions. It leaks no descriptor. If a disk does not answer for
///   [`crate::limits::DISK_DROP_WAIT`], the memory that the kernel may still write is leaked.
/// - **R36 nothing else.** A reactor without a disk does no work for one.
pub trait Reactor {
    /// The current time, read by this call. A turn reads it once and passes it on.
    fn now(&mut self) -> Instant;

    /// The wall-clock time for people and other machines, in microseconds since 1970. It may jump.
    fn wall_us(&mut self) -> u64;

    /// A handle that ends the present or next [`Reactor::wait`], from any thread.
    fn waker(&self) -> Waker;

    /// Wakes another reactor, with this one's next system call if that is cheaper (R25).
    fn wake(&mut self, waker: &Waker) {
        waker.wake();
    }

    /// Finds the events that have come (R9). Returns the number that wait in
    /// [`Reactor::next_socket_event`] and [`Reactor::next_disk_event`], plus one if a wake-up
    /// came.
    fn poll(&mut self) -> usize;

    /// Blocks until an event, a wake-up or `until`, whichever is first (R10).
    fn wait(&mut self, until: Option<Instant>);

    /// The running totals of this reactor.
    fn counters(&self) -> &Counters;

    /// False if nothing has come that no poll has found. A reactor that would need a system call to
    /// know returns true.
    #[inline]
    fn may_have_news(&mut self) -> bool {
        true
    }

    /// Allocates the memory for sockets, once. The first [`Reactor::listen`], [`Reactor::connect`]
    /// or [`Reactor::adopt`] does it with the default limits.
    ///
    /// # Errors
    /// The kernel lacks a feature, as io_uring before Linux 6.0 does.
    fn open_sockets(&mut self, limits: SocketLimits) -> io::Result<()>;

    /// Opens the disk of this reactor, once. The directory has to exist.
    ///
    /// # Errors
    /// The kernel's error, or limits out of range, or there is a disk already.
    fn open_disk(&mut self, setup: DiskSetup) -> io::Result<()>;

    /// The disk of the backend, once it was opened. For backends: all other callers use
    /// [`Reactor::submit_disk`] and [`Reactor::next_disk_event`].
    fn disk_mut(&mut self) -> Option<&mut dyn Disk>;

    /// Begins an operation on the disk: one [`DiskDone`] follows (R28). The kernel gets it at the
    /// next poll or wait, at the latest.
    ///
    /// # Errors
    /// The request comes back: too many operations are in flight (R33), or there is no disk.
    fn submit_disk(&mut self, request: DiskRequest) -> Result<(), DiskRequest> {
        match self.disk_mut() {
            Some(disk) => disk.submit(request),
            None => Err(request),
        }
    }

    /// The next completion of the disk, if one is waiting.
    #[inline]
    fn next_disk_event(&mut self) -> Option<DiskDone> {
        self.disk_mut()?.next_event()
    }

    /// The socket part of the backend, once sockets were opened. For backends: all other callers
    /// use the functions below.
    fn net(&self) -> Option<&dyn Net>;

    /// The same as [`Reactor::net`], with the totals that it counts into.
    fn net_mut(&mut self) -> Option<(&mut dyn Net, &mut SocketCounters)>;

    /// Accepts connections on `address` from now on.
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

    /// The address that `listener` listens on, with the port that the kernel chose.
    fn listen_address(&self, listener: ListenerId) -> Option<ListenAddress> {
        self.net()?.listen_address(listener)
    }

    /// Stops listening. Clients in the kernel's queue are refused; accepted connections stay.
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

    /// Sets whether the bytes of `connection` are received; true at first (R18).
    fn set_receiving(&mut self, connection: ConnectionId, is_receiving: bool) {
        if let Some((net, _)) = self.net_mut() {
            net.set_receiving(connection, is_receiving);
        }
    }

    /// Bounds the bytes of `connection` that the kernel holds, sent and not confirmed by the peer's
    /// kernel (R27). The bound at first is [`crate::limits::SEND_BUFFER_BYTES`].
    fn bound_sending(&mut self, connection: ConnectionId, bytes: u32) {
        if let Some((net, _)) = self.net_mut() {
            net.bound_sending(connection, bytes);
        }
    }

    /// Sends the bytes that the kernel takes at once (R20).
    ///
    /// # Errors
    /// [`SendError`]: no later send will move anything.
    fn send(
        &mut self,
        connection: ConnectionId,
        slices: &[IoSlice<'_>],
    ) -> Result<usize, SendError> {
        self.send_with_descriptors(connection, slices, &[])
    }

    /// Sends as [`Reactor::send`] does, with descriptors on the first byte. They were sent if any
    /// byte was.
    ///
    /// # Errors
    /// [`SendError`]: no later send will move anything.
    fn send_with_descriptors(
        &mut self,
        connection: ConnectionId,
        slices: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<usize, SendError> {
        let (net, counters) = self.net_mut().ok_or(SendError::Unknown)?;
        net.send(connection, slices, descriptors, counters)
    }

    /// Ends sending: the peer reads the end after the bytes that were sent (R21).
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

    /// Gives the socket away: [`SocketEvent::Released`] follows the bytes that were received (R23).
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

    /// Number of connections that were reported, requested or adopted, and are neither closed nor
    /// given away.
    fn connection_count(&self) -> usize {
        self.net().map_or(0, |net| net.connection_count())
    }
}

/// The socket part of a backend, once sockets were opened. Its functions keep the promises of the
/// functions of the same names of [`Reactor`].
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
