//! A second process of a test: the test's own binary, run again in a role. The environment names
//! the role. The process reports its progress on its standard output.
//!
//! The test has a function `roles::plays_its_role`, which gets its task from [`told`].
#![allow(dead_code, reason = "not every test needs all of it")]

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ROLE: &str = "STREAMDOOR_TEST_ROLE";
const DOOR: &str = "STREAMDOOR_TEST_ROLE_DOOR";
const ABOUT: &str = "STREAMDOOR_TEST_ROLE_ABOUT";

/// A process in a role. It is killed when this value is dropped, unless it has ended before.
pub struct Role {
    pub child: Child,
    input: ChildStdin,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Role {
    pub fn play(role: &str, door: &Path, about: &str) -> Role {
        Role::play_as(None, role, door, about)
    }

    /// Starts a process with this user id, or with that of the test.
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
        let input = child.stdin.take().unwrap();
        Role { child, input, lines }
    }

    /// Waits for a line with this word, and returns the text behind the word.
    pub fn hear(&mut self, word: &str) -> String {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("it ended without {word:?}"));
            if let Some((_, rest)) = line.unwrap().split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Waits for the next line and returns it.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("it ended without another word").unwrap()
    }

    /// Returns the lines that are left, after the process has ended.
    pub fn rest(&mut self) -> Vec<String> {
        self.lines.by_ref().map_while(Result::ok).collect()
    }

    /// Writes a line to the process.
    pub fn tell(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Ends a [`wait_for_word`] of the process.
    pub fn go_on(&mut self) {
        self.tell("go on");
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process has ended by itself, with success.
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

/// The role of this process, the path of the door, and further text for the role. `None` in the
/// test itself.
pub fn told() -> Option<(String, OsString, String)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var_os(DOOR).unwrap(), std::env::var(ABOUT).unwrap()))
}

/// Writes a line to the test.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").unwrap();
    out.flush().unwrap();
}

/// Waits until the test calls [`Role::go_on`].
pub fn wait_for_word() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}
