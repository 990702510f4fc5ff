//! The command `peers door`: other transports between processes under the loop, load and report of
//! `bench door`.

#[cfg(feature = "aeron")]
mod aeron;
pub mod broker;
mod iceoryx;
pub mod nats;
pub mod redis;
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
use nats::Nats;
use streams::{Pipes, Sockets};

const IMPLEMENTATIONS: &[&str] = &[
    "iceoryx2",
    #[cfg(feature = "aeron")]
    "aeron",
    "socket",
    "pipe",
];
/// The implementations that run only on request: each starts a broker, which must be installed.
const BROKERS: &[&str] = &["redis", "redis-streams", "nats"];

pub const HELP: &str = "\
peers door: measure other ways between processes with the loop of `bench door`

Usage: peers door [options]

  --impl NAME         the implementation to measure (all):
                      iceoryx2  publish-subscribe of byte slices, nothing is lost; if readers
                                block, an event with each batch and a listener for each reader
                      socket    a Unix socket for each reader, chunks of equal length one after
                                the other; polled readers do not block in it
                      pipe      the same over pipes of 1 MiB
                      aeron     aeron:ipc, polled only; needs the feature `aeron`, whose build
                                needs cmake and libclang
                      redis, redis-streams, nats
                                a separate broker on the readers' cpu; --wait blocked only; must be
                                installed, and is not part of all

";

/// Runs `peers door` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.next_if(|word| word == "producer").is_some() {
        return produce(arguments);
    }
    #[cfg(feature = "aeron")]
    if arguments.next_if(|word| word == "driver").is_some() {
        return aeron::drive(arguments);
    }
    let Some(load) = Load::parse(&names(), arguments, |_, _| Ok(false))? else {
        print(&format!("{HELP}{LOAD_HELP}  --help\n"));
        return Ok(());
    };
    for _ in 0..load.rounds {
        for implementation in load.only.map_or(IMPLEMENTATIONS.to_vec(), |only| vec![only]) {
            let outcome = measured(&load.of(implementation))?;
            let found = Found { implementation, outcome };
            report::write_files("peers", &load, &found)?;
            print(&report::run_report("peers", &load, &found));
        }
    }
    Ok(())
}

fn names() -> Vec<&'static str> {
    [IMPLEMENTATIONS, BROKERS].concat()
}

fn measured(load: &Load) -> Result<Outcome, Failure> {
    let words = &["door", "producer"];
    match load.plan.implementation {
        "iceoryx2" => measure::<Iceoryx>(load, words),
        #[cfg(feature = "aeron")]
        "aeron" => measure::<aeron::OverIpc>(load, words),
        "socket" => measure::<Sockets>(load, words),
        "redis" => measure::<redis::PubSub>(load, words),
        "redis-streams" => measure::<redis::Streams>(load, words),
        "nats" => measure::<Nats>(load, words),
        _ => measure::<Pipes>(load, words),
    }
}

/// Runs `peers door producer`, which `peers door` starts.
fn produce(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut words = Vec::new();
    let load = Load::parse(&names(), arguments, |name, parser| {
        if name == "word" {
            words.push(parser.value().map_err(usage)?.string().map_err(usage)?);
        }
        Ok(name == "word")
    })?;
    let Some(load) = load else {
        print(&format!("peers door producer: used by peers door\n\n{LOAD_HELP}"));
        return Ok(());
    };
    match load.plan.implementation {
        "iceoryx2" => producer::run::<Iceoryx>(&load, &words),
        #[cfg(feature = "aeron")]
        "aeron" => producer::run::<aeron::OverIpc>(&load, &words),
        "socket" => producer::run::<Sockets>(&load, &words),
        "redis" => producer::run::<redis::PubSub>(&load, &words),
        "redis-streams" => producer::run::<redis::Streams>(&load, &words),
        "nats" => producer::run::<Nats>(&load, &words),
        _ => producer::run::<Pipes>(&load, &words),
    }
}

/// The stamp of the last chunk, which is not counted. No clock and no batch number reaches it.
const LAST: u64 = u64::MAX;

/// True if this is the last chunk.
#[inline(always)]
fn is_last(payload: &[u8]) -> bool {
    payload.starts_with(&LAST.to_le_bytes())
}

/// Returns the payload of the last chunk.
fn last(size_bytes: usize) -> Vec<u8> {
    let mut payload = vec![0; size_bytes];
    payload[..8].copy_from_slice(&LAST.to_le_bytes());
    payload
}
