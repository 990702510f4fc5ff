//! 64 clients of MCP call the same tool again and again, all of them under the ids 0, 1, 2 …, each
//! time with a number of its own: every answer has that number, every notification belongs to its
//! call, and nobody is given a byte of anybody else.
#![cfg(feature = "server")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use serde_json::{Value, json};
use streamdoor::base::Random;
use streamdoor::shard::{Server, ServerConfig, Shard, ShardConfig};
use streamdoor::tool::{Context, EmitError, Step, Tool, ToolError, ToolSpec, Work};
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use streamdoor::wire::sse;

const CLIENTS: usize = 64;
const CALLS: usize = 100_000;
const SHARDS: usize = 2;
/// What all nonces begin with: whose it is, is behind that.
const MARK: &str = "nonce-";
/// Of each result: the nonce comes in so many chunks, as a whole in each.
const CHUNKS: usize = 2;

/// Says what it was told.
struct Echo {
    nonce: Vec<u8>,
    left: usize,
}

impl Tool for Echo {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        if self.left == 0 {
            return Step::Done;
        }
        match context.emit(&self.nonce) {
            Ok(_) => self.left -= 1,
            Err(EmitError::Blocked) => return Step::Blocked,
            Err(EmitError::TooLarge { .. }) => return Step::Failed(ToolError::new("too long")),
        }
        Step::Again
    }
}

fn set_up(shard: &mut Shard) {
    let spec = ToolSpec::new("echo", "Says what it is told.");
    let prepare = |arguments: &Value, need| {
        let nonce = arguments["nonce"].as_str().unwrap_or_default().as_bytes().to_vec();
        Ok((Work::Steps(Box::new(Echo { nonce, left: CHUNKS })), need))
    };
    shard.tools_mut().insert(spec, prepare).expect("it is described right");
}

/// A connection, and what came on it that was not read yet.
struct Client {
    stream: TcpStream,
    bytes: Vec<u8>,
    /// The header of its session, if it has one.
    session: Option<String>,
}

impl Client {
    fn new(address: &str) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, bytes: Vec::new(), session: None }
    }

    /// Begins a session.
    fn begin(&mut self) {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let message = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let (session, _) = self.ask("", &message);
        self.session = Some(session.expect("a session begins"));
    }

    /// Asks once: the header of a session that was begun, and the body of the answer.
    fn ask(&mut self, headers: &str, message: &Value) -> (Option<String>, Vec<u8>) {
        let body = message.to_string();
        let length = body.len();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{headers}\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes()).expect("the connection is kept");
        let (mut reader, mut answer, mut session) = (ResponseReader::new(), Vec::new(), None);
        reader.expect(Method::Post);
        let mut piece = [0; 4_096];
        loop {
            let mut input = &self.bytes[..];
            let ended = loop {
                match reader.read(&mut input).expect("an answer") {
                    Some(ResponsePart::Head(head)) => {
                        assert_eq!(head.status.code(), 200);
                        assert!(head.keeps_alive);
                        let name = head.headers.only("mcp-session-id").expect("one");
                        session = name.map(|name| format!("Mcp-Session-Id: {name}\r\n"));
                    }
                    Some(ResponsePart::Body(piece)) => answer.extend_from_slice(piece),
                    Some(ResponsePart::End) => break true,
                    None => break false,
                }
            };
            self.bytes = input.to_vec();
            if ended {
                assert!(self.bytes.is_empty(), "more came than was asked for");
                return (session, answer);
            }
            let count = self.stream.read(&mut piece).expect("the connection is kept");
            assert!(count > 0, "the connection was closed behind {answer:?}");
            self.bytes.extend_from_slice(&piece[..count]);
        }
    }

    /// Calls the tool, and checks everything that is said to that.
    fn call(&mut self, id: usize, nonce: &str, has_progress: bool) {
        let mut meta = json!({});
        if has_progress {
            meta["progressToken"] = id.into();
        }
        let headers = match &self.session {
            Some(session) => session.clone(),
            None => {
                meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
                meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
                let names = "Mcp-Method: tools/call\r\nMcp-Name: echo\r\n";
                format!("MCP-Protocol-Version: 2026-07-28\r\n{names}")
            }
        };
        let params = json!({"name": "echo", "arguments": {"nonce": nonce}, "_meta": meta});
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let (_, answer) = self.ask(&headers, &message);
        let text = String::from_utf8(answer).expect("text");
        let places = text.match_indices(MARK);
        let count = places.inspect(|(at, _)| assert!(text[*at..].starts_with(nonce))).count();
        let mut answers = 0;
        for message in messages(&text, has_progress) {
            if message.get("result").is_some() {
                answers += 1;
                assert_eq!(message["id"], id);
                let content = &message["result"]["content"][0]["text"];
                assert_eq!(*content, nonce.repeat(CHUNKS));
            } else {
                assert_eq!(answers, 0, "it is told of behind its answer");
                assert_eq!(message["params"]["progressToken"], id);
            }
        }
        // Each chunk in the answer, and in its notification as a text and as data.
        assert_eq!((answers, count), (1, CHUNKS * if has_progress { 3 } else { 1 }), "{text}");
    }
}

/// The messages of an answer: of a stream, or the one that it is.
fn messages(text: &str, is_stream: bool) -> Vec<Value> {
    if !is_stream {
        return vec![serde_json::from_str(text).expect("JSON")];
    }
    let (mut decoder, mut input) = (sse::Decoder::new(), text.as_bytes());
    let mut messages = Vec::new();
    while let Some(message) = decoder.read(&mut input).expect("events") {
        let data = message.data();
        if !data.is_empty() {
            messages.push(serde_json::from_str(&data).expect("JSON"));
        }
    }
    messages
}

fn server() -> (Server, String) {
    let config = ServerConfig {
        shards: vec![ShardConfig::default(); SHARDS],
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        connections_max: 2 * CLIENTS as u32,
    };
    let server = Server::start(config, Arc::new(set_up)).unwrap();
    let address = server.addresses()[0].to_string();
    (server, address)
}

#[test]
fn nobody_is_given_a_byte_of_anybody_else() {
    let (_server, address) = server();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let address = &address;
            scope.spawn(move || {
                let mut client = Client::new(address);
                if number % 2 == 0 {
                    client.begin();
                }
                let mut random = Random::new(number as u64);
                let calls = CALLS / CLIENTS + usize::from(number < CALLS % CLIENTS);
                for call in 0..calls {
                    let nonce = format!("nonce-{number:02}-{call:06}-{:016x}", random.next_u64());
                    client.call(call, &nonce, random.chance(1, 4));
                }
            });
        }
    });
    println!("{CALLS} calls of {CLIENTS} clients, half of them in sessions");
}
