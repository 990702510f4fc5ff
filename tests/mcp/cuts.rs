//! Calls of 2025-11-25 whose connections are cut. The client reads a few events and drops the
//! connection with everything in flight. It resumes at once with the id of the last event it has
//! read. Its receive buffer in the kernel is small, because MCP has no acknowledgements.

use std::io::{Read, Write};
use std::path::PathBuf;

use serde_json::{Value, json};
use streamdoor::base::Random;
use streamdoor::mcp::chunks;
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use streamdoor::wire::sse::Decoder;

use crate::client::{Era, McpClient};
use crate::served::{Server, connect_with_small_buffer};

const FILE_BYTES: usize = 1 << 20;
const CUTS_MAX: u32 = 40;

/// Messages of one connection.
#[derive(Default)]
struct ReceivedMessages {
    status: u16,
    messages: Vec<Value>,
    /// True if the stream came to its end.
    is_whole: bool,
}

/// A client that makes one call.
struct Caller<'s> {
    server: &'s Server,
    session: String,
    decoder: Decoder,
}

impl Caller<'_> {
    /// Sends a request and reads until `message_count` messages have come or the stream has ended.
    fn hear(&mut self, head: &str, body: &str, message_count: usize) -> ReceivedMessages {
        let mut stream = connect_with_small_buffer(self.server.address());
        let id = self.decoder.last_id();
        let last = if id.is_empty() { String::new() } else { format!("Last-Event-ID: {id}\r\n") };
        let session = &self.session;
        let request = format!(
            "{head} /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n\
             Mcp-Session-Id: {session}\r\n{last}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        self.decoder.reconnect();
        let mut reader = ResponseReader::new();
        reader.expect(if head == "GET" { Method::Get } else { Method::Post });
        let mut heard = ReceivedMessages::default();
        let mut piece = [0; 4_096];
        loop {
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "the server has cut the connection");
            let mut input = &piece[..count];
            while let Some(part) = reader.read(&mut input).unwrap() {
                match part {
                    ResponsePart::Head(head) => heard.status = head.status.code(),
                    ResponsePart::Body(mut body) => {
                        while let Some(event) = self.decoder.read(&mut body).unwrap() {
                            let data = event.data();
                            if !data.is_empty() {
                                heard.messages.push(serde_json::from_str(&data).unwrap());
                            }
                            if heard.messages.len() == message_count {
                                return heard; // Unread events are lost with the connection.
                            }
                        }
                    }
                    ResponsePart::End => {
                        heard.is_whole = true;
                        return heard;
                    }
                }
            }
        }
    }
}

/// The sum of the chunks in the notifications, in order.
#[derive(Default)]
struct Sum {
    next_seq: u64,
    bytes: u64,
    missed_chunks: u64,
}

impl Sum {
    fn add(&mut self, message: &Value) {
        let meta = &message["params"]["_meta"];
        if let Some(from_seq) = meta["dev.streamdoor/gap"]["from_seq"].as_u64() {
            assert_eq!(from_seq, self.next_seq, "{message}");
            self.next_seq = meta["dev.streamdoor/gap"]["to_seq"].as_u64().unwrap() + 1;
            self.missed_chunks += meta["dev.streamdoor/gap"]["chunk_count"].as_u64().unwrap();
            self.bytes += meta["dev.streamdoor/gap"]["byte_count"].as_u64().unwrap();
        }
        for chunk in chunks::read(&message["params"]).unwrap() {
            assert_eq!((chunk.seq, chunk.offset), (self.next_seq, self.bytes));
            self.bytes += chunk.data.len() as u64;
            self.next_seq += 1;
        }
    }
}

fn text_file() -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuts.txt");
    let text: String = (0..)
        .flat_map(|line| format!("line {line}\n").into_bytes())
        .map(char::from)
        .take(FILE_BYTES)
        .collect();
    std::fs::write(&path, text).unwrap();
    path
}

/// Every chunk comes in order, none is missed, and the result comes once, at the end.
#[test]
fn a_call_that_is_cut_again_and_again_is_told_to_its_end() {
    let path = text_file();
    let root = path.parent().unwrap().to_str().unwrap();
    let server = Server::start(&["--files-root", root]);
    let session = McpClient::connect(server.address(), Era::Handshake).session().to_owned();
    let mut random = Random::new(9);
    for (id, chunk_size) in [100, 1_000, 4_096, 7_777, 65_536].into_iter().enumerate() {
        let decoder = Decoder::new();
        let mut caller = Caller { server: &server, session: session.clone(), decoder };
        let arguments = json!({"file_path": "cuts.txt", "chunk_size": chunk_size});
        let meta = json!({"progressToken": "t", "dev.streamdoor/stream": false});
        let params = json!({"name": "process_file", "arguments": arguments, "_meta": meta});
        let call = json!({
            "jsonrpc": "2.0", "id": 100 + id, "method": "tools/call", "params": params,
        });
        let mut sum = Sum { next_seq: 1, ..Sum::default() };
        let (mut cuts, mut answers) = (0, Vec::new());
        let mut heard = caller.hear("POST", &call.to_string(), 1);
        loop {
            assert_eq!(heard.status, 200, "after {cuts} cuts");
            assert!(answers.is_empty() || heard.messages.is_empty(), "nothing follows the answer");
            heard.messages.iter().for_each(|message| sum.add(message));
            answers.extend(heard.messages.into_iter().filter(|one| one.get("result").is_some()));
            if heard.is_whole {
                break;
            }
            cuts += 1;
            let events = if cuts < CUTS_MAX { 1 + random.below(12) as usize } else { usize::MAX };
            heard = caller.hear("GET", "", events);
        }
        let [answer] = &answers[..] else { panic!("{} answers", answers.len()) };
        assert_eq!(sum.bytes, FILE_BYTES as u64, "chunks of {chunk_size} bytes");
        let text = answer["result"]["content"][1]["text"].as_str().unwrap();
        assert!(text.contains("contained all of it"), "{text}");
        assert_eq!(sum.missed_chunks, 0, "chunks of {chunk_size} bytes, {cuts} cuts");
        // The client has everything now.
        let heard = caller.hear("GET", "", usize::MAX);
        assert!(heard.is_whole && heard.messages.is_empty());
    }
}
