//! The command `bench agent`: deltas of models that pass through runs of agents, beside a straight
//! pipe.
//!
//! This process is both ends, on one cpu. The model (`model.rs`) sends deltas when they are due.
//! The readers (`reader.rs`) poll. One clock thus shows when a byte left and when it arrived. One
//! process on another cpu stands between the ends. It is either streamdoor's server (`server.rs`)
//! or a relay (`relay.rs`). In the server, each run asks the model and is followed over HTTP. The
//! relay carries the same bytes without parsing them. The difference between the two is the cost of
//! streamdoor.

mod ends;
mod model;
mod reader;
mod relay;
mod report;
mod server;

use std::ffi::OsString;
use std::path::PathBuf;

use hdrhistogram::Histogram;
use lexopt::{Arg, Parser};

use crate::common::machine::{allow_descriptors, cpus_allowed, pin_thread};
use crate::common::params::{choice, number, two_cpus, usage};
use crate::common::pressure::Pressure;
use crate::common::report::Outcome;
use crate::common::serve::child::Usage;
use crate::common::serve::load::{LOAD_HELP, Load};
use crate::common::{Failure, print};
use crate::serve::server::Server;
use ends::Ends;
use reader::Way;

const DESCRIPTORS_OTHER: u64 = 64;
const MODES: &[&str] = &["stream", "iterate"];
const ROUNDS_MAX: u32 = 100;
const RUNS_MAX: u32 = 4_096;

const HELP: &str = "\
bench agent: measure deltas of models through runs of agents, beside a plain pipe

Open loop: send times are planned in advance. Latency counts from the planned time until the reader,
which polls, holds the delta. In each round the pipe and streamdoor take turns with the same plan.
The last lines show what streamdoor adds. The run fails if a delta is missing.

Usage: bench agent [options]

  --mode stream|iterate
                      readers receive each part, or only the events of steps; latency is then that
                      of the run's end (stream)
  --runs N            the number of runs at once (1)
  --rounds N          the number of times that both are run (2)
  --only NAME         measure only streamdoor or pipe
  --cpus A,B          pin the middle to A, and both ends to B (the first two allowed)
  --out DIR           write a histogram (.hgrm) and an HDR interval log, version 2 (.hlog), to DIR
  --json              print one line of JSON for each run instead of text

  --rate is the total of all runs. With max, models send as fast as readers accept, and deltas per
  second are counted. One run holds at most 8 MiB of text: keep --duration short then.
";

/// The options of `bench agent`.
pub struct Agent {
    /// The deltas of the models.
    pub load: Load,
    /// The way in which runs are followed.
    pub mode: Way,
    /// The cpu of both ends.
    pub ends_cpu: usize,
    /// The directory for `.hgrm` and `.hlog` files.
    pub out: Option<PathBuf>,
    /// True for one line of JSON for each run.
    pub json: bool,
    rounds: u32,
    only: Option<&'static str>,
}

/// The result of one run of the benchmark.
pub struct Found {
    /// The process between the ends, and the way of following.
    pub way: Way,
    /// The latencies of all deltas, or their number.
    pub outcome: Outcome,
    /// The latencies from the end of the model's stream to the end of the run.
    pub end: Histogram<u64>,
    /// The resources used by the process between the ends.
    pub used: Usage,
    /// Number of deltas sent, including those of the warm-up.
    pub deltas: u64,
    /// The mean latency of the fastest run, and of the slowest. A large difference means that runs
    /// wait for each other.
    pub run_means_ns: (u64, u64),
    /// Memory of the process between the ends before the first request.
    pub memory_before_kib: u64,
    /// The pressure at the end.
    pub pressure: Pressure,
}

/// Runs `bench agent` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter().peekable();
    if let Some(word) = arguments.next_if(|word| word == "pipe" || word == "server") {
        return match word == "pipe" {
            true => relay::command(arguments),
            false => server::command(arguments),
        };
    }
    let Some(agent) = Agent::parse(arguments)? else {
        let own = |line: &&str| {
            ["--format", "--connections", "--executions"].iter().all(|name| !line.contains(name))
        };
        let load_help: Vec<&str> = LOAD_HELP.lines().filter(own).collect();
        print(&format!("{HELP}{}\n  --help\n", load_help.join("\n")));
        return Ok(());
    };
    let mut all = Vec::new();
    for _ in 0..agent.rounds {
        for way in [Way::Pipe, agent.mode] {
            let name = if way == Way::Pipe { "pipe" } else { "streamdoor" };
            if agent.only.is_some_and(|only| only != name) {
                continue;
            }
            let found = agent.measure(way)?;
            report::write_files(&agent, &found)?;
            print(&report::run_report(&agent, &found));
            all.push(found);
        }
    }
    if !agent.json {
        print(&report::added(&all));
    }
    Ok(())
}

impl Agent {
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Agent>, Failure> {
        let load = Load::new()?;
        let ends_cpu = cpus_allowed().get(1).copied().unwrap_or(load.cpu);
        let (mode, out, json, rounds, only) = (Way::Stream, None, false, 2, None);
        let mut agent = Agent { load, mode, ends_cpu, out, json, rounds, only };
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(usage)? {
            match argument {
                Arg::Long("help") | Arg::Short('h') => return Ok(None),
                Arg::Long("mode") => {
                    agent.mode = match choice(&mut parser, "--mode", MODES)? {
                        "iterate" => Way::Iterate,
                        _ => Way::Stream,
                    };
                }
                Arg::Long("runs") => {
                    agent.load.connections = number(&mut parser, "--runs", 1, RUNS_MAX)?;
                    agent.load.executions = agent.load.connections;
                }
                Arg::Long("rounds") => {
                    agent.rounds = number(&mut parser, "--rounds", 1, ROUNDS_MAX)?;
                }
                Arg::Long("only") => {
                    let names = &["streamdoor", "pipe"];
                    agent.only = Some(choice(&mut parser, "--only", names)?);
                }
                Arg::Long("out") => agent.out = Some(parser.value().map_err(usage)?.into()),
                Arg::Long("json") => agent.json = true,
                Arg::Long("cpus") => (agent.load.cpu, agent.ends_cpu) = two_cpus(&mut parser)?,
                Arg::Long(name) if !NOT_OURS.contains(&name) => {
                    let name = name.to_owned();
                    if !agent.load.accept(&name, &mut parser)? {
                        return Err(Failure::Usage(format!("unknown option --{name}")));
                    }
                }
                other => return Err(usage(other.unexpected())),
            }
        }
        agent.load.check()?;
        agent.check()?;
        Ok(Some(agent))
    }

    fn check(&self) -> Result<(), Failure> {
        if self.load.cpu == self.ends_cpu {
            let text = "two cpus are needed: both ends poll, and on one cpu the middle would wait \
                        for its time slice";
            return Err(Failure::Environment(text.into()));
        }
        Ok(())
    }

    /// Starts the process between the ends, runs the load, and ends the process.
    fn measure(&self, way: Way) -> Result<Found, Failure> {
        let load = &self.load;
        allow_descriptors(2 * u64::from(load.connections) + DESCRIPTORS_OTHER)?;
        pin_thread(self.ends_cpu)?;
        let mut ends = Ends::open(load, way)?;
        let program = std::env::current_exe().map_err(|error| {
            Failure::Environment(format!("the path of this program is unknown: {error}"))
        })?;
        let kind = if way == Way::Pipe { "pipe" } else { "server" };
        let model = ends.model_address().to_string();
        let words = ["agent", kind, "--child", "--model", &model].map(str::to_owned);
        let words: Vec<String> = words.into_iter().chain(load.to_arguments()).collect();
        let mut between = Server::start(&program, &words)?;
        let memory_before_kib = between.usage()?.memory_kib;
        ends.ask_all(between.address)?;
        let before = between.usage()?;
        let heard = ends.run()?;
        let used = between.usage()?.since(before);
        let mut outcome = heard.outcome;
        outcome.preemptions += used.preemptions;
        let level = (way != Way::Pipe).then(|| between.pressure_level());
        let pressure = Pressure::now(level.transpose()?);
        let (end, deltas, run_means_ns) = (heard.end, heard.deltas, heard.run_means_ns);
        Ok(Found { way, outcome, end, used, deltas, run_means_ns, memory_before_kib, pressure })
    }
}

/// Options of a load that have no meaning here.
const NOT_OURS: [&str; 5] = ["cpu", "batch", "format", "connections", "executions"];
