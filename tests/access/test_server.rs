//! A server with two principals, and requests to it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::endpoint::{Access, Tokens};
use streamdoor::reactor::Idle;
use streamdoor::server::{GuestConfig, Server, ServerConfig};
use streamdoor::shard::{MemoryWatch, ShardConfig};

pub const ANN: &str = "ann-0123456789abcdef0123456789abcdef";
pub const BOB: &str = "bob-0123456789abcdef0123456789abcdef";
pub const WRONG: &str = "eve-0123456789abcdef0123456789abcdef";
/// The origin whose pages may send requests.
pub const PAGE: &str = "https://app.example";

/// A server in this process.
pub struct TestServer {
    _server: Server,
    /// The address, `127.0.0.1:PORT`.
    pub address: String,
}

impl TestServer {
    pub fn new(shard_count: usize) -> TestServer {
        let tokens = Tokens::read(&format!("ann {ANN}\nbob {BOB}\n")).unwrap();
        let access = Access::default().with_origins(vec![PAGE.parse().unwrap()]).with_tokens(
            tokens,
            [5; 32],
            Duration::from_secs(3_600),
        );
        let shard = ShardConfig {
            idle: Idle::Block,
            memory: MemoryWatch::ByHand,
            guests: GuestConfig { access: Arc::new(access), ..Default::default() },
            ..ShardConfig::default()
        };
        let config = ServerConfig {
            shards: vec![shard; shard_count],
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            connections_max: 100,
        };
        let server = Server::start(config, Arc::new(|_shard| {})).unwrap();
        let address = server.addresses()[0].to_string();
        TestServer { _server: server, address }
    }

    /// Creates an execution that starts only when more subscribers come. Returns the reply to its
    /// owner.
    pub fn execute(&self, token: &str) -> Value {
        let body = json!({
            "tool": "slow_data_processor",
            "arguments": {"chunks": 5, "delay_ms": 1},
            "start": {"after_subscribers": 9, "deadline_ms": 3_600_000},
        });
        let asking = Asking::new("POST", "/v1/executions").body(&body);
        let (status, _, document) = asking.token(token).answer(&self.address);
        assert_eq!(status, 201, "{document}");
        serde_json::from_str(&document).unwrap()
    }

    pub fn get(&self, token: &str, path: &str) -> Value {
        let (status, _, document) = Asking::new("GET", path).token(token).answer(&self.address);
        assert_eq!(status, 200, "{path}: {document}");
        serde_json::from_str(&document).unwrap()
    }
}

/// A request on a connection of its own.
#[derive(Clone, Debug)]
pub struct Asking {
    pub method: String,
    pub target: String,
    pub host: Option<String>,
    pub headers: Vec<String>,
    pub body: Option<(String, String)>,
}

impl Asking {
    pub fn new(method: &str, target: &str) -> Asking {
        Asking {
            method: method.to_owned(),
            target: target.to_owned(),
            host: None,
            headers: Vec::new(),
            body: None,
        }
    }

    pub fn header(&self, line: &str) -> Asking {
        let mut changed = self.clone();
        changed.headers.push(line.to_owned());
        changed
    }

    pub fn token(&self, token: &str) -> Asking {
        self.header(&format!("Authorization: Bearer {token}"))
    }

    pub fn body(&self, body: &Value) -> Asking {
        let body = Some(("application/json".to_owned(), body.to_string()));
        Asking { body, ..self.clone() }
    }

    /// Sends the request, and returns the connection.
    pub fn send(&self, address: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        let host = self.host.as_deref().unwrap_or(address);
        let mut text = format!("{} {} HTTP/1.1\r\nHost: {host}\r\n", self.method, self.target);
        self.headers.iter().for_each(|line| text += &format!("{line}\r\n"));
        match &self.body {
            None => text += "Connection: close\r\n\r\n",
            Some((media_type, body)) => {
                let length = body.len();
                text += &format!("Content-Type: {media_type}\r\nContent-Length: {length}\r\n");
                text += &format!("Connection: close\r\n\r\n{body}");
            }
        }
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    /// Returns the status alone, also of a reply that does not end.
    pub fn status(&self, address: &str) -> u16 {
        let mut start = [0; "HTTP/1.1 200".len()];
        self.send(address).read_exact(&mut start).unwrap();
        let code = str::from_utf8(&start[start.len() - 3..]).unwrap();
        code.parse().unwrap()
    }

    /// Returns the status, the head in lower case without the date, and the body.
    pub fn answer(&self, address: &str) -> (u16, String, String) {
        let mut answer = String::new();
        self.send(address).read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{self:?}"));
        let status = head["HTTP/1.1 ".len()..].get(..3).unwrap().parse().unwrap();
        let lines = head.lines().map(str::to_ascii_lowercase);
        let lines: Vec<String> = lines.filter(|line| !line.starts_with("date: ")).collect();
        (status, lines.join("\n"), body.to_owned())
    }
}
