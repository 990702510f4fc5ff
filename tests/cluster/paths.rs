//! Durable Streams of several nodes: a path belongs to one of them, and the others say which.

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};

use crate::campaign::until;
use crate::nodes::Cluster;
use crate::served::Server;
use crate::strangers::{ANN, BOB, token_file};
use crate::world::{self, Response, kill};

const TEXT: &str = "Content-Type: text/plain\r\n";

fn path(name: &str) -> String {
    format!("/v1/stream/{name}")
}

/// Sends a request about a stream.
fn ask(node: &Server, method: &str, path: &str, headers: &str, body: &str) -> Response {
    world::send(node, &format!("{method} {path}"), headers, body)
}

fn text(response: &Response) -> &str {
    std::str::from_utf8(&response.body).expect("text")
}

/// The code of an error.
fn code(response: &Response) -> Value {
    let document: Value = serde_json::from_slice(&response.body).expect("JSON");
    document["error"]["code"].clone()
}

/// Sends a request, and sends it again to the node that the answer names.
fn follow(nodes: &[&Server], at: usize, method: &str, path: &str, body: &str) -> (usize, Response) {
    let first = ask(nodes[at], method, path, TEXT, body);
    if first.status != 307 {
        return (at, first);
    }
    let location = first.head.lines().find_map(|line| line.strip_prefix("location: "));
    let location = location.expect("an address");
    let (address, rest) = location["http://".len()..].split_once('/').expect("a path");
    assert_eq!(format!("/{rest}"), path, "the path and the query are kept");
    let there = nodes.iter().position(|node| node.address == address).expect("a node");
    (there, ask(nodes[there], method, path, TEXT, body))
}

#[test]
fn a_stream_is_found_read_and_written_from_any_node() {
    let Some(cluster) = Cluster::start("paths") else { return };
    let (a, b) = (cluster.node("a", &[]), cluster.node("b", &["--cpus", "0,1"]));
    let nodes = [&a, &b];
    let stream = path("logs/one%20day");
    assert_eq!(ask(&b, "GET", &stream, "", "").status, 404);
    assert_eq!(ask(&a, "PUT", &stream, TEXT, "one\n").status, 201);
    for (method, query, body, status) in [
        ("PUT", "", "", 200),
        ("POST", "", "two\n", 204),
        ("GET", "?offset=-1", "", 200),
        ("HEAD", "", "", 200),
    ] {
        let target = format!("{stream}{query}");
        let (there, response) = follow(&nodes, 1, method, &target, body);
        assert_eq!((there, response.status), (0, status), "{method} {}", text(&response));
        if method == "GET" {
            assert_eq!(text(&response), "one\ntwo\n");
        }
    }
    // A fork is on the node of its source, whichever node is asked.
    let fork = path("fork");
    let forked = format!("{TEXT}Stream-Forked-From: {stream}\r\n");
    assert_eq!(ask(&b, "PUT", &fork, &forked, "").status, 307);
    assert_eq!(ask(&a, "PUT", &fork, &forked, "").status, 201);
    assert_eq!(follow(&nodes, 1, "GET", &fork, "").0, 0);
    // Once it is removed, the path is free for any node.
    assert_eq!(follow(&nodes, 1, "DELETE", &fork, "").1.status, 204);
    until("the path of the fork", || (ask(&b, "GET", &fork, "", "").status == 404).then_some(()));
    assert_eq!(ask(&b, "PUT", &fork, TEXT, "of b").status, 201);
    let (there, response) = follow(&nodes, 0, "GET", &fork, "");
    assert_eq!((there, text(&response)), (1, "of b"));
    // A creation that is refused leaves no claim behind, once that was given back.
    let wrong = format!("{TEXT}Stream-Forked-From: {}\r\n", path("nothing"));
    assert_eq!(ask(&a, "PUT", &path("none"), &wrong, "").status, 404);
    let json = "Content-Type: application/json\r\n";
    assert_eq!(ask(&a, "PUT", &path("none"), json, "{").status, 400);
    let create = || ask(&b, "PUT", &path("none"), TEXT, "").status;
    until("the path of no stream", || (create() == 201).then_some(()));
}

#[test]
fn of_nodes_that_create_the_same_stream_at_the_same_time_one_has_it() {
    let Some(cluster) = Cluster::start("race") else { return };
    let nodes = ["a", "b", "c"].map(|name| cluster.node(name, &[]));
    for round in 0..30 {
        let stream = path(&format!("race-{round}"));
        let statuses: Vec<u16> = thread::scope(|scope| {
            let stream = &stream;
            let ask = |node| scope.spawn(move || ask(node, "PUT", stream, TEXT, "").status);
            let all = nodes.each_ref().map(ask);
            all.map(|asked| asked.join().unwrap()).into()
        });
        let created = statuses.iter().position(|status| *status == 201).expect("one has it");
        assert_eq!(statuses.iter().filter(|status| **status == 307).count(), 2, "{statuses:?}");
        let all = nodes.each_ref();
        let found: BTreeSet<usize> =
            (0..3).map(|at| follow(&all, at, "GET", &stream, "").0).collect();
        assert_eq!(found, BTreeSet::from([created]));
        // Removed and created again at once, it is still on one node.
        assert_eq!(ask(&nodes[created], "DELETE", &stream, "", "").status, 204);
        assert_eq!(ask(&nodes[created], "PUT", &stream, TEXT, "again").status, 201);
        let other = follow(&all, (created + 1) % 3, "GET", &stream, "");
        assert_eq!((other.0, text(&other.1)), (created, "again"));
    }
}

#[test]
fn paths_stay_with_their_node_over_restarts_and_while_the_servers_are_away() {
    let Some(mut cluster) = Cluster::start("stay") else { return };
    let b = cluster.node("b", &[]);
    let stream = path("kept");
    // From before the server was a node.
    let journal = cluster.folder().path().join("journal-a").display().to_string();
    let alone = Server::start(&["--journal", &journal]);
    assert_eq!(ask(&alone, "PUT", &stream, TEXT, "old").status, 201);
    drop(alone);
    let a = cluster.node("a", &[]);
    until("the claim", || (ask(&b, "GET", &stream, "", "").status == 307).then_some(()));
    kill(a);
    let gone = until("the end of the lease", || {
        Some(ask(&b, "GET", &stream, "", "")).filter(|response| response.status == 421)
    });
    assert_eq!(code(&gone), "elsewhere");
    assert_eq!(ask(&b, "PUT", &stream, TEXT, "").status, 421);
    let a = cluster.node("a", &[]);
    until("the new lease", || (ask(&b, "GET", &stream, "", "").status == 307).then_some(()));
    let (there, response) = follow(&[&a, &b], 1, "GET", &stream, "");
    assert_eq!((there, text(&response)), (0, "old"));

    cluster.nats.kill();
    a.wait_for("cluster_cut_off");
    assert_eq!(ask(&a, "POST", &stream, TEXT, "new").status, 204);
    assert_eq!(text(&ask(&a, "GET", &stream, "", "")), "oldnew");
    let refused = ask(&a, "PUT", &path("another"), TEXT, "");
    assert_eq!((refused.status, code(&refused)), (503, json!("busy")));
    assert_eq!(ask(&b, "GET", &stream, "", "").status, 503);
    cluster.nats.start_again();
    let created = until("NATS", || {
        Some(ask(&a, "PUT", &path("another"), TEXT, "")).filter(|created| created.status != 503)
    });
    assert_eq!(created.status, 201);
}

#[test]
fn paths_belong_to_principals_on_all_nodes() {
    let Some(cluster) = Cluster::start("owners") else { return };
    let tokens = token_file(&cluster, "tokens", &[ANN, BOB]);
    let nodes = ["a", "b"].map(|name| cluster.node(name, &["--token-file", &tokens]));
    let stream = path("mine");
    let status = |at: usize, method, who: (&str, &str)| {
        ask(&nodes[at], method, &stream, &format!("{}{TEXT}", who.1), "").status
    };
    assert_eq!(status(0, "PUT", ANN), 201);
    assert_eq!((status(1, "GET", ANN), status(1, "GET", BOB)), (307, 404));
    assert_eq!((status(1, "PUT", BOB), status(0, "GET", BOB)), (201, 307));
    assert_eq!((status(0, "GET", ANN), status(1, "GET", BOB)), (200, 200));
}

#[test]
fn the_paths_of_a_forgotten_node_are_free() {
    let Some(cluster) = Cluster::start("forgotten") else { return };
    let (a, b) = (cluster.node("a", &[]), cluster.node("b", &[]));
    for number in 0..300 {
        let stream = path(&format!("of-a/{number}"));
        assert_eq!(ask(&a, "PUT", &stream, TEXT, "").status, 201);
    }
    assert_eq!(ask(&b, "PUT", &path("of-b"), TEXT, "").status, 201);
    let url = cluster.nats.url();
    let forget = |node: &str| {
        let arguments = ["cluster", "--cluster", &url, "forget", node];
        let program = env!("CARGO_BIN_EXE_streamdoor");
        let output = std::process::Command::new(program).args(arguments).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), text)
    };
    let status = ["cluster", "--cluster", &url, "--json"];
    let state = std::process::Command::new(env!("CARGO_BIN_EXE_streamdoor")).args(status).output();
    let state: Value = serde_json::from_slice(&state.unwrap().stdout).unwrap();
    assert_eq!(state["streams"], json!({ "a": 300, "b": 1 }));
    let (code, text) = forget("a");
    assert!(code == Some(1) && text.contains("has a lease"), "{code:?} {text}");
    kill(a);
    let text = until("the end of the lease", || {
        let (code, text) = forget("a");
        (code == Some(0)).then_some(text)
    });
    assert_eq!(text, "300 paths of the node a are free\n");
    assert_eq!(ask(&b, "GET", &path("of-a/7"), "", "").status, 404);
    assert_eq!(ask(&b, "PUT", &path("of-a/7"), TEXT, "").status, 201);
    let a = cluster.node_that_waits("a", &[]);
    assert_eq!(a.wait_for("stream_path_elsewhere")["path"], "of-a/7");
    assert_eq!(ask(&a, "GET", &path("of-b"), "", "").status, 307);
    let (there, _) = follow(&[&a, &b], 1, "GET", &path("of-a/8"), "");
    assert_eq!(there, 0, "the node has the paths again that nobody has taken");
}
