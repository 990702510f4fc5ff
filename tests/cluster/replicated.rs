//! Executions whose chunks and end are in the log of the cluster before anybody sees them.

use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::Random;
use streamdoor::reactor::Clock;

use crate::campaign::{Tally, count, pause, random};
use crate::follower::{Load, Manner, Transcript};
use crate::nats_server::{NatsServer, Place};
use crate::nodes::{Cluster, only};
use crate::served::{self, Server};
use crate::world::{self, Folder, events, inspect, kill};

const LOST: &str = "its node was lost: a";

fn replicated(node: &Server, chunks: u64, delay_ms: u64, more: Value) -> String {
    let arguments = json!({ "chunks": chunks, "delay_ms": delay_ms });
    let mut body = json!({ "tool": "slow_data_processor", "arguments": arguments });
    body["durability"] = "replicated".into(); // Unless there is more.
    let more = more.as_object().cloned().unwrap_or_default();
    body.as_object_mut().unwrap().extend(more);
    world::execute(node, &body)
}

/// The chunks and the ends of a stream, without what is each subscriber's own.
fn told(events: &[Value]) -> Vec<(Value, Value, Value)> {
    // Progress is told by the newest report.
    let of = |event: &Value| {
        let name = event["event"].clone();
        (name, event["seq"].clone(), event["data"].clone())
    };
    let is_told = |event: &&Value| event["event"] != "started" && event["event"] != "progress";
    events.iter().filter(is_told).map(of).collect()
}

#[test]
fn everybody_gets_the_same_on_every_node() {
    let Some(cluster) = Cluster::start("replicated") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    for (chunks, delay_ms) in [(0, 0), (1, 0), (300, 1), (20_000, 0)] {
        let id = replicated(&owner, chunks, delay_ms, json!({}));
        let (here, there) = (events(&owner, &id, "&policy=block"), events(&other, &id, ""));
        assert_eq!(here.last().unwrap()["state"], "completed", "{:?}", here.last());
        assert_eq!(only(&here, "chunk").len() as u64, chunks);
        assert_eq!(told(&here), told(&there));
        // It is there when it is over, and long after that.
        assert_eq!(told(&events(&owner, &id, "&policy=replay")), told(&there));
    }
}

#[test]
fn what_is_given_when_it_is_durable_is_given_on_every_node_and_is_on_the_disk_of_the_owner() {
    let Some(cluster) = Cluster::start("when-durable") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    for durability in ["written", "synced"] {
        let more = json!({ "durability": durability, "deliver": "when_durable" });
        for (chunks, delay_ms) in [(0, 0), (1, 0), (300, 1), (20_000, 0)] {
            let id = replicated(&owner, chunks, delay_ms, more.clone());
            let (here, there) = (events(&owner, &id, "&policy=block"), events(&other, &id, ""));
            assert_eq!(there.last().unwrap()["state"], "completed", "{:?}", there.last());
            assert_eq!(only(&there, "chunk").len() as u64, chunks);
            assert_eq!(told(&here), told(&there));
        }
    }
    let more = json!({ "durability": "written", "deliver": "when_durable" });
    let id = replicated(&owner, 1_000_000, 1, more);
    let there = std::thread::scope(|scope| {
        let follower = scope.spawn(|| events(&other, &id, ""));
        while inspect(&other, &id).1["chunks"].as_u64().is_none_or(|chunks| chunks < 500) {}
        kill(owner);
        follower.join().unwrap()
    });
    assert_eq!(there.last().unwrap()["error"], LOST);
    let owner = cluster.node("a", &[]);
    let here = events(&owner, &id, "&policy=replay");
    let chunks = |events: &[Value]| {
        let chunk = |event: &Value| (event["seq"].clone(), event["data"].clone());
        only(events, "chunk").into_iter().map(chunk).collect::<Vec<_>>()
    };
    let (here, there) = (chunks(&here), chunks(&there));
    assert!(there.len() >= 500 && here[..there.len()] == there, "{} {}", here.len(), there.len());
}

#[test]
fn a_tool_waits_while_the_log_is_away_and_nobody_sees_more_than_the_log_has() {
    let Some(mut cluster) = Cluster::start("replicated-away") else { return };
    let owner = cluster.node("a", &["--cluster-lease", "60s"]);
    let running = replicated(&owner, 3_000, 1, json!({}));
    while inspect(&owner, &running).1["chunks"].as_u64().is_none_or(|chunks| chunks < 100) {}
    cluster.nats.kill();
    let short = replicated(&owner, 3, 0, json!({}));
    // What is on its way to the log may still be told.
    std::thread::sleep(Duration::from_millis(200));
    let before = inspect(&owner, &running).1["chunks"].clone();
    std::thread::sleep(Duration::from_millis(500));
    let (status, short_state) = inspect(&owner, &short);
    assert_eq!((status, &short_state["chunks"]), (200, &json!(0)), "{short_state}");
    let state = inspect(&owner, &running).1;
    assert_eq!((&state["chunks"], &state["state"]), (&before, &json!("running")));
    cluster.nats.start_again();
    for (id, chunks) in [(running, 3_000), (short, 3)] {
        let all = events(&owner, &id, "&policy=replay");
        assert_eq!(all.last().unwrap()["state"], "completed", "{:?}", all.last());
        assert_eq!((only(&all, "chunk").len(), only(&all, "gap").len()), (chunks, 0));
    }
}

#[test]
fn an_execution_whose_log_does_not_come_back_fails_after_its_deadline() {
    let Some(mut cluster) = Cluster::start("replicated-deadline") else { return };
    let owner = cluster.node("a", &["--cluster-lease", "60s"]);
    let id = replicated(&owner, 1_000_000, 1, json!({ "block_deadline_ms": 700 }));
    while inspect(&owner, &id).1["chunks"].as_u64().is_none_or(|chunks| chunks < 10) {}
    cluster.nats.kill();
    let begun = Clock::now();
    let end = events(&owner, &id, "&policy=replay").pop().unwrap();
    assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("failed")));
    let error = end["error"].as_str().unwrap();
    assert!(
        error.starts_with("cluster_away: the log of the cluster did not take chunk"),
        "{error}"
    );
    assert!(Clock::now().since(begun) >= Duration::from_millis(600));
    // Its log gets the same end.
    cluster.nats.start_again();
    let other = cluster.node("b", &["--cluster-lease", "60s"]);
    let there = loop {
        let there = events(&other, &id, "").pop().unwrap();
        if there["event"] == "end" {
            break there;
        }
    };
    assert_eq!((&there["state"], &there["error"]), (&json!("failed"), &json!(error)));
}

#[test]
fn what_was_seen_survives_the_node_and_the_node_says_the_same_afterwards() {
    let Some(cluster) = Cluster::start("replicated-lost") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let load = Load { chunks: 1_000_000, delay_ms: 1, chunk_bytes: 100, is_replicated: true };
    let id = load.start(&owner.address).unwrap();
    let follower = {
        let (address, id) = (owner.address.clone(), id.clone());
        std::thread::spawn(move || load.watch(&address, &id).chunks)
    };
    while inspect(&owner, &id).1["chunks"].as_u64().is_none_or(|chunks| chunks < 200) {}
    kill(owner);
    let seen = follower.join().unwrap();
    let there = events(&other, &id, "");
    let end = there.last().unwrap();
    assert_eq!((&end["state"], &end["error"]), (&json!("failed"), &json!(LOST)));
    assert!(only(&there, "chunk").len() as u64 >= seen && seen >= 200, "{seen}");
    // The disk of the lost node may have more. Nobody was given that.
    let owner = cluster.node("a", &[]);
    assert_eq!(told(&events(&owner, &id, "")), told(&there));
}

#[test]
fn what_no_log_takes_is_refused() {
    let alone = Server::start(&["--idle", "block"]);
    let body = json!({
        "tool": "slow_data_processor",
        "arguments": {"chunks": 1, "delay_ms": 0},
        "durability": "replicated",
    });
    let (status, answer) = served::ask(&alone.address, "POST", "/v1/executions", &body.to_string());
    assert!(status == 400 && answer.contains("\"no_journal\""), "{status} {answer}");
    let folder = Folder::new("replicated-alone");
    let alone = folder.serve(&["--idle", "block"]);
    let (status, answer) = served::ask(&alone.address, "POST", "/v1/executions", &body.to_string());
    assert!(status == 400 && answer.contains("\"no_cluster\""), "{status} {answer}");
}

/// Kills everything while executions run, and starts it again.
fn kill_everything(cluster: &mut Cluster, tally: &Tally, random: &mut Random) {
    let nodes = ["a", "b"].map(|name| cluster.node(name, &[]));
    let loads = [(); 3].map(|()| Load { is_replicated: true, ..Load::drawn(random) });
    let ids = loads.map(|load| load.start(&nodes[0].address).expect("it serves"));
    let all = || loads.iter().zip(&ids);
    let addresses = nodes.each_ref().map(|node| node.address.clone());
    let seen = std::thread::scope(|scope| {
        let watch = |(load, id): (&Load, &String)| {
            let (load, id) = (*load, id.clone());
            addresses.each_ref().map(|at| {
                let id = id.clone();
                scope.spawn(move || load.watch(at, &id))
            })
        };
        let watchers: Vec<_> = all().map(watch).collect();
        pause(random, 100, 3_000);
        let is_first = random.chance(1, 2);
        if is_first {
            cluster.servers().into_iter().for_each(NatsServer::kill);
        }
        nodes.into_iter().for_each(kill);
        if !is_first {
            cluster.servers().into_iter().for_each(NatsServer::kill);
        }
        let joined = watchers.into_iter().map(|pair| pair.map(|one| one.join().expect("no panic")));
        joined.collect::<Vec<_>>()
    });
    cluster.servers().into_iter().for_each(NatsServer::start_again);
    let nodes = ["a", "b"].map(|name| cluster.node(name, &[]));
    for ((load, id), seen) in all().zip(&seen) {
        let from_all = Manner { policy: Some("replay"), ..Manner::default() };
        let now = nodes.each_ref().map(|node| load.follow(&node.address, id, from_all));
        tally.note_execution();
        for (at, transcript) in ["a", "b"].iter().zip(&now) {
            let who = format!("{id} {load:?} at {at}");
            if transcript.is_unknown && seen.iter().all(|before| before.chunks == 0) {
                continue; // It was killed before the directory knew of it.
            }
            tally.take(&who, transcript, &["completed", "failed"]);
            for before in seen {
                let is_cut = before.ends.is_empty();
                let has_all = before.chunks <= transcript.chunks
                    && (is_cut || before.summary() == transcript.summary());
                if !has_all || !before.wrong.is_empty() || !before.gaps.is_empty() {
                    let (before, now) = (before.summary(), transcript.summary());
                    tally.note_wrong(format!("{who}: {before:?} was seen before, {now:?} now"));
                }
            }
        }
        if now[0].summary() != now[1].summary() {
            let [one, other] = now.each_ref().map(Transcript::summary);
            tally.note_wrong(format!("{id}: {one:?} and {other:?}"));
        }
    }
}

fn kills_of_everything(cluster: Option<Cluster>, kills: u64, what: &str) {
    let Some(mut cluster) = cluster else { return };
    let (tally, mut random) = (Tally::default(), random(50));
    for _ in 0..kills {
        kill_everything(&mut cluster, &tally, &mut random);
    }
    tally.finish(&format!("{kills} kills of all nodes and of {what} at the same time"));
}

#[test]
fn kills_of_everything_lose_nothing_that_anybody_has_seen() {
    kills_of_everything(Cluster::start("all-kills"), count("ALL_KILLS", 2), "nats-server");
}

#[test]
fn kills_of_everything_with_three_servers_lose_nothing_that_anybody_has_seen() {
    let place = Place { syncs_always: true, ..Place::default() };
    let cluster = Cluster::start_three_at("all-three-kills", &place);
    kills_of_everything(cluster, count("ALL_THREE_KILLS", 1), "three servers that sync always");
}
