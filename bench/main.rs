//! `bench`: measures streamdoor side by side with the least that the machine allows.
//!
//! Each workload has a subcommand and a file of its own. Workloads share their loop, recorder and
//! report (`common/`) with the package `bench/peers`, which measures third-party crates.
//! `tools/bench` runs all of them interleaved and compares. Tests: `tests/bench_smoke.rs`.

#[cfg(feature = "server")]
mod agent;
#[cfg(feature = "cluster")]
mod cluster;
mod common;
mod door;
mod fanout;
mod floor;
mod instructions;
mod journal;
mod long;
mod mcp;
mod ours;
mod overload;
mod serve;
mod streams;

use std::process::ExitCode;

use common::{Failure, exit_code, print};

const HELP: &str = "\
bench: run the benchmarks of streamdoor

Usage: bench <command> [options]

  floor     measure the limits of the machine: clock, cache line, a bare ring
  fanout    measure one producer and N subscribers: latency of an open loop, or throughput
  serve     measure the same for a streaming server and its subscribers over TCP
  server    run streamdoor's server as serve starts it
  door      measure one producer and N readers in another process, through shared memory
  agent     measure deltas of models through runs of agents, beside a plain pipe
  mcp       measure calls of MCP with progress, over HTTP and over standard streams
  journal   measure the log on disk: durable messages, bulk, replay and recovery
  streams   measure servers of Durable Streams: appends, readers that follow, readers that catch up
  cluster   measure clients of one node that follow executions of another (feature cluster)
  overload  measure the cost of slow readers for the other readers of a server
  soak      run short executions of every kind, and record the server's memory
  idle      run an idle server, and record the counters of the kernel
  instructions
            count the instructions and cache lines of hot operations, and compare them with the
            record

Each command has --help. `tools/bench` runs them interleaved with other crates and compares.
Exit codes: 0 done, 1 failed, 2 bad usage, 3 this machine lacks something.
";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next();
    let command = command.as_ref().map(|word| word.to_string_lossy());
    exit_code(
        "bench",
        match command.as_deref() {
            Some("floor") => floor::command(arguments),
            Some("fanout") => fanout::command(arguments),
            Some("serve") => serve::command(arguments),
            Some("door") => door::command(arguments),
            #[cfg(feature = "server")]
            Some("agent") => agent::command(arguments),
            Some("mcp") => mcp::command(arguments),
            Some("journal") => journal::command(arguments),
            #[cfg(feature = "cluster")]
            Some("cluster") => cluster::command(arguments),
            Some("overload") => overload::command(arguments),
            Some("streams") => streams::command(arguments),
            Some("soak") => long::soak(arguments),
            Some("idle") => long::idle(arguments),
            Some("instructions") => instructions::command(arguments),
            Some("server") => serve::ours::command(arguments),
            Some("--help" | "-h" | "help") => {
                print(HELP);
                Ok(())
            }
            Some(other) => Err(Failure::Usage(format!("\"{other}\" is not a command"))),
            None => Err(Failure::Usage("no command is given".into())),
        },
    )
}
