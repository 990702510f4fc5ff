//! Tests that our own decoders read what is written in each wire, as a document and as a stream.
//! They also check that an error in a script is named.

use std::time::Duration;

use serde_json::json;

use super::{Script, ScriptConnection, ScriptEvent, ScriptedModel, Speech, Tokens};
use crate::base::Instant;
use crate::wire::http1::{Method, ResponsePart, ResponseReader};

const SCRIPT: &str = r#"
[[turns]]
events = [
  { reasoning = "hm, well" },
  { text = "let us see" },
  { call = "look", id = "a", arguments = { at = "ü" } },
  { call = "wait", id = "b" },
  { usage = { input_tokens = 7, output_tokens = 5, reasoning_tokens = 2 } },
]
"#;

fn body_of(script: &str, path: &str, body: serde_json::Value) -> String {
    let mut model = ScriptedModel::new(Script::from_toml(script).unwrap());
    let (body, mut connection) = (body.to_string(), ScriptConnection::new());
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    let now = (Instant::ZERO, 0);
    connection.receive(&mut model, (head + &body).as_bytes(), now);
    connection.turn(&mut model, now);
    let mut reader = ResponseReader::new();
    reader.expect(Method::Post);
    let (mut input, mut out) = (connection.unsent(), Vec::new());
    while let Some(part) = reader.read(&mut input).unwrap() {
        match part {
            ResponsePart::Body(piece) => out.extend_from_slice(piece),
            ResponsePart::Head(_) => {}
            ResponsePart::End => break,
        }
    }
    String::from_utf8(out).unwrap()
}

fn request(wire: &str, stream: bool) -> (String, serde_json::Value) {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let options = json!({"include_usage": true});
    match wire {
        "chat" => (
            "/v1/chat/completions".to_owned(),
            json!({"model": "m", "stream": stream, "stream_options": options,
                "messages": messages}),
        ),
        "responses" => {
            ("/v1/responses".to_owned(), json!({"model": "m", "stream": stream, "input": "hi"}))
        }
        _ => (
            "/v1/messages".to_owned(),
            json!({"model": "m", "stream": stream, "max_tokens": 9, "messages": messages}),
        ),
    }
}

#[test]
fn what_is_wrong_with_a_script_is_named_with_its_place() {
    for (script, problem) in [
        ("", "turns: at least one is needed"),
        ("turns = []", "turns: at least one is needed"),
        ("x = 1\n[[turns]]\nevents = []", "\"x\" is not a field"),
        ("[[turns]]", "turns[1].events: is missing"),
        ("[[turns]]\nevents = [{}]", "turns[1].events[1]: must be one of text"),
        ("[[turns]]\nevents = [{text = 1}]", "turns[1].events[1].text: must be a text"),
        ("[[turns]]\nevents = [{text = 'a', pase = '1s'}]", "events[1]: \"pase\" is not a field"),
        (
            "[[turns]]\nevents = [{text = 'a', pace = '1'}]",
            "events[1].pace: must be a text such as",
        ),
        ("[[turns]]\nevents = [{pause = '2h'}]", "pause: must be a text"),
        ("[[turns]]\nevents = [{pause = '99999m'}]", "pause: must be at most"),
        ("[[turns]]\nevents = [{text = 'a', tokens = 0}]", "tokens: must be at least 1"),
        ("[[turns]]\nevents = [{text = 'a'}, {status = 500}]", "status: must come before"),
        ("[[turns]]\nevents = [{status = 100}]", "status: must be from 200"),
        ("[[turns]]\nevents = [{status = 500, headers = {Connection = 'x'}}]", "is not a header"),
        ("[[turns]]\nevents = [{status = 500, headers = {a = \"b\\nc\"}}]", "control"),
        ("[[turns]]\nevents = [{cut = 'off'}]", "cut: must be one of connection"),
        ("[[turns]]\nevents = [{raw_base64 = '!'}]", "raw_base64: must be base64"),
        ("[[turns]]\nevents = [{call = 'a', arguments = 1}]", "arguments: must be a table"),
        ("[[turns]]\nwhen = {wire = 'x'}\nevents = []", "turns[1].when.wire: must be one of"),
        ("turns = 1\nturns = 2", "line 2: "),
    ] {
        let error = Script::from_toml(script).unwrap_err().to_string();
        assert!(error.contains(problem), "{script}: {error}");
    }
    assert!(Script::from_json("{").is_err());
}

#[test]
fn a_script_of_json_is_the_same_as_one_of_toml() {
    let toml = "pace = '5ms'\n[[turns]]\nevents = [{text = 'a b', tokens = 1, repeat = 2}]";
    let text = json!({"text": "a b", "tokens": 1, "repeat": 2});
    let json = json!({"pace": "5ms", "turns": [{"events": [text]}]});
    let script = Script::from_toml(toml).unwrap();
    assert_eq!(script, Script::from_json(&json.to_string()).unwrap());
    let pace = Duration::from_millis(5);
    let tokens = Tokens::Characters(1);
    let speech = Speech { text: "a b".to_owned(), tokens, pace, repeat: 2 };
    assert_eq!(script.turns[0].events, [ScriptEvent::Text(speech)]);
}

#[test]
fn the_examples_are_scripts() {
    for text in [
        include_str!("../../../tools/model-scripts/two-tools.toml"),
        include_str!("../../../tools/model-scripts/misbehaves.toml"),
    ] {
        Script::from_toml(text).unwrap();
    }
    // The example in the documentation.
    let shown = super::FORMAT.split("```toml").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(Script::from_toml(shown).unwrap().turns.len(), 3);
}

#[test]
fn frames_are_spelled_as_the_wires_are() {
    let (path, body) = request("chat", true);
    let chat = body_of(SCRIPT, &path, body);
    assert!(chat.starts_with("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\","));
    assert!(chat.contains("\"delta\":{\"reasoning_content\":\"hm, \"}"), "{chat}");
    assert!(chat.contains("\"choices\":[],\"usage\":{\"prompt_tokens\":7,"), "{chat}");
    let (path, body) = request("messages", true);
    let messages = body_of(SCRIPT, &path, body);
    let names: Vec<&str> =
        messages.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!((names[0], names[names.len() - 1]), ("message_start", "message_stop"));
    let count = |name| names.iter().filter(|event| **event == name).count();
    assert_eq!((count("content_block_start"), count("content_block_stop")), (4, 4));
    assert!(messages.contains("\"signature_delta\"") && messages.contains("\"tool_use\""));
    let (path, body) = request("responses", true);
    let responses = body_of(SCRIPT, &path, body);
    let numbers: Vec<u64> = responses
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str::<serde_json::Value>(data).unwrap())
        .map(|data| data["sequence_number"].as_u64().unwrap())
        .collect();
    assert!(numbers.iter().copied().eq(0..numbers.len() as u64));
    assert!(responses.contains("event: response.function_call_arguments.done\n"));
    assert!(responses.contains("event: response.completed\n"));
}
