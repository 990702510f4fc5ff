//! What can go wrong at a door, sorted by what the caller can do next.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::client::Refused;
use crate::endpoint::GrantFault;
use crate::engine::Outcome;
use crate::memory::OpenError;
use crate::memory::named::NamedError;
use crate::shard::Flaw;

/// Why nothing came of a door, or of the rest of what it gave.
#[derive(Debug)]
pub enum DoorError {
    /// There is no server there, or none that this user should talk to: start one.
    NoServer {
        /// The path of the socket.
        path: PathBuf,
        /// What is wrong with it.
        error: io::Error,
    },
    /// The server said no: fix the call, or wait.
    Refused(Refused),
    /// What the server granted, or what stands in the shared memory, can not be right. A hostile
    /// producer can bring that about; nothing that was given before is wrong.
    Unsound(Unsound),
    /// The server has gone, without an end: what was given is all there is.
    ServerGone,
    /// The execution has ended otherwise than its producer has said.
    Stopped(Outcome),
    /// A chunk of more bytes than this ring takes at once was to be lent: ask for less.
    TooLarge {
        /// The most.
        chunk_bytes_max: u32,
    },
    /// What has the name of a ring is not to be believed.
    Named(NamedError),
    /// It cannot be read like that: change the options as the text says.
    Unfit(&'static str),
    /// What the kernel says.
    Os(io::Error),
}

/// What can not be right.
#[derive(Debug)]
pub enum Unsound {
    /// The server's answer is none of a door.
    Answer(String),
    /// The first line of the answer.
    Grant(GrantFault),
    /// A descriptor that came with it, or that did not come.
    Descriptor {
        /// Of what it should be.
        of: &'static str,
        /// What is wrong; `None`: it is missing.
        error: Option<OpenError>,
    },
    /// The shared memory.
    Memory(Flaw),
}

/// Why a [`Writer`](super::Writer) published nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// Return: the execution has ended, in this way if that is known already.
    Stopped(Option<Outcome>),
    /// Return: the server has gone, and all readers with it.
    ServerGone,
    /// Ask for less: a chunk of this ring has at most so many bytes.
    TooLarge {
        /// The most.
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
                write!(out, "a chunk of this ring has at most {chunk_bytes_max} bytes")
            }
            DoorError::Named(error) => write!(out, "the named ring is not believed: {error}"),
            DoorError::Unfit(text) => out.write_str(text),
            DoorError::Os(error) => error.fmt(out),
        }
    }
}

impl fmt::Display for Unsound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsound::Answer(text) => write!(out, "the server's answer is none of a door: {text}"),
            Unsound::Grant(fault) => fault.fmt(out),
            Unsound::Descriptor { of, error: None } => {
                write!(out, "the descriptor of the {of} did not come with the grant")
            }
            Unsound::Descriptor { of, error: Some(error) } => {
                write!(out, "the descriptor of the {of} is not to be trusted: {error}")
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
                write!(out, "a chunk of this ring has at most {chunk_bytes_max} bytes")
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
