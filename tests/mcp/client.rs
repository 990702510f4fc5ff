//! An MCP client over HTTP that checks every byte.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use streamdoor::wire::sse::Decoder;

/// The response to a request.
pub struct Answer {
    pub status: u16,
    pub session: Option<String>,
    /// Every message, in order. A response that is not a stream has at most one.
    pub messages: Vec<Value>,
    /// The body as it was received.
    pub body: Vec<u8>,
}

/// The protocol generation of a client: with a handshake or stateless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    Handshake,
    Stateless,
}

const HANDSHAKE: &str = "2025-11-25";
const STATELESS: &str = "2026-07-28";

/// A kept connection and the state of the client's session.
pub struct McpClient {
    stream: TcpStream,
    era: Era,
    session: Option<String>,
    /// Ids are 0, 1, 2 …, as in every other client.
    id_next: u64,
    unread: Vec<u8>,
}

impl McpClient {
    pub fn connect(address: &str, era: Era) -> McpClient {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = McpClient { stream, era, session: None, id_next: 0, unread: Vec::new() };
        if era == Era::Handshake {
            client.open_session();
        }
        client
    }

    fn open_session(&mut self) {
        let answer = self.request(
            "initialize",
            json!({
                "protocolVersion": HANDSHAKE,
                "capabilities": {},
                "clientInfo": {"name": "load", "version": "0"},
            }),
        );
        assert_eq!(answer.status, 200);
        assert_eq!(answer.messages[0]["result"]["protocolVersion"], HANDSHAKE);
        self.session = Some(answer.session.expect("it has sessions"));
        let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(self.post("notifications/initialized", None, &told).status, 202);
    }

    pub fn session(&self) -> &str {
        self.session.as_deref().expect("it has one")
    }

    /// Uses the id of another session from now on.
    pub fn pretend(&mut self, session: String) {
        self.session = Some(session);
    }

    /// Sends a ping and returns the status of the response.
    pub fn ping(&mut self) -> u16 {
        let message = json!({"jsonrpc": "2.0", "id": self.id_next, "method": "ping"});
        self.id_next += 1;
        self.post("ping", None, &message).status
    }

    /// Sends a request with the next id. The last message is its response.
    pub fn request(&mut self, method: &str, mut params: Value) -> Answer {
        let id = self.id_next;
        self.id_next += 1;
        if self.era == Era::Stateless {
            let meta = &mut params["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = STATELESS.into();
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        let name = params["name"].as_str().map(str::to_owned);
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let answer = self.post(method, name.as_deref(), &message);
        let last = answer.messages.last().unwrap_or_else(|| panic!("no answer to {message}"));
        assert_eq!(last["id"], id, "{message}: {last}");
        answer
    }

    /// Calls a tool with progress. The progress token is the request id, as in the SDKs.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Answer {
        let token = self.id_next;
        let meta = json!({"progressToken": token});
        self.request("tools/call", json!({"name": tool, "arguments": arguments, "_meta": meta}))
    }

    fn post(&mut self, method: &str, name: Option<&str>, message: &Value) -> Answer {
        let body = message.to_string();
        let mut head = String::from("POST /mcp HTTP/1.1\r\nHost: localhost\r\n");
        head += "Content-Type: application/json\r\n";
        head += "Accept: application/json, text/event-stream\r\n";
        match (self.era, &self.session) {
            (Era::Stateless, _) => {
                head += &format!("MCP-Protocol-Version: {STATELESS}\r\nMcp-Method: {method}\r\n");
                head += &name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
            }
            (Era::Handshake, None) => {}
            (Era::Handshake, Some(session)) => {
                head += &format!("MCP-Protocol-Version: {HANDSHAKE}\r\n");
                head += &format!("Mcp-Session-Id: {session}\r\n");
            }
        }
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        self.stream.write_all((head + &body).as_bytes()).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> Answer {
        let mut reader = ResponseReader::new();
        reader.expect(Method::Post);
        let mut answer =
            Answer { status: 0, session: None, messages: Vec::new(), body: Vec::new() };
        let mut is_stream = false;
        let mut piece = [0; 16 << 10];
        loop {
            let mut input = &self.unread[..];
            let is_whole = loop {
                match reader.read(&mut input).expect("an answer") {
                    Some(ResponsePart::Head(head)) => {
                        answer.status = head.status.code();
                        let of = |name| head.headers.only(name).unwrap().map(str::to_owned);
                        answer.session = of("mcp-session-id");
                        is_stream = of("content-type")
                            .is_some_and(|media| media.starts_with("text/event-stream"));
                        assert!(head.keeps_alive, "its connection is not kept");
                    }
                    Some(ResponsePart::Body(piece)) => answer.body.extend_from_slice(piece),
                    Some(ResponsePart::End) => break true,
                    None => break false,
                }
            };
            self.unread = input.to_vec();
            if is_whole {
                assert!(self.unread.is_empty(), "more came than was asked for");
                break;
            }
            let count = self.stream.read(&mut piece).unwrap();
            assert!(count > 0, "the connection was closed");
            self.unread.extend_from_slice(&piece[..count]);
        }
        answer.messages = match is_stream {
            true => messages_of(&answer.body),
            false if answer.body.is_empty() => Vec::new(),
            false => vec![serde_json::from_slice(&answer.body).unwrap()],
        };
        answer
    }
}

/// The messages of a stream. Events without data (they prime the client) are skipped.
fn messages_of(mut body: &[u8]) -> Vec<Value> {
    let (mut decoder, mut messages) = (Decoder::new(), Vec::new());
    while let Some(event) = decoder.read(&mut body).unwrap() {
        let data = event.data();
        messages.extend((!data.is_empty()).then(|| serde_json::from_str::<Value>(&data).unwrap()));
    }
    messages
}
