//! Tests of whole conversations with a scripted model, in simulated time.

use std::time::Duration;

use serde_json::json;

use super::{Script, ScriptConnection, ScriptedModel};
use crate::base::Instant;
use crate::limits;
use crate::wire::http1::{Method, ResponseError, ResponsePart, ResponseReader};

const WALL_US: u64 = 1_795_000_000_000_000;

fn model(script: &str) -> ScriptedModel {
    ScriptedModel::new(Script::from_toml(script).unwrap())
}

fn at(ms: u64) -> (Instant, u64) {
    (Instant::ZERO + Duration::from_millis(ms), WALL_US + 1_000 * ms)
}

fn post(path: &str, body: &serde_json::Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}").into()
}

fn chat(user: &str, stream: bool) -> Vec<u8> {
    let messages = json!([{"role": "user", "content": user}]);
    post("/v1/chat/completions", &json!({"model": "m", "stream": stream, "messages": messages}))
}

/// Sends everything, and returns it with the time at which nothing more was due.
fn heard(connection: &mut ScriptConnection, model: &mut ScriptedModel) -> (Vec<u8>, Instant) {
    let (mut bytes, mut now) = (Vec::new(), Instant::ZERO);
    loop {
        connection.turn(model, (now, WALL_US));
        bytes.extend_from_slice(connection.unsent());
        connection.sent(connection.unsent().len());
        let Some(deadline) = connection.next_deadline() else { return (bytes, now) };
        now = now.max(deadline);
    }
}

/// Returns the status and the body of the first answer in `bytes`.
fn answer(bytes: &[u8]) -> Result<(u16, String), ResponseError> {
    let mut reader = ResponseReader::new();
    reader.expect(Method::Post);
    let (mut input, mut status, mut body) = (bytes, 0, Vec::new());
    loop {
        match reader.read(&mut input)? {
            Some(ResponsePart::Head(head)) => status = head.status.code(),
            Some(ResponsePart::Body(piece)) => body.extend_from_slice(piece),
            Some(ResponsePart::End) => break,
            None => {
                reader.finish()?;
                break;
            }
        }
    }
    Ok((status, String::from_utf8(body).unwrap()))
}

fn asked(script: &str, request: &[u8]) -> (Vec<u8>, Instant, ScriptConnection) {
    let (mut model, mut connection) = (model(script), ScriptConnection::new());
    connection.receive(&mut model, request, at(0));
    let (bytes, now) = heard(&mut connection, &mut model);
    (bytes, now, connection)
}

const SLOW: &str = "pace = '10ms'\n[[turns]]\nevents = [{pause = '1s'}, {text = 'one two three'}]";

#[test]
fn a_stream_has_a_token_when_its_time_has_come() {
    let (mut model, mut connection) = (model(SLOW), ScriptConnection::new());
    connection.receive(&mut model, &chat("hi", true), at(0));
    connection.turn(&mut model, at(0));
    assert_eq!(connection.next_deadline(), Some(at(1_000).0));
    connection.turn(&mut model, at(999));
    assert!(connection.unsent().is_empty());
    for (ms, count) in [(1_000, 1), (1_009, 1), (1_010, 2), (1_020, 3)] {
        connection.turn(&mut model, at(ms));
        let text = String::from_utf8_lossy(connection.unsent()).into_owned();
        assert_eq!(text.matches("\"delta\":{\"content\":\"").count(), count, "at {ms} ms: {text}");
    }
    let (bytes, now) = heard(&mut connection, &mut model);
    assert_eq!(now, at(1_030).0);
    let (status, body) = answer(&bytes).unwrap();
    assert!(status == 200 && body.ends_with("data: [DONE]\n\n"), "{body}");
    assert!(!connection.is_over());
}

#[test]
fn a_plain_answer_comes_when_the_stream_would_have_ended() {
    let (bytes, now, _) = asked(SLOW, &chat("hi", false));
    assert_eq!(now, at(1_030).0);
    let body: serde_json::Value = serde_json::from_str(&answer(&bytes).unwrap().1).unwrap();
    assert_eq!(body["choices"][0]["message"]["content"], "one two three");
    assert_eq!(body["usage"]["completion_tokens"], 3);
}

#[test]
fn a_script_can_ignore_that_a_stream_is_asked_for() {
    let plain = format!("plain = true\n{SLOW}");
    let choices = |script: &str, streams| {
        let (status, body) = answer(&asked(script, &chat("hi", streams)).0).unwrap();
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        (status, body["choices"].clone()) // The usage depends on the request.
    };
    assert_eq!(choices(&plain, true), choices(SLOW, false));
}

#[test]
fn the_answer_is_the_same_however_the_request_is_cut() {
    let request = chat("hi", true);
    let (whole, _, _) = asked(SLOW, &request);
    for cut in 0..request.len() {
        let (mut model, mut connection) = (model(SLOW), ScriptConnection::new());
        connection.receive(&mut model, &request[..cut], at(0));
        connection.receive(&mut model, &request[cut..], at(0));
        assert_eq!(heard(&mut connection, &mut model).0, whole, "cut at {cut}");
    }
}

#[test]
fn requests_behind_each_other_are_answered_in_order() {
    let requests = [chat("hi", true), chat("you", false)].concat();
    let (bytes, now, connection) = asked(SLOW, &requests);
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2);
    assert!(text.find("[DONE]") < text.find("\"chat.completion\""), "{text}");
    assert!(now == at(2_060).0 && !connection.is_over());
}

#[test]
fn each_way_to_cut_is_one() {
    for (events, is_whole) in [
        ("{text = 'a b'}, {cut = 'connection'}", false),
        ("{text = 'a b'}, {cut = 'frame'}, {text = 'c'}", false),
        ("{text = 'a b'}, {cut = 'answer'}", true),
    ] {
        let script = format!("[[turns]]\nevents = [{events}]");
        let (bytes, _, connection) = asked(&script, &chat("hi", true));
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(text.contains("\"content\":\"b\"") && !text.contains("[DONE]"), "{text}");
        assert!(!text.contains("\"content\":\"c\""), "{text}");
        assert_eq!(answer(&bytes).is_ok(), is_whole, "{events}");
        assert_eq!(connection.is_over(), !is_whole, "{events}");
    }
    let script = "[[turns]]\nevents = [{text = 'a'}]\ncut_after_bytes = 100";
    let (bytes, _, connection) = asked(script, &chat("hi", true));
    assert!(answer(&bytes).is_err() && connection.is_over());
    let (bytes, _, connection) = asked(script, &chat("hi", false));
    let body_at = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    assert!(bytes.len() - body_at == 100 && connection.is_over());
    assert!(answer(&bytes).is_err());
}

#[test]
fn who_hangs_says_nothing_more_and_stays() {
    let (bytes, _, connection) =
        asked("[[turns]]\nevents = [{text = 'a'}, {hang = true}]", &chat("hi", true));
    assert!(answer(&bytes).is_err()); // The answer is truncated.
    assert!(!connection.is_over() && connection.next_deadline().is_none());
}

#[test]
fn the_same_request_has_attempts_and_another_has_its_own() {
    let script = "[[turns]]\nwhen = {attempt = 1}\n\
                  events = [{status = 429, retry_after = '2', message = 'slowly'}]\n\
                  [[turns]]\nevents = [{text = 'attempt ${attempt}'}]";
    let (mut model, mut connection) = (model(script), ScriptConnection::new());
    let mut ask = |request: &[u8]| {
        connection.receive(&mut model, request, at(0));
        heard(&mut connection, &mut model).0
    };
    for user in ["one", "two"] {
        let refused = ask(&chat(user, true));
        let text = String::from_utf8_lossy(&refused).into_owned();
        assert!(text.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{text}");
        assert!(text.contains("\r\nretry-after: 2\r\n") && text.contains("rate_limit_error"));
        let second = String::from_utf8(ask(&chat(user, true))).unwrap();
        assert!(second.contains("\"content\":\"2\""), "{second}");
    }
}

#[test]
fn strangers_are_refused_in_words_of_their_wire() {
    let script = "models = ['m']\nkey = 'k'\n[[turns]]\nevents = [{text = 'a'}]";
    let with_key = |path: &str, body: &serde_json::Value, key: &str| {
        let text = String::from_utf8(post(path, body)).unwrap();
        text.replacen("Host: h", &format!("Host: h\r\n{key}"), 1).into_bytes()
    };
    let messages = json!([{"role": "user", "content": "a"}]);
    let good = json!({"model": "m", "max_tokens": 1, "messages": messages});
    let other = json!({"model": "x", "max_tokens": 1, "messages": messages});
    let step2 = json!({"model": "m", "max_tokens": 1, "messages":
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    let bearer = "Authorization: Bearer k";
    for (request, status, word) in [
        (with_key("/v1/messages", &good, "X-Api-Key: k"), 200, "\"end_turn\""),
        (with_key("/v1/messages", &good, "X-Api-Key: j"), 401, "{\"type\":\"error\""),
        (with_key("/v1/chat/completions", &good, bearer), 200, "\"stop\""),
        (with_key("/v1/chat/completions", &other, bearer), 404, "not_found_error"),
        (with_key("/v1/chat/completions", &step2, bearer), 400, "no turn for step 2"),
        (with_key("/v1/responses", &good, bearer), 400, "input: "),
        (post("/v1/nothing", &good), 404, "/v1/messages"),
        (b"GET /v1/messages HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), 405, "POST"),
        (b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), 200, "\"m\""),
        (b"nonsense\r\n\r\n".to_vec(), 400, "error"),
    ] {
        let (bytes, _, _) = asked(script, &request);
        let (got, body) = answer(&bytes).unwrap();
        assert!(got == status && body.contains(word), "{status} {word}: {got} {body}");
    }
}

#[test]
fn a_client_that_reads_nothing_has_the_script_stand_still() {
    let script = "[[turns]]\nevents = [{text = 'word ', repeat = 1000000}]";
    let (mut model, mut connection) = (model(script), ScriptConnection::new());
    connection.receive(&mut model, &chat("hi", true), at(0));
    for ms in 0..10 {
        connection.turn(&mut model, at(ms));
        let unsent = connection.unsent().len();
        let most = limits::SCRIPT_SEND_BYTES + 1_000;
        assert!((limits::SCRIPT_SEND_BYTES..most).contains(&unsent), "{unsent}");
        assert_eq!(connection.next_deadline(), None);
    }
    connection.sent(connection.unsent().len() / 2);
    assert!(connection.next_deadline().is_some());
}

#[test]
fn who_leaves_in_the_middle_of_a_body_is_no_longer_counted() {
    let mut model = model(SLOW);
    for _ in 0..100 {
        let mut connection = ScriptConnection::new();
        let body_bytes = limits::SCRIPT_BODY_BYTES_MAX;
        let head = format!(
            "POST /v1/responses HTTP/1.1\r\nHost: h\r\n\
                            Content-Length: {body_bytes}\r\n\r\n"
        );
        connection.receive(&mut model, head.as_bytes(), at(0));
        connection.receive(&mut model, &vec![b' '; body_bytes as usize - 1], at(0));
        assert!(connection.unsent().is_empty());
        connection.end(&mut model);
    }
}
