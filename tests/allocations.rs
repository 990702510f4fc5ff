//! Nothing allocates on the chunk path (invariant A3). A counting allocator over all threads of
//! this process sees no allocation from chunk 1,000 to chunk 100,000. The test covers each policy,
//! inline and across threads.
//!
//! The file has one test only: the allocator counts for the whole process, which includes the test
//! harness.

mod counting;

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use counting::{
    FIRST_COUNTED, LAST_COUNTED, all_are_there, allocations, assert_none, at_chunk,
    the_watch_has_begun, wait_for_all, wait_until_counted,
};
use streamdoor::base::ExecutionId;
use streamdoor::engine::{Hold, Start, SubscribeSpec};
use streamdoor::memory::RingPoolConfig;
use streamdoor::reactor::readings::KernelFiles;
use streamdoor::shard::{Delivery, ExecuteOptions, JournalConfig, Shard, ShardConfig};
use streamdoor::stream::{Durability, Kind, Policy};
use streamdoor::tool::{Context, EmitError, Prepared, Step, Tool, ToolSpec, Work};
use streamdoor::wire::events::{self, WireEvent};
#[cfg(feature = "server")]
use streamdoor::wire::http1;
use streamdoor::wire::sse::{self, Cursor};

fn spec(policy: Policy) -> SubscribeSpec {
    SubscribeSpec { policy, ..Default::default() }
}

#[test]
fn nothing_allocates_on_the_chunk_path() {
    the_allocator_counts();
    let _keeper = the_watch_has_begun();
    spelling_events_allocates_nothing();
    framing_them_allocates_nothing();
    #[cfg(feature = "server")]
    notifying_allocates_nothing();
    inline_nothing_allocates();
    fed_by_hand_nothing_allocates();
    keeping_allocates_nothing();
    looking_at_memory_allocates_nothing();
    #[cfg(feature = "server")]
    logging_allocates_nothing();
    // These run last: their tool threads outlive them, and a thread allocates when it first waits.
    across_threads_nothing_allocates(RingPoolConfig::default());
    // This pool starts empty: the shard buys memory ahead while it is idle.
    across_threads_nothing_allocates(RingPoolConfig { prealloc_bytes: 0, ..Default::default() });
}

/// Asserts that neither pushing, dropping nor writing a log record allocates.
#[cfg(feature = "server")]
fn logging_allocates_nothing() {
    use counting::wait_until_it_sleeps;
    use streamdoor::server::{Log, LogClosed};
    use streamdoor::trace::{Level, LogFormat};
    let log = Log::start(LogFormat::Json, Level::Info, std::io::sink()).unwrap();
    let push = |count: u64| {
        for number in 0..count {
            log.record(number, Level::Info, "numbered", |record| {
                record.number("number", number).show("peer", &std::net::Ipv4Addr::LOCALHOST);
            });
        }
    };
    push(10_000); // The log thread starts, and waits for more.
    wait_until_it_sleeps("log");
    at_chunk(FIRST_COUNTED);
    push(100_000);
    at_chunk(LAST_COUNTED);
    println!("the log: {} of 110000 records dropped", log.dropped_total());
    assert_none("the log");
    assert_eq!(log.close(), LogClosed::Whole);
}

/// Asserts that reading the kernel's memory files, once a second in the memory watch, does not
/// allocate.
fn looking_at_memory_allocates_nothing() {
    let mut files = KernelFiles::new(Path::new("/"));
    files.read();
    at_chunk(FIRST_COUNTED);
    for _ in 0..10 {
        std::hint::black_box(files.read());
    }
    at_chunk(LAST_COUNTED);
    assert_none("the memory watch");
}

fn the_allocator_counts() {
    at_chunk(FIRST_COUNTED);
    std::hint::black_box(Box::new(1));
    at_chunk(LAST_COUNTED);
    assert!(allocations("the allocator") > 0);
}

/// The last chunk before [`Emits`] waits until its shard has slept.
const SETTLED_AFTER: u64 = FIRST_COUNTED - 20;

/// A tool that emits up to seven numbered chunks a step. It sleeps now and then to cover timers.
struct Emits {
    seq: u64,
    /// Counts the sleeps of the shard.
    sleeps: Arc<AtomicU64>,
    sleeps_before: Option<u64>,
}

impl Tool for Emits {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        if self.seq == SETTLED_AFTER {
            // A shard sleeps when it has bought all that it buys ahead. Nothing is bought later.
            let before = *self.sleeps_before.get_or_insert(self.sleeps.load(Relaxed));
            if self.sleeps.load(Relaxed) == before {
                return Step::Sleep(context.now() + Duration::from_millis(5));
            }
        }
        for _ in 0..7 {
            if self.seq == LAST_COUNTED + 10 {
                return Step::Done;
            }
            match context.emit(&[b'x'; 100]) {
                Ok(seq) => {
                    self.seq = seq;
                    at_chunk(seq);
                    if seq == SETTLED_AFTER {
                        return Step::Again;
                    }
                }
                Err(EmitError::Blocked) => return Step::Blocked,
                Err(error) => panic!("{error:?}"),
            }
        }
        // Early steps sleep more often, so that all lazily bought memory is bought before the
        // count.
        let pause = if self.seq < FIRST_COUNTED { 35 } else { 5_000 };
        if self.seq.is_multiple_of(pause) {
            return Step::Sleep(context.now() + Duration::from_micros(50));
        }
        Step::Again
    }
}

fn inline_nothing_allocates() {
    for policy in Policy::ALL {
        let (mut shard, _) = Shard::new(ShardConfig::default()).unwrap();
        let sleeps = Arc::new(AtomicU64::new(0));
        let work = Work::Steps(Box::new(Emits {
            seq: 0,
            sleeps: Arc::clone(&sleeps),
            sleeps_before: None,
        }));
        let start = Start::AfterSubscribers { count: 4, deadline: Duration::from_secs(60) };
        let options = ExecuteOptions { start, ..Default::default() };
        let id = shard.execute_prepared(Prepared::new(work), options).unwrap();
        let ended = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let ended = Rc::clone(&ended);
            let closure = move |delivery: &Delivery<'_>| {
                if let Delivery::End(_) = delivery {
                    ended.set(ended.get() + 1);
                }
            };
            shard.subscribe(id, spec(policy), closure).unwrap();
        }
        let mut polled = shard.subscribe_polled(id, spec(policy)).unwrap();
        while ended.get() < 3 {
            if !shard.turn() {
                shard.park(None);
                sleeps.store(shard.counters().wakes, Relaxed);
            }
            for _ in 0..16 {
                if shard.poll(&mut polled).is_none() {
                    break;
                }
            }
        }
        assert_none(&format!("inline, {policy}"));
    }
}

fn fed_by_hand_nothing_allocates() {
    for policy in Policy::ALL {
        let (mut shard, _) = Shard::new(ShardConfig::default()).unwrap();
        let prepared = Prepared::new(Work::Feed);
        let id = shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
        let filtered = SubscribeSpec {
            kinds: streamdoor::stream::Kinds::NONE.with(Kind::Stderr),
            ..spec(policy)
        };
        shard.subscribe(id, spec(policy), |_| {}).unwrap();
        shard.subscribe(id, filtered, |_| {}).unwrap();
        for seq in 1..=LAST_COUNTED {
            let kind = if seq.is_multiple_of(3) { Kind::Stderr } else { Kind::Stdout };
            shard.publish(id, kind, &[b'x'; 100]).unwrap();
            at_chunk(seq);
            shard.turn();
        }
        assert_none(&format!("by hand, {policy}"));
    }
}

/// Attaches a subscriber that gets its first chunks from the disk, and waits until it has all.
fn subscribe_late(shard: &mut Shard, id: ExecutionId) {
    let given = Rc::new(Cell::new(0));
    let count = Rc::clone(&given);
    let closure = move |delivery: &Delivery<'_>| {
        count.set(count.get() + u64::from(matches!(delivery, Delivery::Chunk(_))));
    };
    shard.subscribe(id, spec(Policy::Replay), closure).unwrap();
    let head_seq = FIRST_COUNTED / 2;
    while given.get() < head_seq || shard.durable_seq(id) < Some(head_seq) {
        if !shard.turn() {
            shard.park(None);
        }
    }
}

/// Number of chunks that have turns of their own, and of those that later ones share. Each turn may
/// write a page. All together stay within a quarter of a segment, at which the next one is made.
const CHUNKS_WITH_TURNS: u64 = FIRST_COUNTED + 500;
const CHUNKS_PER_TURN: u64 = 64;

/// Publishes with a journal on a real disk, for each policy and each durability.
fn keeping_allocates_nothing() {
    let directory = std::env::temp_dir().join(format!("streamdoor-kept-{}", std::process::id()));
    for durability in [Durability::Written, Durability::Synced] {
        for policy in Policy::ALL {
            let journal = Some(JournalConfig::at(&directory));
            let config = ShardConfig { journal, ..Default::default() };
            let (mut shard, _) = Shard::new(config).unwrap();
            let options = ExecuteOptions { durability: Some(durability), ..Default::default() };
            let id = shard.execute_prepared(Prepared::new(Work::Feed), options).unwrap();
            let filtered = SubscribeSpec {
                kinds: streamdoor::stream::Kinds::NONE.with(Kind::Stderr),
                ..spec(policy)
            };
            shard.subscribe(id, spec(policy), |_| {}).unwrap();
            shard.subscribe(id, filtered, |_| {}).unwrap();
            for seq in 1..=LAST_COUNTED {
                let kind = if seq.is_multiple_of(3) { Kind::Stderr } else { Kind::Stdout };
                shard.publish(id, kind, &[b'x'; 16]).unwrap();
                if seq == FIRST_COUNTED / 2 {
                    subscribe_late(&mut shard, id);
                }
                at_chunk(seq);
                if seq <= CHUNKS_WITH_TURNS || seq.is_multiple_of(CHUNKS_PER_TURN) {
                    shard.turn();
                }
            }
            assert_none(&format!("{durability}, {policy}"));
            let counters = shard.journal().unwrap().counters;
            println!("{durability}, {policy}: {} chunks missed", counters.missed_chunks);
            assert_eq!(counters.segments, 0, "another segment was made");
            drop(shard);
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }
}

fn across_threads_nothing_allocates(rings: RingPoolConfig) {
    for policy in Policy::ALL {
        let config = ShardConfig { rings, ..Default::default() };
        let (shard, _) = Shard::spawn(config, |shard| {
            shard
                .tools_mut()
                .insert_closure(ToolSpec::new("emit", "For a test."), |_, out| {
                    wait_for_all();
                    for seq in 1..=LAST_COUNTED + 10 {
                        out.send(&[b'x'; 100])?;
                        at_chunk(seq);
                    }
                    Ok(())
                })
                .expect("it is described right");
        })
        .unwrap();
        let deadline = Duration::from_secs(60);
        let options = ExecuteOptions {
            start: Start::AfterSubscribers { count: 3, deadline },
            hold: Hold::UntilRead { deadline },
            ..Default::default()
        };
        let id = shard.execute("emit", serde_json::Value::Null, options).unwrap();
        let have_begun = Arc::new(Barrier::new(3));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let mut subscriber = shard.subscribe(id, spec(policy)).unwrap();
                let has_begun = Arc::clone(&have_begun);
                std::thread::spawn(move || {
                    has_begun.wait();
                    while !matches!(subscriber.next(), Delivery::End(_)) {}
                    wait_until_counted(); // Under `disconnect` the stream may end early.
                })
            })
            .collect();
        // The third subscriber is on the shard's own thread.
        let local = shard.call(move |shard| shard.subscribe(id, spec(policy), |_| {}).is_ok());
        assert_eq!(local, Ok(true));
        have_begun.wait(); // A thread allocates when it starts.
        all_are_there(std::iter::once(&*shard));
        wait_until_counted();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_none(&format!("threads, {policy}, {} bytes at the start", rings.prealloc_bytes));
    }
}

/// Asserts that writing events as JSON lines into a large enough buffer does not allocate.
fn spelling_events_allocates_nothing() {
    let (execution, seq) = ("0123456789", 7);
    let text = "text with \"quotes\", \u{2028} and a line end\n".as_bytes();
    let mut out = Vec::with_capacity(64 << 10);
    at_chunk(FIRST_COUNTED);
    for data in [text, b"\xFF\0 not text"] {
        for offset in 0..100 {
            let chunk = events::ChunkEvent {
                execution,
                seq,
                total_chunks: Some(9),
                kind: "output",
                key: Some(1),
                offset,
                data,
                timestamp_us: 1,
                mono_ns: 2,
            };
            WireEvent::Chunk(chunk).write_line(&mut out);
        }
    }
    for progress in [1.0, 0.1, f64::MAX, f64::NAN] {
        let (total, message, context) = (Some(3.0), Some("so far"), None);
        let token = Some("0123456789");
        let percentage = Some(50.0);
        let event = events::ProgressEvent {
            execution,
            token,
            progress,
            total,
            percentage,
            message,
            context,
        };
        WireEvent::Progress(event).write_line(&mut out);
    }
    at_chunk(LAST_COUNTED);
    assert!(out.iter().filter(|byte| **byte == b'\n').count() == 204);
    assert_none("spelling events");
}

/// Asserts that framing events does not allocate. Frames them as a connection does that follows two
/// executions: one event in each HTTP chunk.
fn framing_them_allocates_nothing() {
    let executions = ["0123456789", "abcdefghij"];
    let (chunk_count, byte_count, reason) = (1, 100, "lag");
    let mut middle = Vec::with_capacity(1 << 10);
    let mut out = Vec::with_capacity(1 << 20);
    at_chunk(FIRST_COUNTED);
    for seq in 0..1_000 {
        let gap = events::GapEvent {
            execution: executions[0],
            from_seq: seq,
            to_seq: seq,
            chunk_count,
            byte_count,
            reason,
        };
        middle.clear();
        sse::write_event(&mut middle, &WireEvent::Gap(gap)); // All connections share it.
        #[cfg(feature = "server")]
        let chunk = http1::begin_chunk(&mut out);
        let (bytes, chunks, has_ended) = (1_000 * seq, Some(seq), false);
        let cursors =
            executions.map(|execution| Cursor { execution, seq, bytes, chunks, has_ended });
        sse::write_cursors(&mut out, &cursors);
        out.extend_from_slice(&middle);
        out.extend_from_slice(sse::END);
        #[cfg(feature = "server")]
        http1::end_chunk(&mut out, chunk);
    }
    sse::write_name(&mut out, "text").expect("it is a name");
    sse::write_data(&mut out, "one\r\ntwo\rthree\n");
    sse::write_retry(&mut out, Duration::from_secs(3));
    sse::write_comment(&mut out, "still\nhere");
    #[cfg(feature = "server")]
    {
        http1::write_chunk_size(&mut out, 0xABC);
        let date = http1::http_date(784_111_777);
        let mut head = http1::ResponseHead::begin(&mut out, http1::Status::OK, &date);
        head.header("content-type", sse::MEDIA_TYPE).expect("it is a value");
        head.finish(http1::Framing::Chunked, true);
    }
    at_chunk(LAST_COUNTED);
    assert!(out.len() > 100_000);
    assert_none("framing events");
    #[cfg(feature = "server")]
    reading_whole_requests_allocates_nothing();
}

/// Asserts that writing the MCP notifications of a running call does not allocate.
#[cfg(feature = "server")]
fn notifying_allocates_nothing() {
    use streamdoor::mcp::cursor::List;
    use streamdoor::mcp::notify::{
        self, ChunkNotification, Data, GapNotification, ProgressNotification,
    };
    use streamdoor::mcp::progress::Rising;
    use streamdoor::mcp::{Level, Version};
    use streamdoor::wire::jsonrpc::Id;

    let token = Id::of_text("token \" 1");
    let gap =
        GapNotification { from_seq: 1, to_seq: 2, chunk_count: 2, byte_count: 9, reason: "lag" };
    let (mut rising, mut out) = (Rising::new(), Vec::with_capacity(64 << 10));
    let mut byte_count = 0;
    at_chunk(FIRST_COUNTED);
    for seq in 0..1_000 {
        let text = ChunkNotification {
            seq,
            kind: "output",
            offset: 7,
            data: "text \u{2028}\n".as_bytes(),
        };
        let bytes = ChunkNotification { data: b"\xFF\0", ..text };
        let note = ProgressNotification {
            token: &token,
            progress: rising.next(seq as f64 / 3.0),
            total: Some(1e3),
            message: None,
            percentage: Some(0.5),
            context: None,
            gap: (seq % 7 == 0).then_some(gap),
            task: Some("task"),
            has_full_chunks: false,
        };
        let long = ChunkNotification { data: &[b'x'; 1_000], ..text };
        let full = ProgressNotification { has_full_chunks: true, ..note };
        notify::progress(&mut out, &note, [text, text].into_iter());
        notify::progress(&mut out, &note, [text, long].into_iter());
        notify::progress(&mut out, &full, [text, long].into_iter());
        notify::partial_result(&mut out, Version::LATEST, &token, seq, [text, bytes].into_iter());
        notify::message(&mut out, Level::Info, Some("tool"), Data::Text("a line"), None);
        notify::resources_updated(&mut out, "streamdoor://executions/x", Some(&token));
        notify::list_changed(&mut out, List::Tools, Some(&token));
        notify::cancelled(&mut out, &token, Some("why"));
        byte_count += out.len();
        out.clear(); // As if they had been sent.
    }
    at_chunk(LAST_COUNTED);
    assert!(byte_count > 1_000_000);
    assert_none("notifications of MCP");
}

/// Asserts that reading requests that arrive whole does not allocate: they are read in place.
#[cfg(feature = "server")]
fn reading_whole_requests_allocates_nothing() {
    let request = b"POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";
    let mut reader = http1::RequestReader::new();
    let mut part_count = 0;
    at_chunk(FIRST_COUNTED);
    for _ in 0..100 {
        let mut input = &request[..];
        while let Some(part) = reader.read(&mut input).expect("it is a good request") {
            std::hint::black_box(part);
            part_count += 1;
        }
    }
    at_chunk(LAST_COUNTED);
    assert_eq!(part_count, 300);
    assert_none("reading requests");
}
