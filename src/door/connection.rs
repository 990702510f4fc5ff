//! The connection to a door. A request goes out, and lines come in; descriptors come with the first
//! line. After that the connection is the life line.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, recv, recvmsg, send, socket_with,
};

use super::error::{DoorError, Unsound};
use crate::base::Instant;
use crate::client::ServerRefusal;
use crate::limits;
use crate::reactor::Clock;
use crate::wire::http1::{Method, ResponsePart, ResponseReader, Status};

/// Number of descriptors in a grant: the ring, the control page and the page of this side.
pub(super) const DESCRIPTORS: usize = 3;
const BUFFER_BYTES: usize = 4 << 10;

/// A connection on which the server still replies.
pub(super) struct OpenConnection {
    stream: UnixStream,
    reader: ResponseReader,
    /// Bytes of the body that are not read yet; they form lines.
    body: VecDeque<u8>,
    descriptors: Vec<OwnedFd>,
    status: Option<Status>,
    retry_after: Option<Duration>,
    is_over: bool,
    deadline: Instant,
}

impl OpenConnection {
    /// Connects, checks that the peer is trusted, and sends the request.
    pub(super) fn begin(path: &Path, request: &[u8]) -> Result<OpenConnection, DoorError> {
        let absent = |error| DoorError::NoServer { path: path.to_owned(), error };
        let stream = connect(path).map_err(|error| absent(error.into()))?;
        let peer = socket_peercred(&stream).map_err(io::Error::from)?;
        if !super::is_trusted(peer.uid.as_raw()) {
            let error =
                io::Error::new(ErrorKind::PermissionDenied, "the server belongs to another user");
            return Err(absent(error));
        }
        OpenConnection::on(stream, request)
    }

    /// Does the same as [`OpenConnection::begin`] on a connection that is open already.
    pub(super) fn on(stream: UnixStream, request: &[u8]) -> Result<OpenConnection, DoorError> {
        stream.set_write_timeout(Some(limits::DOOR_ANSWER_TIMEOUT))?;
        let mut reader = ResponseReader::new();
        reader.expect(Method::Post);
        let deadline = Clock::now() + limits::DOOR_ANSWER_TIMEOUT;
        let mut connection = OpenConnection {
            stream,
            reader,
            body: VecDeque::new(),
            descriptors: Vec::new(),
            status: None,
            retry_after: None,
            is_over: false,
            deadline,
        };
        let sent = (&connection.stream).write_all(request);
        connection.head(sent)?;
        Ok(connection)
    }

    /// Reads up to the body, or all of a refusal. A server may refuse before it has read the whole
    /// request.
    fn head(&mut self, sent: io::Result<()>) -> Result<(), DoorError> {
        while self.status.is_none() {
            if !self.fill()? {
                sent?;
                return Err(DoorError::ServerGone);
            }
        }
        let status = self.status.expect("the status was checked above");
        if status == Status::OK {
            return Ok(());
        }
        while !self.is_over && self.fill()? {}
        let body: Vec<u8> = self.body.drain(..).collect();
        Err(DoorError::Refused(ServerRefusal {
            retry_after: self.retry_after,
            ..ServerRefusal::read(status, &body)
        }))
    }

    /// Reads the next line that is not empty, and returns it without its line end.
    pub(super) fn line(&mut self) -> Result<Vec<u8>, DoorError> {
        loop {
            if let Some(end) = self.body.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.body.drain(..=end).collect();
                line.pop();
                if !line.is_empty() {
                    return Ok(line);
                }
            } else if self.is_over || !self.fill()? {
                return Err(DoorError::ServerGone);
            }
        }
    }

    /// Waits for bytes. Returns false if no more will come.
    fn fill(&mut self) -> Result<bool, DoorError> {
        let mut buffer = [0; BUFFER_BYTES];
        let count = self.receive(&mut buffer)?;
        let mut input = &buffer[..count];
        if count == 0 {
            self.is_over = true;
            return Ok(false);
        }
        loop {
            match self.reader.read(&mut input) {
                Ok(Some(ResponsePart::Head(info))) => {
                    self.status = Some(info.status);
                    let retry_after = info.headers.texts("retry-after").next();
                    let seconds = retry_after.and_then(|text| text.parse().ok());
                    self.retry_after = seconds.map(Duration::from_secs);
                }
                Ok(Some(ResponsePart::Body(piece))) => {
                    self.body.extend(piece);
                    if self.body.len() > limits::DOOR_GRANT_BYTES_MAX {
                        return Err(unsound("a line is too long"));
                    }
                }
                Ok(Some(ResponsePart::End)) => {
                    self.is_over = true;
                    return Ok(true);
                }
                Ok(None) => return Ok(true),
                Err(error) => return Err(unsound(error.to_string())),
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, DoorError> {
        loop {
            let left = self.deadline.since(Clock::now());
            if left == Duration::ZERO {
                return Err(DoorError::Os(ErrorKind::TimedOut.into()));
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut pieces = [IoSliceMut::new(buffer)];
            match recvmsg(&self.stream, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => {
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                            self.descriptors.extend(descriptors);
                        }
                    }
                    if self.descriptors.len() > DESCRIPTORS {
                        return Err(unsound("it has more descriptors than a grant"));
                    }
                    return Ok(received.bytes);
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::CONNRESET | Errno::PIPE) => return Ok(0),
                Err(error) => return Err(DoorError::Os(error.into())),
            }
        }
    }

    /// Takes the descriptors that came with the grant.
    pub(super) fn descriptors(&mut self) -> Result<[OwnedFd; DESCRIPTORS], DoorError> {
        let found = std::mem::take(&mut self.descriptors);
        found.try_into().map_err(|found: Vec<OwnedFd>| {
            let of = ["ring", "control page", "own page"][found.len().min(DESCRIPTORS - 1)];
            DoorError::Unsound(Unsound::Descriptor { of, error: None })
        })
    }

    /// Turns the connection into a life line, which no call waits on.
    pub(super) fn into_line(self) -> Result<LifeLine, DoorError> {
        self.stream.set_nonblocking(true)?;
        let process_id = std::process::id();
        Ok(LifeLine { stream: self.stream, is_gone: Cell::new(self.is_over), process_id })
    }
}

/// Connects, or times out: a server that accepts no connections has a queue that fills.
fn connect(path: &Path) -> rustix::io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limits::DOOR_ANSWER_TIMEOUT))?;
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

fn unsound(text: impl Into<String>) -> DoorError {
    DoorError::Unsound(Unsound::Answer(text.into()))
}

/// The connection on which a door was granted. While it stands, the server is present.
pub(super) struct LifeLine {
    stream: UnixStream,
    is_gone: Cell<bool>,
    /// The process that owns the line. A forked child inherits the line and is not the owner.
    process_id: u32,
}

impl LifeLine {
    /// Makes the server examine what this side has written.
    pub(super) fn knock(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&self.stream, b"\n", flags) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {} // The queue is full: it will look.
            Err(_) => self.is_gone.set(true),
        }
    }

    /// Discards what the server has sent, and returns true if the server is present. The bytes
    /// carry no information beyond a wake-up.
    pub(super) fn is_up(&self) -> bool {
        let mut buffer = [0u8; 512];
        // Bounded: a server that sends without end is present.
        for _ in 0..LOOKS_MAX {
            if self.is_gone.get() {
                return false;
            }
            match recv(&self.stream, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => self.is_gone.set(true),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => self.is_gone.set(true),
            }
        }
        true
    }

    /// True if the line was found to be broken.
    pub(super) fn is_known_gone(&self) -> bool {
        self.is_gone.get()
    }

    /// True if this is the process to which the line was granted.
    pub(super) fn is_ours(&self) -> bool {
        self.process_id == std::process::id()
    }
}

const LOOKS_MAX: u32 = 64;

impl AsFd for LifeLine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
