//! Well-behaved clients, which the attacks must not affect.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::served::Server;

const PATIENCE: Duration = Duration::from_secs(30);

/// A client that sends all its requests over one connection.
pub struct NormalClient {
    reader: BufReader<TcpStream>,
}

/// A response, with its body as JSON.
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl NormalClient {
    pub fn new(server: &Server) -> NormalClient {
        let stream = server.connect();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        NormalClient { reader: BufReader::new(stream) }
    }

    /// Connects until the server accepts a request. Retries while it answers 503.
    pub fn patient(server: &Server) -> NormalClient {
        loop {
            let mut client = NormalClient::new(server);
            match client.ask("GET", "/healthz", "").status {
                200 => return client,
                status => assert_eq!(status, 503),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a request on the same connection and returns the response.
    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> Answer {
        let (status, body) = self.exchange(method, path, body);
        let body = if body.is_empty() { Value::Null } else { json(&body) };
        Answer { status, body }
    }

    /// Returns the body of a `GET` as text.
    pub fn ask_text(&mut self, path: &str) -> String {
        let (status, body) = self.exchange("GET", path, "");
        assert_eq!(status, 200, "{path}");
        String::from_utf8(body).unwrap()
    }

    fn exchange(&mut self, method: &str, path: &str, body: &str) -> (u16, Vec<u8>) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.reader.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            assert!(self.reader.read_line(&mut line).unwrap() > 0, "the connection was closed");
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            match line.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(_) => {}
                None => status = line.split(' ').nth(1).unwrap().parse().unwrap(),
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        (status, body)
    }

    pub fn expect(&mut self, status: u16, method: &str, path: &str, body: &str) -> Value {
        let answer = self.ask(method, path, body);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        answer.body
    }

    /// Sends a few requests with known responses.
    pub fn check(&mut self) {
        assert_eq!(self.expect(200, "GET", "/healthz", "")["status"], "ok");
        let tools = self.expect(200, "GET", "/v1/tools", "");
        assert!(tools["tools"].as_array().is_some_and(|tools| tools.len() > 1), "{tools}");
        assert_eq!(self.expect(404, "GET", "/nowhere", "")["error"]["code"], "unknown_path");
    }
}

fn json(body: &[u8]) -> Value {
    let text = String::from_utf8_lossy(body);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A subscriber of an execution that publishes all the time.
pub struct Follower {
    lines: BufReader<TcpStream>,
    seq: u64,
}

impl Follower {
    pub fn new(server: &Server) -> Follower {
        let events = server.execute(&serde_json::json!({
            "tool": "slow_data_processor",
            "arguments": {"chunks": 100_000, "delay_ms": 20},
            "start": {"after_subscribers": 1},
        }));
        let stream = server.follow(&format!("{events}?format=ndjson&policy=block"));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Follower { lines: BufReader::new(stream), seq: 0 }
    }

    /// Reads the next `count` chunks and checks that none is missing.
    pub fn read(&mut self, count: u64) {
        let until = self.seq + count;
        while self.seq < until {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream was cut");
            let Ok(event) = serde_json::from_str::<Value>(&line) else { continue }; // Chunk data.
            assert!(!matches!(event["event"].as_str(), Some("gap" | "end")), "{line}");
            if event["event"] == "chunk" {
                self.seq += 1;
                assert_eq!(event["seq"], self.seq, "{line}");
            }
        }
    }
}
