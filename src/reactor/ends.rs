//! The descriptors of one connection: a socket, or two descriptors that others have made and may
//! share, such as the standard streams of a program.
//!
//! Shared descriptors are left unchanged: their flags stay, and they are never shut down. Sockets
//! need no flag for calls that do not wait. A pipe is opened anew, which gives an open file
//! description of our own, with flags of its own.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;

use super::{IoError, socket_calls as calls};

/// One direction of a connection, made of an existing descriptor.
#[derive(Debug)]
pub struct HalfConnection {
    fd: OwnedFd,
    kind: HalfKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HalfKind {
    /// A socket that is not shared.
    Socket,
    /// A socket that others may share.
    SharedSocket,
    /// A pipe that was opened anew.
    Pipe,
}

impl HalfConnection {
    /// Makes the read end of a connection from `fd`, which stays as it is and may be closed.
    ///
    /// # Errors
    /// The descriptor cannot be read without waiting: a file, a terminal, a pipe of another user.
    /// Then let a thread copy the bytes to an end of [`HalfConnection::pair`].
    ///
    /// ```
    /// use std::os::fd::AsFd;
    /// use streamdoor::reactor::HalfConnection;
    /// let (reader, _writer) = std::io::pipe()?;
    /// assert!(HalfConnection::to_read(reader.as_fd()).is_ok());
    /// let file = std::fs::File::open("/dev/null")?;
    /// assert!(HalfConnection::to_read(file.as_fd()).is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn to_read(fd: BorrowedFd<'_>) -> io::Result<HalfConnection> {
        HalfConnection::share(fd, OpenOptions::new().read(true))
    }

    /// Makes the write end of a connection from `fd`, which stays as it is and may be closed.
    ///
    /// # Errors
    /// The same as of [`HalfConnection::to_read`].
    pub fn to_write(fd: BorrowedFd<'_>) -> io::Result<HalfConnection> {
        HalfConnection::share(fd, OpenOptions::new().write(true))
    }

    fn share(fd: BorrowedFd<'_>, options: &mut OpenOptions) -> io::Result<HalfConnection> {
        let copy = fd.try_clone_to_owned()?;
        let file = File::from(copy);
        let kind = file.metadata()?.file_type();
        if kind.is_socket() {
            let fd = OwnedFd::from(file);
            let is_stream = calls::is_stream(fd.as_raw_fd());
            return match is_stream.map_err(|error| io::Error::from_raw_os_error(error.0))? {
                true => Ok(HalfConnection { fd, kind: HalfKind::SharedSocket }),
                false => Err(io::Error::other("a socket that is not a stream")),
            };
        }
        if !kind.is_fifo() {
            return Err(io::Error::other("neither a socket nor a pipe"));
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = options.custom_flags(libc::O_NONBLOCK).open(path)?;
        Ok(HalfConnection { fd: opened.into(), kind: HalfKind::Pipe })
    }

    /// Makes a socket pair: an end, and its peer for a thread that copies bytes.
    ///
    /// # Errors
    /// No descriptors, or no memory.
    pub fn pair() -> io::Result<(HalfConnection, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((HalfConnection { fd: ours.into(), kind: HalfKind::Socket }, theirs))
    }

    /// True if the connection uses the given socket or pipe itself, without a thread that copies.
    pub fn is_shared(&self) -> bool {
        self.kind != HalfKind::Socket
    }

    fn shutdown(&self, how: libc::c_int) {
        if self.kind == HalfKind::Socket {
            calls::shutdown(&self.fd, how);
        }
    }
}

/// The descriptor that a connection reads from, and the one that it writes to.
#[derive(Debug)]
pub(crate) struct ConnectionEnds {
    input: HalfConnection,
    /// The descriptor to write to, or `None` if it is the input.
    output: Option<HalfConnection>,
}

impl ConnectionEnds {
    /// The ends of a connection of one socket, accepted or connected.
    pub fn of_socket(fd: OwnedFd) -> ConnectionEnds {
        ConnectionEnds { input: HalfConnection { fd, kind: HalfKind::Socket }, output: None }
    }

    pub fn of(input: HalfConnection, output: HalfConnection) -> ConnectionEnds {
        ConnectionEnds { input, output: Some(output) }
    }

    pub fn input(&self) -> RawFd {
        self.input.fd.as_raw_fd()
    }

    pub fn output(&self) -> RawFd {
        self.output.as_ref().unwrap_or(&self.input).fd.as_raw_fd()
    }

    /// Bounds the bytes that the kernel holds and the peer has not confirmed. Descriptors that
    /// others share stay as they are, and so does a socket whose kernel refuses.
    pub fn bound_sending(&self, bytes: u32) {
        let output = self.output.as_ref().unwrap_or(&self.input);
        if output.kind == HalfKind::Socket {
            let _ = calls::set_send_buffer(output.fd.as_raw_fd(), bytes);
        }
    }

    /// The second descriptor, if the connection has one.
    pub fn own_output(&self) -> Option<RawFd> {
        self.output.as_ref().map(|end| end.fd.as_raw_fd())
    }

    /// True if the input is a pipe, which `recv` does not support.
    pub fn is_input_pipe(&self) -> bool {
        self.input.kind == HalfKind::Pipe
    }

    /// Makes reads of a pipe blocking or not. Calls on sockets pass a flag instead.
    pub fn set_input_blocking(&self, is_blocking: bool) {
        if self.is_input_pipe() {
            calls::set_blocking(self.input(), is_blocking);
        }
    }

    /// Receives the bytes that are available, from a non-blocking input. `Ok(0)`: the end.
    pub fn receive(&self, into: &mut [u8]) -> Result<usize, IoError> {
        match self.input.kind {
            HalfKind::Pipe => calls::read(self.input(), into),
            HalfKind::Socket | HalfKind::SharedSocket => calls::receive(self.input(), into),
        }
    }

    /// Sends like [`calls::send`], with `descriptors` on the first byte.
    pub fn send(
        &self,
        slices: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
    ) -> (usize, Option<IoError>) {
        let output = self.output.as_ref().unwrap_or(&self.input);
        match output.kind {
            HalfKind::Socket if !descriptors.is_empty() => {
                let is_first = Cell::new(true);
                calls::send(output.fd.as_raw_fd(), slices, |fd, slices| match is_first.get() {
                    false => calls::send_once(fd, slices),
                    true => calls::send_once_with(fd, slices, descriptors).inspect(|moved_bytes| {
                        is_first.set(*moved_bytes == 0);
                    }),
                })
            }
            _ if !descriptors.is_empty() => (0, Some(IoError(libc::EOPNOTSUPP))),
            HalfKind::Pipe => calls::send(output.fd.as_raw_fd(), slices, calls::write_once),
            HalfKind::Socket | HalfKind::SharedSocket => {
                calls::send(output.fd.as_raw_fd(), slices, calls::send_once)
            }
        }
    }

    /// Ends sending, if the output is a socket that is not shared.
    pub fn finish(&self) {
        self.output.as_ref().unwrap_or(&self.input).shutdown(libc::SHUT_WR);
    }

    /// Shuts down the sockets that are not shared.
    pub fn shutdown(&self) {
        self.input.shutdown(libc::SHUT_RDWR);
        if let Some(output) = &self.output {
            output.shutdown(libc::SHUT_RDWR);
        }
    }
}
