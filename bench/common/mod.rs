//! What every benchmark has in common: one clock, one load, one recorder, one report.
//!
//! `bench` and the package `bench/peers` compile the same files, so that ours, the floor and every
//! peer run under the same loop: [`source`] decides when a chunk is due, [`drive`] hands it to an
//! implementation, [`receive`] is what each subscriber calls, [`report`] and [`files`] print.
//! [`machine`] is the only file that talks to the kernel. [`serve`] is what streaming servers have
//! in common, [`door`] what ways between processes have. Nothing here knows an implementation.
//!
//! Tests: in the files, and `tests/bench_smoke.rs` runs the programs.

// Two programs share these files and neither uses all of them.
#![allow(dead_code)]

pub mod door;
pub mod drive;
pub mod files;
pub mod machine;
pub mod params;
pub mod receive;
pub mod report;
pub mod serve;
pub mod source;

use std::fmt;
use std::process::ExitCode;

/// Chunks that are published, or taken by one subscriber, in one go; one clock read each when the
/// load is `max`.
pub const BATCH_CHUNKS: u32 = 64;
/// Chunks that every implementation's ring or queue holds, where payloads are small.
pub const RING_CHUNKS_MAX: usize = 1_024;
/// Payload bytes that a ring holds, at most, unless that were fewer than [`BATCH_CHUNKS`] chunks.
pub const RING_BYTES_MAX: usize = 4 << 20;

const _: () = assert!(RING_CHUNKS_MAX >= BATCH_CHUNKS as usize); // A batch fits an empty ring.
const _: () = assert!(RING_CHUNKS_MAX.is_power_of_two()); // Position to index is a mask.

/// Why a benchmark has no result; a variant is an exit code.
#[derive(Debug)]
pub enum Failure {
    /// 1: it ran, and what came out is wrong or can not be written.
    Failed(String),
    /// 2: the call has to be mended.
    Usage(String),
    /// 3: this machine lacks something; the text says what.
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

/// The exit code of `result`, whose error goes to standard error.
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

/// Prints without a panic when the reader of our output has left (`bench … | head -1`).
pub fn print(text: &str) {
    use std::io::Write;
    // A closed pipe is the reader's wish; there is nobody left to tell.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
