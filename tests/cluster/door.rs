//! The door of a node, for executions of another one.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::nodes::{Cluster, only, slow};
use crate::world::{events, inspect};

/// The members of a chunk that are the same for everybody.
const OF_CHUNKS: [&str; 8] =
    ["seq", "kind", "data", "offset", "total_chunks", "timestamp_us", "mono_ns", "more"];

fn cat(door: &str, id: &str, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(["cat", "--door", door, id]).args(words).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn chunks(events: &[Value], from_seq: u64) -> Vec<Vec<Value>> {
    let all = only(events, "chunk").into_iter();
    let all = all.filter(|chunk| chunk["seq"].as_u64().unwrap() >= from_seq);
    all.map(|chunk| OF_CHUNKS.map(|member| chunk[member].clone()).to_vec()).collect()
}

#[test]
fn processes_read_executions_of_another_node_through_the_door_of_theirs() {
    let Some(cluster) = Cluster::start("door") else { return };
    let door = cluster.folder().path().join("door").display().to_string();
    let owner = cluster.node("a", &["--door", "off"]);
    let other = cluster.node("b", &["--door", &door]);
    let running = slow(&owner, 80, 20);
    assert_eq!(inspect(&other, &running).1["state"], "running"); // It has a replica from now on.
    let seen = [(); 2].map(|()| {
        let read = cat(&door, &running, &["--format", "ndjson", "--policy", "buffer"]);
        let text = String::from_utf8(read.stdout.clone()).unwrap();
        let seen: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!seen.is_empty(), "{}", said(&read));
        seen
    });
    let expected = events(&owner, &running, "&policy=replay");
    for seen in &seen {
        // What the node did not follow is in no ring of its own. Everything since then is there.
        let late = only(seen, "gap");
        let missed = late.first().map_or(0, |gap| gap["to_seq"].as_u64().unwrap());
        assert!(late.len() <= 1 && missed < 40, "{late:?}");
        assert!(late.iter().all(|gap| gap["reason"] == json!("late")), "{late:?}");
        assert_eq!(chunks(seen, 0), chunks(&expected, missed + 1));
        let end = seen.last().unwrap();
        assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("completed")));
        assert_eq!(end["chunks"], 80 - missed);
    }
    // What ended before anybody has asked is in no ring of this node.
    let ended = slow(&owner, 3, 1);
    events(&owner, &ended, "");
    let refused = cat(&door, &ended, &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("only the node a"), "{}", said(&refused));
}
