//! The events that a client receives about one execution, checked one by one.

use serde_json::Value;

use super::script::Script;
use crate::stream::{Kind, Policy, Totals};

/// The counts of events, for the coverage of many seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeenCounts {
    pub chunks: u64,
    pub gaps: u64,
    pub progress: u64,
    pub ends: u64,
    pub detached: u64,
    pub resumed: u64,
    pub seen_to_end: u64,
    pub gone: u64,
    pub outputs: u64,
    /// Chunks of streams over both shards.
    pub apart: u64,
}

/// Kinds that a client can request.
pub(super) const NAMES: [(Kind, &str); 3] =
    [(Kind::Output, "output"), (Kind::Log, "log"), (Kind::Json, "json")];

/// The printed form.
pub(super) type SubscriberName = String;

/// One execution as one client sees it.
pub(super) struct Oracle {
    pub id: String,
    pub script: Script,
    policy: Policy,
    /// Number of chunks that it may lag by, or `None` for the policy's default.
    pub lag_max: Option<u64>,
    kinds: Vec<Kind>,
    /// The last chunk that it knows, over all its connections; `None` before the first `started`.
    pub reported_seq: Option<u64>,
    /// The totals of this connection.
    pub given: Totals,
    missed: Totals,
    pub has_started: bool,
    pub has_ended: bool,
    pub is_detached: bool,
    /// True if it received the execution's own end: nothing may come any more, on any connection.
    pub is_over: bool,
    /// True if it requests acknowledgements. The next fields have the chunk to acknowledge, and the
    /// subscriber's name.
    pub acknowledges: bool,
    to_acknowledge: Option<(SubscriberName, u64)>,
    subscriber: SubscriberName,
}

impl Oracle {
    pub fn new(
        id: &str,
        script: Script,
        policy: Policy,
        kinds: Vec<Kind>,
        acknowledges: bool,
    ) -> Oracle {
        Oracle {
            id: id.to_owned(),
            script,
            policy,
            lag_max: None,
            kinds,
            reported_seq: None,
            given: Totals::ZERO,
            missed: Totals::ZERO,
            has_started: false,
            has_ended: false,
            is_detached: false,
            is_over: false,
            acknowledges,
            to_acknowledge: None,
            subscriber: SubscriberName::new(),
        }
    }

    /// Begins a new connection. `says_all`: with a cursor that also covers the end.
    pub fn connect(&mut self, says_all: bool) {
        self.is_over &= says_all;
        (self.given, self.missed) = (Totals::ZERO, Totals::ZERO);
        (self.has_started, self.has_ended, self.is_detached) = (false, false, false);
    }

    /// Its options, as a part of a query.
    pub fn query(&self) -> String {
        let mut query = format!("policy={}", self.policy.name());
        for kind in &self.kinds {
            query += &format!("&kinds={}", kind.name());
        }
        if let Some(lag_max) = self.lag_max {
            query += &format!("&max_chunks={lag_max}");
        }
        if self.acknowledges {
            query += "&acks=4";
        }
        query
    }

    /// Checks its cursor in an `id:`, which has its position.
    pub fn check_cursor(&self, cursor: &str) -> Result<(), String> {
        let mut expected = match self.reported_seq {
            Some(reported_seq) => format!("{}:{reported_seq}:", self.id),
            None => format!("{}:", self.id), // Its `started` is still to come.
        };
        if self.is_over {
            expected = format!("{}:{}:", self.id, self.script.chunk_count);
            if !cursor.starts_with(&expected) {
                expected = format!("{}:", self.id); // It was cancelled before its last chunk.
            }
        }
        match cursor.starts_with(&expected) && cursor.ends_with(":end") == self.is_over {
            true => Ok(()),
            false => Err(format!("cursor {cursor} where {expected} was expected")),
        }
    }

    /// The state of the oracle, for error texts.
    pub fn describe(&self) -> String {
        let Oracle { id, policy, reported_seq, has_started, has_ended, acknowledges, .. } = self;
        format!(
            "{id} ({:?}) under {policy}, acknowledging: {acknowledges}, at {reported_seq:?}, \
             started: {has_started}, ended: {has_ended}",
            self.script
        )
    }

    /// Takes an event. A violation by the server is an error.
    pub fn take(&mut self, event: &Value, seen: &mut SeenCounts) -> Result<(), String> {
        let number = |name: &str| event[name].as_u64().ok_or(format!("{name} is missing"));
        let must = |holds: bool, text: &str| if holds { Ok(()) } else { Err(text.to_owned()) };
        must(!self.has_ended, "something comes behind the end")?;
        must(!self.is_over, "it is told again what it has")?;
        let name = event["event"].as_str().unwrap_or("");
        must((name == "started") != self.has_started, "`started` is the first, and once")?;
        match name {
            "started" => {
                self.has_started = true;
                let from_seq = number("from_seq")?;
                match self.reported_seq {
                    None => self.reported_seq = Some(from_seq - 1),
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
                self.reported_seq = Some(to_seq);
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

    /// Checks that no chunk of its kinds is between the last one and this one.
    fn skip_to(&mut self, seq: u64) -> Result<(), String> {
        let reported_seq = self.reported_seq.expect("it was started");
        if seq <= reported_seq {
            return Err(format!("chunk {seq} comes behind {reported_seq}"));
        }
        let between = self.script.sum(&self.kinds, reported_seq + 1, seq - 1);
        if between != Totals::ZERO {
            return Err(format!("nothing is said of {between:?} behind {reported_seq}"));
        }
        self.reported_seq = Some(seq);
        Ok(())
    }

    fn end(&mut self, event: &Value, seen: &mut SeenCounts) -> Result<(), String> {
        self.has_ended = true;
        seen.ends += 1;
        let number = |name: &str| event[name].as_u64().ok_or(format!("{name} is missing"));
        let given = Totals { chunks: number("chunks")?, bytes: number("bytes")? };
        let missed = Totals { chunks: number("missed_chunks")?, bytes: number("missed_bytes")? };
        if (given, missed) != (self.given, self.missed) {
            return Err(format!("its sums are not {:?} and {:?}", self.given, self.missed));
        }
        let published =
            Totals { chunks: number("execution_chunks")?, bytes: number("execution_bytes")? };
        let reported_seq = self.reported_seq.expect("it was started");
        // A lost worker, or a cancelled tool, may have stopped anywhere behind that.
        let last_seq = match event["state"].as_str() {
            Some("detached") => number("resume_from")?.saturating_sub(1),
            Some("completed") => self.script.chunk_count,
            _ => reported_seq,
        };
        let expected = self.script.sum(&self.kinds, 1, last_seq);
        if published != expected {
            return Err(format!("the execution has published {expected:?}, not {published:?}"));
        }
        match event["state"].as_str() {
            Some("detached") => {
                self.is_detached = true;
                seen.detached += 1;
            }
            // Its worker was gone, or had forgotten its work.
            Some("failed") if self.script.is_remote && event["error"] != "as its script says" => {
                self.is_over = true;
            }
            Some("completed" | "failed") => {
                let rest = self.script.sum(&self.kinds, reported_seq + 1, self.script.chunk_count);
                if rest != Totals::ZERO {
                    return Err(format!("nothing was said of {rest:?} behind {reported_seq}"));
                }
                self.is_over = true;
            }
            Some("cancelled") => self.is_over = true,
            other => return Err(format!("state {other:?}")),
        }
        Ok(())
    }

    /// The request that acknowledges the chunks that it has received.
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

/// The bytes of a chunk, from its event.
fn data(event: &Value) -> Result<Vec<u8>, String> {
    let text = event["data"].as_str().ok_or("no data")?;
    match event["encoding"].as_str() {
        Some("text") => Ok(text.as_bytes().to_vec()),
        Some("base64") => Ok(decoded(text)),
        other => Err(format!("encoding {other:?}")),
    }
}

/// Decodes base 64, independently of the server's code.
pub(super) fn decoded(text: &str) -> Vec<u8> {
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
