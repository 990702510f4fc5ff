//! Requests of front ends, and the calls that they become.

use serde_json::{Value, json};

use super::{Channels, FrontFormat, GraphAnswer, SdkVersion, Spelling, StreamMode, StreamModes};
use crate::endpoint::call_tests::id;
use crate::endpoint::exchange::{answered, called, get, post, with};
use crate::endpoint::{
    ApiCall, AssistantsAsk, DeliveryOptions, Execute, Follow, FrontOptions, FrontProtocol,
    FrontRun, ResponseAsk, ResponseCall, StreamFormat, ThreadAsk, ThreadCall, ThreadSearch,
};
use crate::engine::Hold;

const V5: StreamFormat = StreamFormat::Front(FrontFormat::AiSdk { sdk: SdkVersion::V5 });
const LANGGRAPH: FrontFormat = FrontFormat::LangGraph { spelling: Spelling::Snake };

fn followed(request: &str) -> Follow {
    match called(request) {
        ApiCall::Follow(follow) => *follow,
        other => panic!("{other:?}"),
    }
}

fn executed(request: &str) -> Execute {
    match called(request) {
        ApiCall::Execute(execute) => *execute,
        other => panic!("{other:?}"),
    }
}

fn asked(request: &str) -> ThreadCall {
    match called(request) {
        ApiCall::Thread(call) => *call,
        other => panic!("{other:?}"),
    }
}

/// Returns the status, code and field of an error answer.
fn refused(request: &str) -> (u16, String, Option<String>) {
    let response = answered(request);
    let (code, field, _) = response.error();
    (response.status, code, field)
}

#[test]
fn a_stream_is_told_in_the_words_that_were_asked_for() {
    let events = format!("/v1/executions/{}/events", id(1));
    let ai_sdk = |sdk| FrontFormat::AiSdk { sdk };
    let camel = FrontFormat::LangGraph { spelling: Spelling::Camel };
    for (query, format) in [
        ("format=ai-sdk", ai_sdk(SdkVersion::V5)),
        ("format=ai-sdk&sdk_version=7", ai_sdk(SdkVersion::V7)),
        ("format=ag-ui", FrontFormat::AgUi),
        ("format=langgraph", LANGGRAPH),
        ("spelling=camel&format=langgraph", camel),
    ] {
        let follow = followed(&get(&format!("{events}?{query}")));
        assert_eq!(follow.format, StreamFormat::Front(format), "{query}");
        let execute = executed(&post(&format!("/v1/executions?{query}"), "{\"tool\":\"t\"}"));
        assert_eq!(execute.stream, Some((StreamFormat::Front(format), DeliveryOptions::default())));
    }
    let wrong = |query: &str| {
        let (status, code, field) = refused(&get(&format!("{events}?{query}")));
        assert_eq!((status, code.as_str()), (400, "invalid_parameter"), "{query}");
        field.unwrap()
    };
    assert_eq!(wrong("format=vercel"), "format");
    assert_eq!(wrong("format=ai-sdk&sdk_version=8"), "sdk_version");
    assert_eq!(wrong("format=ag-ui&sdk_version=5"), "sdk_version");
    assert_eq!(wrong("format=ai-sdk&spelling=camel"), "spelling");
    assert_eq!(wrong("sdk_version=5"), "sdk_version");
    assert_eq!(wrong("format=sse&spelling=snake"), "spelling");
    let several = format!("/v1/events?executions={},{}&format=ag-ui", id(1), id(2));
    assert_eq!(refused(&get(&several)).2.as_deref(), Some("format"));
    let (status, _, field) = refused(&post("/v1/executions?sdk_version=5", "{\"tool\":\"t\"}"));
    assert_eq!((status, field.as_deref()), (400, Some("sdk_version")));
}

#[test]
fn only_langgraph_has_events_to_come_back_to() {
    let events = format!("/v1/executions/{}/events?format=", id(1));
    let last = |format: &str, id: &str| {
        with("GET", &format!("{events}{format}"), &format!("Last-Event-ID: {id}\r\n"))
    };
    let follow = followed(&last("langgraph", &format!("{}:8194", id(1))));
    assert_eq!((follow.front.since, follow.seen_ends.len()), (Some(8_194), 0));
    for (format, event) in [
        ("langgraph", format!("{}:8194", id(2))),
        ("langgraph", "8194".to_owned()),
        ("langgraph", format!("{}:-1", id(1))),
        ("ai-sdk", format!("{}:8194", id(1))),
        ("ag-ui", format!("{}:1", id(1))),
    ] {
        let (status, code, field) = refused(&last(format, &event));
        let said = (status, code.as_str(), field.as_deref());
        assert_eq!(said, (400, "invalid_cursor", Some("last-event-id")), "{format} {event}");
    }
}

#[test]
fn who_asks_for_a_run_is_known_by_what_he_says() {
    let path = "/v1/agent/stream";
    let own = executed(&post(path, "{\"task\":\"x\"}"));
    assert_eq!((own.stream.unwrap().0, own.front), (StreamFormat::Sse, None));

    let body = json!({
        "id": "chat-1", "trigger": "submit-message", "messages": [
            {"id": "1", "role": "user", "parts": [{"type": "text", "text": "count"}]},
            {"id": "2", "role": "assistant", "parts": [{
                "type": "dynamic-tool", "toolName": "seq", "toolCallId": "a",
                "state": "output-available", "input": {"to": 1}, "output": "1\n",
            }]},
            {"id": "3", "role": "user", "parts": [{"type": "text", "text": "again"}]},
        ],
        "max_steps": 3, "cancel_on_disconnect": true, "theme": "dark",
    });
    let chat = executed(&post(path, &body.to_string()));
    let messages = json!([
        {"role": "user", "content": "count"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "seq", "arguments": "{\"to\":1}"}},
        ]},
        {"role": "tool", "tool_call_id": "a", "content": "1\n", "is_error": false},
        {"role": "user", "content": "again"},
    ]);
    assert_eq!(chat.arguments, json!({"messages": messages, "max_steps": 3}));
    assert_eq!((chat.stream.unwrap().0, chat.cancels), (V5, true));
    let front = FrontRun { thread_id: Some("chat-1".into()), ..FrontRun::default() };
    assert_eq!(chat.front, Some(front.into()));
    // A format that the request names takes precedence.
    let other = executed(&post(&format!("{path}?format=ndjson"), &body.to_string()));
    assert_eq!(other.stream.unwrap().0, StreamFormat::Ndjson);

    let body = json!({
        "threadId": "t", "runId": "r", "state": {}, "context": [],
        "messages": [{"id": "1", "role": "user", "content": "count"}],
        "tools": [{"name": "paint", "description": "", "parameters": {}}],
        "forwardedProps": {"model": "fast", "page": 7},
    });
    let run = executed(&post(path, &body.to_string()));
    let messages = json!([{"role": "user", "content": "count"}]);
    assert_eq!(run.arguments, json!({"model": "fast", "messages": messages}));
    assert_eq!(run.stream.unwrap().0, StreamFormat::Front(FrontFormat::AgUi));
    let front = FrontRun {
        thread_id: Some("t".into()),
        run_id: Some("r".into()),
        passed_over: vec!["paint".to_owned()],
        ..FrontRun::default()
    };
    assert_eq!(run.front, Some(front.into()));

    for (body, field) in [
        (json!({"trigger": "x", "messages": [{"role": "x", "parts": []}]}), "messages[0].role"),
        (json!({"trigger": "x", "messages": [], "id": "x".repeat(300)}), "id"),
        (json!({"threadId": "t", "runId": "", "messages": []}), "runId"),
        (
            json!({"trigger": "x", "messages": [], "cancel_on_disconnect": 1}),
            "cancel_on_disconnect",
        ),
    ] {
        let (status, code, found) = refused(&post(path, &body.to_string()));
        let said = (status, code.as_str(), found.as_deref());
        assert_eq!(said, (400, "invalid_field", Some(field)), "{body}");
    }
}

#[test]
fn threads_are_asked_for_by_their_names() {
    let thread = |thread: &str, ask| ThreadCall { thread: thread.into(), ask };
    let rejoin = |format| ThreadAsk::Rejoin(format, DeliveryOptions::default());
    let path = "/v1/agent/stream/a%20chat";
    assert_eq!(asked(&get(&format!("{path}/stream"))), thread("a chat", rejoin(V5)));
    let other = asked(&get(&format!("{path}/stream?format=sse")));
    assert_eq!(other, thread("a chat", rejoin(StreamFormat::Sse)));
    assert_eq!(asked(&with("DELETE", path, "")), thread("a chat", ThreadAsk::Cancel));
    let long = format!("/v1/agent/stream/{}/stream", "x".repeat(257));
    assert_eq!(refused(&get(&long)).2.as_deref(), Some("thread"));

    let path = "/langgraph/threads";
    assert_eq!(asked(&get(&format!("{path}/t"))), thread("t", ThreadAsk::Describe));
    assert_eq!(
        asked(&get(&format!("{path}/t/state"))),
        thread("t", ThreadAsk::State { is_listed: false })
    );
    assert_eq!(asked(&post(path, "{}")), thread("", ThreadAsk::Describe));
    let named = asked(&post(path, "{\"thread_id\":\"t\",\"metadata\":{}}"));
    assert_eq!(named, thread("t", ThreadAsk::Describe));
    assert_eq!(refused(&post(path, "{\"thread_id\":7}")).2.as_deref(), Some("thread_id"));
    assert_eq!(refused(&post(path, "[null]")).1, "invalid_body");
    let cancel = with("POST", &format!("{path}/t/runs/{}/cancel?wait=0", id(1)), "");
    assert_eq!(called(&cancel), ApiCall::Cancel(id(1)));

    let front_options =
        |channels, since| FrontOptions { since, channels, ..FrontOptions::default() };
    let all = front_options(Channels::new(["tools", "lifecycle"]), Some(7));
    let body = r#"{"channels":["tools","lifecycle"],"since":7}"#;
    for end in ["stream", "stream/events"] {
        let follow = asked(&post(&format!("{path}/t/{end}"), body));
        assert_eq!(follow, thread("t", ThreadAsk::Follow(LANGGRAPH, all.clone())));
    }
    let child = r#"{"channels":["tools"],"namespaces":[["child"]]}"#;
    let follow = asked(&post(&format!("{path}/t/stream?spelling=camel"), child));
    let camel = FrontFormat::LangGraph { spelling: Spelling::Camel };
    let nothing = ThreadAsk::Follow(camel, front_options(Channels::new([]), None));
    assert_eq!(follow, thread("t", nothing));
    let (status, _, field) = refused(&post(&format!("{path}/t/stream"), "{}"));
    assert_eq!((status, field.as_deref()), (400, Some("channels")));
}

#[test]
fn a_command_starts_a_run_or_is_refused_in_the_protocols_words() {
    let path = "/langgraph/threads/t/commands";
    let start = |assistant: &str, options: Value| {
        json!({"id": 3, "method": "run.start", "params": {
            "assistant_id": assistant,
            "input": {"messages": [{"role": "user", "content": "count"}]},
            "config": {"configurable": options},
        }})
        .to_string()
    };
    let messages = json!([{"role": "user", "content": "count"}]);
    let run = executed(&post(path, &start("agent", json!({"max_steps": 2, "page": 1}))));
    assert_eq!(run.arguments, json!({"messages": messages, "max_steps": 2}));
    assert_eq!((run.stream, run.tool.as_str()), (None, "agent"));
    assert!(matches!(run.opening.hold, Hold::UntilRead { .. }), "the run must wait for a reader");
    let front = FrontRun {
        thread_id: Some("t".into()),
        protocol: FrontProtocol::Command(3),
        kept: Some(json!({ "messages": messages }).into()),
        ..FrontRun::default()
    };
    assert_eq!(run.front, Some(front.into()));
    let run = executed(&post(path, &start("fast", json!({"hold": "newest"}))));
    assert_eq!((&run.arguments["model"], run.opening.hold), (&json!("fast"), Hold::Newest));

    let said = |body: &str| {
        let response = answered(&post(path, body));
        assert_eq!(response.status, 200, "LangGraph clients read the reason only with status 200");
        let said = response.json();
        assert_eq!(said["type"], "error");
        (said["id"].clone(), said["error"].as_str().unwrap().to_owned())
    };
    let refused = |id: Value, reason: &str| (id, reason.to_owned());
    let unknown = r#"{"id":1,"method":"fly","params":{}}"#;
    assert_eq!(said(unknown), refused(json!(1), "unknown_command"));
    let fork = r#"{"id":2,"method":"state.fork","params":{}}"#;
    assert_eq!(said(fork), refused(json!(2), "not_supported"));
    assert_eq!(said("{}"), refused(Value::Null, "invalid_argument"));
    let wrong = start("agent", json!({"max_steps": 2, "policy": 7}));
    assert_eq!(said(&wrong), refused(json!(3), "invalid_argument"));
}

#[test]
fn runs_of_the_ordinary_api_are_executions_and_are_followed_by_their_ids() {
    let events = |modes: &[StreamMode]| {
        let answer = GraphAnswer::Events(StreamModes::of(modes));
        StreamFormat::Front(FrontFormat::Graph { answer })
    };
    let body = json!({
        "assistant_id": "fast", "input": {"messages": [{"role": "human", "content": "count"}]},
        "stream_mode": ["messages-tuple", "custom"], "on_disconnect": "cancel",
        "metadata": {"a": 1}, "config": {"configurable": {"max_steps": 2}},
    })
    .to_string();
    let messages = json!([{"role": "user", "content": "count"}]);
    let run = executed(&post("/langgraph/threads/t/runs/stream", &body));
    let model = json!({"messages": messages, "max_steps": 2, "model": "fast"});
    assert_eq!((&run.arguments, run.cancels), (&model, true));
    let modes = [StreamMode::MessagesTuple, StreamMode::Custom];
    assert_eq!(run.stream.map(|(format, _)| format), Some(events(&modes)));
    let kept = json!({"messages": messages, "metadata": {"a": 1}, "assistant": "fast"});
    let front = FrontRun {
        thread_id: Some("t".into()),
        protocol: FrontProtocol::Run,
        kept: Some(kept.into()),
        ..FrontRun::default()
    };
    assert_eq!(run.front, Some(front.into()));
    let values = StreamFormat::Front(FrontFormat::Graph { answer: GraphAnswer::Values });
    for (path, stream, thread) in [
        ("/langgraph/threads/t/runs", None, Some("t")),
        ("/langgraph/threads/t/runs/wait", Some(values), Some("t")),
        ("/langgraph/runs/wait", Some(values), None),
        ("/langgraph/runs/stream", Some(events(&modes)), None),
        ("/langgraph/runs", None, None),
    ] {
        let run = executed(&post(path, &body));
        assert_eq!(run.stream.map(|(format, _)| format), stream, "{path}");
        assert_eq!(run.front.unwrap().thread_id.as_deref(), thread, "{path}");
    }
    for (wrong, field) in [
        (json!({"assistant_id": "a", "input": "x", "stream_mode": "debug"}), "stream_mode"),
        (json!({"assistant_id": "a", "input": "x", "command": {"resume": 1}}), "command"),
        (json!({"assistant_id": "a"}), "input"),
    ] {
        let found = refused(&post("/langgraph/runs", &wrong.to_string()));
        assert_eq!(
            (found.0, found.1.as_str(), found.2.as_deref()),
            (400, "invalid_field", Some(field))
        );
    }

    let at = format!("/langgraph/threads/t/runs/{}", id(1));
    let follow = followed(&get(&format!("{at}/stream?stream_mode=messages-tuple,custom")));
    assert_eq!((follow.executions[0].0, follow.format), (id(1), events(&modes)));
    assert_eq!((follow.front.since, follow.front.cancels), (None, false));
    let behind = "GET {at}/stream?cancel_on_disconnect=true HTTP/1.1\r\nHost: localhost\r\n\
                  Last-Event-ID: 4097\r\n\r\n";
    let follow = followed(&behind.replace("{at}", &at));
    assert_eq!(follow.format, events(&[StreamMode::Values]));
    assert_eq!((follow.front.since, follow.front.cancels), (Some(4_097), true));
    assert_eq!(followed(&get(&format!("{at}/join"))).format, values);
    let alone = format!("/langgraph/runs/{}/stream", id(1));
    assert_eq!(followed(&get(&alone)).executions[0].0, id(1));
    let run = ResponseCall { execution: id(1), ask: ResponseAsk::Run };
    assert_eq!(called(&get(&at)), ApiCall::Response(run));
    assert_eq!(called(&with("DELETE", &at, "")), ApiCall::Forget(id(1)));
    let (status, code, field) = refused(&get(&format!("{at}/stream?stream_mode=debug")));
    assert_eq!((status, code.as_str()), (400, "invalid_parameter"));
    assert_eq!(field.as_deref(), Some("stream_mode"));
}

#[test]
fn threads_and_assistants_are_searched() {
    let thread = |thread: &str, ask| ThreadCall { thread: thread.into(), ask };
    let path = "/langgraph/threads";
    let state = ThreadAsk::State { is_listed: true };
    assert_eq!(asked(&post(&format!("{path}/t/history"), "{\"limit\":1}")), thread("t", state));
    assert_eq!(asked(&with("DELETE", &format!("{path}/t"), "")), thread("t", ThreadAsk::Forget));
    let runs = ThreadAsk::Runs { offset: 2, status: Some("error") };
    let listed = get(&format!("{path}/t/runs?limit=10&offset=2&status=error"));
    assert_eq!(asked(&listed), thread("t", runs));
    let all = ThreadSearch { limit: Some(10), ..ThreadSearch::default() };
    let found = asked(&post(&format!("{path}/search"), "{}"));
    assert_eq!(found, thread("", ThreadAsk::Search(all)));
    let count = asked(&post(&format!("{path}/count"), "{}"));
    assert_eq!(count, thread("", ThreadAsk::Search(ThreadSearch::default())));
    let path = "/langgraph/assistants";
    let get_it = AssistantsAsk::Get("fast".into());
    assert_eq!(called(&get(&format!("{path}/fast"))), ApiCall::Assistants(get_it.into()));
    let search = AssistantsAsk::Search { name: None, offset: 1, limit: Some(2) };
    let found = called(&post(&format!("{path}/search"), "{\"limit\":2,\"offset\":1}"));
    assert_eq!(found, ApiCall::Assistants(search.into()));
    let count = AssistantsAsk::Search { name: None, offset: 0, limit: None };
    let found = called(&post(&format!("{path}/count"), "{}"));
    assert_eq!(found, ApiCall::Assistants(count.into()));
}
