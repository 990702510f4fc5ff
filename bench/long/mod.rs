//! The commands `bench soak` and `bench idle`: the behaviour of a server over a long time.
//!
//! Both run `streamdoor serve`, the shipped program, in a process of its own ([`server`]). `soak`
//! runs short executions of every kind ([`work`]) and samples the memory meanwhile. `idle` runs
//! nothing and samples what the kernel counts of an idle server. Both write a table, and `soak`
//! draws it ([`draw`]).

mod draw;
mod sample;
mod server;
mod work;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};
use streamdoor::reactor::Clock;

use crate::common::machine::describe;
use crate::common::params::{choice, number, usage};
use crate::common::pressure::Pressure;
use crate::common::{Failure, print};
use sample::Sample;
use server::Server;
use work::Workers;

const SOAK_HELP: &str = "\
bench soak: run short executions of every kind, and record the server's memory

Usage: bench soak [options]

  --executions N        the number of executions (1000000)
  --workers N           the number of clients at once (4)
  --samples N           the number of memory samples, evenly over the run (200)
  --reactor uring|mio   the server's kernel interface (uring)
  --malloc-arenas N     MALLOC_ARENA_MAX of the server; 0: the C library's default (0)
  --smoke               a size that fits into a test
  --out DIR             write soak-REACTOR.csv and soak-REACTOR.svg to DIR
  --help
";

const IDLE_HELP: &str = "\
bench idle: run an idle server, and record the counters of the kernel

Usage: bench idle [options]

  --seconds N           the duration; one sample a second (600)
  --reactor uring|mio|none
                        the server's kernel interface (uring); none: no server, for comparison
  --smoke               a size that fits into a test
  --out DIR             write idle-REACTOR.csv to DIR
  --help
";

const LOOK_AT_IDLE: Duration = Duration::from_secs(1);
/// Reads of /proc/stat in each sample, because it shows only the current moment.
const GLANCES: u32 = 20;
/// Time before the first sample, so that the start is not part of it.
const SETTLE: Duration = Duration::from_secs(2);

/// Runs `bench soak` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn soak(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut parser = Parser::from_args(arguments);
    let (mut executions, mut workers, mut looks) = (1_000_000_u64, 4_u32, 200_u64);
    let (mut reactor, mut arenas, mut out) = ("uring", 0_u32, None);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Arg::Long("help") | Arg::Short('h') => {
                print(SOAK_HELP);
                return Ok(());
            }
            Arg::Long("executions") => {
                executions = number(&mut parser, "--executions", 1, 1 << 40)?
            }
            Arg::Long("workers") => workers = number(&mut parser, "--workers", 1, 64)?,
            Arg::Long("samples") => looks = number(&mut parser, "--samples", 1, 100_000)?,
            Arg::Long("reactor") => reactor = choice(&mut parser, "--reactor", &["uring", "mio"])?,
            Arg::Long("malloc-arenas") => arenas = number(&mut parser, "--malloc-arenas", 0, 64)?,
            Arg::Long("smoke") => (executions, workers, looks) = (120, 2, 4),
            Arg::Long("out") => out = Some(folder(&mut parser)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    let server = Server::start(reactor, arenas)?;
    let started = Clock::now();
    let workers = Workers::new(&server, workers)?;
    let mut samples = Vec::new();
    let mut next = 0;
    while next < executions {
        samples.push(Sample::take(Some(&server), started, next)?);
        let until = (executions * samples.len() as u64 / looks).clamp(next + 1, executions);
        workers.run(next..until)?;
        next = until;
    }
    samples.push(Sample::take(Some(&server), started, next)?);
    let table = table_of(&samples);
    if let Some(folder) = &out {
        write(&folder.join(format!("soak-{reactor}.csv")), &table)?;
        let title = format!("streamdoor serve --reactor {reactor}: memory over executions");
        write(&folder.join(format!("soak-{reactor}.svg")), &draw::drawing(&title, &samples))?;
    }
    let report = soak_report(&samples, Clock::now().since(started));
    print(&format!("machine {}\n{}{report}", describe(), pressure_of(&samples).to_text()));
    Ok(())
}

/// Returns the present pressure, with the level that the server reported last.
fn pressure_of(samples: &[Sample]) -> Pressure {
    Pressure::now(samples.last().map(|sample| sample.pressure_level))
}

fn soak_report(samples: &[Sample], took: Duration) -> String {
    let last = samples.last().expect("there is one after the run");
    let mut text = String::new();
    let _ = writeln!(text, "executions {}", last.executions);
    let per_s = last.executions as f64 / took.as_secs_f64();
    let _ = writeln!(text, "per_s {per_s:.0}");
    // By quarters: a leak grows in the last one as much as in the first.
    for quarter in 0..=4 {
        let sample = &samples[(samples.len() - 1) * quarter / 4];
        let _ = writeln!(
            text,
            "at {:>10} rss {} KiB, anonymous {} KiB, shared {} KiB, rings {} KiB",
            sample.executions,
            sample.rss_kib,
            sample.anonymous_kib,
            sample.shared_kib,
            sample.rings_kib
        );
    }
    let half = &samples[samples.len() / 2];
    let grown = last.anonymous_kib as i64 - half.anonymous_kib as i64;
    let _ = writeln!(text, "grown_in_second_half_kib {grown}");
    text
}

/// Runs `bench idle` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn idle(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut parser = Parser::from_args(arguments);
    let (mut seconds, mut reactor, mut out) = (600_u64, "uring", None);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Arg::Long("help") | Arg::Short('h') => {
                print(IDLE_HELP);
                return Ok(());
            }
            Arg::Long("seconds") => seconds = number(&mut parser, "--seconds", 1, 1 << 20)?,
            Arg::Long("reactor") => {
                reactor = choice(&mut parser, "--reactor", &["uring", "mio", "none"])?;
            }
            Arg::Long("smoke") => seconds = 1,
            Arg::Long("out") => out = Some(folder(&mut parser)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    let server = (reactor != "none").then(|| Server::start(reactor, 0)).transpose()?;
    std::thread::sleep(SETTLE);
    let started = Clock::now();
    let mut samples = vec![Sample::take(server.as_ref(), started, 0)?];
    for _ in 0..seconds {
        let mut blocked = 0;
        for _ in 0..GLANCES {
            std::thread::sleep(LOOK_AT_IDLE / GLANCES);
            blocked += sample::blocked_count();
        }
        let mut sample = Sample::take(server.as_ref(), started, 0)?;
        sample.blocked_mean = blocked as f64 / f64::from(GLANCES);
        samples.push(sample);
    }
    if let Some(folder) = &out {
        write(&folder.join(format!("idle-{reactor}.csv")), &table_of(&samples))?;
    }
    let pressure = match &server {
        Some(_) => pressure_of(&samples),
        None => Pressure::now(None),
    };
    print(&format!("machine {}\n{}{}", describe(), pressure.to_text(), idle_report(&samples)));
    Ok(())
}

fn idle_report(samples: &[Sample]) -> String {
    let (first, last) = (&samples[0], samples.last().expect("there is the first"));
    let elapsed_us = (last.at_s - first.at_s) * 1e6;
    let percent = |before: u64, after: u64| 100.0 * (after - before) as f64 / elapsed_us;
    let mut text = String::new();
    let _ = writeln!(text, "seconds {:.0}", last.at_s - first.at_s);
    let of_machine = percent(first.machine_io_us, last.machine_io_us);
    let _ = writeln!(text, "io_some_of_machine_percent {of_machine:.2}");
    match (first.own_io_us, last.own_io_us) {
        (Some(before), Some(after)) => {
            let _ = writeln!(text, "io_some_of_server_percent {:.2}", percent(before, after));
        }
        _ => {
            text.push_str("io_some_of_server_percent - (no cgroup of version 2 can be made here)\n")
        }
    }
    let blocked: f64 = samples[1..].iter().map(|sample| sample.blocked_mean).sum();
    let _ = writeln!(text, "procs_blocked_mean {:.3}", blocked / (samples.len() - 1).max(1) as f64);
    let level_max = samples.iter().map(|sample| sample.pressure_level).max();
    let _ = writeln!(text, "pressure_level_max {}", level_max.unwrap_or(0));
    let rings_min = samples.iter().map(|sample| sample.rings_kib).min();
    let _ = writeln!(text, "rings_committed_kib_min {}", rings_min.unwrap_or(0));
    let level_changes =
        samples.windows(2).filter(|two| two[0].pressure_level != two[1].pressure_level);
    let _ = writeln!(text, "pressure_changes {}", level_changes.count());
    text
}

/// Returns all samples as a table for other programs.
fn table_of(samples: &[Sample]) -> String {
    let mut text = format!("{}\n", Sample::HEAD);
    for sample in samples {
        let _ = writeln!(text, "{sample}");
    }
    text
}

fn folder(parser: &mut Parser) -> Result<PathBuf, Failure> {
    let folder = PathBuf::from(parser.value().map_err(usage)?.string().map_err(usage)?);
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))?;
    Ok(folder)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
}
