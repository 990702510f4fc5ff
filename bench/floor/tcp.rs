//! `bench floor tcp`: the least server that can replace streamdoor under `bench serve`.
//!
//! It has one thread. Events are preformatted, and each goes out with one `send` per connection.
//! Each time, another connection goes first. If a connection does not take all bytes at once, the
//! server waits for it before it continues. It has no policy and no replay. No client connects or
//! leaves during a run. The server reads only the number of the execution from a request. It waits
//! as streamdoor does: with the same strategy over the same reactor, which has no other use here.
//!
//! Flat out, `--batch` events go out in one write.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use streamdoor::base::Instant;
use streamdoor::limits::SPIN_DEFAULT;
use streamdoor::reactor::{self, AnyReactor, Decision, Idle, IdleStrategy, Reactor};
use streamdoor::wire::http1::{BODY_END, begin_chunk, end_chunk};

use super::preformatted::Preformatted;
use crate::common::machine::{allow_descriptors, now_ns, pin_thread};
use crate::common::serve::child::{self, Usage};
use crate::common::serve::load::Load;
use crate::common::serve::plan::{POLL_NS, Plan};
use crate::common::{Failure, print};

/// Number of descriptors beside those of connections.
const DESCRIPTORS_OTHER: u64 = 64;

const HELP: &str = "\
bench floor tcp: run a minimal writer of events over TCP, as a server for one run

Listens on a free port of 127.0.0.1, prints it, waits for all connections
(GET /v1/executions/NUMBER/events), and publishes. `bench serve --impl floor` runs it.

Usage: bench floor tcp [options]

  --batch N           the number of events in one write, with --rate max (1)
  --cpu N             pin it to cpu N (the first allowed)
  --child             reply to each line of standard input with the usage so far; exit at its end
";

/// Runs `bench floor tcp` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some((load, is_child)) = Load::of_server(arguments, HELP)? else { return Ok(()) };
    pin_thread(load.cpu)?;
    allow_descriptors(u64::from(load.connections) + DESCRIPTORS_OTHER)?;
    let (reactor, _) = reactor::open(load.reactor)
        .map_err(|error| Failure::Environment(format!("--reactor: {error}")))?;
    let mut floor = Floor::accept(&load).map_err(failed)?;
    let tally = floor.run(&load, Waiter::new(reactor, load.idle)).map_err(failed)?;
    if is_child {
        loop {
            std::thread::park(); // The connections stay open until the run is over.
        }
    }
    let Usage { cpu_s, memory_kib, .. } = Usage::of_this_process();
    print(&format!(
        "{:<12}{:>12}\n{:<12}{:>12}\n{:<12}{cpu_s:>12.3} s\n{:<12}{memory_kib:>12} KiB\n",
        "chunks", tally.chunks, "writes", tally.writes, "processor", "memory"
    ));
    Ok(())
}

fn failed(error: io::Error) -> Failure {
    Failure::Failed(format!("floor tcp: {error}"))
}

/// Waits for a time as a shard does.
pub struct Waiter {
    reactor: AnyReactor,
    idle: IdleStrategy,
    polls_only: bool,
}

impl Waiter {
    /// Returns a waiter with a reactor that has no other use.
    pub fn new(reactor: AnyReactor, idle: Idle) -> Waiter {
        let polls_only = idle == Idle::Spin;
        Waiter { reactor, idle: IdleStrategy::new(idle, SPIN_DEFAULT), polls_only }
    }

    /// Waits until `planned_ns`. The last part of the wait is polling.
    #[inline]
    pub fn wait(&mut self, planned_ns: u64) {
        let deadline = Instant::from_nanos(planned_ns.saturating_sub(POLL_NS));
        let mut now = Instant::from_nanos(now_ns());
        self.idle.worked(now); // An event was sent.
        while !self.polls_only && now < deadline {
            if let Decision::Wait { until } = self.idle.decide(now, Some(deadline)) {
                self.reactor.wait(until);
            }
            now = Instant::from_nanos(now_ns());
        }
        while now_ns() < planned_ns {}
    }
}

/// The work done so far.
#[derive(Default)]
struct Tally {
    chunks: u64,
    writes: u64,
}

/// All connections, each with its execution.
struct Floor {
    executions: Vec<Execution>,
    polls_only: bool,
}

struct Execution {
    event: Preformatted,
    published_chunks: u64,
    connections: Vec<TcpStream>,
    /// The connections that have not taken all of a write, and the number of bytes that they have
    /// taken.
    behind: Vec<(usize, usize)>,
}

impl Floor {
    /// Prints the address, accepts all connections and begins their responses.
    fn accept(load: &Load) -> io::Result<Floor> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        child::announce(listener.local_addr()?);
        let mut executions: Vec<Execution> = (0..load.executions)
            .map(|index| Execution {
                event: Preformatted::new(load.format, index, load.size_bytes),
                published_chunks: 0,
                connections: Vec::with_capacity(load.followers() as usize),
                behind: Vec::with_capacity(load.followers() as usize),
            })
            .collect();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {}\r\ncache-control: no-cache, no-transform\r\n\
             transfer-encoding: chunked\r\n\r\n",
            load.format.media_type()
        );
        for _ in 0..load.connections {
            let (mut connection, _) = listener.accept()?;
            let index = read_request(&connection)?;
            let execution = executions.get_mut(index).ok_or(io::ErrorKind::InvalidData)?;
            connection.set_nodelay(true)?;
            connection.write_all(head.as_bytes())?;
            connection.set_nonblocking(true)?;
            execution.connections.push(connection);
        }
        Ok(Floor { executions, polls_only: load.idle == Idle::Spin })
    }

    /// Publishes the whole plan, and the end.
    fn run(&mut self, load: &Load, mut waiter: Waiter) -> io::Result<Tally> {
        let mut plan = Plan::new(load);
        plan.begin(Plan::origin(now_ns()));
        let batch_chunks = if plan.is_flat_out() { load.batch_chunks } else { 1 };
        let mut out = Vec::with_capacity(batch_chunks as usize * (2 * load.size_bytes + 1_024));
        let mut tally = Tally::default();
        let mut rounds = 0;
        while let Some(planned_ns) = plan.next(now_ns()) {
            let index = rounds % self.executions.len();
            let execution = &mut self.executions[index];
            out.clear();
            let chunk = begin_chunk(&mut out);
            for _ in 0..batch_chunks {
                execution.published_chunks += 1;
                let seq = execution.published_chunks;
                out.extend_from_slice(execution.event.chunk(seq, planned_ns));
            }
            end_chunk(&mut out, chunk);
            waiter.wait(planned_ns);
            let first = rounds / self.executions.len();
            tally.writes += self.executions[index].write(&out, first, self.polls_only)?;
            tally.chunks += u64::from(batch_chunks);
            rounds += 1;
        }
        for execution in &mut self.executions {
            out.clear();
            let chunk = begin_chunk(&mut out);
            out.extend_from_slice(&execution.event.end(execution.published_chunks));
            end_chunk(&mut out, chunk);
            out.extend_from_slice(BODY_END);
            tally.writes += execution.write(&out, 0, self.polls_only)?;
        }
        Ok(tally)
    }
}

impl Execution {
    /// Writes `bytes` to every connection, beginning with number `first`. Returns the number of
    /// writes.
    #[inline]
    fn write(&mut self, bytes: &[u8], first: usize, polls_only: bool) -> io::Result<u64> {
        let count = self.connections.len();
        let mut writes = 0;
        for step in 0..count {
            let index = (first + step) % count;
            writes += 1;
            let taken = send(&self.connections[index], bytes)?;
            if taken < bytes.len() {
                self.behind.push((index, taken));
            }
        }
        while !self.behind.is_empty() {
            writes += self.catch_up(bytes, polls_only)?;
        }
        Ok(writes)
    }

    /// Waits for connections with room, and sends them the missing bytes.
    #[cold]
    fn catch_up(&mut self, bytes: &[u8], polls_only: bool) -> io::Result<u64> {
        let wanted =
            |(index, _): &(usize, usize)| PollFd::new(&self.connections[*index], PollFlags::OUT);
        let mut polled: Vec<PollFd<'_>> = self.behind.iter().map(wanted).collect();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        retry_on_intr(|| poll(&mut polled, polls_only.then_some(&at_once)))?;
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut writes = 0;
        let mut left = Vec::with_capacity(self.behind.len());
        for ((index, mut taken), is_ready) in self.behind.drain(..).zip(ready) {
            if is_ready {
                writes += 1;
                taken += send(&self.connections[index], &bytes[taken..])?;
            }
            if taken < bytes.len() {
                left.push((index, taken));
            }
        }
        self.behind = left;
        Ok(writes)
    }
}

/// Sends as many bytes as the kernel accepts now.
#[inline]
fn send(mut connection: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match connection.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Reads the head of a request. Returns the number of its execution.
fn read_request(connection: &TcpStream) -> io::Result<usize> {
    let mut lines = BufReader::new(connection).lines();
    let first = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
    for line in lines {
        if line?.is_empty() {
            let number = first.strip_prefix("GET /v1/executions/");
            let number = number.and_then(|rest| rest.split_once('/')?.0.parse().ok());
            return number.ok_or_else(|| io::Error::other(format!("cannot serve {first}")));
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}
