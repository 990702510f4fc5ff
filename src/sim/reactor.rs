//! The simulator's kernel: every liberty that [`Reactor`]'s contract leaves to a real kernel, taken
//! at random from a seed.
//!
//! One thread. Time moves in three places: a wait moves it to the next thing that happens, a poll
//! by [`POLL_COST`], and [`SimWorld::advance_to`] at the simulator's will. An actor that has to act
//! at a certain time sets the horizon: no wait passes it.
//!
//! How the faults map to the contract: EINTR and EAGAIN are tried again inside (R5) and only cost
//! time; a cancel may lose its race (R6); completions come in any order (R7); answers may come
//! twice, and the second is counted as stale and dropped (R3).
//! Invariant: S1 whatever is in flight is in a slot, and nothing is kept elsewhere.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use crate::base::{Handle, Instant, Pool};
use crate::reactor::operation::Request;
use crate::reactor::waker::WakeListener;
use crate::reactor::{
    AdoptError, Completion, ConnectAddress, ConnectError, ConnectionId, Counters, IoError,
    ListenAddress, ListenError, ListenOptions, ListenerId, Net, Operation, Reactor, ReleasedSocket,
    SendError, SocketCounters, SocketEvent, SocketLimits, SubmitError, Waker,
};
use crate::sim::socket::SimNet;
use crate::sim::world::{EAGAIN, SimWorld, WALL_ORIGIN_US, World};

/// What a poll costs in virtual time, so that a shard which spins sees time pass.
pub const POLL_COST: Duration = Duration::from_nanos(100);

#[derive(Debug)]
struct SimSlot {
    request: Request,
    /// When the kernel looks at it next; None while the descriptor is not ready.
    looks_at: Option<Instant>,
    is_cancelled: bool,
}

/// [`Reactor`] in a [`SimWorld`].
#[derive(Debug)]
pub struct SimReactor {
    world: SimWorld,
    slots: Pool<SimSlot>,
    ready: VecDeque<Completion>,
    listener: WakeListener,
    counters: Counters,
    /// None until sockets are asked for.
    net: Option<Sockets>,
}

/// Its sockets, and the world that they are in.
#[derive(Debug)]
struct Sockets {
    net: SimNet,
    world: SimWorld,
}

impl SimReactor {
    /// A reactor in `world`, which holds `operations_max` operations.
    pub fn new(world: &SimWorld, operations_max: u32) -> SimReactor {
        assert!(operations_max > 0);
        SimReactor {
            world: world.clone(),
            slots: Pool::new(operations_max),
            ready: VecDeque::with_capacity(operations_max as usize),
            listener: WakeListener::without_doorbell(),
            counters: Counters::default(),
            net: None,
        }
    }

    /// Lets the kernel do what is due at this moment.
    fn step(&mut self) {
        let shared = Rc::clone(&self.world.world);
        let world = &mut *shared.borrow_mut();
        let mut due = Vec::new();
        for index in 0..self.slots.capacity() {
            let Some(slot) = self.slots.at_mut(index) else { continue };
            if slot.looks_at.is_none() && (slot.is_cancelled || world.is_ready(&slot.request)) {
                slot.looks_at = Some(world.now + world.delay());
            }
            if slot.looks_at.is_some_and(|at| at <= world.now) {
                due.push(self.slots.handle_at(index).expect("the slot is taken"));
            }
        }
        if world.faults.is_shuffled {
            for last in (1..due.len()).rev() {
                due.swap(last, world.random.below(last as u64 + 1) as usize);
            }
        }
        for handle in due {
            self.look(world, handle);
        }
        if let Some(Sockets { net, .. }) = &mut self.net {
            net.step(world, &mut self.counters.sockets);
        }
    }

    fn look(&mut self, world: &mut World, handle: Handle) {
        let slot = self.slots.get_mut(handle).expect("due, hence in flight");
        let is_interrupted = world.random.chance(world.faults.interrupt_chance, 1_000);
        if is_interrupted || world.random.chance(world.faults.again_chance, 1_000) {
            self.counters.retried_count += 1;
            slot.looks_at = Some(world.now + Duration::from_nanos(1) + world.delay());
            return;
        }
        let is_too_late = world.random.chance(world.faults.cancel_late_chance, 1_000);
        let result = match slot.is_cancelled && !is_too_late {
            true => Err(IoError::CANCELLED),
            false => match world.transfer(&mut slot.request) {
                Err(EAGAIN) if slot.is_cancelled => Err(IoError::CANCELLED),
                result => result,
            },
        };
        if result == Err(EAGAIN) {
            slot.looks_at = None; // Another reader was faster.
            return;
        }
        self.on_answer(handle, result);
        if world.random.chance(world.faults.stale_chance, 1_000) {
            self.on_answer(handle, result);
        }
    }

    fn on_answer(&mut self, handle: Handle, result: Result<u32, IoError>) {
        let Some(slot) = self.slots.remove(handle) else {
            self.counters.stale_count += 1;
            return;
        };
        self.counters.count_completion(result);
        self.ready.push_back(slot.request.into_completion(result));
    }

    fn has_event(&self) -> bool {
        !self.ready.is_empty() || self.listener.is_notified() || self.socket_count() > 0
    }

    fn socket_count(&self) -> usize {
        self.net.as_ref().map_or(0, |sockets| sockets.net.event_count())
    }

    /// When something happens next, as far as this reactor can know.
    fn next_happening(&self) -> Option<Instant> {
        let looks = self.slots.iter().filter_map(|(_, slot)| slot.looks_at);
        let sockets = self.net.as_ref().and_then(|sockets| sockets.net.next_happening());
        looks.chain(self.world.world.borrow().next_alarm()).chain(sockets).min()
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

    fn submit(&mut self, operation: Operation) -> Result<(), SubmitError> {
        let request = match Request::parse(operation) {
            Ok(request) => request,
            Err(token) => {
                for index in 0..self.slots.capacity() {
                    let slot = self.slots.at_mut(index);
                    if let Some(slot) = slot.filter(|slot| slot.request.token == token) {
                        slot.is_cancelled = true;
                    }
                }
                return Ok(());
            }
        };
        if self.operation_count() >= self.slots.capacity() as usize {
            return Err(SubmitError::Full(request.into_operation()));
        }
        match self.slots.insert(SimSlot { request, looks_at: None, is_cancelled: false }) {
            Ok(_) => {
                self.counters.submitted_count += 1;
                Ok(())
            }
            Err(slot) => Err(SubmitError::Full(slot.request.into_operation())),
        }
    }

    fn poll(&mut self) -> usize {
        let horizon = self.world.world.borrow().horizon.unwrap_or(Instant::FAR);
        let now = self.world.now();
        self.world.advance_to((now + POLL_COST).min(horizon).max(now));
        self.step();
        let woken = self.listener.take();
        self.counters.woken_count += u64::from(woken);
        self.ready.len() + self.socket_count() + usize::from(woken)
    }

    /// # Panics
    /// If nothing is left in the world that could end it: a wake-up was lost, or never sent.
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
            let next = self.next_happening().into_iter().chain(until).chain(horizon).min();
            let next = next.expect("the wait would never end: no event, deadline or horizon");
            self.world.advance_to(next.max(now));
            if horizon.is_some_and(|horizon| next >= horizon) {
                self.step();
                return;
            }
        }
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    fn operation_count(&self) -> usize {
        self.slots.count() as usize + self.ready.len()
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
            return Err(SendError::Broken(IoError(libc::EOPNOTSUPP))); // There are none in here.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::Buffer;
    use crate::sim::world::SimFaults;

    /// Everything that comes out of a run, in order.
    fn history(seed: u64) -> Vec<(u64, u64, Result<u32, IoError>)> {
        let world = SimWorld::new(seed, SimFaults::ALL);
        let mut reactor = SimReactor::new(&world, 8);
        let (reader, writer) = world.pipe();
        let mut history = Vec::new();
        for token in 0..200 {
            let buffer = Buffer::zeroed(50);
            let _ = world.write(writer, &[7; 60]);
            reactor.submit(Operation::Read { token, fd: reader, buffer }).unwrap();
            if token % 3 == 0 {
                reactor.submit(Operation::Cancel { token }).unwrap();
            }
            reactor.wait(None);
            while let Some(completion) = reactor.next_completion() {
                history.push((reactor.now().nanos(), completion.token, completion.result));
            }
        }
        assert!(reactor.counters().stale_count > 0, "SEED={seed}");
        assert!(reactor.counters().retried_count > 0, "SEED={seed}");
        history
    }

    #[test]
    fn the_same_seed_gives_the_same_history_and_another_does_not() {
        assert_eq!(history(1), history(1));
        assert_ne!(history(1), history(2));
    }

    #[test]
    fn no_wait_passes_the_horizon() {
        let world = SimWorld::new(1, SimFaults::NONE);
        let mut reactor = SimReactor::new(&world, 1);
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
        SimReactor::new(&SimWorld::new(1, SimFaults::NONE), 1).wait(None);
    }
}
