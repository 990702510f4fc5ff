//! The receiver, of `bench serve` and of `bench mcp`: all connections on one
//! thread, which polls and never blocks.
//!
//! One connection is read by plain non-blocking reads; several are asked for by `epoll_wait` with
//! a timeout of 0, which is as fast to notice and does not look at each. The clock is read once
//! for all that came with one read. A latency counts from the time at which a chunk was due.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::stream::Stream;
use crate::common::Failure;
use crate::common::machine::{now_ns, preemption_count};
use crate::common::params::Rate;
use crate::common::report::{Measured, Outcome, histogram_of};
use crate::common::serve::load::Load;

/// What one read takes at most: some 600 small events.
const READ_BYTES: usize = 256 << 10;
/// How long everything together may take beyond what was planned.
const OVERDUE_NS: u64 = 60_000_000_000;
/// Reads without success between two looks at the clock.
const READS_PER_LOOK: u32 = 1 << 16;

/// What came.
pub struct Received {
    /// Latencies, or a count.
    pub outcome: Outcome,
    /// All chunks that came on all connections, the warm-up's too.
    pub given_chunks: u64,
    /// All that were said to be missing.
    pub missed_chunks: u64,
}

/// What is made of the bytes of one connection.
pub trait Incoming {
    /// Takes bytes that came; `chunk` is told of each chunk: its number, and when it was due.
    ///
    /// # Errors
    /// A text that says what is wrong with them.
    fn take(&mut self, bytes: &[u8], chunk: impl FnMut(u64, u64)) -> Result<(), String>;
    /// Was its end told?
    fn has_ended(&self) -> bool;
    /// Chunks that came.
    fn given_chunks(&self) -> u64;
    /// Chunks that were said to be missing.
    fn missed_chunks(&self) -> u64;
}

/// One of them. What is read from does not wait.
pub struct Connection<S> {
    /// A socket, or a pipe.
    pub socket: File,
    /// What has come so far.
    pub stream: S,
}

/// All connections, and what they have received.
pub struct Client<'a, S> {
    load: &'a Load,
    connections: Vec<Connection<S>>,
    recorder: Recorder,
    buffer: Box<[u8]>,
    open_count: usize,
}

/// What is kept of each chunk.
enum Recorder {
    /// Where there is a rate.
    Latency {
        /// The first chunk of each execution that counts.
        counted_from_seq: u64,
        samples_ns: Vec<u32>,
    },
    /// Where there is none: chunks that come from the end of the warm-up on, for the duration.
    Throughput {
        warmup_ns: u64,
        duration_ns: u64,
        /// 0 before the first chunk of all.
        from_ns: u64,
        deliveries: u64,
        last_ns: u64,
    },
}

impl<'a> Client<'a, Stream> {
    /// Connects, and asks for `targets[i]` on each connection i modulo their number.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    pub fn connect(
        load: &'a Load,
        address: SocketAddr,
        targets: &[String],
    ) -> Result<Client<'a, Stream>, Failure> {
        assert_eq!(targets.len(), load.executions as usize);
        let connections = (0..load.connections)
            .map(|index| connect(load, address, &targets[(index % load.executions) as usize]));
        let connections: io::Result<Vec<Connection<Stream>>> = connections.collect();
        let connections = connections
            .map_err(|error| Failure::Failed(format!("can not connect to {address}: {error}")))?;
        Ok(Client::new(load, connections))
    }
}

impl<'a, S: Incoming> Client<'a, S> {
    /// Of connections that have asked.
    pub fn new(load: &'a Load, connections: Vec<Connection<S>>) -> Client<'a, S> {
        let open_count = connections.len();
        // Not zero: zeroed memory would be mapped lazily.
        let buffer = vec![1; READ_BYTES].into_boxed_slice();
        Client { load, connections, recorder: Recorder::new(load), buffer, open_count }
    }

    /// Receives until every connection was told its end.
    ///
    /// # Errors
    /// [`Failure::Failed`] if something is lost without a word, or does not come.
    pub fn receive(mut self) -> Result<Received, Failure> {
        let before = preemption_count();
        let planned_ns = (self.load.warmup + self.load.duration).as_nanos() as u64;
        let deadline_ns = now_ns() + planned_ns + OVERDUE_NS;
        match self.connections.len() {
            1 => self.receive_by_reading(deadline_ns)?,
            _ => self.receive_by_asking(deadline_ns)?,
        }
        let preemptions = preemption_count() - before;
        let count = |chunks: fn(&S) -> u64| {
            self.connections.iter().map(|connection| chunks(&connection.stream)).sum()
        };
        let (given_chunks, missed_chunks) = (count(S::given_chunks), count(S::missed_chunks));
        let measured = self.recorder.measured(self.load)?;
        let outcome = Outcome { measured, preemptions };
        Ok(Received { outcome, given_chunks, missed_chunks })
    }

    fn receive_by_reading(&mut self, deadline_ns: u64) -> Result<(), Failure> {
        let mut reads_in_vain = 0;
        while self.open_count > 0 {
            if self.read(0)? {
                continue;
            }
            reads_in_vain += 1;
            if reads_in_vain % READS_PER_LOOK == 0 {
                self.check_deadline(deadline_ns)?;
            }
        }
        Ok(())
    }

    fn receive_by_asking(&mut self, deadline_ns: u64) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::Failed(format!("epoll: {error}"));
        let mut poll = Poll::new().map_err(failed)?;
        for (index, connection) in self.connections.iter().enumerate() {
            let fd = connection.socket.as_raw_fd();
            let registry = poll.registry();
            registry
                .register(&mut SourceFd(&fd), Token(index), Interest::READABLE)
                .map_err(failed)?;
        }
        let mut events = Events::with_capacity(self.connections.len());
        let mut polls_in_vain = 0;
        while self.open_count > 0 {
            match poll.poll(&mut events, Some(Duration::ZERO)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.map_err(failed)?,
            }
            if events.is_empty() {
                polls_in_vain += 1;
                if polls_in_vain % READS_PER_LOOK == 0 {
                    self.check_deadline(deadline_ns)?;
                }
            }
            for event in &events {
                // Until it is empty: epoll tells of it again only when more comes.
                while self.read(event.token().0)? {}
            }
        }
        Ok(())
    }

    /// Reads once; may there be more?
    #[inline]
    fn read(&mut self, index: usize) -> Result<bool, Failure> {
        let connection = &mut self.connections[index];
        if connection.stream.has_ended() {
            return Ok(false);
        }
        let bytes = match connection.socket.read(&mut self.buffer) {
            Ok(0) => return Err(failed_on(index, "it ended in the middle")),
            Ok(count) => &self.buffer[..count],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(failed_on(index, &error.to_string())),
        };
        let received_ns = now_ns();
        let recorder = &mut self.recorder;
        let taken = connection.stream.take(bytes, |seq, due_ns| {
            recorder.record(seq, due_ns, received_ns);
        });
        taken.map_err(|text| failed_on(index, &text))?;
        self.open_count -= usize::from(connection.stream.has_ended());
        Ok(bytes.len() == self.buffer.len())
    }

    #[cold]
    fn check_deadline(&self, deadline_ns: u64) -> Result<(), Failure> {
        if now_ns() < deadline_ns {
            return Ok(());
        }
        let count = self.open_count;
        Err(Failure::Failed(format!("{count} connections were not told of an end in time")))
    }
}

fn failed_on(index: usize, text: &str) -> Failure {
    Failure::Failed(format!("connection {index}: {text}"))
}

fn connect(load: &Load, address: SocketAddr, target: &str) -> io::Result<Connection<Stream>> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let accept = load.format.media_type();
    let request = format!("GET {target} HTTP/1.1\r\nhost: {address}\r\naccept: {accept}\r\n\r\n");
    socket.write_all(request.as_bytes())?;
    socket.set_nonblocking(true)?;
    let socket = File::from(OwnedFd::from(socket));
    Ok(Connection { socket, stream: Stream::new(load.format) })
}

impl Recorder {
    fn new(load: &Load) -> Recorder {
        if load.rate == Rate::Max {
            let (warmup_ns, duration_ns) = (load.warmup.as_nanos(), load.duration.as_nanos());
            let (warmup_ns, duration_ns) = (warmup_ns as u64, duration_ns as u64);
            let (from_ns, deliveries, last_ns) = (0, 0, 0);
            return Recorder::Throughput { warmup_ns, duration_ns, from_ns, deliveries, last_ns };
        }
        let (warmup, counted) = load.chunks();
        // Touched now, so that no page is for the first time during the run.
        let mut samples_ns = vec![u32::MAX; (counted * u64::from(load.followers())) as usize];
        samples_ns.clear();
        Recorder::Latency { counted_from_seq: warmup / u64::from(load.executions) + 1, samples_ns }
    }

    #[inline]
    fn record(&mut self, seq: u64, due_ns: u64, received_ns: u64) {
        match self {
            Recorder::Latency { counted_from_seq, samples_ns } => {
                if seq >= *counted_from_seq {
                    let latency_ns = received_ns.saturating_sub(due_ns).min(u64::from(u32::MAX));
                    samples_ns.push(latency_ns as u32);
                }
            }
            Recorder::Throughput { warmup_ns, duration_ns, from_ns, deliveries, last_ns } => {
                if *from_ns == 0 {
                    *from_ns = received_ns + *warmup_ns;
                }
                if (*from_ns..*from_ns + *duration_ns).contains(&received_ns) {
                    *deliveries += 1;
                    *last_ns = received_ns;
                }
            }
        }
    }

    /// The result, unless nothing was counted.
    fn measured(self, load: &Load) -> Result<Measured, Failure> {
        match self {
            Recorder::Latency { samples_ns, .. } if !samples_ns.is_empty() => {
                let histogram = histogram_of(&samples_ns);
                Ok(Measured::Latency { chunks: load.chunks().1, samples_ns, histogram })
            }
            Recorder::Throughput { from_ns, deliveries, last_ns, .. } if last_ns > from_ns => {
                let chunks = deliveries / u64::from(load.followers());
                let elapsed_ns = last_ns - from_ns;
                Ok(Measured::Throughput { chunks, deliveries, elapsed_ns })
            }
            _ => Err(Failure::Failed("no chunk came in the time that is counted".into())),
        }
    }
}
