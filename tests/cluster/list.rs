//! The list of the executions of all nodes.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::nodes::Cluster;
use crate::served::{Server, asked};
use crate::strangers::{ANN, BOB, token_file};

fn run(node: &Server, of: (&str, &str), chunks: u64) -> String {
    let arguments = json!({ "chunks": chunks, "delay_ms": 1 });
    let call = json!({ "tool": "slow_data_processor", "arguments": arguments }).to_string();
    let (status, created) = asked::ask(&node.address, "POST", "/v1/executions", of.1, &call);
    assert_eq!(status, 201, "{created}");
    let created: Value = serde_json::from_str(&created).unwrap();
    created["execution"].as_str().unwrap().to_owned()
}

fn list(node: &Server, of: (&str, &str), query: &str) -> (u16, Value) {
    let path = format!("/v1/executions?scope=cluster{query}");
    let (status, text) = asked::ask(&node.address, "GET", &path, of.1, "");
    (status, serde_json::from_str(&text).expect(&text))
}

/// Sleeps. Returns false, so that something is tried again.
fn sleep(time: Duration) -> bool {
    std::thread::sleep(time);
    false
}

/// The executions of a list, each with its node.
fn listed(document: &Value) -> Vec<(String, String)> {
    let all = document["executions"].as_array().expect("a list");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    all.iter().map(|item| (text(&item["execution"]), text(&item["node"]))).collect()
}

/// The parts of a list, one after the other.
fn in_parts(node: &Server, of: (&str, &str), limit: usize) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut after = String::new();
    loop {
        let (status, part) = list(node, of, &format!("&limit={limit}{after}"));
        let found = listed(&part);
        assert!(status == 200 && found.len() <= limit, "{part}");
        all.extend(found);
        let Some(next) = part["next"].as_str() else { return all };
        after = format!("&after={next}");
    }
}

#[test]
fn each_node_lists_the_executions_of_all() {
    let Some(cluster) = Cluster::start("list") else { return };
    let tokens = token_file(&cluster, "tokens", &[ANN, BOB]);
    let swapped = token_file(&cluster, "swapped", &[BOB, ANN]);
    let a = cluster.node("a", &["--token-file", &tokens, "--cpus", "0,1"]);
    let b = cluster.node("b", &["--token-file", &swapped]);
    let mut expected = Vec::new();
    for number in 0..7 {
        let (node, name) = if number % 3 == 0 { (&b, "b") } else { (&a, "a") };
        expected.push((run(node, ANN, 5), name.to_owned()));
    }
    let endless = run(&b, ANN, 100_000);
    expected.push((endless.clone(), "b".to_owned()));
    let of_bob = (run(&a, BOB, 5), "a".to_owned());
    // A node sees another one soon after that has its lease.
    let sees_all = || listed(&list(&a, ANN, "").1) == expected;
    assert!((0..200).any(|_| sees_all() || sleep(Duration::from_millis(50))));
    // A replica is not listed: its owner lists it.
    let (status, _) =
        asked::ask(&a.address, "GET", &format!("/v1/executions/{endless}"), ANN.1, "");
    assert_eq!(status, 200);
    for node in [&a, &b] {
        for limit in [1, 3, 8, 250] {
            assert_eq!(in_parts(node, ANN, limit), expected, "{limit}");
        }
        assert_eq!(in_parts(node, BOB, 2), std::slice::from_ref(&of_bob));
        let (_, running) = list(node, ANN, "&state=running");
        assert_eq!(listed(&running), [(endless.clone(), "b".to_owned())]);
        assert_eq!(listed(&list(node, ANN, "&tool=another").1), []);
        assert_eq!(list(node, ("", ""), "").0, 401);
    }
    let own = asked::ask(&b.address, "GET", "/v1/executions?scope=server", ANN.1, "").1;
    let own: Value = serde_json::from_str(&own).unwrap();
    let own = own["executions"].as_array().unwrap();
    assert_eq!((own.len(), own[0].get("node")), (4, None));
}

#[test]
fn nodes_that_do_not_answer_are_named_and_without_nats_the_list_is_refused() {
    let Some(mut cluster) = Cluster::start("list-missing") else { return };
    let (a, b) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let here = crate::nodes::slow(&a, 3, 1);
    let there = crate::nodes::slow(&b, 3, 1);
    let all = [(here.clone(), "a".to_owned()), (there, "b".to_owned())];
    let sees_both = || listed(&list(&a, ("", ""), "").1) == all;
    let seen = (0..200).any(|_| sees_both() || sleep(Duration::from_millis(50)));
    assert!(seen, "the list never has both");
    b.signal(Signal::STOP);
    let (status, document) = list(&a, ("", ""), "");
    assert_eq!((status, &document["missing_nodes"]), (200, &json!(["b"])), "{document}");
    assert_eq!(listed(&document), [all[0].clone()]);
    b.signal(Signal::CONT);
    cluster.nats.kill();
    let (status, document) = list(&a, ("", ""), "");
    assert!(status == 503 || document["missing_nodes"] == json!(["b"]), "{status}: {document}");
    // What this server has is listed all the same.
    let (status, own) = asked::ask(&a.address, "GET", "/v1/executions", "", "");
    assert!(status == 200 && own.contains(&here), "{own}");
}
