//! Nothing allocates between a tool and the sockets of its followers (invariant A3). A counting
//! allocator over all threads of this process sees no allocation from chunk 1,000 to chunk 100,000.
//! The test covers both reactors, with SSE, NDJSON and plain output at once. Some connections are
//! on another shard, because they also follow an execution there.
//!
//! The file has one test only: the allocator counts for the whole process, which includes the test
//! harness.
#![cfg(feature = "server")]

mod counting;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use counting::{
    COUNT_ENDED, COUNTING, LAST_COUNTED, all_are_there, assert_none, at_chunk, the_watch_has_begun,
    wait_for_all, wait_until_counted,
};
use serde_json::Value;
use streamdoor::base::ExecutionId;
use streamdoor::reactor::Choice;
use streamdoor::server::{Server, ServerConfig, ServerError};
use streamdoor::shard::ShardConfig;
use streamdoor::tool::{Output, ToolError, ToolSpec};
use streamdoor::trace::Counters;

/// Size of the long chunks, which alternate with short ones before the count starts. They fill the
/// buffers of connections and the kernel's socket buffers to the highest level.
const LONG_CHUNK_BYTES: usize = 16 << 10;
const LONG_CHUNKS: u64 = 600;
const CHUNK_BYTES: usize = 100;
const EXECUTION_TEXT: &str = "EXECUTION";
/// The placeholder for the silent execution, which is on another shard.
const SILENT_TEXT: &str = "SILENT";
/// The path of each follower, and true if it reads slowly.
const FOLLOWERS: &[(&str, bool)] = &[
    ("/v1/executions/EXECUTION/events?format=sse&policy=drop", false),
    ("/v1/executions/EXECUTION/events?format=ndjson&policy=drop", false),
    ("/v1/executions/EXECUTION/events?format=sse&policy=block", false),
    ("/v1/executions/EXECUTION/events?format=ndjson&policy=block", false),
    ("/v1/executions/EXECUTION/events?format=sse&policy=drop", true),
    ("/v1/executions/EXECUTION/events?format=ndjson&policy=drop", true),
    ("/v1/events?executions=EXECUTION&format=sse&policy=block", false),
    ("/v1/executions/EXECUTION/output", false),
    ("/v1/events?executions=SILENT,EXECUTION&format=sse&policy=block", false),
    ("/v1/events?executions=SILENT,EXECUTION&format=ndjson&policy=block", false),
    ("/v1/events?executions=SILENT,EXECUTION&format=sse&policy=drop", true),
];

/// The tool. It reports its progress with every chunk.
fn emit(out: &mut Output) -> Result<(), ToolError> {
    wait_for_all();
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

/// The silent tool. It runs until it is stopped.
fn be_silent(out: &Output) -> Result<(), ToolError> {
    while !out.is_stopped() {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn started(reactor: Choice) -> Result<Server, ServerError> {
    let config = ServerConfig {
        shards: vec![ShardConfig { reactor, ..ShardConfig::default() }; 2],
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        connections_max: 100,
    };
    let set_up = |shard: &mut streamdoor::server::ServerShard| {
        let spec = ToolSpec::new("emit", "For a test.");
        shard.tools_mut().insert_closure(spec, |_, out| emit(out)).expect("it is described right");
        let spec = ToolSpec::new("be_silent", "For a test.");
        let be_silent = |_: &Value, out: &mut Output| be_silent(out);
        shard.tools_mut().insert_closure(spec, be_silent).expect("it is described right");
    };
    Server::start(config, Arc::new(set_up))
}

fn ask(address: &str, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Creates an execution, and returns its name.
fn execute(address: &str, tool: &str, after_subscribers: usize) -> String {
    let body = format!(
        r#"{{"tool": "{tool}",
            "start": {{"after_subscribers": {after_subscribers}, "deadline_ms": 3600000}},
            "timeouts": {{"first_chunk_ms": null, "inactivity_ms": null}}}}"#,
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

/// Creates a silent execution on the other shard. The kernel spreads connections over the shards,
/// so it repeats until the other one accepts.
fn execute_elsewhere(address: &str, execution: &str) -> String {
    let shard_of = |name: &str| name.parse::<ExecutionId>().expect("it is one").shard;
    loop {
        let silent = execute(address, "be_silent", 1);
        if shard_of(&silent) != shard_of(execution) {
            return silent;
        }
    }
}

/// True while this side cuts off the streams, which loses the data in flight.
static HANGS_UP: AtomicBool = AtomicBool::new(false);

/// Reads until the stream ends, with no memory but its buffer. Returns the number of bytes. A slow
/// reader starts to read when the count starts, and reads little at a time during it.
fn read(mut stream: TcpStream, is_slow: bool, has_buffer: &Barrier) -> u64 {
    let mut buffer = vec![0; if is_slow { 32 << 10 } else { 64 << 10 }];
    let mut bytes = 0;
    has_buffer.wait();
    loop {
        if is_slow && !COUNT_ENDED.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
            if !COUNTING.load(Ordering::Relaxed) {
                continue;
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) => return bytes,
            Ok(count) => bytes += count as u64,
            Err(_) if HANGS_UP.load(Ordering::SeqCst) => return bytes,
            Err(error) => panic!("it stays whole: {error}"),
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
    let address = server.addresses()[0].to_string();
    let execution = execute(&address, "emit", FOLLOWERS.len());
    let silent = execute_elsewhere(&address, &execution);
    let streams: Vec<_> = FOLLOWERS
        .iter()
        .map(|(path, is_slow)| {
            let path = path.replace(EXECUTION_TEXT, &execution).replace(SILENT_TEXT, &silent);
            let stream = ask(&address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            (stream, *is_slow)
        })
        .collect();
    let have_buffers = Arc::new(Barrier::new(streams.len() + 1));
    let readers: Vec<_> = streams
        .iter()
        .map(|(stream, is_slow)| {
            let (stream, is_slow) = (stream.try_clone().unwrap(), *is_slow);
            let has_buffer = Arc::clone(&have_buffers);
            std::thread::spawn(move || read(stream, is_slow, &has_buffer))
        })
        .collect();
    have_buffers.wait(); // A thread allocates when it starts.
    drop(the_watch_has_begun());
    all_are_there(server.handles());
    wait_until_counted();
    let mut counters = Counters::default();
    server.handles().for_each(|shard| counters.merge(&shard.counters().unwrap()));
    println!(
        "{} chunks delivered, {} sends, {} gaps, {} frames encoded, {} reused",
        counters.chunks_delivered,
        counters.sends,
        counters.gaps_delivered,
        counters.frames_encoded,
        counters.frames_reused,
    );
    assert!(counters.gaps_delivered > 0, "nobody was slow");
    std::thread::sleep(Duration::from_millis(100)); // The last chunks are in flight.
    HANGS_UP.store(true, Ordering::SeqCst);
    for (stream, _) in &streams {
        let _ = stream.shutdown(Shutdown::Both);
    }
    for (reader, (path, is_slow)) in readers.into_iter().zip(FOLLOWERS) {
        let bytes = reader.join().unwrap();
        println!("  {bytes} bytes by {path}{}", if *is_slow { ", slowly" } else { "" });
        assert!(bytes > 0);
    }
    HANGS_UP.store(false, Ordering::SeqCst);
    server.drain(Duration::from_secs(5));
    assert_none(&format!("{reactor:?}"));
}

#[test]
fn nothing_allocates_from_tool_to_socket() {
    for reactor in [Choice::Mio, Choice::Uring] {
        nothing_allocates(reactor);
    }
}
