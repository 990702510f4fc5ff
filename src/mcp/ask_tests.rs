//! All requests with their parameters, right and wrong, in both eras, and the common part of all
//! requests.

use serde_json::{Value, json};

use super::testing::{ask, ask_with, context};
use super::{
    Ask, Complete, CompletionTarget, Filter, Level, META_CHUNKS, META_STREAM, ServerInfo,
    TaskRequest, Version, codes,
};
use crate::limits;
use crate::tool::Abilities;
use crate::trace::TraceContext;
use crate::wire::jsonrpc::Id;

const OLD: Version = Version::V2025_11_25;
const NEW: Version = Version::V2026_07_28;

fn text(text: &str) -> String {
    text.to_owned()
}

fn map(value: Value) -> serde_json::Map<String, Value> {
    value.as_object().unwrap().clone()
}

#[test]
fn each_request_is_read_with_its_parameters() {
    let complete = json!({
        "ref": {"type": "ref/prompt", "name": "p"},
        "argument": {"name": "a", "value": "v"},
        "context": {"arguments": {"b": "c"}},
    });
    let completed = Complete {
        target: CompletionTarget::Prompt(text("p")),
        argument: text("a"),
        value: text("v"),
        context: map(json!({"b": "c"})),
    };
    let both = [
        ("tools/list", json!({}), Ask::ListTools { cursor: None }),
        ("tools/list", json!({"cursor": "c"}), Ask::ListTools { cursor: Some(text("c")) }),
        ("tools/list", json!({"cursor": ""}), Ask::ListTools { cursor: Some(text("")) }), // B35.
        (
            "tools/call",
            json!({"name": "t", "arguments": {"a": 1}, "unknown": []}),
            Ask::CallTool { name: text("t"), arguments: map(json!({"a": 1})) },
        ),
        (
            "tools/call",
            json!({"name": "t"}),
            Ask::CallTool { name: text("t"), arguments: map(json!({})) },
        ),
        (
            "tools/call",
            json!({"name": "t", "arguments": null}),
            Ask::CallTool { name: text("t"), arguments: map(json!({})) },
        ),
        ("resources/list", json!({}), Ask::ListResources { cursor: None }),
        ("resources/templates/list", json!({}), Ask::ListTemplates { cursor: None }),
        (
            "resources/read",
            json!({"uri": "test://a/b?c=ä"}),
            Ask::ReadResource { uri: text("test://a/b?c=ä") },
        ),
        ("prompts/list", json!({"cursor": null}), Ask::ListPrompts { cursor: None }),
        (
            "prompts/get",
            json!({"name": "p", "arguments": {"a": "1"}}),
            Ask::GetPrompt { name: text("p"), arguments: map(json!({"a": "1"})) },
        ),
        ("completion/complete", complete, Ask::Complete(completed)),
    ];
    for (method, params, expected) in both {
        for version in Version::ALL {
            let got = ask(version, method, params.clone());
            assert_eq!(got.as_ref(), Ok(&expected), "{method} {params}");
        }
    }
    let old = [
        ("ping", json!({}), Ask::Ping),
        ("logging/setLevel", json!({"level": "error"}), Ask::SetLevel(Level::Error)),
        ("resources/subscribe", json!({"uri": "a:b"}), Ask::Subscribe { uri: text("a:b") }),
        ("resources/unsubscribe", json!({"uri": "a:b"}), Ask::Unsubscribe { uri: text("a:b") }),
        ("tasks/get", json!({"taskId": "k"}), Ask::GetTask { id: text("k") }),
        ("tasks/result", json!({"taskId": "k"}), Ask::TaskResult { id: text("k") }),
        ("tasks/list", json!({}), Ask::ListTasks { cursor: None }),
        ("tasks/cancel", json!({"taskId": "k"}), Ask::CancelTask { id: text("k") }),
    ];
    for (method, params, expected) in old {
        assert_eq!(ask(OLD, method, params), Ok(expected), "{method}");
    }
    assert_eq!(ask(NEW, "server/discover", json!({})), Ok(Ask::Discover)); // B11.
}

#[test]
fn wrong_parameters_are_invalid_params() {
    // A36, A39, A41, A42, A43, B32, B34.
    let long = "x".repeat(limits::MCP_URI_BYTES_MAX + 1);
    let argument = json!({"name": "a", "value": ""});
    let prompt = json!({"type": "ref/prompt", "name": "p"});
    let table = [
        ("tools/call", json!({})),
        ("tools/call", json!({"name": 1})),
        ("tools/call", json!({"name": ""})),
        ("tools/call", json!({"name": long})),
        ("tools/call", json!({"name": "t", "arguments": []})),
        ("tools/call", json!({"name": "t", "arguments": "{}"})),
        ("tools/list", json!({"cursor": 1})),
        ("tools/list", json!({"cursor": long})),
        ("resources/read", json!({})),
        ("resources/read", json!({"uri": ""})),
        ("resources/read", json!({"uri": "no scheme"})),
        ("resources/read", json!({"uri": "a:"})),
        ("resources/read", json!({"uri": "1a:b"})),
        ("resources/read", json!({"uri": "a:b c"})),
        ("resources/read", json!({"uri": "a:b\n"})),
        ("resources/read", json!({"uri": format!("a:{long}")})),
        ("prompts/get", json!({"name": "p", "arguments": {"a": 1}})),
        ("prompts/get", json!({"arguments": {}})),
        ("completion/complete", json!({})),
        ("completion/complete", json!({"ref": prompt})),
        ("completion/complete", json!({"ref": prompt, "argument": {"name": "a"}})),
        ("completion/complete", json!({"ref": prompt, "argument": {"name": "a", "value": 1}})),
        ("completion/complete", json!({"ref": {"type": "ref/x"}, "argument": argument})),
        ("completion/complete", json!({"ref": {"type": "ref/prompt"}, "argument": argument})),
        ("completion/complete", json!({"ref": {"type": "ref/resource"}, "argument": argument})),
        (
            "completion/complete",
            json!({"ref": prompt, "argument": argument, "context": {"arguments": {"b": 1}}}),
        ),
        ("tools/list", json!({"_meta": {"progressToken": 1.5}})),
        ("tools/list", json!({"_meta": {"progressToken": true}})),
        ("tools/list", json!({"_meta": {"progressToken": "x".repeat(300)}})),
        ("tools/list", json!({"_meta": {"partialResultToken": {}}})),
    ];
    for (method, params) in table {
        for version in [OLD, NEW] {
            let fault = ask(version, method, params.clone()).expect_err(&params.to_string());
            assert_eq!(fault.code, codes::INVALID_PARAMS, "{method} {params}");
            assert_eq!(fault.status, 200, "{method} {params}");
        }
    }
    for (method, params) in [
        ("tasks/get", json!({})),
        ("tasks/get", json!({"taskId": 1})),
        ("tasks/result", json!({"taskId": ""})),
        ("tools/call", json!({"name": "t", "task": 1})),
        ("tools/call", json!({"name": "t", "task": {"ttl": -1}})),
        ("tools/call", json!({"name": "t", "task": {"ttl": "long"}})),
        ("tools/list", json!({"_meta": []})),
    ] {
        let fault = ask(OLD, method, params.clone()).expect_err(&params.to_string());
        assert_eq!(fault.code, codes::INVALID_PARAMS, "{method} {params}");
    }
}

#[test]
fn each_sort_of_reference_is_completed() {
    // A39, B34: completion by the schemas of tools, too, which is an extension of this server.
    for (reference, target) in [
        (
            json!({"type": "ref/prompt", "name": "a", "title": "t"}),
            CompletionTarget::Prompt(text("a")),
        ),
        (
            json!({"type": "ref/resource", "uri": "a://{b}"}),
            CompletionTarget::Resource(text("a://{b}")),
        ),
        (json!({"type": "ref/tool", "name": "a"}), CompletionTarget::Tool(text("a"))),
    ] {
        let params = json!({"ref": reference, "argument": {"name": "", "value": ""}});
        let Ok(Ask::Complete(complete)) = ask(OLD, "completion/complete", params) else {
            panic!("{reference}");
        };
        assert_eq!((complete.target, complete.argument), (target, text("")));
    }
}

#[test]
fn a_token_is_a_text_or_an_integer_and_zero_is_one() {
    // A27, B27; the notes' 5.1.2.
    for version in Version::ALL {
        for token in [json!(0), json!(-1), json!(7), json!(""), json!("a\"b")] {
            let params = json!({"_meta": {"progressToken": token}});
            let context = context(version, json!({}), params);
            assert_eq!(context.progress_token, Id::of_value(&token), "{token}");
            assert!(context.progress_token.is_some(), "{token}");
        }
        let none = context(version, json!({}), json!({"_meta": {"progressToken": null}}));
        assert_eq!(none.progress_token, None);
        assert_eq!((none.id, none.version), (Id::of_number(7), version));
    }
}

#[test]
fn pieces_of_a_result_go_only_to_clients_that_take_them() {
    // The notes' 1.4: SEP-2998.
    for version in [OLD, NEW] {
        let params = || json!({"_meta": {"partialResultToken": "p"}});
        let able = context(version, json!({"partialResults": {}}), params());
        assert_eq!(able.partial_token, Some(Id::of_text("p")));
        assert_eq!(context(version, json!({}), params()).partial_token, None);
    }
}

#[test]
fn a_call_wishes_to_be_a_task_only_where_there_are_such() {
    // A45.
    let wish = |version, task: Value| context(version, json!({}), json!({"task": task})).task;
    for version in [Version::V2024_11_05, Version::V2025_06_18, NEW] {
        assert_eq!(wish(version, json!({"ttl": 1})), None);
        assert_eq!(wish(version, json!("nonsense")), None);
    }
    assert_eq!(wish(OLD, json!({})), Some(TaskRequest { ttl_ms: None }));
    assert_eq!(wish(OLD, json!({"ttl": null})), Some(TaskRequest { ttl_ms: None }));
    assert_eq!(wish(OLD, json!({"ttl": 5000})), Some(TaskRequest { ttl_ms: Some(5_000) }));
    assert_eq!(wish(OLD, Value::Null), None);
}

#[test]
fn a_result_is_wanted_as_a_stream_in_meta_or_among_the_arguments() {
    for (params, wanted) in [
        (json!({}), None),
        (json!({"_meta": {META_STREAM: true}}), Some(true)),
        (json!({"_meta": {META_STREAM: false}}), Some(false)),
        (json!({"_meta": {META_STREAM: null}}), None),
        (json!({"arguments": {"_stream": true}}), Some(true)),
        (json!({"arguments": {"_stream": true}, "_meta": {META_STREAM: false}}), Some(false)),
    ] {
        let mut params = params;
        params["name"] = "t".into();
        params["arguments"]["a"] = 1.into();
        let (context, ask) = ask_with(OLD, json!({}), "tools/call", params).unwrap();
        assert_eq!(context.wants_stream, wanted);
        let Ask::CallTool { arguments, .. } = ask else { panic!("expected a call") };
        assert_eq!(arguments, map(json!({"a": 1}))); // The tool never sees this member.
    }
    for (mut params, name) in [
        (json!({"_meta": {META_STREAM: 1}}), "`_meta.dev.streamdoor/stream`"),
        (json!({"_meta": {META_STREAM: "false"}}), "`_meta.dev.streamdoor/stream`"),
        (json!({"arguments": {"_stream": "yes"}}), "`arguments._stream`"),
    ] {
        params["name"] = "t".into();
        let fault = ask_with(OLD, json!({}), "tools/call", params).unwrap_err();
        assert_eq!(fault.code, -32602);
        assert_eq!(fault.message, format!("{name} must be true or false"));
    }
}

#[test]
fn full_chunks_are_wanted_in_meta() {
    for version in [OLD, NEW] {
        let wanted = |meta: Value| {
            let params = json!({"name": "t", "_meta": meta});
            ask_with(version, json!({}), "tools/call", params)
        };
        for (meta, expected) in [
            (json!({}), false),
            (json!({META_CHUNKS: null}), false),
            (json!({META_CHUNKS: "full"}), true),
        ] {
            assert_eq!(wanted(meta).unwrap().0.wants_full_chunks, expected);
        }
        for wrong in [json!(true), json!("length"), json!(""), json!({}), json!(["full"])] {
            let fault = wanted(json!({META_CHUNKS: wrong})).unwrap_err();
            assert_eq!(fault.code, -32602);
            assert_eq!(fault.message, "`_meta.dev.streamdoor/chunks` must be \"full\"");
        }
    }
}

#[test]
fn a_trace_is_carried_as_w3c_spells_it_and_left_out_otherwise() {
    // B9.
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for version in [OLD, NEW] {
        let meta = json!({"_meta": {"traceparent": parent, "tracestate": "a=1", "baggage": "\n"}});
        let trace = context(version, json!({}), meta).trace;
        assert_eq!(trace, TraceContext::parse(Some(parent), Some("a=1"), None));
        assert_eq!(trace.headers()[0].1.as_deref(), Some(parent));
        let meta = json!({"_meta": {"traceparent": [parent], "tracestate": 1, "baggage": "b=2"}});
        let trace = context(version, json!({}), meta).trace;
        assert_eq!(trace, TraceContext::parse(None, None, Some("b=2")));
    }
}

#[test]
fn answers_that_make_no_sense_are_as_if_they_were_missing() {
    // B16, and the input of the conformance suite: `null`, and values that are no objects.
    let retry = |params: Value| context(NEW, json!({}), params).retry;
    let given = json!({"a": {"action": "accept"}, "b": null, "c": "x", "d": [], "e": {}});
    let read = retry(json!({"inputResponses": given, "requestState": "s"}));
    assert_eq!(Value::from(read.answers), json!({"a": {"action": "accept"}, "e": {}}));
    assert_eq!(read.request_state.as_deref(), Some("s"));
    let nothing = retry(json!({"inputResponses": null, "requestState": null}));
    assert_eq!(nothing, super::Retry::default());
    for (name, value) in [("inputResponses", json!([])), ("requestState", json!(1))] {
        let params = json!({"name": "t", name: value});
        let fault = ask(NEW, "tools/call", params).unwrap_err();
        assert_eq!(fault.code, codes::INVALID_PARAMS, "{name}");
    }
    // The other era ignores these members.
    assert_eq!(context(OLD, json!({}), json!({"requestState": 1})).retry, nothing);
}

#[test]
fn tasks_of_the_stateless_era_are_for_clients_that_know_them() {
    // B37.
    let tasks = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let params = json!({"taskId": "k", "inputResponses": {"a": {"b": 1}, "c": 1}});
        let fault = ask(NEW, method, params.clone()).unwrap_err();
        assert_eq!((fault.code, fault.status), (codes::MISSING_CAPABILITY, 400), "{method}");
        assert_eq!(fault.data.unwrap(), json!({"requiredCapabilities": tasks}));
        let (_, ask) = ask_with(NEW, tasks.clone(), method, params).unwrap();
        let id = text("k");
        match method {
            "tasks/get" => assert_eq!(ask, Ask::GetTask { id }),
            "tasks/cancel" => assert_eq!(ask, Ask::CancelTask { id }),
            _ => {
                let answers = map(json!({"a": {"b": 1}}));
                assert_eq!(ask, Ask::UpdateTask { id, answers });
            }
        }
    }
    for wrong in [json!({"taskId": "k"}), json!({"taskId": "k", "inputResponses": []})] {
        let fault = ask_with(NEW, tasks.clone(), "tasks/update", wrong).unwrap_err();
        assert_eq!(fault.code, codes::INVALID_PARAMS);
    }
}

#[test]
fn who_listens_is_told_of_what_he_wants_and_can_have() {
    // B29.
    let tasks = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let params = json!({"notifications": {
        "toolsListChanged": true,
        "promptsListChanged": true,
        "resourcesListChanged": false,
        "resourceSubscriptions": ["a:b", "c:d", "a:b"],
        "taskIds": ["k"],
        "unknown": 1,
    }});
    let listen = |capabilities: Value| match ask_with(
        NEW,
        capabilities,
        "subscriptions/listen",
        params.clone(),
    )
    .unwrap()
    .1
    {
        Ask::Listen(filter) => filter,
        other => panic!("{other:?}"),
    };
    let wanted = Filter {
        tools: true,
        prompts: true,
        resources: false,
        uris: vec![text("a:b"), text("c:d")],
        tasks: vec![text("k")],
    };
    assert_eq!(listen(tasks), wanted);
    assert_eq!(listen(json!({})), Filter { tasks: vec![], ..wanted.clone() });
    let honoured = wanted.honoured(&ServerInfo::default()).to_json();
    let expected = json!({
        "toolsListChanged": true, "resourceSubscriptions": ["a:b", "c:d"], "taskIds": ["k"],
    });
    assert_eq!(honoured, expected);
    assert_eq!(Filter::default().to_json(), json!({}));
    let many: Vec<String> =
        (0..=limits::MCP_SUBSCRIPTIONS_MAX).map(|number| format!("a:{number}")).collect();
    for wrong in [
        json!({}),
        json!({"notifications": []}),
        json!({"notifications": {"toolsListChanged": 1}}),
        json!({"notifications": {"resourceSubscriptions": "a:b"}}),
        json!({"notifications": {"resourceSubscriptions": [1]}}),
        json!({"notifications": {"resourceSubscriptions": ["no uri"]}}),
        json!({"notifications": {"resourceSubscriptions": many}}),
    ] {
        let fault = ask(NEW, "subscriptions/listen", wrong).unwrap_err();
        assert_eq!(fault.code, codes::INVALID_PARAMS);
    }
}

#[test]
fn a_client_can_do_in_each_request_what_it_says_there() {
    // B5, B7.
    let able = context(NEW, json!({"sampling": {}}), json!({})).client.abilities;
    assert_eq!(able, Abilities { sampling: true, ..Default::default() });
    assert_eq!(context(NEW, json!({}), json!({})).client.abilities, Abilities::default());
}
