//! The command `peers journal`: other logs on disk under the loop and report of `bench journal`.
//!
//! Each acknowledges a message when it is on the disk. Redis appends to a stream, with
//! `appendfsync always`. JetStream of NATS has a stream in files, with `sync_interval: always`.
//! SQLite has a row for each message, in WAL mode with `synchronous=FULL`; the messages that are
//! sent at once are one transaction. Servers have a process of their own, over loopback TCP.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;

use rusqlite::Connection;

use crate::common::door::carrier::Produce;
use crate::common::journal::{Durable, Folder, Found, JOURNAL_HELP, Load, MODES, publish, report};
use crate::common::{Failure, print};
use crate::door::broker::{Process, ask, connect, in_words};
use crate::door::{nats, redis};

const IMPLEMENTATIONS: [&str; 3] = ["redis", "nats", "sqlite"];

pub const HELP: &str = "\
peers journal: measure other logs on disk with the loop of `bench journal`

Usage: peers journal [options]

  --impl NAME         the implementation to measure (redis):
                      redis   XADD to redis-server, which must be installed: appendfsync always
                      nats    JetStream of nats-server, which must be installed: a stream in files,
                              sync_interval always, which version 2.9 does not know
                      sqlite  INSERT in this process: WAL, synchronous=FULL, one transaction for the
                              messages that are sent at once
";

/// Runs `peers journal` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some(load) = Load::parse(&IMPLEMENTATIONS, &MODES[..1], arguments)? else {
        print(&format!("{HELP}{JOURNAL_HELP}"));
        return Ok(());
    };
    let folder = Folder::new(&load)?;
    let found = measure(&load, folder.path())?;
    report("peers", &load, &found, &folder)
}

fn measure(load: &Load, folder: &Path) -> Result<Found, Failure> {
    match load.plan.implementation {
        "redis" => {
            let (_server, mut log) = Redis::start(load, folder)?;
            publish(load, &mut log)
        }
        "nats" => {
            let (_server, mut log) = JetStream::start(folder)?;
            publish(load, &mut log)
        }
        _ => {
            let failed = |error: rusqlite::Error| Failure::Failed(error.to_string());
            publish(load, &mut Sqlite::open(folder).map_err(failed)?)
        }
    }
}

/// A stream of Redis.
struct Redis(redis::Producer);

impl Redis {
    fn start(load: &Load, folder: &Path) -> Result<(Process, Redis), Failure> {
        let directory = folder.display().to_string();
        let server = Process::spawn("redis-server", |port| {
            let port = port.to_string();
            let words = ["--port", &port, "--bind", "127.0.0.1", "--dir", &directory];
            let kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
            words.into_iter().chain(kept).map(str::to_owned).collect()
        })?;
        let command: &[&[u8]] = &[b"XADD", b"s", b"*", b"d"];
        let producer = redis::Producer::connect(server.port, load.plan.size_bytes, command, 2);
        Ok((server, Redis(producer.map_err(Failure::Failed)?)))
    }
}

impl Durable for Redis {
    fn publish(
        &mut self,
        payload: &[u8],
        count: u32,
        kept: &mut dyn FnMut(u32),
    ) -> Result<(), String> {
        self.0.publish(payload, count)?;
        kept(count);
        Ok(())
    }
}

/// A stream of JetStream. A reply to a message is a message itself.
struct JetStream {
    socket: BufReader<TcpStream>,
    batch: Vec<u8>,
    line: String,
}

const INBOX: &str = "_INBOX.j";

impl JetStream {
    fn start(folder: &Path) -> Result<(Process, JetStream), Failure> {
        let (settings, directory) = (folder.join("nats.conf"), folder.display());
        let text = format!("jetstream {{ store_dir: \"{directory}\", sync_interval: always }}\n");
        let written = std::fs::write(&settings, text);
        written.map_err(|error| Failure::Environment(error.to_string()))?;
        let path = settings.display().to_string();
        let server = Process::spawn("nats-server", |port| {
            let port = port.to_string();
            ["-c", &path, "-a", "127.0.0.1", "-p", &port].map(str::to_owned).to_vec()
        })?;
        let opened = connect(server.port).and_then(|mut socket| {
            ask(&mut socket, nats::HELLO, nats::PONG)?;
            ask(&mut socket, format!("SUB {INBOX} 1\r\nPING\r\n").as_bytes(), nats::PONG)?;
            let mut stream = JetStream {
                socket: BufReader::new(socket),
                batch: Vec::new(),
                line: String::new(),
            };
            let settings = br#"{"name":"S","subjects":["c"],"storage":"file","num_replicas":1}"#;
            stream.add("$JS.API.STREAM.CREATE.S", settings);
            stream.send()?;
            stream.reply()?;
            Ok(stream)
        });
        Ok((server, opened.map_err(Failure::Failed)?))
    }

    fn add(&mut self, subject: &str, message: &[u8]) {
        let head = format!("PUB {subject} {INBOX} {}\r\n", message.len());
        self.batch.extend_from_slice(head.as_bytes());
        self.batch.extend_from_slice(message);
        self.batch.extend_from_slice(b"\r\n");
    }

    fn send(&mut self) -> Result<(), String> {
        self.socket.get_mut().write_all(&self.batch).map_err(in_words)?;
        self.batch.clear();
        Ok(())
    }

    /// Reads the reply to one message: a line with its length, and a line of JSON.
    fn reply(&mut self) -> Result<(), String> {
        loop {
            self.read_line()?;
            match self.line.split(' ').next() {
                Some("MSG") => break,
                Some("PING\r\n") => {
                    self.socket.get_mut().write_all(nats::PONG).map_err(in_words)?;
                }
                _ => return Err(format!("nats replied {}", self.line)),
            }
        }
        self.read_line()?;
        match self.line.contains("\"error\"") {
            true => Err(format!("nats replied {}", self.line)),
            false => Ok(()),
        }
    }

    fn read_line(&mut self) -> Result<(), String> {
        self.line.clear();
        match self.socket.read_line(&mut self.line).map_err(in_words)? {
            0 => Err("nats has ended".into()),
            _ => Ok(()),
        }
    }
}

impl Durable for JetStream {
    fn publish(
        &mut self,
        payload: &[u8],
        count: u32,
        kept: &mut dyn FnMut(u32),
    ) -> Result<(), String> {
        for _ in 0..count {
            self.add("c", payload);
        }
        self.send()?;
        for _ in 0..count {
            self.reply()?;
            kept(1);
        }
        Ok(())
    }
}

/// A table of SQLite.
struct Sqlite(Connection);

impl Sqlite {
    fn open(folder: &Path) -> rusqlite::Result<Sqlite> {
        let connection = Connection::open(folder.join("journal.sqlite"))?;
        connection.execute_batch(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;
             CREATE TABLE messages (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);",
        )?;
        Ok(Sqlite(connection))
    }

    fn insert(&mut self, payload: &[u8], count: u32) -> rusqlite::Result<()> {
        let transaction = self.0.transaction()?;
        {
            let mut insert =
                transaction.prepare_cached("INSERT INTO messages (data) VALUES (?1)")?;
            for _ in 0..count {
                insert.execute([payload])?;
            }
        }
        transaction.commit()
    }
}

impl Durable for Sqlite {
    fn publish(
        &mut self,
        payload: &[u8],
        count: u32,
        kept: &mut dyn FnMut(u32),
    ) -> Result<(), String> {
        self.insert(payload, count).map_err(|error| error.to_string())?;
        kept(count);
        Ok(())
    }
}
