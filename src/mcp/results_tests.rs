//! The documents of results: in each version they have the shape that its schema requires.

use serde_json::{Map, Value, json};

use super::cursor::Page;
use super::results::{ExecutionUri, Results, execution, execution_templates, output_schema, tool};
use super::shapes::check;
use super::testing::client;
use super::{McpFault, ServerInfo, Version, codes, questions, streams, text_block};
use crate::limits;
use crate::tool::{Completion, Question, TaskSupport, ToolSpec};
use crate::wire::jsonrpc::Id;

const OLD: Version = Version::V2025_11_25;

const NEW: Version = Version::V2026_07_28;

/// Makes a document in each version, and checks its shape.
pub(super) fn each<D: Into<Value>>(
    shape: &str,
    make: impl Fn(&Results<'_>) -> D,
) -> Vec<(Version, Value)> {
    let server = ServerInfo { title: Some("T".to_owned()), ..Default::default() };
    let documents = Version::ALL.map(|version| {
        let document = make(&Results::new(version, &server)).into();
        check(version, shape, &document);
        let is_typed = document.get("resultType").is_some();
        assert_eq!(is_typed, version == NEW, "{document}"); // B2.
        let name = document.pointer("/_meta/io.modelcontextprotocol~1serverInfo/name");
        assert_eq!(name.is_some(), version == NEW, "{document}"); // B4.
        (version, document)
    });
    documents.into()
}

pub(super) fn page(items: &[Value]) -> Page<Value> {
    Page { items: items.to_vec(), next: Some("n".to_owned()) }
}

/// Returns a tool with all optional members.
pub(super) fn full() -> ToolSpec {
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
fn the_stream_tools_are_right() {
    for spec in streams::specs() {
        for version in Version::ALL {
            check(version, "Tool", &tool(&spec, version));
        }
        assert!(streams::is_tool(&spec.name) && spec.title.is_some());
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

pub(super) fn form() -> Question {
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
    let found = |version| McpFault::resource_not_found(version, "a:b");
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
