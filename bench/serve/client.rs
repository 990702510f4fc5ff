//! The receiver of `bench serve` and of `bench mcp`: all connections on one thread, which polls and
//! never blocks.
//!
//! A single connection is read by plain non-blocking reads. For several, `epoll_wait` is called
//! with a timeout of 0, which notices data as fast and does not visit each connection. The clock is
//! read once for all bytes of one read. A latency counts from the time at which a chunk was due.

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

/// Maximum number of bytes of one read: about 600 small events.
const READ_BYTES: usize = 256 << 10;
/// The maximum time of a run beyond the planned time.
const OVERDUE_NS: u64 = 60_000_000_000;
/// Number of reads without data between two reads of the clock.
const READS_PER_LOOK: u32 = 1 << 16;

/// The results of a run.
pub struct Received {
    /// The latencies, or a count.
    pub outcome: Outcome,
    /// Number of chunks received on all connections, including those of the warm-up.
    pub given_chunks: u64,
    /// Number of chunks reported as missed.
    pub missed_chunks: u64,
}

/// The parser of one connection.
pub trait Incoming {
    /// Takes received bytes. Calls `chunk` with the number of each chunk, and the time at which it
    /// was due.
    ///
    /// # Errors
    /// A text that says what is wrong with them.
    fn take(&mut self, bytes: &[u8], chunk: impl FnMut(u64, u64)) -> Result<(), String>;
    /// True once the end was received.
    fn has_ended(&self) -> bool;
    /// Returns the number of chunks received.
    fn given_chunks(&self) -> u64;
    /// Returns the number of chunks reported as missed.
    fn missed_chunks(&self) -> u64;
}

/// One connection. Its socket does not block.
pub struct Connection<S> {
    /// A socket or a pipe.
    pub socket: File,
    /// The state of the parser.
    pub stream: S,
}

/// All connections and their results.
pub struct Client<'a, S> {
    load: &'a Load,
    connections: Vec<Connection<S>>,
    recorder: Recorder,
    buffer: Box<[u8]>,
    open_count: usize,
}

/// The record of the chunks.
enum Recorder {
    /// For a load with a rate.
    Latency {
        /// The number of the first chunk of each execution that counts.
        counted_from_seq: u64,
        samples_ns: Vec<u32>,
    },
    /// For a load without a rate: counts chunks after the warm-up, for the duration.
    Throughput {
        warmup_ns: u64,
        duration_ns: u64,
        /// The end of the warm-up, or 0 before the first chunk.
        from_ns: u64,
        deliveries: u64,
        last_ns: u64,
    },
}

impl<'a> Client<'a, Stream> {
    /// Connects, and requests `targets[i]` on each connection i modulo their number.
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
            .map_err(|error| Failure::Failed(format!("cannot connect to {address}: {error}")))?;
        Ok(Client::new(load, connections))
    }
}

impl<'a, S: Incoming> Client<'a, S> {
    /// Returns a client of connections that have sent their requests.
    pub fn new(load: &'a Load, connections: Vec<Connection<S>>) -> Client<'a, S> {
        let open_count = connections.len();
        // Not zero: zeroed memory would be mapped lazily.
        let buffer = vec![1; READ_BYTES].into_boxed_slice();
        Client { load, connections, recorder: Recorder::new(load), buffer, open_count }
    }

    /// Receives until every connection has ended.
    ///
    /// # Errors
    /// [`Failure::Failed`] if a chunk is lost without a gap, or does not arrive.
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
                // Until it is empty, because epoll reports it again only when more arrives.
                while self.read(event.token().0)? {}
            }
        }
        Ok(())
    }

    /// Reads once. Returns true if more bytes may be ready.
    #[inline]
    fn read(&mut self, index: usize) -> Result<bool, Failure> {
        let connection = &mut self.connections[index];
        if connection.stream.has_ended() {
            return Ok(false);
        }
        let bytes = match connection.socket.read(&mut self.buffer) {
            Ok(0) => return Err(failed_on(index, "it ended too early")),
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
        Err(Failure::Failed(format!("{count} connections got no end event in time")))
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
        // Touched now, so that no page is touched for the first time during the run.
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

    /// Returns the result. Fails if nothing was counted.
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
            _ => Err(Failure::Failed("no chunk arrived in the counted time".into())),
        }
    }
}
