//! One request to an external server, and its response as it comes. Each exchange has its own
//! connection, which another thread can end.

use std::fmt::Write as _;
use std::time::Duration;

use super::address::{Address, AddressError};
use super::connection::{ClientConnection, Head, Security, Stopper, WaitLimit};
use super::error::ClientError;
use crate::limits;
use crate::wire::http1::{Method, is_media_type};

/// The URL of an external server: `http://HOST:PORT/PATH` or `https://…`. The system's certificates
/// decide which servers are trusted.
#[derive(Clone, Debug)]
pub(crate) struct ServerUrl {
    address: Address,
    target: String,
}

impl ServerUrl {
    /// # Errors
    /// [`AddressError`].
    pub fn parse(url: &str) -> Result<ServerUrl, AddressError> {
        let (_, rest) = url.split_once("://").ok_or(AddressError::UnknownScheme)?;
        let path_at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (origin, path) = url.split_at(url.len() - rest.len() + path_at);
        let address: Address = origin.parse()?;
        let is_encrypted = matches!(address, Address::Tcp { is_encrypted: true, .. });
        if is_encrypted && cfg!(not(feature = "tls")) {
            return Err(AddressError::Encrypted);
        }
        let is_target = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        if !path.bytes().all(is_target) {
            return Err(AddressError::Trailing);
        }
        let target = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(ServerUrl { address, target })
    }

    /// True if everything sent there is encrypted or stays on this machine.
    pub fn is_private(&self) -> bool {
        match &self.address {
            Address::Tcp { is_encrypted: true, .. } | Address::Unix(_) => true,
            Address::Tcp { host, .. } => {
                host == "localhost"
                    || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
            }
        }
    }

    fn security(&self) -> Result<Security, ClientError> {
        match self.address {
            #[cfg(feature = "tls")]
            Address::Tcp { is_encrypted: true, .. } => {
                let trust = super::Trust::of_system();
                trust.map(Security::Tls).map_err(ClientError::Protocol)
            }
            _ => Ok(Security::None),
        }
    }
}

/// A connection for one exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    connection: ClientConnection,
    head: Option<Head>,
    is_over: bool,
}

/// A header beyond those of every request.
pub(crate) type Header = (String, String);

impl Exchange {
    /// Connects.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open(server: &ServerUrl) -> Result<Exchange, ClientError> {
        let connection = ClientConnection::open(&server.address, &server.security()?)?;
        Ok(Exchange { connection, head: None, is_over: false })
    }

    /// A function that ends the connection from another thread, within a µs.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn stopper(&self) -> Result<impl Fn() + Send + use<>, ClientError> {
        let stopper: Stopper = self.connection.stopper()?;
        Ok(move || stopper.stop())
    }

    /// Sends a request, waits for the head of the response, and returns its status.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn ask(
        &mut self,
        server: &ServerUrl,
        method: Method,
        headers: &[Header],
        body: Option<&[u8]>,
        wait: Duration,
    ) -> Result<u16, ClientError> {
        let mut text = format!(
            "{} {} HTTP/1.1\r\nhost: {}\r\nuser-agent: streamdoor/{}\r\nconnection: close\r\n",
            method.name(),
            server.target,
            server.address.authority(),
            env!("CARGO_PKG_VERSION"),
        );
        for (name, value) in headers {
            let _ = write!(text, "{name}: {value}\r\n"); // Writing to a string cannot fail.
        }
        if let Some(body) = body {
            let length = body.len();
            let _ = write!(text, "content-type: application/json\r\ncontent-length: {length}\r\n");
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        let head = self.connection.ask(method, &bytes, WaitLimit::for_answer(wait))?;
        let status = head.status.code();
        self.head = Some(head);
        Ok(status)
    }

    /// True if the response has this media type.
    pub fn is(&self, media_type: &str) -> bool {
        self.head.as_ref().is_some_and(|head| is_media_type(&head.media_type, media_type))
    }

    /// The session id in the response (A23), if it is valid.
    pub fn session(&self) -> Option<&str> {
        let session = self.head.as_ref()?.session.as_deref()?;
        let is_fit = session.len() <= limits::MCP_URI_BYTES_MAX
            && !session.is_empty()
            && session.bytes().all(|byte| byte.is_ascii_graphic());
        is_fit.then_some(session)
    }

    /// Appends the next bytes of the body. Returns false at its end.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn receive(
        &mut self,
        silence_max: Duration,
        out: &mut Vec<u8>,
    ) -> Result<bool, ClientError> {
        if self.is_over {
            return Ok(false);
        }
        let goes_on = self.connection.receive(WaitLimit::Silence(silence_max), out)?;
        self.is_over = !goes_on;
        Ok(goes_on)
    }

    /// Reads a whole body of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`ClientError`]; also if the body is longer.
    pub fn body(
        &mut self,
        silence_max: Duration,
        bytes_max: usize,
    ) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while self.receive(silence_max, &mut body)? {
            if body.len() > bytes_max {
                break;
            }
        }
        match body.len() > bytes_max {
            true => {
                Err(ClientError::protocol(format!("its answer is longer than {bytes_max} bytes")))
            }
            false => Ok(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_url_is_an_address_and_a_path() {
        for (url, authority, target) in [
            ("http://127.0.0.1:3001/mcp", "127.0.0.1:3001", "/mcp"),
            ("http://h", "h:80", "/"),
            ("http://[::1]:7?x=1", "[::1]:7", "/?x=1"),
            #[cfg(feature = "tls")]
            ("https://h/a/b?c=d", "h:443", "/a/b?c=d"),
        ] {
            let server = ServerUrl::parse(url).unwrap();
            assert_eq!((&*server.address.authority(), &*server.target), (authority, target));
        }
        for url in ["h/mcp", "ftp://h/x", "http:///x", "http://h/a b", "http://h/#x", "http://u@h/"]
        {
            assert!(ServerUrl::parse(url).is_err(), "{url}");
        }
        assert!(ServerUrl::parse("http://localhost/x").unwrap().is_private());
        assert!(!ServerUrl::parse("http://example.com/x").unwrap().is_private());
    }
}
