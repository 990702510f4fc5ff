//! Deadlines, wake-ups, polls: R9, R10, R11, R14.

use std::time::Duration;

use streamdoor::base::{Instant, Random};
use streamdoor::reactor::{Reactor, SocketEvent};

use super::network::{Network, Server, SocketKind};
use super::worlds::*;

pub fn a_deadline_is_never_early_and_ends_a_wait_for_nothing<W: ContractWorld>(
    world: &W,
    seed: u64,
) {
    let mut reactor = world.reactor();
    let mut random = Random::new(seed);
    for micros in [0, 1, 17, 300, 1_000, 2_500, random.below(5_000)] {
        let until = reactor.now() + Duration::from_micros(micros);
        reactor.wait(Some(until));
        assert!(reactor.now() >= until, "{micros}");
        assert_eq!(poll_all(&mut reactor), 0);
    }
    reactor.wait(Some(Instant::ZERO)); // Long past.
    assert!(reactor.next_socket_event().is_none());
}

pub fn a_wake_before_a_wait_ends_it_at_once<W: ContractWorld>(world: &W, _seed: u64) {
    let mut reactor = world.reactor();
    let waker = reactor.waker();
    for _ in 0..3 {
        waker.wake();
        reactor.wait(None);
        reactor.wait(None); // No poll has seen the wake-up yet.
        assert_eq!(reactor.poll(), 1);
        assert_eq!(reactor.poll(), 0);
    }
    assert_eq!(reactor.counters().woken_count, 3);
}

pub fn a_wake_from_elsewhere_ends_a_wait<W: ContractWorld>(world: &W, _seed: u64) {
    let mut reactor = world.reactor();
    for micros in [0, 50, 500, 3_000] {
        world.wake_later(reactor.waker(), Duration::from_micros(micros));
        reactor.wait(None);
        assert_eq!(reactor.poll(), 1, "{micros}");
    }
    world.wake_later(reactor.waker(), Duration::from_millis(1));
    reactor.wait(Some(Instant::FAR)); // The same as None.
    assert_eq!(reactor.poll(), 1);
}

pub fn ten_thousand_wakes_are_one<W: ContractWorld>(world: &W, _seed: u64) {
    let mut reactor = world.reactor();
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

pub fn a_wake_that_races_a_wait_is_never_lost<W: ContractWorld>(world: &W, seed: u64) {
    let mut reactor = world.reactor();
    let mut random = Random::new(seed);
    for _ in 0..300 {
        world.wake_later(reactor.waker(), Duration::from_nanos(random.below(20_000)));
        reactor.wait(None); // Hangs if it is lost.
        assert_eq!(reactor.poll(), 1);
    }
}

pub fn a_waker_outlives_its_reactor<W: ContractWorld>(world: &W, _seed: u64) {
    let mut reactor = world.reactor();
    let waker = reactor.waker();
    reactor.wait(Some(Instant::ZERO));
    drop(reactor);
    waker.wake();
    waker.clone().wake();
}

pub fn a_poll_never_waits<W: Network>(world: &W, _seed: u64) {
    let mut server = Server::new(world, SocketKind::Unix, 4);
    let (client, _id) = server.meet(world);
    let reactor = &mut server.reactor;
    for _ in 0..1_000 {
        assert_eq!(reactor.poll(), 0); // A wait would hang.
    }
    world.client_send(&client, b"x").unwrap();
    while reactor.poll() == 0 {} // Without any wait.
    assert!(matches!(reactor.next_socket_event(), Some(SocketEvent::Received { .. })));
}

pub fn an_event_not_yet_taken_ends_a_wait_at_once<W: Network>(world: &W, _seed: u64) {
    let mut server = Server::new(world, SocketKind::Unix, 4);
    let (client, _id) = server.meet(world);
    let reactor = &mut server.reactor;
    world.client_send(&client, b"x").unwrap();
    reactor.wait(None);
    reactor.wait(None);
    while reactor.poll() == 0 {}
    reactor.wait(None);
    assert!(reactor.poll() >= 1);
    assert!(matches!(reactor.next_socket_event(), Some(SocketEvent::Received { .. })));
    assert!(reactor.next_socket_event().is_none());
}

pub fn an_event_ends_a_wait_whatever_the_deadline<W: Network>(world: &W, _seed: u64) {
    let mut server = Server::new(world, SocketKind::Unix, 4);
    let (client, _id) = server.meet(world);
    let reactor = &mut server.reactor;
    let never = reactor.now() + Duration::from_secs(1_000_000_000);
    world.client_send(&client, b"x").unwrap();
    loop {
        reactor.wait(Some(never));
        reactor.poll();
        match reactor.next_socket_event() {
            Some(SocketEvent::Received { bytes, .. }) => break assert_eq!(bytes, b"x"),
            other => assert!(other.is_none(), "{other:?}"), // A wake-up without an event (R17).
        }
    }
    world.wake_later(reactor.waker(), Duration::from_millis(1));
    while reactor.poll() == 0 {
        reactor.wait(Some(never));
    }
}

/// A write to a closed pipe is an error value and never ends the process (R1).
pub fn sigpipe_is_blocked<W: ContractWorld>(world: &W, _seed: u64) {
    const SIGPIPE: u32 = 13; // On every Linux but MIPS and SPARC as well.
    let _reactor = world.reactor();
    if W::IS_REAL {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("SigBlk:")).unwrap();
        let mask = u64::from_str_radix(line["SigBlk:".len()..].trim(), 16).unwrap();
        assert!(mask & 1 << (SIGPIPE - 1) != 0, "SIGPIPE is not blocked: {line}");
    }
}

pub fn time_never_goes_back<W: ContractWorld>(world: &W, _seed: u64) {
    let mut reactor = world.reactor();
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

pub fn a_wake_through_another_reactor_is_as_good<W: ContractWorld>(world: &W, _seed: u64) {
    let mut sleeper = world.reactor();
    let mut waking = world.reactor();
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
    waking.wake(&waker); // Its reactor is gone; no harm.
    assert_eq!(poll_all(&mut waking), 0);
}
