//! The hot operations. Each prepares its state and is then repeated.
//!
//! A count is for one repetition, including its unavoidable parts: a delivery needs a publication.
//! All operations run on one thread, over mio (valgrind does not support io_uring), with a fixed
//! seed. The shard reads no memory pressure. The count is therefore the same every time.

use std::hint::black_box;
use std::time::Duration;

use streamdoor::base::{ExecutionId, Instant};
use streamdoor::engine::wheel::Wheel;
use streamdoor::engine::{Hold, SubscribeSpec};
use streamdoor::mcp::notify::{self, ProgressNotification};
use streamdoor::memory::RingPoolConfig;
use streamdoor::reactor::Choice;
use streamdoor::shard::{Delivery, ExecuteOptions, MemoryWatch, Shard, ShardConfig};
use streamdoor::stream::{Kind, Policy};
use streamdoor::tool::{Prepared, Work};
use streamdoor::wire::events::{ChunkEvent, WireEvent};
use streamdoor::wire::http1::{self, RequestReader};
use streamdoor::wire::jsonrpc::Id;
use streamdoor::wire::sse::{self, Cursor};

use super::marks::repetitions;
use super::served;

/// An operation.
pub struct Operation {
    /// The name.
    pub name: &'static str,
    /// The description.
    pub what: &'static str,
    /// True if it has a shard of its own.
    pub has_shard: bool,
    /// Number of repetitions in the trace that counts cache lines. The second half counts. A
    /// repetition that takes longer is repeated less often.
    pub times_traced: u64,
    /// The function whose instructions count, if not all do. Its cache lines are not counted.
    pub part: Option<&'static str>,
    /// Runs the operation this number of times.
    pub run: fn(u64) -> Result<(), String>,
}

impl Operation {
    const fn new(
        name: &'static str,
        what: &'static str,
        run: fn(u64) -> Result<(), String>,
    ) -> Operation {
        Operation { name, what, has_shard: false, times_traced: TIMES_TRACED, part: None, run }
    }

    const fn with_shard(self) -> Operation {
        Operation { has_shard: true, ..self }
    }

    const fn traced(self, times_traced: u64) -> Operation {
        Operation { times_traced, ..self }
    }

    const fn counted_in(self, part: &'static str) -> Operation {
        Operation { part: Some(part), ..self }
    }
}

const TIMES_TRACED: u64 = 256;
/// For operations of more than 10,000 instructions.
const TIMES_TRACED_LONG: u64 = 32;

/// All operations.
pub const ALL: &[Operation] = &[
    Operation::new("publish", "a chunk by hand, that nobody follows", publish).with_shard(),
    Operation::new("deliver-1", "the same, given to a closure", deliver_one).with_shard(),
    Operation::new("deliver-16", "the same, given to 16 closures", deliver_many).with_shard(),
    Operation::new("deliver-batch", "64 chunks at once, to one closure", batch)
        .with_shard()
        .traced(TIMES_TRACED_LONG),
    Operation::new("deliver-remote", "a chunk, polled from its ring", remote).with_shard(),
    Operation::new("encode-ndjson", "a chunk as a line of JSON", encode_line),
    Operation::new("encode-sse", "a chunk as an event, in its frame", encode_sse),
    Operation::new("wheel-cancel", "a timer is armed and cancelled", wheel_cancel),
    Operation::new("wheel-fire", "a timer is armed and fires", wheel_fire),
    Operation::new("mcp-progress", "a notification of one chunk", mcp_progress),
    #[cfg(feature = "server")]
    Operation::new("agent-part", "a text delta as a part", agent_part),
    Operation::new("http-request", "a request is read", http_request),
    Operation::new("serve-chunk", "a chunk, from a tool to a socket", served::chunk).with_shard(),
    Operation::new("serve-post", "a request that runs a tool, to its end", served::post)
        .with_shard()
        .traced(TIMES_TRACED_LONG),
    Operation::new("mcp-call", "an MCP call of a tool, to its answer", served::mcp_call)
        .with_shard()
        .traced(TIMES_TRACED_LONG),
    Operation::new("mcp-first", "… to its first notification", served::mcp_first)
        .with_shard()
        .counted_in("*send_until_reply*"),
];

pub const PAYLOAD: &[u8; 100] =
    b"the quick brown fox jumps over the lazy dog, the quick brown fox \
    jumps over the lazy dog, the quick ";
const EXECUTION: &str = "01-0123456789abcdef";
/// Number of other timers in the wheel, such as one for each connection.
const TIMERS_OTHER: u64 = 1_000;

fn shard() -> Result<(Shard, ExecutionId), String> {
    let config = ShardConfig {
        rings: RingPoolConfig { prealloc_bytes: 0, ..Default::default() },
        reactor: Choice::Mio,
        memory: MemoryWatch::ByHand,
        seed: Some(1),
        ..Default::default()
    };
    let (mut shard, _) = Shard::new(config).map_err(|error| error.to_string())?;
    let prepared = Prepared::new(Work::Feed);
    // Some operations publish without a subscriber.
    let options = ExecuteOptions { hold: Hold::Newest, ..ExecuteOptions::default() };
    let id = shard.execute_prepared(prepared, options);
    let id = id.map_err(|error| error.to_string())?;
    Ok((shard, id))
}

fn spec() -> SubscribeSpec {
    SubscribeSpec { policy: Policy::Block, ..Default::default() }
}

/// Publishes chunks that nobody follows.
pub fn publish(times: u64) -> Result<(), String> {
    deliver(0, times)
}

fn deliver_one(times: u64) -> Result<(), String> {
    deliver(1, times)
}

fn deliver_many(times: u64) -> Result<(), String> {
    deliver(16, times)
}

fn deliver(subscribers: u32, times: u64) -> Result<(), String> {
    let (mut shard, id) = shard()?;
    for _ in 0..subscribers {
        let closure = |delivery: &Delivery<'_>| {
            black_box(delivery);
        };
        shard.subscribe(id, spec(), closure).map_err(|error| error.to_string())?;
    }
    for _ in repetitions(times) {
        let now = shard.now();
        let published = shard.publish_at(id, Kind::Output, 0, black_box(PAYLOAD), now);
        published.map_err(|error| error.to_string())?;
        shard.turn();
    }
    Ok(())
}

fn batch(times: u64) -> Result<(), String> {
    let (mut shard, id) = shard()?;
    let closure = |delivery: &Delivery<'_>| {
        black_box(delivery);
    };
    shard.subscribe(id, spec(), closure).map_err(|error| error.to_string())?;
    let batch = [black_box(&PAYLOAD[..]); 64];
    for _ in repetitions(times) {
        let now = shard.now();
        let published = shard.publish_batch(id, Kind::Output, &batch, now);
        published.map_err(|(_, error)| error.to_string())?;
        shard.turn();
    }
    Ok(())
}

fn remote(times: u64) -> Result<(), String> {
    let (mut shard, id) = shard()?;
    let mut subscriber = shard.subscribe_remote(id, spec()).map_err(|error| error.to_string())?;
    for _ in repetitions(times) {
        let now = shard.now();
        let published = shard.publish_at(id, Kind::Output, 0, black_box(PAYLOAD), now);
        published.map_err(|error| error.to_string())?;
        shard.turn();
        let take = |delivery: Delivery<'_>| {
            black_box(&delivery);
        };
        if subscriber.drain(64, take) != 1 {
            return Err("what was published was not there to be read".to_owned());
        }
    }
    Ok(())
}

fn chunk(seq: u64) -> WireEvent<'static> {
    WireEvent::Chunk(ChunkEvent {
        execution: EXECUTION,
        seq,
        total_chunks: None,
        kind: "output",
        key: None,
        offset: seq * PAYLOAD.len() as u64,
        data: PAYLOAD,
        timestamp_us: 1_763_800_000_000_000 + seq,
        mono_ns: 1_000_000_000_000 + seq,
    })
}

/// Returns numbers of chunks that all have the same number of digits.
fn seqs(times: u64) -> impl Iterator<Item = u64> {
    repetitions(times).map(|number| 1_000_000 + number)
}

fn encode_line(times: u64) -> Result<(), String> {
    let mut out = Vec::with_capacity(4 << 10);
    for seq in seqs(times) {
        out.clear();
        black_box(chunk(seq)).write_line(&mut out);
        black_box(&out);
    }
    Ok(())
}

fn encode_sse(times: u64) -> Result<(), String> {
    let mut out = Vec::with_capacity(4 << 10);
    for seq in seqs(times) {
        out.clear();
        let frame = http1::begin_chunk(&mut out);
        let bytes = seq * PAYLOAD.len() as u64;
        let (chunks, has_ended) = (None, false);
        let cursor = Cursor { execution: EXECUTION, seq, bytes, chunks, has_ended };
        sse::write_cursors(&mut out, &[cursor]);
        sse::write_event(&mut out, &black_box(chunk(seq)));
        out.extend_from_slice(sse::END);
        http1::end_chunk(&mut out, frame);
        black_box(&out);
    }
    Ok(())
}

/// Returns a wheel with timers at all distances, and a time.
fn wheel() -> Result<(Wheel<u64>, Instant), String> {
    let now = Instant::from_nanos(1_000_000_000_000);
    let mut wheel = Wheel::new(2 * TIMERS_OTHER as u32, now);
    for number in 0..TIMERS_OTHER {
        let deadline = now + Duration::from_secs(3_600 + number);
        wheel.arm(deadline, number).map_err(|full| full.to_string())?;
    }
    Ok((wheel, now))
}

fn wheel_cancel(times: u64) -> Result<(), String> {
    let (mut wheel, now) = wheel()?;
    for number in repetitions(times) {
        let deadline = now + Duration::from_millis(1 + number % 30_000);
        let timer = wheel.arm(black_box(deadline), number).map_err(|full| full.to_string())?;
        black_box(wheel.next_deadline());
        black_box(wheel.cancel(timer));
    }
    Ok(())
}

fn wheel_fire(times: u64) -> Result<(), String> {
    let (mut wheel, mut now) = wheel()?;
    for number in repetitions(times) {
        let deadline = now + Duration::from_micros(50 + 7 * (number % 30));
        wheel.arm(black_box(deadline), number).map_err(|full| full.to_string())?;
        now = wheel.next_deadline().ok_or("a timer is armed")?;
        if wheel.pop_expired(now) != Some(number) || wheel.pop_expired(now).is_some() {
            return Err("another timer has fired".to_owned());
        }
    }
    Ok(())
}

fn mcp_progress(times: u64) -> Result<(), String> {
    let token = Id::of_number(1_000);
    let mut out = Vec::with_capacity(4 << 10);
    for seq in seqs(times) {
        out.clear();
        let note = ProgressNotification::new(&token, seq as f64);
        let offset = seq * PAYLOAD.len() as u64;
        let chunk = notify::ChunkNotification { seq, kind: "output", offset, data: PAYLOAD };
        notify::progress(&mut out, &black_box(note), std::iter::once(chunk));
        black_box(&out);
    }
    Ok(())
}

#[cfg(feature = "server")]
fn agent_part(times: u64) -> Result<(), String> {
    use streamdoor::agent::{Body, Partial, RunPart};

    let mut part = RunPart {
        seq: 0,
        agent_id: EXECUTION.into(),
        step_number: 1,
        timestamp_us: 1_763_800_000_000_000,
        body: Body::Partial(Partial::TextDelta {
            delta: " quick brown fox".to_owned(),
            offset: 1_000,
            accumulated_text: None,
            accumulated_truncated: false,
        }),
    };
    let mut out = Vec::with_capacity(4 << 10);
    for seq in seqs(times) {
        out.clear();
        part.seq = seq;
        black_box(&part).write_json(&mut out);
        black_box(&out);
    }
    Ok(())
}

fn http_request(times: u64) -> Result<(), String> {
    let request = b"POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\
                    \r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let mut reader = RequestReader::new();
    for _ in repetitions(times) {
        let mut input = black_box(&request[..]);
        while let Some(part) = reader.read(&mut input).map_err(|error| error.to_string())? {
            black_box(part);
        }
    }
    Ok(())
}
