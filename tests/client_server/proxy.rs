//! Stands between a client and a server, and does to their connections what networks do.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

/// What happens to one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only the program meets them all"))]
pub enum Fault {
    Nothing,
    /// Both sides are closed after so many bytes of the server's.
    Cut(usize),
    /// After so many bytes of the server's the client is sent a reset, and what is in the kernel's
    /// buffers is gone.
    Reset(usize),
    /// The answer is over after so many bytes, in the middle of it; what the client says on is
    /// still taken.
    Truncate(usize),
    /// Each piece of the server's waits so long.
    Delay(Duration),
}

/// Spoils connections, or cuts all of them when it is told to.
pub struct Proxy {
    pub url: String,
    open: Arc<Mutex<Vec<Weak<TcpStream>>>>,
    acks: Arc<AtomicUsize>,
}

impl Proxy {
    /// In front of the server at `url`. The first connection is cut after `cuts[0]` bytes, and so
    /// on; those behind the last are not.
    pub fn new(url: &str, cuts: Vec<usize>) -> Proxy {
        Proxy::faulty(url, cuts.into_iter().map(Fault::Cut).collect())
    }

    /// The same with all kinds of faults.
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

    /// Cuts all that are there.
    pub fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..).filter_map(|stream| stream.upgrade()) {
            let _ = stream.shutdown(Shutdown::Both); // It may be closed by now.
        }
    }

    /// How many acknowledgements have passed.
    pub fn acks(&self) -> usize {
        self.acks.load(Ordering::Relaxed)
    }
}

/// Copies what the client asks.
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
    let _ = to.shutdown(Shutdown::Both); // Whoever was first has closed it.
    let _ = from.shutdown(Shutdown::Both);
}

/// Copies what the server answers, until the fault.
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
            // Sent when the last of us lets go of it.
            let at_once = Some(Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(to, at_once).unwrap();
            let _ = to.shutdown(Shutdown::Read);
        }
        (Fault::Truncate(_), 0) => {
            let _ = to.shutdown(Shutdown::Write);
            // The server says on, to nobody.
            while let Ok(1..) = from.read(&mut buffer) {}
        }
        _ => {
            let _ = to.shutdown(Shutdown::Both); // Whoever was first has closed it.
        }
    }
    let _ = from.shutdown(Shutdown::Both);
}
