//! Bodies as clients send them, and invalid bodies.

use serde_json::{Value, json};

use super::*;
use crate::agent::Message;
use crate::endpoint::front::Channels;

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn call(id: &str, arguments: &str) -> CallMade {
    let (name, arguments) = ("seq".to_owned(), arguments.to_owned());
    CallMade { id: id.to_owned(), name, arguments, extra: None }
}

fn assistant(text: &str, calls: Vec<CallMade>) -> Message {
    Message::Assistant(AssistantMessage { text: text.to_owned(), calls, reasoning: Vec::new() })
}

fn result(call_id: &str, output: &str, is_error: bool) -> Message {
    let (call_id, output) = (call_id.to_owned(), output.to_owned());
    Message::Tool(ToolResult { call_id, output, is_error })
}

fn user(text: &str) -> Message {
    Message::User(text.to_owned())
}

#[test]
fn a_chat_of_ai_sdk_is_a_conversation_with_steps_and_calls() {
    let tool = |id: &str, state: &str| {
        json!({
            "type": "dynamic-tool", "toolName": "seq", "toolCallId": id, "state": state,
            "input": {"to": 1},
        })
    };
    let mut done = tool("a", "output-available");
    done["output"] = "1\n".into();
    let mut failed = tool("b", "output-error");
    failed["errorText"] = "exit code 3".into();
    let fixed = json!({
        "type": "tool-seq", "toolCallId": "d", "state": "output-available", "input": {},
        "output": {"rows": 3},
    });
    let body = json!({
        "id": "chat-1", "trigger": "submit-message", "messageId": "m9", "model": "fast",
        "messages": [
            {"id": "1", "role": "user", "parts": [
                {"type": "text", "text": "count "}, {"type": "file", "url": "data:,"},
                {"type": "text", "text": "up"},
            ]},
            {"id": "2", "role": "assistant", "parts": [
                {"type": "step-start"}, {"type": "reasoning", "text": "hm"},
                {"type": "text", "text": "I count."}, done, failed, tool("c", "input-available"),
                {"type": "data-tool", "id": "a", "data": {}},
                {"type": "step-start"}, fixed, {"type": "step-start"},
                {"type": "text", "text": "Done."},
            ]},
            {"id": "3", "role": "user", "parts": [{"type": "text", "text": "again"}]},
        ],
    });
    let request = read_ai_sdk(&bytes(&body)).unwrap();
    let to_1 = "{\"to\":1}";
    let calls = vec![call("a", to_1), call("b", to_1), call("c", to_1)];
    let expected = [
        user("count up"),
        assistant("I count.", calls),
        result("a", "1\n", false),
        result("b", "exit code 3", true),
        result("c", NO_RESULT, true),
        assistant("", vec![call("d", "{}")]),
        result("d", "{\"rows\":3}", false),
        assistant("Done.", Vec::new()),
        user("again"),
    ];
    assert_eq!(request.messages, expected);
    assert_eq!(request.thread_id.as_deref(), Some("chat-1"));
    assert_eq!(Value::Object(request.options), json!({"model": "fast"}));
}

#[test]
fn a_run_of_ag_ui_is_a_conversation_with_its_context_and_the_pages_tools() {
    let body = json!({
        "threadId": "t", "runId": "r", "state": {"count": 1},
        "messages": [
            {"id": "1", "role": "user", "content": [
                {"type": "text", "text": "count"}, {"type": "binary", "mimeType": "image/png"},
            ]},
            {"id": "2", "role": "assistant", "content": "", "toolCalls": [
                {"id": "a", "type": "function", "function": {"name": "seq", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "seq", "arguments": "{}"}},
            ]},
            {"id": "a-output", "role": "activity", "activityType": "T", "content": {"pieces": []}},
            {"id": "3", "role": "tool", "toolCallId": "b", "content": "2"},
            {"id": "4", "role": "tool", "toolCallId": "a", "content": "", "error": "no"},
            {"id": "5", "role": "tool", "toolCallId": "x", "content": "of no call"},
            {"id": "6", "role": "user", "content": "again"},
        ],
        "tools": [{"name": "paint", "description": "Paints.", "parameters": {"type": "object"}}],
        "context": [{"description": "page", "value": "start"}],
        "forwardedProps": {"model": "fast"},
    });
    let request = read_ag_ui(&bytes(&body)).unwrap();
    let expected = [
        Message::System("page: start".to_owned()),
        user("count"),
        assistant("", vec![call("a", "{}"), call("b", "{}")]),
        result("b", "2", false),
        result("a", "no", true),
        user("again"),
    ];
    assert_eq!(request.messages, expected);
    assert_eq!((request.thread_id.as_deref(), request.run_id.as_deref()), (Some("t"), Some("r")));
    assert_eq!(request.client_tools[0].name, "paint");
    assert_eq!(Value::Object(request.options), json!({"model": "fast"}));
}

#[test]
fn an_input_of_a_newer_ag_ui_is_read_as_far_as_it_is_known() {
    let body = json!({
        "threadId": "t", "runId": "r", "protocolVersion": "1.7", "novelty": {"a": 1},
        "messages": [
            {"id": "1", "role": "narrator", "content": {"new": true}},
            {"id": "2", "role": "user", "mood": 7, "content": [
                {"type": "smell", "text": 7}, {"type": "text", "text": "count"},
            ]},
        ],
        "resume": [{"interruptId": "i", "status": "resolved"}],
    });
    let request = read_ag_ui(&bytes(&body)).unwrap();
    assert_eq!((request.messages, request.client_tools), (vec![user("count")], Vec::new()));
    for version in ["2.0", "draft", ""] {
        let body = json!({"messages": [], "protocolVersion": version});
        assert!(read_ag_ui(&bytes(&body)).is_ok(), "{version}");
    }
}

#[test]
fn commands_of_langgraph_start_runs_or_are_refused_by_name() {
    let body = json!({"id": 1, "method": "run.start", "params": {
        "assistant_id": "agent",
        "input": {"messages": [
            {"type": "human", "content": "count"},
            {"type": "ai", "content": "", "tool_calls": [
                {"id": "a", "name": "seq", "args": {"to": 1}, "type": "tool_call"},
            ]},
            {"type": "tool", "tool_call_id": "a", "content": "1", "status": "success"},
            {"role": "user", "content": [{"type": "text", "text": "again"}]},
        ]},
        "config": {"configurable": {"model": "fast"}},
    }});
    let Command::Start { id: 1, assistant: which, request } =
        read_command(&bytes(&body), "t").unwrap()
    else {
        panic!("expected the start of a run");
    };
    let expected = [
        user("count"),
        assistant("", vec![call("a", "{\"to\":1}")]),
        result("a", "1", false),
        user("again"),
    ];
    assert_eq!((which.as_str(), &request.messages[..]), ("agent", &expected[..]));
    assert_eq!(request.options["model"], "fast");
    for (method, reason) in [("state.get", "not_supported"), ("fly", "unknown_command")] {
        let body = json!({"id": 2, "method": method, "params": {}});
        let refused = Command::Refused { id: 2, reason };
        assert_eq!(read_command(&bytes(&body), "t"), Ok(refused));
    }
    let said = write_command_error(Some(2), "not_supported", "not here");
    let said: Value = serde_json::from_slice(&said).unwrap();
    assert_eq!((&said["type"], &said["error"]), (&json!("error"), &json!("not_supported")));
}

#[test]
fn a_thread_is_followed_by_channels_from_an_event_on() {
    let body = json!({"channels": ["tools", "custom:gap"], "since": 8_194});
    let follow = read_follow(&bytes(&body)).unwrap();
    let channels = Channels::new(["tools", "custom:gap"]);
    assert_eq!(follow, Follow { channels, since: Some(8_194), has_root: true });
    let body = json!({"channels": ["tools"], "namespaces": [["child:1"]]});
    assert!(!read_follow(&bytes(&body)).unwrap().has_root);
}

#[test]
fn what_is_not_understood_is_refused_by_the_name_of_its_field() {
    type Read = fn(&[u8]) -> Result<(), AskError>;
    let ai_sdk: Read = |body| read_ai_sdk(body).map(drop);
    let ag_ui: Read = |body| read_ag_ui(body).map(drop);
    let command: Read = |body| read_command(body, "t").map(drop);
    let follow: Read = |body| read_follow(body).map(drop);
    let start = |params: Value| json!({"id": 1, "method": "run.start", "params": params});
    let no_role = json!({"assistant_id": "a", "input": {"messages": [{"content": "x"}]}});
    let of_ag_ui = |name: &str, value: Value| json!({"messages": [], name: value});
    let says = |message: Value| json!({"messages": [message]});
    let calls = |call: Value| says(json!({"role": "assistant", "toolCalls": [call]}));
    let cases: [(Read, Value, &str); 28] = [
        (ai_sdk, json!([]), ""),
        (ai_sdk, json!({}), "messages"),
        (ai_sdk, json!({"messages": {}}), "messages"),
        (ai_sdk, json!({"messages": [{"role": "user"}]}), "messages[0].parts"),
        (ai_sdk, json!({"messages": [{"role": "x", "parts": []}]}), "messages[0].role"),
        (ai_sdk, json!({"messages": [], "id": 7}), "id"),
        (ag_ui, json!({"messages": [{"role": "user", "content": 7}]}), "messages[0].content"),
        (ag_ui, says(json!({"role": 7, "content": ""})), "messages[0].role"),
        (ag_ui, says(json!({"content": ""})), "messages[0].role"),
        (ag_ui, says(json!({"role": "tool", "content": ""})), "messages[0].toolCallId"),
        (
            ag_ui,
            says(json!({"role": "user", "content": [{"type": "text", "text": 7}]})),
            "messages[0].content",
        ),
        (ag_ui, says(json!({"role": "assistant", "toolCalls": 7})), "messages[0].toolCalls"),
        (ag_ui, calls(json!({"id": 7})), "messages[0].toolCalls[0].id"),
        (
            ag_ui,
            calls(json!({"id": "a", "function": {"name": "f", "arguments": {}}})),
            "messages[0].toolCalls[0].function.arguments",
        ),
        (ag_ui, of_ag_ui("tools", json!(7)), "tools"),
        (ag_ui, of_ag_ui("tools", json!([{"name": 7}])), "tools[0].name"),
        (
            ag_ui,
            of_ag_ui("tools", json!([{"name": "f", "description": 7}])),
            "tools[0].description",
        ),
        (ag_ui, of_ag_ui("context", json!({})), "context"),
        (ag_ui, of_ag_ui("context", json!([{"description": "d"}])), "context[0].value"),
        (ag_ui, of_ag_ui("protocolVersion", json!(1)), "protocolVersion"),
        (ag_ui, of_ag_ui("parentRunId", json!(1)), "parentRunId"),
        (ag_ui, of_ag_ui("resume", json!({})), "resume"),
        (ag_ui, of_ag_ui("threadId", json!(1)), "threadId"),
        (command, json!({"method": "run.start"}), "id"),
        (command, start(json!({"input": "x"})), "params.assistant_id"),
        (command, start(json!({"assistant_id": "a"})), "params.input"),
        (command, start(no_role), "params.input.messages[0].role"),
        (follow, json!({"channels": [7]}), "channels"),
    ];
    for (read, body, field) in cases {
        assert_eq!(read(&bytes(&body)).unwrap_err().field, field, "{body}");
    }
    for read in [ai_sdk, ag_ui, command, follow] {
        assert_eq!(read(b"{\"messages\":").unwrap_err().to_string(), "the body must be JSON");
        let deep = "[".repeat(100_000);
        assert!(read(deep.as_bytes()).is_err(), "a body that is nested too deeply must be refused");
    }
}
