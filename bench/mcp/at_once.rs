//! Concurrent calls, each on a connection of its own. All requests are written one after the other.
//! The time from each to its first notification is measured.
//!
//! One thread polls. It reads between two requests, so that an early reply does not wait until the
//! last request is written.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use hdrhistogram::Histogram;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use serde_json::json;

use super::peer::Era;
use super::server::{connect, failed};
use super::stream::{Dialect, Stream};
use super::wire;
use crate::common::Failure;
use crate::common::machine::now_ns;
use crate::serve::client::Incoming as _;
use crate::serve::first;

/// Maximum time of all calls together.
const TURN_NS_MAX: u64 = 60_000_000_000;
/// Time in which a server accepts the connections. No event reports that.
const SETTLE: Duration = Duration::from_millis(100);

/// Connections that call at the same time, any number of times.
pub struct AtOnce {
    calls: Vec<Call>,
    dialect: Dialect,
    poll: Poll,
    events: Events,
    buffer: Box<[u8]>,
}

struct Call {
    socket: TcpStream,
    request: String,
    stream: Stream,
    begun_ns: u64,
    first_ns: Option<u64>,
}

impl AtOnce {
    /// Connects `count` times. In the era with sessions, each connection has its own.
    ///
    /// # Errors
    /// The error of a system call, or of a server that opens no session.
    pub fn connect(
        address: SocketAddr,
        era: Era,
        dialect: Dialect,
        count: u32,
    ) -> std::io::Result<AtOnce> {
        let poll = Poll::new()?;
        let mut calls = Vec::with_capacity(count as usize);
        for index in 0..count {
            let (socket, session) = connect(address, era)?;
            let token = Token(index as usize);
            let fd = socket.as_raw_fd();
            poll.registry().register(&mut SourceFd(&fd), token, Interest::READABLE)?;
            let (session, name) = (session.as_deref(), Some(first::TOOL));
            let post = wire::Post { address, session, era, name };
            let request = post.of(wire::CALL, &wire::call(era, first::TOOL, index, &json!({})));
            let stream = Stream::of_response(dialect, index as usize, 1);
            calls.push(Call { socket, request, stream, begun_ns: 0, first_ns: None });
        }
        std::thread::sleep(SETTLE);
        let (events, buffer) = (Events::with_capacity(calls.len()), vec![0; 16 << 10]);
        Ok(AtOnce { calls, dialect, poll, events, buffer: buffer.into() })
    }

    /// Makes all calls once. `taken` gets the time of each until its first notification.
    ///
    /// # Errors
    /// [`Failure::Failed`] if a reply is missing or wrong.
    pub fn call(&mut self, taken: &mut Histogram<u64>) -> Result<(), Failure> {
        for (index, call) in self.calls.iter_mut().enumerate() {
            call.stream = Stream::of_response(self.dialect, index, 1);
            call.first_ns = None;
        }
        let (mut left, deadline_ns) = (self.calls.len(), now_ns() + TURN_NS_MAX);
        for index in 0..self.calls.len() {
            let Call { socket, request, begun_ns, .. } = &mut self.calls[index];
            *begun_ns = now_ns();
            let written = socket.write_all(request.as_bytes());
            written.map_err(|error| failed_at(index, &error.to_string()))?;
            left -= self.look()?;
        }
        while left > 0 {
            left -= self.look()?;
            if now_ns() > deadline_ns {
                return Err(failed(&format!("{left} calls at once got no reply in time")));
            }
        }
        for (index, call) in self.calls.iter().enumerate() {
            let first_ns = call.first_ns;
            let first_ns = first_ns.ok_or_else(|| failed_at(index, "it had no notification"))?;
            taken.saturating_record(first_ns - call.begun_ns);
        }
        Ok(())
    }

    /// Reads what has arrived. Returns the number of calls that have ended with this.
    fn look(&mut self) -> Result<usize, Failure> {
        match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(0),
            result => result.map_err(|error| failed(&format!("epoll: {error}")))?,
        }
        let mut ended_count = 0;
        for event in &self.events {
            let index = event.token().0;
            let ended = self.calls[index].take(&mut self.buffer);
            ended_count += usize::from(ended.map_err(|text| failed_at(index, &text))?);
        }
        Ok(ended_count)
    }
}

impl Call {
    /// Reads until no bytes are left. Returns true if the call has ended with this.
    fn take(&mut self, buffer: &mut [u8]) -> Result<bool, String> {
        let was_complete = self.stream.is_complete();
        loop {
            let count = match self.socket.read(buffer) {
                Ok(0) => return Err("the server has closed the connection".to_owned()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            };
            let first_ns = &mut self.first_ns;
            self.stream.take(&buffer[..count], |_, _| *first_ns = first_ns.or(Some(now_ns())))?;
            if count < buffer.len() {
                break; // Later bytes cause another event of epoll.
            }
        }
        Ok(!was_complete && self.stream.is_complete())
    }
}

fn failed_at(index: usize, text: &str) -> Failure {
    failed(&format!("call {index} of those at once: {text}"))
}
