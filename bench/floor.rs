//! The floor: the least code that does the job, as a yardstick for everything else.
//!
//! [`ring`] is a bare ring with bare cursors, for one thread and for two; its readers sleep on
//! [`bell`]. [`handover`] is a cache line that goes back and forth. The command `bench floor`
//! measures both and the clock. The ring has no policy, no end, no second kind of reader and no
//! check of the data. No usable implementation has less to do. [`tcp`] is the same for streams over
//! TCP: the server of `bench floor tcp`. [`journal`] is the same for a log on disk.

pub mod bell;
pub mod handover;
pub mod journal;
pub mod preformatted;
pub mod ring;
pub mod tcp;

use std::ffi::OsString;
use std::path::PathBuf;

use hdrhistogram::Histogram;
use lexopt::{Arg, Parser};
use serde_json::{Map, Value, json};

use crate::common::machine::now_ns;
use crate::common::params::{Fanout, Mode, Rate, Touch, usage};
use crate::common::pressure::Pressure;
use crate::common::report::{Outcome, latency_json, latency_text, machine_line};
use crate::common::{Failure, files, print};

const HELP: &str = "\
bench floor: measure the limits of the machine

It measures the cost of reading the clock, the round trip of a cache line to another cpu, and a bare
cursor over a bare ring. The ring is measured on one thread and across two, at a rate (latency) and
at full speed (throughput).

Usage: bench floor [options]
       bench floor tcp [options]     a bare server, see bench floor tcp --help

  --size B            bytes of a payload (100)
  --rate R            chunks per second for latency (10000)
  --duration S        seconds for each of the five parts (1)
  --touch none|copy   the cursor's owner ignores the bytes, or copies them (copy)
  --seed N            the seed of arrivals and payload (1)
  --cpus A,B          the two cpus (the first two allowed)
  --out DIR           write .hgrm and .hlog of the two latency parts to DIR
  --json              print one line of JSON instead of text
  --smoke             a tiny run
  --help
";

/// The options of `fanout` with the same meaning here.
const OPTIONS_SHARED: [&str; 9] =
    ["size", "rate", "duration", "touch", "seed", "cpus", "out", "json", "smoke"];

/// Runs `bench floor` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.next_if(|word| word == "tcp").is_some() {
        return tcp::command(arguments);
    }
    let Some(params) = parse(arguments)? else {
        print(HELP);
        return Ok(());
    };
    let clock_ns = clock_cost_ns();
    let trips = handover::measure(&params)?;
    let mut parts = Vec::new();
    for (mode, rate) in [
        (Mode::Inline, params.rate),
        (Mode::Threads, params.rate),
        (Mode::Inline, Rate::Max),
        (Mode::Threads, Rate::Max),
    ] {
        let part = Fanout { mode, rate, ..params.clone() };
        let outcome = ring::measure(&part)?;
        files::write("bench", &part, &outcome, crate::common::machine::wall_time())?;
        parts.push((part, outcome));
    }
    let machine = machine_line(&Fanout { mode: Mode::Threads, ..params.clone() });
    print(&match params.json {
        true => to_json(&machine, clock_ns, &trips, &parts),
        false => to_text(&machine, clock_ns, &trips, &parts),
    });
    Ok(())
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Fanout>, Failure> {
    let mut params = Fanout::new("floor")?;
    params.duration = std::time::Duration::from_secs(1);
    params.mode = Mode::Threads; // Makes `check` require two cpus.
    params.touch = Touch::Copy;
    params.out = None::<PathBuf>;
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Arg::Long("help") | Arg::Short('h') => return Ok(None),
            Arg::Long(name) if OPTIONS_SHARED.contains(&name) => {
                let name = name.to_owned();
                let known = params.accept(&name, &mut parser)?;
                assert!(known, "{name} is an option of fanout");
            }
            Arg::Long(name) => return Err(Failure::Usage(format!("unknown option --{name}"))),
            other => return Err(usage(other.unexpected())),
        }
    }
    if params.rate == Rate::Max {
        return Err(Failure::Usage(
            "--rate: must be a number; full speed is measured anyway".into(),
        ));
    }
    params.check()?;
    Ok(Some(params))
}

/// Returns the mean cost of a clock read in nanoseconds.
fn clock_cost_ns() -> f64 {
    const READS: u32 = 100_000;
    let start = now_ns();
    for _ in 0..READS {
        std::hint::black_box(now_ns());
    }
    (now_ns() - start) as f64 / f64::from(READS)
}

fn part_name(part: &Fanout) -> String {
    let kind = if part.rate == Rate::Max { "flat out" } else { "latency" };
    format!("bare ring, {}, {kind}", part.mode_name())
}

fn to_text(
    machine: &str,
    clock_ns: f64,
    trips: &Histogram<u64>,
    parts: &[(Fanout, Outcome)],
) -> String {
    let mut text = format!("machine     {machine}\nclock read  {clock_ns:>12.1} ns\n");
    text += "\ncache line, there and back\n";
    text += &latency_text(trips);
    for (part, outcome) in parts {
        text += &format!("\n{}\n{}", part_name(part), outcome.to_text());
    }
    text + "\n" + &Pressure::now(None).to_text()
}

fn to_json(
    machine: &str,
    clock_ns: f64,
    trips: &Histogram<u64>,
    parts: &[(Fanout, Outcome)],
) -> String {
    let mut line = Map::new();
    line.insert("bench".into(), json!("floor"));
    line.insert("clock_read_ns".into(), json!((clock_ns * 10.0).round() / 10.0));
    line.insert("cache_line_round_trip".into(), Value::Object(latency_json(trips)));
    for (part, outcome) in parts {
        let suffix = if part.rate == Rate::Max { "_max" } else { "" };
        let key = format!("ring_{}{suffix}", part.mode_name());
        line.insert(key, Value::Object(outcome.to_json()));
    }
    line.insert("pressure".into(), Pressure::now(None).to_json());
    line.insert("machine".into(), json!(machine));
    format!("{}\n", Value::Object(line))
}
