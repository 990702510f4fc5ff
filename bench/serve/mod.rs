//! The command `bench serve`: a streaming server on one cpu, a receiver on another, over TCP.
//!
//! The server is a process of its own (`server.rs` starts it): streamdoor's (`ours.rs`), the
//! floor's, or a peer's. The receiver is this process, the same for all (`client.rs`, and
//! `stream.rs` for one connection). The load is the servers' common code, `common/serve`.

pub mod client;
pub mod first;
pub mod ours;
mod report;
pub mod server;
pub mod stream;

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser};

use crate::common::machine::{allow_descriptors, cpus_allowed, pin_thread, wall_time};
use crate::common::params::{choice, two_cpus, usage};
use crate::common::pressure::Pressure;
use crate::common::serve::child::Usage;
use crate::common::serve::event::{Format, execution_name};
use crate::common::serve::load::{LOAD_HELP, Load};
use crate::common::{Failure, print};
use client::{Client, Received};
use server::Server;

/// Number of descriptors beside those of connections.
const DESCRIPTORS_OTHER: u64 = 64;
/// The first is the default.
const IMPLEMENTATIONS: &[&str] =
    &["streamdoor", "floor", "floor-16", "floor-64", "axum", "axum-threads", "durable-streams"];

const HELP: &str = "\
bench serve: measure a streaming server on one cpu, and its subscribers on another

Open loop: send times are planned in advance. Latency counts from the planned time until the
receiver, which polls, holds the event, with one value per connection and event. The run fails if a
chunk is neither received nor reported in a gap.

Usage: bench serve [options]

  --impl NAME         the implementation to measure (streamdoor):
                      streamdoor    the library's server, one shard, a tool that keeps the plan
                      floor         a minimal writer of preformatted events: bench floor tcp
                      floor-16, floor-64
                                    the same with 16 or 64 events in each write, without a rate
                      axum          axum's Sse over tokio's broadcast, current-thread runtime
                      axum-threads  the same on the multi-thread runtime
                      durable-streams
                                    durable-streams-server, its streams in memory, and a producer
                                    that appends over HTTP, both on one cpu (all three: SSE only)
  --peers PATH        the program of bench/peers, for axum and durable-streams
  --cpus A,B          pin the server to A, and the receiver to B (the first two allowed)
  --out DIR           write a histogram (.hgrm) and an HDR interval log, version 2 (.hlog), to DIR
  --json              print one line of JSON instead of text
";

/// One run of `serve`.
pub struct Serve {
    /// One of [`IMPLEMENTATIONS`].
    pub implementation: &'static str,
    /// The load of the server.
    pub load: Load,
    /// The cpu of the receiver.
    pub client_cpu: usize,
    /// The directory for `.hgrm` and `.hlog` files.
    pub out: Option<PathBuf>,
    /// True for one line of JSON instead of text.
    pub json: bool,
    peers: Option<PathBuf>,
}

/// The result of a run.
pub struct Found {
    /// The results of the receiver.
    pub received: Received,
    /// The resources used by the server since the last connection was made.
    pub used: Usage,
    /// The pressure at the end.
    pub pressure: Pressure,
}

/// Runs `bench serve` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some(serve) = Serve::parse(arguments)? else {
        print(&format!("{HELP}{LOAD_HELP}  --help\n"));
        return Ok(());
    };
    let found = measure(&serve)?;
    report::write_files(&serve, &found, wall_time())?;
    print(&report::serve_report(&serve, &found));
    Ok(())
}

/// Starts the server, receives everything, and ends the server.
fn measure(serve: &Serve) -> Result<Found, Failure> {
    let load = &serve.load;
    allow_descriptors(u64::from(load.connections) + DESCRIPTORS_OTHER)?;
    let (program, words) = serve.server_command()?;
    let mut server = Server::start(&program, &words)?;
    pin_thread(serve.client_cpu)?;
    let targets = match serve.implementation {
        "streamdoor" => ours::start_executions(load, server.address)?,
        implementation => {
            let target = |index| match implementation {
                "durable-streams" => {
                    format!("/v1/stream/{}?offset=-1&live=sse", execution_name(index))
                }
                _ => format!("/v1/executions/{}/events", execution_name(index)),
            };
            (0..load.executions).map(target).collect()
        }
    };
    let client = Client::connect(load, server.address, &targets)?;
    let before = server.usage()?; // The server still waits until all are ready.
    let mut received = client.receive()?;
    let used = server.usage()?.since(before);
    received.outcome.preemptions += used.preemptions;
    let level = (serve.implementation == "streamdoor").then(|| server.pressure_level());
    Ok(Found { received, used, pressure: Pressure::now(level.transpose()?) })
}

impl Serve {
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Serve>, Failure> {
        let mut load = Load::new()?;
        let client_cpu = cpus_allowed().get(1).copied().unwrap_or(load.cpu);
        let (mut out, mut peers, mut json) = (None, None, false);
        let mut implementation = IMPLEMENTATIONS[0];
        let mut cpus = (load.cpu, client_cpu);
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(usage)? {
            match argument {
                Arg::Long("help") | Arg::Short('h') => return Ok(None),
                Arg::Long("impl") => {
                    implementation = choice(&mut parser, "--impl", IMPLEMENTATIONS)?;
                }
                Arg::Long("peers") => peers = Some(parser.value().map_err(usage)?.into()),
                Arg::Long("out") => out = Some(parser.value().map_err(usage)?.into()),
                Arg::Long("json") => json = true,
                Arg::Long("cpus") => cpus = two_cpus(&mut parser)?,
                Arg::Long(name) if !["cpu", "batch"].contains(&name) => {
                    let name = name.to_owned();
                    if !load.accept(&name, &mut parser)? {
                        return Err(Failure::Usage(format!("unknown option --{name}")));
                    }
                }
                other => return Err(usage(other.unexpected())),
            }
        }
        load.cpu = cpus.0;
        load.batch_chunks = match implementation {
            "floor-16" => 16,
            "floor-64" => 64,
            _ => 1,
        };
        load.check()?;
        let serve = Serve { implementation, load, client_cpu: cpus.1, out, json, peers };
        serve.check()?;
        Ok(Some(serve))
    }

    fn check(&self) -> Result<(), Failure> {
        if self.peer_words().is_some() && self.load.format != Format::Sse {
            return Err(Failure::Usage("--format: peers support only sse".into()));
        }
        if self.peer_words().is_some() && self.peers.is_none() {
            let name = self.implementation;
            let text = format!("--impl {name} needs --peers, the program that bench/peers builds");
            return Err(Failure::Usage(text));
        }
        if self.load.cpu == self.client_cpu {
            return Err(Failure::Environment(
                "two cpus are needed: the receiver polls, and on one cpu the server would wait for \
                 its time slice"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Returns the first arguments of the program of bench/peers, if the implementation is a peer.
    fn peer_words(&self) -> Option<Vec<&'static str>> {
        match self.implementation {
            "axum" | "axum-threads" => Some(vec!["sse", "--impl", self.implementation]),
            "durable-streams" => Some(vec!["durable"]),
            _ => None,
        }
    }

    /// Returns the program of the server, and its arguments.
    fn server_command(&self) -> Result<(PathBuf, Vec<String>), Failure> {
        let own_program = || {
            std::env::current_exe().map_err(|error| {
                Failure::Environment(format!("the path of this program is unknown: {error}"))
            })
        };
        let (program, words) = match (&self.peers, self.peer_words()) {
            (Some(peers), Some(words)) => (peers.clone(), words),
            _ if self.implementation == "streamdoor" => (own_program()?, vec!["server"]),
            _ => (own_program()?, vec!["floor", "tcp"]),
        };
        let words = words.into_iter().map(str::to_owned);
        let words = words.chain(["--child".to_owned()]).chain(self.load.to_arguments());
        Ok((program, words.collect()))
    }
}
