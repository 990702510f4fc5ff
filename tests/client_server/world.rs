//! A server in this process, with tools that a test controls.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use streamdoor::base::ExecutionId;
use streamdoor::client::{Client, FollowOptions, StreamEvent};
use streamdoor::endpoint::{DeliveryOptions, StreamFormat};
use streamdoor::reactor::Idle;
use streamdoor::server::{Server, ServerConfig};
use streamdoor::shard::{MemoryWatch, ShardConfig};
use streamdoor::stream::{Kind, Totals};
use streamdoor::tool::{Need, Output, ToolError, ToolSpec};

pub const FORMATS: [StreamFormat; 2] = [StreamFormat::Sse, StreamFormat::Ndjson];

/// A server with two tools. `count {"chunks", "ring_bytes"?}` sends chunks by itself, `steps` sends
/// as many as the test requests. Chunk `seq` has [`data`] and [`kind`].
pub struct World {
    pub server: Server,
    pub client: Client,
    /// The channel to `steps`, which runs until it is dropped.
    pub steps: Option<Sender<u64>>,
}

impl World {
    pub fn new() -> World {
        World::at("127.0.0.1:0")
    }

    pub fn at(address: &str) -> World {
        // Rings have the requested size, even while this machine is short of memory.
        let (idle, memory) = (Idle::Block, MemoryWatch::ByHand);
        let shard = ShardConfig { idle, memory, ..ShardConfig::default() };
        let config = ServerConfig {
            shards: vec![shard],
            listen: vec![address.parse().unwrap()],
            connections_max: 100,
        };
        let (steps, told) = channel();
        let told = Arc::new(Mutex::new(told));
        let set_up = Arc::new(move |shard: &mut streamdoor::server::ServerShard| {
            let tools = shard.tools_mut();
            let need = Need { ring_bytes: 1 << 20, ..Need::default() };
            let spec = ToolSpec { need, ..ToolSpec::new("count", "Counts.") };
            tools.insert_closure(spec, count).unwrap();
            let told = Arc::clone(&told);
            let spec = ToolSpec::new("steps", "Does as it is told.");
            tools.insert_closure(spec, move |_, out| step(&told.lock().unwrap(), out)).unwrap();
        });
        let server = Server::start(config, set_up).unwrap();
        let client = Client::new(&url(&server)).unwrap();
        World { server, client, steps: Some(steps) }
    }

    pub fn url(&self) -> String {
        url(&self.server)
    }

    /// Makes `steps` send this number of chunks more.
    pub fn send(&self, chunks: u64) {
        self.steps.as_ref().unwrap().send(chunks).unwrap();
    }

    /// Makes `steps` complete.
    pub fn complete(&mut self) {
        self.steps = None;
    }

    /// Waits until this number of chunks was published.
    pub fn published(&self, execution: ExecutionId, chunks: u64) {
        while self.client.inspect(execution).unwrap().chunks < chunks {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the execution has ended.
    pub fn ended(&self, execution: ExecutionId) {
        let outcome = self.client.result(execution, Duration::from_secs(60)).unwrap();
        assert!(matches!(outcome, streamdoor::client::Awaited::Ended(_)), "{outcome:?}");
    }
}

/// Returns the argument for [`Client::new`].
fn url(server: &Server) -> String {
    let address = server.addresses()[0].to_string();
    if address.contains(":/") { address } else { format!("http://{address}") }
}

fn count(arguments: &Value, out: &mut Output) -> Result<(), ToolError> {
    let chunks = arguments["chunks"].as_u64().unwrap_or(10);
    out.expect_total(chunks);
    for seq in 1..=chunks {
        out.send_as(kind(seq), 0, &data(seq))?;
    }
    match arguments["fails"].as_bool() {
        Some(true) => Err(ToolError::new("it was told to fail")),
        _ => Ok(()),
    }
}

fn step(steps: &Receiver<u64>, out: &mut Output) -> Result<(), ToolError> {
    let mut seq = 0;
    while !out.is_stopped() {
        match steps.recv_timeout(Duration::from_millis(1)) {
            Ok(chunks) => {
                for _ in 0..chunks {
                    seq += 1;
                    out.send_as(kind(seq), 0, &data(seq))?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
    Err(ToolError::Stopped)
}

/// Returns the data of chunk `seq`: text, and every third time bytes that are no text.
pub fn data(seq: u64) -> Vec<u8> {
    let mut data = format!("chunk {seq}\r\n\n").into_bytes();
    data.resize(200 + (seq % 7) as usize * 100, if seq.is_multiple_of(3) { 0xFF } else { b'.' });
    data
}

pub fn kind(seq: u64) -> Kind {
    if seq.is_multiple_of(2) { Kind::Stderr } else { Kind::Stdout }
}

/// Returns the totals of all chunks that `delivery_options` selects, up to this one.
pub fn totals(delivery_options: &DeliveryOptions, up_to: u64) -> Totals {
    let wanted = (1..=up_to).filter(|seq| delivery_options.kinds.contains(kind(*seq)));
    wanted.fold(Totals::ZERO, |mut totals, seq| {
        totals.count(data(seq).len() as u32);
        totals
    })
}

pub fn options(format: StreamFormat, delivery_options: DeliveryOptions) -> FollowOptions {
    let retry = Duration::from_millis(1);
    FollowOptions { format, delivery_options, retry, ..FollowOptions::default() }
}

/// Asserts that every chunk up to `head_seq` is delivered or missed once, and unchanged. Returns
/// the missed totals.
pub fn check(events: &[StreamEvent], delivery_options: &DeliveryOptions, head_seq: u64) -> Totals {
    assert!(matches!(events[0], StreamEvent::Started(_)), "{:?}", events[0]);
    let (mut given, mut missed) = (Totals::ZERO, Totals::ZERO);
    let mut told = 0;
    for event in &events[1..] {
        match event {
            StreamEvent::Started(_) => panic!("it has started twice"),
            StreamEvent::Part(part) => panic!("a part of no agent: {part:?}"),
            StreamEvent::Chunk(chunk) => {
                assert!(chunk.seq > told && delivery_options.kinds.contains(chunk.kind));
                assert_eq!((chunk.kind, &chunk.data), (kind(chunk.seq), &data(chunk.seq)));
                told = chunk.seq;
                given.count(chunk.data.len() as u32);
            }
            StreamEvent::Gap(gap) => {
                assert!(gap.from_seq > told);
                told = gap.to_seq;
                missed.chunks += gap.chunk_count;
                missed.bytes += gap.byte_count;
            }
            StreamEvent::Progress(_) | StreamEvent::End(_) => {}
        }
    }
    assert!(matches!(events.last(), Some(StreamEvent::End(_))), "{:?}", events.last());
    let all = Totals { chunks: given.chunks + missed.chunks, bytes: given.bytes + missed.bytes };
    assert_eq!(all, totals(delivery_options, head_seq));
    missed
}
