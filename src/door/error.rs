//! The errors of a door, sorted by what the caller can do next.

use std::path::PathBuf;
use std::{fmt, io};

use crate::client::ServerRefusal;
use crate::endpoint::GrantFault;
use crate::memory::OpenError;
use crate::memory::named::NamedError;
use crate::shard::Flaw;
use crate::stream::Outcome;

/// The reason why a door could not be opened, or why a reader or writer failed.
#[derive(Debug)]
pub enum DoorError {
    /// No server listens there, or one that this user must not trust: start a server.
    NoServer {
        /// The path of the socket.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The server refused the request: correct it, or wait.
    Refused(ServerRefusal),
    /// The server's grant or the shared memory is not sound. A hostile producer can cause this. All
    /// earlier deliveries remain correct.
    Unsound(Unsound),
    /// The server has gone without an end: nothing more can be delivered.
    ServerGone,
    /// The execution has ended with another outcome than its producer has declared.
    Stopped(Outcome),
    /// The chunk is longer than this ring takes in one piece: ask for less.
    TooLarge {
        /// Largest payload of a chunk, in bytes.
        chunk_bytes_max: u32,
    },
    /// The file that has the name of a ring is not a sound ring.
    Named(NamedError),
    /// These options are not possible here: change them as the text says.
    Unfit(&'static str),
    /// An error of the operating system.
    Os(io::Error),
}

/// The part of a grant or of the shared memory that is not sound.
#[derive(Debug)]
pub enum Unsound {
    /// The server's reply is no reply of a door.
    Answer(String),
    /// The first line of the reply.
    Grant(GrantFault),
    /// A descriptor that is missing, or is not what it must be.
    Descriptor {
        /// The expected object: the ring or one of the pages.
        of: &'static str,
        /// The fault of the descriptor; `None` if the descriptor is missing.
        error: Option<OpenError>,
    },
    /// The content of the shared memory.
    Memory(Flaw),
}

/// The reason why a [`Writer`](super::DoorWriter) published nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The execution has ended, with this outcome if it is known already. The producer should
    /// return.
    Stopped(Option<Outcome>),
    /// The server has gone, and all readers with it. The producer should return.
    ServerGone,
    /// The chunk is longer than this ring takes in one piece: ask for less.
    TooLarge {
        /// Largest payload of a chunk, in bytes.
        chunk_bytes_max: u32,
    },
}

impl From<WriteError> for DoorError {
    fn from(error: WriteError) -> DoorError {
        match error {
            WriteError::Stopped(outcome) => {
                DoorError::Stopped(outcome.unwrap_or(Outcome::Cancelled))
            }
            WriteError::ServerGone => DoorError::ServerGone,
            WriteError::TooLarge { chunk_bytes_max } => DoorError::TooLarge { chunk_bytes_max },
        }
    }
}

impl From<GrantFault> for DoorError {
    fn from(fault: GrantFault) -> DoorError {
        DoorError::Unsound(Unsound::Grant(fault))
    }
}

impl From<Flaw> for DoorError {
    fn from(flaw: Flaw) -> DoorError {
        DoorError::Unsound(Unsound::Memory(flaw))
    }
}

impl From<io::Error> for DoorError {
    fn from(error: io::Error) -> DoorError {
        DoorError::Os(error)
    }
}

impl fmt::Display for DoorError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DoorError::NoServer { path, error } => {
                write!(out, "no server at the door {}: {error}", path.display())
            }
            DoorError::Refused(refused) => refused.fmt(out),
            DoorError::Unsound(unsound) => unsound.fmt(out),
            DoorError::ServerGone => out.write_str("the server has gone"),
            DoorError::Stopped(outcome) => write!(out, "the execution has ended: {outcome}"),
            DoorError::TooLarge { chunk_bytes_max } => {
                write!(out, "a chunk of this ring may have at most {chunk_bytes_max} bytes")
            }
            DoorError::Named(error) => write!(out, "the named ring is not valid: {error}"),
            DoorError::Unfit(text) => out.write_str(text),
            DoorError::Os(error) => error.fmt(out),
        }
    }
}

impl fmt::Display for Unsound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsound::Answer(text) => {
                write!(out, "the server's answer is not valid for a door: {text}")
            }
            Unsound::Grant(fault) => fault.fmt(out),
            Unsound::Descriptor { of, error: None } => {
                write!(out, "the descriptor of the {of} did not come with the grant")
            }
            Unsound::Descriptor { of, error: Some(error) } => {
                write!(out, "the descriptor of the {of} cannot be trusted: {error}")
            }
            Unsound::Memory(flaw) => flaw.fmt(out),
        }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Stopped(Some(outcome)) => {
                write!(out, "the execution has ended: {outcome}")
            }
            WriteError::Stopped(None) => out.write_str("the execution was stopped"),
            WriteError::ServerGone => out.write_str("the server has gone"),
            WriteError::TooLarge { chunk_bytes_max } => {
                write!(out, "a chunk of this ring may have at most {chunk_bytes_max} bytes")
            }
        }
    }
}

impl std::error::Error for DoorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DoorError::NoServer { error, .. } | DoorError::Os(error) => Some(error),
            DoorError::Unsound(Unsound::Descriptor { error: Some(error), .. }) => Some(error),
            _ => None,
        }
    }
}

impl std::error::Error for WriteError {}
