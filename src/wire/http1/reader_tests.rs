//! Both readers: the same parts however the bytes are cut, and what a writer wrote is read back.

use super::client::{ResponseError, ResponsePart, ResponseReader};
use super::head::{HeaderFault, Method, Version};
use super::refusal::Refusal;
use super::request::{RequestPart, RequestReader};
use super::response::{
    BODY_END, CHUNK_END, CONTINUE, Framing, ResponseHead, Status, begin_chunk, end_chunk,
    http_date, write_chunk_size,
};
use super::{BodyLength, Headers};
use crate::base::Random;
use crate::limits;

/// What was read, in words; pieces of a body that come behind each other are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript<E> {
    pub parts: Vec<String>,
    pub end: Result<(), E>,
}

impl<E> Transcript<E> {
    fn add_body(&mut self, piece: &[u8]) {
        assert!(!piece.is_empty());
        let text: String = piece.iter().map(|&byte| byte as char).collect();
        match self.parts.last_mut() {
            Some(last) if last.starts_with("Body ") => *last += &text,
            _ => self.parts.push(format!("Body {text}")),
        }
    }
}

pub fn everywhere(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).collect()
}

/// The requests in `bytes`, which come cut at `cuts` and then end.
pub fn requests(bytes: &[u8], cuts: &[usize]) -> Transcript<Refusal> {
    let mut reader = RequestReader::new();
    let mut transcript = Transcript { parts: Vec::new(), end: Ok(()) };
    let mut from = 0;
    for &to in cuts.iter().chain([&bytes.len()]) {
        let mut input = &bytes[from..to];
        from = to;
        loop {
            match reader.read(&mut input) {
                Ok(Some(RequestPart::Head(head))) => {
                    let (path, host) = (head.target.path, head.host.unwrap_or("-"));
                    let text = format!("{} {path} {host} {:?}", head.method, head.body);
                    transcript.parts.push(text);
                }
                Ok(Some(RequestPart::Body(piece))) => transcript.add_body(piece),
                Ok(Some(RequestPart::End)) => transcript.parts.push("End".into()),
                Ok(None) => break assert!(input.is_empty()),
                Err(refusal) => {
                    let mut more = &b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"[..];
                    assert_eq!(reader.read(&mut more), Err(refusal));
                    assert_eq!(reader.finish(), Err(refusal));
                    assert!(!reader.keeps_alive());
                    transcript.end = Err(refusal);
                    return transcript;
                }
            }
        }
    }
    transcript.end = reader.finish();
    transcript
}

/// The response to `method` in `bytes`, which come cut at `cuts` and then end.
fn response(method: Method, bytes: &[u8], cuts: &[usize]) -> Transcript<ResponseError> {
    let mut reader = ResponseReader::new();
    reader.expect(method);
    let mut transcript = Transcript { parts: Vec::new(), end: Ok(()) };
    let mut from = 0;
    for &to in cuts.iter().chain([&bytes.len()]) {
        let mut input = &bytes[from..to];
        from = to;
        loop {
            match reader.read(&mut input) {
                Ok(Some(ResponsePart::Head(head))) => {
                    let alive = if head.keeps_alive { "" } else { " close" };
                    let text = format!("{} {:?}{alive}", head.status.code(), head.body);
                    transcript.parts.push(text);
                }
                Ok(Some(ResponsePart::Body(piece))) => transcript.add_body(piece),
                Ok(Some(ResponsePart::End)) => transcript.parts.push("End".into()),
                Ok(None) => break assert!(input.is_empty()),
                Err(error) => {
                    assert_eq!(reader.read(&mut &b"x"[..]), Err(error));
                    assert_eq!(reader.finish(), Err(error));
                    transcript.end = Err(error);
                    return transcript;
                }
            }
        }
    }
    match reader.finish() {
        Ok(None) => {}
        Ok(Some(_)) => transcript.parts.push("End".into()),
        Err(error) => transcript.end = Err(error),
    }
    transcript
}

fn assert_response(method: Method, bytes: &str, parts: &[&str], end: Result<(), ResponseError>) {
    let bytes = bytes.as_bytes();
    let parts = parts.iter().map(|part| part.to_string()).collect();
    let expected = Transcript { parts, end };
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
    assert_eq!(response(method, bytes, &[]), expected, "{text:?}");
    assert_eq!(response(method, bytes, &everywhere(bytes)), expected, "{text:?} byte by byte");
    for at in 0..bytes.len().min(1_000) {
        assert_eq!(response(method, bytes, &[at]), expected, "{text:?} cut at {at}");
    }
}

#[test]
fn requests_behind_each_other_are_told_apart_however_they_are_cut() {
    let mut random = Random::new(1);
    for round in 0..300 {
        let (mut bytes, mut parts) = (Vec::new(), Vec::new());
        for at in 0..random.between(1, 4) {
            let body: Vec<u8> = (0..random.below(30))
                .map(|_| *b"\r\n0aG ;".get(random.below(7) as usize).unwrap())
                .collect();
            let text: String = body.iter().map(|&byte| byte as char).collect();
            let start = format!("POST /{at} HTTP/1.1\r\nhost:h\r\n");
            bytes.extend_from_slice(start.as_bytes());
            if random.chance(1, 2) {
                let length = format!("content-length: {}\r\n\r\n", body.len());
                bytes.extend_from_slice(length.as_bytes());
                bytes.extend_from_slice(&body);
                parts.push(format!("POST /{at} h Known({})", body.len()));
            } else {
                bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
                for piece in body.chunks(random.between(1, 10) as usize) {
                    write_chunk_size(&mut bytes, piece.len());
                    bytes.extend_from_slice(piece);
                    bytes.extend_from_slice(CHUNK_END);
                }
                bytes.extend_from_slice(BODY_END);
                parts.push(format!("POST /{at} h Chunked"));
            }
            if !text.is_empty() {
                parts.push(format!("Body {text}"));
            }
            parts.push("End".to_owned());
        }
        let expected = Transcript { parts, end: Ok(()) };
        assert_eq!(requests(&bytes, &[]), expected, "round {round}");
        assert_eq!(requests(&bytes, &everywhere(&bytes)), expected, "round {round}");
        let mut cuts: Vec<usize> =
            (0..5).map(|_| random.below(bytes.len() as u64) as usize).collect();
        cuts.sort_unstable();
        assert_eq!(requests(&bytes, &cuts), expected, "round {round}, cut at {cuts:?}");
    }
}

#[test]
fn a_request_that_ends_early_is_truncated_wherever_it_ends() {
    let bytes = b"\r\nPOST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
                  3;a\r\nabc\r\n0\r\nA: b\r\n\r\n";
    assert_eq!(requests(bytes, &[]).end, Ok(()));
    for length in 0..bytes.len() {
        let expected = if matches!(length, 0 | 2) { Ok(()) } else { Err(Refusal::Truncated) };
        assert_eq!(requests(&bytes[..length], &[]).end, expected, "{length} bytes");
    }
}

#[test]
fn what_is_behind_a_request_stays_in_the_input() {
    let mut reader = RequestReader::new();
    let mut input = &b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b"[..];
    assert!(reader.is_between_requests());
    assert!(matches!(reader.read(&mut input), Ok(Some(RequestPart::Head(_)))));
    assert_eq!(input, b"GET /b");
    assert!(!reader.is_in_body() && !reader.is_between_requests());
    assert_eq!(reader.read(&mut input), Ok(Some(RequestPart::End)));
    assert_eq!(input, b"GET /b");
    assert!(reader.is_between_requests());
    assert_eq!(reader.read(&mut input), Ok(None));
    assert!(!reader.is_between_requests());
}

#[test]
fn an_answer_before_the_body_has_come_ends_the_connection() {
    let mut reader = RequestReader::new();
    let mut input = &b"PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\na"[..];
    assert!(matches!(reader.read(&mut input), Ok(Some(RequestPart::Head(_)))));
    assert!(reader.is_in_body() && !reader.keeps_alive());
    assert_eq!(reader.read(&mut input), Ok(Some(RequestPart::Body(b"a"))));
    assert!(reader.is_in_body() && !reader.keeps_alive());
    assert_eq!(reader.read(&mut &b"b"[..]), Ok(Some(RequestPart::Body(b"b"))));
    assert!(!reader.is_in_body() && reader.keeps_alive());
}

#[test]
fn a_route_says_how_long_a_body_may_be() {
    let known = "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n";
    let chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n";
    for (text, is_known) in [(known, true), (chunked, false)] {
        for (bytes_max, fits) in [(11, true), (10, false)] {
            let mut reader = RequestReader::new();
            let mut input = text.as_bytes();
            let Ok(Some(RequestPart::Head(head))) = reader.read(&mut input) else { panic!() };
            assert_eq!(head.expects_continue, is_known);
            assert_eq!(reader.limit_body(bytes_max).is_err(), is_known && !fits);
            assert_eq!(
                reader.read(&mut input),
                if fits { Ok(None) } else { Err(Refusal::BodyTooLong) }
            );
        }
    }
    // More than usual.
    let mut reader = RequestReader::new();
    let more = limits::HTTP_BODY_BYTES_MAX + 1;
    let text = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {more}\r\n\r\n");
    assert!(matches!(reader.read(&mut text.as_bytes()), Ok(Some(RequestPart::Head(_)))));
    assert_eq!(reader.limit_body(more), Ok(()));
    assert_eq!(reader.read(&mut &b""[..]), Ok(None));
}

#[test]
fn connections_are_kept_if_both_versions_rules_say_so() {
    let table = [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: x, CLOSE\r\n", false),
        ("1.1", "Connection: x\r\nConnection: close\r\n", false),
        ("1.1", "Connection: keep-alive, upgrade\r\nUpgrade: h2c\r\n", true),
        ("1.1", "Connection: closed\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
    ];
    for (version, headers, expected) in table {
        let text = format!("GET / HTTP/{version}\r\nHost: h\r\n{headers}\r\n");
        let mut reader = RequestReader::new();
        let mut input = text.as_bytes();
        let Ok(Some(RequestPart::Head(head))) = reader.read(&mut input) else { panic!("{text}") };
        assert_eq!(head.keeps_alive, expected, "{text:?}");
        assert_eq!(head.version == Version::Http10, version == "1.0");
        assert_eq!(head.require_body(), Err(Refusal::LengthRequired));
        assert_eq!(reader.keeps_alive(), expected, "{text:?}");
    }
}

#[test]
fn headers_are_found_in_any_case_and_once() {
    let text = b"GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\na:2\r\nB: \xFF\r\nC:\t x y \r\n\r\n";
    let mut reader = RequestReader::new();
    let mut input = &text[..];
    let Ok(Some(RequestPart::Head(head))) = reader.read(&mut input) else { panic!() };
    let headers: &Headers<'_> = &head.headers;
    assert_eq!(headers.all("A").collect::<Vec<_>>(), [b"1", b"2"]);
    assert_eq!(headers.iter().count(), 5);
    assert_eq!(headers.only("a"), Err(HeaderFault { name: "a" }));
    assert_eq!(headers.only("B"), Err(HeaderFault { name: "B" }));
    assert_eq!(headers.only("c"), Ok(Some("x y")));
    assert_eq!(headers.only("d"), Ok(None));
    assert_eq!(headers.texts("b").count(), 0);
}

/// Many tiny chunks, and heads that dribble, cost the same for each byte: what is kept does not
/// grow, and nothing is looked at twice. Counted in parts and in memory; time would tell lies.
#[test]
fn tiny_pieces_cost_nothing_that_grows() {
    let head = format!("GET / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n", "b".repeat(8_000));
    let mut reader = RequestReader::new();
    for byte in head.as_bytes().chunks(1) {
        let mut input = byte;
        let part = reader.read(&mut input).unwrap();
        assert_eq!(part.is_some(), byte.as_ptr() == head.as_bytes().last().unwrap());
        assert!(input.is_empty());
    }
    assert_eq!(reader.read(&mut &b""[..]), Ok(Some(RequestPart::End)));
    assert_eq!(reader.kept_bytes(), 0);
    let mut input = &b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"[..];
    assert!(reader.read(&mut input).unwrap().is_some());
    for _ in 0..100_000 {
        let mut input = &b"1\r\nx\r\n"[..];
        assert_eq!(reader.read(&mut input), Ok(Some(RequestPart::Body(b"x"))));
        assert_eq!(reader.read(&mut input), Ok(None));
        assert_eq!(reader.kept_bytes(), 0);
    }
}

#[test]
fn responses_are_read_however_they_are_cut() {
    let get = |bytes: &str, parts: &[&str]| assert_response(Method::Get, bytes, parts, Ok(()));
    get("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", &["200 Known(2)", "Body ab", "End"]);
    get("HTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n", &["404 Known(0)", "End"]);
    get("HTTP/1.1 599\r\nContent-Length: 0\r\n\r\n", &["599 Known(0)", "End"]);
    let close = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    get(close, &["200 Known(0) close", "End"]);
    get("HTTP/1.1 200 OK\r\n\r\nab", &["200 UntilClose close", "Body ab", "End"]);
    get("HTTP/1.0 200 OK\r\n\r\n", &["200 UntilClose close", "End"]);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                   1\r\na\r\n2;x\r\nbc\r\n0\r\nA: b\r\n\r\n";
    get(chunked, &["200 Chunked", "Body abc", "End"]);
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
                   HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na";
    get(interim, &["200 Known(1)", "Body a", "End"]);
    get("HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n", &["204 None", "End"]);
    get("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", &["304 None", "End"]);
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
    assert_response(Method::Head, text, &["200 None", "End"], Ok(()));
    let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_response(Method::Head, text, &["200 None", "End"], Ok(()));
}

#[test]
fn responses_that_are_cut_off_or_bad_are_errors() {
    let bad = |bytes: &str, parts: &[&str], error: ResponseError| {
        assert_response(Method::Get, bytes, parts, Err(error));
    };
    let malformed = ResponseError::Malformed;
    bad("", &[], ResponseError::Truncated);
    bad("HTTP/1.1 200 OK\r\n", &[], ResponseError::Truncated);
    bad("HTTP/1.1 100 Continue\r\n\r\n", &[], ResponseError::Truncated);
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab";
    bad(cut, &["200 Known(3)", "Body ab"], ResponseError::Truncated);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for rest in ["", "1\r\n", "1\r\na\r\n", "1\r\na\r\n0\r\n", "1\r\na\r\n0\r\n\r"] {
        let parts: &[&str] =
            if rest.len() > 3 { &["200 Chunked", "Body a"] } else { &["200 Chunked"] };
        bad(&format!("{chunked}{rest}"), parts, ResponseError::Truncated);
    }
    for line in [
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 OK",
        "HTTP/2.0 200 OK",
        "http/1.1 200 OK",
        "HTTP/1.1  200 OK",
        "200 OK",
        "HTTP/1.1 000 OK",
        "HTTP/1.1 20x OK",
        "HTTP/1.1 +20 OK",
        "HTTP/1.1200 OK",
        "GET / HTTP/1.1",
        "HTTP/1.1 099 OK",
    ] {
        bad(&format!("{line}\r\n\r\n"), &[], ResponseError::BadStatusLine);
    }
    bad("HTTP/1.1 101 Switching Protocols\r\n\r\n", &[], ResponseError::Upgraded);
    let many = "HTTP/1.1 100 Continue\r\n\r\n".repeat(17);
    bad(&many, &[], ResponseError::TooManyInterim);
    let ok = "HTTP/1.1 200 OK\r\n";
    let both = "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n";
    for (headers, refusal) in [
        (both, Refusal::TwoLengths),
        ("Content-Length: 1\r\nContent-Length: 1\r\n", Refusal::RepeatedLength),
        ("Content-Length: +1\r\n", Refusal::BadLength),
        ("Transfer-Encoding: gzip, chunked\r\n", Refusal::UnknownTransferCoding),
        ("A: b\r\n c\r\n", Refusal::FoldedHeader),
        ("A : b\r\n", Refusal::SpaceBeforeColon),
        ("A: b\n", Refusal::BareLineFeed),
        ("A: \0\r\n", Refusal::Nul),
    ] {
        bad(&format!("{ok}{headers}\r\n"), &[], malformed(refusal));
    }
    let more = format!("{ok}Content-Length: 1\r\n\r\nab");
    bad(&more, &["200 Known(1)", "Body a", "End"], ResponseError::Unasked);
    let bad_chunk = format!("{chunked}1\nx");
    bad(&bad_chunk, &["200 Chunked"], malformed(Refusal::BadChunkSize));
}

#[test]
fn what_a_server_wrote_a_client_reads() {
    let mut random = Random::new(2);
    let date = http_date(1_790_000_000);
    for round in 0..500 {
        let mut bytes = Vec::new();
        let body: Vec<u8> =
            (0..random.below(200)).map(|_| random.next_u64() as u8 & 0x7F).collect();
        let text: String = body.iter().map(|&byte| byte as char).collect();
        if random.chance(1, 4) {
            bytes.extend_from_slice(CONTINUE);
        }
        let status = Status::ALL[random.below(Status::ALL.len() as u64) as usize];
        let framing = [Framing::Length(body.len() as u64), Framing::Chunked, Framing::UntilClose]
            [random.below(3) as usize];
        let mut head = ResponseHead::begin(&mut bytes, status, &date);
        head.header("content-type", "text/event-stream").unwrap();
        head.finish(framing, true);
        let length = match framing {
            _ if status.is_bodiless() => BodyLength::None,
            Framing::Length(length) => BodyLength::Known(length),
            Framing::Chunked => BodyLength::Chunked,
            Framing::UntilClose => BodyLength::UntilClose,
        };
        let says_close = framing == Framing::UntilClose;
        let mut parts =
            vec![format!("{} {length:?}{}", status.code(), if says_close { " close" } else { "" })];
        if !status.is_bodiless() {
            for piece in body.chunks(random.between(1, 60) as usize) {
                let chunk = (framing == Framing::Chunked).then(|| begin_chunk(&mut bytes));
                bytes.extend_from_slice(piece);
                if let Some(chunk) = chunk {
                    end_chunk(&mut bytes, chunk);
                }
            }
            if framing == Framing::Chunked {
                bytes.extend_from_slice(BODY_END);
            }
            if !body.is_empty() {
                parts.push(format!("Body {text}"));
            }
        }
        parts.push("End".into());
        let expected = Transcript { parts, end: Ok(()) };
        assert_eq!(response(Method::Get, &bytes, &[]), expected, "round {round}");
        assert_eq!(response(Method::Get, &bytes, &everywhere(&bytes)), expected, "round {round}");
    }
}

#[test]
fn responses_come_one_for_each_request() {
    let mut reader = ResponseReader::new();
    let mut input =
        &b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"[..];
    for method in [Method::Delete, Method::Get] {
        assert_eq!(reader.finish(), Ok(None));
        reader.expect(method);
        assert!(matches!(reader.read(&mut input), Ok(Some(ResponsePart::Head(_)))));
        assert_eq!(reader.read(&mut input), Ok(Some(ResponsePart::End)));
    }
    assert_eq!(reader.read(&mut input), Ok(None));
    assert_eq!(reader.read(&mut &b"HTTP/1.1 200 OK\r\n"[..]), Err(ResponseError::Unasked));
}
