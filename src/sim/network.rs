//! The network of the simulated world: listeners, streams between a client and a server, and the
//! calls of actors at one end. The other end belongs to `socket.rs`, or both do.
//!
//! It behaves as TCP does. Bytes sent before a finish arrive before it. A close with unread bytes,
//! or a byte sent to an end that has closed, is a reset, which discards the bytes under way.
//! Invariant: a stream's number is never used twice.

use std::cell::RefMut;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use crate::base::Random;
use crate::reactor::released::{SocketHistory, SocketSource};
use crate::reactor::{
    ConnectAddress, IoError, ListenAddress, ListenError, ListenOptions, Peer, ReleasedSocket,
};
use crate::sim::world::{EAGAIN, SimWorld};

/// Bytes under way in one direction of a stream, in the kernels of both ends.
pub const STREAM_BYTES_MAX: usize = 1 << 16;
/// The smallest such bound that a reactor can set, as on Linux.
const STREAM_BYTES_MIN: usize = 4_608;
/// Connections that wait at one listener.
pub const BACKLOG_MAX: usize = 128;
const PORT_FIRST: u16 = 40_000;
const CLIENT_PORT_FIRST: u16 = 20_000;
const ECONNRESET: IoError = IoError(libc::ECONNRESET);

/// An actor's end of a stream: the client's, or the server's if a reactor connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimClient(StreamEnd);

/// The fate of connections to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimRoute {
    /// No answer, ever.
    Silent,
    /// They fail with this error, after a while.
    Fails(IoError),
}

#[derive(Debug, Default)]
pub(super) struct Network {
    listeners: Vec<Option<Listener>>,
    streams: Vec<Stream>,
    /// Ends that reactors have.
    open_count: usize,
    /// Number of connections that the process has descriptors for.
    open_max: Option<usize>,
    /// Addresses with a fate of their own.
    routes: Vec<(ConnectAddress, SimRoute)>,
    /// Connection attempts of reactors that fail although a server listens, per mille.
    connect_fault_chance: u64,
    /// Ends whose socket was dropped on its way from one reactor to another.
    dropped: Dropped,
}

/// The list of dropped ends. Sockets may cross threads, and the world does not, so a drop leaves
/// the name here.
type Dropped = Arc<Mutex<Vec<StreamEnd>>>;

/// One end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StreamEnd {
    stream: usize,
    side: Side,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Side {
    Server,
    Client,
}

/// The outcome of a reactor's connection attempt.
pub(super) enum Called {
    /// The connection is established.
    Connected(StreamEnd, Peer),
    /// No room at this moment: try again.
    Later,
    /// No outcome, ever.
    Never,
    /// The attempt has failed.
    Failed(IoError),
}

/// A reactor's end of a stream between two reactors. Dropping it closes it.
#[derive(Debug)]
pub(super) struct SimSocket {
    end: StreamEnd,
    dropped: Dropped,
    is_adopted: bool,
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        if !self.is_adopted {
            self.dropped.lock().expect("nobody panics with it").push(self.end);
        }
    }
}

#[derive(Debug)]
struct Listener {
    address: ListenAddress,
    shares_port: bool,
    backlog: VecDeque<usize>,
}

#[derive(Debug)]
struct Direction {
    bytes: VecDeque<u8>,
    bytes_max: usize,
    is_finished: bool,
    is_reader_gone: bool,
}

#[derive(Debug)]
struct Stream {
    up: Direction,
    down: Direction,
    is_reset: bool,
    /// True if the reset was reported to this side: server, client.
    is_told: [bool; 2],
    peer: Peer,
}

impl Default for Direction {
    fn default() -> Direction {
        let bytes = VecDeque::new();
        let bytes_max = STREAM_BYTES_MAX;
        Direction { bytes, bytes_max, is_finished: false, is_reader_gone: false }
    }
}

impl Direction {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        assert!(!self.is_finished, "actors and reactors send before they finish");
        let count = bytes.len().min(self.bytes_max.saturating_sub(self.bytes.len()));
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

    /// Reports a reset, once as itself and then as a broken pipe.
    fn check(&mut self, side: Side) -> Result<(), IoError> {
        if !self.is_reset {
            return Ok(());
        }
        let was_told = std::mem::replace(&mut self.is_told[side as usize], true);
        Err(if was_told { IoError::BROKEN_PIPE } else { ECONNRESET })
    }

    /// The direction that this side receives.
    fn inward(&mut self, side: Side) -> &mut Direction {
        match side {
            Side::Server => &mut self.up,
            Side::Client => &mut self.down,
        }
    }

    /// The direction that this side sends.
    fn outward(&mut self, side: Side) -> &mut Direction {
        match side {
            Side::Server => &mut self.down,
            Side::Client => &mut self.up,
        }
    }

    fn send(&mut self, side: Side, bytes: &[u8]) -> Result<usize, IoError> {
        self.check(side)?;
        let direction = self.outward(side);
        if direction.is_finished {
            return Err(IoError::BROKEN_PIPE);
        }
        let count = direction.write(bytes)?;
        if direction.is_reader_gone && count > 0 {
            self.reset(); // The kernel took the bytes; the answer to them is a reset.
        }
        Ok(count)
    }

    fn receive(&mut self, side: Side, into: &mut [u8]) -> Result<usize, IoError> {
        self.check(side)?;
        self.inward(side).read(into)
    }

    fn close(&mut self, side: Side) {
        if self.inward(side).bytes.is_empty() {
            self.outward(side).is_finished = true;
        } else {
            self.reset();
        }
        self.inward(side).is_reader_gone = true;
    }
}

impl Network {
    pub fn listen(
        &mut self,
        address: &ListenAddress,
        options: ListenOptions,
    ) -> Result<(usize, ListenAddress), ListenError> {
        let mut address = address.clone();
        if matches!(address, ListenAddress::Inherited(_)) {
            let error = IoError(libc::ENOTSOCK); // Simulated processes inherit nothing.
            return Err(ListenError::Failed { address, call: "dup", error });
        }
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

    /// True if a descriptor is left for one more connection.
    pub fn has_descriptor(&self) -> bool {
        self.open_max.is_none_or(|max| self.open_count < max)
    }

    /// Accepts the next connection. Returns a reactor's end of it, and its peer.
    pub fn accept(&mut self, index: usize) -> Result<(StreamEnd, Peer), IoError> {
        if !self.has_descriptor() {
            return Err(IoError(libc::EMFILE));
        }
        let listener = self.listeners[index].as_mut().expect("it is open");
        let stream = listener.backlog.pop_front().ok_or(EAGAIN)?;
        if self.streams[stream].is_reset {
            return Err(IoError(libc::ECONNABORTED));
        }
        self.open_count += 1;
        Ok((StreamEnd { stream, side: Side::Server }, self.streams[stream].peer))
    }

    /// Takes a descriptor, for a reactor that begins to connect.
    pub fn take_descriptor(&mut self) {
        self.open_count += 1;
    }

    /// Gives the descriptor back, after a failure or if the reactor gives up.
    pub fn give_back_descriptor(&mut self) {
        self.open_count -= 1;
    }

    /// Tries to connect for a reactor.
    pub fn call(&mut self, address: &ConnectAddress, random: &mut Random) -> Called {
        if let Some((_, route)) = self.routes.iter().find(|(special, _)| special == address) {
            return match *route {
                SimRoute::Silent => Called::Never,
                SimRoute::Fails(error) => Called::Failed(error),
            };
        }
        if random.chance(self.connect_fault_chance, 1_000) {
            let errors = [libc::ECONNREFUSED, libc::ECONNRESET, libc::ETIMEDOUT];
            return Called::Failed(IoError(errors[random.below(3) as usize]));
        }
        let (listener, peer, is_tcp) = match address {
            ConnectAddress::Tcp(tcp) => (ListenAddress::Tcp(*tcp), Peer::Tcp(*tcp), true),
            ConnectAddress::Unix(path) => {
                let peer = Peer::Unix { pid: 1, uid: 1_000, gid: 1_000 };
                (ListenAddress::Unix(path.clone()), peer, false)
            }
        };
        match self.connect(&listener, Ipv4Addr::LOCALHOST.into(), random) {
            Ok(stream) => Called::Connected(StreamEnd { stream, side: Side::Client }, peer),
            Err(EAGAIN) if is_tcp => Called::Later, // As after a lost first packet.
            Err(error) => Called::Failed(error),
        }
    }

    pub fn is_readable(&mut self, end: StreamEnd) -> bool {
        let stream = &mut self.streams[end.stream];
        let is_reset = stream.is_reset;
        let direction = stream.inward(end.side);
        !direction.bytes.is_empty() || direction.is_finished || is_reset
    }

    pub fn is_writable(&mut self, end: StreamEnd) -> bool {
        let stream = &mut self.streams[end.stream];
        let is_reset = stream.is_reset;
        let direction = stream.outward(end.side);
        direction.bytes.len() < direction.bytes_max || is_reset
    }

    /// Bounds the bytes under way from this end, from now on.
    pub fn bound_sending(&mut self, end: StreamEnd, bytes: u32) {
        let bytes_max = (2 * bytes as usize).clamp(STREAM_BYTES_MIN, STREAM_BYTES_MAX);
        self.streams[end.stream].outward(end.side).bytes_max = bytes_max;
    }

    pub fn receive(&mut self, end: StreamEnd, into: &mut [u8]) -> Result<usize, IoError> {
        self.streams[end.stream].receive(end.side, into)
    }

    pub fn send(&mut self, end: StreamEnd, bytes: &[u8]) -> Result<usize, IoError> {
        self.streams[end.stream].send(end.side, bytes)
    }

    pub fn finish(&mut self, end: StreamEnd) {
        self.streams[end.stream].outward(end.side).is_finished = true;
    }

    pub fn close(&mut self, end: StreamEnd) {
        self.streams[end.stream].close(end.side);
        self.open_count -= 1;
    }

    /// Makes a socket of a reactor's end, for another reactor of this world.
    pub fn let_go(&mut self, end: StreamEnd) -> SimSocket {
        SimSocket { end, dropped: Arc::clone(&self.dropped), is_adopted: false }
    }

    /// True if it is a socket of this world.
    pub fn knows(&self, socket: &SimSocket) -> bool {
        Arc::ptr_eq(&self.dropped, &socket.dropped)
    }

    /// The end of an adopted socket.
    pub fn take_in(&mut self, mut socket: SimSocket) -> StreamEnd {
        socket.is_adopted = true;
        socket.end
    }

    /// Closes the ends that were dropped on their way.
    pub fn close_dropped(&mut self) {
        let dropped = std::mem::take(&mut *self.dropped.lock().expect("nobody panics with it"));
        for end in dropped {
            self.close(end);
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
            _ => Peer::Unix { pid: 1 + index as i32, uid: 1_000, gid: 1_000 },
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

/// The calls of actors.
impl SimWorld {
    fn network(&self) -> RefMut<'_, Network> {
        let mut network = RefMut::map(self.world.borrow_mut(), |world| &mut world.network);
        network.close_dropped();
        network
    }

    /// Connects to a listener, which need not have accepted yet.
    ///
    /// # Errors
    /// ECONNREFUSED if no listener has the address, EAGAIN if too many connections wait.
    pub fn connect(&self, address: &ListenAddress) -> Result<SimClient, IoError> {
        self.connect_from(address, Ipv4Addr::LOCALHOST.into())
    }

    /// Connects as [`SimWorld::connect`] does, from another address than this machine's own.
    ///
    /// # Errors
    /// The same as of [`SimWorld::connect`].
    pub fn connect_from(
        &self,
        address: &ListenAddress,
        from: IpAddr,
    ) -> Result<SimClient, IoError> {
        let world = &mut *self.world.borrow_mut();
        let stream = world.network.connect(address, from, &mut world.random)?;
        Ok(SimClient(StreamEnd { stream, side: Side::Client }))
    }

    /// Makes a connection without a listener, as standard input and output are one. The server's
    /// end is for [`crate::reactor::Reactor::adopt`].
    pub fn pair(&self) -> (SimClient, ReleasedSocket) {
        let mut network = self.network();
        let peer = Peer::Unix { pid: 1, uid: 1_000, gid: 1_000 };
        let index = network.open(peer);
        network.open_count += 1;
        let end = |side| StreamEnd { stream: index, side };
        let source = SocketSource::Simulated(Box::new(network.let_go(end(Side::Server))));
        (
            SimClient(end(Side::Client)),
            ReleasedSocket { source, history: SocketHistory::none(peer) },
        )
    }

    /// Listens on the address, for reactors that connect. [`SimWorld::answer`] takes the
    /// connections.
    ///
    /// # Errors
    /// The same as of a reactor's own listen.
    pub fn listen(&self, address: &ListenAddress) -> Result<ListenAddress, ListenError> {
        let (_, address) = self.network().listen(address, ListenOptions::default())?;
        Ok(address)
    }

    /// The next connection to the address, as the server's end.
    ///
    /// # Panics
    /// No listener has the address.
    pub fn answer(&self, address: &ListenAddress) -> Option<SimClient> {
        let mut network = self.network();
        let mut listeners = network.listeners.iter_mut().flatten();
        let listener = listeners.find(|listener| listener.address == *address);
        let stream = listener.expect("somebody listens").backlog.pop_front()?;
        Some(SimClient(StreamEnd { stream, side: Side::Server }))
    }

    /// Stops listening on the address.
    ///
    /// # Panics
    /// No listener has the address.
    pub fn stop_listening(&self, address: &ListenAddress) {
        let mut network = self.network();
        let mut listeners = network.listeners.iter();
        let is_it = |l: &Option<Listener>| l.as_ref().is_some_and(|l| l.address == *address);
        let index = listeners.position(is_it).expect("somebody listens");
        network.close_listener(index);
    }

    /// Sets the fate of reactors that connect to the address. `None` restores the normal behaviour.
    pub fn set_route(&self, address: &ConnectAddress, route: Option<SimRoute>) {
        let mut network = self.network();
        network.routes.retain(|(special, _)| special != address);
        network.routes.extend(route.map(|route| (address.clone(), route)));
    }

    /// Sets the number of reactors' connection attempts that fail, per mille.
    pub fn set_connect_fault_chance(&self, chance: u64) {
        self.network().connect_fault_chance = chance;
    }

    /// The peer that the server sees for this client.
    pub fn client_peer(&self, client: SimClient) -> Peer {
        self.world.borrow().network.streams[client.0.stream].peer
    }

    /// Sends the bytes that fit.
    ///
    /// # Errors
    /// EAGAIN if no byte fits; ECONNRESET once and EPIPE after it if the other end has gone.
    pub fn client_send(&self, client: SimClient, bytes: &[u8]) -> Result<usize, IoError> {
        self.network().streams[client.0.stream].send(client.0.side, bytes)
    }

    /// Receives the bytes that have arrived. `Ok(0)` is the end.
    ///
    /// # Errors
    /// EAGAIN if no byte has arrived; the others as of [`SimWorld::client_send`].
    pub fn client_receive(&self, client: SimClient, into: &mut [u8]) -> Result<usize, IoError> {
        self.network().streams[client.0.stream].receive(client.0.side, into)
    }

    /// Ends sending.
    pub fn client_finish(&self, client: SimClient) {
        self.network().streams[client.0.stream].outward(client.0.side).is_finished = true;
    }

    /// Ends both directions: a reset if bytes are unread.
    pub fn client_close(&self, client: SimClient) {
        self.network().streams[client.0.stream].close(client.0.side);
    }

    /// Ends both directions at once, and discards the bytes under way.
    pub fn client_reset(&self, client: SimClient) {
        self.network().streams[client.0.stream].reset();
    }

    /// Sets the number of connections that the process has descriptors for.
    pub fn set_connections_max(&self, open_max: Option<usize>) {
        self.world.borrow_mut().network.open_max = open_max;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::{Reactor, SocketEvent};
    use crate::sim::reactor::SimReactor;
    use crate::sim::world::SimFaults;
    use std::io::IoSlice;

    /// The server's events and the bytes that its sends moved, in order.
    fn history(seed: u64) -> Vec<(u64, String)> {
        let world = SimWorld::new(seed, SimFaults::ALL);
        let mut reactor = SimReactor::new(&world);
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
