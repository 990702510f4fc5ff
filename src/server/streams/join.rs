//! Readers for other shards, and the start of a stream once the readers of all shards have come.

use crate::base::ExecutionId;
use crate::endpoint::ApiError;
use crate::engine::{From, NotFound};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::hub::connection::Doing;
use crate::server::peers::join::{self, Joined, Joining, Part, Wanted};
use crate::server::streams::follow::is_over;
use crate::server::{ServerShard, executions, hub, streams};
use crate::wire::http1::Status;

/// Returns readers of this shard's rings, for another shard.
pub(in crate::server) fn join_for<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    wanted: &Wanted,
) -> Vec<(usize, Part)> {
    if shard.signals.departed.take() {
        shard.dismiss_departed(); // One may belong to the client that reconnects now.
    }
    let mut parts = Vec::with_capacity(wanted.executions.len());
    for &(at, execution, from) in &wanted.executions {
        parts.push((at, join_one(shard, wanted, execution, from)));
    }
    parts
}

fn join_one<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    wanted: &Wanted,
    execution: ExecutionId,
    from: From,
) -> Part {
    let Wanted { principal, delivery_options, seen_ends, reactor, .. } = wanted;
    if !executions::is_owned(shard, execution, *principal) {
        return Part::Refused(NotFound.into());
    }
    let place = shard.place_of(execution).slot;
    if let Some(run) = shard.run_of(execution) {
        if run.reader().is_none() && !run.has_verdict {
            let text = "an execution on another shard waits for a ring";
            let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "queued", text);
            let error = error.field("executions").retry_after(limits::BUSY_RETRY_AFTER);
            return Part::Refused(error);
        }
        // The reader may have seen more than the engine was told.
        shard.ingest(place.index);
    }
    if seen_ends.contains(&execution) && is_over(shard, execution) {
        return Part::SeenToEnd;
    }
    let spec = executions::spec_of(shard, execution, delivery_options, from);
    let subscriber = match shard.subscribe_for_shard(execution, spec, Some(reactor.clone())) {
        Ok(mut subscriber) => {
            subscriber.keep_its_place();
            subscriber.provide();
            subscriber
        }
        Err(error) => return Part::Refused(error.into()),
    };
    let (names, tool) =
        (shard.run_mut(place).names.clone(), executions::tool_name(shard, execution));
    let coalesce = delivery_options.coalesce;
    Part::Joined(Box::new(Joined { subscriber, names, tool, coalesce }))
}

/// Begins the stream of a connection for which all readers have come.
pub(in crate::server) fn on_joined<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    joining: Joining,
) {
    let hub = &mut shard.guests.hub;
    let Joining { follow, parts, .. } = joining;
    hub.connection(id).expect("Q1").doing = Doing::Requests;
    hub.set_timer(id, None);
    let answered = match hub.is_draining() {
        true => hub::answer_error(shard, id, &ApiError::shutting_down()),
        false => streams::follow_with(shard, id, &follow, parts),
    };
    match answered {
        Answered::Now => shard.guests.hub.resume_later(id),
        Answered::Later => hub::settle_connection(shard, id),
    }
}

/// Refuses a request because the other shards have not answered in time.
pub(in crate::server) fn join_late<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let hub = &mut shard.guests.hub;
    hub.connection(id).expect("the caller found it").doing = Doing::Requests;
    shard.guests.peers.abandon(id);
    hub::answer_error(shard, id, &join::busy());
    shard.guests.hub.resume_later(id);
}
