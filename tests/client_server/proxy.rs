//! Stands between a client and a server, and cuts their connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Cuts each connection after so many bytes of the server's, or when it is told to.
pub struct Proxy {
    pub url: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    /// In front of the server at `url`. The first connection is cut after `cuts[0]` bytes, and so
    /// on; those behind the last are not.
    pub fn new(url: &str, cuts: Vec<usize>) -> Proxy {
        let upstream = url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let all = Arc::clone(&open);
        thread::spawn(move || {
            let mut cuts = cuts.into_iter();
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(server) = TcpStream::connect(&upstream) else { return };
                let mut open = all.lock().unwrap();
                open.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                drop(open);
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || forward(from, to, usize::MAX));
                let most = cuts.next().unwrap_or(usize::MAX);
                thread::spawn(move || forward(server, client, most));
            }
        });
        Proxy { url, open }
    }

    /// Cuts all that are there.
    pub fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both); // It may be closed by now.
        }
    }
}

/// Copies, at most so many bytes; then both connections are over.
fn forward(mut from: TcpStream, mut to: TcpStream, most: usize) {
    let mut left = most;
    let mut buffer = [0; 4_096];
    while left > 0 {
        let room = left.min(buffer.len());
        match from.read(&mut buffer[..room]) {
            Ok(count) if count > 0 && to.write_all(&buffer[..count]).is_ok() => left -= count,
            _ => break,
        }
    }
    let _ = to.shutdown(Shutdown::Both); // Whoever was first has closed it.
    let _ = from.shutdown(Shutdown::Both);
}
