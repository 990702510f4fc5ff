//! curl as a process.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::ffi::OsStr;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// True if curl is installed. Prints a line otherwise.
pub fn is_here() -> bool {
    let found = Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        println!("not run: there is no curl");
    }
    found
}

pub fn command<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new("curl");
    // `-q` ignores the user's settings, and no proxy is used.
    command.args(["-q", "-sS", "--noproxy", "*"]).args(arguments);
    command
}

/// Runs curl to its end.
pub fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    command(arguments).output().unwrap()
}

/// Runs curl and returns its output. Panics if curl fails.
pub fn printed<S: AsRef<OsStr>>(arguments: &[S]) -> Vec<u8> {
    let output = run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub fn json<S: AsRef<OsStr>>(arguments: &[S]) -> Value {
    serde_json::from_slice(&printed(arguments)).unwrap()
}

/// Starts curl with a file as its output: a stopped process must not be confused with a full pipe.
pub fn start(arguments: &[&str], into: &str) -> Child {
    let mut command = command(arguments);
    command.args(["-o", into]).stdout(Stdio::null()).stderr(Stdio::inherit());
    command.spawn().unwrap()
}
