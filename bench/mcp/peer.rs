//! Third-party servers under `bench mcp`: their arguments, and the handshake of the older era.
//!
//! A peer is a program that `--peer` names. It gets the load like every server, and also its
//! transport and a file with the plan. Its chunks are thus due at the same times, whatever language
//! it is written in. Its tools are those of `bench server`. `paced` begins when the number of calls
//! equals the executions of the load; `first` is the other. A chunk is one notification: `progress`
//! is its number, `message` its payload. Over HTTP, its first line is its address. It exits when
//! its standard input ends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};

use super::wire;
use crate::common::Failure;
use crate::common::params::Rate;
use crate::common::serve::load::Load;
use crate::common::serve::plan::Plan;

const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// The era in which a peer is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// A call is one request that contains everything it needs.
    Stateless,
    /// A handshake comes first; over HTTP, it opens a session.
    Handshake,
}

impl Era {
    /// Returns the name of the era.
    pub fn name(self) -> &'static str {
        match self {
            Era::Stateless => "stateless",
            Era::Handshake => "handshake",
        }
    }
}

/// Every peer, with the era in which it is called.
pub const PEERS: &[(&str, Era)] = &[
    ("rmcp", Era::Stateless),
    ("rmcp-sessions", Era::Handshake),
    ("typescript", Era::Handshake),
    ("python", Era::Stateless),
    ("python-sessions", Era::Handshake),
];

/// Returns the era in which an implementation is called.
pub fn era_of(implementation: &str) -> Era {
    let peer = PEERS.iter().find(|(name, _)| *name == implementation);
    peer.map_or(Era::Stateless, |(_, era)| *era)
}

/// True if it is a third-party server.
pub fn is_peer(implementation: &str) -> bool {
    PEERS.iter().any(|(name, _)| *name == implementation)
}

/// The plan as a file: the nanoseconds between the start of a run and each chunk. Each number has
/// 64 bits, little-endian. Chunk k belongs to execution k modulo their number. The file is empty
/// without a rate.
pub struct PlanFile(PathBuf);

impl PlanFile {
    /// Writes the file.
    ///
    /// # Errors
    /// [`Failure::Failed`], which names the file.
    pub fn write(load: &Load) -> Result<PlanFile, Failure> {
        let mut bytes = Vec::new();
        if load.rate != Rate::Max {
            let mut plan = Plan::new(load);
            plan.begin(0);
            while let Some(due_ns) = plan.next(0) {
                bytes.extend_from_slice(&due_ns.to_le_bytes());
            }
        }
        let name = format!("streamdoor-bench-plan-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let written = std::fs::write(&path, bytes);
        written.map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        Ok(PlanFile(path))
    }
}

impl Drop for PlanFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // A remaining file does no harm.
    }
}

/// Returns the arguments of a peer after the words of `--peer`.
pub fn words(load: &Load, era: Era, is_stdio: bool, plan: &PlanFile) -> Vec<String> {
    let transport = if is_stdio { "stdio" } else { "http" };
    let plan = plan.0.display().to_string();
    let own = ["--transport", transport, "--era", era.name(), "--plan", &plan];
    own.into_iter().map(str::to_owned).chain(load.to_arguments()).collect()
}

fn initialize() -> String {
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": wire::HANDSHAKE_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "0"},
    }});
    request.to_string()
}

const INITIALIZED: &str = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}";

/// Opens a session over HTTP. Returns its connection, which blocks, and its name.
///
/// # Errors
/// The error of a system call, or of an unexpected reply.
pub fn open_session(address: SocketAddr) -> io::Result<(TcpStream, String)> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(ANSWER_WAIT))?;
    let post = wire::Post { address, session: None, era: Era::Handshake, name: None };
    socket.write_all(post.of("initialize", &initialize()).as_bytes())?;
    let session = read_answer(&mut socket)?;
    let session = session.ok_or_else(|| io::Error::other("the server has opened no session"))?;
    let post = wire::Post { session: Some(&session), ..post };
    socket.write_all(post.of("notifications/initialized", INITIALIZED).as_bytes())?;
    read_answer(&mut socket)?;
    Ok((socket, session))
}

/// Reads a reply to its end. Returns the session that its head names.
fn read_answer(socket: &mut TcpStream) -> io::Result<Option<String>> {
    let mut reader = ResponseReader::new();
    reader.expect(Method::Post);
    let (mut buffer, mut session) = ([0; 16 << 10], None);
    loop {
        let count = socket.read(&mut buffer)?;
        if count == 0 {
            return Err(io::Error::other("the server has ended"));
        }
        let mut bytes = &buffer[..count];
        while let Some(part) = reader.read(&mut bytes).map_err(io::Error::other)? {
            match part {
                ResponsePart::Head(head) if head.status.is_success() => {
                    session = head.headers.texts(wire::SESSION_HEADER).next().map(str::to_owned);
                }
                ResponsePart::Head(head) => {
                    let text = format!("the server answered {}", head.status);
                    return Err(io::Error::other(text));
                }
                ResponsePart::Body(_) => {}
                ResponsePart::End => return Ok(session),
            }
        }
    }
}

/// Does the handshake over standard streams. The output must still block.
///
/// # Errors
/// The error of a system call, or of an unexpected reply.
pub fn shake_hands(input: &mut impl Write, output: &mut impl Read) -> io::Result<()> {
    input.write_all(format!("{}\n", initialize()).as_bytes())?;
    let mut answer = String::new();
    // Nothing follows before the next message, so the buffer holds no other bytes.
    BufReader::new(output).read_line(&mut answer)?;
    if !answer.contains("\"result\"") {
        return Err(io::Error::other(format!("the server answered {answer:?}")));
    }
    input.write_all(format!("{INITIALIZED}\n").as_bytes())
}
