//! The cluster: executions of this node that others follow, and executions of others that are
//! followed here.
//!
//! Another thread has the connection to the cluster ([`ClusterLine`]). An execution of this node is
//! *mirrored*: that thread reads its ring and writes its log. For an execution of another node the
//! shard has a *replica*, which is fed from the log. All that is done for clients is done with the
//! replica, as if it was an execution of this shard.
//!
//! - `port.rs`: what the shard and that thread say to each other.
//! - `mirrors.rs`: executions that begin to be mirrored.
//! - `claims.rs`: the nodes of the paths of streams. `lists.rs`: lists of executions of all nodes.
//! - `locate.rs`: executions that are looked up. `replicas.rs`: those that were found.
//! - `history.rs`: chunks for those who come late. `status.rs`: the numbers of the node.
//!
//! Invariants ([`Cluster::audit`]):
//! - K1: each replica of the engine has one entry here, and each entry its replica.
//! - K2: a subscriber has one question at a time, and one reader for all of them.

mod claims;
mod history;
mod lists;
mod locate;
mod mirrors;
mod port;
mod replicas;
mod status;

pub use port::{
    ClaimWish, ClusterLine, Found, FromCluster, Holder, Listed, Listing, Located, Mirrored,
    ReaderName, ToCluster,
};
pub use status::{NodeCounters, NodeStatus};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::base::{ExecutionId, Handle, Instant, SubscriberId};
use crate::limits;
use crate::reactor::{Reactor, Waker};
use crate::server::ServerShard;
use crate::server::hub::clock::earlier;
use crate::server::peers::Ticket;
#[cfg(test)]
use crate::server::peers::ToPeer;
#[cfg(test)]
use crate::shard::handle::Command;

pub(in crate::server) use claims::{claim, free as free_path, keep as claim_kept, take_holder};
pub(in crate::server) use history::look_back;
pub(in crate::server) use lists::{has_others, list_all, take_late as take_late_list};
pub(crate) use locate::Lookup;
pub(in crate::server) use locate::locate;
pub(in crate::server) use mirrors::{note_ended, note_kept, send_end};
pub(in crate::server) use replicas::{cancel, elsewhere, note_room};

/// The cluster, as one shard sees it.
#[derive(Default)]
pub(in crate::server) struct Cluster {
    line: Option<Arc<dyn ClusterLine>>,
    /// Requests that the line had no room for, in order.
    unsent: VecDeque<ToCluster>,
    /// The time at which they are sent again.
    send_at: Option<Instant>,
    /// Executions that will be mirrored once they run.
    to_mirror: Vec<ExecutionId>,
    /// Mirrored executions of which the mirror may only read what is durable.
    late: BTreeSet<ExecutionId>,
    /// Those of them of which more is durable.
    to_show: BTreeSet<ExecutionId>,
    lookups: BTreeMap<ExecutionId, locate::Lookups>,
    claims: claims::Claims,
    /// Lists that the other nodes were asked for, each with the time at which it is refused.
    lists: VecDeque<(Instant, Ticket)>,
    replicas: BTreeMap<ExecutionId, replicas::Replica>,
    /// Replicas that may have room for what waits.
    to_feed: VecDeque<ExecutionId>,
    /// The time of the next look for replicas that nobody follows.
    look_at: Option<Instant>,
    readers: BTreeMap<SubscriberId, history::Reader>,
    /// Subscribers whose question can be answered.
    to_answer: VecDeque<SubscriberId>,
    reader_count: u64,
}

impl Cluster {
    /// Creates the table of a shard of a node with this line; `None`: the server is alone.
    pub fn new(line: Option<Arc<dyn ClusterLine>>) -> Cluster {
        Cluster { line, ..Cluster::default() }
    }

    /// True if the server is a node of a cluster.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.line.is_some()
    }

    /// Wakes the thread that reads the rings.
    fn waker(&self) -> Option<Waker> {
        self.line.as_ref().map(|line| line.waker())
    }

    /// The numbers of the node, which all shards of the server share. `None`: it is alone.
    pub fn status(&self) -> Option<NodeStatus> {
        self.line.as_ref().map(|line| line.status())
    }

    /// True if there is something to do in this turn.
    #[inline]
    pub fn has_news(&self) -> bool {
        let has_own = !self.to_mirror.is_empty() || !self.to_show.is_empty();
        has_own || !self.to_feed.is_empty() || !self.to_answer.is_empty()
    }

    /// True if there is something to do in the next turn, whatever happens until then.
    #[inline]
    pub fn is_busy(&self) -> bool {
        !self.to_answer.is_empty() || !self.to_feed.is_empty()
    }

    /// Returns the time of the next thing to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let lookups = self.lookups.values().filter_map(locate::Lookups::deadline).min();
        let lists = self.lists.front().map(|(until, _)| *until);
        let later = earlier(earlier(lookups, lists), self.claims.next_deadline());
        earlier(earlier(self.send_at, self.look_at), later)
    }

    /// Sends a request behind those that wait.
    fn send(&mut self, request: ToCluster, now: Instant) {
        let Some(line) = &self.line else { return };
        let refused = match self.unsent.is_empty() {
            true => line.send(request).err(),
            false => Some(request),
        };
        if let Some(request) = refused {
            self.unsent.push_back(request);
            self.send_at.get_or_insert(now + limits::CLUSTER_SEND_AGAIN);
        }
    }

    fn send_again(&mut self, now: Instant) {
        self.send_at = None;
        for request in std::mem::take(&mut self.unsent) {
            self.send(request, now);
        }
    }

    /// Notes that the engine has forgotten an execution.
    #[inline]
    pub fn note_released(&mut self, execution: Handle) {
        if !self.replicas.is_empty() {
            self.let_go(execution);
        }
    }

    fn let_go(&mut self, execution: Handle) {
        let mut all = self.replicas.iter();
        let found = all.find(|(_, replica)| replica.place() == execution).map(|(id, _)| *id);
        if let Some(id) = found {
            self.replicas.remove(&id);
            self.send(ToCluster::Unfollow { execution: id }, Instant::ZERO);
        }
    }

    /// Checks K1 and K2. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit<R: Reactor + 'static>(shard: &ServerShard<R>) {
        let cluster = &shard.guests.cluster;
        for run in shard.runs.iter().flatten().filter(|run| run.is_replica) {
            assert!(cluster.replicas.contains_key(&run.id)); // K1
        }
        for (id, replica) in &cluster.replicas {
            let run = shard.run_of(*id).expect("K1");
            assert!(run.is_replica && run.handle == replica.place()); // K1
        }
    }
}

/// Handles a message of the node's thread.
pub(in crate::server) fn on_message<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    message: FromCluster,
) {
    match message {
        FromCluster::Located { execution, located } => {
            locate::on_located(shard, execution, located);
        }
        FromCluster::Given { execution, pieces, at } => {
            replicas::on_given(shard, execution, pieces, *at);
        }
        FromCluster::Old { reader, pieces, is_all } => {
            history::on_old(shard, reader, pieces, is_all);
        }
        FromCluster::Claimed { asker, name, wish, holder } => {
            claims::on_claimed(shard, asker, *name, (wish, holder));
        }
        FromCluster::List { number, owner, ask } => {
            lists::make(shard, number, owner.as_deref(), &ask);
        }
        FromCluster::Listed { .. } => unreachable!("the turn takes the answers to questions"),
        FromCluster::Logged { execution, news } => shard.on_logged(execution, news),
        FromCluster::CutOff => mirrors::give_up(shard),
        FromCluster::Cancel { execution } => _ = shard.cancel(execution), // It may have ended.
    }
}

/// Does what can be done in this turn.
pub(in crate::server) fn settle<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    mirrors::attach(shard);
    mirrors::show(shard);
    replicas::feed(shard);
    history::answer(shard);
}

/// Does what is due.
pub(in crate::server) fn fire_deadlines<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    let cluster = &mut shard.guests.cluster;
    if cluster.send_at.is_some_and(|at| at <= now) {
        cluster.send_again(now);
    }
    locate::look_again(shard);
    claims::fire_deadlines(shard);
    if shard.guests.cluster.look_at.is_some_and(|at| at <= now) {
        replicas::dismiss_idle(shard);
        history::forget_gone(shard);
    }
}

/// Notes an execution of this node that has begun.
pub(in crate::server) fn note_opened<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
) {
    if shard.guests.cluster.is_on() {
        shard.guests.cluster.to_mirror.push(id);
    }
}

/// For the simulator, which drives a shard without HTTP.
#[cfg(test)]
impl<R: Reactor + 'static> ServerShard<R> {
    /// Looks an execution up, as a request does.
    pub(crate) fn locate(&mut self, id: ExecutionId) -> Lookup {
        locate(self, id, crate::base::Principal::ANYONE)
    }

    /// Puts a message of the node's thread into the mailbox. Returns it if there is no room.
    pub(crate) fn tell_cluster(&mut self, message: FromCluster) -> Option<FromCluster> {
        let message = ToPeer::Cluster(Box::new(message));
        match self.mailbox().send(Command::Message(message)) {
            Err((_, Command::Message(ToPeer::Cluster(message)))) => Some(*message),
            _ => None,
        }
    }
}
