//! The connections of `bench streams`, all on one thread, which polls and never blocks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::reply::{Replies, Reply};
use crate::common::Failure;
use crate::common::machine::now_ns;

const READ_BYTES: usize = 256 << 10;
/// The maximum time without any byte from the server.
const SILENCE_NS: u64 = 30_000_000_000;

/// All connections to a server.
pub struct Clients {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    buffer: Box<[u8]>,
    heard_ns: u64,
    /// Complete replies, with the numbers of their connections.
    replies: Vec<(usize, Reply)>,
    /// Number of connections that the server has closed.
    pub closed_count: usize,
}

struct Connection {
    socket: TcpStream,
    replies: Replies,
    is_open: bool,
}

impl Clients {
    /// Connects `count` times.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    pub fn connect(address: SocketAddr, count: usize) -> Result<Clients, Failure> {
        let poll = Poll::new().map_err(failed)?;
        let mut connections = Vec::with_capacity(count);
        for index in 0..count {
            let socket = TcpStream::connect(address).map_err(failed)?;
            socket.set_nodelay(true).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            let fd = socket.as_raw_fd();
            let registry = poll.registry();
            registry
                .register(&mut SourceFd(&fd), Token(index), Interest::READABLE)
                .map_err(failed)?;
            connections.push(Connection { socket, replies: Replies::new(), is_open: true });
        }
        Ok(Clients {
            poll,
            events: Events::with_capacity(count.max(1)),
            connections,
            buffer: vec![1; READ_BYTES].into_boxed_slice(), // Not zero: that is mapped lazily.
            heard_ns: now_ns(),
            replies: Vec::new(),
            closed_count: 0,
        })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    pub fn send(&mut self, index: usize, request: &[u8]) -> Result<(), Failure> {
        let mut left = request;
        while !left.is_empty() {
            match self.connections[index].socket.write(left) {
                Ok(count) => left = &left[count..],
                // A body that is larger than the socket's buffer.
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    /// True once the head of a reply that does not end has come.
    pub fn has_head(&self, index: usize) -> bool {
        self.connections[index].replies.has_head()
    }

    /// Reads what is there. Calls `body` with the bytes of bodies, and keeps complete replies.
    ///
    /// # Errors
    /// [`Failure::Failed`] if a reply is wrong, or if nothing comes for a long time.
    pub fn turn(&mut self, mut body: impl FnMut(usize, &[u8])) -> Result<(), Failure> {
        match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            result => result.map_err(failed)?,
        }
        let now = now_ns();
        if !self.events.is_empty() {
            self.heard_ns = now;
        } else if now > self.heard_ns + SILENCE_NS {
            return Err(Failure::Failed("the server is silent".into()));
        }
        for event in &self.events {
            let index = event.token().0;
            let connection = &mut self.connections[index];
            // Until it is empty, because epoll reports it again only when more arrives.
            while connection.is_open {
                let mut bytes = match connection.socket.read(&mut self.buffer) {
                    Ok(0) => {
                        connection.is_open = false;
                        self.closed_count += 1;
                        break;
                    }
                    Ok(count) => &self.buffer[..count],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(failed(error)),
                };
                while !bytes.is_empty() {
                    let taken = connection.replies.take(&mut bytes, |bytes| body(index, bytes));
                    let reply =
                        taken.map_err(|text| Failure::Failed(format!("a reply: {text}")))?;
                    self.replies.extend(reply.map(|reply| (index, reply)));
                }
            }
        }
        Ok(())
    }

    /// Removes a complete reply, and returns it with the number of its connection.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it is not 2xx.
    pub fn next_reply(&mut self) -> Result<Option<(usize, Reply)>, Failure> {
        match self.replies.pop() {
            Some((_, Reply { status, .. })) if !(200..300).contains(&status) => {
                Err(Failure::Failed(format!("the server replied {status}")))
            }
            reply => Ok(reply),
        }
    }

    /// Sends requests, one at a time on each connection, until `request` has no more for it. It is
    /// called with the last reply of the connection, and writes the next request.
    ///
    /// # Errors
    /// [`Failure::Failed`], also if the server closes a connection.
    pub fn drive(
        &mut self,
        mut request: impl FnMut(usize, Option<&Reply>, &mut Vec<u8>) -> bool,
        mut body: impl FnMut(usize, &[u8]),
    ) -> Result<(), Failure> {
        let (mut bytes, mut open_count) = (Vec::new(), 0);
        for index in 0..self.connections.len() {
            bytes.clear();
            if request(index, None, &mut bytes) {
                open_count += 1;
                self.send(index, &bytes)?;
            }
        }
        while open_count > 0 {
            self.turn(&mut body)?;
            while let Some((index, reply)) = self.next_reply()? {
                bytes.clear();
                if request(index, Some(&reply), &mut bytes) {
                    self.send(index, &bytes)?;
                } else {
                    open_count -= 1;
                }
            }
            if self.closed_count > 0 {
                return Err(Failure::Failed("the server closes its connections".into()));
            }
        }
        Ok(())
    }
}

/// Writes a request for a stream.
pub fn write_request(out: &mut Vec<u8>, method: &str, target: &str, media_type: &str, body: &[u8]) {
    let length = body.len();
    write!(
        out,
        "{method} /v1/stream/{target} HTTP/1.1\r\nhost: localhost\r\n\
         content-type: {media_type}\r\ncontent-length: {length}\r\n\r\n"
    )
    .expect("a vector takes everything");
    out.extend_from_slice(body);
}

/// Writes a request for bytes of a stream.
pub fn write_get(out: &mut Vec<u8>, target: &str) {
    write!(out, "GET /v1/stream/{target} HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .expect("a vector takes everything");
}

fn failed(error: io::Error) -> Failure {
    Failure::Failed(format!("a connection: {error}"))
}
