//! NATS: one subject, a subscription for each reader.
//!
//! Its protocol is text: `PUB`, `SUB`, `MSG`. By default, a slow reader would be disconnected. Here
//! it may lag by a gigabyte, so that nothing is lost. A batch ends with a `PING`, whose reply is
//! awaited. Otherwise only the socket's buffers would hold a producer back.

use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;

use super::broker::{Frames, Process, ask, connect, in_words};
use super::last;
use crate::common::Failure;
use crate::common::door::carrier::{Carrier, Produce, Run};
use crate::common::door::load::Load;

/// The first bytes of a client.
pub const HELLO: &[u8] = b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\nPING\r\n";
/// The reply to the end of [`HELLO`].
pub const PONG: &[u8] = b"PONG\r\n";

/// The implementation for `peers door --impl nats`.
pub struct Nats;

/// The broker, and its settings file.
pub struct Host {
    broker: Process,
    settings: PathBuf,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.settings); // A remaining file does no harm.
    }
}

impl Carrier for Nats {
    type Host = Host;
    type Producer = Producer;
    type Reader = Frames;

    fn host(load: &Load) -> Result<Host, Failure> {
        let name = format!("streamdoor-peers-nats-{}.conf", std::process::id());
        let settings = std::env::temp_dir().join(name);
        let written = std::fs::write(&settings, "max_pending: 1073741824\n");
        written.map_err(|error| Failure::Environment(error.to_string()))?;
        let path = settings.display().to_string();
        let broker = Process::start(load, "nats-server", |port| {
            let port = port.to_string();
            ["-c", &path, "-a", "127.0.0.1", "-p", &port].map(str::to_owned).to_vec()
        })?;
        Ok(Host { broker, settings })
    }

    fn words(host: &Host) -> Vec<String> {
        vec![host.broker.port.to_string()]
    }

    fn producer(load: &Load, words: &[String]) -> Result<(Producer, String), Failure> {
        let port = words.first().and_then(|word| word.parse().ok());
        let port = port.ok_or_else(|| Failure::Usage("--word: a port".into()))?;
        let opened = connect(port).and_then(|mut socket| {
            ask(&mut socket, HELLO, PONG)?;
            Ok(Producer { socket, batch: Vec::new(), size: load.plan.size_bytes })
        });
        Ok((opened.map_err(Failure::Failed)?, "open".into()))
    }

    fn reader(host: &Host, load: &Load, _: &Run<'_>) -> Result<Frames, String> {
        let mut socket = connect(host.broker.port)?;
        ask(&mut socket, HELLO, PONG)?;
        ask(&mut socket, b"SUB c 1\r\nPING\r\n", PONG)?;
        let size = load.plan.size_bytes;
        Ok(Frames::new(socket, format!("MSG c 1 {size}\r\n").into_bytes(), size))
    }
}

/// The producer's connection.
pub struct Producer {
    socket: TcpStream,
    batch: Vec<u8>,
    size: usize,
}

impl Produce for Producer {
    fn publish(&mut self, payload: &[u8], count: u32) -> Result<(), String> {
        self.batch.clear();
        for _ in 0..count {
            self.batch.extend_from_slice(format!("PUB c {}\r\n", self.size).as_bytes());
            self.batch.extend_from_slice(payload);
            self.batch.extend_from_slice(b"\r\n");
        }
        if count > 1 {
            self.batch.extend_from_slice(b"PING\r\n");
            return ask(&mut self.socket, &self.batch, PONG);
        }
        self.socket.write_all(&self.batch).map_err(in_words)
    }

    fn finish(&mut self) -> Result<(), String> {
        self.publish(&last(self.size), 1)
    }
}
