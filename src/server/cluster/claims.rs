//! Paths of streams: the node of each.
//!
//! A stream lives on one node, whose disk has it. A request about a path that this server does not
//! have waits until the leader of the directory was asked for it. An answer is good for that one
//! request: the next one may come after the path was claimed elsewhere. A path is claimed before a
//! stream is created there, so two nodes cannot create it both. While the cluster does not answer,
//! new streams are refused, and those of this node go on.

use std::collections::{BTreeMap, VecDeque};

use super::port::{ClaimWish, Holder};
use super::{Lookup, ToCluster};
use crate::base::Instant;
use crate::cluster::claim::PathName;
use crate::endpoint::Elsewhere;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::durable::Key;
use crate::server::{ServerShard, peers, records};

/// The paths that a shard has asked for.
#[derive(Default)]
pub(super) struct Claims {
    /// The paths of requests, by their connections. They have an answer, or wait for it.
    asked: BTreeMap<ConnectionId, Asked>,
    /// Paths of streams from before the start, which are not claimed yet.
    kept: VecDeque<PathName>,
    /// Number of those for which the cluster was asked.
    kept_count: usize,
    /// The time at which they are asked for again, because the cluster has not answered.
    again_at: Option<Instant>,
}

/// The path of a request.
struct Asked {
    name: PathName,
    wish: ClaimWish,
    holder: Option<Holder>,
    /// The time at which it is forgotten, whatever has become of the request.
    until: Instant,
}

impl Claims {
    /// The time of the next thing to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let forget_at = self.asked.values().map(|asked| asked.until).min();
        [forget_at, self.again_at].into_iter().flatten().min()
    }

    fn take_kept(&mut self) -> Option<PathName> {
        let has_room = self.kept_count < limits::CLUSTER_CLAIMS_AT_START;
        let name = (has_room && self.again_at.is_none()).then(|| self.kept.pop_front())??;
        self.kept_count += 1;
        Some(name)
    }
}

/// Finds out for a request which node has a path that this server does not have, or takes it.
pub(in crate::server) fn claim<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    name: PathName,
    wish: ClaimWish,
) -> Lookup {
    let now = shard.now;
    let asked = &mut shard.guests.cluster.claims.asked;
    match asked.get(&id) {
        Some(asked) if asked.name == name && asked.wish == wish => match asked.holder {
            None => return Lookup::Soon,
            Some(Holder::Unknown) => {
                let claims = &mut shard.guests.cluster.claims;
                claims.asked.remove(&id);
                return Lookup::Later;
            }
            Some(_) => return Lookup::Here,
        },
        None if asked.len() >= limits::CLUSTER_LOOKUPS_MAX => return Lookup::Later,
        _ => {}
    }
    let until = now + 2 * limits::JOIN_DEADLINE;
    asked.insert(id, Asked { name: name.clone(), wish, holder: None, until });
    send(shard, Some(id), name, wish);
    Lookup::Soon
}

/// Takes the answer for a request: the other node that has its path, if one has it.
pub(in crate::server) fn take_holder<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) -> Option<Elsewhere> {
    match shard.guests.cluster.claims.asked.remove(&id)?.holder {
        Some(Holder::By(node)) => Some(node),
        _ => None,
    }
}

/// Gives a path back at which there is no stream any more.
pub(in crate::server) fn free<R: Reactor + 'static>(shard: &mut ServerShard<R>, name: PathName) {
    if shard.guests.cluster.is_on() {
        send(shard, None, name, ClaimWish::Free);
    }
}

/// Claims the paths of streams that this server has.
pub(in crate::server) fn keep<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    names: impl Iterator<Item = PathName>,
) {
    if shard.guests.cluster.is_on() {
        shard.guests.cluster.claims.kept.extend(names);
        claim_kept(shard);
    }
}

fn claim_kept<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    while let Some(name) = shard.guests.cluster.claims.take_kept() {
        send(shard, None, name, ClaimWish::Take);
    }
}

fn send<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    asker: Option<ConnectionId>,
    name: PathName,
    wish: ClaimWish,
) {
    let (home, now) = (peers::own_index(shard) as u8, shard.now);
    let request = ToCluster::Claim { shard: home, asker, name: name.into(), wish };
    shard.guests.cluster.send(request, now);
}

/// Takes the answer of the cluster.
pub(super) fn on_claimed<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    asker: Option<ConnectionId>,
    name: PathName,
    (wish, holder): (ClaimWish, Holder),
) {
    match (asker, wish) {
        (Some(id), _) => {
            let asked = shard.guests.cluster.claims.asked.get_mut(&id);
            if let Some(asked) = asked.filter(|asked| asked.name == name && asked.wish == wish) {
                asked.holder = Some(holder);
            } else if wish == ClaimWish::Take && !has_stream(shard, &name) {
                free(shard, name); // The client has gone.
            }
        }
        (None, ClaimWish::Take) => on_kept(shard, name, &holder),
        (None, ClaimWish::Free) if has_stream(shard, &name) => {
            keep(shard, std::iter::once(name)); // Another shard has created one meanwhile.
        }
        (None, ClaimWish::Free | ClaimWish::Look) => {}
    }
}

fn has_stream<R: Reactor + 'static>(shard: &ServerShard<R>, name: &PathName) -> bool {
    let PathName { owner, path } = name.clone();
    shard.guests.durable.paths().find(&Key { owner, path }).is_some()
}

/// Takes the answer about the path of a stream of this server.
fn on_kept<R: Reactor + 'static>(shard: &mut ServerShard<R>, name: PathName, holder: &Holder) {
    let now = shard.now;
    let claims = &mut shard.guests.cluster.claims;
    claims.kept_count -= 1;
    match holder {
        Holder::Unknown => {
            claims.again_at.get_or_insert(now + limits::CLUSTER_RETRY_MAX);
            claims.kept.push_back(name);
        }
        Holder::By(node) => records::log_path_elsewhere(shard, &name.path, &node.node),
        Holder::Here if !has_stream(shard, &name) => free(shard, name), // It is gone by now.
        Holder::Here | Holder::Free => {}
    }
    claim_kept(shard);
}

/// Forgets requests that are long over, and asks again for paths of kept streams.
pub(super) fn fire_deadlines<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    let claims = &mut shard.guests.cluster.claims;
    let old: Vec<Asked> = claims
        .asked
        .extract_if(.., |_, asked| asked.until <= now)
        .map(|(_, asked)| asked)
        .collect();
    if claims.again_at.is_some_and(|at| at <= now) {
        claims.again_at = None;
        claim_kept(shard);
    }
    for Asked { name, wish, holder, .. } in old {
        // Its client has gone before the stream was created.
        let is_taken = wish == ClaimWish::Take && holder == Some(Holder::Here);
        if is_taken && !has_stream(shard, &name) {
            free(shard, name);
        }
    }
}
