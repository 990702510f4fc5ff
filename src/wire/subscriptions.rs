//! Subscriptions to streams of the Durable Streams protocol: the patterns of paths, and the
//! addresses that the server may send webhooks to.
//!
//! A client names the address, and the server connects to it. Without rules, a client could reach
//! through the server what only the server can reach. A name is checked twice: its text here, and
//! each address that it resolves to before a connection is made ([`Reach::allows`]).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// True if a pattern matches a path. `*` stands for one part of the path, and `**` for any number.
///
/// The time is at most the product of the two numbers of parts.
///
/// ```
/// use streamdoor::wire::subscriptions::pattern_matches;
///
/// assert!(pattern_matches("events/*", "events/a"));
/// assert!(!pattern_matches("events/*", "events/a/b"));
/// assert!(pattern_matches("events/**", "events"));
/// ```
pub fn pattern_matches(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let path: Vec<&str> = path.split('/').collect();
    let (mut in_pattern, mut in_path) = (0, 0);
    // The last `**`, and the part of the path behind those that it stands for.
    let mut open: Option<(usize, usize)> = None;
    while in_path < path.len() {
        match pattern.get(in_pattern) {
            Some(&"**") => {
                open = Some((in_pattern, in_path));
                in_pattern += 1;
            }
            Some(&part) if part == "*" || part == path[in_path] => {
                in_pattern += 1;
                in_path += 1;
            }
            _ => {
                let Some((at, taken)) = &mut open else { return false };
                *taken += 1;
                (in_pattern, in_path) = (*at + 1, *taken);
            }
        }
    }
    pattern[in_pattern..].iter().all(|part| *part == "**")
}

/// The addresses that begin with the same bits, as `10.0.0.0/8`.
///
/// ```
/// use streamdoor::wire::subscriptions::Network;
///
/// let network: Network = "10.1.0.0/16".parse().unwrap();
/// assert!(network.contains("10.1.2.3".parse().unwrap()));
/// assert!("10.1.0.0/33".parse::<Network>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

/// The error for a text that is not a [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkError;

impl fmt::Display for NetworkError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("must be an address and a number of bits, as 10.0.0.0/8")
    }
}

impl std::error::Error for NetworkError {}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let (address, bits) = text.split_once('/').ok_or(NetworkError)?;
        let address: IpAddr = address.parse().map_err(|_| NetworkError)?;
        let prefix_bits: u8 = bits.parse().map_err(|_| NetworkError)?;
        let network = Network { address, prefix_bits };
        let is_whole = prefix_bits <= network.all_bits() && !bits.starts_with('+');
        is_whole.then_some(network).ok_or(NetworkError)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.prefix_bits)
    }
}

impl Network {
    fn all_bits(&self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// True if an address is one of these. One of IPv4 that is written in IPv6 counts as that.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        let address = address.to_canonical();
        let differs = bits(address) ^ bits(self.address);
        let is_alike = differs.leading_zeros() >= self.prefix_bits.into();
        is_alike && address.is_ipv4() == self.address.is_ipv4()
    }
}

/// Networks that webhooks may reach, although they are not public.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Networks(Arc<[Network]>);

impl Networks {
    /// True if an address is in one of them.
    pub fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Network> for Networks {
    fn from_iter<I: IntoIterator<Item = Network>>(all: I) -> Networks {
        Networks(all.into_iter().collect())
    }
}

/// The addresses to which a connection may lead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reach {
    /// All of them.
    #[default]
    Anywhere,
    /// Addresses of the public Internet, and of these networks.
    Public(Networks),
    /// Addresses of this machine, and of these networks.
    ThisMachine(Networks),
}

impl Reach {
    /// True if a connection may lead to this address.
    pub fn allows(&self, address: IpAddr) -> bool {
        match self {
            Reach::Anywhere => true,
            Reach::Public(networks) => is_public(address) || networks.contain(address),
            Reach::ThisMachine(networks) => address.is_loopback() || networks.contain(address),
        }
    }
}

/// True for an address of the public Internet. Addresses of IPv6 that lead to one of IPv4 count as
/// that.
///
/// Source: the registries of special addresses of IANA (RFC 6890).
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = match a {
        0 | 10 | 127 => true,
        100 => b & 0xc0 == 64,
        169 => b == 254,
        172 => b & 0xf0 == 16,
        192 => matches!((b, c), (0, 0 | 2) | (88, 99) | (168, _)),
        198 => b & 0xfe == 18 || (b, c) == (51, 100),
        203 => (b, c) == (0, 113),
        _ => a >= 224,
    };
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let embedded = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low), // NAT64.
        [0x2002, high, low, ..] => embedded(high, low),               // 6to4.
        // Teredo, benchmarks and other protocols of IETF; documentation.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        [0x3fff, second, ..] if second < 0x1000 => false, // Documentation.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// The address of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookUrl {
    /// True for `https`.
    pub is_tls: bool,
    /// A name, or an IP address without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
    /// The path, and the query if there is one.
    pub target: Box<str>,
    /// The value of the header `Host`.
    pub authority: Box<str>,
    /// The addresses to which a connection may lead.
    pub reach: Reach,
}

impl WebhookUrl {
    /// Reads a URL. `https` leads to the public Internet only, and `http` only to this machine, for
    /// tests of receivers. Both also lead to these networks.
    ///
    /// # Errors
    /// A text about the reason, if the server sends nothing there.
    ///
    /// ```
    /// use streamdoor::wire::subscriptions::{Networks, WebhookUrl};
    ///
    /// let none = Networks::default();
    /// assert_eq!(WebhookUrl::parse("https://worker.example/hook", &none).unwrap().port, 443);
    /// assert!(WebhookUrl::parse("http://worker.example/hook", &none).is_err());
    /// assert!(WebhookUrl::parse("http://10.0.0.1/hook", &none).is_err());
    /// let own: Networks = ["10.0.0.0/8".parse().unwrap()].into_iter().collect();
    /// assert!(WebhookUrl::parse("http://10.0.0.1/hook", &own).is_ok());
    /// ```
    pub fn parse(url: &str, networks: &Networks) -> Result<WebhookUrl, &'static str> {
        if !url.bytes().all(|byte| byte.is_ascii_graphic() && !b"\\\"<>^`{|}".contains(&byte)) {
            return Err("it has characters that must be encoded");
        }
        let (scheme, rest) = url.split_once("://").ok_or("it is no absolute URL")?;
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err("its scheme must be https"),
        };
        if rest.contains('#') {
            return Err("it has a fragment");
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (host, port) = split_authority(authority)?;
        let port = match port {
            None => {
                if is_tls {
                    443
                } else {
                    80
                }
            }
            Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok().filter(|port| *port > 0).ok_or("its port is no port")?
            }
            Some(_) => return Err("its port is no port"),
        };
        let reach = if is_tls { Reach::Public } else { Reach::ThisMachine };
        let reach = reach(networks.clone());
        check_host(&host, &reach, networks)?;
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(WebhookUrl {
            is_tls,
            host,
            port,
            target: format!("{slash}{target}").into(),
            authority: authority.into(),
            reach,
        })
    }
}

/// Splits an authority into the host without brackets and the port.
fn split_authority(authority: &str) -> Result<(Box<str>, Option<&str>), &'static str> {
    if authority.contains('@') {
        return Err("it has a user name");
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("its host is no host")?;
            host.parse::<Ipv6Addr>().map_err(|_| "its host is no host")?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err("its host is no host"),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    Ok((host.to_ascii_lowercase().into(), port))
}

fn check_host(host: &str, reach: &Reach, networks: &Networks) -> Result<(), &'static str> {
    if let Ok(address) = host.parse::<IpAddr>() {
        let is_allowed = match reach {
            Reach::ThisMachine(_) if address.is_ipv6() => networks.contain(address),
            _ => reach.allows(address),
        };
        return if is_allowed { Ok(()) } else { Err("the server sends nothing to this address") };
    }
    let is_tls = matches!(reach, Reach::Public(_));
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| matches!(label.len(), 1..=63) && label.bytes().all(is_letter);
    if name.len() > 253 || !name.split('.').all(is_label) {
        return Err("its host is no host");
    }
    // Resolvers read `0x7f.1` and `2130706433` as addresses.
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_hex = last
        .strip_prefix("0x")
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if is_hex || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("its host is a number");
    }
    match last {
        _ if !networks.is_empty() => Ok(()), // Each address of the name is checked later.
        "localhost" if is_tls || name != "localhost" => {
            Err("the server sends nothing to this name")
        }
        "localhost" => Ok(()),
        "local" | "internal" | "arpa" => Err("the server sends nothing to this name"),
        _ if is_tls => Ok(()),
        _ => Err("its scheme must be https"),
    }
}

/// Encodes a text as one part of a path.
pub fn write_segment(out: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => {
                let digit = |value: u8| char::from(b"0123456789ABCDEF"[usize::from(value)]);
                out.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
}

/// Decodes the percent-encoding of a path. `None` if it is broken, or the text is not UTF-8.
pub fn decode_path(path: &str) -> Option<String> {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |at: usize| char::from(*bytes.get(at)?).to_digit(16);
        out.push((digit(at)? * 16 + digit(at + 1)?) as u8);
        at += 2;
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_parts_of_paths() {
        for (pattern, path, matches) in [
            ("events/*", "events/a", true),
            ("events/*", "events", false),
            ("events/*", "events/a/b", false),
            ("events/*", "other/a", false),
            ("**", "a/b/c", true),
            ("a/**", "a", true),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("a/**/z", "a/b/c", false),
            ("**/b/**/c", "a/b/b/d/c", true),
            ("*/b", "a/b", true),
            ("a*", "ab", false),
            ("a", "a", true),
            ("a/**/**", "a", true),
        ] {
            assert_eq!(pattern_matches(pattern, path), matches, "{pattern} {path}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_time() {
        let pattern = vec!["**/a"; 200].join("/");
        let path = vec!["a"; 500].join("/") + "/b";
        assert!(!pattern_matches(&pattern, &path));
    }

    #[test]
    fn addresses_that_are_not_public_are_known() {
        for text in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:8.8.8.8",
            "::8.8.8.8",
            "fc00::1",
            "fd00::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "2001::1",
            "2001:db8::1",
            "2002:a00:1::",
            "3fff::1",
            "100::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "100.128.0.1",
            "172.32.0.1",
            "192.1.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "64:ff9b::8.8.8.8",
            "2002:808:808::",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn urls_lead_to_the_internet_or_to_a_receiver_under_test() {
        let none = Networks::default();
        let (public, own) = (Reach::Public(none.clone()), Reach::ThisMachine(none.clone()));
        for (url, reach) in [
            ("https://worker.example", &public),
            ("HTTPS://Worker.example:8443/a?b=c", &public),
            ("https://8.8.8.8/", &public),
            ("https://[2606:4700::1111]:1/", &public),
            ("http://localhost:9/x", &own),
            ("http://127.0.0.1:9/x", &own),
            ("http://127.9.9.9/", &own),
        ] {
            let parsed = WebhookUrl::parse(url, &none).map(|url| url.reach);
            assert_eq!(parsed.as_ref(), Ok(reach), "{url}");
        }
        let url = WebhookUrl::parse("https://Worker.example:8443?b=c", &none).unwrap();
        assert_eq!((&*url.host, url.port, &*url.target), ("worker.example", 8443, "/?b=c"));
        for url in [
            "",
            "worker.example",
            "ftp://a.example",
            "http://worker.example",
            "https://",
            "http://10.0.0.1/hook",
            "https://10.0.0.1",
            "https://127.0.0.1",
            "https://localhost",
            "http://[::1]/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://0x7f.1/",
            "https://2130706433/",
            "https://127.1/",
            "http://127.1/",
            "https://a@b.example/",
            "https://a.example:0/",
            "https://a.example:99999/",
            "https://a.example:+1/",
            "https://a.example/#x",
            "https://a..example/",
            "https://a.localhost/",
            "http://a.localhost/",
            "https://a.example/\r\nx: y",
            "https://a.example/ x",
            "https://metadata.google.internal/",
            "https://[::1",
            "https://[1::2]x/",
            "https://a.example\\@10.0.0.1/",
        ] {
            assert!(WebhookUrl::parse(url, &none).is_err(), "{url}");
        }
    }

    #[test]
    fn networks_that_are_allowed_are_reached_and_no_others() {
        let all = ["10.0.0.0/8", "192.168.7.0/24", "fd00:1::/32", "::1/128"];
        let networks: Networks = all.map(|text| text.parse().unwrap()).into_iter().collect();
        for url in [
            "http://10.9.8.7:81/hook",
            "https://10.9.8.7/hook",
            "http://192.168.7.255/",
            "http://[fd00:1::5]/",
            "https://[::1]:9/",
            "http://[::ffff:10.0.0.1]/",
            "http://worker.internal/",
            "https://worker.lan/",
            "http://127.0.0.1/",
            "https://8.8.8.8/",
        ] {
            assert!(WebhookUrl::parse(url, &networks).is_ok(), "{url}");
        }
        for url in [
            "http://11.0.0.1/",
            "https://192.168.8.1/",
            "http://[fd00:2::5]/",
            "http://8.8.8.8/",
            "https://127.0.0.1/",
            "https://169.254.169.254/",
            "http://0x0a.1/",
            "http://10.1/",
        ] {
            assert!(WebhookUrl::parse(url, &networks).is_err(), "{url}");
        }
        // A name is allowed, and its addresses are looked at when they are known.
        let reach = WebhookUrl::parse("http://worker.internal/", &networks).unwrap().reach;
        let may = |text: &str| reach.allows(text.parse().unwrap());
        assert!(may("10.255.255.255") && may("127.0.0.1") && may("::1"));
        assert!(!may("8.8.8.8") && !may("172.16.0.1") && !may("fd00::1"));
    }

    #[test]
    fn networks_are_spelled_with_all_their_bits() {
        for text in ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.1/32", "::/0", "fd00::/7", "::1/128"] {
            let network: Network = text.parse().unwrap();
            assert_eq!(network.to_string(), text);
        }
        for text in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "10/8", "10.0.0.0/+8", "a/8", "/8"] {
            assert_eq!(text.parse::<Network>(), Err(NetworkError), "{text}");
        }
        // Each of the two families has its own.
        let (four, six): (Network, Network) =
            ("0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap());
        assert!(four.contains("1.2.3.4".parse().unwrap()));
        assert!(!four.contains("::1".parse().unwrap()));
        assert!(!six.contains("::ffff:1.2.3.4".parse().unwrap()));
    }

    #[test]
    fn parts_of_paths_are_encoded_and_decoded() {
        let mut text = String::new();
        write_segment(&mut text, "a/b ü~");
        assert_eq!(text, "a%2Fb%20%C3%BC~");
        assert_eq!(decode_path(&text).as_deref(), Some("a/b ü~"));
        for text in ["%", "%4", "%zz", "%ff", "%+1"] {
            assert_eq!(decode_path(text), None, "{text}");
        }
    }
}
