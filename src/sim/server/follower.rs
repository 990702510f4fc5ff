//! A client that follows one execution, or several on one connection, and checks every event.

use serde_json::Value;

use super::exchange::{Exchange, Outcome};
use super::oracle::{NAMES, Oracle, SeenCounts};
use super::script::Script;
use crate::base::{ExecutionId, Random};
use crate::reactor::ListenAddress;
use crate::sim::world::SimWorld;
use crate::stream::{Policy, Totals};
use crate::wire::{ndjson, sse};

/// A follower, as in the module's text.
pub(super) struct HttpFollower {
    /// The executions that it follows: one, or several on one connection.
    parts: Vec<Oracle>,
    is_combined: bool,
    /// True if they live on several shards.
    is_apart: bool,
    format: StreamDecoder,
    exchange: Option<Exchange>,
    /// True if it has received the end, or makes no progress.
    has_all: bool,
    /// True if it expects nothing more.
    pub is_done: bool,
    output: Vec<u8>,
}

enum StreamDecoder {
    Sse(sse::Decoder),
    Ndjson(ndjson::Decoder),
    Output,
}

impl HttpFollower {
    pub fn new(
        executions: &[(&str, Script)],
        acknowledges: bool,
        is_combined: bool,
        random: &mut Random,
    ) -> HttpFollower {
        let policy = Policy::ALL[random.below(7) as usize];
        let mut kinds = Vec::new();
        if random.chance(1, 3) {
            kinds.push(NAMES[random.below(3) as usize].0);
        }
        let format = match random.below(5) {
            0 if !is_combined => StreamDecoder::Output,
            0 | 1 => StreamDecoder::Ndjson(ndjson::Decoder::new()),
            _ => StreamDecoder::Sse(sse::Decoder::new()),
        };
        let is_output = matches!(format, StreamDecoder::Output);
        if is_output {
            kinds.clear();
        }
        let acknowledges = acknowledges && !is_output;
        // With the default limit hardly any is ever detached.
        let may_lag_little = policy == Policy::Disconnect && random.chance(1, 2);
        let lag_max = may_lag_little.then(|| random.between(1, 3));
        let part = |&(id, script): &(&str, Script)| {
            let mut oracle = Oracle::new(id, script, policy, kinds.clone(), acknowledges);
            oracle.lag_max = lag_max;
            oracle
        };
        let shard_of = |id: &str| id.parse::<ExecutionId>().map(|id| id.shard).ok();
        HttpFollower {
            parts: executions.iter().map(part).collect(),
            is_combined,
            is_apart: executions.iter().any(|(id, _)| shard_of(id) != shard_of(executions[0].0)),
            format,
            exchange: None,
            has_all: false,
            is_done: false,
            output: Vec::new(),
        }
    }

    pub fn is_connected(&self) -> bool {
        self.exchange.is_some()
    }

    /// True if it has an event id from which it can resume.
    fn has_cursor(&self) -> bool {
        let is_told = self.parts.iter().any(|part| part.reported_seq.is_some());
        is_told && (!self.is_combined || matches!(self.format, StreamDecoder::Sse(_)))
    }

    /// Connects, for the first time or again. Returns false if that was not possible.
    pub fn connect(&mut self, world: &SimWorld, address: &ListenAddress) -> bool {
        let first = &self.parts[0];
        let (id, query) = (&first.id, first.query());
        let mut target = match (&self.format, self.is_combined) {
            (StreamDecoder::Output, _) => format!("/v1/executions/{id}/output"),
            (_, false) => format!("/v1/executions/{id}/events?{query}"),
            (_, true) => {
                let ids: Vec<&str> = self.parts.iter().map(|part| part.id.as_str()).collect();
                format!("/v1/events?executions={}&{query}", ids.join(","))
            }
        };
        let mut head = String::new();
        let has_cursor = self.has_cursor();
        let says_all = has_cursor && matches!(self.format, StreamDecoder::Sse(_));
        match &mut self.format {
            StreamDecoder::Output => {}
            StreamDecoder::Ndjson(decoder) => {
                *decoder = ndjson::Decoder::new();
                target += "&format=ndjson";
                if let Some(seq) = self.parts[0].reported_seq.filter(|_| has_cursor) {
                    target += &format!("&from={}", seq + 1);
                }
            }
            StreamDecoder::Sse(decoder) if has_cursor => {
                head = format!("Last-Event-ID: {}\r\n", decoder.last_id());
                decoder.reconnect();
            }
            StreamDecoder::Sse(_) => {}
        }
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n");
        self.exchange = Exchange::begin(world, address, &request);
        self.parts.iter_mut().for_each(|part| part.connect(says_all));
        self.exchange.is_some()
    }

    /// Reads a piece. A violation by the server is an error.
    pub fn step(
        &mut self,
        world: &SimWorld,
        random: &mut Random,
        seen: &mut SeenCounts,
    ) -> Result<(), String> {
        let Some(exchange) = &mut self.exchange else { return Ok(()) };
        exchange.step(world, random)?;
        let (status, outcome) = (exchange.status, exchange.outcome);
        let body = std::mem::take(&mut exchange.body);
        match status {
            None => {}
            Some(200) if self.has_all => return Err("it is told again what it has".into()),
            Some(200) => self.read(&body, seen)?,
            Some(204) if !self.parts.iter().all(|part| part.is_over) => {
                return Err("it is told that there is no more, and has not been told all".into());
            }
            Some(204) => {
                seen.seen_to_end += 1;
                self.is_done = true;
            }
            // The execution or its chunks were forgotten; too many connections exist; or the server
            // ends.
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

    /// Handles the end of the connection.
    fn ended(
        &mut self,
        world: &SimWorld,
        outcome: Outcome,
        seen: &mut SeenCounts,
    ) -> Result<(), String> {
        let exchange = self.exchange.take().expect("it was just there");
        exchange.close(world);
        if let StreamDecoder::Output = self.format {
            seen.outputs += u64::from(outcome == Outcome::Complete);
            self.is_done = true;
            return self.check_output(outcome);
        }
        if self.is_done {
            return Ok(()); // It has received that nothing exists, or nothing more.
        }
        let have_ended = self.parts.iter().all(|part| part.has_ended || part.is_over);
        if outcome == Outcome::Complete && exchange.status == Some(200) && !have_ended {
            return Err("the body is complete, and there was no end".into());
        }
        // A follower that is detached again and again without a chunk would come back without end.
        let is_detached = self.parts.iter().any(|part| part.is_detached);
        let gets_nowhere = is_detached && self.parts.iter().all(|p| p.given == Totals::ZERO);
        if gets_nowhere || self.parts.iter().all(|part| part.is_over) {
            let is_browser = matches!(self.format, StreamDecoder::Sse(_)) && !gets_nowhere;
            self.is_done =
                !is_browser || self.parts[0].reported_seq.is_none_or(|seq| !seq.is_multiple_of(4));
            self.has_all = true; // A browser comes back anyway.
        } else if !self.has_cursor() {
            self.is_done = true; // It would begin anew.
        }
        Ok(())
    }

    fn check_output(&self, outcome: Outcome) -> Result<(), String> {
        let script = self.parts[0].script;
        let mut whole = Vec::new();
        (1..=script.chunk_count).for_each(|seq| whole.extend(script.chunk(seq).1));
        let is_right = match outcome {
            _ if self.output.is_empty() => true, // Perhaps it was refused.
            Outcome::Complete => self.output == whole && !script.fails,
            Outcome::Cut => whole.starts_with(&self.output),
        };
        match is_right {
            true => Ok(()),
            false => Err(format!("{outcome:?}: output of {} bytes is wrong", self.output.len())),
        }
    }

    fn read(&mut self, body: &[u8], seen: &mut SeenCounts) -> Result<(), String> {
        let mut events: Vec<(Value, Option<String>)> = Vec::new();
        let mut input = body;
        let parse = |text: &[u8]| {
            serde_json::from_slice(text).map_err(|error| format!("{error}: {text:?}"))
        };
        match &mut self.format {
            StreamDecoder::Output => self.output.extend_from_slice(body),
            StreamDecoder::Sse(decoder) => {
                while let Some(message) = decoder.read(&mut input).map_err(|e| format!("{e}"))? {
                    let value: Value = parse(message.data_bytes())?;
                    if message.name() != value["event"].as_str().unwrap_or("") {
                        return Err(format!("{} is called {}", value, message.name()));
                    }
                    events.push((value, Some(message.id().into_owned())));
                }
            }
            StreamDecoder::Ndjson(decoder) => {
                while let Some(line) = decoder.read(&mut input).map_err(|e| format!("{e}"))? {
                    events.push((parse(line)?, None));
                }
            }
        }
        for (event, id) in events {
            let part = self.parts.iter_mut().find(|part| event["execution"] == part.id.as_str());
            let part = part.ok_or_else(|| format!("another execution: {event}"))?;
            part.take(&event, seen).map_err(|text| format!("{text}: {event}"))?;
            seen.apart += u64::from(self.is_apart && event["event"] == "chunk");
            // On a stream of one execution, the end of a detached subscriber has no id of its own.
            if let Some(id) = id
                && (self.is_combined || !part.is_detached)
            {
                self.check_id(&id)?;
            }
        }
        Ok(())
    }

    /// Checks an `id:`, which has one cursor for each execution.
    fn check_id(&self, id: &str) -> Result<(), String> {
        let cursors: Vec<&str> = id.split(',').collect();
        if cursors.len() != self.parts.len() {
            return Err(format!("id {id} is not of {} executions", self.parts.len()));
        }
        self.parts.iter().zip(cursors).try_for_each(|(part, cursor)| part.check_cursor(cursor))
    }

    /// The state of the follower, for error texts.
    pub fn describe(&self) -> String {
        let status = self.exchange.as_ref().map(|exchange| exchange.status);
        let parts: Vec<String> = self.parts.iter().map(Oracle::describe).collect();
        format!("a follower of [{}], connection: {status:?}", parts.join(", "))
    }

    /// Cuts its connection. Returns false if it has none. A follower without a cursor is then done.
    pub fn cut(&mut self, world: &SimWorld, random: &mut Random) -> bool {
        let Some(mut exchange) = self.exchange.take() else { return false };
        exchange.leave(world, random);
        if matches!(self.format, StreamDecoder::Output) || !self.has_cursor() {
            self.is_done = true;
        }
        true
    }

    /// The request that acknowledges the chunks that it has received.
    pub fn acknowledgement(&mut self) -> Option<String> {
        self.parts.iter_mut().find_map(Oracle::acknowledgement)
    }
}
