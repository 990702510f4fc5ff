//! The program under test: started, asked, its log read, stopped.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::http;

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// A server with a JSON log, on a port of the kernel's choice.
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
    /// The first record that `is_wanted`, also among those that were read already.
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

    /// As a child of this very thread; or what it has said before it ended.
    pub fn try_start(arguments: &[&str]) -> Result<Server, String> {
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--log", "json", "--idle", "block", "--listen", "127.0.0.1:0"]);
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
                    return; // The test is over.
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

    /// The first such record of its log, for which it waits.
    pub fn record(&self, event: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let mut log = self.log.lock().unwrap();
        let found = log.find(|record| record["event"] == event && is_wanted(record));
        found.unwrap_or_else(|| panic!("no such {event} in {:?}", log.read))
    }

    /// A document, and its status.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        http::ask(&self.address, method, path, body)
    }

    pub fn get(&self, path: &str) -> Value {
        let (status, document) = self.ask("GET", path, None);
        assert_eq!(status, 200, "{path}: {document}");
        document
    }

    /// Has a tool run; gives where it can be asked for.
    pub fn execute(&self, body: &Value) -> String {
        let (status, document) = self.ask("POST", "/v1/executions", Some(body));
        assert_eq!(status, 201, "{document}");
        document["links"]["self"].as_str().unwrap().to_owned()
    }

    /// Asks for a document until it is as wanted.
    pub fn wait(&self, path: &str, mut is_wanted: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let document = self.get(path);
            if is_wanted(&document) {
                return document;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Stops it, in order.
    pub fn stop(mut self) {
        signal(&self.child, "TERM");
        self.record("stopped", |_| true);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // Only if a test has failed is it still there.
        let _ = self.child.wait();
    }
}

pub fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

/// Chunks of text at a pace; it begins when somebody follows it.
pub fn slow(chunks: u64, delay_ms: u64, chunk_size: u64) -> Value {
    json!({
        "tool": "slow_data_processor",
        "arguments": {"chunks": chunks, "delay_ms": delay_ms, "chunk_size": chunk_size},
        "start": {"after_subscribers": 1},
    })
}

/// What a chunk of that holds.
pub fn slow_data(seq: u64, chunks: u64, chunk_size: u64) -> Vec<u8> {
    let mut data = format!("chunk {seq} of {chunks} ").into_bytes();
    data.resize(chunk_size as usize, b'.');
    data
}

/// A path of nobody else; what is there is removed with this value.
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
