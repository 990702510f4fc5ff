//! The command `bench overload`: the cost of slow readers for the producer and for fast readers.
//!
//! streamdoor's server runs in its own process, as in `bench serve`, with one execution. Fast
//! readers poll; slow ones read a limited number of bytes a second. Each run is measured twice:
//! without the slow readers and with them.
//!
//! Under `block`, the tool publishes as fast as possible. It has to slow down to the slowest
//! reader, and no chunk may be lost. The maximum lag of that reader shows how much the server and
//! the kernel hold for it. Under `drop`, the tool keeps its plan, and the fast readers must keep
//! the latencies that they have alone.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use hdrhistogram::Histogram;
use lexopt::{Arg, Parser};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::{Map, Value, json};

use crate::common::machine::{cpus_allowed, describe, now_ns, pin_thread};
use crate::common::params::{Rate, choice, number, two_cpus, usage};
use crate::common::pressure::Pressure;
use crate::common::report::{PERCENTILES, histogram_of, latency_json};
use crate::common::serve::load::{LOAD_HELP, Load};
use crate::common::{Failure, print};
use crate::serve::client::Incoming;
use crate::serve::ours;
use crate::serve::server::Server;
use crate::serve::stream::Stream;

const READERS_MAX: u32 = 1_000;
const DROP_RATE: u32 = 5_000;
const READ_BYTES: usize = 256 << 10;
/// The size of a slow reader's reads, and of its receive buffer.
const SLOW_READ_BYTES: usize = 4 << 10;
/// The maximum time of a run beyond the planned time.
const OVERDUE_NS: u64 = 60_000_000_000;

const HELP: &str = "\
bench overload: measure fast readers of streamdoor's server, with and without slow readers

Usage: bench overload [options]

  --policy block|drop the policy of all readers (drop); with block, the tool publishes as fast as
                      possible; with drop, 5000 chunks/s unless --rate is given
  --connections N     the number of fast readers (4)
  --slow N            the number of slow readers (1)
  --slow-bytes B      the bytes that each slow reader reads in a second (500000)
  --impl streamdoor   the only implementation
  --cpus A,B          pin the server to A, and the readers to B (the first two allowed)
  --out DIR           accepted, but nothing is written
  --json              print one line of JSON instead of text
";

struct Overload {
    load: Load,
    policy: &'static str,
    slow: u32,
    slow_bytes_per_s: u64,
    client_cpu: usize,
    json: bool,
}

/// The results of one half of a run.
struct Half {
    /// The latencies of the fast readers, counted from the time at which a chunk was due. Without a
    /// plan, they count from the time at which the tool had the chunk.
    fast: Histogram<u64>,
    slow: Histogram<u64>,
    published_chunks: u64,
    published_per_s: f64,
    missed_fast_chunks: u64,
    missed_slow_chunks: u64,
    /// The maximum number of chunks by which a slow reader was behind the fastest.
    behind_chunks_max: u64,
}

/// Runs `bench overload` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some(overload) = Overload::parse(arguments)? else {
        let own = |line: &&str| {
            ["--connections", "--executions", "--format"].iter().all(|name| !line.contains(name))
        };
        let load_help: Vec<&str> = LOAD_HELP.lines().filter(own).collect();
        print(&format!("{HELP}{}\n  --help\n", load_help.join("\n")));
        return Ok(());
    };
    let (alone, _) = overload.measure(0)?;
    let (beside, pressure) = overload.measure(overload.slow)?;
    print(&match overload.json {
        true => overload.to_json(&alone, &beside, pressure),
        false => overload.to_text(&alone, &beside) + &pressure.to_text(),
    });
    Ok(())
}

impl Overload {
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Overload>, Failure> {
        let mut load = Load { connections: 4, ..Load::new()? };
        let client_cpu = cpus_allowed().get(1).copied().unwrap_or(load.cpu);
        let mut cpus = (load.cpu, client_cpu);
        let (mut policy, mut slow, mut slow_bytes_per_s) = ("drop", 1, 500_000);
        let (mut json, mut is_rate_given) = (false, false);
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(usage)? {
            match argument {
                Arg::Long("help") | Arg::Short('h') => return Ok(None),
                Arg::Long("policy") => {
                    policy = choice(&mut parser, "--policy", &["block", "drop"])?;
                }
                Arg::Long("slow") => slow = number(&mut parser, "--slow", 1, READERS_MAX)?,
                Arg::Long("slow-bytes") => {
                    let bytes_max = 1 << 30;
                    slow_bytes_per_s = number(&mut parser, "--slow-bytes", 1_000, bytes_max)?;
                }
                Arg::Long("impl") => drop(choice(&mut parser, "--impl", &["streamdoor"])?),
                Arg::Long("out") => drop(PathBuf::from(parser.value().map_err(usage)?)),
                Arg::Long("json") => json = true,
                Arg::Long("cpus") => cpus = two_cpus(&mut parser)?,
                Arg::Long(name) if !["cpu", "batch", "format", "executions"].contains(&name) => {
                    let name = name.to_owned();
                    is_rate_given |= name == "rate";
                    if !load.accept(&name, &mut parser)? {
                        return Err(Failure::Usage(format!("unknown option --{name}")));
                    }
                }
                other => return Err(usage(other.unexpected())),
            }
        }
        if !is_rate_given {
            load.rate = if policy == "block" { Rate::Max } else { Rate::PerSecond(DROP_RATE) };
        }
        load.cpu = cpus.0;
        load.check()?;
        if load.cpu == cpus.1 {
            let text = "two cpus are needed: the receiver polls, and on one cpu the server would \
                        wait for its time slice";
            return Err(Failure::Environment(text.into()));
        }
        Ok(Some(Overload { load, policy, slow, slow_bytes_per_s, client_cpu: cpus.1, json }))
    }

    /// Measures with `slow` slow readers. Returns the pressure at the end, too.
    fn measure(&self, slow: u32) -> Result<(Half, Pressure), Failure> {
        let fast = self.load.connections;
        let load = Load { connections: fast + slow, ..self.load.clone() };
        let program = std::env::current_exe().map_err(|error| {
            Failure::Environment(format!("the path of this program is unknown: {error}"))
        })?;
        let words = ["server", "--child"].map(str::to_owned).into_iter();
        let words: Vec<String> = words.chain(load.to_arguments()).collect();
        let server = Server::start(&program, &words)?;
        pin_thread(self.client_cpu)?;
        let targets = ours::start_executions(&load, server.address)?;
        let target = format!("{}?policy={}", targets[0], self.policy);
        let readers: std::io::Result<Vec<Reader>> = (0..fast + slow)
            .map(|index| Reader::connect(&load, server.address, &target, index >= fast))
            .collect();
        let readers = readers.map_err(|error| Failure::Failed(format!("readers: {error}")))?;
        let half = self.read_all(&load, readers)?;
        Ok((half, Pressure::now(Some(server.pressure_level()?))))
    }

    /// Reads until every reader has seen the end. Once the fast readers have seen it, the slow ones
    /// read without a limit.
    fn read_all(&self, load: &Load, mut readers: Vec<Reader>) -> Result<Half, Failure> {
        let counted_from_seq = load.chunks().0 + 1;
        let mut buffer = vec![1; READ_BYTES];
        let planned_ns = (load.warmup + load.duration).as_nanos() as u64;
        let start_ns = now_ns();
        let (mut first_ns, mut last_ns) = (0, 0);
        let (mut head_seq, mut behind_chunks_max) = (0, 0);
        loop {
            let now = now_ns();
            if now - start_ns > planned_ns + OVERDUE_NS {
                return Err(Failure::Failed("readers got no end event in time".into()));
            }
            let hurries = readers.iter().all(|reader| reader.is_slow || reader.has_ended());
            for reader in readers.iter_mut().filter(|reader| !reader.has_ended()) {
                let room = match reader.is_slow && !hurries {
                    true => reader.allowance(now - start_ns, self.slow_bytes_per_s),
                    false => buffer.len(),
                };
                if room > 0 {
                    reader.read(&mut buffer[..room], counted_from_seq)?;
                }
                if !reader.is_slow && reader.reached_seq() > head_seq {
                    head_seq = reader.reached_seq();
                    first_ns = if first_ns == 0 { now } else { first_ns };
                    last_ns = now;
                }
                if reader.is_slow && !hurries {
                    // A gap may reach further than the fast readers have read.
                    let behind_chunks = head_seq.saturating_sub(reader.reached_seq());
                    behind_chunks_max = behind_chunks_max.max(behind_chunks);
                }
            }
            if readers.iter().all(Reader::has_ended) {
                break;
            }
        }
        // The last chunks may be in a gap, even for every reader. A gap counts as reported, too.
        if let Some(other) = readers.iter().find(|reader| reader.reached_seq() != head_seq) {
            let (one, other) = (head_seq, other.reached_seq());
            return Err(Failure::Failed(format!("readers were told of {one} and {other} chunks")));
        }
        let of = |is_slow: bool| readers.iter().filter(move |reader| reader.is_slow == is_slow);
        let samples = |is_slow| -> Vec<u32> {
            of(is_slow).flat_map(|reader| &reader.samples_ns).copied().collect()
        };
        let missed = |is_slow| of(is_slow).map(|reader| reader.stream.missed_chunks()).sum();
        let seconds = (last_ns - first_ns).max(1) as f64 / 1e9;
        Ok(Half {
            fast: histogram_of(&samples(false)),
            slow: histogram_of(&samples(true)),
            published_chunks: head_seq,
            published_per_s: (head_seq as f64 / seconds).round(),
            missed_fast_chunks: missed(false),
            missed_slow_chunks: missed(true),
            behind_chunks_max,
        })
    }

    fn to_text(&self, alone: &Half, beside: &Half) -> String {
        let mut text = format!("machine     {}\n", self.machine_line());
        text += &format!(
            "load        bench overload --policy {} --connections {} --slow {} --slow-bytes {} \
             --size {} --rate {}\n",
            self.policy,
            self.load.connections,
            self.slow,
            self.slow_bytes_per_s,
            self.load.size_bytes,
            self.load.rate_name()
        );
        text += &format!("{:<18}{:>14}{:>14}{:>10}\n", "", "alone", "beside slow", "ratio");
        for (name, _, quantile) in PERCENTILES {
            let value = |half: &Half| half.fast.value_at_quantile(quantile) as f64;
            let ratio = value(beside) / value(alone).max(1.0);
            let (alone, beside) = (value(alone), value(beside));
            text += &format!("fast {name:<13}{alone:>11} ns{beside:>11} ns{ratio:>10.2}\n");
        }
        let mut line = |name: &str, value: &dyn Fn(&Half) -> f64| {
            text += &format!("{name:<18}{:>14}{:>14}\n", value(alone), value(beside));
        };
        line("published", &|half| half.published_chunks as f64);
        line("published/s", &|half| half.published_per_s);
        line("missed, fast", &|half| half.missed_fast_chunks as f64);
        line("missed, slow", &|half| half.missed_slow_chunks as f64);
        line("slow max ns", &|half| half.slow.max() as f64);
        line("behind, at most", &|half| half.behind_chunks_max as f64);
        text
    }

    fn to_json(&self, alone: &Half, beside: &Half, pressure: Pressure) -> String {
        let half = |half: &Half| {
            json!({
                "fast": latency_json(&half.fast),
                "slow_max_ns": half.slow.max(),
                "published_chunks": half.published_chunks,
                "published_per_s": half.published_per_s,
                "missed_fast_chunks": half.missed_fast_chunks,
                "missed_slow_chunks": half.missed_slow_chunks,
                "behind_chunks_max": half.behind_chunks_max,
            })
        };
        let load = &self.load;
        let mut line = Map::new();
        line.insert("bench".into(), json!("overload"));
        line.insert("impl".into(), json!("streamdoor"));
        line.insert("policy".into(), json!(self.policy));
        line.insert("connections".into(), json!(load.connections));
        line.insert("slow".into(), json!(self.slow));
        line.insert("slow_bytes_per_s".into(), json!(self.slow_bytes_per_s));
        line.insert("size_bytes".into(), json!(load.size_bytes));
        line.insert("rate".into(), json!(load.rate_name()));
        line.insert("idle".into(), json!(load.idle.to_string()));
        line.insert("duration_s".into(), json!(load.duration.as_secs_f64()));
        line.insert("warmup_s".into(), json!(load.warmup.as_secs_f64()));
        line.insert("seed".into(), json!(load.seed));
        line.insert("alone".into(), half(alone));
        line.insert("beside".into(), half(beside));
        line.insert("pressure".into(), pressure.to_json());
        line.insert("machine".into(), json!(self.machine_line()));
        format!("{}\n", Value::Object(line))
    }

    fn machine_line(&self) -> String {
        format!(
            "{}; idle: server {}, readers poll; server on cpu {}, readers on cpu {}",
            describe(),
            self.load.idle,
            self.load.cpu,
            self.client_cpu
        )
    }
}

/// One connection.
struct Reader {
    socket: TcpStream,
    stream: Stream,
    is_slow: bool,
    taken_bytes: u64,
    samples_ns: Vec<u32>,
}

impl Reader {
    fn connect(
        load: &Load,
        address: SocketAddr,
        target: &str,
        is_slow: bool,
    ) -> std::io::Result<Reader> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        if is_slow {
            set_socket_recv_buffer_size(&socket, SLOW_READ_BYTES)?;
        }
        let accept = load.format.media_type();
        let head = format!("GET {target} HTTP/1.1\r\nhost: {address}\r\naccept: {accept}\r\n\r\n");
        socket.write_all(head.as_bytes())?;
        socket.set_nonblocking(true)?;
        let (stream, samples_ns) = (Stream::new(load.format), Vec::with_capacity(1 << 16));
        Ok(Reader { socket, stream, is_slow, taken_bytes: 0, samples_ns })
    }

    fn has_ended(&self) -> bool {
        self.stream.has_ended()
    }

    /// Returns the number of the last chunk that was delivered or reported as missed.
    fn reached_seq(&self) -> u64 {
        self.stream.given_chunks() + self.stream.missed_chunks()
    }

    /// Returns the number of bytes that a slow reader may read now.
    fn allowance(&self, elapsed_ns: u64, bytes_per_s: u64) -> usize {
        let allowed = u128::from(elapsed_ns) * u128::from(bytes_per_s) / 1_000_000_000;
        let is_allowed = allowed as u64 >= self.taken_bytes + SLOW_READ_BYTES as u64;
        if is_allowed { SLOW_READ_BYTES } else { 0 }
    }

    /// Reads once.
    fn read(&mut self, buffer: &mut [u8], counted_from_seq: u64) -> Result<(), Failure> {
        let count = match self.socket.read(buffer) {
            Ok(0) => return Err(Failure::Failed("a stream ended too early".into())),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(Failure::Failed(format!("a stream: {error}"))),
        };
        self.taken_bytes += count as u64;
        let received_ns = now_ns();
        let Reader { stream, samples_ns, .. } = self;
        let taken = stream.take(&buffer[..count], |seq, due_ns| {
            if seq >= counted_from_seq {
                let latency_ns = received_ns.saturating_sub(due_ns).min(u64::from(u32::MAX));
                samples_ns.push(latency_ns as u32);
            }
        });
        taken.map_err(|text| Failure::Failed(format!("a stream: {text}")))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::common::serve::event::Format;

    /// Returns the result for two readers, of which the second was too late for all chunks.
    fn half(first: &str) -> Result<Half, Failure> {
        let load = Load { connections: 2, rate: Rate::Max, ..Load::new().expect("there is a cpu") };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let late = "{\"event\":\"gap\",\"to_seq\":5,\"chunk_count\":5}\n\
                    {\"event\":\"end\",\"state\":\"completed\",\"chunks\":0,\"missed_chunks\":5}\n";
        let (mut readers, mut served) = (Vec::new(), Vec::new());
        for body in [first, late] {
            let reader = Reader::connect(&load, address, "/", false).expect("somebody listens");
            readers.push(Reader { stream: Stream::new(Format::Ndjson), ..reader });
            let (mut socket, _) = listener.accept().expect("somebody connects");
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
            socket.write_all((head + body).as_bytes()).expect("there is room");
            served.push(socket);
        }
        let overload = Overload {
            load: load.clone(),
            policy: "drop",
            slow: 0,
            slow_bytes_per_s: 1_000,
            client_cpu: 0,
            json: false,
        };
        overload.read_all(&load, readers)
    }

    #[test]
    fn chunks_count_that_every_reader_has_missed() {
        let stamped = |stamp: &str| format!("\"data\":\"{stamp:0>20}x\"");
        let chunk = format!("{{\"event\":\"chunk\",\"seq\":1,{}}}\n", stamped("7"));
        let gap = |to_seq: u64| {
            let missed = to_seq - 1;
            format!(
                "{chunk}{{\"event\":\"gap\",\"to_seq\":{to_seq},\"chunk_count\":{missed}}}\n\
                 {{\"event\":\"end\",\"state\":\"completed\",\"chunks\":1,\
                 \"missed_chunks\":{missed}}}\n"
            )
        };
        let Ok(half) = half(&gap(5)) else { panic!("both were told of five chunks") };
        assert_eq!((half.published_chunks, half.missed_fast_chunks), (5, 9));
        assert_eq!(half.fast.len(), 1);
        let Err(Failure::Failed(text)) = self::half(&gap(6)) else { panic!("one lost a chunk") };
        assert_eq!(text, "readers were told of 6 and 5 chunks");
    }
}
