//! Documents are compressed for clients that want it, and not sent again to those that have them.

use std::io::Read;

use flate2::read::GzDecoder;

use super::exchange::{Response, answered, around, responses, with};
use super::representation::has_etag;
use super::routes::ROUTES;
use super::*;
use crate::limits;
use crate::wire::http1::{Method, Status};

fn get(target: &str, headers: &str) -> Response {
    answered(&with("GET", target, headers))
}

fn unpacked(response: &Response) -> Vec<u8> {
    assert_eq!(response.header("content-encoding"), Some("gzip"));
    let mut plain = Vec::new();
    GzDecoder::new(&*response.body).read_to_end(&mut plain).unwrap();
    plain
}

/// Returns the response to a request that the server answers with this document.
fn told(target: &str, headers: &str, document: &Answer) -> Response {
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    let step = connection.receive(with("GET", target, headers).as_bytes(), &around(), &mut out);
    assert!(matches!(step, ConnectionStep::Call(_)), "{step:?}");
    connection.answer(document, &around(), &mut out);
    assert_eq!(connection.resume(&around(), &mut out), ConnectionStep::Wait);
    responses(&[Method::Get], &out, false).remove(0)
}

#[test]
fn a_document_is_compressed_exactly_if_the_client_asks_for_it() {
    for (target, headers) in [("/openapi.json", ""), ("/", "Accept: text/html\r\n")] {
        let plain = get(target, headers);
        assert_eq!((plain.status, plain.header("content-encoding")), (200, None), "{target}");
        assert!(plain.header("vary").unwrap().ends_with("accept-encoding"), "{target}");
        for accepted in ["gzip", "gzip, deflate, br", "identity;q=0, *"] {
            let request = format!("{headers}Accept-Encoding: {accepted}\r\n");
            let packed = get(target, &request);
            assert_eq!(unpacked(&packed), plain.body, "{target} {accepted}");
            assert!(packed.body.len() < plain.body.len(), "{target}");
            assert_eq!(packed.header("vary"), plain.header("vary"));
            assert_eq!(packed.header("content-type"), plain.header("content-type"));
            let head = answered(&with("HEAD", target, &request));
            assert_eq!(head.header("content-length"), packed.header("content-length"));
            assert_eq!((head.header("etag"), head.body.len()), (packed.header("etag"), 0));
        }
        for refused in ["br", "gzip;q=0", "gzip;q=0.5, identity", ""] {
            let same = get(target, &format!("{headers}Accept-Encoding: {refused}\r\n"));
            assert_eq!(same, plain, "{target} {refused}");
        }
    }
}

#[test]
fn short_documents_are_compressed_only_for_clients_that_refuse_them_otherwise() {
    let plain = get("/", "");
    assert!(plain.body.len() < limits::COMPRESSED_BYTES_MIN);
    assert_eq!(get("/", "Accept-Encoding: gzip\r\n"), plain);
    assert_eq!(unpacked(&get("/", "Accept-Encoding: gzip, identity;q=0\r\n")), plain.body);
}

#[test]
fn the_lists_of_a_shard_are_compressed_and_its_errors_are_not() {
    let text = "a line that comes again and again\n".repeat(100);
    let document = Answer::text(Status::OK, JSON, text.clone().into_bytes());
    let (busy, gzip) = (ApiError::shutting_down(), "Accept-Encoding: gzip\r\n");
    for target in ["/v1/tools", "/v1/executions", "/v1/progress", "/v1/virtual-tools", "/metrics"] {
        let packed = told(target, gzip, &document);
        assert_eq!(unpacked(&packed), text.as_bytes(), "{target}");
        let plain = told(target, "", &document);
        assert_eq!((&*plain.body, plain.header("content-encoding")), (text.as_bytes(), None));
        assert_eq!(plain.header("vary"), packed.header("vary"));
        let error = told(target, gzip, &Answer::error(&busy));
        assert_eq!((error.status, error.header("content-encoding")), (503, None), "{target}");
        assert_eq!(error.error().0, "shutting_down");
    }
    let long = text.repeat(limits::COMPRESSED_BYTES_MAX / text.len() + 1);
    let document = Answer::text(Status::OK, JSON, long.into_bytes());
    let plain = told("/metrics", gzip, &document);
    assert_eq!((&*plain.body, plain.header("content-encoding")), (document.body(), None));
    assert!(told("/metrics", "Accept-Encoding: *, identity;q=0\r\n", &document).body.len() < 1_000);
    let document = Answer::text(Status::OK, JSON, text.clone().into_bytes());
    // The payload of a tool is in this answer, and the server did not make it.
    let result = "/v1/executions/00000000000000000000000000/result";
    let plain = told(result, gzip, &document);
    let headers = [plain.header("content-encoding"), plain.header("vary"), plain.header("etag")];
    assert_eq!((&*plain.body, headers), (text.as_bytes(), [None; 3]));
}

#[test]
fn a_copy_that_is_current_is_not_sent_again() {
    let lists = ["/v1/tools", "/v1/virtual-tools"];
    for target in ["/openapi.json", "/", "/v1/tools", "/v1/virtual-tools"] {
        let text = "a tool, and its description\n".repeat(100);
        let document = Answer::text(Status::OK, JSON, text.into_bytes());
        let ask = |headers: &str| match lists.contains(&target) {
            true => told(target, headers, &document),
            false => get(target, &format!("Accept: text/html, application/json\r\n{headers}")),
        };
        let tag = |response: &Response| response.header("etag").unwrap().to_owned();
        let packed = "Accept-Encoding: gzip\r\n";
        let (plain_tag, packed_tag) = (tag(&ask("")), tag(&ask(packed)));
        let is_short = target == "/";
        assert_eq!(plain_tag == packed_tag, is_short, "{target}");
        for (coding, etag, other) in
            [("", &plain_tag, &packed_tag), (packed, &packed_tag, &plain_tag)]
        {
            let known =
                [etag.clone(), format!("W/{etag}"), "*".to_owned(), format!("\"x\", {etag}")];
            for known in known {
                let response = ask(&format!("{coding}If-None-Match: {known}\r\n"));
                assert_eq!((response.status, response.body.len()), (304, 0), "{target} {known}");
                assert_eq!(response.header("etag"), Some(&**etag));
                assert_eq!(response.header("cache-control"), Some("no-cache"));
                assert!(response.header("vary").unwrap().ends_with("accept-encoding"));
                let coding = response.header("content-encoding");
                assert_eq!((coding, response.header("content-type")), (None, None));
            }
            let stale = if is_short { "\"x\"" } else { other };
            for known in [stale, etag.trim_matches('"'), ""] {
                let response = ask(&format!("{coding}If-None-Match: {known}\r\n"));
                assert_eq!(response.status, 200, "{target} {known}");
                assert_eq!(response.header("cache-control"), Some("no-cache"));
            }
        }
    }
}

#[test]
fn the_tag_of_a_changed_document_is_another_one() {
    let tag = |text: &'static [u8]| {
        let response = told("/v1/tools", "", &Answer::text(Status::OK, JSON, text));
        response.header("etag").unwrap().to_owned()
    };
    assert_eq!(tag(b"[1]"), tag(b"[1]"));
    assert_ne!(tag(b"[1]"), tag(b"[2]"));
    let old = tag(b"[1]");
    assert!(old.starts_with('"') && old.ends_with('"') && old.len() == 18, "{old}");
    assert!(has_etag(["\"a\"", &format!("\"b\",{old}")], &old));
    assert!(!has_etag([], &old));
}

#[test]
fn no_stream_and_no_payload_is_a_document() {
    for route in ROUTES.iter().filter(|route| route.document.is_some()) {
        assert_eq!(route.method, Method::Get, "{}", route.path);
        let is_kept = route.document.is_some_and(|document| document.has_etag);
        let can_be_known = |(status, _): &(Status, _)| *status == Status::NOT_MODIFIED;
        assert_eq!(route.answers.iter().any(can_be_known), is_kept, "{}", route.path);
        assert!(!route.path.contains('{'), "{}", route.path);
        assert!(!route.path.ends_with("events") && !route.path.ends_with("stream"));
    }
}
