//! Exchanges with real servers on loopback, over both reactors. Each connection has a thread that
//! follows a script.

mod answers;
mod deadlines;
mod kept;
mod manners;
mod places;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::agent::{NetFault, NetFaultKind};
use crate::reactor::Choice;
use crate::server::outgoing::{Deadlines, ExchangeId, OutgoingConfig, ResponseEvent, Target};
use crate::server::{GuestConfig, ServerShard, outgoing};
use crate::shard::ShardConfig;
use crate::trace::Counters;

pub(in crate::server) const SLOW: Deadlines = Deadlines {
    connect: Duration::from_secs(60),
    first_byte: Duration::from_secs(60),
    between_bytes: Duration::from_secs(60),
    total: Duration::from_secs(120),
};
pub(in crate::server) const KEY: &str = "sk-nobody-may-see-this";

/// The events of an exchange.
#[derive(Debug, Default)]
pub(in crate::server) struct Got {
    pub status: Option<u16>,
    pub retry_after: Option<String>,
    pub content_type: Option<String>,
    pub body: Vec<u8>,
    pub end: Option<Result<(), NetFault>>,
}

impl Got {
    pub fn kind(&self) -> Option<NetFaultKind> {
        Some(self.end.as_ref()?.as_ref().err()?.kind)
    }

    /// Returns the whole answer. Panics if it is not complete.
    pub fn whole(&self) -> (u16, &str) {
        assert_eq!(self.end, Some(Ok(())), "{self:?}");
        (self.status.unwrap(), std::str::from_utf8(&self.body).unwrap())
    }
}

/// A shard that sends requests, and the events of its exchanges.
pub(in crate::server) struct Asker {
    pub shard: ServerShard,
    pub got: BTreeMap<ExchangeId, Got>,
    buffer: Vec<u8>,
}

impl Asker {
    pub fn new(choice: Choice, outgoing: OutgoingConfig) -> Asker {
        let config = ShardConfig {
            reactor: choice,
            guests: GuestConfig { outgoing, ..Default::default() },
            ..ShardConfig::default()
        };
        let (shard, _) = ServerShard::open(config).unwrap();
        Asker { shard, got: BTreeMap::new(), buffer: Vec::new() }
    }

    pub fn ask(&mut self, to: &Target, deadlines: Deadlines) -> ExchangeId {
        self.send(to, request(to, b"{}"), deadlines)
    }

    pub fn send(&mut self, to: &Target, request: Vec<u8>, deadlines: Deadlines) -> ExchangeId {
        let id = outgoing::ask_outside(&mut self.shard, to, request, deadlines);
        assert!(self.got.insert(id, Got::default()).is_none(), "an id came twice");
        id
    }

    pub fn turn(&mut self) {
        if !self.shard.turn() {
            let until = self.shard.reactor_mut_now() + Duration::from_millis(5);
            self.shard.park(Some(until));
        }
        self.shard.audit();
        self.hear();
    }

    fn hear(&mut self) {
        while let Some((id, heard)) = outgoing::poll_response(&mut self.shard, &mut self.buffer) {
            let got = self.got.get_mut(&id).expect("a dropped exchange reports nothing");
            assert!(got.end.is_none(), "an event after the end");
            match heard {
                ResponseEvent::Head { status, retry_after, content_type, .. } => {
                    assert!(got.status.replace(status).is_none(), "a second head");
                    got.retry_after = retry_after.map(String::from);
                    got.content_type = content_type.map(String::from);
                }
                ResponseEvent::Body => {
                    assert!(!self.buffer.is_empty() && got.status.is_some());
                    got.body.extend_from_slice(&self.buffer);
                    self.buffer.clear();
                }
                ResponseEvent::End => got.end = Some(Ok(())),
                ResponseEvent::Broken(fault) => {
                    assert!(!format!("{fault:?}").contains(KEY));
                    got.end = Some(Err(fault));
                }
            }
        }
    }

    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Asker) -> bool) {
        for _ in 0..60_000 {
            if is_so(self) {
                return;
            }
            self.turn();
        }
        panic!("never: {what}");
    }

    /// Waits for the end of an exchange.
    pub fn wait(&mut self, id: ExchangeId) -> Got {
        self.until("the end", |asker| asker.got[&id].end.is_some());
        self.got.remove(&id).unwrap()
    }

    /// Sends a request and waits for the end.
    pub fn fetch(&mut self, to: &Target) -> Got {
        let id = self.ask(to, SLOW);
        self.wait(id)
    }

    pub fn counters(&self) -> Counters {
        self.shard.counters()
    }
}

impl ServerShard {
    fn reactor_mut_now(&mut self) -> crate::base::Instant {
        crate::reactor::Reactor::now(self.reactor_mut())
    }
}

/// Returns a request like those to models' servers.
pub(in crate::server) fn request(to: &Target, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {to}\r\nauthorization: Bearer {KEY}\r\n\
         content-length: {}\r\naccept-encoding: identity\r\n\r\n",
        body.len()
    );
    let mut request = head.into_bytes();
    request.extend_from_slice(body);
    request
}

pub(in crate::server) fn target(address: SocketAddr) -> Target {
    Target { is_tls: false, host: address.ip().to_string().into(), port: address.port() }
}

/// A server that runs `script` for each connection, with its number, on a thread of its own.
pub(in crate::server) fn serve(
    script: impl Fn(usize, TcpStream) + Send + Sync + 'static,
) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let script = Arc::new(script);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(stream) = stream else { return };
            let script = Arc::clone(&script);
            let thread = std::thread::Builder::new().stack_size(128 << 10);
            thread.spawn(move || script(number, stream)).unwrap();
        }
    });
    target(address)
}

/// Reads one request and returns its bytes; `None` at the end of the stream.
pub(in crate::server) fn read_request(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let head_bytes = request.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        if let Some(head_bytes) = head_bytes {
            let head = std::str::from_utf8(&request[..head_bytes]).unwrap();
            let (_, length) = head.split_once("content-length: ").unwrap();
            let length: usize = length.split_once("\r\n").unwrap().0.parse().unwrap();
            if request.len() == head_bytes + length {
                return Some(request);
            }
            assert!(request.len() < head_bytes + length, "more than one request");
        }
        match stream.read(&mut piece) {
            Ok(0) => return None,
            Ok(count) => request.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Returns an answer with a length.
pub(in crate::server) fn answer(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Waits for the end of what the client sends.
pub(in crate::server) fn wait_for_end(stream: &mut impl Read) {
    let mut piece = [0; 1_024];
    while stream.read(&mut piece).is_ok_and(|count| count > 0) {}
}

/// Runs `test` with each available reactor.
pub(in crate::server) fn with_both(test: impl Fn(&mut dyn FnMut(OutgoingConfig) -> Asker)) {
    test(&mut |outgoing| Asker::new(Choice::Mio, outgoing));
    match crate::reactor::open_with_sockets(Choice::Uring, Default::default()) {
        Err(reason) => println!("not run: {reason}"),
        Ok(_) => test(&mut |outgoing| Asker::new(Choice::Uring, outgoing)),
    }
}

/// A shared counter.
#[derive(Clone, Default)]
pub(in crate::server) struct Tally(Arc<Mutex<u64>>);

impl Tally {
    pub fn add(&self, count: u64) {
        *self.0.lock().unwrap() += count;
    }

    pub fn get(&self) -> u64 {
        *self.0.lock().unwrap()
    }
}

/// Writes `text`. Returns `false` if the peer does not read any more.
pub(in crate::server) fn say(stream: &mut impl Write, text: impl AsRef<[u8]>) -> bool {
    stream.write_all(text.as_ref()).and_then(|()| stream.flush()).is_ok()
}
