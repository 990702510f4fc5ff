//! What goes into a reactor and what comes out of it: plain values.
//!
//! Absent: sockets, which are not operations but events: `socket.rs`.

use std::fmt;
use std::ops::Range;
use std::os::fd::RawFd;

use crate::reactor::{Buffer, SocketCounters};

/// Something for the kernel to do. The token comes back with the [`Completion`].
#[derive(Debug)]
pub enum Operation {
    /// Reads into the front of `buffer`, as much as is there, at least one byte.
    Read {
        /// The caller's name for it.
        token: u64,
        /// Open until the completion.
        fd: RawFd,
        /// Lent to the kernel.
        buffer: Buffer,
    },
    /// Writes `buffer[range]`, as much as fits, at least one byte.
    Write {
        /// The caller's name for it.
        token: u64,
        /// Open until the completion.
        fd: RawFd,
        /// Lent to the kernel.
        buffer: Buffer,
        /// Which bytes of it.
        range: Range<u32>,
    },
    /// Ends every operation in flight that was submitted under `token`.
    Cancel {
        /// Whose operations.
        token: u64,
    },
}

impl Operation {
    /// The caller's name for it.
    pub fn token(&self) -> u64 {
        match self {
            Operation::Read { token, .. }
            | Operation::Write { token, .. }
            | Operation::Cancel { token } => *token,
        }
    }
}

/// The end of one read or write.
#[derive(Debug)]
pub struct Completion {
    /// As submitted.
    pub token: u64,
    /// Bytes moved; see R5 of [`crate::reactor::Reactor`].
    pub result: Result<u32, IoError>,
    /// Back from the kernel.
    pub buffer: Buffer,
}

/// What the kernel answered instead of bytes: an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoError(pub i32);

impl IoError {
    /// The operation was cancelled and has moved nothing.
    pub const CANCELLED: IoError = IoError(libc::ECANCELED);
    /// Nobody can read what was to be written.
    pub const BROKEN_PIPE: IoError = IoError(libc::EPIPE);
    /// The descriptor is not open, or not for this.
    pub const BAD_DESCRIPTOR: IoError = IoError(libc::EBADF);

    /// The errno of the system call that just failed on this thread.
    pub(crate) fn last() -> IoError {
        IoError(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for IoError {}

/// Why [`crate::reactor::Reactor::submit`] refused.
#[derive(Debug)]
pub enum SubmitError {
    /// Wait: take completions, then submit this again.
    Full(Operation),
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubmitError::Full(operation) => {
                write!(
                    f,
                    "the reactor holds all the operations it can (token {})",
                    operation.token()
                )
            }
        }
    }
}

impl std::error::Error for SubmitError {}

/// Running totals of one reactor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads and writes accepted.
    pub submitted_count: u64,
    /// Reads and writes that ended.
    pub completed_count: u64,
    /// Of these, with [`IoError::CANCELLED`].
    pub cancelled_count: u64,
    /// Tries repeated because of EINTR, or EAGAIN of a non-blocking descriptor.
    pub retried_count: u64,
    /// Answers that belong to no operation any more: dropped.
    pub stale_count: u64,
    /// Times that the kernel had more completions than its queue holds. None was lost.
    pub overflow_count: u64,
    /// Times that the kernel was entered, to submit, look or wait.
    pub entered_count: u64,
    /// Of these, to wait.
    pub blocked_count: u64,
    /// Wake-ups that a poll has seen.
    pub woken_count: u64,
    /// Messages to reactors that were blocked, to wake them.
    pub message_count: u64,
    /// Of sockets.
    pub sockets: SocketCounters,
}

impl Counters {
    /// Counts the end of one operation.
    pub fn count_completion(&mut self, result: Result<u32, IoError>) {
        self.completed_count += 1;
        self.cancelled_count += u64::from(result == Err(IoError::CANCELLED));
    }
}

/// The two kinds of work, without their tokens: what the backends keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Into the front of the buffer.
    Read,
    /// Of these bytes of the buffer.
    Write(Range<u32>),
}

/// An operation taken apart and checked, the way backends store it.
#[derive(Debug)]
pub struct Request {
    /// The caller's name for it.
    pub token: u64,
    /// Where.
    pub fd: RawFd,
    /// What.
    pub transfer: Transfer,
    /// From or to where.
    pub buffer: Buffer,
}

impl Request {
    /// The read or write in `operation`; `Err(token)` if it is a cancel.
    ///
    /// # Panics
    /// If it has no byte to move, or its range leaves the buffer.
    pub fn parse(operation: Operation) -> Result<Request, u64> {
        let request = match operation {
            Operation::Read { token, fd, buffer } => {
                Request { token, fd, transfer: Transfer::Read, buffer }
            }
            Operation::Write { token, fd, buffer, range } => {
                assert!(range.start < range.end, "a write of no bytes");
                assert!(range.end <= buffer.size(), "a write beyond its buffer");
                Request { token, fd, transfer: Transfer::Write(range), buffer }
            }
            Operation::Cancel { token } => return Err(token),
        };
        assert!(request.buffer.size() > 0, "a read of no bytes: its Ok(0) would look like the end");
        Ok(request)
    }

    /// The operation again, to be given back.
    pub fn into_operation(self) -> Operation {
        let Request { token, fd, transfer, buffer } = self;
        match transfer {
            Transfer::Read => Operation::Read { token, fd, buffer },
            Transfer::Write(range) => Operation::Write { token, fd, buffer, range },
        }
    }

    /// The end of it.
    pub fn into_completion(self, result: Result<u32, IoError>) -> Completion {
        if let Ok(moved_bytes) = result {
            assert!(moved_bytes <= self.buffer.size());
        }
        Completion { token: self.token, result, buffer: self.buffer }
    }
}
