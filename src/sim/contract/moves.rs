//! Connections that move from one reactor to another: R23, R24.

use std::collections::BTreeSet;
use std::io::IoSlice;

use streamdoor::base::Random;
use streamdoor::reactor::{AdoptError, ConnectionId, Reactor, SendError};

use super::network::*;
use super::worlds::*;

fn pair<W: Network>(world: &W, kind: SocketKind, connections_max: u32) -> [Server<W::R>; 2] {
    [(); 2].map(|()| Server::new(world, kind, connections_max))
}

/// The bytes received before the release and after the adoption are all bytes that were sent. They
/// may be anywhere on their way when the move begins.
pub fn a_request_that_is_cut_by_a_move_arrives_whole<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let mut random = Random::new(seed);
        let [mut old, mut new] = pair(world, kind, 4);
        let said = b"GET /one HTTP/1.1\r\n\r\nGET /two HTTP/1.1\r\n\r\n";
        for cut in 0..=said.len() {
            let (client, id) = old.meet(world);
            let is_receiving = !cut.is_multiple_of(3);
            old.reactor.set_receiving(id, is_receiving);
            if cut > 0 {
                assert_eq!(world.client_send(&client, &said[..cut]), Ok(cut));
            }
            for _ in 0..random.below(4) {
                poll_all(&mut old.reactor); // Bytes are in flight and not yet taken.
            }
            if random.chance(1, 3) {
                old.turn();
            }
            old.reactor.release(id);
            assert_eq!(old.reactor.send(id, &[IoSlice::new(b"x")]), Err(SendError::Unknown));
            old.reactor.set_receiving(id, false); // Has no effect either.
            old.reactor.finish(id);
            if cut < said.len() {
                assert_eq!(world.client_send(&client, &said[cut..]), Ok(said.len() - cut));
            }
            let (seen, socket) = old.until_released(id);
            assert!(said.starts_with(&seen.bytes), "cut {cut}");
            let id = new.adopt(seen, socket);
            new.until("the rest", |new| new.seen(id).bytes.len() == said.len());
            assert!(new.seen(id).bytes == said, "cut {cut}");
            assert!(new.send_all(world, id, &client, b"200 OK") == b"200 OK");
            assert_eq!((old.reactor.connection_count(), new.reactor.connection_count()), (0, 1));
            new.close(id);
            new.turn(); // Its place is free once the kernel has answered.
        }
        let counts = |server: &Server<W::R>| {
            let counters = &server.reactor.counters().sockets;
            (counters.accepted_count, counters.released_count, counters.adopted_count)
        };
        let moved_count = said.len() as u64 + 1;
        assert_eq!(counts(&old), (moved_count, moved_count, 0));
        assert_eq!(counts(&new), (0, 0, moved_count));
    }
}

pub fn a_cut_send_goes_on_where_the_connection_went<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let [mut old, mut new] = pair(world, kind, 4);
        let (client, id) = old.meet(world);
        let bytes = pattern(seed, 3 << 20);
        let (mut sent, mut quiet) = (0, 0);
        old.until("a full buffer", |server| {
            let count = server.reactor.send(id, &[IoSlice::new(&bytes[sent..])]).unwrap();
            sent += count;
            quiet = if count == 0 { quiet + 1 } else { 0 };
            quiet == 20
        });
        let told = old.seen(id).writable_count;
        let mut got = Vec::new();
        if seed.is_multiple_of(2) {
            drain(world, &client, &mut got); // A writable event may be due.
            poll_all(&mut old.reactor);
        }
        let (seen, socket) = old.release(id);
        assert_eq!(seen.writable_count, told);
        let id = new.adopt(seen, socket);
        new.until("the rest", |new| {
            sent += new.reactor.send(id, &[IoSlice::new(&bytes[sent..])]).unwrap();
            drain(world, &client, &mut got);
            got.len() == bytes.len()
        });
        assert!(got == bytes);
    }
}

pub fn a_connection_that_moves_outlives_its_listener<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let [mut old, mut new] = pair(world, kind, 4);
        let (client, id) = old.meet(world);
        old.reactor.release(id);
        old.reactor.close_listener(old.listener);
        let (seen, socket) = old.until_released(id);
        drop(old);
        assert_eq!(socket.peer(), world.peer(&client));
        let id = new.adopt(seen, socket);
        assert_eq!(world.client_send(&client, b"still here"), Ok(10));
        new.until("bytes", |new| new.seen(id).bytes.len() == 10);
        let bytes = pattern(seed, 50_000);
        assert!(new.send_all(world, id, &client, &bytes) == bytes);
    }
}

pub fn an_end_that_meets_a_move_is_told_once<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let mut random = Random::new(seed);
        let [mut old, mut new] = pair(world, kind, 4);
        for round in 0..40 {
            let (client, id) = old.meet(world);
            let steps = random.below(5);
            old.reactor.set_receiving(id, round % 4 != 0);
            assert_eq!(world.client_send(&client, b"last words"), Ok(10));
            for step in 0..5 {
                if step == steps {
                    world.client_finish(&client);
                }
                match step {
                    1 => _ = poll_all(&mut old.reactor),
                    2 if round % 2 == 0 => old.turn(),
                    3 => old.reactor.release(id),
                    _ => {}
                }
            }
            let (seen, socket) = old.until_released(id);
            let was_told = seen.end.is_some();
            let id = new.adopt(seen, socket);
            new.until("the end", |new| new.seen(id).end.is_some());
            for _ in 0..3 {
                new.turn(); // `Server` checks that no second end comes.
            }
            assert_eq!(new.seen(id).end, Some(None), "round {round}, told before: {was_told}");
            assert_eq!(new.seen(id).bytes, b"last words", "round {round}");
            assert!(new.send_all(world, id, &client, b"bye") == b"bye");
            new.close(id);
            new.turn();
        }
    }
}

pub fn a_reset_that_meets_a_move_ends_it_where_it_is<W: Network>(world: &W, seed: u64) {
    let mut random = Random::new(seed);
    let [mut old, mut new] = pair(world, SocketKind::Tcp, 4);
    let bytes = pattern(seed, 3 << 20);
    for round in 0..30 {
        let (client, id) = old.meet(world);
        old.reactor.set_receiving(id, round % 3 != 0);
        if round % 2 == 0 {
            old.reactor.send(id, &[IoSlice::new(&bytes)]).unwrap(); // Sent in part.
        }
        let steps = random.below(4);
        let mut client = Some(client);
        for step in 0..4 {
            if step == steps {
                world.client_reset(client.take().unwrap());
            }
            match step {
                0 => _ = poll_all(&mut old.reactor),
                1 if round % 5 == 0 => old.turn(),
                2 => old.reactor.release(id),
                _ => {}
            }
        }
        let (seen, socket) = old.until_released(id);
        let told = seen.end;
        let id = new.adopt(seen, socket);
        new.until("the end", |new| new.seen(id).end.is_some());
        new.turn();
        let end = new.seen(id).end;
        assert!(told.is_none() || told == end, "told twice");
        assert!(end.flatten().is_some(), "a reset is no clean end: {end:?}");
        let mut error = None;
        new.until("a broken send", |new| {
            error = new.reactor.send(id, &[IoSlice::new(b"x")]).err();
            error.is_some()
        });
        assert!(matches!(error, Some(SendError::Broken(_))), "{error:?}");
        new.close(id);
        new.turn();
    }
}

pub fn a_send_that_was_broken_stays_broken_after_a_move<W: Network>(world: &W, _seed: u64) {
    let [mut old, mut new] = pair(world, SocketKind::Tcp, 4);
    let (client, id) = old.meet(world);
    world.client_reset(client);
    let mut error = None;
    old.until("a broken send", |old| {
        error = old.reactor.send(id, &[IoSlice::new(b"x")]).err();
        error.is_some()
    });
    let (seen, socket) = old.release(id);
    let id = new.adopt(seen, socket);
    assert_eq!(new.reactor.send(id, &[IoSlice::new(b"x")]).err(), error);
}

pub fn a_full_reactor_gives_the_socket_back<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let [mut old, mut new] = pair(world, kind, 1);
        let (other, other_id) = new.meet(world);
        let (client, id) = old.meet(world);
        assert_eq!(world.client_send(&client, b"hello"), Ok(5));
        let (seen, socket) = old.release(id);
        let error = new.reactor.adopt(socket).unwrap_err();
        assert!(matches!(error, AdoptError::Full { connections_max: 1, .. }), "{error:?}");
        assert!(error.to_string().contains("at most 1"), "{error}");
        let mut socket = Some(error.into_socket());
        assert_eq!(socket.as_ref().unwrap().peer(), world.peer(&client));
        assert!(new.send_all(world, other_id, &other, b"not disturbed") == b"not disturbed");
        new.close(other_id);
        let mut moved = None;
        new.until("a place", |new| {
            match new.reactor.adopt(socket.take().unwrap()) {
                Ok(id) => moved = Some(id),
                Err(error) => socket = Some(error.into_socket()),
            }
            moved.is_some()
        });
        let id = moved.unwrap();
        new.seen.insert(id, seen);
        new.until("all bytes", |new| new.seen(id).bytes == b"hello");
        // The place in the old reactor is free for another connection.
        old.meet(world);
    }
}

pub fn a_place_that_was_given_away_is_the_next_ones<W: Network>(world: &W, _seed: u64) {
    let mut server = Server::new(world, SocketKind::Tcp, 1);
    let clients: Vec<_> = (0..20).map(|_| world.connect(&server.address).unwrap()).collect();
    for served in 0..clients.len() {
        server.until("the next", |server| server.order.len() > served);
        drop(server.release(server.order[served]));
    }
    assert_eq!(server.order.iter().collect::<BTreeSet<_>>().len(), clients.len());
    assert_eq!(server.reactor.counters().sockets.closed_count, 0);
}

pub fn a_name_that_was_released_is_nothing_and_never_comes_back<W: Network>(world: &W, seed: u64) {
    let mut server = Server::new(world, SocketKind::Tcp, 2);
    let (client, mut id) = server.meet(world);
    let mut names = BTreeSet::from([id]);
    for _ in 0..50 {
        server.reactor.release(id);
        server.reactor.release(id); // The second call has no effect.
        let (seen, socket) = server.until_released(id);
        assert_eq!(server.reactor.send(id, &[IoSlice::new(b"x")]), Err(SendError::Unknown));
        server.reactor.release(id);
        server.reactor.close(id);
        server.reactor.set_receiving(id, true);
        assert_eq!(server.reactor.connection_count(), 0);
        let before = std::mem::replace(&mut id, server.adopt(seen, socket));
        assert!(names.insert(id), "a name came twice");
        server.reactor.close(before); // A stale id does not affect the new connection.
        assert_eq!(server.reactor.connection_count(), 1);
    }
    server.turn();
    assert!(server.gone.is_empty());
    let bytes = pattern(seed, 10_000);
    assert!(server.send_all(world, id, &client, &bytes) == bytes);
}

pub fn a_close_during_a_release_is_the_end<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 4);
        for round in 0..12 {
            let (client, id) = server.meet(world);
            server.reactor.release(id);
            for _ in 0..round % 4 {
                poll_all(&mut server.reactor);
            }
            server.close(id); // Any later event of it is a failure.
            assert_eq!(server.reactor.connection_count(), 0);
            let mut got = Vec::new();
            server.until("the client's end", |_| drain(world, &client, &mut got));
            server.turn();
            assert!(server.gone.is_empty() && got.is_empty());
        }
        assert_eq!(server.reactor.counters().sockets.released_count, 0);
    }
}

/// Moves a connection there and back, with bytes both ways all the time.
pub fn a_thousand_moves_lose_no_byte<W: Network>(world: &W, seed: u64) {
    let move_count = if W::IS_REAL { 1_000 } else { 100 };
    let mut random = Random::new(seed);
    let mut servers = pair(world, KINDS[(seed % 2) as usize], 2);
    let (client, mut id) = servers[0].meet(world);
    let bytes = pattern(seed, 2 << 20);
    let (mut up, mut down, mut got) = (0, 0, Vec::new());
    let mut seen_up = 0;
    for count in 0..move_count {
        let [one, two] = &mut servers;
        let (here, there) = if count % 2 == 0 { (one, two) } else { (two, one) };
        let mut say = |size: u64| {
            let end = bytes.len().min(up + size as usize);
            up += world.client_send(&client, &bytes[up..end]).unwrap_or(0);
        };
        say(random.below(1_500));
        let end = bytes.len().min(down + random.below(1_500) as usize);
        down += here.reactor.send(id, &[IoSlice::new(&bytes[down..end])]).unwrap();
        match random.below(3) {
            0 => here.turn(),
            1 => _ = poll_all(&mut here.reactor),
            _ => {}
        }
        here.reactor.release(id);
        say(random.below(500));
        let (seen, socket) = here.until_released(id);
        assert!(seen.bytes.len() >= seen_up && bytes.starts_with(&seen.bytes), "move {count}");
        seen_up = seen.bytes.len();
        id = there.adopt(seen, socket);
        drain(world, &client, &mut got);
    }
    let here = &mut servers[move_count % 2];
    here.until("every byte", |here| {
        drain(world, &client, &mut got);
        here.seen(id).bytes.len() == up && got.len() == down
    });
    assert!(here.seen(id).bytes == bytes[..up] && got == bytes[..down]);
    assert!(up > 0 && down > 0);
}

pub fn a_dropped_reactor_or_socket_ends_what_was_on_its_way<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let fds_before = open_fds();
        let [mut old, new] = pair(world, kind, 4);
        let (clients, ids): (Vec<_>, Vec<ConnectionId>) = (0..3).map(|_| old.meet(world)).unzip();
        let (_, socket) = old.release(ids[0]);
        old.reactor.release(ids[1]); // The released socket is never taken.
        old.reactor.poll();
        let (seen, moved) = old.release(ids[2]);
        let mut new = new;
        new.adopt(seen, moved);
        drop((old, new));
        drop(socket);
        for client in clients {
            let mut got = Vec::new();
            while !drain(world, &client, &mut got) {
                std::thread::yield_now();
            }
            assert!(got.is_empty());
            world.client_close(client);
        }
        assert_eq!(open_fds(), fds_before);
    }
}
