//! Nothing allocates per notification while an MCP call runs (invariant A3). A counting allocator
//! over all threads of this process sees no allocation from chunk 1,000 to chunk 100,000. The
//! client of the call asks for progress. The test covers both reactors, with and without partial
//! results.
//!
//! The file has one test only: the allocator counts for the whole process, which includes the test
//! harness.
#![cfg(feature = "server")]

mod counting;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use counting::{
    LAST_COUNTED, all_are_there, assert_none, at_chunk, the_watch_has_begun, wait_for_all,
    wait_until_counted,
};
use serde_json::{Value, json};
use streamdoor::reactor::Choice;
use streamdoor::server::{Server, ServerConfig, ServerError, ServerShard};
use streamdoor::shard::ShardConfig;
use streamdoor::tool::{Output, ToolError, ToolSpec};

const CHUNK_BYTES: usize = 100;
/// Number of bytes kept from the end of the stream. They hold the reply with the beginning of the
/// output.
const LAST_BYTES: usize = 24 << 10;
/// Number of chunks by which the tool may be ahead of the reader. Further ahead, the reader would
/// miss chunks.
const AHEAD_CHUNKS: u64 = 256;

/// Number of bytes that the reader has received.
static READ_BYTES: AtomicU64 = AtomicU64::new(0);

/// The tool. Every tenth chunk it reports its progress.
fn emit(out: &mut Output) -> Result<(), ToolError> {
    wait_for_all();
    let last_seq = LAST_COUNTED + 10;
    for seq in 1..=last_seq {
        out.send(&[b'x'; CHUNK_BYTES])?;
        if seq.is_multiple_of(10) {
            out.progress(seq as f64, Some(last_seq as f64));
        }
        at_chunk(seq);
        let owed_bytes = seq.saturating_sub(AHEAD_CHUNKS) * CHUNK_BYTES as u64;
        while READ_BYTES.load(Ordering::SeqCst) < owed_bytes && !out.is_stopped() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}

fn started(reactor: Choice) -> Result<Server, ServerError> {
    let config = ServerConfig {
        shards: vec![ShardConfig { reactor, ..ShardConfig::default() }],
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        connections_max: 100,
    };
    let set_up = |shard: &mut ServerShard| {
        let spec = ToolSpec::new("emit", "For a test.");
        shard.tools_mut().insert_closure(spec, |_, out| emit(out)).expect("it is described right");
    };
    Server::start(config, Arc::new(set_up))
}

/// Calls the tool. Returns the stream on which all notifications and the reply arrive.
fn call(address: &str, capabilities: &Value) -> TcpStream {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "progressToken": "token",
        "partialResultToken": "partial",
        "dev.streamdoor/stream": false, // All output comes in notifications.
    });
    let params = json!({"name": "emit", "arguments": {}, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": params});
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nConnection: close\r\n\
         MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: emit\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Reads until the stream ends, with no memory but its buffer. Returns the number of bytes and the
/// last ones.
fn read(mut stream: TcpStream, has_buffer: &Barrier) -> (u64, Vec<u8>) {
    let mut buffer = vec![0; 64 << 10];
    let (mut bytes, mut kept) = (0, 0);
    has_buffer.wait();
    loop {
        if kept > buffer.len() / 2 {
            buffer.copy_within(kept - LAST_BYTES..kept, 0);
            kept = LAST_BYTES;
        }
        match stream.read(&mut buffer[kept..]).expect("it stays whole") {
            0 => return (bytes, buffer[..kept].to_vec()),
            count => {
                bytes += count as u64;
                kept += count;
                READ_BYTES.store(bytes, Ordering::SeqCst);
            }
        }
    }
}

fn nothing_allocates(reactor: Choice, capabilities: &Value) {
    let server = match started(reactor) {
        Ok(server) => server,
        Err(error) => {
            println!("{reactor:?} not run: {error}");
            return;
        }
    };
    READ_BYTES.store(0, Ordering::SeqCst);
    let address = server.addresses()[0].to_string();
    let stream = call(&address, capabilities);
    let has_buffer = Arc::new(Barrier::new(2));
    let of_reader = Arc::clone(&has_buffer);
    let reader = std::thread::spawn(move || read(stream, &of_reader));
    has_buffer.wait(); // A thread allocates when it starts.
    all_are_there(server.handles());
    wait_until_counted();
    let (bytes, last) = reader.join().unwrap();
    println!("{bytes} bytes");
    let last = String::from_utf8_lossy(&last);
    assert!(last.contains("\"result\""), "{last}");
    assert!(bytes > LAST_COUNTED * CHUNK_BYTES as u64, "not all of it was told");
    server.drain(Duration::from_secs(5));
    assert_none(&format!("{reactor:?}, {capabilities}"));
}

#[test]
fn nothing_allocates_per_notification() {
    let _keeper = the_watch_has_begun();
    for reactor in [Choice::Mio, Choice::Uring] {
        for capabilities in [json!({}), json!({"partialResults": {}})] {
            nothing_allocates(reactor, &capabilities);
        }
    }
}
