//! Removes streams: by request, at the end of their time, and with their last fork.

use super::{Stream, answer_waiting, keep, not_kept, own_index, refuse, touch, wait};
use crate::base::ExecutionId;
use crate::endpoint::durable::answer_refused;
use crate::endpoint::{Answer, DurableHeaders};
use crate::journal::Refused;
use crate::journal::format::Lsn;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::ServerShard;
use crate::server::hub::Answered;
use crate::wire::http1::Status;

/// Removes a stream. The answer comes when the disk keeps that.
pub(super) fn remove<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    at: usize,
) -> Answered {
    match take_away(shard, at) {
        Err(refused) => refuse(shard, id, &not_kept(refused)),
        Ok(awaited) => {
            shard.guests.durable.removals.push((id, awaited));
            wait(shard, id)
        }
    }
}

/// The record that the disk has to keep before a removal is answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaited {
    /// Nothing: the disk has nothing of the stream.
    Nothing,
    /// The tombstone of the execution, before this place.
    Tombstone(Lsn),
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
        let noted = match keep::note(shard, at) {
            Ok(noted) => noted,
            Err(refused) => {
                shard.guests.durable.streams[at].state.is_gone = false;
                return Err(refused);
            }
        };
        touch(shard, at);
        let execution = shard.guests.durable.streams[at].execution;
        return Ok(noted.map_or(Awaited::Nothing, |lsn| Awaited::Described(execution, lsn)));
    }
    let execution = stream.execution;
    super::rest::make_present(shard, at).map_err(|_| Refused::Full)?;
    let _ = shard.finish(execution, Ok(())); // It may be closed already.
    let lsn = shard.delete_kept(execution)?;
    if let Some(run) = shard.run_of_mut(execution) {
        run.guest.owner = crate::base::Principal::NOBODY;
    }
    shard.guests.archive.forget(execution);
    drop_entry(shard, at);
    Ok(lsn.map_or(Awaited::Nothing, Awaited::Tombstone))
}

/// Removes a stream from the table, and its source if that was kept for it alone.
pub(super) fn drop_entry<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    let own = own_index(shard);
    let durable = &mut shard.guests.durable;
    let stream = durable.streams.remove(at);
    let Stream { key, execution, source, deadline, publishing, waiting, unconfirmed, .. } = stream;
    durable.by_key.remove(&key);
    durable.by_execution.remove(&execution);
    durable.paths.free(&key, own);
    if let Some(deadline) = deadline {
        durable.deadlines.remove(&(deadline, at));
    }
    durable.busy.retain(|other| *other != at);
    let waiting = waiting.into_iter().map(|(id, _)| Some(id));
    let publishing = publishing.into_iter().map(|publishing| publishing.connection);
    let unconfirmed = unconfirmed.into_iter().map(|unconfirmed| unconfirmed.connection);
    let answer = answer_refused(&crate::engine::NotFound.into());
    for id in waiting.chain(publishing).chain(unconfirmed).flatten() {
        answer_waiting(shard, id, &answer);
    }
    let Some(source) = source else { return };
    let durable = &mut shard.guests.durable;
    durable.streams[source].fork_count -= 1;
    if durable.streams[source].fork_count == 0 && durable.streams[source].state.is_gone {
        let _ = take_away(shard, source); // The next start tries again.
    }
}

/// Ends the time of a stream.
pub(super) fn expire<R: Reactor + 'static>(shard: &mut ServerShard<R>, at: usize) {
    if take_away(shard, at).is_err() {
        // The disk takes nothing. Nobody finds the stream any more.
        shard.guests.durable.streams[at].state.is_gone = true;
        touch(shard, at);
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
        let is_read =
            slides && shard.inspect(execution).is_ok_and(|status| status.subscriber_count > 0);
        match is_read {
            true => touch(shard, at),
            false => expire(shard, at),
        }
    }
}

/// Answers the removals that the disk keeps.
pub(super) fn settle<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for (id, awaited) in std::mem::take(&mut shard.guests.durable.removals) {
        let is_kept = match awaited {
            Awaited::Nothing => Ok(true),
            Awaited::Tombstone(lsn) => shard.is_synced_to(lsn),
            Awaited::Described(execution, lsn) => shard.is_amended(execution, lsn),
        };
        let answer = match is_kept {
            Ok(false) => {
                shard.guests.durable.removals.push((id, awaited));
                continue;
            }
            Ok(true) => Answer::durable(Status::NO_CONTENT, DurableHeaders::default(), Vec::new()),
            Err(refused) => answer_refused(&not_kept(refused)),
        };
        answer_waiting(shard, id, &answer);
    }
}
