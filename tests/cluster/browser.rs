//! `EventSource` in a headless Chromium, behind a real balancer, while each node is killed. The
//! browser goes on by itself at another node, with its `Last-Event-ID`.

use serde_json::{Value, json};

use crate::balancer::Balancer;
use crate::campaign::until;
use crate::chromium::Browser;
use crate::follower::{Load, Manner, Transcript};
use crate::nodes::Cluster;
use crate::served::{Server, ports};
use crate::world::kill;

const LOST: &str = "its node was lost: a";
/// It has not ended before its node is killed.
const LONG: Load = Load { chunks: 200_000, delay_ms: 5, chunk_bytes: 200, is_replicated: false };

/// The page reports the first chunk of each connection, and everything when a stream is closed.
const PAGE: &str = r#"<!doctype html><meta charset="utf-8"><title>streamdoor</title><script>
for (const [name, url] of Object.entries(STREAMS)) {
    const events = [];
    let opened = 0;
    let reported = 0;
    const report = (more) => fetch("/report", {
        method: "POST", body: JSON.stringify({ name, opened, ...more }),
    });
    const source = new EventSource(url);
    source.onopen = () => { opened += 1; };
    for (const kind of ["started", "chunk", "gap", "progress", "end"]) {
        source.addEventListener(kind, (event) => {
            events.push(JSON.parse(event.data));
            if (kind === "chunk" && reported < opened) {
                reported = opened;
                report({});
            }
        });
    }
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) report({ events }); };
}
</script>"#;

/// A node that comes back at the same address.
struct Node {
    name: &'static str,
    /// The address that the balancer knows.
    address: String,
    server: Option<Server>,
}

/// A cluster behind a balancer. The balancer sends a browser of this machine to the first node, or
/// to the next one if that does not answer.
struct Front {
    nodes: [Node; 3],
    balancer: Balancer,
    cluster: Cluster,
}

impl Node {
    fn start(&mut self, cluster: &Cluster) {
        self.server = Some(cluster.node(self.name, &["--listen", &self.address]));
    }

    fn kill(&mut self) {
        kill(self.server.take().expect("it runs"));
    }
}

impl Front {
    /// Starts nodes with these names, in the order in which the balancer tries them.
    fn start(test: &str, names: [&'static str; 3]) -> Option<Front> {
        let cluster = Cluster::start(test)?;
        let addresses = [(); 3].map(|()| format!("127.0.0.1:{}", ports::free()));
        // No node runs, so that all of them are tried. The order follows from the addresses.
        let (status, route) = Balancer::start(cluster.folder().path(), &addresses)?.route();
        assert_eq!((status, route.len()), (502, 3), "{route:?}");
        let balancer = Balancer::start(cluster.folder().path(), &addresses)?;
        let mut nodes = std::array::from_fn(|at| Node {
            name: names[at],
            address: route[at].clone(),
            server: None,
        });
        nodes.iter_mut().for_each(|node| node.start(&cluster));
        Some(Front { nodes, balancer, cluster })
    }

    /// Opens the page, which follows these executions: its names, ids, and policies.
    fn open(&self, test: &str, streams: &[(&str, &str, &str)]) -> Option<Browser> {
        let urls = streams.iter().map(|(name, id, policy)| {
            ((*name).to_owned(), json!(format!("/v1/executions/{id}/events?policy={policy}")))
        });
        let urls = Value::Object(urls.collect());
        Browser::open(&self.balancer.serve(&PAGE.replace("STREAMS", &urls.to_string())), test)
    }

    /// The nodes that have served the events of an execution to the browser, one after the other.
    /// The last one has nothing more to tell, so that the browser stays away.
    fn served(&self, id: &str) -> Vec<&str> {
        let name = |address: &String| {
            let node = self.nodes.iter().find(|node| node.address == *address);
            node.expect("it is ours").name
        };
        let all = until("the last response", || {
            let all = self.balancer.served(id);
            all.last().is_some_and(|last| last.0 == 204).then_some(all)
        });
        let (_, streams) = all.split_last().unwrap();
        assert!(streams.iter().all(|(status, _)| *status == 200), "{all:?}");
        all.iter().map(|(_, address)| name(address)).collect()
    }
}

/// Checks everything that the page was given by one stream.
fn checked(load: Load, (events, opened): &(Vec<Value>, u64)) -> Transcript {
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    let seen = load.read(&lines.join("\n"));
    assert_eq!((&seen.wrong, &seen.gaps), (&Vec::new(), &Vec::new()));
    assert_eq!(seen.ends.len(), 1, "{:?}", seen.ends);
    let started = events.iter().filter(|event| event["event"] == "started").count();
    assert_eq!(started as u64, *opened);
    seen
}

/// Checks the end of an execution whose node was killed.
fn assert_lost(seen: &Transcript) {
    let end = &seen.ends[0];
    assert_eq!((&end["state"], &end["error"]), (&json!("failed"), &json!(LOST)), "{end}");
}

#[test]
fn a_browser_follows_through_a_balancer_while_each_node_is_killed() {
    let Some(front) = Front::start("browser", ["b", "c", "a"]) else { return };
    let owner = front.nodes[2].address.clone();
    // It ends before its node is killed, after some kills of others.
    let kept = Load { chunks: 3_000, is_replicated: true, ..LONG };
    let [id, kept_id] = [LONG, kept].map(|load| load.start(&owner).expect("it serves"));
    let streams = [("lost", &*id, "block"), ("kept", &kept_id, "replay")];
    let Some(_browser) = front.open("each", &streams) else { return };
    let Front { cluster, mut balancer, mut nodes } = front;
    balancer.reports().wait_for_open("kept", 1);
    balancer.reports().wait_for_open("lost", 1);
    for (node, opened) in nodes[..2].iter_mut().zip(2..) {
        node.kill();
        balancer.reports().wait_for_open("lost", opened);
        node.start(&cluster);
    }
    let kept_report = balancer.reports().closed("kept");
    nodes[2].kill();
    nodes[2].start(&cluster);
    let report = balancer.reports().closed("lost");
    let front = Front { cluster, balancer, nodes };

    let kept_seen = checked(kept, &kept_report);
    let end = &kept_seen.ends[0];
    assert_eq!((kept_seen.chunks, &end["state"]), (kept.chunks, &json!("completed")), "{end}");
    assert!(kept_report.1 >= 2, "{}", kept_report.1);
    let seen = checked(LONG, &report);
    assert_lost(&seen);
    assert_eq!(front.served(&id), ["b", "c", "b", "b"]);
    // Others are told the same afterwards.
    for (load, id, seen) in [(LONG, &id, &seen), (kept, &kept_id, &kept_seen)] {
        let from_all = Manner { policy: Some("replay"), ..Manner::default() };
        let again = load.follow(&front.balancer.address, id, from_all);
        assert_eq!(again.summary(), seen.summary());
    }
}

#[test]
fn a_browser_follows_while_the_nodes_come_back_at_once() {
    let Some(front) = Front::start("browser-at-once", ["b", "c", "a"]) else { return };
    let id = LONG.start(&front.nodes[2].address).expect("it serves");
    let Some(_browser) = front.open("at-once", &[("lost", &id, "replay")]) else { return };
    let Front { cluster, mut balancer, mut nodes } = front;
    balancer.reports().wait_for_open("lost", 1);
    for node in &mut nodes {
        node.kill();
        node.start(&cluster);
        // It is cut at least once: the second node may have it then, or not.
        balancer.reports().wait_for_open("lost", 2);
    }
    let report = balancer.reports().closed("lost");
    assert_lost(&checked(LONG, &report));
    assert!(report.1 >= 2, "{}", report.1);
}

#[test]
fn a_browser_at_the_node_of_a_replicated_execution_gets_the_end_from_another_one() {
    let Some(front) = Front::start("browser-owner", ["a", "b", "c"]) else { return };
    let load = Load { is_replicated: true, ..LONG };
    let id = load.start(&front.nodes[0].address).expect("it serves");
    let Some(_browser) = front.open("owner", &[("lost", &id, "block")]) else { return };
    let Front { cluster, mut balancer, mut nodes } = front;
    balancer.reports().wait_for_open("lost", 1);
    nodes[0].kill();
    let report = balancer.reports().closed("lost");
    nodes[0].start(&cluster);
    let front = Front { cluster, balancer, nodes };
    assert_lost(&checked(load, &report));
    let served = front.served(&id);
    assert_eq!((served[0], served[1]), ("a", "b"), "{served:?}");
    // The disk of the lost node may have more. Nobody was given that.
    let from_all = Manner { policy: Some("replay"), ..Manner::default() };
    let again = load.follow(&front.nodes[0].address, &id, from_all);
    assert_eq!(again.summary(), checked(load, &report).summary());
}

#[test]
fn a_browser_is_sent_to_a_node_that_has_just_come_back() {
    let Some(front) = Front::start("browser-back", ["b", "c", "a"]) else { return };
    let load = Load { is_replicated: true, ..LONG };
    let id = load.start(&front.nodes[2].address).expect("it serves");
    let Some(_browser) = front.open("back", &[("lost", &id, "block")]) else { return };
    let Front { cluster, mut balancer, mut nodes } = front;
    balancer.reports().wait_for_open("lost", 1);
    nodes[0].kill();
    balancer.reports().wait_for_open("lost", 2);
    nodes[0].start(&cluster);
    nodes[1].kill();
    balancer.reports().wait_for_open("lost", 3);
    // Only the first one is left, which did not answer some seconds ago.
    nodes[2].kill();
    let report = balancer.reports().closed("lost");
    assert_lost(&checked(load, &report));
}
