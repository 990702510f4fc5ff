//! Connections: several requests on one connection, HTTP/1.0, ends of input, limits, and memory.

use serde_json::json;

use super::call_tests::id;
use super::exchange::{TestExchange, around, exchange, exchanged, get, post, responses, with};
use super::*;
use crate::base::Random;
use crate::limits;
use crate::wire::http1::{Method, Status};

const PLAIN: &str = r#"{"tool":"t"}"#;

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let events = format!("/v1/executions/{}/events", id(1));
    let bytes = [
        get("/v1/tools"),
        post("/v1/executions?format=sse", PLAIN),
        get("/healthz"),
        with("HEAD", "/healthz", ""),
        with("OPTIONS", "*", ""),
        get(&events),
        with("HEAD", &events, ""),
        get("/nowhere"),
        with("POST", "/nowhere", "Content-Length: 5\r\n") + "GET /",
        post("/v1/executions", PLAIN),
        get("/readyz"),
    ];
    let got = exchanged(bytes.concat().as_bytes());
    assert!(!got.is_closed);
    assert_eq!(got.calls.len(), 6);
    let (get, head, post) = (Method::Get, Method::Head, Method::Post);
    let methods = [get, post, get, head, Method::Options, get, head, get, post, post, get];
    let responses = responses(&methods, &got.out, false);
    let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
    assert_eq!(statuses, [204, 200, 200, 200, 204, 200, 200, 404, 404, 204, 204]);
    for (at, body) in [(1, "one,two"), (3, ""), (4, ""), (5, "one,two"), (6, "")] {
        assert_eq!(responses[at].body, body.as_bytes(), "reply {at}");
    }
    assert_eq!(responses[2].json(), json!({"status": "ok"}));
    // HEAD has the same headers as GET.
    assert_eq!(responses[2].headers, responses[3].headers);
    assert_eq!(responses[5].headers, responses[6].headers);
}

#[test]
fn the_root_is_a_page_for_a_browser_and_a_document_for_programs() {
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let table = [
        (browser, "text/html; charset=utf-8", "<!doctype html>"),
        ("*/*", "application/json", "{\"program\":\"streamdoor\","),
        ("application/json", "application/json", "{\"program\":\"streamdoor\","),
    ];
    for (accept, media_type, begin) in table {
        let request = with("GET", "/", &format!("Accept: {accept}\r\n"));
        let got = exchanged(request.as_bytes());
        let response = responses(&[Method::Get], &got.out, false).remove(0);
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-type"), Some(media_type));
        assert!(response.body.starts_with(begin.as_bytes()), "{accept}");
    }
    // Each link of the document is the path of a route.
    let got = exchanged(get("/").as_bytes());
    let document = responses(&[Method::Get], &got.out, false).remove(0).json();
    for link in document["links"].as_object().unwrap().values() {
        let path = link.as_str().unwrap();
        assert!(super::routes::ROUTES.iter().any(|route| route.path == path), "{path}");
    }
}

#[test]
fn a_stream_says_what_it_is() {
    let got = exchanged(get(&format!("/v1/executions/{}/events?format=ndjson", id(1))).as_bytes());
    let response = responses(&[Method::Get], &got.out, false).remove(0);
    let table = [
        ("content-type", Some("application/x-ndjson")),
        ("cache-control", Some("no-cache, no-transform")),
        ("x-accel-buffering", Some("no")),
        ("transfer-encoding", Some("chunked")),
        ("connection", None),
        ("content-length", None),
    ];
    for (name, value) in table {
        assert_eq!(response.header(name), value, "{name}");
    }
}

fn old(target: &str, headers: &str) -> String {
    format!("GET {target} HTTP/1.0\r\n{headers}\r\n")
}

#[test]
fn http_1_0_gets_no_chunks_and_one_answer_unless_it_asks() {
    let next = old("/readyz", "");
    let stream = format!("/v1/executions/{}/output", id(1));
    let got = exchanged((old("/v1/tools", "") + &next).as_bytes());
    assert!(got.is_closed && got.calls == [ApiCall::Tools]);
    let response = responses(&[Method::Get], &got.out, true).remove(0);
    assert_eq!(response.header("connection"), Some("close"));

    let kept = old("/v1/tools", "Connection: keep-alive\r\n");
    let here = old("/healthz", "Connection: keep-alive\r\n");
    let got = exchanged((kept + &here + &next).as_bytes());
    assert_eq!(got.calls, [ApiCall::Tools, ApiCall::Ready]);
    let answers = responses(&[Method::Get; 3], &got.out, true);
    let connection: Vec<_> = answers.iter().map(|answer| answer.header("connection")).collect();
    assert_eq!(connection, [Some("keep-alive"), Some("keep-alive"), Some("close")]);

    let kept = old(&stream, "Connection: keep-alive\r\n");
    let got = exchanged((kept + &next).as_bytes());
    assert!(got.is_closed && got.calls.len() == 1);
    let response = responses(&[Method::Get], &got.out, true).remove(0);
    assert_eq!(response.body, b"one,two");
    assert_eq!(response.header("transfer-encoding"), None);
    assert_eq!(response.header("connection"), Some("close"));
}

#[test]
fn a_client_that_closes_is_answered_first() {
    let close = with("GET", "/v1/tools", "Connection: close\r\n");
    let got = exchanged((close + &get("/readyz")).as_bytes());
    assert!(got.is_closed && got.calls == [ApiCall::Tools]);
    // The input ends after two complete requests.
    let both = get("/v1/tools") + &get("/readyz");
    let got = exchange(both.as_bytes(), &[], true);
    assert!(got.is_closed && got.calls == [ApiCall::Tools, ApiCall::Ready]);
    // The input ends within a request.
    let whole = post("/v1/executions", PLAIN);
    for at in 1..whole.len() {
        let TestExchange { calls, out, is_closed } = exchange(&whole.as_bytes()[..at], &[], true);
        assert!(is_closed && calls.is_empty(), "cut at {at}");
        let response = responses(&[Method::Post], &out, true).remove(0);
        assert_eq!((response.status, response.error().0.as_str()), (400, "malformed_request"));
    }
    assert_eq!(exchange(b"", &[], true).out, b"");
}

#[test]
fn the_end_of_input_behind_a_call_does_not_lose_its_answer() {
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    let requests = get("/v1/tools") + &get("/healthz");
    let step = connection.receive(requests.as_bytes(), &around(), &mut out);
    assert_eq!(step, ConnectionStep::Call(ApiCall::Tools));
    assert_eq!(connection.end_input(&around(), &mut out), ConnectionStep::Wait);
    assert!(!connection.wants_bytes());
    connection.answer(&Answer::empty(Status::NO_CONTENT), &around(), &mut out);
    assert_eq!(connection.resume(&around(), &mut out), ConnectionStep::Close);
    let answers = responses(&[Method::Get; 2], &out, true);
    assert_eq!(answers[0].header("connection"), None);
    assert_eq!(answers[1].header("connection"), Some("close"));
    // No other request follows.
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    connection.receive(get("/v1/tools").as_bytes(), &around(), &mut out);
    assert_eq!(connection.end_input(&around(), &mut out), ConnectionStep::Wait);
    connection.answer(&Answer::empty(Status::NO_CONTENT), &around(), &mut out);
    assert_eq!(connection.due(), AwaitedEvent::Nothing);
    assert_eq!(responses(&[Method::Get], &out, true)[0].header("connection"), Some("close"));
}

const EXPECT: &str = "Expect: 100-continue\r\nContent-Type: application/json\r\n";

#[test]
fn a_body_that_is_asked_for_first_is_let_come_or_refused_before_it_does() {
    let length = format!("{EXPECT}Content-Length: {}\r\n", PLAIN.len());
    let head = with("POST", "/v1/executions", &length);
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    assert_eq!(connection.receive(head.as_bytes(), &around(), &mut out), ConnectionStep::Wait);
    assert_eq!(out, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(connection.due(), AwaitedEvent::Rest);
    let step = connection.receive(PLAIN.as_bytes(), &around(), &mut out);
    assert!(matches!(step, ConnectionStep::Call(ApiCall::Execute(_))), "{step:?}");

    let long = limits::HTTP_BODY_BYTES_MAX + 1;
    let table = [
        ("/nowhere", format!("{EXPECT}Content-Length: 9\r\n"), 404),
        ("/v1/tools", format!("{EXPECT}Content-Length: 9\r\n"), 405),
        ("/v1/executions?x", format!("{EXPECT}Content-Length: 9\r\n"), 400),
        ("/v1/executions", format!("{EXPECT}Content-Length: {long}\r\n"), 413),
        ("/v1/executions", "Expect: 100-continue\r\nContent-Length: 9\r\n".into(), 415),
        ("/nowhere", format!("{EXPECT}Transfer-Encoding: chunked\r\n"), 404),
    ];
    for (target, headers, status) in table {
        let got = exchanged(with("POST", target, &headers).as_bytes());
        assert!(got.is_closed && got.calls.is_empty(), "{target} {headers}");
        let response = responses(&[Method::Post], &got.out, true).remove(0);
        assert_eq!(response.status, status, "{target} {headers}");
        assert_eq!(response.header("connection"), Some("close"));
    }
}

#[test]
fn a_refused_request_keeps_its_connection_if_its_body_is_of_sane_length() {
    let body = "x".repeat(5_000);
    let length = format!("Content-Length: {}\r\n", body.len());
    let refused = with("PUT", "/v1/tools", &length) + &body;
    let got = exchanged((refused + &get("/readyz")).as_bytes());
    assert!(!got.is_closed && got.calls == [ApiCall::Ready]);
    // The answer is the one that was due already, not that the body is too long.
    let long = format!("Content-Length: {}\r\n", limits::HTTP_BODY_BYTES_MAX + 1);
    let got = exchanged((with("PUT", "/v1/tools", &long) + &get("/readyz")).as_bytes());
    assert!(got.is_closed && got.calls.is_empty());
    assert_eq!(responses(&[Method::Put], &got.out, true)[0].status, 405);
}

#[test]
fn what_comes_while_an_answer_is_due_waits_for_it() {
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    let one = get("/v1/tools");
    assert_eq!(connection.due(), AwaitedEvent::Request);
    let step = connection.receive(one.as_bytes(), &around(), &mut out);
    assert_eq!(step, ConnectionStep::Call(ApiCall::Tools));
    let mut count = 0;
    while connection.wants_bytes() {
        assert_eq!(connection.receive(one.as_bytes(), &around(), &mut out), ConnectionStep::Wait);
        // Called too early, it does nothing.
        assert_eq!(connection.resume(&around(), &mut out), ConnectionStep::Wait);
        count += 1;
    }
    assert_eq!(count, limits::HTTP_PIPELINED_BYTES_MAX.div_ceil(one.len()));
    assert_eq!(out, b"");
    for left in (0..=count).rev() {
        connection.answer(&Answer::empty(Status::NO_CONTENT), &around(), &mut out);
        let expected =
            if left > 0 { ConnectionStep::Call(ApiCall::Tools) } else { ConnectionStep::Wait };
        assert_eq!(connection.resume(&around(), &mut out), expected);
    }
    assert_eq!(connection.due(), AwaitedEvent::Request);
    assert_eq!(responses(&vec![Method::Get; count + 1], &out, false).len(), count + 1);
}

#[test]
fn bytes_behind_an_answer_wait_for_those_before_them() {
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    let (one, two) = (get("/v1/tools"), get("/readyz"));
    let (front, back) = two.as_bytes().split_at(9);
    connection.receive(one.as_bytes(), &around(), &mut out);
    connection.receive(front, &around(), &mut out);
    connection.answer(&Answer::empty(Status::NO_CONTENT), &around(), &mut out);
    // The rest of the request comes before `resume` is called.
    assert_eq!(connection.receive(back, &around(), &mut out), ConnectionStep::Call(ApiCall::Ready));
}

#[test]
fn many_requests_at_once_are_answered_in_pieces() {
    for (path, count) in [("/openapi.json", 200), ("/nowhere", 1_000)] {
        let one = exchange(get(path).as_bytes(), &[], false).out.len();
        let answers_max = limits::HTTP_ANSWERS_BYTES_MAX.div_ceil(one);
        let answers_max = answers_max.min(limits::REQUESTS_PER_TURN as usize);
        let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
        let many = get(path).repeat(count);
        let mut step = connection.receive(many.as_bytes(), &around(), &mut out);
        let (mut all, mut pieces) = (Vec::new(), 1);
        while step == ConnectionStep::Pause {
            assert_eq!(out.len(), answers_max * one, "{path}");
            all.append(&mut out);
            step = connection.resume(&around(), &mut out);
            pieces += 1;
        }
        assert_eq!(step, ConnectionStep::Wait);
        all.append(&mut out);
        assert_eq!(pieces, count.div_ceil(answers_max), "{path}");
        assert_eq!(responses(&vec![Method::Get; count], &all, false).len(), count);
    }
}

#[test]
fn time_out_says_so_within_a_request_only() {
    let whole = post("/v1/executions", PLAIN);
    for at in 0..whole.len() {
        let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
        let front = &whole.as_bytes()[..at];
        assert_eq!(connection.receive(front, &around(), &mut out), ConnectionStep::Wait);
        let is_idle = at == 0;
        assert_eq!(
            connection.due(),
            if is_idle { AwaitedEvent::Request } else { AwaitedEvent::Rest }
        );
        assert_eq!(connection.time_out(&around(), &mut out), ConnectionStep::Close);
        assert_eq!(connection.due(), AwaitedEvent::Nothing);
        match is_idle {
            true => assert_eq!(out, b""),
            false => assert_eq!(responses(&[Method::Post], &out, true)[0].status, 408),
        }
        assert_eq!(
            connection.receive(whole.as_bytes(), &around(), &mut Vec::new()),
            ConnectionStep::Close
        );
    }
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    connection.receive(whole.as_bytes(), &around(), &mut out);
    assert_eq!(connection.time_out(&around(), &mut out), ConnectionStep::Wait); // An answer is due.
    assert_eq!(out, b"");
}

#[test]
fn an_idle_connection_has_no_memory_of_its_own() {
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    // The connection counts the heads that came, and keeps nothing else of them.
    let counted = |connection: &HttpConnection| format!("{:?}", connection.arrival());
    let fresh = format!("{connection:?}").replace(&counted(&connection), "");
    for request in [get("/healthz"), post("/v1/executions", PLAIN), get("/nowhere")] {
        let (front, back) = request.as_bytes().split_at(20);
        connection.receive(front, &around(), &mut out);
        if let ConnectionStep::Call(_) = connection.receive(back, &around(), &mut out) {
            connection.receive(get("/healthz").as_bytes(), &around(), &mut out);
            connection.answer(&Answer::empty(Status::NO_CONTENT), &around(), &mut out);
            assert_eq!(connection.resume(&around(), &mut out), ConnectionStep::Wait);
        }
        let now = format!("{connection:?}").replace(&counted(&connection), "");
        assert_eq!(now, fresh, "{request}");
        assert_eq!(connection.arrival().body_bytes, None);
        assert_eq!(connection.memory_bytes(), 0, "{request}");
    }
}

#[test]
fn answers_are_spelled_so() {
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    connection.receive(post("/v1/executions", PLAIN).as_bytes(), &around(), &mut out);
    let answer = Answer::created(&json!({"a": 1}), "/v1/executions/x");
    assert_eq!((answer.status(), answer.body()), (Status::CREATED, &b"{\"a\":1}\n"[..]));
    connection.answer(&answer, &around(), &mut out);
    let expected = "HTTP/1.1 201 Created\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                    content-type: application/json\r\ncache-control: no-store\r\n\
                    location: /v1/executions/x\r\ncontent-length: 8\r\n\r\n{\"a\":1}\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

/// Sends sequences of valid and faulty requests, cut anywhere.
#[test]
fn whatever_comes_has_the_same_answers_however_it_is_cut() {
    let good = [
        get("/v1/tools"),
        get(&format!("/v1/executions/{}/events?policy=block&max_chunks=5", id(1))),
        post("/v1/executions", r#"{"tool":"t","policy":{"name":"drop"}}"#),
        with("POST", "/v1/executions", &format!("{EXPECT}Transfer-Encoding: chunked\r\n"))
            + "c\r\n{\"tool\":\"t\"}\r\n0\r\n\r\n",
        old("/healthz", "Connection: keep-alive\r\n"),
    ];
    let odd = b"\r\n :;,/?&=%+{}[]\"\\0aZ\x00\xff";
    let mut random = Random::new(1);
    let (mut call_count, mut closed_count) = (0, 0);
    for round in 0..3_000 {
        let mut bytes = Vec::new();
        for _ in 0..random.between(1, 4) {
            bytes.extend_from_slice(good[random.below(good.len() as u64) as usize].as_bytes());
        }
        for _ in 0..random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            let byte = odd[random.below(odd.len() as u64) as usize];
            match random.below(3) {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        let mut cuts: Vec<usize> =
            (0..random.below(9)).map(|_| random.below(bytes.len() as u64) as usize).collect();
        cuts.sort_unstable();
        let whole = exchange(&bytes, &[], false);
        assert_eq!(exchange(&bytes, &cuts, false), whole, "round {round}");
        call_count += whole.calls.len();
        closed_count += usize::from(whole.is_closed);
    }
    assert!(call_count > 1_000 && closed_count > 300, "{call_count} {closed_count}");
}
