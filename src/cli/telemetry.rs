//! Sends spans to a collector, as OTLP over HTTP, from a thread of its own.
//!
//! No other thread waits for it. A span is dropped if the queue is full or the collector does not
//! accept it. Both are counted, and reported in the log.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;

use streamdoor::limits::{
    SPANS_EXPORT_INTERVAL, SPANS_EXPORT_TIMEOUT, SPANS_MAX, SPANS_PER_EXPORT_MAX,
};
use streamdoor::server::{Log, Spans};
use streamdoor::trace::{Level, Span};
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use streamdoor::wire::otlp::write_traces;

use super::CliError;
use super::serve::log_event;

/// The address of the collector, or `None`. It is on this machine, because spans are sent in plain
/// text.
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
        let path = if path.len() > 1 { path } else { "/v1/traces" };
        Ok(Collector(Some((address, path.to_owned()))))
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
    ended: Option<Receiver<()>>,
}

impl Exporter {
    /// Starts the thread, if there is a collector. Shards send their spans through the returned
    /// [`Spans`].
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(collector: &Collector, log: &Log) -> Result<(Spans, Exporter), CliError> {
        let Some((address, path)) = collector.0.clone() else {
            return Ok((Spans::off(), Exporter { ended: None }));
        };
        let (spans, queue) = Spans::queue();
        let (sender, ended) = channel();
        let (dropped, log) = (spans.dropped(), log.clone());
        let sending = Sending { address, path, log, lost_count: 0, is_failing: false };
        let spawned = Builder::new().name("spans".to_owned()).spawn(move || {
            sending.run(&queue, dropped);
            drop(sender);
        });
        spawned.map_err(|error| {
            CliError::Environment(format!("no thread can be started for spans: {error}"))
        })?;
        Ok((spans, Exporter { ended: Some(ended) }))
    }

    /// Waits for a limited time until all spans are sent. All shards must have ended before.
    pub fn finish(self) {
        if let Some(ended) = self.ended {
            let _ = ended.recv_timeout(2 * SPANS_EXPORT_TIMEOUT); // A timeout is ignored.
        }
    }
}

struct Sending {
    address: SocketAddr,
    path: String,
    log: Log,
    lost_count: u64,
    is_failing: bool,
}

impl Sending {
    fn run(mut self, queue: &Receiver<Span>, dropped: impl Fn() -> u64) {
        let mut told_count = 0;
        while let Ok(first) = queue.recv() {
            let mut spans = vec![first];
            let mut has_more = true;
            while has_more && spans.len() < SPANS_PER_EXPORT_MAX {
                match queue.recv_timeout(SPANS_EXPORT_INTERVAL) {
                    Ok(span) => spans.push(span),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                        has_more = false;
                    }
                }
            }
            self.send(&spans);
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

    fn send(&mut self, spans: &[Span]) {
        let mut body = Vec::new();
        write_traces(&mut body, spans);
        let Err(error) = self.post(&body) else {
            self.is_failing = false;
            return;
        };
        self.lost_count += spans.len() as u64;
        if !std::mem::replace(&mut self.is_failing, true) {
            log_event(&self.log, Level::Warn, "spans_lost", |line| {
                line.text("error", &error.to_string());
                line.number("total", self.lost_count);
            });
        }
    }

    fn post(&self, body: &[u8]) -> io::Result<()> {
        let mut socket = TcpStream::connect_timeout(&self.address, SPANS_EXPORT_TIMEOUT)?;
        socket.set_read_timeout(Some(SPANS_EXPORT_TIMEOUT))?;
        socket.set_write_timeout(Some(SPANS_EXPORT_TIMEOUT))?;
        let (path, address, length) = (&self.path, self.address, body.len());
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
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
    fn only_this_machine_collects() {
        for (text, shown) in [
            ("", ""),
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://localhost:4318/", "http://127.0.0.1:4318/v1/traces"),
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
