//! The command `bench cluster`: an execution of one node, and a client of another.
//!
//! Everything runs on this machine: a server of NATS, both nodes, and the client. The floor is what
//! somebody would write with the client library of NATS: `floor.rs`. It uses the same stores.

mod floor;
mod nats;
mod ours;

use std::ffi::OsString;
use std::io::Read;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::Parser;
use serde_json::{Map, Value, json};
use streamdoor::limits::CLUSTER_LINGER;

use crate::common::machine::{describe, now_ns};
use crate::common::params::{choice, number, options, seconds, usage};
use crate::common::pressure::Pressure;
use crate::common::report::{histogram_of, latency_json, latency_text};
use crate::common::{Failure, print};

const IMPLEMENTATIONS: &[&str] = &["streamdoor", "alone", "floor"];
const WORKS: &[&str] = &["live", "local", "catch-up"];
const RATE_MAX: u32 = 100_000;
const SIZE_BYTES_MAX: usize = 32 << 10;
const MIB_MAX: u64 = 256;

const HELP: &str = "\
bench cluster: measure a client of one node that follows an execution of another

Usage: bench cluster [options]

  --impl NAME         streamdoor: two nodes, and a client of server-sent events (the default)
                      alone: a server without a cluster, for local
                      floor: a publisher with a condition for each record, as a mirror is one. For
                      live: a subscriber that passes each one on over TCP. For catch-up: a reader of
                      batches
  --work NAME         live: publish at planned times, and measure until the client has the chunk
                      (the default)
                      local: the same for a client of the node itself
                      catch-up: fill a log as fast as it goes, and read it once from its beginning
  --nats PROGRAM      the server of NATS (nats-server on the PATH)
  --rate R            live: chunks per second, planned with jittered gaps (1000)
  --size B            bytes of a chunk, 16 or more (100)
  --mib N             catch-up: the size of the log (16)
  --duration S        live: the seconds that are counted (5)
  --warmup S          live: the seconds before them that are not counted (0.5)
  --linger-us N       the pause of the mirror between two looks, in microseconds (1000)
  --seed N            the seed of arrivals (1)
  --json              print one line of JSON instead of text
  --help
";

/// One run.
pub struct Params {
    implementation: &'static str,
    work: &'static str,
    nats: PathBuf,
    rate: u32,
    size_bytes: usize,
    mib: u64,
    duration: Duration,
    warmup: Duration,
    linger: Duration,
    seed: u64,
    json: bool,
}

/// The result of a run.
#[derive(Default)]
pub struct Found {
    /// live: the time of each counted chunk from its planned time until the client had it.
    samples_ns: Vec<u32>,
    /// catch-up: payload bytes, the time to read all of them, and the time before that until the
    /// log had them.
    bytes: u64,
    elapsed_ns: u64,
    written_ns: u64,
}

/// Runs `bench cluster` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some(params) = Params::parse(arguments)? else {
        print(HELP);
        return Ok(());
    };
    params.check()?;
    let server = nats::NatsServer::start(&params.nats)?;
    server.make_stores()?;
    let found = match (params.implementation, params.work) {
        ("floor", "live") => floor::live(&server, &params),
        ("floor", _) => floor::catch_up(&server, &params),
        (_, "live") => ours::live(&server, &params),
        (_, "local") => ours::local(&server, &params),
        _ => ours::catch_up(&server, &params),
    }?;
    print(&params.report(&found));
    Ok(())
}

impl Params {
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Params>, Failure> {
        let mut params = Params {
            implementation: IMPLEMENTATIONS[0],
            work: WORKS[0],
            nats: "nats-server".into(),
            rate: 1_000,
            size_bytes: 100,
            mib: 16,
            duration: Duration::from_secs(5),
            warmup: Duration::from_millis(500),
            linger: CLUSTER_LINGER,
            seed: 1,
            json: false,
        };
        let is_run = options(arguments, |name, parser| params.accept(name, parser))?;
        Ok(is_run.then_some(params))
    }

    /// Refuses what nobody does.
    fn check(&self) -> Result<(), Failure> {
        let does = match self.implementation {
            "alone" => self.work == "local",
            "floor" => self.work != "local",
            _ => true,
        };
        let text = || format!("--impl {} does no {}", self.implementation, self.work);
        if does { Ok(()) } else { Err(Failure::Usage(text())) }
    }

    fn accept(&mut self, name: &str, parser: &mut Parser) -> Result<(), Failure> {
        let option = &format!("--{name}");
        match name {
            "impl" => self.implementation = choice(parser, option, IMPLEMENTATIONS)?,
            "work" => self.work = choice(parser, option, WORKS)?,
            "nats" => self.nats = parser.value().map_err(usage)?.into(),
            "rate" => self.rate = number(parser, option, 1, RATE_MAX)?,
            "size" => self.size_bytes = number(parser, option, STAMP_DIGITS, SIZE_BYTES_MAX)?,
            "mib" => self.mib = number(parser, option, 1, MIB_MAX)?,
            "duration" => self.duration = seconds(parser, option, 0.001)?,
            "warmup" => self.warmup = seconds(parser, option, 0.0)?,
            "linger-us" => {
                self.linger = Duration::from_micros(number(parser, option, 100, 1_000_000)?);
            }
            "seed" => self.seed = number(parser, option, 0, u64::MAX)?,
            "json" => self.json = true,
            _ => return Err(Failure::Usage(format!("unknown option {option}"))),
        }
        Ok(())
    }

    /// Number of chunks that are not counted, and of those that are.
    fn chunks(&self) -> (u64, u64) {
        let chunks = |time: Duration| (time.as_secs_f64() * f64::from(self.rate)) as u64;
        (chunks(self.warmup), chunks(self.duration).max(1))
    }

    fn report(&self, found: &Found) -> String {
        let histogram = histogram_of(&found.samples_ns);
        let pressure = Pressure::now(None);
        let rate_of = |time_ns: u64| found.bytes as f64 * 1e3 / time_ns.max(1) as f64;
        let (mb_per_s, written) = (rate_of(found.elapsed_ns), rate_of(found.written_ns));
        if !self.json {
            let head = format!("machine     {}\n", describe());
            let result = match self.work {
                "live" | "local" => latency_text(&histogram),
                _ => format!(
                    "{:<12}{written:>12.1} MB/s\n{:<12}{mb_per_s:>12.1} MB/s\n",
                    "written", "read"
                ),
            };
            return head + &result + &pressure.to_text();
        }
        let mut line = Map::new();
        line.insert("bench".into(), json!("cluster"));
        line.insert("impl".into(), json!(self.implementation));
        line.insert("work".into(), json!(self.work));
        line.insert("rate".into(), json!(self.rate));
        line.insert("size_bytes".into(), json!(self.size_bytes));
        line.insert("mib".into(), json!(self.mib));
        line.insert("duration_s".into(), json!(self.duration.as_secs_f64()));
        line.insert("linger_us".into(), json!(self.linger.as_micros() as u64));
        line.insert("seed".into(), json!(self.seed));
        match self.work {
            "live" | "local" => line.extend(latency_json(&histogram)),
            _ => {
                line.insert("written_mb_per_s".into(), json!(written.round()));
                line.insert("mb_per_s".into(), json!(mb_per_s.round()));
            }
        }
        line.insert("pressure".into(), pressure.to_json());
        line.insert("machine".into(), json!(describe()));
        format!("{}\n", Value::Object(line))
    }
}

/// Number of hexadecimal digits at the beginning of a payload: its planned time.
const STAMP_DIGITS: usize = 16;

/// Writes the planned time into a payload of text.
fn stamp(payload: &mut [u8], planned_ns: u64) {
    let digits = format!("{planned_ns:016x}");
    payload[..STAMP_DIGITS].copy_from_slice(digits.as_bytes());
}

/// Waits like a slow tool, which leaves the processor to others.
fn wait_until(planned_ns: u64) {
    while now_ns() < planned_ns {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// A payload of text.
fn payload(size_bytes: usize) -> Vec<u8> {
    (0..size_bytes).map(|at| b'a' + (at % 26) as u8).collect()
}

/// Takes the planned times out of what a client reads.
struct Stamps {
    /// The text before each stamp.
    mark: &'static [u8],
    /// The end of what was read, in which a stamp may begin.
    rest: Vec<u8>,
}

impl Stamps {
    fn behind(mark: &'static [u8]) -> Stamps {
        Stamps { mark, rest: Vec::new() }
    }

    /// Calls `take` with each planned time.
    fn read(&mut self, bytes: &[u8], mut take: impl FnMut(u64)) {
        self.rest.extend_from_slice(bytes);
        let (mut at, length) = (0, self.mark.len());
        while let Some(found) =
            self.rest[at..].windows(length).position(|window| window == self.mark)
        {
            let begin = at + found + length;
            let Some(digits) = self.rest.get(begin..begin + STAMP_DIGITS) else {
                at += found;
                break;
            };
            let digits = std::str::from_utf8(digits).unwrap_or_default();
            if let Ok(planned_ns) = u64::from_str_radix(digits, 16) {
                take(planned_ns);
            }
            at = begin + STAMP_DIGITS;
        }
        let keep = at.max(self.rest.len().saturating_sub(length - 1));
        let keep = if at < keep && self.rest[at..].starts_with(self.mark) { at } else { keep };
        self.rest.drain(..keep);
    }
}

/// Reads as a client until all chunks have come. The mark stands before each stamp.
fn sample(
    mut socket: TcpStream,
    mark: &'static [u8],
    (warmup, counted): (u64, u64),
) -> Result<Found, Failure> {
    let (mut stamps, mut seen) = (Stamps::behind(mark), 0);
    let mut samples_ns = Vec::with_capacity(counted as usize);
    let mut buffer = vec![0; 64 << 10];
    while seen < warmup + counted {
        let count = socket.read(&mut buffer).map_err(failed)?;
        let now = now_ns();
        if count == 0 {
            return Err(failed(format!("{seen} of {} chunks have come", warmup + counted)));
        }
        stamps.read(&buffer[..count], |planned_ns| {
            seen += 1;
            if seen > warmup {
                samples_ns.push(u32::try_from(now - planned_ns).unwrap_or(u32::MAX));
            }
        });
    }
    Ok(Found { samples_ns, ..Found::default() })
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_wherever_the_bytes_are_cut() {
        let mut text = Vec::new();
        for planned_ns in 1..=20_u64 {
            text.extend_from_slice(b"event: chunk\ndata: {\"data\":\"");
            let mut bytes = payload(40);
            stamp(&mut bytes, planned_ns);
            text.extend_from_slice(&bytes);
            text.extend_from_slice(b"\"}\n\n");
        }
        for cut in 1..60 {
            let (mut stamps, mut found) = (Stamps::behind(b"\"data\":\""), Vec::new());
            for part in text.chunks(cut) {
                stamps.read(part, |planned_ns| found.push(planned_ns));
            }
            assert_eq!(found, (1..=20).collect::<Vec<u64>>(), "{cut}");
        }
    }
}
