//! Three servers of NATS that each have everything: members are killed and stopped under load.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::process::Signal;
use streamdoor::base::Random;

use crate::campaign::{Tally, count, pause, random, until};
use crate::kills::{NO_CUTS, load};
use crate::nodes::Cluster;

const LOADERS: u64 = 2;

/// Waits until each stream has a leader, and all its followers have everything. Returns the number
/// of the server that leads the log.
fn healthy(cluster: &Cluster) -> usize {
    until("three healthy servers", || {
        cluster.with_link(async |link| {
            let mut leaders = Vec::new();
            for stream in link.names().streams() {
                let about = link.stream(&stream).await.ok()??["cluster"].take();
                let replicas = about["replicas"].as_array()?;
                let is_well = |replica: &serde_json::Value| {
                    replica["current"] == true && replica["offline"] != true
                };
                if replicas.len() != 2 || !replicas.iter().all(is_well) {
                    return None;
                }
                leaders.push(about["leader"].as_str()?.strip_prefix('n')?.parse().ok()?);
            }
            leaders.first().copied()
        })
    })
}

#[test]
fn kills_and_stops_of_members_lose_and_repeat_nothing() {
    let faults = count("MEMBER_KILLS", 1);
    let Some(mut cluster) = Cluster::start_three("members") else { return };
    // The ordinary lease: an election takes about as long.
    let nodes = ["a", "b", "c"].map(|name| cluster.node(name, &["--cluster-lease", "6s"]));
    let addresses = nodes.each_ref().map(|node| node.address.as_str());
    let (tally, is_over, mut random) = (Tally::default(), AtomicBool::new(false), random(40));
    let (mut kills, mut leaders) = (0, 0);
    std::thread::scope(|scope| {
        for _ in 0..LOADERS {
            let (tally, is_over, random) = (&tally, &is_over, Random::new(random.next_u64()));
            scope.spawn(move || load(addresses, (is_over, &NO_CUTS), tally, random));
        }
        for _ in 0..faults {
            let leader = healthy(&cluster);
            pause(&mut random, 0, 1_000);
            let chosen = if random.chance(1, 2) { leader } else { random.below(3) as usize };
            leaders += u64::from(chosen == leader);
            let is_kill = random.chance(1, 2);
            kills += u64::from(is_kill);
            let server = cluster.servers().swap_remove(chosen);
            match is_kill {
                true => {
                    server.kill();
                    pause(&mut random, 0, 8_000);
                    server.start_again();
                }
                false => {
                    server.signal(Signal::STOP);
                    pause(&mut random, 500, 12_000);
                    server.signal(Signal::CONT);
                }
            }
        }
        is_over.store(true, Relaxed);
    });
    let stops = faults - kills;
    tally.finish(&format!(
        "{kills} kills and {stops} stops of members of three, {leaders} of them of the leader"
    ));
}
