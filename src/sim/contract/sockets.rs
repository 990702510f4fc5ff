//! Connections: accepting, bytes both ways, back pressure, both ends. R15 to R21.

use std::io::IoSlice;
use std::time::Duration;

use streamdoor::base::Random;
use streamdoor::reactor::{IoError, Reactor, SendError};

use super::network::*;
use super::worlds::*;

pub fn a_connection_is_told_of_once_with_its_peer<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 8);
        let clients: Vec<_> = (0..3).map(|_| server.meet(world)).collect();
        for (client, id) in &clients {
            assert_eq!(server.seen(*id).peer, world.peer(client));
        }
        assert_eq!(server.reactor.connection_count(), 3);
        assert_eq!(server.reactor.counters().sockets.accepted_count, 3);
        assert_eq!(server.order.len(), 3);
    }
}

pub fn an_echo_gives_every_byte_back_in_order<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 8);
        let (client, id) = server.meet(world);
        let bytes = pattern(seed, 400_000);
        let (mut sent, mut echoed, mut got) = (0, 0, Vec::new());
        server.until("the echo", |server| {
            match world.client_send(&client, &bytes[sent..bytes.len().min(sent + 9_000)]) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error, EAGAIN),
            }
            let rest = &server.seen[&id].bytes[echoed..];
            echoed += server.reactor.send(id, &[IoSlice::new(rest)]).unwrap();
            drain(world, &client, &mut got);
            got.len() == bytes.len()
        });
        assert!(got == bytes);
        assert!(server.seen(id).bytes == bytes);
        let counters = &server.reactor.counters().sockets;
        assert_eq!((counters.sent_bytes, counters.received_bytes), (400_000, 400_000));
    }
}

pub fn a_slow_reader_cuts_sends_and_one_event_says_when_to_go_on<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 8);
        let (client, id) = server.meet(world);
        let bytes = pattern(seed, 3 << 20);
        let mut sent = 0;
        // Sends until no byte has moved for some time, whatever events come.
        let mut quiet = 0;
        server.until("a full buffer", |server| {
            let slice = [IoSlice::new(&bytes[sent..])];
            let count = server.reactor.send(id, &slice).unwrap();
            sent += count;
            quiet = if count == 0 { quiet + 1 } else { 0 };
            assert!(sent < bytes.len(), "the kernel took everything: {sent}");
            quiet == 20
        });
        assert!(sent > 0);
        let told = server.seen(id).writable_count;
        let cut = server.reactor.counters().sockets.cut_count;
        assert!(cut > 0);
        let mut got = Vec::new();
        server.until("it goes on", |server| {
            drain(world, &client, &mut got);
            server.seen(id).writable_count > told
        });
        server.until("the rest", |server| {
            sent += server.reactor.send(id, &[IoSlice::new(&bytes[sent..])]).unwrap();
            drain(world, &client, &mut got);
            got.len() == bytes.len()
        });
        assert!(got == bytes);
        // At most one event for each cut.
        let counters = &server.reactor.counters().sockets;
        assert!(u64::from(server.seen(id).writable_count) <= counters.cut_count);
    }
}

pub fn a_bound_holds_little_of_what_nobody_reads_and_loses_nothing<W: Network>(
    world: &W,
    seed: u64,
) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 8);
        let (client, id) = server.meet(world);
        server.reactor.bound_sending(id, 8 << 10);
        let bytes = pattern(seed, 1 << 20);
        let (mut sent, mut got) = (0, Vec::new());
        let mut send = |reactor: &mut W::R| {
            let piece = &bytes[sent..bytes.len().min(sent + 4_096)];
            let count = reactor.send(id, &[IoSlice::new(piece)]).unwrap();
            sent += count;
            (count, sent)
        };
        let mut quiet = 0;
        server.until("nothing moves", |server| {
            let (count, sent) = send(&mut server.reactor);
            quiet = if count == 0 { quiet + 1 } else { 0 };
            // Over TCP the peer's kernel acknowledges bytes that the peer has not read.
            let is_exact = !W::IS_REAL || matches!(kind, SocketKind::Unix);
            assert!(!is_exact || sent <= 24 << 10, "{sent} bytes are under way");
            quiet == 20
        });
        server.until("everything", |server| {
            send(&mut server.reactor);
            drain(world, &client, &mut got);
            got.len() == bytes.len()
        });
        assert!(got == bytes);
    }
}

pub fn many_slices_and_empty_ones_arrive_as_one_run_of_bytes<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 8);
        let (client, id) = server.meet(world);
        assert_eq!(server.reactor.send(id, &[]), Ok(0));
        assert_eq!(server.reactor.send(id, &[IoSlice::new(b""), IoSlice::new(b"")]), Ok(0));
        let mut random = Random::new(seed);
        let pieces: Vec<Vec<u8>> =
            (0..3_000).map(|_| pattern(random.next_u64(), random.below(30) as usize)).collect();
        let all = pieces.concat();
        let (mut sent, mut got) = (0, Vec::new());
        server.until("all slices", |server| {
            let mut skip = sent;
            let mut slices = Vec::new();
            for piece in &pieces {
                let skipped = skip.min(piece.len());
                skip -= skipped;
                slices.push(IoSlice::new(&piece[skipped..]));
            }
            sent += server.reactor.send(id, &slices).unwrap();
            drain(world, &client, &mut got);
            got.len() == all.len()
        });
        assert!(got == all);
    }
}

pub fn a_client_that_finishes_still_receives<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 8);
        let (client, id) = server.meet(world);
        assert_eq!(world.client_send(&client, b"last words"), Ok(10));
        world.client_finish(&client);
        server.until("the end", |server| server.seen(id).end.is_some());
        assert_eq!(server.seen(id).end, Some(None));
        assert_eq!(server.seen(id).bytes, b"last words");
        let bytes = pattern(seed, 300_000);
        assert!(server.send_all(world, id, &client, &bytes) == bytes);
        server.reactor.finish(id);
        let mut got = Vec::new();
        server.until("the client's end", |_| drain(world, &client, &mut got));
        assert!(got.is_empty());
        server.close(id);
        assert_eq!(server.reactor.connection_count(), 0);
    }
}

pub fn a_server_that_finishes_still_receives<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 8);
        let (client, id) = server.meet(world);
        let mut got = server.send_all(world, id, &client, b"that is all");
        server.reactor.finish(id);
        server.until("the client's end", |_| drain(world, &client, &mut got));
        assert_eq!(got, b"that is all");
        assert!(matches!(
            server.reactor.send(id, &[IoSlice::new(b"x")]),
            Err(SendError::Broken(IoError::BROKEN_PIPE))
        ));
        let bytes = pattern(seed, 200_000);
        let mut sent = 0;
        server.until("the client's bytes", |server| {
            if sent < bytes.len() {
                sent += world.client_send(&client, &bytes[sent..]).unwrap_or(0);
            }
            server.seen(id).bytes.len() == bytes.len()
        });
        assert!(server.seen(id).bytes == bytes);
        assert_eq!(server.seen(id).end, None);
        world.client_finish(&client);
        server.until("the end", |server| server.seen(id).end.is_some());
        assert_eq!(server.seen(id).end, Some(None));
    }
}

pub fn a_reset_while_sending_is_told_and_ends_all_sending<W: Network>(world: &W, seed: u64) {
    for is_receiving in [true, false] {
        let mut server = Server::new(world, SocketKind::Tcp, 8);
        let (client, id) = server.meet(world);
        server.reactor.set_receiving(id, is_receiving);
        let bytes = pattern(seed, 3 << 20);
        let mut sent = 0;
        let mut quiet = 0;
        server.until("a full buffer", |server| {
            let count = server.reactor.send(id, &[IoSlice::new(&bytes[sent..])]).unwrap();
            sent += count;
            quiet = if count == 0 { quiet + 1 } else { 0 };
            quiet == 20
        });
        world.client_reset(client);
        let mut error = None;
        server.until("a broken send", |server| {
            error = server.reactor.send(id, &[IoSlice::new(&bytes)]).err();
            error.is_some()
        });
        assert!(matches!(error, Some(SendError::Broken(_))), "{error:?}");
        assert_eq!(server.reactor.send(id, &[IoSlice::new(&bytes)]).err(), error); // Stays broken.
        if is_receiving {
            server.until("the end", |server| server.seen(id).end.is_some());
        } else {
            assert_eq!(server.seen(id).end, None);
        }
        server.close(id);
        assert_eq!(server.reactor.send(id, &[IoSlice::new(&bytes)]), Err(SendError::Unknown));
        server.turn();
    }
}

pub fn a_pause_of_receiving_tells_nothing_and_loses_nothing<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let mut random = Random::new(seed);
        let mut server = Server::new(world, kind, 8);
        let (client, id) = server.meet(world);
        let bytes = pattern(seed, 300_000);
        let mut sent = 0;
        let mut is_receiving = true;
        let mut is_finished = false;
        server.until("everything", |server| {
            if sent < bytes.len() {
                let end = bytes.len().min(sent + random.between(1, 20_000) as usize);
                sent += world.client_send(&client, &bytes[sent..end]).unwrap_or(0);
            } else if !std::mem::replace(&mut is_finished, true) {
                world.client_finish(&client);
            }
            if random.chance(1, 3) {
                if random.chance(1, 2) {
                    poll_all(&mut server.reactor); // Bytes are in flight when the pause begins.
                }
                is_receiving = !is_receiving;
                server.reactor.set_receiving(id, is_receiving);
            }
            if !is_receiving {
                let before = (server.seen(id).bytes.len(), server.seen(id).end);
                server.turn();
                server.turn();
                assert_eq!(before, (server.seen(id).bytes.len(), server.seen(id).end));
            }
            server.seen(id).end.is_some()
        });
        assert!(server.seen(id).bytes == bytes);
        assert_eq!(server.seen(id).end, Some(None));
    }
}

pub fn bytes_and_an_end_that_race_a_pause_are_told_after_it<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 8);
        let (client, id) = server.meet(world);
        assert_eq!(world.client_send(&client, b"before"), Ok(6));
        world.client_finish(&client);
        for _ in 0..40 {
            poll_all(&mut server.reactor); // They are in flight and not yet taken.
        }
        server.reactor.set_receiving(id, false);
        for _ in 0..5 {
            server.turn();
        }
        assert_eq!((server.seen(id).bytes.len(), server.seen(id).end), (0, None));
        server.reactor.set_receiving(id, true);
        server.until("the end", |server| server.seen(id).end.is_some());
        assert_eq!(server.seen(id).bytes, b"before");
        assert_eq!(server.seen(id).end, Some(None));
    }
}

pub fn a_closed_connection_is_never_told_of_again<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let mut random = Random::new(seed);
        let mut server = Server::new(world, kind, 4);
        let bytes = pattern(seed, 3 << 20);
        for round in 0..20 {
            let (client, id) = server.meet(world);
            // With bytes in flight, a wait for writability, or neither.
            if round % 2 == 0 {
                let _ = world.client_send(&client, &bytes[..10_000]);
            }
            if round % 3 == 0 {
                server.reactor.send(id, &[IoSlice::new(&bytes)]).unwrap();
            }
            if random.chance(1, 2) {
                server.reactor.poll();
            }
            server.close(id);
            assert_eq!(server.reactor.connection_count(), 0);
            assert_eq!(server.reactor.send(id, &[IoSlice::new(b"x")]), Err(SendError::Unknown));
            for turn in 0..3 {
                server.reactor.set_receiving(id, turn % 2 == 0);
                server.reactor.finish(id);
                server.reactor.close(id);
                server.turn();
            }
            let mut piece = [0; 65_536];
            server.until("the client's end", |_| {
                loop {
                    match world.client_receive(&client, &mut piece) {
                        Ok(0) => break true,
                        Ok(_) => {}
                        Err(EAGAIN) => break false,
                        Err(error) => {
                            assert_eq!(error, IoError(libc::ECONNRESET));
                            break true;
                        }
                    }
                }
            });
        }
        assert_eq!(server.reactor.counters().sockets.closed_count, 20);
    }
}

/// Several clients in a random order that the seed decides. Every byte arrives in order, and every
/// end arrives.
pub fn nothing_is_lost_in_disorder_of_sockets<W: Network>(world: &W, seed: u64) {
    let mut random = Random::new(seed);
    let mut server = Server::new(world, SocketKind::Tcp, 8);
    let clients: Vec<_> = (0..4).map(|_| server.meet(world)).collect();
    let bytes = pattern(seed, 120_000);
    let (mut up, mut down) = ([0; 4], [0; 4]);
    let mut got: [Vec<u8>; 4] = Default::default();
    let (mut is_finished, mut is_served) = ([false; 4], [false; 4]);
    server.until("every byte both ways", |server| {
        for _ in 0..8 {
            let at = random.below(4) as usize;
            let (client, id) = &clients[at];
            let size = random.between(1, 12_000) as usize;
            match random.below(6) {
                0 => server.reactor.set_receiving(*id, random.chance(2, 3)),
                1 if up[at] < bytes.len() => {
                    let end = bytes.len().min(up[at] + size);
                    up[at] += world.client_send(client, &bytes[up[at]..end]).unwrap_or(0);
                }
                1 if !is_finished[at] => {
                    is_finished[at] = true;
                    world.client_finish(client);
                }
                2 if down[at] < bytes.len() => {
                    let (one, two) = bytes[down[at]..].split_at(size.min(bytes.len() - down[at]));
                    let slices = [IoSlice::new(one), IoSlice::new(&two[..two.len().min(size)])];
                    down[at] += server.reactor.send(*id, &slices).unwrap();
                }
                2 if !is_served[at] => {
                    is_served[at] = true;
                    server.reactor.finish(*id);
                }
                3 => _ = drain(world, client, &mut got[at]),
                4 => {
                    let until = server.reactor.now() + Duration::from_micros(random.below(30));
                    server.reactor.wait(Some(until));
                }
                _ => server.take(),
            }
        }
        is_served == [true; 4]
            && clients.iter().all(|(_, id)| server.seen(*id).end.is_some())
            && got.iter().all(|got| got.len() == bytes.len())
    });
    for (at, (_, id)) in clients.iter().enumerate() {
        assert!(got[at] == bytes, "client {at}");
        assert!(server.seen(*id).bytes == bytes, "connection {at}");
        assert_eq!(server.seen(*id).end, Some(None));
    }
}
