//! `bench agent pipe`: the least that can stand between a model and its readers. It copies the
//! bytes of each side to the other as they arrive, and does not parse them.
//!
//! It has one thread over epoll. It waits as streamdoor does: it polls for a while, and then
//! blocks.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use streamdoor::limits::SPIN_DEFAULT;
use streamdoor::reactor::Idle;

use super::server::parse;
use crate::common::Failure;
use crate::common::machine::{allow_descriptors, now_ns, pin_thread};
use crate::common::serve::child;

const HELP: &str = "\
bench agent pipe: run a plain pipe between models and their readers, for one run

Listens on a free port of 127.0.0.1, and prints it. `bench agent` runs it.

Usage: bench agent pipe --model ADDRESS [options]

  --cpu N             pin it to cpu N (the first allowed)
  --child             reply to each line of standard input with the usage so far; exit at its end
";
const DESCRIPTORS_OTHER: u64 = 64;
const READ_BYTES: usize = 64 << 10;
const LISTENER: Token = Token(usize::MAX);

/// Runs `bench agent pipe` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some((load, model)) = parse(arguments, HELP)? else { return Ok(()) };
    pin_thread(load.cpu)?;
    allow_descriptors(2 * u64::from(load.connections) + DESCRIPTORS_OTHER)?;
    Relay::open(model)
        .and_then(|mut relay| relay.run(load.idle))
        .map_err(|error| Failure::Failed(format!("pipe: {error}")))
}

/// Pairs of sockets.
struct Relay {
    model: SocketAddr,
    poll: Poll,
    listener: TcpListener,
    /// Two for each pair, next to each other.
    sides: Vec<Side>,
    buffer: Box<[u8]>,
}

struct Side {
    socket: TcpStream,
    /// The bytes that the socket has not taken yet.
    waiting: Vec<u8>,
}

impl Relay {
    fn open(model: SocketAddr) -> io::Result<Relay> {
        let poll = Poll::new()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let fd = listener.as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), LISTENER, Interest::READABLE)?;
        child::announce(listener.local_addr()?);
        let buffer = vec![1; READ_BYTES].into_boxed_slice();
        Ok(Relay { model, poll, listener, sides: Vec::new(), buffer })
    }

    fn run(&mut self, idle: Idle) -> io::Result<()> {
        let mut events = Events::with_capacity(1_024);
        let mut active_ns = now_ns();
        loop {
            let spins = match idle {
                Idle::Spin => true,
                Idle::Block => false,
                Idle::Backoff => now_ns() - active_ns < SPIN_DEFAULT.as_nanos() as u64,
            };
            match self.poll.poll(&mut events, spins.then_some(Duration::ZERO)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            if events.is_empty() {
                continue;
            }
            active_ns = now_ns();
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    Token(side) => {
                        if event.is_writable() {
                            self.write(side, &[])?;
                        }
                        if event.is_readable() {
                            self.carry(side)?;
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let reader = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            for socket in [reader, TcpStream::connect(self.model)?] {
                socket.set_nodelay(true)?;
                socket.set_nonblocking(true)?;
                let fd = socket.as_raw_fd();
                let token = Token(self.sides.len());
                let interest = Interest::READABLE | Interest::WRITABLE;
                self.poll.registry().register(&mut SourceFd(&fd), token, interest)?;
                self.sides.push(Side { socket, waiting: Vec::new() });
            }
        }
    }

    /// Copies until no bytes are left, because epoll reports the socket again only when more
    /// arrives.
    #[inline]
    fn carry(&mut self, from: usize) -> io::Result<()> {
        let to = from ^ 1;
        let mut buffer = std::mem::take(&mut self.buffer);
        let carried = loop {
            match self.sides[from].socket.read(&mut buffer) {
                Ok(0) => break Ok(()), // The measuring process closes both.
                Ok(count) => {
                    if let Err(error) = self.write(to, &buffer[..count]) {
                        break Err(error);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.buffer = buffer;
        carried
    }

    #[inline]
    fn write(&mut self, to: usize, bytes: &[u8]) -> io::Result<()> {
        let side = &mut self.sides[to];
        if !side.waiting.is_empty() {
            side.waiting.extend_from_slice(bytes);
            let sent = sent_of(side.socket.write(&side.waiting))?;
            side.waiting.drain(..sent);
            return Ok(());
        }
        if !bytes.is_empty() {
            let sent = sent_of(side.socket.write(bytes))?;
            side.waiting.extend_from_slice(&bytes[sent..]);
        }
        Ok(())
    }
}

fn sent_of(written: io::Result<usize>) -> io::Result<usize> {
    match written {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
