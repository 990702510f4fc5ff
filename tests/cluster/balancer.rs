//! nginx as the balancer of three nodes, with the configuration of `tools/ops/cluster`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::Value;

use crate::campaign::until;
use crate::served::ports;
use crate::world::{request_head, response_of};

/// Time limit for a report: a browser that hangs must not hang the test.
const PATIENCE: Duration = Duration::from_secs(120);
/// A browser opens a stream less often, unless it is not told that it has everything.
const OPENED_MAX: u64 = 20;
const EMPTY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A process of nginx, with a page and a place for its reports. It ends when this is dropped.
pub struct Balancer {
    pub address: String,
    process: Child,
    folder: PathBuf,
    reports: Reports,
}

impl Balancer {
    /// Starts nginx in front of nodes with these addresses, which need not run yet. Returns `None`,
    /// and says so, if it is not installed.
    pub fn start(folder: &Path, nodes: &[String; 3]) -> Option<Balancer> {
        let port = ports::free();
        let folder = folder.join(format!("balancer-{port}"));
        std::fs::create_dir(&folder).unwrap();
        let [address, probe] = [port, ports::free()].map(|port| format!("127.0.0.1:{port}"));
        let reports = Reports::listen();
        let text = configuration(&address, &probe, &reports.address, nodes);
        std::fs::write(folder.join("nginx.conf"), text).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&folder).args(["-c", "nginx.conf", "-e", "error.log"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(process) = command.spawn() else {
            println!("not run: no nginx (apt-get install nginx)");
            return None;
        };
        let mut balancer = Balancer { address, process, folder, reports };
        until("nginx listens", || {
            let status = balancer.process.try_wait().unwrap();
            assert!(status.is_none(), "{status:?}: {}", balancer.text("error.log"));
            TcpStream::connect(&balancer.address).ok()
        });
        Some(balancer)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    /// The addresses that a request of this machine is sent to, one after the other.
    pub fn route(&self) -> (u16, Vec<String>) {
        let mut stream = TcpStream::connect(&self.address).expect("nginx runs");
        stream.write_all(request_head("GET /readyz", "", "").as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let response = response_of(&answer).expect("a whole response");
        let route = response.head.lines().find_map(|line| line.strip_prefix("x-node: "));
        (response.status, nodes_of(route.expect("the configuration says so")))
    }

    /// The responses to requests for the events of an execution: each status and its node.
    pub fn served(&self, id: &str) -> Vec<(u16, String)> {
        let log = self.text("access.log");
        let of = |line: &str| {
            let (head, nodes) = line.split_once(" nodes ")?;
            let (path, status) = head.rsplit_once(' ')?;
            let is_ours = path.starts_with(&format!("/v1/executions/{id}/events?"));
            is_ours.then(|| Some((status.parse().ok()?, nodes_of(nodes).pop()?)))?
        };
        log.lines().filter_map(of).collect()
    }

    /// Serves a page. Returns its URL.
    pub fn serve(&self, page: &str) -> String {
        std::fs::write(self.folder.join("page.html"), page).unwrap();
        format!("http://{}/page.html", self.address)
    }

    /// The reports of the page.
    pub fn reports(&mut self) -> &mut Reports {
        &mut self.reports
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.process.kill(); // It is one process.
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("nginx: {}{}", self.text("access.log"), self.text("error.log"));
        }
    }
}

/// The nodes that nginx has tried for a request, in its words.
fn nodes_of(text: &str) -> Vec<String> {
    text.split(", ").map(str::to_owned).collect()
}

/// The configuration for operators, with the addresses of a test, without TLS, and in one process.
fn configuration(address: &str, probe: &str, reports: &str, nodes: &[String; 3]) -> String {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says it"));
    let path = root.join("tools/ops/cluster/nginx.conf");
    let mut text = std::fs::read_to_string(path).unwrap();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {name};\n"));
    let http = format!(
        "http {{
            log_format nodes '$request_uri $status nodes $upstream_addr';
            {}",
        temporary.concat()
    );
    let listen = format!(
        "listen {address};
        access_log access.log nodes;
        add_header X-Node $upstream_addr always;
        location = /page.html {{ root .; }}
        location = /report {{ proxy_pass http://{reports}; }}"
    );
    let changes = [
        ("worker_processes auto;", "worker_processes 1;\ndaemon off;\nmaster_process off;"),
        ("error_log /dev/stderr warn;", "error_log error.log warn;"),
        ("pid /tmp/nginx.pid;", "pid nginx.pid;"),
        ("http {", &http),
        ("server node-a:8808", &format!("server {}", nodes[0])),
        ("server node-b:8808", &format!("server {}", nodes[1])),
        ("server node-c:8808", &format!("server {}", nodes[2])),
        ("listen 8443 ssl;", &listen),
        ("ssl_certificate /run/secrets/proxy_cert;", ""),
        ("ssl_certificate_key /run/secrets/proxy_key;", ""),
        ("ssl_protocols TLSv1.2 TLSv1.3;", ""),
        ("listen 127.0.0.1:8080;", &format!("listen {probe};")),
    ];
    for (from, to) in changes {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text = text.replace(from, to);
    }
    text
}

/// The place to which a page posts. Each report is a document about one of its streams: the `name`,
/// how often it was `opened`, and all its `events` when it is closed.
pub struct Reports {
    address: String,
    incoming: Receiver<Value>,
    opened: BTreeMap<String, u64>,
    closed: BTreeMap<String, Value>,
    is_over: Arc<AtomicBool>,
}

impl Reports {
    fn listen() -> Reports {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, incoming) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Relaxed) {
                    return;
                }
                // Every connection has one report. A part of one is none.
                let _ = take(stream, &sender);
            }
        });
        let (opened, closed) = (BTreeMap::new(), BTreeMap::new());
        Reports { address, incoming, opened, closed, is_over }
    }

    fn wait(&mut self) {
        let report = self.incoming.recv_timeout(PATIENCE).expect("the page reports");
        let name = report["name"].as_str().expect("a name").to_owned();
        let opened = report["opened"].as_u64().expect("a number");
        assert!(opened < OPENED_MAX, "{name} is opened again and again");
        let before = self.opened.entry(name.clone()).or_default();
        *before = opened.max(*before);
        if !report["events"].is_null() {
            self.closed.insert(name, report);
        }
    }

    /// Waits until a stream was opened so often, and has got a chunk since.
    ///
    /// # Panics
    /// If it was closed before.
    pub fn wait_for_open(&mut self, name: &str, count: u64) {
        while self.opened.get(name).is_none_or(|opened| *opened < count) {
            if let Some(report) = self.closed.get(name) {
                let last = report["events"].as_array().and_then(|events| events.last());
                let opened = &report["opened"];
                panic!("{name} is closed after {opened} of {count} times, behind {last:?}");
            }
            self.wait();
        }
    }

    /// Waits until a stream is closed. Returns its events, and how often it was opened.
    pub fn closed(&mut self, name: &str) -> (Vec<Value>, u64) {
        while !self.closed.contains_key(name) {
            self.wait();
        }
        let report = &self.closed[name];
        let events = report["events"].as_array().expect("a list").clone();
        (events, report["opened"].as_u64().expect("a number"))
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        let _ = TcpStream::connect(&self.address); // Wakes the listener, which ends.
    }
}

/// Reads a report, and answers it.
fn take(mut stream: TcpStream, sender: &Sender<Value>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    sender.send(serde_json::from_slice(&body).ok()?).ok()?;
    stream.write_all(EMPTY).ok()
}
