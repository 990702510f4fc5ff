//! The numbers of a node in `/metrics`.

use crate::nodes::{Cluster, slow};
use crate::served::{self, Server};
use crate::world::events;

/// The lines about the cluster.
fn lines(node: &Server) -> Vec<String> {
    let text = node.ask("GET", "/metrics", "");
    let of_cluster = text.lines().filter(|line| line.starts_with("streamdoor_cluster_"));
    of_cluster.map(str::to_owned).collect()
}

/// Waits until a number is at least this one. The numbers of a node are half a second old.
fn await_number(node: &Server, name: &str, least: f64) {
    let line = format!("streamdoor_cluster_{name} ");
    loop {
        let all = lines(node);
        let found = all.iter().find_map(|found| found.strip_prefix(&line));
        let number: f64 = found.unwrap_or_else(|| panic!("no {name}: {all:#?}")).parse().unwrap();
        if number >= least {
            return;
        }
    }
}

#[test]
fn a_node_counts_what_it_writes_and_what_it_follows() {
    let Some(mut cluster) = Cluster::start("metrics") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    for node in [&owner, &other] {
        await_number(node, "up", 1.0);
        await_number(node, "nodes", 2.0);
        await_number(node, "lease_left_seconds", 0.1);
    }
    let all = lines(&owner);
    for name in ["buffer_bytes ", "chunks_unwritten_total ", "doubts_total{came_to=\"fenced\"} "] {
        let line = format!("streamdoor_cluster_{name}");
        assert!(all.iter().any(|found| found.starts_with(&line)), "{name}: {all:#?}");
    }
    let id = slow(&owner, 50, 10);
    assert_eq!(events(&other, &id, "").last().unwrap()["state"], "completed");
    let (status, _) =
        served::ask(&other.address, "GET", &format!("/v1/executions/{}", "7".repeat(26)), "");
    assert_eq!(status, 404);
    for (name, least) in [
        ("records_total", 5.0),
        ("record_bytes_total", 500.0),
        ("mirrors_ended_total", 1.0),
        ("ack_seconds_count", 5.0),
    ] {
        await_number(&owner, name, least);
    }
    for (name, least) in [
        ("lookups_total{result=\"found\"}", 1.0),
        ("lookups_total{result=\"not_found\"}", 1.0),
        ("gets_total", 1.0),
    ] {
        await_number(&other, name, least);
    }
    cluster.nats.kill();
    cluster.nats.start_again();
    await_number(&owner, "disconnects_total", 1.0);
    let alone = Server::start(&[]);
    assert_eq!(lines(&alone), [] as [String; 0]);
}
