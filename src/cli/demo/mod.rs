//! `streamdoor demo`: several subscribers, each on a thread with its own pace, follow one
//! execution. Without options, `show.rs` compares policies. With options, the command measures the
//! chosen case, and prints a table of latencies.

mod show;

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;
use serde_json::json;
use streamdoor::base::Instant;
use streamdoor::engine::SubscribeSpec;
use streamdoor::shard::{Delivery, ExecuteOptions, Subscriber};
use streamdoor::stream::{End, Policy};

use super::console::print_out;
use super::options::{Common, Span, spelled};
use super::session::{self, DeliveryHandler, LocalSession};
use super::words::{counted, time};
use super::{CliError, parsed, results};

pub const HELP: &str = "\
streamdoor demo: run one execution with several subscribers, and compare what they receive

Usage: streamdoor demo             compare three policies and a late subscriber, in ten seconds
       streamdoor demo OPTIONS     measure one case: print each receipt, and a table of latencies

  --chunks N          the number of chunks that the tool makes              [10]
  --delay T           the time it takes for each chunk                      [200ms]
  --chunk-size BYTES  the size of each chunk                 [100; of a file 32768]
  --subscribers N     the number of subscribers, each with its own thread   [3]
  --process LIST      the time each subscriber takes for a chunk, in turn
                                                    [0,10ms,50ms; of a file 0]
  --policy P          the behaviour when a subscriber lags: drop, drop_oldest, buffer, block,
                      conflate, disconnect, replay            [drop; of a file block]
  --max-chunks N      how far it may lag                      [the policy's default]
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
    delay: Duration,
    chunk_size: Option<u64>,
    process: Option<Vec<Duration>>,
    file: Option<PathBuf>,
    receipts: Receipts,
    common: Common,
    /// True if options choose a case to be measured.
    is_measured: bool,
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
        delay: Duration::from_millis(200),
        chunk_size: None,
        process: None,
        file: None,
        receipts: Receipts::Auto,
        common: Common::new(3),
        is_measured: false,
    };
    while let Some(argument) = parser.next()? {
        options.is_measured |= !matches!(argument, Long("reactor" | "idle"));
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("chunks") => options.chunks = parsed("chunks", &mut parser)?,
            Long("delay") => Span(options.delay) = parsed("delay", &mut parser)?,
            Long("chunk-size") => options.chunk_size = Some(parsed("chunk-size", &mut parser)?),
            Long("process") => options.process = Some(list(&mut parser)?),
            Long("file") => options.file = Some(PathBuf::from(parser.value()?)),
            Long("receipts") => options.receipts = parsed("receipts", &mut parser)?,
            Long(other) => {
                let other = other.to_owned();
                options.common.take(&other, &mut parser)?;
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if !options.delay.as_nanos().is_multiple_of(1_000_000) {
        let delay = spelled(options.delay);
        return Err(CliError::Usage(format!("--delay {delay}: must be whole milliseconds")));
    }
    Ok(Some(options))
}

fn list(parser: &mut lexopt::Parser) -> Result<Vec<Duration>, CliError> {
    let text = parser.value()?.string()?;
    let spans: Result<Vec<Span>, _> = text.split(',').map(str::parse).collect();
    let spans = spans.map_err(|problem| {
        CliError::Usage(format!("--process {text}: each {problem}, as 0,10ms,50ms"))
    })?;
    Ok(spans.into_iter().map(|Span(time)| time).collect())
}

/// Carries out `streamdoor demo`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    if !options.is_measured {
        return show::run((options.common.reactor, options.common.idle));
    }
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
    let verdict = results::verdict(&results);
    if verdict.is_ok() || results.iter().any(|results| results.end.given.chunks > 0) {
        print_out!("\n=== Results ===");
        print_out!("{}", results::table(&results, "processing", took));
    }
    verdict
}

/// Returns the tool and its arguments.
fn call(options: &DemoOptions) -> Result<(&'static str, serde_json::Value), CliError> {
    let Some(path) = &options.file else {
        let chunk_size = options.chunk_size.unwrap_or(100);
        let (chunks, delay_ms) = (options.chunks, options.delay.as_millis() as u64);
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
    let pace = options.process.clone().unwrap_or_else(|| {
        let pace_ms: &[u64] = if of_file { &[0] } else { &[0, 10, 50] };
        pace_ms.iter().copied().map(Duration::from_millis).collect()
    });
    let receipts = options.receipts;
    let watchers = (0..options.common.subscribers).map(|at| {
        let processing = pace[at % pace.len()];
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
            "[subscriber {}] subscribed: {}, at most {} chunks behind, {} per chunk",
            self.number,
            terms.policy,
            terms.limit.chunks,
            spelled(self.processing)
        );
    }

    fn take(&mut self, delivery: &Delivery<'_>, now: Instant) {
        let number = self.number;
        match delivery {
            Delivery::Chunk(chunk) => {
                let of = chunk.chunks_expected.map_or_else(String::new, |n| format!("/{n}"));
                let few = chunk.chunks_expected.is_none_or(|n| n <= RECEIPTS_AUTO_MAX);
                if self.receipts == Receipts::All || (self.receipts == Receipts::Auto && few) {
                    let latency = time(now.since(chunk.published_at));
                    print_out!("[subscriber {number}] chunk {}{of} (latency {latency})", chunk.seq);
                }
                if self.processing > Duration::ZERO {
                    std::thread::sleep(self.processing);
                }
            }
            Delivery::Gap(gap) => print_out!(
                "[subscriber {number}] missed {}, {} to {} ({})",
                counted(gap.chunk_count, "chunk"),
                gap.from_seq,
                gap.to_seq,
                gap.reason
            ),
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                let end = ended.end;
                print_out!(
                    "[subscriber {number}] {}: {}, {} missed",
                    end.state,
                    counted(end.given.chunks, "chunk"),
                    end.missed.chunks
                );
            }
        }
    }

    fn label(&self, _end: &End) -> String {
        spelled(self.processing)
    }
}
