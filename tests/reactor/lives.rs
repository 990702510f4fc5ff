//! Operations as a whole: tokens, capacity, the end of a reactor, disorder. R2, R3, R8, R12.

use std::collections::BTreeMap;
use std::time::Duration;

use streamdoor::base::Random;
use streamdoor::limits::REACTOR_POLLS_PER_LOOK;
use streamdoor::reactor::{Buffer, IoError, Operation, Reactor, SubmitError};

use crate::worlds::*;

pub fn a_full_reactor_gives_the_operation_back<W: World>(world: &W, _seed: u64) {
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

pub fn tokens_come_back_as_given<W: World>(world: &W, _seed: u64) {
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

pub fn a_dropped_reactor_gives_everything_back<W: World>(world: &W, _seed: u64) {
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

pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Pipes, reads, writes, cancels, closes and wakes in seeded disorder; every operation ends once
/// and every byte that was written is read, in order.
pub fn nothing_is_lost_in_disorder<W: World>(world: &W, seed: u64) {
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
