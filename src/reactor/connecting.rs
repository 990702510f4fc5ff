//! Outgoing connections: how they begin, and their outcome, the same for both backends.
//!
//! The system calls are plain ones, so seccomp filters see where a connection goes. The descriptor
//! is non-blocking while it connects, and blocking from then on, as descriptors of accepted
//! connections are.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use crate::limits::SEND_BUFFER_BYTES;
use crate::reactor::listener::PATH_BYTES_MAX;
use crate::reactor::socket_calls::{self as calls, RawAddress};
use crate::reactor::{ConnectAddress, ConnectError, IoError, Peer};

/// A connection attempt that has begun.
pub struct ConnectAttempt {
    pub fd: OwnedFd,
    /// The outcome, if it is known already. Otherwise the descriptor becomes writable.
    pub outcome: Option<Result<(), IoError>>,
}

/// Begins to connect.
///
/// # Errors
/// [`ConnectError`]; nothing is left behind then.
pub fn begin(address: &ConnectAddress) -> Result<ConnectAttempt, ConnectError> {
    let at = |call| move |error| ConnectError::Failed { address: address.clone(), call, error };
    let (fd, raw) = match address {
        ConnectAddress::Tcp(internet) => {
            let family = if internet.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
            let fd = calls::socket(family, false).map_err(at("socket"))?;
            calls::set_stream_options(fd.as_raw_fd()).map_err(at("setsockopt"))?;
            (fd, RawAddress::of(internet))
        }
        ConnectAddress::Unix(path) => {
            let bytes = path.as_os_str().as_bytes();
            // A leading zero byte would be the abstract name space, which has no permissions.
            if bytes.is_empty() || bytes.len() > PATH_BYTES_MAX || bytes.contains(&0) {
                let path = path.clone();
                return Err(ConnectError::BadPath { path, bytes_max: PATH_BYTES_MAX });
            }
            let fd = calls::socket(libc::AF_UNIX, false).map_err(at("socket"))?;
            calls::set_send_buffer(fd.as_raw_fd(), SEND_BUFFER_BYTES).map_err(at("setsockopt"))?;
            (fd, RawAddress::of_path(bytes))
        }
    };
    let outcome = match calls::connect(fd.as_raw_fd(), &raw) {
        // After a signal the attempt continues by itself: connect(2).
        Err(IoError(libc::EINPROGRESS | libc::EINTR)) => None,
        outcome => Some(outcome),
    };
    Ok(ConnectAttempt { fd, outcome })
}

/// Returns the peer of a connection whose descriptor is writable or has an error.
///
/// # Errors
/// The reason why the attempt failed.
pub fn outcome(fd: RawFd) -> Result<Peer, IoError> {
    calls::pending_error(fd)?;
    let peer = calls::peer(fd)?;
    calls::set_blocking(fd, true);
    Ok(peer)
}
