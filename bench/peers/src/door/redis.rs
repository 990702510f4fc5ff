//! Redis: pub/sub, where each reader subscribes to one channel, and Streams, which each reader
//! reads from the beginning with `XREAD BLOCK`.
//!
//! The replies to a batch are awaited, as in every client library. The lag of a reader is not
//! limited, so that nothing is lost. Nothing is written to disk.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::broker::{Frames, Process, ask, connect, in_words};
use super::{is_last, last};
use crate::common::Failure;
use crate::common::door::carrier::{Carrier, Produce, Read, Run};
use crate::common::door::load::Load;
use crate::common::receive::Receive;

const BUFFER_BYTES: usize = 256 << 10;

fn host(load: &Load) -> Result<Process, Failure> {
    Process::start(load, "redis-server", |port| {
        let port = port.to_string();
        let words = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let unlimited = ["--client-output-buffer-limit", "pubsub 0 0 0"];
        words.into_iter().chain(unlimited).map(str::to_owned).collect()
    })
}

fn producer(
    load: &Load,
    words: &[String],
    command: &[&[u8]],
    lines: usize,
) -> Result<(Producer, String), Failure> {
    let port = words.first().and_then(|word| word.parse().ok());
    let port = port.ok_or_else(|| Failure::Usage("--word: a port".into()))?;
    let producer = Producer::connect(port, load.plan.size_bytes, command, lines);
    Ok((producer.map_err(Failure::Failed)?, "open".into()))
}

/// The producer's connection.
pub struct Producer {
    socket: TcpStream,
    /// The bytes of a command up to its payload.
    head: Vec<u8>,
    /// Number of lines of a reply.
    lines: usize,
    batch: Vec<u8>,
    size: usize,
}

impl Producer {
    /// Connects, for `command` with a payload of `size` bytes. Its reply has so many lines.
    ///
    /// # Errors
    /// A text for the user.
    pub fn connect(
        port: u16,
        size: usize,
        command: &[&[u8]],
        lines: usize,
    ) -> Result<Producer, String> {
        let socket = connect(port)?;
        let mut head = format!("*{}\r\n", command.len() + 1).into_bytes();
        for word in command {
            head.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            head.extend_from_slice(word);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(format!("${size}\r\n").as_bytes());
        Ok(Producer { socket, head, lines, batch: Vec::new(), size })
    }
}

impl Produce for Producer {
    fn publish(&mut self, payload: &[u8], count: u32) -> Result<(), String> {
        self.batch.clear();
        for _ in 0..count {
            self.batch.extend_from_slice(&self.head);
            self.batch.extend_from_slice(payload);
            self.batch.extend_from_slice(b"\r\n");
        }
        self.socket.write_all(&self.batch).map_err(in_words)?;
        let (mut left, mut buffer) = (count as usize * self.lines, [0; 16 << 10]);
        while left > 0 {
            let read = self.socket.read(&mut buffer).map_err(in_words)?;
            if read == 0 || buffer[0] == b'-' {
                return Err(format!("redis: {}", String::from_utf8_lossy(&buffer[..read])));
            }
            let ends = buffer[..read].iter().filter(|byte| **byte == b'\n').count();
            left = left.checked_sub(ends).ok_or("redis sent more replies than expected")?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.publish(&last(self.size), 1)
    }
}

/// The implementation for `peers door --impl redis`.
pub struct PubSub;

impl Carrier for PubSub {
    type Host = Process;
    type Producer = Producer;
    type Reader = Frames;

    fn host(load: &Load) -> Result<Process, Failure> {
        host(load)
    }

    fn words(host: &Process) -> Vec<String> {
        vec![host.port.to_string()]
    }

    fn producer(load: &Load, words: &[String]) -> Result<(Producer, String), Failure> {
        producer(load, words, &[b"PUBLISH", b"c"], 1)
    }

    fn reader(host: &Process, load: &Load, _: &Run<'_>) -> Result<Frames, String> {
        let mut socket = connect(host.port)?;
        ask(&mut socket, b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n", b":1\r\n")?;
        let size = load.plan.size_bytes;
        let head = format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${size}\r\n").into_bytes();
        Ok(Frames::new(socket, head, size))
    }
}

/// The implementation for `peers door --impl redis-streams`.
pub struct Streams;

impl Carrier for Streams {
    type Host = Process;
    type Producer = Producer;
    type Reader = Entries;

    fn host(load: &Load) -> Result<Process, Failure> {
        host(load)
    }

    fn words(host: &Process) -> Vec<String> {
        vec![host.port.to_string()]
    }

    fn producer(load: &Load, words: &[String]) -> Result<(Producer, String), Failure> {
        producer(load, words, &[b"XADD", b"s", b"*", b"d"], 2)
    }

    fn reader(host: &Process, _: &Load, _: &Run<'_>) -> Result<Entries, String> {
        let (socket, last_id) = (connect(host.port)?, b"0-0".to_vec());
        let (buffer, length) = (vec![1; BUFFER_BYTES], 0);
        Ok(Entries { socket, last_id, buffer, length, is_asked: false, is_over: false })
    }
}

/// A reader of a stream. It requests the entries after the last one it has.
pub struct Entries {
    socket: TcpStream,
    last_id: Vec<u8>,
    buffer: Vec<u8>,
    /// Number of received bytes of the reply in the buffer.
    length: usize,
    is_asked: bool,
    is_over: bool,
}

impl Entries {
    fn ask(&mut self) -> Result<(), String> {
        let id = String::from_utf8_lossy(&self.last_id);
        let request = format!(
            "*8\r\n$5\r\nXREAD\r\n$5\r\nCOUNT\r\n$2\r\n64\r\n$5\r\nBLOCK\r\n$1\r\n0\r\n\
             $7\r\nSTREAMS\r\n$1\r\ns\r\n${}\r\n{id}\r\n",
            id.len()
        );
        self.is_asked = true;
        self.length = 0;
        self.socket.write_all(request.as_bytes()).map_err(in_words)
    }

    fn fill(&mut self) -> Result<(), String> {
        if self.length == self.buffer.len() {
            self.buffer.resize(2 * self.length, 0);
        }
        match self.socket.read(&mut self.buffer[self.length..]).map_err(in_words)? {
            0 => Err("redis has ended".into()),
            count => {
                self.length += count;
                Ok(())
            }
        }
    }

    /// Delivers all entries of the reply, if it is complete.
    fn take<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        let bytes = &self.buffer[..self.length];
        let entries = match (Answer { bytes, at: 0 }).entries() {
            Ok(entries) => entries,
            Err(Broken::NotWhole) => return Ok(None),
            Err(Broken::Wrong) => {
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]);
                return Err(format!("redis replied {text}"));
            }
        };
        let mut count = 0;
        for (id, payload) in entries {
            if is_last(payload) {
                self.is_over = true;
            } else {
                receiver.deliver(payload);
                count += 1;
            }
            self.last_id.clear();
            self.last_id.extend_from_slice(id);
        }
        self.is_asked = false;
        Ok(Some(count))
    }
}

impl Read for Entries {
    /// Takes only entries that are already buffered.
    fn poll<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        if self.is_over {
            return Ok(None);
        }
        Ok(Some(self.take(receiver)?.unwrap_or(0)))
    }

    fn wait<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        while !self.is_over {
            if !self.is_asked {
                self.ask()?;
            }
            match self.take(receiver)? {
                Some(0) => {} // Only the last entry.
                Some(count) => return Ok(Some(count)),
                None => self.fill()?,
            }
        }
        Ok(None)
    }
}

/// A reply to `XREAD`, possibly incomplete.
struct Answer<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The reason why a reply cannot be parsed.
enum Broken {
    /// It is incomplete.
    NotWhole,
    /// It is malformed.
    Wrong,
}

/// The id of an entry, and its payload.
type Entry<'a> = (&'a [u8], &'a [u8]);

impl<'a> Answer<'a> {
    fn entries(&mut self) -> Result<Vec<Entry<'a>>, Broken> {
        self.number(b'*')?; // The streams.
        self.number(b'*')?; // Each has a name
        self.bulk()?;
        let count = self.number(b'*')?; // and entries.
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            self.number(b'*')?;
            let id = self.bulk()?; // Each has an id
            self.number(b'*')?;
            self.bulk()?; // and a field.
            entries.push((id, self.bulk()?));
        }
        Ok(entries)
    }

    /// Reads a line with a mark and a number.
    fn number(&mut self, mark: u8) -> Result<usize, Broken> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or(Broken::NotWhole)?;
        let line = rest[..length].strip_prefix(&[mark]).ok_or(Broken::Wrong)?;
        let text = std::str::from_utf8(line).map_err(|_| Broken::Wrong)?;
        self.at += length + 1;
        text.trim_end().parse().map_err(|_| Broken::Wrong)
    }

    /// Reads bytes after a line with their number.
    fn bulk(&mut self) -> Result<&'a [u8], Broken> {
        let length = self.number(b'$')?;
        let bytes = self.bytes.get(self.at..self.at + length + 2).ok_or(Broken::NotWhole)?;
        self.at += length + 2;
        Ok(&bytes[..length])
    }
}
