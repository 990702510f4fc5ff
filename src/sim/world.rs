//! The world that simulated reactors and actors share: virtual time from zero, one seeded source
//! of randomness, pipes, alarms, the network (`network.rs`), and how unkind the kernel is.
//!
//! One thread. Absent: real time, threads, real descriptors (numbers start at 2^20, where no
//! process has any). Invariants: time never goes back; a descriptor number is never used twice.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use crate::base::{Instant, Random};
use crate::reactor::operation::{Request, Transfer};
use crate::reactor::{IoError, Waker};
use crate::sim::network::Network;

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
    pub(super) world: Rc<RefCell<World>>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) horizon: Option<Instant>,
    pub(super) random: Random,
    pub(super) faults: SimFaults,
    pipes: Vec<Pipe>,
    /// By descriptor number less [`FD_FIRST`]. Numbers are not used again.
    ends: Vec<Option<End>>,
    alarms: Vec<(Instant, Waker)>,
    pub(super) network: Network,
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

pub(super) const EAGAIN: IoError = IoError(libc::EAGAIN);

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
            network: Network::default(),
        };
        SimWorld { world: Rc::new(RefCell::new(world)) }
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
    pub(super) fn is_ready(&self, request: &Request) -> bool {
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

    pub(super) fn transfer(&mut self, request: &mut Request) -> Result<u32, IoError> {
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

    pub(super) fn delay(&mut self) -> Duration {
        let delay_max_ns = self.faults.delay_max.as_nanos() as u64;
        Duration::from_nanos(self.random.between(0, delay_max_ns))
    }

    pub(super) fn next_alarm(&self) -> Option<Instant> {
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
