//! Results of calls, compared with trees of the same members, which are spelled afterwards.

use serde_json::{Map, Value, json};

use super::call::{CallMeta, Collected, Rest, ToolCallEnd, block, text_block};
use super::catalog::encoded;
use super::results::{Results, add_meta, output_schema};
use super::results_tests::full;
use super::{META_EVENTS, META_EXECUTION, META_STREAM, ServerInfo, Version};
use crate::base::Random;
use crate::limits;
use crate::stream::{Kind, Outcome};
use crate::tool::ToolSpec;
use crate::wire::json::write_value;

/// Adds the members that all results of calls have.
fn finish(
    mut members: Map<String, Value>,
    content: Vec<Value>,
    is_error: bool,
    meta: CallMeta<'_>,
    results: &Results<'_>,
) -> Value {
    members.insert("content".to_owned(), content.into());
    if is_error {
        members.insert("isError".to_owned(), true.into());
    }
    if let Some(token) = meta.progress_token {
        add_meta(&mut members, "progressToken", token.into());
    }
    if !meta.execution.is_empty() {
        add_meta(&mut members, META_EXECUTION, meta.execution.into());
    }
    if let Some(events) = meta.events {
        add_meta(&mut members, META_EVENTS, events.into());
    }
    results.complete(members)
}

fn spelled(tree: &Value) -> String {
    let mut out = Vec::new();
    write_value(&mut out, tree);
    String::from_utf8(out).unwrap()
}

/// Chunks of a tool: each is a content block or other output.
type Chunks = [(bool, Vec<u8>)];

fn content_of(chunks: &Chunks, version: Version, meta: CallMeta<'_>) -> Vec<Value> {
    let (mut content, mut output, mut place) = (Vec::new(), Vec::new(), None);
    for (is_block, bytes) in chunks {
        match is_block {
            true => content.push(block(version, bytes)),
            false => {
                place.get_or_insert(content.len());
                output.extend_from_slice(bytes);
            }
        }
    }
    if let Some(place) = place.filter(|_| !output.is_empty()) {
        let uri = format!("streamdoor://executions/{}/output", meta.execution);
        let mime_type = "application/octet-stream";
        let of_bytes = || json!({ "uri": uri, "mimeType": mime_type, "blob": encoded(&output) });
        let output = match std::str::from_utf8(&output) {
            Ok(text) => text_block(text),
            Err(_) => json!({ "type": "resource", "resource": of_bytes() }),
        };
        content.insert(place, output);
    }
    content
}

fn random_chunks(random: &mut Random) -> Vec<(bool, Vec<u8>)> {
    let blocks: [&[u8]; 4] = [
        br#"{"type":"image","data":"aGk=","mimeType":"image/png","x":[1.50,1e3,{"\u2028":null}]}"#,
        br#"{ "type": "text", "text": "\u00e9\n" }"#,
        b"{\"type\":\"video\"}",
        b"no \xff JSON",
    ];
    let outputs: [&[u8]; 5] = [b"plain", "\"\u{85}\u{1b}é".as_bytes(), b"\xff", b"{\"a\":1}", b"x"];
    let one = |random: &mut Random| match random.below(2) {
        0 => (true, blocks[random.below(4) as usize].to_vec()),
        _ => (false, outputs[random.below(5) as usize].to_vec()),
    };
    (0..random.below(4)).map(|_| one(random)).collect()
}

fn random_meta<'a>(random: &mut Random) -> CallMeta<'a> {
    CallMeta {
        progress_token: (random.below(2) == 0).then_some("0123\"\u{7f}"),
        execution: ["", "exe"][random.below(2) as usize],
        events: (random.below(2) == 0).then_some("/v1/executions/exe/events?ticket=t"),
    }
}

#[test]
fn results_are_spelled_like_trees_of_their_members() {
    let mut random = Random::new(1);
    let plain = ToolSpec::new("a", "b");
    for round in 0..5_000 {
        let version = Version::ALL[random.below(Version::ALL.len() as u64) as usize];
        let title = (random.below(2) == 0).then(|| "T\u{2028}".to_owned());
        let server = ServerInfo { title, ..ServerInfo::default() };
        let results = Results::new(version, &server);
        let meta = random_meta(&mut random);
        let chunks = random_chunks(&mut random);
        let mut all = Collected::new();
        for (is_block, bytes) in &chunks {
            assert!(all.push(*is_block, false, bytes));
        }
        let said = (random.below(2) == 0).then_some("it\nbroke");
        let end = match random.below(2) {
            0 => ToolCallEnd { outcome: Outcome::Completed, error: None },
            _ => ToolCallEnd { outcome: Outcome::Failed, error: said },
        };
        let mut content = content_of(&chunks, version, meta);
        let has_failed = end.outcome == Outcome::Failed;
        content.extend(has_failed.then(|| text_block(said.unwrap_or("The tool failed."))));
        let tree = finish(Map::new(), content, has_failed, meta, &results);
        let result = results.call(&all, end, &plain, meta, &|_| Ok(()));
        let json = String::from_utf8(result.as_json().to_vec()).unwrap();
        assert_eq!(json, spelled(&tree), "round {round}: {version:?}");
        assert_eq!((result.is_error(), Value::from(result)), (has_failed, tree));
    }
}

#[test]
fn structured_results_are_spelled_like_trees_of_their_members() {
    let server = ServerInfo::default();
    let text = r#"{"a":[1.0,-7,1e300,"\u2028"],"b":{}}"#;
    let value: Value = serde_json::from_str(text).unwrap();
    let done = ToolCallEnd { outcome: Outcome::Completed, error: None };
    let mut random = Random::new(2);
    for version in Version::ALL.into_iter().cycle().take(200) {
        let results = Results::new(version, &server);
        let meta = random_meta(&mut random);
        let members = |is_there: bool| -> Map<String, Value> {
            is_there.then(|| ("structuredContent".to_owned(), value.clone())).into_iter().collect()
        };
        let mut all = Collected::new();
        assert!(all.push(false, false, text.as_bytes()));
        let has_schema = output_schema(&full(), version).is_some();
        let tree = finish(members(has_schema), vec![text_block(text)], false, meta, &results);
        let result = results.call(&all, done, &full(), meta, &|_| Ok(()));
        assert_eq!(result.as_json(), spelled(&tree).as_bytes(), "{version:?}");

        let mut relayed = Collected::relaying();
        assert!(relayed.push_chunk(Kind::Output, false, text.as_bytes()));
        assert!(relayed.push_chunk(Kind::Structured, false, text.as_bytes()));
        let is_new = version >= Version::V2025_06_18;
        let tree = finish(members(is_new), vec![text_block(text)], false, meta, &results);
        let result = results.call(&relayed, done, &full(), meta, &|_| Ok(()));
        assert_eq!(result.as_json(), spelled(&tree).as_bytes(), "{version:?}");

        let content = vec![text_block(&value.to_string())];
        let tree = finish(members(is_new), content, false, meta, &results);
        let result = results.call_value(&value, meta);
        assert_eq!(result.as_json(), spelled(&tree).as_bytes(), "{version:?}");
    }
}

#[test]
fn refusals_and_parts_are_spelled_like_trees_of_their_members() {
    let server = ServerInfo::default();
    let plain = ToolSpec::new("a", "b");
    let mut random = Random::new(3);
    let rests = [
        (Rest::Stream("s\""), true, false),
        (Rest::Held("s"), true, false),
        (Rest::Told, false, false),
        (Rest::CutShort, false, true),
        (Rest::Lost, false, true),
    ];
    for version in Version::ALL.into_iter().cycle().take(200) {
        let results = Results::new(version, &server);
        let meta = random_meta(&mut random);
        let tree = finish(Map::new(), vec![text_block("no\t")], true, meta, &results);
        let result = results.call_refused("no\t", meta);
        assert_eq!(result.as_json(), spelled(&tree).as_bytes(), "{version:?}");
        for (rest, has_stream, is_lost) in rests {
            let beginning = vec![b'a'; limits::MCP_SUMMARY_BYTES * 2];
            let result = results.call_in_part(&beginning, rest, &plain, meta);
            let value: Value = result.clone().into();
            let content = vec![
                text_block(&"a".repeat(limits::MCP_SUMMARY_BYTES)),
                value["content"][1].clone(), // Other tests look at the words.
            ];
            let mut tree = finish(Map::new(), content, is_lost, meta, &results);
            if let (true, Some(members)) = (has_stream, tree.as_object_mut()) {
                let (Rest::Stream(id) | Rest::Held(id)) = rest else { unreachable!() };
                add_meta(members, META_STREAM, json!({ "stream_id": id }));
            }
            assert_eq!(result.as_json(), spelled(&tree).as_bytes(), "{version:?} {rest:?}");
        }
    }
}
