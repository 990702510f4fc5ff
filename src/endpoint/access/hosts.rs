//! Host names of the server, and origins of the pages that send requests.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use super::{Access, OriginPlace};

/// A name or an address that clients may use for the server, at any port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostName {
    /// A name in lower case.
    Name(Box<str>),
    /// An address, which needs no DNS.
    Address(IpAddr),
}

/// The error for a text that is not a [`HostName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostError;

/// The origin of pages, as browsers write it: scheme, host, and the port unless it is the default
/// of the scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(Box<str>);

/// The error for a text that is not an [`Origin`], or not one that can be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginError;

impl Access {
    /// Returns true if the server accepts this host name. `host` is the well-formed value of
    /// `Host`.
    pub(super) fn knows_host(&self, host: &str) -> bool {
        let (name, _) = split_port(host);
        match address_of(name) {
            Some(address) => {
                let is_configured = |host: &HostName| *host == HostName::Address(address);
                address.is_loopback()
                    || self.addresses.contains(&address)
                    || self.hosts.iter().any(is_configured)
            }
            None => {
                let is_it = |host: &HostName| match host {
                    HostName::Name(known) => known.eq_ignore_ascii_case(name),
                    HostName::Address(_) => false,
                };
                name.eq_ignore_ascii_case("localhost") || self.hosts.iter().any(is_it)
            }
        }
    }

    /// Returns the configured origin with this text.
    pub(super) fn find_origin(&self, origin: &str) -> Option<OriginPlace> {
        let place = self.origins.iter().position(|known| *known.0 == *origin)?;
        u8::try_from(place).ok().map(OriginPlace)
    }
}

/// Returns true if a page of this origin comes from `host` itself. The scheme is not compared,
/// because a proxy may speak HTTPS on behalf of the server.
pub(super) fn is_same_origin(origin: &str, host: &str) -> bool {
    let (authority, own_port) = match origin.split_once("://") {
        Some(("http", authority)) => (authority, HTTP_PORT),
        Some(("https", authority)) => (authority, HTTPS_PORT),
        _ => return false,
    };
    let port_of = |port: Option<&str>| match port {
        None => Some(own_port),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
        Some(_) => None,
    };
    let ((name, port), (own_name, own)) = (split_port(authority), split_port(host));
    let is_same_port = port_of(port).is_some_and(|port: u16| port_of(own) == Some(port));
    !name.is_empty() && name.eq_ignore_ascii_case(own_name) && is_same_port
}

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Splits `name:port` into its parts. The name may be in brackets, as in `[::1]`.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    let name_end = authority.rfind(']').map_or(0, |at| at + 1);
    match authority[name_end..].find(':') {
        Some(colon) => {
            let (name, port) = authority.split_at(name_end + colon);
            (name, Some(&port[1..]))
        }
        None => (authority, None),
    }
}

/// Returns the address that a name denotes. IPv6 addresses are in brackets.
fn address_of(name: &str) -> Option<IpAddr> {
    match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse().ok().map(IpAddr::V6),
        None => name.parse().ok().map(IpAddr::V4),
    }
}

fn is_name(text: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    !text.is_empty() && text.len() <= NAME_CHARS_MAX && text.bytes().all(is_good)
}

const NAME_CHARS_MAX: usize = 253; // The limit of DNS.

impl FromStr for HostName {
    type Err = HostError;
    fn from_str(text: &str) -> Result<HostName, HostError> {
        if let Some(address) = address_of(text) {
            return Ok(HostName::Address(address));
        }
        match text.parse::<Ipv6Addr>() {
            Ok(address) => Ok(HostName::Address(address.into())),
            Err(_) if is_name(text) => Ok(HostName::Name(text.to_ascii_lowercase().into())),
            Err(_) => Err(HostError),
        }
    }
}

impl FromStr for Origin {
    type Err = OriginError;
    fn from_str(text: &str) -> Result<Origin, OriginError> {
        let text = text.to_ascii_lowercase();
        let (scheme, authority) = text.split_once("://").ok_or(OriginError)?;
        let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        if !scheme.starts_with(|c: char| c.is_ascii_lowercase()) || !scheme.bytes().all(is_scheme) {
            return Err(OriginError);
        }
        let (name, port) = split_port(authority);
        let is_address = name.starts_with('[') && address_of(name).is_some();
        if !is_name(name) && !is_address {
            return Err(OriginError);
        }
        let port = match port {
            None => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse::<u16>().map_err(|_| OriginError)?)
            }
            Some(_) => return Err(OriginError),
        };
        Ok(Origin(match (scheme, port) {
            // Browsers omit the default ports.
            ("http", Some(HTTP_PORT)) | ("https", Some(HTTPS_PORT)) | (_, None) => {
                format!("{scheme}://{name}").into()
            }
            (_, Some(port)) => format!("{scheme}://{name}:{port}").into(),
        }))
    }
}

impl Origin {
    /// Returns the origin as browsers write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostName::Name(name) => out.write_str(name),
            HostName::Address(address) => address.fmt(out),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("must be a name or an address, without a port")
    }
}

impl fmt::Display for OriginError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("must be an origin, such as https://example.com or http://localhost:3000")
    }
}

impl std::error::Error for HostError {}
impl std::error::Error for OriginError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_to_loopback_to_where_it_listens_and_to_what_was_configured() {
        let hosts = ["App.Example", "10.1.2.3", "2001:db8::7"].map(|name| name.parse().unwrap());
        let mut access = Access::default().with_hosts(hosts.to_vec());
        access.add_address("192.168.7.7".parse().unwrap());
        access.add_address("0.0.0.0".parse().unwrap());
        let good = [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1",
            "127.255.0.3:8808",
            "[::1]",
            "[::1]:8808",
            "[0:0::1]",
            "app.example",
            "APP.example:443",
            "10.1.2.3:1",
            "[2001:db8::7]:80",
            "192.168.7.7",
            "192.168.7.7:99",
        ];
        for host in good {
            assert!(access.knows_host(host), "{host}");
        }
        let bad = [
            "evil.example",
            "localhost.evil.example",
            "localhost.",
            "xlocalhost",
            "app.example.",
            "sub.app.example",
            "127.0.0.1.evil.example",
            "127.1",
            "0x7f.1",
            "2130706433",
            "0177.0.0.1",
            "10.1.2.4",
            "0.0.0.0",
            "[::]",
            "[::2]",
            "[::ffff:127.0.0.1]",
            "::1",
            "192.168.7.8",
            "a.localhost",
        ];
        for host in bad {
            assert!(!access.knows_host(host), "{host}");
        }
    }

    #[test]
    fn a_page_is_of_the_same_origin_if_name_and_port_are() {
        let same = [
            ("http://localhost:8808", "localhost:8808"),
            ("http://localhost", "localhost"),
            ("http://localhost", "LocalHost:80"),
            ("http://localhost:80", "localhost"),
            ("https://app.example", "app.example"),
            ("https://app.example", "app.example:443"),
            ("http://[::1]:8808", "[::1]:8808"),
        ];
        for (origin, host) in same {
            assert!(is_same_origin(origin, host), "{origin} {host}");
        }
        let other = [
            ("null", "localhost"),
            ("", "localhost"),
            ("localhost:8808", "localhost:8808"),
            ("http://", ""),
            ("http://localhost:8809", "localhost:8808"),
            ("http://localhost", "localhost:8808"),
            ("http://localhost:8808", "localhost"),
            ("https://app.example", "app.example:80"),
            ("ws://localhost:8808", "localhost:8808"),
            ("http://localhost:8808/", "localhost:8808"),
            ("http://user@localhost:8808", "localhost:8808"),
            ("http://127.0.0.1:8808", "localhost:8808"),
            ("http://localhost:+80", "localhost"),
            ("http://localhost:", "localhost"),
            ("http://localhost:8808 http://localhost:8808", "localhost:8808"),
        ];
        for (origin, host) in other {
            assert!(!is_same_origin(origin, host), "{origin} {host}");
        }
    }

    #[test]
    fn origins_are_kept_as_browsers_write_them() {
        let table = [
            ("https://Example.com", Some("https://example.com")),
            ("https://example.com:443", Some("https://example.com")),
            ("http://example.com:80", Some("http://example.com")),
            ("http://localhost:3000", Some("http://localhost:3000")),
            ("http://[::1]:3000", Some("http://[::1]:3000")),
            ("chrome-extension://abcdef", Some("chrome-extension://abcdef")),
            ("*", None),
            ("null", None),
            ("example.com", None),
            ("https://example.com/", None),
            ("https://*.example.com", None),
            ("https://", None),
            ("://example.com", None),
            ("https://example.com:99999", None),
            ("https://a b", None),
            ("https://user@example.com", None),
        ];
        for (text, expected) in table {
            let origin = text.parse::<Origin>().ok();
            assert_eq!(origin.as_ref().map(Origin::as_str), expected, "{text}");
        }
        let access = Access::default().with_origins(vec!["http://a.example:80".parse().unwrap()]);
        assert!(access.find_origin("http://a.example").is_some());
        for other in ["http://a.example:80", "http://A.example", "http://b.example", "null", ""] {
            assert_eq!(access.find_origin(other), None, "{other}");
        }
    }

    #[test]
    fn names_are_given_without_ports() {
        for bad in ["", "a:1", "[::1]:1", "a/b", "*", "http://a", "ä", &"a".repeat(254)] {
            assert_eq!(bad.parse::<HostName>(), Err(HostError), "{bad}");
        }
        assert_eq!("[::1]".parse::<HostName>(), "::1".parse());
        assert_eq!("App.Example".parse::<HostName>().unwrap().to_string(), "app.example");
    }
}
