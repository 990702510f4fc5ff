//! `peers`: third-party crates under the loop, load and recorder of `bench fanout`.
//!
//! This is a package of its own, so that a build of streamdoor does not build these crates. Each
//! crate has a file, which describes its use. All are used without loss. If a crate would overwrite
//! (tokio's `broadcast`), its producer checks the slowest receiver, as rarely as possible. `erlang`
//! is not a crate, but a script in a process of its own. `sse` is a server that `bench serve` runs.
//! `mcp` is one that `bench mcp` runs, beside those in other languages (`bench/peers/mcp`). `door`
//! is the same as `bench door` for other transports, and `journal` as `bench journal` for other
//! logs on disk. `cluster` is the same as `bench cluster` for logs that users put between nodes.

#[path = "../../common/mod.rs"]
mod common;

mod channels;
#[cfg(feature = "cluster")]
mod cluster;
mod door;
mod durable;
mod erlang;
mod journal;
mod mcp;
mod payload;
mod ring;
mod sse;
mod timer;
mod tokio_broadcast;

use std::ffi::OsString;
use std::process::ExitCode;

use common::drive::run;
use common::machine::{peak_memory_kib, wall_time};
use common::params::{Fanout, Mode, OPTIONS_HELP, Payload, Program};
use common::report::{Outcome, fanout_report};
use common::{Failure, drive, exit_code, files, print};
use payload::{SHARED_FROM_BYTES, Shared, Value};

const PROGRAM: Program = Program {
    implementations: &[
        "disruptor",
        "tokio-broadcast",
        "tokio-broadcast-tasks",
        "tokio-broadcast-x",
        "tokio-broadcast-x-tasks",
        "crossbeam",
        "rtrb",
        "erlang",
    ],
    has_payload: true,
};

const HELP: &str = "\
peers fanout: measure other crates with the loop of `bench fanout`

Usage: peers fanout [options]

  --impl NAME         the implementation to measure (disruptor):
                      disruptor                one ring, single producer, an EventPoller per
                                               subscriber; filled in place
                      tokio-broadcast          sync::broadcast, try_recv on the producer's thread
                      tokio-broadcast-tasks    sync::broadcast, one task per subscriber on the
                                               producer's current-thread runtime
                      tokio-broadcast-x        sync::broadcast, try_recv polled on another thread
                      tokio-broadcast-x-tasks  sync::broadcast, one task per subscriber on another
                                               thread's current-thread runtime
                      crossbeam                a bounded channel per subscriber, try_recv
                      rtrb                     a queue per subscriber, read in chunks
                      erlang                   a gen_server and a process per subscriber, in
                                               Erlang's virtual machine, on one cpu; a rate only
                      tokio-broadcast-x is --mode threads only, its tasks blocked only, the other
                      two and erlang inline only
  --payload value|arc [u8; SIZE] by value, or Arc<[u8]>: one allocation per chunk, one count per
                      subscriber (value up to 1,024 B, arc above; disruptor: always in place).
                      By value and in place: sizes 16, 64, 100, 256, 1024, 4096, 32768
";

const USAGE: &str = "usage: peers fanout|sse|durable|mcp|door|journal|cluster [options]\n";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next();
    let command = command.as_ref().map(|word| word.to_string_lossy());
    exit_code(
        "peers",
        match command.as_deref() {
            Some("fanout") => fanout(arguments),
            Some("door") => door::command(arguments),
            Some("sse") => sse::command(arguments),
            Some("durable") => durable::command(arguments),
            Some("mcp") => mcp::command(arguments),
            Some("journal") => journal::command(arguments),
            #[cfg(feature = "cluster")]
            Some("cluster") => cluster::command(arguments),
            #[cfg(not(feature = "cluster"))]
            Some("cluster") => Err(Failure::Environment(
                "cluster: this program was built without the feature `cluster`".into(),
            )),
            Some("--help" | "-h" | "help") => {
                let others = [
                    sse::HELP,
                    durable::HELP,
                    mcp::HELP,
                    door::HELP,
                    journal::HELP,
                    #[cfg(feature = "cluster")]
                    cluster::HELP,
                ];
                let others = others.join("\n");
                print(&format!("{USAGE}{HELP}\n{others}"));
                Ok(())
            }
            _ => Err(Failure::Usage(
                "the commands are fanout, sse, durable, mcp, door, journal and cluster".into(),
            )),
        },
    )
}

fn fanout(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some(params) = Fanout::parse(&PROGRAM, arguments)? else {
        print(&format!("{HELP}{OPTIONS_HELP}"));
        return Ok(());
    };
    let (outcome, other_kib) = match params.implementation {
        "erlang" => erlang::measure(&params).map(|(outcome, kib)| (outcome, Some(kib)))?,
        _ => (measure(&params)?, None),
    };
    files::write("peers", &params, &outcome, wall_time())?;
    let memory_kib = other_kib.unwrap_or_else(|| peak_memory_kib(std::process::id()));
    print(&fanout_report("peers", &params, &outcome, memory_kib));
    Ok(())
}

/// Calls `$go` with the type that carries a payload of `$size_bytes` by value.
macro_rules! by_value {
    ($size_bytes:expr, $go:ident) => {
        match $size_bytes {
            16 => $go!(Value<16>),
            64 => $go!(Value<64>),
            100 => $go!(Value<100>),
            256 => $go!(Value<256>),
            1_024 => $go!(Value<1_024>),
            4_096 => $go!(Value<4_096>),
            32_768 => $go!(Value<32_768>),
            other => Err(Failure::Usage(format!(
                "--size {other}: by value, the sizes are 16, 64, 100, 256, 1024, 4096 and 32768"
            ))),
        }
    };
}

fn measure(params: &Fanout) -> Result<Outcome, Failure> {
    if params.implementation == "disruptor" {
        if params.payload == Some(Payload::Shared) {
            return Err(Failure::Usage("--payload: disruptor's slots are filled in place".into()));
        }
        macro_rules! go {
            ($payload:ty) => {
                ring::measure::<$payload>(params)
            };
        }
        return by_value!(params.size_bytes, go);
    }
    let shared = params.size_bytes >= SHARED_FROM_BYTES;
    match params.payload.unwrap_or(if shared { Payload::Shared } else { Payload::Value }) {
        Payload::Shared => measure_as::<Shared>(params),
        Payload::Value => {
            macro_rules! go {
                ($payload:ty) => {
                    measure_as::<$payload>(params)
                };
            }
            by_value!(params.size_bytes, go)
        }
    }
}

fn measure_as<P: payload::Carry>(params: &Fanout) -> Result<Outcome, Failure> {
    let only = |mode: Mode, name: &str| {
        if params.mode == mode {
            return Ok(());
        }
        Err(Failure::Usage(format!("--impl {} needs --mode {name}", params.implementation)))
    };
    match params.implementation {
        "tokio-broadcast" => {
            only(Mode::Inline, "inline")?;
            drive::run_inline::<tokio_broadcast::Tried<P>>(params)
        }
        "tokio-broadcast-tasks" => {
            only(Mode::Inline, "inline")?;
            drive::run_inline::<tokio_broadcast::Tasks<P>>(params)
        }
        "tokio-broadcast-x" => {
            only(Mode::Threads, "threads")?;
            drive::run_threads::<tokio_broadcast::Tried<P>>(params)
        }
        "tokio-broadcast-x-tasks" => {
            only(Mode::Blocked, "blocked")?;
            drive::run_threads::<tokio_broadcast::Tasks<P>>(params)
        }
        "crossbeam" => run::<channels::Crossbeam<P>>(params),
        "rtrb" => run::<channels::Rtrb<P>>(params),
        other => unreachable!("`parse` takes only the names of PROGRAM, not {other}"),
    }
}
