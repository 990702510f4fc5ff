//! The parts that every benchmark shares: one clock, one load, one recorder, one report.
//!
//! `bench` and the package `bench/peers` compile the same files. streamdoor, the floor and every
//! peer therefore run under the same loop. [`source`] decides when a chunk is due. [`drive`] passes
//! it to an implementation. [`receive`] is called by each subscriber. [`report`] and [`files`]
//! print. [`pressure`] is recorded with each run. Only [`machine`] calls the kernel. [`serve`] is
//! shared by streaming servers, [`door`] by transports between processes, and [`journal`] by logs
//! on disk. [`cluster`] is shared by logs between two nodes. No file here depends on an
//! implementation.
//!
//! Tests: in the files, and `tests/bench_smoke.rs` runs the programs.

// Two programs share these files, and neither uses all of them.
#![allow(dead_code)]

pub mod cluster;
pub mod door;
pub mod drive;
pub mod files;
pub mod journal;
pub mod machine;
pub mod params;
pub mod pressure;
pub mod receive;
pub mod report;
pub mod serve;
pub mod source;

use std::fmt;
use std::process::{Child, ExitCode};
use std::time::Duration;

/// Number of chunks that are published, or taken by one subscriber, at once. With the load `max`,
/// each batch costs one clock read.
pub const BATCH_CHUNKS: u32 = 64;
/// Capacity of every implementation's ring or queue in chunks, if payloads are small.
pub const RING_CHUNKS_MAX: usize = 1_024;
/// Maximum payload bytes of a ring, except that it holds at least [`BATCH_CHUNKS`] chunks.
pub const RING_BYTES_MAX: usize = 4 << 20;

/// Time that a process has to exit by itself.
const EXIT: Duration = Duration::from_secs(2);

const _: () = assert!(RING_CHUNKS_MAX >= BATCH_CHUNKS as usize); // A batch fits an empty ring.
const _: () = assert!(RING_CHUNKS_MAX.is_power_of_two()); // Position to index is a mask.

/// The reason why a benchmark has no result. Each variant has an exit code.
#[derive(Debug)]
pub enum Failure {
    /// Exit code 1: the run failed, or its result is wrong or cannot be written.
    Failed(String),
    /// Exit code 2: the command line is wrong.
    Usage(String),
    /// Exit code 3: this machine lacks something. The text says what.
    Environment(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Failed(text) | Failure::Environment(text) => out.write_str(text),
            Failure::Usage(text) => write!(out, "{text} (see --help)"),
        }
    }
}

impl std::error::Error for Failure {}

/// Returns the exit code of `result`. Prints its error on standard error.
pub fn exit_code(program: &str, result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{program}: {failure}");
    ExitCode::from(match failure {
        Failure::Failed(_) => 1,
        Failure::Usage(_) => 2,
        Failure::Environment(_) => 3,
    })
}

/// Waits for a process that was told to exit, so that it can write what belongs to its end, such as
/// a profile. Kills it if it does not exit in time.
pub fn end(process: &mut Child) {
    let deadline_ns = machine::now_ns() + EXIT.as_nanos() as u64;
    while machine::now_ns() < deadline_ns && matches!(process.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = process.kill();
    let _ = process.wait();
}

/// Prints without a panic if the reader of the output has gone away (`bench … | head -1`).
pub fn print(text: &str) {
    use std::io::Write;
    // The reader has closed the pipe on purpose, so the error is ignored.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
