//! One conformance list for `streamdoor::reactor::Reactor`, run against io_uring, mio and the
//! simulator. R1 to R14 are the numbers of the contract on top of the trait. What only real
//! descriptors have (terminals, files, flags) is tested beside the backends.
//!
//! `SEED=n cargo test --test reactor` runs one seed instead of all.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use streamdoor::base::{Instant, Random};
use streamdoor::limits::REACTOR_POLLS_PER_LOOK;
use streamdoor::reactor::{
    Buffer, Clock, Completion, IoError, Operation, PolledReactor, Reactor, SubmitError,
    UringReactor, Waker,
};
use streamdoor::sim::reactor::{SimFaults, SimReactor, SimWorld};

// --- The worlds ----------------------------------------------------------------------------------

/// What the list needs around a reactor. An end of a pipe is closed when it is dropped.
trait World {
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

struct Real<R> {
    make: fn(u32) -> R,
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

struct SimEnd {
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
        SimWorld::reactor(self, operations_max)
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

// --- Small steps ---------------------------------------------------------------------------------

fn read<R: Reactor>(reactor: &mut R, token: u64, fd: RawFd, size_bytes: u32) {
    let buffer = Buffer::zeroed(size_bytes);
    reactor.submit(Operation::Read { token, fd, buffer }).unwrap();
}

fn write<R: Reactor>(reactor: &mut R, token: u64, fd: RawFd, bytes: &[u8]) {
    let range = 0..bytes.len() as u32;
    reactor.submit(Operation::Write { token, fd, buffer: Buffer::from(bytes), range }).unwrap();
}

fn cancel<R: Reactor>(reactor: &mut R, token: u64) {
    reactor.submit(Operation::Cancel { token }).unwrap();
}

fn next<R: Reactor>(reactor: &mut R) -> Completion {
    loop {
        if let Some(completion) = reactor.next_completion() {
            return completion;
        }
        reactor.wait(None);
        reactor.poll(); // Takes a wake-up, if that was the reason.
    }
}

/// Polls often enough to see everything that has completed (R9).
fn poll_all<R: Reactor>(reactor: &mut R) -> usize {
    let mut count = 0;
    for _ in 0..REACTOR_POLLS_PER_LOOK {
        count += reactor.poll();
    }
    count
}

fn pattern(seed: u64, size_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; size_bytes];
    Random::new(seed).fill(&mut bytes);
    bytes
}

fn moved(completion: &Completion) -> usize {
    completion.result.unwrap() as usize
}

// --- The list ------------------------------------------------------------------------------------

fn a_deadline_is_never_early_and_ends_a_wait_for_nothing<W: World>(world: &W, seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, _writer) = world.pipe();
    read(&mut reactor, 1, W::fd(&reader), 8);
    let mut random = Random::new(seed);
    for micros in [0, 1, 17, 300, 1_000, 2_500, random.below(5_000)] {
        let until = reactor.now() + Duration::from_micros(micros);
        reactor.wait(Some(until));
        assert!(reactor.now() >= until, "{micros}");
        assert_eq!(poll_all(&mut reactor), 0);
    }
    reactor.wait(Some(Instant::ZERO)); // Long past.
    assert!(reactor.next_completion().is_none());
}

fn a_wake_before_a_wait_ends_it_at_once<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let waker = reactor.waker();
    for _ in 0..3 {
        waker.wake();
        reactor.wait(None);
        reactor.wait(None); // No poll has seen it yet.
        assert_eq!(reactor.poll(), 1);
        assert_eq!(reactor.poll(), 0);
    }
    assert_eq!(reactor.counters().woken_count, 3);
}

fn a_wake_from_elsewhere_ends_a_wait<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    for micros in [0, 50, 500, 3_000] {
        world.wake_later(reactor.waker(), Duration::from_micros(micros));
        reactor.wait(None);
        assert_eq!(reactor.poll(), 1, "{micros}");
    }
    world.wake_later(reactor.waker(), Duration::from_millis(1));
    reactor.wait(Some(Instant::FAR)); // The same as None.
    assert_eq!(reactor.poll(), 1);
}

fn ten_thousand_wakes_are_one<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let waker = reactor.waker();
    for _ in 0..10_000 {
        waker.clone().wake();
    }
    reactor.wait(None);
    assert_eq!(reactor.poll(), 1);
    assert_eq!(poll_all(&mut reactor), 0);
    let until = reactor.now() + Duration::from_micros(300);
    reactor.wait(Some(until));
    assert!(reactor.now() >= until);
}

fn a_wake_that_races_a_wait_is_never_lost<W: World>(world: &W, seed: u64) {
    let mut reactor = world.reactor(4);
    let mut random = Random::new(seed);
    for _ in 0..300 {
        world.wake_later(reactor.waker(), Duration::from_nanos(random.below(20_000)));
        reactor.wait(None); // Hangs if it is lost.
        assert_eq!(reactor.poll(), 1);
    }
}

fn a_waker_outlives_its_reactor<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let waker = reactor.waker();
    reactor.wait(Some(Instant::ZERO));
    drop(reactor);
    waker.wake();
    waker.clone().wake();
}

fn bytes_arrive_in_order_across_chunk_sizes<W: World>(world: &W, seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, writer) = world.pipe();
    let mut random = Random::new(seed);
    for size in [1, 2, 7, 100, 4_095, 4_096, 4_097, 16_384, 65_536, 1 + random.below(60_000)] {
        let sent = pattern(size, size as usize);
        let submit_first = random.chance(1, 2);
        let read_max = random.between(1 + size / 40, size + 10) as u32;
        if submit_first {
            read(&mut reactor, size, W::fd(&reader), read_max);
            assert_eq!(poll_all(&mut reactor), 0);
        }
        world.far_write(&writer, &sent);
        if !submit_first {
            read(&mut reactor, size, W::fd(&reader), read_max);
        }
        let mut got = Vec::new();
        loop {
            let completion = next(&mut reactor);
            assert_eq!(completion.token, size);
            let count = moved(&completion);
            assert!(count > 0);
            assert_eq!(completion.buffer.size(), read_max);
            got.extend_from_slice(&completion.buffer[..count]);
            if got.len() == sent.len() {
                break;
            }
            read(&mut reactor, size, W::fd(&reader), read_max);
        }
        assert!(got == sent, "size {size}");
    }
    assert_eq!(reactor.operation_count(), 0);
}

fn writes_may_be_short_and_lose_nothing<W: World>(world: &W, seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, writer) = world.pipe();
    let mut random = Random::new(seed);
    let sent = pattern(seed, 300_000);
    let (mut start, mut got) = (0, Vec::new());
    write(&mut reactor, 5, W::fd(&writer), &sent);
    while got.len() < sent.len() {
        poll_all(&mut reactor);
        while let Some(completion) = reactor.next_completion() {
            start += moved(&completion) as u32;
            let (fd, buffer) = (W::fd(&writer), completion.buffer);
            assert!(buffer[..] == sent[..], "a write changed its buffer");
            if (start as usize) < sent.len() {
                let range = start..sent.len() as u32;
                reactor.submit(Operation::Write { token: 5, fd, buffer, range }).unwrap();
            }
        }
        if got.len() < start as usize {
            let mut bytes = vec![0; random.between(1, 70_000) as usize];
            let count = world.far_read(&reader, &mut bytes);
            got.extend_from_slice(&bytes[..count]);
        } else {
            reactor.wait(None); // The pipe is empty: the write must go on by itself.
        }
    }
    assert!(got == sent);
}

fn the_end_of_a_pipe_reads_as_no_bytes<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, writer) = world.pipe();
    world.far_write(&writer, b"last");
    drop(writer);
    let mut got = Vec::new();
    loop {
        read(&mut reactor, 1, W::fd(&reader), 8);
        let completion = next(&mut reactor);
        match moved(&completion) {
            0 => break,
            count => got.extend_from_slice(&completion.buffer[..count]),
        }
    }
    assert_eq!(got, b"last");
    let (reader, writer) = world.pipe();
    read(&mut reactor, 2, W::fd(&reader), 8);
    assert_eq!(poll_all(&mut reactor), 0);
    drop(writer); // While the read is in flight.
    assert_eq!(next(&mut reactor).result, Ok(0));
}

fn a_write_that_nobody_can_read_is_an_error_and_no_signal<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, writer) = world.pipe();
    drop(reader);
    write(&mut reactor, 1, W::fd(&writer), b"anybody?");
    assert_eq!(next(&mut reactor).result, Err(IoError::BROKEN_PIPE));
    if W::IS_REAL {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("SigBlk:")).unwrap();
        let mask = u64::from_str_radix(line["SigBlk:".len()..].trim(), 16).unwrap();
        assert!(mask & 1 << (libc_sigpipe() - 1) != 0, "SIGPIPE is not blocked: {line}");
    }
    let (reader, writer) = world.pipe();
    world.far_write(&writer, &[0; 65_536]);
    write(&mut reactor, 2, W::fd(&writer), b"does not fit");
    assert_eq!(poll_all(&mut reactor), 0);
    drop(reader); // While the write is in flight.
    assert_eq!(next(&mut reactor).result, Err(IoError::BROKEN_PIPE));
}

fn libc_sigpipe() -> u32 {
    13 // On every Linux but MIPS and SPARC as well.
}

fn a_descriptor_that_is_not_open_is_an_error<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, writer) = world.pipe();
    let wrong = [-1, W::fd(&writer)];
    for fd in wrong {
        read(&mut reactor, 1, fd, 8);
        assert_eq!(next(&mut reactor).result, Err(IoError::BAD_DESCRIPTOR), "read {fd}");
    }
    write(&mut reactor, 1, W::fd(&reader), b"x");
    assert_eq!(next(&mut reactor).result, Err(IoError::BAD_DESCRIPTOR));
}

fn a_cancelled_read_comes_back_once_with_its_buffer<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, _writer) = world.pipe();
    for is_pushed in [false, true] {
        let buffer = Buffer::from(&b"mine"[..]);
        let fd = W::fd(&reader);
        reactor.submit(Operation::Read { token: 9, fd, buffer }).unwrap();
        if is_pushed {
            assert_eq!(poll_all(&mut reactor), 0);
        }
        cancel(&mut reactor, 9);
        cancel(&mut reactor, 9);
        let completion = next(&mut reactor);
        assert_eq!(completion.token, 9);
        assert_eq!(completion.result, Err(IoError::CANCELLED));
        assert_eq!(&completion.buffer[..], b"mine");
        cancel(&mut reactor, 9);
        assert_eq!(poll_all(&mut reactor), 0);
        assert_eq!(reactor.operation_count(), 0);
    }
    assert_eq!(reactor.counters().cancelled_count, 2);
}

fn a_cancelled_write_comes_back_once_and_has_moved_what_it_says<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, writer) = world.pipe();
    world.far_write(&writer, &[1; 65_536]);
    write(&mut reactor, 1, W::fd(&writer), &[2; 100]);
    assert_eq!(poll_all(&mut reactor), 0);
    cancel(&mut reactor, 1);
    assert_eq!(next(&mut reactor).result, Err(IoError::CANCELLED));
    let mut bytes = [0; 70_000];
    let mut count = 0;
    while count < 65_536 {
        count += world.far_read(&reader, &mut bytes[count..]);
    }
    assert_eq!(count, 65_536);
    assert!(bytes[..count].iter().all(|byte| *byte == 1));
}

fn a_cancel_that_races_data_loses_no_byte<W: World>(world: &W, seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, writer) = world.pipe();
    let mut random = Random::new(seed);
    let (mut sent_count, mut got, mut cancelled_count) = (0u32, Vec::new(), 0);
    for token in 0..400 {
        read(&mut reactor, token, W::fd(&reader), random.between(1, 40) as u32);
        if random.chance(1, 2) {
            poll_all(&mut reactor);
        }
        if random.chance(1, 2) {
            let bytes: Vec<u8> = (sent_count..sent_count + 20).map(|count| count as u8).collect();
            world.far_write(&writer, &bytes);
            sent_count += 20;
        }
        cancel(&mut reactor, token);
        let completion = next(&mut reactor);
        assert_eq!(completion.token, token);
        match completion.result {
            Ok(count) => got.extend_from_slice(&completion.buffer[..count as usize]),
            Err(error) => {
                assert_eq!(error, IoError::CANCELLED);
                cancelled_count += 1;
            }
        }
    }
    drop(writer);
    loop {
        read(&mut reactor, 0, W::fd(&reader), 4_096);
        let completion = next(&mut reactor);
        match moved(&completion) {
            0 => break,
            count => got.extend_from_slice(&completion.buffer[..count]),
        }
    }
    let expected: Vec<u8> = (0..sent_count).map(|count| count as u8).collect();
    assert!(got == expected);
    assert!(cancelled_count > 0);
}

fn a_cancel_of_an_unknown_token_does_nothing<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(1);
    let (reader, writer) = world.pipe();
    cancel(&mut reactor, 1);
    read(&mut reactor, 1, W::fd(&reader), 8);
    cancel(&mut reactor, 2); // Full, which a cancel does not mind.
    cancel(&mut reactor, u64::MAX);
    assert_eq!(poll_all(&mut reactor), 0);
    world.far_write(&writer, b"x");
    assert_eq!(next(&mut reactor).result, Ok(1));
}

fn a_cancel_ends_everything_under_its_token_and_nothing_else<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(8);
    let pipes: Vec<_> = (0..6).map(|_| world.pipe()).collect();
    for (index, (reader, _)) in pipes.iter().enumerate() {
        read(&mut reactor, index as u64 % 2, W::fd(reader), 8 + index as u32);
    }
    assert_eq!(poll_all(&mut reactor), 0);
    cancel(&mut reactor, 1);
    let mut sizes: Vec<u32> = (0..3)
        .map(|_| {
            let completion = next(&mut reactor);
            assert_eq!((completion.token, completion.result), (1, Err(IoError::CANCELLED)));
            completion.buffer.size()
        })
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [9, 11, 13]);
    assert_eq!(poll_all(&mut reactor), 0);
    assert_eq!(reactor.operation_count(), 3);
}

fn a_full_reactor_gives_the_operation_back<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(2);
    let (reader, writer) = world.pipe();
    world.far_write(&writer, b"ab");
    for round in 0..3 {
        read(&mut reactor, 1, W::fd(&reader), 1);
        read(&mut reactor, 2, W::fd(&reader), 1);
        let buffer = Buffer::from(&b"keep me"[..]);
        let fd = W::fd(&writer);
        let operation = Operation::Write { token: 3, fd, buffer, range: 5..7 };
        let SubmitError::Full(operation) = reactor.submit(operation).unwrap_err();
        let Operation::Write { token: 3, fd: back_fd, buffer, range } = operation else {
            panic!("round {round}: another operation came back: {operation:?}");
        };
        assert_eq!((back_fd, &buffer[..], range), (fd, &b"keep me"[..], 5..7));
        // Completed is not enough: it counts until it was handed out (R8).
        while poll_all(&mut reactor) < 2 * REACTOR_POLLS_PER_LOOK as usize {}
        let again = Operation::Write { token: 3, fd, buffer, range: 5..7 };
        let SubmitError::Full(operation) = reactor.submit(again).unwrap_err();
        assert_eq!(moved(&next(&mut reactor)), 1);
        reactor.submit(operation).unwrap();
        let mut counts = [moved(&next(&mut reactor)), moved(&next(&mut reactor))];
        counts.sort_unstable();
        let short = counts == [1, 1]; // The write: the simulator may cut it.
        if short {
            world.far_write(&writer, b"z");
        }
    }
}

fn tokens_come_back_as_given<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(8);
    let (reader, writer) = world.pipe();
    world.far_write(&writer, b"123456");
    let mut given = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, 1];
    for token in given {
        read(&mut reactor, token, W::fd(&reader), 1);
    }
    let mut got = [(); 6].map(|()| next(&mut reactor).token);
    given.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, given);
}

fn a_poll_never_waits<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, writer) = world.pipe();
    world.far_write(&writer, &[0; 65_536]);
    write(&mut reactor, 1, W::fd(&writer), b"does not fit");
    let (empty, _writer) = world.pipe();
    read(&mut reactor, 2, W::fd(&empty), 8);
    for _ in 0..1_000 {
        assert_eq!(reactor.poll(), 0); // Would hang.
    }
    world.far_read(&reader, &mut [0; 65_536]);
    while reactor.poll() == 0 {} // Without any wait.
    assert_eq!(reactor.next_completion().unwrap().token, 1);
}

fn a_completion_not_yet_taken_ends_a_wait_at_once<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, writer) = world.pipe();
    read(&mut reactor, 1, W::fd(&reader), 8);
    world.far_write(&writer, b"x");
    reactor.wait(None);
    reactor.wait(None);
    while reactor.poll() == 0 {}
    reactor.wait(None);
    assert!(reactor.poll() >= 1);
    assert!(reactor.next_completion().is_some());
    assert!(reactor.next_completion().is_none());
    assert_eq!(reactor.poll(), 0);
}

fn an_event_ends_a_wait_whatever_the_deadline<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let (reader, writer) = world.pipe();
    let never = reactor.now() + Duration::from_secs(1_000_000_000);
    world.far_write(&writer, b"x");
    read(&mut reactor, 1, W::fd(&reader), 8);
    reactor.wait(Some(never));
    assert_eq!(next(&mut reactor).result, Ok(1));
    world.wake_later(reactor.waker(), Duration::from_millis(1));
    reactor.wait(Some(never));
    assert_eq!(reactor.poll(), 1);
}

fn time_never_goes_back<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let (mut last, mut last_wall_us) = (reactor.now(), reactor.wall_us());
    assert!(last_wall_us > 1_700_000_000_000_000); // Later than 2023: microseconds since 1970.
    for _ in 0..100 {
        reactor.poll();
        let now = reactor.now();
        assert!(now >= last);
        last = now;
        if !W::IS_REAL {
            assert!(reactor.wall_us() >= last_wall_us);
            last_wall_us = reactor.wall_us();
        }
    }
}

fn a_dropped_reactor_gives_everything_back<W: World>(world: &W, _seed: u64) {
    let (reader, writer) = world.pipe();
    let (full_reader, full_writer) = world.pipe();
    world.far_write(&full_writer, &[0; 65_536]);
    let fds_before = open_fds();
    for is_pushed in [false, true] {
        let mut reactor = world.reactor(8);
        for token in 0..4 {
            read(&mut reactor, token, W::fd(&reader), 100_000);
        }
        write(&mut reactor, 4, W::fd(&full_writer), &[1; 100_000]);
        if is_pushed {
            poll_all(&mut reactor);
            let soon = reactor.now() + Duration::from_micros(200);
            reactor.wait(Some(soon));
            cancel(&mut reactor, 1);
        }
    }
    assert_eq!(open_fds(), fds_before);
    // Nobody reads from or writes to the pipes any more.
    world.far_write(&writer, b"still here");
    let mut bytes = [0; 70_000];
    assert_eq!(world.far_read(&reader, &mut bytes), 10);
    let mut count = 0;
    while count < 65_536 {
        count += world.far_read(&full_reader, &mut bytes[count..]);
    }
    assert_eq!(count, 65_536);
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Pipes, reads, writes, cancels, closes and wakes in seeded disorder; every operation ends once
/// and every byte that was written is read, in order.
fn nothing_is_lost_in_disorder<W: World>(world: &W, seed: u64) {
    let mut random = Random::new(seed);
    let mut reactor = world.reactor(16);
    let waker = reactor.waker();
    let pipes: Vec<_> = (0..4).map(|_| world.pipe()).collect();
    let (mut written, mut got) = (vec![0u64; 4], vec![0u64; 4]);
    // Token: pipe * 2, plus one for writes. At most one in flight each, so that order is defined.
    let mut in_flight = BTreeMap::new();
    for step in 0..3_000 {
        let pipe = random.below(4);
        let (reader, writer) = &pipes[pipe as usize];
        let token = pipe * 2 + random.below(2);
        match random.below(10) {
            0 => cancel(&mut reactor, token),
            1 => waker.wake(),
            2 => {
                let until = reactor.now() + Duration::from_micros(random.below(20));
                reactor.wait(Some(until));
            }
            3..=5 => _ = reactor.poll(),
            _ if in_flight.contains_key(&token) => {}
            _ if token.is_multiple_of(2) => {
                in_flight.insert(token, step);
                read(&mut reactor, token, W::fd(reader), random.between(1, 9_000) as u32);
            }
            _ => {
                in_flight.insert(token, step);
                let first = written[pipe as usize];
                let size = random.between(1, 9_000);
                let bytes: Vec<u8> = (first..first + size).map(|at| (at % 251) as u8).collect();
                write(&mut reactor, token, W::fd(writer), &bytes);
            }
        }
        while let Some(completion) = reactor.next_completion() {
            let pipe = completion.token as usize / 2;
            assert!(in_flight.remove(&completion.token).is_some(), "twice: {}", completion.token);
            match completion.result {
                Err(error) => assert_eq!(error, IoError::CANCELLED),
                Ok(count) if completion.token % 2 == 1 => written[pipe] += u64::from(count),
                Ok(count) => {
                    assert!(count > 0);
                    for byte in &completion.buffer[..count as usize] {
                        assert_eq!(u64::from(*byte), got[pipe] % 251, "pipe {pipe} step {step}");
                        got[pipe] += 1;
                    }
                }
            }
        }
    }
    for token in 0..8 {
        cancel(&mut reactor, token);
    }
    while !in_flight.is_empty() {
        let completion = next(&mut reactor);
        assert!(in_flight.remove(&completion.token).is_some());
    }
    let counters = reactor.counters();
    assert_eq!(counters.submitted_count, counters.completed_count);
    assert_eq!(reactor.operation_count(), 0);
    assert!(got.iter().all(|count| *count > 0), "{got:?}");
}

// --- The list, three times -----------------------------------------------------------------------

/// Tests that count the descriptors of the process run alone.
static ALONE: RwLock<()> = RwLock::new(());

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(text) => vec![text.parse().expect("SEED is a number")],
        Err(_) => (1..=count).collect(),
    }
}

fn run<W: World>(name: &str, seed_count: u64, make: impl Fn(u64) -> W, test: fn(&W, u64)) {
    let is_alone = name == "a_dropped_reactor_gives_everything_back";
    let _writer = is_alone.then(|| ALONE.write().unwrap_or_else(PoisonError::into_inner));
    let _reader = (!is_alone).then(|| ALONE.read().unwrap_or_else(PoisonError::into_inner));
    for seed in seeds(seed_count) {
        println!("SEED={seed} {name}"); // Shown when it fails.
        test(&make(seed), seed);
    }
}

fn has_uring() -> bool {
    match UringReactor::new(1) {
        Ok(_) => true,
        Err(reason) => {
            println!("not run: {reason}");
            false
        }
    }
}

macro_rules! conformance {
    ($($test:ident)*) => {
        mod uring {
            use super::*;
            $(#[test] fn $test() {
                let make = |operations_max| UringReactor::new(operations_max).unwrap();
                if has_uring() {
                    run(stringify!($test), 2, |_| Real { make }, super::$test);
                }
            })*
        }
        mod mio {
            use super::*;
            $(#[test] fn $test() {
                let make = |operations_max| PolledReactor::new(operations_max).unwrap();
                run(stringify!($test), 2, |_| Real { make }, super::$test);
            })*
        }
        mod sim {
            use super::*;
            $(#[test] fn $test() {
                let kind = |seed| SimWorld::new(seed, SimFaults::NONE);
                run(stringify!($test), 4, kind, super::$test);
                let unkind = |seed| SimWorld::new(seed, SimFaults::ALL);
                run(stringify!($test), 30, unkind, super::$test);
            })*
        }
    };
}

conformance! {
    a_deadline_is_never_early_and_ends_a_wait_for_nothing
    a_wake_before_a_wait_ends_it_at_once
    a_wake_from_elsewhere_ends_a_wait
    ten_thousand_wakes_are_one
    a_wake_that_races_a_wait_is_never_lost
    a_waker_outlives_its_reactor
    bytes_arrive_in_order_across_chunk_sizes
    writes_may_be_short_and_lose_nothing
    the_end_of_a_pipe_reads_as_no_bytes
    a_write_that_nobody_can_read_is_an_error_and_no_signal
    a_descriptor_that_is_not_open_is_an_error
    a_cancelled_read_comes_back_once_with_its_buffer
    a_cancelled_write_comes_back_once_and_has_moved_what_it_says
    a_cancel_that_races_data_loses_no_byte
    a_cancel_of_an_unknown_token_does_nothing
    a_cancel_ends_everything_under_its_token_and_nothing_else
    a_full_reactor_gives_the_operation_back
    tokens_come_back_as_given
    a_poll_never_waits
    a_completion_not_yet_taken_ends_a_wait_at_once
    an_event_ends_a_wait_whatever_the_deadline
    time_never_goes_back
    a_dropped_reactor_gives_everything_back
    nothing_is_lost_in_disorder
}

#[test]
fn the_clock_of_real_reactors_is_the_one_that_other_threads_read() {
    let mut reactor = PolledReactor::new(1).unwrap();
    let before = Clock::now();
    let now = reactor.now();
    assert!(before <= now && now <= Clock::now());
}
