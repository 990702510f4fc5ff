//! A proxy between a client and a server that treats their connections as networks do.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

/// The fault of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only the program meets them all"))]
pub enum Fault {
    Nothing,
    /// Closes both sides after this number of bytes from the server.
    Cut(usize),
    /// Resets the client's connection after this number of bytes from the server. The data in the
    /// kernel's buffers is lost.
    Reset(usize),
    /// Ends the reply after this number of bytes, in the middle of it. The proxy still reads what
    /// the client sends.
    Truncate(usize),
    /// Pauses for this time after each piece from the server.
    Delay(Duration),
}

/// A proxy that adds faults to connections, and can cut all of them on request.
pub struct Proxy {
    pub url: String,
    open: Arc<Mutex<Vec<Weak<TcpStream>>>>,
    acks: Arc<AtomicUsize>,
}

impl Proxy {
    /// Starts a proxy for the server at `url`. It cuts the first connection after `cuts[0]` bytes,
    /// and so on. Connections after the last cut have no fault.
    pub fn new(url: &str, cuts: Vec<usize>) -> Proxy {
        Proxy::faulty(url, cuts.into_iter().map(Fault::Cut).collect())
    }

    /// Starts a proxy with all kinds of faults.
    pub fn faulty(url: &str, faults: Vec<Fault>) -> Proxy {
        let upstream = url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (open, acks) = (Arc::default(), Arc::default());
        let proxy = Proxy { url, open: Arc::clone(&open), acks: Arc::clone(&acks) };
        thread::spawn(move || {
            let mut faults = faults.into_iter();
            for client in listener.incoming() {
                let client = Arc::new(client.unwrap());
                let Ok(server) = TcpStream::connect(&upstream).map(Arc::new) else { return };
                open.lock().unwrap().extend([Arc::downgrade(&client), Arc::downgrade(&server)]);
                let (from, to, acks) =
                    (Arc::clone(&client), Arc::clone(&server), Arc::clone(&acks));
                thread::spawn(move || ask(&from, &to, &acks));
                let fault = faults.next().unwrap_or(Fault::Nothing);
                thread::spawn(move || answer(&server, &client, fault));
            }
        });
        proxy
    }

    /// Cuts all open connections.
    pub fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..).filter_map(|stream| stream.upgrade()) {
            let _ = stream.shutdown(Shutdown::Both); // It may be closed by now.
        }
    }

    /// Returns the number of acknowledgements that have passed.
    pub fn acks(&self) -> usize {
        self.acks.load(Ordering::Relaxed)
    }
}

/// Copies the client's requests.
fn ask(mut from: &TcpStream, mut to: &TcpStream, acks: &AtomicUsize) {
    let mut buffer = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let (piece, mark) = (&buffer[..count], b"/acks HTTP/1.1");
        if piece.windows(mark.len()).any(|window| window == mark) {
            acks.fetch_add(1, Ordering::Relaxed);
        }
        if to.write_all(piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both); // The other side may have closed it.
    let _ = from.shutdown(Shutdown::Both);
}

/// Copies the server's replies, until the fault.
fn answer(mut from: &TcpStream, mut to: &TcpStream, fault: Fault) {
    let (mut left, delay) = match fault {
        Fault::Cut(bytes) | Fault::Reset(bytes) | Fault::Truncate(bytes) => (bytes, None),
        Fault::Delay(time) => (usize::MAX, Some(time)),
        Fault::Nothing => (usize::MAX, None),
    };
    let mut buffer = [0; 4_096];
    while left > 0 {
        let room = left.min(buffer.len());
        match from.read(&mut buffer[..room]) {
            Ok(count) if count > 0 && to.write_all(&buffer[..count]).is_ok() => left -= count,
            _ => break,
        }
        delay.into_iter().for_each(thread::sleep);
    }
    match (fault, left) {
        (Fault::Reset(_), 0) => {
            // The reset is sent when the last reference to the socket is dropped.
            let at_once = Some(Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(to, at_once).unwrap();
            let _ = to.shutdown(Shutdown::Read);
        }
        (Fault::Truncate(_), 0) => {
            let _ = to.shutdown(Shutdown::Write);
            // Discards what the server still sends.
            while let Ok(1..) = from.read(&mut buffer) {}
        }
        _ => {
            let _ = to.shutdown(Shutdown::Both); // The other side may have closed it.
        }
    }
    let _ = from.shutdown(Shutdown::Both);
}
