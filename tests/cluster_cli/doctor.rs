//! Everything that the doctor names: each with a server that has it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use serde_json::Value;
use streamdoor::nats::names::Names;
use streamdoor::nats::permissions::Permissions;

use super::server::NatsServer;
use super::{PLAIN, init, live, program, with_link};

/// The findings of a cluster: subject, level, and what was found.
fn look(url: &str, more: &[&str]) -> Vec<(String, String, String)> {
    let mut doctor = program(&["doctor", "--keep", "--json", "--cluster", url]);
    let output = doctor.args(more).output().expect("it runs");
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    let document: Value = serde_json::from_slice(&output.stdout).expect(&said);
    assert_eq!(document["ok"], output.status.code() == Some(0), "{document:#}");
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or("").to_owned();
    let all = document["findings"].as_array().unwrap().iter();
    let of_cluster = all.filter(|finding| text(finding, "subject").starts_with("cluster "));
    let of_cluster: Vec<&Value> = of_cluster.collect();
    for finding in &of_cluster {
        assert!(text(finding, "means").ends_with('.'), "{finding:#}");
        assert!(finding["level"] == "ok" || finding["advice"].is_string(), "{finding:#}");
    }
    let of = |finding: &&Value| ["subject", "level", "found"].map(|name| text(finding, name));
    of_cluster.iter().map(of).map(|[subject, level, found]| (subject, level, found)).collect()
}

/// Requires one finding with this subject, level and text.
#[track_caller]
fn has(findings: &[(String, String, String)], subject: &str, level: &str, text: &str) {
    let mut all =
        findings.iter().filter(|(name, ..)| name.strip_prefix("cluster ") == Some(subject));
    let is_there = all.any(|(_, found_level, found)| found_level == level && found.contains(text));
    assert!(is_there, "{subject} {level} {text}: {findings:#?}");
}

#[test]
fn a_cluster_as_it_has_to_be_has_nothing_that_hinders() {
    let Some(server) = NatsServer::start() else { return };
    init(&server.url());
    let findings = look(&server.url(), &["--node", "a"]);
    for (subject, level) in [
        ("server", "ok"),
        ("payload", "ok"),
        ("permissions", "ok"),
        ("stores", "ok"),
        ("replicas", "note"),
        ("clock", "ok"),
        ("acks", "ok"),
        ("node", "ok"),
        ("nodes", "ok"),
        ("sync", "note"),
    ] {
        has(&findings, subject, level, "");
    }
    assert_eq!(findings.len(), 10, "{findings:#?}");
    // Nothing is left but the records that were measured.
    let messages = with_link(&server.url(), async |link| {
        let mut counts = Vec::new();
        for stream in link.names().streams() {
            let about = link.stream(&stream).await.unwrap().unwrap();
            counts.push(about["state"]["messages"].as_u64().unwrap());
        }
        counts
    });
    assert_eq!(messages, [20, 0, 0]);
}

#[test]
fn a_server_that_is_away_or_too_old_is_named() {
    has(&look("nats://127.0.0.1:1", &[]), "server", "hindrance", "Connection refused");
    // The last version without everything. It answers like one.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    let old = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let about =
            r#"{"version":"2.10.29","max_payload":1048576,"headers":true,"jetstream":true}"#;
        write!(client, "INFO {about}\r\n").unwrap();
        let lines = BufReader::new(client.try_clone().unwrap()).lines();
        for line in lines.map_while(Result::ok).filter(|line| line.starts_with("PING")) {
            assert_eq!(line, "PING");
            client.write_all(b"PONG\r\n").unwrap();
        }
    });
    has(&look(&url, &[]), "server", "hindrance", "nats-server 2.10.29");
    old.join().unwrap();
}

#[test]
fn a_server_without_jetstream_or_with_short_messages_is_named() {
    let Some(server) = NatsServer::start_with("") else { return };
    has(&look(&server.url(), &[]), "jetstream", "hindrance", "JetStream is off");
    let short = format!("{PLAIN}\nmax_payload: 65536");
    let Some(server) = NatsServer::start_with(&short) else { return };
    has(&look(&server.url(), &[]), "payload", "hindrance", "65536 bytes");
}

#[test]
fn each_missing_permission_is_named() {
    let names = Names::new("default").unwrap();
    let mut permissions = Permissions::of(&names, Some("a"));
    let lacks = [names.all_records(), format!("$JS.API.STREAM.INFO.{}", names.log())];
    permissions.publish.retain(|subject| !lacks.contains(subject));
    permissions.subscribe.retain(|subject| *subject != names.all_live());
    let users = format!(
        "{PLAIN}\nauthorization {{ users: [ {{ user: admin, password: admin }}
           {{ user: node, password: node, {permissions} }} ] }}"
    );
    let Some(server) = NatsServer::start_with(&users) else { return };
    init(&server.url_of("admin:admin"));
    let findings = look(&server.url_of("node:node"), &["--node", "a"]);
    let live = names.all_live();
    let expected = format!("publish {}, publish {}, subscribe {live}", lacks[0], lacks[1]);
    has(&findings, "permissions", "hindrance", &format!("lacks 3 of 17: {expected}"));
    // The name of another node.
    let findings = look(&server.url_of("node:node"), &["--node", "b"]);
    has(&findings, "permissions", "hindrance", &names.lease("b"));
    has(&look(&server.url_of("admin:admin"), &[]), "permissions", "ok", "all 17");
}

#[test]
fn stores_that_are_missing_or_wrong_are_named() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    init(&url);
    let findings = look(&url, &["--cluster-name", "other"]);
    has(&findings, "stores", "hindrance", "no stores of the cluster other");
    with_link(&url, async |link| {
        let log = link.names().log();
        let mut wrong = link.stream(&log).await.unwrap().unwrap()["config"].take();
        wrong["allow_direct"] = false.into();
        wrong["discard"] = "new".into();
        link.ask_json(format!("$JS.API.STREAM.UPDATE.{log}"), &wrong).await.unwrap();
    });
    let findings = look(&url, &[]);
    has(&findings, "stores", "hindrance", "allow_direct is false, and has to be true");
    has(&findings, "stores", "hindrance", "discard is \"new\", and has to be \"old\"");
    // It is mended as the doctor says.
    init(&url);
    has(&look(&url, &[]), "stores", "ok", "");
}

#[test]
fn the_sync_of_a_server_is_told_by_its_monitor() {
    let with = |sync: &str| {
        let jetstream = format!("jetstream {{ store_dir: DIRECTORY{sync} }}");
        NatsServer::start_with(&format!("{jetstream}\nhttp: \"127.0.0.1:-1\""))
    };
    let Some(server) = with("") else { return };
    let url = server.url();
    has(&look(&url, &[]), "sync", "note", "not told");
    let monitor = server.monitor();
    has(&look(&url, &["--cluster-monitor", &monitor]), "sync", "note", "every 2m");
    has(&look(&url, &["--cluster-monitor", "http://127.0.0.1:1"]), "sync", "note", "refused");
    let Some(server) = with(", sync_interval: always") else { return };
    let findings = look(&server.url(), &["--cluster-monitor", &server.monitor()]);
    has(&findings, "sync", "ok", "before it acknowledges");
}

#[test]
fn a_name_that_is_taken_and_nodes_that_are_gone_are_named() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    init(&url);
    live(&url, "a", 1, false);
    let findings = look(&url, &["--node", "a"]);
    has(&findings, "node", "hindrance", "0000000000000001 is called a");
    has(&findings, "nodes", "ok", "1 node alive: a");
    has(&look(&url, &["--node", "b"]), "node", "ok", "no node is called b");
    // The lease of its first life is over.
    with_link(&url, async |link| {
        let lease = link.names().lease("a");
        let purge = serde_json::json!({ "filter": lease });
        let [_, leases, _] = link.names().streams();
        link.ask_json(format!("$JS.API.STREAM.PURGE.{leases}"), &purge).await.unwrap();
    });
    has(&look(&url, &[]), "nodes", "note", "0 nodes alive; without a lease: a (1 execution)");
    live(&url, "a", 2, false);
    has(&look(&url, &[]), "nodes", "note", "1 node alive: a; without a lease: a (1 execution)");
}

#[test]
fn nodes_with_tokens_and_nodes_without_are_named() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    init(&url);
    live(&url, "a", 1, true);
    live(&url, "b", 2, true);
    let findings = look(&url, &[]);
    assert!(findings.iter().all(|(subject, ..)| subject != "cluster tokens"), "{findings:#?}");
    live(&url, "c", 3, false);
    has(&look(&url, &[]), "tokens", "hindrance", "with tokens: a, b; without: c");
}
