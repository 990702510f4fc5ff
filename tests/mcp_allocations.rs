//! Nothing allocates for a notification of MCP once its call runs: a counting allocator over all
//! threads of this process sees 0 allocations from chunk 1,000 to chunk 100,000, on both backends,
//! for both eras, for who reads at once and for who reads slowly.
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
use serde_json::{Value, json};
use streamdoor::reactor::Choice;
use streamdoor::shard::{Server, ServerConfig, ServerError, ShardConfig};
use streamdoor::tool::{Output, ToolError, ToolSpec};
use streamdoor::trace::Counters;

/// Chunks before that are long now and then, so that everything has its size before it is counted.
const LONG_CHUNK_BYTES: usize = 16 << 10;
const LONG_CHUNKS: u64 = 600;
const CHUNK_BYTES: usize = 100;

/// The tool that is counted for.
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

fn ask(address: &str, headers: &str, message: &Value) -> TcpStream {
    let (mut stream, body) = (TcpStream::connect(address).unwrap(), message.to_string());
    let length = body.len();
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Accept: application/json, text/event-stream\r\n";
    let rest = format!("{headers}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(format!("{head}{rest}").as_bytes()).unwrap();
    stream
}

/// Begins a session: the header that names it.
fn session(address: &str) -> String {
    let message = json!({
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    });
    let mut stream = ask(address, "Connection: close\r\n", &message);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line = answer.lines().find(|line| line.starts_with("mcp-session-id: "));
    format!("{}\r\n", line.expect(&answer))
}

/// A call of the tool, told of all that comes.
fn call(address: &str, session: Option<&str>) -> TcpStream {
    let mut meta = json!({"progressToken": "token", "dev.streamdoor/stream": false});
    let headers = match session {
        Some(session) => session.to_owned(),
        None => {
            meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
            "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: emit\r\n"
                .to_owned()
        }
    };
    let params = json!({"name": "emit", "arguments": {}, "_meta": meta});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    ask(address, &headers, &message)
}

/// Reads until the stream ends, without any memory but its buffer: how many bytes came.
fn read(mut stream: TcpStream, is_slow: bool) -> u64 {
    let mut buffer = vec![0; 64 << 10];
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
    let session = session(&address);
    // One of them is counted; the tool is run for each, and the others wait behind it.
    for (era, is_slow) in [(Some(session.as_str()), false), (None, true), (None, false)] {
        COUNT_ENDED.store(false, Ordering::SeqCst);
        let stream = call(&address, era);
        let theirs = stream.try_clone().unwrap();
        let reader = std::thread::spawn(move || read(theirs, is_slow));
        std::thread::sleep(Duration::from_millis(300)); // Threads have begun, and sleep.
        ALL_THERE.store(true, Ordering::SeqCst);
        while !COUNT_ENDED.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        ALL_THERE.store(false, Ordering::SeqCst);
        let allocation_count = COUNT.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(200));
        let _ = stream.shutdown(Shutdown::Both);
        let bytes = reader.join().unwrap();
        let mut counters = Counters::default();
        server.handles().for_each(|shard| counters.merge(&shard.counters().unwrap()));
        println!(
            "{reactor:?}, {}: {allocation_count} allocations; {} chunks delivered, {} sends, \
             {bytes} bytes read",
            if era.is_some() { "a session" } else { "alone" },
            counters.chunks_delivered,
            counters.sends,
        );
        assert!(counters.chunks_delivered > LAST_COUNTED);
        assert!(bytes > 1_000_000, "{bytes}");
        assert_eq!(allocation_count, 0);
    }
    server.drain(Duration::from_secs(5));
}

#[test]
fn nothing_allocates_from_a_tool_to_a_client_of_mcp() {
    for reactor in [Choice::Mio, Choice::Uring] {
        nothing_allocates(reactor);
    }
}
