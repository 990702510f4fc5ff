//! Real clients of Durable Streams: the TypeScript client, the Python client, and the transport for
//! AI SDK.
//!
//! The tests install them with npm and pip, once and in fixed versions. A test whose client cannot
//! be installed says so. Each client is a script that checks by itself what it reads from a server
//! that stays (`whole`). In the other scene (`across`) it prints how far it has come, and the
//! server is killed with SIGKILL and started again. At the end the client prints everything that
//! its readers got. No acknowledged message may be missing, and a message with a number of its
//! producer may not come twice.
#![cfg(all(feature = "cli", feature = "server"))]

#[path = "../installed/mod.rs"]
mod installed;
#[path = "../served/mod.rs"]
mod served;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use installed::Missing;
use serde_json::Value;
use served::again::Mortal;

/// Time limit for one line of a client: a client that hangs must not hang the test.
const PATIENCE: Duration = Duration::from_secs(60);
/// The server is killed each time when a client has come so far.
const KILLS: [u64; 3] = [99, 199, 299];

fn node() -> Result<PathBuf, Missing> {
    let packages =
        ["@durable-streams/client@0.2.7", "@durable-streams/aisdk-transport@0.0.7", "ai@6.0.324"];
    installed::node(installed::folder("stream-clients", "node"), &packages)
}

fn python() -> Result<PathBuf, Missing> {
    installed::python(installed::folder("stream-clients", "python"), &["durable-streams==0.1.0"])
}

fn or_say(installed: Result<PathBuf, Missing>, then: impl FnOnce(&Path)) {
    match installed {
        Ok(path) => then(&path),
        Err(reason) => println!("not run: {reason}"),
    }
}

fn typescript(folder: &Path, driver: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(script(driver)).arg(folder);
    command
}

fn script(name: &str) -> String {
    format!("{}/tests/stream_clients/drivers/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Runs a client to its end, and returns its last line. Kills the server at each of `kills`.
fn play(name: &str, mut command: Command, scene: Option<&str>, kills: &[u64]) -> Value {
    let mut mortal = Mortal::start(name, &[]);
    command.arg(mortal.base()).args(scene).env("NO_PROXY", "127.0.0.1").stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            let _ = sender.send(line); // The test may have failed.
        }
    });
    let mut kills = kills.iter().peekable();
    loop {
        let line = lines.recv_timeout(PATIENCE).unwrap_or_else(|error| {
            let _ = child.kill();
            let status = child.wait();
            panic!("{name}: no further line: {error} ({status:?})")
        });
        let said: Value = serde_json::from_str(&line).expect(&line);
        if said["done"] == true {
            assert!(child.wait().unwrap().success(), "{name}: {line}");
            assert_eq!(kills.next(), None, "{name}: all kills were made");
            return said;
        }
        let reached = said["reached"].as_u64().unwrap();
        if kills.next_if(|at| **at <= reached).is_some() {
            mortal.kill();
        }
    }
}

/// Each reader got each message once and in order.
fn check_exact(said: &Value) {
    assert_eq!(said["errors"], Value::from(Vec::<Value>::new()));
    let expected: Vec<u64> = (0..said["messages"].as_u64().unwrap()).collect();
    for reader in ["long-poll", "sse", "again"] {
        assert_eq!(said["exact"][reader], Value::from(expected.clone()), "{reader}");
    }
}

/// Every message is there, in order. A client that sends a message again after a lost reply may
/// have stored it twice, if the producer gives it no number.
fn check_at_least_once(got: &[u64], messages: u64) {
    let mut seen = Vec::new();
    for &message in got {
        if !seen.contains(&message) {
            seen.push(message);
        }
    }
    assert_eq!(seen, (0..messages).collect::<Vec<u64>>());
}

#[test]
fn the_typescript_client_writes_and_reads() {
    or_say(node(), |folder| {
        play("typescript", typescript(folder, "typescript.mjs"), Some("whole"), &[]);
    });
}

#[test]
fn the_typescript_client_goes_on_across_restarts() {
    or_say(node(), |folder| {
        let client = typescript(folder, "typescript.mjs");
        let said = play("typescript-across", client, Some("across"), &KILLS);
        check_exact(&said);
        let plain: Vec<u64> = serde_json::from_value(said["plain"].clone()).unwrap();
        check_at_least_once(&plain, said["messages"].as_u64().unwrap());
        assert!(plain.len() <= said["messages"].as_u64().unwrap() as usize + KILLS.len());
    });
}

#[test]
fn the_python_client_writes_and_reads() {
    or_say(python(), |program| {
        let mut client = Command::new(program);
        client.arg(script("python.py"));
        play("python", client, Some("whole"), &[]);
    });
}

#[test]
fn the_python_client_goes_on_across_restarts() {
    or_say(python(), |program| {
        let mut client = Command::new(program);
        client.arg(script("python.py"));
        check_exact(&play("python-across", client, Some("across"), &KILLS));
    });
}

#[test]
fn a_chat_of_ai_sdk_goes_on_across_restarts() {
    or_say(node(), |folder| {
        let said = play("ai-sdk", typescript(folder, "ai_sdk.mjs"), None, &KILLS);
        let text = said["text"].as_str().unwrap();
        let words: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        check_at_least_once(&words, said["messages"].as_u64().unwrap());
    });
}
