//! MCP clients in the seeded world, of both eras. They call tools, receive progress, lose
//! connections, come back, cancel, and leave without a message. They check everything that they
//! receive.
//!
//! They hold the server to this: a call has one response, the last message on its stream. Progress
//! rises and is for its token alone. The chunks that it carries are the tool's, none twice and none
//! left out, also over several connections. The result is what the tool has published.

use serde_json::{Value, json};

use super::exchange::{Exchange, Outcome};
use super::script::Script;
use crate::base::Random;
use crate::limits;
use crate::mcp::{META_CHUNKS, chunks};
use crate::reactor::ListenAddress;
use crate::sim::world::SimWorld;
use crate::stream::{Kind, Totals};
use crate::wire::sse;

/// The number of times that each event happened to these clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct McpClientSeen {
    pub sessions: u64,
    pub calls: u64,
    pub results: u64,
    pub streams: u64,
    pub chunks: u64,
    /// Chunks that are only in the message of their notification.
    pub cut_chunks: u64,
    pub progress: u64,
    pub gaps: u64,
    pub messages: u64,
    pub resumed: u64,
    pub cancelled: u64,
    pub lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Era {
    Handshake,
    Stateless,
}

impl Era {
    fn version(self) -> &'static str {
        match self {
            Era::Handshake => "2025-11-25",
            Era::Stateless => "2026-07-28",
        }
    }
}

/// An MCP client, as in the module's text.
pub(super) struct SimMcpClient {
    era: Era,
    session: Option<String>,
    /// True if the server has answered 200 to `initialize`, and 202 to the notification after it.
    is_ready: bool,
    opening: Option<Exchange>,
    id_next: u64,
    calls: Vec<McpCall>,
    /// Notifications under way.
    told: Vec<Exchange>,
}

/// A call whose response is still to come.
struct McpCall {
    era: Era,
    id: u64,
    script: Script,
    has_token: bool,
    exchange: Option<Exchange>,
    decoder: sse::Decoder,
    /// A response of one message, as far as it came.
    document: Vec<u8>,
    reported_seq: u64,
    progress: Option<f64>,
    is_cancelled: bool,
    is_resumed: bool,
}

const CALLS_MAX: usize = 3;

impl SimMcpClient {
    pub fn new(random: &mut Random) -> SimMcpClient {
        SimMcpClient {
            era: if random.chance(1, 2) { Era::Handshake } else { Era::Stateless },
            session: None,
            is_ready: false,
            opening: None,
            id_next: 0,
            calls: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Continues its work; with `begins` it may begin a call or a session.
    pub fn step(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        begins: bool,
        seen: &mut McpClientSeen,
    ) -> Result<(), String> {
        for exchange in &mut self.told {
            exchange.step(world, random)?;
        }
        self.finish_told(world)?;
        if self.era == Era::Handshake && !self.is_ready {
            if begins || self.opening.is_some() {
                self.open_session(world, address, random, seen)?;
            }
            return Ok(());
        }
        if begins && self.calls.len() < CALLS_MAX && random.chance(1, 60) {
            self.begin_call(world, address, random, seen);
        }
        for at in (0..self.calls.len()).rev() {
            let is_over = self
                .step_call(at, world, address, random, seen)
                .map_err(|text| format!("call {:?}: {text}", self.calls[at].describe()))?;
            if is_over && let Some(exchange) = self.calls.swap_remove(at).exchange {
                exchange.close(world);
            }
        }
        Ok(())
    }

    fn open_session(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        seen: &mut McpClientSeen,
    ) -> Result<(), String> {
        let Some(exchange) = &mut self.opening else {
            let message = match &self.session {
                None => json!({
                    "jsonrpc": "2.0", "id": self.draw_id(), "method": "initialize",
                    "params": {
                        "protocolVersion": self.era.version(),
                        "capabilities": {},
                        "clientInfo": {"name": "sim", "version": "0"},
                    },
                }),
                Some(_) => json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            };
            self.opening = Exchange::begin(world, address, &self.post(&message));
            return Ok(());
        };
        exchange.step(world, random)?;
        let Some(outcome) = exchange.outcome else { return Ok(()) };
        let exchange = self.opening.take().expect("it was just there");
        exchange.close(world);
        match (exchange.status, &self.session) {
            _ if outcome == Outcome::Cut => {}
            (Some(200), None) => {
                self.session = Some(exchange.session.ok_or("a session has a name")?);
                seen.sessions += 1;
            }
            (Some(202), Some(_)) => self.is_ready = true,
            (Some(404), Some(_)) => self.session = None, // It was evicted.
            (Some(503 | 429), _) => {}
            (status, _) => return Err(format!("a session begins with {status:?}")),
        }
        Ok(())
    }

    fn draw_id(&mut self) -> u64 {
        let id = self.id_next;
        self.id_next += 1;
        id
    }

    fn head(&self) -> String {
        let session = self.session.as_ref();
        session.map_or_else(String::new, |session| {
            let version = self.era.version();
            format!("Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {version}\r\n")
        })
    }

    fn post(&self, message: &Value) -> String {
        let body = message.to_string();
        let mut head = self.head();
        if self.era == Era::Stateless {
            head += &format!("MCP-Protocol-Version: {}\r\n", self.era.version());
            let method = message["method"].as_str().unwrap_or_default();
            head += &format!("Mcp-Method: {method}\r\n");
            if let Some(name) = message["params"]["name"].as_str() {
                head += &format!("Mcp-Name: {name}\r\n");
            }
        }
        format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{head}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    fn begin_call(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        seen: &mut McpClientSeen,
    ) {
        let (id, script) = (self.draw_id(), Script::draw(random, false));
        let has_token = random.chance(3, 4);
        let mut params = json!({"name": "script", "arguments": script.arguments()});
        if has_token {
            params["_meta"]["progressToken"] = id.into();
        }
        if wants_full_chunks(&script) {
            params["_meta"][META_CHUNKS] = "full".into();
        }
        if self.era == Era::Stateless {
            let meta = &mut params["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = self.era.version().into();
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        if let Some(exchange) = Exchange::begin(world, address, &self.post(&message)) {
            seen.calls += 1;
            self.calls.push(McpCall {
                era: self.era,
                id,
                script,
                has_token,
                exchange: Some(exchange),
                decoder: sse::Decoder::new(),
                document: Vec::new(),
                reported_seq: 0,
                progress: None,
                is_cancelled: false,
                is_resumed: false,
            });
        }
    }

    /// Continues a call. Returns true if nothing more comes of it.
    fn step_call(
        &mut self,
        at: usize,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        seen: &mut McpClientSeen,
    ) -> Result<bool, String> {
        let head = self.head();
        let call = &mut self.calls[at];
        let Some(exchange) = &mut call.exchange else {
            // Only a client that has received an event id can resume.
            let last_id = call.decoder.last_id().into_owned();
            if last_id.is_empty() || self.era == Era::Stateless {
                seen.lost += 1;
                return Ok(true);
            }
            let request = format!(
                "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\
                 {head}Last-Event-ID: {last_id}\r\n\r\n"
            );
            call.exchange = Exchange::begin(world, address, &request);
            call.decoder.reconnect();
            call.is_resumed = true;
            seen.resumed += 1;
            return Ok(false);
        };
        exchange.step(world, random)?;
        let body = std::mem::take(&mut exchange.body);
        let (status, outcome, is_stream) = (exchange.status, exchange.outcome, exchange.is_stream);
        match status {
            None => {}
            Some(200) if is_stream => {
                let is_answered = call.hear(&body, seen)?;
                if is_answered {
                    return Ok(true);
                }
            }
            Some(200) => call.document.extend_from_slice(&body),
            // A full server; an evicted session; an earlier stream that is not known to be gone.
            Some(503 | 429 | 404 | 409) => {}
            Some(400) if call.is_resumed => {} // The stream is not known any more.
            Some(other) => {
                let text = String::from_utf8_lossy(&body).into_owned();
                return Err(format!("it is answered {other}: {text}"));
            }
        }
        let Some(outcome) = outcome else { return Ok(false) };
        call.exchange.take().expect("it was just there").close(world);
        match (status, outcome) {
            (Some(404), Outcome::Complete) if self.era == Era::Handshake => {
                (self.session, self.is_ready) = (None, false);
                Ok(true)
            }
            (Some(200), Outcome::Complete) if !is_stream => {
                let message: Value = serde_json::from_slice(&call.document)
                    .map_err(|error| format!("{error}: {:?}", call.document))?;
                call.take(&message, seen)?;
                Ok(true)
            }
            // A stream that ends without a response was cancelled, or is requested again.
            (Some(200), Outcome::Complete) if call.is_cancelled => Ok(true),
            (Some(200), Outcome::Complete) => match self.era {
                Era::Handshake => Ok(false),
                Era::Stateless => Err("it ends without a response".to_owned()),
            },
            (Some(409), _) => Ok(false), // It is requested again.
            (_, Outcome::Complete) => Ok(true),
            (_, Outcome::Cut) => Ok(false),
        }
    }

    fn finish_told(&mut self, world: &SimWorld) -> Result<(), String> {
        for exchange in self.told.extract_if(.., |exchange| exchange.outcome.is_some()) {
            exchange.close(world);
            match (exchange.outcome, exchange.status) {
                (Some(Outcome::Cut), _) | (_, Some(202 | 404 | 503)) => {}
                (_, other) => return Err(format!("a notification is answered {other:?}")),
            }
        }
        Ok(())
    }

    /// Breaks one of its connections, or cancels a call.
    pub fn disturb(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        seen: &mut McpClientSeen,
    ) -> bool {
        if self.calls.is_empty() {
            return false;
        }
        let at = random.below(self.calls.len() as u64) as usize;
        if self.era == Era::Handshake && random.chance(1, 3) {
            let call = &mut self.calls[at];
            call.is_cancelled = true;
            let params = json!({"requestId": call.id, "reason": "as drawn"});
            let method = "notifications/cancelled";
            let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
            let request = self.post(&message);
            seen.cancelled += 1;
            self.told.extend(Exchange::begin(world, address, &request));
            return false;
        }
        let Some(mut exchange) = self.calls[at].exchange.take() else { return false };
        exchange.leave(world, random);
        exchange.close(world);
        self.calls[at].document.clear();
        true
    }

    /// Leaves for good, without a message.
    pub fn leave(&mut self, world: &SimWorld) {
        let calls = self.calls.drain(..).filter_map(|call| call.exchange);
        for exchange in calls.chain(self.told.drain(..)).chain(self.opening.take()) {
            exchange.close(world);
        }
    }

    /// The state that it waits in, for error texts.
    pub fn describe(&self) -> String {
        let calls: Vec<String> = self.calls.iter().map(McpCall::describe).collect();
        let SimMcpClient { era, session, is_ready, opening, told, .. } = self;
        format!(
            "{era:?} with session {session:?}, ready: {is_ready}, opening: {}, {} told, {calls:?}",
            opening.is_some(),
            told.len(),
        )
    }

    /// True if it has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.told.is_empty() && self.opening.is_none()
    }
}

impl McpCall {
    fn describe(&self) -> String {
        let McpCall { id, script, reported_seq, progress, is_cancelled, is_resumed, .. } = self;
        let status = self.exchange.as_ref().map(|exchange| (exchange.status, exchange.outcome));
        format!(
            "{id} ({script:?}) at {reported_seq}, {progress:?}, cancelled: {is_cancelled}, \
             resumed: {is_resumed}, {status:?} behind {:?}",
            self.decoder.last_id()
        )
    }

    /// Reads a stream. Returns true if the response was in it.
    fn hear(&mut self, mut input: &[u8], seen: &mut McpClientSeen) -> Result<bool, String> {
        let mut messages = Vec::new();
        while let Some(event) = self.decoder.read(&mut input).map_err(|e| format!("{e}"))? {
            if event.data_bytes().is_empty() {
                continue; // It primes the client: from here on it can come back.
            }
            let message = serde_json::from_slice(event.data_bytes());
            messages.push(message.map_err(|error| format!("{error}"))?);
        }
        let mut is_over = false;
        for message in &messages {
            if is_over {
                return Err(format!("something comes behind the response: {message}"));
            }
            is_over = self.take(message, seen)?;
        }
        Ok(is_over)
    }

    /// Takes a message. Returns true if it is the response.
    fn take(&mut self, message: &Value, seen: &mut McpClientSeen) -> Result<bool, String> {
        match message["method"].as_str() {
            Some("notifications/progress") => {
                self.take_progress(&message["params"], seen)?;
                Ok(false)
            }
            // No log level was requested: in this era that means all of it.
            Some("notifications/message") if self.era == Era::Handshake => {
                seen.messages += 1;
                Ok(false)
            }
            Some(other) => Err(format!("nobody asked for {other}")),
            None => {
                if message["id"] != self.id {
                    return Err(format!("somebody else's response: {message}"));
                }
                if !self.is_cancelled {
                    self.check_result(&message["result"], seen)
                        .map_err(|text| format!("{text}: {message}"))?;
                }
                seen.results += 1;
                Ok(true)
            }
        }
    }

    fn take_progress(&mut self, params: &Value, seen: &mut McpClientSeen) -> Result<(), String> {
        let must = |holds: bool, text: &str| match holds {
            true => Ok(()),
            false => Err(format!("{text}: {params}")),
        };
        must(self.has_token && params["progressToken"] == self.id, "no token of its")?;
        let progress = params["progress"].as_f64().ok_or("no number")?;
        must(self.progress.is_none_or(|before| progress > before), "it does not rise")?;
        self.progress = Some(progress);
        seen.progress += 1;
        let meta = &params["_meta"];
        let gap = &meta["dev.streamdoor/gap"];
        if gap.is_object() {
            let number = |name: &str| gap[name].as_u64().ok_or(format!("{name} is missing"));
            let (from_seq, to_seq) = (number("from_seq")?, number("to_seq")?);
            self.skip_to(from_seq)?;
            self.reported_seq = to_seq;
            let told = Totals { chunks: number("chunk_count")?, bytes: number("byte_count")? };
            must(told == self.script.sum(&[], from_seq, to_seq), "it counts wrong")?;
            seen.gaps += 1;
        }
        for chunk in chunks::read(params).map_err(|error| format!("{error}: {params}"))? {
            self.skip_to(chunk.seq)?;
            let (kind, bytes) = self.script.chunk(chunk.seq);
            must(chunk.kind == kind.name(), "of another kind")?;
            must(*chunk.data == bytes, "other bytes")?;
            seen.chunks += 1;
        }
        let entries = meta[META_CHUNKS].as_array().into_iter().flatten();
        let cut = entries.filter(|entry| entry["encoding"] == "message").count();
        must(cut == 0 || !wants_full_chunks(&self.script), "it wanted full chunks")?;
        seen.cut_chunks += cut as u64;
        Ok(())
    }

    /// Checks that only lines of a log are between the last chunk and this one.
    fn skip_to(&mut self, seq: u64) -> Result<(), String> {
        if seq <= self.reported_seq {
            return Err(format!("chunk {seq} comes behind {}", self.reported_seq));
        }
        let mut between = self.reported_seq + 1..seq;
        match between.all(|seq| self.script.chunk(seq).0 == Kind::Log) {
            true => self.reported_seq = seq,
            false => return Err(format!("nothing is said of all from {between:?} on")),
        }
        Ok(())
    }

    /// The tool's chunks without its log.
    fn output(&self) -> Vec<u8> {
        let chunks = (1..=self.script.chunk_count).map(|seq| self.script.chunk(seq));
        chunks.filter(|(kind, _)| *kind != Kind::Log).flat_map(|(_, bytes)| bytes).collect()
    }

    fn check_result(&self, result: &Value, seen: &mut McpClientSeen) -> Result<(), String> {
        let must = |holds: bool, text: &str| if holds { Ok(()) } else { Err(text.to_owned()) };
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        if result["isError"] == true && text.ends_with("which is the maximum") {
            // Calls before it wait for their clients, and hold all places.
            return must(self.reported_seq == 0, "it was refused after it had begun");
        }
        let meta = &result["_meta"];
        let token = meta["progressToken"].as_str().unwrap_or_default();
        must(token.len() >= 32, "it has no token of the server's")?;
        must(meta["dev.streamdoor/execution"].is_string(), "it says not what it was")?;
        let output = self.output();
        let blocks = result["content"].as_array().ok_or("it has no content")?;
        if output.len() > limits::MCP_RESULT_BYTES_MAX {
            seen.streams += 1;
            return Ok(());
        }
        must((result["isError"] == true) == self.script.fails, "it failed or not")?;
        let told: Vec<u8> = blocks.iter().take(1).flat_map(bytes_of).collect();
        let is_whole = told == output || (output.is_empty() && self.script.fails);
        must(is_whole, "other output")
    }
}

/// True if the client requests full chunks: in one of four calls.
fn wants_full_chunks(script: &Script) -> bool {
    script.seed.is_multiple_of(4)
}

/// The bytes of a content block.
fn bytes_of(block: &Value) -> Vec<u8> {
    match block["type"].as_str() {
        Some("text") => block["text"].as_str().unwrap_or_default().as_bytes().to_vec(),
        _ => super::oracle::decoded(block["resource"]["blob"].as_str().unwrap_or_default()),
    }
}
