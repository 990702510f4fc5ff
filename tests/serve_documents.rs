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
    let metrics = ask(&server, "GET", "/metrics", gzip);
    assert_eq!(metrics.header("content-encoding"), None, "it is so long that streams would wait");
    assert_eq!(metrics.header("etag"), None, "it changes all the time");
    for path in ["/openapi.json", "/v1/tools"] {
        let (plain, packed) = (ask(&server, "GET", path, ""), ask(&server, "GET", path, gzip));
        assert_eq!((plain.status, packed.status), (200, 200), "{path}");
        assert_eq!(plain.header("content-encoding"), None, "{path}");
        assert!(packed.body.len() < plain.body.len() / 2, "{path}: {}", packed.body.len());
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

/// Starts a tool, waits for its end, and returns the path of its output.
fn output_of(server: &Server, arguments: &Value) -> String {
    let call = json!({"tool": "slow_data_processor", "arguments": arguments});
    let created = server.ask("POST", "/v1/executions", &call.to_string());
    let created: Value = serde_json::from_str(&created).unwrap();
    server.ask("GET", created["links"]["result"].as_str().unwrap(), "");
    created["links"]["output"].as_str().unwrap().to_owned()
}

#[test]
fn an_ended_output_comes_in_any_part() {
    let server = Server::start(&[]);
    let path = output_of(&server, &json!({"chunks": 20, "delay_ms": 0, "chunk_size": 100}));
    let whole = ask(&server, "GET", &path, "");
    assert_eq!((whole.status, whole.header("accept-ranges")), (200, Some("bytes")));
    let total = whole.body.len();
    assert_eq!(total, 2_000);
    let etag = whole.header("etag").unwrap().to_owned();
    for (range, first, end) in [
        ("0-0", 0, 1),
        ("50-249", 50, 250),
        ("1990-", 1_990, total),
        ("-10", total - 10, total),
        ("0-99999", 0, total),
        ("-99999", 0, total),
    ] {
        for condition in [String::new(), format!("If-Range: {etag}\r\n")] {
            let headers = format!("Range: bytes={range}\r\n{condition}");
            let part = ask(&server, "GET", &path, &headers);
            assert_eq!((part.status, &*part.body), (206, &whole.body[first..end]), "{range}");
            let place = format!("bytes {first}-{}/{total}", end - 1);
            assert_eq!(part.header("content-range"), Some(&*place));
            assert_eq!(part.header("etag"), Some(&*etag));
        }
    }
    for headers in [
        "Range: bytes=0-1, 5-6\r\n",
        "Range: lines=0-1\r\n",
        "Range: bytes=0-1\r\nIf-Range: \"x\"\r\n",
    ] {
        let same = ask(&server, "GET", &path, headers);
        assert_eq!((same.status, &same.body), (200, &whole.body), "{headers}");
    }
    for range in ["2000-", "2000-2001", "-0"] {
        let none = ask(&server, "GET", &path, &format!("Range: bytes={range}\r\n"));
        assert_eq!((none.status, none.header("content-range")), (416, Some("bytes */2000")));
        let error: Value = serde_json::from_slice(&none.body).unwrap();
        assert_eq!(error["error"]["code"], "range_not_satisfiable");
        assert_eq!(error["error"]["limit"], 2_000);
    }
    let known = ask(&server, "GET", &path, &format!("If-None-Match: {etag}\r\n"));
    assert_eq!((known.status, known.body.len()), (304, 0));
    let head = ask(&server, "HEAD", &path, "Range: bytes=0-1\r\n");
    assert_eq!((head.status, head.header("content-length")), (200, Some("2000")));
    let none = ask(&server, "GET", &format!("{path}?kinds=stderr"), "");
    assert_eq!((none.status, none.body.len()), (200, 0), "only the wanted kinds count");
}

#[test]
fn a_running_output_has_no_parts() {
    let server = Server::start(&[]);
    let call =
        json!({"tool": "slow_data_processor", "arguments": {"chunks": 2, "delay_ms": 60_000}});
    let events = server.execute(&call);
    let path = events.split("/events").next().unwrap().to_owned() + "/output";
    let mut stream = server.connect();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-1\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = [0; 1_024];
    let mut filled = 0;
    while !head[..filled].windows(4).any(|four| four == b"\r\n\r\n") {
        filled += stream.read(&mut head[filled..]).unwrap();
    }
    let head = String::from_utf8_lossy(&head[..filled]);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("\r\naccept-ranges: none\r\n"), "{head}");
    assert!(!head.contains("etag"), "{head}");
}
