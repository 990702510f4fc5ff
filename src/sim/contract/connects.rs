//! Connections that a reactor opens: at once, late, or not at all. R26.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use streamdoor::base::Random;
use streamdoor::reactor::{
    ConnectAddress, ConnectError, ConnectionId, IoError, ListenOptions, Peer, PolledReactor,
    Reactor, ReleasedSocket, SendError, SocketEvent, SocketLimits, UringReactor,
};

use super::network::*;
use super::worlds::{open_fds, pattern};

/// The events of one connection.
#[derive(Debug, Default)]
struct ConnectEvents {
    peer: Option<Peer>,
    was_accepted: bool,
    bytes: Vec<u8>,
    end: Option<Option<IoError>>,
    released: Option<ReleasedSocket>,
}

/// A reactor that connects, and the events it reported.
struct Caller<R> {
    reactor: R,
    told: BTreeMap<ConnectionId, ConnectEvents>,
}

impl<R: Reactor> Caller<R> {
    fn new<W: Network<R = R>>(world: &W, connections_max: u32) -> Caller<R> {
        let mut reactor = world.reactor();
        reactor.open_sockets(SocketLimits { connections_max, listeners_max: 2 }).unwrap();
        Caller { reactor, told: BTreeMap::new() }
    }

    fn connect(&mut self, address: &ConnectAddress) -> ConnectionId {
        let id = self.reactor.connect(address).unwrap();
        assert!(self.told.insert(id, ConnectEvents::default()).is_none(), "a name came twice");
        id
    }

    fn turn(&mut self) {
        let until = self.reactor.now() + Duration::from_millis(1);
        self.reactor.wait(Some(until));
        self.reactor.poll();
        self.take();
    }

    fn take(&mut self) {
        while let Some(event) = self.reactor.next_socket_event() {
            match event {
                SocketEvent::Accepted { connection, peer, .. } => {
                    let told = ConnectEvents {
                        peer: Some(peer),
                        was_accepted: true,
                        ..ConnectEvents::default()
                    };
                    assert!(self.told.insert(connection, told).is_none(), "a name came twice");
                }
                SocketEvent::Connected { connection, peer } => {
                    let told = self.told.get_mut(&connection).expect("asked for");
                    assert!(told.bytes.is_empty() && told.end.is_none() && !told.was_accepted);
                    assert!(told.peer.replace(peer).is_none(), "told of twice");
                }
                SocketEvent::Received { connection, bytes } => {
                    let told = self.told.get_mut(&connection).expect("there is one");
                    assert!(told.peer.is_some() && told.end.is_none());
                    told.bytes.extend_from_slice(bytes);
                }
                SocketEvent::Ended { connection, error } => {
                    let told = self.told.get_mut(&connection).expect("there is one");
                    assert!(told.peer.is_some() || error.is_some(), "an end without a reason");
                    assert!(told.end.replace(error).is_none(), "a second end");
                }
                SocketEvent::Writable { connection } => {
                    assert!(self.told.get(&connection).is_some_and(|told| told.peer.is_some()));
                }
                SocketEvent::Released { connection, socket } => {
                    self.told.get_mut(&connection).expect("there is one").released = Some(socket);
                }
            }
        }
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Caller<R>) -> bool) {
        for _ in 0..30_000 {
            if is_so(self) {
                return;
            }
            self.turn();
        }
        panic!("never: {what}");
    }

    fn close(&mut self, id: ConnectionId) {
        self.reactor.close(id);
        self.told.remove(&id); // Any later event of it is a failure.
    }

    /// Connects and waits for both ends.
    fn meet<W: Network<R = R>>(
        &mut self,
        world: &W,
        far: &W::Far,
        address: &ConnectAddress,
    ) -> (W::Client, ConnectionId) {
        let id = self.connect(address);
        let mut client = None;
        self.until("connected", |caller| {
            client = client.take().or_else(|| world.answer(far));
            caller.told[&id].peer.is_some() && client.is_some()
        });
        (client.unwrap(), id)
    }

    fn send(&mut self, id: ConnectionId, bytes: &[u8]) -> Result<usize, SendError> {
        self.reactor.send(id, &[IoSlice::new(bytes)])
    }

    /// Sends all of `bytes` while the other end reads them.
    fn send_all<W: Network<R = R>>(
        &mut self,
        world: &W,
        id: ConnectionId,
        client: &W::Client,
        bytes: &[u8],
    ) {
        let (mut sent, mut got) = (0, Vec::new());
        self.until("sent and read", |caller| {
            sent += caller.send(id, &bytes[sent..]).unwrap();
            drain(world, client, &mut got);
            got.len() >= bytes.len()
        });
        assert!(got == bytes);
    }
}

pub fn who_is_asked_is_told_of_before_his_bytes<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let (far, address) = world.far(kind);
        let mut caller = Caller::new(world, 4);
        let id = caller.connect(&address);
        assert_eq!(caller.reactor.connection_count(), 1);
        let mut client = None;
        caller.until("somebody calls", |_| {
            client = world.answer(&far);
            client.is_some()
        });
        let client = client.unwrap();
        assert_eq!(world.client_send(&client, b"hello"), Ok(5)); // Perhaps before its event.
        caller.until("the bytes", |caller| caller.told[&id].bytes.len() == 5);
        if let ConnectAddress::Tcp(internet) = address {
            assert_eq!(caller.told[&id].peer, Some(Peer::Tcp(internet)));
        }
        let bytes = pattern(seed, 300_000);
        caller.send_all(world, id, &client, &bytes);
        world.client_close(client);
        caller.until("the end", |caller| caller.told[&id].end == Some(None));
        let counters = &caller.reactor.counters().sockets;
        assert_eq!((counters.connected_count, counters.unconnected_count), (1, 0));
        assert_eq!((counters.accepted_count, counters.sent_bytes), (0, 300_000));
        caller.close(id);
        assert_eq!(caller.reactor.connection_count(), 0);
    }
}

pub fn nothing_moves_before_it_is_connected<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let (far, address) = world.far(kind);
        let mut caller = Caller::new(world, 4);
        let id = caller.connect(&address);
        let mut client = None;
        caller.until("both ends", |caller| {
            if caller.told[&id].peer.is_none() {
                assert_eq!(caller.send(id, b"too early"), Ok(0));
                caller.reactor.finish(id);
                caller.reactor.release(id);
                caller.reactor.poll();
                assert_eq!(caller.send(id, b"still"), Ok(0)); // Not reported yet.
                caller.take();
            }
            client = client.take().or_else(|| world.answer(&far));
            caller.told[&id].peer.is_some() && client.is_some()
        });
        assert_eq!(caller.reactor.counters().sockets.sent_bytes, 0);
        let client = client.unwrap();
        caller.send_all(world, id, &client, b"now");
        assert!(caller.told[&id].released.is_none() && caller.told[&id].end.is_none());
        world.client_close(client);
    }
}

pub fn a_refusal_is_told_once_and_breaks_all_sending<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let mut caller = Caller::new(world, 4);
        let id = caller.connect(&world.nobody(kind));
        caller.reactor.set_receiving(id, false); // A refusal is still reported.
        caller.until("the refusal", |caller| caller.told[&id].end.is_some());
        let error = caller.told[&id].end.flatten().expect("a reason");
        let reasons = [IoError(libc::ECONNREFUSED), IoError(libc::ENOENT)];
        assert!(reasons.contains(&error), "{error}");
        assert_eq!(caller.send(id, b"x"), Err(SendError::Broken(error)));
        caller.reactor.set_receiving(id, true);
        caller.reactor.finish(id);
        for _ in 0..5 {
            caller.turn();
        }
        assert_eq!(caller.reactor.connection_count(), 1);
        caller.close(id);
        assert_eq!(caller.send(id, b"x"), Err(SendError::Unknown));
        assert_eq!(caller.reactor.connection_count(), 0);
        let counters = &caller.reactor.counters().sockets;
        assert_eq!((counters.connected_count, counters.unconnected_count), (0, 1));
    }
}

pub fn where_no_way_leads_nobody_is_waited_for<W: Network>(world: &W, _seed: u64) {
    let mut caller = Caller::new(world, 4);
    let id = caller.connect(&world.nowhere());
    caller.until("the reason", |caller| caller.told[&id].end.is_some());
    assert_eq!(caller.told[&id].end, Some(Some(IoError(libc::ENETUNREACH))));
    for path in [&b""[..], b"a\0b", &[b'x'; 300]] {
        let path = Path::new(std::ffi::OsStr::from_bytes(path)).to_owned();
        let error = caller.reactor.connect(&ConnectAddress::Unix(path)).err();
        assert!(!W::IS_REAL || matches!(error, Some(ConnectError::BadPath { .. })), "{error:?}");
    }
}

pub fn a_close_gives_the_try_up_and_its_place_back<W: Network>(world: &W, seed: u64) {
    let mut random = Random::new(seed);
    let (queue, far, silence) = world.silence();
    let (other, address) = world.far(SocketKind::Tcp);
    let mut caller = Caller::new(world, 2);
    for round in 0..6 {
        let id = caller.connect(&silence);
        for _ in 0..random.below(3) {
            caller.turn();
        }
        assert!(caller.told[&id].peer.is_none() && caller.told[&id].end.is_none());
        assert_eq!(caller.send(id, b"x"), Ok(0));
        caller.close(id);
        assert_eq!(caller.reactor.connection_count(), 0, "round {round}");
        for _ in 0..3 {
            caller.turn();
        }
    }
    // The same with the event in flight.
    for _ in 0..6 {
        let id = caller.connect(&address);
        for _ in 0..random.below(4) {
            caller.reactor.poll();
        }
        caller.close(id);
        for _ in 0..3 {
            caller.turn();
        }
    }
    let (client, id) = caller.meet(world, &other, &address);
    let mut answered = vec![client];
    answered.extend(std::iter::from_fn(|| world.answer(&other)));
    assert!(caller.told[&id].end.is_none());
    drop((queue, far));
}

pub fn a_full_reactor_connects_to_nobody<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let (far, address) = world.far(kind);
        let mut caller = Caller::new(world, 2);
        let (one, first) = caller.meet(world, &far, &address);
        let (_two, _) = caller.meet(world, &far, &address);
        let full = ConnectError::TooMany { connections_max: 2 };
        assert_eq!(caller.reactor.connect(&address), Err(full));
        caller.close(first);
        world.client_close(one);
        let mut id = None;
        caller.until("a place", |caller| {
            id = caller.reactor.connect(&address).ok();
            id.is_some()
        });
        caller.told.insert(id.unwrap(), ConnectEvents::default());
        caller.until("the third", |caller| caller.told[&id.unwrap()].peer.is_some());
    }
}

pub fn who_accepts_and_closes_was_there<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let (far, address) = world.far(kind);
        let mut caller = Caller::new(world, 4);
        let id = caller.connect(&address);
        let mut is_closed = false;
        caller.until("the end", |caller| {
            if let Some(client) = world.answer(&far) {
                world.client_close(client);
                is_closed = true;
            }
            caller.told[&id].end.is_some()
        });
        assert!(is_closed && caller.told[&id].peer.is_some());
        assert_eq!(caller.told[&id].end, Some(None));
    }
}

pub fn a_reset_at_once_is_told_as_one_of_two<W: Network>(world: &W, _seed: u64) {
    for _ in 0..4 {
        let (far, address) = world.far(SocketKind::Tcp);
        let mut caller = Caller::new(world, 4);
        let id = caller.connect(&address);
        caller.until("the end", |caller| {
            if let Some(client) = world.answer(&far) {
                world.client_reset(client);
            }
            caller.told[&id].end.is_some()
        });
        let told = &caller.told[&id];
        assert!(told.end.flatten().is_some(), "{told:?}");
        assert!(told.bytes.is_empty());
        caller.until("a broken send", |caller| caller.send(id, b"x").is_err());
    }
}

pub fn a_side_that_finishes_still_receives<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let (far, address) = world.far(kind);
        let mut caller = Caller::new(world, 4);
        let (client, id) = caller.meet(world, &far, &address);
        caller.send_all(world, id, &client, b"that was all");
        caller.reactor.finish(id);
        let mut got = Vec::new();
        caller.until("the far end", |_| drain(world, &client, &mut got));
        assert!(got.is_empty());
        let bytes = pattern(seed, 200_000);
        let mut sent = 0;
        caller.until("all came", |caller| {
            let end = bytes.len().min(sent + 9_000);
            sent += world.client_send(&client, &bytes[sent..end]).unwrap_or(0);
            caller.told[&id].bytes.len() == bytes.len()
        });
        assert!(caller.told[&id].bytes == bytes);
        world.client_finish(&client);
        caller.until("the end", |caller| caller.told[&id].end == Some(None));
    }
}

pub fn a_pause_from_before_holds_bytes_and_not_the_news<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let (far, address) = world.far(kind);
        let mut caller = Caller::new(world, 4);
        let id = caller.connect(&address);
        caller.reactor.set_receiving(id, false);
        let mut client = None;
        caller.until("the news", |caller| {
            client = client.take().or_else(|| world.answer(&far));
            caller.told[&id].peer.is_some() && client.is_some()
        });
        let client = client.unwrap();
        assert_eq!(world.client_send(&client, b"held"), Ok(4));
        world.client_finish(&client);
        for _ in 0..10 {
            caller.turn();
        }
        assert!(caller.told[&id].bytes.is_empty() && caller.told[&id].end.is_none());
        caller.reactor.set_receiving(id, true);
        caller.until("the end", |caller| caller.told[&id].end == Some(None));
        assert_eq!(caller.told[&id].bytes, b"held");
    }
}

pub fn a_reactor_connects_to_itself_many_times<W: Network>(world: &W, seed: u64) {
    let count: usize = if W::IS_REAL { 100 } else { 20 };
    for kind in KINDS {
        let mut caller = Caller::new(world, 2 * count as u32);
        let wanted = world.address(kind);
        let listener = caller.reactor.listen(&wanted, ListenOptions::default()).unwrap();
        let address = to_connect(&caller.reactor.listen_address(listener).unwrap());
        let asked: Vec<_> = (0..count).map(|_| caller.connect(&address)).collect();
        let bytes = pattern(seed, 3_000);
        let mut sent = vec![0; count];
        let mut echoed: BTreeMap<ConnectionId, usize> = BTreeMap::new();
        caller.until("all echoes", |caller| {
            for (at, id) in asked.iter().enumerate() {
                sent[at] += caller.send(*id, &bytes[sent[at]..]).unwrap();
            }
            let accepted: Vec<_> = caller
                .told
                .iter()
                .filter(|(_, told)| told.was_accepted)
                .map(|(id, told)| (*id, told.bytes.clone()))
                .collect();
            for (id, came) in accepted {
                let from = echoed.entry(id).or_default();
                *from += caller.reactor.send(id, &[IoSlice::new(&came[*from..])]).unwrap();
            }
            asked.iter().all(|id| caller.told[id].bytes.len() == bytes.len())
        });
        assert!(asked.iter().all(|id| caller.told[id].bytes == bytes));
        let counters = &caller.reactor.counters().sockets;
        assert_eq!(
            (counters.connected_count, counters.accepted_count),
            (count as u64, count as u64)
        );
        for id in asked {
            caller.close(id);
        }
        caller.until("their ends", |caller| caller.told.values().all(|told| told.end.is_some()));
    }
}

pub fn a_connection_that_was_asked_for_moves_as_any_other<W: Network>(world: &W, seed: u64) {
    for kind in KINDS {
        let (far, address) = world.far(kind);
        let (mut caller, mut other) = (Caller::new(world, 4), Caller::new(world, 4));
        let (client, id) = caller.meet(world, &far, &address);
        caller.reactor.release(id);
        let mut socket = None;
        caller.until("released", |caller| {
            socket = caller.told.get_mut(&id).unwrap().released.take();
            socket.is_some()
        });
        let socket = socket.unwrap();
        assert_eq!(Some(socket.peer()), caller.told[&id].peer);
        let peer = Some(socket.peer());
        let id = other.reactor.adopt(socket).unwrap();
        other.told.insert(id, ConnectEvents { peer, ..ConnectEvents::default() });
        other.send_all(world, id, &client, &pattern(seed, 100_000));
        assert_eq!(world.client_send(&client, b"both ways"), Ok(9));
        other.until("the bytes", |other| other.told[&id].bytes == b"both ways");
    }
}

/// Runs alone, because it counts descriptors.
pub fn a_dropped_reactor_gives_up_what_it_asked_for<W: Network>(world: &W, _seed: u64) {
    let (queue, far, silence) = world.silence();
    let fds_before = open_fds();
    for turns in [0, 1, 3] {
        let mut caller = Caller::new(world, 4);
        caller.connect(&silence);
        caller.connect(&world.nobody(SocketKind::Tcp));
        caller.connect(&world.nobody(SocketKind::Unix));
        (0..turns).for_each(|_| caller.turn());
        drop(caller);
        assert_eq!(open_fds(), fds_before);
    }
    drop((queue, far));
}

/// Runs alone, because the limit is that of the whole process.
pub fn out_of_descriptors_nothing_is_left_behind<W: Network>(world: &W, _seed: u64) {
    for kind in KINDS {
        let (far, address) = world.far(kind);
        let mut caller = Caller::new(world, 4);
        let limit = world.limit_descriptors(0);
        for _ in 0..3 {
            let error = caller.reactor.connect(&address).unwrap_err();
            let ConnectError::Failed { error: reason, .. } = error else { panic!("{error}") };
            assert_eq!(reason, IoError(libc::EMFILE));
            assert_eq!(caller.reactor.connection_count(), 0);
        }
        drop(limit);
        let (_client, id) = caller.meet(world, &far, &address);
        assert!(caller.told[&id].end.is_none());
    }
}

/// Connects in all ways and closes at any moment. Every remaining connection gets its events and
/// every byte.
pub fn a_storm_of_tries_and_closes_loses_nothing<W: Network>(world: &W, seed: u64) {
    let mut random = Random::new(seed);
    let (far, address) = world.far(SocketKind::Tcp);
    let refused = world.nobody(SocketKind::Tcp);
    let nowhere = world.nowhere();
    let mut caller = Caller::new(world, 16);
    let mut clients = Vec::new();
    let mut asked: Vec<ConnectionId> = Vec::new();
    for _ in 0..400 {
        match random.below(6) {
            0 | 1 => {
                let to = [&address, &address, &refused, &nowhere][random.below(4) as usize];
                if let Ok(id) = caller.reactor.connect(to) {
                    assert!(caller.told.insert(id, ConnectEvents::default()).is_none());
                    asked.push(id);
                }
            }
            2 if !asked.is_empty() => {
                let id = asked.swap_remove(random.below(asked.len() as u64) as usize);
                caller.close(id);
            }
            3 if !asked.is_empty() => {
                let id = asked[random.below(asked.len() as u64) as usize];
                caller.reactor.set_receiving(id, random.chance(1, 2));
                let _ = caller.send(id, b"x");
            }
            4 => clients.extend(world.answer(&far)),
            _ => caller.turn(),
        }
    }
    for id in &asked {
        caller.reactor.set_receiving(*id, true);
    }
    caller.until("all news", |caller| {
        clients.extend(world.answer(&far));
        caller.told.values().all(|told| told.peer.is_some() || told.end.is_some())
    });
    for id in asked {
        caller.close(id);
    }
    assert_eq!(caller.reactor.connection_count(), 0);
    let (client, id) = loop {
        // Closed connections still wait in the queue and may hold places.
        clients.extend(std::iter::from_fn(|| world.answer(&far)));
        caller.turn();
        if let Ok(id) = caller.reactor.connect(&address) {
            caller.told.insert(id, ConnectEvents::default());
            let mut found = None;
            caller.until("one more", |caller| {
                let _ = caller.send(id, b"me");
                found = found.take().or_else(|| {
                    clients.extend(std::iter::from_fn(|| world.answer(&far)));
                    let is_mine = |client: &W::Client| {
                        let mut first = [0];
                        world.client_receive(client, &mut first) == Ok(1) && first == *b"m"
                    };
                    clients.iter().rposition(is_mine)
                });
                found.is_some()
            });
            break (clients.swap_remove(found.unwrap()), id);
        }
    };
    assert_eq!(world.client_send(&client, b"found"), Ok(5));
    caller.until("found", |caller| caller.told[&id].bytes == b"found");
}

#[test]
fn ipv6_is_connected_to() {
    fn test(reactor: &mut dyn Reactor) {
        let Ok(far) = TcpListener::bind("[::1]:0") else { return println!("not run: no IPv6") };
        let internet = far.local_addr().unwrap();
        let id = reactor.connect(&ConnectAddress::Tcp(internet)).unwrap();
        let (stream, peer): (TcpStream, _) = far.accept().unwrap();
        loop {
            reactor.wait(None);
            reactor.poll();
            if let Some(SocketEvent::Connected { connection, peer }) = reactor.next_socket_event() {
                assert_eq!((connection, peer), (id, Peer::Tcp(internet)));
                break;
            }
        }
        assert!(peer.is_ipv6() && stream.peer_addr().unwrap() == peer);
        assert_eq!(reactor.send(id, &[IoSlice::new(b"six")]), Ok(3));
    }
    test(&mut PolledReactor::new().unwrap());
    match UringReactor::new() {
        Ok(mut reactor) => test(&mut reactor),
        Err(reason) => println!("not run: {reason}"),
    }
}
