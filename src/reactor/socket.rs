//! Sockets as a shard sees them: names of listeners and connections, addresses, events, errors.
//! Plain values; the system calls are in `socket_calls.rs` and `listener.rs`.
//!
//! Absent: any knowledge of what the bytes mean, and deadlines (a slow peer is its owner's
//! business).

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::str::FromStr;

use crate::base::Handle;
use crate::limits::{CONNECTIONS_MAX, LISTENERS_MAX};
use crate::reactor::socket_calls as calls;
use crate::reactor::{IoError, ReleasedSocket};

/// One connection of one reactor. After [`crate::reactor::Reactor::close`] it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub Handle);

/// One listener of one reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub Handle);

/// An address to listen on. Its text is `ADDRESS:PORT`, `unix:PATH` or `fd:NUMBER`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// An internet address. With port 0 the kernel chooses. An IPv6 address takes IPv6 alone.
    Tcp(SocketAddr),
    /// A path without a file, or with a socket that no server listens on any more.
    Unix(PathBuf),
    /// A listening socket that this process was started with. Each listener uses a duplicate. The
    /// socket stays open when the listener is closed.
    Inherited(RawFd),
}

impl ListenAddress {
    /// Returns the address that the kernel knows for an inherited socket, and other addresses as
    /// they are. A Unix socket without a path has an empty one.
    ///
    /// # Errors
    /// The kernel's error, if the descriptor is no socket.
    pub fn resolve(&self) -> Result<ListenAddress, IoError> {
        let ListenAddress::Inherited(fd) = self else { return Ok(self.clone()) };
        let raw = calls::local_address(*fd)?;
        let path = || ListenAddress::Unix(raw.to_path().unwrap_or_default());
        Ok(raw.to_internet().map_or_else(path, ListenAddress::Tcp))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(f, "{address}"),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddress::Inherited(fd) => write!(f, "fd:{fd}"),
        }
    }
}

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ConnectAddress {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a socket on which a server listens.
    Unix(PathBuf),
}

impl fmt::Display for ConnectAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectAddress::Tcp(address) => write!(f, "{address}"),
            ConnectAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The error for a text that is no [`ListenAddress`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressParseError {
    given: String,
}

impl fmt::Display for AddressParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "listen address {:?}: must be ADDRESS:PORT, [IPV6]:PORT, unix:PATH or \
             fd:NUMBER",
            self.given
        )
    }
}

impl std::error::Error for AddressParseError {}

/// The descriptors below are the standard streams.
const FIRST_INHERITED: RawFd = 3;

impl FromStr for ListenAddress {
    type Err = AddressParseError;
    fn from_str(text: &str) -> Result<ListenAddress, AddressParseError> {
        let refused = || AddressParseError { given: text.chars().take(128).collect() };
        if let Some(number) = text.strip_prefix("fd:") {
            let fd = number.parse().ok().filter(|fd| *fd >= FIRST_INHERITED);
            return fd.map(ListenAddress::Inherited).ok_or_else(refused);
        }
        match text.strip_prefix("unix:") {
            Some("") => Err(refused()),
            Some(path) => Ok(ListenAddress::Unix(PathBuf::from(path))),
            None => text.parse().map(ListenAddress::Tcp).map_err(|_| refused()),
        }
    }
}

/// Options of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenOptions {
    /// True if other listeners of the same user may have the same TCP port, so that each shard has
    /// its own. The kernel then spreads connections over them. It does not report if an unrelated
    /// process of the same user is among them: try without it first.
    pub shares_port: bool,
}

/// The other end of a connection, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The peer's address.
    Tcp(SocketAddr),
    /// The process that connected, at that moment. Its id may belong to another process by now.
    Unix {
        /// The process id; 0 if it is of another namespace.
        pid: i32,
        /// The user of the process.
        uid: u32,
        /// The group of the process.
        gid: u32,
    },
}

impl Peer {
    /// The peer of an attempt to connect to `address`, as far as it is known before the outcome.
    pub(crate) fn of(address: &ConnectAddress) -> Peer {
        match address {
            ConnectAddress::Tcp(address) => Peer::Tcp(*address),
            ConnectAddress::Unix(_) => Peer::Unix { pid: 0, uid: u32::MAX, gid: u32::MAX },
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => write!(f, "{address}"),
            Peer::Unix { pid, uid, gid } => write!(f, "unix:pid={pid},uid={uid},gid={gid}"),
        }
    }
}

/// The numbers of sockets that a reactor holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketLimits {
    /// Connections at once. While all slots are in use, listeners pause and clients wait in the
    /// kernel's queue.
    pub connections_max: u32,
    /// Listeners at once.
    pub listeners_max: u32,
}

impl Default for SocketLimits {
    fn default() -> SocketLimits {
        SocketLimits { connections_max: CONNECTIONS_MAX, listeners_max: LISTENERS_MAX }
    }
}

/// An event of a socket. Its bytes are valid until the next call.
#[derive(Debug)]
pub enum SocketEvent<'a> {
    /// A client connected. From now on the caller owns the connection and has to close it.
    Accepted {
        /// The listener that accepted.
        listener: ListenerId,
        /// The new connection.
        connection: ConnectionId,
        /// The client.
        peer: Peer,
    },
    /// A requested connection is established: reported once, before its other events. If the
    /// attempt fails, [`SocketEvent::Ended`] reports the reason instead.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// The other end.
        peer: Peer,
    },
    /// The next bytes, at least one.
    Received {
        /// The connection that received them.
        connection: ConnectionId,
        /// The bytes. Copy those that you keep.
        bytes: &'a [u8],
    },
    /// Nothing more will be received. Reported once; sending may still be possible.
    Ended {
        /// The connection.
        connection: ConnectionId,
        /// `None` if the peer has finished. Otherwise the error that broke the connection, mostly a
        /// reset.
        error: Option<IoError>,
    },
    /// The kernel takes bytes again, after a send that was cut short.
    Writable {
        /// The connection.
        connection: ConnectionId,
    },
    /// The socket was given away. Everything that was received before has been reported.
    Released {
        /// The name that it had here, which names nothing any more.
        connection: ConnectionId,
        /// The socket for another reactor. It closes if it is dropped.
        socket: ReleasedSocket,
    },
}

/// The reason why a send moved nothing and no later one will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// Give up: the connection does not exist, or not any more.
    Unknown,
    /// Give up and close: the peer has gone (EPIPE, ECONNRESET), or the kernel gave another reason.
    Broken(IoError),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Unknown => f.write_str("this connection does not exist any more"),
            SendError::Broken(error) => write!(f, "the connection is broken: {error}"),
        }
    }
}

impl std::error::Error for SendError {}

/// The reason why a connection attempt was not even made. An error of the other end or of the
/// network comes as [`SocketEvent::Ended`], however soon it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// All slots are in use. Close a connection first, or wait until one closes.
    TooMany {
        /// The limit of this reactor.
        connections_max: u32,
    },
    /// Choose another path: the kernel takes a limited number of bytes, and no zero byte.
    BadPath {
        /// The path.
        path: PathBuf,
        /// The limit.
        bytes_max: usize,
    },
    /// Out of descriptors or memory. Try later.
    Failed {
        /// The address to connect to.
        address: ConnectAddress,
        /// The name of the call that failed.
        call: &'static str,
        /// The kernel's error.
        error: IoError,
    },
}

impl ConnectError {
    /// The error if no sockets could be opened.
    pub(crate) fn without_sockets(
        address: &ConnectAddress,
        error: &std::io::Error,
    ) -> ConnectError {
        let error = IoError(error.raw_os_error().unwrap_or(libc::EIO));
        ConnectError::Failed { address: address.clone(), call: "opening sockets", error }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::TooMany { connections_max } => {
                write!(f, "a shard has at most {connections_max} connections")
            }
            ConnectError::BadPath { path, bytes_max } => write!(
                f,
                "connect to unix:{}: the path must have 1 to {bytes_max} bytes and no zero bytes",
                path.display()
            ),
            ConnectError::Failed { address, call, error } => {
                write!(f, "connect to {address}: {call}: {error}")
            }
        }
    }
}

impl std::error::Error for ConnectError {}

/// The reason why a listener could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// Choose another address, or end the process that has this one.
    InUse {
        /// The address.
        address: ListenAddress,
    },
    /// Choose another address, or become another user.
    Permission {
        /// The address.
        address: ListenAddress,
    },
    /// Choose another address: this machine does not have this one.
    NotHere {
        /// The address.
        address: ListenAddress,
    },
    /// Choose another path: the file there is not a socket, and stays.
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Choose another path: the kernel takes a limited number of bytes, and no zero byte.
    BadPath {
        /// The path.
        path: PathBuf,
        /// The limit.
        bytes_max: usize,
    },
    /// Require a token of every client, or choose another address: other machines can reach this
    /// one. The server reports this error, not the kernel.
    Unguarded {
        /// The address.
        address: ListenAddress,
    },
    /// All slots are in use. Close a listener first.
    TooMany {
        /// The limit of this reactor.
        listeners_max: u32,
    },
    /// Out of descriptors or memory, or an unexpected error.
    Failed {
        /// The address.
        address: ListenAddress,
        /// The name of the call that failed.
        call: &'static str,
        /// The kernel's error.
        error: IoError,
    },
}

impl ListenError {
    /// The error if no sockets could be opened.
    pub(crate) fn without_sockets(address: &ListenAddress, error: &std::io::Error) -> ListenError {
        let error = IoError(error.raw_os_error().unwrap_or(libc::EIO));
        ListenError::Failed { address: address.clone(), call: "opening sockets", error }
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenError::InUse { address } => {
                write!(f, "listen on {address}: another program already listens there")
            }
            ListenError::Permission { address } => {
                write!(f, "listen on {address}: this user may not listen there")
            }
            ListenError::NotHere { address } => {
                write!(f, "listen on {address}: this machine has no such address")
            }
            ListenError::Unguarded { address } => {
                write!(f, "listen on {address}: other machines could reach it without a token")
            }
            ListenError::NotASocket { path } => {
                write!(f, "listen on unix:{}: the existing file is not a socket", path.display())
            }
            ListenError::BadPath { path, bytes_max } => write!(
                f,
                "listen on unix:{}: the path must have 1 to {bytes_max} bytes and no zero bytes",
                path.display()
            ),
            ListenError::TooMany { listeners_max } => {
                write!(f, "a shard listens on at most {listeners_max} addresses")
            }
            ListenError::Failed { address, call, error } => {
                write!(f, "listen on {address}: {call}: {error}")
            }
        }
    }
}

impl std::error::Error for ListenError {}

/// Running totals of one reactor's sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketCounters {
    /// Connections that were accepted and reported.
    pub accepted_count: u64,
    /// Connections that were gone before they could be reported.
    pub aborted_count: u64,
    /// Connection attempts that succeeded.
    pub connected_count: u64,
    /// Connection attempts that failed, for whatever reason.
    pub unconnected_count: u64,
    /// Connections that their owner closed.
    pub closed_count: u64,
    /// Connections that were given away.
    pub released_count: u64,
    /// Connections that were taken from another reactor.
    pub adopted_count: u64,
    /// Times that a listener paused: no descriptor, no memory, or no free slot.
    pub paused_count: u64,
    /// Number of these pauses because the process or the machine had no descriptor left.
    pub exhausted_count: u64,
    /// Sends that moved less than requested: the kernel's buffer is full, the peer slow.
    pub cut_count: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Receives that waited because all receive buffers were in use.
    pub starved_count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_printed_back() {
        for text in ["127.0.0.1:8808", "[::1]:80", "unix:/run/x.sock", "unix:relative"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "localhost:80", "127.0.0.1", "1.2.3.4:65536", "/run/x"] {
            let error = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(error.contains("ADDRESS:PORT"), "{error}");
        }
    }

    #[test]
    fn errors_name_what_they_are_about() {
        let address: ListenAddress = "127.0.0.1:1".parse().unwrap();
        let error = ListenError::Failed { address, call: "socket", error: IoError(libc::EMFILE) };
        let text = error.to_string();
        assert!(text.contains("127.0.0.1:1") && text.contains("socket"), "{text}");
        let text = SendError::Broken(IoError::BROKEN_PIPE).to_string();
        assert!(text.contains("Broken pipe"), "{text}");
    }
}
