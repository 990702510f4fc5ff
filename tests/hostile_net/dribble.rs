//! Thousands of connections that send a byte of a request head now and then. They come from
//! processes of their own, because one process has too few descriptors.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::ALONE;
use crate::normal::{Follower, NormalClient};
use crate::served::Server;
use streamdoor::base::Instant;
use streamdoor::limits;
use streamdoor::reactor::Clock;

const WANTED: u64 = 20_000;
/// Maximum number of connections of one client process. Some descriptors are left for everything
/// else.
const EACH_MAX: u64 = 9_000;
/// The server's own descriptors, with one thread for tools.
const SERVER_OWN: u64 = limits::DESCRIPTORS_OF_PROCESS + limits::DESCRIPTORS_PER_SHARD + 1 + 8;
/// Connections that do not dribble.
const OTHERS: u64 = 64;
/// The variable that makes this program a client process. Its value is `ADDRESS COUNT`.
const ROLE: &str = "HOSTILE_NET_DRIBBLES";
/// Tolerance for the server's deadlines. A turn reads the clock before the sockets, and other work
/// of a busy machine can come in between.
const TURN: Duration = Duration::from_secs(3);
const BYTE_EVERY: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(50);

/// Descriptors that this process and its children may have.
fn descriptors_max() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().parse().unwrap_or(u64::MAX)
}

/// A connection that dribbles.
struct Dribbler {
    stream: TcpStream,
    begun_at: Instant,
    /// The time from the start to the server's response or to the close, whichever came first.
    told: Option<Duration>,
    is_closed: bool,
}

impl Dribbler {
    fn new(address: &str) -> Dribbler {
        let begun_at = Clock::now();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /v1/tools HTTP/1.1\r\nX-Slow: ").unwrap();
        stream.set_nonblocking(true).unwrap();
        Dribbler { stream, begun_at, told: None, is_closed: false }
    }

    fn dribble(&mut self) {
        if self.told.is_none() {
            let _ = self.stream.write(b"x"); // An error is seen by the next read.
        }
    }

    fn look(&mut self) {
        let mut buffer = [0; 1_024];
        loop {
            match self.stream.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(count) if count > 0 => {
                    assert!(buffer.starts_with(b"HTTP/1.1 408 ") || self.told.is_some());
                    self.told.get_or_insert(Clock::now().since(self.begun_at));
                }
                Ok(_) | Err(_) => {
                    self.told.get_or_insert(Clock::now().since(self.begun_at));
                    self.is_closed = true;
                    return;
                }
            }
        }
    }
}

/// The client's side, which runs in a process of its own. Returns at once if [`ROLE`] is not set.
#[test]
fn dribblers() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (address, count) = role.split_once(' ').unwrap();
    let mut poll = Poll::new().unwrap();
    let mut dribblers = Vec::new();
    for index in 0..count.parse::<usize>().unwrap() {
        let dribbler = Dribbler::new(address);
        let descriptor = dribbler.stream.as_raw_fd();
        let mut source = SourceFd(&descriptor);
        poll.registry().register(&mut source, Token(index), Interest::READABLE).unwrap();
        dribblers.push(dribbler);
    }
    println!("\ndribble all");
    let mut events = Events::with_capacity(1_024);
    let (mut closed_count, mut round) = (0, 0);
    let each_round = dribblers.len().div_ceil((BYTE_EVERY.as_millis() / LOOK.as_millis()) as usize);
    let mut next_at = Clock::now();
    while closed_count < dribblers.len() {
        poll.poll(&mut events, Some(LOOK)).unwrap();
        for event in &events {
            let dribbler = &mut dribblers[event.token().0];
            if !dribbler.is_closed {
                dribbler.look();
                closed_count += usize::from(dribbler.is_closed);
            }
        }
        if next_at <= Clock::now() {
            next_at += LOOK;
            for _ in 0..each_round {
                let count = dribblers.len();
                dribblers[round % count].dribble();
                round += 1;
            }
        }
    }
    // A connection that came a second earlier must also have been closed earlier.
    let gone_at = |d: &Dribbler| d.begun_at + d.told.expect("all are closed");
    let mut latest_before = None;
    let mut earlier = dribblers.iter().peekable();
    let mut inversions = 0;
    for dribbler in &dribblers {
        let is_earlier = |d: &&Dribbler| d.begun_at + Duration::from_secs(1) < dribbler.begun_at;
        while let Some(before) = earlier.next_if(is_earlier) {
            latest_before = latest_before.max(Some(gone_at(before)));
        }
        inversions += u32::from(latest_before.is_some_and(|latest| latest > gone_at(dribbler)));
    }
    let mut told: Vec<u128> = dribblers.iter().map(|d| d.told.unwrap().as_millis()).collect();
    told.sort_unstable();
    let (first, middle, last) = (told[0], told[told.len() / 2], told[told.len() - 1]);
    println!("dribble gone {first} {middle} {last} {inversions}");
}

struct Helper {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Helper {
    fn start(address: &str, count: u64) -> Helper {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "dribble::dribblers", "--nocapture"]);
        command.env(ROLE, format!("{address} {count}")).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Helper { child, lines }
    }

    /// Waits for a line of the client process with this word, and returns the numbers behind it.
    fn wait_for(&mut self, word: &str) -> Vec<u64> {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "a client ended without {word}");
            let mut words = line.split_whitespace();
            if (words.next(), words.next()) == (Some("dribble"), Some(word)) {
                return words.map(|number| number.parse().unwrap()).collect();
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks that a server with `count` dribbling connections still serves all others.
fn withstand(reactor: &str, count: u64) {
    let server = Server::start(
        &["--reactor", reactor, "--tool-threads-max", "1"]
            .into_iter()
            .chain(["--connections-max", "20000"])
            .collect::<Vec<_>>(),
    );
    let (mut client, mut idle) = (NormalClient::new(&server), NormalClient::new(&server));
    let mut follower = Follower::new(&server);
    idle.check();
    client.check(); // A connection with one finished request may be idle for longer.
    let helpers = count.div_ceil(EACH_MAX);
    let mut helpers: Vec<Helper> =
        (0..helpers).map(|_| Helper::start(server.address(), count / helpers)).collect();
    helpers.iter_mut().for_each(|helper| _ = helper.wait_for("all"));
    let total: u64 = helpers.len() as u64 * (count / helpers.len() as u64);
    let mut rounds = 0;
    let mut most = 0;
    while client.ask("GET", "/healthz", "").status == 200 {
        client.check();
        follower.read(1);
        rounds += 1;
        let now = server.metric("streamdoor_connections");
        most = now.max(most);
        if server.metric("streamdoor_requests_timed_out_total") == total {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let deadline_ms = (limits::REQUEST_DEADLINE - TURN).as_millis() as u64;
    for helper in &mut helpers {
        let gone = helper.wait_for("gone");
        let [first_ms, middle_ms, last_ms, inversions] = gone[..] else { panic!("{gone:?}") };
        println!(
            "{reactor}: told after {first_ms} ms at first, {middle_ms} ms in the middle, \
             {last_ms} ms at last; out of order: {inversions}"
        );
        assert!(first_ms >= deadline_ms, "too early: {first_ms} ms");
        assert_eq!(inversions, 0, "who came a second earlier was told later");
    }
    println!(
        "{reactor}: {total} dribbled, {most} connections at once; {rounds} rounds beside them"
    );
    idle.check(); // It was idle within its limit and kept its place.
    client.check();
    follower.read(10);
    assert_eq!(server.metric("streamdoor_connections_evicted_total"), 0);
    assert_eq!(server.metric("streamdoor_connections_turned_away_total"), 0);
    assert_eq!(server.metric("streamdoor_requests_timed_out_total"), total);
}

#[test]
fn who_dribbles_is_gone_by_the_deadline_and_nobody_else_notices() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    // Below the share of places at which idle connections would be evicted.
    let places = descriptors_max().saturating_sub(SERVER_OWN).min(WANTED);
    let at_once = (places * limits::CONNECTIONS_EVICT_PERCENT / 100).saturating_sub(OTHERS);
    if at_once < WANTED {
        println!(
            "not run: {WANTED} at once at one server, which would need {} descriptors; {} are \
             allowed, so {at_once} at once, and the others at a server of their own",
            WANTED * 100 / limits::CONNECTIONS_EVICT_PERCENT + SERVER_OWN + OTHERS,
            descriptors_max()
        );
    }
    withstand("uring", at_once.min(WANTED));
}

#[test]
fn the_other_reactor_withstands_them_too() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    let places = descriptors_max().saturating_sub(SERVER_OWN).min(WANTED);
    let at_once = (places * limits::CONNECTIONS_EVICT_PERCENT / 100).saturating_sub(OTHERS);
    withstand("mio", (WANTED - at_once.min(WANTED)).max(2_000).min(at_once));
}
