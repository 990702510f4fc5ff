//! The address of a server: `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host name or IP address, and a port.
    Tcp {
        /// The host, without brackets around an IPv6 address.
        host: String,
        /// From 1 to 65535.
        port: u16,
        /// True for TLS.
        is_encrypted: bool,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The fault of a text that is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressError {
    /// It begins with none of `http://`, `https://` and `unix:`.
    UnknownScheme,
    /// It asks for TLS, but the client was given no trusted certificates, or the program is built
    /// without TLS.
    Encrypted,
    /// The host is missing, or has characters that no host has.
    BadHost,
    /// The port is not a number from 1 to 65535.
    BadPort,
    /// A path or a query follows the port.
    Trailing,
    /// It has a user name or a password, which the client never sends.
    Credentials,
    /// The path is missing, or is one that no socket can have.
    BadPath,
}

/// Longest path that fits into `sockaddr_un` together with its NUL.
const UNIX_PATH_BYTES_MAX: usize = 107;
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let fits = (1..=UNIX_PATH_BYTES_MAX).contains(&path.len()) && !path.contains('\0');
            return if fits { Ok(Address::Unix(path.into())) } else { Err(AddressError::BadPath) };
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(AddressError::UnknownScheme);
        };
        let is_encrypted = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(AddressError::UnknownScheme),
        };
        let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, behind) = rest.split_at(authority_end);
        if authority.contains('@') {
            return Err(AddressError::Credentials);
        }
        if !matches!(behind, "" | "/") {
            return Err(AddressError::Trailing);
        }
        let (host, port) = host_and_port(authority)?;
        let port = match port {
            None if is_encrypted => HTTPS_PORT,
            None => HTTP_PORT,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().filter(|port| *port > 0).ok_or(AddressError::BadPort)?
            }
            Some(_) => return Err(AddressError::BadPort),
        };
        Ok(Address::Tcp { host: host.to_owned(), port, is_encrypted })
    }
}

/// `host`, `host:port`, `[address]`, `[address]:port`.
fn host_and_port(authority: &str) -> Result<(&str, Option<&str>), AddressError> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, behind) = rest.split_once(']').ok_or(AddressError::BadHost)?;
        host.parse::<std::net::Ipv6Addr>().map_err(|_| AddressError::BadHost)?;
        return match (behind, behind.strip_prefix(':')) {
            ("", _) => Ok((host, None)),
            (_, Some(port)) => Ok((host, Some(port))),
            _ => Err(AddressError::BadPort),
        };
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if host.is_empty() || !host.bytes().all(is_name) {
        return Err(AddressError::BadHost);
    }
    Ok((host, port))
}

impl Address {
    /// The value of the `Host` header.
    pub(super) fn authority(&self) -> String {
        match self {
            Address::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tcp { host, port, .. } => format!("{host}:{port}"),
            Address::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { is_encrypted: true, .. } => write!(out, "https://{}", self.authority()),
            Address::Tcp { .. } => write!(out, "http://{}", self.authority()),
            Address::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            AddressError::UnknownScheme => {
                "an address must be http://HOST:PORT, https://HOST:PORT or unix:PATH"
            }
            AddressError::Encrypted => {
                "https requires trusted certificates and a program that is built with TLS"
            }
            AddressError::BadHost => "the host must be a name or an address",
            AddressError::BadPort => "the port must be a number from 1 to 65535",
            AddressError::Trailing => "nothing may follow HOST:PORT",
            AddressError::Credentials => "an address must not contain a user name or password",
            AddressError::BadPath => {
                return write!(
                    out,
                    "unix: must be followed by the path of a socket, of at most \
                     {UNIX_PATH_BYTES_MAX} bytes"
                );
            }
        })
    }
}

impl std::error::Error for AddressError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_what_they_say() {
        let of = |host: &str, port, is_encrypted| {
            let host = host.to_owned();
            Address::Tcp { host, port, is_encrypted }
        };
        let tcp = |host: &str, port| of(host, port, false);
        let table = [
            ("http://localhost:8808", tcp("localhost", 8808), "localhost:8808"),
            ("HTTP://127.0.0.1:1/", tcp("127.0.0.1", 1), "127.0.0.1:1"),
            ("http://a-b.c_d", tcp("a-b.c_d", 80), "a-b.c_d:80"),
            ("http://[::1]:8808", tcp("::1", 8808), "[::1]:8808"),
            ("http://[::1]", tcp("::1", 80), "[::1]:80"),
            ("https://localhost:8808", of("localhost", 8808, true), "localhost:8808"),
            ("HTTPS://h", of("h", 443, true), "h:443"),
            ("unix:/run/s.sock", Address::Unix("/run/s.sock".into()), "localhost"),
            ("unix:relative", Address::Unix("relative".into()), "localhost"),
        ];
        for (text, address, authority) in table {
            assert_eq!(text.parse(), Ok(address.clone()), "{text}");
            assert_eq!(address.authority(), authority);
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        let long = format!("unix:/{}", "x".repeat(UNIX_PATH_BYTES_MAX));
        let table = [
            ("", AddressError::UnknownScheme),
            ("localhost:8808", AddressError::UnknownScheme),
            ("ftp://localhost", AddressError::UnknownScheme),
            ("http://", AddressError::BadHost),
            ("http://:8808", AddressError::BadHost),
            ("http://a b:1", AddressError::BadHost),
            ("http://a\r\nx: y:1", AddressError::BadHost),
            ("http://[::1:8808", AddressError::BadHost),
            ("http://[x]:8808", AddressError::BadHost),
            ("http://[::1]8808", AddressError::BadPort),
            ("http://a:", AddressError::BadPort),
            ("http://a:0", AddressError::BadPort),
            ("http://a:+1", AddressError::BadPort),
            ("http://a:65536", AddressError::BadPort),
            ("http://::1:8808", AddressError::BadHost),
            ("http://a:1/v1", AddressError::Trailing),
            ("http://a:1?x", AddressError::Trailing),
            ("http://user:word@a:1", AddressError::Credentials),
            ("unix:", AddressError::BadPath),
            ("unix:a\0b", AddressError::BadPath),
            (&long, AddressError::BadPath),
        ];
        for (text, error) in table {
            assert_eq!(text.parse::<Address>(), Err(error), "{text}");
        }
    }
}
