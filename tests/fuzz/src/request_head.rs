//! Any bytes as a request, to the reader and then to the whole HTTP machine. The result does not
//! depend on the cuts. An accepted request has one reading only.

use streamdoor::limits;
use streamdoor::wire::http1::{
    BodyLength, Method, Refusal, RequestHead, RequestPart, RequestReader, Version,
};

use super::draw::cuts;
use super::peer::{Exchange, exchange};

/// Returns the parts that a reader finds in `bytes` as texts, and the final result.
pub fn transcript(bytes: &[u8], cuts: &[usize]) -> (Vec<String>, Result<(), Refusal>) {
    let mut reader = RequestReader::new();
    let mut parts: Vec<String> = Vec::new();
    let mut from = 0;
    for &to in cuts.iter().chain([&bytes.len()]) {
        let mut input = &bytes[from..to];
        from = to;
        loop {
            match reader.read(&mut input) {
                Ok(Some(RequestPart::Head(head))) => {
                    check_head(&head);
                    parts.push(format!("{head:?}"));
                }
                Ok(Some(RequestPart::Body(piece))) => {
                    assert!(!piece.is_empty());
                    let text = piece.escape_ascii().to_string();
                    match parts.last_mut().filter(|last| last.starts_with("body ")) {
                        Some(last) => *last += &text,
                        None => parts.push(format!("body {text}")),
                    }
                }
                Ok(Some(RequestPart::End)) => parts.push("end".to_owned()),
                Ok(None) => break assert!(input.is_empty()),
                Err(refusal) => {
                    assert_eq!(reader.read(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]), Err(refusal));
                    assert!(refusal.status().code() >= 400 && !reader.keeps_alive());
                    return (parts, Err(refusal));
                }
            }
        }
    }
    (parts, reader.finish())
}

/// Asserts the properties of every accepted head.
fn check_head(head: &RequestHead<'_>) {
    let target = head.target;
    let is_all = target.path == "*" && head.method == Method::Options;
    assert!(target.path.starts_with('/') || is_all, "{head:?}");
    assert!(target.path.bytes().chain(target.query.bytes()).all(|byte| byte.is_ascii_graphic()));
    for segment in target.segments().flatten() {
        assert!(!segment.contains(['/', '\\', '\0', '\r', '\n']), "{head:?}");
        assert!(segment != "." && segment != "..", "{head:?}");
    }
    assert!(head.host.is_some() || head.version == Version::Http10);
    assert!(head.headers.iter().count() <= limits::HTTP_HEADERS_MAX as usize);
    assert!(head.headers.all("host").count() <= 1);
    let (lengths, codings) =
        (head.headers.all("content-length").count(), head.headers.all("transfer-encoding").count());
    match head.body {
        BodyLength::None => assert_eq!((lengths, codings), (0, 0)),
        BodyLength::Known(_) => assert_eq!((lengths, codings), (1, 0)),
        BodyLength::Chunked => {
            assert_eq!((lengths, codings, head.version), (0, 1, Version::Http11));
        }
        BodyLength::UntilClose => panic!("of a request: {head:?}"),
    }
    for header in head.headers.iter() {
        assert!(!header.name.is_empty() && header.name.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(!header.value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
    }
    check_read_again(head);
}

/// Asserts that the parsed head, written in plain form, is parsed to the same head again.
fn check_read_again(head: &RequestHead<'_>) {
    let method = if head.method == Method::Other { "PATCH" } else { head.method.name() };
    let mut text = format!("{method} {}", head.target.path);
    if !head.target.query.is_empty() {
        text += &format!("?{}", head.target.query);
    }
    text += if head.version == Version::Http10 { " HTTP/1.0\r\n" } else { " HTTP/1.1\r\n" };
    let mut bytes = text.into_bytes();
    for header in head.headers.iter() {
        bytes.extend_from_slice(header.name.as_bytes());
        bytes.extend_from_slice(b":");
        bytes.extend_from_slice(header.value);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    let mut reader = RequestReader::new();
    let Ok(Some(RequestPart::Head(again))) = reader.read(&mut &bytes[..]) else {
        panic!("{} is refused", bytes.escape_ascii());
    };
    let of = |head: &RequestHead<'_>| {
        (head.method, head.version, head.body, head.expects_continue, head.keeps_alive)
    };
    assert_eq!(of(&again), of(head));
    assert_eq!(again.target.path, head.target.path);
    assert_eq!(again.target.query, head.target.query);
    assert!(again.headers.iter().eq(head.headers.iter()));
    // An absolute target became a local one: its authority is that of `Host`, or is lost.
    assert!(again.host.is_none() || again.host == head.host);
}

/// Checks a connection's bytes.
pub fn check(data: &[u8]) {
    let [_, everywhere, some] = cuts(data);
    let whole = transcript(data, &[]);
    assert_eq!(transcript(data, &everywhere), whole);
    assert_eq!(transcript(data, &some), whole);
    let whole = check_exchange(data);
    assert_eq!(exchange(data, everywhere, true), whole);
}

/// Checks the same for the whole machine.
pub fn check_exchange(data: &[u8]) -> Exchange {
    let [_, _, some] = cuts(data);
    let whole = exchange(data, [], true);
    assert_eq!(exchange(data, some, true), whole);
    assert!(whole.is_closed);
    whole
}
