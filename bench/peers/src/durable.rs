//! `peers durable`: the server `durable-streams` for one run of `bench serve`.
//!
//! The server is a program of its own, `durable-streams-server`, that keeps its streams in memory
//! (`--durability memory`). This process is the producer. It appends each chunk with a POST, over
//! one connection, and waits for the reply. A chunk is a line of JSON, made by the same code as
//! everywhere, so that each subscriber gets it as one `data` line. The server ends connections that
//! lag, and the receiver of `bench serve` does not come back. A load must therefore have a rate.
//! Both processes have the server's cpu. The processor time is that of both, the memory that of the
//! server.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::common::machine::{now_ns, pin_thread};
use crate::common::params::Rate;
use crate::common::serve::child::{self, Usage};
use crate::common::serve::event::{self, Format};
use crate::common::serve::load::{LOAD_HELP, Load};
use crate::common::serve::plan::{POLL_NS, Plan, payload, stamp};
use crate::common::{Failure, print};
use crate::door::broker::Process;

const PROGRAM: &str = "durable-streams-server";
/// Number of bytes of a head of a reply, at most.
const HEAD_BYTES_MAX: usize = 8 << 10;

pub const HELP: &str = "\
peers durable: run durable-streams-server for one run of `bench serve --impl durable-streams`

The program must be on the PATH: `cargo install durable-streams`.

Usage: peers durable [options]

  --cpu N             pin it to cpu N (the first allowed)
  --child             reply to each line of standard input with the usage so far; exit at its end.
                      The chunks are due from the first line on
";

/// Runs `peers durable` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let load = Load::parse(arguments, |name, _| Ok(name == "child"))?;
    let Some(load) = load else {
        print(&format!("{HELP}{LOAD_HELP}  --help\n"));
        return Ok(());
    };
    if load.format != Format::Sse {
        return Err(Failure::Usage("--format: must be sse".into()));
    }
    if load.rate == Rate::Max {
        return Err(Failure::Usage("--rate: durable-streams ends connections that lag".into()));
    }
    pin_thread(load.cpu)?; // The server inherits it.
    let directory = std::env::temp_dir().join(format!("streamdoor-bench-{}", std::process::id()));
    let data = directory.display().to_string();
    let process = Process::spawn(PROGRAM, |port| {
        let words = ["--durability", "memory", "--data-dir", &data, "--port", &port.to_string()];
        words.map(str::to_owned).to_vec()
    })?;
    let (pid, port) = (process.pid(), process.port);
    let server = Server { process: Some(process), directory };
    let failed = |error: io::Error| Failure::Failed(format!("{PROGRAM}: {error}"));
    let mut producer = Producer::connect(port).map_err(failed)?;
    for index in 0..load.executions {
        producer.create(index).map_err(failed)?;
    }
    let (ready, is_ready) = channel();
    let server = Arc::new(Mutex::new(Some(server)));
    let end_of = |server: Arc<Mutex<Option<Server>>>| {
        move || drop(server.lock().unwrap_or_else(PoisonError::into_inner).take())
    };
    child::answer_standard_input_with(
        move || {
            let _ = ready.send(()); // All subscribers have sent their requests.
            let (server, own) = (Usage::of_process(pid), Usage::of_this_process());
            Usage {
                cpu_s: server.cpu_s + own.cpu_s,
                preemptions: server.preemptions + own.preemptions,
                ..server
            }
        },
        end_of(Arc::clone(&server)),
    );
    child::announce(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    if is_ready.recv().is_ok()
        && let Err(error) = producer.produce(&load)
    {
        end_of(server)();
        return Err(failed(error));
    }
    loop {
        std::thread::park(); // The other thread ends this process.
    }
}

/// The server and its directory, which go when this is dropped.
struct Server {
    process: Option<Process>,
    directory: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.take());
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A connection to the server.
struct Producer {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Producer {
    fn connect(port: u16) -> io::Result<Producer> {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        socket.set_nodelay(true)?;
        Ok(Producer { socket, buffer: Vec::new() })
    }

    /// Creates the stream of an execution.
    fn create(&mut self, index: u32) -> io::Result<()> {
        self.ask("PUT", &event::execution_name(index), &[])
    }

    /// Publishes the whole plan and the end.
    fn produce(&mut self, load: &Load) -> io::Result<()> {
        let mut published_chunks = vec![0; load.executions as usize];
        let mut plan = Plan::new(load);
        plan.begin(Plan::origin(now_ns()));
        let (mut data, mut body, mut rounds) = (payload(load.size_bytes), Vec::new(), 0);
        while let Some(planned_ns) = plan.next(now_ns()) {
            wait_until(planned_ns);
            stamp(&mut data, planned_ns);
            let index = rounds % load.executions;
            let name = event::execution_name(index);
            let published = &mut published_chunks[index as usize];
            *published += 1;
            body.clear();
            event::chunk(&name, *published, &data, planned_ns).write_json(&mut body);
            body.push(b'\n');
            self.ask("POST", &name, &body)?;
            rounds += 1;
        }
        for (index, chunks) in (0..).zip(published_chunks) {
            let name = event::execution_name(index);
            body.clear();
            event::end(&name, chunks, load.size_bytes).write_json(&mut body);
            body.push(b'\n');
            self.ask("POST", &name, &body)?;
        }
        Ok(())
    }

    /// Sends a request about a stream and reads the reply, which has no body.
    fn ask(&mut self, method: &str, name: &str, body: &[u8]) -> io::Result<()> {
        self.buffer.clear();
        write!(
            self.buffer,
            "{method} /v1/stream/{name} HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        )?;
        self.buffer.extend_from_slice(body);
        self.socket.write_all(&self.buffer)?;
        self.buffer.clear();
        let mut piece = [0; 1_024];
        while !self.buffer.ends_with(b"\r\n\r\n") {
            match self.socket.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.buffer.extend_from_slice(&piece[..count]),
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("a reply has too long a head"));
            }
        }
        if self.buffer.starts_with(b"HTTP/1.1 20") {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&self.buffer);
        Err(io::Error::other(format!("{method} was answered with {text}")))
    }
}

/// Waits until `planned_ns`. The last part of the wait is polling, in which the server may run.
fn wait_until(planned_ns: u64) {
    // A sleep may last 50 µs longer than asked for.
    let sleeps_until_ns = planned_ns.saturating_sub(2 * POLL_NS);
    let now = now_ns();
    if now < sleeps_until_ns {
        std::thread::sleep(Duration::from_nanos(sleeps_until_ns - now));
    }
    while now_ns() < planned_ns {
        std::thread::yield_now();
    }
}
