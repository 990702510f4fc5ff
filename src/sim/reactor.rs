//! The simulator's kernel. It takes every liberty that [`Reactor`]'s contract leaves to a real
//! kernel, at random from a seed.
//!
//! One thread. Time moves in three places. A wait moves it to the next event, a poll by
//! [`POLL_COST`], and [`SimWorld::advance_to`] at the simulator's will. An actor that has to act at
//! a certain time sets the horizon: no wait passes it.
//!
//! Sockets are in `socket.rs`, and the disk in `disk.rs`.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use crate::base::Instant;
use crate::reactor::waker::WakeListener;
use crate::reactor::{
    AdoptError, ConnectAddress, ConnectError, ConnectionId, Counters, Disk, DiskDirectory,
    DiskSetup, IoError, ListenAddress, ListenError, ListenOptions, ListenerId, Net, Reactor,
    ReleasedSocket, SendError, SocketCounters, SocketEvent, SocketLimits, Waker,
};
use crate::shard::Shard;
use crate::shard::outlet::Outlet;
use crate::sim::disk::SimPort;
use crate::sim::socket::SimNet;
use crate::sim::world::{SimWorld, WALL_ORIGIN_US};

/// The virtual time that a poll takes, so that a shard which spins sees time pass.
pub const POLL_COST: Duration = Duration::from_nanos(100);

/// [`Reactor`] in a [`SimWorld`].
#[derive(Debug)]
pub struct SimReactor {
    world: SimWorld,
    listener: WakeListener,
    counters: Counters,
    /// The sockets, or `None` until they are opened.
    net: Option<Sockets>,
    /// The disk, or `None` until it is opened.
    disk: Option<SimPort>,
}

/// The sockets of a reactor, and the world that they are in.
#[derive(Debug)]
struct Sockets {
    net: SimNet,
    world: SimWorld,
}

impl SimReactor {
    /// A reactor in `world`.
    pub fn new(world: &SimWorld) -> SimReactor {
        SimReactor {
            world: world.clone(),
            listener: WakeListener::without_doorbell(),
            counters: Counters::default(),
            net: None,
            disk: None,
        }
    }

    /// Lets the kernel do the work that is due at this moment.
    fn step(&mut self) {
        let shared = Rc::clone(&self.world.world);
        let world = &mut *shared.borrow_mut();
        if let Some(Sockets { net, .. }) = &mut self.net {
            net.step(world, &mut self.counters.sockets);
        }
        if let Some(disk) = &mut self.disk {
            disk.step(world.now);
        }
    }

    fn has_event(&self) -> bool {
        self.listener.is_notified() || self.event_count() > 0
    }

    /// Number of events that wait to be taken.
    fn event_count(&self) -> usize {
        self.socket_count() + self.disk.as_ref().map_or(0, SimPort::event_count)
    }

    fn socket_count(&self) -> usize {
        self.net.as_ref().map_or(0, |sockets| sockets.net.event_count())
    }

    /// The time of the next event, as far as this reactor can know.
    fn next_pending_event(&self) -> Option<Instant> {
        let sockets = self.net.as_ref().and_then(|sockets| sockets.net.next_pending_event());
        let disk = self.disk.as_ref().and_then(SimPort::next_pending_event);
        let alarm = self.world.world.borrow().next_alarm();
        alarm.into_iter().chain(sockets).chain(disk).min()
    }
}

impl Reactor for SimReactor {
    fn now(&mut self) -> Instant {
        self.world.now()
    }

    fn wall_us(&mut self) -> u64 {
        WALL_ORIGIN_US + self.world.now().nanos() / 1_000
    }

    fn waker(&self) -> Waker {
        self.listener.waker()
    }

    fn poll(&mut self) -> usize {
        let horizon = self.world.world.borrow().horizon.unwrap_or(Instant::FAR);
        let now = self.world.now();
        self.world.advance_to((now + POLL_COST).min(horizon).max(now));
        self.step();
        let woken = self.listener.take();
        self.counters.woken_count += u64::from(woken);
        self.event_count() + usize::from(woken)
    }

    /// Waits (R10).
    ///
    /// # Panics
    /// Nothing is left in the world that could end the wait: a wake-up was lost, or never sent.
    fn wait(&mut self, until: Option<Instant>) {
        let until = until.filter(|until| *until != Instant::FAR);
        self.counters.blocked_count += 1;
        loop {
            self.step();
            let now = self.world.now();
            if self.has_event() || until.is_some_and(|until| until <= now) {
                return;
            }
            let horizon = self.world.world.borrow().horizon;
            let next = self.next_pending_event().into_iter().chain(until).chain(horizon).min();
            let next = next.expect("the wait would never end: no event, deadline or horizon");
            self.world.advance_to(next.max(now));
            if horizon.is_some_and(|horizon| next >= horizon) {
                self.step();
                return;
            }
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn open_sockets(&mut self, limits: SocketLimits) -> io::Result<()> {
        let world = &self.world;
        self.net.get_or_insert_with(|| Sockets { net: SimNet::new(limits), world: world.clone() });
        Ok(())
    }

    fn net(&self) -> Option<&dyn Net> {
        Some(self.net.as_ref()?)
    }

    fn net_mut(&mut self) -> Option<(&mut dyn Net, &mut SocketCounters)> {
        Some((self.net.as_mut()?, &mut self.counters.sockets))
    }

    fn open_disk(&mut self, setup: DiskSetup) -> io::Result<()> {
        setup.check(self.disk.is_some())?;
        let DiskDirectory::Path(path) = &setup.directory else {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)); // Not simulated.
        };
        let world = self.world.world.borrow();
        let disk = world.disks.get(path).ok_or(io::Error::from_raw_os_error(libc::ENOENT))?;
        self.disk = Some(SimPort::new(disk, &setup, &self.world));
        Ok(())
    }

    fn disk_mut(&mut self) -> Option<&mut dyn Disk> {
        Some(self.disk.as_mut()?)
    }
}

impl Net for Sockets {
    fn listen(
        &mut self,
        address: &ListenAddress,
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        self.net.listen(&mut self.world.world.borrow_mut(), address, options)
    }

    fn listen_address(&self, listener: ListenerId) -> Option<ListenAddress> {
        self.net.listen_address(listener)
    }

    fn close_listener(&mut self, listener: ListenerId) {
        self.net.close_listener(&mut self.world.world.borrow_mut(), listener);
    }

    fn connect(&mut self, address: &ConnectAddress) -> Result<ConnectionId, ConnectError> {
        self.net.connect(&mut self.world.world.borrow_mut(), address)
    }

    fn set_receiving(&mut self, connection: ConnectionId, is_receiving: bool) {
        self.net.set_receiving(connection, is_receiving);
    }

    fn bound_sending(&mut self, connection: ConnectionId, bytes: u32) {
        self.net.bound_sending(&mut self.world.world.borrow_mut(), connection, bytes);
    }

    fn send(
        &mut self,
        connection: ConnectionId,
        slices: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
        counters: &mut SocketCounters,
    ) -> Result<usize, SendError> {
        if !descriptors.is_empty() {
            return Err(SendError::Broken(IoError(libc::EOPNOTSUPP))); // Not simulated.
        }
        self.net.send(&mut self.world.world.borrow_mut(), connection, slices, counters)
    }

    fn finish(&mut self, connection: ConnectionId) {
        self.net.finish(&mut self.world.world.borrow_mut(), connection);
    }

    fn close(&mut self, connection: ConnectionId, counters: &mut SocketCounters) {
        self.net.close(&mut self.world.world.borrow_mut(), connection, counters);
    }

    fn release(&mut self, connection: ConnectionId, _: &mut SocketCounters) {
        self.net.release(&mut self.world.world.borrow_mut(), connection);
    }

    fn adopt(
        &mut self,
        socket: ReleasedSocket,
        counters: &mut SocketCounters,
    ) -> Result<ConnectionId, AdoptError> {
        self.net.adopt(&mut self.world.world.borrow_mut(), socket, counters)
    }

    fn next_event(&mut self, counters: &mut SocketCounters) -> Option<SocketEvent<'_>> {
        self.net.next_event(&mut self.world.world.borrow_mut(), counters)
    }

    fn connection_count(&self) -> usize {
        self.net.connection_count()
    }
}

impl Drop for SimReactor {
    /// R12: clients see the end.
    fn drop(&mut self) {
        if let Some(Sockets { net, .. }) = &mut self.net {
            net.close_all(&mut self.world.world.borrow_mut(), &mut self.counters.sockets);
        }
    }
}

/// Waits until a shard has something to do, at most until this time. Time passes in any case.
pub(super) fn wait_for_deadline<O: Outlet<SimReactor>>(
    shard: &mut Shard<SimReactor, O>,
    until: Instant,
) {
    let soon = shard.reactor_mut().now() + Duration::from_micros(1);
    let deadline = shard.next_deadline().unwrap_or(Instant::FAR).max(soon);
    shard.reactor_mut().wait(Some(until.min(deadline)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::world::SimFaults;

    #[test]
    fn no_wait_passes_the_horizon() {
        let world = SimWorld::new(1, SimFaults::NONE);
        let mut reactor = SimReactor::new(&world);
        world.set_horizon(Some(Instant::from_nanos(500)));
        reactor.wait(Some(Instant::from_nanos(900)));
        assert_eq!(world.now(), Instant::from_nanos(500));
        reactor.poll();
        assert_eq!(world.now(), Instant::from_nanos(500));
        world.set_horizon(None);
        reactor.wait(Some(Instant::from_nanos(900)));
        assert_eq!(world.now(), Instant::from_nanos(900));
    }

    #[test]
    #[should_panic(expected = "would never end")]
    fn a_wait_that_nothing_can_end_is_a_failure() {
        SimReactor::new(&SimWorld::new(1, SimFaults::NONE)).wait(None);
    }
}
