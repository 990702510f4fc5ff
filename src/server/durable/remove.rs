//! Removes streams: by request, at the end of their time, and with their last fork.

use super::{Key, Stream, keep, marker, not_kept, own_index, refuse, touch};
use crate::base::{ExecutionId, Instant};
use crate::endpoint::durable::answer_refused;
use crate::endpoint::{Answer, DurableHeaders};
use crate::journal::Refused;
use crate::journal::format::Lsn;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::{Answered, answer_waiting, wait};
use crate::server::{ServerShard, cluster, executions};
use crate::wire::http1::Status;

/// Removes a stream. The answer comes when the disk keeps that.
pub(super) fn remove<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    at: usize,
) -> Answered {
    match begin(shard, Some(id), at) {
        Err(refused) => refuse(shard, id, &not_kept(refused)),
        Ok(()) => wait(shard, id),
    }
}

/// A removal that waits for the disk.
#[derive(Debug)]
pub(super) struct Removal {
    /// The connection that waits for it, if there is one.
    connection: Option<ConnectionId>,
    key: Key,
    awaited: Awaited,
}

/// Lets a connection wait for the removal of a stream that is under way; `None` without one.
///
/// The path is free already. An answer that says so would be wrong after a power cut.
pub(super) fn join<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    key: &Key,
) -> Option<Answered> {
    let removals = &mut shard.guests.durable.removals;
    let awaited = removals.iter().find(|removal| removal.key == *key)?.awaited;
    removals.push(Removal { connection: Some(id), key: key.clone(), awaited });
    Some(wait(shard, id))
}

/// Tells all that wait for the removal of a stream what the disk has to keep. It is the last record
/// about the stream, and takes the place of those before.
fn note_taken<R: Reactor + 'static>(shard: &mut ServerShard<R>, key: &Key, awaited: Awaited) {
    let all = shard.guests.durable.removals.iter_mut();
    all.filter(|removal| removal.key == *key).for_each(|removal| removal.awaited = awaited);
}

/// Begins to remove a stream, and notes the connection that waits for it.
fn begin<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: Option<ConnectionId>,
    at: usize,
) -> Result<(), Refused> {
    let key = shard.guests.durable.streams[at].key.clone();
    let awaited = match take_away(shard, at) {
        Ok(awaited) => {
            note_taken(shard, &key, awaited);
            awaited
        }
        Err(Refused::Full) => {
            // An append is on its way to the disk, or there is no room. It is tried again.
            let stream = &mut shard.guests.durable.streams[at];
            stream.state.is_gone = true;
            Awaited::Room(stream.execution, shard.now + limits::DURABLE_ROOM_WAIT)
        }
        Err(refused) => {
            shard.guests.durable.streams[at].state.is_gone = false;
            return Err(refused);
        }
    };
    shard.guests.durable.removals.push(Removal { connection: id, key, awaited });
    Ok(())
}

/// The record that the disk has to keep before a removal is answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaited {
    /// Nothing: the disk has nothing of the stream.
    Nothing,
    /// The end of the execution, or room for a record, until this time.
    Room(ExecutionId, Instant),
    /// The tombstone of the execution, before this place.
    Tombstone(Lsn),
    /// The beginning of this execution, which says that the stream is gone.
    Opened(ExecutionId),
    /// The description at this place, which says that the stream is gone.
    Described(ExecutionId, Lsn),
}

/// Removes a stream, or only its path's content if others begin with it. Returns what the disk has
/// to keep then.
fn take_away<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
) -> Result<Awaited, Refused> {
    let stream = &mut shard.guests.durable.streams[at];
    if stream.fork_count > 0 {
        stream.state.is_gone = true;
        let execution = stream.execution;
        let noted = keep::note(shard, at).and_then(|noted| match noted {
            Some(lsn) => Ok(Awaited::Described(execution, lsn)),
            None => marker::mark(shard, at).map(Awaited::Opened),
        });
        let awaited = noted.inspect_err(|_| {
            shard.guests.durable.streams[at].state.is_gone = false;
        })?;
        touch(shard, at);
        let durable = &mut shard.guests.durable;
        let key = durable.streams[at].key.clone();
        durable.paths.hide(&key);
        durable.note_moved(&key);
        return Ok(awaited);
    }
    let (execution, marked) = (stream.execution, stream.marker);
    super::rest::make_present(shard, at).map_err(|_| Refused::Full)?;
    // Its readers must not take this end for its own. A start must not, either, if the tombstone is
    // lost: the description says it before. The stream may be closed already.
    let is_running = shard.run_of(execution).is_some_and(|run| !run.has_verdict);
    shard.guests.durable.streams[at].state.is_gone = true;
    if is_running {
        keep::note(shard, at)?;
        let _ = shard.finish(execution, Err("the stream was removed"));
    }
    let tombstone = executions::erase(shard, execution)?;
    if let Some(marked) = marked {
        marker::remove(shard, marked);
    }
    drop_entry(shard, at);
    Ok(tombstone.map_or(Awaited::Nothing, Awaited::Tombstone))
}

/// Removes a stream for which there was no room before. Returns false if it has to be looked at
/// again.
fn try_again<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    until: Instant,
) -> Result<bool, Refused> {
    let durable = &mut shard.guests.durable;
    let Some(&at) = durable.by_execution.get(&execution) else { return Ok(true) };
    let key = durable.streams[at].key.clone();
    match take_away(shard, at) {
        Ok(awaited) => {
            note_taken(shard, &key, awaited);
            Ok(false)
        }
        Err(Refused::Full) if shard.now < until => Ok(false),
        Err(refused) => {
            let durable = &mut shard.guests.durable;
            durable.streams[at].state.is_gone = false;
            Err(refused)
        }
    }
}

/// Removes a stream from the table, and its source if that was kept for it alone.
pub(super) fn drop_entry<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    let own = own_index(shard);
    let durable = &mut shard.guests.durable;
    let stream = durable.streams.remove(at);
    durable.replies.forget(stream.execution);
    let Stream { key, execution, source, deadline, publishing, waiting, unconfirmed, .. } = stream;
    if stream.fork_count > 0 {
        // Its content is gone with its segments, and its forks have only their own.
        for (_, fork) in durable.streams.iter_mut().filter(|(_, fork)| fork.source == Some(at)) {
            fork.source = None;
        }
    }
    durable.by_key.remove(&key);
    durable.by_execution.remove(&execution);
    durable.paths.free(&key, own);
    durable.note_moved(&key);
    let freed = key.clone();
    if let Some(deadline) = deadline {
        durable.deadlines.remove(&(deadline, at));
    }
    durable.busy.retain(|other| *other != at);
    let waiting = waiting.into_iter().map(|(id, _)| id);
    let publishing = publishing.into_iter().map(|publishing| publishing.connection);
    let unconfirmed = unconfirmed.into_iter().map(|unconfirmed| unconfirmed.connection);
    let answer = answer_refused(&crate::engine::NotFound.into());
    for id in waiting.chain(publishing).chain(unconfirmed).flatten() {
        answer_waiting(shard, id, &answer);
    }
    cluster::free_path(shard, freed.into());
    let Some(source) = source else { return };
    let durable = &mut shard.guests.durable;
    let stream = &mut durable.streams[source];
    stream.fork_count -= 1;
    if stream.fork_count == 0 && stream.state.is_gone {
        let (key, execution) = (stream.key.clone(), stream.execution);
        match take_away(shard, source) {
            // Its own removal may wait for a record that is removed, too.
            Ok(awaited) => note_taken(shard, &key, awaited),
            Err(Refused::Full) => {
                // Its end has to get to the disk first. Nobody waits for that.
                let awaited = Awaited::Room(execution, Instant::FAR);
                shard.guests.durable.removals.push(Removal { connection: None, key, awaited });
            }
            Err(_) => {} // The disk has failed.
        }
    }
}

/// Ends the time of a stream.
pub(super) fn expire<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    if begin(shard, None, at).is_err() {
        // The disk has failed. Nobody finds the stream any more.
        shard.guests.durable.streams[at].state.is_gone = true;
    }
    if shard.guests.durable.streams.contains(at) {
        touch(shard, at); // It has no deadline any more.
    }
}

/// Ends the time of streams that nobody has used or reads.
pub(in crate::server) fn fire_deadlines<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    super::rest::let_rest(shard);
    let now = shard.now;
    while let Some(&(deadline, at)) = shard.guests.durable.deadlines.first()
        && deadline <= now
    {
        shard.worked = true;
        let stream = &shard.guests.durable.streams[at];
        let (execution, slides) = (stream.execution, stream.state.config.ttl_s.is_some());
        let is_busy = !stream.unconfirmed.is_empty() || stream.publishing.is_some();
        if is_busy {
            postpone(shard, at, deadline);
            continue;
        }
        let is_read =
            slides && shard.inspect(execution).is_ok_and(|status| status.subscriber_count > 0);
        match is_read {
            true => touch(shard, at),
            false => expire(shard, at),
        }
    }
}

/// Lets a stream live until its appends are answered.
fn postpone<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize, deadline: Instant) {
    let later = shard.now + limits::DURABLE_POSTPONED;
    let durable = &mut shard.guests.durable;
    durable.deadlines.remove(&(deadline, at));
    durable.deadlines.insert((later, at));
    durable.streams[at].deadline = Some(later);
}

/// Answers the removals that the disk keeps.
pub(super) fn settle<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let mut at = 0;
    while let Some(removal) = shard.guests.durable.removals.get(at) {
        let is_kept = match removal.awaited {
            Awaited::Nothing => Ok(true),
            Awaited::Room(execution, until) => try_again(shard, execution, until),
            Awaited::Tombstone(lsn) => shard.is_synced_to(lsn),
            Awaited::Opened(execution) => shard.is_durable_to(execution, 0),
            Awaited::Described(execution, lsn) => shard.is_amended(execution, lsn),
        };
        let answer = match is_kept {
            Ok(false) => {
                at += 1;
                continue;
            }
            Ok(true) => Answer::durable(Status::NO_CONTENT, DurableHeaders::default(), Vec::new()),
            Err(refused) => answer_refused(&not_kept(refused)),
        };
        if let Some(id) = shard.guests.durable.removals.remove(at).connection {
            answer_waiting(shard, id, &answer);
        }
    }
}
