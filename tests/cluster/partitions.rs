//! Partitions: three servers of NATS and three nodes, each in a network namespace of its own.
//!
//! Nodes reach the servers with TLS, as servers on other machines demand. Clients reach the nodes
//! through sockets of the file system, which no partition cuts.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use streamdoor::base::Random;
use streamdoor::nats::secret;

use crate::campaign::{Tally, count, pause, random, until};
use crate::kills::load;
use crate::nats_server::{NatsServer, Place};
use crate::served::Server;
use crate::spaces::{Cut, Network};
use crate::world::Folder;

const LOADERS: u64 = 2;
const SERVERS: u8 = 3;
const NODES: [&str; 3] = ["a", "b", "c"];
/// The port at which a server hears the others.
const ROUTES: u16 = 6_222;

/// Three servers and three nodes. The nodes are dropped first, and the network last.
struct Parted {
    /// Never read again: the nodes end with it.
    _nodes: Vec<Server>,
    sockets: [String; 3],
    _servers: Vec<NatsServer>,
    _folder: Folder,
    network: Network,
}

/// Starts everything. Returns `None`, and says so, where it cannot.
fn start() -> Option<Parted> {
    let network = Network::new(SERVERS + NODES.len() as u8)?;
    let folder = Folder::new("cluster-partitions");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let names: Vec<String> = (0..SERVERS).map(|n| network.address(n).to_string()).collect();
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
    std::fs::write(file("cert.pem"), cert.pem()).unwrap();
    std::fs::write(file("key.pem"), signing_key.serialize_pem()).unwrap();
    let tls =
        format!("tls {{ cert_file: {:?}, key_file: {:?} }}", file("cert.pem"), file("key.pem"));
    let place = |number: u8| Place {
        launcher: network.launcher(number),
        address: network.address(number),
        scheme: "tls",
        ..Place::default()
    };
    let places: Vec<Place> = (0..SERVERS).map(place).collect();
    let servers = NatsServer::start_together(&places, &[ROUTES; SERVERS as usize], &tls)?;
    let urls: Vec<String> = servers.iter().map(NatsServer::url).collect();
    let urls = urls.join(",");
    secret::make(&folder.path().join("secret")).unwrap();
    until("the stores", || {
        let words = network.launcher(SERVERS);
        let mut init = Command::new(&words[0]);
        init.args(&words[1..]).arg(env!("CARGO_BIN_EXE_streamdoor"));
        init.args(["cluster", "init", "--cluster", &urls, "--cluster-tls-ca", &file("cert.pem")]);
        let output = init.args(["--max-bytes", "1GiB", "--replicas", "3"]).output().unwrap();
        output.status.success().then_some(())
    });
    let sockets = NODES.map(|name| format!("unix:{}", file(&format!("{name}.sock"))));
    let node = |(number, name): (u8, &&str)| {
        let (certificate, secret) = (file("cert.pem"), file("secret"));
        let (journal, socket) = (file(&format!("journal-{name}")), &sockets[usize::from(number)]);
        let node = Server::start_by(
            &network.launcher(SERVERS + number),
            &[
                "--cluster",
                &urls,
                "--cluster-tls-ca",
                &certificate,
                "--node",
                name,
                "--cluster-secret-file",
                &secret,
                "--journal",
                &journal,
                "--listen",
                socket,
                "--idle",
                "block",
            ],
        );
        node.wait_for("cluster_joined");
        node
    };
    let nodes = (0..).zip(&NODES).map(node).collect();
    Some(Parted { _nodes: nodes, sockets, _servers: servers, _folder: folder, network })
}

#[test]
fn partitions_lose_and_repeat_nothing() {
    let faults = count("PARTITIONS", 1);
    let Some(parted) = start() else { return };
    let Parted { sockets, network, .. } = &parted;
    let addresses = sockets.each_ref().map(String::as_str);
    let (tally, is_over, mut random) = (Tally::default(), AtomicBool::new(false), random(50));
    let cuts = AtomicU64::new(0);
    let mut of_nodes = 0;
    std::thread::scope(|scope| {
        for _ in 0..LOADERS {
            let (tally, random) = (&tally, Random::new(random.next_u64()));
            let state = (&is_over, &cuts);
            scope.spawn(move || load(addresses, state, tally, random));
        }
        for _ in 0..faults {
            pause(&mut random, 500, 2_500);
            let place = random.below(u64::from(SERVERS) + NODES.len() as u64) as u8;
            let cut = match random.below(4) {
                0 => Cut::Both,
                1 => Cut::In,
                2 => Cut::Out,
                _ => Cut::Loss(random.between(1, 30)),
            };
            of_nodes += u64::from(place >= SERVERS);
            // An owner that is cut off for too long counts as lost.
            let is_owner = u64::from(place == SERVERS);
            cuts.fetch_add(is_owner, Relaxed);
            network.cut(place, cut).expect("it worked before");
            pause(&mut random, 300, 10_000);
            network.mend(place);
            if is_owner == 1 {
                pause(&mut random, 5_000, 5_000); // It needs its lease again.
                cuts.fetch_add(1, Relaxed);
            }
        }
        is_over.store(true, Relaxed);
    });
    tally.finish(&format!(
        "{faults} partitions, {of_nodes} of them of nodes, the others of servers"
    ));
}
