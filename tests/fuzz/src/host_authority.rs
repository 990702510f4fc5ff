//! Anything as `Host` and as the authority of an absolute target: what is accepted is a name or an
//! address and perhaps a port, and both say the same.

use std::net::Ipv6Addr;

use streamdoor::wire::http1::{Refusal, RequestPart, RequestReader};

use super::request_head::check_exchange;

/// Whom a request asks, or why not.
fn host_of(request: &[u8]) -> Result<Option<String>, Refusal> {
    let mut reader = RequestReader::new();
    let mut input = request;
    match reader.read(&mut input)? {
        Some(RequestPart::Head(head)) => Ok(head.host.map(str::to_owned)),
        other => panic!("{other:?} of {}", request.escape_ascii()),
    }
}

/// RFC 9112, section 3.2, without what no host of ours has: percent escapes and `!$&'()*+,;=`.
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

/// Checks a host; behind a line feed there may be the authority of the target.
pub fn check(data: &[u8]) {
    // What would end the line is the business of another target.
    let clean = |bytes: &[u8]| -> Vec<u8> {
        bytes.iter().copied().filter(|byte| !byte.is_ascii_control()).collect()
    };
    let (host, authority) = match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (clean(&data[..at]), clean(&data[at + 1..])),
        None => (clean(data), clean(data)),
    };
    let host = host.trim_ascii().to_vec();
    if host.len() + authority.len() > 4_000 {
        return; // That there is a limit is the business of another target, too.
    }
    let plain = [b"GET / HTTP/1.1\r\nHost: ", &host[..], b"\r\n\r\n"].concat();
    let found = host_of(&plain);
    match is_host(&host) {
        true => assert_eq!(found.unwrap().unwrap().as_bytes(), host),
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

/// Before the path and the query.
fn authority_of(target: &[u8]) -> &[u8] {
    let end = target.iter().position(|byte| matches!(byte, b'/' | b'?'));
    &target[..end.unwrap_or(target.len())]
}
