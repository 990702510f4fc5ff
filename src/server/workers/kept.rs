//! Calls that outlive their process.
//!
//! A call goes on after a restart if its chunks are kept and given with `deliver: when_durable`.
//! Its tool must not gather, and its arguments must be short. The journal then has its arguments,
//! its worker's session and its last part. That record is appended before the part's chunks. A
//! restart compares it with the bytes that the disk has: the part is there, or a piece of it, or
//! nothing.
//!
//! The record is written if the journal has room. Bytes that it does not explain end the call at
//! the next start. Nothing is given twice then, and nothing is left out.

use std::time::Duration;

use serde_json::{Value, json};

use crate::base::{ExecutionId, Principal};
use crate::endpoint::DeliveredPart;
use crate::engine::Timeouts;
use crate::limits;
use crate::reactor::Reactor;
use crate::server::guests::ServedRun;
use crate::server::workers::open_call::OpenCall;
use crate::server::{ServerShard, archive};
use crate::shard::ExecuteOptions;
use crate::shard::journal::RESTARTED;
use crate::shard::run::{Producer, Ring};
use crate::stream::Deliver;
use crate::tool::{RemoteCall, Work};
use crate::wire::write_json;

/// The last part of a call that the journal knows, and the payload bytes around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::server) struct LastPart {
    /// Its number; 0 before the first.
    number: u64,
    from_bytes: u64,
    until_bytes: u64,
    /// The result that it reports, if it is the last one of the call.
    end: Option<Result<(), Box<str>>>,
}

impl LastPart {
    /// The next part that is expected, and the bytes of it that are there already. `bytes` is the
    /// length of everything on the disk. `None` if it does not fit the record.
    fn next(&self, bytes: u64) -> Option<(u64, u64)> {
        match bytes {
            bytes if bytes == self.until_bytes => Some((self.number + 1, 0)),
            bytes if (self.from_bytes..self.until_bytes).contains(&bytes) => {
                Some((self.number, bytes - self.from_bytes))
            }
            _ => None,
        }
    }

    fn to_json(&self) -> Value {
        let LastPart { number, from_bytes, until_bytes, end } = self;
        let mut part = json!({"number": number, "from": from_bytes, "until": until_bytes});
        match end {
            None => {}
            Some(Ok(())) => part["end"] = true.into(),
            Some(Err(text)) => {
                let length = text.floor_char_boundary(limits::ERROR_TEXT_BYTES_MAX);
                part["end"] = text[..length].into();
            }
        }
        part
    }

    fn of_json(part: &Value) -> LastPart {
        let number = |name: &str| part[name].as_u64().unwrap_or(0);
        let end = match &part["end"] {
            Value::Bool(true) => Some(Ok(())),
            Value::String(text) => Some(Err(text.as_str().into())),
            _ => None,
        };
        LastPart {
            number: number("number"),
            from_bytes: number("from"),
            until_bytes: number("until"),
            end,
        }
    }
}

/// True if a restart does not end this work, if its chunks are kept.
pub(in crate::server) fn may_go_on(work: &Work, deliver: Deliver) -> bool {
    let Work::Remote(call) = work else { return false };
    let RemoteCall { arguments, gather } = &**call;
    let mut bytes = Vec::new();
    write_json(&mut bytes, arguments);
    let is_short = bytes.len() <= limits::CALL_KEPT_ARGUMENTS_BYTES_MAX;
    deliver == Deliver::WhenDurable && gather.is_none() && is_short
}

/// The member about the call in the record of an execution that goes on; `None` without a call.
pub(in crate::server) fn described(run: &ServedRun) -> Option<Value> {
    if !run.goes_on {
        return None;
    }
    let Timeouts { first_chunk, inactivity, total } = run.timeouts;
    let ms = |limit: Option<Duration>| limit.map(|limit| limit.as_millis() as u64);
    let timeouts = json!([ms(first_chunk), ms(inactivity), ms(total)]);
    if let Some(call) = &run.guest.call {
        let (arguments, part) = (&call.arguments, call.last_part.to_json());
        let session = call.session.as_deref();
        let call = json!({"arguments": arguments, "session": session, "part": part});
        return Some(with_timeouts(call, timeouts));
    }
    let Producer::Waiting(work) = &run.producer else { return None };
    let Work::Remote(call) = &**work else { return None };
    Some(with_timeouts(json!({"arguments": call.arguments}), timeouts))
}

fn with_timeouts(mut call: Value, timeouts: Value) -> Value {
    call["timeouts"] = timeouts;
    call
}

/// Notes the part that a call takes next.
pub(super) fn note_part<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    part: &DeliveredPart,
) {
    let kept_bytes = shard.kept_bytes(id);
    let Some(run) = shard.run_of_mut(id).filter(|run| run.goes_on) else { return };
    let Ring::Here(writer) = &run.ring else { return };
    let bytes = writer.total_bytes();
    let Some(call) = &mut run.guest.call else { return };
    if call.holds_bytes() || kept_bytes != Some(bytes) {
        return; // The part before is not on its way to the disk.
    }
    let length = part.content.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64);
    let from_bytes = bytes - call.skip_bytes();
    call.last_part = LastPart {
        number: call.next_seq(),
        from_bytes,
        until_bytes: (from_bytes + length).max(bytes),
        end: part.end.clone(),
    };
    note_call(shard, id);
}

/// Notes the state of a call for the next process.
pub(super) fn note_call<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExecutionId) {
    let Some(run) = shard.run_of(id).filter(|run| run.goes_on) else { return };
    let described = archive::described(&shard.guests, run);
    let _ = shard.amend(id, described); // Without room, the call may end with the process.
}

/// Takes up the calls that were open when the last process ended. Their workers have some time to
/// come back.
pub(in crate::server) fn take_up<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for open in shard.open_kept() {
        let call = &open.opened.guest["call"];
        if !call.is_object() {
            continue; // It is no worker's.
        }
        let id = open.id;
        let elapsed_us = shard.reactor.wall_us().saturating_sub(open.opened_us);
        let timeouts = Some(timeouts_of(&call["timeouts"], Duration::from_micros(elapsed_us)));
        let options = ExecuteOptions { timeouts, ..ExecuteOptions::default() };
        if shard.resume(id, &options).is_err() {
            continue; // The next start may have a place for it.
        }
        let part = LastPart::of_json(&call["part"]);
        let next = part.next(open.totals.bytes);
        let is_over = next.is_some_and(|(number, _)| number > part.number);
        let end = part.end.clone().filter(|_| is_over);
        let owner = shard.run_of(id).map_or(Principal::NOBODY, |run| run.guest.owner);
        let Some((next_seq, skip)) = next.filter(|_| owner != Principal::NOBODY && end.is_none())
        else {
            let result = end.unwrap_or_else(|| Err(RESTARTED.into()));
            let _ = shard.finish(id, result.as_ref().map(|_| ()).map_err(|text| &**text));
            continue;
        };
        let session = call["session"].as_str().map(Box::from);
        let remote = RemoteCall { arguments: call["arguments"].clone(), gather: None };
        let run = shard.run_of_mut(id).expect("it was just resumed");
        run.guest.is_remote = true;
        let open_call = OpenCall::going_on(remote, session.clone(), (next_seq, skip), part);
        run.guest.call = Some(Box::new(open_call));
        let until = shard.now + limits::WORKER_RESTART_GRACE;
        let tool = open.opened.tool.as_deref().unwrap_or_default();
        match session {
            Some(session) => shard.guests.workers.expect(owner, &session, id, until),
            None => shard.guests.workers.begin(owner, id, tool),
        }
    }
}

/// The time limits of a call that was opened this long ago. Its worker needs time to come back.
fn timeouts_of(limits_ms: &Value, elapsed: Duration) -> Timeouts {
    let limit = |at: usize| limits_ms[at].as_u64().map(Duration::from_millis);
    let (inactivity, total) = (limit(1), limit(2));
    Timeouts {
        first_chunk: inactivity.or(limit(0)).map(|limit| limit + limits::WORKER_RESTART_GRACE),
        inactivity,
        total: total.map(|total| total.saturating_sub(elapsed).max(Duration::from_millis(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_part_follows_from_the_bytes_on_the_disk() {
        let end = Some(Err("no".into()));
        let part = LastPart { number: 7, from_bytes: 100, until_bytes: 150, end };
        assert_eq!(LastPart::of_json(&part.to_json()), part);
        for (bytes, next) in [
            (99, None),
            (100, Some((7, 0))),
            (120, Some((7, 20))),
            (150, Some((8, 0))),
            (151, None),
        ] {
            assert_eq!(part.next(bytes), next, "{bytes}");
        }
        let none = LastPart::of_json(&Value::Null);
        assert_eq!((none.next(0), none.next(1)), (Some((1, 0)), None));
        // A part without content is there with its record.
        let empty = LastPart { number: 3, from_bytes: 5, until_bytes: 5, end: Some(Ok(())) };
        assert_eq!(LastPart::of_json(&empty.to_json()).next(5), Some((4, 0)));
    }
}
