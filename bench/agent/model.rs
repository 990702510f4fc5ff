//! The model of `bench agent`: it accepts each request, and sends the planned deltas when they are
//! due.
//!
//! A delta is a preformatted chunk of a stream of chat completions. Its text begins with `@` and
//! the time at which it was due. Readers look for that in every stream.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use crate::common::Failure;
use crate::common::machine::now_ns;
use crate::common::serve::load::Load;
use crate::common::serve::plan::{payload, stamp};

/// The byte in front of each stamp, and nowhere else in a stream.
pub const MARK: u8 = b'@';
/// Maximum time that a request may take to arrive.
const ASKED_NS_MAX: u64 = 10_000_000_000;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
const BEFORE: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\
                      \"model\":\"demo\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"";
const BEHIND: &str = "\"},\"finish_reason\":null}]}\n\n";
const LAST: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\
                    \"model\":\"demo\",\"choices\":[{\"index\":0,\"delta\":{},\
                    \"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

/// The model and its requests.
pub struct Model {
    listener: TcpListener,
    asked: Vec<Asked>,
    /// A delta, and the position of its stamp.
    frame: Vec<u8>,
    stamp_at: usize,
    last: Vec<u8>,
}

/// A run that has sent its request.
struct Asked {
    socket: TcpStream,
    /// The rest of a delta that did not fit into the socket. It waits here, because the run's
    /// reader, which frees space, is on this thread, too.
    rest: Vec<u8>,
    /// True once the end was sent, except for `rest`.
    has_last: bool,
}

impl Model {
    /// Listens.
    ///
    /// # Errors
    /// [`Failure::Environment`].
    pub fn open(load: &Load) -> Result<Model, Failure> {
        let open = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let opened = open().map_err(|error: io::Error| Failure::Environment(error.to_string()));
        let text = String::from_utf8(payload(load.size_bytes).into()).expect("it is text");
        let frame = chunk(&format!("{BEFORE}{}{text}{BEHIND}", MARK as char));
        let stamp_at = frame.iter().position(|byte| *byte == MARK).expect("just written") + 1;
        Ok(Model { listener: opened?, asked: Vec::new(), frame, stamp_at, last: chunk(LAST) })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("it listens")
    }

    /// Waits for the next request, and begins the reply.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it does not arrive.
    pub fn take_request(&mut self) -> Result<(), Failure> {
        let failed = |text: String| Failure::Failed(format!("the model: {text}"));
        let deadline_ns = now_ns() + ASKED_NS_MAX;
        let mut socket = loop {
            match self.listener.accept() {
                Ok((socket, _)) => break socket,
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Err(failed(error.to_string()));
                }
                Err(_) if now_ns() > deadline_ns => return Err(failed("nobody asks".to_owned())),
                Err(_) => {}
            }
        };
        let answered = (|| {
            socket.set_nodelay(true)?;
            let (mut request, mut buffer) = (Vec::new(), [0; 4_096]);
            while !is_whole(&request) {
                match socket.read(&mut buffer)? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    count => request.extend_from_slice(&buffer[..count]),
                }
            }
            socket.write_all(HEAD.as_bytes())?;
            socket.set_nonblocking(true)
        })();
        answered.map_err(|error: io::Error| failed(error.to_string()))?;
        self.asked.push(Asked { socket, rest: Vec::new(), has_last: false });
        Ok(())
    }

    /// Sends the next delta of this run. Returns false if the socket is full.
    ///
    /// # Errors
    /// [`Failure::Failed`] if the connection is broken.
    #[inline]
    pub fn say(&mut self, run: usize, due_ns: u64) -> Result<bool, Failure> {
        stamp(&mut self.frame[self.stamp_at..], due_ns);
        self.asked[run].say(&self.frame, run)
    }

    /// Sends the end of this run. Returns false if it has to be tried again.
    ///
    /// # Errors
    /// [`Failure::Failed`] if the connection is broken.
    pub fn finish(&mut self, run: usize) -> Result<bool, Failure> {
        let asked = &mut self.asked[run];
        if !asked.has_last {
            let mut bytes = self.last.clone();
            bytes.extend_from_slice(b"0\r\n\r\n");
            asked.has_last = asked.say(&bytes, run)?;
        }
        Ok(asked.has_last && asked.say_rest(run)?)
    }
}

impl Asked {
    /// Sends all bytes, now or with the next call. Returns false if the socket is full and nothing
    /// was sent.
    #[inline]
    fn say(&mut self, bytes: &[u8], run: usize) -> Result<bool, Failure> {
        if !self.say_rest(run)? {
            return Ok(false);
        }
        let count = write(&mut self.socket, bytes, run)?;
        if count == 0 {
            return Ok(false);
        }
        self.rest.extend_from_slice(&bytes[count..]);
        Ok(true)
    }

    /// Sends the rest, if the socket has room. Returns true if nothing is left.
    fn say_rest(&mut self, run: usize) -> Result<bool, Failure> {
        if !self.rest.is_empty() {
            let count = write(&mut self.socket, &self.rest, run)?;
            self.rest.drain(..count);
        }
        Ok(self.rest.is_empty())
    }
}

/// Writes as many bytes as fit. Returns their number.
fn write(socket: &mut TcpStream, mut bytes: &[u8], run: usize) -> Result<usize, Failure> {
    let begun = bytes.len();
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => {
                return Err(Failure::Failed(format!("the model of run {run}: {error}")));
            }
        }
    }
    Ok(begun - bytes.len())
}

fn chunk(content: &str) -> Vec<u8> {
    format!("{:x}\r\n{content}\r\n", content.len()).into_bytes()
}

/// True if a request with a known length is complete.
fn is_whole(request: &[u8]) -> bool {
    let Some(at) = request.windows(4).position(|window| window == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&request[..at]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    request.len() >= at + 4 + length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_whole_when_its_body_is() {
        let request = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
        for end in 0..request.len() {
            assert!(!is_whole(&request[..end]), "{end}");
        }
        assert!(is_whole(request));
    }

    #[test]
    fn the_mark_stands_in_front_of_the_stamp_alone() {
        let model = Model::open(&Load::new().unwrap()).unwrap();
        assert_eq!(model.frame.iter().filter(|byte| **byte == MARK).count(), 1);
        assert!(!HEAD.as_bytes().contains(&MARK) && !model.last.contains(&MARK));
    }
}
