//! Plain HTTP requests over sockets.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};

/// A complete response.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        match self.body.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&self.body).unwrap(),
        }
    }
}

/// Reads one response for each method from a connection. Panics if more bytes follow.
pub fn answers(stream: &mut TcpStream, methods: &[Method]) -> Vec<Answer> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    let mut read_count = 0;
    let mut reader = ResponseReader::new();
    let mut answers = Vec::new();
    for &method in methods {
        reader.expect(method);
        let mut answer = Answer { status: 0, headers: Vec::new(), body: Vec::new() };
        loop {
            let mut input = &bytes[read_count..];
            let before = input.len();
            let part = reader.read(&mut input).unwrap();
            read_count += before - input.len();
            match part {
                Some(ResponsePart::Head(head)) => {
                    answer.status = head.status.code();
                    answer.headers.extend(head.headers.iter().map(|header| {
                        let value = String::from_utf8_lossy(header.value).into_owned();
                        (header.name.to_owned(), value)
                    }));
                }
                Some(ResponsePart::Body(more)) => answer.body.extend_from_slice(more),
                Some(ResponsePart::End) => break,
                None => {
                    let count = stream.read(&mut piece).unwrap();
                    assert!(count > 0, "cut off after {answer:?}");
                    bytes.extend_from_slice(&piece[..count]);
                }
            }
        }
        answers.push(answer);
    }
    assert_eq!(read_count, bytes.len(), "more came than was asked for");
    answers
}

/// The text of a request.
pub fn request(method: &str, path: &str, body: Option<&Value>) -> String {
    let body = body.map_or(String::new(), Value::to_string);
    let length = match body.is_empty() {
        true => String::new(),
        false => format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()),
    };
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n{body}")
}

/// Sends a request on a connection of its own. Returns the status and the document.
pub fn ask(address: &str, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request(method, path, body).as_bytes()).unwrap();
    let method = match method {
        "GET" => Method::Get,
        "POST" => Method::Post,
        "DELETE" => Method::Delete,
        _ => unreachable!("nobody asks so"),
    };
    let answer = answers(&mut stream, &[method]).remove(0);
    (answer.status, answer.json())
}
