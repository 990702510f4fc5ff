//! Tests of exchanges with scripted servers in the seeded world, with every kind of delay, cut,
//! refusal and reset. The owner gives up, pauses and resumes at random, and an oracle knows what
//! each server has sent.

use crate::server::outgoing;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::agent::NetFaultKind;
use crate::base::Random;
use crate::engine::EngineLimits;
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::reactor::{ConnectAddress, ListenAddress, Reactor, SocketLimits};
use crate::server::outgoing::{Deadlines, ExchangeId, ResponseEvent, Target};
use crate::server::{GuestConfig, OutgoingConfig, ServerShard};
use crate::shard::ShardConfig;
use crate::sim::network::{SimClient, SimRoute};
use crate::sim::reactor::SimReactor;
use crate::sim::world::{EAGAIN, SimFaults, SimWorld};
use crate::trace::Counters;

const PORT: u16 = 7_000;
const STEPS: u32 = 500;

/// The body of the reply to exchange `number`, and the bytes that spell the reply.
fn answer(seed: u64, number: u32) -> (Vec<u8>, Vec<u8>) {
    let mut random = Random::new(seed << 32 | u64::from(number));
    let mut body = format!("<{number}>").repeat(random.below(800) as usize).into_bytes();
    if random.chance(1, 4) {
        body.truncate(10);
    }
    let mut bytes = Vec::new();
    if random.chance(1, 8) {
        bytes.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    match random.below(4) {
        0 => {
            bytes.extend_from_slice(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            for piece in body.chunks(random.between(1, 900) as usize) {
                bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                bytes.extend_from_slice(piece);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        }
        _ => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            bytes.extend_from_slice(head.as_bytes());
            bytes.extend_from_slice(&body);
        }
    }
    (body, bytes)
}

/// One connection of a server.
struct Peer {
    client: SimClient,
    inbox: Vec<u8>,
    /// The reply that it is sending: the exchange, the bytes, their position, and its next step.
    saying: Option<(u32, Vec<u8>, usize, Fate)>,
    request_count: usize,
    is_gone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    GoOn,
    Close,
    Reset,
    Silence,
}

/// A request that has arrived: whether it is the first of its connection, and the bytes sent in
/// reply.
#[derive(Debug)]
struct Arrival {
    is_first: bool,
    said_bytes: usize,
}

#[derive(Debug, Default)]
struct Got {
    number: u32,
    status: Option<u16>,
    body: Vec<u8>,
    is_reading: bool,
}

struct OutgoingRun {
    seed: u64,
    random: Random,
    world: SimWorld,
    shard: ServerShard<SimReactor>,
    listeners: Vec<ListenAddress>,
    peers: Vec<Peer>,
    arrivals: BTreeMap<u32, Vec<Arrival>>,
    live: BTreeMap<ExchangeId, Got>,
    asked_count: u32,
    history: History,
    kinds: BTreeMap<&'static str, u32>,
    buffer: Vec<u8>,
}

impl OutgoingRun {
    fn new(seed: u64) -> OutgoingRun {
        let world = SimWorld::new(seed, SimFaults::ALL);
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        let at = |last| SocketAddr::new(ip(last), PORT);
        let listeners =
            [1, 2].map(|last| world.listen(&ListenAddress::Tcp(at(last))).unwrap()).to_vec();
        world.set_route(&ConnectAddress::Tcp(at(9)), Some(SimRoute::Silent));
        world.set_connect_fault_chance(100);
        let names: Vec<(Box<str>, Vec<IpAddr>)> = vec![
            ("one".into(), vec![ip(9), ip(1)]),        // Silent, then there.
            ("two".into(), vec![ip(8), ip(2), ip(1)]), // Refused, then there.
            ("lost".into(), vec![ip(8), ip(9)]),
        ];
        let config = ShardConfig {
            engine: EngineLimits { executions_max: 8, ..EngineLimits::default() },
            rings: RingPoolConfig {
                prealloc_bytes: 0,
                bytes_max: 1 << 20,
                ..RingPoolConfig::default()
            },
            sockets: Some(SocketLimits { connections_max: 128, listeners_max: 1 }),
            seed: Some(seed),
            guests: GuestConfig {
                outgoing: OutgoingConfig { names: Some(names.into()), ..OutgoingConfig::default() },
                ..Default::default()
            },
            ..ShardConfig::default()
        };
        let shard = ServerShard::over(SimReactor::new(&world), config).unwrap();
        OutgoingRun {
            seed,
            random: Random::new(seed),
            world,
            shard,
            listeners,
            peers: Vec::new(),
            arrivals: BTreeMap::new(),
            live: BTreeMap::new(),
            asked_count: 0,
            history: Vec::new(),
            kinds: BTreeMap::new(),
            buffer: Vec::new(),
        }
    }

    fn ask(&mut self) {
        let hosts = ["one", "two", "10.0.0.1", "10.0.0.2", "lost", "unknown"];
        let weights = [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 5];
        let host = hosts[weights[self.random.below(12) as usize]];
        let mut within = |low, high| Duration::from_micros(self.random.between(low, high));
        let deadlines = Deadlines {
            connect: within(500, 400_000),
            first_byte: within(500, 30_000),
            between_bytes: within(500, 30_000),
            total: within(10_000, 500_000),
        };
        let number = self.asked_count;
        self.asked_count += 1;
        let body = format!("{number:06}{}", "?".repeat(self.random.below(3_000) as usize));
        let head = format!("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n", body.len());
        let to = Target { is_tls: false, host: host.into(), port: PORT };
        let id =
            outgoing::ask_outside(&mut self.shard, &to, (head + &body).into_bytes(), deadlines);
        let got = Got { number, is_reading: true, ..Got::default() };
        assert!(self.live.insert(id, got).is_none(), "a name came twice");
    }

    /// Takes a random step of the owner.
    fn act(&mut self) {
        if self.live.len() < 30 && self.random.chance(1, 4) {
            self.ask();
        }
        let at = self.random.below(1 + self.live.len() as u64) as usize;
        let Some((&id, got)) = self.live.iter_mut().nth(at) else { return };
        match self.random.below(60) {
            0..8 => {
                got.is_reading = !got.is_reading;
                outgoing::set_exchange_reading(&mut self.shard, id, got.is_reading);
            }
            8 => {
                outgoing::drop_exchange(&mut self.shard, id);
                self.live.remove(&id);
            }
            9..12 => {
                outgoing::release_exchange(&mut self.shard, id);
                self.live.remove(&id);
            }
            _ => {}
        }
    }

    fn hear(&mut self) {
        let now = self.world.now().nanos();
        while let Some((id, heard)) = outgoing::poll_response(&mut self.shard, &mut self.buffer) {
            let got = self.live.get_mut(&id).expect("who was given up is not heard of");
            let number = got.number;
            let (expected, _) = answer(self.seed, number);
            match &heard {
                ResponseEvent::Head { status, .. } => {
                    assert!(got.status.replace(*status).is_none(), "a second head");
                }
                ResponseEvent::Body => {
                    assert!(got.status.is_some() && !self.buffer.is_empty());
                    got.body.extend_from_slice(&self.buffer);
                    assert!(expected.starts_with(&got.body), "of another exchange");
                    self.history.push((now, number, format!("{} bytes", self.buffer.len())));
                    self.buffer.clear();
                }
                ResponseEvent::End => {
                    assert!(got.status == Some(200) && got.body == expected, "not the whole");
                    *self.kinds.entry("end").or_default() += 1;
                    self.live.remove(&id);
                }
                ResponseEvent::Broken(fault) => {
                    let arrived = self.arrivals.contains_key(&number);
                    assert!(fault.was_sent || !arrived, "{fault:?}");
                    assert!(fault.was_received || got.status.is_none(), "{fault:?}");
                    *self.kinds.entry(fault.kind.code()).or_default() += 1;
                    self.live.remove(&id);
                }
            }
            self.history.push((now, number, format!("{heard:?}")));
        }
    }

    /// Takes a step of each server.
    fn serve(&mut self) {
        for listener in &self.listeners {
            while let Some(client) = self.world.answer(listener) {
                let (inbox, saying) = Default::default();
                let peer = Peer { client, inbox, saying, request_count: 0, is_gone: false };
                self.peers.push(peer);
            }
        }
        for peer in &mut self.peers {
            if !peer.is_gone && self.random.chance(1, 2) {
                peer.act(self.seed, &self.world, &mut self.random, &mut self.arrivals);
            }
        }
        self.peers.retain(|peer| !peer.is_gone);
    }

    fn pass(&mut self, duration: Duration) {
        self.world.advance_to(self.world.now() + duration);
        self.shard.turn();
        if self.random.chance(1, 10) {
            self.shard.audit();
        }
        self.hear();
    }

    fn step(&mut self) {
        self.act();
        self.serve();
        let is_long = self.random.chance(1, 40);
        let micros = self.random.below(if is_long { 4_000 } else { 60 });
        self.pass(Duration::from_micros(micros));
    }

    /// Runs until every exchange has ended, and nothing is held any more.
    fn finish(&mut self) {
        for (id, got) in &mut self.live {
            got.is_reading = true;
            outgoing::set_exchange_reading(&mut self.shard, *id, true);
        }
        for _ in 0..600 {
            self.serve();
            self.pass(Duration::from_millis(1));
        }
        assert!(self.live.is_empty(), "never ended: {:?}", self.live);
        self.pass(limits::MODEL_KEPT_IDLE);
        for _ in 0..100 {
            self.pass(Duration::from_millis(1));
        }
        assert_eq!(self.shard.reactor_mut().connection_count(), 0, "a connection is left");
    }

    /// Checks that no request was carried out twice without need.
    fn check_repetitions(&self) {
        for (number, arrivals) in &self.arrivals {
            if let [first, _second] = &arrivals[..] {
                assert!(!first.is_first && first.said_bytes == 0, "{number}: {arrivals:?}");
            }
            assert!(arrivals.len() <= 2, "{number}: {arrivals:?}");
        }
    }
}

impl Peer {
    fn act(
        &mut self,
        seed: u64,
        world: &SimWorld,
        random: &mut Random,
        arrivals: &mut BTreeMap<u32, Vec<Arrival>>,
    ) {
        if let Some((number, bytes, said_bytes, fate)) = &mut self.saying {
            let end = bytes.len().min(*said_bytes + random.between(1, 2_000) as usize);
            match world.client_send(self.client, &bytes[*said_bytes..end]) {
                Ok(count) => {
                    *said_bytes += count;
                    let all = arrivals.get_mut(number).expect("it has arrived");
                    all.last_mut().expect("it has arrived").said_bytes += count;
                }
                Err(EAGAIN) => return,
                Err(_) => self.is_gone = true,
            }
            if *said_bytes < bytes.len() || self.is_gone {
                return;
            }
            match fate {
                Fate::GoOn => self.saying = None,
                Fate::Silence => {}
                Fate::Close => self.leave(world),
                Fate::Reset => {
                    world.client_reset(self.client);
                    self.is_gone = true;
                }
            }
            return;
        }
        let mut piece = [0; 700];
        match world.client_receive(self.client, &mut piece) {
            Ok(0) => self.leave(world),
            Ok(count) => self.inbox.extend_from_slice(&piece[..count]),
            Err(EAGAIN) if self.request_count > 0 && random.chance(1, 60) => self.leave(world),
            Err(EAGAIN) => {}
            Err(_) => self.is_gone = true,
        }
        self.take_request(seed, random, arrivals);
    }

    fn leave(&mut self, world: &SimWorld) {
        world.client_close(self.client);
        self.is_gone = true;
    }

    fn take_request(
        &mut self,
        seed: u64,
        random: &mut Random,
        arrivals: &mut BTreeMap<u32, Vec<Arrival>>,
    ) {
        let text = std::str::from_utf8(&self.inbox).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return };
        let (_, length) = head.split_once("content-length: ").unwrap();
        let length: usize = length.parse().unwrap();
        if body.len() < length {
            return;
        }
        assert_eq!(body.len(), length, "more than one request");
        let number: u32 = body[..6].parse().unwrap();
        self.inbox.clear();
        let arrival = Arrival { is_first: self.request_count == 0, said_bytes: 0 };
        arrivals.entry(number).or_default().push(arrival);
        self.request_count += 1;
        let (_, mut bytes) = answer(seed, number);
        let fate = match random.below(10) {
            0 => Fate::Close,
            1 => Fate::Reset,
            2 => Fate::Silence,
            _ => Fate::GoOn,
        };
        if fate == Fate::Close && random.chance(1, 2) {
            bytes.clear(); // Closed before the request came.
        } else if fate != Fate::GoOn {
            bytes.truncate(random.below(1 + bytes.len() as u64) as usize);
        } else if random.chance(1, 12) {
            bytes.extend_from_slice(b"HTTP/1.1 408 Nobody asked\r\n\r\n");
        }
        self.saying = Some((number, bytes, 0, fate));
    }
}

/// The steps of a run: time, exchange, and event.
type History = Vec<(u64, u32, String)>;

fn run(seed: u64) -> (History, BTreeMap<&'static str, u32>, Counters) {
    let mut run = OutgoingRun::new(seed);
    for _ in 0..STEPS {
        run.step();
    }
    run.finish();
    run.check_repetitions();
    (run.history, run.kinds, run.shard.counters())
}

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(text) => vec![text.parse().expect("SEED is a number")],
        Err(_) => (1..=count).collect(),
    }
}

#[test]
fn whatever_the_network_does_each_exchange_has_one_end_and_no_byte_of_another() {
    let mut kinds = BTreeMap::new();
    let mut counters = Counters::default();
    for seed in seeds(60) {
        println!("SEED={seed}"); // Shown when it fails.
        let (_, seen, counted) = run(seed);
        for (kind, count) in seen {
            *kinds.entry(kind).or_insert(0) += count;
        }
        counters.merge(&counted);
    }
    println!("{kinds:?} repeated {}", counters.model_exchanges_repeated);
    if std::env::var("SEED").is_err() {
        let expected = [
            NetFaultKind::Resolve,
            NetFaultKind::Connect,
            NetFaultKind::Broken,
            NetFaultKind::FirstByte,
            NetFaultKind::Silent,
            NetFaultKind::TooSlow,
        ];
        for kind in expected {
            assert!(kinds.contains_key(kind.code()), "{kind:?} never happened: {kinds:?}");
        }
        assert!(kinds["end"] > 1_000);
        assert!(counters.model_exchanges_repeated > 20);
        assert!(counters.model_connections_reused > 1_000);
    }
}

#[test]
fn the_same_seed_hears_the_same_and_another_does_not() {
    for seed in seeds(5) {
        let (first, second, other) = (run(seed).0, run(seed).0, run(seed + 1).0);
        assert!(first == second, "SEED={seed}");
        assert!(first != other, "SEED={seed}");
    }
}
