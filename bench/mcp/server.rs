//! The servers of `bench mcp`. `bench mcp server` is streamdoor over standard streams. [`Server`]
//! is any server as a process of its own.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use serde_json::json;
use streamdoor::reactor::{HalfConnection, ReleasedSocket};
use streamdoor::server::LineOptions;

use super::at_once::AtOnce;
use super::peer::{self, Era, PlanFile};
use super::stream::{Dialect, Stream};
use super::{Mcp, wire};
use crate::common::machine::{now_ns, pin_thread};
use crate::common::serve::child::Usage;
use crate::common::serve::load::Load;
use crate::common::{Failure, end};
use crate::serve::client::{Connection, Incoming};
use crate::serve::{first, ours, server};

const HELP: &str = "\
bench mcp server: run streamdoor's server with the benchmark tools, over standard streams

`bench mcp` runs it.

Usage: bench mcp server [options]

  --cpu N             pin it to cpu N (the first allowed)
";
/// Maximum time of one call.
const CALL_NS_MAX: u64 = 10_000_000_000;
const DRAIN: Duration = Duration::from_secs(1);

/// Runs `bench mcp server` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some((load, _)) = Load::of_server(arguments, HELP)? else { return Ok(()) };
    let streams = || {
        let input = HalfConnection::to_read(std::io::stdin().as_fd())?;
        Ok(ReleasedSocket::of_ends(input, HalfConnection::to_write(std::io::stdout().as_fd())?))
    };
    let socket = streams().map_err(|error: std::io::Error| failed(&error.to_string()))?;
    let server = ours::start(load, Vec::new())?;
    let (sender, ended) = channel::<()>();
    let on_end: Box<dyn FnOnce() + Send> = Box::new(move || drop(sender));
    let options = LineOptions { settle: Duration::ZERO, on_end: Some(on_end) };
    let shard = server.handles().next().expect("there is one");
    let opened = shard.call(move |shard| shard.open_lines(socket, options));
    let opened = opened.map_err(|_| failed("the shard has ended"))?;
    opened.map_err(|error| failed(&error.to_string()))?;
    let _ = ended.recv(); // No message is ever sent: the channel ends.
    server.drain(DRAIN);
    Ok(())
}

/// Returns a failure with the name of this benchmark.
pub fn failed(text: &str) -> Failure {
    Failure::Failed(format!("mcp: {text}"))
}

/// A server that can be called.
pub struct Server {
    reached: Reached,
    era: Era,
    dialect: Dialect,
    /// The file from which it reads the plan.
    _plan: Option<PlanFile>,
}

/// The connection to a server.
enum Reached {
    /// HTTP, with a connection for calls one after the other, and its session.
    Http { process: server::Server, line: Option<(TcpStream, Option<String>)> },
    /// Standard streams, which carry calls and notifications.
    Stdio { process: Child, input: Option<File>, output: File },
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn start(mcp: &Mcp, implementation: &str) -> Result<Server, Failure> {
        let plan = match peer::is_peer(implementation) {
            true => Some(PlanFile::write(&mcp.load)?),
            false => None,
        };
        let era = peer::era_of(implementation);
        let dialect = if plan.is_some() { Dialect::Plain } else { Dialect::Ours };
        let (program, words) = command_of(mcp, implementation, plan.as_ref())?;
        // A peer inherits the cpu of the starting thread; streamdoor and the floor pin themselves.
        pin_thread(mcp.load.cpu)?;
        let reached = match mcp.is_stdio() {
            true => start_on_streams(mcp, &program, &words),
            false => server::Server::start(&program, &words)
                .map(|process| Reached::Http { process, line: None }),
        };
        pin_thread(mcp.client_cpu)?;
        let mut server = Server { reached: reached?, era, dialect, _plan: plan };
        server.shake_hands()?;
        Ok(server)
    }

    /// Does the handshake on standard streams, if needed. From then on, reads do not block.
    fn shake_hands(&mut self) -> Result<(), Failure> {
        let Reached::Stdio { input, output, .. } = &mut self.reached else { return Ok(()) };
        if self.era == Era::Handshake {
            let input = input.as_mut().expect("it was not told to end");
            peer::shake_hands(input, output).map_err(|error| failed(&error.to_string()))?;
        }
        // This end is not shared.
        fcntl_setfl(&*output, OFlags::NONBLOCK).map_err(|error| failed(&error.to_string()))
    }

    /// Returns the resources it has used so far.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it does not reply.
    pub fn usage(&mut self) -> Result<Usage, Failure> {
        match &mut self.reached {
            Reached::Http { process, .. } if self.dialect == Dialect::Ours => process.usage(),
            Reached::Http { process, .. } => Ok(Usage::of_process(process.pid())),
            Reached::Stdio { process, .. } => Ok(Usage::of_process(process.id())),
        }
    }

    /// Returns the memory pressure level that it reports over HTTP, if that is its transport. It
    /// must be streamdoor's.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it does not report one.
    pub fn pressure_level(&self) -> Result<Option<u64>, Failure> {
        match &self.reached {
            Reached::Http { process, .. } => process.pressure_level().map(Some),
            Reached::Stdio { .. } => Ok(None),
        }
    }

    /// Makes one call. Returns the time until its first notification was read.
    ///
    /// # Errors
    /// [`Failure::Failed`] if the notification does not come.
    pub fn first(&mut self) -> Result<u64, Failure> {
        let call = wire::call(self.era, first::TOOL, 0, &json!({}));
        let broken = |error: std::io::Error| failed(&error.to_string());
        match &mut self.reached {
            Reached::Http { process, line } => {
                let address = process.address;
                if line.is_none() {
                    *line = Some(connect(address, self.era).map_err(broken)?);
                }
                let (socket, session) = line.as_mut().expect("just made");
                let (session, name) = (session.as_deref(), Some(first::TOOL));
                let post = wire::Post { address, session, era: self.era, name };
                let request = post.of(wire::CALL, &call);
                let begun_ns = now_ns();
                socket.write_all(request.as_bytes()).map_err(broken)?;
                read_first(socket, Stream::of_response(self.dialect, 0, 1), begun_ns)
            }
            Reached::Stdio { input, output, .. } => {
                let input = input.as_mut().expect("it was not told to end");
                let begun_ns = now_ns();
                input.write_all(format!("{call}\n").as_bytes()).map_err(broken)?;
                read_first(output, Stream::of_lines(self.dialect, 1, 1), begun_ns)
            }
        }
    }

    /// Opens connections for `count` concurrent calls.
    ///
    /// # Errors
    /// [`Failure::Failed`] if the server does not accept them.
    pub fn at_once(&self, count: u32) -> Result<AtOnce, Failure> {
        let Reached::Http { process, .. } = &self.reached else {
            unreachable!("it was refused for standard streams");
        };
        let connected = AtOnce::connect(process.address, self.era, self.dialect, count);
        connected.map_err(|error| failed(&format!("connections for calls at once: {error}")))
    }

    /// Calls once for each session. Returns the connections to read from.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it cannot be called.
    pub fn call_all(&mut self, load: &Load) -> Result<Vec<Connection<Stream>>, Failure> {
        let (warmup, counted) = load.chunks();
        let chunks_each = (warmup + counted) / u64::from(load.executions);
        let (era, dialect) = (self.era, self.dialect);
        let calls = (0..load.executions)
            .map(|index| (index, wire::call(era, ours::TOOL, index, &json!({"index": index}))));
        let broken = |error: std::io::Error| failed(&error.to_string());
        match &mut self.reached {
            Reached::Http { process, line } => {
                *line = None; // The floor continues when it is closed.
                let address = process.address;
                let connect_for = |(index, call): (u32, String)| {
                    let (mut socket, session) = connect(address, era)?;
                    let (session, name) = (session.as_deref(), Some(ours::TOOL));
                    let post = wire::Post { address, session, era, name };
                    socket.write_all(post.of(wire::CALL, &call).as_bytes())?;
                    let stream = Stream::of_response(dialect, index as usize, chunks_each);
                    Ok(Connection { socket: File::from(OwnedFd::from(socket)), stream })
                };
                calls.map(connect_for).collect::<std::io::Result<_>>().map_err(broken)
            }
            Reached::Stdio { input, output, .. } => {
                let input = input.as_mut().expect("it was not told to end");
                let lines: String = calls.map(|(_, call)| call + "\n").collect();
                input.write_all(lines.as_bytes()).map_err(broken)?;
                let socket = output.try_clone().map_err(broken)?;
                let stream = Stream::of_lines(dialect, load.executions as usize, chunks_each);
                Ok(vec![Connection { socket, stream }])
            }
        }
    }
}

/// Returns the program of the server, and its arguments.
fn command_of(
    mcp: &Mcp,
    implementation: &str,
    plan: Option<&PlanFile>,
) -> Result<(PathBuf, Vec<String>), Failure> {
    if let Some(plan) = plan {
        let (program, own) = mcp.peer.split_first().expect("a peer is given with its program");
        let words =
            peer::words(&mcp.load_of_server(), peer::era_of(implementation), mcp.is_stdio(), plan);
        return Ok((PathBuf::from(program), own.iter().cloned().chain(words).collect()));
    }
    let program = std::env::current_exe().map_err(|error| {
        Failure::Environment(format!("the path of this program is unknown: {error}"))
    })?;
    let is_floor = implementation.starts_with("floor");
    let words: &[&str] = match (is_floor, mcp.is_stdio()) {
        (true, true) => &["mcp", "floor", "stdio"],
        (true, false) => &["mcp", "floor", "--child"],
        (_, true) => &["mcp", "server"],
        (_, false) => &["server", "--child"],
    };
    let words = words.iter().map(|word| (*word).to_owned());
    let batch_chunks = if implementation == "floor-16" { 16 } else { 1 };
    let load = Load { batch_chunks, ..mcp.load_of_server() };
    let mut of_floor = Vec::new();
    if is_floor && mcp.first.at_once > 0 {
        of_floor.extend(["--first-at-once".to_owned(), mcp.first.at_once.to_string()]);
    }
    if implementation == "floor-reads" {
        of_floor.push("--reads".to_owned());
    }
    Ok((program, words.chain(load.to_arguments()).chain(of_floor).collect()))
}

fn start_on_streams(mcp: &Mcp, program: &Path, words: &[String]) -> Result<Reached, Failure> {
    let made = if mcp.transport == "pipe" { pipes() } else { sockets() };
    let [(stdin, input), (output, stdout)] =
        made.map_err(|error| Failure::Environment(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout));
    let process = command.spawn().map_err(|error| failed(&error.to_string()))?;
    let (input, output) = (Some(File::from(input)), File::from(output));
    Ok(Reached::Stdio { process, input, output })
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Reached::Stdio { process, input, .. } = &mut self.reached {
            *input = None;
            end(process);
        }
    }
}

/// The two channels: server's input and our end of it, then our input and the server's end.
type Streams = [(OwnedFd, OwnedFd); 2];

fn pipes() -> std::io::Result<Streams> {
    let ((stdin, input), (output, stdout)) = (std::io::pipe()?, std::io::pipe()?);
    Ok([(stdin.into(), input.into()), (output.into(), stdout.into())])
}

fn sockets() -> std::io::Result<Streams> {
    let ((stdin, input), (output, stdout)) = (UnixStream::pair()?, UnixStream::pair()?);
    Ok([(stdin.into(), input.into()), (output.into(), stdout.into())])
}

/// Returns a connection whose reads do not block, and its session in the era with sessions. The
/// request must be written first.
pub fn connect(address: SocketAddr, era: Era) -> std::io::Result<(TcpStream, Option<String>)> {
    let (socket, session) = match era {
        Era::Stateless => (TcpStream::connect(address)?, None),
        Era::Handshake => {
            let (socket, session) = peer::open_session(address)?;
            (socket, Some(session))
        }
    };
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?; // A request fits into the buffer of a new connection.
    Ok((socket, session))
}

/// Reads to the end of a call with one chunk. Returns the time until that chunk arrived.
fn read_first(from: &mut impl Read, mut stream: Stream, begun_ns: u64) -> Result<u64, Failure> {
    let mut buffer = [0; 16 << 10];
    let mut first_ns = None;
    while !stream.is_complete() {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Err(failed("the server has ended")),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if now_ns() - begun_ns > CALL_NS_MAX {
                    return Err(failed("a call got no reply"));
                }
                continue;
            }
            Err(error) => return Err(failed(&error.to_string())),
        };
        let taken = stream.take(&buffer[..count], |_, _| first_ns = first_ns.or(Some(now_ns())));
        taken.map_err(|text| failed(&text))?;
    }
    let first_ns = first_ns.ok_or_else(|| failed("a call without a notification"))?;
    Ok(first_ns - begun_ns)
}
