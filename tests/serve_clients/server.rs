//! The program under test, with its log.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::http;

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// A server with a JSON log, on a port that the kernel chooses.
pub struct Server {
    child: Child,
    log: Mutex<Log>,
    /// `127.0.0.1:PORT`.
    pub address: String,
}

struct Log {
    lines: Receiver<Value>,
    read: Vec<Value>,
}

impl Log {
    /// The first record that `is_wanted`, even if it was read before. Waits for it, or returns
    /// `None` at the end of the log.
    fn find(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        if let Some(record) = self.read.iter().find(|record| is_wanted(record)) {
            return Some(record.clone());
        }
        loop {
            let record = self.lines.recv().ok()?;
            self.read.push(record.clone());
            if is_wanted(&record) {
                return Some(record);
            }
        }
    }
}

impl Server {
    pub fn start(arguments: &[&str]) -> Server {
        Server::try_start(arguments).unwrap_or_else(|said| panic!("it did not start: {said}"))
    }

    /// Starts a server as a child of this thread. Returns the log if the server does not start.
    pub fn try_start(arguments: &[&str]) -> Result<Server, String> {
        let mut command = Command::new(PROGRAM);
        command.args([
            "serve",
            "--journal",
            "off",
            "--log",
            "json",
            "--idle",
            "block",
            "--listen",
            "127.0.0.1:0",
        ]);
        command.arg("--files-root").arg(std::env::temp_dir());
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines() {
                let line = line.unwrap();
                let record = serde_json::from_str(&line).unwrap_or_else(|_| json!({"said": line}));
                if sender.send(record).is_err() {
                    return; // The test has ended.
                }
            }
        });
        let mut log = Log { lines, read: Vec::new() };
        let is_tcp = |record: &Value| {
            let address = record["address"].as_str().unwrap_or_default();
            record["event"] == "listening" && address.starts_with("http://")
        };
        let Some(listening) = log.find(is_tcp) else {
            child.wait().unwrap();
            return Err(format!("{:?}", log.read));
        };
        let address = listening["address"].as_str().unwrap()["http://".len()..].to_owned();
        Ok(Server { child, log: Mutex::new(log), address })
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Waits for the first record with this event that `is_wanted`.
    pub fn record(&self, event: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let mut log = self.log.lock().unwrap();
        let found = log.find(|record| record["event"] == event && is_wanted(record));
        found.unwrap_or_else(|| panic!("no such {event} in {:?}", log.read))
    }

    /// Sends a request and returns the status and the document.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        http::ask(&self.address, method, path, body)
    }

    pub fn get(&self, path: &str) -> Value {
        let (status, document) = self.ask("GET", path, None);
        assert_eq!(status, 200, "{path}: {document}");
        document
    }

    /// Starts an execution and returns its path.
    pub fn execute(&self, body: &Value) -> String {
        let (status, document) = self.ask("POST", "/v1/executions", Some(body));
        assert_eq!(status, 201, "{document}");
        document["links"]["self"].as_str().unwrap().to_owned()
    }

    /// Polls a document until it `is_wanted`.
    pub fn wait(&self, path: &str, mut is_wanted: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let document = self.get(path);
            if is_wanted(&document) {
                return document;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Stops the server with SIGTERM and checks that it ends with success.
    pub fn stop(mut self) {
        signal(&self.child, "TERM");
        self.record("stopped", |_| true);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It is still there only if a test has failed.
        let _ = self.child.wait();
    }
}

pub fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

/// The body of an execution that publishes chunks at a fixed pace, once it has a subscriber.
pub fn slow(chunks: u64, delay_ms: u64, chunk_size: u64) -> Value {
    json!({
        "tool": "slow_data_processor",
        "arguments": {"chunks": chunks, "delay_ms": delay_ms, "chunk_size": chunk_size},
        "start": {"after_subscribers": 1},
    })
}

/// The expected data of a chunk of [`slow`].
pub fn slow_data(seq: u64, chunks: u64, chunk_size: u64) -> Vec<u8> {
    let mut data = format!("chunk {seq} of {chunks} ").into_bytes();
    data.resize(chunk_size as usize, b'.');
    if chunk_size > 1 {
        *data.last_mut().unwrap() = b'\n';
    }
    data
}

/// A unique path. The file or folder there is removed when this value is dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let thread = format!("{:?}", std::thread::current().id());
        let digits: String = thread.chars().filter(char::is_ascii_digit).collect();
        let name = format!("streamdoor-clients-{}-{digits}-{name}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
