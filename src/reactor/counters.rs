//! The errors of the kernel, and the running totals of a reactor.

use std::fmt;

use crate::reactor::SocketCounters;

/// An errno that the kernel answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoError(pub i32);

impl IoError {
    /// The reader of a pipe or socket has gone (EPIPE).
    pub const BROKEN_PIPE: IoError = IoError(libc::EPIPE);

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

/// Running totals of one reactor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Answers of the kernel that belong to nothing any more, and were dropped.
    pub stale_count: u64,
    /// Times that the kernel had more completions than its queue holds. No completion was lost.
    pub overflow_count: u64,
    /// Times that the kernel was entered, to submit, look or wait.
    pub entered_count: u64,
    /// Number of these entries that waited.
    pub blocked_count: u64,
    /// Wake-ups that a poll has seen.
    pub woken_count: u64,
    /// Messages to reactors that were blocked, to wake them.
    pub message_count: u64,
    /// The totals of sockets.
    pub sockets: SocketCounters,
}
