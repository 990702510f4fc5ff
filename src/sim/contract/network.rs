//! The surroundings of a reactor in the socket tests: clients, and a server that records its
//! events.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use streamdoor::reactor::{
    ConnectAddress, ConnectionId, IoError, ListenAddress, ListenOptions, ListenerId, Peer, Reactor,
    ReleasedSocket, SocketEvent, SocketLimits,
};
use streamdoor::sim::network::{SimClient, SimRoute};
use streamdoor::sim::world::SimWorld;

use super::worlds::{ContractWorld, Real};

pub const EAGAIN: IoError = IoError(libc::EAGAIN);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    Tcp,
    Unix,
}

pub const KINDS: [SocketKind; 2] = [SocketKind::Tcp, SocketKind::Unix];

/// A world with clients, and with servers for reactors that connect. None of the calls waits.
pub trait Network: ContractWorld {
    type Client;
    /// A server for a reactor that connects.
    type Far;
    fn address(&self, kind: SocketKind) -> ListenAddress;
    fn connect(&self, address: &ListenAddress) -> Result<Self::Client, IoError>;
    /// The peer that the server should see.
    fn peer(&self, client: &Self::Client) -> Peer;
    fn client_send(&self, client: &Self::Client, bytes: &[u8]) -> Result<usize, IoError>;
    fn client_receive(&self, client: &Self::Client, into: &mut [u8]) -> Result<usize, IoError>;
    fn client_finish(&self, client: &Self::Client);
    fn client_close(&self, client: Self::Client);
    /// Closes a client with a reset. TCP only.
    fn client_reset(&self, client: Self::Client);
    /// Allows the process `more` descriptors until the returned value is dropped.
    fn limit_descriptors(&self, more: usize) -> Limit;
    fn far(&self, kind: SocketKind) -> (Self::Far, ConnectAddress);
    /// Accepts the next connection, if there is one.
    fn answer(&self, far: &Self::Far) -> Option<Self::Client>;
    /// An address without a listener.
    fn nobody(&self, kind: SocketKind) -> ConnectAddress;
    /// An address without a route.
    fn nowhere(&self) -> ConnectAddress;
    /// An address that never answers while the returned clients and server live. TCP only.
    fn silence(&self) -> (Vec<Self::Client>, Self::Far, ConnectAddress);
}

pub fn to_connect(address: &ListenAddress) -> ConnectAddress {
    match address {
        ListenAddress::Tcp(address) => ConnectAddress::Tcp(*address),
        ListenAddress::Unix(path) => ConnectAddress::Unix(path.clone()),
        ListenAddress::Inherited(_) => panic!("{address} is not resolved"),
    }
}

pub enum RealFar {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Drop for RealFar {
    fn drop(&mut self) {
        if let RealFar::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Makes the queue of a listener as short as possible: one connection fits.
fn shorten_queue(fd: RawFd) {
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::listen(fd, 0) }, 0);
}

/// A limit on descriptors. It ends when it is dropped.
pub enum Limit {
    Real(libc::rlimit),
    Sim(SimWorld),
}

impl Drop for Limit {
    fn drop(&mut self) {
        match self {
            Limit::Real(limit) => set_limit(limit),
            Limit::Sim(world) => world.set_connections_max(None),
        }
    }
}

fn set_limit(limit: &libc::rlimit) {
    // SAFETY: a valid limit, only read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
}

/// Limits the process to `more` free descriptors, and returns the limit before. The kernel gives
/// out the lowest free number below the limit.
fn limit_to(more: usize) -> libc::rlimit {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for a limit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut before) }, 0);
    let mut free_count = 0;
    let mut fd = 0;
    while free_count < more {
        // SAFETY: takes numbers.
        free_count += usize::from(unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0);
        fd += 1;
    }
    set_limit(&libc::rlimit { rlim_cur: fd as libc::rlim_t, rlim_max: before.rlim_max });
    before
}

pub enum RealClient {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A new path for each call.
pub fn fresh_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("streamdoor-{}-{number}.sock", std::process::id()))
}

fn code(result: std::io::Result<usize>) -> Result<usize, IoError> {
    result.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => EAGAIN,
        _ => IoError(error.raw_os_error().unwrap_or(libc::EIO)),
    })
}

impl<R: Reactor> Network for Real<R> {
    type Client = RealClient;
    fn address(&self, kind: SocketKind) -> ListenAddress {
        match kind {
            SocketKind::Tcp => "127.0.0.1:0".parse().unwrap(),
            SocketKind::Unix => ListenAddress::Unix(fresh_path()),
        }
    }
    fn connect(&self, address: &ListenAddress) -> Result<RealClient, IoError> {
        let refused = |error: std::io::Error| IoError(error.raw_os_error().unwrap());
        match address {
            ListenAddress::Tcp(address) => {
                let stream = TcpStream::connect(address).map_err(refused)?;
                stream.set_nonblocking(true).unwrap();
                Ok(RealClient::Tcp(stream))
            }
            ListenAddress::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(refused)?;
                stream.set_nonblocking(true).unwrap();
                Ok(RealClient::Unix(stream))
            }
            ListenAddress::Inherited(_) => panic!("{address} is not resolved"),
        }
    }
    fn peer(&self, client: &RealClient) -> Peer {
        match client {
            RealClient::Tcp(stream) => Peer::Tcp(stream.local_addr().unwrap()),
            RealClient::Unix(_) => Peer::Unix {
                pid: std::process::id() as i32,
                // SAFETY: asks for a number.
                uid: unsafe { libc::geteuid() },
                // SAFETY: asks for a number.
                gid: unsafe { libc::getegid() },
            },
        }
    }
    fn client_send(&self, client: &RealClient, bytes: &[u8]) -> Result<usize, IoError> {
        code(match client {
            RealClient::Tcp(stream) => (&mut &*stream).write(bytes),
            RealClient::Unix(stream) => (&mut &*stream).write(bytes),
        })
    }
    fn client_receive(&self, client: &RealClient, into: &mut [u8]) -> Result<usize, IoError> {
        code(match client {
            RealClient::Tcp(stream) => (&mut &*stream).read(into),
            RealClient::Unix(stream) => (&mut &*stream).read(into),
        })
    }
    fn client_finish(&self, client: &RealClient) {
        match client {
            RealClient::Tcp(stream) => stream.shutdown(Shutdown::Write).unwrap(),
            RealClient::Unix(stream) => stream.shutdown(Shutdown::Write).unwrap(),
        }
    }
    fn client_close(&self, client: RealClient) {
        drop(client);
    }
    fn client_reset(&self, client: RealClient) {
        let RealClient::Tcp(stream) = client else { panic!("no reset there") };
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let (start, size_bytes) = (std::ptr::from_ref(&linger).cast(), size_of_val(&linger) as u32);
        let fd = stream.as_raw_fd();
        // SAFETY: a valid option of the given size.
        let set =
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, start, size_bytes) };
        assert_eq!(set, 0);
    }
    fn limit_descriptors(&self, more: usize) -> Limit {
        Limit::Real(limit_to(more))
    }
    type Far = RealFar;
    fn far(&self, kind: SocketKind) -> (RealFar, ConnectAddress) {
        match kind {
            SocketKind::Tcp => {
                let far = TcpListener::bind("127.0.0.1:0").unwrap();
                far.set_nonblocking(true).unwrap();
                let address = far.local_addr().unwrap();
                (RealFar::Tcp(far), ConnectAddress::Tcp(address))
            }
            SocketKind::Unix => {
                let path = fresh_path();
                let far = UnixListener::bind(&path).unwrap();
                far.set_nonblocking(true).unwrap();
                (RealFar::Unix(far, path.clone()), ConnectAddress::Unix(path))
            }
        }
    }
    fn answer(&self, far: &RealFar) -> Option<RealClient> {
        match far {
            RealFar::Tcp(far) => {
                let (stream, _) = far.accept().ok()?;
                stream.set_nonblocking(true).unwrap();
                Some(RealClient::Tcp(stream))
            }
            RealFar::Unix(far, _) => {
                let (stream, _) = far.accept().ok()?;
                stream.set_nonblocking(true).unwrap();
                Some(RealClient::Unix(stream))
            }
        }
    }
    fn nobody(&self, kind: SocketKind) -> ConnectAddress {
        self.far(kind).1 // The listener is closed already.
    }
    fn nowhere(&self) -> ConnectAddress {
        // A stream cannot connect to the broadcast address. connect(2) fails without sending
        // anything.
        ConnectAddress::Tcp("255.255.255.255:9".parse().unwrap())
    }
    fn silence(&self) -> (Vec<RealClient>, RealFar, ConnectAddress) {
        let (far, address) = self.far(SocketKind::Tcp);
        let (RealFar::Tcp(listener), ConnectAddress::Tcp(internet)) = (&far, &address) else {
            panic!("not TCP");
        };
        shorten_queue(listener.as_raw_fd());
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(internet, Duration::from_millis(100)) {
            queue.push(RealClient::Tcp(stream));
        }
        (queue, far, address)
    }
}

impl Network for SimWorld {
    type Client = SimClient;
    fn address(&self, kind: SocketKind) -> ListenAddress {
        match kind {
            SocketKind::Tcp => "127.0.0.1:0".parse().unwrap(),
            SocketKind::Unix => ListenAddress::Unix(fresh_path()),
        }
    }
    fn connect(&self, address: &ListenAddress) -> Result<SimClient, IoError> {
        SimWorld::connect(self, address)
    }
    fn peer(&self, client: &SimClient) -> Peer {
        self.client_peer(*client)
    }
    fn client_send(&self, client: &SimClient, bytes: &[u8]) -> Result<usize, IoError> {
        SimWorld::client_send(self, *client, bytes)
    }
    fn client_receive(&self, client: &SimClient, into: &mut [u8]) -> Result<usize, IoError> {
        SimWorld::client_receive(self, *client, into)
    }
    fn client_finish(&self, client: &SimClient) {
        SimWorld::client_finish(self, *client);
    }
    fn client_close(&self, client: SimClient) {
        SimWorld::client_close(self, client);
    }
    fn client_reset(&self, client: SimClient) {
        SimWorld::client_reset(self, client);
    }
    fn limit_descriptors(&self, more: usize) -> Limit {
        self.set_connections_max(Some(more));
        Limit::Sim(self.clone())
    }
    type Far = ListenAddress;
    fn far(&self, kind: SocketKind) -> (ListenAddress, ConnectAddress) {
        let address = self.listen(&self.address(kind)).unwrap();
        let to = to_connect(&address);
        (address, to)
    }
    fn answer(&self, far: &ListenAddress) -> Option<SimClient> {
        SimWorld::answer(self, far)
    }
    fn nobody(&self, kind: SocketKind) -> ConnectAddress {
        let (far, address) = self.far(kind);
        self.stop_listening(&far);
        address
    }
    fn nowhere(&self) -> ConnectAddress {
        let address = ConnectAddress::Tcp("10.0.0.1:9".parse().unwrap());
        self.set_route(&address, Some(SimRoute::Fails(IoError(libc::ENETUNREACH))));
        address
    }
    fn silence(&self) -> (Vec<SimClient>, ListenAddress, ConnectAddress) {
        let (far, address) = self.far(SocketKind::Tcp);
        self.set_route(&address, Some(SimRoute::Silent));
        (Vec::new(), far, address)
    }
}

/// The events of one connection.
#[derive(Debug)]
pub struct SeenConnection {
    pub peer: Peer,
    pub bytes: Vec<u8>,
    pub end: Option<Option<IoError>>,
    pub writable_count: u32,
}

/// A reactor that listens, and the events it reported.
pub struct Server<R> {
    pub reactor: R,
    pub listener: ListenerId,
    pub address: ListenAddress,
    pub seen: BTreeMap<ConnectionId, SeenConnection>,
    /// Connections in the order of their events.
    pub order: Vec<ConnectionId>,
    /// Released connections, with the events before their release.
    pub gone: Vec<(ConnectionId, SeenConnection, ReleasedSocket)>,
}

impl<R: Reactor> Server<R> {
    pub fn new<W: Network<R = R>>(world: &W, kind: SocketKind, connections_max: u32) -> Server<R> {
        Server::of(world, world.reactor(), kind, connections_max)
    }

    pub fn of<W: Network<R = R>>(
        world: &W,
        mut reactor: R,
        kind: SocketKind,
        connections_max: u32,
    ) -> Server<R> {
        reactor.open_sockets(SocketLimits { connections_max, listeners_max: 2 }).unwrap();
        let wanted = world.address(kind);
        let listener = reactor.listen(&wanted, ListenOptions::default()).unwrap();
        let address = reactor.listen_address(listener).unwrap();
        let (seen, order, gone) = Default::default();
        Server { reactor, listener, address, seen, order, gone }
    }

    /// Waits for at most a millisecond and takes all events.
    pub fn turn(&mut self) {
        let until = self.reactor.now() + Duration::from_millis(1);
        self.reactor.wait(Some(until));
        self.reactor.poll();
        self.take();
    }

    /// Blocks until an event or a wake-up comes, and takes all events.
    pub fn turn_until_woken(&mut self) {
        self.reactor.wait(None);
        self.reactor.poll();
        self.take();
    }

    pub fn take(&mut self) {
        while let Some(event) = self.reactor.next_socket_event() {
            match event {
                SocketEvent::Accepted { listener, connection, peer } => {
                    assert_eq!(listener, self.listener);
                    let seen =
                        SeenConnection { peer, bytes: Vec::new(), end: None, writable_count: 0 };
                    assert!(self.seen.insert(connection, seen).is_none(), "a name came twice");
                    self.order.push(connection);
                }
                SocketEvent::Received { connection, bytes } => {
                    assert!(!bytes.is_empty());
                    let seen = self.seen.get_mut(&connection).expect("told of before");
                    assert!(seen.end.is_none(), "bytes after the end");
                    seen.bytes.extend_from_slice(bytes);
                }
                SocketEvent::Ended { connection, error } => {
                    let seen = self.seen.get_mut(&connection).expect("told of before");
                    assert!(seen.end.replace(error).is_none(), "a second end");
                }
                SocketEvent::Writable { connection } => {
                    let seen = self.seen.get_mut(&connection).expect("told of before");
                    seen.writable_count += 1;
                }
                SocketEvent::Connected { connection, .. } => {
                    panic!("{connection:?} was not asked for")
                }
                SocketEvent::Released { connection, socket } => {
                    let seen = self.seen.remove(&connection).expect("told of before");
                    assert_eq!(
                        (socket.peer(), socket.has_ended()),
                        (seen.peer, seen.end.is_some())
                    );
                    self.gone.push((connection, seen, socket));
                }
            }
        }
    }

    /// Takes turns until `is_so` returns true.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Server<R>) -> bool) {
        for _ in 0..30_000 {
            if is_so(self) {
                return;
            }
            self.turn();
        }
        panic!("never: {what}");
    }

    /// Connects one client and waits for it.
    pub fn meet<W: Network<R = R>>(&mut self, world: &W) -> (W::Client, ConnectionId) {
        let client = world.connect(&self.address).unwrap();
        let count = self.order.len();
        self.until("accepted", |server| server.order.len() > count);
        (client, self.order[count])
    }

    /// Releases a connection and waits for it. Returns its earlier events and the socket.
    pub fn release(&mut self, id: ConnectionId) -> (SeenConnection, ReleasedSocket) {
        self.reactor.release(id);
        self.until_released(id)
    }

    pub fn until_released(&mut self, id: ConnectionId) -> (SeenConnection, ReleasedSocket) {
        self.until("released", |server| server.gone.iter().any(|(gone, ..)| *gone == id));
        let at = self.gone.iter().position(|(gone, ..)| *gone == id).unwrap();
        let (_, seen, socket) = self.gone.remove(at);
        (seen, socket)
    }

    /// Adopts a connection, whose events continue those in `seen`.
    pub fn adopt(&mut self, seen: SeenConnection, socket: ReleasedSocket) -> ConnectionId {
        let id = self.reactor.adopt(socket).unwrap();
        assert!(self.seen.insert(id, seen).is_none(), "a name came twice");
        id
    }

    pub fn seen(&self, id: ConnectionId) -> &SeenConnection {
        &self.seen[&id]
    }

    pub fn close(&mut self, id: ConnectionId) {
        self.reactor.close(id);
        self.seen.remove(&id); // Any later event of it is a failure.
    }

    /// Sends all of `bytes` while the client receives. Returns what the client got.
    pub fn send_all<W: Network<R = R>>(
        &mut self,
        world: &W,
        id: ConnectionId,
        client: &W::Client,
        bytes: &[u8],
    ) -> Vec<u8> {
        let (mut sent, mut got) = (0, Vec::new());
        self.until("all is sent and received", |server| {
            if sent < bytes.len() {
                sent += server.reactor.send(id, &[IoSlice::new(&bytes[sent..])]).unwrap();
            }
            drain(world, client, &mut got);
            got.len() >= bytes.len()
        });
        got
    }
}

/// Receives all available bytes. Returns true at the end of the stream.
pub fn drain<W: Network>(world: &W, client: &W::Client, into: &mut Vec<u8>) -> bool {
    let mut piece = [0; 16_384];
    loop {
        match world.client_receive(client, &mut piece) {
            Ok(0) => return true,
            Ok(count) => into.extend_from_slice(&piece[..count]),
            Err(EAGAIN) => return false,
            Err(error) => panic!("the client got {error}"),
        }
    }
}
