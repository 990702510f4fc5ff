//! A socket on its way from one reactor to another.
//!
//! It has no owner while it travels: it may cross threads, and is closed if it is dropped. It holds
//! the kernel's descriptor, or the simulator's counterpart. Absent: bytes. Received bytes are
//! reported before the socket is given away, so none have to travel with it.

#[cfg(any(test, fuzzing))]
use std::any::Any;
use std::fmt;

use crate::base::Pool;
use crate::reactor::ends::{ConnectionEnds, HalfConnection};
use crate::reactor::{IoError, Peer, socket_calls as calls};

/// A connection that [`crate::reactor::Reactor::release`] gave away, for
/// [`crate::reactor::Reactor::adopt`].
#[derive(Debug)]
pub struct ReleasedSocket {
    pub(crate) source: SocketSource,
    pub(crate) history: SocketHistory,
}

/// The facts that the kernel does not report twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketHistory {
    pub peer: Peer,
    /// True if the end was reported.
    pub has_ended: bool,
    /// The reason why no send will move anything.
    pub broken: Option<IoError>,
}

impl SocketHistory {
    /// The past of a new connection.
    pub fn none(peer: Peer) -> SocketHistory {
        SocketHistory { peer, has_ended: false, broken: None }
    }
}

/// The socket itself.
#[derive(Debug)]
pub(crate) enum SocketSource {
    /// Descriptors with nothing in flight, registered with no epoll. Sockets are blocking.
    Kernel(ConnectionEnds),
    /// A socket of `sim`, which closes it when it is dropped.
    #[cfg(any(test, fuzzing))]
    Simulated(Box<dyn Any + Send>),
}

impl ReleasedSocket {
    /// Makes a connection of two ends, for [`crate::reactor::Reactor::adopt`]. Its peer has the
    /// rights of this process.
    ///
    /// ```
    /// use streamdoor::reactor::{HalfConnection, ReleasedSocket};
    /// let ((reader, _out), (_in, writer)) = (std::io::pipe()?, std::io::pipe()?);
    /// use std::os::fd::AsFd;
    /// let input = HalfConnection::to_read(reader.as_fd())?;
    /// let output = HalfConnection::to_write(writer.as_fd())?;
    /// let socket = ReleasedSocket::of_ends(input, output);
    /// println!("{}", socket.peer());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn of_ends(input: HalfConnection, output: HalfConnection) -> ReleasedSocket {
        ReleasedSocket::of_kernel(
            ConnectionEnds::of(input, output),
            SocketHistory::none(calls::own_process()),
        )
    }

    /// The peer, as the kernel reported it at the connect.
    pub fn peer(&self) -> Peer {
        self.history.peer
    }

    /// True if its end was reported. It is not reported again.
    pub fn has_ended(&self) -> bool {
        self.history.has_ended
    }
}

impl ReleasedSocket {
    pub(crate) fn of_kernel(ends: ConnectionEnds, history: SocketHistory) -> ReleasedSocket {
        ReleasedSocket { source: SocketSource::Kernel(ends), history }
    }

    /// Returns the socket if `connections` has a free slot for it.
    pub(crate) fn find_place<T>(self, connections: &Pool<T>) -> Result<ReleasedSocket, AdoptError> {
        let connections_max = connections.capacity();
        match connections.count() < connections_max {
            true => Ok(self),
            false => Err(AdoptError::Full { socket: self, connections_max }),
        }
    }

    /// The descriptors, for a real reactor.
    pub(crate) fn into_kernel(self) -> Result<(ConnectionEnds, SocketHistory), AdoptError> {
        match self.source {
            SocketSource::Kernel(ends) => Ok((ends, self.history)),
            #[cfg(any(test, fuzzing))]
            source @ SocketSource::Simulated(_) => Err(AdoptError::Foreign {
                socket: ReleasedSocket { source, history: self.history },
            }),
        }
    }
}

/// The reason why a reactor does not take a socket. [`AdoptError::into_socket`] returns the socket.
#[derive(Debug)]
pub enum AdoptError {
    /// All slots are in use. Close a connection first, or give the socket to another reactor.
    Full {
        /// The socket, still open.
        socket: ReleasedSocket,
        /// The limit of this reactor.
        connections_max: u32,
    },
    /// The socket is a simulated one. Give it back to the reactor that it comes from: simulated
    /// sockets stay in their world.
    #[cfg(any(test, fuzzing))]
    Foreign {
        /// The socket, still open.
        socket: ReleasedSocket,
    },
    /// The kernel refused it, mostly for lack of memory. Try later, or another reactor.
    Refused {
        /// The socket, still open.
        socket: ReleasedSocket,
        /// The kernel's error.
        error: IoError,
    },
}

impl AdoptError {
    /// Returns the socket, unchanged.
    pub fn into_socket(self) -> ReleasedSocket {
        match self {
            AdoptError::Full { socket, .. } | AdoptError::Refused { socket, .. } => socket,
            #[cfg(any(test, fuzzing))]
            AdoptError::Foreign { socket } => socket,
        }
    }

    /// The error if no sockets could be opened.
    pub(crate) fn without_sockets(socket: ReleasedSocket, error: &std::io::Error) -> AdoptError {
        let error = IoError(error.raw_os_error().unwrap_or(libc::EIO));
        AdoptError::Refused { socket, error }
    }
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdoptError::Full { socket, connections_max } => write!(
                f,
                "the connection of {} was refused: a shard has at most {connections_max}",
                socket.history.peer
            ),
            #[cfg(any(test, fuzzing))]
            AdoptError::Foreign { socket } => {
                write!(f, "the connection of {} is of another world", socket.history.peer)
            }
            AdoptError::Refused { socket, error } => {
                write!(f, "the connection of {} cannot be taken: {error}", socket.history.peer)
            }
        }
    }
}

impl std::error::Error for AdoptError {}

/// Sockets cross threads.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<ReleasedSocket>();
    is_send::<AdoptError>();
};
