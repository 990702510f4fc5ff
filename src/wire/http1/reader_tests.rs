//! Tests of the server's side: the parts do not depend on the cuts.

use super::Headers;
use super::head::{HeaderFault, Method, Version};
use super::refusal::Refusal;
use super::request::{RequestPart, RequestReader};
use super::response::{BODY_END, CHUNK_END, write_chunk_size};
use super::transcript::{Transcript, everywhere, get, requests, response};
use crate::base::Random;
use crate::limits;

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

/// Checks that many tiny chunks and dribbling heads cost the same for each byte: memory does not
/// grow, and no byte is examined twice. It counts parts and memory, because times would be
/// unreliable.
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
fn what_is_shown_of_a_transcript_tells_requests_apart() {
    let one = requests(get("").as_bytes(), &[]);
    let expected = Transcript { parts: vec!["GET / h None".into(), "End".into()], end: Ok(()) };
    assert_eq!(one, expected);
}

/// Reads requests and responses with random changes of bytes that matter.
#[test]
fn whatever_comes_the_verdict_does_not_depend_on_the_cuts() {
    let originals: [&[u8]; 4] = [
        b"GET /a?b=%20 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: h:1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nabcde",
        b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nA: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    ];
    let pieces: [&[u8]; 14] = [
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b" ",
        b"\t",
        b":",
        b";",
        b",",
        b"\0",
        b"\xFF",
        b"0",
        b"Content-Length: 1\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ];
    let mut random = Random::new(3);
    let mut refused_count = 0;
    for round in 0..20_000 {
        let mut bytes = originals[random.below(4) as usize].to_vec();
        for _ in 0..random.between(1, 3) {
            let at = random.below(bytes.len() as u64) as usize;
            let cut = at + random.below(3) as usize;
            let piece = pieces[random.below(14) as usize];
            let end = cut.min(bytes.len());
            bytes.splice(at..end, piece.iter().copied());
        }
        bytes.extend_from_slice(originals[0]);
        let mut cuts: Vec<usize> =
            (0..4).map(|_| random.below(bytes.len() as u64) as usize).collect();
        cuts.sort_unstable();
        let text = bytes.escape_ascii();
        let at_once = requests(&bytes, &[]);
        refused_count += u32::from(at_once.end.is_err());
        assert_eq!(requests(&bytes, &cuts), at_once, "round {round}: {text}");
        assert_eq!(requests(&bytes, &everywhere(&bytes)), at_once, "round {round}: {text}");
        let at_once = response(Method::Get, &bytes, &[]);
        assert_eq!(response(Method::Get, &bytes, &cuts), at_once, "round {round}: {text}");
    }
    assert!((5_000..20_000).contains(&refused_count), "{refused_count} of 20,000 were refused");
}
