//! Cancels, and that they lose nothing: R4, R6.

use streamdoor::base::Random;
use streamdoor::reactor::{Buffer, IoError, Operation, Reactor};

use crate::worlds::*;

pub fn a_cancelled_read_comes_back_once_with_its_buffer<W: World>(world: &W, _seed: u64) {
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

pub fn a_cancelled_write_comes_back_once_and_has_moved_what_it_says<W: World>(
    world: &W,
    _seed: u64,
) {
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

pub fn a_cancel_that_races_data_loses_no_byte<W: World>(world: &W, seed: u64) {
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

pub fn a_cancel_of_an_unknown_token_does_nothing<W: World>(world: &W, _seed: u64) {
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

pub fn a_cancel_ends_everything_under_its_token_and_nothing_else<W: World>(world: &W, _seed: u64) {
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
