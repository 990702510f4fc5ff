//! Any bytes as `Host`, as the authority of an absolute target and as `Origin`. An accepted host is
//! a name or an address with an optional port, and equals the authority. An accepted request names
//! the server, and its page has the server's own or a configured origin.

use std::net::{Ipv4Addr, Ipv6Addr};

use streamdoor::endpoint::Access;
use streamdoor::wire::http1::{Refusal, RequestPart, RequestReader};

use super::peer::Peer;
use super::request_head::check_exchange;

/// Returns the host that a request names, or the refusal.
fn host_of(request: &[u8]) -> Result<Option<String>, Refusal> {
    let mut reader = RequestReader::new();
    let mut input = request;
    match reader.read(&mut input)? {
        Some(RequestPart::Head(head)) => Ok(head.host.map(str::to_owned)),
        other => panic!("{other:?} of {}", request.escape_ascii()),
    }
}

/// RFC 9112, section 3.2, without the forms that our hosts never have: percent escapes and
/// `!$&'()*+,;=`.
fn is_host(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let (name, rest) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) if address.parse::<Ipv6Addr>().is_ok() => (address, rest),
        Some(_) => return false,
        None => {
            let end = text.find(':').unwrap_or(text.len());
            let (name, rest) = text.split_at(end);
            if !name.bytes().all(is_name_byte) {
                return false;
            }
            (name, rest)
        }
    };
    let is_port = |port: &str| {
        (1..=5).contains(&port.len())
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u32>().is_ok_and(|port| port <= 65_535)
    };
    !name.is_empty() && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
}

/// Splits an authority into the name in lower case and the port.
fn split_authority(authority: &str, default_port: u16) -> Option<(String, u16)> {
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, digits)) if !digits.contains(']') => {
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            (name, digits.parse().ok().filter(|_| is_number)?)
        }
        _ => (authority, default_port),
    };
    // An IPv6 address has its colons between brackets.
    let is_whole = !name.is_empty() && (name.ends_with(']') || !name.contains(':'));
    is_whole.then(|| (name.to_ascii_lowercase(), port))
}

/// True for a name of a server at loopback that is also configured as `app.example` and 192.0.2.7.
fn is_own(host: &str) -> bool {
    let (name, _) = split_authority(host, 80).expect("it is well formed");
    let v6 = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match (v6, name.parse::<Ipv4Addr>()) {
        (Some(v6), _) => v6.parse::<Ipv6Addr>().unwrap() == Ipv6Addr::LOCALHOST,
        (None, Ok(v4)) => v4.octets()[0] == 127 || v4 == Ipv4Addr::new(192, 0, 2, 7),
        (None, Err(_)) => name == "localhost" || name == "app.example",
    }
}

/// True if a page of this origin may send requests to that server.
fn may_ask(origin: &str, host: &str) -> bool {
    let of_host = |scheme, port| {
        let authority = origin.strip_prefix(scheme).and_then(|rest| split_authority(rest, port));
        authority.is_some() && authority == split_authority(host, port)
    };
    origin == "https://page.example" || of_host("http://", 80) || of_host("https://", 443)
}

/// Checks a request from a page of `origin` to a server named by a well-formed host.
fn check_origin(host: &[u8], origin: &[u8]) {
    let access = Access::default()
        .with_hosts(vec!["app.example".parse().unwrap(), "192.0.2.7".parse().unwrap()])
        .with_origins(vec!["https://page.example".parse().unwrap()]);
    let mut peer = Peer::of(access);
    let head = [b"GET /v1/tools HTTP/1.1\r\nHost: ", host, b"\r\nOrigin: ", origin, b"\r\n\r\n"];
    peer.send(&head.concat());
    let (host, origin) = (str::from_utf8(host).unwrap(), str::from_utf8(origin).unwrap());
    let comes_in = is_own(host) && may_ask(origin, host);
    assert_eq!(peer.got.calls.len(), usize::from(comes_in), "{origin:?} {host:?}");
    assert!(comes_in || peer.got.out.starts_with(b"HTTP/1.1 403 "));
}

/// Checks a host. After a line feed may come the authority of the target, and after another one an
/// origin.
pub fn check(data: &[u8]) {
    // Bytes that would end the line belong to another target.
    let clean = |bytes: &[u8]| -> Vec<u8> {
        bytes.iter().copied().filter(|byte| !byte.is_ascii_control()).collect()
    };
    let mut lines = data.splitn(3, |byte| *byte == b'\n').map(clean);
    let host = lines.next().expect("there is a first one").trim_ascii().to_vec();
    let authority = lines.next().unwrap_or_else(|| host.clone());
    let origin = lines.next().unwrap_or_else(|| [b"http://", &host[..]].concat());
    if host.len() + authority.len() > 4_000 {
        return; // The length limit belongs to another target, too.
    }
    let plain = [b"GET / HTTP/1.1\r\nHost: ", &host[..], b"\r\n\r\n"].concat();
    let found = host_of(&plain);
    match is_host(&host) {
        true => {
            assert_eq!(found.unwrap().unwrap().as_bytes(), host);
            if origin.is_ascii() && origin.len() <= 4_000 {
                check_origin(&host, origin.trim_ascii());
            }
        }
        false => assert_eq!(found, Err(Refusal::BadHost)),
    }
    let target = [b"http://", &authority[..], b"/"].concat();
    for version in ["1.1", "1.0"] {
        let version = format!(" HTTP/{version}\r\nHost: ").into_bytes();
        let absolute = [b"GET ", &target[..], &version, &host, b"\r\n\r\n"].concat();
        if let Ok(found) = host_of(&absolute) {
            assert!(is_host(&host) && authority_of(&authority).eq_ignore_ascii_case(&host));
            assert_eq!(found.unwrap().as_bytes(), host);
        }
        check_exchange(&absolute);
    }
    let alone = [b"GET ", &target[..], b" HTTP/1.0\r\n\r\n"].concat();
    if let Ok(found) = host_of(&alone) {
        assert!(is_host(authority_of(&authority)));
        assert_eq!(found.unwrap().as_bytes(), authority_of(&authority));
    }
    check_exchange(&alone);
}

/// Returns the authority before the path and the query.
fn authority_of(target: &[u8]) -> &[u8] {
    let end = target.iter().position(|byte| matches!(byte, b'/' | b'?'));
    &target[..end.unwrap_or(target.len())]
}
