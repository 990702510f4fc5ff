//! Requests that try something, and the verdict on each. Each is cut everywhere and fed byte by
//! byte: the verdict is the same; and behind each a good request follows, which is read if the
//! first one was good, and never if it was not.

use super::reader_tests::{Transcript, everywhere, requests};
use super::{Refusal, Status};
use crate::limits;

const NEXT: &str = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";

fn assert_verdict(first: &[u8], expected: Result<(), Refusal>) {
    let bytes = [first, NEXT.as_bytes()].concat();
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
    let at_once = requests(&bytes, &[]);
    assert_eq!(at_once.end, expected, "{text:?}: {at_once:?}");
    let has_next = at_once.parts.iter().any(|part| part.starts_with("GET /next"));
    assert_eq!(has_next, expected.is_ok(), "{text:?}: {at_once:?}");
    assert_eq!(requests(&bytes, &everywhere(&bytes)), at_once, "{text:?} byte by byte");
    // Long ones are cut where it matters: at their ends, and here and there.
    let step = (bytes.len() / 500).max(1);
    for at in (0..bytes.len()).step_by(step) {
        assert_eq!(requests(&bytes, &[at]), at_once, "{text:?} cut at {at}");
    }
}

fn refused(first: impl AsRef<[u8]>, refusal: Refusal) {
    assert_verdict(first.as_ref(), Err(refusal));
}

fn taken(first: impl AsRef<[u8]>) {
    assert_verdict(first.as_ref(), Ok(()));
}

/// A request with these header lines.
fn get(headers: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: h\r\n{headers}\r\n")
}

/// One with a chunked body.
fn chunked(body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
}

#[test]
fn first_lines() {
    for line in ["GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET /\tHTTP/1.1", "GET\t/ HTTP/1.1"] {
        refused(format!("{line}\r\nHost: h\r\n\r\n"), Refusal::BadFirstLine);
    }
    for line in [
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET / a HTTP/1.1",
        "GET / HTTP/1.1 HTTP/1.1",
        "GET / HTTP/2.0 x",
        "GET /",
        "GET",
        "GET HTTP/1.1",
        "/ HTTP/1.1",
        "GET / http/1.1",
        "GET / HTTP/1",
        "GET / HTTP/1.10",
        "GET / HTTP/11",
        "GET / HTTP/1,1",
        "GET / HTTP/ 1.1",
        "GET / HTTPS/1.1",
        "GET / HTTP/x.y",
        "G(T / HTTP/1.1",
        "GET: / HTTP/1.1",
        "G\u{e4}T / HTTP/1.1",
        "{} / HTTP/1.1",
    ] {
        refused(format!("{line}\r\nHost: h\r\n\r\n"), Refusal::BadFirstLine);
    }
    for version in ["0.9", "1.2", "1.9", "2.0", "3.0", "9.9", "0.0"] {
        refused(format!("GET / HTTP/{version}\r\nHost: h\r\n\r\n"), Refusal::UnknownVersion);
    }
    refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refusal::UnknownVersion);
    for method in ["get", "Get", "GETT", "GE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "-", "!"] {
        refused(format!("{method} / HTTP/1.1\r\nHost: h\r\n\r\n"), Refusal::UnknownMethod);
    }
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"] {
        taken(format!("{method} / HTTP/1.1\r\nHost: h\r\n\r\n"));
    }
}

#[test]
fn targets() {
    for target in [
        "*",
        "a",
        "h:80",
        "http:",
        "http:/",
        "ftp://h/",
        "//h\u{80}",
        "/#",
        "/a#b",
        "?a",
        "\\a",
        "javascript:x",
        "/\u{e4}",
        "data:,",
        "./a",
        "..",
        "h/a",
    ] {
        refused(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"), Refusal::BadTarget);
    }
    refused(b"GET /\xFF HTTP/1.1\r\nHost: h\r\n\r\n", Refusal::BadFirstLine);
    refused("GET http://evil@h/ HTTP/1.0\r\n\r\n", Refusal::BadTarget);
    for target in
        ["http://x/", "http://h:80/", "http://", "http:///a", "http://h@h/", "http://h\\@x/"]
    {
        let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        refused(head, Refusal::TargetIsNotHost);
    }
    for target in ["/", "//", "/%", "/..", "/a?b?c", "http://h/", "HTTPS://H", "http://h?x", "/|{}"]
    {
        taken(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
    }
    taken("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
    refused("OPTIONS *a HTTP/1.1\r\nHost: h\r\n\r\n", Refusal::BadTarget);
}

#[test]
fn line_ends_and_control_characters() {
    refused("GET / HTTP/1.1\nHost: h\n\n", Refusal::BareLineFeed);
    refused("\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", Refusal::BareLineFeed);
    refused("GET / HTTP/1.1\r\nHost: h\n\r\n", Refusal::BareLineFeed);
    refused("GET / HTTP/1.1\r\nHost: h\r\n\n", Refusal::BareLineFeed);
    refused("GET / HTTP/1.1\r\nHost: h\r\nA: b\nContent-Length: 5\r\n\r\n", Refusal::BareLineFeed);
    refused("GET / HTTP/1.1\rHost: h\r\r", Refusal::BareCarriageReturn);
    refused("GET / HTTP/1.1\r\r\nHost: h\r\n\r\n", Refusal::BareCarriageReturn);
    refused("GET / HTTP/1.1\r\nHost: h\r\n\r\r\n", Refusal::BareCarriageReturn);
    refused("GET / HTTP/1.1\r\nHost: h\r\nA: b\rC: d\r\n\r\n", Refusal::BareCarriageReturn);
    refused("GET / HTTP/1.1\r\nA\r: b\r\n\r\n", Refusal::BareCarriageReturn);
    refused("\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", Refusal::EmptyLines);
    taken("\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let places: [(&str, &str); 6] = [
        ("", "GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
        ("GE", "T / HTTP/1.1\r\nHost: h\r\n\r\n"),
        ("GET /", " HTTP/1.1\r\nHost: h\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHo", "st: h\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: h\r\nA: b", "\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: h\r\nA:", "b\r\n\r\n"),
    ];
    for (before, behind) in places {
        for byte in (0..0x20).chain([0x7F]).filter(|byte| !b"\t\n\r".contains(byte)) {
            let refusal = if byte == 0 { Refusal::Nul } else { Refusal::ControlCharacter };
            refused([before.as_bytes(), &[byte], behind.as_bytes()].concat(), refusal);
        }
    }
    refused(b"\x16\x03\x01\x02\0\x01\0\x01\xFC\x03\x03", Refusal::ControlCharacter); // TLS.
}

#[test]
fn headers() {
    refused(get("A: b\r\n c\r\n"), Refusal::FoldedHeader);
    refused(get("A: b\r\n\tc\r\n"), Refusal::FoldedHeader);
    refused(get(" A: b\r\n"), Refusal::FoldedHeader);
    refused("GET / HTTP/1.1\r\n Host: h\r\n\r\n", Refusal::FoldedHeader);
    refused(get("A: b\r\n \r\n"), Refusal::FoldedHeader);
    for name in ["A ", "A\t", "A  ", "Content-Length ", "Transfer-Encoding\t"] {
        refused(get(&format!("{name}: 5\r\n")), Refusal::SpaceBeforeColon);
    }
    refused("GET / HTTP/1.1\r\nHost : h\r\n\r\n", Refusal::SpaceBeforeColon);
    for line in [
        "A",
        ": b",
        ":",
        "A B: c",
        "A(: b",
        "A/: b",
        "A@b: c",
        "A\"b\": c",
        "[A]: b",
        "\u{e4}: b",
        "{\"a\":1}",
        "A;b: c",
        "A,b: c",
        "=",
        "GET /x HTTP/1.1",
    ] {
        refused(get(&format!("{line}\r\n")), Refusal::BadHeader);
    }
    taken(get("A:\r\nB: \r\nC:\t d \t\r\nD: \u{e4}\r\n!#$%&'*+-.^_`|~: x\r\n"));
    taken(get("A: GET /x HTTP/1.1\r\n"));
}

#[test]
fn hosts() {
    refused("GET / HTTP/1.1\r\n\r\n", Refusal::NoHost);
    refused("GET http://h/ HTTP/1.1\r\n\r\n", Refusal::NoHost);
    refused(get("Host: h\r\n"), Refusal::RepeatedHost);
    refused(get("hOST: x\r\n"), Refusal::RepeatedHost);
    refused("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", Refusal::RepeatedHost);
    for host in [
        "", " ", "h x", "h,x", "h, x", "u@h", "h/", "h?", "h#", "h:x", "h:", "h:-1", "h:99999",
        "h:1:1", "::1", "[::1", "[h]", "http://h", "h\\x", "h%41", "\u{e4}", "h;x", "h\"",
    ] {
        refused(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), Refusal::BadHost);
    }
    refused(b"GET / HTTP/1.1\r\nHost: \xFF\r\n\r\n", Refusal::BadHost);
    for host in ["h", "H:80", "127.0.0.1", "[::1]:8808", "a.b.c.", "a_b", "h:65535"] {
        taken(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    }
    taken("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    taken("GET http://h:1/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
}

#[test]
fn lengths() {
    let both = "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n";
    refused(get(both), Refusal::TwoLengths);
    refused(get("Transfer-Encoding: x\r\nContent-Length: 0\r\n"), Refusal::TwoLengths);
    refused(get("content-length: 3\r\nCONTENT-LENGTH: 3\r\n"), Refusal::RepeatedLength);
    refused(get("Content-Length: 3\r\nContent-Length: 4\r\n"), Refusal::RepeatedLength);
    for length in [
        "",
        "+3",
        "-3",
        "-0",
        "3 3",
        "3,3",
        "3, 4",
        "0x3",
        "3_0",
        "3.0",
        "3e0",
        "03",
        "00",
        "a",
        "3;",
        "\"3\"",
        "\u{663}",
        "18446744073709551616",
        "99999999999999999999999999",
        "3\t3",
        "0003",
        "-18446744073709551613",
        "3\u{a0}",
    ] {
        refused(get(&format!("Content-Length: {length}\r\n")), Refusal::BadLength);
    }
    for coding in [
        "",
        "identity",
        "chunked, chunked",
        "chunked,",
        ",chunked",
        "chunked;q=1",
        "\"chunked\"",
        "gzip",
        "chunked, gzip",
        "chunkedx",
        "xchunked",
        "chunked chunked",
        "chun ked",
        "cow",
        "gzip;x, chunked",
        "\u{a0}chunked",
    ] {
        let head = get(&format!("Transfer-Encoding: {coding}\r\n"));
        refused(head, Refusal::BadTransferEncoding);
    }
    for coding in ["gzip, chunked", "deflate,\tCHUNKED", "identity, chunked"] {
        let head = get(&format!("Transfer-Encoding: {coding}\r\n"));
        refused(head, Refusal::UnknownTransferCoding);
    }
    let twice = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n";
    refused(get(twice), Refusal::BadTransferEncoding);
    let hidden = "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n";
    refused(get(hidden), Refusal::BadTransferEncoding);
    let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    refused(old, Refusal::TransferEncodingInOldVersion);
    refused(get("Content-Length: 1048577\r\n"), Refusal::BodyTooLong);
    refused(get("Content-Length: 18446744073709551615\r\n"), Refusal::BodyTooLong);

    taken(get("Content-Length: 0\r\n"));
    taken(get("Content-Length:\t3 \r\n") + "abc");
    taken(get("Transfer-Encoding: ChunKed\r\n") + "3\r\nabc\r\n0\r\n\r\n");
    // What is inside a body is not looked at.
    taken(get("Content-Length: 20\r\n") + "GET /x HTTP/1.1\r\n\r\n\r");
}

#[test]
fn chunks() {
    for size in [
        "",
        " 3",
        "3 ",
        "+3",
        "-3",
        "0x3",
        "g",
        "3g",
        "3,",
        "\t3",
        "3\t",
        "\"3\"",
        "3_0",
        "\u{663}",
        "00000000000000003",
        "FFFFFFFFFFFFFFFFF",
        "10000000000000003",
    ] {
        refused(chunked(&format!("{size}\r\nabc\r\n0\r\n\r\n")), Refusal::BadChunkSize);
    }
    refused(chunked("3\nabc\r\n0\r\n\r\n"), Refusal::BadChunkSize);
    refused(chunked("3\rabc\r\n0\r\n\r\n"), Refusal::BadChunkSize);
    refused(chunked("3\r\r\nabc\r\n0\r\n\r\n"), Refusal::BadChunkSize);
    refused(chunked("3\r\nabc\r\n\r\n0\r\n\r\n"), Refusal::BadChunkSize);
    for extension in [";", "; a", ";=a", ";;a", ";\ta", ";\"a\""] {
        let body = format!("3{extension}\r\nabc\r\n0\r\n\r\n");
        refused(chunked(&body), Refusal::BadChunkExtension);
    }
    refused(chunked("3;a\nabc\r\n0\r\n\r\n"), Refusal::BadChunkExtension); // CVE-2025-55315.
    refused(chunked("3;a=\"\n\"\r\nabc\r\n0\r\n\r\n"), Refusal::BadChunkExtension);
    refused(chunked("3;a\0\r\nabc\r\n0\r\n\r\n"), Refusal::BadChunkExtension);
    refused(chunked("3;a\rb\r\nabc\r\n0\r\n\r\n"), Refusal::BadChunkSize);
    for end in ["", "\n", "\r", "d\r\n", "\n\r\n", "\r\r\n", "XX", "\r ", "0\r\n"] {
        let body = format!("3\r\nabc{end}0\r\n\r\n");
        refused(chunked(&body), Refusal::BadChunkEnd); // CVE-2025-43859 and others.
    }
    refused(chunked("100001\r\n"), Refusal::BodyTooLong);
    refused(chunked("FFFFFFFFFFFFFFFF\r\n"), Refusal::BodyTooLong);
    refused(chunked("3\r\nabc\r\nFFFFFFFFFFFFFFFE\r\n"), Refusal::BodyTooLong);
    for trailer in [
        "A\r\n",
        ": b\r\n",
        "A b: c\r\n",
        " A: b\r\n",
        "A : b\r\n",
        "A: b\n",
        "A: b\rc\r\n",
        "A: \0\r\n",
        "A: b\r\n c\r\n",
        "\n",
        "A: b\r\n\n",
        "GET /x HTTP/1.1\r\n",
    ] {
        refused(chunked(&format!("0\r\n{trailer}\r\n")), Refusal::BadTrailer);
    }
    refused(chunked("0\r\n\r"), Refusal::BadTrailer);
    refused(chunked("0\r\n"), Refusal::BadTrailer); // The next request is no trailer.

    taken(chunked("0\r\n\r\n"));
    taken(chunked("000\r\n\r\n"));
    taken(chunked("3\r\nabc\r\n1;a\r\nd\r\n0000000a;b=\"c;d\" ; e\r\n0123456789\r\n0\r\n\r\n"));
    taken(chunked("1\r\n\r\r\n1\r\n\n\r\n0;x\r\nA: b\r\nContent-Length: 7\r\n\r\n"));
    taken(chunked("A\r\n0\r\n\r\nGET /\r\n0\r\n\r\n"));
}

#[test]
fn expectations() {
    for value in ["", "100-continue, x", "200-ok", "100", "100-continue;q=1"] {
        let headers = format!("Content-Length: 0\r\nExpect: {value}\r\n");
        refused(get(&headers), Refusal::UnknownExpectation);
    }
    let twice = "Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 0\r\n";
    refused(get(twice), Refusal::UnknownExpectation);
    taken(get("Expect: 100-Continue\r\nContent-Length: 3\r\n") + "abc");
}

#[test]
fn limits_are_exact() {
    let first_line = |bytes: u32| {
        let path = "a".repeat(bytes as usize - "GET / HTTP/1.1".len());
        format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n")
    };
    taken(first_line(limits::HTTP_FIRST_LINE_BYTES_MAX));
    refused(first_line(limits::HTTP_FIRST_LINE_BYTES_MAX + 1), Refusal::FirstLineTooLong);
    let header = |bytes: u32| get(&format!("A: {}\r\n", "b".repeat(bytes as usize - 3)));
    taken(header(limits::HTTP_HEADER_BYTES_MAX));
    refused(header(limits::HTTP_HEADER_BYTES_MAX + 1), Refusal::HeaderTooLong);
    let count = |count: u32| get(&"A: b\r\n".repeat(count as usize - 1));
    taken(count(limits::HTTP_HEADERS_MAX));
    refused(count(limits::HTTP_HEADERS_MAX + 1), Refusal::TooManyHeaders);
    let head = |bytes: u32| {
        let rest = bytes as usize - get("").len() - 2 * 8_006;
        let (long, last) = (format!("A: {}\r\n", "b".repeat(8_001)), "c".repeat(rest - 5));
        get(&format!("{long}{long}A: {last}\r\n"))
    };
    assert_eq!(head(16_384).len(), 16_384);
    taken(head(limits::HTTP_HEAD_BYTES_MAX));
    refused(head(limits::HTTP_HEAD_BYTES_MAX + 1), Refusal::HeadTooLong);

    let extension =
        |bytes: u32| chunked(&format!("1;{}\r\na\r\n0\r\n\r\n", "e".repeat(bytes as usize)));
    taken(extension(limits::HTTP_EXTENSION_BYTES_MAX));
    refused(extension(limits::HTTP_EXTENSION_BYTES_MAX + 1), Refusal::ExtensionsTooLong);
    let extensions = |count: u32| {
        let chunk = format!("1;{}\r\na\r\n", "e".repeat(128));
        chunked(&(chunk.repeat(count as usize) + "0\r\n\r\n"))
    };
    let count = limits::HTTP_EXTENSIONS_BYTES_MAX / 128;
    taken(extensions(count));
    refused(extensions(count + 1), Refusal::ExtensionsTooLong);
    // What is counted: names, colons and values.
    let trailers =
        |bytes: u32| chunked(&format!("0\r\nA:{}\r\n\r\n", "t".repeat(bytes as usize - 2)));
    taken(trailers(limits::HTTP_TRAILERS_BYTES_MAX));
    refused(trailers(limits::HTTP_TRAILERS_BYTES_MAX + 1), Refusal::TrailersTooLong);
}

#[test]
fn each_refusal_has_its_status_and_its_words() {
    let table = [
        (Refusal::TwoLengths, Status::BAD_REQUEST),
        (Refusal::Nul, Status::BAD_REQUEST),
        (Refusal::ExtensionsTooLong, Status::BAD_REQUEST),
        (Refusal::TooSlow, Status::REQUEST_TIMEOUT),
        (Refusal::LengthRequired, Status::LENGTH_REQUIRED),
        (Refusal::BodyTooLong, Status::CONTENT_TOO_LARGE),
        (Refusal::FirstLineTooLong, Status::URI_TOO_LONG),
        (Refusal::UnknownExpectation, Status::EXPECTATION_FAILED),
        (Refusal::HeadTooLong, Status::HEADERS_TOO_LARGE),
        (Refusal::TooManyHeaders, Status::HEADERS_TOO_LARGE),
        (Refusal::UnknownMethod, Status::NOT_IMPLEMENTED),
        (Refusal::UnknownTransferCoding, Status::NOT_IMPLEMENTED),
        (Refusal::UnknownVersion, Status::VERSION_NOT_SUPPORTED),
    ];
    for (refusal, status) in table {
        assert_eq!(refusal.status(), status, "{refusal}");
    }
    let text = Refusal::FirstLineTooLong.to_string();
    assert_eq!(text, "the first line is too long, the limit is 8192");
}

#[test]
fn what_is_shown_of_a_transcript_tells_requests_apart() {
    let one = requests(get("").as_bytes(), &[]);
    let expected = Transcript { parts: vec!["GET / h None".into(), "End".into()], end: Ok(()) };
    assert_eq!(one, expected);
}
