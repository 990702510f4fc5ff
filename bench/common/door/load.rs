//! The load of a run, the number of readers, and how they wait: the options of `bench door`.

use std::ffi::OsString;

use lexopt::{Arg, Parser};

use crate::common::Failure;
use crate::common::params::{Fanout, Mode, Rate, choice, number, usage};

/// The maximum number of readers in other processes that one execution allows.
pub const READERS_MAX: u32 = 64;
const ROUNDS_MAX: u32 = 100;

/// The way in which readers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// One thread polls all readers, round robin.
    Polled,
    /// Each reader has a thread of its own, and blocks in the kernel.
    Blocked,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Load {
    /// The load. Its subscribers are the readers, and its second cpu is that of the readers.
    pub plan: Fanout,
    /// See [`Wait`].
    pub wait: Wait,
    /// Number of runs of each implementation.
    pub rounds: u32,
    /// The only implementation that is run, or `None` for all of them.
    pub only: Option<&'static str>,
}

/// The options of [`Load::accept`] for `--help`.
pub const LOAD_HELP: &str = "\
  --readers N         readers (1)
  --size B            bytes of a payload, 8 or more (100)
  --rate R|max        chunks per second, planned with jittered gaps: latency is measured from the
                      planned time; max: as fast as possible, throughput is measured (10000 polled,
                      1000 blocked)
  --wait polled|blocked
                      one thread polls all readers round robin; or each reader has a thread of its
                      own, which sleeps in the kernel until there is a chunk (polled)
  --touch none|copy   a reader ignores the bytes, or copies them (copy)
  --duration S        seconds that are counted (5)
  --warmup S          seconds before them that are not counted (0.2)
  --seed N            the seed of arrivals and payload (1)
  --rounds N          the number of runs of each implementation (2)
  --cpus A,B          pin the producer to A, and the readers to B (the first two allowed)
  --out DIR           write a histogram (.hgrm) and an HDR interval log, version 2 (.hlog), to DIR
  --json              print one line of JSON for each run instead of text
  --smoke             a tiny run: 2,000 chunks/s or max for 0.05 s, no warm-up
";

impl Load {
    /// Returns the defaults, for the cpus of this process.
    ///
    /// # Errors
    /// [`Failure::Environment`] if the kernel names no cpu.
    pub fn new(implementation: &'static str) -> Result<Load, Failure> {
        let mut plan = Fanout::new(implementation)?;
        plan.mode = Mode::Threads; // Uses a second cpu.
        Ok(Load { plan, wait: Wait::Polled, rounds: 2, only: None })
    }

    /// Parses the options: the common ones, and those that `other` takes. Returns `None` for help.
    ///
    /// # Errors
    /// [`Failure::Usage`], which names the option and the limit.
    pub fn parse(
        implementations: &[&'static str],
        arguments: impl IntoIterator<Item = OsString>,
        mut other: impl FnMut(&str, &mut Parser) -> Result<bool, Failure>,
    ) -> Result<Option<Load>, Failure> {
        let mut load = Load::new(implementations[0])?;
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(usage)? {
            match argument {
                Arg::Long("help") | Arg::Short('h') => return Ok(None),
                Arg::Long("impl") => {
                    let name = choice(&mut parser, "--impl", implementations)?;
                    (load.plan.implementation, load.only) = (name, Some(name));
                }
                Arg::Long(name) => {
                    let name = name.to_owned();
                    if !load.accept(&name, &mut parser)? && !other(&name, &mut parser)? {
                        return Err(Failure::Usage(format!("unknown option --{name}")));
                    }
                }
                other => return Err(usage(other.unexpected())),
            }
        }
        if load.wait == Wait::Blocked {
            load.plan.let_sleep();
        }
        load.check()?;
        Ok(Some(load))
    }

    fn accept(&mut self, name: &str, parser: &mut Parser) -> Result<bool, Failure> {
        match name {
            "readers" => self.plan.subscribers = number(parser, "--readers", 1, READERS_MAX)?,
            "wait" => {
                let name = choice(parser, "--wait", &["polled", "blocked"])?;
                self.wait = if name == "polled" { Wait::Polled } else { Wait::Blocked };
            }
            "rounds" => self.rounds = number(parser, "--rounds", 1, ROUNDS_MAX)?,
            "subscribers" | "mode" => return Ok(false),
            _ => return self.plan.accept(name, parser),
        }
        Ok(true)
    }

    fn check(&self) -> Result<(), Failure> {
        match self.plan.check() {
            Err(Failure::Environment(_)) => Err(Failure::Environment(
                "two cpus are needed: producer and readers poll, and on one cpu they would wait \
                 for each other's time slice"
                    .into(),
            )),
            result => result,
        }
    }

    /// Returns `polled` or `blocked`.
    pub fn wait_name(&self) -> &'static str {
        match self.wait {
            Wait::Polled => "polled",
            Wait::Blocked => "blocked",
        }
    }

    /// Returns the number of reading threads, and the number of readers of each.
    pub fn threads(&self) -> (u32, u32) {
        match self.wait {
            Wait::Polled => (1, self.plan.subscribers),
            Wait::Blocked => (self.plan.subscribers, 1),
        }
    }

    /// Returns the number of chunks of the warm-up and of counted chunks. `None` if the load is
    /// flat out.
    pub fn chunks(&self) -> Option<(u64, u64)> {
        match self.plan.rate {
            Rate::PerSecond(rate) => Some(self.plan.chunks(rate)),
            Rate::Max => None,
        }
    }

    /// Returns the same load for another implementation.
    pub fn of(&self, implementation: &'static str) -> Load {
        let mut load = self.clone();
        load.plan.implementation = implementation;
        load
    }

    /// Returns the options that result in this run.
    pub fn to_arguments(&self) -> Vec<String> {
        let plan = &self.plan;
        [
            ("--impl", plan.implementation.to_owned()),
            ("--wait", self.wait_name().to_owned()),
            ("--readers", plan.subscribers.to_string()),
            ("--size", plan.size_bytes.to_string()),
            ("--rate", plan.rate_name()),
            ("--touch", plan.touch_name().to_owned()),
            ("--duration", plan.duration.as_secs_f64().to_string()),
            ("--warmup", plan.warmup.as_secs_f64().to_string()),
            ("--seed", plan.seed.to_string()),
            ("--cpus", format!("{},{}", plan.producer_cpu, plan.subscribers_cpu)),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::params::BLOCKED_RATE;

    fn parse(words: &str) -> Result<Option<Load>, Failure> {
        let words = words.split_whitespace().map(OsString::from);
        Load::parse(&["floor", "other"], words, |_, _| Ok(false))
    }

    #[test]
    fn a_load_survives_its_own_arguments() {
        let words = "--impl other --wait blocked --readers 3 --size 1024 --touch none --seed 7 \
                     --duration 0.5 --warmup 0.1 --cpus 0,1";
        let load = parse(words).unwrap().unwrap();
        assert_eq!(load.plan.rate, Rate::PerSecond(BLOCKED_RATE));
        assert_eq!(load.threads(), (3, 1));
        let again = parse(&load.to_arguments().join(" ")).unwrap().unwrap();
        assert_eq!(again.to_arguments(), load.to_arguments());
        assert_eq!(load.of("floor").plan.implementation, "floor");
    }

    #[test]
    fn bad_calls_are_usage_errors_that_name_the_option() {
        for (words, names) in [
            ("--readers 0", "--readers"),
            ("--readers 65", "--readers"),
            ("--size 7", "--size"),
            ("--wait asleep", "--wait"),
            ("--mode inline", "--mode"),
            ("--subscribers 2", "--subscribers"),
            ("--impl nothing", "--impl"),
            ("--rounds 0", "--rounds"),
            ("stray", "stray"),
        ] {
            match parse(words) {
                Err(Failure::Usage(text)) => assert!(text.contains(names), "{words}: {text}"),
                other => panic!("{words}: {other:?}"),
            }
        }
    }
}
