//! The load of a server and its connections: the options of all servers of `bench serve`.

use std::ffi::OsString;
use std::time::Duration;

use lexopt::Parser;
use streamdoor::reactor::{Choice, Idle};

use super::child;
use super::event::Format;
use super::plan::STAMP_DIGITS;
use crate::common::machine::cpus_allowed;
use crate::common::params::{Rate, choice, in_range, number, options, seconds, text};
use crate::common::{BATCH_CHUNKS, Failure, print};

const CONNECTIONS_MAX: u32 = 10_240;
const SIZE_BYTES_MAX: usize = 64 << 10;
const RATE_MAX: u32 = 1_000_000;
const SECONDS_MIN: f64 = 0.001;
/// At 4 bytes each, all touched before a run: 1 GiB.
const SAMPLES_MAX: u64 = 1 << 28;

/// One run of one server.
#[derive(Clone, Debug)]
pub struct Load {
    /// Number of connections, each of which follows one execution.
    pub connections: u32,
    /// Number of executions, which divide the connections equally among them.
    pub executions: u32,
    /// Bytes of a payload, including the stamp.
    pub size_bytes: usize,
    /// Chunks a second of all executions together.
    pub rate: Rate,
    /// Chunks of one write, if the load has no rate and the server has a choice.
    pub batch_chunks: u32,
    /// The time during which chunks are counted.
    pub duration: Duration,
    /// The time before that, in which chunks are not counted.
    pub warmup: Duration,
    /// The format of events.
    pub format: Format,
    /// The idle behaviour of the server.
    pub idle: Idle,
    /// The kernel interface of the server, if it has a choice.
    pub reactor: Choice,
    /// The seed of the arrivals.
    pub seed: u64,
    /// The cpu of the server.
    pub cpu: usize,
}

/// The options of [`Load::accept`] for `--help`, without those of the cpus.
pub const LOAD_HELP: &str = "\
  --connections N     connections, one subscriber each (1)
  --executions N      executions, each followed by the same number of connections (1)
  --size B            bytes of a payload, 20 or more (100)
  --rate R|max        chunks per second of all executions together, planned with jittered gaps;
                      max: as fast as possible (1000)
  --duration S        seconds that are counted (5)
  --warmup S          seconds before them that are not counted (0.2)
  --format sse|ndjson the format of events (sse)
  --idle spin|backoff|block
                      the server's behaviour while nothing is due; all of them poll in the last
                      60 µs before something is due (backoff)
  --reactor auto|uring|mio
                      the server's kernel interface (auto)
  --seed N            the seed of the arrivals (1)
  --smoke             a tiny run: 1,000 chunks/s or max for 0.05 s, no warm-up
";

impl Load {
    /// Returns the defaults, for the cpus of this process.
    ///
    /// # Errors
    /// [`Failure::Environment`] if the kernel names no cpu.
    pub fn new() -> Result<Load, Failure> {
        let Some(&cpu) = cpus_allowed().first() else {
            return Err(Failure::Environment("cannot find out which cpus are allowed".into()));
        };
        Ok(Load {
            connections: 1,
            executions: 1,
            size_bytes: 100,
            rate: Rate::PerSecond(1_000),
            batch_chunks: 1,
            duration: Duration::from_secs(5),
            warmup: Duration::from_millis(200),
            format: Format::Sse,
            idle: Idle::Backoff,
            reactor: Choice::Auto,
            seed: 1,
            cpu,
        })
    }

    /// Parses the options of a server: the common ones, and those that `other` takes. Returns
    /// `None` for help.
    ///
    /// # Errors
    /// [`Failure::Usage`], which names the option and the limit.
    pub fn parse(
        arguments: impl IntoIterator<Item = OsString>,
        mut other: impl FnMut(&str, &mut Parser) -> Result<bool, Failure>,
    ) -> Result<Option<Load>, Failure> {
        let mut load = Load::new()?;
        let is_run = options(arguments, |name, parser| {
            match load.accept(name, parser)? || other(name, parser)? {
                true => Ok(()),
                false => Err(Failure::Usage(format!("unknown option --{name}"))),
            }
        })?;
        if is_run {
            load.check()?;
        }
        Ok(is_run.then_some(load))
    }

    /// Starts a server of `bench serve`: parses its options, and with `--child` starts to answer
    /// its parent. Returns the load, and true if this is a child. Prints the help and returns
    /// `None` if it was requested.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn of_server(
        arguments: impl IntoIterator<Item = OsString>,
        help: &str,
    ) -> Result<Option<(Load, bool)>, Failure> {
        let mut is_child = false;
        let load = Load::parse(arguments, |name, _| {
            is_child |= name == "child";
            Ok(name == "child")
        })?;
        let Some(load) = load else {
            print(&format!("{help}{LOAD_HELP}  --help\n"));
            return Ok(None);
        };
        if is_child {
            child::answer_standard_input();
        }
        Ok(Some((load, is_child)))
    }

    /// Takes option `--name` if all servers have it.
    ///
    /// # Errors
    /// See [`Load::parse`].
    pub fn accept(&mut self, name: &str, parser: &mut Parser) -> Result<bool, Failure> {
        match name {
            "connections" => {
                self.connections = number(parser, "--connections", 1, CONNECTIONS_MAX)?;
            }
            "executions" => self.executions = number(parser, "--executions", 1, CONNECTIONS_MAX)?,
            "size" => self.size_bytes = number(parser, "--size", STAMP_DIGITS, SIZE_BYTES_MAX)?,
            "rate" => {
                let text = text(parser, "--rate")?;
                self.rate = match text.as_str() {
                    "max" => Rate::Max,
                    _ => Rate::PerSecond(in_range("--rate", &text, 1, RATE_MAX)?),
                };
            }
            "batch" => self.batch_chunks = number(parser, "--batch", 1, BATCH_CHUNKS)?,
            "duration" => self.duration = seconds(parser, "--duration", SECONDS_MIN)?,
            "warmup" => self.warmup = seconds(parser, "--warmup", 0.0)?,
            "format" => {
                let name = choice(parser, "--format", &["sse", "ndjson"])?;
                self.format = if name == "sse" { Format::Sse } else { Format::Ndjson };
            }
            "idle" => self.idle = parsed(parser, "--idle")?,
            "reactor" => self.reactor = parsed(parser, "--reactor")?,
            "seed" => self.seed = number(parser, "--seed", 0, u64::MAX)?,
            "cpu" => self.cpu = number(parser, "--cpu", 0, 1_023)?,
            "smoke" => self.shrink(),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Makes the run tiny, for tests. A given rate in chunks per second is lowered.
    fn shrink(&mut self) {
        if let Rate::PerSecond(rate) = &mut self.rate {
            *rate = (*rate).min(1_000);
        }
        self.duration = Duration::from_millis(50);
        self.warmup = Duration::ZERO;
    }

    /// Checks that a run is possible.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub fn check(&self) -> Result<(), Failure> {
        if !self.connections.is_multiple_of(self.executions) {
            return Err(Failure::Usage(format!(
                "--executions: {} executions cannot share {} connections equally",
                self.executions, self.connections
            )));
        }
        let (warmup, counted) = self.chunks();
        let samples = (warmup + counted) * u64::from(self.followers());
        if samples > SAMPLES_MAX {
            return Err(Failure::Usage(format!(
                "{samples} deliveries are more than the {SAMPLES_MAX} that can be recorded: lower \
                 --duration, --rate or --connections"
            )));
        }
        Ok(())
    }

    /// Returns the number of connections that follow one execution.
    pub fn followers(&self) -> u32 {
        self.connections / self.executions
    }

    /// Returns the number of chunks of the warm-up and of counted chunks, a multiple of the
    /// executions. Both are 0 without a rate.
    pub fn chunks(&self) -> (u64, u64) {
        let Rate::PerSecond(rate) = self.rate else { return (0, 0) };
        let chunks = |time: Duration| {
            let chunks = (time.as_secs_f64() * f64::from(rate)).round() as u64;
            chunks.next_multiple_of(u64::from(self.executions))
        };
        (chunks(self.warmup), chunks(self.duration).max(u64::from(self.executions)))
    }

    /// Returns a number or `max`.
    pub fn rate_name(&self) -> String {
        match self.rate {
            Rate::PerSecond(rate) => rate.to_string(),
            Rate::Max => "max".into(),
        }
    }

    /// Returns the options that result in this load.
    pub fn to_arguments(&self) -> Vec<String> {
        [
            ("--connections", self.connections.to_string()),
            ("--executions", self.executions.to_string()),
            ("--size", self.size_bytes.to_string()),
            ("--rate", self.rate_name()),
            ("--batch", self.batch_chunks.to_string()),
            ("--duration", self.duration.as_secs_f64().to_string()),
            ("--warmup", self.warmup.as_secs_f64().to_string()),
            ("--format", self.format.to_string()),
            ("--idle", self.idle.to_string()),
            ("--reactor", self.reactor.to_string()),
            ("--seed", self.seed.to_string()),
            ("--cpu", self.cpu.to_string()),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect()
    }
}

/// Returns the value of `option`, of a type that explains its own errors.
fn parsed<T>(parser: &mut Parser, option: &str) -> Result<T, Failure>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let text = text(parser, option)?;
    text.parse().map_err(|error| Failure::Usage(format!("{option}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Option<Load>, Failure> {
        Load::parse(words.split_whitespace().map(OsString::from), |name, _| Ok(name == "other"))
    }

    #[test]
    fn a_load_survives_its_own_arguments() {
        let words = "--connections 12 --executions 3 --rate 1000 --duration 0.01 --warmup 0.002 \
                     --format ndjson --idle block --reactor mio --cpu 1 --size 20 --seed 7 --other";
        let load = parse(words).unwrap().unwrap();
        let again = parse(&load.to_arguments().join(" ")).unwrap().unwrap();
        assert_eq!(format!("{load:?}"), format!("{again:?}"));
        assert_eq!(again.followers(), 4);
        assert_eq!(again.chunks(), (3, 12)); // Rounded up: 4 of each execution.
    }

    #[test]
    fn bad_calls_are_usage_errors_that_name_the_option() {
        for (words, names) in [
            ("--connections 0", "--connections"),
            ("--connections 4 --executions 3", "--executions"),
            ("--size 19", "--size"),
            ("--rate 0", "--rate"),
            ("--batch 65", "--batch"),
            ("--idle never", "--idle"),
            ("--reactor kqueue", "--reactor"),
            ("--format xml", "--format"),
            ("--nonsense", "--nonsense"),
            ("stray", "stray"),
            ("--connections 10240 --rate 100000 --duration 3600", "--duration"),
        ] {
            match parse(words) {
                Err(Failure::Usage(text)) => assert!(text.contains(names), "{words}: {text}"),
                other => panic!("{words}: {other:?}"),
            }
        }
    }
}
