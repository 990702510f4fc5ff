//! The load, the clients and the report of `bench cluster`, and of `peers cluster`: a tool of one
//! node, and a client of another.
//!
//! A tool publishes chunks of text at planned times. Each begins with its planned time. A client
//! finds these times in what it reads. For `catch-up`, a log is filled first, and read afterwards.

use std::ffi::OsString;
use std::io::Read;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::Parser;
use serde_json::{Map, Value, json};

use super::machine::{describe, now_ns, preemption_count, wall_time};
use super::params::{choice, number, options, seconds, usage};
use super::pressure::Pressure;
use super::report::{histogram_of, latency_json, latency_text};
use super::{Failure, files};

/// The work of a load that counts processor time.
pub const FANOUT: &str = "fan-out";
const RATE_MAX: u32 = 100_000;
const SIZE_BYTES_MAX: usize = 32 << 10;
const MIB_MAX: u64 = 256;

/// The options of [`Load::accept`] for `--help`, without those for names.
pub const LOAD_HELP: &str = "  --seed N            the seed of arrivals (1)
  --rate R            live: chunks per second, planned with jittered gaps (1000)
  --size B            bytes of a chunk, 16 or more (100)
  --mib N             catch-up: the size of the log (16)
  --duration S        live: the seconds that are counted (5)
  --warmup S          live: the seconds before them that are not counted (0.5)
  --out DIR           live: write a histogram (.hgrm) and an HDR interval log (.hlog) to DIR
  --json              print one line of JSON instead of text
  --help
";

/// One run.
#[derive(Clone, Debug)]
pub struct Load {
    /// The implementation.
    pub implementation: &'static str,
    /// `live`, `local`, `catch-up` or `fan-out`.
    pub work: &'static str,
    /// The server of NATS.
    pub nats: PathBuf,
    /// Chunks per second.
    pub rate: u32,
    /// Bytes of a chunk.
    pub size_bytes: usize,
    /// The size of a log.
    pub mib: u64,
    /// The time during which chunks are counted.
    pub duration: Duration,
    /// The time before that.
    pub warmup: Duration,
    /// The seed of the arrivals.
    pub seed: u64,
    /// The directory for `.hgrm` and `.hlog` files.
    pub out: Option<PathBuf>,
    /// True for one line of JSON instead of text.
    pub json: bool,
}

/// The result of a run.
#[derive(Default)]
pub struct Found {
    /// live: the time of each counted chunk from its planned time until the client had it.
    pub samples_ns: Vec<u32>,
    /// catch-up: payload bytes, the time to read all of them, and the time before that until the
    /// log had them.
    pub bytes: u64,
    /// See `bytes`.
    pub elapsed_ns: u64,
    /// See `bytes`.
    pub written_ns: u64,
    /// fan-out: the events that clients were sent, and the processor time of the servers.
    pub deliveries: u64,
    /// See `deliveries`.
    pub cpu_ns: u64,
}

impl Load {
    /// Parses the arguments of a command. The first names are the defaults. `other` takes the
    /// options that only this command has, and returns false if it does not know one. Returns
    /// `None` if help was requested.
    ///
    /// # Errors
    /// [`Failure::Usage`], which names the option and the limit.
    pub fn parse(
        (implementations, works): (&[&'static str], &[&'static str]),
        arguments: impl IntoIterator<Item = OsString>,
        mut other: impl FnMut(&str, &mut Parser) -> Result<bool, Failure>,
    ) -> Result<Option<Load>, Failure> {
        let mut load = Load {
            implementation: implementations[0],
            work: works[0],
            nats: "nats-server".into(),
            rate: 1_000,
            size_bytes: 100,
            mib: 16,
            duration: Duration::from_secs(5),
            warmup: Duration::from_millis(500),
            seed: 1,
            out: None,
            json: false,
        };
        let is_run = options(arguments, |name, parser| {
            match name {
                "impl" => load.implementation = choice(parser, "--impl", implementations)?,
                "work" => load.work = choice(parser, "--work", works)?,
                _ if load.accept(name, parser)? || other(name, parser)? => {}
                _ => return Err(Failure::Usage(format!("unknown option --{name}"))),
            }
            Ok(())
        })?;
        Ok(is_run.then_some(load))
    }

    fn accept(&mut self, name: &str, parser: &mut Parser) -> Result<bool, Failure> {
        let option = &format!("--{name}");
        match name {
            "nats" => self.nats = parser.value().map_err(usage)?.into(),
            "rate" => self.rate = number(parser, option, 1, RATE_MAX)?,
            "size" => self.size_bytes = number(parser, option, STAMP_DIGITS, SIZE_BYTES_MAX)?,
            "mib" => self.mib = number(parser, option, 1, MIB_MAX)?,
            "duration" => self.duration = seconds(parser, option, 0.001)?,
            "warmup" => self.warmup = seconds(parser, option, 0.0)?,
            "seed" => self.seed = number(parser, option, 0, u64::MAX)?,
            "out" => self.out = Some(parser.value().map_err(usage)?.into()),
            "json" => self.json = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the number of chunks that are not counted, and of those that are.
    pub fn chunks(&self) -> (u64, u64) {
        let chunks = |time: Duration| (time.as_secs_f64() * f64::from(self.rate)) as u64;
        (chunks(self.warmup), chunks(self.duration).max(1))
    }

    /// Returns the number of chunks of a log that a late client reads.
    pub fn log_chunks(&self) -> usize {
        (self.mib << 20) as usize / self.size_bytes
    }

    fn is_timed(&self) -> bool {
        self.work != "catch-up" && self.work != FANOUT
    }

    /// Writes `cluster-<impl>-<work>-<size>x<rate>` as `.hgrm` and `.hlog`, if it has latencies.
    ///
    /// # Errors
    /// [`Failure::Failed`], which names the path.
    pub fn write_files(&self, found: &Found) -> Result<(), Failure> {
        let Load { implementation, work, size_bytes, rate, .. } = self;
        let (Some(directory), true) = (&self.out, self.is_timed()) else {
            return Ok(());
        };
        let record = files::Record {
            name: &format!("cluster-{implementation}-{work}-{size_bytes}x{rate}"),
            comments: &[format!("{implementation}, {work}"), describe()],
            samples_ns: &found.samples_ns,
            histogram: &histogram_of(&found.samples_ns),
            deliveries_per_s: u64::from(*rate),
            start: wall_time() - self.duration,
        };
        record.write(directory)
    }

    /// Returns the report. `more` are settings that only this command has.
    pub fn report(&self, found: &Found, more: &[(&str, Value)]) -> String {
        let histogram = histogram_of(&found.samples_ns);
        let pressure = Pressure::now(None);
        let rate_of = |time_ns: u64| found.bytes as f64 * 1e3 / time_ns.max(1) as f64;
        let (mb_per_s, written) = (rate_of(found.elapsed_ns), rate_of(found.written_ns));
        let each_ns = found.cpu_ns as f64 / found.deliveries.max(1) as f64;
        if !self.json {
            let head = format!("machine     {}\n", describe());
            let result = match self.work {
                FANOUT => format!("{:<12}{each_ns:>12.0} ns each\n", "processor"),
                _ if self.is_timed() => latency_text(&histogram),
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
        line.insert("warmup_s".into(), json!(self.warmup.as_secs_f64()));
        line.extend(more.iter().map(|(name, value)| ((*name).into(), value.clone())));
        line.insert("seed".into(), json!(self.seed));
        match self.work {
            FANOUT => {
                line.insert("deliveries".into(), json!(found.deliveries));
                line.insert("cpu_ns".into(), json!(each_ns.round()));
            }
            _ if self.is_timed() => line.extend(latency_json(&histogram)),
            _ => {
                line.insert("written_mb_per_s".into(), json!(written.round()));
                line.insert("mb_per_s".into(), json!(mb_per_s.round()));
            }
        }
        line.insert("preemptions".into(), json!(preemption_count()));
        line.insert("pressure".into(), pressure.to_json());
        line.insert("machine".into(), json!(describe()));
        format!("{}\n", Value::Object(line))
    }
}

/// Number of hexadecimal digits at the beginning of a payload: its planned time.
pub const STAMP_DIGITS: usize = 16;

/// Writes the planned time into a payload of text.
pub fn stamp(payload: &mut [u8], planned_ns: u64) {
    let digits = format!("{planned_ns:016x}");
    payload[..STAMP_DIGITS].copy_from_slice(digits.as_bytes());
}

/// Waits like a slow tool, which leaves the processor to others.
pub fn wait_until(planned_ns: u64) {
    while now_ns() < planned_ns {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// A payload of text.
pub fn payload(size_bytes: usize) -> Vec<u8> {
    (0..size_bytes).map(|at| b'a' + (at % 26) as u8).collect()
}

/// Takes the planned times out of what a client reads.
pub struct Stamps {
    /// The text before each stamp.
    mark: &'static [u8],
    /// The end of what was read, in which a stamp may begin.
    rest: Vec<u8>,
    /// Bytes behind each stamp that have no mark, and those of them that have not come yet.
    skip_bytes: usize,
    ahead_bytes: usize,
}

impl Stamps {
    /// Returns the times that stand behind `mark`.
    pub fn behind(mark: &'static [u8]) -> Stamps {
        Stamps { mark, rest: Vec::new(), skip_bytes: 0, ahead_bytes: 0 }
    }

    /// Returns the same for payloads of so many bytes, which are not searched.
    pub fn of_size(self, size_bytes: usize) -> Stamps {
        Stamps { skip_bytes: size_bytes.saturating_sub(STAMP_DIGITS), ..self }
    }

    /// Calls `take` with each planned time.
    pub fn read(&mut self, bytes: &[u8], mut take: impl FnMut(u64)) {
        let skipped = self.ahead_bytes.min(bytes.len());
        self.ahead_bytes -= skipped;
        self.rest.extend_from_slice(&bytes[skipped..]);
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
            at = begin + STAMP_DIGITS + self.skip_bytes;
            if at >= self.rest.len() {
                self.ahead_bytes = at - self.rest.len();
                self.rest.clear();
                return;
            }
        }
        let keep = at.max(self.rest.len().saturating_sub(length - 1));
        let keep = if at < keep && self.rest[at..].starts_with(self.mark) { at } else { keep };
        self.rest.drain(..keep);
    }
}

/// Reads as a client until all chunks have come. The mark stands before each stamp.
///
/// # Errors
/// [`Failure::Failed`] if the connection ends before, or chunks come in another order.
pub fn sample(
    mut socket: TcpStream,
    mark: &'static [u8],
    (warmup, counted): (u64, u64),
) -> Result<Found, Failure> {
    let (mut stamps, mut seen) = (Stamps::behind(mark), 0);
    let (mut last_ns, mut is_ordered) = (0, true);
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
            is_ordered &= last_ns <= planned_ns;
            last_ns = planned_ns;
            if seen > warmup {
                let sample_ns = now.saturating_sub(planned_ns);
                samples_ns.push(u32::try_from(sample_ns).unwrap_or(u32::MAX));
            }
        });
        if !is_ordered {
            return Err(failed(format!("chunk {seen} or one near it came in another order")));
        }
    }
    Ok(Found { samples_ns, ..Found::default() })
}

/// Reads a whole log as a client. The mark stands before each payload. The stamps are the numbers
/// of the chunks, from 1 on. The time counts from `begun_ns`.
///
/// # Errors
/// [`Failure::Failed`] if the connection ends before, or chunks come in another order.
pub fn read_log(
    mut socket: TcpStream,
    mark: &'static [u8],
    load: &Load,
    begun_ns: u64,
) -> Result<Found, Failure> {
    let mut stamps = Stamps::behind(mark).of_size(load.size_bytes);
    let (chunks, mut seen, mut is_ordered) = (load.log_chunks() as u64, 0, true);
    let mut buffer = vec![0; 256 << 10];
    while seen < chunks {
        let count = socket.read(&mut buffer).map_err(failed)?;
        stamps.read(&buffer[..count], |number| {
            seen += 1;
            is_ordered &= number == seen;
        });
        if count == 0 || !is_ordered {
            return Err(failed(format!("{seen} of {chunks} chunks have come in order")));
        }
    }
    let elapsed_ns = now_ns() - begun_ns;
    Ok(Found { bytes: chunks * load.size_bytes as u64, elapsed_ns, ..Found::default() })
}

/// Returns the failure of a run.
pub fn failed(error: impl std::fmt::Display) -> Failure {
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
        let stamps = || Stamps::behind(b"\"data\":\"");
        for (cut, size_bytes) in (1..60).flat_map(|cut| [(cut, 0), (cut, 40)]) {
            let (mut stamps, mut found) = (stamps().of_size(size_bytes), Vec::new());
            for part in text.chunks(cut) {
                stamps.read(part, |planned_ns| found.push(planned_ns));
            }
            assert_eq!(found, (1..=20).collect::<Vec<u64>>(), "{cut}");
        }
    }
}
