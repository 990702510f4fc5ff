//! No descriptor left: no connection is dropped, nothing spins, and accepting resumes by itself.
//! R16.

use std::time::Duration;

use streamdoor::limits::LISTENER_PAUSE;
use streamdoor::reactor::{Peer, Reactor};

use super::network::*;

const CLIENTS: usize = 6;

/// Runs alone, because the limit is that of the whole process.
pub fn out_of_descriptors_listeners_pause_and_nobody_is_dropped<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 64);
        // The clients wait in the kernel's queue, so they have their descriptors already.
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| world.connect(&server.address).unwrap()).collect();
        let limit = world.limit_descriptors(2);
        let exhausted = |server: &Server<W::R>| server.reactor.counters().sockets.exhausted_count;
        server.until("exhaustion", |server| exhausted(server) > 0);
        server.take();
        assert_eq!(server.order.len(), 2);

        // The reactor retries after each pause and sleeps in between.
        let (tries, entered) = (exhausted(&server), server.reactor.counters().entered_count);
        let begun_at = server.reactor.now();
        let tried = loop {
            let until = server.reactor.now() + LISTENER_PAUSE + Duration::from_millis(10);
            server.reactor.wait(Some(until));
            server.take();
            let tried = exhausted(&server) - tries;
            let elapsed = server.reactor.now().since(begun_at);
            let pauses = (elapsed.as_millis() / LISTENER_PAUSE.as_millis()) as u64;
            assert!(tried <= pauses + 1, "tried {tried} times in {elapsed:?}");
            if tried >= 3 {
                break tried;
            }
            assert!(pauses < 600, "tried {tried} times in {elapsed:?}");
        };
        let entered = server.reactor.counters().entered_count - entered;
        assert!(entered <= 60, "{entered} system calls for {tried} tries");
        assert_eq!(server.order.len(), 2);

        // A closed connection makes room for one.
        server.close(server.order[0]);
        server.until("the third", |server| server.order.len() == 3);

        // Descriptors that are freed elsewhere are used after a pause.
        drop(limit);
        server.until("all of them", |server| server.order.len() == CLIENTS);
        let counters = server.reactor.counters().sockets.clone();
        assert_eq!((counters.accepted_count, counters.aborted_count), (CLIENTS as u64, 0));
        assert!(counters.paused_count >= counters.exhausted_count);
        if kind == SocketKind::Tcp {
            let mut expected: Vec<Peer> = clients.iter().map(|client| world.peer(client)).collect();
            let seen = server.seen.values().map(|seen| seen.peer);
            expected.retain(|peer| seen.clone().any(|seen| seen == *peer));
            assert_eq!(expected.len(), CLIENTS - 1); // One is closed.
        }
    }
}
