//! One connection to a server. Requests are written, and responses are read in parts.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::address::Address;
use super::error::{ClientError, Cut};
use crate::base::Instant;
use crate::limits;
use crate::reactor::Clock;
use crate::wire::http1::{Method, ResponseInfo, ResponsePart, ResponseReader, Status};

/// A connection and its receive buffer.
#[derive(Debug)]
pub(super) struct ClientConnection {
    socket: Socket,
    reader: ResponseReader,
    buffer: Box<[u8]>,
    /// The received bytes of `buffer` that are not yet read: `at..filled`.
    at: usize,
    filled: usize,
    /// True if bytes have come since the last request.
    is_answered: bool,
    /// The read timeout that the socket has.
    read_timeout: Option<Duration>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<super::tls::TlsStream>),
}

/// The longest wait for bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitLimit {
    /// Until this time for the whole reply. The second field is the whole wait, for errors.
    Until(Instant, Duration),
    /// For this long for each receive.
    Silence(Duration),
    /// No wait.
    Now,
}

/// The parts of a response head that the client uses.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub status: Status,
    pub media_type: String,
    pub retry_after: Option<Duration>,
    pub keeps_alive: bool,
    /// The header `Mcp-Session-Id`.
    pub session: Option<String>,
}

/// A handle that ends a connection from another thread.
#[derive(Debug)]
pub(super) enum Stopper {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stopper {
    /// Shuts the socket down, so that its reader finds the end. Takes a µs.
    pub fn stop(&self) {
        // An error means that it is closed already.
        let _ = match self {
            Stopper::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stopper::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl WaitLimit {
    pub fn for_answer(time: Duration) -> WaitLimit {
        WaitLimit::Until(Clock::now() + time, time)
    }

    fn left(self) -> Result<Duration, Cut> {
        match self {
            WaitLimit::Silence(time) => Ok(time),
            WaitLimit::Now => Ok(Duration::ZERO),
            WaitLimit::Until(deadline, time) => match deadline.since(Clock::now()) {
                Duration::ZERO => Err(Cut::Silent(time)),
                left => Ok(left),
            },
        }
    }

    /// The error after a wait in vain.
    fn exhausted(self) -> Cut {
        Cut::Silent(match self {
            WaitLimit::Until(_, time) | WaitLimit::Silence(time) => time,
            WaitLimit::Now => Duration::ZERO,
        })
    }
}

impl ClientConnection {
    /// Connects.
    pub fn open(address: &Address, security: &Security) -> Result<ClientConnection, ClientError> {
        let connected = match address {
            Address::Tcp { host, port, .. } => {
                connect_tcp(host, *port).and_then(|stream| security.over(host, stream))
            }
            Address::Unix(path) => UnixStream::connect(path).map(Socket::Unix),
        };
        let set_up = connected.and_then(|socket| {
            socket.set_write_timeout(limits::CLIENT_ANSWER_TIMEOUT)?;
            Ok(socket)
        });
        match set_up {
            Ok(socket) => Ok(ClientConnection {
                socket,
                reader: ResponseReader::new(),
                buffer: vec![0; limits::CLIENT_RECEIVE_BYTES].into_boxed_slice(),
                at: 0,
                filled: 0,
                is_answered: false,
                read_timeout: None,
            }),
            Err(error) => Err(ClientError::Unreachable { address: address.to_string(), error }),
        }
    }

    /// A handle that ends the connection from another thread.
    pub fn stopper(&self) -> Result<Stopper, ClientError> {
        let stopper = match &self.socket {
            Socket::Tcp(stream) => stream.try_clone().map(Stopper::Tcp),
            Socket::Unix(stream) => stream.try_clone().map(Stopper::Unix),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.sock.try_clone().map(Stopper::Tcp),
        };
        stopper.map_err(|error| Cut::Failed(error).into())
    }

    /// True if bytes have come since the last request. If not, the server may have closed the
    /// connection before the request reached it.
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// True if no bytes are left over from the last response.
    pub fn is_clean(&self) -> bool {
        self.at == self.filled
    }

    /// Sends a request, and reads the head of its response.
    pub fn ask(
        &mut self,
        method: Method,
        request: &[u8],
        wait_limit: WaitLimit,
    ) -> Result<Head, ClientError> {
        let sent = self.send(method, request);
        match (self.head(wait_limit), sent) {
            // A server may refuse a long request and close before it has read all of it.
            (Ok(head), _) => Ok(head),
            (Err(ClientError::Cut(_)), Err(cut)) => Err(cut.into()),
            (Err(error), _) => Err(error),
        }
    }

    /// Sends a request without waiting for its response.
    pub fn send(&mut self, method: Method, request: &[u8]) -> Result<(), Cut> {
        self.is_answered = false;
        self.reader.expect(method);
        self.socket.write_all(request).map_err(Cut::Failed)
    }

    /// Returns the head of the response once the whole response has come. Never waits: `None` if a
    /// part is missing. `head` holds the head between calls.
    pub fn poll_answer(
        &mut self,
        head: &mut Option<Head>,
        wait_limit: WaitLimit,
    ) -> Result<Option<Head>, ClientError> {
        loop {
            let mut input = &self.buffer[self.at..self.filled];
            let is_whole = loop {
                match self.reader.read(&mut input)? {
                    Some(ResponsePart::Head(info)) => *head = Some(Head::of(&info)),
                    Some(ResponsePart::Body(_)) => {}
                    Some(ResponsePart::End) => break true,
                    None => break false,
                }
            };
            self.at = self.filled - input.len();
            if is_whole {
                return Ok(head.take());
            }
            wait_limit.left()?;
            match self.socket.read_now(&mut self.buffer) {
                Ok(0) => return Err(Cut::Closed.into()),
                Ok(count) => (self.at, self.filled) = (0, count),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return Ok(None),
                    _ => return Err(Cut::Failed(error).into()),
                },
            }
        }
    }

    fn head(&mut self, wait_limit: WaitLimit) -> Result<Head, ClientError> {
        loop {
            let mut input = &self.buffer[self.at..self.filled];
            let is_tls_alert = input.starts_with(&[21, 3]); // The type and the version of a record.
            let part = match self.reader.read(&mut input) {
                Err(_) if is_tls_alert => {
                    return Err(ClientError::protocol("this port speaks TLS; use https://"));
                }
                part => part?,
            };
            self.at = self.filled - input.len();
            match part {
                Some(ResponsePart::Head(info)) => return Ok(Head::of(&info)),
                Some(_) => return Err(ClientError::protocol("a response has no head")),
                None => {}
            }
            if self.fill(wait_limit)? == 0 {
                self.reader.finish()?;
                return Err(Cut::Closed.into());
            }
        }
    }

    /// Reads a whole body, of at most [`limits::CLIENT_ANSWER_BYTES_MAX`].
    pub fn body(&mut self, wait_limit: WaitLimit) -> Result<Vec<u8>, ClientError> {
        self.reader.limit_body(limits::CLIENT_ANSWER_BYTES_MAX);
        let mut body = Vec::new();
        while self.receive(wait_limit, &mut body)? {}
        Ok(body)
    }

    /// Waits for the next bytes of the body, and appends all that are there. Returns false at its
    /// end.
    pub fn receive(
        &mut self,
        wait_limit: WaitLimit,
        out: &mut Vec<u8>,
    ) -> Result<bool, ClientError> {
        let before_bytes = out.len();
        loop {
            let mut input = &self.buffer[self.at..self.filled];
            let is_over = loop {
                match self.reader.read(&mut input)? {
                    Some(ResponsePart::Body(piece)) => out.extend_from_slice(piece),
                    Some(ResponsePart::End) => break true,
                    Some(ResponsePart::Head(_)) => {
                        return Err(ClientError::protocol("a response began within another"));
                    }
                    None => break false,
                }
            };
            self.at = self.filled - input.len();
            if is_over || out.len() > before_bytes {
                return Ok(!is_over);
            }
            if self.fill(wait_limit)? == 0 {
                return match self.reader.finish()? {
                    Some(_) => Ok(false),
                    None => Err(Cut::Closed.into()),
                };
            }
        }
    }

    /// Waits for bytes. Returns 0 at the end of the connection.
    fn fill(&mut self, wait_limit: WaitLimit) -> Result<usize, ClientError> {
        loop {
            let left = wait_limit.left()?;
            let read = if matches!(wait_limit, WaitLimit::Now) {
                self.socket.read_now(&mut self.buffer)
            } else {
                if self.read_timeout != Some(left) {
                    self.socket.set_read_timeout(left).map_err(Cut::Failed)?;
                    self.read_timeout = Some(left);
                }
                self.socket.read(&mut self.buffer)
            };
            match read {
                Ok(count) => {
                    (self.at, self.filled) = (0, count);
                    self.is_answered |= count > 0;
                    return Ok(count);
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                        return Err(wait_limit.exhausted().into());
                    }
                    _ => return Err(Cut::Failed(error).into()),
                },
            }
        }
    }
}

/// The security of a connection over TCP.
#[derive(Clone, Debug)]
pub(super) enum Security {
    /// None.
    None,
    /// TLS, with the trusted certificates.
    #[cfg(feature = "tls")]
    Tls(super::tls::Trust),
}

impl Security {
    #[cfg_attr(
        not(feature = "tls"),
        expect(unused_variables, reason = "only TLS checks the name of the host")
    )]
    fn over(&self, host: &str, stream: TcpStream) -> io::Result<Socket> {
        match self {
            Security::None => Ok(Socket::Tcp(stream)),
            #[cfg(feature = "tls")]
            Security::Tls(trust) => Ok(Socket::Tls(Box::new(trust.connect(host, stream)?))),
        }
    }
}

/// Connects to the first address of the host that accepts.
fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limits::CLIENT_CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

impl Socket {
    fn set_read_timeout(&self, time: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(Some(time)),
            Socket::Unix(stream) => stream.set_read_timeout(Some(time)),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.sock.set_read_timeout(Some(time)),
        }
    }

    fn set_write_timeout(&self, time: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_write_timeout(Some(time)),
            Socket::Unix(stream) => stream.set_write_timeout(Some(time)),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.sock.set_write_timeout(Some(time)),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Unix(stream) => stream.read(buffer),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.read(buffer),
        }
    }

    /// Reads the bytes that are there; [`ErrorKind::WouldBlock`] if none are.
    fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.set_nonblocking(true)?;
        let read = self.read(buffer);
        self.set_nonblocking(false)?;
        read
    }

    fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_nonblocking(is_nonblocking),
            Socket::Unix(stream) => stream.set_nonblocking(is_nonblocking),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.sock.set_nonblocking(is_nonblocking),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.write_all(bytes),
            Socket::Unix(stream) => stream.write_all(bytes),
            #[cfg(feature = "tls")]
            Socket::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

impl Head {
    fn of(info: &ResponseInfo<'_>) -> Head {
        let text = |name| info.headers.texts(name).next().unwrap_or("");
        let retry_after = text("retry-after").parse().ok().map(Duration::from_secs);
        Head {
            status: info.status,
            media_type: text("content-type").to_owned(),
            retry_after,
            keeps_alive: info.keeps_alive,
            session: info.headers.texts("mcp-session-id").next().map(str::to_owned),
        }
    }
}
