//! Every run ends that a reader at the door follows while other clients ask for its status.
//!
//! The environment sets the size. `DOOR_RUNS` is the number of runs. They alternate between all
//! policies and both ways to wait for the reader, on io_uring and on mio. `DOOR_RUN_BYTES` is the
//! size of the file, which is read in chunks of 400 bytes. The full size, in an optimised build:
//!
//! ```text
//! DOOR_RUNS=1000 DOOR_RUN_BYTES=20000000 cargo test --release --all-features --test cat \
//!     every_run_that_a_door_reader_follows_ends -- --nocapture
//! ```

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use streamdoor::base::ExecutionId;
use streamdoor::client::ExecuteOptions;
use streamdoor::engine::{Hold, Start};
use streamdoor::stream::{ExecutionState, Outcome, Policy};

use super::test_server::{TestServer, bytes, eventually};

const CHUNK_BYTES: usize = 400;
const REQUESTS_AT_ONCE: usize = 16;

fn number(name: &str, or: usize) -> usize {
    let text = std::env::var(name);
    text.map_or(or, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Sends pipelined status requests until the run is over.
fn ask(door: &str, id: ExecutionId, is_over: &AtomicBool, answers: &AtomicU64) {
    let mut stream = UnixStream::connect(door).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let request = format!("GET /v1/executions/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let requests = request.repeat(REQUESTS_AT_ONCE);
    while !is_over.load(Ordering::Relaxed) {
        stream.write_all(requests.as_bytes()).unwrap();
        let mut answer_count = 0;
        while answer_count < REQUESTS_AT_ONCE {
            let (mut length, mut line) = (0, String::new());
            while line != "\r\n" {
                line.clear();
                assert!(reader.read_line(&mut line).unwrap() > 0, "the connection is cut");
                if let Some((name, value)) = line.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            std::io::Read::read_exact(&mut reader, &mut body).unwrap();
            let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let is_by_nobody = status["held_back"] == true && status["held_back_by"] == json!([]);
            assert!(!is_by_nobody, "{status}");
            answer_count += 1;
        }
        answers.fetch_add(answer_count as u64, Ordering::Relaxed);
    }
}

/// Executes one run from its beginning to its end.
fn run(server: &TestServer, number: usize, content: &[u8]) {
    let policy = Policy::ALL[number / 2 % Policy::ALL.len()];
    let mut options = ExecuteOptions::default();
    let deadline = Duration::from_secs(60);
    match number.is_multiple_of(2) {
        true => options.start = Some(Start::AfterSubscribers { count: 1, deadline }),
        false => options.hold = Some(Hold::UntilRead { deadline }),
    }
    let client = server.client();
    let arguments = json!({"file_path": "big", "chunk_size": CHUNK_BYTES});
    let id = client.execute("process_file", &arguments, &options).unwrap().execution;
    let (is_over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let (door, out) = (server.door(), server.folder.join("out"));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| ask(&door, id, &is_over, &answers));
        }
        let words = [&id.to_string(), "--policy", policy.name(), "--out", out.to_str().unwrap()];
        let mut cat = server.command(&[&["cat"], &words[..]].concat()).spawn().unwrap();
        let has_ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("the reader has its end", || cat.try_wait().unwrap().is_some());
            let ended = || matches!(client.inspect(id).unwrap().state, ExecutionState::Ended(_));
            eventually("the execution ends", ended);
        }));
        is_over.store(true, Ordering::Relaxed);
        let _ = cat.kill(); // If it has not ended.
        let status = client.inspect(id).unwrap();
        assert!(has_ended.is_ok(), "run {number} under {policy} is stuck: {status:?}");
        assert_eq!(status.state, ExecutionState::Ended(Outcome::Completed), "run {number}");
        assert_eq!(status.bytes, content.len() as u64, "run {number}");
    });
    assert!(answers.into_inner() > 0);
    if policy == Policy::Block {
        assert!(std::fs::read(&out).unwrap() == content, "run {number}");
    }
}

#[test]
fn every_run_that_a_door_reader_follows_ends() {
    let count = number("DOOR_RUNS", 200);
    let content = bytes(number("DOOR_RUN_BYTES", 2_000_000));
    for reactor in ["auto", "mio"] {
        let server = TestServer::start(&format!("runs-{reactor}"), &["--reactor", reactor]);
        server.file("big", &content);
        (0..count.div_ceil(2)).for_each(|number| run(&server, number, &content));
    }
}
