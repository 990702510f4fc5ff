//! `streamdoor demo`: several subscribers, each on a thread with its own pace, follow one
//! execution. At the end, the command prints a table of their latencies.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;
use serde_json::json;
use streamdoor::base::Instant;
use streamdoor::engine::SubscribeSpec;
use streamdoor::shard::{Delivery, ExecuteOptions, Subscriber};
use streamdoor::stream::{End, Policy};

use super::console::print_out;
use super::hints::wrong_value;
use super::options::Common;
use super::session::{self, DeliveryHandler, LocalSession};
use super::{CliError, parsed, results};

pub const HELP: &str = "\
streamdoor demo: run one execution with several subscribers, and show their latencies

Usage: streamdoor demo [OPTIONS]

  --chunks N          the number of chunks that the tool makes              [10]
  --delay-ms MS       the time it takes for each chunk                      [200]
  --chunk-size BYTES  the size of each chunk                 [100; of a file 32768]
  --subscribers N     the number of subscribers, each with its own thread   [3]
  --process-ms LIST   the time each subscriber takes for a chunk, in turn
                                                             [0,10,50; of a file 0]
  --policy P          the behaviour when a subscriber lags: drop, drop_oldest, buffer, block,
                      conflate, disconnect                    [drop; of a file block]
  --limit-chunks N    how far it may lag                      [the policy's default]
  --file PATH         stream this file instead, and print each subscriber's SHA-256
  --receipts WHICH    print each receipt: all, none, or auto (up to 1,000)  [auto]
  --reactor R         auto, uring or mio                                    [auto]
  --idle I            spin, backoff or block                                [backoff]
  -h, --help          show this text

Latency is the time from the publication of a chunk until a subscriber has it. A subscriber that is
slow with a chunk finds the next ones waiting: that wait counts as latency.
";

const RECEIPTS_AUTO_MAX: u64 = 1_000;

#[derive(Clone, Debug)]
struct DemoOptions {
    chunks: u64,
    delay_ms: u64,
    chunk_size: Option<u64>,
    process_ms: Option<Vec<u64>>,
    file: Option<PathBuf>,
    receipts: Receipts,
    common: Common,
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

fn options(mut parser: lexopt::Parser) -> Result<Option<DemoOptions>, CliError> {
    let mut options = DemoOptions {
        chunks: 10,
        delay_ms: 200,
        chunk_size: None,
        process_ms: None,
        file: None,
        receipts: Receipts::Auto,
        common: Common::new(3),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("chunks") => options.chunks = parsed("chunks", &mut parser)?,
            Long("delay-ms") => options.delay_ms = parsed("delay-ms", &mut parser)?,
            Long("chunk-size") => options.chunk_size = Some(parsed("chunk-size", &mut parser)?),
            Long("process-ms") => options.process_ms = Some(list(&mut parser)?),
            Long("file") => options.file = Some(PathBuf::from(parser.value()?)),
            Long("receipts") => options.receipts = parsed("receipts", &mut parser)?,
            Long(other) => {
                let other = other.to_owned();
                options.common.take(&other, &mut parser)?;
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(options))
}

fn list(parser: &mut lexopt::Parser) -> Result<Vec<u64>, CliError> {
    let text = parser.value()?.string()?;
    let numbers: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
    numbers.map_err(|error| {
        let problem = wrong_value::<u64>(&text, &error);
        CliError::Usage(format!("--process-ms {text}: each {problem}"))
    })
}

/// Carries out `streamdoor demo`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    print_out!("=== streamdoor: the results of a running tool ===\n");
    let (tool, arguments) = call(&options)?;
    let prepared = session::prepare(&session::tools(false), tool, &arguments)?;
    let Common { subscribers, reactor, idle, .. } = options.common;
    let session =
        LocalSession::open((reactor, idle), prepared, subscribers, ExecuteOptions::default())?;
    print_out!("[shard] {}; idle: {idle}", session.report());
    print_out!("[memory] {}", session.memory_budget()?);
    print_out!("[execution] {tool} {}", session.id());
    let (spec, watchers) = followers(&options);
    let (results, took) = session.follow(spec, watchers, options.file.is_some())?;
    print_out!("\n=== Results ===");
    print_out!("{}", results::table(&results, "processing", took));
    results::verdict(&results)
}

/// Returns the tool and its arguments.
fn call(options: &DemoOptions) -> Result<(&'static str, serde_json::Value), CliError> {
    let Some(path) = &options.file else {
        let chunk_size = options.chunk_size.unwrap_or(100);
        let (chunks, delay_ms) = (options.chunks, options.delay_ms);
        let arguments = json!({"chunks": chunks, "delay_ms": delay_ms, "chunk_size": chunk_size});
        return Ok(("slow_data_processor", arguments));
    };
    let chunk_size = options.chunk_size.unwrap_or(32 << 10);
    let not_text = || CliError::Usage("--file: the path is not UTF-8".to_owned());
    let path = path.to_str().ok_or_else(not_text)?;
    Ok(("process_file", json!({"file_path": path, "chunk_size": chunk_size})))
}

/// Returns the terms of the subscribers, and a watcher for each.
fn followers(options: &DemoOptions) -> (SubscribeSpec, Vec<Box<dyn DeliveryHandler>>) {
    let of_file = options.file.is_some();
    let default = if of_file { Policy::Block } else { Policy::Drop };
    let policy = options.common.policy.unwrap_or(default);
    let limit_chunks = options.common.limit_chunks;
    let spec = SubscribeSpec { policy, limit_chunks, ..Default::default() };
    let pace = options.process_ms.clone();
    let pace = pace.unwrap_or_else(|| if of_file { vec![0] } else { vec![0, 10, 50] });
    let receipts = options.receipts;
    let watchers = (0..options.common.subscribers).map(|at| {
        let processing = Duration::from_millis(pace[at % pace.len()]);
        Box::new(DemoSubscriber { number: at + 1, processing, receipts })
            as Box<dyn DeliveryHandler>
    });
    (spec, watchers.collect())
}

/// One subscriber: it prints what it receives, and takes its time over each chunk.
struct DemoSubscriber {
    number: usize,
    processing: Duration,
    receipts: Receipts,
}

impl DeliveryHandler for DemoSubscriber {
    fn attached(&mut self, subscriber: &Subscriber) {
        let terms = subscriber.terms();
        print_out!(
            "[subscriber {}] subscribed: {}, at most {} chunks behind, {} ms per chunk",
            self.number,
            terms.policy,
            terms.limit.chunks,
            self.processing.as_millis()
        );
    }

    fn take(&mut self, delivery: &Delivery<'_>, now: Instant) {
        let number = self.number;
        match delivery {
            Delivery::Chunk(chunk) => {
                let of = chunk.chunks_expected.map_or_else(String::new, |n| format!("/{n}"));
                let few = chunk.chunks_expected.is_none_or(|n| n <= RECEIPTS_AUTO_MAX);
                if self.receipts == Receipts::All || (self.receipts == Receipts::Auto && few) {
                    let us = now.since(chunk.published_at).as_nanos() as f64 / 1_000.0;
                    print_out!(
                        "[subscriber {number}] chunk {}{of} (latency {us:.1} µs)",
                        chunk.seq
                    );
                }
                if self.processing > Duration::ZERO {
                    std::thread::sleep(self.processing);
                }
            }
            Delivery::Gap(gap) => print_out!(
                "[subscriber {number}] missed {} chunks, {} to {} ({})",
                gap.chunk_count,
                gap.from_seq,
                gap.to_seq,
                gap.reason
            ),
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                let end = ended.end;
                print_out!(
                    "[subscriber {number}] {}: {} chunks, {} missed",
                    end.state,
                    end.given.chunks,
                    end.missed.chunks
                );
            }
        }
    }

    fn label(&self, _end: &End) -> String {
        format!("{} ms", self.processing.as_millis())
    }
}
