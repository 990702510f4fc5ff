//! Clients over TLS: curl, and rustls itself.

use std::io::Write;
use std::process::{Command, Output};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use streamdoor::base::Random;

use crate::served::Server;
use crate::world::Identity;

const FILE_BYTES: usize = 50 << 20;

/// Runs curl. Returns `None` if it is not installed.
fn curl(identity: &Identity, server: &Server, arguments: &[&str], path: &str) -> Option<Output> {
    let port = server.address().rsplit(':').next().unwrap();
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "60", "--cacert"]).arg(identity.certificate());
    command.args(arguments).arg(format!("https://localhost:{port}{path}"));
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("not run: curl: {error}");
            None
        }
    }
}

fn text(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn curl_lists_tools_runs_one_and_follows_it() {
    let identity = Identity::new("curl");
    let server = identity.serve(&[]);
    for version in ["--tlsv1.3", "--tls-max=1.2"] {
        let version: Vec<&str> = version.split('=').collect();
        let Some(tools) = curl(&identity, &server, &version, "/v1/tools") else { return };
        let tools: Value = serde_json::from_str(&text(&tools)).unwrap();
        assert!(tools["tools"].as_array().unwrap().len() > 1);
        let order = r#"{"tool":"slow_data_processor","arguments":{"chunks":20,"delay_ms":5}}"#;
        let arguments =
            [&version[..], &["-N", "-H", "Content-Type: application/json", "-d", order]];
        let path = "/v1/executions?format=sse";
        let events = text(&curl(&identity, &server, &arguments.concat(), path).unwrap());
        assert_eq!(events.matches("event: chunk\n").count(), 20, "{events}");
        assert!(events.contains("\"state\":\"completed\""), "{events}");
    }
    // A client that does not trust the certificate refuses the connection.
    let port = server.address().rsplit(':').next().unwrap().to_owned();
    let output = Command::new("curl").args(["-sS", &format!("https://localhost:{port}/")]).output();
    assert_eq!(output.unwrap().status.code(), Some(60));
}

#[test]
fn the_program_calls_and_watches_over_tls() {
    let (identity, other) = (Identity::new("call"), Identity::new("call-other"));
    let server = identity.serve(&[]);
    let url = format!("https://{}", server.address());
    let run = |cacert: Option<&Identity>, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        command.arg(words[0]);
        if let Some(identity) = cacert {
            command.arg("--cacert").arg(identity.certificate());
        }
        command.arg(&url).args(&words[1..]).output().unwrap()
    };
    let call = ["call", "slow_data_processor", "--arg", "chunks=20", "--arg", "delay_ms=1"];
    let events = text(&run(Some(&identity), &[&call[..], &["--format", "ndjson"]].concat()));
    assert_eq!(events.matches("\"event\":\"chunk\"").count(), 20, "{events}");
    let list = text(&run(Some(&identity), &["watch"]));
    assert!(list.contains("slow_data_processor"), "{list}");
    let error = |output: Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let untold = run(None, &call);
    assert_eq!(untold.status.code(), Some(3));
    assert!(
        error(untold)
            .contains("is not from a trusted issuer; trust it, or its issuer, with --cacert")
    );
    let stranger = run(Some(&other), &call);
    assert_eq!(stranger.status.code(), Some(3));
    assert!(error(stranger).contains("invalid peer certificate"));
    let plain = url.replace("https://", "http://");
    let output = Command::new(env!("CARGO_BIN_EXE_streamdoor")).args(["watch", &plain]).output();
    let said = error(output.unwrap());
    assert!(said.contains("this port speaks TLS; use https://"), "{said}");
    let open = Server::start(&[]);
    let encrypted = format!("https://{}", open.address());
    let output = Command::new(env!("CARGO_BIN_EXE_streamdoor"))
        .args(["watch", &encrypted, "--cacert"])
        .arg(identity.certificate())
        .output();
    let said = error(output.unwrap());
    assert!(said.contains("this port does not speak TLS; use http://"), "{said}");
}

#[test]
fn fifty_mebibytes_come_as_they_are() {
    let identity = Identity::new("large");
    let file = identity.folder().join("large");
    let mut bytes = vec![0; FILE_BYTES];
    Random::new(7).fill(&mut bytes);
    std::fs::File::create(&file).and_then(|mut file| file.write_all(&bytes)).unwrap();
    let expected = Sha256::digest(&bytes);
    drop(bytes);
    for reactor in ["uring", "mio"] {
        let root = identity.folder().to_str().unwrap();
        let server = identity.serve(&["--reactor", reactor, "--files-root", root]);
        let mut client = identity.connect(&server);
        let execution = client.execute(&json!({
            "tool": "process_file",
            "arguments": {"file_path": file, "chunk_size": 65_536},
            "start": {"after_subscribers": 1},
            "hold": "until_read",
        }));
        client.send("GET", &format!("/v1/executions/{execution}/output"), "");
        let (mut digest, mut count) = (Sha256::new(), 0);
        let status = client.receive(|piece| {
            digest.update(piece);
            count += piece.len();
        });
        assert_eq!((status, count), (200, FILE_BYTES), "{reactor}");
        assert_eq!(digest.finalize(), expected, "{reactor}");
        // The connection still works.
        assert_eq!(client.ask("GET", "/healthz", "").0, 200);
    }
}

#[test]
fn a_session_goes_along_from_shard_to_shard() {
    let identity = Identity::new("shards");
    for reactor in ["uring", "mio"] {
        let server = identity.serve(&["--reactor", reactor, "--cpus", "0,1"]);
        // The kernel chooses the shard of each connection. Connections of the other shard have to
        // move, more than once.
        let mut clients: Vec<_> = (0..16).map(|_| identity.connect(&server)).collect();
        let order =
            json!({"tool": "slow_data_processor", "arguments": {"chunks": 3, "delay_ms": 1}});
        let executions: Vec<_> = clients.iter_mut().map(|client| client.execute(&order)).collect();
        for client in &mut clients {
            for execution in &executions {
                let (status, answer) =
                    client.ask("GET", &format!("/v1/executions/{execution}/result"), "");
                assert_eq!(status, 200, "{answer}");
                assert_eq!(answer["execution"], **execution);
                client.send("GET", &format!("/v1/executions/{execution}/events"), "");
                let mut events = Vec::new();
                assert_eq!(client.receive(|piece| events.extend_from_slice(piece)), 200);
                let events = String::from_utf8(events).unwrap();
                assert_eq!(events.matches("event: chunk\n").count(), 3, "{events}");
            }
        }
        let mut last = identity.connect(&server);
        last.send("GET", "/metrics", "");
        let mut text = Vec::new();
        last.receive(|piece| text.extend_from_slice(piece));
        let text = String::from_utf8(text).unwrap();
        let moved: u64 = text
            .lines()
            .filter(|line| line.starts_with("streamdoor_connections_adopted_total{"))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert!(moved > 0, "{reactor}: none has moved");
    }
}

#[test]
fn a_unix_socket_stays_as_it_is() {
    let identity = Identity::new("unix");
    let path = identity.folder().join("socket");
    let _server = identity.serve(&["--listen", &format!("unix:{}", path.display())]);
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn the_end_is_said_and_a_half_closed_connection_is_answered() {
    let identity = Identity::new("end");
    let server = identity.serve(&[]);
    let mut client = identity.connect(&server);
    client.send("GET", "/v1/tools", "");
    client.stream.conn.send_close_notify(); // The client sends nothing more.
    assert_eq!(client.receive(|_| {}), 200);
    // rustls reports an error if the close_notify alert is missing.
    assert!(!client.fill());
}
