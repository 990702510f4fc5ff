//! `streamdoor serve` as a process, for tests that measure its responses and its use of resources.
#![allow(dead_code, reason = "not every test needs all of it")]

pub mod again;
pub mod asked;
#[path = "../ports/mod.rs"]
pub mod ports;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use rustix::net::{self, AddressFamily, SocketType, sockopt};
use serde_json::Value;

/// Sends a request on a connection of its own. Returns the status and the body of the response.
pub fn ask(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    asked::ask(address, method, path, "", body)
}

/// Connects with a receive buffer of 8 KiB, which the kernel doubles.
pub fn connect_with_small_buffer(address: &str) -> TcpStream {
    let Ok(SocketAddr::V4(address)) = address.parse() else { panic!("{address}") };
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 8 << 10).unwrap();
    net::connect(&socket, &address).unwrap();
    socket.into()
}

/// A server on a port that the kernel chooses. It is killed when this value is dropped.
pub struct Server {
    child: Child,
    pub address: String,
    /// The lines of the log.
    records: Mutex<Receiver<String>>,
}

impl Server {
    pub fn start(arguments: &[&str]) -> Server {
        Server::start_by(&[], arguments)
    }

    /// Starts the server through a launcher, which executes the command behind its own arguments.
    pub fn start_by(launcher: &[String], arguments: &[&str]) -> Server {
        let program = env!("CARGO_BIN_EXE_streamdoor").to_owned();
        let words: Vec<&String> = launcher.iter().chain([&program]).collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(["serve", "--journal", "off", "--log", "json", "--listen", "127.0.0.1:0"])
            .args(arguments);
        Server::spawn(command)
    }

    /// Starts a server that logs JSON, and waits until it listens.
    pub fn spawn(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, records) = channel();
        let address = loop {
            let line = log.next().expect("it says where it listens, or why not").unwrap();
            let record: Value = serde_json::from_str(&line).expect(&line);
            let _ = sender.send(line); // Some threads begin before the server listens.
            if record["event"] == "listening" {
                let address = record["address"].as_str().unwrap();
                break address.split_once("://").map_or(address, |(_, at)| at).to_owned();
            }
        };
        // Later lines of the log are read at once, because a full pipe would block the server's
        // log.
        std::thread::spawn(move || {
            for line in log.map_while(Result::ok) {
                let _ = sender.send(line); // The test may have ended.
            }
        });
        Server { child, address, records: Mutex::new(records) }
    }

    /// Waits for the next log record of this event. Records before it are dropped.
    pub fn wait_for(&self, event: &str) -> Value {
        let records = self.records.lock().unwrap();
        loop {
            let line = records.recv().expect("the server runs");
            let record: Value = serde_json::from_str(&line).expect(&line);
            if record["event"] == event {
                return record;
            }
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the server with SIGTERM and waits until it has ended.
    pub fn stop(&mut self) {
        self.signal(rustix::process::Signal::TERM);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).unwrap()
    }

    /// Sends a request on a connection of its own and returns the body of the response. Panics if
    /// the status is not 2xx.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let (status, answer) = ask(&self.address, method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    /// Opens an execution and returns the path of its events.
    pub fn execute(&self, body: &Value) -> String {
        let created = self.ask("POST", "/v1/executions", &body.to_string());
        let created: Value = serde_json::from_str(&created).unwrap();
        created["links"]["events"].as_str().unwrap().to_owned()
    }

    /// Sends a `GET` request for a stream and returns the connection.
    pub fn follow(&self, path: &str) -> TcpStream {
        let mut stream = self.connect();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        stream
    }

    /// The value of a metric, summed over all shards.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.ask("GET", "/metrics", "");
        let samples = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        let values = samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        values.reduce(|sum, value| sum + value).unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Memory of the process in bytes: now (`VmRSS`) or the highest value so far (`VmHWM`).
    pub fn memory_bytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// Number of voluntary context switches of all threads: how often they went to sleep.
    pub fn sleeps(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let of_task = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        tasks.map(of_task).sum()
    }

    /// User and system time so far, in clock ticks of 10 ms.
    pub fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let behind_name = stat.rsplit_once(") ").unwrap().1;
        let fields: Vec<&str> = behind_name.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
