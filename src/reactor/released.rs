//! A socket on its way from one reactor to another.
//!
//! Nobody's while it travels: it may cross threads, and is closed if it is dropped. Inside is the
//! kernel's descriptor, or what the simulator has instead. Absent: bytes. What was received is told
//! before the socket is given away, so nothing has to travel with it.

#[cfg(any(test, fuzzing))]
use std::any::Any;
use std::fmt;

use crate::base::Pool;
use crate::reactor::ends::{End, Ends};
use crate::reactor::socket_calls as calls;
use crate::reactor::{IoError, Peer};

/// A connection that [`crate::reactor::Reactor::release`] gave away, for
/// [`crate::reactor::Reactor::adopt`].
#[derive(Debug)]
pub struct ReleasedSocket {
    pub(crate) carried: Carried,
    pub(crate) past: Past,
}

/// What the kernel does not say twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    pub peer: Peer,
    /// The end was told.
    pub has_ended: bool,
    /// Why no send will move anything.
    pub broken: Option<IoError>,
}

impl Past {
    /// Of a new connection.
    pub fn none(peer: Peer) -> Past {
        Past { peer, has_ended: false, broken: None }
    }
}

/// The socket itself.
#[derive(Debug)]
pub(crate) enum Carried {
    /// Of which nothing is in flight and which no epoll knows. Sockets are blocking ones.
    Kernel(Ends),
    /// Of `sim`, which closes it when it is dropped.
    #[cfg(any(test, fuzzing))]
    Simulated(Box<dyn Any + Send>),
}

impl ReleasedSocket {
    /// A connection out of two ends, for [`crate::reactor::Reactor::adopt`]: of somebody with the
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

    /// Who is at the other end, as the kernel said when they connected.
    pub fn peer(&self) -> Peer {
        self.past.peer
    }

    /// Whether its end was told: then nobody is told again.
    pub fn has_ended(&self) -> bool {
        self.past.has_ended
    }
}

impl ReleasedSocket {
    pub(crate) fn of_kernel(ends: Ends, past: Past) -> ReleasedSocket {
        ReleasedSocket { carried: Carried::Kernel(ends), past }
    }

    /// Goes on if there is a place among `connections`.
    pub(crate) fn find_place<T>(self, connections: &Pool<T>) -> Result<ReleasedSocket, AdoptError> {
        let connections_max = connections.capacity();
        match connections.count() < connections_max {
            true => Ok(self),
            false => Err(AdoptError::Full { socket: self, connections_max }),
        }
    }

    /// For a real reactor.
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

/// Why a reactor does not take a socket. It is given back: [`AdoptError::into_socket`].
#[derive(Debug)]
pub enum AdoptError {
    /// Close a connection first, or give it to another reactor.
    Full {
        /// Still open.
        socket: ReleasedSocket,
        /// The limit of this reactor.
        connections_max: u32,
    },
    /// Give it back to the reactor that it comes from: simulated sockets stay in their world.
    #[cfg(any(test, fuzzing))]
    Foreign {
        /// Still open.
        socket: ReleasedSocket,
    },
    /// Out of memory, mostly: later, or another reactor.
    Refused {
        /// Still open.
        socket: ReleasedSocket,
        /// What the kernel said.
        error: IoError,
    },
}

impl AdoptError {
    /// The socket again, as it was.
    pub fn into_socket(self) -> ReleasedSocket {
        match self {
            AdoptError::Full { socket, .. } | AdoptError::Refused { socket, .. } => socket,
            #[cfg(any(test, fuzzing))]
            AdoptError::Foreign { socket } => socket,
        }
    }

    /// There are no sockets at all.
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
                "the connection of {} finds no place: a shard has at most {connections_max}",
                socket.past.peer
            ),
            #[cfg(any(test, fuzzing))]
            AdoptError::Foreign { socket } => {
                write!(f, "the connection of {} is of another world", socket.past.peer)
            }
            AdoptError::Refused { socket, error } => {
                write!(f, "the connection of {} was not taken: {error}", socket.past.peer)
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
