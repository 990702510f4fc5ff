//! A server process with a door, and requests to it.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::ExecutionId;
use streamdoor::client::{Client, ExecuteOptions, FollowOptions, StreamEvent};
use streamdoor::door::{Door, DoorReader};
use streamdoor::endpoint::DeliveryOptions;
use streamdoor::reactor::Clock;
use streamdoor::shard::Delivery;
use streamdoor::stream::{EndState, Outcome, Policy};

use crate::served;

/// A deadline that no test reaches.
pub const FAR: Duration = Duration::from_secs(60);

pub struct TestServer {
    child: Child,
    log: Arc<Log>,
    folder: PathBuf,
    pub client: Client,
    pub address: String,
}

/// The log records of the server.
#[derive(Default)]
struct Log {
    records: Mutex<Vec<Value>>,
    more: Condvar,
}

impl TestServer {
    pub fn new(arguments: &[&str]) -> TestServer {
        TestServer::within(&[], arguments)
    }

    /// Starts a server through `launcher`: a command that becomes the program named by its last
    /// arguments.
    pub fn within(launcher: &[String], arguments: &[&str]) -> TestServer {
        TestServer::start(None, launcher, arguments)
    }

    /// Starts a server of this user. This needs root.
    pub fn of_user(uid: u32, arguments: &[&str]) -> TestServer {
        TestServer::start(Some(uid), &[], arguments)
    }

    fn start(uid: Option<u32>, launcher: &[String], arguments: &[&str]) -> TestServer {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamdoor-door-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let program = env!("CARGO_BIN_EXE_streamdoor").to_owned();
        let words: Vec<&String> = launcher.iter().chain([&program]).collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args([
                "serve",
                "--journal",
                "off",
                "--log",
                "json",
                "--log-level",
                "debug",
                "--listen",
                "127.0.0.1:0",
            ])
            .arg("--door")
            .arg(folder.join("door"))
            .args(arguments);
        if let Some(uid) = uid {
            chown(&folder, Some(uid), Some(uid)).unwrap();
            command.uid(uid).gid(uid);
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Log::default());
        let writer = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let record = serde_json::from_str(&line).unwrap_or_else(|_| json!({"said": line}));
                writer.records.lock().unwrap().push(record);
                writer.more.notify_all();
            }
        });
        let listening = log.wait(|record| record["event"] == "listening");
        log.wait(|record| record["event"] == "door");
        let address = listening["address"].as_str().unwrap()["http://".len()..].to_owned();
        let client = Client::new(&format!("http://{address}")).unwrap();
        TestServer { child, log, folder, client, address }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.join("door")
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn door(&self) -> Door {
        Door::open(self.path()).unwrap()
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a log record of this event, and returns the first one.
    pub fn record(&self, event: &str) -> Value {
        self.log.wait(|record| record["event"] == event)
    }

    /// Returns the present number of log records of this event.
    pub fn record_count(&self, event: &str) -> usize {
        let records = self.log.records.lock().unwrap();
        records.iter().filter(|record| record["event"] == event).count()
    }

    pub fn execute(&self, tool: &str, arguments: &Value, options: &ExecuteOptions) -> ExecutionId {
        self.client.execute(tool, arguments, options).unwrap().execution
    }

    /// Returns a metric, summed over all shards.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics");
        let samples = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        let values = samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        values.reduce(|sum, value| sum + value).unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    pub fn get(&self, path: &str) -> String {
        self.ask("GET", path).1
    }

    /// Returns the status and the body of a reply.
    pub fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let body = if path.ends_with("/executions") { r#"{"name":"x"}"# } else { "" };
        served::ask(&self.address, method, path, body)
    }

    /// Waits until the condition holds.
    pub fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        until(what, &mut is_so);
    }

    pub fn signal(&self, name: &str) {
        signal(self.process_id(), name);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Clock::now();
    while !is_so() {
        assert!(Clock::now().since(begun) < FAR, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn signal(process_id: u32, name: &str) {
    let pid = process_id.to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

impl Log {
    fn wait(&self, is_it: impl Fn(&Value) -> bool) -> Value {
        let mut records = self.records.lock().unwrap();
        loop {
            if let Some(found) = records.iter().find(|record| is_it(record)) {
                return found.clone();
            }
            let (more, timeout) = self.more.wait_timeout(records, FAR).unwrap();
            records = more;
            assert!(!timeout.timed_out(), "no such record in {records:?}");
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Everything that a subscriber received.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub bytes: Vec<u8>,
    /// The numbers of the chunks.
    pub seqs: Vec<u64>,
    /// The gaps: from, to, chunks, bytes.
    pub gaps: Vec<(u64, u64, u64, u64)>,
    pub progress_count: usize,
    pub state: Option<EndState>,
    pub error: Option<String>,
    /// The chunks and bytes given and missed, according to the end.
    pub counts: [u64; 4],
}

impl Received {
    pub fn outcome(&self) -> Option<Outcome> {
        match self.state {
            Some(EndState::Ended(outcome)) => Some(outcome),
            _ => None,
        }
    }

    pub fn take(&mut self, delivery: &Delivery<'_>) {
        assert!(self.state.is_none(), "nothing comes behind an end");
        match delivery {
            Delivery::Chunk(chunk) => {
                let expected = self.next_seq();
                assert!(self.seqs.is_empty() && self.gaps.is_empty() || chunk.seq == expected);
                self.seqs.push(chunk.seq);
                self.bytes.extend_from_slice(chunk.data);
            }
            Delivery::Gap(gap) => {
                let all = (gap.from_seq, gap.to_seq, gap.chunk_count, gap.byte_count);
                self.gaps.push(all);
            }
            Delivery::Progress(_) => self.progress_count += 1,
            Delivery::End(ended) => {
                self.state = Some(ended.end.state);
                self.error = ended.error.map(str::to_owned);
                let (given, missed) = (ended.end.given, ended.end.missed);
                self.counts = [given.chunks, given.bytes, missed.chunks, missed.bytes];
            }
        }
    }

    /// Returns the number of the chunk that has to come next.
    pub fn next_seq(&self) -> u64 {
        let last = self.seqs.last().copied().unwrap_or(0);
        last.max(self.gaps.last().map_or(0, |gap| gap.1)) + 1
    }

    pub fn of(reader: &mut DoorReader) -> Received {
        let mut told = Received::default();
        while let Some(delivery) = reader.next().unwrap() {
            told.take(&delivery);
        }
        told
    }

    /// Reads to the end like [`Received::of`], but records only the end. For readers that have
    /// already read something.
    pub fn of_rest(reader: &mut DoorReader) -> Received {
        let mut told = Received::default();
        while let Some(delivery) = reader.next().unwrap() {
            if let Delivery::End(_) = delivery {
                told.take(&delivery);
            }
        }
        told
    }

    /// Reads a stream over HTTP to its end.
    pub fn over_http(client: &Client, execution: ExecutionId, policy: Policy) -> Received {
        let delivery_options =
            DeliveryOptions { policy: Some(policy), ..DeliveryOptions::default() };
        let options =
            FollowOptions { delivery_options, reconnects_max: 0, ..FollowOptions::default() };
        let mut told = Received::default();
        for event in client.follow(execution, options).unwrap() {
            match event.unwrap() {
                StreamEvent::Started(_) => {}
                StreamEvent::Part(part) => panic!("a part of no agent: {part:?}"),
                StreamEvent::Chunk(chunk) => {
                    told.seqs.push(chunk.seq);
                    told.bytes.extend_from_slice(&chunk.data);
                }
                StreamEvent::Gap(gap) => {
                    told.gaps.push((gap.from_seq, gap.to_seq, gap.chunk_count, gap.byte_count));
                }
                StreamEvent::Progress(_) => told.progress_count += 1,
                StreamEvent::End(ended) => {
                    told.state = Some(ended.end.state);
                    told.error = ended.error;
                    let (given, missed) = (ended.end.given, ended.end.missed);
                    told.counts = [given.chunks, given.bytes, missed.chunks, missed.bytes];
                }
            }
        }
        told
    }
}

/// Returns the whole output of `slow_data_processor`.
pub fn slow_bytes(chunk_count: u64, chunk_bytes: usize) -> Vec<u8> {
    let mut payload = vec![b'.'; chunk_bytes];
    let mut all = Vec::new();
    for number in 1..=chunk_count {
        let text = format!("chunk {number} of {chunk_count} ");
        let length = text.len().min(chunk_bytes);
        payload[..length].copy_from_slice(&text.as_bytes()[..length]);
        if chunk_bytes > 1 {
            payload[chunk_bytes - 1] = b'\n';
        }
        all.extend_from_slice(&payload);
    }
    all
}
