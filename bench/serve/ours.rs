//! streamdoor under `bench serve`: its server as a process of its own, with an additional tool.
//!
//! The server is that of the library, with one shard and its defaults. The tool ([`Paced`])
//! publishes chunks when the plan says that they are due, stamped with that time. The load is thus
//! that of every other server. An execution starts when all its subscribers are attached. The run
//! begins when all executions have started.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::Instant;
use streamdoor::engine::Timeouts;
use streamdoor::limits::{BURST_CHUNKS_MAX, RING_BYTES_PER_SLOT, RING_NEED_BYTES_DEFAULT};
use streamdoor::memory::heap;
use streamdoor::reactor::{Idle, ListenAddress};
use streamdoor::server::{Server, ServerConfig};
use streamdoor::shard::ShardConfig;
use streamdoor::stream::Policy;
use streamdoor::tool::{
    ArgumentError, Arguments, Context, EmitError, Need, Step, SubscribeDefaults, Tool, ToolError,
    ToolSpec, Work,
};
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};

use super::first;
use crate::common::Failure;
use crate::common::machine::{allow_descriptors, now_ns};
use crate::common::serve::child;
use crate::common::serve::load::Load;
use crate::common::serve::plan::{POLL_NS, Plan, payload, stamp};

/// The name of the tool that follows the plan.
pub const TOOL: &str = "paced";
/// Number of descriptors beside those of connections.
const DESCRIPTORS_OTHER: u64 = 256;
/// Time that an execution waits for its subscribers.
const ATTACH_MS_MAX: u64 = 60_000;
/// Time between two checks whether all executions have started: far less than the lead of a run.
const LOOK: Duration = Duration::from_millis(1);
/// Capacity of a ring in chunks, as that of all other implementations.
const RING_CHUNKS: usize = 1_024;
/// Capacity of each ring of many executions: that of a tool that declares nothing.
const RING_CHUNKS_OF_MANY: usize = (RING_NEED_BYTES_DEFAULT / RING_BYTES_PER_SLOT) as usize;
const RING_BYTES_MAX: usize = 1 << 20;

const HELP: &str = "\
bench server: run streamdoor's server with the tool of `bench serve`

Listens on a free port of 127.0.0.1, and prints it. `bench serve` runs it.

Usage: bench server [options]

  --cpu N             pin it to cpu N (the first allowed)
  --child             reply to each line of standard input with the usage so far; exit at its end
";

/// Runs `bench server` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some((load, _)) = Load::of_server(arguments, HELP)? else { return Ok(()) };
    let server = start(load, vec![ListenAddress::Tcp(([127, 0, 0, 1], 0).into())])?;
    let ListenAddress::Tcp(address) = server.addresses()[0] else {
        unreachable!("it was asked to listen on a port");
    };
    child::announce(address);
    loop {
        std::thread::park(); // It exits with its standard input, or by a signal.
    }
}

/// Starts a server with the tools of benchmarks.
///
/// # Errors
/// [`Failure::Environment`].
pub fn start(load: Load, listen: Vec<ListenAddress>) -> Result<Server, Failure> {
    allow_descriptors(u64::from(load.connections) + DESCRIPTORS_OTHER)?;
    heap::share_one_heap(); // As `streamdoor serve` with one shard.
    let mut shard = ShardConfig {
        reactor: load.reactor,
        idle: load.idle,
        cpu: Some(load.cpu),
        ..Default::default()
    };
    let limits = &mut shard.engine;
    limits.executions_max = limits.executions_max.max(load.executions);
    limits.subscribers_max = limits.subscribers_max.max(load.connections);
    // All executions must have their rings at once, however many they are.
    let rings_bytes = u64::from(load.executions) * 2 * RING_BYTES_MAX as u64;
    shard.rings.bytes_max = shard.rings.bytes_max.max(rings_bytes);
    let config = ServerConfig {
        shards: vec![shard],
        listen,
        // Also those that start the executions, and those that a server reserves.
        connections_max: load.connections + load.connections / 32 + 32,
    };
    let start = Arc::new(StartLine { load, state: Mutex::new((0, None)) });
    let server = Server::start(
        config,
        Arc::new(move |shard| {
            let start = Arc::clone(&start);
            let tools = shard.tools_mut();
            let inserted = tools.insert(spec(), move |arguments, _| prepare(&start, arguments));
            inserted.expect("it is described right");
            let inserted = tools.insert(first::spec(), |_, _| Ok(first::work()));
            inserted.expect("it is described right");
        }),
    );
    heap::trim();
    server.map_err(|error| Failure::Environment(error.to_string()))
}

fn spec() -> ToolSpec {
    ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": {"index": {"type": "integer", "minimum": 0}},
            "required": ["index"],
            "additionalProperties": false,
        }),
        timeouts: Timeouts::NONE,
        subscribers: SubscribeDefaults { policy: Policy::Block, ..Default::default() },
        ..ToolSpec::new(TOOL, "Publishes the planned chunks of a benchmark.")
    }
}

fn prepare(start: &Arc<StartLine>, arguments: &Value) -> Result<(Work, Need), ArgumentError> {
    let load = &start.load;
    let mut arguments = Arguments::new(arguments)?;
    let index = arguments.value("index").and_then(|value| u32::try_from(value.as_u64()?).ok());
    arguments.finish()?;
    let index = index.filter(|index| *index < load.executions);
    let index = index.ok_or_else(|| ArgumentError::new("index", "there are not so many"))?;
    let ring_chunks = if load.executions > 1 { RING_CHUNKS_OF_MANY } else { RING_CHUNKS };
    let ring_bytes = (ring_chunks * load.size_bytes.next_multiple_of(256)).min(RING_BYTES_MAX);
    let need = Need {
        ring_bytes: ring_bytes.max(16 * load.size_bytes) as u32,
        chunk_bytes: load.size_bytes as u32,
        ..Default::default()
    };
    let tool = Paced {
        start: Arc::clone(start),
        plan: Plan::of_execution(load, index),
        payload: payload(load.size_bytes),
        state: ServerState::New,
        polls_only: load.idle == Idle::Spin,
    };
    Ok((Work::Steps(Box::new(tool)), need))
}

/// The place where all executions wait for the last of them.
struct StartLine {
    load: Load,
    /// Number of executions that have started, and the start of the run once all have.
    state: Mutex<(u32, Option<u64>)>,
}

impl StartLine {
    fn origin(&self, is_new: bool) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += u32::from(is_new);
        if state.0 == self.load.executions {
            state.1.get_or_insert_with(|| Plan::origin(now_ns()));
        }
        state.1
    }
}

/// The tool.
struct Paced {
    start: Arc<StartLine>,
    plan: Plan,
    payload: Box<[u8]>,
    state: ServerState,
    polls_only: bool,
}

enum ServerState {
    New,
    AtStart,
    /// The time at which the next chunk is due.
    Running(u64),
    /// Waits until then, so that a server cannot send the last chunk and the end together.
    Lingering(Instant),
}

impl Tool for Paced {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        let now = context.now();
        if let ServerState::New | ServerState::AtStart = self.state {
            let Some(origin_ns) = self.start.origin(matches!(self.state, ServerState::New)) else {
                self.state = ServerState::AtStart;
                return Step::Sleep(now + LOOK);
            };
            self.plan.begin(origin_ns);
            self.go_on(now);
        }
        for _ in 0..BURST_CHUNKS_MAX {
            let due_ns = match self.state {
                ServerState::Running(due_ns) => due_ns,
                ServerState::Lingering(until) if now < until => return Step::Sleep(until),
                _ => return Step::Done,
            };
            if due_ns > now.nanos() {
                let sleeps_until = Instant::from_nanos(due_ns.saturating_sub(POLL_NS));
                let sleeps = !self.polls_only && sleeps_until > now;
                return if sleeps { Step::Sleep(sleeps_until) } else { Step::Again };
            }
            stamp(&mut self.payload, due_ns);
            match context.emit(&self.payload) {
                Ok(_) => self.go_on(now),
                Err(EmitError::Blocked) => return Step::Blocked,
                Err(EmitError::TooLarge { chunk_bytes_max }) => {
                    let text =
                        format!("--size: must be at most {chunk_bytes_max}, the longest chunk");
                    return Step::Failed(ToolError::new(text));
                }
            }
        }
        Step::Again
    }
}

impl Paced {
    fn go_on(&mut self, now: Instant) {
        let over = ServerState::Lingering(now + first::LINGER);
        self.state = self.plan.next(now.nanos()).map_or(over, ServerState::Running);
    }
}

/// Starts all executions of `load`. Returns the request targets to follow each.
///
/// # Errors
/// [`Failure::Failed`].
pub fn start_executions(load: &Load, address: SocketAddr) -> Result<Vec<String>, Failure> {
    (0..load.executions).map(|index| start_execution(load, address, index)).collect()
}

fn start_execution(load: &Load, address: SocketAddr, index: u32) -> Result<String, Failure> {
    let start = json!({"after_subscribers": load.followers(), "deadline_ms": ATTACH_MS_MAX});
    let arguments = json!({"index": index});
    let body = json!({"tool": TOOL, "arguments": arguments, "policy": "block", "start": start});
    let answer = post(address, "/v1/executions", &body.to_string())
        .map_err(|text| Failure::Failed(format!("cannot start an execution: {text}")))?;
    let answer: Option<Value> = serde_json::from_slice(&answer).ok();
    let id = answer.as_ref().and_then(|answer| answer["execution"].as_str());
    let id = id.ok_or_else(|| Failure::Failed("a reply names no execution".into()))?;
    Ok(format!("/v1/executions/{id}/events"))
}

/// Returns the body of a successful reply.
fn post(address: SocketAddr, target: &str, body: &str) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut socket = TcpStream::connect(address).map_err(failed)?;
    let length = body.len();
    let request = format!(
        "POST {target} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).map_err(failed)?;
    let mut reader = ResponseReader::new();
    reader.expect(Method::Post);
    let (mut buffer, mut answer, mut is_success) = ([0; 4_096], Vec::new(), false);
    loop {
        let count = socket.read(&mut buffer).map_err(failed)?;
        let mut bytes = &buffer[..count];
        let mut has_ended = count == 0;
        while let Some(part) = reader.read(&mut bytes).map_err(|error| error.to_string())? {
            match part {
                ResponsePart::Head(head) => is_success = head.status.is_success(),
                ResponsePart::Body(piece) => answer.extend_from_slice(piece),
                ResponsePart::End => {
                    has_ended = true;
                    break;
                }
            }
        }
        if has_ended {
            let text = || String::from_utf8_lossy(&answer).into_owned();
            return if is_success { Ok(answer) } else { Err(text()) };
        }
    }
}
