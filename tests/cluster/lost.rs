//! Nodes that are killed, and the executions that they had.

use std::sync::Arc;

use serde_json::json;

use crate::nodes::{Cluster, only, slow};
use crate::world::{events, inspect, kill};

const LOST: &str = "its node was lost: a";

#[test]
fn the_executions_of_a_lost_node_fail_once_for_all_who_follow_them() {
    let Some(cluster) = Cluster::start("lost") else { return };
    let owner = cluster.node("a", &[]);
    let others = [Arc::new(cluster.node("b", &[])), Arc::new(cluster.node("c", &[]))];
    let ids: Vec<String> = (0..5).map(|_| slow(&owner, 100_000, 5)).collect();
    let followers: Vec<_> = ids
        .iter()
        .flat_map(|id| others.iter().map(move |node| (id.clone(), Arc::clone(node))))
        .map(|(id, node)| std::thread::spawn(move || (id.clone(), events(&node, &id, ""))))
        .collect();
    for id in &ids {
        while inspect(&others[0], id).1["chunks"].as_u64().is_none_or(|chunks| chunks < 20) {}
    }
    kill(owner);
    let mut ends = std::collections::BTreeMap::new();
    for follower in followers {
        let (id, events) = follower.join().unwrap();
        let end = events.last().unwrap().clone();
        assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("failed")));
        assert_eq!(end["error"], LOST);
        assert_eq!(only(&events, "end").len(), 1);
        assert_eq!(only(&events, "gap").len(), 0);
        let seqs: Vec<u64> =
            only(&events, "chunk").iter().map(|chunk| chunk["seq"].as_u64().unwrap()).collect();
        assert!(seqs.iter().zip(1..).all(|(seq, expected)| *seq == expected), "{seqs:?}");
        // All followers get the same.
        let seen = (seqs.len(), end["execution_bytes"].clone());
        assert_eq!(*ends.entry(id).or_insert_with(|| seen.clone()), seen);
    }
    // The node is back, in another life: the ends stay as they are.
    let owner = cluster.node("a", &[]);
    for (id, (chunks, _)) in ends {
        let end = events(&others[1], &id, "").pop().unwrap();
        assert_eq!((&end["state"], &end["error"]), (&json!("failed"), &json!(LOST)));
        assert_eq!(end["execution_chunks"], chunks as u64);
        // What its own journal has of the last moments can be more, or less.
        let end = events(&owner, &id, "").pop().unwrap();
        assert_eq!(end["state"], "failed");
    }
}

#[test]
fn a_node_that_stops_in_order_ends_its_executions_itself() {
    let Some(cluster) = Cluster::start("stopped") else { return };
    let mut owner = cluster.node("a", &[]);
    let other = cluster.node("b", &[]);
    let id = slow(&owner, 100_000, 5);
    assert_eq!(inspect(&other, &id).0, 200);
    owner.stop();
    let all = events(&other, &id, "");
    assert_eq!(all.last().unwrap()["state"], "cancelled", "{:?}", all.last());
    // Its name is free at once.
    let _again = cluster.node("a", &[]);
}

#[test]
fn the_name_of_a_living_node_is_taken() {
    let Some(cluster) = Cluster::start("taken") else { return };
    let first = cluster.node("a", &[]);
    let second = cluster.node_that_waits("a", &["--journal", "off"]);
    second.wait_for("cluster_name_taken");
    let id = slow(&first, 10, 1);
    assert_eq!(events(&first, &id, "").last().unwrap()["state"], "completed");
    let id = slow(&second, 10, 1);
    assert_eq!(events(&second, &id, "").last().unwrap()["state"], "completed", "it serves alone");
}

#[test]
fn an_execution_without_a_chunk_is_known_to_all() {
    let Some(cluster) = Cluster::start("at-once") else { return };
    for journal in [&[][..], &["--journal", "off"]] {
        let (owner, other) = (cluster.node("a", journal), cluster.node("b", journal));
        for _ in 0..5 {
            let id = slow(&owner, 0, 0);
            let [here, there] = [&owner, &other].map(|node| events(node, &id, "").pop().unwrap());
            assert_eq!((&here["event"], &here["state"]), (&json!("end"), &json!("completed")));
            assert_eq!((&there["event"], &there["state"]), (&json!("end"), &json!("completed")));
        }
    }
}
