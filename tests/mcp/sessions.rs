//! Abandoned sessions: they make room for others, and memory stays flat.

use crate::client::{Era, McpClient};
use crate::served::Server;

/// Number of sessions. `STREAMDOOR_SESSIONS=1000000` runs a million of them.
const SESSIONS: usize = 50_000;

#[test]
fn abandoned_sessions_leave_nothing_behind() {
    let wanted = std::env::var("STREAMDOOR_SESSIONS").ok();
    let count: usize = wanted.map_or(SESSIONS, |text| text.parse().expect("a number"));
    let server = Server::start(&[]);
    let open = |count: usize| {
        let mut first = None;
        for _ in 0..count {
            // The client is dropped: its connection closes, and its session stays open.
            let client = McpClient::connect(server.address(), Era::Handshake);
            first.get_or_insert_with(|| client.session().to_owned());
        }
        first.unwrap()
    };
    let first = open(count / 10);
    let before = server.memory_bytes("VmRSS");
    open(count - count / 10);
    let after = server.memory_bytes("VmRSS");
    println!("{count} sessions abandoned: {} KiB, then {} KiB", before >> 10, after >> 10);
    // A tenth has filled the table. One leaked session for each of the others needs at least 256
    // bytes.
    assert!(after < before + (4 << 20), "{before} bytes, then {after}");
    // The first session was evicted.
    let mut client = McpClient::connect(server.address(), Era::Handshake);
    assert_eq!(client.ping(), 200);
    client.pretend(first);
    assert_eq!(client.ping(), 404);
}
