//! Appends to streams: judged, published message by message, and answered when the disk has them.

use std::ops::Range;

use super::paths::Raised;
use super::state::Judged;
use super::{
    Key, Publishing, Stream, Unconfirmed, delayed, find, keep, not_kept, read, refuse, remove,
    rest, tell_moved, touch,
};
use crate::base::ExecutionId;
use crate::base::planted::{Planted, planted};
use crate::endpoint::durable::answer_refused;
use crate::endpoint::{Answer, ApiError, Appended};
use crate::engine::NotFound;
use crate::journal::Refused;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::{Answered, answer_waiting, wait};
use crate::server::{ServerShard, hub};
use crate::stream::Kind;
use crate::wire::durable::Mode;
use crate::wire::http1::Status;

/// Appends to a stream, closes it, or both.
pub(super) fn append<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    at: usize,
    appended: Box<Appended>,
) -> Answered {
    let stream = &mut shard.guests.durable.streams[at];
    if stream.waiting.len() + stream.unconfirmed.len() >= limits::DURABLE_WAITING_MAX {
        let text = "too many appends to this stream wait for the disk";
        let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", text);
        return refuse(shard, id, &error.retry_after(limits::BUSY_RETRY_AFTER));
    }
    if !stream.waiting.is_empty() || !is_ready(shard, at) {
        shard.guests.durable.streams[at].waiting.push_back((Some(id), appended));
        return wait(shard, id);
    }
    match begin(shard, Some(id), at, *appended) {
        None => wait(shard, id),
        Some(answer) => hub::answer(shard, id, &answer),
    }
}

/// Appends a message about a wake to a stream of this shard. It wakes no subscription. Returns the
/// reason if there is no such stream, or it takes nothing.
pub(in crate::server) fn append_wake<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    key: &Key,
    message: Vec<u8>,
) -> Result<(), &'static str> {
    let at = find(shard, key).ok_or("there is no such stream")?;
    let stream = &mut shard.guests.durable.streams[at];
    if stream.state.is_gone || stream.state.config.mode() != Mode::Json {
        return Err("it is no stream of JSON");
    }
    if stream.waiting.len() + stream.unconfirmed.len() >= limits::DURABLE_WAITING_MAX {
        return Err("too many appends to it wait for the disk");
    }
    let media_type = Some(stream.state.config.media_type.clone());
    let appended = Box::new(Appended { media_type, body: message, ..Appended::default() });
    if !stream.waiting.is_empty() || !is_ready(shard, at) {
        shard.guests.durable.streams[at].waiting.push_back((None, appended));
        return Ok(());
    }
    match begin(shard, None, at, *appended) {
        None => Ok(()),
        Some(_) => Err("it takes nothing"),
    }
}

/// True if the first append that waits may begin (Q2). Otherwise the stream is looked at again when
/// the disk has the last one.
fn is_ready<R: Reactor + 'static>(shard: &ServerShard<R>, at: usize) -> bool {
    let stream = &shard.guests.durable.streams[at];
    stream.publishing.is_none()
        && (stream.unconfirmed.is_empty()
            || shard.has_recorded(stream.execution)
            || planted(Planted::DescribedTooEarly))
}

/// True if the disk has all appends so far.
pub(super) fn has_all(stream: &Stream) -> bool {
    stream.unconfirmed.is_empty() || planted(Planted::RefusedTooEarly)
}

/// Begins an append. Returns the answer if it was refused. Without a connection it is one of the
/// server's own, which wakes no subscription.
fn begin<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: Option<ConnectionId>,
    at: usize,
    appended: Appended,
) -> Option<Answer> {
    if let Err(error) = rest::make_present(shard, at) {
        return Some(answer_refused(&error));
    }
    let stream = &mut shard.guests.durable.streams[at];
    let messages = match stream.state.judge(&appended) {
        // It speaks of appends that a crash may take back until the disk has them.
        Judged::Refused(answer) if id.is_none() || has_all(stream) => return Some(answer),
        Judged::Refused(answer) | Judged::Repeated(answer) => {
            let (seq, position) = (u64::MAX, stream.state.tail);
            confirm_later(shard, at, (id, false), (answer, seq, position, false));
            return None;
        }
        Judged::Accepted(messages) => messages,
    };
    let bytes: usize = messages.iter().map(Range::len).sum();
    // A single short chunk is whole on the disk or not there. Everything else is described first.
    let has_producer = appended.producer.is_some() && !planted(Planted::ProducerNotKept);
    let is_plain = !has_producer && appended.seq.is_none() && !appended.closes;
    let is_one_chunk = messages.len() <= 1 && bytes <= limits::DURABLE_CHUNK_BYTES;
    let is_described = !(is_plain && is_one_chunk) || stream.is_undescribed;
    let before = is_described.then(|| stream.state.clone());
    stream.state.accept(&appended, bytes as u64);
    if let Some(before) = before
        && let Err(refused) = keep::note(shard, at)
    {
        shard.guests.durable.streams[at].state = before;
        return Some(answer_refused(&not_kept(refused)));
    }
    let stream = &mut shard.guests.durable.streams[at];
    stream.is_undescribed = false;
    stream.tail.position.set(stream.state.tail);
    if bytes > 0 {
        stream.tail.ends.borrow_mut().push_back(stream.state.tail);
        // The disk has the description before the last chunk. An append without chunks closes the
        // stream when the disk has the end of the execution.
        stream.tail.is_closed.set(stream.state.closed.is_some());
    }
    stream.publishing = Some(Box::new(Publishing {
        connection: id,
        is_silent: id.is_none(),
        answer: stream.state.accepted(&appended),
        left: messages.into_iter().rev().collect(),
        body: appended.body,
        published_bytes: 0,
        closes: appended.closes,
    }));
    touch(shard, at);
    publish(shard, at);
    None
}

/// Publishes as much of an append as there is room for. At its end the answer waits for the disk.
pub(super) fn publish<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    let execution = shard.guests.durable.streams[at].execution;
    let place = shard.place_of(execution);
    loop {
        let stream = &mut shard.guests.durable.streams[at];
        let Some(mut publishing) = stream.publishing.take() else { return };
        let Some(message) = publishing.left.last() else {
            end_publishing(shard, at, place, *publishing);
            return;
        };
        let rest = &publishing.body[message.start + publishing.published_bytes..message.end];
        let rest_bytes = rest.len();
        match shard.publish_pieces(execution, Kind::Output, rest) {
            Ok(bytes) if bytes == rest_bytes => {
                publishing.left.pop();
                publishing.published_bytes = 0;
                shard.guests.durable.streams[at].publishing = Some(publishing);
            }
            Ok(bytes) => {
                publishing.published_bytes += bytes;
                let durable = &mut shard.guests.durable;
                durable.streams[at].publishing = Some(publishing);
                return; // The shard tells when there is room.
            }
            Err(_) => {
                // The execution has ended: the disk has failed, or somebody has cancelled it.
                let answer = answer_refused(&failure(shard));
                if let Some(id) = publishing.connection {
                    answer_waiting(shard, id, &answer);
                }
                return shard.guests.durable.make_busy(at);
            }
        }
    }
}

fn end_publishing<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    place: ExecutionId,
    publishing: Publishing,
) {
    let Publishing { connection, is_silent, answer, closes, .. } = publishing;
    let stream = &shard.guests.durable.streams[at];
    let (execution, position) = (stream.execution, stream.state.tail);
    let seq = shard.runs[place.slot.index as usize].as_ref().map_or(0, |run| run.head_seq());
    if closes {
        let _ = shard.finish(execution, Ok(())); // It may have just been cancelled.
    }
    confirm_later(shard, at, (connection, is_silent), (answer, seq, position, closes));
}

/// Makes an answer wait until the disk has everything so far.
pub(super) fn answer_when_kept<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    at: usize,
    answer: Answer,
) -> Answered {
    let position = shard.guests.durable.streams[at].state.tail;
    confirm_later(shard, at, (Some(id), false), (answer, u64::MAX, position, false));
    wait(shard, id)
}

/// Makes an answer wait for the chunk with this number; `u64::MAX`: for all so far.
fn confirm_later<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    (connection, is_silent): (Option<ConnectionId>, bool),
    (answer, seq, position, is_end): (Answer, u64, u64, bool),
) {
    let execution = shard.guests.durable.streams[at].execution;
    let head_seq = shard.run_of(execution).map_or(0, |run| run.head_seq());
    let durable = &mut shard.guests.durable;
    let stream = &mut durable.streams[at];
    let seq = seq.min(head_seq);
    let is_end = is_end || (seq == head_seq && stream.state.closed.is_some());
    let next = Unconfirmed { connection, answer, seq, position, is_end, is_silent };
    stream.unconfirmed.push_back(next);
    durable.make_busy(at);
}

/// Goes on with the streams for which the disk or a ring has moved.
pub(in crate::server) fn settle<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for at in std::mem::take(&mut shard.guests.durable.busy) {
        let Some(stream) = shard.guests.durable.streams.get_mut(at) else { continue };
        stream.is_busy = false;
        publish(shard, at);
        confirm(shard, at);
        begin_next(shard, at);
    }
    remove::settle(shard);
    delayed::settle(shard);
    read::settle(shard);
    if shard.guests.durable.untold != 0 {
        tell_moved(shard);
    }
}

/// Answers everything of a stream that the disk has.
fn confirm<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    loop {
        let stream = &shard.guests.durable.streams[at];
        let Some(next) = stream.unconfirmed.front() else { return };
        let is_kept = is_kept(shard, stream.execution, next.seq, next.is_end);
        if is_kept == Ok(false) {
            return;
        }
        let stream = &mut shard.guests.durable.streams[at];
        let next = stream.unconfirmed.pop_front().expect("it was just there");
        let answer = match is_kept {
            Ok(_) => {
                stream.tail.show(next.position);
                show_tail(shard, at, next.position, next.is_silent);
                next.answer
            }
            Err(refused) => answer_refused(&not_kept(refused)),
        };
        if let Some(id) = next.connection {
            answer_waiting(shard, id, &answer);
        }
    }
}

/// Shows the end of a stream to all shards, and wakes subscriptions if it has moved.
fn show_tail<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    position: u64,
    is_silent: bool,
) {
    let durable = &mut shard.guests.durable;
    let Stream { head: Some(head), key, .. } = &durable.streams[at] else { return };
    if head.raise_tail(position) == Raised::Moved && !is_silent {
        durable.untold |= durable.paths.note_moved(key);
    }
}

/// True if the disk has the chunks of an execution through `seq`, and its end if `is_end`.
fn is_kept<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: ExecutionId,
    seq: u64,
    is_end: bool,
) -> Result<bool, Refused> {
    if !shard.is_durable_to(execution, seq)? {
        return Ok(false);
    }
    let run = shard.run_of(execution);
    Ok(!is_end || run.is_none_or(|run| run.has_verdict))
}

/// Notes how much of a stream the disk has by now.
pub(super) fn look_at_shown<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) -> u64 {
    let stream = &shard.guests.durable.streams[at];
    let kept = stream
        .unconfirmed
        .iter()
        .take_while(|next| is_kept(shard, stream.execution, next.seq, false) == Ok(true));
    if let Some(position) = kept.map(|next| next.position).last() {
        stream.tail.show(position);
    }
    stream.tail.shown.get()
}

/// Begins the appends that wait, as long as there is room.
fn begin_next<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    loop {
        if !is_ready(shard, at) {
            return;
        }
        let stream = &mut shard.guests.durable.streams[at];
        let Some((id, appended)) = stream.waiting.pop_front() else { return };
        if id.is_some_and(|id| shard.guests.hub.connection(id).is_none()) {
            continue; // Nothing of it was accepted.
        }
        if let (Some(answer), Some(id)) = (begin(shard, id, at, *appended), id) {
            answer_waiting(shard, id, &answer);
        }
    }
}

/// Returns the error for an execution that takes nothing any more.
fn failure<R: Reactor + 'static>(shard: &ServerShard<R>) -> ApiError {
    match shard.journal().and_then(|journal| journal.fault) {
        Some(_) => not_kept(Refused::Broken),
        None => NotFound.into(),
    }
}
