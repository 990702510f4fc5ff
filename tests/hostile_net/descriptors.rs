//! A server that has 64 descriptors.

use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::ALONE;
use crate::normal::{Follower, NormalClient};
use crate::served::Server;

const DESCRIPTORS: u64 = 64;
const VISITORS: usize = 100;
const LOOK: Duration = Duration::from_secs(3);
/// Maximum number of clock ticks (10 ms) that a server may use within [`LOOK`], which has 300. A
/// server that retries in a loop uses most of them.
const TICKS_MAX: u64 = 100;

fn allow(server: &Server, descriptors: u64) {
    let process = Pid::from_raw(server.process_id() as i32);
    let maximum = Some(DESCRIPTORS.max(descriptors));
    let limit = Rlimit { current: Some(descriptors), maximum };
    prlimit(process, Resource::Nofile, limit).unwrap();
}

fn survive(reactor: &str) {
    let server = Server::start(&["--reactor", reactor]);
    let mut client = NormalClient::new(&server);
    let mut follower = Follower::new(&server);
    follower.read(5);
    allow(&server, DESCRIPTORS);
    // More than the server can take. A connection that is not accepted waits in the kernel.
    let mut visitors: Vec<_> = (0..VISITORS).map(|_| server.connect()).collect();
    for visitor in &mut visitors {
        visitor.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    }
    let exhaustions = |client: &mut NormalClient| {
        let body = client.ask_text("/metrics");
        let line =
            body.lines().find(|line| line.starts_with("streamdoor_listener_exhaustions_total"));
        line.unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    while exhaustions(&mut client) == 0 {
        follower.read(1);
    }
    let before = server.ticks();
    std::thread::sleep(LOOK);
    let ticks = server.ticks() - before;
    println!("{reactor}: {ticks} ticks of 10 ms in {} s without a descriptor", LOOK.as_secs());
    assert!(ticks <= TICKS_MAX, "it spins");
    follower.read(5);
    client.check();
    // Every visitor is served once descriptors are free, without a second request.
    let mut answered = 0;
    while !visitors.is_empty() {
        let mut waiting = Vec::new();
        for mut visitor in visitors {
            visitor.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let mut answer = [0; 12];
            match visitor.read_exact(&mut answer) {
                Ok(()) => {
                    assert_eq!(&answer, b"HTTP/1.1 200");
                    answered += 1;
                }
                Err(_) => waiting.push(visitor),
            }
        }
        visitors = waiting;
    }
    assert_eq!(answered, VISITORS);
    NormalClient::new(&server).check();
    follower.read(5);
}

/// A server with few places, all of them taken by requests that do not end.
#[test]
fn a_server_with_few_descriptors_tells_others_that_it_is_full() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    for reactor in ["uring", "mio"] {
        // Fifteen descriptors are left for connections. The server computes its own need at the
        // start.
        let launcher = ["sh", "-c", "ulimit -n 120; exec \"$@\"", "sh"].map(str::to_owned);
        let arguments = ["--reactor", reactor, "--tool-threads-max", "1"];
        let server = Server::start_by(&launcher, &arguments);
        let mut follower = Follower::new(&server);
        let visit = |_| {
            let mut visitor = server.connect();
            visitor.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
            visitor
        };
        let visitors: Vec<_> = (0..VISITORS).map(visit).collect();
        let before = server.ticks();
        let mut turned_away = 0;
        for mut visitor in &visitors {
            visitor.set_read_timeout(Some(LOOK / VISITORS as u32)).unwrap();
            let mut answer = String::new();
            let _ = visitor.read_to_string(&mut answer);
            if answer.starts_with("HTTP/1.1 503 ") {
                assert!(answer.contains("retry-after: "), "{answer}");
                assert!(answer.contains("too_many_connections"), "{answer}");
                turned_away += 1;
            }
        }
        let ticks = server.ticks() - before;
        println!("{reactor}: {turned_away} of {VISITORS} told that it is full; {ticks} ticks");
        assert!(turned_away > 0 && ticks <= TICKS_MAX, "{turned_away} told, {ticks} ticks");
        drop(visitors);
        NormalClient::patient(&server).check();
        follower.read(5);
    }
}

#[test]
fn a_server_without_descriptors_serves_those_that_it_has_and_recovers() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    // An accept of io_uring keeps the limit that held when it was armed. This test works for the
    // other reactor only. `src/sim/contract/exhaustion.rs` tests both reactors within the process.
    survive("mio");
}

#[test]
fn a_server_that_cannot_have_what_it_needs_says_so_and_does_not_start() {
    let script = "ulimit -n 64; exec \"$@\"";
    let program = env!("CARGO_BIN_EXE_streamdoor");
    let words =
        ["-c", script, "sh", program, "serve", "--journal", "off", "--listen", "127.0.0.1:0"];
    let output = Command::new("sh").args(words).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("64 descriptors") && error.contains("ulimit -n"), "{error}");
}
