//! A proxy that cuts streams at chosen bytes. It also serves a page, which has the same origin for
//! a browser. It forwards the server's responses, and never reports a cut.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use streamdoor::base::Random;

use crate::http;

/// A proxy on a port of its own. It ends when this value is dropped.
pub struct Proxy {
    pub address: String,
    /// Bodies that were posted to `/report`.
    pub reports: Receiver<String>,
    shared: Arc<Shared>,
}

struct Shared {
    server: String,
    page: String,
    cuts: Mutex<Cuts>,
    cut_count: AtomicUsize,
    is_over: AtomicBool,
    reports: Mutex<Sender<String>>,
}

/// The plan of the cuts.
pub struct Cuts {
    pub random: Random,
    /// Number of streams that are still to cut.
    pub left: usize,
    /// A stream is cut after this number of bytes, and less than `spread_bytes` more.
    pub after_bytes: u64,
    pub spread_bytes: u64,
    /// True if clients shall reconnect at once. Fifty times the server's half second is long.
    pub hurries: bool,
}

impl Cuts {
    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        Some(self.after_bytes + self.random.below(self.spread_bytes))
    }
}

const EMPTY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

impl Proxy {
    pub fn new(server: &str, page: String, cuts: Cuts) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, reports) = channel();
        let shared = Arc::new(Shared {
            server: server.to_owned(),
            page,
            cuts: Mutex::new(cuts),
            cut_count: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            reports: Mutex::new(sender),
        });
        let own = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if own.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (own, stream) = (own.clone(), stream.unwrap());
                // A client that disconnects is not an error of the proxy.
                std::thread::spawn(move || own.serve(stream));
            }
        });
        Proxy { address, reports, shared }
    }

    /// Number of streams that the proxy has cut.
    pub fn cut_count(&self) -> usize {
        self.shared.cut_count.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address); // Wakes the listener, which ends.
    }
}

impl Shared {
    /// Serves one request of a connection, which is then closed.
    fn serve(&self, mut client: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(client.try_clone().ok()?);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let path = head.split(' ').nth(1)?.to_owned();
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
        });
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        let body = String::from_utf8(body).unwrap();
        if path == "/report" {
            self.reports.lock().unwrap().send(body).ok()?;
            return client.write_all(EMPTY).ok();
        }
        if path.starts_with("/v1/") {
            return self.forward(&path, &head, &body, client);
        }
        let (status, body) = match path.split('?').next()? {
            "/" => ("200 OK", self.page.as_str()),
            _ => ("404 Not Found", ""),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        client.write_all(format!("{head}{body}").as_bytes()).ok()
    }

    /// Forwards a response up to its cut.
    fn forward(&self, path: &str, head: &str, body: &str, mut client: TcpStream) -> Option<()> {
        let (cut_at, hurries) = {
            let mut cuts = self.cuts.lock().unwrap();
            let cut_at = if path.contains("/events") { cuts.next() } else { None };
            (cut_at, cuts.hurries)
        };
        // One stream in four starts late: it must get a gap, or it has held others back.
        if cut_at.is_some_and(|bytes| bytes % 4 == 0) {
            self.wait_for_progress(path.split("/events").next()?);
        }
        let mut server = TcpStream::connect(&self.server).ok()?;
        // One response for each connection: the server closes it at the end.
        let head = match head.contains("keep-alive") {
            true => head.replace("keep-alive", "close"),
            false => head.replacen("\r\n", "\r\nConnection: close\r\n", 1),
        };
        server.write_all(format!("{head}{body}").as_bytes()).ok()?;
        let mut left_bytes = cut_at.unwrap_or(u64::MAX);
        let mut piece = vec![0; 16 << 10];
        let mut is_first = true;
        while left_bytes > 0 {
            let wanted_bytes = left_bytes.min(piece.len() as u64) as usize;
            let count = server.read(&mut piece[..wanted_bytes]).ok()?;
            if count == 0 {
                return None; // The response is complete.
            }
            if std::mem::take(&mut is_first) && hurries {
                hurry(&mut piece[..count]);
            }
            client.write_all(&piece[..count]).ok()?;
            left_bytes -= count as u64;
        }
        self.cut_count.fetch_add(1, Ordering::Relaxed);
        server.shutdown(Shutdown::Both).ok()?;
        client.shutdown(Shutdown::Both).ok()
    }

    /// Waits until more chunks were published than a subscriber is owed under `drop`. Also returns
    /// if nothing more is published, or nothing yet.
    fn wait_for_progress(&self, this: &str) {
        let status = || http::ask(&self.server, "GET", this, None).1;
        let begin = status()["head_seq"].as_u64().unwrap();
        loop {
            let now = status();
            let is_enough = now["head_seq"].as_u64().unwrap() >= begin + 40;
            if begin == 0 || is_enough || now["held_back"] == true || now["state"] != "running" {
                return;
            }
            std::thread::sleep(Duration::from_millis(1)); // Leaves the processor to others.
        }
    }
}

/// Changes `retry: 731` to `retry: 007`: the same number of bytes, so that no length changes.
fn hurry(bytes: &mut [u8]) {
    let name = b"retry: ";
    let Some(at) = bytes.windows(name.len()).position(|window| window == name) else { return };
    let digits = bytes[at + name.len()..].iter_mut().take_while(|byte| byte.is_ascii_digit());
    let mut digits: Vec<&mut u8> = digits.collect();
    for digit in &mut digits {
        **digit = b'0';
    }
    if let Some(last) = digits.last_mut() {
        **last = b'7';
    }
}
