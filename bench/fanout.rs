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
use crate::ours::{Asleep, Ours};

const PROGRAM: Program = Program { implementations: &["streamdoor", "floor"], has_payload: false };

const HELP: &str = "\
bench fanout: one producer, N subscribers, every subscriber gets every chunk

Open loop: send times are planned in advance, and latency counts from the planned time to the moment
at which a subscriber holds the chunk; one value per subscriber and chunk. A run whose deliveries do
not add up fails.

Usage: bench fanout [options]

  --impl NAME         what is measured (streamdoor):
                      streamdoor  a shard driven by hand, one execution, `block` subscribers
                                  Who blocks polls for 50 µs first
                      floor       a bare ring with bare cursors, see `bench floor --help`; who
                                  blocks does it with a futex, at once
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
        "streamdoor" => drive::run::<Ours>(&params)?,
        "floor" => floor::ring::measure(&params)?,
        other => unreachable!("`parse` takes only the names of PROGRAM, not {other}"),
    };
    files::write("bench", &params, &outcome, wall_time())?;
    let memory_kib = peak_memory_kib(std::process::id());
    print(&fanout_report("bench", &params, &outcome, memory_kib));
    Ok(())
}
