//! Kills under load: of the server of NATS, and of the nodes that run tools.
//!
//! The ordinary counts are small. `tools/cluster-kills` runs many.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::process::Signal;
use streamdoor::base::Random;
use streamdoor::reactor::Clock;

use crate::campaign::{Tally, count, pause, random, until};
use crate::follower::{Load, Manner, Transcript};
use crate::nodes::Cluster;
use crate::served::Server;
use crate::world::{inspect, kill};

/// Clients that start executions all the time.
const LOADERS: u64 = 3;
/// Nodes that are killed at the same time.
const OWNERS_MAX: u64 = 4;
/// The owner is never cut off.
pub static NO_CUTS: AtomicU64 = AtomicU64::new(0);
/// The error of an execution whose owner has this name.
const LOST: &str = "its node was lost: ";

/// The followers of an execution: where, and in which manner.
pub fn followers<'a>(
    owner: &'a str,
    others: [&'a str; 2],
    random: &mut Random,
) -> Vec<(&'a str, Manner)> {
    let late = Duration::from_millis(random.below(2_000));
    let slow = Duration::from_millis(random.between(2, 10));
    let policy = [None, Some("block"), Some("replay")][random.below(3) as usize];
    let from_all = Manner { policy: Some("replay"), ..Manner::default() };
    vec![
        (owner, from_all),
        (others[0], Manner { policy, ..Manner::default() }),
        (others[0], Manner { late, ..from_all }),
        (others[1], Manner { slow, ..from_all }),
        (others[1], Manner { late: late / 4, policy, ..Manner::default() }),
    ]
}

/// Follows an execution in all of these manners at the same time.
fn follow_all(load: Load, id: &str, manners: &[(&str, Manner)]) -> Vec<Transcript> {
    std::thread::scope(|scope| {
        let all = manners.iter().map(|(at, manner)| scope.spawn(|| load.follow(at, id, *manner)));
        let all: Vec<_> = all.collect();
        all.into_iter().map(|follower| follower.join().expect("no panic")).collect()
    })
}

/// Starts executions on the first of these nodes and follows them on all, until `is_over`. The
/// owner sees them complete, and so do the others, if it was not cut off meanwhile. `cuts` is the
/// number of times that it was cut off or came back.
pub fn load(
    nodes: [&str; 3],
    (is_over, cuts): (&AtomicBool, &AtomicU64),
    tally: &Tally,
    mut random: Random,
) {
    while !is_over.load(Relaxed) {
        let before = cuts.load(Relaxed);
        let load = Load::drawn(&mut random);
        let id = match load.start(nodes[0]) {
            Ok(id) => id,
            Err(error) => return tally.note_wrong(format!("the owner does not serve: {error}")),
        };
        let manners = followers(nodes[0], [nodes[1], nodes[2]], &mut random);
        let seen = follow_all(load, &id, &manners);
        let was_cut = cuts.load(Relaxed) != before || before % 2 == 1;
        for (number, (transcript, manner)) in seen.iter().zip(&manners).enumerate() {
            let expected: &[&str] =
                if number > 0 && was_cut { &["completed", "failed"] } else { &["completed"] };
            tally.take(&format!("{id} {load:?} {manner:?}"), transcript, expected);
            if number > 1 && transcript.summary() != seen[1].summary() {
                let (one, other) = (transcript.summary(), seen[1].summary());
                tally.note_wrong(format!("{id} {manner:?}: {one:?} and {other:?}"));
            }
        }
        tally.note_execution();
    }
}

#[test]
fn kills_of_the_server_lose_and_repeat_nothing() {
    let kills = count("NATS_KILLS", 4);
    let Some(mut cluster) = Cluster::start("nats-kills") else { return };
    let nodes = ["a", "b", "c"].map(|name| cluster.node(name, &[]));
    let addresses = nodes.each_ref().map(|node| node.address.as_str());
    let (tally, is_over, mut random) = (Tally::default(), AtomicBool::new(false), random(1));
    let mut long = 0;
    std::thread::scope(|scope| {
        for _ in 0..LOADERS {
            let (tally, is_over, random) = (&tally, &is_over, Random::new(random.next_u64()));
            scope.spawn(move || load(addresses, (is_over, &NO_CUTS), tally, random));
        }
        for number in 0..kills {
            // Every fourth time, everybody finds the time to connect and to catch up.
            match number % 4 {
                3 => pause(&mut random, 2_500, 4_000),
                _ => pause(&mut random, 50, 800),
            }
            cluster.nats.kill();
            // Sometimes for longer than the leases of the nodes last, which is two seconds.
            let is_long = number % 8 == 1;
            long += u64::from(is_long);
            match is_long {
                true => pause(&mut random, 2_500, 5_000),
                false => pause(&mut random, 0, 600),
            }
            cluster.nats.start_again();
        }
        is_over.store(true, Relaxed);
    });
    tally.finish(&format!("{kills} kills of nats-server, {long} of them beyond the leases"));
}

/// A life of an owner: executions, their followers, and its kill. Returns what was followed, and
/// the times in milliseconds from the kill to the end at each prompt follower.
fn live_and_die(
    (cluster, name): (&Cluster, &str),
    others: [&str; 2],
    (tally, random): (&Tally, &mut Random),
) -> (Vec<(Load, String, Transcript)>, Vec<u64>) {
    let owner = cluster.node(name, &[]);
    let delay_ms = random.between(1, 10);
    let chunk_bytes = random.between(50, 4_000) as usize;
    let load = Load { chunks: 100_000, delay_ms, chunk_bytes, is_replicated: false };
    let ids = [(); 2].map(|()| load.start(&owner.address).expect("it serves"));
    let manners = followers(others[0], others, random);
    let wait_ms = random.below(1_500);
    std::thread::scope(|scope| {
        let all = ids.each_ref().map(|id| {
            let manners = &manners;
            scope.spawn(move || follow_all(load, id, manners))
        });
        std::thread::sleep(Duration::from_millis(wait_ms));
        kill(owner);
        let killed_at = Clock::now();
        let mut found = Vec::new();
        let mut times_ms = Vec::new();
        for (id, follower) in ids.iter().zip(all) {
            let mut seen = follower.join().expect("no panic");
            tally.note_execution();
            // One that was killed before its entry was written is known to nobody.
            if seen.iter().all(|transcript| transcript.is_unknown) {
                continue;
            }
            for (transcript, manner) in seen.iter().zip(&manners) {
                if let Some(over_at) = transcript.over_at.filter(|_| manner.1.is_prompt()) {
                    times_ms.push(over_at.since(killed_at).as_millis() as u64);
                }
                tally.take(&format!("{name} {id} {manner:?}"), transcript, &["failed"]);
                let error = transcript.ends.first().map(|end| end["error"].clone());
                if error != Some(format!("{LOST}{name}").into()) {
                    tally.note_wrong(format!("{name} {id} {manner:?}: the error {error:?}"));
                }
                if transcript.summary() != seen[0].summary() {
                    let (one, other) = (transcript.summary(), seen[0].summary());
                    tally.note_wrong(format!("{name} {id} {manner:?}: {one:?} and {other:?}"));
                }
            }
            found.push((load, id.clone(), seen.swap_remove(0)));
        }
        (found, times_ms)
    })
}

#[test]
fn the_kill_of_an_owner_gives_each_follower_the_same_failure() {
    let kills = count("OWNER_KILLS", 1);
    let Some(cluster) = Cluster::start("owner-kills") else { return };
    let others = ["b", "c"].map(|name| cluster.node(name, &[]));
    let others = others.each_ref().map(|node| node.address.as_str());
    if kills > OWNERS_MAX {
        // A node that has just come does not judge others yet.
        std::thread::sleep(Duration::from_secs(7));
    }
    let (tally, left) = (Tally::default(), AtomicU64::new(kills));
    let times_ms: Mutex<Vec<u64>> = Mutex::default();
    std::thread::scope(|scope| {
        for owner in 0..OWNERS_MAX.min(kills) {
            let (cluster, tally, left, times_ms) = (&cluster, &tally, &left, &times_ms);
            let (name, mut random) = (format!("a{owner}"), random(10 + owner));
            scope.spawn(move || {
                let mut before: Vec<(Load, String, Transcript)> = Vec::new();
                let take = |left: u64| left.checked_sub(1);
                while left.fetch_update(Relaxed, Relaxed, take).is_ok() {
                    let life = (cluster, &*name);
                    let (found, ms) = live_and_die(life, others, (tally, &mut random));
                    times_ms.lock().unwrap().extend(ms);
                    // The life before this one was over when this one began.
                    for (load, id, seen) in std::mem::replace(&mut before, found) {
                        let again = load.follow(
                            others[1],
                            &id,
                            Manner { policy: Some("replay"), ..Manner::default() },
                        );
                        if again.summary() != seen.summary() {
                            let (one, other) = (again.summary(), seen.summary());
                            tally.note_wrong(format!("{name} {id}: {other:?} became {one:?}"));
                        }
                    }
                }
            });
        }
    });
    let mut times_ms: Vec<u64> = times_ms.into_inner().unwrap();
    times_ms.sort_unstable();
    let at = |percent: usize| times_ms[(times_ms.len() * percent / 100).min(times_ms.len() - 1)];
    let times =
        format!("the end after {} ms (p50), {} ms (p99), {} ms at most", at(50), at(99), at(100));
    tally.finish(&format!("{kills} kills of owners, {times}"));
}

/// Waits until a node knows that an execution has ended. Returns the state.
fn ended(node: &Server, id: &str) -> String {
    until("an end", || {
        let (status, document) = inspect(node, id);
        let state = document["state"].as_str().unwrap_or_default().to_owned();
        (status == 200 && state != "running").then_some(state)
    })
}

#[test]
fn an_owner_that_was_stopped_for_too_long_is_fenced_and_its_followers_keep_their_end() {
    let stops = count("OWNER_STOPS", 1);
    let Some(cluster) = Cluster::start("stops") else { return };
    let (owner, other) = (cluster.node("a", &[]), cluster.node("b", &[]));
    let third = cluster.node("c", &[]);
    let (tally, mut random) = (Tally::default(), random(30));
    for _ in 0..stops {
        let chunks = random.between(200, 800);
        let load = Load { chunks, delay_ms: 5, chunk_bytes: 200, is_replicated: false };
        let id = load.start(&owner.address).expect("it serves");
        let from_all = Manner { policy: Some("replay"), ..Manner::default() };
        std::thread::scope(|scope| {
            let own = scope.spawn(|| load.follow(&owner.address, &id, from_all));
            let theirs = [&other, &third]
                .map(|node| scope.spawn(|| load.follow(&node.address, &id, Manner::default())));
            pause(&mut random, 100, 600);
            owner.signal(Signal::STOP);
            let seen = theirs.map(|follower| follower.join().expect("no panic"));
            pause(&mut random, 0, 1_000);
            owner.signal(Signal::CONT);
            owner.wait_for("cluster_fenced");
            let own = own.join().expect("no panic");
            // Its own followers get everything, and the end of the tool.
            tally.take(&format!("{id} at the owner"), &own, &["completed"]);
            for transcript in &seen {
                tally.take(&format!("{id} elsewhere"), transcript, &["failed"]);
                assert_eq!(transcript.summary(), seen[0].summary(), "{id}");
                assert_eq!(transcript.ends[0]["error"], format!("{LOST}a"));
            }
            assert_eq!(ended(&owner, &id), "completed");
            let again = load.follow(&third.address, &id, from_all);
            assert_eq!(again.summary(), seen[0].summary(), "{id}: the log keeps its end");
        });
        tally.note_execution();
    }
    tally.finish(&format!("{stops} stops of the owner beyond its lease"));
}
