//! A client of MCP in the seeded world: it calls the scripts of either era, is cut off and comes
//! back, cancels, and believes nothing that it is told.
//!
//! What it holds the server to: one answer to each call at most, and one indeed if it was neither
//! cancelled nor lost with its connection; nothing behind the answer; numbers that rise; chunks
//! that are the tool's, in order, with what is missing in a gap; a result that is all of them.

use serde_json::{Value, json};

use super::exchange::{Exchange, Outcome};
use super::script::Script;
use crate::base::Random;
use crate::engine::Kind;
use crate::reactor::ListenAddress;
use crate::sim::world::SimWorld;
use crate::wire::{base64, sse};

/// What happened to visitors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Visits {
    pub sessions: u64,
    pub answers: u64,
    pub notifications: u64,
    pub gaps: u64,
    pub resumed: u64,
    pub cancelled: u64,
    pub doors: u64,
}

/// See the module's text.
pub(super) struct Visitor {
    /// It speaks the stateless era.
    is_alone: bool,
    session: Option<String>,
    next_id: u64,
    /// It asks for a session.
    beginning: Option<Exchange>,
    /// It tells that it does not want its call any more.
    cancelling: Option<Exchange>,
    call: Option<Call>,
    /// It may begin so many calls.
    left: u64,
}

/// A call under way.
struct Call {
    id: u64,
    script: Script,
    has_token: bool,
    exchange: Exchange,
    decoder: sse::Decoder,
    /// The chunk that was told last, and whether some are missing.
    seq: u64,
    progress: f64,
    answer: Option<Value>,
    is_cancelled: bool,
}

impl Visitor {
    pub fn new(random: &mut Random) -> Visitor {
        Visitor {
            is_alone: random.chance(1, 2),
            session: None,
            next_id: 0,
            beginning: None,
            cancelling: None,
            call: None,
            left: random.between(1, 6),
        }
    }

    /// Has it nothing to do?
    pub fn is_idle(&self) -> bool {
        self.call.is_none() && self.beginning.is_none() && self.cancelling.is_none()
    }

    /// Goes on with whatever it does. With `may_call` it begins something.
    pub fn step(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        visits: &mut Visits,
        may_call: bool,
    ) -> Result<(), String> {
        self.go_on_beginning(world, random, visits)?;
        self.go_on_cancelling(world, random)?;
        if self.call.is_some() {
            return self.go_on_calling(world, address, random, visits);
        }
        if !may_call || self.left == 0 || !self.is_idle() {
            return Ok(());
        }
        match self.is_alone || self.session.is_some() {
            true => self.begin_call(world, address, random),
            false => {
                let params = json!({
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "clientInfo": {"name": "v", "version": "1"},
                });
                let message =
                    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
                self.beginning = Exchange::begin(world, address, &post("", &message));
            }
        }
        Ok(())
    }

    fn go_on_beginning(
        &mut self,
        world: &SimWorld,
        random: &mut Random,
        visits: &mut Visits,
    ) -> Result<(), String> {
        let Some(exchange) = &mut self.beginning else { return Ok(()) };
        exchange.step(world, random)?;
        if exchange.outcome.is_none() {
            return Ok(());
        }
        let exchange = self.beginning.take().expect("it was just there");
        exchange.close(world);
        match (exchange.outcome, exchange.status) {
            (Some(Outcome::Complete), Some(200)) => {
                let name = exchange.session.clone().ok_or("a session without a name")?;
                self.session = Some(format!("Mcp-Session-Id: {name}\r\n"));
                visits.sessions += 1;
                Ok(())
            }
            (Some(Outcome::Complete), Some(503)) | (Some(Outcome::Cut), _) => Ok(()),
            (_, status) => Err(format!("initialize is answered {status:?}")),
        }
    }

    fn begin_call(&mut self, world: &SimWorld, address: &ListenAddress, random: &mut Random) {
        let script = Script::draw(random, false);
        let (id, has_token) = (self.next_id, random.chance(2, 3));
        let mut meta = json!({});
        if has_token {
            meta["progressToken"] = id.into();
        }
        if random.chance(1, 3) {
            meta["dev.streamdoor/stream"] = false.into();
        }
        if self.is_alone {
            meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        let params = json!({"name": "script", "arguments": script.arguments(), "_meta": meta});
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let Some(exchange) = Exchange::begin(world, address, &post(&self.headers(), &message))
        else {
            return;
        };
        self.next_id += 1;
        self.left -= 1;
        self.call = Some(Call {
            id,
            script,
            has_token,
            exchange,
            decoder: sse::Decoder::new(),
            seq: 0,
            progress: f64::NEG_INFINITY,
            answer: None,
            is_cancelled: false,
        });
    }

    fn headers(&self) -> String {
        match &self.session {
            Some(session) => session.clone(),
            None => "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n\
                     Mcp-Name: script\r\n"
                .to_owned(),
        }
    }

    fn go_on_calling(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        visits: &mut Visits,
    ) -> Result<(), String> {
        let call = self.call.as_mut().expect("the caller has looked");
        call.exchange.step(world, random)?;
        call.hear(visits)?;
        let Some(outcome) = call.exchange.outcome else { return Ok(()) };
        call.exchange.close(world);
        let status = call.exchange.status;
        let is_let_in = matches!((outcome, status), (_, Some(200)) | (Outcome::Cut, _));
        if !is_let_in {
            let body = String::from_utf8_lossy(&call.exchange.body).into_owned();
            // Its session was forgotten, or there is no room.
            if !matches!(status, Some(404 | 429 | 503)) {
                return Err(format!("a call is answered {status:?}: {body}"));
            }
            if status == Some(404) {
                self.session = None;
            }
            self.call = None;
            return Ok(());
        }
        if let Some(answer) = call.answer.take() {
            visits.answers += 1;
            call.check(&answer, visits)?;
            self.call = None;
            return Ok(());
        }
        if outcome == Outcome::Complete && !call.is_cancelled {
            return Err(format!("a call has no answer; {} were told", call.seq));
        }
        self.come_back(world, address, visits);
        Ok(())
    }

    /// The connection was cut: in the handshake era the call goes on.
    fn come_back(&mut self, world: &SimWorld, address: &ListenAddress, visits: &mut Visits) {
        let call = self.call.as_mut().expect("it was cut");
        let behind = call.decoder.last_id().into_owned();
        let (Some(session), false, false) = (&self.session, behind.is_empty(), call.is_cancelled)
        else {
            self.call = None;
            return;
        };
        let request = format!(
            "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{session}\
             Last-Event-ID: {behind}\r\n\r\n"
        );
        if let Some(exchange) = Exchange::begin(world, address, &request) {
            visits.resumed += 1;
            call.exchange = exchange;
            call.decoder.reconnect();
        }
    }

    fn go_on_cancelling(&mut self, world: &SimWorld, random: &mut Random) -> Result<(), String> {
        let Some(exchange) = &mut self.cancelling else { return Ok(()) };
        exchange.step(world, random)?;
        if exchange.outcome.is_none() {
            return Ok(());
        }
        let exchange = self.cancelling.take().expect("it was just there");
        exchange.close(world);
        match (exchange.outcome, exchange.status) {
            (Some(Outcome::Cut), _) | (_, Some(202 | 404 | 503)) => Ok(()),
            (_, status) => Err(format!("a cancellation is answered {status:?}")),
        }
    }

    /// Does not want its call any more.
    pub fn cancel(&mut self, world: &SimWorld, address: &ListenAddress, visits: &mut Visits) {
        let (Some(call), Some(session), None) = (&mut self.call, &self.session, &self.cancelling)
        else {
            return;
        };
        let params = json!({"requestId": call.id, "reason": "enough"});
        let message =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        self.cancelling = Exchange::begin(world, address, &post(session, &message));
        if self.cancelling.is_some() {
            call.is_cancelled = true;
            visits.cancelled += 1;
        }
    }

    /// Its connection breaks.
    pub fn cut(&mut self, world: &SimWorld, random: &mut Random) -> bool {
        match &mut self.call {
            Some(call) if call.exchange.outcome.is_none() => {
                call.exchange.leave(world, random);
                true
            }
            _ => false,
        }
    }
}

impl Call {
    /// Takes what has come.
    fn hear(&mut self, visits: &mut Visits) -> Result<(), String> {
        if self.exchange.status != Some(200) {
            return Ok(());
        }
        if !self.exchange.is_stream {
            if self.exchange.outcome == Some(Outcome::Complete) {
                let answer = serde_json::from_slice(&self.exchange.body);
                self.answer = Some(answer.map_err(|error| format!("an answer: {error}"))?);
            }
            return Ok(());
        }
        let body = std::mem::take(&mut self.exchange.body);
        let (mut input, mut messages) = (&body[..], Vec::new());
        while let Some(message) = self.decoder.read(&mut input).map_err(|e| format!("{e}"))? {
            let data = message.data_bytes();
            if !data.is_empty() {
                let value: Value = serde_json::from_slice(data).map_err(|e| format!("{e}"))?;
                messages.push(value);
            }
        }
        for message in messages {
            if self.answer.is_some() {
                return Err(format!("behind the answer: {message}"));
            }
            match message["method"].as_str() {
                None => self.answer = Some(message),
                Some("notifications/message") => {}
                Some("notifications/progress") => self.hear_progress(&message, visits)?,
                Some(other) => return Err(format!("it is told {other}")),
            }
        }
        Ok(())
    }

    fn hear_progress(&mut self, message: &Value, visits: &mut Visits) -> Result<(), String> {
        visits.notifications += 1;
        let params = &message["params"];
        if !self.has_token || params["progressToken"] != self.id {
            return Err(format!("somebody else's: {message}"));
        }
        let number = params["progress"].as_f64().ok_or("no number")?;
        if number <= self.progress {
            return Err(format!("{number} behind {}", self.progress));
        }
        self.progress = number;
        let gap = &params["_meta"]["dev.streamdoor/gap"];
        if let (Some(from), Some(to)) = (gap["from_seq"].as_u64(), gap["to_seq"].as_u64()) {
            self.skip_logs(from - 1);
            if from != self.seq + 1 || to < from {
                return Err(format!("a gap {from}..{to} behind {}", self.seq));
            }
            (self.seq, visits.gaps) = (to, visits.gaps + 1);
        }
        let chunks = params["_meta"]["dev.streamdoor/chunks"].as_array();
        for chunk in chunks.into_iter().flatten() {
            let seq = chunk["seq"].as_u64().ok_or("no number")?;
            self.skip_logs(seq - 1);
            let (kind, bytes) = self.script.chunk(seq);
            let data = chunk["data"].as_str().ok_or("no data")?;
            let is_right = match chunk["encoding"].as_str() {
                Some("text") => data.as_bytes() == bytes,
                _ => base64::read(data).is_some_and(|data| data == bytes),
            };
            if seq != self.seq + 1 || !is_right || chunk["kind"] != kind.name() {
                return Err(format!("chunk {seq} behind {}: {chunk}", self.seq));
            }
            self.seq = seq;
        }
        Ok(())
    }

    /// Lines of a log are told in another way.
    fn skip_logs(&mut self, until: u64) {
        while self.seq < until && self.script.chunk(self.seq + 1).0 == Kind::Log {
            self.seq += 1;
        }
    }

    fn check(&self, answer: &Value, visits: &mut Visits) -> Result<(), String> {
        let wrong = |text: &str| Err(format!("{text}: {answer}"));
        if answer["id"] != self.id {
            return wrong("the answer to something else");
        }
        let result = &answer["result"];
        if !result["content"].is_array() {
            return wrong("no result");
        }
        if result["isError"] == true {
            return Ok(()); // It has failed, or there was no room for it.
        }
        if self.script.fails {
            return wrong("it cannot have gone well");
        }
        if result["_meta"]["dev.streamdoor/stream"].is_object() {
            visits.doors += 1;
            return Ok(());
        }
        let mut expected = Vec::new();
        for seq in 1..=self.script.chunk_count {
            let (kind, bytes) = self.script.chunk(seq);
            if kind != Kind::Log {
                expected.extend_from_slice(&bytes);
            }
        }
        let block = &result["content"][0];
        let got = match (block["text"].as_str(), block["resource"]["blob"].as_str()) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(blob)) => base64::read(blob).ok_or("no base 64")?,
            (None, None) => Vec::new(),
        };
        match got == expected {
            true => Ok(()),
            false => wrong("not the output of the tool"),
        }
    }
}

fn post(headers: &str, message: &Value) -> String {
    let body = message.to_string();
    let length = body.len();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{headers}Content-Length: {length}\r\n\r\n\
         {body}"
    )
}
