//! The place at which a fork leaves a stream of JSON, if its creator names it by a number of
//! messages. The messages are read, from the disk if need be, and counted. After that the fork is
//! created.

use super::append::look_at_shown;
use super::reader::{Goal, Reader};
use super::{DurableCall, carry_out, find, key_of, read, refuse, rest, touch};
use crate::base::Principal;
use crate::endpoint::DurableAsk;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::ServerShard;
use crate::server::hub::Answered;
use crate::server::hub::stream::Stream as HubStream;
use crate::wire::durable::{Mode, Offset};

/// A request for a fork, which waits until messages of its source are counted.
#[derive(Debug)]
pub(in crate::server) struct Forking {
    call: DurableCall,
    principal: Principal,
}

/// The messages to count.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// The source.
    at: usize,
    /// The position before the first of them.
    anchor: u64,
    /// Number of them.
    count: u64,
}

/// Returns the messages that have to be counted for a request. `None` if there are none, or if the
/// request is refused anyway.
pub(super) fn wanted<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &DurableCall,
    principal: Principal,
) -> Option<Wanted> {
    let DurableAsk::Create(creation) = &call.ask else { return None };
    let fork = creation.fork.as_ref().filter(|fork| fork.sub_offset > 0)?;
    let (count, Offset(anchor)) = (fork.sub_offset, fork.offset?);
    let key = key_of(shard, principal, fork.source.clone());
    let own = key_of(shard, principal, call.path.clone());
    let at = find(shard, &key)?;
    let is_new = find(shard, &own).is_none();
    let shown = look_at_shown(shard, at);
    let state = &shard.guests.durable.streams[at].state;
    let is_wanted = is_new && !state.is_gone && state.config.mode() == Mode::Json;
    (is_wanted && anchor < shown).then_some(Wanted { at, anchor, count })
}

/// Counts the messages that a request needs, and then carries it out.
pub(super) fn count<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    Wanted { at, anchor, count }: Wanted,
    (call, principal): (DurableCall, Principal),
) -> Answered {
    if let Err(error) = rest::make_present(shard, at) {
        return refuse(shard, id, &error);
    }
    touch(shard, at);
    let durable = &shard.guests.durable;
    let (stream, parts) = (&durable.streams[at], durable.parts_from(at, anchor));
    if parts.last().is_none_or(|part| part.origin > anchor) {
        return refuse(shard, id, &read::is_lost());
    }
    let (tail, until) = (stream.tail.clone(), stream.tail.shown.get());
    let goal = Goal::Messages { left: count, until };
    let forking = Some(Box::new(Forking { call, principal }));
    let mut reader = Reader::new((Some(at), tail), Mode::Json, anchor, parts, goal);
    reader.forking = forking;
    read::gather(shard, id, reader, false, None)
}

/// Carries out a request whose reader has counted, or has found the end.
pub(super) fn go_on<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    stream: &HubStream,
    reader: &Reader,
    forking: Forking,
) {
    read::stop_waiting(shard, id);
    read::detach(shard, stream);
    let execution = reader.parts.first().expect("a reader has a part").execution;
    let is_counted = matches!(reader.goal, Goal::Messages { left: 0, .. });
    let counted = is_counted.then_some((execution, reader.position));
    let answered = match counted {
        None if reader.is_lost => refuse(shard, id, &read::is_lost()),
        _ => carry_out(shard, id, forking.call, forking.principal, (counted, None)),
    };
    if answered.is_now() {
        shard.guests.hub.resume_later(id);
    }
}
