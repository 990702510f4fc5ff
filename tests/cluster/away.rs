//! NATS that is away for a while.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::campaign::count;
use crate::follower::Load;
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

/// Follows an execution on another node while the servers are away for longer than the buffer of
/// its mirror lasts. Returns everything that was given.
fn follow_through_absence(name: &str, arguments: &[&str]) -> Option<(Vec<Value>, u64)> {
    let away_s = count("AWAY_S", 3);
    let mut cluster = Cluster::start(name)?;
    let lease = ["--cluster-lease", "60s"];
    let owner = cluster.node("a", &[&lease[..], arguments].concat());
    let other = Arc::new(cluster.node("b", &lease));
    let chunks = 1_000 * (away_s + 4);
    let load = Load { chunks, delay_ms: 1, chunk_bytes: 8_000, is_replicated: false };
    let id = load.start(&owner.address).unwrap();
    let follower = {
        let (other, id) = (Arc::clone(&other), id.clone());
        std::thread::spawn(move || events(&other, &id, ""))
    };
    while inspect(&other, &id).1["chunks"].as_u64().is_none_or(|chunks| chunks < 100) {}
    cluster.nats.kill();
    std::thread::sleep(Duration::from_secs(away_s));
    cluster.nats.start_again();
    let all = follower.join().unwrap();
    assert_eq!(all.last().unwrap()["state"], "completed", "{:?}", all.last());
    // A later follower is told the same.
    let again = events(&other, &id, "&policy=replay");
    assert_eq!(only(&all, "chunk").len(), only(&again, "chunk").len());
    assert_eq!(only(&all, "gap").len(), only(&again, "gap").len());
    Some((all, chunks))
}

#[test]
fn what_does_not_fit_while_the_servers_are_away_is_an_exact_gap_or_on_the_disk() {
    let Some((all, chunks)) = follow_through_absence("long", &[]) else { return };
    assert_eq!((only(&all, "chunk").len() as u64, only(&all, "gap").len()), (chunks, 0));
    let (all, chunks) = follow_through_absence("longer", &["--journal", "off"]).unwrap();
    let number = |event: &Value, name: &str| event[name].as_u64().unwrap();
    let gaps = only(&all, "gap");
    // A mirror that has no processor for long is overtaken by the ring, at any time.
    let is_unwritten = |gap: &&&Value| gap["reason"] == "unwritten";
    assert!(gaps.iter().filter(|gap| !is_unwritten(gap)).all(|gap| gap["reason"] == "overtaken"));
    // The rest is one stretch. What comes while its record is on its way may lengthen it.
    let unwritten: Vec<&&Value> = gaps.iter().filter(is_unwritten).collect();
    assert!(!unwritten.is_empty());
    for (gap, next) in unwritten.iter().zip(&unwritten[1..]) {
        assert_eq!(number(next, "from_seq"), number(gap, "to_seq") + 1, "{gaps:?}");
    }
    for gap in &gaps {
        let missed = number(gap, "to_seq") + 1 - number(gap, "from_seq");
        let counts = (number(gap, "chunk_count"), number(gap, "byte_count"));
        assert_eq!(counts, (missed, 8_000 * missed), "{gap}");
    }
    let seqs: Vec<u64> = only(&all, "chunk").iter().map(|chunk| number(chunk, "seq")).collect();
    let is_missed = |seq: &u64| {
        gaps.iter().any(|gap| (number(gap, "from_seq")..=number(gap, "to_seq")).contains(seq))
    };
    let expected: Vec<u64> = (1..=chunks).filter(|seq| !is_missed(seq)).collect();
    assert!(seqs == expected, "{gaps:?}");
}

#[test]
fn an_end_that_the_servers_have_forgotten_is_written_again() {
    let Some(mut cluster) = Cluster::start("forgotten") else { return };
    let lease = ["--cluster-lease", "60s"];
    let (owner, other) = (cluster.node("a", &lease), cluster.node("b", &lease));
    let id = slow(&owner, 300, 5);
    while inspect(&other, &id).1["chunks"].as_u64().is_none_or(|chunks| chunks < 50) {}
    cluster.nats.kill();
    cluster.nats.remember();
    cluster.nats.start_again();
    for node in [&owner, &other] {
        assert_eq!(events(node, &id, "&policy=replay").last().unwrap()["state"], "completed");
    }
    cluster.nats.kill();
    cluster.nats.forget();
    cluster.nats.start_again();
    // A node that has no replica of it.
    let third = cluster.node("c", &lease);
    let all = events(&third, &id, "");
    let end = all.last().unwrap();
    assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("completed")));
    assert_eq!(end["execution_chunks"], 300);
    let [gap] = only(&all, "gap")[..] else { panic!("{:?}", only(&all, "gap")) };
    assert_eq!(gap["reason"], "corrupt", "{gap}");
    let missed = gap["chunk_count"].as_u64().unwrap();
    let given = only(&all, "chunk").len() as u64;
    assert!(given >= 50 && given + missed == 300, "{given} {gap}");
}
