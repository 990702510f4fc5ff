//! Deadlines, wake-ups, polls: R9, R10, R11, R14.

use std::time::Duration;

use streamdoor::base::{Instant, Random};
use streamdoor::reactor::Reactor;

use crate::worlds::*;

pub fn a_deadline_is_never_early_and_ends_a_wait_for_nothing<W: World>(world: &W, seed: u64) {
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

pub fn a_wake_before_a_wait_ends_it_at_once<W: World>(world: &W, _seed: u64) {
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

pub fn a_wake_from_elsewhere_ends_a_wait<W: World>(world: &W, _seed: u64) {
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

pub fn ten_thousand_wakes_are_one<W: World>(world: &W, _seed: u64) {
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

pub fn a_wake_that_races_a_wait_is_never_lost<W: World>(world: &W, seed: u64) {
    let mut reactor = world.reactor(4);
    let mut random = Random::new(seed);
    for _ in 0..300 {
        world.wake_later(reactor.waker(), Duration::from_nanos(random.below(20_000)));
        reactor.wait(None); // Hangs if it is lost.
        assert_eq!(reactor.poll(), 1);
    }
}

pub fn a_waker_outlives_its_reactor<W: World>(world: &W, _seed: u64) {
    let mut reactor = world.reactor(4);
    let waker = reactor.waker();
    reactor.wait(Some(Instant::ZERO));
    drop(reactor);
    waker.wake();
    waker.clone().wake();
}

pub fn a_poll_never_waits<W: World>(world: &W, _seed: u64) {
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

pub fn a_completion_not_yet_taken_ends_a_wait_at_once<W: World>(world: &W, _seed: u64) {
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

pub fn an_event_ends_a_wait_whatever_the_deadline<W: World>(world: &W, _seed: u64) {
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

pub fn time_never_goes_back<W: World>(world: &W, _seed: u64) {
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

pub fn a_wake_through_another_reactor_is_as_good<W: World>(world: &W, _seed: u64) {
    let mut sleeper = world.reactor(4);
    let mut waking = world.reactor(4);
    let waker = sleeper.waker();
    for _ in 0..3 {
        for _ in 0..1_000 {
            waking.wake(&waker);
        }
        waking.poll();
        sleeper.wait(None);
        assert_eq!(sleeper.poll(), 1);
        assert_eq!(poll_all(&mut sleeper), 0);
    }
    let own = waking.waker();
    waking.wake(&own);
    waking.wait(None);
    assert_eq!(waking.poll(), 1);
    drop(sleeper);
    waking.wake(&waker); // Nobody's: no harm.
    assert_eq!(poll_all(&mut waking), 0);
}
