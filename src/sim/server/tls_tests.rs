//! Tests of the whole server with TLS, in simulated time. Conversations are cut at every byte,
//! readers are slow, and handshakes do not end.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::script::Script;
use super::test_server::{SHORT, TestServer, get};
use crate::limits;
use crate::server::{GuestConfig, TlsConfig};
use crate::shard::ShardConfig;
use crate::sim::network::SimClient;
use crate::sim::world::EAGAIN;

const STEP: Duration = Duration::from_millis(1);

fn test_server() -> (TestServer, Arc<ClientConfig>) {
    static NUMBER: std::sync::Mutex<u32> = std::sync::Mutex::new(0);
    let made = generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let CertifiedKey { cert, signing_key } = made;
    let mut number = NUMBER.lock().unwrap();
    *number += 1;
    let name = format!("streamdoor-tls-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).unwrap();
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, cert.pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, private).unwrap();
    let tls = TlsConfig::from_files(&certificate, &key).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut client = builder.with_root_certificates(roots).with_no_client_auth();
    client.resumption = Resumption::disabled(); // Each conversation is as long as the others.
    (
        TestServer::with(ShardConfig {
            guests: GuestConfig { tls: Some(tls), ..Default::default() },
            ..ShardConfig::default()
        }),
        Arc::new(client),
    )
}

/// A client with TLS, and the bytes that it has sent and received.
struct Caller {
    socket: SimClient,
    tls: ClientConnection,
    sent_bytes: usize,
    heard: Vec<u8>,
    has_ended: bool,
}

impl Caller {
    fn new(test_server: &mut TestServer, config: &Arc<ClientConfig>) -> Caller {
        let socket = test_server.world.connect(&test_server.address).unwrap();
        let tls = ClientConnection::new(Arc::clone(config), "localhost".try_into().unwrap());
        Caller { socket, tls: tls.unwrap(), sent_bytes: 0, heard: Vec::new(), has_ended: false }
    }

    /// Sends pending bytes, but never more than `until_bytes` in all, and reads one piece. Returns
    /// true if any byte moved.
    fn step(&mut self, test_server: &mut TestServer, until_bytes: usize) -> bool {
        let mut flight = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut flight).unwrap();
        }
        flight.truncate(until_bytes.saturating_sub(self.sent_bytes));
        let is_sent = !flight.is_empty();
        if is_sent {
            assert_eq!(test_server.world.client_send(self.socket, &flight), Ok(flight.len()));
            self.sent_bytes += flight.len();
        }
        test_server.pass(STEP);
        let mut buffer = [0; 4_096];
        match test_server.world.client_receive(self.socket, &mut buffer) {
            Ok(0) => self.has_ended = true,
            Err(error) => {
                self.has_ended |= error != EAGAIN;
                return is_sent;
            }
            Ok(count) => {
                let mut bytes = &buffer[..count];
                while !bytes.is_empty() {
                    self.tls.read_tls(&mut bytes).unwrap();
                    let state = self.tls.process_new_packets().unwrap();
                    let there = state.plaintext_bytes_to_read() as u64;
                    self.tls.reader().take(there).read_to_end(&mut self.heard).unwrap();
                }
            }
        }
        test_server.turn();
        !self.has_ended
    }

    fn say(&mut self, text: &str) {
        self.tls.writer().write_all(text.as_bytes()).unwrap();
    }

    fn ask(&mut self, test_server: &mut TestServer, path: &str) -> String {
        self.say(&get(path));
        while self.step(test_server, usize::MAX) {}
        String::from_utf8_lossy(&std::mem::take(&mut self.heard)).into_owned()
    }
}

/// Runs a script. Returns the id of the execution.
fn run(test_server: &mut TestServer, config: &Arc<ClientConfig>, script: Script) -> String {
    let body = format!(
        "{{\"tool\":\"script\",\"arguments\":{},\"hold\":\"until_read\"}}",
        script.arguments()
    );
    let mut caller = Caller::new(test_server, config);
    caller.say(&format!(
        "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    while caller.step(test_server, usize::MAX) {}
    let heard = String::from_utf8_lossy(&caller.heard).into_owned();
    assert!(heard.starts_with("HTTP/1.1 201"), "{heard}");
    test_server.world.client_close(caller.socket);
    let at = heard.find("\"execution\":\"").expect(&heard) + 13;
    heard[at..at + 26].to_owned()
}

#[test]
fn a_stream_comes_whole_also_to_who_reads_slowly() {
    let (mut test_server, config) = test_server();
    let script = Script {
        seed: 3,
        chunk_count: 300,
        chunk_bytes_max: 1 << 10,
        fails: false,
        is_remote: false,
    };
    let id = run(&mut test_server, &config, script);
    let mut caller = Caller::new(&mut test_server, &config);
    caller.say(&get(&format!("/v1/executions/{id}/events?policy=block&format=ndjson")));
    for _ in 0..20_000 {
        caller.step(&mut test_server, usize::MAX);
        if caller.heard.ends_with(b"0\r\n\r\n") {
            break;
        }
    }
    let heard = String::from_utf8_lossy(&caller.heard).into_owned();
    assert_eq!(heard.matches("\"event\":\"chunk\"").count(), 300);
    assert!(heard.contains("\"state\":\"completed\"") && !heard.contains("\"event\":\"gap\""));
    // The connection stays open, and is used again.
    caller.heard.clear();
    assert!(caller.ask(&mut test_server, "/healthz").starts_with("HTTP/1.1 200 "));
    assert_eq!(test_server.shards[0].counters().tls_handshakes, 2);
}

#[test]
fn a_client_that_goes_after_any_byte_leaves_nothing_behind() {
    let (mut test_server, config) = test_server();
    let id = run(&mut test_server, &config, SHORT);
    let path = format!("/v1/executions/{id}/events");
    let mut whole = Caller::new(&mut test_server, &config);
    assert!(whole.ask(&mut test_server, &path).contains("event: end\n"));
    test_server.world.client_close(whole.socket);
    for until_bytes in 0..whole.sent_bytes {
        let mut caller = Caller::new(&mut test_server, &config);
        caller.say(&get(&path));
        while caller.step(&mut test_server, until_bytes) {}
        assert!(caller.heard.is_empty(), "{until_bytes} of {}", whole.sent_bytes);
        match until_bytes % 3 {
            0 => test_server.world.client_finish(caller.socket),
            1 => test_server.world.client_close(caller.socket),
            _ => test_server.world.client_reset(caller.socket),
        }
        test_server.pass(STEP);
    }
    test_server.pass(limits::LINGER * 2);
    assert_eq!(test_server.shards[0].connection_count(), 0);
    assert!(
        Caller::new(&mut test_server, &config).ask(&mut test_server, "/healthz").contains("200 OK")
    );
}

#[test]
fn a_handshake_has_as_long_as_a_head_and_both_together_not_longer() {
    let (mut test_server, config) = test_server();
    let mut slow = Caller::new(&mut test_server, &config);
    let mut late = Caller::new(&mut test_server, &config);
    late.say("GET /");
    while slow.step(&mut test_server, 50) {}
    while late.step(&mut test_server, usize::MAX) {}
    test_server.pass(limits::REQUEST_DEADLINE - STEP * 60);
    assert!(!slow.step(&mut test_server, 50) && !slow.has_ended);
    test_server.pass(STEP * 60);
    while slow.step(&mut test_server, 50) {}
    while late.step(&mut test_server, usize::MAX) {}
    assert!(slow.has_ended);
    assert!(late.heard.starts_with(b"HTTP/1.1 408 ") && late.has_ended);
    let counters = test_server.shards[0].counters();
    assert_eq!((counters.connections_idled_out, counters.requests_timed_out), (1, 1));
}
