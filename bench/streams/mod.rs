//! The command `bench streams`: a server of Durable Streams on one cpu, its clients on another.
//!
//! All servers speak the same protocol, so all get the same requests from the same clients
//! (`clients.rs`, and `reply.rs` for one connection). `server.rs` starts them, and `work.rs` says
//! what is done. The clients poll.

mod clients;
mod reply;
mod server;
mod work;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::Parser;
use serde_json::{Map, Value, json};

use crate::common::machine::{allow_descriptors, cpus_allowed, describe, pin_thread};
use crate::common::params::{choice, number, options, seconds, text, two_cpus, usage};
use crate::common::pressure::Pressure;
use crate::common::report::{histogram_of, latency_json, latency_text};
use crate::common::serve::child::Usage;
use crate::common::{Failure, print};
use server::{IMPLEMENTATIONS, Server};

const WORKS: &[&str] = &["append", "fanout", "catch-up"];
const STREAMS_MAX: u64 = 1_000_000;
const IN_FLIGHT_MAX: usize = 1_024;
const READERS_MAX: usize = 10_000;
const RATE_MAX: u32 = 100_000;
const MIB_MAX: u64 = 1_024;
const SIZE_BYTES_MAX: usize = 1 << 20;
/// Number of descriptors beside those of readers.
const DESCRIPTORS_OTHER: u64 = 1_152;

const HELP: &str = "\
bench streams: measure a server of Durable Streams on one cpu, and its clients on another

Usage: bench streams [options]

  --impl NAME         the server to measure (streamdoor):
                      streamdoor, streamdoor-synced
                                    with a journal; a reply promises `written`, or `synced`
                      durable-streams, durable-streams-memory
                                    durable-streams-server, which syncs before a reply, or keeps
                                    nothing
                      node, node-memory
                                    the reference server, with files, or without
  --program PATH      its program (streamdoor beside this one, durable-streams-server on the PATH);
                      for node the folder with node_modules
  --work NAME         append: append to streams in turn, and measure until the reply (the default)
                      fanout: append to one stream at planned times, and measure until each reader
                      that follows it has the event
                      catch-up: let readers read a whole stream once
  --streams N         append: the number of streams (1)
  --in-flight N       append: the appends under way at once, each on its connection (1)
  --readers N         fanout, catch-up: the number of readers (1)
  --rate R            fanout: events per second, planned with jittered gaps (1000)
  --mib N             catch-up: the size of the stream (16)
  --size B            append, fanout: the bytes of an append, 17 or more (100)
  --duration S        append, fanout: the seconds that are counted (1)
  --warmup S          append, fanout: the seconds before them that are not counted (0.1)
  --seed N            the seed of arrivals (1)
  --cpus A,B          pin the server to A, and the clients to B (the first two allowed)
  --idle WORD, --reactor WORD
                      passed to streamdoor serve
  --serve WORDS       more arguments for streamdoor serve
  --out DIR           accepted, but nothing is written
  --json              print one line of JSON instead of text
  --help
";

/// One run.
pub struct Params {
    implementation: &'static str,
    program: Option<PathBuf>,
    serve: Vec<String>,
    work: &'static str,
    streams: u64,
    in_flight: usize,
    readers: usize,
    rate: u32,
    mib: u64,
    size_bytes: usize,
    duration: Duration,
    warmup: Duration,
    seed: u64,
    cpus: (usize, usize),
    json: bool,
}

/// The result of a run.
pub struct Found {
    samples_ns: Vec<u32>,
    /// Other values of this work, with their names.
    numbers: Vec<(&'static str, f64)>,
}

/// Runs `bench streams` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some(params) = Params::parse(arguments)? else {
        print(HELP);
        return Ok(());
    };
    allow_descriptors(params.readers as u64 + DESCRIPTORS_OTHER)?;
    pin_thread(params.cpus.0)?; // The server inherits it.
    let server = Server::start(params.implementation, params.program.as_deref(), &params.serve)?;
    pin_thread(params.cpus.1)?;
    let found = match params.work {
        "append" => work::append(&server, &params),
        "fanout" => work::fanout(&server, &params),
        _ => work::catch_up(&server, &params),
    }?;
    print(&params.report(&found, Usage::of_process(server.pid())));
    Ok(())
}

impl Params {
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Params>, Failure> {
        let cpus = cpus_allowed();
        let Some(&first) = cpus.first() else {
            return Err(Failure::Environment("cannot find out which cpus are allowed".into()));
        };
        let mut params = Params {
            implementation: IMPLEMENTATIONS[0],
            program: None,
            serve: Vec::new(),
            work: WORKS[0],
            streams: 1,
            in_flight: 1,
            readers: 1,
            rate: 1_000,
            mib: 16,
            size_bytes: 100,
            duration: Duration::from_secs(1),
            warmup: Duration::from_millis(100),
            seed: 1,
            cpus: (first, cpus.get(1).copied().unwrap_or(first)),
            json: false,
        };
        let is_run = options(arguments, |name, parser| params.accept(name, parser))?;
        Ok(is_run.then_some(params))
    }

    fn accept(&mut self, name: &str, parser: &mut Parser) -> Result<(), Failure> {
        let option = &format!("--{name}");
        match name {
            "impl" => self.implementation = choice(parser, option, IMPLEMENTATIONS)?,
            "program" => self.program = Some(parser.value().map_err(usage)?.into()),
            "work" => self.work = choice(parser, option, WORKS)?,
            "streams" => self.streams = number(parser, option, 1, STREAMS_MAX)?,
            "in-flight" => self.in_flight = number(parser, option, 1, IN_FLIGHT_MAX)?,
            "readers" => self.readers = number(parser, option, 1, READERS_MAX)?,
            "rate" => self.rate = number(parser, option, 1, RATE_MAX)?,
            "mib" => self.mib = number(parser, option, 1, MIB_MAX)?,
            "size" => {
                self.size_bytes = number(parser, option, work::SIZE_BYTES_MIN, SIZE_BYTES_MAX)?;
            }
            "duration" => self.duration = seconds(parser, option, 0.001)?,
            "warmup" => self.warmup = seconds(parser, option, 0.0)?,
            "seed" => self.seed = number(parser, option, 0, u64::MAX)?,
            "cpus" => self.cpus = two_cpus(parser)?,
            "idle" | "reactor" => self.serve.extend([option.clone(), text(parser, option)?]),
            "serve" => {
                self.serve.extend(text(parser, option)?.split_whitespace().map(str::to_owned));
            }
            "out" => drop(parser.value().map_err(usage)?),
            "json" => self.json = true,
            _ => return Err(Failure::Usage(format!("unknown option {option}"))),
        }
        Ok(())
    }

    fn report(&self, found: &Found, used: Usage) -> String {
        let histogram = histogram_of(&found.samples_ns);
        let pressure = Pressure::now(None);
        let (server_cpu, client_cpu) = self.cpus;
        let machine = format!(
            "{}; idle: clients poll; server on cpu {server_cpu}, clients on cpu {client_cpu}",
            describe()
        );
        if !self.json {
            let mut text = format!("machine     {machine}\n");
            for (name, value) in &found.numbers {
                text += &format!("{name:<18}{value:>12.1}\n");
            }
            let Usage { cpu_s, memory_kib, .. } = used;
            text +=
                &format!("{:<18}{cpu_s:>12.3} s\n{:<18}{memory_kib:>12} KiB\n", "cpu", "memory");
            return text + &latency_text(&histogram) + &pressure.to_text();
        }
        let mut line = Map::new();
        line.insert("bench".into(), json!("streams"));
        line.insert("impl".into(), json!(self.implementation));
        line.insert("work".into(), json!(self.work));
        for (name, value) in [
            ("streams", self.streams),
            ("in_flight", self.in_flight as u64),
            ("readers", self.readers as u64),
            ("rate", self.rate.into()),
            ("mib", self.mib),
            ("size_bytes", self.size_bytes as u64),
            ("seed", self.seed),
        ] {
            line.insert(name.into(), json!(value));
        }
        line.insert("duration_s".into(), json!(self.duration.as_secs_f64()));
        line.insert("warmup_s".into(), json!(self.warmup.as_secs_f64()));
        for (name, value) in &found.numbers {
            line.insert((*name).into(), json!(value.round()));
        }
        line.extend(latency_json(&histogram));
        line.insert("cpu_s".into(), json!(used.cpu_s));
        line.insert("memory_kib".into(), json!(used.memory_kib));
        line.insert("preemptions".into(), json!(used.preemptions));
        line.insert("pressure".into(), pressure.to_json());
        line.insert("machine".into(), json!(machine));
        format!("{}\n", Value::Object(line))
    }
}
