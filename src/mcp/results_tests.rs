//! Documents of results: in each version of the shape that its schema requires.

use serde_json::{Map, Value, json};

use super::cursor::Page;
use super::results::{ExecutionUri, Results, execution, execution_templates, output_schema, tool};
use super::shapes::check;
use super::tasks::{Detail, Placement, Task, TaskState, placement, ttl_ms};
use super::testing::{client, context};
use super::{
    CallMeta, Collected, End, Fault, META_EVENTS, META_EXECUTION, META_STREAM, ServerInfo, Version,
    codes, door, questions, text_block,
};
use crate::engine::Outcome;
use crate::limits;
use crate::tool::{Completion, Question, TaskSupport, ToolSpec};
use crate::wire::jsonrpc::Id;

const OLD: Version = Version::V2025_11_25;
const NEW: Version = Version::V2026_07_28;

/// Makes a document in each version, and checks its shape.
fn each(shape: &str, make: impl Fn(&Results<'_>) -> Value) -> Vec<(Version, Value)> {
    let server = ServerInfo { title: Some("T".to_owned()), ..Default::default() };
    let documents = Version::ALL.map(|version| {
        let document = make(&Results::new(version, &server));
        check(version, shape, &document);
        let is_typed = document.get("resultType").is_some();
        assert_eq!(is_typed, version == NEW, "{document}"); // B2.
        let name = document.pointer("/_meta/io.modelcontextprotocol~1serverInfo/name");
        assert_eq!(name.is_some(), version == NEW, "{document}"); // B4.
        (version, document)
    });
    documents.into()
}

fn page(items: &[Value]) -> Page<Value> {
    Page { items: items.to_vec(), next: Some("n".to_owned()) }
}

/// A tool that has everything.
fn full() -> ToolSpec {
    ToolSpec {
        title: Some("Full".to_owned()),
        arguments: json!({"type": "object", "$defs": {"a": {}}, "additionalProperties": false}),
        annotations: json!({"readOnlyHint": true}),
        output_schema: Some(json!({"type": "object", "required": ["a"]})),
        ..ToolSpec::new("full", "Has everything.")
    }
}

#[test]
fn empty_results_are_of_the_right_shape() {
    // A32.
    for (version, document) in each("EmptyResult", |results| results.empty()) {
        assert_eq!(document == json!({}), version != NEW);
    }
}

#[test]
fn discover_says_which_versions_and_how_long_that_holds() {
    // B11, B30, C4.
    let server = ServerInfo { instructions: Some("i".to_owned()), ..Default::default() };
    let document = Results::new(NEW, &server).discover();
    check(NEW, "DiscoverResult", &document);
    assert_eq!(document["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(document["instructions"], "i");
    let capabilities = &document["capabilities"];
    assert!(capabilities["extensions"]["io.modelcontextprotocol/tasks"].is_object()); // B37.
    assert_eq!(capabilities.get("tasks"), None);
}

#[test]
fn lists_and_what_is_read_say_how_long_they_may_be_kept() {
    // A41, B30, B35.
    let resource = execution("id", "tool", "running");
    let template = execution_templates()[0].clone();
    let contents = json!({"uri": "a:b", "text": "t"});
    let prompt = json!({"name": "p"});
    let lists = [
        each("ListToolsResult", |results| results.tools(page(&[tool(&full(), results.version())]))),
        each("ListResourcesResult", |results| {
            results.resources(page(std::slice::from_ref(&resource)))
        }),
        each("ListResourceTemplatesResult", |results| {
            results.templates(page(std::slice::from_ref(&template)))
        }),
        each("ListPromptsResult", |results| results.prompts(page(std::slice::from_ref(&prompt)))),
        each("ReadResourceResult", |results| results.contents(vec![contents.clone()])),
    ];
    for (version, document) in lists.concat() {
        let is_kept = document.get("ttlMs").is_some_and(Value::is_u64);
        assert_eq!(is_kept, version == NEW, "{document}");
        assert_eq!(document.get("cacheScope").is_some(), version == NEW);
        if document.get("contents").is_none() {
            assert_eq!(document["nextCursor"], "n");
        }
    }
    let last = Page { items: vec![], next: None };
    let server = ServerInfo::default();
    assert_eq!(Results::new(OLD, &server).tools(last), json!({"tools": []}));
}

#[test]
fn a_tool_is_described_in_the_words_of_each_version() {
    // A34, A35, A38, B31.
    let spec = full();
    let described = |version| tool(&spec, version);
    for version in Version::ALL {
        let document = described(version);
        check(version, "Tool", &document);
        let has = |name: &str| document.get(name).is_some();
        assert_eq!(document["inputSchema"], spec.arguments);
        assert_eq!(has("title"), version >= Version::V2025_06_18);
        assert_eq!(has("annotations"), version >= Version::V2025_03_26);
        assert_eq!(has("outputSchema"), version >= Version::V2025_06_18);
        assert_eq!(has("execution"), version == OLD);
        assert!(document["description"].as_str().is_some_and(|text| !text.is_empty()));
    }
    assert_eq!(described(OLD)["execution"], json!({"taskSupport": "optional"}));
    let with = |task_support| ToolSpec { task_support, ..full() };
    let required = tool(&with(TaskSupport::Required), OLD);
    assert_eq!(required["execution"]["taskSupport"], "required");
    assert_eq!(tool(&with(TaskSupport::Forbidden), OLD).get("execution"), None);
    assert_eq!(tool(&with(TaskSupport::Preferred), OLD)["execution"]["taskSupport"], "optional");
    let plain = tool(&ToolSpec::new("a", "b"), NEW);
    assert_eq!(plain, json!({"name": "a", "description": "b", "inputSchema": {"type": "object"}}));
}

#[test]
fn an_output_that_is_no_object_has_a_schema_only_in_the_stateless_era() {
    // B31.
    let spec = ToolSpec { output_schema: Some(json!({"type": "array"})), ..full() };
    for version in Version::ALL {
        assert_eq!(output_schema(&spec, version).is_some(), version == NEW);
    }
}

#[test]
fn the_tools_of_the_door_are_right() {
    for spec in door::specs() {
        for version in Version::ALL {
            check(version, "Tool", &tool(&spec, version));
        }
        assert!(door::is_tool(&spec.name) && spec.title.is_some());
    }
}

fn collected(parts: &[(bool, bool, &[u8])]) -> Collected {
    let mut collected = Collected::new();
    for (is_block, has_more, bytes) in parts {
        assert!(collected.push(*is_block, *has_more, bytes));
    }
    collected
}

const DONE: End<'static> = End { outcome: Outcome::Completed, error: None };
const META: CallMeta<'static> = CallMeta {
    progress_token: Some("0123456789abcdef0123456789abcdef"),
    execution: "exe",
    events: Some("/v1/executions/exe/events?ticket=t"),
};

fn fits(_: &Value) -> Result<(), String> {
    Ok(())
}

#[test]
fn a_call_is_answered_with_all_that_came_in_its_order() {
    let image = br#"{"type":"image","data":"aGk=","mimeType":"image/png"}"#;
    let parts: [(bool, bool, &[u8]); 5] = [
        (true, true, &image[..10]),
        (true, false, &image[10..]),
        (false, false, "ab\u{e9}".as_bytes()),
        (true, false, br#"{"type":"text","text":"t"}"#),
        (false, false, b"cd"),
    ];
    let all = collected(&parts);
    let plain = ToolSpec::new("a", "b");
    for (version, document) in
        each("CallToolResult", |results| results.call(&all, DONE, &plain, META, &fits))
    {
        let content = document["content"].as_array().unwrap();
        let types: Vec<&str> = content.iter().map(|one| one["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["image", "text", "text"], "{version:?}");
        assert_eq!(content[1]["text"], "ab\u{e9}cd");
        assert_eq!(document.get("isError"), None);
        assert_eq!(document.get("structuredContent"), None);
        let meta = &document["_meta"];
        assert!(meta["progressToken"].as_str().unwrap().len() >= 32);
        assert_eq!(meta[META_EXECUTION], "exe");
        assert_eq!(meta[META_EVENTS], "/v1/executions/exe/events?ticket=t");
    }
    let mut bytes = image.to_vec();
    bytes.extend_from_slice("\nab\u{e9}cd{\"type\":\"text\",\"text\":\"t\"}\n".as_bytes());
    assert_eq!(all.into_bytes(), bytes);
}

#[test]
fn a_call_without_output_has_no_content() {
    let nothing = Collected::new();
    let plain = ToolSpec::new("a", "b");
    for (_, document) in each("CallToolResult", |results| {
        results.call(&nothing, DONE, &plain, CallMeta::default(), &fits)
    }) {
        assert_eq!(document["content"], json!([]));
    }
}

#[test]
fn bytes_that_are_no_text_are_an_embedded_resource() {
    let all = collected(&[(false, false, b"\xff\xfe")]);
    let plain = ToolSpec::new("a", "b");
    for (_, document) in
        each("CallToolResult", |results| results.call(&all, DONE, &plain, META, &fits))
    {
        let resource = &document["content"][0]["resource"];
        assert_eq!(resource["blob"], "//4=");
        assert_eq!(resource["uri"], "streamdoor://executions/exe/output");
    }
}

#[test]
fn a_block_that_a_version_does_not_have_is_text_there() {
    let blocks = [
        (json!({"type": "text", "text": "t"}), Version::V2024_11_05),
        (json!({"type": "image", "data": "aGk=", "mimeType": "i/p"}), Version::V2024_11_05),
        (json!({"type": "resource", "resource": {"uri": "a:b", "text": ""}}), Version::V2024_11_05),
        (json!({"type": "audio", "data": "aGk=", "mimeType": "a/w"}), Version::V2025_03_26),
        (json!({"type": "resource_link", "uri": "a:b", "name": "n"}), Version::V2025_06_18),
    ];
    for (block, since) in blocks {
        for version in Version::ALL {
            let made = super::block(version, block.to_string().as_bytes());
            assert_eq!(made == block, version >= since, "{block} {version:?}");
        }
    }
    let wrong = [
        json!({"type": "image", "data": "no base 64", "mimeType": "i/p"}), // A43.
        json!({"type": "image", "data": "aGk="}),
        json!({"type": "resource", "resource": {"uri": "a:b"}}),
        json!({"type": "resource", "resource": {"uri": "a:b", "text": "", "blob": ""}}),
        json!({"type": "video"}),
        json!({"text": "t"}),
        json!([1]),
    ];
    for block in wrong {
        let made = super::block(NEW, block.to_string().as_bytes());
        assert_eq!(made, text_block(&block.to_string()));
    }
    assert_eq!(super::block(NEW, b"{\xff"), text_block("{\u{fffd}"));
}

#[test]
fn a_tool_that_failed_is_a_result_that_says_so() {
    // A36.
    let all = collected(&[(false, false, b"so far")]);
    for (outcome, error, words) in [
        (Outcome::Failed, Some("no such file"), "no such file"),
        (Outcome::Failed, None, "failed"),
        (Outcome::TimedOut, None, "took too long"),
        (Outcome::TimedOut, Some("5 s"), "took too long: 5 s"),
        (Outcome::Cancelled, None, "cancelled"),
        (Outcome::Cancelled, Some("by a friend"), "cancelled: by a friend"),
    ] {
        let end = End { outcome, error };
        for (_, document) in
            each("CallToolResult", |results| results.call(&all, end, &full(), META, &fits))
        {
            assert_eq!(document["isError"], true);
            assert_eq!(document["content"][0]["text"], "so far");
            let text = document["content"][1]["text"].as_str().unwrap();
            assert!(text.contains(words), "{text}");
            assert_eq!(document.get("structuredContent"), None);
        }
    }
    for (_, document) in
        each("CallToolResult", |results| results.call_refused("`a` is missing", META))
    {
        assert_eq!(document["content"], json!([text_block("`a` is missing")]));
        assert_eq!(document["isError"], true);
    }
}

#[test]
fn an_output_with_a_schema_is_structured_or_an_error() {
    // A35, B31.
    let call = |version: Version, spec: &ToolSpec, output: &str, fits: &dyn Fn(&Value) -> _| {
        let server = ServerInfo::default();
        let all = collected(&[(false, false, output.as_bytes())]);
        let document = Results::new(version, &server).call(&all, DONE, spec, META, fits);
        check(version, "CallToolResult", &document);
        assert_eq!(document["content"][0]["text"], output);
        document
    };
    for version in [Version::V2025_06_18, OLD, NEW] {
        let good = call(version, &full(), "{\"a\": 1}", &fits);
        assert_eq!(good["structuredContent"], json!({"a": 1}));
        assert_eq!(good.get("isError"), None);
        for (output, fits) in [
            ("{\"a\": 1", &fits as &dyn Fn(&Value) -> Result<(), String>),
            ("{}", &|_| Err("`a`: is missing".to_owned())),
        ] {
            let bad = call(version, &full(), output, fits);
            assert_eq!((&bad["isError"], bad.get("structuredContent")), (&json!(true), None));
        }
    }
    assert_eq!(call(OLD, &full(), "[1]", &fits)["isError"], true);
    assert_eq!(call(Version::V2025_03_26, &full(), "{}", &fits).get("structuredContent"), None);
    let any = ToolSpec { output_schema: Some(json!({})), ..full() };
    assert_eq!(call(NEW, &any, "[1]", &fits)["structuredContent"], json!([1]));
    assert_eq!(call(OLD, &any, "[1]", &fits).get("structuredContent"), None);
}

#[test]
fn a_result_holds_so_much_and_no_more() {
    let mut all = Collected::new();
    assert!(all.push(false, false, &vec![b'a'; limits::MCP_RESULT_BYTES_MAX - 1]));
    assert!(!all.push(true, false, b"{}"));
    assert!(all.push(false, false, b"b"));
    assert!(!all.push(false, false, b"c"));
    assert_eq!((all.room(), all.len(), all.is_empty()), (0, limits::MCP_RESULT_BYTES_MAX, false));
    assert_eq!(all.into_bytes().len(), limits::MCP_RESULT_BYTES_MAX);
}

#[test]
fn a_result_that_is_too_long_is_how_it_begins_and_a_stream() {
    let cut = limits::MCP_SUMMARY_BYTES;
    let long = format!("{}\u{e9}{}", "a".repeat(cut - 1), "b".repeat(cut));
    let plain = ToolSpec::new("a", "b");
    for (_, document) in each("CallToolResult", |results| {
        results.call_as_stream(long.as_bytes(), "s-1", &plain, META)
    }) {
        assert_eq!(document["content"][0]["text"], "a".repeat(cut - 1));
        assert!(document["content"][1]["text"].as_str().unwrap().contains("\"s-1\""));
        assert_eq!(document["_meta"][META_STREAM]["stream_id"], "s-1");
        assert_eq!(document.get("isError"), None);
    }
    for (version, document) in
        each("CallToolResult", |results| results.call_as_stream(b"\xff", "s", &full(), META))
    {
        // A35: who promises structured content must not be silent about it.
        let owes = output_schema(&full(), version).is_some();
        assert_eq!(document.get("isError").is_some(), owes, "{document}");
    }
    for (version, document) in
        each("CallToolResult", |results| results.call_value(json!({"a": 1}), META))
    {
        assert_eq!(document["content"], json!([text_block("{\"a\":1}")]));
        let is_there = document.get("structuredContent").is_some();
        assert_eq!(is_there, version >= Version::V2025_06_18);
    }
}

#[test]
fn completions_are_of_the_right_shape() {
    // A39, B34.
    let values: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let found = Completion { values, total: 250 };
    for (_, document) in each("CompleteResult", |results| results.completion(&found)) {
        assert_eq!(document["completion"]["total"], 250);
        assert_eq!(document["completion"]["hasMore"], true);
    }
    for (_, document) in
        each("CompleteResult", |results| results.completion(&Completion::default()))
    {
        let nothing = json!({"values": [], "total": 0, "hasMore": false});
        assert_eq!(document["completion"], nothing);
    }
}

#[test]
fn prompts_are_of_the_right_shape() {
    // A43, B33.
    let messages = json!([{"role": "user", "content": text_block("t")}]);
    for (_, document) in each("GetPromptResult", |results| results.prompt("d", messages.clone())) {
        assert_eq!((&document["description"], &document["messages"]), (&json!("d"), &messages));
    }
}

fn form() -> Question {
    let schema = json!({"type": "object", "properties": {"n": {"type": "string"}}});
    Question::form("f", "Who?", schema)
}

#[test]
fn what_asks_first_says_what_and_brings_its_state() {
    // B16.
    let server = ServerInfo::default();
    let results = Results::new(NEW, &server);
    let asked = [form(), Question::sample("s", "p", 9), Question::roots("r")];
    let both = results.input_required(&asked, Some("sealed".to_owned()));
    check(NEW, "InputRequiredResult", &both);
    assert_eq!(both["resultType"], "input_required");
    assert_eq!(both["inputRequests"]["f"]["method"], "elicitation/create");
    assert_eq!(both["inputRequests"]["s"]["method"], "sampling/createMessage");
    assert_eq!(both["inputRequests"]["r"]["method"], "roots/list");
    assert_eq!((&both["requestState"], both.get("ttlMs")), (&json!("sealed"), None));
    let state = results.input_required(&[], Some("sealed".to_owned()));
    check(NEW, "InputRequiredResult", &state);
    assert_eq!(state.get("inputRequests"), None);
    assert!(results.input_required(&[], None).get("inputRequests").is_some());
}

#[test]
fn a_client_is_asked_only_what_it_has_declared() {
    // A44, B5, B16.
    let asked = [form(), Question::sample("s", "p", 9), Question::roots("r")];
    let able = client(json!({"elicitation": {}, "sampling": {}, "roots": {}}));
    for version in Version::ALL {
        assert_eq!(questions::check(version, &able, &asked), Ok(()));
    }
    let fault = questions::check(NEW, &client(json!({"roots": {}})), &asked).unwrap_err();
    assert_eq!((fault.code, fault.status), (codes::MISSING_CAPABILITY, 400));
    let required = json!({"elicitation": {"form": {}}, "sampling": {}});
    assert_eq!(fault.data, Some(json!({"requiredCapabilities": required})));
    let mut out = Vec::new();
    fault.write(&mut out, Some(&Id::of_number(1)));
    super::shapes::check_bytes(NEW, "MissingRequiredClientCapabilityError", &out);
    let fault = questions::check(OLD, &client(json!({})), &asked).unwrap_err();
    assert_eq!((fault.code, fault.data), (codes::INVALID_PARAMS, None)); // B6 is not of that era.
    let twice = questions::check(NEW, &able, &[form(), form()]).unwrap_err();
    assert_eq!(twice.code, codes::INTERNAL);
    let many: Vec<Question> = (0..=limits::MCP_QUESTIONS_MAX)
        .map(|key| Question { key: key.to_string(), ..form() })
        .collect();
    assert_eq!(questions::check(NEW, &able, &many).unwrap_err().code, codes::INTERNAL);
}

#[test]
fn questions_are_requests_of_the_right_shape() {
    for question in [form(), Question::sample("s", "p", 9), Question::roots("r")] {
        let mut with_mode = question.clone();
        if question.key == "f" {
            with_mode.params["mode"] = "form".into();
        }
        let shape = match question.key.as_str() {
            "f" => "ElicitRequest",
            "s" => "CreateMessageRequest",
            _ => "ListRootsRequest",
        };
        for (version, has_mode) in [(Version::V2025_06_18, false), (OLD, question.key == "f")] {
            let params = questions::params(version, &with_mode);
            assert_eq!(params.get("mode").is_some(), has_mode);
            let mut out = Vec::new();
            let method = question.method.name();
            crate::wire::jsonrpc::write_request(&mut out, "ours", method, &params);
            super::shapes::check_bytes(version, shape, &out);
        }
    }
}

fn task(state: TaskState) -> Task<'static> {
    Task {
        id: "k",
        state,
        message: Some("m"),
        created_us: 1_764_000_000_123_456,
        updated_us: 1_764_000_001_000_000,
        ttl_ms: Some(60_000),
    }
}

#[test]
fn a_task_is_told_in_the_words_of_each_form() {
    // A46, A48, A49, B38.
    let server = ServerInfo::default();
    let (old, new) = (Results::new(OLD, &server), Results::new(NEW, &server));
    let working = task(TaskState::Working);
    let created = old.task_created(&working);
    check(OLD, "CreateTaskResult", &created);
    assert_eq!(created["task"]["createdAt"], "2025-11-24T16:00:00.123456Z");
    assert_eq!(
        (&created["task"]["ttl"], &created["task"]["status"]),
        (&60_000.into(), &"working".into())
    );
    let created = new.task_created(&Task { ttl_ms: None, ..working });
    check(NEW, "CreateTaskResult", &created);
    assert_eq!((&created["resultType"], &created["ttlMs"]), (&json!("task"), &Value::Null));
    let asked = questions::requests(&[form()]);
    let result = json!({"content": [], "resultType": "complete"});
    let fault = Fault::internal("it broke");
    for (state, detail) in [
        (TaskState::Working, Detail::None),
        (TaskState::InputRequired, Detail::Questions(&asked)),
        (TaskState::Completed, Detail::Result(&result)),
        (TaskState::Failed, Detail::Fault(&fault)),
        (TaskState::Cancelled, Detail::None),
    ] {
        check(OLD, "GetTaskResult", &old.task(&task(state), detail));
        check(NEW, "GetTaskResult", &new.task(&task(state), detail));
        let cancelled = old.task_cancelled(&task(state));
        check(OLD, "CancelTaskResult", &cancelled);
        assert_eq!(cancelled["status"], state.name());
        check(NEW, "CancelTaskResult", &new.task_cancelled(&task(state)));
        let has_poll = new.task(&task(state), detail).get("pollIntervalMs").is_some();
        assert_eq!(has_poll, !state.is_terminal());
    }
    check(NEW, "UpdateTaskResult", &new.empty());
    let list = old.tasks(page(&[task(TaskState::Failed).to_json(OLD).into()]));
    check(OLD, "ListTasksResult", &list);
}

#[test]
fn the_result_of_a_task_is_that_of_its_call_and_names_the_task() {
    // A48, A49.
    let server = ServerInfo::default();
    let results = Results::new(OLD, &server);
    let call = results.call_refused("no", META);
    let result = results.task_result("k", &call);
    check(OLD, "CallToolResult", &result);
    assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"], json!({"taskId": "k"}));
    assert_eq!((&result["content"], &result["isError"]), (&call["content"], &json!(true)));
    assert_eq!(result["_meta"][META_EXECUTION], "exe");
}

#[test]
fn a_task_goes_only_where_it_may() {
    // A47, B38.
    let states = [
        TaskState::Working,
        TaskState::InputRequired,
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Cancelled,
    ];
    for from in states {
        for to in states {
            let may = !from.is_terminal() && from != to;
            assert_eq!(from.may_become(to), may, "{from:?} {to:?}");
        }
    }
    assert_eq!(TaskState::of_result(OLD, true), TaskState::Failed);
    assert_eq!(TaskState::of_result(NEW, true), TaskState::Completed);
    assert_eq!(TaskState::of_result(OLD, false), TaskState::Completed);
}

#[test]
fn a_call_is_a_task_where_tool_and_client_agree() {
    // A38, A45, B37.
    use TaskSupport::{Forbidden, Optional, Preferred, Required};
    let tasks = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let wish = json!({"task": {"ttl": 5}});
    let (direct, as_task) = (Ok(Placement::Direct), Ok(Placement::Task));
    let (not_found, missing) = (Err(codes::METHOD_NOT_FOUND), Err(codes::MISSING_CAPABILITY));
    let older = Version::V2025_06_18;
    let table = [
        (OLD, json!({}), json!({}), [direct, direct, direct, not_found]),
        (OLD, json!({}), wish.clone(), [not_found, as_task, as_task, as_task]),
        (older, json!({}), wish, [direct, direct, direct, direct]),
        (NEW, json!({}), json!({}), [direct, direct, direct, missing]),
        (NEW, tasks, json!({}), [direct, direct, as_task, as_task]),
    ];
    for (version, capabilities, params, expected) in table {
        let context = context(version, capabilities, params);
        let got = [Forbidden, Optional, Preferred, Required]
            .map(|support| placement(&context, support).map_err(|fault| fault.code));
        assert_eq!(got, expected, "{version:?}");
    }
}

#[test]
fn a_task_is_kept_as_long_as_its_client_wishes_within_limits() {
    let kept = |params: Value| ttl_ms(&context(OLD, json!({}), params));
    assert_eq!(kept(json!({})), limits::MCP_TASK_TTL_DEFAULT.as_millis() as u64);
    assert_eq!(kept(json!({"task": {"ttl": 1234}})), 1_234);
    let max = limits::MCP_TASK_TTL_MAX.as_millis() as u64;
    assert_eq!(kept(json!({"task": {"ttl": u64::MAX}})), max);
}

#[test]
fn who_listened_is_told_that_it_is_over() {
    // B29.
    let server = ServerInfo::default();
    for id in [Id::of_number(0), Id::of_text("x")] {
        let document = Results::new(NEW, &server).listened(&id);
        check(NEW, "SubscriptionsListenResult", &document);
        assert_eq!(document["_meta"]["io.modelcontextprotocol/subscriptionId"], id.to_value());
    }
}

#[test]
fn executions_are_resources() {
    // A42, B32.
    for version in [OLD, NEW] {
        check(version, "Resource", &execution("id", "tool", "running"));
        for template in execution_templates() {
            check(version, "ResourceTemplate", &template);
        }
    }
    let id = "0123456789abcdefghjkmnpqrs";
    let state = ExecutionUri::parse(&format!("streamdoor://executions/{id}"));
    assert_eq!(state, Some(ExecutionUri::State(id.parse().unwrap())));
    let output = ExecutionUri::parse(&format!("streamdoor://executions/{id}/output"));
    assert_eq!(output, Some(ExecutionUri::Output(id.parse().unwrap())));
    for uri in ["streamdoor://executions/", "streamdoor://executions/x", "test://a"] {
        assert_eq!(ExecutionUri::parse(uri), None, "{uri}");
    }
    let found = |version| Fault::resource_not_found(version, "a:b");
    assert_eq!((found(OLD).code, found(NEW).code), (-32_002, -32_602)); // C6.
    assert_eq!(found(NEW).data, Some(json!({"uri": "a:b"})));
}

#[test]
fn codes_of_our_own_are_outside_of_what_is_reserved() {
    // B6.
    assert!(!(-32_768..=-32_000).contains(&codes::BUSY));
    let mut members = Map::new();
    members.insert("x".to_owned(), 1.into());
    let server = ServerInfo::default();
    assert_eq!(Results::new(OLD, &server).complete(members), json!({"x": 1}));
}
