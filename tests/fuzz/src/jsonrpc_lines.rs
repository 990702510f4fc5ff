//! Any bytes as lines of messages, cut anywhere. The lines do not depend on the cuts. Each line is
//! a message that is read again as written, or a refusal that can be sent. Ids are never respelled.

use serde_json::{Deserializer, Value};
use streamdoor::limits;
use streamdoor::wire::jsonrpc::{
    self, INVALID_REQUEST, Id, Malformed, PARSE_ERROR, RpcMessage, parse,
};
use streamdoor::wire::{LineSplitter, Split};

use super::draw::cuts;

/// A limit that is short enough for the fuzzer to reach.
const LINE_BYTES_MAX: usize = 300;

/// The content of a line, or `None` if it was too long.
type Line = Option<Vec<u8>>;

/// Checks a stream of lines.
pub fn check(data: &[u8]) {
    let expected = lines_by_rule(data);
    for cuts in cuts(data) {
        assert_eq!(lines(data, &cuts), expected);
    }
    for line in expected.iter().flatten() {
        check_message(line);
    }
    check_message(data); // As the body of a request, where a message may have several lines.
}

/// Returns the lines of bytes that arrive cut at these places.
pub fn lines(data: &[u8], cuts: &[usize]) -> Vec<Line> {
    let (mut splitter, mut found) = (LineSplitter::new(LINE_BYTES_MAX), Vec::new());
    let ends = cuts.iter().copied().chain([data.len()]);
    let mut from = 0;
    for to in ends {
        let mut input = &data[from..to];
        while let Some(split) = splitter.next(&mut input) {
            found.push(match split {
                Split::Line(line) => Some(line.to_vec()),
                Split::TooLong => None,
            });
        }
        assert!(input.is_empty(), "all is taken");
        from = to;
    }
    found.extend(splitter.end().map(|line| Some(line.to_vec())));
    found
}

/// Returns the same lines, from all bytes at once.
fn lines_by_rule(data: &[u8]) -> Vec<Line> {
    let raw = data.split(|&byte| byte == b'\n');
    let of_line = |line: &[u8]| match line {
        line if line.len() > LINE_BYTES_MAX => Some(None),
        line if line.trim_ascii().is_empty() => None,
        line => Some(Some(line.strip_suffix(b"\r").unwrap_or(line).to_vec())),
    };
    raw.filter_map(of_line).collect()
}

fn check_message(text: &[u8]) {
    match parse(text) {
        Ok(message) => {
            check_id(text, &message);
            let mut out = Vec::new();
            write(&mut out, &message);
            check_line(&out);
            assert_eq!(parse(&out), Ok(message), "{}", out.escape_ascii());
        }
        Err(malformed) => check_refusal(text, &malformed),
    }
}

/// Writes a message as its sender could have spelled it.
fn write(out: &mut Vec<u8>, message: &RpcMessage) {
    match message {
        RpcMessage::Request { id, method, params } => {
            let mut rest = Vec::new();
            jsonrpc::write_notification(
                &mut rest,
                method,
                &Value::Object(params.clone().into_map()),
            );
            let rest = rest.strip_prefix(b"{").expect("it is an object");
            out.extend_from_slice(format!("{{\"id\":{id},").as_bytes());
            out.extend_from_slice(rest);
        }
        RpcMessage::Notification { method, params } => {
            jsonrpc::write_notification(out, method, &Value::Object(params.clone().into_map()));
        }
        RpcMessage::Response { id: Some(id), result: Ok(result) } => {
            jsonrpc::write_result(out, id, result);
        }
        RpcMessage::Response { id: None, result: Ok(_) } => panic!("a result of nothing"),
        RpcMessage::Response { id, result: Err(error) } => {
            let (code, data) = (error.code, error.data.as_ref());
            jsonrpc::write_error(out, id.as_ref(), code, &error.message, data);
        }
    }
}

/// Asserts that the output is one line, with any content.
pub fn check_line(out: &[u8]) {
    assert!(!out.contains(&b'\n') && !out.contains(&b'\r'), "{}", out.escape_ascii());
}

/// Asserts that the id equals the one in the text byte for byte, also in a reply.
fn check_id(text: &[u8], message: &RpcMessage) {
    let text = str::from_utf8(text).expect("it was accepted");
    let members = members(text);
    for (at, (name, _)) in members.iter().enumerate() {
        assert!(members[..at].iter().all(|(other, _)| other != name), "{name} is there twice");
    }
    let written = members.iter().find(|(name, _)| name == "id").map(|(_, value)| *value);
    let id = match message {
        RpcMessage::Request { id, .. } => Some(id),
        RpcMessage::Notification { .. } => None,
        RpcMessage::Response { id, .. } => id.as_ref(),
    };
    let Some(id) = id else {
        let is_null = matches!(message, RpcMessage::Response { .. }) && written == Some("null");
        return assert!(written.is_none() || is_null, "{written:?} is overlooked");
    };
    assert_eq!(Some(id.as_json()), written);
    assert!(id.as_json().len() <= limits::MCP_ID_BYTES_MAX);
    assert_eq!(id.as_text().map(Value::from), Some(id.to_value()).filter(Value::is_string));
    if let Some(said) = Id::of_value(&id.to_value()) {
        assert_eq!(said, *id);
    }
    let mut out = Vec::new();
    jsonrpc::write_result(&mut out, id, &Value::Object(Default::default()));
    let expected = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{}}}}", id.as_json());
    assert_eq!(out, expected.as_bytes());
}

/// Returns the members of a text that is an object: names, and values as they are spelled.
fn members(text: &str) -> Vec<(String, &str)> {
    /// Returns the first value of `rest`, its text, and the remaining text.
    fn value(rest: &str) -> (Value, &str, &str) {
        let rest = rest.trim_ascii_start();
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        let value = values.next().expect("it is there").expect("it was accepted");
        let (text, rest) = rest.split_at(values.byte_offset());
        (value, text, rest.trim_ascii_start())
    }
    let mut rest = text.trim_ascii().strip_prefix('{').expect("it is an object").trim_ascii();
    let mut members = Vec::new();
    while !rest.starts_with('}') {
        let (name, _, behind) = value(rest);
        let (_, text, behind) = value(behind.strip_prefix(':').expect("it has a value"));
        members.push((name.as_str().expect("a name").to_owned(), text));
        rest = behind.strip_prefix(',').unwrap_or(behind).trim_ascii_start();
    }
    members
}

/// Asserts that the refusal has a valid reason, and can be sent to the requester.
fn check_refusal(text: &[u8], malformed: &Malformed) {
    let is_json = serde_json::from_slice::<Value>(text).is_ok();
    let is_read = is_json && depth(text) <= limits::JSON_DEPTH_MAX;
    let code = if is_read { INVALID_REQUEST } else { PARSE_ERROR };
    assert_eq!(malformed.code, code, "{}", text.escape_ascii());
    assert!(!malformed.message.is_empty());
    if malformed.is_response || !is_read {
        assert_eq!(malformed.id, None, "nobody waits for it");
    }
    let mut out = Vec::new();
    jsonrpc::write_error(&mut out, malformed.id.as_ref(), code, &malformed.message, None);
    check_line(&out);
    match parse(&out) {
        Ok(RpcMessage::Response { id, result: Err(error) }) => {
            assert_eq!((id, error.code), (malformed.id.clone(), code));
            assert_eq!(error.message, malformed.message);
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the nesting depth of a JSON text. Members with equal names all count.
fn depth(text: &[u8]) -> u32 {
    let (mut depth, mut deepest, mut in_string) = (0u32, 0, false);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if in_string => _ = bytes.next(),
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth -= 1,
            _ => {}
        }
    }
    deepest
}
