//! The costs of idle streams and servers. Measures the memory of 10,000 idle streams, their effect
//! on 100 active ones, and the CPU time of an idle server.
#![cfg(feature = "cli")]

#[allow(dead_code, reason = "not every test needs all of it")]
mod limited;
mod served;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use serde_json::{Value, json};
use served::Server;
use streamdoor::base::Instant;
use streamdoor::reactor::Clock;

const IDLE_SUBSCRIBERS: u64 = 10_000;
/// Number of executions that the idle subscribers follow.
const IDLE_EXECUTIONS: u64 = 4;
const ACTIVE_EXECUTIONS: usize = 20;
const SUBSCRIBERS_OF_ACTIVE: usize = 5;
/// The time between two chunks. 20 executions with 5 subscribers each make 200 events a second.
const ACTIVE_DELAY_MS: u64 = 500;
const ACTIVE_FOR: Duration = Duration::from_secs(6);
/// Number of first chunks that are not measured: other subscribers still connect then, and the test
/// does not read.
const CHUNKS_SKIPPED: u64 = 3;
const LOOKS_AT_IDLE: Duration = Duration::from_secs(10);
/// The allowed wake-ups of an idle server in that time, besides keep-alive messages: requests of
/// the test itself, connection timers, and watch threads.
const IDLE_SLEEPS_MAX: u64 = 100;
/// A tenth of that time, in ticks of 10 ms. A thread that spins never sleeps, and takes half a core
/// or more.
const IDLE_TICKS_MAX: u64 = 100;

/// Held by each test, so that they run one at a time. They measure, and together they would need
/// twice the descriptors.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the number of descriptors that this process, and so its child, may have.
fn descriptors_max() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft = line.split_whitespace().nth(3).unwrap();
    soft.parse().unwrap_or(u64::MAX)
}

/// Reads through the `started` event. The test reads nothing after it.
fn read_started(stream: &mut TcpStream) {
    let mut head = Vec::new();
    let mut buffer = [0; 4_096];
    while !head.windows(14).any(|window| window == b"event: started") || !head.ends_with(b"\r\n") {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&head));
        head.extend_from_slice(&buffer[..count]);
    }
}

/// Creates an execution that waits for subscribers that never come.
fn silent_execution(server: &Server) -> String {
    server.execute(&json!({
        "tool": "slow_data_processor",
        "start": {"after_subscribers": 10_240, "deadline_ms": 3_600_000},
    }))
}

/// Returns a connection that has sent one request and then stays silent. The server would soon
/// close one without a request.
fn silent_connection(server: &Server) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = [0; 1_024];
    assert!(stream.read(&mut answer).unwrap() > 0);
    stream
}

/// Returns streams that receive nothing but their start.
fn follow_in_silence(server: &Server, count: u64, executions: u64) -> Vec<TcpStream> {
    let events: Vec<_> = (0..executions).map(|_| silent_execution(server)).collect();
    let follow = |index: u64| {
        let mut stream = server.follow(&events[(index % executions) as usize]);
        read_started(&mut stream);
        stream
    };
    (0..count).map(follow).collect()
}

/// Follows executions that publish now and then. Returns the latency of each event from its
/// publication to its reading, in µs, in ascending order.
fn latencies_us(server: &Server) -> Vec<u64> {
    let mut poll = Poll::new().unwrap();
    let mut streams = Vec::new();
    let chunks = ACTIVE_FOR.as_millis() as u64 / ACTIVE_DELAY_MS;
    for _ in 0..ACTIVE_EXECUTIONS {
        let events = server.execute(&json!({
            "tool": "slow_data_processor",
            "arguments": {"chunks": chunks, "delay_ms": ACTIVE_DELAY_MS},
            "start": {"after_subscribers": SUBSCRIBERS_OF_ACTIVE},
        }));
        for _ in 0..SUBSCRIBERS_OF_ACTIVE {
            let stream = server.follow(&events);
            stream.set_nonblocking(true).unwrap();
            let (descriptor, token) = (stream.as_raw_fd(), Token(streams.len()));
            let mut source = SourceFd(&descriptor);
            poll.registry().register(&mut source, token, Interest::READABLE).unwrap();
            streams.push((stream, Vec::new(), false));
        }
        // The executions start at different moments.
        std::thread::sleep(Duration::from_millis(ACTIVE_DELAY_MS / ACTIVE_EXECUTIONS as u64));
    }
    let (mut latencies, mut events) = (Vec::new(), Events::with_capacity(256));
    let mut ended_count = 0;
    while ended_count < streams.len() {
        poll.poll(&mut events, Some(Duration::from_secs(30))).unwrap();
        assert!(!events.is_empty(), "nothing comes any more");
        for event in &events {
            let (socket, kept, has_ended) = &mut streams[event.token().0];
            receive(socket, kept);
            let now = Clock::now();
            while let Some(end) = kept.windows(2).position(|two| two == b"\n\n") {
                note(&kept[..end], now, &mut latencies, has_ended);
                kept.drain(..end + 2);
            }
            ended_count += usize::from(std::mem::take(has_ended));
        }
    }
    assert_eq!(latencies.len() as u64, (chunks - CHUNKS_SKIPPED) * streams.len() as u64);
    latencies.sort_unstable();
    latencies
}

fn receive(socket: &mut TcpStream, kept: &mut Vec<u8>) {
    let mut buffer = [0; 64 << 10];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => panic!("a stream ended without an end"),
            Ok(count) => kept.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Records the latency of an SSE event.
fn note(text: &[u8], now: Instant, latencies: &mut Vec<u64>, has_ended: &mut bool) {
    let text = String::from_utf8_lossy(text);
    let Some((_, json)) = text.split_once("data: ") else { return };
    let event: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {text}"));
    if text.contains("event: chunk") && event["seq"].as_u64() > Some(CHUNKS_SKIPPED) {
        let published_at = Instant::from_nanos(event["mono_ns"].as_u64().unwrap());
        latencies.push(now.since(published_at).as_micros() as u64);
    }
    *has_ended |= text.contains("event: end");
}

fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

#[test]
fn idle_subscribers_take_little_memory_and_leave_active_ones_alone() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    let needed = IDLE_SUBSCRIBERS + 1_000;
    if descriptors_max() < needed {
        println!("not run: {needed} descriptors are needed, {} allowed", descriptors_max());
        return;
    }
    let server = Server::start(&["--subscribers-max", "16384"]);
    let alone = latencies_us(&server);
    let before_bytes = server.memory_bytes("VmRSS:");
    let idle = follow_in_silence(&server, IDLE_SUBSCRIBERS, IDLE_EXECUTIONS);
    assert_eq!(server.metric("streamdoor_streams"), IDLE_SUBSCRIBERS);
    let after_bytes = server.memory_bytes("VmRSS:");
    let each_bytes = after_bytes.saturating_sub(before_bytes) / IDLE_SUBSCRIBERS;
    println!(
        "memory of an idle subscriber: {each_bytes} B (the server has {} KiB, had {} KiB)",
        after_bytes >> 10,
        before_bytes >> 10,
    );
    let beside = latencies_us(&server);
    for (name, sorted) in [("alone", &alone), ("beside idle ones", &beside)] {
        let [p50, p99] = [50, 99].map(|percent| percentile(sorted, percent));
        let worst = sorted[sorted.len() - 1];
        println!("{} events {name}: p50 {p50} µs, p99 {p99} µs, max {worst} µs", sorted.len());
    }
    let ratio = percentile(&beside, 99) as f64 / percentile(&alone, 99).max(1) as f64;
    println!("p99 with idle ones / without: {ratio:.2}");
    assert_eq!(server.metric("streamdoor_streams"), IDLE_SUBSCRIBERS); // None was detached.
    drop(idle);
}

#[test]
fn an_idle_server_takes_no_time() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    // All cases share the same ten seconds. Connections without a request are closed after 60 s. In
    // ten seconds some of the streams send a keep-alive message. These are counted, and their work,
    // one send each, is part of the ticks.
    let cases = ["block", "backoff"].map(|idle| {
        [0, 1_000].map(|streams| {
            let server = Server::start(&["--idle", idle]);
            let connections: Vec<_> =
                (0..1_000 - streams).map(|_| silent_connection(&server)).collect();
            let followed = follow_in_silence(&server, streams, 1);
            (idle, server, connections, followed)
        })
    });
    let cases: Vec<_> = cases.into_iter().flatten().collect();
    std::thread::sleep(Duration::from_millis(500)); // The last accepts are done.
    let sends = "streamdoor_sends_total";
    let look = |server: &Server| (server.metric(sends), server.sleeps(), server.ticks());
    let before: Vec<_> = cases.iter().map(|(_, server, ..)| look(server)).collect();
    std::thread::sleep(LOOKS_AT_IDLE);
    let after: Vec<_> =
        cases.iter().map(|(_, server, ..)| (server.sleeps(), server.ticks())).collect();
    for (((idle, server, connections, followed), before), after) in
        cases.iter().zip(before).zip(after)
    {
        let (sleeps, ticks) = (after.0 - before.1, after.1 - before.2);
        // The reply to the first query of this metric was one send.
        let keep_alive_count = server.metric(sends) - before.0 - 1;
        println!(
            "--idle {idle}, {} silent connections, {} silent streams: {sleeps} sleeps and {ticks} \
             ticks of 10 ms in {} s, {keep_alive_count} signs of life sent",
            connections.len(),
            followed.len(),
            LOOKS_AT_IDLE.as_secs(),
        );
        assert!(sleeps <= IDLE_SLEEPS_MAX + keep_alive_count, "it works without work");
        assert!(ticks <= IDLE_TICKS_MAX, "it spins");
        assert_eq!(keep_alive_count > 0, !followed.is_empty());
    }
}

/// The kernel counts the waiting time for each cgroup. On a machine with other servers no other
/// count is exact.
#[test]
fn an_idle_server_waits_for_no_disk() {
    use streamdoor::reactor::uring_operations;
    const IDLE_FOR: Duration = Duration::from_secs(2);
    let operations = uring_operations().unwrap_or_default();
    let flag = operations.iter().find(|operation| operation.name == "ENTER_NO_IOWAIT");
    if flag.is_some_and(|flag| !flag.is_known) {
        return println!(
            "not run: before Linux 6.15 each wait in io_uring counts as one for a disk"
        );
    }
    let Some(cgroup) = limited::Cgroup::with_pressure() else {
        return println!("not run: no cgroup of version 2 can be made here");
    };
    let _alone = ALONE.lock();
    let mut server = Server::start_by(&cgroup.launcher(), &["--reactor", "auto"]);
    server.ask("GET", "/healthz", "");
    let before = cgroup.waited_for_disks();
    std::thread::sleep(IDLE_FOR);
    let waited = cgroup.waited_for_disks() - before;
    println!("{waited:?} of {IDLE_FOR:?}");
    assert!(waited < IDLE_FOR / 4, "{waited:?} of {IDLE_FOR:?}");
    server.stop();
}
