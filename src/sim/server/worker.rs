//! A worker in the seeded world. It plays the scripts of its calls, part by part, in single
//! requests and in long bodies. It repeats parts, leaves holes, is cut off, and comes back with its
//! memory or without it. It checks everything that it receives.

use serde_json::{Value, json};

use super::exchange::{Exchange, Outcome};
use super::script::Script;
use crate::base::Random;
use crate::reactor::ListenAddress;
use crate::sim::world::SimWorld;
use crate::wire::sse;

/// The tool whose work a worker does.
pub(super) const TOOL: &str = "remote";

/// The number of times that each event happened to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerSeen {
    pub calls: u64,
    pub parts: u64,
    pub repeats: u64,
    pub holes: u64,
    pub cancels: u64,
    pub returns: u64,
}

/// A worker, as in the module's text.
pub(super) struct SimWorker {
    session: String,
    stream: Option<Exchange>,
    decoder: sse::Decoder,
    calls: Vec<WorkerCall>,
    /// The calls that it has forgotten. This many parts of each were sent, and may still arrive.
    forgotten: Vec<(String, u64)>,
    post: Option<Post>,
    /// True if it was connected before.
    was_there: bool,
}

/// A call that it works on.
struct WorkerCall {
    id: String,
    script: Script,
    /// The last part that the server has confirmed.
    taken: u64,
    /// The last part that was sent.
    sent: u64,
    /// True if it has forgotten its work, and reports that.
    gives_up: bool,
}

/// A request under way.
struct Post {
    exchange: Exchange,
    id: String,
    kind: PostKind,
}

#[derive(Clone, Copy)]
enum PostKind {
    /// These parts. From the first one on, those through `known` may have been taken before.
    Parts {
        from: u64,
        until: u64,
        known: u64,
        is_body: bool,
    },
    /// A part that leaves others out.
    Hole,
    GiveUp,
}

impl SimWorker {
    pub fn new(name: u64) -> SimWorker {
        SimWorker {
            session: format!("worker-{name}"),
            stream: None,
            decoder: sse::Decoder::new(),
            calls: Vec::new(),
            forgotten: Vec::new(),
            post: None,
            was_there: false,
        }
    }

    /// The request that makes its tool known.
    pub fn introduction(random: &mut Random) -> String {
        let mut body = json!({"description": "Plays.", "input_schema": {"type": "object"}});
        body["timeouts"] = json!({"first_chunk_ms": null, "inactivity_ms": null});
        body["policy"] = "drop".into();
        if random.chance(1, 3) {
            // One part is one chunk, as the script requires: none is coalesced with others.
            body["coalesce"] = json!({"delay_ms": random.between(1, 50), "max_bytes": 1});
        }
        let body = body.to_string();
        let head = format!("PUT /v1/virtual-tools/{TOOL} HTTP/1.1\r\nHost: localhost\r\n");
        head + &with_body("application/json", &body)
    }

    /// Continues its work.
    pub fn step(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        seen: &mut WorkerSeen,
    ) -> Result<(), String> {
        self.listen(world, address, random, seen)?;
        self.finish_post(world, random, seen)?;
        if self.post.is_none() && !self.calls.is_empty() {
            self.begin_post(world, address, random);
        }
        Ok(())
    }

    fn listen(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        seen: &mut WorkerSeen,
    ) -> Result<(), String> {
        let Some(stream) = &mut self.stream else {
            let session = &self.session;
            let request = format!(
                "GET /v1/tool-calls/stream?tools={TOOL} HTTP/1.1\r\nHost: localhost\r\n\
                 X-Session-ID: {session}\r\n\r\n"
            );
            self.stream = Exchange::begin(world, address, &request);
            seen.returns += u64::from(self.was_there && self.stream.is_some());
            self.decoder = sse::Decoder::new();
            return Ok(());
        };
        stream.step(world, random)?;
        let body = std::mem::take(&mut stream.body);
        let (status, outcome) = (stream.status, stream.outcome);
        match status {
            // The server does not know yet that it was gone, or is full.
            None | Some(409 | 429 | 503) => {}
            Some(200) => {
                self.was_there = true;
                self.hear(&body, seen)?;
            }
            Some(other) => return Err(format!("a worker is told {other}")),
        }
        if outcome.is_some() {
            self.stream.take().expect("it was just there").close(world);
        }
        Ok(())
    }

    fn hear(&mut self, mut input: &[u8], seen: &mut WorkerSeen) -> Result<(), String> {
        let mut events = Vec::new();
        while let Some(message) = self.decoder.read(&mut input).map_err(|e| format!("{e}"))? {
            let data: Value =
                serde_json::from_slice(message.data_bytes()).map_err(|e| format!("{e}"))?;
            events.push((message.name().into_owned(), data));
        }
        for (name, data) in events {
            let id = data["id"].as_str().ok_or("an event without an id")?.to_owned();
            let known = self.calls.iter_mut().find(|call| call.id == id);
            match (name.as_str(), known) {
                ("tool_call", Some(call)) => {
                    let next = data["next_seq"].as_u64().ok_or("no next_seq")?;
                    if next > call.reach() + 1 {
                        return Err(format!("only {} parts were sent: {data}", call.reach()));
                    }
                    // The event may have been under way for long.
                    call.taken = call.taken.max(next - 1);
                }
                ("tool_call", None) => {
                    seen.calls += 1;
                    let next = data["next_seq"].as_u64().ok_or("no next_seq")?;
                    let script = Script::of_arguments(&data["arguments"]).ok_or("no script")?;
                    let (taken, gives_up) = (next - 1, next > 1);
                    let before = self.forgotten.iter().filter(|(known, _)| *known == id);
                    let sent = before.map(|(_, sent)| *sent).max().unwrap_or(0).max(taken);
                    self.calls.push(WorkerCall { id, script, taken, sent, gives_up });
                }
                ("cancel", _) => {
                    seen.cancels += 1;
                    self.calls.retain(|call| call.id != id);
                }
                (other, _) => return Err(format!("a worker is told {other}: {data}")),
            }
        }
        Ok(())
    }

    fn begin_post(&mut self, world: &SimWorld, address: &ListenAddress, random: &mut Random) {
        let at = random.below(self.calls.len() as u64) as usize;
        let call = &mut self.calls[at];
        let last = call.script.chunk_count + 1;
        let kind = match random.below(12) {
            _ if call.gives_up => PostKind::GiveUp,
            0 if call.sent < last => PostKind::Hole,
            choice => {
                // Now and then sends some of them again.
                let back = if choice < 4 { random.below(3) } else { 0 };
                let from = (call.taken + 1).saturating_sub(back).max(1).min(last);
                let is_body = random.chance(1, 2);
                let count = if is_body { random.between(1, 8) } else { 1 };
                let until = (from + count - 1).min(last);
                PostKind::Parts { from, until, known: call.sent, is_body }
            }
        };
        let (media_type, body) = match kind {
            PostKind::GiveUp => {
                ("json", json!({"tool_call_id": call.id, "error": "lost"}).to_string())
            }
            PostKind::Hole => ("json", call.part(call.sent + 2).to_string()),
            PostKind::Parts { from, is_body: false, .. } => ("json", call.part(from).to_string()),
            PostKind::Parts { from, until, .. } => {
                let lines = (from..=until).map(|seq| call.part(seq).to_string() + "\n");
                ("x-ndjson", lines.collect())
            }
        };
        let head = format!(
            "POST /v1/tool-results/stream HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: {}\r\n",
            self.session
        );
        let request = head + &with_body(&format!("application/{media_type}"), &body);
        if let Some(exchange) = Exchange::begin(world, address, &request) {
            if let PostKind::Parts { until, .. } = kind {
                call.sent = call.sent.max(until);
            }
            self.post = Some(Post { exchange, id: call.id.clone(), kind });
        }
    }

    fn finish_post(
        &mut self,
        world: &SimWorld,
        random: &mut Random,
        seen: &mut WorkerSeen,
    ) -> Result<(), String> {
        let Some(post) = &mut self.post else { return Ok(()) };
        post.exchange.step(world, random)?;
        let Some(outcome) = post.exchange.outcome else { return Ok(()) };
        let post = self.post.take().expect("it was just there");
        post.exchange.close(world);
        let text = String::from_utf8_lossy(&post.exchange.body).into_owned();
        let (status, kind) = (post.exchange.status, post.kind);
        let call = self.calls.iter_mut().find(|call| call.id == post.id);
        if outcome == Outcome::Cut {
            // The part has arrived or not, or comes later: it is sent again.
            if let (Some(call), PostKind::Hole) = (call, kind) {
                call.sent += 2;
            }
            return Ok(());
        }
        match (status, kind) {
            // The call has ended otherwise, or belongs to a worker that has gone.
            (Some(410 | 404 | 503), _) => self.forget(&post.id),
            (Some(429), _) => {} // It is sent again.
            (Some(200), PostKind::Parts { from, until, known, is_body }) => {
                let answer: Value = serde_json::from_str(&text).map_err(|e| format!("{e}"))?;
                let count = until - from + 1;
                let repeats = match is_body {
                    true => answer["duplicates"].as_u64().unwrap_or(0),
                    false => u64::from(answer["duplicate"] == true),
                };
                if is_body && answer["parts"] != count {
                    return Err(format!("{count} parts were sent: {text}"));
                }
                if repeats > (known + 1).saturating_sub(from) {
                    return Err(format!("{repeats} of {from}..{until} were there before: {text}"));
                }
                (seen.parts, seen.repeats) = (seen.parts + count - repeats, seen.repeats + repeats);
                let Some(call) = call else { return Ok(()) };
                call.taken = call.taken.max(until);
                if call.taken > call.script.chunk_count {
                    self.forget(&post.id);
                }
            }
            (Some(409), PostKind::Hole) => {
                let answer: Value = serde_json::from_str(&text).map_err(|e| format!("{e}"))?;
                let next = answer["error"]["limit"].as_u64().ok_or("no number")?;
                seen.holes += 1;
                let Some(call) = call else { return Ok(()) };
                if next <= call.taken || next > call.reach() + 1 {
                    return Err(format!("{} taken, {} sent: {text}", call.taken, call.reach()));
                }
                call.taken = next - 1;
            }
            (Some(200), PostKind::GiveUp) => self.forget(&post.id),
            (status, _) => return Err(format!("a part is answered {status:?}: {text}")),
        }
        Ok(())
    }

    /// Stops work on a call. Delayed events may announce it again, and parts that were cut off may
    /// still arrive.
    fn forget(&mut self, id: &str) {
        let is_it = |call: &mut WorkerCall| call.id == id;
        let gone = self.calls.extract_if(.., is_it).map(|call| {
            let reach = call.reach();
            (call.id, reach)
        });
        self.forgotten.extend(gone);
    }

    /// Breaks its connections. With `forgets` it comes back as a new worker.
    pub fn cut(&mut self, world: &SimWorld, random: &mut Random, forgets: bool) -> bool {
        let cut = self.stream.take().map(|mut stream| {
            stream.leave(world, random);
            stream.close(world);
        });
        if forgets {
            let holes = self.post.iter().filter(|post| matches!(post.kind, PostKind::Hole));
            let beyond: Vec<String> = holes.map(|post| post.id.clone()).collect();
            for call in self.calls.drain(..) {
                let sent = call.reach() + if beyond.contains(&call.id) { 2 } else { 0 };
                self.forgotten.push((call.id, sent));
            }
            if let Some(post) = self.post.take() {
                post.exchange.close(world);
            }
        }
        cut.is_some()
    }

    /// Leaves for good.
    pub fn leave(&mut self, world: &SimWorld) {
        if let Some(stream) = self.stream.take() {
            stream.close(world);
        }
        if let Some(post) = self.post.take() {
            post.exchange.close(world);
        }
    }

    /// True if it has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.post.is_none()
    }
}

impl WorkerCall {
    /// The last part that the server may have. A report of lost work counts as a part.
    fn reach(&self) -> u64 {
        self.sent + u64::from(self.gives_up)
    }

    /// Part `seq`: a chunk of its script, or behind the last one its end.
    fn part(&self, seq: u64) -> Value {
        if seq <= self.script.chunk_count {
            let (_, bytes) = self.script.chunk(seq);
            let text = String::from_utf8(bytes).expect("a remote script is text");
            return json!({"tool_call_id": self.id, "seq": seq, "content": text});
        }
        match self.script.fails {
            true => json!({"tool_call_id": self.id, "seq": seq, "error": "as its script says"}),
            false => json!({"tool_call_id": self.id, "seq": seq, "content": "", "complete": true}),
        }
    }
}

fn with_body(media_type: &str, body: &str) -> String {
    format!("Content-Type: {media_type}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
