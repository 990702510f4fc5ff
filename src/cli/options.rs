//! Options that several commands take, and values with units.

use std::str::FromStr;
use std::time::Duration;

use streamdoor::engine::Timeouts;
use streamdoor::limits;
use streamdoor::reactor::{Choice, Idle};
use streamdoor::stream::Policy;

use super::{CliError, parsed};

/// The options of every command that runs a tool.
#[derive(Clone, Debug)]
pub struct Common {
    /// Number of subscribers of the execution.
    pub subscribers: usize,
    /// The policy for a subscriber that lags.
    pub policy: Option<Policy>,
    /// Number of chunks by which a subscriber may lag.
    pub limit_chunks: Option<u32>,
    /// The kernel interface.
    pub reactor: Choice,
    /// The behaviour of the shard when it has no work.
    pub idle: Idle,
}

impl Common {
    /// Returns the defaults, for this number of subscribers.
    pub fn new(subscribers: usize) -> Common {
        let (reactor, idle) = (Choice::Auto, Idle::Backoff);
        Common { subscribers, policy: None, limit_chunks: None, reactor, idle }
    }

    /// Takes the value of the option `--name`.
    ///
    /// # Errors
    /// If it is not one of these options, or its value is wrong.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), CliError> {
        match name {
            "subscribers" => self.subscribers = subscribers(parser)?,
            "policy" => self.policy = Some(parsed(name, parser)?),
            "max-chunks" => self.limit_chunks = Some(parsed(name, parser)?),
            "reactor" => self.reactor = parsed(name, parser)?,
            "idle" => self.idle = parsed(name, parser)?,
            _ => return Err(lexopt::Error::UnexpectedOption(format!("--{name}")).into()),
        }
        Ok(())
    }
}

/// Time limits from the command line: for the first chunk, for silence, and in total.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeoutOptions {
    first_chunk: Option<TimeLimit>,
    inactivity: Option<TimeLimit>,
    total: Option<TimeLimit>,
}

impl TimeoutOptions {
    /// Takes the value of the option `--name`. Returns false if it is not one of these.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        let limit = match name {
            "first-chunk-timeout" => &mut self.first_chunk,
            "inactivity-timeout" => &mut self.inactivity,
            "timeout" => &mut self.total,
            _ => return Ok(false),
        };
        *limit = Some(parsed(name, parser)?);
        Ok(true)
    }

    /// Returns the limits for a tool that declares `declared`: an option wins over a declaration.
    pub fn over(self, declared: Timeouts) -> Timeouts {
        let chosen = |limit: Option<TimeLimit>, or| limit.map_or(or, |TimeLimit(limit)| limit);
        Timeouts {
            first_chunk: chosen(self.first_chunk, declared.first_chunk),
            inactivity: chosen(self.inactivity, declared.inactivity),
            total: chosen(self.total, declared.total),
        }
    }
}

fn subscribers(parser: &mut lexopt::Parser) -> Result<usize, CliError> {
    let count = parsed("subscribers", parser)?;
    let readers_max = limits::READERS_PER_EXECUTION_MAX as usize;
    if !(1..=readers_max).contains(&count) {
        let text = format!("--subscribers {count}: must be from 1 to {readers_max}");
        return Err(CliError::Usage(text));
    }
    Ok(count)
}

/// A time limit as it is written: `30s`, `500ms`, `1.5h`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit(pub Option<Duration>);

const UNITS_SECONDS: [(&str, f64); 5] =
    [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3_600.0)];

impl FromStr for TimeLimit {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<TimeLimit, &'static str> {
        if text == "none" {
            return Ok(TimeLimit(None));
        }
        match duration(text) {
            Some(Duration::ZERO) => Err("must be above 0, or `none`"),
            Some(duration) => Ok(TimeLimit(Some(duration))),
            None => Err("must be a number followed by us, ms, s, m or h, or `none`"),
        }
    }
}

/// Parses a duration: a number and its unit, as `1.5s`, or `0`. `None` if it is none, or too long.
pub fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let number: f64 = number.parse().ok()?;
    let (_, unit_seconds) = UNITS_SECONDS.iter().find(|(name, _)| *name == unit)?;
    Duration::try_from_secs_f64(number * unit_seconds).ok()
}

/// Returns a duration as [`duration`] parses it, in the largest unit without a fraction. One minute
/// is `60s`, and one hour is `60m`.
pub fn spelled(duration: Duration) -> String {
    let us = duration.as_micros();
    // The name of a unit, its length, and the shortest duration that is written in it.
    let units = [
        ("h", 3_600_000_000, 7_200_000_000),
        ("m", 60_000_000, 120_000_000),
        ("s", 1_000_000, 1),
        ("ms", 1_000, 1),
    ];
    let fits = |unit_us: u128, least_us: u128| us >= least_us && us.is_multiple_of(unit_us);
    match units.iter().find(|(_, unit_us, least_us)| fits(*unit_us, *least_us)) {
        _ if us == 0 => "0".to_owned(),
        Some((name, unit_us, _)) => format!("{}{name}", us / unit_us),
        None => format!("{us}us"),
    }
}

/// A duration as it is written: `30s`, `500ms`, or `0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Span, &'static str> {
        duration(text).map(Span).ok_or("must be a number followed by us, ms, s, m or h")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let cases = [
            ("30s", Duration::from_secs(30)),
            ("500ms", Duration::from_millis(500)),
            ("250us", Duration::from_micros(250)),
            ("1.5m", Duration::from_secs(90)),
            ("2h", Duration::from_secs(7_200)),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse(), Ok(TimeLimit(Some(expected))), "{text}");
            assert_eq!(spelled(expected).parse(), Ok(Span(expected)), "{text}");
        }
        assert_eq!("none".parse(), Ok(TimeLimit(None)));
        assert_eq!("0".parse(), Ok(Span(Duration::ZERO)));
        let texts = [0, 60, 90, 600, 3_600, 7_200].map(|s| spelled(Duration::from_secs(s)));
        assert_eq!(texts, ["0", "60s", "90s", "10m", "60m", "2h"]);
        let wrong =
            ["", "0", "30", "s", "-1s", "1e3s", "0s", "0.0ms", "1.2.3s", "9s9", "3 s", "5d"];
        let huge = format!("{}h", "9".repeat(300));
        for text in wrong.into_iter().chain([huge.as_str()]) {
            assert!(text.parse::<TimeLimit>().is_err(), "{text}");
        }
    }
}
