//! A client that follows one execution and checks every word it is told.

use serde_json::Value;

use super::exchange::{Exchange, Outcome};
use super::script::Script;
use crate::base::Random;
use crate::engine::{Kind, Policy, Totals};
use crate::reactor::ListenAddress;
use crate::sim::world::SimWorld;
use crate::wire::{ndjson, sse};

/// What happened, for the coverage of many seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub chunks: u64,
    pub gaps: u64,
    pub progress: u64,
    pub ends: u64,
    pub detached: u64,
    pub resumed: u64,
    pub seen_to_end: u64,
    pub gone: u64,
    pub outputs: u64,
}

/// See the module's text.
pub(super) struct Follower {
    pub execution: usize,
    id: String,
    script: Script,
    policy: Policy,
    kinds: Vec<Kind>,
    format: Format,
    exchange: Option<Exchange>,
    /// The last chunk that it was told of, over all its connections; `None` before the first
    /// `started`.
    told_seq: Option<u64>,
    /// Of this connection.
    given: Totals,
    missed: Totals,
    has_started: bool,
    has_ended: bool,
    /// It was told of the end.
    has_all: bool,
    is_detached: bool,
    /// All is said.
    pub is_done: bool,
    pub output: Vec<u8>,
    /// What the server calls it, if it has asked for acknowledgements.
    acknowledges: bool,
    pub to_acknowledge: Option<(SubscriberName, u64)>,
    subscriber: SubscriberName,
}

/// As it is printed.
pub(super) type SubscriberName = String;

enum Format {
    Sse(sse::Decoder),
    Ndjson(ndjson::Decoder),
    Output,
}

const NAMES: [(Kind, &str); 3] =
    [(Kind::Output, "output"), (Kind::Log, "log"), (Kind::Json, "json")];

impl Follower {
    pub fn new(
        execution: usize,
        id: &str,
        script: Script,
        acknowledges: bool,
        random: &mut Random,
    ) -> Follower {
        let policy = Policy::ALL[random.below(Policy::ALL.len() as u64) as usize];
        let mut kinds = Vec::new();
        if random.chance(1, 3) {
            kinds.push(NAMES[random.below(3) as usize].0);
        }
        let format = match random.below(5) {
            0 => Format::Output,
            1 => Format::Ndjson(ndjson::Decoder::new()),
            _ => Format::Sse(sse::Decoder::new()),
        };
        let is_output = matches!(format, Format::Output);
        if is_output {
            kinds.clear();
        }
        Follower {
            execution,
            id: id.to_owned(),
            script,
            policy,
            kinds,
            format,
            exchange: None,
            told_seq: None,
            given: Totals::ZERO,
            missed: Totals::ZERO,
            has_started: false,
            has_ended: false,
            has_all: false,
            is_detached: false,
            is_done: false,
            output: Vec::new(),
            acknowledges: acknowledges && !is_output,
            to_acknowledge: None,
            subscriber: SubscriberName::new(),
        }
    }

    pub fn is_connected(&self) -> bool {
        self.exchange.is_some()
    }

    /// Connects, for the first time or again. `false` if that was not possible.
    pub fn connect(&mut self, world: &SimWorld, address: &ListenAddress) -> bool {
        let id = &self.id;
        let mut request = match &self.format {
            Format::Output => format!("GET /v1/executions/{id}/output HTTP/1.1\r\n"),
            _ => format!("GET /v1/executions/{id}/events?policy={} HTTP/1.1\r\n", self.query()),
        };
        request += "Host: localhost\r\n";
        if let (Some(_), Format::Sse(decoder)) = (self.told_seq, &mut self.format) {
            request += &format!("Last-Event-ID: {}\r\n", decoder.last_id());
            decoder.reconnect();
        }
        if let Format::Ndjson(decoder) = &mut self.format {
            *decoder = ndjson::Decoder::new();
        }
        request += "\r\n";
        self.exchange = Exchange::begin(world, address, &request);
        (self.given, self.missed) = (Totals::ZERO, Totals::ZERO);
        (self.has_started, self.has_ended, self.is_detached) = (false, false, false);
        self.exchange.is_some()
    }

    fn query(&self) -> String {
        let mut query = self.policy.name().to_owned();
        if let Format::Ndjson(_) = self.format {
            query += "&format=ndjson";
            if let Some(seq) = self.told_seq {
                query += &format!("&from={}", seq + 1);
            }
        }
        for kind in &self.kinds {
            query += &format!("&kinds={}", kind.name());
        }
        if self.acknowledges {
            query += "&acks=4";
        }
        query
    }

    /// Reads a bit. What the server must not do is an error.
    pub fn step(
        &mut self,
        world: &SimWorld,
        random: &mut Random,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let Some(exchange) = &mut self.exchange else { return Ok(()) };
        exchange.step(world, random)?;
        let (status, outcome) = (exchange.status, exchange.outcome);
        let body = std::mem::take(&mut exchange.body);
        match status {
            None => {}
            Some(200) if self.has_all => return Err("it is told again what it has".into()),
            Some(200) => self.read(&body, seen)?,
            Some(204) => {
                seen.seen_to_end += 1;
                self.is_done = true;
            }
            // It was forgotten, or what it wants is; there are too many; the server ends.
            Some(404 | 410 | 429 | 503) => {
                seen.gone += 1;
                self.is_done = true;
            }
            Some(other) => {
                return Err(format!("status {other}: {}", String::from_utf8_lossy(&body)));
            }
        }
        if let Some(outcome) = outcome {
            self.ended(world, outcome, seen)?;
        }
        Ok(())
    }

    /// The connection is over.
    fn ended(&mut self, world: &SimWorld, outcome: Outcome, seen: &mut Seen) -> Result<(), String> {
        let exchange = self.exchange.take().expect("it was just there");
        exchange.close(world);
        if let Format::Output = self.format {
            seen.outputs += u64::from(outcome == Outcome::Complete);
            self.is_done = true;
            return self.check_output(outcome);
        }
        if outcome == Outcome::Complete && exchange.status == Some(200) && !self.has_ended {
            return Err("the body is complete, and there was no end".into());
        }
        // Who is detached again and again without a chunk would come back for ever.
        let gets_nowhere = self.is_detached && self.given == Totals::ZERO;
        if gets_nowhere || (self.has_ended && !self.is_detached) {
            let is_browser = matches!(self.format, Format::Sse(_)) && !gets_nowhere;
            self.is_done = !is_browser || self.told_seq.is_none_or(|seq| seq % 4 != 0);
            self.has_all = true; // A browser comes back all the same.
        }
        Ok(())
    }

    fn check_output(&self, outcome: Outcome) -> Result<(), String> {
        let mut whole = Vec::new();
        (1..=self.script.chunk_count).for_each(|seq| whole.extend(self.script.chunk(seq).1));
        let is_right = match outcome {
            _ if self.output.is_empty() => true, // Perhaps it was refused.
            Outcome::Complete => self.output == whole && !self.script.fails,
            Outcome::Cut => whole.starts_with(&self.output),
        };
        match is_right {
            true => Ok(()),
            false => Err(format!("{outcome:?}: output of {} bytes is wrong", self.output.len())),
        }
    }

    fn read(&mut self, body: &[u8], seen: &mut Seen) -> Result<(), String> {
        let mut events: Vec<(Value, Option<String>)> = Vec::new();
        let mut input = body;
        let parse = |text: &[u8]| {
            serde_json::from_slice(text).map_err(|error| format!("{error}: {text:?}"))
        };
        match &mut self.format {
            Format::Output => self.output.extend_from_slice(body),
            Format::Sse(decoder) => {
                while let Some(message) = decoder.read(&mut input).map_err(|e| format!("{e}"))? {
                    let value: Value = parse(message.data_bytes())?;
                    if message.name() != value["event"].as_str().unwrap_or("") {
                        return Err(format!("{} is called {}", value, message.name()));
                    }
                    events.push((value, Some(message.id().into_owned())));
                }
            }
            Format::Ndjson(decoder) => {
                while let Some(line) = decoder.read(&mut input).map_err(|e| format!("{e}"))? {
                    events.push((parse(line)?, None));
                }
            }
        }
        for (event, id) in events {
            self.take(&event, seen).map_err(|text| format!("{text}: {event}"))?;
            if let Some(id) = id
                && !self.is_detached
            {
                self.check_id(&id)?;
            }
        }
        Ok(())
    }

    /// The `id:` says where it is.
    fn check_id(&self, id: &str) -> Result<(), String> {
        let told_seq = self.told_seq.expect("it was told something");
        let mut expected = format!("{}:{told_seq}:", self.id);
        if self.has_ended {
            expected = format!("{}:{}:", self.id, self.script.chunk_count + 1);
            if !id.starts_with(&expected) {
                expected = format!("{}:", self.id); // It was cancelled before its last chunk.
            }
        }
        match id.starts_with(&expected) {
            true => Ok(()),
            false => Err(format!("id {id} where {expected} was expected")),
        }
    }

    fn take(&mut self, event: &Value, seen: &mut Seen) -> Result<(), String> {
        let number = |name: &str| event[name].as_u64().ok_or(format!("{name} is missing"));
        let must = |holds: bool, text: &str| if holds { Ok(()) } else { Err(text.to_owned()) };
        must(!self.has_ended, "something comes behind the end")?;
        must(event["execution"] == self.id.as_str(), "another execution")?;
        let name = event["event"].as_str().unwrap_or("");
        must((name == "started") != self.has_started, "`started` is the first, and once")?;
        match name {
            "started" => {
                self.has_started = true;
                let from_seq = number("from_seq")?;
                match self.told_seq {
                    None => self.told_seq = Some(from_seq - 1),
                    Some(seq) => {
                        seen.resumed += 1;
                        must(from_seq == seq + 1, "it does not go on where it was")?;
                    }
                }
                self.subscriber = event["subscriber"].as_str().unwrap_or("").to_owned();
            }
            "chunk" => {
                let seq = number("seq")?;
                self.skip_to(seq)?;
                let (kind, bytes) = self.script.chunk(seq);
                must(event["kind"] == kind.name(), "of another kind")?;
                must(data(event)? == bytes, "other bytes")?;
                self.given.count(bytes.len() as u32);
                seen.chunks += 1;
                if self.acknowledges {
                    self.to_acknowledge = Some((self.subscriber.clone(), seq));
                }
            }
            "gap" => {
                let (from_seq, to_seq) = (number("from_seq")?, number("to_seq")?);
                self.skip_to(from_seq)?;
                self.told_seq = Some(to_seq);
                let sum = self.script.sum(&self.kinds, from_seq, to_seq);
                let told = Totals { chunks: number("chunk_count")?, bytes: number("byte_count")? };
                must(told == sum, "it counts wrong")?;
                must(
                    self.policy != Policy::Block || event["reason"] == "late",
                    "`block` lost one",
                )?;
                self.missed = self.missed + told;
                seen.gaps += 1;
                if self.acknowledges {
                    self.to_acknowledge = Some((self.subscriber.clone(), to_seq));
                }
            }
            "progress" => seen.progress += 1,
            "end" => self.end(event, seen)?,
            other => return Err(format!("there is no event {other:?}")),
        }
        Ok(())
    }

    /// Nothing of its kinds may be between the last word and this chunk.
    fn skip_to(&mut self, seq: u64) -> Result<(), String> {
        let told_seq = self.told_seq.expect("it was started");
        if seq <= told_seq {
            return Err(format!("chunk {seq} comes behind {told_seq}"));
        }
        let between = self.script.sum(&self.kinds, told_seq + 1, seq - 1);
        if between != Totals::ZERO {
            return Err(format!("nothing is said of {between:?} behind {told_seq}"));
        }
        self.told_seq = Some(seq);
        Ok(())
    }

    fn end(&mut self, event: &Value, seen: &mut Seen) -> Result<(), String> {
        self.has_ended = true;
        seen.ends += 1;
        let number = |name: &str| event[name].as_u64().ok_or(format!("{name} is missing"));
        let given = Totals { chunks: number("chunks")?, bytes: number("bytes")? };
        let missed = Totals { chunks: number("missed_chunks")?, bytes: number("missed_bytes")? };
        if (given, missed) != (self.given, self.missed) {
            return Err(format!("its sums are not {:?} and {:?}", self.given, self.missed));
        }
        let told_seq = self.told_seq.expect("it was started");
        match event["state"].as_str() {
            Some("detached") => {
                self.is_detached = true;
                seen.detached += 1;
            }
            Some("completed" | "failed") => {
                let rest = self.script.sum(&self.kinds, told_seq + 1, self.script.chunk_count);
                if rest != Totals::ZERO {
                    return Err(format!("nothing was said of {rest:?} behind {told_seq}"));
                }
            }
            Some("cancelled") => {}
            other => return Err(format!("state {other:?}")),
        }
        Ok(())
    }

    /// What it is doing, for who asks why.
    pub fn describe(&self) -> String {
        let Follower { execution, policy, told_seq, has_started, has_ended, .. } = self;
        let status = self.exchange.as_ref().map(|exchange| exchange.status);
        format!(
            "a follower of execution {execution} ({:?}) under {policy}, acknowledging: {}, at \
             {told_seq:?}, started: {has_started}, ended: {has_ended}, connection: {status:?}",
            self.script, self.acknowledges
        )
    }

    /// Cuts its connection, if there is one. Whoever has no cursor to come back with is done.
    pub fn cut(&mut self, world: &SimWorld, random: &mut Random) -> bool {
        let Some(mut exchange) = self.exchange.take() else { return false };
        exchange.leave(world, random);
        if let Format::Output = self.format {
            self.is_done = true;
        }
        if let (Format::Ndjson(_), None) | (Format::Sse(_), None) = (&self.format, self.told_seq) {
            self.is_done = true;
        }
        true
    }

    /// The request that acknowledges what it was told.
    pub fn acknowledgement(&mut self) -> Option<String> {
        let (subscriber, seq) = self.to_acknowledge.take()?;
        let body = format!("{{\"seq\":{seq}}}");
        Some(format!(
            "POST /v1/executions/{}/subscribers/{subscriber}/acks HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.id,
            body.len()
        ))
    }
}

/// The bytes of a chunk, out of its event.
fn data(event: &Value) -> Result<Vec<u8>, String> {
    let text = event["data"].as_str().ok_or("no data")?;
    match event["encoding"].as_str() {
        Some("text") => Ok(text.as_bytes().to_vec()),
        Some("base64") => Ok(decoded(text)),
        other => Err(format!("encoding {other:?}")),
    }
}

/// Base 64, as an oracle of its own.
fn decoded(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter(|byte| *byte != b'=');
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for byte in digits {
        let digit = DIGITS.iter().position(|digit| *digit == byte).unwrap_or(0) as u32;
        bits = bits << 6 | digit;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
