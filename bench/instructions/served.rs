//! The operations of a server: a chunk from a tool to the socket of a client, and a request that
//! runs a tool. The server and its client are driven by hand, on one thread.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use streamdoor::memory::RingPoolConfig;
use streamdoor::reactor::{Choice, ListenAddress, ListenOptions};
use streamdoor::server::ServerShard;
use streamdoor::shard::{MemoryWatch, ShardConfig};
use streamdoor::stream::Policy;
use streamdoor::tool::{Context, Need, Step, SubscribeDefaults, Tool, ToolSpec, Work};

use super::marks::repetitions;
use super::operations::PAYLOAD;

/// Number of chunks after which the client reads.
const READ_EVERY: u64 = 64;

/// A tool that publishes chunks, one in each step.
struct Chunks {
    left: u64,
}

impl Tool for Chunks {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        if self.left == 0 {
            return Step::Done;
        }
        match context.emit(PAYLOAD) {
            Ok(_) => self.left -= 1,
            Err(_) => return Step::Blocked,
        }
        Step::Again
    }
}

/// A server and its client.
struct Served {
    shard: ServerShard,
    client: TcpStream,
    buffer: Vec<u8>,
}

impl Served {
    fn start() -> Result<Served, String> {
        let config = ShardConfig {
            rings: RingPoolConfig { prealloc_bytes: 0, ..Default::default() },
            reactor: Choice::Mio,
            memory: MemoryWatch::ByHand,
            seed: Some(1),
            retention: std::time::Duration::ZERO,
            ..Default::default()
        };
        let (mut shard, _) = ServerShard::open(config).map_err(|error| error.to_string())?;
        for (name, count) in [("endless", u64::MAX), ("short", 1)] {
            let work = move |_: &serde_json::Value, _| {
                let work = Work::Steps(Box::new(Chunks { left: count }));
                Ok((work, Need::default()))
            };
            // The client of the stream reads nothing, and holds nobody back.
            let subscribers = SubscribeDefaults { policy: Policy::Drop, ..Default::default() };
            let spec = ToolSpec { subscribers, ..ToolSpec::new(name, "Publishes chunks.") };
            shard.tools_mut().insert(spec, work).map_err(|error| error.to_string())?;
        }
        let any: ListenAddress = "127.0.0.1:0".parse().map_err(|error| format!("{error:?}"))?;
        let address = shard.listen(&any, ListenOptions::default());
        let address = address.map_err(|error| error.to_string())?.to_string();
        let client = TcpStream::connect(&address).map_err(|error| error.to_string())?;
        client.set_nonblocking(true).map_err(|error| error.to_string())?;
        Ok(Served { shard, client, buffer: vec![0; 256 << 10] })
    }

    /// Sends a request for this tool, and turns until a reply begins. Returns its beginning.
    fn post(&mut self, tool: &str, query: &str) -> Result<usize, String> {
        let body = format!("{{\"tool\":\"{tool}\",\"arguments\":{{}}}}");
        self.send(&format!("/v1/executions{query}"), "", &body)
    }

    /// Sends a request with this body, and turns until a reply begins. Returns its beginning.
    fn send(&mut self, target: &str, headers: &str, body: &str) -> Result<usize, String> {
        let request = format!(
            "POST {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.send_until_reply(request.as_bytes())
    }

    /// Sends these bytes, and turns until a reply begins. Returns its beginning. The instructions
    /// of this function are counted alone for `mcp-first`.
    #[inline(never)]
    fn send_until_reply(&mut self, request: &[u8]) -> Result<usize, String> {
        self.client.write_all(request).map_err(|error| error.to_string())?;
        loop {
            self.shard.turn();
            match self.read()? {
                0 => {}
                length => return Ok(length),
            }
        }
    }

    /// Reads what the client has received.
    fn read(&mut self) -> Result<usize, String> {
        match self.client.read(&mut self.buffer) {
            Ok(0) => Err("the server has closed the connection".to_owned()),
            Ok(length) => Ok(length),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// One chunk from a tool to the socket of one subscriber of server-sent events.
pub fn chunk(times: u64) -> Result<(), String> {
    let mut served = Served::start()?;
    let length = served.post("endless", "?format=sse")?;
    if !served.buffer[..length].starts_with(b"HTTP/1.1 200 ") {
        return Err(String::from_utf8_lossy(&served.buffer[..length]).into_owned());
    }
    let before = served.shard.counters();
    for number in repetitions(times) {
        served.shard.turn();
        if number % READ_EVERY == 0 {
            served.read()?;
        }
    }
    let now = served.shard.counters();
    let published = now.chunks_published - before.chunks_published;
    match (published, now.sends - before.sends) {
        counts if counts == (times, times) => Ok(()),
        counts => Err(format!("{times} turns have published and sent {counts:?} chunks")),
    }
}

/// One request that runs a tool of one chunk, its reply, and the end of the execution.
pub fn post(times: u64) -> Result<(), String> {
    let mut served = Served::start()?;
    for _ in repetitions(times) {
        let length = served.post("short", "")?;
        if !served.buffer[..length].starts_with(b"HTTP/1.1 201 ") {
            return Err(String::from_utf8_lossy(&served.buffer[..length]).into_owned());
        }
        while served.shard.turn() {}
    }
    Ok(())
}

/// One MCP call of a tool of one chunk in the stateless era, its answer, and the end of the
/// execution.
pub fn mcp_call(times: u64) -> Result<(), String> {
    let mut served = Served::start()?;
    for _ in repetitions(times) {
        let length = served.send("/mcp", MCP_HEADERS, &mcp_body(""))?;
        let reply = String::from_utf8_lossy(&served.buffer[..length]);
        if !reply.starts_with("HTTP/1.1 200 ") || !reply.contains("the quick brown fox") {
            return Err(reply.into_owned());
        }
        while served.shard.turn() {}
    }
    Ok(())
}

/// The same call with a progress token, whose reply begins with a notification of the chunk.
pub fn mcp_first(times: u64) -> Result<(), String> {
    let mut served = Served::start()?;
    for _ in repetitions(times) {
        let body = mcp_body(r#""progressToken":7,"#);
        let length = served.send("/mcp", MCP_HEADERS, &body)?;
        let reply = String::from_utf8_lossy(&served.buffer[..length]);
        if !reply.starts_with("HTTP/1.1 200 ") || !reply.contains("notifications/progress") {
            return Err(reply.into_owned());
        }
        while served.shard.turn() {}
        served.read()?; // The answer.
    }
    Ok(())
}

const MCP_HEADERS: &str = "Accept: application/json, text/event-stream\r\n\
    MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: short\r\n";

/// A call whose `_meta` begins with these members.
fn mcp_body(meta: &str) -> String {
    const CALL: &str = concat!(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"short","#,
        r#""arguments":{"count":3,"text":"a word"},"_meta":{"#,
    );
    const CLIENT: &str = concat!(
        r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
        r#""io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"#,
        r#""io.modelcontextprotocol/clientCapabilities":{}}}}"#,
    );
    format!("{CALL}{meta}{CLIENT}")
}
