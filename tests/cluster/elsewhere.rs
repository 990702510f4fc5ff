//! Requests that only the node of an execution carries out, and nodes that share no principals.

use serde_json::{Value, json};

use crate::nodes::{Cluster, slow};
use crate::served::{Server, asked};
use crate::strangers::{ANN, token_file};
use crate::world::inspect;

/// A request, and its status on the node of the execution.
type Asked = (&'static str, String, &'static str, Value, u16);

fn asked_of_owner(id: &str) -> Vec<Asked> {
    let this = format!("/v1/executions/{id}");
    let (results, lines) = ("/v1/tool-results/stream".to_owned(), "X-Session-Id: w\r\n");
    let subscriber = format!("{this}/subscribers/s0.7");
    let part = json!({ "tool_call_id": id, "content": "text" });
    vec![
        ("DELETE", format!("{this}?forget=true"), "", Value::Null, 409),
        ("POST", format!("{subscriber}/acks"), "", json!({ "seq": 1 }), 404),
        ("DELETE", subscriber, "", Value::Null, 404),
        ("POST", results, lines, part, 404),
    ]
}

fn answer(node: &Server, (method, path, headers, body, _): &Asked) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, text) = asked::ask(&node.address, method, path, headers, &body);
    (status, serde_json::from_str(&text).expect(&text))
}

#[test]
fn what_only_the_owner_does_is_answered_with_its_name_and_its_url() {
    let Some(cluster) = Cluster::start("elsewhere") else { return };
    let owner = cluster.node("a", &[]);
    let hidden = cluster.node("c", &["--cluster-advertise", "https://c.example"]);
    let other = cluster.node("b", &["--cpus", "0,1"]);
    for (node, name, url) in [
        (&owner, "a", format!("http://{}", owner.address)),
        (&hidden, "c", "https://c.example".to_owned()),
    ] {
        let id = slow(node, 100_000, 2);
        for asked in asked_of_owner(&id) {
            let (status, document) = answer(&other, &asked);
            let error = &document["error"];
            assert_eq!((status, &error["code"]), (421, &json!("elsewhere")), "{asked:?}: {error}");
            assert_eq!((&error["node"], &error["url"]), (&json!(name), &json!(url)), "{error}");
            let (status, document) = answer(node, &asked);
            assert_eq!(status, asked.4, "{asked:?}: {document}");
        }
        assert_eq!(inspect(node, &id).1["state"], "running", "nothing was done to it");
    }
    for asked in asked_of_owner(&"7".repeat(26)) {
        assert_eq!(answer(&other, &asked).0, 404, "{asked:?}");
    }
}

#[test]
fn a_part_in_a_body_of_many_is_answered_likewise() {
    let Some(cluster) = Cluster::start("parts") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let id = slow(&owner, 100_000, 2);
    let part = json!({ "tool_call_id": id, "content": "text" });
    let headers = "X-Session-Id: w\r\nContent-Type: application/x-ndjson\r\n";
    let body = format!("{part}\n{part}\n");
    let path = "/v1/tool-results/stream";
    let response = crate::world::post(&other, path, headers, &body);
    let text = String::from_utf8(response.body).unwrap();
    assert_eq!((response.status, text.contains("\"elsewhere\"")), (421, true), "{text}");
}

#[test]
fn nodes_with_and_without_tokens_say_so_and_share_nothing() {
    let Some(cluster) = Cluster::start("apart") else { return };
    let tokens = token_file(&cluster, "tokens", &[ANN]);
    let (open, guarded) = (cluster.node("a", &[]), cluster.node("b", &["--token-file", &tokens]));
    assert_eq!(open.wait_for("cluster_node_apart")["node"], "b");
    assert_eq!(guarded.wait_for("cluster_node_apart")["node"], "a");
    let id = slow(&open, 10, 1);
    let path = format!("/v1/executions/{id}");
    assert_eq!(asked::ask(&guarded.address, "GET", &path, ANN.1, "").0, 404);
    let call = json!({ "tool": "slow_data_processor", "arguments": { "chunks": 1 } }).to_string();
    let created = asked::ask(&guarded.address, "POST", "/v1/executions", ANN.1, &call).1;
    let created: Value = serde_json::from_str(&created).unwrap();
    let path = format!("/v1/executions/{}", created["execution"].as_str().unwrap());
    assert_eq!(asked::ask(&guarded.address, "GET", &path, ANN.1, "").0, 200);
    assert_eq!(asked::ask(&open.address, "GET", &path, "", "").0, 404);
}
