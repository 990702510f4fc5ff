//! Sessions of MCP that are begun and abandoned leave nothing behind: the memory of the process is
//! the same after 10,000 of them and after 50,000. `SESSIONS=1000000` makes it a million.
//!
//! One test only: what is measured is the whole process.
#![cfg(feature = "server")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use streamdoor::shard::{Server, ServerConfig, ShardConfig};

const SESSIONS: usize = 50_000;
/// What the allocator may keep, or the log of the kernel's own buffers.
const SPREAD_KIB: u64 = 4_096;

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"#,
    r#""protocolVersion":"2025-11-25","capabilities":{},"#,
    r#""clientInfo":{"name":"t","version":"1"}}}"#,
);

/// Begins a session, and asks nothing in it.
fn begin(stream: &mut TcpStream) {
    let length = INITIALIZE.len();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n\
         Content-Length: {length}\r\n\r\n{INITIALIZE}"
    );
    stream.write_all(request.as_bytes()).expect("the connection is kept");
    let (mut answer, mut buffer) = (Vec::new(), [0; 2_048]);
    while !answer.ends_with(b"}") {
        let count = stream.read(&mut buffer).expect("the connection is kept");
        assert!(count > 0, "it was closed behind {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..count]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    assert!(String::from_utf8_lossy(&answer).contains("\r\nmcp-session-id: "));
}

/// What the process takes of memory, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn sessions_that_are_abandoned_leave_nothing_behind() {
    let count: usize = std::env::var("SESSIONS").map_or(SESSIONS, |text| text.parse().unwrap());
    let config = ServerConfig {
        shards: vec![ShardConfig::default(); 2],
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        connections_max: 100,
    };
    let server = Server::start(config, Arc::new(|_| {})).unwrap();
    let address = server.addresses()[0].to_string();
    let mut clients: Vec<TcpStream> =
        (0..4).map(|_| TcpStream::connect(&address).unwrap()).collect();
    clients.iter().for_each(|client| client.set_nodelay(true).unwrap());
    let mut begin_all = |count: usize| {
        (0..count).for_each(|at| begin(&mut clients[at % 4]));
        resident_kib()
    };
    let before_kib = begin_all(count / 5); // Everything has its size by now.
    let after_kib = begin_all(count - count / 5);
    println!("{count} sessions: {before_kib} KiB after a fifth of them, {after_kib} KiB after all");
    assert!(after_kib < before_kib + SPREAD_KIB, "{before_kib} KiB became {after_kib} KiB");
}
