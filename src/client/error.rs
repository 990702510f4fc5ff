//! Errors of the client, sorted by what the caller can do next.

use std::time::Duration;
use std::{fmt, io};

use crate::api::{self, ErrorReply, Problem};
use crate::base::plain::is_command;
use crate::limits;
use crate::wire::http1::{ResponseError, Status};

/// The failure of a request or of a stream.
#[derive(Debug)]
pub enum ClientError {
    /// No connection could be made, and nothing was sent. The server may not run.
    Unreachable {
        /// The server's address.
        address: String,
        /// The error of the kernel, of the name lookup or of TLS.
        error: io::Error,
    },
    /// The connection broke before the reply was complete. The server may or may not have done what
    /// was requested.
    Cut(Cut),
    /// The server refused the request: correct it, or wait.
    Refused(ServerRefusal),
    /// The reply breaks the protocol. The peer is no streamdoor server, or a proxy has changed the
    /// reply.
    Protocol(String),
    /// Chunks are missing, and no gap reports them.
    Hole {
        /// The chunk that was expected next.
        expected_seq: u64,
        /// The chunk that came instead, or the position of the execution's end.
        found_seq: u64,
    },
    /// The stream broke before its end, and could not be resumed.
    Broken {
        /// Number of failed attempts to resume it in a row.
        attempts: u32,
        /// The error that broke the stream, or the error of the last attempt.
        cause: Box<ClientError>,
    },
}

/// The way in which a connection broke.
#[derive(Debug)]
pub enum Cut {
    /// The server closed it in the middle of the reply.
    Closed,
    /// The response was complete, but the stream in it had no end event.
    Unended,
    /// No byte came for this long, not even a heartbeat, or the reply took this long.
    Silent(Duration),
    /// The error of the kernel.
    Failed(io::Error),
}

/// The refusal of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRefusal {
    /// The status of the response.
    pub status: Status,
    /// The name of the error. Empty if the reply is not one of our errors.
    pub code: String,
    /// The error message, without control characters.
    pub message: String,
    /// The parameter or the field that is wrong.
    pub field: Option<String>,
    /// The limit that was exceeded.
    pub limit: Option<u64>,
    /// The time to wait before the next request.
    pub retry_after: Option<Duration>,
}

impl ClientError {
    pub(super) fn protocol(text: impl Into<String>) -> ClientError {
        ClientError::Protocol(text.into())
    }

    /// True if the same request may succeed a moment later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            ClientError::Unreachable { .. } | ClientError::Cut(_) => true,
            ClientError::Refused(refused) => matches!(refused.status.code(), 429 | 502..=504),
            _ => false,
        }
    }

    /// The refusal of the server, if this error is or contains one.
    pub fn refused(&self) -> Option<&ServerRefusal> {
        match self {
            ClientError::Refused(refused) => Some(refused),
            ClientError::Broken { cause, .. } => cause.refused(),
            _ => None,
        }
    }
}

impl ServerRefusal {
    /// Reads a refusal from the body of its response. The code and the message are empty if the
    /// body is not one of our errors, for example from a proxy.
    pub(crate) fn read(status: Status, body: &[u8]) -> ServerRefusal {
        let value = serde_json::from_slice(body).unwrap_or_default();
        let (code, message, field, limit) = match api::read(value, "the error") {
            Err(_) => (String::new(), String::new(), None, None),
            Ok(ErrorReply { error: Problem { code, message, field, limit, .. } }) => {
                let field = field.map(|field| printable(&field));
                (printable(&code), printable(&message), field, limit)
            }
        };
        ServerRefusal { status, code, message, field, limit, retry_after: None }
    }
}

/// A server's text, safe to print: without control and direction characters, and at most
/// [`limits::CLIENT_MESSAGE_CHARS_MAX`] characters long.
pub(crate) fn printable(text: &str) -> String {
    let chars = text.chars().filter(|&c| !is_command(c));
    chars.take(limits::CLIENT_MESSAGE_CHARS_MAX).collect()
}

#[doc(hidden)]
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
                "chunk {expected_seq} is missing, and no gap reports it: {found_seq} came next"
            ),
            ClientError::Broken { attempts: 0, cause } => {
                write!(out, "the stream broke off before its end: {cause}")
            }
            ClientError::Broken { attempts, cause } => write!(
                out,
                "the stream broke off before its end, and {attempts} attempts to resume it failed: \
                 {cause}"
            ),
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Closed => out.write_str("the connection was closed in the middle of the answer"),
            Cut::Unended => out.write_str("the server closed the stream without an end event"),
            Cut::Silent(time) => write!(out, "the server sent nothing for {time:?}"),
            Cut::Failed(error) => write!(out, "the connection broke: {error}"),
        }
    }
}

impl fmt::Display for ServerRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message.as_str() {
            "" => write!(out, "the server answered {}", self.status.code())?,
            message => out.write_str(message)?,
        }
        if let Some(field) = self.field.as_ref().filter(|field| !self.message.contains(*field)) {
            write!(out, " ({field})")?;
        }
        match self.retry_after {
            Some(wait) => write!(out, "; try again in {wait:?}"),
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
