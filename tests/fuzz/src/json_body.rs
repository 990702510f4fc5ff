//! Any bytes as a body of the routes that take one. The result is a call within its bounds, or a
//! refusal with a reason.

use std::time::Duration;

use serde_json::Value;
use streamdoor::endpoint::{ApiCall, Execute};
use streamdoor::limits;
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};

use super::draw::cuts;
use super::peer::{Exchange, exchange};

const EXECUTE: &str = "/v1/executions";
const STREAM: &str = "/v1/executions?format=ndjson&policy=block";
const RESPOND: &str = "/v1/responses";
const RUNS: [&str; 2] = ["/langgraph/runs/stream", "/langgraph/threads/t/runs"];
const SEARCHES: [&str; 2] = ["/langgraph/threads/search", "/langgraph/assistants/search"];
const A2A: [&str; 3] = ["/a2a", "/a2a/message:send", "/a2a/message:stream"];
const ACKNOWLEDGE: &str = "/v1/executions/00000000000000000000000000/subscribers/s1.1/acks";

/// Sends the body, with its length or as chunks, cut in several ways.
fn posted(target: &str, body: &[u8], is_chunked: bool) -> Exchange {
    let mut bytes =
        format!("POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            .into_bytes();
    if target.starts_with("/a2a") {
        bytes.extend_from_slice(b"A2A-Version: 1.0\r\n");
    }
    if is_chunked {
        bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        for piece in body.chunks(7) {
            bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            bytes.extend_from_slice(piece);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
    } else {
        let length = body.len();
        bytes.extend_from_slice(format!("Content-Length: {length}\r\n\r\n").as_bytes());
        bytes.extend_from_slice(body);
    }
    let whole = exchange(&bytes, [], false);
    let [_, _, some] = cuts(&bytes);
    assert_eq!(exchange(&bytes, some, false), whole);
    whole
}

/// Returns the status and the document of the only reply.
fn answer(out: &[u8]) -> (u16, Value) {
    let (mut input, mut reader) = (out, ResponseReader::new());
    reader.expect(Method::Post);
    let (mut status, mut body) = (0, Vec::new());
    loop {
        match reader.read(&mut input).expect("we can read what we write") {
            Some(ResponsePart::Head(head)) => status = head.status.code(),
            Some(ResponsePart::Body(piece)) => body.extend_from_slice(piece),
            Some(ResponsePart::End) => break,
            None => panic!("an answer is cut off"),
        }
    }
    assert!(input.is_empty());
    (status, serde_json::from_slice(&body).expect("an error is JSON"))
}

/// Asserts that the body was refused with a code and a message.
fn check_refusal(got: &Exchange) {
    let (status, document) = answer(&got.out);
    assert!(matches!(status, 400 | 413), "{status} {document}");
    let error = &document["error"];
    assert!(error["code"].as_str().is_some_and(|code| !code.is_empty()), "{document}");
    assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{document}");
    assert_eq!(got.is_closed, status == 413);
}

/// Asserts that the accepted call equals the body, within its bounds.
fn check_execute(execute: &Execute, body: &[u8]) {
    let value: Value = serde_json::from_slice(body).expect("it was accepted as JSON");
    assert_eq!(value["tool"].as_str(), Some(execute.tool.as_str()));
    assert!(execute.tool.len() <= limits::TOOL_NAME_CHARS_MAX);
    assert!(execute.arguments.is_object());
    assert_eq!(value.get("arguments").unwrap_or(&serde_json::json!({})), &execute.arguments);
    let bounded = |duration: Option<Duration>| {
        assert!(duration.is_none_or(|duration| duration <= limits::EXECUTION_DURATION_MAX));
    };
    let opening = &execute.opening;
    bounded(opening.retention);
    bounded(opening.block_deadline);
    if let Some(timeouts) = opening.timeouts {
        bounded(timeouts.first_chunk);
        bounded(timeouts.inactivity);
        bounded(timeouts.total);
    }
    let depth = depth(&value);
    assert!(depth <= limits::JSON_DEPTH_MAX, "{depth} deep");
}

/// Asserts that the accepted request for a response is a run with the conversation that it keeps.
fn check_response(execute: &Execute, body: &[u8]) {
    let value: Value = serde_json::from_slice(body).expect("it was accepted as JSON");
    assert_eq!(execute.tool, "agent");
    let messages = execute.arguments["messages"].as_array().expect("a conversation");
    let front = execute.front.as_ref().expect("it is of a front end");
    let kept = front.kept.as_ref().expect("it is kept");
    assert_eq!(kept["messages"].as_array(), Some(messages));
    let has = |name: &str| value[name] == true;
    assert_eq!(execute.stream.is_some(), has("stream") || !has("background"));
    assert_eq!(front.previous.is_some(), value["previous_response_id"].is_string());
}

/// Asserts that the accepted request for a run keeps its conversation.
fn check_run(execute: &Execute, target: &str) {
    let front = execute.front.as_ref().expect("it is of a front end");
    let kept = front.kept.as_ref().expect("it is kept");
    assert!(kept["messages"].is_array(), "{kept}");
    if execute.tool == "agent" {
        assert_eq!(kept["messages"], execute.arguments["messages"]);
    }
    assert_eq!(front.thread_id.is_some(), target.contains("/threads/"));
    assert_eq!(execute.stream.is_some(), target.ends_with("stream"));
}

/// Checks a body of A2A: a call, or an error that has a code, a message and details.
fn check_a2a(target: &str, data: &[u8]) {
    let got = posted(target, data, false);
    match &got.calls[..] {
        [] => {
            let (status, document) = answer(&got.out);
            assert!(matches!(status, 200 | 400 | 404 | 413), "{status} {document}");
            let error = &document["error"];
            assert!(error["code"].is_i64() && error["message"].is_string(), "{document}");
            let is_rpc = document.get("jsonrpc").is_some();
            let details = &error[if is_rpc { "data" } else { "details" }];
            assert!(details[0]["reason"].is_string(), "{document}");
            assert_eq!(got.is_closed, status == 413);
        }
        [ApiCall::Execute(execute)] => {
            let front = execute.front.as_ref().expect("it is of a front end");
            assert_eq!(front.reply_to.is_some(), target == A2A[0]);
            assert!(front.kept.as_ref().is_some_and(|kept| kept["messages"].is_array()));
        }
        [ApiCall::Task(call)] => assert_eq!(call.reply_to.is_some(), target == A2A[0]),
        [ApiCall::Tasks(_) | ApiCall::AgentCard(_)] => assert_eq!(target, A2A[0]),
        calls => panic!("{calls:?}"),
    }
}

fn depth(value: &Value) -> u32 {
    let deepest = |values: &mut dyn Iterator<Item = &Value>| values.map(depth).max().unwrap_or(0);
    match value {
        Value::Array(values) => 1 + deepest(&mut values.iter()),
        Value::Object(members) => 1 + deepest(&mut members.values()),
        _ => 0,
    }
}

/// Checks a body.
pub fn check(data: &[u8]) {
    for target in [EXECUTE, STREAM] {
        let got = posted(target, data, false);
        match &got.calls[..] {
            [] => check_refusal(&got),
            [ApiCall::Execute(execute)] => {
                assert_eq!(execute.stream.is_some(), target == STREAM);
                check_execute(execute, data);
            }
            calls => panic!("{calls:?}"),
        }
    }
    let got = posted(RESPOND, data, false);
    match &got.calls[..] {
        // A response that never was is as unknown as any.
        [] if answer(&got.out).0 == 404 => {}
        [] => check_refusal(&got),
        [ApiCall::Execute(execute)] => check_response(execute, data),
        calls => panic!("{calls:?}"),
    }
    for target in RUNS {
        let got = posted(target, data, false);
        match &got.calls[..] {
            [] => check_refusal(&got),
            [ApiCall::Execute(execute)] => check_run(execute, target),
            calls => panic!("{calls:?}"),
        }
    }
    for target in SEARCHES {
        let got = posted(target, data, false);
        match &got.calls[..] {
            [] => check_refusal(&got),
            [ApiCall::Thread(_) | ApiCall::Assistants(_)] => {}
            calls => panic!("{calls:?}"),
        }
    }
    A2A.iter().for_each(|target| check_a2a(target, data));
    let by_length = posted(ACKNOWLEDGE, data, false);
    match &by_length.calls[..] {
        [] => check_refusal(&by_length),
        [ApiCall::Acknowledge(_, _, seq)] => {
            let value: Value = serde_json::from_slice(data).expect("it was accepted as JSON");
            assert_eq!(value["seq"].as_u64(), Some(*seq));
            assert_eq!(value.as_object().map(|members| members.len()), Some(1));
        }
        calls => panic!("{calls:?}"),
    }
    let by_chunks = posted(ACKNOWLEDGE, data, true);
    assert_eq!(by_chunks.calls, by_length.calls);
    if data.is_empty() || data.len() as u64 > limits::HTTP_SMALL_BODY_BYTES_MAX {
        return; // The two ways detect the excess at different times.
    }
    assert_eq!(by_chunks.out, by_length.out);
}
