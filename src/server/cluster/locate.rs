//! Executions that are looked up in the cluster, because this shard does not know them.
//!
//! A request waits until its execution was found or was not. Only a request of its owner brings it
//! here. All others learn nothing: for them there is no such execution.

use std::time::Duration;

use smallvec::SmallVec;

use super::port::Located;
use super::{ToCluster, replicas};
use crate::base::{ExecutionId, Instant, Principal};
use crate::limits;
use crate::reactor::Reactor;
use crate::server::{ServerShard, peers};

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The shard has it.
    Here,
    /// There is none, for this principal.
    Nowhere,
    /// Ask again after the next turn.
    Soon,
    /// The cluster does not answer, or the shard has no place for it.
    Later,
}

/// The lookups of one execution.
pub(super) struct Lookups {
    state: State,
    /// Number of times that it was not found.
    misses: usize,
    /// The principals that have asked.
    askers: SmallVec<[Principal; 1]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The cluster was asked.
    Asked,
    /// The cluster will be asked again.
    Again { at: Instant },
    /// Until then, this is the answer to those who have asked.
    Known { answer: Lookup, until: Instant },
}

impl Lookups {
    /// The time of the next thing to do.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Asked => None,
            State::Again { at } | State::Known { until: at, .. } => Some(at),
        }
    }
}

/// Looks an execution up for a principal.
pub(in crate::server) fn locate<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    principal: Principal,
) -> Lookup {
    if !shard.guests.cluster.is_on() || shard.run_of(id).is_some() {
        return Lookup::Here;
    }
    let now = shard.now;
    let cluster = &mut shard.guests.cluster;
    let is_full = cluster.lookups.len() >= limits::CLUSTER_LOOKUPS_MAX;
    match cluster.lookups.get_mut(&id) {
        Some(Lookups { state: State::Known { answer, until }, askers, .. })
            if now < *until && askers.contains(&principal) =>
        {
            *answer
        }
        Some(lookups) if !matches!(lookups.state, State::Known { .. }) => {
            if !lookups.askers.contains(&principal) {
                lookups.askers.push(principal);
            }
            Lookup::Soon
        }
        None if is_full => Lookup::Later,
        _ => {
            let askers = SmallVec::from_elem(principal, 1);
            let lookups = Lookups { state: State::Asked, misses: 0, askers };
            cluster.lookups.insert(id, lookups);
            ask(shard, id);
            Lookup::Soon
        }
    }
}

fn ask<R: Reactor + 'static>(shard: &mut ServerShard<R>, execution: ExecutionId) {
    let (home, now) = (peers::own_index(shard) as u8, shard.now);
    shard.guests.cluster.send(ToCluster::Locate { shard: home, execution }, now);
}

/// Takes the answer of the cluster.
pub(super) fn on_located<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    located: Located,
) {
    let now = shard.now;
    let Some(lookups) = shard.guests.cluster.lookups.get_mut(&id) else { return };
    let known = |answer: Lookup, time: Duration| State::Known { answer, until: now + time };
    let found = match located {
        Located::Away => {
            lookups.state = known(Lookup::Later, limits::CLUSTER_RETRY_FIRST);
            return;
        }
        Located::Nowhere => None,
        Located::Found(found) => {
            let owner = shard.guests.access.principal_of(found.entry.principal.as_deref());
            // To all others it is as if it did not exist, and that takes as long.
            let is_asked_for = lookups.askers.contains(&owner) && owner != Principal::NOBODY;
            is_asked_for.then_some(found)
        }
    };
    let Some(found) = found else {
        let pause = limits::CLUSTER_LOOKUP_PAUSES.get(lookups.misses);
        lookups.misses += 1;
        lookups.state = match pause {
            Some(pause) => State::Again { at: now + *pause },
            None => known(Lookup::Nowhere, limits::CLUSTER_LOOKUP_REST),
        };
        return;
    };
    // The shard may have it by now.
    let is_here = shard.run_of(id).is_some();
    match is_here.then_some(()).map_or_else(|| replicas::bring(shard, id, *found), Ok) {
        Ok(()) => _ = shard.guests.cluster.lookups.remove(&id),
        Err(replicas::NoPlace) => {
            if let Some(lookups) = shard.guests.cluster.lookups.get_mut(&id) {
                lookups.state = known(Lookup::Later, limits::CLUSTER_RETRY_FIRST);
            }
        }
    }
}

/// Looks again for executions whose pause is over, and forgets what was known long enough.
pub(super) fn look_again<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    let lookups = &mut shard.guests.cluster.lookups;
    lookups
        .retain(|_, lookups| !matches!(lookups.state, State::Known { until, .. } if until <= now));
    let due = lookups.iter_mut().filter_map(|(id, lookups)| match lookups.state {
        State::Again { at } if at <= now => {
            lookups.state = State::Asked;
            Some(*id)
        }
        _ => None,
    });
    let due: Vec<ExecutionId> = due.collect();
    due.into_iter().for_each(|id| ask(shard, id));
}
