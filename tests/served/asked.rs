//! One HTTP request on a connection of its own.

use std::io::{Read, Write};
use std::net::TcpStream;

/// Sends a request and returns the status and the body of the response. `headers` holds further
/// header lines, each with its line end.
pub fn ask(address: &str, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head["HTTP/1.1 ".len()..][..3].parse().unwrap(), body.to_owned())
}
