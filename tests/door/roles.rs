//! The roles of the other processes in these tests.

use std::io::Write;
use std::path::Path;

use streamdoor::door::{Door, ProduceOptions, ReadOptions};
use streamdoor::shard::Delivery;
use streamdoor::stream::Policy;

use crate::role::{say, told, wait_for_word};
use crate::test_server::Received;
use crate::{attacks, hostile};

/// The other process's entry point. It is no test of its own.
#[test]
fn plays_its_role() {
    let Some((role, path, about)) = told() else { return };
    match role.as_str() {
        "writer" => write(Door::open(path).unwrap(), &about),
        "reader" => read(&Door::open(path).unwrap(), &about),
        "stranger" => say(&stranger(Path::new(&path))),
        "hostile writer" => hostile::write(Path::new(&path)),
        "attacker" => attacks::attack(Path::new(&path), &about),
        "thief" => attacks::steal(Path::new(&path), &about),
        "hostile reader" => hostile::read(Path::new(&path), &about),
        other => panic!("nobody plays {other:?}"),
    }
}

/// Sends the given number of numbered chunks, and then waits to be killed.
fn write(door: Door, about: &str) {
    let mut writer = door.produce("child", &ProduceOptions::default()).unwrap();
    say(&format!("execution {}", writer.execution()));
    for number in 1..=about.parse::<u64>().unwrap() {
        if writer.send(format!("{number:06} ").as_bytes()).is_err() {
            say("stopped");
            return;
        }
    }
    say("sent");
    wait_for_word();
    let end = writer.send(b"more").and_then(|_| writer.send(b"more"));
    say(&format!("then {end:?}"));
}

/// Reads some chunks of an execution under `block`, and then nothing until it is killed. If it is
/// told to continue after a freeze, it reads the rest.
fn read(door: &Door, about: &str) {
    let (execution, count) = about.split_once(' ').unwrap();
    let options = ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() };
    let mut reader = door.read(execution, &options).unwrap();
    let mut told = Received::default();
    for _ in 0..count.parse::<usize>().unwrap() {
        let delivery = reader.next().unwrap().unwrap();
        told.take(&delivery);
    }
    say("read");
    wait_for_word();
    while let Some(delivery) = reader.next().unwrap() {
        told.take(&delivery);
        if let Delivery::End(ended) = delivery {
            say(&format!("ended {}", ended.end.state));
        }
    }
}

/// Returns what a client that connects to the door receives.
fn stranger(path: &Path) -> String {
    use std::io::Read;
    let mut stream = match std::os::unix::net::UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) => return format!("not connected {error}"),
    };
    let _ = stream.write_all(b"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    format!("answered {}", answer.replace("\r\n", " | "))
}
