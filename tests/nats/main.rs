//! The machines of a cluster on real servers of NATS, which are killed meanwhile.
//!
//! `tools/test cluster` gets a server if none is installed. Without one, these tests are not run.

#![cfg(feature = "cluster")]

mod permissions;
#[allow(dead_code, reason = "shared with the tests of the program")]
mod server;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::ConnectOptions;
use server::NatsServer;
use streamdoor::base::{ExecutionId, Handle, Random, SharedBytes};
use streamdoor::cluster::directory::Tag;
use streamdoor::cluster::follow::{Follow, Given, Landmark};
use streamdoor::cluster::member::About;
use streamdoor::cluster::mirror::Standing;
use streamdoor::cluster::record::{Incarnation, Item};
use streamdoor::journal::format::ChunkEntry;
use streamdoor::limits::CLUSTER_PENDING_BYTES_MAX;
use streamdoor::nats::driver::{Driver, To};
use streamdoor::nats::link::LinkError;
use streamdoor::nats::names::Names;
use streamdoor::nats::stores::{Stores, differences};
use streamdoor::reactor::Clock;
use streamdoor::stream::Kind;

const STORES: Stores =
    Stores { bytes_max: 1 << 30, retention: Duration::from_secs(3_600), replicas: 1 };
const LEASE: Duration = Duration::from_secs(2);

fn tag(nonce: u64) -> Tag {
    let slot = Handle { index: 1, generation: 1 };
    Tag::new(b"the secret of the cluster", &ExecutionId { shard: 0, slot, nonce })
}

fn names() -> Names {
    Names::new("test").expect("a name")
}

/// Runs a test in a runtime as a node has it.
fn on_one_thread<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

async fn node(server: &NatsServer, name: &str, incarnation: u64) -> Driver {
    let owner = (name, Incarnation(incarnation), About::default(), LEASE);
    let servers = vec![server.url().parse().unwrap()];
    Driver::connect(servers, ConnectOptions::new(), names(), owner).await.expect("it connects")
}

/// Number of kills of a server: `NATS_KILLS`, or 4. At most 600 fit into the log of one execution.
fn kills_wanted() -> u64 {
    std::env::var("NATS_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

/// A payload that follows from its number.
fn payload(seq: u64) -> Vec<u8> {
    let mut bytes = vec![0; (seq % 300) as usize];
    Random::new(seq).fill(&mut bytes);
    bytes
}

fn publish(driver: &mut Driver, tag: &Tag, count: u64) {
    for _ in 0..count {
        let mirror = driver.mirror(tag);
        let seq = mirror.position().next_seq();
        let payload = payload(seq);
        let kind = if seq.is_multiple_of(7) { Kind::Stderr } else { Kind::Stdout };
        let (length, mono_ns, key, flags) = (payload.len() as u32, seq, 0, 0);
        mirror.push_chunk(&ChunkEntry { seq, mono_ns, length, kind, key, flags }, &payload);
    }
}

/// The chunks and the ends that readers were given, and everything that was wrong.
#[derive(Default)]
struct Seen {
    next: BTreeMap<Tag, u64>,
    ends: BTreeMap<Tag, Vec<String>>,
    wrong: Vec<String>,
}

impl Seen {
    fn take(&mut self, tag: &Tag, given: Given<'_>) {
        let next = self.next.entry(tag.clone()).or_insert(1);
        match given {
            Given::Item(Item::Chunks(run)) => {
                for chunk in run.chunks() {
                    let chunk = chunk.expect("it was checked");
                    if chunk.entry.seq != *next || chunk.payload != payload(*next) {
                        self.wrong.push(format!("{:?} where {next} is next", chunk.entry));
                    }
                    *next += 1;
                }
            }
            Given::Item(Item::End(details)) => {
                let text = String::from_utf8_lossy(details).into_owned();
                self.ends.entry(tag.clone()).or_default().push(text);
            }
            Given::Item(Item::Note(_)) => {}
            Given::Gap(_) | Given::Item(Item::Gap { .. }) => self.wrong.push(format!("{given:?}")),
        }
    }

    fn has_ended(&self, tag: &Tag) -> bool {
        self.ends.contains_key(tag)
    }
}

/// Lets the nodes go on until `is_done`.
async fn until(
    nodes: &mut [&mut Driver],
    seen: &RefCell<Seen>,
    mut step: impl FnMut(&mut [&mut Driver], &Seen) -> bool,
) {
    let give = |to: To<'_>, given: Given<'_>, _: &SharedBytes| match to {
        To::Followers(tag) => seen.borrow_mut().take(tag, given),
        To::Reader(_) => unreachable!("nobody reads old records"),
    };
    let deadline = Clock::now() + Duration::from_secs(120 + 5 * kills_wanted());
    loop {
        for node in nodes.iter_mut() {
            node.turn();
            node.wait(Duration::from_millis(1), std::future::pending(), &mut { give }).await;
        }
        let seen = seen.borrow();
        assert!(seen.wrong.is_empty(), "{:?}", &seen.wrong[..1]);
        if step(nodes, &seen) {
            return;
        }
        assert!(Clock::now() < deadline, "it is not over: {:?}", seen.ends);
    }
}

#[test]
fn readers_of_other_nodes_get_everything_although_the_server_is_killed() {
    let Some(mut server) = NatsServer::start() else { return };
    on_one_thread(async {
        let mut owner = node(&server, "a", 1).await;
        STORES.create(owner.link()).await.expect("the stores");
        let mut other = node(&server, "b", 2).await;
        let (tag, seen) = (tag(1), RefCell::new(Seen::default()));
        other.follow(&tag, Incarnation(1), Landmark::start());
        let kills_wanted = kills_wanted();
        let (mut left, mut kills) = (100 * kills_wanted, 0);
        until(&mut [&mut owner, &mut other], &seen, |nodes, seen| {
            // The tool waits while too much waits for the log.
            if left > 0 && nodes[0].mirror(&tag).pending_bytes() < CLUSTER_PENDING_BYTES_MAX / 4 {
                publish(nodes[0], &tag, 100);
                left -= 1;
                if left == 0 {
                    nodes[0].mirror(&tag).push_end(b"completed");
                }
                if left % 100 == 50 {
                    server.kill();
                    server.start_again();
                    kills += 1;
                }
            }
            // Readers can have the end before its owner has the answer.
            seen.has_ended(&tag) && nodes[0].mirror(&tag).standing() == Standing::Ended
        })
        .await;
        let (seen, all) = (seen.into_inner(), 10_000 * kills_wanted + 1);
        assert_eq!((seen.next[&tag], &*seen.ends[&tag]), (all, &["completed".to_owned()][..]));
        let counters = owner.mirror(&tag).counters();
        assert_eq!((kills, counters.unwritten), (kills_wanted, 0));
        println!("{kills} kills: {counters:?}, {:?}", other.reader(&tag).map(Follow::counters));
        // A reader that comes late gets the same.
        let (late, mut third) = (RefCell::new(Seen::default()), node(&server, "c", 3).await);
        third.follow(&tag, Incarnation(1), Landmark::start());
        until(&mut [&mut third], &late, |_, seen| seen.has_ended(&tag)).await;
        let late = late.into_inner();
        assert_eq!((late.next[&tag], &late.ends[&tag]), (all, &seen.ends[&tag]));
    });
}

#[test]
fn the_execution_of_a_lost_node_gets_one_end() {
    let Some(server) = NatsServer::start() else { return };
    on_one_thread(async {
        let mut owner = node(&server, "a", 1).await;
        STORES.create(owner.link()).await.expect("the stores");
        let (mut b, mut c) = (node(&server, "b", 2).await, node(&server, "c", 3).await);
        let (tag, seen) = (tag(2), RefCell::new(Seen::default()));
        b.follow(&tag, Incarnation(1), Landmark::start());
        publish(&mut owner, &tag, 1_000);
        until(&mut [&mut owner, &mut b, &mut c], &seen, |nodes, seen| {
            let all = [("a", 1), ("b", 2), ("c", 3)];
            let sees = |node: &mut Driver| {
                all.iter().all(|(name, life)| node.watch().is_alive(name, Incarnation(*life)))
            };
            seen.next.get(&tag) == Some(&1_001) && nodes.iter_mut().all(|node| sees(node))
        })
        .await;
        // The owner says nothing more. Both others hear from the bucket that it is lost.
        let mut lost = 0;
        until(&mut [&mut b, &mut c], &seen, |nodes, seen| {
            for node in nodes.iter_mut() {
                while let Some((name, life)) = node.watch().take_lost(LEASE, Default::default()) {
                    assert_eq!((&*name, life), ("a", Incarnation(1)));
                    node.close(&tag, b"failed: node a was lost", Clock::now());
                    lost += 1;
                }
            }
            lost == 2 && seen.has_ended(&tag) && nodes.iter().all(|node| node.is_closed(&tag))
        })
        .await;
        // It is back, writes on, and finds that it was replaced.
        publish(&mut owner, &tag, 1_000);
        until(&mut [&mut owner, &mut b, &mut c], &seen, |nodes, _| {
            nodes[0].mirror(&tag).standing() == Standing::Fenced
        })
        .await;
        let late = RefCell::new(Seen::default());
        c.follow(&tag, Incarnation(1), Landmark::start());
        until(&mut [&mut c], &late, |_, seen| seen.has_ended(&tag)).await;
        for seen in [seen.into_inner(), late.into_inner()] {
            assert_eq!(seen.next[&tag], 1_001);
            assert_eq!(seen.ends[&tag], ["failed: node a was lost"]);
        }
    });
}

#[test]
fn a_name_that_is_taken_is_refused_and_an_earlier_life_is_waited_for() {
    let Some(server) = NatsServer::start() else { return };
    on_one_thread(async {
        let mut first = node(&server, "a", 1).await;
        STORES.create(first.link()).await.expect("the stores");
        let seen = RefCell::default();
        let holds = |node: &Driver| node.lease().safe_until().is_some();
        until(&mut [&mut first], &seen, |nodes, _| holds(nodes[0])).await;
        let mut second = node(&server, "a", 2).await;
        until(&mut [&mut first, &mut second], &seen, |nodes, _| {
            assert_eq!(nodes[0].lease().taken_by(), None);
            nodes[1].lease().taken_by() == Some(Incarnation(1))
        })
        .await;
        drop(first);
        let mut third = node(&server, "a", 3).await;
        until(&mut [&mut third], &seen, |nodes, _| holds(nodes[0])).await;
        assert_eq!(third.lease().taken_by(), None);
    });
}

#[test]
fn stores_that_are_missing_or_wrong_are_named() {
    let Some(server) = NatsServer::start() else { return };
    on_one_thread(async {
        let node = node(&server, "a", 1).await;
        let missing = differences(node.link()).await.unwrap();
        assert_eq!(missing.len(), 3, "{missing:?}");
        assert!(missing.iter().all(|line| line.contains("cluster init")), "{missing:?}");
        STORES.create(node.link()).await.unwrap();
        STORES.create(node.link()).await.expect("again");
        assert_eq!(differences(node.link()).await.unwrap(), Vec::<String>::new());
        let log = names().log();
        let about = format!("$JS.API.STREAM.INFO.{log}");
        let mut wrong = node.link().ask_json(about, &serde_json::Value::Null).await.unwrap();
        let mut wrong = wrong["config"].take();
        wrong["allow_direct"] = false.into();
        let update = format!("$JS.API.STREAM.UPDATE.{log}");
        node.link().ask_json(update, &wrong).await.unwrap();
        let found = differences(node.link()).await.unwrap();
        assert_eq!(found, [format!("stream {log}: allow_direct is false, and has to be true")]);
        // Refusals have the code of the server.
        let refused = node.link().ask_json("$JS.API.STREAM.INFO.none".into(), &().into()).await;
        assert!(matches!(refused, Err(LinkError::Refused { code: 10_059, .. })), "{refused:?}");
    });
}
