//! Tests of the requests of all three wires, member by member.

use serde_json::{Value, json};

use super::*;
use crate::agent::ToolResult;
use crate::agent::model::Secret;

fn endpoint(wire: Wire) -> Endpoint {
    let base_url = "http://localhost:81/v1".parse().unwrap();
    let key = Some(Secret::new(" sk-key\n").unwrap());
    Endpoint { wire, base_url, model: "m".to_owned(), key }
}

/// Returns the head of the request and its body as JSON.
fn request(endpoint: &Endpoint, ask: &Ask<'_>) -> (String, Value) {
    let mut out = Vec::new();
    write_request(endpoint, ask, &mut out);
    let text = String::from_utf8(out).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let length = format!("\r\ncontent-length: {}\r\n", body.len());
    assert!(format!("{head}\r\n").contains(&length));
    (head.to_owned(), serde_json::from_str(body).unwrap())
}

fn call(id: &str, name: &str, arguments: &str) -> CallMade {
    let [id, name, arguments] = [id, name, arguments].map(str::to_owned);
    CallMade { id, name, arguments, extra: None }
}

fn result(call_id: &str, output: &str, is_error: bool) -> Message {
    let (call_id, output) = (call_id.to_owned(), output.to_owned());
    Message::Tool(ToolResult { call_id, output, is_error })
}

fn tools() -> Vec<ToolDescription> {
    let tool = |name: &str, schema: Value| {
        let description = format!("Does {name}.");
        ToolDescription { name: name.to_owned(), description, schema }
    };
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    vec![tool("files.find", schema), tool("now", json!(true))]
}

/// A conversation with two of everything, and the data that each wire requires back.
fn conversation() -> Vec<Message> {
    let block = |wire, value, text_bytes, call_count| ReasoningBlock {
        wire,
        value,
        text_bytes,
        call_count,
    };
    let mut first = call("call:1", "files.find", "{\"q\": 1.0}");
    first.extra = Some(json!({"google": {"thought_signature": "sig"}}));
    let reasoning = vec![
        block(Wire::Messages, json!({"type": "thinking", "thinking": "a", "signature": "s"}), 0, 0),
        block(
            Wire::Responses,
            json!({"type": "reasoning", "id": "r1", "encrypted_content": "e"}),
            0,
            0,
        ),
        block(Wire::Responses, json!({"type": "reasoning", "id": "r2"}), 3, 1),
        block(Wire::Messages, json!({"type": "redacted_thinking", "data": "d"}), 3, 1),
        block(Wire::ChatCompletions, json!({"reasoning_content": "because"}), 9, 9),
        block(
            Wire::Responses,
            json!({"type": "reasoning", "id": "r3", "encrypted_content": "f"}),
            9,
            9,
        ),
    ];
    let calls = vec![first, call("c2", "gone.tool", "{\"cut")];
    let assistant = AssistantMessage { text: "Hm…".to_owned(), calls, reasoning };
    vec![
        Message::System("Be brief.".to_owned()),
        Message::System("Be kind.".to_owned()),
        Message::User("Find it.".to_owned()),
        Message::User("Please.".to_owned()),
        Message::Assistant(assistant),
        result("call:1", "found", false),
        result("c2", "no such tool", true),
        Message::User("And?".to_owned()),
        Message::Assistant(AssistantMessage::default()),
        Message::User(" ".to_owned()),
    ]
}

#[test]
fn chat_completions_are_asked_in_their_way() {
    let (messages, tools) = (conversation(), tools());
    let ask = Ask {
        tools: &tools,
        max_tokens: Some(7),
        temperature: Some(0.5),
        effort: Some(Effort::Low),
        parallel_tool_calls: false,
        ..Ask::of(&messages)
    };
    let (head, body) = request(&endpoint(Wire::ChatCompletions), &ask);
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost:81\r\n"));
    assert!(head.contains("\r\nauthorization: Bearer sk-key"));
    assert!(head.contains("\r\naccept-encoding: identity\r\n"));
    let parameters = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    let nothing = json!({"type": "object", "properties": {}});
    let expected = json!({
        "model": "m",
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": 7,
        "temperature": 0.5,
        "reasoning_effort": "low",
        "tools": [
            {"type": "function", "function": {"name": "files_find",
                "description": "Does files.find.", "parameters": parameters}},
            {"type": "function", "function": {"name": "now", "description": "Does now.",
                "parameters": nothing}},
        ],
        "parallel_tool_calls": false,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Find it.\n\nPlease."},
            {"role": "assistant", "content": "Hm…", "reasoning_content": "because", "tool_calls": [
                {"id": "call:1", "type": "function",
                    "function": {"name": "files_find", "arguments": "{\"q\": 1.0}"},
                    "extra_content": {"google": {"thought_signature": "sig"}}},
                {"id": "c2", "type": "function", "function": {"name": "gone_tool",
                    "arguments": "{\"invalid_arguments\":\"{\\\"cut\"}"}},
            ]},
            {"role": "tool", "tool_call_id": "call:1", "content": "found"},
            {"role": "tool", "tool_call_id": "c2", "content": "no such tool"},
            {"role": "user", "content": "And?\n\n "},
        ],
    });
    assert_eq!(body, expected, "{body:#}");
    // OpenAI itself has another name for one of the fields.
    let mut endpoint = endpoint(Wire::ChatCompletions);
    endpoint.base_url = "https://api.openai.com/v1".parse().unwrap();
    let (head, body) = request(&endpoint, &ask);
    assert!(head.contains("\r\nhost: api.openai.com\r\n"));
    assert_eq!((&body["max_completion_tokens"], &body["max_tokens"]), (&json!(7), &Value::Null));
}

#[test]
fn responses_are_asked_in_their_way() {
    let (messages, tools) = (conversation(), tools());
    let ask = Ask { tools: &tools[..1], max_tokens: Some(7), ..Ask::of(&messages) };
    let (head, body) = request(&endpoint(Wire::Responses), &ask);
    assert!(head.starts_with("POST /v1/responses HTTP/1.1\r\n"));
    let parameters = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    let expected = json!({
        "model": "m",
        "stream": true,
        "store": false,
        "max_output_tokens": 7,
        "tools": [{"type": "function", "name": "files_find", "description": "Does files.find.",
            "parameters": parameters, "strict": false}],
        "parallel_tool_calls": true,
        "instructions": "Be brief.\n\nBe kind.",
        "input": [
            {"role": "user", "content": "Find it."},
            {"role": "user", "content": "Please."},
            {"type": "reasoning", "id": "r1", "encrypted_content": "e"},
            {"role": "assistant", "content": "Hm"},
            {"type": "function_call", "call_id": "call:1", "name": "files_find",
                "arguments": "{\"q\": 1.0}"},
            {"role": "assistant", "content": "…"},
            {"type": "function_call", "call_id": "c2", "name": "gone_tool",
                "arguments": "{\"invalid_arguments\":\"{\\\"cut\"}"},
            {"type": "function_call_output", "call_id": "call:1", "output": "found"},
            {"type": "function_call_output", "call_id": "c2", "output": "no such tool"},
            {"role": "user", "content": "And?"},
            {"role": "user", "content": " "},
        ],
    });
    assert_eq!(body, expected, "{body:#}");
    for (model, thinks) in [
        ("o3", true),
        ("o4-mini", true),
        ("gpt-5", true),
        ("gpt-5.2-codex", true),
        ("gpt-6", true),
        ("gpt-4o", false),
        ("gpt-4.1", false),
        ("gpt-5-chat-latest", false),
        ("other", false),
        ("o", false),
        ("gpt-", false),
    ] {
        let endpoint = Endpoint { model: model.to_owned(), ..endpoint(Wire::Responses) };
        let (_, body) = request(&endpoint, &ask);
        assert_eq!(body["include"] == json!(["reasoning.encrypted_content"]), thinks, "{model}");
    }
}

#[test]
fn messages_are_asked_in_their_way() {
    let (messages, tools) = (conversation(), tools());
    let ask = Ask {
        tools: &tools[..1],
        temperature: Some(0.5),
        parallel_tool_calls: false,
        ..Ask::of(&messages)
    };
    let (head, body) = request(&endpoint(Wire::Messages), &ask);
    assert!(head.starts_with("POST /v1/messages HTTP/1.1\r\n"));
    assert!(head.contains("\r\nanthropic-version: 2023-06-01\r\nx-api-key: sk-key"));
    assert!(!head.contains("authorization"));
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    let expected = json!({
        "model": "m",
        "stream": true,
        "max_tokens": 8_192,
        "temperature": 0.5,
        "tools": [{"name": "files_find", "description": "Does files.find.",
            "input_schema": schema}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
        "system": "Be brief.\n\nBe kind.",
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "Find it."},
                {"type": "text", "text": "Please."},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "a", "signature": "s"},
                {"type": "text", "text": "Hm"},
                {"type": "tool_use", "id": "call_1", "name": "files_find", "input": {"q": 1.0}},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "text", "text": "…"},
                {"type": "tool_use", "id": "c2", "name": "gone_tool",
                    "input": {"invalid_arguments": "{\"cut"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "found"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "no such tool",
                    "is_error": true},
                {"type": "text", "text": "And?"},
            ]},
        ],
    });
    assert_eq!(body, expected, "{body:#}");
    let (_, body) = request(&endpoint(Wire::Messages), &Ask { effort: Some(Effort::High), ..ask });
    assert_eq!(body["thinking"], json!({"type": "adaptive"}));
    assert_eq!(body["output_config"], json!({"effort": "high"}));
    assert_eq!(body["temperature"], Value::Null);
}

#[test]
fn no_key_is_said_where_there_is_none_and_none_is_printed() {
    let messages = [Message::User("Hello?".to_owned())];
    for wire in [Wire::ChatCompletions, Wire::Responses, Wire::Messages] {
        let with = endpoint(wire);
        assert!(!format!("{with:?}").contains("sk-key"));
        let without = Endpoint { key: None, ..with };
        let (head, _) = request(&without, &Ask::of(&messages));
        assert!(!head.contains("authorization") && !head.contains("x-api-key"));
    }
}
