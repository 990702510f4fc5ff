//! A socket on its way from one reactor to another.
//!
//! It has no owner while it travels: it may cross threads, and is closed if it is dropped. It holds
//! the kernel's descriptor, or the simulator's counterpart. Absent: bytes. Received bytes are
//! reported before the socket is given away, so none have to travel with it.

#[cfg(any(test, fuzzing))]
use std::any::Any;
use std::fmt;

use crate::base::Pool;
use crate::reactor::ends::{End, Ends};
use crate::reactor::{IoError, Peer, socket_calls as calls};

/// A connection that [`crate::reactor::Reactor::release`] gave away, for
/// [`crate::reactor::Reactor::adopt`].
#[derive(Debug)]
pub struct ReleasedSocket {
    pub(crate) carried: Carried,
    pub(crate) past: Past,
}

/// The facts that the kernel does not report twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    pub peer: Peer,
    /// True if the end was reported.
    pub has_ended: bool,
    /// The reason why no send will move anything.
    pub broken: Option<IoError>,
}

impl Past {
    /// The past of a new connection.
    pub fn none(peer: Peer) -> Past {
        Past { peer, has_ended: false, broken: None }
    }
}

/// The socket itself.
#[derive(Debug)]
pub(crate) enum Carried {
    /// Descriptors with nothing in flight, registered with no epoll. Sockets are blocking.
    Kernel(Ends),
    /// A socket of `sim`, which closes it when it is dropped.
    #[cfg(any(test, fuzzing))]
    Simulated(Box<dyn Any + Send>),
}

impl ReleasedSocket {
    /// Makes a connection of two ends, for [`crate::reactor::Reactor::adopt`]. Its peer has the
    /// rights of this process.
    ///
    /// ```
    /// use streamdoor::reactor::{End, ReleasedSocket};
    /// let ((reader, _out), (_in, writer)) = (std::io::pipe()?, std::io::pipe()?);
    /// use std::os::fd::AsFd;
    /// let (input, output) = (End::to_read(reader.as_fd())?, End::to_write(writer.as_fd())?);
    /// let socket = ReleasedSocket::of_ends(input, output);
    /// println!("{}", socket.peer());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn of_ends(input: End, output: End) -> ReleasedSocket {
        ReleasedSocket::of_kernel(Ends::of(input, output), Past::none(calls::own_process()))
    }

    /// The peer, as the kernel reported it at the connect.
    pub fn peer(&self) -> Peer {
        self.past.peer
    }

    /// True if its end was reported. It is not reported again.
    pub fn has_ended(&self) -> bool {
        self.past.has_ended
    }
}

impl ReleasedSocket {
    pub(crate) fn of_kernel(ends: Ends, past: Past) -> ReleasedSocket {
        ReleasedSocket { carried: Carried::Kernel(ends), past }
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
    pub(crate) fn into_kernel(self) -> Result<(Ends, Past), AdoptError> {
        match self.carried {
            Carried::Kernel(ends) => Ok((ends, self.past)),
            #[cfg(any(test, fuzzing))]
            carried @ Carried::Simulated(_) => {
                Err(AdoptError::Foreign { socket: ReleasedSocket { carried, past: self.past } })
            }
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
                socket.past.peer
            ),
            #[cfg(any(test, fuzzing))]
            AdoptError::Foreign { socket } => {
                write!(f, "the connection of {} is of another world", socket.past.peer)
            }
            AdoptError::Refused { socket, error } => {
                write!(f, "the connection of {} cannot be taken: {error}", socket.past.peer)
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
