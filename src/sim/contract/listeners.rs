//! Listeners and many connections: limits, pauses, reuse of places, shutdown. R12, R15, R16, R22.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::time::Duration;

use streamdoor::reactor::{
    ListenAddress, ListenError, ListenOptions, Reactor, SendError, SocketLimits,
};

use super::network::*;
use super::worlds::*;

pub fn an_address_in_use_is_an_error_that_names_it<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 4);
        let mut other = world.reactor();
        let address = server.address.clone();
        let error = other.listen(&address, ListenOptions::default()).unwrap_err();
        assert_eq!(error, ListenError::InUse { address });
        assert!(error.to_string().contains(&server.address.to_string()), "{error}");
        server.meet(world); // The first is not disturbed.
    }
}

pub fn listeners_that_share_a_port_get_every_connection_once<W: Network>(world: &W, _seed: u64) {
    let shared = ListenOptions { shares_port: true };
    let limits = SocketLimits { connections_max: 40, listeners_max: 1 };
    let mut reactors = [world.reactor(), world.reactor()];
    let mut address = world.address(SocketKind::Tcp);
    for reactor in &mut reactors {
        reactor.open_sockets(limits).unwrap();
        let listener = reactor.listen(&address, shared).unwrap();
        address = reactor.listen_address(listener).unwrap();
        let error = reactor.listen(&address, shared).unwrap_err();
        assert_eq!(error, ListenError::TooMany { listeners_max: 1 });
    }
    let clients: Vec<_> = (0..40).map(|_| world.connect(&address).unwrap()).collect();
    for _ in 0..10_000 {
        for reactor in &mut reactors {
            let until = reactor.now() + Duration::from_micros(100);
            reactor.wait(Some(until));
            while reactor.next_socket_event().is_some() {}
        }
        let count = reactors.iter().map(|reactor| reactor.connection_count()).sum::<usize>();
        if count == clients.len() {
            return;
        }
    }
    panic!("never: all accepted");
}

pub fn a_closed_listener_refuses_and_its_connections_live_on<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 4);
        let (client, id) = server.meet(world);
        let queued = world.connect(&server.address).unwrap(); // Perhaps never reported.
        server.reactor.close_listener(server.listener);
        assert_eq!(server.reactor.listen_address(server.listener), None);
        server.turn();
        server.turn();
        let refused = world.connect(&server.address).err().expect("nobody listens");
        assert!([libc::ECONNREFUSED, libc::ENOENT].contains(&refused.0), "{refused}");
        let bytes = pattern(seed, 50_000);
        assert!(server.send_all(world, id, &client, &bytes) == bytes);
        world.client_close(queued);
        // The address is free again.
        let options = ListenOptions::default();
        server.listener = server.reactor.listen(&server.address, options).unwrap();
        server.meet(world);
    }
}

pub fn a_full_house_pauses_and_nobody_is_dropped<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let mut server = Server::new(world, kind, 3);
        let clients: Vec<_> = (0..10).map(|_| world.connect(&server.address).unwrap()).collect();
        server.until("a full house", |server| server.order.len() == 3);
        for _ in 0..5 {
            server.turn();
        }
        assert_eq!(server.reactor.connection_count(), 3);
        for served in 0..clients.len() {
            server.until("the next", |server| server.order.len() > served);
            let id = server.order[served];
            let said = server.reactor.send(id, &[IoSlice::new(b"hello")]);
            assert!(said.is_ok());
            server.reactor.finish(id);
            server.close(id);
        }
        let counters = server.reactor.counters().sockets.clone();
        assert_eq!((counters.accepted_count, counters.aborted_count), (10, 0));
        assert!(counters.paused_count > 0);
        assert_eq!(counters.exhausted_count, 0);
        let distinct: BTreeSet<_> = server.order.iter().collect();
        assert_eq!(distinct.len(), 10);
    }
}

pub fn a_thousand_connections_come_and_go<W: Network>(world: &W, _seed: u64) {
    let mut server = Server::new(world, SocketKind::Tcp, 16);
    let mut names = BTreeSet::new();
    for round in 0..1_000 {
        let (client, id) = server.meet(world);
        assert!(names.insert(id), "the name of connection {round} was given before");
        let request = [round as u8; 7];
        assert_eq!(world.client_send(&client, &request), Ok(7));
        server.until("the request", |server| server.seen(id).bytes.len() == 7);
        assert_eq!(server.seen(id).bytes, request);
        if round % 2 == 0 {
            world.client_close(client);
            server.until("the end", |server| server.seen(id).end.is_some());
        }
        server.close(id);
    }
    assert_eq!(server.reactor.connection_count(), 0);
    for id in names {
        assert_eq!(server.reactor.send(id, &[IoSlice::new(b"x")]), Err(SendError::Unknown));
    }
    let counters = &server.reactor.counters().sockets;
    assert_eq!((counters.accepted_count, counters.closed_count), (1_000, 1_000));
}

pub fn idle_connections_cost_no_processor_time<W: Network>(world: &W, _seed: u64) {
    let mut server = Server::new(world, SocketKind::Tcp, 64);
    let clients: Vec<_> = (0..50).map(|_| server.meet(world)).collect();
    for _ in 0..5 {
        server.turn();
    }
    let before = server.reactor.counters().entered_count;
    let until = server.reactor.now() + Duration::from_millis(50);
    server.reactor.wait(Some(until));
    assert!(server.reactor.now() >= until); // Nothing ended it before.
    let entered = server.reactor.counters().entered_count - before;
    assert!(entered <= 6, "{entered} system calls in one idle wait");
    drop(clients);
}

pub fn a_dropped_reactor_ends_its_connections<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let fds_before = open_fds();
        let mut server = Server::new(world, kind, 8);
        let address = server.address.clone();
        let (client, id) = server.meet(world);
        let (full, full_id) = server.meet(world);
        let bytes = pattern(1, 3 << 20);
        let said = server.reactor.send(id, &[IoSlice::new(b"x")]).unwrap();
        server.reactor.send(full_id, &[IoSlice::new(&bytes)]).unwrap();
        server.reactor.poll();
        drop(server);
        let mut got = Vec::new();
        assert!(drain_slowly(world, &client, &mut got));
        assert_eq!(got.len(), said);
        world.client_close(full);
        world.client_close(client);
        assert_eq!(open_fds(), fds_before);
        assert!(world.connect(&address).is_err());
        if let ListenAddress::Unix(path) = address {
            assert!(!path.exists());
        }
    }
}

fn drain_slowly<W: Network>(world: &W, client: &W::Client, into: &mut Vec<u8>) -> bool {
    for _ in 0..5_000 {
        if drain(world, client, into) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

pub fn nothing_can_be_done_with_names_that_were_never_given<W: Network>(world: &W, _seed: u64) {
    let mut server = Server::new(world, SocketKind::Tcp, 4);
    let (_client, id) = server.meet(world);
    let mut other = world.reactor();
    for _ in 0..2 {
        assert_eq!(other.send(id, &[IoSlice::new(b"x")]), Err(SendError::Unknown));
        other.set_receiving(id, false);
        other.finish(id);
        other.close(id);
        other.release(id);
        other.close_listener(server.listener);
        assert_eq!(other.listen_address(server.listener), None);
        assert!(other.next_socket_event().is_none());
        assert_eq!(other.connection_count(), 0);
        other.open_sockets(SocketLimits::default()).unwrap(); // The same with an empty table.
    }
    let bad: ListenAddress = "192.0.2.1:9".parse().unwrap();
    if W::IS_REAL {
        let error = other.listen(&bad, ListenOptions::default()).unwrap_err();
        assert_eq!(error, ListenError::NotHere { address: bad });
        let long = ListenAddress::Unix("x".repeat(108).into());
        let error = other.listen(&long, ListenOptions::default()).unwrap_err();
        assert!(error.to_string().contains("107"), "{error}");
    }
}
