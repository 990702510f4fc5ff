//! A server with a door, in a folder of its own, and commands that use it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use streamdoor::client::Client;

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// A server and its folder. Both are removed when the value is dropped.
pub struct TestServer {
    pub folder: PathBuf,
    server: Child,
}

impl TestServer {
    pub fn start(name: &str, arguments: &[&str]) -> TestServer {
        let folder = std::env::temp_dir().join(format!("sd-cat-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder); // From an earlier process with this number.
        std::fs::create_dir(&folder).unwrap();
        let mut server = Command::new(PROGRAM)
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
            .arg("--door")
            .arg(folder.join("door"))
            .arg("--files-root")
            .arg(&folder)
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(server.stderr.take().unwrap());
        loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "it has ended");
            let record: Value = serde_json::from_str(&line).unwrap();
            if record["event"] == "door" {
                break;
            }
        }
        // The server continues to log: the pipe has to be read.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        TestServer { folder, server }
    }

    pub fn door(&self) -> String {
        self.folder.join("door").to_str().unwrap().to_owned()
    }

    pub fn client(&self) -> Client {
        Client::new(&format!("unix:{}", self.door())).unwrap()
    }

    /// Returns a command that uses this server's door.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = command(&words[..1]);
        command.args(["--door", &self.door()]).args(&words[1..]);
        command
    }

    pub fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    pub fn kill(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    /// Writes a file below the server's folder, and returns its path.
    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.server.kill(); // It may have ended by itself.
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("XDG_RUNTIME_DIR");
    command
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

/// Returns bytes that differ from position to position.
pub fn bytes(count: usize) -> Vec<u8> {
    (0..count as u64).map(|place| (place.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect()
}

/// Polls until the condition holds, and panics after a minute.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}");
}

/// Returns the first line of the child's standard output.
pub fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
