//! Executions of a virtual tool, and the record of them: a client that opens them, and workers that
//! answer them part by part. The content of a part follows from the call and the part's number.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use streamdoor::base::Random;

use crate::http::{Client, Lines, between, number};
use crate::records::digits;

const TOOL: &str = "parts";
/// Number of executions that run at a time, at most.
const RUNNING_MAX: usize = 12;
const PARTS_MAX: u64 = 24;
/// Bytes of the longest parts.
const LONG_BYTES: usize = 20_000;
/// The pause of a client that has nothing to do.
const PAUSE: Duration = Duration::from_millis(1);

/// An execution.
#[derive(Clone, Debug, Default)]
pub struct Call {
    pub id: String,
    /// True if its opening was answered. A worker may be told of it before.
    pub is_opened: bool,
    /// True if subscribers are given only chunks that the disk has.
    pub is_late: bool,
    /// Bytes of the parts that were sent, and of those that were answered.
    pub sent: usize,
    pub acked: usize,
    /// True if the last part was answered.
    pub is_end_acked: bool,
    /// The most bytes that a subscriber was given.
    pub given: usize,
    /// The state that a subscriber was told at the end.
    pub told: Option<String>,
    /// The state and the number of bytes that were found after a crash.
    pub found: Option<(String, usize)>,
}

/// The executions since the journal was made.
pub struct Calls {
    all: Mutex<Vec<Call>>,
    /// True if what is answered was synced to the disk before.
    pub are_synced: bool,
}

impl Calls {
    pub fn new(are_synced: bool) -> Calls {
        Calls { all: Mutex::default(), are_synced }
    }

    pub fn with<T>(&self, use_calls: impl FnOnce(&mut Vec<Call>) -> T) -> T {
        use_calls(&mut self.all.lock().expect("nobody panics with it"))
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Call)) {
        self.with(|calls| {
            let call = calls.iter_mut().rev().find(|call| call.id == id);
            let call = match call {
                Some(call) => call,
                None => {
                    calls.push(Call { id: id.to_owned(), ..Call::default() });
                    calls.last_mut().expect("it was just added")
                }
            };
            change(call);
        });
    }

    /// Notes the bytes that a subscriber was given.
    pub fn give(&self, id: &str, bytes: usize) {
        self.change(id, |call| call.given = call.given.max(bytes));
    }

    /// Notes the end that a subscriber was told. Every subscriber is told the same.
    pub fn tell_end(&self, id: &str, state: &str) {
        self.change(id, |call| {
            let told = call.told.get_or_insert_with(|| state.to_owned());
            assert_eq!(told, state, "{id} has ended twice");
        });
    }
}

fn of_call(id: &str, seq: u64) -> Random {
    let bytes = id.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(257) + u64::from(byte));
    Random::new(bytes.wrapping_add(seq))
}

/// Number of parts of a call.
pub fn part_count(id: &str) -> u64 {
    of_call(id, 0).between(1, PARTS_MAX)
}

/// True if the worker ends this call with an error.
pub fn is_error(id: &str) -> bool {
    of_call(id, 0).next_u64().is_multiple_of(5)
}

/// The content of a part.
pub fn content(id: &str, seq: u64) -> String {
    let mut random = of_call(id, seq);
    let bytes = match random.below(16) {
        0 => LONG_BYTES,
        _ => random.between(1, 400) as usize,
    };
    String::from_utf8(digits(bytes, &mut random)).expect("digits")
}

/// The content of all parts before this one.
pub fn content_before(id: &str, seq: u64) -> String {
    (1..seq).map(|seq| content(id, seq)).collect()
}

/// The content of all parts.
pub fn whole(id: &str) -> String {
    content_before(id, part_count(id) + 1)
}

const JSON: &str = "Content-Type: application/json\r\n";

/// Registers the tool. False if the server does not answer any more.
pub fn register(address: &str) -> bool {
    let body = b"{\"description\": \"A test's.\", \"input_schema\": {\"type\": \"object\"}}";
    let path = format!("/v1/virtual-tools/{TOOL}");
    let Ok(reply) = Client::new(address).ask("PUT", &path, JSON, body) else { return false };
    assert!(reply.status < 300, "{} {}", reply.status, reply.text());
    true
}

/// Opens executions until `is_over`, or until a request gets no answer.
pub fn open(address: &str, mut random: Random, calls: &Calls, is_over: &AtomicBool) {
    let mut client = Client::new(address);
    while !is_over.load(Ordering::Relaxed) {
        let is_running = |call: &&Call| !call.is_end_acked && call.found.is_none();
        if calls.with(|calls| calls.iter().filter(is_running).count()) >= RUNNING_MAX {
            std::thread::sleep(PAUSE);
            continue;
        }
        let is_late = random.chance(1, 2);
        let deliver = if is_late { ", \"deliver\": \"when_durable\"" } else { "" };
        let body = format!("{{\"tool\": \"{TOOL}\"{deliver}}}");
        let Ok(reply) = client.ask("POST", "/v1/executions", JSON, body.as_bytes()) else { return };
        let text = reply.text();
        match reply.status {
            201 => {
                let id = between(&text, "\"execution\":\"", '"').expect("its id");
                calls.change(id, |call| (call.is_opened, call.is_late) = (true, is_late));
            }
            429 => std::thread::sleep(PAUSE),
            503 | 507 => return, // The disk has failed.
            status => panic!("{status} {text}"),
        }
    }
}

/// Answers calls as the worker `session` until `is_over`, or until a request gets no answer.
pub fn work(address: &str, session: &str, calls: &Calls, is_over: &AtomicBool) {
    let session = format!("X-Session-ID: {session}\r\n");
    let Ok(lines) = Lines::open(address, "/v1/tool-calls/stream", &session) else { return };
    assert_eq!(lines.status, 200);
    let headers = format!("{session}{JSON}");
    let mut client = Client::new(address);
    let mut event = String::new();
    for line in lines.map_while(Result::ok) {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        if let Some(name) = line.strip_prefix("event: ") {
            event = name.to_owned();
        } else if event == "tool_call"
            && let Some(id) = between(&line, "\"id\":\"", '"')
        {
            let first = number(&line, "\"next_seq\":").expect("the next part");
            if answer(&mut client, &headers, (id, first), calls, is_over).is_none() {
                return;
            }
        }
    }
}

/// Sends the parts of a call. `None` if one gets no answer.
fn answer(
    client: &mut Client,
    headers: &str,
    (id, first): (&str, u64),
    calls: &Calls,
    is_over: &AtomicBool,
) -> Option<()> {
    let last = part_count(id) + 1;
    let mut bytes = content_before(id, first).len();
    for seq in first..=last {
        let part = match (seq == last, is_error(id)) {
            (false, _) => format!("\"content\": \"{}\"", content(id, seq)),
            (true, false) => "\"complete\": true".to_owned(),
            (true, true) => "\"error\": \"as planned\"".to_owned(),
        };
        let body = format!("{{\"tool_call_id\": \"{id}\", \"seq\": {seq}, {part}}}");
        bytes += if seq == last { 0 } else { content(id, seq).len() };
        calls.change(id, |call| call.sent = call.sent.max(bytes));
        loop {
            if is_over.load(Ordering::Relaxed) {
                return None;
            }
            let path = "/v1/tool-results/stream";
            let reply = client.ask("POST", path, headers, body.as_bytes()).ok()?;
            match reply.status {
                200 => break,
                429 => std::thread::sleep(PAUSE),
                410 => return Some(()), // The disk has failed, and the call with it.
                500.. => return None,
                status => panic!("{id}, part {seq}: {status} {}", reply.text()),
            }
        }
        calls.change(id, |call| match seq == last {
            true => call.is_end_acked = true,
            false => call.acked = bytes,
        });
    }
    Some(())
}
