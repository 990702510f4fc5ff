//! The network of the simulated world: listeners, streams between a client and a server, and what
//! actors at the client's end do with them. The server's end belongs to `socket.rs`.
//!
//! As TCP does: what was sent before a finish arrives before it; a close with unread bytes, or a
//! byte sent to somebody who has closed, is a reset, and a reset throws away what was under way.
//! Invariant: a stream's number is never used twice.

use std::cell::RefMut;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use crate::base::Random;
use crate::reactor::released::{Carried, Past};
use crate::reactor::{IoError, ListenAddress, ListenError, ListenOptions, Peer, ReleasedSocket};
use crate::sim::world::{EAGAIN, SimWorld};

/// Bytes under way in one direction of a stream.
pub const STREAM_BYTES_MAX: usize = 1 << 16;
/// Connections that wait at one listener.
pub const BACKLOG_MAX: usize = 128;
const PORT_FIRST: u16 = 40_000;
const CLIENT_PORT_FIRST: u16 = 20_000;
const ECONNRESET: IoError = IoError(libc::ECONNRESET);

/// The client's end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimClient(usize);

#[derive(Debug, Default)]
pub(super) struct Network {
    listeners: Vec<Option<Listener>>,
    streams: Vec<Stream>,
    accepted_count: usize,
    /// How many connections the process has descriptors for.
    accepted_max: Option<usize>,
    /// Streams whose socket was dropped on its way from one reactor to another.
    dropped: Dropped,
}

/// Sockets may cross threads, the world does not: what is dropped leaves its number here.
type Dropped = Arc<Mutex<Vec<usize>>>;

/// The server's end of a stream while it is no reactor's. Closes it when it is dropped.
#[derive(Debug)]
pub(super) struct SimSocket {
    stream: usize,
    dropped: Dropped,
    is_adopted: bool,
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        if !self.is_adopted {
            self.dropped.lock().expect("nobody panics with it").push(self.stream);
        }
    }
}

#[derive(Debug)]
struct Listener {
    address: ListenAddress,
    shares_port: bool,
    backlog: VecDeque<usize>,
}

#[derive(Debug, Default)]
struct Direction {
    bytes: VecDeque<u8>,
    is_finished: bool,
    is_reader_gone: bool,
}

#[derive(Debug)]
struct Stream {
    up: Direction,
    down: Direction,
    is_reset: bool,
    /// The reset has been told to this side: server, client.
    is_told: [bool; 2],
    peer: Peer,
}

impl Direction {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        assert!(!self.is_finished, "actors and reactors send before they finish");
        let count = bytes.len().min(STREAM_BYTES_MAX - self.bytes.len());
        if count == 0 && !bytes.is_empty() {
            return Err(EAGAIN);
        }
        self.bytes.extend(&bytes[..count]);
        Ok(count)
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, IoError> {
        if self.bytes.is_empty() {
            return if self.is_finished { Ok(0) } else { Err(EAGAIN) };
        }
        let count = into.len().min(self.bytes.len());
        for (place, byte) in into.iter_mut().zip(self.bytes.drain(..count)) {
            *place = byte;
        }
        Ok(count)
    }
}

impl Stream {
    fn reset(&mut self) {
        self.is_reset = true;
        self.up.bytes.clear();
        self.down.bytes.clear();
    }

    /// The reset, told once as itself and then as a broken pipe.
    fn check(&mut self, side: usize) -> Result<(), IoError> {
        if !self.is_reset {
            return Ok(());
        }
        let was_told = std::mem::replace(&mut self.is_told[side], true);
        Err(if was_told { IoError::BROKEN_PIPE } else { ECONNRESET })
    }
}

const SERVER: usize = 0;
const CLIENT: usize = 1;

impl Network {
    pub fn listen(
        &mut self,
        address: &ListenAddress,
        options: ListenOptions,
    ) -> Result<(usize, ListenAddress), ListenError> {
        let mut address = address.clone();
        if let ListenAddress::Tcp(internet) = &mut address
            && internet.port() == 0
        {
            internet.set_port(PORT_FIRST + self.listeners.len() as u16);
        }
        let mut others = self.listeners.iter().flatten();
        if others.any(|o| o.address == address && !(o.shares_port && options.shares_port)) {
            return Err(ListenError::InUse { address });
        }
        let backlog = VecDeque::new();
        let shares_port = options.shares_port;
        self.listeners.push(Some(Listener { address: address.clone(), shares_port, backlog }));
        Ok((self.listeners.len() - 1, address))
    }

    pub fn close_listener(&mut self, index: usize) {
        let listener = self.listeners[index].take().expect("closed once");
        for stream in listener.backlog {
            self.streams[stream].reset();
        }
    }

    pub fn has_waiting(&self, index: usize) -> bool {
        self.listeners[index].as_ref().is_some_and(|listener| !listener.backlog.is_empty())
    }

    /// The next connection: its stream and who it is.
    pub fn accept(&mut self, index: usize) -> Result<(usize, Peer), IoError> {
        let listener = self.listeners[index].as_mut().expect("it is open");
        if self.accepted_max.is_some_and(|max| self.accepted_count >= max) {
            return Err(IoError(libc::EMFILE));
        }
        let stream = listener.backlog.pop_front().ok_or(EAGAIN)?;
        if self.streams[stream].is_reset {
            return Err(IoError(libc::ECONNABORTED));
        }
        self.accepted_count += 1;
        Ok((stream, self.streams[stream].peer))
    }

    pub fn is_readable(&self, index: usize) -> bool {
        let stream = &self.streams[index];
        !stream.up.bytes.is_empty() || stream.up.is_finished || stream.is_reset
    }

    pub fn is_writable(&self, index: usize) -> bool {
        let stream = &self.streams[index];
        stream.down.bytes.len() < STREAM_BYTES_MAX || stream.is_reset
    }

    pub fn receive(&mut self, index: usize, into: &mut [u8]) -> Result<usize, IoError> {
        let stream = &mut self.streams[index];
        stream.check(SERVER)?;
        stream.up.read(into)
    }

    pub fn send(&mut self, index: usize, bytes: &[u8]) -> Result<usize, IoError> {
        let stream = &mut self.streams[index];
        stream.check(SERVER)?;
        if stream.down.is_finished {
            return Err(IoError::BROKEN_PIPE);
        }
        let count = stream.down.write(bytes)?;
        if stream.down.is_reader_gone && count > 0 {
            stream.reset(); // The kernel took the bytes; the answer to them is a reset.
        }
        Ok(count)
    }

    pub fn finish(&mut self, index: usize) {
        self.streams[index].down.is_finished = true;
    }

    pub fn close(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        if stream.up.bytes.is_empty() {
            stream.down.is_finished = true;
        } else {
            stream.reset();
        }
        stream.up.is_reader_gone = true;
        self.accepted_count -= 1;
    }

    /// The server's end, for another reactor of this world.
    pub fn let_go(&mut self, index: usize) -> SimSocket {
        SimSocket { stream: index, dropped: Arc::clone(&self.dropped), is_adopted: false }
    }

    /// Whether it is a socket of this world.
    pub fn knows(&self, socket: &SimSocket) -> bool {
        Arc::ptr_eq(&self.dropped, &socket.dropped)
    }

    /// Its stream.
    pub fn take_in(&mut self, mut socket: SimSocket) -> usize {
        socket.is_adopted = true;
        socket.stream
    }

    /// Closes what was dropped on its way.
    pub fn close_dropped(&mut self) {
        let dropped = std::mem::take(&mut *self.dropped.lock().expect("nobody panics with it"));
        for index in dropped {
            self.close(index);
        }
    }

    fn connect(
        &mut self,
        address: &ListenAddress,
        from: IpAddr,
        random: &mut Random,
    ) -> Result<usize, IoError> {
        let matches = |listener: &&mut Listener| listener.address == *address;
        let mut listeners: Vec<_> = self.listeners.iter_mut().flatten().filter(matches).collect();
        if listeners.is_empty() {
            return Err(IoError(libc::ECONNREFUSED));
        }
        let choice = random.below(listeners.len() as u64) as usize;
        if listeners[choice].backlog.len() >= BACKLOG_MAX {
            return Err(EAGAIN);
        }
        let index = self.streams.len();
        listeners[choice].backlog.push_back(index);
        let peer = match address {
            ListenAddress::Tcp(_) => {
                let port = CLIENT_PORT_FIRST + (index % 20_000) as u16;
                Peer::Tcp(SocketAddr::new(from, port))
            }
            ListenAddress::Unix(_) => Peer::Unix { pid: 1 + index as i32, uid: 1_000, gid: 1_000 },
        };
        self.open(peer);
        Ok(index)
    }

    fn open(&mut self, peer: Peer) -> usize {
        let (up, down) = (Direction::default(), Direction::default());
        self.streams.push(Stream { up, down, is_reset: false, is_told: [false; 2], peer });
        self.streams.len() - 1
    }
}

/// What actors at the client's end do.
impl SimWorld {
    fn network(&self) -> RefMut<'_, Network> {
        let mut network = RefMut::map(self.world.borrow_mut(), |world| &mut world.network);
        network.close_dropped();
        network
    }

    /// Connects to a listener; it need not have accepted yet.
    ///
    /// # Errors
    /// ECONNREFUSED if nobody listens, EAGAIN if too many wait.
    pub fn connect(&self, address: &ListenAddress) -> Result<SimClient, IoError> {
        self.connect_from(address, Ipv4Addr::LOCALHOST.into())
    }

    /// As [`SimWorld::connect`], from another address than this machine's own.
    ///
    /// # Errors
    /// As [`SimWorld::connect`].
    pub fn connect_from(
        &self,
        address: &ListenAddress,
        from: IpAddr,
    ) -> Result<SimClient, IoError> {
        let world = &mut *self.world.borrow_mut();
        world.network.connect(address, from, &mut world.random).map(SimClient)
    }

    /// A connection that no listener has accepted, as standard input and output are one; the
    /// server's end is for [`crate::reactor::Reactor::adopt`].
    pub fn pair(&self) -> (SimClient, ReleasedSocket) {
        let mut network = self.network();
        let peer = Peer::Unix { pid: 1, uid: 1_000, gid: 1_000 };
        let index = network.open(peer);
        network.accepted_count += 1;
        let carried = Carried::Simulated(Box::new(network.let_go(index)));
        (SimClient(index), ReleasedSocket { carried, past: Past::none(peer) })
    }

    /// As the server sees this client.
    pub fn client_peer(&self, client: SimClient) -> Peer {
        self.world.borrow().network.streams[client.0].peer
    }

    /// Sends what fits.
    ///
    /// # Errors
    /// EAGAIN if nothing fits; ECONNRESET once and EPIPE after it if the server has gone.
    pub fn client_send(&self, client: SimClient, bytes: &[u8]) -> Result<usize, IoError> {
        let stream = &mut self.network().streams[client.0];
        stream.check(CLIENT)?;
        let count = stream.up.write(bytes)?;
        if stream.up.is_reader_gone && count > 0 {
            stream.reset();
        }
        Ok(count)
    }

    /// Receives what is there. `Ok(0)` is the end.
    ///
    /// # Errors
    /// EAGAIN if nothing is there; as [`SimWorld::client_send`].
    pub fn client_receive(&self, client: SimClient, into: &mut [u8]) -> Result<usize, IoError> {
        let stream = &mut self.network().streams[client.0];
        stream.check(CLIENT)?;
        stream.down.read(into)
    }

    /// Sends no more.
    pub fn client_finish(&self, client: SimClient) {
        self.network().streams[client.0].up.is_finished = true;
    }

    /// Ends both directions: a reset if bytes are unread.
    pub fn client_close(&self, client: SimClient) {
        let stream = &mut self.network().streams[client.0];
        if stream.down.bytes.is_empty() {
            stream.up.is_finished = true;
            stream.down.is_reader_gone = true;
        } else {
            stream.reset();
        }
    }

    /// Ends both directions at once, and throws away what is under way.
    pub fn client_reset(&self, client: SimClient) {
        self.network().streams[client.0].reset();
    }

    /// From now on the process has descriptors for so many connections.
    pub fn set_connections_max(&self, accepted_max: Option<usize>) {
        self.world.borrow_mut().network.accepted_max = accepted_max;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::{Reactor, SocketEvent};
    use crate::sim::reactor::SimReactor;
    use crate::sim::world::SimFaults;
    use std::io::IoSlice;

    /// What the server is told, and what its sends moved, in order.
    fn history(seed: u64) -> Vec<(u64, String)> {
        let world = SimWorld::new(seed, SimFaults::ALL);
        let mut reactor = SimReactor::new(&world, 1);
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = reactor.listen(&address, ListenOptions::default()).unwrap();
        let address = reactor.listen_address(listener).unwrap();
        let clients = [(); 3].map(|()| world.connect(&address).unwrap());
        let mut history = Vec::new();
        for step in 0..300 {
            let client = clients[step % 3];
            let _ = world.client_send(client, &[7; 40]);
            let _ = world.client_receive(client, &mut [0; 64]);
            reactor.wait(None);
            let mut others = Vec::new();
            while let Some(event) = reactor.next_socket_event() {
                history.push((world.now().nanos(), format!("{event:?}")));
                if let SocketEvent::Received { connection, .. } = event {
                    others.push(connection);
                }
            }
            for id in others {
                let sent = reactor.send(id, &[IoSlice::new(&[8; 30])]);
                history.push((world.now().nanos(), format!("{sent:?}")));
            }
        }
        assert!(reactor.counters().sockets.cut_count > 0, "SEED={seed}");
        history
    }

    #[test]
    fn the_same_seed_gives_the_same_history_of_sockets_and_another_does_not() {
        assert_eq!(history(1), history(1));
        assert_ne!(history(1), history(2));
    }

    #[test]
    fn receives_and_sends_are_cut_at_every_length() {
        let (mut received, mut sent) = ([false; 41], [false; 31]);
        for seed in 1..200 {
            for (_, text) in history(seed) {
                let count = text.matches('7').count();
                if text.starts_with("Received") && (1..=40).contains(&count) {
                    received[count] = true;
                }
                let moved = text.strip_prefix("Ok(").and_then(|rest| rest.strip_suffix(')'));
                if let Some(moved) = moved {
                    sent[moved.parse::<usize>().unwrap()] = true;
                }
            }
        }
        assert!(received[1..].iter().all(|seen| *seen), "{received:?}");
        assert!(sent.iter().all(|seen| *seen), "{sent:?}");
    }
}
