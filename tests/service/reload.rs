//! SIGHUP replaces the tokens, the certificate and the log level. No stream is cut.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::served::Server;
use crate::world::{Identity, TlsClient};

const STREAM_COUNT: usize = 1_000;
const CHUNK_COUNT: usize = 100;

/// A token for each name, in a file of the identity's folder.
fn write_tokens(identity: &Identity, lines: &[(&str, &str)]) -> PathBuf {
    let path = identity.folder().join("tokens");
    let text: String = lines.iter().map(|(name, token)| format!("{name} {token}\n")).collect();
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn token(letter: char) -> String {
    letter.to_string().repeat(40)
}

fn send(client: &mut TlsClient, method: &str, path: &str, token: &str, body: &str) {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    client.stream.write_all(request.as_bytes()).unwrap();
}

fn ask(client: &mut TlsClient, method: &str, path: &str, token: &str, body: &str) -> (u16, Value) {
    send(client, method, path, token, body);
    let mut bytes = Vec::new();
    let status = client.receive(|piece| bytes.extend_from_slice(piece));
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Makes room for the connections of the test.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

#[test]
fn a_reload_replaces_tokens_and_certificate_and_cuts_no_stream() {
    raise_descriptor_limit();
    let identity = Identity::new("reload");
    let (old, new, of_bob) = (token('a'), token('b'), token('c'));
    let file = write_tokens(&identity, &[("ann", &old), ("bob", &of_bob)]);
    let mut server = identity.serve(&["--token-file", file.to_str().unwrap()]);

    let mut client = identity.connect(&server);
    let arguments = json!({"chunks": CHUNK_COUNT, "delay_ms": 40, "chunk_size": 16});
    let body = json!({"tool": "slow_data_processor", "arguments": arguments,
                      "hold": {"until_read_ms": 30_000}});
    let (status, created) = ask(&mut client, "POST", "/v1/executions", &old, &body.to_string());
    assert_eq!(status, 201, "{created}");
    let id = created["execution"].as_str().unwrap().to_owned();
    let events = format!("/v1/executions/{id}/events?policy=block");
    let mut streams: Vec<TlsClient> = (0..STREAM_COUNT)
        .map(|_| {
            let mut stream = identity.connect(&server);
            send(&mut stream, "GET", &events, &old, "");
            stream
        })
        .collect();
    // A request that is read after the reload needs the new token, so all heads must have come.
    assert!(streams.iter_mut().all(TlsClient::fill));

    // The old certificate is still trusted by `before`, the new one by `identity`.
    let before = Identity::copy_of(&identity, "reload-before");
    identity.renew();
    write_tokens(&identity, &[("cyd", &token('d')), ("ann", &new)]);
    server.signal(Signal::HUP);
    let reloaded = server.wait_for("reloaded");
    assert_eq!((&reloaded["principals"], &reloaded["log_level"]), (&json!(2), &json!("info")));

    let mut after = identity.connect(&server);
    let list = "/v1/executions";
    assert_eq!(ask(&mut after, "GET", list, &old, "").0, 401);
    assert_eq!(ask(&mut identity.connect(&server), "GET", list, &of_bob, "").0, 401);
    let (status, own) = ask(&mut identity.connect(&server), "GET", list, &new, "");
    assert_eq!((status, &own["executions"][0]["execution"]), (200, &json!(id)), "{own}");
    let (_, foreign) = ask(&mut identity.connect(&server), "GET", list, &token('d'), "");
    assert_eq!(foreign["executions"], json!([]), "a new principal gets no number of another one");
    assert!(!before.has_certificate_of(&server), "new connections get the new certificate");

    for (index, stream) in streams.iter_mut().enumerate() {
        let mut text = Vec::new();
        assert_eq!(stream.receive(|piece| text.extend_from_slice(piece)), 200);
        let text = String::from_utf8(text).unwrap();
        let chunk_count = text.matches("event: chunk\n").count();
        assert_eq!(chunk_count, CHUNK_COUNT, "stream {index}: {text}");
        assert!(text.contains("\"state\":\"completed\""), "stream {index}");
    }
    drop(streams);
    server.stop();
}

#[test]
fn what_cannot_be_read_replaces_nothing() {
    let identity = Identity::new("reload-wrong");
    let good = token('a');
    let file = write_tokens(&identity, &[("ann", &good)]);
    let server = identity.serve(&["--token-file", file.to_str().unwrap()]);

    write_tokens(&identity, &[("ann", "short")]);
    server.signal(Signal::HUP);
    let failed = server.wait_for("reload_failed");
    let error = failed["error"].as_str().unwrap();
    assert!(error.contains("line 1") && !error.contains("short "), "{error}");

    // The tokens are good again, but the certificate is not.
    write_tokens(&identity, &[("ann", &token('b'))]);
    let key = std::fs::read_to_string(identity.key()).unwrap();
    identity.write_key("no key", 0o600);
    server.signal(Signal::HUP);
    let failed = server.wait_for("reload_failed");
    assert!(failed["error"].as_str().unwrap().contains("key.pem"), "{failed}");
    let list =
        |token: &str| ask(&mut identity.connect(&server), "GET", "/v1/executions", token, "").0;
    assert_eq!((list(&good), list(&token('b'))), (200, 401));

    identity.write_key(&key, 0o600);
    server.signal(Signal::HUP);
    server.wait_for("reloaded");
    assert_eq!((list(&good), list(&token('b'))), (401, 200));
}

#[test]
fn the_log_level_comes_from_the_file_again() {
    let identity = Identity::new("reload-level");
    let config = identity.folder().join("config.toml");
    std::fs::write(&config, "log_level = \"info\"\n").unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    std::fs::write(&config, "log_level = \"debug\"\n").unwrap();
    server.signal(Signal::HUP);
    assert_eq!(server.wait_for("reloaded")["log_level"], "debug");
    server.ask("GET", "/v1/tools", "");
    server.wait_for("connection_opened");
}
