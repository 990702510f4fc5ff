//! Shards that die: the reports to the other shards, to remote readers and to the program. Uses
//! real threads.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::{Value, json};

use crate::engine::SubscribeSpec;
use crate::reactor::ListenAddress;
use crate::server::ends::ShardEnd;
use crate::server::{Drained, Server, ServerConfig, ServerHandle, ServerShard};
use crate::shard::handle::Command;
use crate::shard::{CallError, Delivery, ExecuteOptions, ShardConfig};
use crate::stream::{DetachReason, EndState};

const WORDS: &str = "an assertion of ours";

/// Starts two shards, of which the first one listens at this path.
fn server(name: &str) -> (Server, std::path::PathBuf) {
    let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let config = ServerConfig {
        shards: vec![ShardConfig::default(), ShardConfig::default()],
        listen: vec![ListenAddress::Unix(path.clone())],
        connections_max: 100,
    };
    (Server::start(config, Arc::new(|_: &mut ServerShard| {})).unwrap(), path)
}

fn ask(path: &Path, target: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(path).unwrap();
    let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head["HTTP/1.1 ".len()..][..3].parse().unwrap(), body.to_owned())
}

fn ask_json(path: &Path, target: &str) -> (u16, Value) {
    let (status, body) = ask(path, target);
    (status, serde_json::from_str(&body).expect(&body))
}

/// Makes a shard's own code panic after `may_die` has returned.
fn kill(shard: &ServerHandle, may_die: impl FnOnce() + Send + 'static) {
    let command = Command::Call(Box::new(move |_: &mut ServerShard| {
        may_die();
        resume_unwind(Box::new(WORDS));
    }));
    assert!(shard.to_mailbox().send(command).is_ok());
}

#[test]
fn a_dead_shard_is_named_and_the_others_go_on() {
    let (server, path) = server("streamdoor-dead");
    let handles: Vec<ServerHandle> = server.handles().cloned().collect();
    let run = |shard: usize| {
        let arguments = json!({"chunks": 2, "delay_ms": 60_000});
        handles[shard].execute("slow_data_processor", arguments, ExecuteOptions::default()).unwrap()
    };
    let (alive, dead) = (run(0), run(1));
    let mut subscriber = handles[1].subscribe(dead, SubscribeSpec::default()).unwrap();
    assert_eq!(ask(&path, "/readyz").0, 200);
    kill(&handles[1], || {});
    assert_eq!(server.wait(), ShardEnd { shard: 1, panic: Some(WORDS.to_owned()) });
    assert_eq!(handles[1].counters(), Err(CallError::Gone));
    let end = loop {
        if let Delivery::End(ended) = subscriber.next() {
            break ended.end.state;
        }
    };
    assert!(matches!(end, EndState::Detached { reason: DetachReason::Lost, .. }), "{end:?}");
    let (status, answer) = loop {
        let answered = ask_json(&path, "/readyz"); // The first shard learns it soon.
        if answered.0 != 200 {
            break answered;
        }
    };
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("shard_dead")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("shard 1 died"), "{answer}");
    let (status, answer) = ask_json(&path, "/v1/executions");
    assert_eq!((status, &answer["dead_shards"]), (200, &json!([1])));
    assert_eq!(answer["executions"][0]["execution"], alive.to_string());
    assert_eq!(ask_json(&path, "/v1/progress").1["dead_shards"], json!([1]));
    let (status, text) = ask(&path, "/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("streamdoor_shard_up{shard=\"0\"} 1\n"), "{text}");
    assert!(text.contains("streamdoor_shard_up{shard=\"1\"} 0\n"), "{text}");
    let (status, answer) = ask_json(&path, &format!("/v1/executions/{dead}"));
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("shard_dead")));
    assert_eq!(ask(&path, &format!("/v1/executions/{alive}")).0, 200);
    let drained = server.drain(Duration::from_secs(20));
    assert_eq!(drained, Drained::InPart, "the output of the dead shard was not sent");
}

#[test]
fn an_answer_waits_for_no_shard_that_dies() {
    let (server, path) = server("streamdoor-dies");
    let handles: Vec<ServerHandle> = server.handles().cloned().collect();
    let (may_die, wait) = channel();
    kill(&handles[1], move || wait.recv().unwrap());
    let answered = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_json(&path, "/v1/executions"));
        let is_waiting = |shard: &mut ServerShard| shard.guests.peers.is_gathering();
        while !handles[0].call(is_waiting).unwrap() {
            std::thread::yield_now();
        }
        may_die.send(()).unwrap();
        asking.join().unwrap()
    });
    assert_eq!(answered, (200, json!({"executions": [], "dead_shards": [1]})));
    drop(server);
}

#[test]
fn a_shard_that_is_told_to_end_has_not_died() {
    let (server, _) = server("streamdoor-told");
    let mut ends = server.ends();
    assert_eq!(server.drain(Duration::from_secs(20)), Drained::Whole);
    let mut both = [ends.wait(), ends.wait()];
    both.sort_by_key(|end| end.shard);
    assert_eq!(both, [0, 1].map(|shard| ShardEnd { shard, panic: None }));
}
