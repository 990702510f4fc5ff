//! The command `peers door`: other ways between processes under the loop, load and report of
//! `bench door`.

mod iceoryx;
mod streams;

use std::ffi::OsString;

use lexopt::ValueExt;

use crate::common::door::load::{LOAD_HELP, Load};
use crate::common::door::producer;
use crate::common::door::readers::measure;
use crate::common::door::report::{self, Found};
use crate::common::params::usage;
use crate::common::report::Outcome;
use crate::common::{Failure, print};
use iceoryx::Iceoryx;
use streams::{Pipes, Sockets};

const IMPLEMENTATIONS: &[&str] = &["iceoryx2", "socket", "pipe"];

pub const HELP: &str = "\
peers door: other ways between processes under the loop of `bench door`

Usage: peers door [options]

  --impl NAME         what is measured (all):
                      iceoryx2  publish-subscribe of byte slices, nothing is lost; where readers
                                block, an event with each batch and a listener each
                      socket    a Unix socket for each reader, chunks of equal length one after
                                the other; polled readers do not block in it
                      pipe      the same over pipes of 1 MiB
                      Aeron is not here: its Rust crates (rusteron) build the C library with cmake
                      and libclang, or fetch it ready made, and a benchmark of this repository
                      needs nothing but cargo and a C compiler

";

/// Runs `peers door` with what follows these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.next_if(|word| word == "producer").is_some() {
        return produce(arguments);
    }
    let Some(load) = Load::parse(IMPLEMENTATIONS, arguments, |_, _| Ok(false))? else {
        print(&format!("{HELP}{LOAD_HELP}  --help\n"));
        return Ok(());
    };
    for _ in 0..load.rounds {
        for implementation in IMPLEMENTATIONS {
            if load.only.is_some_and(|only| only != *implementation) {
                continue;
            }
            let outcome = measured(&load.of(implementation))?;
            let found = Found { implementation, outcome };
            report::write_files("peers", &load, &found)?;
            print(&report::run_report("peers", &load, &found));
        }
    }
    Ok(())
}

fn measured(load: &Load) -> Result<Outcome, Failure> {
    let words = &["door", "producer"];
    match load.plan.implementation {
        "iceoryx2" => measure::<Iceoryx>(load, words),
        "socket" => measure::<Sockets>(load, words),
        _ => measure::<Pipes>(load, words),
    }
}

/// `peers door producer`, which `peers door` starts.
fn produce(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut words = Vec::new();
    let load = Load::parse(IMPLEMENTATIONS, arguments, |name, parser| {
        if name == "word" {
            words.push(parser.value().map_err(usage)?.string().map_err(usage)?);
        }
        Ok(name == "word")
    })?;
    let Some(load) = load else {
        print(&format!("peers door producer: is started by peers door\n\n{LOAD_HELP}"));
        return Ok(());
    };
    match load.plan.implementation {
        "iceoryx2" => producer::run::<Iceoryx>(&load, &words),
        "socket" => producer::run::<Sockets>(&load, &words),
        _ => producer::run::<Pipes>(&load, &words),
    }
}

/// The stamp of the last chunk, which counts for nothing: no clock and no batch comes that far.
const LAST: u64 = u64::MAX;

/// Is this the last one?
#[inline(always)]
fn is_last(payload: &[u8]) -> bool {
    payload.starts_with(&LAST.to_le_bytes())
}

/// A payload that is the last one.
fn last(size_bytes: usize) -> Vec<u8> {
    let mut payload = vec![0; size_bytes];
    payload[..8].copy_from_slice(&LAST.to_le_bytes());
    payload
}
