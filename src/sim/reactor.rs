//! The simulator's kernel: pipes, virtual time from zero, and every liberty that
//! [`Reactor`]'s contract leaves to a real kernel, taken at random from a seed.
//!
//! One thread. Absent: real time, threads, real descriptors (numbers start at 2^20, where no
//! process has any). Time moves in three places: a wait moves it to the next thing that happens, a
//! poll by [`POLL_COST`], and [`SimWorld::advance_to`] at the simulator's will. An actor of the
//! simulator that has to act at a certain time sets the horizon: no wait passes it.
//!
//! How the faults map to the contract: EINTR and EAGAIN are tried again inside (R5) and only cost
//! time; a cancel may lose its race (R6); completions come in any order (R7); answers may come
//! twice, and the second is counted as stale and dropped (R3).
//! Invariant: S1 a slot is in flight, and what is in flight is in a slot: nothing else is kept.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use crate::base::{Handle, Instant, Pool, Random};
use crate::reactor::operation::{Request, Transfer};
use crate::reactor::waker::WakeListener;
use crate::reactor::{Completion, Counters, IoError, Operation, Reactor, SubmitError, Waker};

/// What a poll costs in virtual time, so that a shard which spins sees time pass.
pub const POLL_COST: Duration = Duration::from_nanos(100);
/// Bytes that a pipe holds, as in Linux.
pub const PIPE_BYTES_MAX: usize = 1 << 16;
/// The first descriptor number.
pub const FD_FIRST: RawFd = 1 << 20;
/// 2026-01-01 in microseconds: what the wall shows at virtual time zero.
pub const WALL_ORIGIN_US: u64 = 1_767_225_600_000_000;

/// How unkind the kernel is. Chances are per mille.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimFaults {
    /// The longest time between readiness and transfer.
    pub delay_max: Duration,
    /// Of moving fewer bytes than possible: any number from one up.
    pub short_chance: u64,
    /// Of "not ready after all".
    pub again_chance: u64,
    /// Of EINTR.
    pub interrupt_chance: u64,
    /// Of a cancel that comes too late if bytes can move.
    pub cancel_late_chance: u64,
    /// Of an answer that comes a second time.
    pub stale_chance: u64,
    /// Whether completions of one moment are shuffled.
    pub is_shuffled: bool,
}

impl SimFaults {
    /// A kernel that does everything at once and in order.
    pub const NONE: SimFaults = SimFaults {
        delay_max: Duration::ZERO,
        short_chance: 0,
        again_chance: 0,
        interrupt_chance: 0,
        cancel_late_chance: 0,
        stale_chance: 0,
        is_shuffled: false,
    };
    /// Everything at once, often.
    pub const ALL: SimFaults = SimFaults {
        delay_max: Duration::from_micros(30),
        short_chance: 500,
        again_chance: 200,
        interrupt_chance: 200,
        cancel_late_chance: 500,
        stale_chance: 200,
        is_shuffled: true,
    };
}

/// The world that reactors and actors share. Clones are the same world.
#[derive(Clone, Debug)]
pub struct SimWorld {
    world: Rc<RefCell<World>>,
}

#[derive(Debug)]
struct World {
    now: Instant,
    horizon: Option<Instant>,
    random: Random,
    faults: SimFaults,
    pipes: Vec<Pipe>,
    /// By descriptor number less [`FD_FIRST`]. Numbers are not used again.
    ends: Vec<Option<End>>,
    alarms: Vec<(Instant, Waker)>,
}

#[derive(Debug)]
struct Pipe {
    bytes: VecDeque<u8>,
    has_reader: bool,
    has_writer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Reader(usize),
    Writer(usize),
}

const EAGAIN: IoError = IoError(libc::EAGAIN);

impl SimWorld {
    /// A world at time zero, without pipes.
    pub fn new(seed: u64, faults: SimFaults) -> SimWorld {
        let world = World {
            now: Instant::ZERO,
            horizon: None,
            random: Random::new(seed),
            faults,
            pipes: Vec::new(),
            ends: Vec::new(),
            alarms: Vec::new(),
        };
        SimWorld { world: Rc::new(RefCell::new(world)) }
    }

    /// A reactor in this world, which holds `operations_max` operations.
    pub fn reactor(&self, operations_max: u32) -> SimReactor {
        assert!(operations_max > 0);
        SimReactor {
            world: self.clone(),
            slots: Pool::new(operations_max),
            ready: VecDeque::with_capacity(operations_max as usize),
            listener: WakeListener::without_doorbell(),
            counters: Counters::default(),
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Instant {
        self.world.borrow().now
    }

    /// Moves time to `instant`, and rings the alarms on the way.
    ///
    /// # Panics
    /// If that is in the past.
    pub fn advance_to(&self, instant: Instant) {
        self.world.borrow_mut().advance_to(instant);
    }

    /// No wait moves time past `horizon`; it returns there, without a reason.
    pub fn set_horizon(&self, horizon: Option<Instant>) {
        self.world.borrow_mut().horizon = horizon;
    }

    /// From now on the kernel behaves like this.
    pub fn set_faults(&self, faults: SimFaults) {
        self.world.borrow_mut().faults = faults;
    }

    /// Wakes a reactor when time reaches `instant`.
    pub fn wake_at(&self, instant: Instant, waker: Waker) {
        self.world.borrow_mut().alarms.push((instant, waker));
    }

    /// A new pipe: the end to read from and the end to write to.
    pub fn pipe(&self) -> (RawFd, RawFd) {
        let mut world = self.world.borrow_mut();
        let pipe_index = world.pipes.len();
        world.pipes.push(Pipe { bytes: VecDeque::new(), has_reader: true, has_writer: true });
        let fd = FD_FIRST + world.ends.len() as RawFd;
        world.ends.push(Some(End::Reader(pipe_index)));
        world.ends.push(Some(End::Writer(pipe_index)));
        (fd, fd + 1)
    }

    /// What an actor at the other end does: writes what fits.
    ///
    /// # Errors
    /// EAGAIN if nothing fits, EPIPE if nobody can read it, EBADF.
    pub fn write(&self, fd: RawFd, bytes: &[u8]) -> Result<u32, IoError> {
        self.world.borrow_mut().write(fd, bytes, usize::MAX)
    }

    /// What an actor at the other end does: reads what is there. `Ok(0)` is the end.
    ///
    /// # Errors
    /// EAGAIN if nothing is there, EBADF.
    pub fn read(&self, fd: RawFd, bytes: &mut [u8]) -> Result<u32, IoError> {
        self.world.borrow_mut().read(fd, bytes, usize::MAX)
    }

    /// Closes a descriptor.
    ///
    /// # Panics
    /// If it is not open: actors are our own code.
    pub fn close(&self, fd: RawFd) {
        let mut world = self.world.borrow_mut();
        match world.end(fd).expect("closed once") {
            End::Reader(index) => world.pipes[index].has_reader = false,
            End::Writer(index) => world.pipes[index].has_writer = false,
        }
        world.ends[(fd - FD_FIRST) as usize] = None;
    }
}

impl World {
    fn end(&self, fd: RawFd) -> Result<End, IoError> {
        let index = usize::try_from(i64::from(fd) - i64::from(FD_FIRST));
        let end = index.ok().and_then(|index| self.ends.get(index).copied().flatten());
        end.ok_or(IoError::BAD_DESCRIPTOR)
    }

    fn read(&mut self, fd: RawFd, into: &mut [u8], bytes_max: usize) -> Result<u32, IoError> {
        let End::Reader(index) = self.end(fd)? else { return Err(IoError::BAD_DESCRIPTOR) };
        let pipe = &mut self.pipes[index];
        if pipe.bytes.is_empty() {
            return if pipe.has_writer { Err(EAGAIN) } else { Ok(0) };
        }
        let count = into.len().min(pipe.bytes.len()).min(bytes_max);
        for (place, byte) in into[..count].iter_mut().zip(pipe.bytes.drain(..count)) {
            *place = byte;
        }
        Ok(count as u32)
    }

    fn write(&mut self, fd: RawFd, from: &[u8], bytes_max: usize) -> Result<u32, IoError> {
        let End::Writer(index) = self.end(fd)? else { return Err(IoError::BAD_DESCRIPTOR) };
        let pipe = &mut self.pipes[index];
        if !pipe.has_reader {
            return Err(IoError::BROKEN_PIPE);
        }
        let count = from.len().min(PIPE_BYTES_MAX - pipe.bytes.len()).min(bytes_max);
        if count == 0 {
            return Err(EAGAIN);
        }
        pipe.bytes.extend(&from[..count]);
        Ok(count as u32)
    }

    /// Whether a try would come to something, be it an error.
    fn is_ready(&self, request: &Request) -> bool {
        match (self.end(request.fd), &request.transfer) {
            (Ok(End::Reader(index)), Transfer::Read) => {
                let pipe = &self.pipes[index];
                !pipe.bytes.is_empty() || !pipe.has_writer
            }
            (Ok(End::Writer(index)), Transfer::Write(_)) => {
                let pipe = &self.pipes[index];
                pipe.bytes.len() < PIPE_BYTES_MAX || !pipe.has_reader
            }
            _ => true, // EBADF at once.
        }
    }

    fn transfer(&mut self, request: &mut Request) -> Result<u32, IoError> {
        let size_bytes = match &request.transfer {
            Transfer::Read => request.buffer.size(),
            Transfer::Write(range) => range.end - range.start,
        };
        let mut bytes_max = size_bytes as usize;
        if self.random.chance(self.faults.short_chance, 1_000) {
            bytes_max = self.random.between(1, u64::from(size_bytes)) as usize;
        }
        match request.transfer.clone() {
            Transfer::Read => self.read(request.fd, &mut request.buffer, bytes_max),
            Transfer::Write(range) => {
                let bytes = &request.buffer[range.start as usize..range.end as usize];
                self.write(request.fd, bytes, bytes_max)
            }
        }
    }

    fn delay(&mut self) -> Duration {
        let delay_max_ns = self.faults.delay_max.as_nanos() as u64;
        Duration::from_nanos(self.random.between(0, delay_max_ns))
    }

    fn next_alarm(&self) -> Option<Instant> {
        self.alarms.iter().map(|(at, _)| *at).min()
    }

    fn advance_to(&mut self, instant: Instant) {
        assert!(instant >= self.now, "time does not go back");
        self.now = instant;
        self.alarms.retain(|(at, waker)| {
            let is_due = *at <= instant;
            if is_due {
                waker.wake();
            }
            !is_due
        });
    }
}

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
}

impl SimReactor {
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
        !self.ready.is_empty() || self.listener.is_notified()
    }

    /// When something happens next, as far as this reactor can know.
    fn next_happening(&self) -> Option<Instant> {
        let looks = self.slots.iter().filter_map(|(_, slot)| slot.looks_at);
        looks.chain(self.world.world.borrow().next_alarm()).min()
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
        self.ready.len() + usize::from(woken)
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::Buffer;

    /// Everything that comes out of a run, in order.
    fn history(seed: u64) -> Vec<(u64, u64, Result<u32, IoError>)> {
        let world = SimWorld::new(seed, SimFaults::ALL);
        let mut reactor = world.reactor(8);
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
        let mut reactor = world.reactor(1);
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
        SimWorld::new(1, SimFaults::NONE).reactor(1).wait(None);
    }
}
