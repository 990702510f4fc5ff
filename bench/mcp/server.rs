//! The servers of `bench mcp`: ours over standard streams, `bench mcp server`; and any of them as a
//! process of its own that is started, called, asked what it used, ended.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use serde_json::json;
use streamdoor::reactor::{End, ReleasedSocket};
use streamdoor::shard::LineOptions;

use super::stream::Stream;
use super::{Mcp, wire};
use crate::common::Failure;
use crate::common::machine::now_ns;
use crate::common::serve::child::Usage;
use crate::common::serve::load::Load;
use crate::serve::client::{Connection, Incoming};
use crate::serve::{first, ours, server};

const HELP: &str = "\
bench mcp server: streamdoor's server with the tools of benchmarks, over standard streams

`bench mcp` runs it.

Usage: bench mcp server [options]

  --cpu N             where it is pinned (the first allowed)
";
/// How long one call may take.
const CALL_NS_MAX: u64 = 10_000_000_000;
const DRAIN: Duration = Duration::from_secs(1);

/// Runs `bench mcp server` with what follows these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some((load, _)) = Load::of_server(arguments, HELP)? else { return Ok(()) };
    let streams = || {
        let input = End::to_read(std::io::stdin().as_fd())?;
        Ok(ReleasedSocket::of_ends(input, End::to_write(std::io::stdout().as_fd())?))
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
    let _ = ended.recv(); // Nothing is ever sent: it ends.
    server.drain(DRAIN);
    Ok(())
}

fn failed(text: &str) -> Failure {
    Failure::Failed(format!("mcp: {text}"))
}

/// A server that can be called.
pub enum Server {
    /// With a connection for calls one after the other.
    Http { process: server::Server, line: Option<TcpStream> },
    /// Its standard streams are calls and notifications.
    Stdio { process: Child, input: Option<File>, output: File },
}

impl Server {
    /// Starts one.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn start(mcp: &Mcp, implementation: &str) -> Result<Server, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Environment(format!("where am I? {error}")))?;
        let words: &[&str] = match (implementation, mcp.is_stdio()) {
            ("floor", true) => &["mcp", "floor", "stdio"],
            ("floor", false) => &["mcp", "floor", "--child"],
            (_, true) => &["mcp", "server"],
            (_, false) => &["server", "--child"],
        };
        let words = words.iter().map(|word| (*word).to_owned());
        let words: Vec<String> = words.chain(mcp.load.to_arguments()).collect();
        if !mcp.is_stdio() {
            let process = server::Server::start(&program, &words)?;
            return Ok(Server::Http { process, line: None });
        }
        let made = if mcp.transport == "pipe" { pipes() } else { sockets() };
        let [(stdin, input), (output, stdout)] =
            made.map_err(|error| Failure::Environment(error.to_string()))?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout));
        let process = command.spawn().map_err(|error| failed(&error.to_string()))?;
        let (input, output) = (Some(File::from(input)), File::from(output));
        // This end is ours alone.
        fcntl_setfl(&output, OFlags::NONBLOCK).map_err(|error| failed(&error.to_string()))?;
        Ok(Server::Stdio { process, input, output })
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it does not say.
    pub fn usage(&mut self) -> Result<Usage, Failure> {
        match self {
            Server::Http { process, .. } => process.usage(),
            Server::Stdio { process, .. } => Ok(Usage::of_process(process.id())),
        }
    }

    /// Makes one call: how long until its first notification was read.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it does not come.
    pub fn first(&mut self) -> Result<u32, Failure> {
        let call = wire::call(first::TOOL, 0, &json!({}));
        let broken = |error: std::io::Error| failed(&error.to_string());
        match self {
            Server::Http { process, line } => {
                let address = process.address;
                if line.is_none() {
                    *line = Some(connect(address).map_err(broken)?);
                }
                let line = line.as_mut().expect("just made");
                let request = wire::post(address, first::TOOL, &call);
                let begun_ns = now_ns();
                line.write_all(request.as_bytes()).map_err(broken)?;
                read_first(line, Stream::of_response(0, 1), begun_ns)
            }
            Server::Stdio { input, output, .. } => {
                let input = input.as_mut().expect("it was not told to leave");
                let begun_ns = now_ns();
                input.write_all(format!("{call}\n").as_bytes()).map_err(broken)?;
                read_first(output, Stream::of_lines(1, 1), begun_ns)
            }
        }
    }

    /// Calls once for each session: what to read from.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it can not be called.
    pub fn call_all(&mut self, load: &Load) -> Result<Vec<Connection<Stream>>, Failure> {
        let (warmup, counted) = load.chunks();
        let chunks_each = (warmup + counted) / u64::from(load.executions);
        let calls = (0..load.executions)
            .map(|index| (index, wire::call(ours::TOOL, index, &json!({"index": index}))));
        let broken = |error: std::io::Error| failed(&error.to_string());
        match self {
            Server::Http { process, line } => {
                *line = None; // The floor goes on when it is closed.
                let address = process.address;
                let connect_for = |(index, call): (u32, String)| {
                    let mut socket = connect(address)?;
                    socket.write_all(wire::post(address, ours::TOOL, &call).as_bytes())?;
                    let stream = Stream::of_response(index as usize, chunks_each);
                    Ok(Connection { socket: File::from(OwnedFd::from(socket)), stream })
                };
                calls.map(connect_for).collect::<std::io::Result<_>>().map_err(broken)
            }
            Server::Stdio { input, output, .. } => {
                let input = input.as_mut().expect("it was not told to leave");
                let lines: String = calls.map(|(_, call)| call + "\n").collect();
                input.write_all(lines.as_bytes()).map_err(broken)?;
                let socket = output.try_clone().map_err(broken)?;
                let stream = Stream::of_lines(load.executions as usize, chunks_each);
                Ok(vec![Connection { socket, stream }])
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Server::Stdio { process, input, .. } = self {
            *input = None; // It leaves by itself; and if not, it is ended.
            let deadline_ns = now_ns() + 2 * DRAIN.as_nanos() as u64;
            while now_ns() < deadline_ns && matches!(process.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What the server reads from and we write to; what we read from and it writes to.
type Streams = [(OwnedFd, OwnedFd); 2];

fn pipes() -> std::io::Result<Streams> {
    let ((stdin, input), (output, stdout)) = (std::io::pipe()?, std::io::pipe()?);
    Ok([(stdin.into(), input.into()), (output.into(), stdout.into())])
}

fn sockets() -> std::io::Result<Streams> {
    let ((stdin, input), (output, stdout)) = (UnixStream::pair()?, UnixStream::pair()?);
    Ok([(stdin.into(), input.into()), (output.into(), stdout.into())])
}

/// A connection that is written to before anything comes, and then polled.
fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?; // A request fits into the buffer of a new connection.
    Ok(socket)
}

/// Reads to the end of a call of one chunk: how long it was until that came.
fn read_first(from: &mut impl Read, mut stream: Stream, begun_ns: u64) -> Result<u32, Failure> {
    let mut buffer = [0; 16 << 10];
    let mut first_ns = None;
    while !stream.has_ended() {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Err(failed("the server has left")),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if now_ns() - begun_ns > CALL_NS_MAX {
                    return Err(failed("a call is not answered"));
                }
                continue;
            }
            Err(error) => return Err(failed(&error.to_string())),
        };
        let taken = stream.take(&buffer[..count], |_, _| first_ns = first_ns.or(Some(now_ns())));
        taken.map_err(|text| failed(&text))?;
    }
    let first_ns = first_ns.ok_or_else(|| failed("a call without a notification"))?;
    Ok(u32::try_from(first_ns - begun_ns).unwrap_or(u32::MAX))
}
