//! The command `bench cluster`: an execution of one node, and a client of another.
//!
//! Everything runs on this machine: a server of NATS, both nodes, and the client. The floor is what
//! somebody would write with the client library of NATS: `floor.rs`. It uses the same stores.
//! Programs that users write with a log and a web server are in `bench/peers`.

mod fanout;
mod floor;
mod nats;
mod ours;

use std::ffi::OsString;
use std::time::Duration;

use serde_json::json;
use streamdoor::limits::CLUSTER_LINGER;

use crate::common::cluster::{FANOUT, LOAD_HELP, Load};
use crate::common::params::number;
use crate::common::{Failure, print};

/// The same nodes as those of `streamdoor`.
const EVENTS: &str = "streamdoor-events";
const IMPLEMENTATIONS: &[&str] = &["streamdoor", EVENTS, "alone", "floor"];
const WORKS: &[&str] = &["live", "local", "catch-up", FANOUT];

/// Clients of one node.
const READERS_MAX: u32 = 1_000;

const HELP: &str = "\
bench cluster: measure a client of one node that follows an execution of another

Usage: bench cluster [options]

  --impl NAME         streamdoor: two nodes, and a client of server-sent events, for catch-up of the
                      bare output (the default)
                      streamdoor-events: the same, for catch-up: its client reads events there, too
                      alone: a server without a cluster, for local and fan-out
                      floor: a publisher with a condition for each record, as a mirror is one. For
                      live: a subscriber that passes each one on over TCP. For catch-up: a reader of
                      batches
  --work NAME         live: publish at planned times, and measure until the client has the chunk
                      (the default)
                      local: the same for a client of the node itself
                      catch-up: fill a log as fast as it goes, and read it once from its beginning
                      fan-out: the processor time of three nodes, or of the server that is alone,
                      for each event that they send to the clients of each
  --nats PROGRAM      the server of NATS (nats-server on the PATH)
  --linger-us N       the average time between two looks of the mirror, in microseconds (500)
  --readers N         fan-out: the clients of each node (100)
";

/// One run.
pub struct Params {
    load: Load,
    linger: Duration,
    /// The clients of each node.
    readers: u32,
}

/// Runs `bench cluster` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some(params) = Params::parse(arguments)? else {
        print(&format!("{HELP}{LOAD_HELP}"));
        return Ok(());
    };
    params.check()?;
    let load = &params.load;
    let server = nats::NatsServer::start(&load.nats)?;
    server.make_stores()?;
    let found = match (load.implementation, load.work) {
        ("floor", "live") => floor::live(&server, load),
        ("floor", _) => floor::catch_up(&server, load),
        (_, "live") => ours::live(&server, &params),
        (_, "local") => ours::local(&server, &params),
        (_, FANOUT) => fanout::fanout(&server, &params),
        _ => ours::catch_up(&server, &params),
    }?;
    load.write_files(&found)?;
    let linger = ("linger_us", json!(params.linger.as_micros() as u64));
    let readers = ("readers", json!(params.readers));
    print(&load.report(&found, &[linger, readers]));
    Ok(())
}

impl Params {
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Params>, Failure> {
        let (mut linger, mut readers) = (CLUSTER_LINGER, 100);
        let load = Load::parse((IMPLEMENTATIONS, WORKS), arguments, |name, parser| {
            match name {
                "linger-us" => {
                    linger = Duration::from_micros(number(parser, "--linger-us", 100, 1_000_000)?);
                }
                "readers" => readers = number(parser, "--readers", 1, READERS_MAX)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(load.map(|load| Params { load, linger, readers }))
    }

    /// Refuses what nobody does.
    fn check(&self) -> Result<(), Failure> {
        let Load { implementation, work, .. } = self.load;
        let does = match implementation {
            EVENTS => work == "catch-up",
            "alone" => work == "local" || work == FANOUT,
            "floor" => work == "live" || work == "catch-up",
            _ => true,
        };
        let text = || format!("--impl {implementation} does no {work}");
        if does { Ok(()) } else { Err(Failure::Usage(text())) }
    }
}
