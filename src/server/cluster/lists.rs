//! Lists of executions of all nodes.
//!
//! The cluster is asked like one more shard. Its part has the executions of all other nodes. Each
//! node lists those that run there, or have: replicas are left out. If the cluster does not answer
//! in time, the list is refused.

use serde_json::Value;

use super::ToCluster;
use super::port::Listing;
use crate::base::{Instant, Principal};
use crate::endpoint::{ListAsk, ListScope};
use crate::limits;
use crate::reactor::Reactor;
use crate::server::peers::Ticket;
use crate::server::{ServerShard, executions, peers};

/// True if a list has the executions of other nodes, too.
pub(in crate::server) fn has_others<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    ask: &ListAsk,
) -> bool {
    ask.scope == ListScope::Cluster && shard.guests.cluster.is_on()
}

/// Asks all other nodes for their executions, on behalf of a question that waits for them.
pub(in crate::server) fn list_all<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    ticket: Ticket,
    ask: &ListAsk,
    principal: Principal,
) {
    let (now, home) = (shard.now, peers::own_index(shard) as u8);
    let owner = shard.guests.access.name_of(principal).map(Box::from);
    let listing = Listing { shard: home, ticket, owner, ask: ask.clone().into() };
    let cluster = &mut shard.guests.cluster;
    cluster.lists.push_back((now + limits::CLUSTER_LIST_WAIT, ticket));
    cluster.send(ToCluster::List(listing.into()), now);
}

/// Makes the part of this shard in a list of another node.
pub(super) fn make<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    number: u64,
    owner: Option<&str>,
    ask: &ListAsk,
) {
    let principal = shard.guests.access.principal_of(owner);
    let mut list = match principal {
        Principal::NOBODY => Value::Null,
        principal => executions::list(shard, ask, principal),
    };
    let executions = match list["executions"].take() {
        Value::Array(all) => all,
        _ => Vec::new(),
    };
    let now = shard.now;
    shard.guests.cluster.send(ToCluster::Listed { number, executions }, now);
}

/// Takes a list for which the cluster has not answered in time.
pub(in crate::server) fn take_late<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
) -> Option<Ticket> {
    let now = shard.now;
    let lists = &mut shard.guests.cluster.lists;
    let is_late = lists.front().is_some_and(|(until, _): &(Instant, Ticket)| *until <= now);
    if is_late { lists.pop_front().map(|(_, ticket)| ticket) } else { None }
}
