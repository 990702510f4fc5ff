//! An execution whose bytes are known, and clients that follow it and check each of them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::{Instant, Random};
use streamdoor::reactor::Clock;

use crate::campaign::is_over;
use crate::{served, world};

/// Time for which an execution may not be found: its entry waits for servers that are away.
const FOUND_WITHIN: Duration = Duration::from_secs(60);

/// A way to follow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// The pause before the first request.
    pub late: Duration,
    /// The pause behind each part of what is read.
    pub slow: Duration,
    /// The policy; `None`: that of the tool.
    pub policy: Option<&'static str>,
}

/// An execution of `slow_data_processor`.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub chunks: u64,
    pub delay_ms: u64,
    pub chunk_bytes: usize,
    /// True if nobody is given what the log does not have.
    pub is_replicated: bool,
}

/// Everything that a follower was given.
#[derive(Debug, Default)]
pub struct Transcript {
    /// Number of chunks that were right.
    pub chunks: u64,
    pub gaps: Vec<Value>,
    pub ends: Vec<Value>,
    /// Everything that must not be.
    pub wrong: Vec<String>,
    /// The time at which the stream was over.
    pub over_at: Option<Instant>,
    /// True if the server did not find the execution for the whole time.
    pub is_unknown: bool,
}

impl Load {
    /// A load that takes some seconds.
    pub fn drawn(random: &mut Random) -> Load {
        Load {
            chunks: random.between(100, 1_500),
            delay_ms: random.below(3),
            chunk_bytes: random.between(50, 2_000) as usize,
            is_replicated: false,
        }
    }

    /// Starts the execution. Returns its id.
    pub fn start(&self, address: &str) -> io::Result<String> {
        let Load { chunks, delay_ms, chunk_bytes, is_replicated } = self;
        let arguments =
            json!({ "chunks": chunks, "delay_ms": delay_ms, "chunk_size": chunk_bytes });
        let mut call = json!({ "tool": "slow_data_processor", "arguments": arguments });
        if *is_replicated {
            call["durability"] = "replicated".into();
        }
        let request = "POST /v1/executions";
        let (status, body) = ask(address, request, &call.to_string(), Duration::ZERO)?;
        let text = String::from_utf8_lossy(&body).into_owned();
        let created: Option<Value> = serde_json::from_str(&text).ok().filter(|_| status == 201);
        let id = created.and_then(|created| Some(created["execution"].as_str()?.to_owned()));
        id.ok_or_else(|| io::Error::other(format!("{status} {text}")))
    }

    fn chunk(&self, seq: u64) -> String {
        let mut bytes = vec![b'.'; self.chunk_bytes];
        let text = format!("chunk {seq} of {} ", self.chunks);
        let length = text.len().min(bytes.len());
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        bytes[self.chunk_bytes - 1] = b'\n';
        String::from_utf8(bytes).expect("it is text")
    }

    /// Follows the execution to its end.
    pub fn follow(&self, address: &str, id: &str, manner: Manner) -> Transcript {
        std::thread::sleep(manner.late);
        let policy = manner.policy.map(|policy| format!("&policy={policy}")).unwrap_or_default();
        let request = format!("GET /v1/executions/{id}/events?format=ndjson{policy}");
        let begun = Clock::now();
        loop {
            let answer = ask(address, &request, "", manner.slow);
            let (status, body) = match answer {
                Ok(answer) => answer,
                Err(error) => return Transcript::of_error(&format!("{request}: {error}")),
            };
            match status {
                200 => {
                    let over_at = Some(Clock::now());
                    return Transcript { over_at, ..self.read(&String::from_utf8_lossy(&body)) };
                }
                404 | 503 if Clock::now().since(begun) < FOUND_WITHIN => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                404 => return Transcript { is_unknown: true, ..Transcript::default() },
                _ => {
                    let text = String::from_utf8_lossy(&body).into_owned();
                    return Transcript::of_error(&format!("{request}: {status} {text}"));
                }
            }
        }
    }

    /// Follows the execution until its end, or until the connection is cut.
    pub fn watch(&self, address: &str, id: &str) -> Transcript {
        let request = format!("GET /v1/executions/{id}/events?format=ndjson&policy=replay");
        let mut answer = Vec::new();
        if let Ok(mut stream) = TcpStream::connect(address) {
            let asked = stream.write_all(world::request_head(&request, "", "").as_bytes());
            let _ = asked.and_then(|()| stream.read_to_end(&mut answer)); // It is cut.
        }
        let text = String::from_utf8_lossy(&answer);
        let is_whole = |line: &&str| line.starts_with('{') && line.ends_with('}');
        let events: Vec<&str> = text.lines().filter(is_whole).collect();
        self.read(&events.join("\n"))
    }

    /// Checks the events of a stream.
    pub fn read(&self, body: &str) -> Transcript {
        let mut seen = Transcript::default();
        let mut next = 1;
        for line in body.lines().filter(|line| !line.is_empty()) {
            let Ok(event) = serde_json::from_str::<Value>(line) else {
                seen.wrong.push(format!("no event: {line:.200}"));
                continue;
            };
            if !seen.ends.is_empty() && event["event"] != "end" {
                seen.wrong.push(format!("behind the end: {line:.200}"));
            }
            match event["event"].as_str().unwrap_or_default() {
                "chunk" if event["seq"] == next && event["data"] == self.chunk(next) => {
                    seen.chunks += 1;
                    next += 1;
                }
                "chunk" => {
                    seen.wrong.push(format!("{line:.200} where {next} is next"));
                    next = event["seq"].as_u64().unwrap_or(next) + 1;
                }
                "gap" => {
                    next = event["to_seq"].as_u64().map_or(next, |to| to + 1);
                    seen.gaps.push(event);
                }
                "end" => seen.ends.push(event),
                _ => {}
            }
        }
        if let Some(end) = seen.ends.first() {
            let has_all = end["execution_chunks"] == seen.chunks && seen.gaps.is_empty();
            let is_short = end["state"] == "completed" && seen.chunks != self.chunks;
            if !has_all || is_short {
                seen.wrong.push(format!("{} of {} chunks: {end}", seen.chunks, self.chunks));
            }
        }
        seen
    }
}

impl Manner {
    /// True for a client that begins at once and reads as fast as it can.
    pub fn is_prompt(&self) -> bool {
        self.late.is_zero() && self.slow.is_zero()
    }
}

impl Transcript {
    fn of_error(text: &str) -> Transcript {
        Transcript { wrong: vec![text.to_owned()], ..Transcript::default() }
    }

    /// Everything that followers of one execution share: the chunks, the state and the error of the
    /// end.
    pub fn summary(&self) -> (u64, Value, Value) {
        let end = self.ends.first().cloned().unwrap_or_default();
        (self.chunks, end["state"].clone(), end["error"].clone())
    }
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// Asks on a connection of its own. Waits for `slow` behind each part of the answer.
fn ask(address: &str, request: &str, body: &str, slow: Duration) -> io::Result<(u16, Vec<u8>)> {
    let time = Some(Duration::from_secs(30)); // The server says something more often than that.
    let mut stream: Box<dyn Stream> = match address.strip_prefix("unix:") {
        Some(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(time)?;
            Box::new(stream)
        }
        None => {
            let stream = match slow.is_zero() {
                true => TcpStream::connect(address)?,
                false => served::connect_with_small_buffer(address),
            };
            stream.set_read_timeout(time)?;
            Box::new(stream)
        }
    };
    let headers = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    stream
        .write_all(format!("{}{body}", world::request_head(request, headers, body)).as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), [0; 16 << 10]);
    let begun = Clock::now();
    loop {
        let count = match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) => return Err(error),
        };
        answer.extend_from_slice(&part[..count]);
        std::thread::sleep(slow);
        if is_over(begun) {
            return Err(io::Error::other("it takes too long"));
        }
    }
    world::response_of(&answer)
        .map(|response| (response.status, response.body))
        .ok_or_else(|| io::Error::other("the answer is cut"))
}
