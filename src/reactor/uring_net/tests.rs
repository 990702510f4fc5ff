//! Tests that concern io_uring's sockets alone: flavors, queues that overflow, buffers that run
//! out. The other tests are in `src/sim/contract/`.

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::limits::RECEIVE_BUFFERS;
use crate::reactor::uring::Flavor;
use crate::reactor::{
    ConnectionId, ListenAddress, ListenOptions, Reactor, SocketEvent, SocketLimits, UringReactor,
};

/// A reactor that listens on a loopback port.
fn server(completions: u32, flavor: Flavor) -> Option<(UringReactor, ListenAddress)> {
    let mut reactor = match UringReactor::with_queues(8, completions, &[flavor]) {
        Ok(reactor) => reactor,
        Err(reason) => {
            println!("not run: {flavor}: {reason}");
            return None;
        }
    };
    let limits = SocketLimits { connections_max: 512, listeners_max: 1 };
    if let Err(reason) = reactor.open_sockets(limits) {
        println!("not run: {flavor}: {reason}");
        return None;
    }
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = reactor.listen(&any, ListenOptions::default()).unwrap();
    let address = reactor.listen_address(listener).unwrap();
    Some((reactor, address))
}

fn connect(address: &ListenAddress) -> TcpStream {
    let ListenAddress::Tcp(address) = address else { panic!("not TCP: {address}") };
    TcpStream::connect(address).unwrap()
}

/// Waits a little and takes the events: new connections, and the number of bytes of each.
fn turn(reactor: &mut UringReactor, accepted: &mut Vec<ConnectionId>) -> Vec<(ConnectionId, u64)> {
    let until = reactor.now() + Duration::from_millis(1);
    reactor.wait(Some(until));
    reactor.poll();
    let mut received = Vec::new();
    while let Some(event) = reactor.next_socket_event() {
        match event {
            SocketEvent::Accepted { connection, .. } => accepted.push(connection),
            SocketEvent::Received { connection, bytes } => {
                received.push((connection, bytes.len() as u64));
            }
            SocketEvent::Connected { .. }
            | SocketEvent::Ended { .. }
            | SocketEvent::Writable { .. }
            | SocketEvent::Released { .. } => {}
        }
    }
    received
}

#[test]
fn every_flavor_accepts_receives_and_sends_although_its_queue_overflows() {
    for flavor in Flavor::BEST_FIRST {
        let Some((mut reactor, address)) = server(8, flavor) else { continue };
        let mut clients: Vec<TcpStream> = (0..60).map(|_| connect(&address)).collect();
        for client in &mut clients {
            client.write_all(b"hello").unwrap();
        }
        let (mut accepted, mut byte_count) = (Vec::new(), 0);
        while accepted.len() < clients.len() || byte_count < 5 * clients.len() as u64 {
            let received = turn(&mut reactor, &mut accepted);
            byte_count += received.iter().map(|(_, count)| count).sum::<u64>();
        }
        for id in &accepted {
            assert_eq!(reactor.send(*id, &[IoSlice::new(b"by"), IoSlice::new(b"e")]), Ok(3));
            reactor.close(*id);
        }
        for client in &mut clients {
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            assert_eq!(answer, b"bye", "{flavor}");
        }
    }
}

#[test]
fn receives_that_find_no_buffer_wait_for_one_and_lose_nothing() {
    let Some((mut reactor, address)) = server(1_024, Flavor::Deferred) else { return };
    let count = usize::from(RECEIVE_BUFFERS) + 40;
    let mut clients: Vec<TcpStream> = (0..count).map(|_| connect(&address)).collect();
    let mut accepted = Vec::new();
    while accepted.len() < count {
        assert!(turn(&mut reactor, &mut accepted).is_empty());
    }
    for client in &mut clients {
        client.write_all(b"0123456789").unwrap();
    }
    // The owner does not take them, so all buffers are in use.
    for _ in 0..1_000 {
        reactor.poll();
        if reactor.counters().sockets.starved_count > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(reactor.counters().sockets.starved_count > 0);
    let mut byte_count = 0;
    while byte_count < 10 * count as u64 {
        let received = turn(&mut reactor, &mut accepted);
        byte_count += received.iter().map(|(_, count)| count).sum::<u64>();
    }
    assert_eq!(reactor.counters().sockets.received_bytes, 10 * count as u64);
}

#[test]
fn every_flavor_takes_its_receive_back_before_a_socket_moves() {
    for flavor in Flavor::BEST_FIRST {
        let Some((mut old, address)) = server(64, flavor) else { continue };
        let Some((mut new, _)) = server(64, flavor) else { continue };
        let mut client = connect(&address);
        let mut accepted = Vec::new();
        while accepted.is_empty() {
            turn(&mut old, &mut accepted);
        }
        turn(&mut old, &mut accepted); // The receive is with the kernel.
        old.release(accepted[0]);
        let socket = loop {
            old.wait(None);
            old.poll();
            if let Some(SocketEvent::Released { socket, .. }) = old.next_socket_event() {
                break socket;
            }
        };
        client.write_all(b"hello").unwrap();
        let id = new.adopt(socket).unwrap();
        let received = loop {
            let received = turn(&mut new, &mut accepted);
            if !received.is_empty() {
                break received;
            }
        };
        assert_eq!(received, [(id, 5)], "{flavor}");
        assert_eq!(old.counters().sockets.received_bytes, 0);
    }
}
