//! Documents and outputs of `streamdoor serve` as HTTP clients keep them: compressed, tagged, and
//! in parts.
#![cfg(feature = "cli")]

mod served;

use std::io::{Read, Write};
use std::time::Duration;

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use served::Server;

/// A response: its status, its header lines in lower case, and its body.
struct Response {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Response {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    fn unpacked(&self) -> Vec<u8> {
        assert_eq!(self.header("content-encoding"), Some("gzip"), "{}", self.head);
        let mut plain = Vec::new();
        GzDecoder::new(&*self.body).read_to_end(&mut plain).unwrap();
        plain
    }
}

/// Sends a request on a connection of its own. The body of the response must not be chunked.
fn ask(server: &Server, method: &str, path: &str, headers: &str) -> Response {
    let mut stream = server.connect();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    stream.write_all(format!("{head}{headers}\r\n").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
    assert!(!head.contains("chunked"), "{head}");
    let status = head["http/1.1 ".len()..][..3].parse().unwrap();
    Response { status, head, body: bytes.split_off(end + 4) }
}

#[test]
fn documents_come_compressed_and_only_if_they_have_changed() {
    let server = Server::start(&[]);
    server.execute(&json!({"tool": "slow_data_processor", "arguments": {"chunks": 1}}));
    let gzip = "Accept-Encoding: gzip, deflate\r\n";
    for path in ["/openapi.json", "/metrics", "/v1/tools"] {
        let (plain, packed) = (ask(&server, "GET", path, ""), ask(&server, "GET", path, gzip));
        assert_eq!((plain.status, packed.status), (200, 200), "{path}");
        assert_eq!(plain.header("content-encoding"), None, "{path}");
        assert!(packed.body.len() < plain.body.len() / 2, "{path}: {}", packed.body.len());
        let first = packed.unpacked()[..40].to_vec();
        assert_eq!(first, plain.body[..40], "{path}");
        if path == "/metrics" {
            assert_eq!(packed.header("etag"), None, "it changes all the time");
            continue;
        }
        assert_eq!(packed.unpacked(), plain.body, "{path}");
        for (response, coding) in [(&plain, ""), (&packed, gzip)] {
            let known = format!("{coding}If-None-Match: {}\r\n", response.header("etag").unwrap());
            let again = ask(&server, "GET", path, &known);
            assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        }
    }
    let known = ask(&server, "GET", "/v1/virtual-tools", "").header("etag").unwrap().to_owned();
    let known = format!("If-None-Match: {known}\r\n");
    assert_eq!(ask(&server, "GET", "/v1/virtual-tools", &known).status, 304);
    let tool = json!({"description": "d", "input_schema": {"type": "object"}}).to_string();
    server.ask("PUT", "/v1/virtual-tools/new", &tool);
    assert_eq!(ask(&server, "GET", "/v1/virtual-tools", &known).status, 200);
}
