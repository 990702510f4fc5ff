//! A client that starts an agent's run, or follows an existing run, and checks everything. Parts
//! come in order and once, gaps count the missing parts, and one end comes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::exchange::{Exchange, Outcome};
use crate::agent::RunPart;
use crate::agent::order::Order;
use crate::base::Random;
use crate::reactor::ListenAddress;
use crate::sim::world::SimWorld;
use crate::stream::Policy;
use crate::wire::{ndjson, sse};

/// The counts of many readers. Equal for equal seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AudienceSeen {
    pub parts: u64,
    pub gaps: u64,
    pub ends: u64,
    pub detached: u64,
    pub resumed: u64,
    pub refused: u64,
    /// Runs seen whole, from the first part to the last.
    pub whole: u64,
}

/// All parts that any reader has received, by run and number: all readers receive the same.
pub(super) type ReceivedParts = BTreeMap<String, BTreeMap<u64, Vec<u8>>>;

/// The JSON of an event, with its name and its id if it came over server-sent events.
type EventWithId = (Vec<u8>, Option<(String, String)>);

enum StreamDecoder {
    Sse(sse::Decoder),
    Ndjson(ndjson::Decoder),
}

/// A reader, as in the module's text.
pub(super) struct RunReader {
    /// The run; not known before the first event of a run of its own.
    pub execution: Option<String>,
    /// The request that starts it.
    starts: Option<String>,
    policy: Policy,
    /// Number of chunks that it may lag by, or `None` for the policy's default.
    chunks_max: Option<u64>,
    format: StreamDecoder,
    exchange: Option<Exchange>,
    has_started: bool,
    /// True if it has followed on another connection before.
    is_back: bool,
    reported_seq: Option<u64>,
    given_count: u64,
    missed_count: u64,
    order: Option<Order>,
    has_ended: bool,
    /// The end of its run.
    pub outcome: Option<String>,
    is_detached: bool,
    pub is_done: bool,
}

impl RunReader {
    /// Starts a run with this body.
    pub fn starting(body: &Value, random: &mut Random) -> RunReader {
        let mut reader = RunReader::new(None, random);
        let (body, query) = (body.to_string(), reader.query());
        reader.starts = Some(format!(
            "POST /v1/agent/stream?{query} HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        reader
    }

    /// Follows a run.
    pub fn new(execution: Option<String>, random: &mut Random) -> RunReader {
        let policy = match random.below(3) {
            0 => Policy::ALL[random.below(7) as usize],
            _ => Policy::Block,
        };
        let may_lag_little = policy != Policy::Block && random.chance(1, 2);
        let chunks_max = may_lag_little.then(|| random.between(1, 8));
        let format = match random.below(3) {
            0 => StreamDecoder::Ndjson(ndjson::Decoder::new()),
            _ => StreamDecoder::Sse(sse::Decoder::new()),
        };
        RunReader {
            execution,
            starts: None,
            policy,
            chunks_max,
            format,
            exchange: None,
            has_started: false,
            is_back: false,
            reported_seq: None,
            given_count: 0,
            missed_count: 0,
            order: Some(Order::default()),
            has_ended: false,
            outcome: None,
            is_detached: false,
            is_done: false,
        }
    }

    fn query(&self) -> String {
        let format = if matches!(self.format, StreamDecoder::Sse(_)) { "sse" } else { "ndjson" };
        let limit = self.chunks_max.map(|chunks| format!("&max_chunks={chunks}"));
        format!("format={format}&policy={}{}", self.policy.name(), limit.unwrap_or_default())
    }

    /// Connects, for the first time or again, and reads a piece.
    pub fn step(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        (seen, told): (&mut AudienceSeen, &mut ReceivedParts),
    ) -> Result<(), String> {
        if self.is_done {
            return Ok(());
        }
        let Some(exchange) = &mut self.exchange else {
            self.connect(world, address, random, seen);
            return Ok(());
        };
        exchange.step(world, random)?;
        let (status, outcome) = (exchange.status, exchange.outcome);
        let body = std::mem::take(&mut exchange.body);
        match status {
            None => {}
            Some(200) => self.read(&body, seen, told)?,
            Some(204) if self.outcome.is_some() => self.is_done = true,
            Some(404 | 410 | 429 | 503) => {
                seen.refused += 1;
                self.is_done = true;
            }
            Some(other) => {
                return Err(format!("status {other}: {}", String::from_utf8_lossy(&body)));
            }
        }
        if let Some(outcome) = outcome {
            let exchange = self.exchange.take().expect("it was just there");
            exchange.close(world);
            if outcome == Outcome::Complete && status == Some(200) && !self.has_ended {
                return Err("the body is complete, and there was no end".into());
            }
            // A reader that started a run and was cut before it knew the run's id cannot come back.
            let is_lost = self.execution.is_none() || self.reported_seq.is_none();
            self.is_done |= self.has_ended || is_lost;
        }
        Ok(())
    }

    fn connect(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
        seen: &mut AudienceSeen,
    ) {
        let request = match (self.starts.take(), &self.execution) {
            (Some(request), _) => request,
            (None, Some(id)) => {
                let is_wrong = random.chance(1, 100); // An unknown execution.
                let id = if is_wrong { id.chars().rev().collect() } else { id.clone() };
                let mut target = format!("/v1/executions/{id}/events?{}", self.query());
                let mut head = String::new();
                match &mut self.format {
                    StreamDecoder::Sse(decoder) if self.reported_seq.is_some() && !is_wrong => {
                        head = format!("Last-Event-ID: {}\r\n", decoder.last_id());
                        decoder.reconnect();
                    }
                    StreamDecoder::Ndjson(decoder) => {
                        *decoder = ndjson::Decoder::new();
                        if let Some(seq) = self.reported_seq {
                            target += &format!("&from={}", seq + 1);
                        }
                    }
                    StreamDecoder::Sse(_) => {}
                }
                seen.resumed += u64::from(self.reported_seq.is_some());
                format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n")
            }
            (None, None) => {
                self.is_done = true;
                return;
            }
        };
        self.is_back = self.reported_seq.is_some();
        (self.has_started, self.given_count, self.missed_count) = (false, 0, 0);
        self.exchange = Exchange::begin(world, address, &request);
    }

    /// Cuts its connection. Returns false if it has none.
    pub fn cut(&mut self, world: &SimWorld, random: &mut Random) -> bool {
        let Some(mut exchange) = self.exchange.take() else { return false };
        exchange.leave(world, random);
        // A detached reader does not come back. One that knows the end does, if it can send that as
        // an id.
        let is_sse = matches!(self.format, StreamDecoder::Sse(_));
        let is_over = self.is_detached || (self.has_ended && !is_sse);
        self.is_done |= is_over || self.execution.is_none() || self.reported_seq.is_none();
        true
    }

    fn read(
        &mut self,
        body: &[u8],
        seen: &mut AudienceSeen,
        told: &mut ReceivedParts,
    ) -> Result<(), String> {
        let mut events: Vec<EventWithId> = Vec::new();
        let mut input = body;
        match &mut self.format {
            StreamDecoder::Sse(decoder) => {
                while let Some(message) = decoder.read(&mut input).map_err(|e| format!("{e}"))? {
                    let named = (message.name().into_owned(), message.id().into_owned());
                    events.push((message.data_bytes().to_vec(), Some(named)));
                }
            }
            StreamDecoder::Ndjson(decoder) => {
                while let Some(line) = decoder.read(&mut input).map_err(|e| format!("{e}"))? {
                    events.push((line.to_vec(), None));
                }
            }
        }
        for (json, named) in events {
            let event: Value = serde_json::from_slice(&json)
                .map_err(|error| format!("{error}: {:?}", String::from_utf8_lossy(&json)))?;
            if let Some((name, _)) = &named
                && event["type"].as_str().or(event["event"].as_str()) != Some(name)
            {
                return Err(format!("{event} is called {name}"));
            }
            self.take(&json, &event, seen, told).map_err(|text| format!("{text}: {event}"))?;
            if let (Some((_, id)), false) = (named, self.is_detached) {
                self.check_id(&id)?;
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        json: &[u8],
        event: &Value,
        seen: &mut AudienceSeen,
        told: &mut ReceivedParts,
    ) -> Result<(), String> {
        let must = |is_so: bool, text: &str| if is_so { Ok(()) } else { Err(text.to_owned()) };
        must(!self.has_ended, "something behind the end")?;
        let number = |name: &str| event[name].as_u64().ok_or(format!("no {name}"));
        if event["type"].is_string() {
            must(self.has_started, "a part before `started`")?;
            must(event["agent_id"].as_str() == self.execution.as_deref(), "of another run")?;
            let seq = number("seq")?;
            must(Some(seq) == self.reported_seq.map(|told| told + 1), "a hole, or twice the same")?;
            (self.reported_seq, self.given_count) = (Some(seq), self.given_count + 1);
            seen.parts += 1;
            let part = RunPart::parse(json).map_err(|error| format!("no part: {error}"))?;
            if let Some(order) = &mut self.order {
                order.take(&part)?;
                seen.whole += u64::from(order.is_over());
            }
            let run = told.entry(self.execution.clone().expect("it is known")).or_default();
            let before = run.entry(seq).or_insert_with(|| json.to_vec());
            return must(before == json, "another one was told something else");
        }
        match event["event"].as_str() {
            Some("started") => {
                must(!self.has_started, "it starts twice")?;
                let id = event["execution"].as_str().ok_or("no execution")?;
                must(self.execution.as_deref().is_none_or(|own| own == id), "another run")?;
                self.execution.get_or_insert_with(|| id.to_owned());
                let from_seq = number("from_seq")?;
                let reported_seq = *self.reported_seq.get_or_insert(from_seq - 1);
                must(from_seq == reported_seq + 1, "it begins elsewhere")?;
                if from_seq > 1 && self.order.as_ref().is_some_and(|o| o.seq() + 1 != from_seq) {
                    self.order = None;
                }
                self.has_started = true;
                Ok(())
            }
            Some("gap") => {
                seen.gaps += 1;
                self.order = None;
                let (from, to, count) =
                    (number("from_seq")?, number("to_seq")?, number("chunk_count")?);
                must(self.policy != Policy::Block || self.is_late(from), "a gap under block")?;
                must(Some(from) == self.reported_seq.map(|told| told + 1), "a gap elsewhere")?;
                must(count == to - from + 1, "a gap that counts wrong")?;
                (self.reported_seq, self.missed_count) = (Some(to), self.missed_count + count);
                Ok(())
            }
            Some("progress") => Ok(()),
            Some("end") => {
                self.has_ended = true;
                let state = event["state"].as_str().ok_or("no state")?;
                self.is_detached = state == "detached";
                match self.is_detached {
                    true => seen.detached += 1,
                    false => {
                        seen.ends += 1;
                        self.outcome = Some(state.to_owned());
                        let is_whole = self.order.as_ref().is_none_or(|order| order.is_over());
                        must(is_whole, "it ends without the run's last part")?;
                    }
                }
                must(number("chunks")? == self.given_count, "the end counts other parts")?;
                must(number("missed_chunks")? == self.missed_count, "the end counts other gaps")
            }
            _ => Err("what is this?".to_owned()),
        }
    }

    /// True if the gap is possible because the reader came late, when the oldest parts were gone.
    /// One that comes back may have no such gap: all that was on its way at the cut is still held.
    fn is_late(&self, from_seq: u64) -> bool {
        !self.is_back && self.given_count == 0 && self.reported_seq == Some(from_seq - 1)
    }

    /// Checks an `id:`, which has the number of the last part. That of the end says so.
    fn check_id(&self, id: &str) -> Result<(), String> {
        let seq = self.reported_seq.expect("it has started");
        let begins = format!("{}:{seq}:", self.execution.as_deref().unwrap_or_default());
        match id.starts_with(&begins) && id.ends_with(":end") == self.has_ended {
            true => Ok(()),
            false => Err(format!("id {id} is not of part {seq}")),
        }
    }

    /// The state of the reader, for error texts.
    pub fn describe(&self) -> String {
        let (id, seq) = (&self.execution, self.reported_seq);
        let status = self.exchange.as_ref().map(|exchange| exchange.status);
        format!("a reader of {id:?} at {seq:?} ({}), connection: {status:?}", self.policy.name())
    }
}
