//! NATS that is away for a while.

use std::sync::Arc;

use serde_json::json;

use crate::nodes::{Cluster, only, slow};
use crate::served;
use crate::world::{events, inspect};

#[test]
fn followers_go_on_when_the_servers_are_back() {
    let Some(mut cluster) = Cluster::start("back") else { return };
    let owner = cluster.node("a", &["--cluster-lease", "60s"]);
    let other = Arc::new(cluster.node("b", &["--cluster-lease", "60s"]));
    let id = slow(&owner, 2_000, 2);
    assert_eq!(inspect(&other, &id).0, 200);
    let follower = {
        let (other, id) = (Arc::clone(&other), id.clone());
        std::thread::spawn(move || events(&other, &id, ""))
    };
    while inspect(&other, &id).1["chunks"].as_u64().is_none_or(|chunks| chunks < 100) {}
    cluster.nats.kill();
    let own = events(&owner, &id, "&policy=replay"); // The node of the tool does not notice.
    assert_eq!(own.last().unwrap()["state"], "completed");
    // An execution of another node cannot be looked up meanwhile.
    let path = format!("/v1/executions/{}", "0".repeat(25) + "1");
    let (status, answer) = served::ask(&other.address, "GET", &path, "");
    assert!(status == 503 || status == 404, "{status} {answer}");
    cluster.nats.start_again();
    let all = follower.join().unwrap();
    assert_eq!(all.last().unwrap()["state"], "completed");
    assert_eq!((only(&all, "chunk").len(), only(&all, "gap").len()), (2_000, 0));
}

#[test]
fn a_node_starts_without_the_servers_and_joins_later() {
    let Some(mut cluster) = Cluster::start("later") else { return };
    cluster.nats.kill();
    let node = cluster.node_that_waits("a", &[]);
    node.wait_for("cluster_away");
    let id = slow(&node, 10, 1);
    let end = events(&node, &id, "").pop().unwrap();
    assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("completed")));
    cluster.nats.start_again();
    node.wait_for("cluster_joined");
    let other = cluster.node("b", &[]);
    let id = slow(&node, 10, 1);
    assert_eq!(events(&other, &id, "").last().unwrap()["state"], "completed");
}

#[test]
fn a_node_that_is_cut_off_goes_on_or_stops_as_its_operator_wants() {
    let Some(mut cluster) = Cluster::start("isolated") else { return };
    let (serves, stops) =
        (cluster.node("a", &[]), cluster.node("b", &["--cluster-isolated", "stop"]));
    let ids = [slow(&serves, 100_000, 5), slow(&stops, 100_000, 5)];
    cluster.nats.kill();
    serves.wait_for("cluster_cut_off");
    let end = events(&stops, &ids[1], "&policy=drop_oldest").pop().unwrap();
    assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("failed")));
    assert_eq!(end["error"], "its node was cut off from its cluster");
    assert_eq!(inspect(&serves, &ids[0]).1["state"], "running");
}
