//! Executions of others, and ids that nobody has.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::nodes::Cluster;
use crate::operations::{Names, operations};
use crate::served::{Server, asked};
use crate::test_server::Asking;

/// The names of principals, and the lines of their requests.
pub const ANN: (&str, &str) =
    ("ann", "Authorization: Bearer ann-0123456789abcdef0123456789abcdef\r\n");
pub const BOB: (&str, &str) =
    ("bob", "Authorization: Bearer bob-0123456789abcdef0123456789abcdef\r\n");

/// The token of a principal.
pub fn token_of((_, header): (&str, &'static str)) -> &'static str {
    header.trim().rsplit(' ').next().unwrap()
}

/// Writes a file with the tokens of these principals. Returns its path.
pub fn token_file(cluster: &Cluster, name: &str, principals: &[(&str, &'static str)]) -> String {
    let path = cluster.folder().path().join(name);
    let line = |of: &(&str, &'static str)| format!("{} {}\n", of.0, token_of((of.0, of.1)));
    std::fs::write(&path, principals.iter().map(line).collect::<String>()).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path.display().to_string()
}

#[test]
fn a_stranger_finds_nothing_and_the_owner_finds_it_on_every_node() {
    let Some(cluster) = Cluster::start("strangers") else { return };
    let tokens = token_file(&cluster, "tokens", &[ANN, BOB]);
    // The other node lists them in another order: names count, and not numbers.
    let swapped = token_file(&cluster, "swapped", &[BOB, ANN]);
    let owner = cluster.node("a", &["--token-file", &tokens]);
    let other = cluster.node("b", &["--token-file", &swapped]);
    let call =
        json!({ "tool": "slow_data_processor", "arguments": { "chunks": 30, "delay_ms": 2 } });
    let (status, body) =
        asked::ask(&owner.address, "POST", "/v1/executions", ANN.1, &call.to_string());
    assert_eq!(status, 201, "{body}");
    let created: Value = serde_json::from_str(&body).unwrap();
    let id = created["execution"].as_str().unwrap();
    let path = format!("/v1/executions/{id}");
    let none = format!("/v1/executions/{}", "7".repeat(id.len()));
    let ask = |path: &str, headers: &str| asked::ask(&other.address, "GET", path, headers, "");
    // In both orders: before the node has a replica, and after it.
    for _ in 0..2 {
        let (status, stranger) = ask(&path, BOB.1);
        assert_eq!((status, &stranger), (404, &ask(&none, BOB.1).1));
        assert_eq!(ask(&path, "").0, 401);
        let (status, document) = ask(&path, ANN.1);
        assert_eq!(status, 200, "{document}");
    }
    // A ticket of one node opens the stream on the other.
    let events = created["links"]["events"].as_str().unwrap();
    assert!(events.contains("ticket="), "{events}");
    let response = crate::world::get(&other, events, "");
    let body = String::from_utf8(response.body).unwrap();
    assert_eq!((response.status, body.matches("event: end").count()), (200, 1), "{body}");
    assert_eq!(body.matches("event: chunk").count(), 30);
    // Nobody without a token is a principal of a cluster with tokens, and the other way round.
    let open = cluster.node("c", &[]);
    assert_eq!(asked::ask(&open.address, "GET", &path, "", "").0, 404);
}

#[test]
fn what_another_node_has_of_somebody_else_is_answered_as_what_never_was() {
    let Some(cluster) = Cluster::start("matrix") else { return };
    let tokens = token_file(&cluster, "tokens", &[ANN, BOB]);
    let owner = cluster.node("a", &["--token-file", &tokens]);
    let other = cluster.node("b", &["--token-file", &tokens]);
    let call = json!({ "tool": "slow_data_processor", "arguments": { "chunks": 100_000 } });
    let created = asked::ask(&owner.address, "POST", "/v1/executions", ANN.1, &call.to_string()).1;
    let created: Value = serde_json::from_str(&created).unwrap();
    let names = Names::of(&created, "s0.1");
    let get = |node: &Server, path: &str| {
        let (status, text) = asked::ask(&node.address, "GET", path, ANN.1, "");
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let document = get(&other, "/openapi.json");
    let foreign = operations(&document, &names);
    let unknown = operations(&document, &names.never());
    let this = format!("/v1/executions/{}", names.execution);
    for has_replica in [false, true] {
        if has_replica {
            assert_eq!(get(&other, &this)["state"], "running");
        }
        let mut checked = 0;
        for ((foreign, is_about_something), (unknown, _)) in foreign.iter().zip(&unknown) {
            if !is_about_something {
                continue;
            }
            let answer = |asking: &Asking, of| asking.token(token_of(of)).answer(&other.address);
            let got = answer(foreign, BOB);
            assert_eq!(got.0, 404, "{foreign:?}: {}", got.2);
            assert_eq!(got, answer(unknown, BOB), "{foreign:?}");
            assert_eq!(got, answer(unknown, ANN), "{foreign:?}");
            checked += 1;
        }
        assert!(checked >= 9, "{checked}");
    }
    assert_eq!(get(&owner, &this)["state"], "running", "nothing was done to it");
}
