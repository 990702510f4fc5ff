//! Nothing allocates from a tool to the sockets of those who follow it (invariant A3): a counting
//! allocator over all threads of this process sees 0 allocations from chunk 1,000 to chunk 100,000,
//! on both backends, for SSE, NDJSON and plain output at once.
//!
//! One test only: the allocator counts for the whole process, and the test harness is part of it.
#![cfg(feature = "server")]

mod counting;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use counting::{ALL_THERE, COUNT, COUNT_ENDED, COUNTING, LAST_COUNTED, at_chunk};
use serde_json::Value;
use streamdoor::reactor::Choice;
use streamdoor::shard::{Server, ServerConfig, ServerError, ShardConfig};
use streamdoor::tool::{Output, ToolError, ToolSpec};

/// Chunks before that are long now and then: what a connection puts aside, and what the kernel
/// holds for who does not read, is as much as it will ever be before anything is counted.
const LONG_CHUNK_BYTES: usize = 16 << 10;
const LONG_CHUNKS: u64 = 600;
const CHUNK_BYTES: usize = 100;
const EXECUTION_TEXT: &str = "EXECUTION";
/// Everybody who follows, with whether they read slowly.
const FOLLOWERS: &[(&str, bool)] = &[
    ("/v1/executions/EXECUTION/events?format=sse&policy=drop", false),
    ("/v1/executions/EXECUTION/events?format=ndjson&policy=drop", false),
    ("/v1/executions/EXECUTION/events?format=sse&policy=block", false),
    ("/v1/executions/EXECUTION/events?format=ndjson&policy=block", false),
    ("/v1/executions/EXECUTION/events?format=sse&policy=drop", true),
    ("/v1/executions/EXECUTION/events?format=ndjson&policy=drop", true),
    ("/v1/events?executions=EXECUTION&format=sse&policy=block", false),
    ("/v1/executions/EXECUTION/output", false),
];

/// The tool. It tells how far it is, as those do that know it.
fn emit(out: &mut Output) -> Result<(), ToolError> {
    while !ALL_THERE.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let long = vec![b'x'; LONG_CHUNK_BYTES];
    let last_seq = LAST_COUNTED + 10;
    for seq in 1..=last_seq {
        let is_long = seq < LONG_CHUNKS && seq.is_multiple_of(2);
        out.send(if is_long { &long } else { &long[..CHUNK_BYTES] })?;
        out.progress(seq as f64, Some(last_seq as f64));
        at_chunk(seq);
    }
    Ok(())
}

fn started(reactor: Choice) -> Result<Server, ServerError> {
    let config = ServerConfig {
        shards: vec![ShardConfig { reactor, ..ShardConfig::default() }],
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        connections_max: 100,
    };
    let set_up = |shard: &mut streamdoor::shard::Shard| {
        let spec = ToolSpec::new("emit", "For a test.");
        shard.tools_mut().insert_closure(spec, |_, out| emit(out)).expect("it is described right");
    };
    Server::start(config, Arc::new(set_up))
}

/// Has the thread of that name begun, and gone to sleep?
fn sleeps(name: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.into_iter().any(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.contains(&format!("({name}) S"))
    })
}

fn ask(address: &str, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Opens the execution: its name.
fn execute(address: &str) -> String {
    let body = format!(
        r#"{{"tool": "emit", "start": {{"after_subscribers": {}}}, "timeouts": {{}}}}"#,
        FOLLOWERS.len(),
    );
    let length = body.len();
    let mut stream = ask(
        address,
        &format!(
            "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    );
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 201"), "{answer}");
    let body: Value = serde_json::from_str(body).unwrap();
    body["execution"].as_str().unwrap().to_owned()
}

/// Reads until the stream ends, without any memory but its buffer: how many bytes came. Who is slow
/// does not read before the counting begins, and little at once then.
fn read(mut stream: TcpStream, is_slow: bool) -> u64 {
    let mut buffer = vec![0; if is_slow { 32 << 10 } else { 64 << 10 }];
    let mut bytes = 0;
    loop {
        if is_slow && !COUNT_ENDED.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
            if !COUNTING.load(Ordering::Relaxed) {
                continue;
            }
        }
        match stream.read(&mut buffer).expect("it stays whole") {
            0 => return bytes,
            count => bytes += count as u64,
        }
    }
}

fn nothing_allocates(reactor: Choice) {
    let server = match started(reactor) {
        Ok(server) => server,
        Err(error) => {
            println!("{reactor:?} not run: {error}");
            return;
        }
    };
    COUNT_ENDED.store(false, Ordering::SeqCst);
    let address = server.addresses()[0].to_string();
    let execution = execute(&address);
    let streams: Vec<_> = FOLLOWERS
        .iter()
        .map(|(path, is_slow)| {
            let path = path.replace(EXECUTION_TEXT, &execution);
            let stream = ask(&address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            (stream, *is_slow)
        })
        .collect();
    let readers: Vec<_> = streams
        .iter()
        .map(|(stream, is_slow)| {
            let (stream, is_slow) = (stream.try_clone().unwrap(), *is_slow);
            std::thread::spawn(move || read(stream, is_slow))
        })
        .collect();
    while !sleeps("memory-watch") {
        std::thread::sleep(Duration::from_millis(1));
    }
    ALL_THERE.store(true, Ordering::SeqCst);
    while !COUNT_ENDED.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    ALL_THERE.store(false, Ordering::SeqCst);
    let allocation_count = COUNT.load(Ordering::SeqCst);
    let counters = server.handles().next().unwrap().counters().unwrap();
    println!(
        "{reactor:?}: {allocation_count} allocations; {} chunks delivered, {} sends, {} gaps, {} \
         frames encoded, {} reused",
        counters.chunks_delivered,
        counters.sends,
        counters.gaps_delivered,
        counters.frames_encoded,
        counters.frames_reused,
    );
    assert!(counters.gaps_delivered > 0, "nobody was slow");
    std::thread::sleep(Duration::from_millis(100)); // What was published last is under way.
    for (stream, _) in &streams {
        let _ = stream.shutdown(Shutdown::Both);
    }
    for (reader, (path, is_slow)) in readers.into_iter().zip(FOLLOWERS) {
        let bytes = reader.join().unwrap();
        println!("  {bytes} bytes by {path}{}", if *is_slow { ", slowly" } else { "" });
        assert!(bytes > 0);
    }
    server.drain(Duration::from_secs(5));
    assert_eq!(allocation_count, 0, "{reactor:?}");
}

#[test]
fn nothing_allocates_from_tool_to_socket() {
    for reactor in [Choice::Mio, Choice::Uring] {
        nothing_allocates(reactor);
    }
}
