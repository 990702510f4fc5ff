//! Any bytes as lines to a whole server in the simulated world. All output is messages. Each
//! request has one reply, and nothing else has any. No notification of a call follows its reply.
//!
//! A line that begins with `!` is not sent. It lets a multiple of ten milliseconds pass.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Map, Value};
use streamdoor::engine::EngineLimits;
use streamdoor::mcp::chunks;
use streamdoor::memory::RingPoolConfig;
use streamdoor::reactor::{IoError, SocketLimits};
use streamdoor::server::{LineOptions, ServerShard};
use streamdoor::shard::ShardConfig;
use streamdoor::sim::network::SimClient;
use streamdoor::sim::reactor::SimReactor;
use streamdoor::sim::world::{SimFaults, SimWorld};
use streamdoor::wire::jsonrpc::{self, Id, RpcMessage};

/// The final wait, longer than any read of a door waits.
const LAST_PASS: Duration = Duration::from_secs(8);
/// The work of a tool that must be done by then.
const WORK_MS_MAX: u64 = 2_000;
/// Number of calls that find room, whatever they need.
const CALLS_MAX: usize = 2;
/// The methods that may wait for something.
const WAITING: [&str; 3] = ["tools/call", "tasks/result", "subscriptions/listen"];
/// Linux's `EAGAIN`: no data is available yet.
const AGAIN: IoError = IoError(11);

/// Checks the output for these bytes.
pub fn check(data: &[u8]) {
    let settle = Duration::from_millis(25 * (data.len() as u64 % 2));
    let mut peer = Peer::new(settle);
    for line in data.split_inclusive(|&byte| byte == b'\n') {
        match line.split_first() {
            Some((b'!', count)) => {
                let count: u64 = String::from_utf8_lossy(count).trim().parse().unwrap_or(1);
                peer.pass(Duration::from_millis(10 * (count % 100)));
            }
            _ => peer.send(line),
        }
        peer.listen();
    }
    peer.check_immediate();
    peer.pass(LAST_PASS);
    peer.listen();
    peer.check_all();
    peer.shard.audit();
    peer.world.client_finish(peer.client);
    peer.pass(Duration::from_millis(100));
    peer.listen();
    peer.shard.audit();
    assert!(peer.is_over, "the end of the input is the end of the output");
}

/// The requests with one id.
#[derive(Default)]
struct Asked {
    count: usize,
    spelled: HashSet<String>,
    /// Number of requests that need not wait; `soon_count` includes those that wait only shortly.
    immediate_count: usize,
    soon_count: usize,
    is_cancelled: bool,
    answered_count: usize,
}

/// A client that sends lines, and checks all output.
struct Peer {
    world: SimWorld,
    shard: ServerShard<SimReactor>,
    client: SimClient,
    heard: Vec<u8>,
    is_over: bool,
    asked: HashMap<Id, Asked>,
    call_count: usize,
    /// Number of lines whose id is unknown, and of the errors received for them.
    nameless_count: usize,
    nameless_answered: usize,
    /// The requests of each token, and the last progress reported for it.
    tokens: HashMap<Id, (Vec<Id>, f64)>,
}

impl Peer {
    fn new(settle: Duration) -> Peer {
        let world = SimWorld::new(1, SimFaults::NONE);
        let config = ShardConfig {
            engine: EngineLimits {
                executions_max: 8,
                subscribers_max: 32,
                ..EngineLimits::default()
            },
            sockets: Some(SocketLimits { connections_max: 2, ..SocketLimits::default() }),
            rings: RingPoolConfig {
                prealloc_bytes: 0,
                bytes_max: 4 << 20,
                ..RingPoolConfig::default()
            },
            seed: Some(1),
            ..ShardConfig::default()
        };
        let mut shard = ServerShard::over(SimReactor::new(&world), config)
            .expect("nothing of this world refuses");
        let (client, socket) = world.pair();
        let options = LineOptions { settle, ..LineOptions::default() };
        shard.open_lines(socket, options).expect("there is a place");
        Peer {
            world,
            shard,
            client,
            heard: Vec::new(),
            is_over: false,
            asked: HashMap::new(),
            call_count: 0,
            nameless_count: 0,
            nameless_answered: 0,
            tokens: HashMap::new(),
        }
    }

    /// Lets time pass.
    fn pass(&mut self, duration: Duration) {
        let until = self.world.now() + duration;
        while self.shard.turn() {}
        while self.world.now() < until {
            let due = self.shard.next_deadline().filter(|&due| due <= until).unwrap_or(until);
            self.world.set_horizon(Some(due));
            self.shard.park(Some(due));
            self.world.set_horizon(None);
            while self.shard.turn() {}
        }
    }

    /// Sends a line in two pieces.
    fn send(&mut self, line: &[u8]) {
        let (first, second) = line.split_at(line.len() / 2);
        for piece in [first, second] {
            assert_eq!(self.world.client_send(self.client, piece), Ok(piece.len()));
            while self.shard.turn() {}
        }
        if line.last() != Some(&b'\n') {
            assert_eq!(self.world.client_send(self.client, b"\n"), Ok(1));
            while self.shard.turn() {}
        }
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if line.trim_ascii().is_empty() {
            return;
        }
        match jsonrpc::parse(line.strip_suffix(b"\r").unwrap_or(line)) {
            Ok(RpcMessage::Request { id, method, params }) => {
                self.note(id, &method, &params.into_map());
            }
            Ok(RpcMessage::Notification { method, params }) => {
                if method == "notifications/cancelled"
                    && let Some(id) = params.get("requestId").and_then(Id::of_value)
                    && let Some(asked) = self.asked.get_mut(&id)
                {
                    asked.is_cancelled = true;
                }
            }
            Ok(RpcMessage::Response { .. }) => {}
            Err(malformed) if malformed.is_response => {}
            Err(malformed) => match malformed.id {
                Some(id) => {
                    let asked = self.asked.entry(id.clone()).or_default();
                    asked.count += 1;
                    asked.immediate_count += 1;
                    asked.soon_count += 1;
                    asked.spelled.insert(id.to_string());
                }
                None => self.nameless_count += 1,
            },
        }
    }

    /// Records a request that waits for its reply.
    fn note(&mut self, id: Id, method: &str, params: &Map<String, Value>) {
        let token = params.get("_meta").and_then(|meta| Id::of_value(meta.get("progressToken")?));
        if let Some(token) = token {
            self.tokens.entry(token).or_default().0.push(id.clone());
        }
        let is_call = method == "tools/call";
        self.call_count += usize::from(is_call);
        let is_immediate = !WAITING.contains(&method);
        let asked = self.asked.entry(id.clone()).or_default();
        asked.count += 1;
        asked.immediate_count += usize::from(is_immediate);
        asked.soon_count += usize::from(is_immediate || (is_call && is_short(params)));
        asked.spelled.insert(id.to_string());
    }

    /// Receives all available output.
    fn listen(&mut self) {
        let mut buffer = [0; 4_096];
        loop {
            match self.world.client_receive(self.client, &mut buffer) {
                Ok(0) => break self.is_over = true,
                Ok(count) => self.heard.extend_from_slice(&buffer[..count]),
                Err(AGAIN) => break,
                Err(error) => panic!("the connection is broken: {error:?}"),
            }
            while self.shard.turn() {}
        }
        while let Some(end) = self.heard.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            let message = jsonrpc::parse(&line[..end]).unwrap_or_else(|error| {
                panic!("{error}: {}", line.escape_ascii());
            });
            self.hear(message);
        }
        assert!(!self.is_over || self.heard.is_empty(), "its last line is cut off");
    }

    fn hear(&mut self, message: RpcMessage) {
        match message {
            RpcMessage::Response { id: Some(id), .. } => {
                let asked = self.asked.get_mut(&id);
                let asked = asked.unwrap_or_else(|| panic!("nobody has asked {id}"));
                assert!(asked.spelled.contains(id.as_json()), "{id} is spelled otherwise");
                asked.answered_count += 1;
                assert!(asked.answered_count <= asked.count, "{id} is answered twice");
            }
            RpcMessage::Response { id: None, .. } => {
                self.nameless_answered += 1;
                assert!(self.nameless_answered <= self.nameless_count, "an error for nobody");
            }
            RpcMessage::Notification { method, params } if method == "notifications/progress" => {
                self.hear_progress(&params.into_map());
            }
            RpcMessage::Notification { .. } => {}
            RpcMessage::Request { method, .. } => panic!("no tool asks for {method}"),
        }
    }

    fn hear_progress(&mut self, params: &Map<String, Value>) {
        let token = params.get("progressToken").and_then(Id::of_value).expect("it has a token");
        let progress = params.get("progress").and_then(Value::as_f64).expect("it has a number");
        let known = self.tokens.get_mut(&token);
        let (ids, told) = known.unwrap_or_else(|| panic!("{token} is nobody's"));
        let params = Value::Object(params.clone());
        let chunks = chunks::read(&params).expect("its chunks are those of its message");
        assert!(chunks.is_sorted_by(|one, next| one.seq < next.seq), "{params:?}");
        let [id] = &ids[..] else { return }; // The request is ambiguous.
        assert!(progress > *told || *told == 0.0, "{progress} behind {told}");
        *told = progress;
        let asked = &self.asked[id];
        assert!(asked.count > asked.answered_count, "{id} was answered before");
    }

    /// Asserts that requests that need not wait were answered.
    fn check_immediate(&self) {
        for (id, asked) in &self.asked {
            let least = if asked.is_cancelled { 0 } else { asked.immediate_count };
            assert!(asked.answered_count >= least, "{id} is not answered at once");
        }
        assert_eq!(self.nameless_answered, self.nameless_count);
    }

    /// Asserts that no request is open that must be done by now.
    fn check_all(&self) {
        for (id, asked) in &self.asked {
            let has_room = self.call_count <= CALLS_MAX && !asked.is_cancelled;
            let least = if has_room { asked.soon_count } else { 0 };
            assert!(asked.answered_count >= least, "{id} is not answered");
        }
    }
}

/// Returns true if the parameters are those of a call that is done soon.
fn is_short(params: &Map<String, Value>) -> bool {
    let arguments = params.get("arguments");
    let number = |name: &str, default: u64| {
        let value = arguments.and_then(|arguments| arguments.get(name));
        value.map_or(Some(default), Value::as_u64)
    };
    let is_slow = params.get("name").is_some_and(|name| name == "slow_data_processor");
    match (number("chunks", 10), number("delay_ms", 200)) {
        (Some(chunks), Some(delay_ms)) if is_slow => chunks.saturating_mul(delay_ms) <= WORK_MS_MAX,
        _ => false,
    }
}
