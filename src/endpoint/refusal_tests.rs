//! Tables of requests that are refused, with their errors. Each request is cut at every byte.

use super::ApiError;
use super::call_tests::{id, token};
use super::exchange::{answered, get, post, with};
use crate::engine::{AcknowledgeError, CancelError, NotFound, OpenError, SubscribeError};
use crate::limits;
use crate::stream::Outcome;
use crate::tool::{ArgumentError, StartError};
use crate::wire::http1::Method;

/// The status, code, field and limit of an error answer.
type ErrorAnswer<'a> = (u16, &'a str, Option<&'a str>, Option<u64>);

fn assert_refused(request: &str, said: ErrorAnswer<'_>) {
    let response = answered(request);
    let (code, field, limit) = response.error();
    let got = (response.status, code.as_str(), field.as_deref(), limit);
    let head: String = request.chars().take(200).collect();
    assert_eq!(got, said, "{head}\n{}", String::from_utf8_lossy(&response.body));
}

#[test]
fn what_is_not_there_is_not_found() {
    let (a, t) = (id(1), token());
    let unknown = ["/v1", "/v1/", "/v1/tools/", "//v1/tools", "/V1/tools", "/v1/executions/"];
    for target in unknown {
        assert_refused(&get(target), (404, "unknown_path", None, None));
    }
    for target in [format!("/v1/executions/{a}/"), "/a".repeat(3_000), format!("/v1/events/{a}")] {
        assert_refused(&get(&target), (404, "unknown_path", None, None));
        assert_refused(&with("OPTIONS", &target, ""), (404, "unknown_path", None, None));
    }
    let (short, upper) = (&a.to_string()[1..], a.to_string().to_uppercase());
    for target in [
        "/v1/executions/x".to_owned(),
        format!("/v1/executions/{short}"),
        format!("/v1/executions/{upper}/events"),
        format!("/v1/executions/{t}/result"),
        format!("/v1/progress/{a}"),
    ] {
        assert_refused(&get(&target), (404, "not_found", None, None));
    }
    for subscriber in ["x", "s1", "1.2", "s01.2"] {
        let target = format!("/v1/executions/{a}/subscribers/{subscriber}");
        assert_refused(&with("DELETE", &target, ""), (404, "not_found", None, None));
    }
    for target in ["/v1/%", "/v1/%00", "/v1/..", "/v1/a%2fb", "/%ff"] {
        assert_refused(&get(target), (400, "malformed_path", None, None));
    }
}

#[test]
fn other_methods_are_not_allowed_and_the_right_ones_are_said() {
    let (a, s) = (id(1), "s1.1");
    let table = [
        ("/v1/tools", "GET, HEAD, OPTIONS"),
        ("/v1/executions", "GET, HEAD, POST, OPTIONS"),
        (&format!("/v1/executions/{a}"), "GET, HEAD, DELETE, OPTIONS"),
        (&format!("/v1/executions/{a}/subscribers/{s}"), "DELETE, OPTIONS"),
        (&format!("/v1/executions/{a}/subscribers/{s}/acks"), "POST, OPTIONS"),
        ("/healthz", "GET, HEAD, OPTIONS"),
    ];
    for (target, allow) in table {
        for method in Method::ALL {
            let response = answered_unless_called(&with(method.name(), target, ""));
            match response {
                Some(response) if method == Method::Options => {
                    assert_eq!((response.status, response.body.len()), (204, 0), "{target}");
                    assert_eq!(response.header("allow"), Some(allow));
                }
                Some(response) if !allow.contains(method.name()) => {
                    assert_eq!(response.status, 405, "{method} {target}");
                    assert_eq!(response.header("allow"), Some(allow));
                    assert_eq!(response.header("connection"), None);
                }
                _ => assert!(allow.contains(method.name()), "{method} {target}"),
            }
        }
    }
    for method in ["PATCH", "TRACE", "QUERY", "get"] {
        let response = answered(&with(method, "/v1/tools", ""));
        assert_eq!((response.status, response.header("allow")), (405, Some(table[0].1)));
        assert_refused(&with(method, "/nowhere", ""), (404, "unknown_path", None, None));
    }
    let all = answered(&with("OPTIONS", "*", ""));
    let all_methods = Some("GET, HEAD, POST, PUT, DELETE, OPTIONS");
    assert_eq!((all.status, all.header("allow")), (204, all_methods));
}

fn answered_unless_called(request: &str) -> Option<super::exchange::Response> {
    let is_call = !super::exchange::exchange(request.as_bytes(), &[], false).calls.is_empty();
    (!is_call).then(|| answered(request))
}

#[test]
fn bad_parameters_are_named() {
    let (a, b) = (id(1), id(2));
    let events = format!("/v1/executions/{a}/events");
    let many: Vec<String> = (0..=32).map(|index| id(index).to_string()).collect();
    let most = Some(limits::STREAM_CURSORS_MAX as u64);
    let pairs_max = Some(limits::HTTP_QUERY_PAIRS_MAX as u64);
    let invalid = |field| (400, "invalid_parameter", Some(field), None);
    let table: &[(String, ErrorAnswer<'_>)] = &[
        ("/v1/tools?x=1".into(), (400, "unknown_parameter", Some("x"), None)),
        (format!("{events}?Policy=block"), (400, "unknown_parameter", Some("Policy"), None)),
        (format!("{events}?executions={b}"), (400, "unknown_parameter", Some("executions"), None)),
        (format!("{events}?from=live&from=live"), (400, "repeated_parameter", Some("from"), None)),
        (format!("{events}?{}", "a&".repeat(65)), (400, "too_many_parameters", None, pairs_max)),
        (format!("{events}?from="), invalid("from")),
        (format!("{events}?from=0"), invalid("from")),
        (format!("{events}?from=-1"), invalid("from")),
        (format!("{events}?from=end"), invalid("from")),
        (format!("{events}?from=18446744073709551616"), invalid("from")),
        (format!("{events}?kinds="), invalid("kinds")),
        (format!("{events}?kinds=stdout,x"), invalid("kinds")),
        (format!("{events}?policy=%FF"), invalid("policy")),
        ("/v1/events".into(), (400, "missing_parameter", Some("executions"), None)),
        ("/v1/events?executions=".into(), (400, "missing_parameter", Some("executions"), None)),
        ("/v1/events?executions=x".into(), invalid("executions")),
        (format!("/v1/events?executions={a},{a}"), invalid("executions")),
        (
            format!("/v1/events?executions={}", many.join(",")),
            (400, "invalid_parameter", Some("executions"), most),
        ),
        (format!("/v1/events?executions={a}&from=5"), invalid("from")),
    ];
    for (target, said) in table {
        assert_refused(&get(target), *said);
    }
    let unused = post("/v1/executions?policy=block", r#"{"tool":"t"}"#);
    assert_refused(&unused, invalid("policy"));
}

#[test]
fn bad_cursors_and_foreign_formats_are_named() {
    let (a, b) = (id(1), id(2));
    let one = format!("/v1/executions/{a}/events");
    let two = format!("/v1/events?executions={a},{b}");
    let cursor = (400, "invalid_cursor", Some("last-event-id"), None);
    let header = (400, "invalid_header", Some("last-event-id"), None);
    let table = [
        (&one, "Last-Event-ID: x\r\n".to_owned(), cursor),
        (&one, "Last-Event-ID:\r\n".into(), cursor),
        (&one, "Last-Event-ID: 18446744073709551615\r\n".into(), cursor),
        (&one, format!("Last-Event-ID: {b}:1\r\n"), cursor),
        (&one, format!("Last-Event-ID: {a}:1,{b}:1\r\n"), cursor),
        (&two, "Last-Event-ID: 1\r\n".into(), cursor),
        (&two, format!("Last-Event-ID: {a}:1\r\n"), cursor),
        (&one, "Last-Event-ID: 1\r\nLast-Event-ID: 1\r\n".into(), header),
        (&one, "Last-Event-ID: \u{e4}\r\n".into(), header),
        (&one, "Accept: text/html\r\n".into(), (406, "not_acceptable", Some("accept"), None)),
    ];
    for (target, headers, said) in table {
        assert_refused(&with("GET", target, &headers), said);
    }
    for garbage in ["garbage", "-1", &format!("{a}")] {
        let response = answered(&with("GET", &one, &format!("Last-Event-ID: {garbage}\r\n")));
        let message = response.json()["error"]["message"].to_string();
        assert!(message.contains("a cursor must be EXECUTION:SEQ:BYTES"), "{garbage}: {message}");
    }
}

#[test]
fn bad_bodies_are_refused_and_say_where() {
    let malformed = (400, "malformed_json", None, None);
    let depth_max = u64::from(limits::JSON_DEPTH_MAX);
    let deep = format!(r#"{{"tool":"t","arguments":{}}}"#, "[".repeat(70) + &"]".repeat(70));
    let name_max = Some(limits::TOOL_NAME_CHARS_MAX as u64);
    let tool = (400, "invalid_field", Some("tool"), name_max);
    let table: &[(&str, ErrorAnswer<'_>)] = &[
        ("", malformed),
        ("{", malformed),
        (r#"{"tool":"t"} x"#, malformed),
        (r#"{"tool":"t","tool":"t"}"#, malformed),
        (r#"{"tool":"t","arguments":{"a":1,"a":2}}"#, malformed),
        (&deep, (400, "malformed_json", None, Some(depth_max))),
        ("[]", (400, "invalid_body", None, None)),
        ("null", (400, "invalid_body", None, None)),
        ("{}", (400, "missing_field", Some("tool"), None)),
        (r#"{"tool":"t","Start":1}"#, (400, "unknown_field", Some("Start"), None)),
        (r#"{"tool":""}"#, tool),
        (r#"{"tool":7}"#, tool),
        (r#"{"tool":null}"#, tool),
        (&format!(r#"{{"tool":"{}"}}"#, "t".repeat(65)), tool),
        (r#"{"tool":"t","arguments":[]}"#, (400, "invalid_field", Some("arguments"), None)),
        (r#"{"tool":"t","arguments":null}"#, (400, "invalid_field", Some("arguments"), None)),
        (r#"{"tool":"t","policy":{}}"#, (400, "missing_field", Some("policy.name"), None)),
        (
            r#"{"tool":"t","policy":{"name":"drop","x":1}}"#,
            (400, "unknown_field", Some("policy.x"), None),
        ),
        (
            r#"{"tool":"t","start":{}}"#,
            (400, "missing_field", Some("start.after_subscribers"), None),
        ),
        (r#"{"tool":"t","hold":{}}"#, (400, "missing_field", Some("hold.until_read_ms"), None)),
        (r#"{"tool":"t","timeouts":null}"#, (400, "invalid_field", Some("timeouts"), None)),
    ];
    for (body, said) in table {
        assert_refused(&post("/v1/executions", body), *said);
    }
}

#[test]
fn bodies_of_other_types_or_lengths_are_refused() {
    let body = r#"{"tool":"t"}"#;
    let length = format!("Content-Length: {}\r\n", body.len());
    let media_type = (415, "unsupported_media_type", Some("content-type"), None);
    for headers in ["", "Content-Type: text/plain\r\n", "Content-Type: application/jsonx\r\n"] {
        let request = with("POST", "/v1/executions", &format!("{headers}{length}")) + body;
        assert_refused(&request, media_type);
    }
    let twice = "Content-Type: application/json\r\n".repeat(2);
    let request = with("POST", "/v1/executions", &format!("{twice}{length}")) + body;
    assert_refused(&request, (400, "invalid_header", Some("content-type"), None));
    let zipped = format!("Content-Type: application/json\r\nContent-Encoding: gzip\r\n{length}");
    let encoding = (415, "unsupported_media_type", Some("content-encoding"), None);
    assert_refused(&(with("POST", "/v1/executions", &zipped) + body), encoding);
    let none = with("POST", "/v1/executions", "Content-Type: application/json\r\n");
    assert_refused(&none, (411, "length_required", None, None));
    let acks = format!("/v1/executions/{}/subscribers/s1.1/acks", id(1));
    let (small, large) = (limits::HTTP_SMALL_BODY_BYTES_MAX, limits::HTTP_BODY_BYTES_MAX);
    let table = [("/v1/executions", "POST", large), (&acks, "POST", small), ("/readyz", "GET", 0)];
    for (target, method, bytes_max) in table {
        let too_long = (413, "body_too_long", None, Some(bytes_max));
        let json = "Content-Type: application/json\r\n";
        let known = format!("{json}Content-Length: {}\r\n", bytes_max + 1);
        assert_refused(&with(method, target, &known), too_long);
        let chunk = format!("{:x}\r\n", bytes_max + 1);
        let chunked = with(method, target, &format!("{json}Transfer-Encoding: chunked\r\n"));
        assert_refused(&(chunked + &chunk + "x"), too_long);
    }
}

#[test]
fn what_is_no_http_is_refused_and_the_connection_closed() {
    let table = [
        ("nonsense\r\n\r\n", 400, "malformed_request", None),
        ("GET / HTTP/1.1\r\n\r\n", 400, "malformed_request", None),
        ("CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n", 501, "not_implemented", None),
        ("GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505, "unknown_version", None),
        ("GET / HTTP/1.1\r\nHost: h\r\nExpect: x\r\n\r\n", 417, "unknown_expectation", None),
        (
            &format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(9_000)),
            414,
            "target_too_long",
            Some(u64::from(limits::HTTP_FIRST_LINE_BYTES_MAX)),
        ),
    ];
    for (request, status, code, limit) in table {
        assert_refused(request, (status, code, None, limit));
        assert_eq!(answered(request).header("connection"), Some("close"), "{request}");
    }
}

#[test]
fn errors_of_the_engine_have_a_status_and_a_code_each() {
    let busy = OpenError::Busy { retry_after_ms: 250 };
    let limit = SubscribeError::Limit { limit_chunks: 99, limit_chunks_max: 14 };
    let argument = ArgumentError::new("root", "is missing");
    let unknown = StartError::UnknownTool { name: "x".into(), known: vec![] };
    let asks = StartError::Asks { name: "x".into() };
    let table: [(ApiError, ErrorAnswer<'_>, Option<u64>); 18] = [
        (NotFound.into(), (404, "not_found", None, None), None),
        (busy.into(), (503, "busy", None, None), Some(1)),
        (
            OpenError::TooMany { executions_max: 8 }.into(),
            (429, "too_many_executions", None, Some(8)),
            Some(1),
        ),
        (
            OpenError::Invalid { field: "start.count" }.into(),
            (400, "invalid_field", Some("start.after_subscribers"), None),
            None,
        ),
        (OpenError::ShuttingDown.into(), (503, "shutting_down", None, None), Some(5)),
        (SubscribeError::NotFound.into(), (404, "not_found", None, None), None),
        (limit.into(), (400, "invalid_field", Some("max_chunks"), Some(14)), None),
        (
            SubscribeError::Invalid { field: "ack_window" }.into(),
            (400, "invalid_field", Some("acks"), None),
            None,
        ),
        (
            SubscribeError::NotYet { next_seq: 5 }.into(),
            (409, "not_yet", Some("from"), Some(5)),
            None,
        ),
        (
            SubscribeError::NoLongerHeld { tail_seq: 6 }.into(),
            (410, "no_longer_held", Some("from"), Some(6)),
            None,
        ),
        (
            SubscribeError::TooMany { subscribers_max: 7 }.into(),
            (429, "too_many_subscribers", None, Some(7)),
            Some(1),
        ),
        (SubscribeError::ShuttingDown.into(), (503, "shutting_down", None, None), Some(5)),
        (CancelError::Ended(Outcome::Failed).into(), (409, "already_ended", None, None), None),
        (AcknowledgeError::NotAsked.into(), (409, "acks_not_asked", None, None), None),
        (
            AcknowledgeError::NotGiven { next_seq: 5 }.into(),
            (409, "not_given", Some("seq"), Some(4)),
            None,
        ),
        (
            StartError::Argument(argument).into(),
            (400, "invalid_argument", Some("arguments.root"), None),
            None,
        ),
        (unknown.into(), (404, "unknown_tool", Some("tool"), None), None),
        (asks.into(), (409, "tool_asks", Some("tool"), None), None),
    ];
    for (error, said, retry_after_s) in table {
        let ApiError { status, code, ref field, limit, .. } = error;
        assert_eq!((status.code(), code, field.as_deref(), limit), said, "{error}");
        let mut out = Vec::new();
        let context = super::answer::ResponseContext {
            keeps_alive: true,
            ..super::answer::ResponseContext::LAST
        };
        super::Answer::error(&error).write(context, &super::exchange::around(), &mut out);
        let response = super::exchange::responses(&[Method::Get], &out, false).remove(0);
        let header = response.header("retry-after").map(|text| text.parse().unwrap());
        assert_eq!(header, retry_after_s, "{error}");
    }
}
