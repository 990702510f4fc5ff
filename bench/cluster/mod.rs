//! The command `bench cluster`: an execution of one node, and a client of another.
//!
//! Everything runs on this machine: a server of NATS, both nodes, and the client. The floor is what
//! somebody would write with the client library of NATS: `floor.rs`. It uses the same stores.
//! Programs that users write with a log and a web server are in `bench/peers`.

mod floor;
mod nats;
mod ours;

use std::ffi::OsString;
use std::time::Duration;

use serde_json::json;
use streamdoor::limits::CLUSTER_LINGER;

use crate::common::cluster::{LOAD_HELP, Load};
use crate::common::params::number;
use crate::common::{Failure, print};

/// The same nodes as those of `streamdoor`.
const EVENTS: &str = "streamdoor-events";
const IMPLEMENTATIONS: &[&str] = &["streamdoor", EVENTS, "alone", "floor"];
const WORKS: &[&str] = &["live", "local", "catch-up"];

const HELP: &str = "\
bench cluster: measure a client of one node that follows an execution of another

Usage: bench cluster [options]

  --impl NAME         streamdoor: two nodes, and a client of server-sent events, for catch-up of the
                      bare output (the default)
                      streamdoor-events: the same, for catch-up: its client reads events there, too
                      alone: a server without a cluster, for local
                      floor: a publisher with a condition for each record, as a mirror is one. For
                      live: a subscriber that passes each one on over TCP. For catch-up: a reader of
                      batches
  --work NAME         live: publish at planned times, and measure until the client has the chunk
                      (the default)
                      local: the same for a client of the node itself
                      catch-up: fill a log as fast as it goes, and read it once from its beginning
  --nats PROGRAM      the server of NATS (nats-server on the PATH)
  --linger-us N       the pause of the mirror between two looks, in microseconds (500)
";

/// One run.
pub struct Params {
    load: Load,
    linger: Duration,
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
        _ => ours::catch_up(&server, &params),
    }?;
    load.write_files(&found)?;
    let linger = ("linger_us", json!(params.linger.as_micros() as u64));
    print(&load.report(&found, &[linger]));
    Ok(())
}

impl Params {
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Params>, Failure> {
        let mut linger = CLUSTER_LINGER;
        let load = Load::parse((IMPLEMENTATIONS, WORKS), arguments, |name, parser| {
            if name == "linger-us" {
                linger = Duration::from_micros(number(parser, "--linger-us", 100, 1_000_000)?);
            }
            Ok(name == "linger-us")
        })?;
        Ok(load.map(|load| Params { load, linger }))
    }

    /// Refuses what nobody does.
    fn check(&self) -> Result<(), Failure> {
        let Load { implementation, work, .. } = self.load;
        let does = match implementation {
            EVENTS => work == "catch-up",
            "alone" => work == "local",
            "floor" => work != "local",
            _ => true,
        };
        let text = || format!("--impl {implementation} does no {work}");
        if does { Ok(()) } else { Err(Failure::Usage(text())) }
    }
}
