//! Tests of hostile heads, each with its verdict. Each is cut everywhere and fed byte by byte, with
//! the same verdict. A good request follows each one, and is read only if the first one was good.

use super::transcript::{get, refused, taken};
use super::{Method, Refusal, Status};
use crate::limits;

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
    refused("CONNECT / HTTP/1.1\r\nHost: h\r\n\r\n", Refusal::NoTunnel);
    let others = ["get", "Get", "GETT", "GE", "PATCH", "TRACE", "CONNECTED", "PROPFIND", "-", "!"];
    for method in others.into_iter().chain(Method::ALL.map(Method::name)) {
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
    refused(b"\x16\x03\x01\x02\0\x01\0\x01\xFC\x03\x03", Refusal::TlsHandshake);
    refused(b"\x16\x01", Refusal::ControlCharacter);
    refused(b"\r\n\x16\x03", Refusal::ControlCharacter); // A handshake comes first of all.
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
fn limits_of_heads_are_exact() {
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
        (Refusal::NoTunnel, Status::NOT_IMPLEMENTED),
        (Refusal::UnknownTransferCoding, Status::NOT_IMPLEMENTED),
        (Refusal::UnknownVersion, Status::VERSION_NOT_SUPPORTED),
    ];
    for (refusal, status) in table {
        assert_eq!(refusal.status(), status, "{refusal}");
    }
    let text = Refusal::FirstLineTooLong.to_string();
    assert_eq!(text, "the first line is too long, the limit is 8192");
}
