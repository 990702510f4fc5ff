//! The command `bench door`: chunks from one process to others through shared memory, for
//! streamdoor and the floor.
//!
//! The producer has a process of its own, pinned to one cpu; this process reads on another.
//! [`ours`] is streamdoor. Its server is a third process, which admits both and takes the chunks,
//! too. [`ring`] is the least that does the job: a bare ring in shared memory, with a futex if
//! readers block. Load, loops and report are those of `bench/common/door`, and of the peers in
//! `bench/peers`.

pub mod ours;
pub mod ring;

use std::ffi::OsString;

use lexopt::ValueExt;

use crate::common::door::load::{LOAD_HELP, Load};
use crate::common::door::producer;
use crate::common::door::readers::measure;
use crate::common::door::report::{self, Found};
use crate::common::params::usage;
use crate::common::report::Outcome;
use crate::common::{Failure, print};

const IMPLEMENTATIONS: &[&str] = &["streamdoor", "floor"];

const HELP: &str = "\
bench door: measure one producer and N readers in another process; every reader gets all

Open loop: send times are planned in advance. Latency counts from the planned time until a reader
holds the chunk, with one value per reader and chunk. In each round streamdoor and the floor take
turns. A run fails if its deliveries do not add up.

Usage: bench door [options]

  --impl NAME         measure only this one:
                      streamdoor  a door::Writer and `block` door::Readers; its server is a third
                                  process on the producer's cpu, which blocks while it has no work.
                                  Readers that block poll for 50 µs first
                      floor       a bare ring with bare cursors in shared memory; readers that
                                  block use a futex, without polling first
                      Other crates: bench/peers
";

/// Runs `bench door` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.next_if(|word| word == "producer").is_some() {
        return produce(arguments);
    }
    if arguments.next_if(|word| word == "server").is_some() {
        return ours::serve(arguments);
    }
    let Some(load) = Load::parse(IMPLEMENTATIONS, arguments, |_, _| Ok(false))? else {
        print(&format!("{HELP}{LOAD_HELP}  --help\n"));
        return Ok(());
    };
    let mut runs = Vec::new();
    for _ in 0..load.rounds {
        let wanted = IMPLEMENTATIONS.iter().rev(); // The floor goes first.
        for implementation in wanted.filter(|name| load.only.is_none_or(|only| only == **name)) {
            let outcome = measured(&load.of(implementation))?;
            let found = Found { implementation, outcome };
            report::write_files("bench", &load, &found)?;
            print(&report::run_report("bench", &load, &found));
            runs.push(found);
        }
    }
    if !load.plan.json {
        print(&report::ratios("streamdoor", &runs));
    }
    Ok(())
}

fn measured(load: &Load) -> Result<Outcome, Failure> {
    let words = &["door", "producer"];
    match (load.plan.implementation, load.plan.size_bytes) {
        ("streamdoor", _) => measure::<ours::Ours>(load, words),
        (_, 100) => measure::<ring::Bare<100>>(load, words),
        (_, 1_024) => measure::<ring::Bare<1_024>>(load, words),
        (_, 32_768) => measure::<ring::Bare<32_768>>(load, words),
        _ => measure::<ring::Bare<{ ring::ANY_SIZE }>>(load, words),
    }
}

/// Runs `bench door producer`, which `bench door` starts.
fn produce(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut words = Vec::new();
    let load = Load::parse(IMPLEMENTATIONS, arguments, |name, parser| {
        if name == "word" {
            let value = parser.value().map_err(usage)?;
            words.push(value.string().map_err(usage)?);
        }
        Ok(name == "word")
    })?;
    let Some(load) = load else {
        print(&format!("bench door producer: used by bench door\n\n{LOAD_HELP}"));
        return Ok(());
    };
    match (load.plan.implementation, load.plan.size_bytes) {
        ("streamdoor", _) => producer::run::<ours::Ours>(&load, &words),
        (_, 100) => producer::run::<ring::Bare<100>>(&load, &words),
        (_, 1_024) => producer::run::<ring::Bare<1_024>>(&load, &words),
        (_, 32_768) => producer::run::<ring::Bare<32_768>>(&load, &words),
        _ => producer::run::<ring::Bare<{ ring::ANY_SIZE }>>(&load, &words),
    }
}
