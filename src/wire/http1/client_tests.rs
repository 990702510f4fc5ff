//! Tests of the client's side: the parts do not depend on the cuts, and the server's output is
//! read.

use super::client::{ResponseError, ResponsePart, ResponseReader};
use super::head::Method;
use super::refusal::Refusal;
use super::response::{BODY_END, CONTINUE, Framing, ResponseHead, Status, begin_chunk, end_chunk};
use super::transcript::{Transcript, everywhere, response};
use super::{BodyLength, http_date};
use crate::base::Random;

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
