//! Other processes: this test binary, run again for one of these jobs. It is told which by its
//! environment, and tells how far it is on its standard output.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use streamdoor::door::{Door, ProduceOptions, ReadOptions};
use streamdoor::engine::Policy;
use streamdoor::shard::Delivery;

use crate::hostile;
use crate::house::Told;

const ROLE: &str = "STREAMDOOR_TEST_DOOR_ROLE";
const DOOR: &str = "STREAMDOOR_TEST_DOOR_PATH";
const ABOUT: &str = "STREAMDOOR_TEST_DOOR_ABOUT";

/// A process in some role. It ends with this value.
pub struct Role {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Role {
    pub fn play(role: &str, door: &Path, about: &str) -> Role {
        Role::play_as(None, role, door, about)
    }

    /// As another user.
    pub fn play_as(uid: Option<u32>, role: &str, door: &Path, about: &str) -> Role {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["roles::plays_its_role", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env(DOOR, door)
            .env(ABOUT, about)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Role { child, lines }
    }

    /// What it says behind this word; for which it waits.
    pub fn hear(&mut self, word: &str) -> String {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("it ended without {word:?}"));
            if let Some((_, rest)) = line.unwrap().split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Lets it go on.
    pub fn go_on(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn end(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test of its own: what another process runs.
#[test]
fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (path, about) = (std::env::var_os(DOOR).unwrap(), std::env::var(ABOUT).unwrap());
    match role.as_str() {
        "writer" => write(Door::open(path).unwrap(), &about),
        "reader" => read(&Door::open(path).unwrap(), &about),
        "stranger" => say(&stranger(Path::new(&path))),
        "hostile writer" => hostile::write(Path::new(&path)),
        "hostile reader" => hostile::read(Path::new(&path), &about),
        other => panic!("nobody plays {other:?}"),
    }
}

pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").unwrap();
    out.flush().unwrap();
}

/// Sends chunks that say which they are, so many; then it waits to be killed.
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
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let end = writer.send(b"more").and_then(|_| writer.send(b"more"));
    say(&format!("then {end:?}"));
}

/// Reads some chunks of an execution under `block` and then nothing more until it is killed; behind
/// a freeze, all that comes.
fn read(door: &Door, about: &str) {
    let (execution, count) = about.split_once(' ').unwrap();
    let options = ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() };
    let mut reader = door.read(execution, &options).unwrap();
    let mut told = Told::default();
    for _ in 0..count.parse::<usize>().unwrap() {
        let delivery = reader.next().unwrap().unwrap();
        told.take(&delivery);
    }
    say("read");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap(); // It ends with whoever has begun it.
    while let Some(delivery) = reader.next().unwrap() {
        told.take(&delivery);
        if let Delivery::End(ended) = delivery {
            say(&format!("ended {}", ended.end.state));
        }
    }
}

/// What is said to somebody who comes in.
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
