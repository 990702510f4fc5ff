//! `streamdoor call` and `streamdoor watch`, as processes, against `streamdoor serve`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use streamdoor::client::{Client, ExecuteOptions};

use crate::world::data;

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// `streamdoor serve` on a port that the kernel chose.
pub struct Serve {
    child: Child,
    pub url: String,
}

impl Serve {
    pub fn start(arguments: &[&str]) -> Serve {
        let mut child = Command::new(PROGRAM)
            .args([
                "serve",
                "--journal",
                "off",
                "--log",
                "json",
                "--idle",
                "block",
                "--listen",
                "127.0.0.1:0",
            ])
            .arg("--files-root")
            .arg(std::env::temp_dir())
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let url = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "it has ended");
            let record: Value = serde_json::from_str(&line).unwrap();
            if record["event"] == "listening" {
                break record["address"].as_str().unwrap().to_owned();
            }
        };
        // The server continues to log: the pipe has to be read.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Serve { child, url }
    }

    fn signal(&self, name: &str) {
        signal(&self.child, name);
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It may have ended by itself.
        let _ = self.child.wait();
    }
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn output(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

pub fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_call_gives_what_the_file_holds_and_its_exit_code_says_how_it_ended() {
    let serve = Serve::start(&[]);
    let path = std::env::temp_dir().join(format!("streamdoor-call-{}", std::process::id()));
    let content: Vec<u8> = (1..=3_000).flat_map(data).collect();
    std::fs::write(&path, &content).unwrap();
    let argument = format!("file_path={}", path.display());
    let called = output(&["call", &serve.url, "process_file", "--arg", &argument]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(called.status.code(), Some(0), "{}", said(&called));
    assert!(called.stdout == content);
    assert!(said(&called).starts_with("completed: "), "{}", said(&called));

    let failed = output(&["call", &serve.url, "process_file", "--arg", &argument]);
    assert_eq!(failed.status.code(), Some(1), "{}", said(&failed));
    assert!(said(&failed).contains("No such file"), "{}", said(&failed));
    let refused = output(&["call", &serve.url, "process_file", "--arg", "other=1"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    let unknown = output(&["call", &serve.url, "other"]);
    assert!(said(&unknown).contains("slow_data_processor"), "{}", said(&unknown));
}

#[test]
fn nobody_there_is_another_exit_code() {
    // The kernel never assigns this port. A port that was just released could soon be in use again.
    let url = "http://127.0.0.1:9";
    for arguments in [&["call", url, "t"][..], &["watch", url]] {
        let called = output(arguments);
        assert_eq!(called.status.code(), Some(3), "{}", said(&called));
        assert!(said(&called).contains("cannot be reached"), "{}", said(&called));
    }
}

#[test]
fn an_interrupt_cancels_what_a_call_has_started() {
    let serve = Serve::start(&[]);
    let mut child = slow(&serve.url);
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap(); // It runs.
    signal(&child, "INT");
    let called = child.wait_with_output().unwrap();
    assert_eq!(called.status.code(), Some(1), "{}", said(&called));
    assert!(said(&called).contains("cancelled: "), "{}", said(&called));
    let watched = output(&["watch", &serve.url]);
    let table = String::from_utf8(watched.stdout).unwrap();
    assert!(table.contains("slow_data_processor  cancelled"), "{table}");
}

#[test]
fn a_call_is_told_that_its_server_shuts_down() {
    let serve = Serve::start(&[]);
    let mut child = slow(&serve.url);
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    serve.signal("TERM");
    let called = child.wait_with_output().unwrap();
    assert_eq!(called.status.code(), Some(1), "{}", said(&called));
    assert!(said(&called).contains("detached: shutdown"), "{}", said(&called));
}

/// Starts a call that would take an hour.
fn slow(url: &str) -> Child {
    let arguments = ["--arg", "chunks=3600", "--arg", "delay_ms=1000", "--format", "raw"];
    command(&["call", url, "slow_data_processor"]).args(arguments).spawn().unwrap()
}

#[test]
fn a_watcher_sees_what_runs_and_follows_it_over_a_unix_socket() {
    let name = format!("streamdoor-watch-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path); // From an earlier process with this number.
    let unix = format!("unix:{}", path.display());
    let serve = Serve::start(&["--listen", &unix]);
    let client = Client::new(&serve.url).unwrap();
    let arguments = json!({"chunks": 3, "delay_ms": 1});
    let created = client.execute("slow_data_processor", &arguments, &ExecuteOptions::default());
    let execution = created.unwrap().execution.to_string();
    let listed = output(&["watch", &unix]);
    assert!(listed.status.success(), "{}", said(&listed));
    let table = String::from_utf8(listed.stdout).unwrap();
    assert!(table.contains(&execution), "{table}");
    let watched = output(&["watch", &unix, &execution, "--policy", "block", "--format", "json"]);
    assert_eq!(watched.status.code(), Some(0), "{}", said(&watched));
    let events: Vec<Value> = String::from_utf8(watched.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(events[0]["event"], "started");
    let seqs = events.iter().filter(|event| event["event"] == "chunk").map(|event| &event["seq"]);
    assert_eq!(seqs.collect::<Vec<_>>(), [1, 2, 3]);
    let end = events.last().unwrap();
    assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("completed")));
}
