//! Subscribers of executions, from the first chunk or from the last event that they have seen. Each
//! checks that it is told everything once, in order, and one end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use streamdoor::base::Random;

use crate::audit::is_of_disk;
use crate::calls::{Call, Calls, whole};
use crate::http::{Lines, between, number};

/// Executions that are followed are among the last ones.
const LAST_CALLS: u64 = 16;
const PAUSE: Duration = Duration::from_millis(1);

/// The position of a subscriber in an execution.
#[derive(Clone, Debug)]
pub struct Follow {
    pub id: String,
    is_sse: bool,
    /// The number of the last chunk.
    pub seq: u64,
    /// Number of bytes up to there, and all that can come.
    pub bytes: usize,
    whole: String,
    /// The id of the last event.
    last_id: Option<String>,
    pub is_ended: bool,
    /// True if it was told of chunks that are missing.
    pub has_gap: bool,
    /// The state at the end, and the error.
    pub end: Option<(String, String)>,
}

/// The reason why a stream of events was left.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    /// The end came, or the server has said that there is no more.
    Ended,
    /// The subscriber has had enough for now.
    Chosen,
    /// The connection broke.
    Broken,
    /// The server has no such execution.
    Missing,
}

impl Follow {
    pub fn new(id: &str, is_sse: bool) -> Follow {
        let (id, whole) = (id.to_owned(), whole(id));
        Follow {
            id,
            is_sse,
            seq: 0,
            bytes: 0,
            whole,
            last_id: None,
            is_ended: false,
            has_gap: false,
            end: None,
        }
    }

    /// Follows for at most this number of events.
    pub fn follow(&mut self, address: &str, calls: &Calls, events_max: u64) -> Left {
        let format = if self.is_sse { "sse" } else { "ndjson" };
        let mut path = format!("/v1/executions/{}/events?format={format}&policy=replay", self.id);
        let mut headers = String::new();
        match &self.last_id {
            Some(id) => headers = format!("Last-Event-ID: {id}\r\n"),
            None => path += "&from=start",
        }
        let Ok(lines) = Lines::open(address, &path, &headers) else { return Left::Broken };
        match lines.status {
            200 => {}
            204 => {
                assert!(self.is_ended, "{}: 204 at {:?}", self.id, self.last_id);
                return Left::Ended;
            }
            404 => return Left::Missing,
            status if status >= 500 => return Left::Broken, // The disk has failed.
            status => panic!("{path}, {headers}{status} {}", lines.refusal),
        }
        let (mut event_count, mut new_id) = (0, None);
        for line in lines {
            let Ok(line) = line else { return Left::Broken };
            if let Some(id) = line.strip_prefix("id: ") {
                new_id = Some(id.to_owned());
            }
            let event = line.strip_prefix("data: ").unwrap_or(&line);
            if event.starts_with("{\"event\"") {
                self.note(event, calls);
                self.last_id = new_id.take().or(self.last_id.take());
                event_count += 1;
            }
            // An id comes before its event.
            if event_count >= events_max && line.is_empty() == self.is_sse {
                return Left::Chosen;
            }
        }
        if self.is_ended { Left::Ended } else { Left::Broken }
    }

    fn note(&mut self, event: &str, calls: &Calls) {
        let id = &self.id;
        match between(event, "{\"event\":\"", '"').expect("a name") {
            "chunk" => {
                let seq = number(event, "\"seq\":").expect("a number");
                assert!(!self.is_ended, "{id}: chunk {seq} after the end");
                let is_next = seq == self.seq + 1 || (self.has_gap && seq > self.seq);
                assert!(is_next, "{id}: chunk {seq} after chunk {}", self.seq);
                let data = between(event, "\"data\":\"", '"').expect("data");
                let offset = number(event, "\"offset\":").expect("an offset") as usize;
                assert!(self.has_gap || offset == self.bytes, "{id}: chunk {seq} at {offset}");
                let expected = self.whole.get(offset..offset + data.len());
                assert!(expected == Some(data), "{id}: chunk {seq} has other bytes");
                (self.seq, self.bytes) = (seq, offset + data.len());
                calls.give(id, self.bytes);
                if !self.is_sse {
                    self.last_id = Some(format!("{id}:{seq}:{}", self.bytes));
                }
            }
            "gap" => self.has_gap = true,
            "end" => {
                let state = between(event, "\"state\":\"", '"').expect("a state");
                if state == "detached" {
                    return; // The end of this connection, and not of the execution.
                }
                assert!(!self.is_ended, "{id}: a second end, {state}");
                self.is_ended = true;
                let error = between(event, "\"error\":\"", '"').unwrap_or("");
                self.end = Some((state.to_owned(), error.to_owned()));
                if !is_of_disk(error) {
                    calls.tell_end(id, state);
                }
                if let (false, Some(last)) = (self.is_sse, &mut self.last_id) {
                    last.push_str(":end");
                }
            }
            _ => {}
        }
    }
}

/// Follows executions until `is_over`. Returns the positions when the server went away.
pub fn subscribe(
    address: &str,
    mut random: Random,
    calls: &Calls,
    is_over: &AtomicBool,
) -> Vec<Follow> {
    let mut follows: Vec<Follow> = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let at = follows.iter().position(|follow| !follow.is_ended && !follow.has_gap);
        let at = match at.filter(|_| random.chance(3, 4)) {
            Some(at) => at,
            None => {
                let chosen = calls.with(|calls| {
                    let first = (calls.len() as u64).saturating_sub(LAST_CALLS);
                    let at = first + random.below(calls.len() as u64 - first);
                    calls.get(at as usize).map(|call: &Call| call.id.clone())
                });
                let is_new = |id: &String| follows.iter().all(|follow| follow.id != *id);
                let Some(id) = chosen.filter(is_new) else {
                    std::thread::sleep(PAUSE);
                    continue;
                };
                follows.push(Follow::new(&id, random.chance(1, 2)));
                follows.len() - 1
            }
        };
        let events_max = if random.chance(1, 3) { random.between(1, 12) } else { u64::MAX };
        match follows[at].follow(address, calls, events_max) {
            Left::Ended | Left::Chosen => {}
            Left::Broken => break,
            // Its opening was not kept before it was announced to the worker.
            Left::Missing => panic!("{} is not there", follows[at].id),
        }
    }
    follows
}
