//! Bytes through pipes, and the errors of that: R1, R5.

use streamdoor::base::Random;
use streamdoor::reactor::{IoError, Operation, Reactor};

use crate::worlds::*;

pub fn bytes_arrive_in_order_across_chunk_sizes<W: World>(world: &W, seed: u64) {
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

pub fn writes_may_be_short_and_lose_nothing<W: World>(world: &W, seed: u64) {
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

pub fn the_end_of_a_pipe_reads_as_no_bytes<W: World>(world: &W, _seed: u64) {
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

pub fn a_write_that_nobody_can_read_is_an_error_and_no_signal<W: World>(world: &W, _seed: u64) {
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

pub fn libc_sigpipe() -> u32 {
    13 // On every Linux but MIPS and SPARC as well.
}

pub fn a_descriptor_that_is_not_open_is_an_error<W: World>(world: &W, _seed: u64) {
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
