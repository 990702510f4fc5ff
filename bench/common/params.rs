//! The arguments of `fanout`, for both programs, and the memory that a run needs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

use super::Failure;
use super::machine::cpus_allowed;
use super::source::STAMP_BYTES;

const SUBSCRIBERS_MAX: u32 = 10_240;
const SIZE_BYTES_MAX: usize = 1 << 20;
const RATE_MAX: u32 = 5_000_000;
const SECONDS_MIN: f64 = 0.001;
const SECONDS_MAX: f64 = 3_600.0;
/// At 4 bytes each, all touched before a run: 1 GiB.
const SAMPLES_MAX: u64 = 1 << 28;
const SEED_DEFAULT: u64 = 1;
const RATE_DEFAULT: u32 = 10_000;
/// A rate at which a blocking reader sleeps between two chunks, however long it spins before.
pub const BLOCKED_RATE: u32 = 1_000;

/// The thread of the subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The producer's thread.
    Inline,
    /// One other thread on another cpu, which polls.
    Threads,
    /// One other thread on another cpu, which sleeps in the kernel while nothing is ready.
    Blocked,
}

/// The use of the bytes by a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It reads the stamp.
    None,
    /// It makes a copy of its own.
    Copy,
}

/// The rate of publications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Chunks per second, with jitter. Latency is measured.
    PerSecond(u32),
    /// The fastest possible rate. Throughput is measured.
    Max,
}

/// The type of a payload, for implementations that leave the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// `[u8; SIZE]`.
    Value,
    /// `Arc<[u8]>`.
    Shared,
}

/// One run of `fanout`.
#[derive(Clone, Debug)]
pub struct Fanout {
    /// One of the names in [`Program::implementations`].
    pub implementation: &'static str,
    /// Number of subscribers, at least 1.
    pub subscribers: u32,
    /// Bytes of a payload, including the stamp.
    pub size_bytes: usize,
    /// See [`Rate`].
    pub rate: Rate,
    /// The time during which chunks are counted.
    pub duration: Duration,
    /// The time before that, in which chunks are not counted.
    pub warmup: Duration,
    /// See [`Mode`].
    pub mode: Mode,
    /// See [`Touch`].
    pub touch: Touch,
    /// The type of the payload. `None` if the program chooses.
    pub payload: Option<Payload>,
    /// The seed of the arrivals and of the payload.
    pub seed: u64,
    /// The directory for `.hgrm` and `.hlog` files.
    pub out: Option<PathBuf>,
    /// True for one line of JSON instead of text.
    pub json: bool,
    /// The cpu of the producer.
    pub producer_cpu: usize,
    /// The cpu of the subscribers if they have a thread.
    pub subscribers_cpu: usize,
    /// True if `rate` was given as an option.
    pub is_rate_given: bool,
}

/// The properties by which the programs differ.
pub struct Program {
    /// The names for `--impl`. The first is the default.
    pub implementations: &'static [&'static str],
    /// True if the program has the option `--payload`.
    pub has_payload: bool,
}

/// The options that every program's `fanout --help` lists.
pub const OPTIONS_HELP: &str = "\
  --subscribers N     subscribers, each with a cursor of its own (1)
  --size B            bytes of a payload, 8 or more (100)
  --rate R|max        chunks per second, planned with jittered gaps: latency is measured from the
                      planned time; max: as fast as possible, throughput is measured (10000; blocked
                      1000, so that subscribers sleep between two chunks)
  --duration S        seconds that are counted (5)
  --warmup S          seconds before them that are not counted (0.2)
  --mode inline|threads|blocked
                      subscribers on the producer's thread; or all on one other thread, which polls
                      them round robin and never blocks; or on that thread, which sleeps in the
                      kernel while there is no chunk (inline)
  --touch none|copy   a subscriber reads the first 8 bytes, or copies the payload (copy)
  --seed N            the seed of arrivals and payload (1)
  --cpus A,B          pin the producer to A, and the subscribers to B (the first two allowed)
  --out DIR           write a histogram (.hgrm) and an HDR interval log, version 2 (.hlog), to DIR
  --json              print one line of JSON instead of text
  --smoke             a tiny run: 2,000 chunks/s or max for 0.05 s, no warm-up
  --help
";

impl Fanout {
    /// Returns the defaults, for the cpus of this process.
    ///
    /// # Errors
    /// [`Failure::Environment`] if the kernel names no cpu.
    pub fn new(implementation: &'static str) -> Result<Fanout, Failure> {
        let cpus = cpus_allowed();
        let Some(&producer_cpu) = cpus.first() else {
            return Err(Failure::Environment("cannot find out which cpus are allowed".into()));
        };
        Ok(Fanout {
            implementation,
            subscribers: 1,
            size_bytes: 100,
            rate: Rate::PerSecond(RATE_DEFAULT),
            duration: Duration::from_secs(5),
            warmup: Duration::from_millis(200),
            mode: Mode::Inline,
            touch: Touch::Copy,
            payload: None,
            seed: SEED_DEFAULT,
            out: None,
            json: false,
            producer_cpu,
            subscribers_cpu: cpus.get(1).copied().unwrap_or(producer_cpu),
            is_rate_given: false,
        })
    }

    /// Parses the arguments after the word `fanout`. Returns `None` if help was requested.
    ///
    /// # Errors
    /// [`Failure::Usage`], which names the option and the limit.
    pub fn parse(
        program: &Program,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Option<Fanout>, Failure> {
        let mut params = Fanout::new(program.implementations[0])?;
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(usage)? {
            match argument {
                Arg::Long("help") | Arg::Short('h') => return Ok(None),
                Arg::Long("impl") => {
                    let names = program.implementations;
                    params.implementation = choice(&mut parser, "--impl", names)?;
                }
                Arg::Long("payload") if program.has_payload => {
                    let name = choice(&mut parser, "--payload", &["value", "arc"])?;
                    params.payload =
                        Some(if name == "arc" { Payload::Shared } else { Payload::Value });
                }
                Arg::Long(name) => {
                    let name = name.to_owned();
                    if !params.accept(&name, &mut parser)? {
                        return Err(Failure::Usage(format!("unknown option --{name}")));
                    }
                }
                other => return Err(usage(other.unexpected())),
            }
        }
        if params.mode == Mode::Blocked {
            params.let_sleep();
        }
        params.check()?;
        Ok(Some(params))
    }

    /// Lowers the rate so that a blocking reader sleeps between two chunks, unless a rate was
    /// given.
    pub fn let_sleep(&mut self) {
        if let (Rate::PerSecond(rate), false) = (&mut self.rate, self.is_rate_given) {
            *rate = (*rate).min(BLOCKED_RATE);
        }
    }

    /// Takes option `--name` if `fanout` has it in every program.
    ///
    /// # Errors
    /// See [`Fanout::parse`].
    pub fn accept(&mut self, name: &str, parser: &mut Parser) -> Result<bool, Failure> {
        match name {
            "subscribers" => {
                self.subscribers = number(parser, "--subscribers", 1, SUBSCRIBERS_MAX)?;
            }
            "size" => self.size_bytes = number(parser, "--size", STAMP_BYTES, SIZE_BYTES_MAX)?,
            "rate" => {
                let text = text(parser, "--rate")?;
                self.rate = match text.as_str() {
                    "max" => Rate::Max,
                    _ => Rate::PerSecond(in_range("--rate", &text, 1, RATE_MAX)?),
                };
                self.is_rate_given = true;
            }
            "duration" => self.duration = seconds(parser, "--duration", SECONDS_MIN)?,
            "warmup" => self.warmup = seconds(parser, "--warmup", 0.0)?,
            "mode" => {
                self.mode = match choice(parser, "--mode", &["inline", "threads", "blocked"])? {
                    "inline" => Mode::Inline,
                    "threads" => Mode::Threads,
                    _ => Mode::Blocked,
                };
            }
            "touch" => {
                let name = choice(parser, "--touch", &["none", "copy"])?;
                self.touch = if name == "none" { Touch::None } else { Touch::Copy };
            }
            "seed" => self.seed = number(parser, "--seed", 0, u64::MAX)?,
            "cpus" => (self.producer_cpu, self.subscribers_cpu) = two_cpus(parser)?,
            "out" => self.out = Some(PathBuf::from(parser.value().map_err(usage)?)),
            "json" => self.json = true,
            "smoke" => self.shrink(),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Makes the run tiny, for tests. A given rate in chunks per second is lowered.
    fn shrink(&mut self) {
        if let Rate::PerSecond(rate) = &mut self.rate {
            *rate = (*rate).min(2_000);
        }
        self.duration = Duration::from_millis(50);
        self.warmup = Duration::ZERO;
    }

    /// Checks that a run is possible.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn check(&self) -> Result<(), Failure> {
        if self.mode != Mode::Inline && self.producer_cpu == self.subscribers_cpu {
            return Err(Failure::Environment(format!(
                "--mode {} needs two cpus: the side that polls would make the other wait for a \
                 time slice",
                self.mode_name()
            )));
        }
        if let Rate::PerSecond(rate) = self.rate {
            let (warmup, counted) = self.chunks(rate);
            let samples = (warmup + counted) * u64::from(self.subscribers);
            if samples > SAMPLES_MAX {
                return Err(Failure::Usage(format!(
                    "{samples} deliveries are more than the {SAMPLES_MAX} that can be recorded: \
                     lower --duration, --rate or --subscribers"
                )));
            }
        }
        Ok(())
    }

    /// Returns the number of chunks of the warm-up, and of counted chunks.
    pub fn chunks(&self, rate: u32) -> (u64, u64) {
        let chunks = |time: Duration| (time.as_secs_f64() * f64::from(rate)).round() as u64;
        (chunks(self.warmup), chunks(self.duration).max(1))
    }

    /// Returns the number of samples to allocate: one per delivery, or none without latencies.
    pub fn samples(&self) -> usize {
        let Rate::PerSecond(rate) = self.rate else {
            return 0;
        };
        let (warmup, counted) = self.chunks(rate);
        ((warmup + counted) * u64::from(self.subscribers)) as usize
    }
}

/// The words of the command line for the values, for reports and file names.
impl Fanout {
    /// Returns `inline`, `threads` or `blocked`.
    pub fn mode_name(&self) -> &'static str {
        match self.mode {
            Mode::Inline => "inline",
            Mode::Threads => "threads",
            Mode::Blocked => "blocked",
        }
    }

    /// Returns `none` or `copy`.
    pub fn touch_name(&self) -> &'static str {
        match self.touch {
            Touch::None => "none",
            Touch::Copy => "copy",
        }
    }

    /// Returns a number or `max`.
    pub fn rate_name(&self) -> String {
        match self.rate {
            Rate::PerSecond(rate) => rate.to_string(),
            Rate::Max => "max".into(),
        }
    }
}

/// Turns an error of `lexopt` into a usage error.
pub fn usage(error: lexopt::Error) -> Failure {
    Failure::Usage(error.to_string())
}

/// Passes each option to `accept`, which takes its value from the parser. Returns false if help is
/// wanted.
///
/// # Errors
/// Those of `accept`, and [`Failure::Usage`] for anything that is no option.
pub fn options(
    arguments: impl IntoIterator<Item = OsString>,
    mut accept: impl FnMut(&str, &mut Parser) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Arg::Long("help") | Arg::Short('h') => return Ok(false),
            Arg::Long(name) => {
                let name = name.to_owned();
                accept(&name, &mut parser)?;
            }
            other => return Err(usage(other.unexpected())),
        }
    }
    Ok(true)
}

/// Returns the value of `option`.
pub fn text(parser: &mut Parser, option: &str) -> Result<String, Failure> {
    let value = parser.value().map_err(usage)?;
    value.string().map_err(|_| Failure::Usage(format!("{option}: not UTF-8")))
}

/// Returns the value of `option`, which is one of `names`.
pub fn choice(
    parser: &mut Parser,
    option: &str,
    names: &[&'static str],
) -> Result<&'static str, Failure> {
    let text = text(parser, option)?;
    names.iter().find(|name| **name == text).copied().ok_or_else(|| {
        Failure::Usage(format!("{option}: must be one of {}, not \"{text}\"", names.join(", ")))
    })
}

/// Returns the value of `option`, a number from `low` to `high`.
pub fn number<T>(parser: &mut Parser, option: &str, low: T, high: T) -> Result<T, Failure>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let text = text(parser, option)?;
    in_range(option, &text, low, high)
}

/// Returns the value of `--cpus`, such as 0,1.
pub fn two_cpus(parser: &mut Parser) -> Result<(usize, usize), Failure> {
    let text = text(parser, "--cpus")?;
    let Some((first, second)) = text.split_once(',') else {
        return Err(Failure::Usage(format!(
            "--cpus: must be two numbers like 0,1, not \"{text}\""
        )));
    };
    Ok((in_range("--cpus", first, 0, 1_023)?, in_range("--cpus", second, 0, 1_023)?))
}

/// Parses `text` as a number from `low` to `high`.
pub fn in_range<T>(option: &str, text: &str, low: T, high: T) -> Result<T, Failure>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let value = text.parse().ok().filter(|value| *value >= low && *value <= high);
    value.ok_or_else(|| {
        Failure::Usage(format!("{option}: must be a number from {low} to {high}, not \"{text}\""))
    })
}

/// Returns the value of `option`, in seconds.
pub fn seconds(parser: &mut Parser, option: &str, low: f64) -> Result<Duration, Failure> {
    let value: f64 = number(parser, option, low, SECONDS_MAX)?;
    Ok(Duration::from_secs_f64(value)) // In range, so neither negative nor NaN.
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: Program = Program { implementations: &["floor"], has_payload: false };

    fn parse(words: &str) -> Result<Option<Fanout>, Failure> {
        Fanout::parse(&PROGRAM, words.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options_are_taken_and_their_order_does_not_matter_for_the_count_of_samples() {
        let params = parse("--subscribers 16 --rate 1000 --duration 2 --warmup 0.5").unwrap();
        let params = params.unwrap();
        assert_eq!(params.chunks(1_000), (500, 2_000));
        assert_eq!(params.samples(), 2_500 * 16);
        assert!(parse("--help --nonsense").unwrap().is_none());
        for (words, rate) in [
            ("--mode blocked", BLOCKED_RATE),
            ("--rate 10000 --mode blocked", 10_000),
            ("--mode threads", RATE_DEFAULT),
        ] {
            match parse(&format!("{words} --cpus 0,1")).unwrap().unwrap().rate {
                Rate::PerSecond(found) => assert_eq!(found, rate, "{words}"),
                Rate::Max => panic!("{words}: flat out"),
            }
        }
    }

    #[test]
    fn bad_calls_are_usage_errors_that_name_the_option() {
        for (words, names) in [
            ("--subscribers 0", "--subscribers"),
            ("--size 7", "--size"),
            ("--rate fast", "--rate"),
            ("--duration -1", "--duration"),
            ("--duration nan", "--duration"),
            ("--mode sideways", "inline, threads, blocked"),
            ("--impl nothing", "--impl"),
            ("--payload arc", "--payload"),
            ("--cpus 1", "--cpus"),
            ("--subscribers", "--subscribers"),
            ("--nonsense", "--nonsense"),
            ("stray", "stray"),
            ("--json=1", "json"),
            ("--subscribers 10240 --rate 100000", "--duration"),
        ] {
            match parse(words) {
                Err(Failure::Usage(text)) => assert!(text.contains(names), "{words}: {text}"),
                other => panic!("{words}: {other:?}"),
            }
        }
        let same = parse("--mode threads --cpus 0,0");
        assert!(matches!(same, Err(Failure::Environment(_))), "{same:?}");
    }
}
