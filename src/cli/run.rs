//! `streamdoor run`: runs a tool, and shows its results as they come. At the end, the command
//! prints a summary, or a table of the results of each subscriber.

use std::io::{self, IsTerminal};
use std::time::Duration;

use lexopt::prelude::*;
use streamdoor::engine::SubscribeSpec;
use streamdoor::shard::ExecuteOptions;
use streamdoor::tool::SubscribeDefaults;

use super::arguments::Arguments;
use super::console::print_out;
use super::options::{Common, TimeoutOptions};
use super::output::OutputOptions;
use super::progress::Meter;
use super::results::{LastWords, Results};
use super::session::{self, DeliveryHandler, LocalSession};
use super::signals::stop_on_interrupt;
use super::upstreams::McpOptions;
use super::view::{Counter, ViewWriter};
use super::words::counted;
use super::{CliError, results};

pub const HELP: &str = "\
streamdoor run: run a tool, and show its results as they arrive

Usage: streamdoor run [OPTIONS] TOOL

Arguments of the tool (`streamdoor tools TOOL` lists them):
  --arg KEY=VALUE     one argument; VALUE is JSON, or a string if the tool takes a string
  --args-json JSON    several arguments as a JSON object; --arg overrides them
  --allow-commands    also offer the tools that run other programs
  --mcp [NAME=]COMMAND|URL
                      also offer the tools of another MCP server; may be repeated
  --mcp-tools [NAME:]RULES
                      choose and rename its tools, as for `streamdoor serve`

Results:
  --format F          raw: the bytes unchanged
                      ndjson (or json): all events, one JSON object a line
                      text: the chunks as far as a terminal can show them
                      table: no chunks, only the table at the end
  --out FILE|-        write them to FILE, or to standard output
  --stats             print a table at the end: the chunks, losses and latencies of each
                      subscriber
  --hash              print the SHA-256 of the bytes that each subscriber received
  --progress          print the progress even if standard error is no terminal

  Without --format and --out, a terminal shows the text in the chunks, and a pipe receives the bytes
  (raw); with --hash, only checksums are printed. With --out alone, the format is raw. The table
  and the checksums are on standard error if chunks are on standard output. The last line on
  standard error sums up the first subscriber.

Execution:
  --subscribers N     the number of subscribers, each with its own thread; only the first one's
                      results are shown                           [1]
  --policy P          the behaviour when a subscriber lags: drop, drop_oldest, buffer, block,
                      conflate, disconnect, replay
                                      [on a terminal the tool's default, elsewhere block]
  --max-chunks N      how far it may lag                          [the policy's default]
  --first-chunk-timeout T, --inactivity-timeout T, --timeout T
                      the longest time until the first chunk, between chunks, and in total:
                      500ms, 30s, 2m, 1h, or none                 [the tool's default]
  --reactor R         auto, uring or mio                          [auto]
  --idle I            spin, backoff or block                      [backoff]
  -h, --help          show this text

Ctrl-C (or SIGTERM) stops the tool, and the summary is still printed. A second one ends the program.
If the reader of the results exits (`| head -1`), the tool is stopped, and that is no failure.

Results in a file or a pipe are whole, unless --policy allows losses. A line then tells them.

Exit codes: 0 completed; 1 failed, cancelled or timed out; 2 bad usage; 3 the environment lacks
something; 4 chunks are missing from the results.
If the tool runs a program (run_command) and that fails, the exit code is that of the program, or
128 plus the number of the signal that killed it. The last line then begins with
`streamdoor: the tool's program failed`.
";

/// The deadline for readers that hold the tool back. The reader of standard output may pause, as a
/// pager does. The pipe then holds the tool back on purpose, so this deadline is out of reach.
const BLOCK_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3_600);

struct RunOptions {
    tool: String,
    arguments: Arguments,
    allow_commands: bool,
    stats: bool,
    mcp: McpOptions,
    output: OutputOptions,
    timeouts: TimeoutOptions,
    common: Common,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<RunOptions>, CliError> {
    let mut options = RunOptions {
        tool: String::new(),
        arguments: Arguments::default(),
        allow_commands: false,
        stats: false,
        mcp: McpOptions::default(),
        output: OutputOptions::default(),
        timeouts: TimeoutOptions::default(),
        common: Common::new(1),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("allow-commands") => options.allow_commands = true,
            Long("stats") => options.stats = true,
            Long(name) => {
                let name = name.to_owned();
                let is_taken = options.arguments.take(&name, &mut parser)?
                    || options.output.take(&name, &mut parser)?
                    || options.mcp.take(&name, &mut parser)?
                    || options.timeouts.take(&name, &mut parser)?;
                if !is_taken {
                    options.common.take(&name, &mut parser)?;
                }
            }
            Value(name) if options.tool.is_empty() => options.tool = name.string()?,
            other => return Err(other.unexpected().into()),
        }
    }
    if options.tool.is_empty() {
        return Err(CliError::Usage("no tool is given; `streamdoor tools` lists them".to_owned()));
    }
    Ok(Some(options))
}

impl RunOptions {
    fn subscribe_spec(&self, declared: SubscribeDefaults) -> SubscribeSpec {
        let policy = self.output.policy(self.common.policy).unwrap_or(declared.policy);
        // The tool declares its limits for its own policy.
        let declared = if policy == declared.policy { declared } else { Default::default() };
        SubscribeSpec {
            policy,
            limit_chunks: self.common.limit_chunks.or(declared.limit_chunks),
            limit_bytes: declared.limit_bytes,
            ..Default::default()
        }
    }
}

/// Carries out `streamdoor run`.
pub fn run(parser: lexopt::Parser) -> Result<(), CliError> {
    let Some(mut options) = options(parser)? else {
        print_out!("{}", HELP.trim_end());
        return Ok(());
    };
    let (place, view) = options.output.view(io::stdout().is_terminal())?;
    let mut tools = session::tools(options.allow_commands);
    let upstreams = options.mcp.add_to(&mut tools)?;
    let spec = session::spec(&tools, &options.tool)?;
    let arguments = std::mem::take(&mut options.arguments).merged(&spec.arguments)?;
    let prepared = session::prepare(&tools, &options.tool, &arguments)?;
    let execute_options = ExecuteOptions {
        timeouts: Some(options.timeouts.over(prepared.timeouts)),
        block_deadline: Some(BLOCK_DEADLINE),
        ..Default::default()
    };
    let subscribe_spec = options.subscribe_spec(spec.subscribers);
    // Truncating an older file cannot be undone, so this comes last.
    let file = place.open()?;
    let Common { subscribers, reactor, idle, .. } = options.common;
    let session = LocalSession::open((reactor, idle), prepared, subscribers, execute_options)?;
    let canceller = session.canceller();
    stop_on_interrupt(move || canceller.cancel())?;
    let writer = ViewWriter::new(
        (options.tool.clone(), session.names()),
        Meter::new(options.output.style()),
        session.canceller(),
        file.map(|file| (file, view)),
    );
    let mut watchers: Vec<Box<dyn DeliveryHandler>> = vec![Box::new(writer)];
    watchers.resize_with(subscribers, || Box::new(Counter));
    let head = format!("{} {}; {}", options.tool, session.id(), session.report());
    let (results, took) = session.follow(subscribe_spec, watchers, options.output.hash)?;
    upstreams.end();
    let unwritten = results.iter().find_map(|results| results.output.as_ref().err());
    let report = if options.stats || options.output.is_table() {
        format!("{head}\n{}", results::table(&results, "ended", took))
    } else {
        results::checksums(&results)
    };
    let words = LastWords { report, summary: summary(&results, took) };
    let verdict = results::verdict(&results).and_then(|()| {
        let is_kept = |at| options.output.hash || (at == 0 && options.output.is_kept());
        let missed = results.iter().map(|results| results.end.missed);
        missed
            .enumerate()
            .try_for_each(|(at, missed)| results::whole(is_kept(at), subscribe_spec.policy, missed))
    });
    place.conclude(unwritten, words, verdict)
}

/// Returns the summary of the first subscriber, and the losses of all others.
fn summary(all: &[Results], took: Duration) -> String {
    let Some((first, others)) = all.split_first() else { return String::new() };
    let mut text = results::summary(&first.end, took);
    let missed: u64 = others.iter().map(|results| results.end.missed.chunks).sum();
    if missed > 0 {
        text += &format!(", {} missed by other subscribers", counted(missed, "chunk"));
    }
    text
}
