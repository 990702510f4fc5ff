//! A connection that is cut fifty times while two hundred chunks a second are published. Under
//! `block` each chunk comes exactly once. Under `drop` the chunks and the gaps add up to all of
//! them.
//!
//! Bytes in any buffer on the way are lost by a cut. They are read again from the ring, which keeps
//! half of itself behind the cursor of a `block` subscriber: 640 ms of these chunks. A client with
//! more bytes in flight acknowledges, and then never loses any.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use streamdoor::base::Random;
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use streamdoor::wire::sse::Decoder;

use crate::events::{self, Sum};
use crate::http;
use crate::proxy::{Cuts, Proxy};
use crate::server::{Server, slow, slow_data};

pub const CUTS: usize = 50;
/// Twice the number of chunks until the last cut, because a reader may be late for it.
pub const CHUNKS: u64 = 2_000;
/// Slow enough for the ring to hold all that is in flight to a late reader.
pub const DELAY_MS: u64 = 5;
pub const CHUNK_BYTES: u64 = 100;
/// The size of large chunks. The ring holds 60 ms of them, so a client that reconnects has missed
/// some.
pub const LARGE_CHUNK_BYTES: u64 = 4_000;
/// A connection is cut within this number of bytes.
pub const SPREAD_BYTES: u64 = 6_000;
/// `block` with acknowledgements. The window is far below the chunks that the ring keeps for a
/// resumed stream.
pub const BLOCK_ACKNOWLEDGED: &str = "policy=block&acks=16";

/// A client that behaves as a browser: it dispatches complete events, resumes with the last id, and
/// stops after a 204.
#[derive(Default)]
struct Reader {
    decoder: Decoder,
    told: Vec<Value>,
    connections: usize,
    /// The execution to send acknowledgements to, if they were agreed on.
    acknowledges_at: Option<String>,
    subscriber: String,
}

impl Reader {
    /// Follows until a status other than 200 ends the stream.
    fn follow(&mut self, address: &str, path: &str) {
        while self.connect(address, path).is_none_or(|status| status == 200) {
            self.connections += 1;
            self.decoder.reconnect();
        }
    }

    /// Reads one connection until it breaks. Returns the status of the response, if it was
    /// received.
    fn connect(&mut self, address: &str, path: &str) -> Option<u16> {
        let mut stream = TcpStream::connect(address).unwrap();
        let id = self.decoder.last_id();
        let last = match id.is_empty() {
            true => String::new(),
            false => format!("Last-Event-ID: {id}\r\n"),
        };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{last}\r\n"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut reader = ResponseReader::new();
        reader.expect(Method::Get);
        let mut piece = [0; 4_096];
        let mut status = None;
        loop {
            let Ok(count @ 1..) = stream.read(&mut piece) else { return status };
            let mut input = &piece[..count];
            while let Some(part) = reader.read(&mut input).unwrap() {
                match part {
                    ResponsePart::Head(head) => status = Some(head.status.code()),
                    ResponsePart::Body(mut body) => self.read(&mut body, address),
                    ResponsePart::End => return status,
                }
            }
        }
    }

    fn read(&mut self, body: &mut &[u8], address: &str) {
        while let Some(message) = self.decoder.read(body).unwrap() {
            let event: Value = serde_json::from_str(&message.data()).unwrap();
            if let Some(subscriber) = event["subscriber"].as_str() {
                self.subscriber = subscriber.to_owned();
            }
            if let (Some(this), Some(seq)) = (&self.acknowledges_at, event["seq"].as_u64())
                && seq % 8 == 0
            {
                let path = format!("{this}/subscribers/{}/acks", self.subscriber);
                // The subscriber may be lost by now: 404.
                http::ask(address, "POST", &path, Some(&json!({"seq": seq})));
            }
            self.told.push(event);
        }
    }
}

/// Follows an execution through all cuts. Checks that each chunk comes once and in order, and that
/// gaps cover the rest.
fn follow_through_cuts(
    server: &Server,
    (query, chunk_bytes): (&str, u64),
    seed: u64,
) -> (Sum, Sum) {
    let random = Random::new(seed);
    // Cuts may be anywhere, even before the head or in it.
    let (after_bytes, spread_bytes) = (0, SPREAD_BYTES);
    let cuts = Cuts { random, left: CUTS, after_bytes, spread_bytes, hurries: false };
    let proxy = Proxy::new(&server.address, String::new(), cuts);
    let this = server.execute(&slow(CHUNKS, DELAY_MS, chunk_bytes));
    let acknowledges_at = query.contains("acks").then(|| this.clone());
    let mut reader = Reader { acknowledges_at, ..Reader::default() };
    reader.follow(&proxy.address, &format!("{this}/events?{query}"));
    assert_eq!(proxy.cut_count(), CUTS, "seed {seed}");
    // The last connection came to its end, and the next request was answered with 204.
    assert_eq!(reader.connections, CUTS + 1, "seed {seed}");
    let (given, missed) = events::check(&reader.told, |seq| slow_data(seq, CHUNKS, chunk_bytes));
    assert_eq!(given.chunks + missed.chunks, CHUNKS, "seed {seed}");
    assert_eq!(given.bytes + missed.bytes, CHUNKS * chunk_bytes, "seed {seed}");
    let ends: Vec<&Value> = reader.told.iter().filter(|event| event["event"] == "end").collect();
    assert_eq!((ends.len(), &ends[0]["state"]), (1, &"completed".into()), "seed {seed}");
    // The end event counts the last connection, and separately the execution over all connections.
    let end = ends[0];
    let totals = [&end["execution_chunks"], &end["execution_bytes"]];
    assert_eq!(totals, [CHUNKS, CHUNKS * chunk_bytes], "seed {seed}: {end}");
    assert!(end["chunks"].as_u64().unwrap() < given.chunks, "seed {seed}: {end}");
    (given, missed)
}

/// Runs two executions at once, because each takes its time.
fn follow_both((query, chunk_bytes): (&str, u64), check: impl Fn(Sum, Sum, u64) + Sync) {
    let server = Server::start(&[]);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (server, check) = (&server, &check);
            scope.spawn(move || {
                let (given, missed) = follow_through_cuts(server, (query, chunk_bytes), seed);
                check(given, missed, seed);
            });
        }
    });
    server.stop();
}

#[test]
fn under_block_each_chunk_comes_once_to_who_acknowledges() {
    follow_both((BLOCK_ACKNOWLEDGED, CHUNK_BYTES), |given, missed, seed| {
        assert_eq!((given.chunks, missed), (CHUNKS, Sum::default()), "seed {seed}");
    });
}

#[test]
fn under_block_each_chunk_comes_once_to_who_does_not() {
    follow_both(("policy=block", CHUNK_BYTES), |given, missed, seed| {
        assert_eq!((given.chunks, missed), (CHUNKS, Sum::default()), "seed {seed}");
    });
}

#[test]
fn under_drop_what_is_missing_is_told_to_the_byte() {
    follow_both(("policy=drop", LARGE_CHUNK_BYTES), |given, missed, seed| {
        // A late client gets what the ring holds: about twelve of these chunks, 60 ms.
        assert!(given.chunks > 0 && missed.chunks > 0, "{given:?} {missed:?}, seed {seed}");
    });
}
