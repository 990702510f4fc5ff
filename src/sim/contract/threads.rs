//! Two reactors on two threads, with sockets and wake-ups between them. R23 to R25, real backends
//! only.

use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use streamdoor::reactor::{PolledReactor, Reactor, ReleasedSocket, Waker};

use super::network::*;
use super::worlds::*;

/// One side of a conversation between two threads.
struct Side<T> {
    to: Sender<T>,
    from: Receiver<T>,
    waker: Waker,
}

/// Runs `here` on this thread and `there` on another, each with a reactor and a [`Side`].
fn on_two_threads<A: Reactor, B: Reactor, T: Send>(
    make_here: fn() -> A,
    make_there: fn() -> B,
    here: impl FnOnce(A, Side<T>),
    there: impl FnOnce(B, Side<T>) + Send,
) {
    let (to_there, from_here) = channel();
    let (to_here, from_there) = channel();
    let reactor = make_here();
    let waker_here = reactor.waker();
    let (tell_waker, waker_there) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let reactor = make_there();
            tell_waker.send(reactor.waker()).unwrap();
            there(reactor, Side { to: to_here, from: from_here, waker: waker_here });
        });
        let waker = waker_there.recv().unwrap();
        here(reactor, Side { to: to_there, from: from_there, waker });
    });
}

const ROUNDS: u64 = 3_000;

/// Wakes the other thread, sleeps until it is woken, and reads what the other wrote before.
fn answer<R: Reactor>(mut reactor: R, side: &Side<()>, words: [&AtomicU64; 2], is_first: bool) {
    let [own, others] = words;
    for round in 1..=ROUNDS {
        if !is_first || round > 1 {
            loop {
                reactor.wait(None); // Hangs if a wake-up is lost.
                if reactor.poll() > 0
                    && others.load(Ordering::Relaxed) + u64::from(is_first) >= round
                {
                    break;
                }
            }
        }
        own.store(round, Ordering::Relaxed);
        reactor.wake(&side.waker);
        if round % 7 == 0 {
            reactor.wake(&side.waker); // Two wake-ups count as one.
        }
    }
    // The last wake-up is sent when its reactor is dropped, at the latest.
}

pub fn wakes_between_threads_are_never_lost<R: Reactor>(world: &Real<R>, _seed: u64) {
    let words = [AtomicU64::new(0), AtomicU64::new(0)];
    let [one, two] = &words;
    let make = world.make;
    let first = |reactor, side| answer::<R>(reactor, &side, [one, two], true);
    let second = |reactor, side| answer::<R>(reactor, &side, [two, one], false);
    on_two_threads(make, make, first, second);
    assert_eq!((one.load(Ordering::Relaxed), two.load(Ordering::Relaxed)), (ROUNDS, ROUNDS));
    // The same with a reactor of the other kind.
    let words = [AtomicU64::new(0), AtomicU64::new(0)];
    let [one, two] = &words;
    let polled = || PolledReactor::new().unwrap();
    let first = |reactor, side| answer::<R>(reactor, &side, [one, two], true);
    let second = |reactor, side| answer::<PolledReactor>(reactor, &side, [two, one], false);
    on_two_threads(make, polled, first, second);
    assert_eq!(two.load(Ordering::Relaxed), ROUNDS);
}

/// A wake-up through a reactor reaches its target, even if that reactor then polls once or is
/// dropped at once.
pub fn a_wake_outlives_who_gave_it<R: Reactor>(world: &Real<R>, _seed: u64) {
    for is_polled in [false, true] {
        for _ in 0..50 {
            let here = |mut reactor: R, _side: Side<()>| {
                reactor.wait(None);
                assert_eq!(reactor.poll(), 1);
            };
            let there = move |mut reactor: R, side: Side<()>| {
                std::thread::yield_now();
                reactor.wake(&side.waker);
                if is_polled {
                    reactor.poll();
                }
            };
            on_two_threads(world.make, world.make, here, there);
        }
    }
}

const MOVES: usize = 200;

/// Adopts the connection, sends `ping`, receives a byte, and gives the connection back, `count`
/// times.
fn relay<R: Reactor>(
    mut server: Server<R>,
    side: &Side<(SeenConnection, ReleasedSocket)>,
    count: usize,
) {
    for _ in 0..count {
        let (seen, socket) = loop {
            match side.from.try_recv() {
                Ok(moved) => break moved,
                Err(_) => server.turn_until_woken(),
            }
        };
        let id = server.adopt(seen, socket);
        assert_eq!(server.reactor.send(id, &[IoSlice::new(b"ping")]), Ok(4));
        let heard = server.seen(id).bytes.len() + 1;
        server.until("one byte more", |server| server.seen(id).bytes.len() >= heard);
        let moved = server.release(id);
        side.to.send(moved).unwrap();
        server.reactor.wake(&side.waker);
        server.reactor.poll();
    }
}

pub fn a_connection_moves_between_threads_and_loses_nothing<R: Reactor>(
    world: &Real<R>,
    seed: u64,
) {
    let make = world.make;
    let bytes = pattern(seed, 4 * MOVES * 64);
    let bytes = &bytes;
    let here = |reactor: R, side: Side<(SeenConnection, ReleasedSocket)>| {
        let world = Real { make };
        let mut server = Server::of(&world, reactor, SocketKind::Tcp, 4);
        let (client, id) = server.meet(&world);
        let client_thread = std::thread::scope(|scope| {
            let talk = scope.spawn(move || {
                // Each "ping" is answered with up to 64 bytes in two pieces.
                let (mut sent, mut got) = (0, Vec::new());
                while !drain(&world, &client, &mut got) {
                    while sent < got.len() / 4 * 64 {
                        let end = (sent + 40).min(got.len() / 4 * 64);
                        sent += world.client_send(&client, &bytes[sent..end]).unwrap_or(0);
                    }
                    std::thread::yield_now();
                }
                (sent, got.len())
            });
            let moved = server.release(id);
            side.to.send(moved).unwrap();
            server.reactor.wake(&side.waker);
            server.reactor.poll();
            for _ in 0..MOVES {
                let (seen, socket) = loop {
                    match side.from.try_recv() {
                        Ok(moved) => break moved,
                        Err(_) => server.turn_until_woken(),
                    }
                };
                assert!(bytes.starts_with(&seen.bytes));
                let id = server.adopt(seen, socket);
                let moved = server.release(id);
                side.to.send(moved).unwrap();
                server.reactor.wake(&side.waker);
                server.reactor.poll();
            }
            let last = loop {
                match side.from.try_recv() {
                    Ok(last) => break last,
                    Err(_) => server.turn_until_woken(),
                }
            };
            let id = server.adopt(last.0, last.1);
            let all = (MOVES + 1) * 64;
            server.until("all", |server| server.seen(id).bytes.len() == all);
            assert!(server.seen(id).bytes == bytes[..all]);
            server.reactor.finish(id);
            talk.join().unwrap()
        });
        assert_eq!(client_thread, ((MOVES + 1) * 64, (MOVES + 1) * 4));
    };
    let there = move |reactor: R, side: Side<(SeenConnection, ReleasedSocket)>| {
        let world = Real { make };
        relay(Server::of(&world, reactor, SocketKind::Tcp, 4), &side, MOVES + 1);
    };
    on_two_threads(make, make, here, there);
}
