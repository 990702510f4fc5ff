//! `streamdoor cluster` and `streamdoor doctor --cluster`, with real servers of NATS.
//!
//! `tools/test cluster` gets a server if none is installed. Without one, these tests are not run.

#![cfg(all(feature = "cli", feature = "cluster"))]

mod doctor;
#[allow(dead_code, reason = "shared with the tests of the machines")]
#[path = "../nats/server.rs"]
mod server;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use server::NatsServer;
use streamdoor::base::{ExecutionId, Handle};
use streamdoor::cluster::directory::{Entry, EntryState, Tag};
use streamdoor::cluster::member::About;
use streamdoor::cluster::record::Incarnation;
use streamdoor::nats::connect::{Checked, ConnectSettings, blocking};
use streamdoor::nats::link::Link;

const PLAIN: &str = "jetstream { store_dir: DIRECTORY }";

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(arguments);
    command
}

/// Runs the program. Returns its exit code, and everything that it has printed.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = program(arguments).output().expect("it runs");
    let text = [stdout, stderr].map(|bytes| String::from_utf8(bytes).expect("text")).concat();
    (status.code(), text)
}

fn init(url: &str) {
    let (code, said) = run(&["cluster", "init", "--cluster", url, "--max-bytes", "64MiB"]);
    assert_eq!(code, Some(0), "{said}");
}

fn checked(url: &str) -> Checked {
    let settings = ConnectSettings { servers: vec![url.to_owned()], ..Default::default() };
    settings.check().expect("they are right")
}

/// Does something with a connection to the cluster `default`.
fn with_link<T>(url: &str, work: impl AsyncFnOnce(Link) -> T) -> T {
    let connected = async { checked(url).connect().await.expect("it connects").0 };
    blocking(async { work(connected.await).await }).unwrap()
}

/// Gives a node a lease, and an execution that runs.
fn live(url: &str, node: &str, life: u64, is_guarded: bool) {
    let slot = Handle { index: 1, generation: 1 };
    let tag = Tag::new(&[7; 32], &ExecutionId { shard: 0, slot, nonce: life });
    let entry = Entry {
        owner: Incarnation(life),
        state: EntryState::Running,
        principal: None,
        opened_us: 1,
        ring_bytes: 1 << 16,
        chunk_bytes: 1 << 14,
        chunks_expected: None,
        details: serde_json::json!({ "tool": "slow" }),
    };
    with_link(url, async |link| {
        let about = About {
            url: Some(format!("http://{node}.test").into()),
            version: Some("1.2.3".into()),
            is_guarded: Some(is_guarded),
        };
        let by = (Incarnation(life), &about);
        link.create_lease(node, by, Duration::from_secs(60)).await.unwrap();
        let Checked { servers, options, names } = checked(url);
        let client = options.connect(servers).await.unwrap();
        client.request(names.entry(&tag, node), entry.to_text().into()).await.unwrap();
    });
}

#[test]
fn init_makes_the_stores_and_status_shows_them() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    let status = || run(&["cluster", "--cluster", &url]);
    let (code, said) = status();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no stores of the cluster default"), "{said}");

    let secret = std::env::temp_dir().join(format!("streamdoor-cluster-{}", std::process::id()));
    let path = secret.to_str().unwrap();
    let init = |bytes: &str| {
        let choices = ["--max-bytes", bytes, "--retention", "2h", "--secret-file", path];
        run(&[&["cluster", "init", "--cluster", &url], &choices[..]].concat())
    };
    let (code, said) = init("64MiB");
    assert_eq!(code, Some(0), "{said}");
    for part in ["64.0 MiB of records", "for 2h", "a new secret", "every 2 minutes"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(said.trim_end().ends_with('}') && said.contains("publish: ["), "{said}");
    let text = std::fs::read_to_string(&secret).unwrap();
    assert_eq!(secret.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!said.contains(text.trim()), "the secret is not printed");
    // Again: the stores are changed, and the secret is kept.
    let (code, said) = init("128MiB");
    assert_eq!((code, said.contains("the secret is kept")), (Some(0), true), "{said}");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), text);
    // A secret that others can read is refused, before anything is changed.
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o644)).unwrap();
    let (code, said) = init("256MiB");
    assert_eq!((code, said.contains("others can use it")), (Some(2), true), "{said}");
    std::fs::remove_file(&secret).unwrap();

    live(&url, "a", 0xAB, false);
    let (code, said) = status();
    assert_eq!(code, Some(0), "{said}");
    let about = "version 1.2.3, at http://a.test, without tokens";
    for part in
        ["1 node\n", "00000000000000ab", "of 128.0 MiB, kept for 2h", "1 running, 0 ended", about]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (code, said) = run(&["cluster", "status", "--cluster", &url, "--json"]);
    let state: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &state["nodes"][0]["node"]), (Some(0), &"a".into()), "{said}");
    assert_eq!(state["nodes"][0]["running"], 1, "{said}");
    for (name, value) in [("url", json!("http://a.test")), ("guarded", json!(false))] {
        assert_eq!(state["nodes"][0][name], value, "{said}");
    }
    assert!(state["nodes"][0]["renewed_ms"].is_u64(), "{said}");
    assert_eq!(
        (&state["log"]["max_bytes"], &state["log"]["retention_s"]),
        (&(128_u64 << 20).into(), &7_200.into())
    );
    let (code, said) = run(&["cluster", "--cluster", &url, "--cluster-name", "other"]);
    assert_eq!((code, said.contains("no stores of the cluster other")), (Some(1), true), "{said}");
}

#[test]
fn what_cannot_be_reached_or_is_refused_has_its_exit_code() {
    let (code, said) = run(&["cluster", "--cluster", "nats://127.0.0.1:1"]);
    assert_eq!((code, said.contains("nats://127.0.0.1:1: ")), (Some(3), true), "{said}");
    let (code, said) = run(&["cluster", "--cluster", "nats://ann:sesame@10.0.0.1"]);
    assert_eq!((code, said.contains("sesame")), (Some(2), false), "{said}");
    let (code, said) = run(&["doctor", "--keep", "--cluster", "nats://10.0.0.1"]);
    assert_eq!((code, said.contains("tls://")), (Some(2), true), "{said}");
    let Some(bare) = NatsServer::start_with("") else { return };
    let (code, said) = run(&["cluster", "--cluster", &bare.url()]);
    assert_eq!((code, said.contains("JetStream is off")), (Some(3), true), "{said}");
    let Some(server) = NatsServer::start() else { return };
    // More than any disk has.
    let init = ["cluster", "init", "--cluster", &server.url(), "--max-bytes", "1024TiB"];
    let (code, said) = run(&init);
    assert_eq!((code, said.contains("NATS refuses")), (Some(1), true), "{said}");
}

#[test]
fn a_server_with_tls_and_a_user_is_reached() {
    let folder = std::env::temp_dir().join(format!("streamdoor-nats-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let names = vec!["localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let certificate = file("cert.pem", &made.cert.pem());
    let key = file("key.pem", &made.signing_key.serialize_pem());
    let tls = format!("tls {{ cert_file: {certificate:?}, key_file: {key:?} }}");
    let user = "authorization { users: [ { user: ann, password: \"s/c\" } ] }";
    let Some(server) = NatsServer::start_with(&format!("{PLAIN}\n{tls}\n{user}")) else { return };
    let url =
        |user: &str| server.url_of(user).replace("nats:", "tls:").replace("127.0.0.1", "localhost");
    let with = |url: &str, more: &[&str]| {
        run(&[&["cluster", "init", "--max-bytes", "64MiB", "--cluster", url], more].concat())
    };
    let trusted = ["--cluster-tls-ca", &certificate];
    let (code, said) = with(&url("ann:s%2Fc"), &trusted);
    assert_eq!(code, Some(0), "{said}");
    for (url, more, expected) in [
        (url("ann:s%2Fc"), &[][..], "certificate"),
        (url("ann:wrong"), &trusted, "authorization violation"),
        (url("ann:s%2Fc").replace("tls:", "nats:"), &[], "certificate"),
    ] {
        let (code, said) = with(&url, more);
        assert_eq!(code, Some(3), "{url}: {said}");
        assert!(said.to_lowercase().contains(expected), "{url}: {said}");
        assert!(!said.contains("s%2Fc") && !said.contains("wrong"), "{said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
