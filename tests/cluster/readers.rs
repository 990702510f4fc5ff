//! Clients of one node that follow executions of another.

use std::io::Read;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::nodes::{Cluster, only, slow};
use crate::served::{self, Server};
use crate::world::{self, events, fetch};

#[test]
fn another_node_gives_everything_from_the_beginning_and_then_live() {
    let Some(cluster) = Cluster::start("whole") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let id = slow(&owner, 100, 5);
    let live = events(&other, &id, "");
    let late = events(&other, &id, "");
    let own = events(&owner, &id, "");
    for of_other in [&live, &late] {
        assert_eq!(only(of_other, "gap"), [] as [&Value; 0]);
        let (end, own_end) = (of_other.last().unwrap(), own.last().unwrap());
        for name in ["event", "state", "execution_chunks", "execution_bytes", "missed_chunks"] {
            assert_eq!(end[name], own_end[name], "{name}");
        }
        // All but the number of expected chunks, which comes when the tool has said it.
        let chunks = |events: &[Value]| -> Vec<Value> {
            let each = only(events, "chunk").into_iter().cloned().map(|mut chunk| {
                chunk.as_object_mut().unwrap().remove("total_chunks");
                chunk
            });
            each.collect()
        };
        assert_eq!(chunks(of_other), chunks(&own));
    }
    assert_eq!(only(&late, "chunk"), only(&own, "chunk"), "later they are the same to the byte");
    assert!(only(&live, "progress").len() > 1, "{live:?}");
    let rest = events(&other, &id, "&from=91");
    assert_eq!((only(&rest, "chunk").len(), &only(&rest, "chunk")[0]["seq"]), (10, &json!(91)));
}

#[test]
fn output_result_and_status_are_those_of_the_owner() {
    let Some(cluster) = Cluster::start("output") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let content = cluster.folder().write_file("numbers", 3 << 20);
    let arguments = json!({ "file_path": "numbers" });
    let call = json!({ "tool": "process_file", "arguments": arguments, "policy": "block" });
    let id = world::execute(&owner, &call);
    let output = |node: &Server| fetch(node, &format!("/v1/executions/{id}/output"));
    let (theirs, own) = (output(&other), output(&owner));
    assert_eq!(Sha256::digest(&theirs), Sha256::digest(&content));
    assert_eq!(own.len(), content.len());
    let (status, document) = world::inspect(&other, &id);
    let (_, own_document) = world::inspect(&owner, &id);
    assert_eq!((status, &document["state"]), (200, &json!("completed")));
    for name in ["execution", "tool", "chunks", "bytes"] {
        assert_eq!(document[name], own_document[name], "{name}: {document}");
    }
    let result = fetch(&other, &format!("/v1/executions/{id}/result"));
    let result: Value = serde_json::from_slice(&result).unwrap();
    assert_eq!(result["state"], "completed");
}

#[test]
fn every_policy_is_as_on_the_node_of_the_tool() {
    let Some(cluster) = Cluster::start("policies") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let id = slow(&owner, 60, 3);
    let policies = ["block", "replay", "drop", "buffer", "drop_oldest", "conflate", "disconnect"];
    for policy in policies {
        for query in ["", "&kinds=output", "&coalesce_us=5000", "&kinds=stderr"] {
            let all = events(&other, &id, &format!("&policy={policy}{query}"));
            let started = &all[0];
            assert_eq!(
                (&started["event"], &started["policy"]),
                (&json!("started"), &json!(policy))
            );
            let end = all.last().unwrap();
            assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("completed")));
            let number = |name: &str| end[name].as_u64().unwrap();
            let expected = if query.contains("stderr") { 0 } else { 60 };
            let told = number("chunks") + number("missed_chunks");
            assert_eq!(told, expected, "{policy}{query}: {end}");
            let gaps = only(&all, "gap");
            let missed: u64 = gaps.iter().map(|gap| gap["chunk_count"].as_u64().unwrap()).sum();
            assert_eq!(missed, number("missed_chunks"), "{policy}{query}: {gaps:?}");
        }
    }
}

#[test]
fn front_ends_are_told_the_same_as_on_the_node_of_the_tool() {
    let Some(cluster) = Cluster::start("fronts") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let id = slow(&owner, 20, 2);
    assert_eq!(events(&other, &id, "").last().unwrap()["state"], "completed");
    for format in ["ai-sdk", "ag-ui", "langgraph", "responses"] {
        let path = format!("/v1/executions/{id}/events?format={format}");
        let [own, theirs] = [&owner, &other].map(|node| {
            let body = String::from_utf8(fetch(node, &path)).unwrap();
            // Of progress only the newest is known, and it comes at another time.
            let is_output = |line: &&str| line.contains("of 20 ...");
            let lines: Vec<String> = body.lines().filter(is_output).map(String::from).collect();
            lines
        });
        assert!(own.len() >= 20 && theirs.len() == own.len(), "{format}: {own:#?} {theirs:#?}");
        // Those behind the chunks repeat all of them, at the time of the answer.
        assert_eq!(own[..20], theirs[..20], "{format}");
    }
}

#[test]
fn a_client_that_reads_slowly_gets_everything_and_the_tool_does_not_wait_for_it() {
    let Some(cluster) = Cluster::start("slow") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let content = cluster.folder().write_file("numbers", 8 << 20);
    let call = json!({ "tool": "process_file", "arguments": { "file_path": "numbers" } });
    let id = world::execute(&owner, &call);
    let mut stream = served::connect_with_small_buffer(&other.address);
    let path = format!("/v1/executions/{id}/output");
    let request = world::request_head(&format!("GET {path}"), "", "");
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    // The tool ends although nothing is read.
    let own = fetch(&owner, &path);
    assert_eq!(own.len(), content.len());
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let at = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    assert!(all.len() - at > content.len());
}

#[test]
fn acknowledgements_and_cursors_work_with_a_replica() {
    let Some(cluster) = Cluster::start("acks") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let id = slow(&owner, 50, 4);
    let first = events(&other, &id, "&from=1");
    let cursor = first.iter().rev().find(|event| event["event"] == "chunk").unwrap();
    assert_eq!(cursor["seq"], 50);
    // The cursor of an event of one node is understood by the other.
    for node in [&owner, &other] {
        let headers = format!("Last-Event-ID: {id}:40:4000\r\n");
        let response = world::get(node, &format!("/v1/executions/{id}/events"), &headers);
        let body = String::from_utf8(response.body).unwrap();
        assert_eq!(body.matches("event: chunk").count(), 10, "{body}");
        assert_eq!(body.matches("event: end").count(), 1);
        assert!(!body.contains("event: gap"), "{body}");
    }
    // Several executions in one stream, one of them of this node.
    let here = slow(&other, 20, 1);
    let both = fetch(&other, &format!("/v1/events?executions={id},{here}&format=ndjson"));
    let both = String::from_utf8(both).unwrap();
    let all: Vec<Value> = both
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((only(&all, "chunk").len(), only(&all, "end").len()), (70, 2), "{both}");
}

#[test]
fn an_execution_is_cancelled_from_another_node() {
    let Some(cluster) = Cluster::start("cancel") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let id = slow(&owner, 100_000, 2);
    let (status, _) = world::inspect(&other, &id);
    assert_eq!(status, 200);
    let path = format!("/v1/executions/{id}");
    let (status, answer) = served::ask(&other.address, "DELETE", &path, "");
    assert_eq!(status, 202, "{answer}");
    for node in [&owner, &other] {
        let end = events(node, &id, "&policy=drop_oldest").pop().unwrap();
        assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("cancelled")));
    }
    let (status, _) = served::ask(&other.address, "DELETE", &path, "");
    assert_eq!(status, 200, "it has ended");
}
