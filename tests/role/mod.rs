//! Another process of a test: the test's own binary, run again for some job. It is told which by
//! its environment, and tells how far it is on its standard output.
//!
//! The test has a function `roles::plays_its_role`, which asks [`told`] what it is to do.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ROLE: &str = "STREAMDOOR_TEST_ROLE";
const DOOR: &str = "STREAMDOOR_TEST_ROLE_DOOR";
const ABOUT: &str = "STREAMDOOR_TEST_ROLE_ABOUT";

/// A process in some role. It is killed with this value, if it was not before.
pub struct Role {
    pub child: Child,
    input: ChildStdin,
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
        let input = child.stdin.take().unwrap();
        Role { child, input, lines }
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

    /// The next line that it says.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("it ended without another word").unwrap()
    }

    /// Lets it go on, where it waits for a word.
    pub fn go_on(&mut self) {
        self.input.write_all(b"go on\n").unwrap();
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it without giving it a chance, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has ended by itself, as it should.
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

/// Which role this process plays, where the door is, and what else it has to know; `None`: it is
/// the test itself.
pub fn told() -> Option<(String, OsString, String)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var_os(DOOR).unwrap(), std::env::var(ABOUT).unwrap()))
}

/// Tells the test something.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").unwrap();
    out.flush().unwrap();
}

/// Waits for the test: [`Role::go_on`].
pub fn wait_for_word() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}
