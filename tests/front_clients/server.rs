//! A server that has only recorded streams.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A stream: its path, its headers, and its bytes.
pub struct Recorded {
    pub path: String,
    pub headers: &'static [(&'static str, &'static str)],
    pub bytes: Vec<u8>,
}

/// The received requests: paths and bodies.
pub type Bodies = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Serves the streams until the program ends. Returns the address, and the requests received so
/// far.
pub fn serve(streams: Vec<Recorded>) -> (SocketAddr, Bodies) {
    let bodies = Bodies::default();
    let asked = Arc::clone(&bodies);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            // A client may leave before it has read all.
            let _ = answer(connection, &streams, &asked);
        }
    });
    (address, bodies)
}

fn answer(mut connection: TcpStream, streams: &[Recorded], bodies: &Bodies) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut body_bytes = 0;
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let lower = line.to_ascii_lowercase();
        if let Some(length) = lower.strip_prefix("content-length:") {
            body_bytes = length.trim().parse().unwrap_or(0);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = Vec::new();
    reader.take(body_bytes).read_to_end(&mut body)?;
    bodies.lock().unwrap().push((path.clone(), body));
    let Some(stream) = streams.iter().find(|stream| stream.path == path) else {
        return connection.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    };
    let mut head = "HTTP/1.1 200 OK\r\nconnection: close\r\n".to_owned();
    head.push_str("content-type: text/event-stream\r\n");
    for (name, value) in stream.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    connection.write_all(head.as_bytes())?;
    connection.write_all(b"\r\n")?;
    // The cuts are in difficult places: within lines, names and characters.
    for piece in stream.bytes.chunks(997) {
        connection.write_all(piece)?;
    }
    Ok(())
}
