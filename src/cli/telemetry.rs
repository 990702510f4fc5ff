//! Sends spans and metrics to a collector, as OTLP over HTTP, from a thread of its own.
//!
//! No other thread waits for it. A span is dropped if the queue is full or the collector does not
//! accept it. Both are counted, and reported in the log. Metrics are sent at an interval, and once
//! more at the end. The next ones make up for those that the collector did not accept.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use streamdoor::base::Instant;
use streamdoor::limits::{
    SPANS_EXPORT_INTERVAL, SPANS_EXPORT_TIMEOUT, SPANS_MAX, SPANS_PER_EXPORT_MAX,
};
use streamdoor::reactor::{Clock, random_bytes};
use streamdoor::server::{Exported, Log, Meter, Spans};
use streamdoor::trace::{Level, Span};
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use streamdoor::wire::otlp::{MetricTimes, write_metrics, write_traces};

use super::CliError;
use super::serve::log_event;

/// The address of the collector and the start of its paths, or `None`. It is on this machine,
/// because spans are sent in plain text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collector(Option<(SocketAddr, String)>);

impl FromStr for Collector {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Collector, &'static str> {
        const PROBLEM: &str =
            "must be http://ADDRESS:PORT of this machine, such as http://127.0.0.1:4318";
        if text.is_empty() {
            return Ok(Collector(None));
        }
        let rest = text.strip_prefix("http://").ok_or(PROBLEM)?;
        let (host, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        let host = host.replace("localhost:", "127.0.0.1:");
        let address: SocketAddr = host.parse().map_err(|_| PROBLEM)?;
        let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
        if !address.ip().is_loopback() || !is_plain {
            return Err(PROBLEM);
        }
        Ok(Collector(Some((address, path.trim_end_matches('/').to_owned()))))
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => Ok(()),
            Some((address, path)) => write!(out, "http://{address}{path}"),
        }
    }
}

/// The thread that sends.
pub struct Exporter {
    meter: Sender<Meter>,
    ended: Option<Receiver<()>>,
}

impl Exporter {
    /// Starts the thread, if there is a collector. Shards send their spans through the returned
    /// [`Spans`]. Metrics are sent at the interval, if it is not zero.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        collector: &Collector,
        metrics_interval: Duration,
        log: &Log,
    ) -> Result<(Spans, Exporter), CliError> {
        let (meter, meters) = channel();
        let Some((address, path)) = collector.0.clone() else {
            return Ok((Spans::off(), Exporter { meter, ended: None }));
        };
        let (spans, queue) = Spans::queue();
        let (sender, ended) = channel();
        let (dropped, log) = (spans.dropped(), log.clone());
        let sending = Sending {
            address,
            path,
            instance: instance_id()?,
            started_us: Clock::wall_us(),
            log,
            lost_count: 0,
            failing: Vec::new(),
            interval: metrics_interval,
            due_at: match metrics_interval.is_zero() {
                true => Instant::FAR,
                false => Clock::now() + metrics_interval,
            },
            meters,
            meter: None,
        };
        let spawned = Builder::new().name("telemetry".to_owned()).spawn(move || {
            sending.run(&queue, dropped);
            drop(sender);
        });
        spawned.map_err(|error| {
            CliError::Environment(format!("no thread can be started for telemetry: {error}"))
        })?;
        Ok((spans, Exporter { meter, ended: Some(ended) }))
    }

    /// Begins to send the metrics of a server.
    pub fn watch(&self, meter: Meter) {
        let _ = self.meter.send(meter); // Without a collector nobody receives it.
    }

    /// Waits for a limited time until everything is sent. All shards must have ended before.
    pub fn finish(self) {
        if let Some(ended) = self.ended {
            let _ = ended.recv_timeout(2 * SPANS_EXPORT_TIMEOUT); // A timeout is ignored.
        }
    }
}

/// Returns a random UUID of version 4, which tells this run of the program from others.
fn instance_id() -> Result<String, CliError> {
    let mut bytes = [0; 16];
    random_bytes(&mut bytes)
        .map_err(|error| CliError::Environment(format!("no random numbers: {error}")))?;
    const VERSION: (u128, u128) = (0xF << 76, 4 << 76);
    const VARIANT: (u128, u128) = (0b11 << 62, 0b10 << 62);
    let mut number = u128::from_ne_bytes(bytes);
    for (mask, value) in [VERSION, VARIANT] {
        number = number & !mask | value;
    }
    let mut text = format!("{number:032x}");
    [20, 16, 12, 8].into_iter().for_each(|at| text.insert(at, '-'));
    Ok(text)
}

struct Sending {
    address: SocketAddr,
    path: String,
    instance: String,
    started_us: u64,
    log: Log,
    lost_count: u64,
    /// The events of the signals that fail now.
    failing: Vec<&'static str>,
    interval: Duration,
    /// The time of the next export of metrics. Without an interval it never comes.
    due_at: Instant,
    meters: Receiver<Meter>,
    meter: Option<Meter>,
}

impl Sending {
    /// Sends until all shards have ended.
    fn run(mut self, queue: &Receiver<Exported>, dropped: impl Fn() -> u64) {
        let (mut told_count, mut is_open) = (0, true);
        while is_open {
            let mut spans = Vec::new();
            let mut next = queue.recv_timeout(self.due_at.since(Clock::now()));
            // Metrics that are due do not wait for further spans.
            let sent_at = (Clock::now() + SPANS_EXPORT_INTERVAL).min(self.due_at);
            while let Ok(item) = next {
                match item {
                    Exported::Span(span) => spans.push(span),
                    Exported::LastMetrics(last) => {
                        self.take_meter();
                        self.meter.iter_mut().for_each(|meter| meter.keep((*last).clone()));
                    }
                }
                let left = sent_at.since(Clock::now());
                next = match spans.len() < SPANS_PER_EXPORT_MAX {
                    true => queue.recv_timeout(left),
                    false => Err(RecvTimeoutError::Timeout),
                };
            }
            is_open = !matches!(next, Err(RecvTimeoutError::Disconnected));
            if !spans.is_empty() {
                self.send_spans(&spans);
            }
            if !is_open || Clock::now() >= self.due_at {
                self.send_metrics();
            }
            let dropped_count = dropped();
            if dropped_count > told_count {
                told_count = dropped_count;
                log_event(&self.log, Level::Warn, "spans_dropped", |line| {
                    line.number("total", dropped_count);
                    line.number("queue", SPANS_MAX as u64);
                });
            }
        }
    }

    fn take_meter(&mut self) {
        if let Ok(meter) = self.meters.try_recv() {
            self.meter = Some(meter);
        }
    }

    fn send_spans(&mut self, spans: &[Span]) {
        let mut body = Vec::new();
        write_traces(&mut body, &self.instance, spans);
        let sent = self.post("/v1/traces", &body);
        if sent.is_err() {
            self.lost_count += spans.len() as u64;
        }
        self.note("spans_lost", sent);
    }

    fn send_metrics(&mut self) {
        if self.interval.is_zero() {
            return;
        }
        self.due_at = Clock::now() + self.interval;
        self.take_meter();
        let Some(meter) = &mut self.meter else { return };
        let metrics = meter.read();
        let times = MetricTimes { started_us: self.started_us, now_us: Clock::wall_us() };
        let mut body = Vec::new();
        write_metrics(&mut body, &self.instance, times, &metrics);
        let sent = self.post("/v1/metrics", &body);
        self.note("metrics_not_sent", sent);
    }

    /// Logs the first of several failures of a signal.
    fn note(&mut self, event: &'static str, sent: io::Result<()>) {
        let was_failing = self.failing.contains(&event);
        self.failing.retain(|failing| *failing != event);
        let Err(error) = sent else { return };
        self.failing.push(event);
        if !was_failing {
            log_event(&self.log, Level::Warn, event, |line| {
                line.text("error", &error.to_string());
                line.number("total", self.lost_count);
            });
        }
    }

    fn post(&self, signal: &str, body: &[u8]) -> io::Result<()> {
        let mut socket = TcpStream::connect_timeout(&self.address, SPANS_EXPORT_TIMEOUT)?;
        socket.set_read_timeout(Some(SPANS_EXPORT_TIMEOUT))?;
        socket.set_write_timeout(Some(SPANS_EXPORT_TIMEOUT))?;
        let (path, address, length) = (&self.path, self.address, body.len());
        let head = format!(
            "POST {path}{signal} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        socket.write_all(head.as_bytes())?;
        socket.write_all(body)?;
        let mut reader = ResponseReader::new();
        reader.expect(Method::Post);
        let mut buffer = [0; 4 << 10];
        loop {
            let count = socket.read(&mut buffer)?;
            let mut bytes = &buffer[..count];
            while let Some(part) = reader.read(&mut bytes).map_err(io::Error::other)? {
                if let ResponsePart::Head(head) = part {
                    let is_success = head.status.is_success();
                    let refused = || io::Error::other(format!("it answers {}", head.status));
                    return if is_success { Ok(()) } else { Err(refused()) };
                }
            }
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_an_id_of_its_own() {
        let (one, other) = (instance_id().unwrap(), instance_id().unwrap());
        assert_ne!(one, other);
        let parts: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{one}");
        let digit = |at: usize| one.chars().nth(at).unwrap();
        assert!(digit(14) == '4' && "89ab".contains(digit(19)), "{one}");
    }

    #[test]
    fn only_this_machine_collects() {
        for (text, shown) in [
            ("", ""),
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
            ("http://localhost:4318/", "http://127.0.0.1:4318"),
            ("http://[::1]:1/a/b", "http://[::1]:1/a/b"),
        ] {
            let collector: Collector = text.parse().unwrap();
            assert_eq!(collector.to_string(), shown);
            assert_eq!(shown.parse(), Ok(collector));
        }
        for text in [
            "http://10.0.0.1:4318",
            "https://127.0.0.1:4318",
            "127.0.0.1:4318",
            "http://127.0.0.1",
            "http://127.0.0.1:4318/a b",
            "http://127.0.0.1:4318/a\r\nx: y",
            "http://example.com:4318",
        ] {
            assert!(text.parse::<Collector>().is_err(), "{text}");
        }
    }
}
