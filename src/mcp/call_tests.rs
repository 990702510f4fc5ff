//! The results of calls: all output, in the form of each version.

use serde_json::{Value, json};

use super::results::{Results, output_schema};
use super::results_tests::{each, full};
use super::shapes::check;
use super::{
    CallMeta, Collected, META_EVENTS, META_EXECUTION, META_STREAM, Rest, ServerInfo, ToolCallEnd,
    Version, text_block,
};
use crate::limits;
use crate::stream::{Kind, Outcome};
use crate::tool::ToolSpec;

const OLD: Version = Version::V2025_11_25;
const NEW: Version = Version::V2026_07_28;

fn collected(parts: &[(bool, bool, &[u8])]) -> Collected {
    let mut collected = Collected::new();
    for (is_block, has_more, bytes) in parts {
        assert!(collected.push(*is_block, *has_more, bytes));
    }
    collected
}

const DONE: ToolCallEnd<'static> = ToolCallEnd { outcome: Outcome::Completed, error: None };

pub(super) const META: CallMeta<'static> = CallMeta {
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
        let end = ToolCallEnd { outcome, error };
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
        let results = Results::new(version, &server);
        let document = Value::from(results.call(&all, DONE, spec, META, fits));
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
        results.call_in_part(long.as_bytes(), Rest::Stream("s-1"), &plain, META)
    }) {
        assert_eq!(document["content"][0]["text"], "a".repeat(cut - 1));
        assert!(document["content"][1]["text"].as_str().unwrap().contains("\"s-1\""));
        assert_eq!(document["_meta"][META_STREAM]["stream_id"], "s-1");
        assert_eq!(document.get("isError"), None);
    }
    for (version, document) in each("CallToolResult", |results| {
        results.call_in_part(b"\xff", Rest::Stream("s"), &full(), META)
    }) {
        // A35: a tool that promises structured content must not omit it silently.
        let owes = output_schema(&full(), version).is_some();
        assert_eq!(document.get("isError").is_some(), owes, "{document}");
    }
    for (version, document) in
        each("CallToolResult", |results| results.call_value(&json!({"a": 1}), META))
    {
        assert_eq!(document["content"], json!([text_block("{\"a\":1}")]));
        let is_there = document.get("structuredContent").is_some();
        assert_eq!(is_there, version >= Version::V2025_06_18);
    }
}

#[test]
fn a_result_without_a_stream_says_at_once_where_the_rest_is() {
    let plain = ToolSpec::new("a", "b");
    for (rest, words, is_error) in [
        (Rest::Told, "The notifications of this call contained all of it", false),
        (Rest::CutShort, "only a part of it", true),
        (Rest::Lost, "The rest was not kept", true),
    ] {
        for (_, document) in
            each("CallToolResult", |results| results.call_in_part(b"ab", rest, &plain, META))
        {
            assert_eq!(document["content"][0]["text"], "ab");
            let text = document["content"][1]["text"].as_str().unwrap();
            assert!(text.contains(words) && !text.contains("stream_read"), "{text}");
            assert_eq!(document["_meta"].get(META_STREAM), None);
            assert_eq!(document["isError"] == true, is_error);
        }
    }
    for (_, document) in
        each("CallToolResult", |results| results.call_in_part(b"ab", Rest::Held("s"), &plain, META))
    {
        let text = document["content"][1]["text"].as_str().unwrap();
        assert!(text.contains("only its end is still held"), "{text}");
        assert_eq!(document["_meta"][META_STREAM]["stream_id"], "s");
    }
}

#[test]
fn the_result_of_another_server_comes_out_as_it_went_in() {
    let image = br#"{"type":"image","data":"aGk=","mimeType":"image/png"}"#;
    let mut all = Collected::relaying();
    for (kind, has_more, bytes) in [
        (Kind::Output, true, &b"a"[..]),
        (Kind::Output, false, b"b"),
        (Kind::Content, true, &image[..9]),
        (Kind::Content, false, &image[9..]),
        (Kind::Output, false, b"c"),
        (Kind::Structured, false, br#"{"x":1}"#),
    ] {
        assert!(all.push_chunk(kind, has_more, bytes));
    }
    let spec = ToolSpec { is_relayed: true, ..ToolSpec::new("a", "b") };
    let picture: Value = serde_json::from_slice(image).unwrap();
    for (version, document) in
        each("CallToolResult", |results| results.call(&all, DONE, &spec, META, &fits))
    {
        let expected = json!([text_block("ab"), picture, text_block("c")]);
        assert_eq!(document["content"], expected, "{version:?}");
        let is_there = document.get("structuredContent") == Some(&json!({"x": 1}));
        assert_eq!(is_there, version >= Version::V2025_06_18, "{version:?}");
        assert_eq!(document.get("isError"), None);
    }
    // An output that breaks the schema is an error. A reason that is in the text already is not
    // repeated.
    let refuse = |_: &Value| Err("`x`: is wrong".to_owned());
    for (version, document) in
        each("CallToolResult", |results| results.call(&all, DONE, &spec, META, &refuse))
    {
        let is_error = document["isError"] == true;
        assert_eq!(is_error, version >= Version::V2025_06_18, "{version:?}");
    }
    let end = ToolCallEnd { outcome: Outcome::Failed, error: Some("a\u{2026}") };
    for (_, document) in
        each("CallToolResult", |results| results.call(&all, end, &spec, META, &fits))
    {
        assert_eq!(
            (document["content"].as_array().unwrap().len(), &document["isError"]),
            (3, &json!(true))
        );
    }
    assert!(!all.push_chunk(Kind::Output, false, &vec![0; limits::UPSTREAM_RESULT_BYTES_MAX]));
    assert_eq!(all.output(), b"ab");
}
