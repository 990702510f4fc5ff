//! `block` delivers everything. Readers are cut again and again, and each time everything in the
//! buffers of both kernels is lost. Nevertheless every byte of the result arrives once and in
//! order. A reader without acknowledgements has a small receive buffer, because TCP does not report
//! what it has read.
//!
//! Each run follows a file through 10 to 50 connections. The runs cover chunk sizes,
//! acknowledgement windows and formats. `STREAMDOOR_BLOCK_RUNS` is the number of runs of each
//! combination; 100 of them are a campaign of some minutes.
#![cfg(all(feature = "cli", feature = "server", feature = "tools"))]

mod reader;
#[path = "../agents/scripted.rs"]
#[allow(dead_code, reason = "not every test needs all of it")]
mod scripted;
#[path = "../served/mod.rs"]
mod served;

use std::path::PathBuf;

use serde_json::{Value, json};
use streamdoor::base::{ExecutionId, Random};

use reader::{Format, Reader, Received};
use scripted::ModelServer;
use served::{Server, ask};

const CHUNK_BYTES: [usize; 5] = [100, 1_000, 4_096, 7_777, 65_536];
const ACKS: [Option<u32>; 4] = [None, Some(1), Some(4), Some(64)];

fn run_count() -> u64 {
    match std::env::var("STREAMDOOR_BLOCK_RUNS") {
        Ok(text) => text.parse().expect("STREAMDOOR_BLOCK_RUNS is a number"),
        Err(_) => 1,
    }
}

/// A temporary text file that is removed when the value is dropped.
struct File {
    path: PathBuf,
    text: Vec<u8>,
}

impl File {
    fn new(name: &str, bytes: usize) -> File {
        let path =
            std::env::temp_dir().join(format!("streamdoor-block-{}-{name}", std::process::id()));
        let mut random = Random::new(bytes as u64);
        let text: Vec<u8> =
            (0..bytes).map(|_| random.between(b' '.into(), b'~'.into()) as u8).collect();
        std::fs::write(&path, &text).unwrap();
        File { path, text }
    }

    /// Creates an execution that streams the file.
    fn execute(&self, server: &Server, chunk_bytes: usize) -> String {
        let arguments = json!({"file_path": self.path, "chunk_size": chunk_bytes});
        execute(server, "process_file", &arguments)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Creates an execution whose output is held until its first reader comes.
fn execute(server: &Server, tool: &str, arguments: &Value) -> String {
    let hold = json!({"until_read_ms": 10_000});
    let body = json!({"tool": tool, "arguments": arguments, "hold": hold, "policy": "block"});
    let (status, created) = ask(server.address(), "POST", "/v1/executions", &body.to_string());
    assert_eq!(status, 201, "{created}");
    let created: Value = serde_json::from_str(&created).unwrap();
    created["execution"].as_str().unwrap().to_owned()
}

/// Returns the folder that the servers may read.
fn root() -> String {
    std::env::temp_dir().to_str().unwrap().to_owned()
}

/// Returns a file size that is large enough for so many connections.
fn file_bytes(chunk_bytes: usize) -> usize {
    (chunk_bytes * 1_500).clamp(200_000, 8_000_000)
}

/// Follows executions with `event_count` events through 10 to 50 cuts, and asserts that nothing is
/// missing.
fn follow_through_cuts(mut reader: Reader, event_count: u64, seed: u64, context: &str) -> Received {
    let mut random = Random::new(seed);
    let cuts = random.between(10, 50);
    let per_connection = (event_count / cuts).clamp(1, 120);
    for _ in 0..cuts {
        if reader.read_some(Some(random.between(1, per_connection))) {
            break;
        }
    }
    while !reader.read_some(None) {}
    let received = reader.received();
    assert!(received.gaps.is_empty(), "{context}, {}: {:?}", received.replay, received.gaps);
    assert!(received.ends.iter().all(|end| end == "completed"), "{context}: {:?}", received.ends);
    received
}

/// Asserts that the data of each execution is the text.
fn check_data(received: &Received, text: &[u8], context: &str) {
    for data in &received.data {
        assert_eq!(data.len(), text.len(), "{context}");
        assert!(data == text, "{context}: other bytes");
    }
}

/// Returns each chunk size with each acknowledgement window, for each seed.
fn all_combinations() -> impl Iterator<Item = (u64, usize, Option<u32>)> {
    let sizes = CHUNK_BYTES.into_iter().flat_map(|bytes| ACKS.map(|acks| (bytes, acks)));
    (0..run_count())
        .flat_map(move |seed| sizes.clone().map(move |(bytes, acks)| (seed, bytes, acks)))
}

fn follow_files(server: &Server, format: Format) {
    for (seed, chunk_bytes, acks) in all_combinations() {
        let context = format!("chunks of {chunk_bytes}, acks {acks:?}, {format:?}, seed {seed}");
        let file = File::new(&format!("{chunk_bytes}-{format:?}"), file_bytes(chunk_bytes));
        let id = file.execute(server, chunk_bytes);
        let chunk_count = file.text.len().div_ceil(chunk_bytes) as u64;
        let reader = Reader::new(server.address(), format, acks, vec![id]);
        let received = follow_through_cuts(reader, chunk_count, seed, &context);
        check_data(&received, &file.text, &context);
    }
}

#[test]
fn server_sent_events_come_whole_through_any_cuts() {
    for reactor in ["uring", "mio"] {
        let server = Server::start(&["--reactor", reactor, "--files-root", &root()]);
        follow_files(&server, Format::Sse);
    }
}

#[test]
fn lines_of_json_come_whole_through_any_cuts() {
    let server = Server::start(&["--files-root", &root()]);
    follow_files(&server, Format::Ndjson);
}

/// One connection follows an execution on each of two shards.
#[test]
fn executions_of_two_shards_come_whole_through_any_cuts() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("not run: there is one processor");
        return;
    }
    let server = Server::start(&["--cpus", "0,1", "--files-root", &root()]);
    for (seed, chunk_bytes, acks) in all_combinations() {
        let context = format!("chunks of {chunk_bytes}, acks {acks:?}, seed {seed}");
        let file = File::new(&format!("{chunk_bytes}-two"), file_bytes(chunk_bytes) / 2);
        let ids = on_both_shards(&server, &file, chunk_bytes);
        let chunk_count = 2 * file.text.len().div_ceil(chunk_bytes) as u64;
        let reader = Reader::new(server.address(), Format::Sse, acks, ids);
        let received = follow_through_cuts(reader, chunk_count, seed, &context);
        check_data(&received, &file.text, &context);
    }
}

/// An agent run has many small parts.
#[test]
fn parts_of_agents_come_whole_through_any_cuts() {
    const WORDS: u64 = 3_000;
    let script = format!(
        "models = ['demo']\n[[turns]]\n\
         events = [{{ pause = '50ms' }}, {{ text = 'word ', repeat = {WORDS}, pace = '0ms' }}]"
    );
    let model = ModelServer::following("block", &script);
    let described = format!("demo=chat,{},demo", model.base_url);
    let server = Server::start(&["--model", &described]);
    for seed in 0..run_count() {
        for (format, acks) in
            [Format::Sse, Format::Ndjson].into_iter().flat_map(|f| ACKS.map(|a| (f, a)))
        {
            let context = format!("an agent, acks {acks:?}, {format:?}, seed {seed}");
            let id = execute(&server, "agent", &json!({"task": "speak"}));
            let reader = Reader::new(server.address(), format, acks, vec![id]);
            let received = follow_through_cuts(reader, WORDS, seed, &context);
            check_data(&received, "word ".repeat(WORDS as usize).as_bytes(), &context);
        }
    }
}

/// Creates an execution on each shard. The kernel spreads connections over the shards, so it
/// repeats until both have one.
fn on_both_shards(server: &Server, file: &File, chunk_bytes: usize) -> Vec<String> {
    let mut found = [None, None];
    while let [None, _] | [_, None] = found {
        let id = file.execute(server, chunk_bytes);
        let shard = id.parse::<ExecutionId>().unwrap().shard;
        match &mut found[usize::from(shard)] {
            place @ None => *place = Some(id),
            Some(_) => {
                ask(server.address(), "DELETE", &format!("/v1/executions/{id}"), "");
            }
        }
    }
    found.map(Option::unwrap).to_vec()
}
