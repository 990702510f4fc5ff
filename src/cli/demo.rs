//! `streamdoor demo`: the seeds' demonstration, for real. Several subscribers, each a thread of its
//! own with its own pace, follow one execution; then the table of their latencies.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use lexopt::prelude::*;
use serde_json::json;
use streamdoor::base::ExecutionId;
use streamdoor::engine::{EndState, Hold, Outcome, Policy, Start, SubscribeSpec};
use streamdoor::reactor::{Choice, Clock, Idle, OpenError, Watch};
use streamdoor::shard::{Delivery, ExecuteOptions, Shard, ShardConfig, ShardThread, Subscriber};
use streamdoor::trace::Histogram;

use super::results::{Checksum, Results, peak_memory_kib, print_table};
use super::{CliError, parsed};

const HELP: &str = "\
streamdoor demo: several subscribers on one execution, with their latencies

Usage: streamdoor demo [OPTIONS]

  --chunks N          how many chunks the tool makes                        [10]
  --delay-ms MS       how long it takes over each                           [200]
  --chunk-size BYTES  how long each is                        [100; of a file 32768]
  --subscribers N     how many follow it, each a thread of its own          [3]
  --process-ms LIST   how long they take over a chunk, in turn   [0,10,50; of a file 0]
  --policy P          what happens when one lags: drop, drop_oldest, buffer, block,
                      conflate, disconnect                    [drop; of a file block]
  --limit-chunks N    how far it may lag                      [what the policy says]
  --file PATH         stream this file instead, and print each subscriber's SHA-256
  --receipts WHICH    print each receipt: all, none, or auto (if not above 1,000)  [auto]
  --reactor R         auto, uring or mio                                    [auto]
  --idle I            spin, backoff or block                                [backoff]
  -h, --help          this text

Latency is from the moment the chunk is published to the moment the subscriber has it. A subscriber
that takes its time over a chunk finds the next ones waiting: that wait is in its latency.
";

const ATTACH_DEADLINE: Duration = Duration::from_secs(30);
const RECEIPTS_AUTO_MAX: u64 = 1_000;

#[derive(Clone, Debug)]
struct Options {
    chunks: u64,
    delay_ms: u64,
    chunk_size: Option<u64>,
    subscribers: usize,
    process_ms: Option<Vec<u64>>,
    policy: Option<Policy>,
    limit_chunks: Option<u32>,
    file: Option<PathBuf>,
    receipts: Receipts,
    reactor: Choice,
    idle: Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receipts {
    All,
    None,
    Auto,
}

impl std::str::FromStr for Receipts {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Receipts, &'static str> {
        match text {
            "all" => Ok(Receipts::All),
            "none" => Ok(Receipts::None),
            "auto" => Ok(Receipts::Auto),
            _ => Err("must be all, none or auto"),
        }
    }
}

fn options(mut parser: lexopt::Parser) -> Result<Option<Options>, CliError> {
    let mut options = Options {
        chunks: 10,
        delay_ms: 200,
        chunk_size: None,
        subscribers: 3,
        process_ms: None,
        policy: None,
        limit_chunks: None,
        file: None,
        receipts: Receipts::Auto,
        reactor: Choice::Auto,
        idle: Idle::Backoff,
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("chunks") => options.chunks = parsed("chunks", &mut parser)?,
            Long("delay-ms") => options.delay_ms = parsed("delay-ms", &mut parser)?,
            Long("chunk-size") => options.chunk_size = Some(parsed("chunk-size", &mut parser)?),
            Long("subscribers") => options.subscribers = parsed("subscribers", &mut parser)?,
            Long("process-ms") => options.process_ms = Some(list(&mut parser)?),
            Long("policy") => options.policy = Some(parsed("policy", &mut parser)?),
            Long("limit-chunks") => {
                options.limit_chunks = Some(parsed("limit-chunks", &mut parser)?);
            }
            Long("file") => options.file = Some(PathBuf::from(parser.value()?)),
            Long("receipts") => options.receipts = parsed("receipts", &mut parser)?,
            Long("reactor") => options.reactor = parsed("reactor", &mut parser)?,
            Long("idle") => options.idle = parsed("idle", &mut parser)?,
            other => return Err(other.unexpected().into()),
        }
    }
    let readers_max = streamdoor::limits::READERS_PER_EXECUTION_MAX as usize;
    if options.subscribers == 0 || options.subscribers > readers_max {
        let text = format!("--subscribers: must be from 1 to {readers_max}");
        return Err(CliError::Usage(text));
    }
    Ok(Some(options))
}

fn list(parser: &mut lexopt::Parser) -> Result<Vec<u64>, CliError> {
    let text = parser.value()?.string()?;
    let numbers: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
    numbers.map_err(|error| CliError::Usage(format!("--process-ms {text}: {error}")))
}

/// Carries out `streamdoor demo`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print!("{HELP}");
        return Ok(());
    };
    println!("=== streamdoor: the results of a tool, while it runs ===\n");
    let shard = spawn(&options)?;
    let began = Clock::now();
    let id = execute(&shard, &options)?;
    let readers = attach(&shard, id, &options)?;
    let results: Vec<Results> = readers
        .into_iter()
        .map(|reader| reader.join().map_err(|_| CliError::Failed("a subscriber died".to_owned())))
        .collect::<Result<_, _>>()?;
    let seconds = Clock::now().since(began).as_secs_f64();
    println!("\n=== Results ===");
    print_table(&results);
    let bytes: u64 = results.iter().map(|results| results.end.given.bytes).sum();
    let rate = bytes as f64 / seconds / f64::from(1 << 20);
    print!("{bytes} bytes delivered in {seconds:.2} s ({rate:.1} MiB/s)");
    match peak_memory_kib() {
        Some(kib) => println!(", peak memory {:.1} MiB", kib as f64 / 1_024.0),
        None => println!(),
    }
    verdict(&results)
}

fn spawn(options: &Options) -> Result<ShardThread, CliError> {
    let config = ShardConfig { reactor: options.reactor, idle: options.idle, ..Default::default() };
    let (shard, report) = Shard::spawn(config, |_| {}).map_err(|error| {
        let lacks = error.get_ref().is_some_and(|inner| inner.is::<OpenError>());
        let text = format!("the shard did not start: {error}");
        if lacks { CliError::Environment(text) } else { CliError::Failed(text) }
    })?;
    println!("[shard] {report}; idle: {}", options.idle);
    print_memory(&shard)?;
    Ok(shard)
}

/// The bill: what the rings may take, and who says so.
fn print_memory(shard: &ShardThread) -> Result<(), CliError> {
    let memory = shard.memory().map_err(|error| CliError::Failed(error.to_string()))?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    print!("[memory] rings take at most {:.2} MiB", mib(memory.rings_bytes_max));
    if let Some(limit_bytes) = Watch::of_process().readings().cgroup_limit_bytes {
        print!(" (the cgroup's limit is {:.2} MiB)", mib(limit_bytes));
    }
    println!(
        ", {:.2} MiB of it touched; the largest ring has {} KiB; pressure: {}",
        mib(memory.usage.committed_bytes),
        memory.largest_class_bytes >> 10,
        memory.pressure
    );
    Ok(())
}

fn execute(shard: &ShardThread, options: &Options) -> Result<ExecutionId, CliError> {
    let (tool, arguments) = match &options.file {
        Some(path) => {
            let chunk_size = options.chunk_size.unwrap_or(32 << 10);
            let path = path
                .to_str()
                .ok_or_else(|| CliError::Usage("--file: the path is not UTF-8".to_owned()))?;
            ("process_file", json!({"file_path": path, "chunk_size": chunk_size}))
        }
        None => {
            let (chunks, delay_ms) = (options.chunks, options.delay_ms);
            let chunk_size = options.chunk_size.unwrap_or(100);
            let arguments =
                json!({"chunks": chunks, "delay_ms": delay_ms, "chunk_size": chunk_size});
            ("slow_data_processor", arguments)
        }
    };
    let count = options.subscribers as u32;
    let execute = ExecuteOptions {
        start: Start::AfterSubscribers { count, deadline: ATTACH_DEADLINE },
        hold: Hold::UntilRead { deadline: ATTACH_DEADLINE },
        ..Default::default()
    };
    let id = shard
        .execute(tool, arguments, execute)
        .map_err(|error| CliError::Usage(format!("{tool}: {error}")))?;
    println!("[execution] {tool} {id}");
    Ok(id)
}

fn attach(
    shard: &ShardThread,
    id: ExecutionId,
    options: &Options,
) -> Result<Vec<JoinHandle<Results>>, CliError> {
    let of_file = options.file.is_some();
    let policy = options.policy.unwrap_or(if of_file { Policy::Block } else { Policy::Drop });
    let pace = options.process_ms.clone();
    let pace = pace.unwrap_or_else(|| if of_file { vec![0] } else { vec![0, 10, 50] });
    let spec = SubscribeSpec { policy, limit_chunks: options.limit_chunks, ..Default::default() };
    let receipts = options.receipts;
    let mut readers = Vec::new();
    for at in 0..options.subscribers {
        let subscriber = shard
            .subscribe(id, spec)
            .map_err(|error| CliError::Usage(format!("subscriber {}: {error}", at + 1)))?;
        let processing = Duration::from_millis(pace[at % pace.len()]);
        let limit = subscriber.terms().limit.chunks;
        println!(
            "[subscriber {}] subscribed: {policy}, at most {limit} chunks behind, {} ms per chunk",
            at + 1,
            processing.as_millis()
        );
        readers.push((at + 1, subscriber, processing));
    }
    println!();
    let threads = readers.into_iter().map(|(number, subscriber, processing)| {
        let name = format!("subscriber-{number}");
        let follow = move || follow(number, subscriber, processing, receipts, of_file);
        std::thread::Builder::new()
            .name(name)
            .spawn(follow)
            .map_err(|error| CliError::Failed(format!("no thread for a subscriber: {error}")))
    });
    threads.collect()
}

/// One subscriber, to its end.
fn follow(
    number: usize,
    mut subscriber: Subscriber,
    processing: Duration,
    receipts: Receipts,
    with_checksum: bool,
) -> Results {
    let mut latency = Histogram::default();
    let mut checksum = Checksum::new(with_checksum);
    loop {
        match subscriber.next() {
            Delivery::Chunk(chunk) => {
                let waited = Clock::now().since(chunk.published_at);
                latency.record(waited.as_nanos() as u64);
                checksum.update(chunk.data);
                let of = chunk.chunks_expected.map_or_else(String::new, |n| format!("/{n}"));
                let few = chunk.chunks_expected.is_none_or(|n| n <= RECEIPTS_AUTO_MAX);
                if receipts == Receipts::All || (receipts == Receipts::Auto && few) {
                    let us = waited.as_nanos() as f64 / 1_000.0;
                    println!("[subscriber {number}] chunk {}{of} (latency {us:.1} µs)", chunk.seq);
                }
                if processing > Duration::ZERO {
                    std::thread::sleep(processing);
                }
            }
            Delivery::Gap(gap) => println!(
                "[subscriber {number}] missed {} chunks, {} to {} ({})",
                gap.chunk_count, gap.from_seq, gap.to_seq, gap.reason
            ),
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                let end = ended.end;
                println!(
                    "[subscriber {number}] {}: {} chunks, {} missed",
                    end.state, end.given.chunks, end.missed.chunks
                );
                let error = ended.error.map(str::to_owned);
                let sha256 = checksum.finish();
                return Results { processing, latency, end, error, sha256 };
            }
        }
    }
}

/// Failed if the execution did, or if a subscriber was let go before its end.
fn verdict(results: &[Results]) -> Result<(), CliError> {
    let bad =
        results.iter().find(|results| results.end.state != EndState::Ended(Outcome::Completed));
    match bad {
        None => Ok(()),
        Some(Results { error: Some(error), .. }) => Err(CliError::Failed(error.clone())),
        Some(Results { end, .. }) => Err(CliError::Failed(format!("ended {}", end.state))),
    }
}
