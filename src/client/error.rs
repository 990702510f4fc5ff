//! What can go wrong for a client, sorted by what it can do next.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::base::plain::is_command;
use crate::limits;
use crate::wire::http1::{ResponseError, Status};

/// Why nothing came of a request, or of the rest of a stream.
#[derive(Debug)]
pub enum ClientError {
    /// There is no connection: nothing was asked. Is the server there?
    Unreachable {
        /// The server's address.
        address: String,
        /// What the kernel says.
        error: io::Error,
    },
    /// The connection broke before the answer was whole. Whether the server has done what it was
    /// asked to is not known.
    Cut(Cut),
    /// The server said no: fix the call, or wait.
    Refused(Refused),
    /// What the server said breaks the rules: it is none of ours, or something stands between.
    Protocol(String),
    /// Chunks are missing, and no gap tells of them.
    Hole {
        /// The chunk that had to come next.
        expected_seq: u64,
        /// What came instead, or where the execution's end is.
        found_seq: u64,
    },
    /// The stream broke off before its end, and could not be taken up again.
    Broken {
        /// How often that was tried.
        attempts: u32,
        /// Why it broke off, or why the last attempt failed.
        cause: Box<ClientError>,
    },
}

/// How a connection broke.
#[derive(Debug)]
pub enum Cut {
    /// It was closed in the middle of the answer.
    Closed,
    /// The answer was complete, but is a stream whose end was not told.
    Unended,
    /// Nothing came for so long, not even a sign of life; or the answer took too long.
    Silent(Duration),
    /// What the kernel says.
    Failed(io::Error),
}

/// A server's no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status of the response.
    pub status: Status,
    /// The error's name; empty if what answered is none of our servers.
    pub code: String,
    /// The error in words, without control characters.
    pub message: String,
    /// The parameter or the field that is wrong.
    pub field: Option<String>,
    /// What it must not pass.
    pub limit: Option<u64>,
    /// How long to wait before asking again.
    pub retry_after: Option<Duration>,
}

impl ClientError {
    pub(super) fn protocol(text: impl Into<String>) -> ClientError {
        ClientError::Protocol(text.into())
    }

    /// May the same succeed in a moment?
    pub(super) fn is_transient(&self) -> bool {
        match self {
            ClientError::Unreachable { .. } | ClientError::Cut(_) => true,
            ClientError::Refused(refused) => matches!(refused.status.code(), 429 | 502..=504),
            _ => false,
        }
    }

    /// The server's no, if it is one.
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            ClientError::Refused(refused) => Some(refused),
            ClientError::Broken { cause, .. } => cause.refused(),
            _ => None,
        }
    }
}

/// A server's text, fit to be printed: without commands for terminals, and not without end.
pub(crate) fn printable(text: &str) -> String {
    let chars = text.chars().filter(|&c| !is_command(c));
    chars.take(limits::CLIENT_MESSAGE_CHARS_MAX).collect()
}

impl From<ResponseError> for ClientError {
    fn from(error: ResponseError) -> ClientError {
        match error {
            ResponseError::Truncated => ClientError::Cut(Cut::Closed),
            error => ClientError::Protocol(error.to_string()),
        }
    }
}

impl From<Cut> for ClientError {
    fn from(cut: Cut) -> ClientError {
        ClientError::Cut(cut)
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Unreachable { address, error } => {
                write!(out, "{address} cannot be reached: {error}")
            }
            ClientError::Cut(cut) => cut.fmt(out),
            ClientError::Refused(refused) => refused.fmt(out),
            ClientError::Protocol(text) => write!(out, "the server breaks the rules: {text}"),
            ClientError::Hole { expected_seq, found_seq } => write!(
                out,
                "chunk {expected_seq} is missing, and no gap tells of it: {found_seq} came next"
            ),
            ClientError::Broken { attempts: 0, cause } => {
                write!(out, "the stream broke off before its end: {cause}")
            }
            ClientError::Broken { attempts, cause } => write!(
                out,
                "the stream broke off before its end, and {attempts} attempts to take it up again \
                 failed: {cause}"
            ),
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Closed => out.write_str("the connection was closed in the middle of the answer"),
            Cut::Unended => out.write_str("the server closed the stream without telling its end"),
            Cut::Silent(time) => write!(out, "nothing came from the server for {time:?}"),
            Cut::Failed(error) => write!(out, "the connection broke: {error}"),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message.as_str() {
            "" => write!(out, "the server answered {}", self.status.code())?,
            message => out.write_str(message)?,
        }
        if let Some(field) = self.field.as_ref().filter(|field| !self.message.contains(*field)) {
            write!(out, " ({field})")?;
        }
        match self.retry_after {
            Some(wait) => write!(out, "; again in {wait:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ClientError::Unreachable { error, .. } | ClientError::Cut(Cut::Failed(error)) => {
                Some(error)
            }
            ClientError::Broken { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
