//! Reads and writes that do not block, on descriptors whose flags are not ours to change.
//!
//! RWF_NOWAIT asks for one call what O_NONBLOCK asks for all calls of everybody who shares the open
//! file. Pipes and sockets have it since Linux 6.5. Elsewhere (terminals, older kernels) the call
//! is made only when `poll(2)` says that it would not block, and moves few bytes. One hole is left:
//! if somebody else who shares the descriptor takes the bytes in between, a read there blocks.

use std::os::fd::RawFd;

use crate::limits::{WRITE_PIPE_BYTES_MAX, WRITE_TERMINAL_BYTES_MAX};
use crate::reactor::IoError;
use crate::reactor::operation::{Request, Transfer};

/// What one try came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It is over.
    Done(Result<u32, IoError>),
    /// Nothing moved; try again when the descriptor is ready.
    NotReady,
}

/// Tries `request` once (again after EINTR, counted in `retried_count`).
pub fn attempt(request: &mut Request, retried_count: &mut u64) -> Attempt {
    let Some(result) = retry(retried_count, || vectored_nowait(request)) else {
        return Attempt::NotReady;
    };
    match result {
        Err(IoError(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)) => {
            attempt_when_ready(request, retried_count)
        }
        result => Attempt::Done(result),
    }
}

/// Does `request`, and waits for it if need be: for files and the like, which `epoll` refuses
/// because they are always ready.
pub fn perform(request: &mut Request, retried_count: &mut u64) -> Result<u32, IoError> {
    // A non-blocking descriptor that epoll refuses and that is not ready does not exist in
    // Linux; if it does one day, its EAGAIN comes out instead of a busy loop.
    retry(retried_count, || plain(request, u32::MAX)).unwrap_or(Err(IoError(libc::EAGAIN)))
}

fn attempt_when_ready(request: &mut Request, retried_count: &mut u64) -> Attempt {
    let (events, bytes_max) = match request.transfer {
        Transfer::Read => (libc::POLLIN, u32::MAX),
        Transfer::Write(_) if is_terminal(request.fd) => (libc::POLLOUT, WRITE_TERMINAL_BYTES_MAX),
        Transfer::Write(_) => (libc::POLLOUT, WRITE_PIPE_BYTES_MAX),
    };
    if !is_ready(request.fd, events) {
        return Attempt::NotReady;
    }
    retry(retried_count, || plain(request, bytes_max)).map_or(Attempt::NotReady, Attempt::Done)
}

/// None for EAGAIN.
fn retry(retried_count: &mut u64, mut call: impl FnMut() -> isize) -> Option<Result<u32, IoError>> {
    loop {
        let moved = call();
        if moved >= 0 {
            return Some(Ok(moved as u32)); // Below `Buffer::size`, a u32.
        }
        match IoError::last() {
            IoError(libc::EINTR) => *retried_count += 1,
            IoError(libc::EAGAIN) => return None,
            error => return Some(Err(error)),
        }
    }
}

fn span(request: &Request) -> (*mut u8, u32) {
    match &request.transfer {
        Transfer::Read => (request.buffer.address(), request.buffer.size()),
        // `Request::parse` checked that the range lies in the buffer.
        Transfer::Write(range) => {
            (request.buffer.address().wrapping_add(range.start as usize), range.end - range.start)
        }
    }
}

fn vectored_nowait(request: &mut Request) -> isize {
    let (start, size_bytes) = span(request);
    let piece = libc::iovec { iov_base: start.cast(), iov_len: size_bytes as usize };
    let at_cursor = -1; // The file's own position, as `read(2)` does.
    match request.transfer {
        // SAFETY: `piece` is a part of the buffer, which `&mut request` owns alone.
        Transfer::Read => unsafe {
            libc::preadv2(request.fd, &piece, 1, at_cursor, libc::RWF_NOWAIT)
        },
        // SAFETY: as above; the kernel only reads from it.
        Transfer::Write(_) => unsafe {
            libc::pwritev2(request.fd, &piece, 1, at_cursor, libc::RWF_NOWAIT)
        },
    }
}

fn plain(request: &mut Request, bytes_max: u32) -> isize {
    let (start, size_bytes) = span(request);
    let size_bytes = size_bytes.min(bytes_max) as usize;
    match request.transfer {
        // SAFETY: these bytes are a part of the buffer, which `&mut request` owns alone.
        Transfer::Read => unsafe { libc::read(request.fd, start.cast(), size_bytes) },
        // SAFETY: as above; the kernel only reads from them.
        Transfer::Write(_) => unsafe { libc::write(request.fd, start.cast(), size_bytes) },
    }
}

fn is_ready(fd: RawFd, events: libc::c_short) -> bool {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one valid entry, to be read and written during the call.
    let ready_count = unsafe { libc::poll(&mut entry, 1, 0) };
    ready_count == 1
}

/// Whether `fd` is a terminal: a full one makes a write wait, whatever poll said.
pub fn is_terminal(fd: RawFd) -> bool {
    // SAFETY: takes a number.
    unsafe { libc::isatty(fd) == 1 }
}
