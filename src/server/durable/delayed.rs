//! Creations of streams that wait for room in the journal.
//!
//! A journal has no room while its next segment is being made, if streams are created faster than
//! that. Their clients wait for it. A journal that has no room for longer is full.

use super::create::Counted;
use super::{DurableCall, carry_out, key_of, not_kept, paths, read, refuse};
use crate::base::{Instant, Principal};
use crate::journal::Refused;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::ServerShard;
use crate::server::hub::{Answered, wait};

/// A creation that waits.
#[derive(Debug)]
pub(super) struct Delayed {
    pub id: ConnectionId,
    pub call: DurableCall,
    pub principal: Principal,
    pub counted: Counted,
    /// The time at which it is refused; `None` if it has not waited yet.
    pub until: Option<Instant>,
}

/// Lets a creation wait for room, or refuses it if it has waited for too long, or if too many do.
pub(super) fn delay<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    delayed: Delayed,
) -> Answered {
    let (now, id) = (shard.now, delayed.id);
    let until = delayed.until.unwrap_or(now + limits::DURABLE_ROOM_WAIT);
    let is_full = shard.guests.durable.delayed.len() >= limits::DURABLE_WAITING_MAX;
    if is_full || until <= now {
        return refuse(shard, id, &not_kept(Refused::Full));
    }
    let delayed = Delayed { until: Some(until), ..delayed };
    shard.guests.durable.delayed.push_back(delayed);
    wait(shard, id)
}

/// Carries out the creations for which there is room by now, in their order. There can be room once
/// the disk has done something.
pub(super) fn settle<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let done_count = shard.disk_done_count();
    let (now, durable) = (shard.now, &mut shard.guests.durable);
    let is_due = |delayed: &Delayed| delayed.until.is_some_and(|until| until <= now);
    let has_moved = std::mem::replace(&mut durable.done_count, done_count) != done_count;
    if !has_moved && !durable.delayed.front().is_some_and(is_due) {
        return;
    }
    while let Some(next) = shard.guests.durable.delayed.pop_front() {
        let Delayed { id, call, principal, counted, until } = next;
        if !read::has_waited(shard, id) {
            // It is closing, or gone. Nothing of its request was accepted.
            let key = key_of(shard, principal, call.path);
            paths::give_back(shard, key);
            continue;
        }
        let count = shard.guests.durable.delayed.len();
        if carry_out(shard, id, call, principal, (counted, until)).is_now() {
            shard.guests.hub.resume_later(id);
        }
        let delayed = &mut shard.guests.durable.delayed;
        if delayed.len() > count {
            delayed.rotate_right(1); // It is the first one again, and there is no room.
            return;
        }
    }
}
