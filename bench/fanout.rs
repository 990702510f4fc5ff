//! The command `bench fanout`: one producer, N subscribers, one implementation in each run.
//!
//! This file adds only the choice of the implementation to `common/`. Third-party crates are in
//! `bench/peers`, under the same loop.

use std::ffi::OsString;

use crate::common::machine::{peak_memory_kib, wall_time};
use crate::common::params::{Fanout, Mode, OPTIONS_HELP, Program};
use crate::common::report::fanout_report;
use crate::common::{Failure, drive, files, print};
use crate::floor;
use crate::ours::{Asleep, Ours, Synced, Written};

const PROGRAM: Program =
    Program { implementations: &["streamdoor", "written", "synced", "floor"], has_payload: false };

const HELP: &str = "\
bench fanout: measure one producer and N subscribers; each subscriber gets each chunk

Open loop: send times are planned in advance. Latency counts from the planned time until a
subscriber holds the chunk, with one value per subscriber and chunk. A run fails if its deliveries
do not add up.

Usage: bench fanout [options]

  --impl NAME         the implementation to measure (streamdoor):
                      streamdoor  a shard driven by hand, one execution, `block` subscribers
                                  Subscribers that block poll for 50 µs first
                      written, synced
                                  the same, with a journal in the directory for temporary files;
                                  not for subscribers that block
                      floor       a bare ring with bare cursors, see `bench floor --help`;
                                  subscribers that block use a futex, without polling first
                      Other crates: bench/peers
";

/// Runs `bench fanout` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some(params) = Fanout::parse(&PROGRAM, arguments)? else {
        print(&format!("{HELP}{OPTIONS_HELP}"));
        return Ok(());
    };
    let outcome = match params.implementation {
        "streamdoor" if params.mode == Mode::Blocked => drive::run_threads::<Asleep>(&params)?,
        "written" | "synced" if params.mode == Mode::Blocked => {
            let text =
                format!("--impl {} is not for subscribers that block", params.implementation);
            return Err(Failure::Usage(text));
        }
        "streamdoor" => drive::run::<Ours>(&params)?,
        "written" => drive::run::<Ours<Written>>(&params)?,
        "synced" => drive::run::<Ours<Synced>>(&params)?,
        "floor" => floor::ring::measure(&params)?,
        other => unreachable!("`parse` takes only the names of PROGRAM, not {other}"),
    };
    files::write("bench", &params, &outcome, wall_time())?;
    let memory_kib = peak_memory_kib(std::process::id());
    print(&fanout_report("bench", &params, &outcome, memory_kib));
    Ok(())
}
