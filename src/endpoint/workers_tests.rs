//! Requests of workers: tables of requests, and long bodies. Each is cut at every byte.

use std::time::Duration;

use serde_json::json;

use super::call_tests::id;
use super::exchange::{answered, around, called, exchange, exchanged, get, post, responses, with};
use super::*;
use crate::base::{ExecutionId, Random};
use crate::limits;
use crate::stream::{Kind, Policy};
use crate::tool::{Gather, Report};
use crate::wire::http1::{Method, Status};

const SESSION: &str = "X-Session-ID: worker-1\r\n";

fn put(name: &str, body: &str) -> String {
    post(&format!("/v1/virtual-tools/{name}"), body).replacen("POST", "PUT", 1)
}

/// Returns the request with the name of a worker in its head.
fn from_worker(request: &str) -> String {
    request.replacen("Host: h\r\n", &format!("Host: h\r\n{SESSION}"), 1)
}

fn part_of(call: ExecutionId) -> DeliveredPart {
    DeliveredPart { call, seq: None, content: None, progress: None, end: None }
}

#[test]
fn virtual_tools_are_put_listed_and_deleted() {
    let body = r#"{"description":"Finds.","input_schema":{"type":"object"},
        "timeouts":{"total_ms":5},"policy":"block","coalesce":{"delay_ms":7}}"#;
    let ApiCall::PutVirtualTool(tool) = called(&put("a.b-c_1", body)) else {
        panic!("another call")
    };
    assert_eq!((tool.spec.name.as_str(), tool.spec.description.as_str()), ("a.b-c_1", "Finds."));
    assert_eq!(tool.spec.timeouts.total, Some(Duration::from_millis(5)));
    assert_eq!(tool.spec.subscribers.policy, Policy::Block);
    let bytes_max = limits::GATHER_BYTES_DEFAULT as u32;
    let gather = Gather { delay_max: Duration::from_millis(7), bytes_max };
    assert_eq!(tool.gather, Some(gather));
    assert_eq!(tool.to_json()["coalesce"], json!({"delay_ms": 7, "max_bytes": bytes_max}));
    assert_eq!(called(&get("/v1/virtual-tools")), ApiCall::VirtualTools);
    let gone = called(&with("DELETE", "/v1/virtual-tools/a", ""));
    assert_eq!(gone, ApiCall::DeleteVirtualTool("a".into()));
    for name in ["a%20b", "%C3%A4", &"a".repeat(65)] {
        for request in [put(name, body), with("DELETE", &format!("/v1/virtual-tools/{name}"), "")] {
            let response = answered(&request);
            let (code, field, limit) = response.error();
            assert_eq!((response.status, code.as_str()), (400, "invalid_parameter"), "{request}");
            assert_eq!((field.as_deref(), limit), (Some("name"), Some(64)));
        }
    }
    let long = json!({"description": "d", "input_schema": {"description": "x".repeat(70_000)}});
    assert_eq!(answered(&put("t", &long.to_string())).status, 413);
    for body in ["{}", r#"{"description":"d"}"#, r#"{"input_schema":{"type":"object"}}"#] {
        assert_eq!(answered(&put("t", body)).error().0, "missing_field", "{body}");
    }
}

#[test]
fn a_worker_says_what_it_calls_itself() {
    let all = Work { session: "worker-1".into(), tools: None };
    let path = "/v1/tool-calls/stream";
    assert_eq!(called(&with("GET", path, SESSION)), ApiCall::Work(all.clone().into()));
    let some = Work { tools: Some(vec!["a".into(), "b".into()]), ..all };
    let request = with("GET", &format!("{path}?tools=a,b"), SESSION);
    assert_eq!(called(&request), ApiCall::Work(some.into()));
    let long = format!("X-Session-ID: {}\r\n", "a".repeat(129));
    let table = [
        ("", "missing_header"),
        ("X-Session-ID: \r\n", "invalid_header"),
        ("X-Session-ID: a b\r\n", "invalid_header"),
        ("X-Session-ID: a\tb\r\n", "invalid_header"),
        ("X-Session-ID: \u{e4}\r\n", "invalid_header"),
        ("X-Session-ID: a\r\nX-Session-ID: b\r\n", "invalid_header"),
        (&long, "invalid_header"),
    ];
    for (headers, code) in table {
        let results = format!("{headers}Content-Type: application/json\r\nContent-Length: 2\r\n");
        for request in
            [with("GET", path, headers), with("POST", "/v1/tool-results/stream", &results) + "{}"]
        {
            let response = answered(&request);
            assert_eq!((response.status, response.error().0.as_str()), (400, code), "{request}");
            assert_eq!(response.error().1.as_deref(), Some("x-session-id"));
        }
    }
    let longest = format!("X-Session-ID: {}\r\n", "~".repeat(128));
    assert!(matches!(called(&with("GET", path, &longest)), ApiCall::Work(_)));
}

#[test]
fn a_part_is_what_its_members_say() {
    let call = id(1);
    let plain = part_of(call);
    let text = |text: &str| Some((Kind::Output, text.as_bytes().to_vec()));
    let value = |text: &str| Some((Kind::Json, text.as_bytes().to_vec()));
    let table = [
        (json!({}), plain.clone()),
        (json!({"content": "a\nb"}), DeliveredPart { content: text("a\nb"), ..plain.clone() }),
        (
            json!({"content": "", "complete": false}),
            DeliveredPart { content: text(""), ..plain.clone() },
        ),
        (
            json!({"content": {"results": [1], "hasMore": true}}),
            DeliveredPart { content: value(r#"{"results":[1],"hasMore":true}"#), ..plain.clone() },
        ),
        (json!({"content": null}), DeliveredPart { content: value("null"), ..plain.clone() }),
        (
            json!({"complete": true, "seq": 9}),
            DeliveredPart { seq: Some(9), end: Some(Ok(())), ..plain.clone() },
        ),
        (
            json!({"error": "it burns"}),
            DeliveredPart { end: Some(Err("it burns".into())), ..plain.clone() },
        ),
        (
            json!({"progress": {"progress": 0.2, "total": 1, "message": "Analyzing files..."}}),
            DeliveredPart {
                progress: Some(Report::amount(0.2, Some(1.0)).with_message("Analyzing files...")),
                ..plain.clone()
            },
        ),
    ];
    for (mut body, part) in table {
        body["tool_call_id"] = call.to_string().into();
        let request = from_worker(&post("/v1/tool-results/stream", &body.to_string()));
        let deliver =
            Deliver { session: "worker-1".into(), part, producer: None, is_of_many: false };
        assert_eq!(called(&request), ApiCall::Deliver(deliver.into()), "{body}");
    }
    let long = json!({"tool_call_id": call.to_string(), "content": "x".repeat(256 << 10)});
    let request = from_worker(&post("/v1/tool-results/stream", &long.to_string()));
    assert_eq!((answered(&request).status, answered(&request).error().2), (413, Some(256 << 10)));
}

/// Returns a request with a body of lines, in one piece or in chunks of random sizes.
fn lines_request(body: &str, chunks: Option<&mut Random>) -> String {
    let head = format!("{SESSION}Content-Type: application/x-ndjson\r\n");
    let Some(random) = chunks else {
        let length = format!("Content-Length: {}\r\n", body.len());
        return with("POST", "/v1/tool-results/stream", &(head + &length)) + body;
    };
    let head = head + "Transfer-Encoding: chunked\r\n";
    let mut request = with("POST", "/v1/tool-results/stream", &head);
    let mut rest = body;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(random.between(1, 40) as usize));
        request += &format!("{:x}\r\n{piece}\r\n", piece.len());
        rest = after;
    }
    request + "0\r\n\r\n"
}

fn line(seq: u64, content: &str) -> String {
    json!({"tool_call_id": id(1).to_string(), "content": content, "seq": seq}).to_string() + "\n"
}

#[test]
fn each_line_of_a_long_body_is_a_call_however_it_is_cut() {
    let mut random = Random::new(5);
    let body: String = (1..=5).map(|seq| line(seq, &"x".repeat(seq as usize))).collect();
    let blank = body.replace("\n", "\n \r\n\n");
    for body in [body.clone(), body.trim_end().to_owned(), blank] {
        for chunked in [false, true] {
            let request = lines_request(&body, chunked.then_some(&mut random));
            // The request that follows is neither lost nor taken for a line.
            let got = exchanged((request + &get("/v1/tools")).as_bytes());
            assert_eq!((got.calls.len(), got.is_closed), (6, false));
            assert_eq!(got.calls[5], ApiCall::Tools);
            for (index, call) in got.calls[..5].iter().enumerate() {
                let ApiCall::Deliver(deliver) = call else { panic!("{call:?}") };
                assert!(deliver.is_of_many && &*deliver.session == "worker-1");
                assert_eq!(deliver.part.seq, Some(index as u64 + 1));
            }
            let all = responses(&[Method::Post, Method::Get], &got.out, false);
            assert_eq!(all[0].json(), json!({"success": true, "parts": 5}));
            assert_eq!(all[1].status, 204);
        }
    }
    for body in ["", "\n", " \n\r\n"] {
        let got = exchanged(lines_request(body, None).as_bytes());
        let all = responses(&[Method::Post], &got.out, false);
        assert_eq!(all[0].json(), json!({"success": true, "parts": 0}));
    }
}

#[test]
fn a_line_that_is_wrong_ends_the_body_and_says_which_it_was() {
    let good = line(1, "a");
    let long = format!("\"{}\"", "x".repeat(256 << 10));
    let table = [
        ("{\n", 400, "malformed_json"),
        ("[]\n", 400, "invalid_body"),
        ("{\"a\":1}\n", 400, "unknown_field"),
        (&long, 413, "body_too_long"),
    ];
    for (bad, status, code) in table {
        let body = good.clone() + bad + &good;
        let request = lines_request(&body, None) + &get("/v1/tools");
        let got = exchange(request.as_bytes(), &[], false);
        assert!(got.is_closed && got.calls.len() == 1, "{:?}", got.calls);
        let response = responses(&[Method::Post], &got.out, true).remove(0);
        assert_eq!((response.status, response.error().0.as_str()), (status, code));
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with("part 2: "), "{message}");
        if bad.len() < 100 {
            assert_eq!(exchanged(request.as_bytes()), got);
        }
    }
    // The input ends in the middle of a line: the complete lines were taken.
    let request = lines_request(&(good.clone() + &line(2, "b")), None);
    let got = exchange(&request.as_bytes()[..request.len() - 5], &[], true);
    assert!(got.is_closed && got.calls.len() == 1);
    assert_eq!(responses(&[Method::Post], &got.out, true)[0].status, 400);
}

#[test]
fn nothing_more_is_read_while_a_part_waits() {
    let body = line(1, "a") + &line(2, "b");
    let request = lines_request(&body, None);
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    let (now, later) = request.as_bytes().split_at(request.len() - 3);
    let ConnectionStep::Call(ApiCall::Deliver(_)) = connection.receive(now, &around(), &mut out)
    else {
        panic!("expected the part of the first line")
    };
    assert!(!connection.wants_bytes() && connection.due() == AwaitedEvent::Answer);
    assert_eq!(connection.receive(later, &around(), &mut out), ConnectionStep::Wait);
    assert_eq!(connection.time_out(&around(), &mut out), ConnectionStep::Wait);
    connection.take_part(true);
    assert_eq!((connection.due(), connection.wants_bytes()), (AwaitedEvent::Parts, true));
    let ConnectionStep::Call(ApiCall::Deliver(_)) = connection.resume(&around(), &mut out) else {
        panic!("expected the part of the second line")
    };
    let error = ApiError::new(Status::GONE, "call_ended", "it is over");
    connection.answer_error(&error, &around(), &mut out);
    assert_eq!(connection.resume(&around(), &mut out), ConnectionStep::Close);
    let response = responses(&[Method::Post], &out, true).remove(0);
    assert_eq!(response.json()["error"]["message"], "part 2: it is over");
}

#[test]
fn a_long_body_on_which_nothing_comes_is_given_up() {
    let request = lines_request(&line(1, "a"), None);
    let (mut connection, mut out) = (HttpConnection::new(), Vec::new());
    let cut = request.len() - 5;
    assert_eq!(
        connection.receive(&request.as_bytes()[..cut], &around(), &mut out),
        ConnectionStep::Wait
    );
    assert_eq!(connection.due(), AwaitedEvent::Parts);
    assert_eq!(connection.time_out(&around(), &mut out), ConnectionStep::Close);
    assert_eq!(responses(&[Method::Post], &out, true)[0].status, 408);
}
