//! 64 clients repeat the same request over persistent connections, each time with a new nonce.
//! Every reply has the nonce of its request and no other.
#![cfg(feature = "server")]

mod echo;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use echo::{CHUNKS, set_up};
use serde_json::json;
use streamdoor::base::{ExecutionId, Random};
use streamdoor::client::StreamEvent;
use streamdoor::server::{Server, ServerConfig};
use streamdoor::shard::ShardConfig;
use streamdoor::stream::{EndState, Outcome};
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use streamdoor::wire::ndjson::Decoder;

const CLIENTS: usize = 64;
const CALLS: usize = 100_000;
const SHARDS: usize = 2;
/// The prefix of all nonces. The client's number follows it.
const MARK: &[u8] = b"nonce-";

/// A connection, and the bytes received on it that were not read yet.
struct Client {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Client {
    /// Sends one request, and returns the body of the reply.
    fn call(&mut self, nonce: &str) -> Vec<u8> {
        let body = json!({"tool": "echo", "arguments": {"nonce": nonce}, "retention_ms": 0});
        let (body, path) = (body.to_string(), "/v1/executions?format=ndjson&policy=block");
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes()).expect("the connection is kept");
        let (mut reader, mut answer) = (ResponseReader::new(), Vec::new());
        reader.expect(Method::Post);
        let mut piece = [0; 4_096];
        loop {
            let mut input = &self.bytes[..];
            let ended = loop {
                match reader.read(&mut input).expect("an answer") {
                    Some(ResponsePart::Head(head)) => {
                        assert_eq!(head.status.code(), 200);
                        assert!(head.keeps_alive);
                    }
                    Some(ResponsePart::Body(piece)) => answer.extend_from_slice(piece),
                    Some(ResponsePart::End) => break true,
                    None => break false,
                }
            };
            self.bytes = input.to_vec();
            if ended {
                assert!(self.bytes.is_empty(), "more came than was asked for");
                return answer;
            }
            let count = self.stream.read(&mut piece).expect("the connection is kept");
            assert!(count > 0, "the connection was closed behind {answer:?}");
            self.bytes.extend_from_slice(&piece[..count]);
        }
    }
}

/// Checks a whole reply, and returns the execution that it belongs to.
fn check(answer: &[u8], nonce: &str) -> ExecutionId {
    let (mut decoder, mut input) = (Decoder::new(), answer);
    let (mut events, mut executions) = (Vec::new(), HashSet::new());
    while let Some(line) = decoder.read(&mut input).expect("lines") {
        let (execution, event) = StreamEvent::parse(line).expect("events");
        executions.insert(execution);
        events.push(event);
    }
    decoder.finish().expect("the last line has its end");
    assert_eq!(executions.len(), 1);
    let [StreamEvent::Started(_), chunks @ .., StreamEvent::End(end)] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(chunks.len(), CHUNKS);
    for (at, event) in chunks.iter().enumerate() {
        let StreamEvent::Chunk(chunk) = event else { panic!("{event:?}") };
        assert_eq!((chunk.seq, chunk.data.as_slice()), (at as u64 + 1, nonce.as_bytes()));
    }
    assert_eq!(end.end.state, EndState::Ended(Outcome::Completed));
    let nonces = answer.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    let count =
        nonces.inspect(|(at, _)| assert!(answer[*at..].starts_with(nonce.as_bytes()))).count();
    assert_eq!(count, CHUNKS);
    executions.into_iter().next().expect("there is one")
}

#[test]
fn nobody_is_given_a_byte_of_anybody_else() {
    let config = ServerConfig {
        shards: vec![ShardConfig::default(); SHARDS],
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        connections_max: 2 * CLIENTS as u32,
    };
    let server = Server::start(config, Arc::new(set_up)).unwrap();
    let address = server.addresses()[0].to_string();
    let address = address.trim_start_matches("http://");
    let executions: Vec<ExecutionId> = std::thread::scope(|scope| {
        let client = |number: usize| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            let mut client = Client { stream, bytes: Vec::new() };
            let mut random = Random::new(number as u64);
            let calls = CALLS / CLIENTS + usize::from(number < CALLS % CLIENTS);
            let each = (0..calls).map(|call| {
                let nonce = format!("nonce-{number:02}-{call:06}-{:016x}", random.next_u64());
                check(&client.call(&nonce), &nonce)
            });
            each.collect::<Vec<_>>()
        };
        let spawn = |number| scope.spawn(move || client(number));
        let threads: Vec<_> = (0..CLIENTS).map(spawn).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it has said why")).collect()
    });
    let all: HashSet<ExecutionId> = executions.iter().copied().collect();
    assert_eq!((executions.len(), all.len()), (CALLS, CALLS));
    let shards: HashSet<u8> = all.iter().map(|execution| execution.shard).collect();
    println!("{CALLS} calls of {CLIENTS} clients, on {} shards", shards.len());
}
