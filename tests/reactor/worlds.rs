//! What the conformance list needs around a reactor: pipes with a far end, somebody who wakes, and
//! the few steps that most tests share.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use streamdoor::base::Random;
use streamdoor::limits::REACTOR_POLLS_PER_LOOK;
use streamdoor::reactor::{Buffer, Completion, Operation, Reactor, Waker};
use streamdoor::sim::reactor::SimReactor;
use streamdoor::sim::world::SimWorld;

/// What the list needs around a reactor. An end of a pipe is closed when it is dropped.
pub trait World {
    type R: Reactor;
    type End;
    const IS_REAL: bool;
    fn reactor(&self, operations_max: u32) -> Self::R;
    /// The end to read from, the end to write to.
    fn pipe(&self) -> (Self::End, Self::End);
    fn fd(end: &Self::End) -> RawFd;
    /// Writes all of `bytes`, which must fit.
    fn far_write(&self, end: &Self::End, bytes: &[u8]);
    /// Reads what is there, which must not be nothing.
    fn far_read(&self, end: &Self::End, bytes: &mut [u8]) -> usize;
    fn wake_later(&self, waker: Waker, delay: Duration);
}

pub struct Real<R> {
    pub make: fn(u32) -> R,
}

impl<R: Reactor> World for Real<R> {
    type R = R;
    type End = File;
    const IS_REAL: bool = true;
    fn reactor(&self, operations_max: u32) -> R {
        (self.make)(operations_max)
    }
    fn pipe(&self) -> (File, File) {
        let (reader, writer) = std::io::pipe().unwrap();
        (File::from(OwnedFd::from(reader)), File::from(OwnedFd::from(writer)))
    }
    fn fd(end: &File) -> RawFd {
        end.as_raw_fd()
    }
    fn far_write(&self, mut end: &File, bytes: &[u8]) {
        end.write_all(bytes).unwrap();
    }
    fn far_read(&self, mut end: &File, bytes: &mut [u8]) -> usize {
        end.read(bytes).unwrap()
    }
    fn wake_later(&self, waker: Waker, delay: Duration) {
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            waker.wake();
        });
    }
}

pub struct SimEnd {
    world: SimWorld,
    fd: RawFd,
}

impl Drop for SimEnd {
    fn drop(&mut self) {
        self.world.close(self.fd);
    }
}

impl World for SimWorld {
    type R = SimReactor;
    type End = SimEnd;
    const IS_REAL: bool = false;
    fn reactor(&self, operations_max: u32) -> SimReactor {
        SimReactor::new(self, operations_max)
    }
    fn pipe(&self) -> (SimEnd, SimEnd) {
        let (reader, writer) = SimWorld::pipe(self);
        let end = |fd| SimEnd { world: self.clone(), fd };
        (end(reader), end(writer))
    }
    fn fd(end: &SimEnd) -> RawFd {
        end.fd
    }
    fn far_write(&self, end: &SimEnd, bytes: &[u8]) {
        assert_eq!(self.write(end.fd, bytes), Ok(bytes.len() as u32));
    }
    fn far_read(&self, end: &SimEnd, bytes: &mut [u8]) -> usize {
        self.read(end.fd, bytes).unwrap() as usize
    }
    fn wake_later(&self, waker: Waker, delay: Duration) {
        self.wake_at(self.now() + delay, waker);
    }
}

pub fn read<R: Reactor>(reactor: &mut R, token: u64, fd: RawFd, size_bytes: u32) {
    let buffer = Buffer::zeroed(size_bytes);
    reactor.submit(Operation::Read { token, fd, buffer }).unwrap();
}

pub fn write<R: Reactor>(reactor: &mut R, token: u64, fd: RawFd, bytes: &[u8]) {
    let range = 0..bytes.len() as u32;
    reactor.submit(Operation::Write { token, fd, buffer: Buffer::from(bytes), range }).unwrap();
}

pub fn cancel<R: Reactor>(reactor: &mut R, token: u64) {
    reactor.submit(Operation::Cancel { token }).unwrap();
}

pub fn next<R: Reactor>(reactor: &mut R) -> Completion {
    loop {
        if let Some(completion) = reactor.next_completion() {
            return completion;
        }
        reactor.wait(None);
        reactor.poll(); // Takes a wake-up, if that was the reason.
    }
}

/// Polls often enough to see everything that has completed (R9).
pub fn poll_all<R: Reactor>(reactor: &mut R) -> usize {
    let mut count = 0;
    for _ in 0..REACTOR_POLLS_PER_LOOK {
        count += reactor.poll();
    }
    count
}

pub fn pattern(seed: u64, size_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; size_bytes];
    Random::new(seed).fill(&mut bytes);
    bytes
}

pub fn moved(completion: &Completion) -> usize {
    completion.result.unwrap() as usize
}
