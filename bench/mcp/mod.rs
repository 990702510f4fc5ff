//! The command `bench mcp`: calls of a tool with progress, for streamdoor and the floor.
//!
//! One process serves, pinned to one cpu. This process receives on another, and polls. Over HTTP,
//! each session has a connection. Standard streams are one session with as many concurrent calls.
//! Both use the stateless era: a call is one request that contains everything it needs. The load is
//! the plan of `bench serve`. The receiver is that of `bench serve`, too, with another parser
//! (`stream.rs`).
//!
//! `wire.rs` has the requests and `server.rs` the processes. `first.rs` and `at_once.rs` measure
//! the time to the first notification. `floor.rs` is the least server of the same notifications.
//! `peer.rs` supports third-party servers.

mod at_once;
mod first;
mod floor;
mod peer;
mod report;
mod server;
mod stream;
mod wire;

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser};

use crate::common::machine::{allow_descriptors, cpus_allowed, pin_thread};
use crate::common::params::{choice, number, seconds, text, two_cpus, usage};
use crate::common::pressure::Pressure;
use crate::common::serve::child::Usage;
use crate::common::serve::load::{LOAD_HELP, Load};
use crate::common::{Failure, print};
use crate::serve::client::{Client, Received};
use first::{Firsts, Taken};
use peer::PEERS;
use server::Server;

const DESCRIPTORS_OTHER: u64 = 64;
/// The implementations that are run by default.
const IMPLEMENTATIONS: &[&str] = &["streamdoor", "floor-reads", "floor"];
/// The implementations that can be chosen, beside [`PEERS`].
const IMPLEMENTATIONS_OWN: &[&str] = &["streamdoor", "floor", "floor-reads", "floor-16"];
const TRANSPORTS: &[&str] = &["http", "pipe", "socket"];
const ROUNDS_MAX: u32 = 100;
const FIRST_CALLS_MAX: u32 = 100_000;
/// The maximum number of concurrent runs of a streamdoor server.
const AT_ONCE_MAX: u32 = 1_000;

const HELP: &str = "\
bench mcp: measure calls of MCP with a progress token, and their notifications

Open loop: send times are planned in advance. Latency counts from the planned time until the
receiver, which polls, has found the chunk in its notification, with one value per chunk. In each
round streamdoor and two floors take turns. With --rate max, notifications per second are counted
instead. Each chunk must be received, or counted as missed because of a gap or because it came with
the reply; otherwise the run fails.

The floor writes ready-made notifications. The floor that reads parses each request as JSON, and
spells each message with its id and token. Neither has an engine, policies or subscribers.

Usage: bench mcp [options]

  --transport NAME    http: a connection for each session, replies are server-sent events; pipe or
                      socket: standard streams that are pipes or sockets, all calls in one session
                      (http)
  --sessions N        calls at once (1); the same as --connections N --executions N
  --rounds N          the number of times that all are run (2)
  --first N           before each run, make N calls one after the other, and measure the time to
                      their first notification (200)
  --first-pause S     idle seconds of the server before each of them (0)
  --first-at-once N   make N of those calls at once, each on its own connection, as often as --first
                      needs, with a pause before each time. All are written one after the other, and
                      time counts from a call's own request. Needs --transport http
  --only NAME         measure only streamdoor, floor or floor-reads; floor-16, the floor that
                      writes 16 at once without a rate; or a peer, with --peer: rmcp and python in
                      the stateless era, rmcp-sessions, typescript and python-sessions with a
                      handshake
  --peer 'WORDS'      the program of the peer and its first arguments, such as 'node server.mjs'
  --cpus A,B          pin the server to A, and the receiver to B (the first two allowed)
  --out DIR           write a histogram (.hgrm) and an HDR interval log, version 2 (.hlog), to DIR;
                      with --first-pause or --first-at-once, the histogram of first notifications
  --json              print one line of JSON for each run instead of text
";

/// The options of `bench mcp`.
pub struct Mcp {
    /// The load.
    pub load: Load,
    /// One of [`TRANSPORTS`].
    pub transport: &'static str,
    /// The cpu of the receiver.
    pub client_cpu: usize,
    /// The directory for `.hgrm` and `.hlog` files.
    pub out: Option<PathBuf>,
    /// True for one line of JSON for each run.
    pub json: bool,
    rounds: u32,
    /// The options for the time to the first notification.
    pub first: Firsts,
    only: Option<&'static str>,
    /// The words of `--peer`.
    peer: Vec<String>,
}

/// The result of one run.
pub struct Found {
    /// One of [`IMPLEMENTATIONS_OWN`], or of [`PEERS`].
    pub implementation: &'static str,
    /// The times from a request to its first notification.
    pub first: Taken,
    /// The results of the receiver.
    pub received: Received,
    /// The resources used by the server.
    pub used: Usage,
    /// The pressure at the end.
    pub pressure: Pressure,
}

/// Runs `bench mcp` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter().peekable();
    if let Some(word) = arguments.next_if(|word| word == "floor" || word == "server") {
        return match word == "floor" {
            true => floor::command(arguments),
            false => server::command(arguments),
        };
    }
    let Some(mcp) = Mcp::parse(arguments)? else {
        let load_help = LOAD_HELP.lines().filter(|line| !line.contains("--format"));
        print(&format!("{HELP}{}\n  --help\n", load_help.collect::<Vec<_>>().join("\n")));
        return Ok(());
    };
    let mut runs = Vec::new();
    for _ in 0..mcp.rounds {
        let all: Vec<&'static str> = IMPLEMENTATIONS.iter().rev().copied().collect();
        for implementation in mcp.only.map_or(all, |only| vec![only]) {
            // The floors go first.
            let found = mcp.measure(implementation)?;
            report::write_files(&mcp, &found)?;
            print(&report::run_report(&mcp, &found));
            runs.push(found);
        }
    }
    if !mcp.json {
        print(&report::ratios(&runs));
    }
    Ok(())
}

impl Mcp {
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Mcp>, Failure> {
        let mut load = Load::new()?;
        let client_cpu = cpus_allowed().get(1).copied().unwrap_or(load.cpu);
        let cpus = (load.cpu, client_cpu);
        let (transport, out, json, only) = (TRANSPORTS[0], None, false, None);
        let (rounds, first, peer) = (2, Firsts::default(), Vec::new());
        let given = load.clone();
        let mut mcp =
            Mcp { load: given, transport, client_cpu, out, json, rounds, first, only, peer };
        let mut cpus = cpus;
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(usage)? {
            match argument {
                Arg::Long("help") | Arg::Short('h') => return Ok(None),
                Arg::Long("transport") => {
                    mcp.transport = choice(&mut parser, "--transport", TRANSPORTS)?;
                }
                Arg::Long("sessions") => {
                    load.connections = number(&mut parser, "--sessions", 1, 9_000)?;
                    load.executions = load.connections;
                }
                Arg::Long("rounds") => {
                    mcp.rounds = number(&mut parser, "--rounds", 1, ROUNDS_MAX)?;
                }
                Arg::Long("first") => {
                    mcp.first.calls = number(&mut parser, "--first", 1, FIRST_CALLS_MAX)?;
                }
                Arg::Long("first-pause") => {
                    mcp.first.pause = seconds(&mut parser, "--first-pause", 0.0)?;
                }
                Arg::Long("first-at-once") => {
                    mcp.first.at_once = number(&mut parser, "--first-at-once", 1, AT_ONCE_MAX)?;
                }
                Arg::Long("only") => {
                    let peers = PEERS.iter().map(|(name, _)| *name);
                    let names: Vec<&'static str> =
                        IMPLEMENTATIONS_OWN.iter().copied().chain(peers).collect();
                    mcp.only = Some(choice(&mut parser, "--only", &names)?);
                }
                Arg::Long("peer") => {
                    let words = text(&mut parser, "--peer")?;
                    mcp.peer = words.split_whitespace().map(str::to_owned).collect();
                }
                Arg::Long("out") => mcp.out = Some(parser.value().map_err(usage)?.into()),
                Arg::Long("json") => mcp.json = true,
                Arg::Long("cpus") => cpus = two_cpus(&mut parser)?,
                Arg::Long(name) if !["cpu", "batch", "format"].contains(&name) => {
                    let name = name.to_owned();
                    if !load.accept(&name, &mut parser)? {
                        return Err(Failure::Usage(format!("unknown option --{name}")));
                    }
                }
                other => return Err(usage(other.unexpected())),
            }
        }
        (load.cpu, mcp.client_cpu) = cpus;
        load.check()?;
        mcp.load = load;
        mcp.check()?;
        Ok(Some(mcp))
    }

    fn check(&self) -> Result<(), Failure> {
        let refused = |text: &str| Err(Failure::Usage(text.to_owned()));
        if self.load.connections != self.load.executions {
            return refused("--executions: each session has one; give only --sessions");
        }
        let is_peer = self.only.is_some_and(peer::is_peer);
        if is_peer == self.peer.is_empty() {
            return refused("--peer: needs --only with the name of a peer, which needs --peer");
        }
        if self.first.at_once > 0 && self.is_stdio() {
            return refused("--first-at-once: each call needs a connection; give --transport http");
        }
        if self.load.cpu == self.client_cpu {
            let text = "two cpus are needed: the receiver polls, and on one cpu the server would \
                        wait for its time slice";
            return Err(Failure::Environment(text.into()));
        }
        Ok(())
    }

    /// True if the transport is standard streams.
    pub fn is_stdio(&self) -> bool {
        self.transport != "http"
    }

    /// Returns the load for a server, with connections for the concurrent calls, too.
    pub fn load_of_server(&self) -> Load {
        let Load { connections, executions, .. } = self.load;
        let connections = connections.max(self.first.at_once.next_multiple_of(executions));
        Load { connections, ..self.load.clone() }
    }

    /// Starts a server, runs the load, and ends the server.
    fn measure(&self, implementation: &'static str) -> Result<Found, Failure> {
        let connections = self.load_of_server().connections;
        allow_descriptors(u64::from(connections) + DESCRIPTORS_OTHER)?;
        pin_thread(self.client_cpu)?;
        let mut server = Server::start(self, implementation)?;
        let first = self.first.take_of(&mut server)?;
        let before = server.usage()?;
        let client = Client::new(&self.load, server.call_all(&self.load)?);
        let mut received = client.receive()?;
        let used = server.usage()?.since(before);
        received.outcome.preemptions += used.preemptions;
        let level = (implementation == "streamdoor").then(|| server.pressure_level());
        let pressure = Pressure::now(level.transpose()?.flatten());
        Ok(Found { implementation, first, received, used, pressure })
    }
}
