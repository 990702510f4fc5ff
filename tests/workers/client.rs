//! Clients of the server: requests, executions, streams, and a minimal worker.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::served::Server;

/// A response: its status, its head, and its body as JSON.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Value,
}

/// Reads the response to one request, after which the server closes the connection.
pub fn read_answer(mut stream: TcpStream) -> Answer {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() };
    Answer { status, head: head.to_owned(), body }
}

/// Sends a request on a connection of its own. The caller reads the response.
pub fn send(server: &Server, method: &str, path: &str, session: &str, body: &Value) -> TcpStream {
    let mut stream = server.connect();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let session = match session.is_empty() {
        true => String::new(),
        false => format!("X-Session-ID: {session}\r\n"),
    };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{session}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    stream
}

pub fn ask(server: &Server, method: &str, path: &str, session: &str, body: &Value) -> Answer {
    read_answer(send(server, method, path, session, body))
}

pub fn put_tool(server: &Server, name: &str) {
    let body = json!({"description": "A test's.", "input_schema": {"type": "object"}});
    let answer = ask(server, "PUT", &format!("/v1/virtual-tools/{name}"), "", &body);
    assert!(answer.status < 300, "{}", answer.body);
}

/// Opens an execution and returns its id.
pub fn execute(server: &Server, body: &Value) -> String {
    let answer = ask(server, "POST", "/v1/executions", "", body);
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.body["execution"].as_str().unwrap().to_owned()
}

pub fn state(server: &Server, id: &str) -> Value {
    ask(server, "GET", &format!("/v1/executions/{id}"), "", &Value::Null).body
}

/// Waits until the state of an execution satisfies `wanted`, and returns the state.
pub fn wait_for(server: &Server, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let document = state(server, id);
        if wanted(&document) {
            return document;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// The lines of a stream, in NDJSON or SSE.
pub struct Lines(BufReader<TcpStream>);

impl Lines {
    pub fn new(stream: TcpStream) -> Lines {
        Lines(BufReader::new(stream))
    }

    /// The next line that `is_wanted`. `None` at the end of the stream.
    pub fn find(&mut self, is_wanted: impl Fn(&str) -> bool) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            if is_wanted(line.trim_end()) {
                return Some(line.trim_end().to_owned());
            }
        }
    }
}

/// Follows an execution to its end on a thread, which returns the events.
pub fn follow(server: &Server, id: &str) -> std::thread::JoinHandle<Vec<Value>> {
    let path = format!("/v1/executions/{id}/events?format=ndjson&policy=block");
    let mut lines = Lines::new(send(server, "GET", &path, "", &Value::Null));
    assert!(lines.find(|line| line.contains("\"started\"")).is_some()); // It is subscribed.
    std::thread::spawn(move || {
        let mut events = Vec::new();
        while let Some(line) = lines.find(|line| line.starts_with("{\"event\"")) {
            events.push(serde_json::from_str(&line).unwrap());
        }
        events
    })
}

/// A minimal worker, which receives its calls.
pub struct Worker {
    pub session: String,
    lines: Lines,
}

impl Worker {
    pub fn connect(server: &Server, session: &str) -> Worker {
        let stream = send(server, "GET", "/v1/tool-calls/stream", session, &Value::Null);
        let mut lines = Lines::new(stream);
        assert!(lines.find(|line| line.starts_with("retry: ")).is_some(), "it is connected");
        Worker { session: session.to_owned(), lines }
    }

    /// Waits for the next call.
    pub fn call(&mut self) -> Value {
        let line = self.lines.find(|line| line.starts_with("data: ")).expect("there is a call");
        serde_json::from_str(&line["data: ".len()..]).unwrap()
    }

    pub fn deliver(&self, server: &Server, part: &Value) -> Answer {
        ask(server, "POST", "/v1/tool-results/stream", &self.session, part)
    }
}
