//! Executions of this node that begin to be mirrored.
//!
//! The mirror is a reader on another thread. It begins when the execution runs, and not earlier:
//! it must not count as the subscriber that a tool waits for. It gates nobody. The shard of a
//! replicated execution waits for news of the log by itself.

use super::{Mirrored, ToCluster};
use crate::base::{ExecutionId, Handle};
use crate::cluster::directory::{Entry, EntryState};
use crate::cluster::record::Incarnation;
use crate::engine::{Event, SubscribeError, SubscribeSpec, Verdict};
use crate::limits;
use crate::reactor::Reactor;
use crate::server::guests::ServedRun;
use crate::server::{ServerShard, archive};
use crate::shard::Subscriber;
use crate::shard::journal::{EndedDetails, OpenedDetails};
use crate::shard::run::Producer;
use crate::stream::Policy;

/// Sends the mirror to the executions that have begun.
pub(super) fn attach<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for id in std::mem::take(&mut shard.guests.cluster.to_mirror) {
        let Some(run) = shard.run_of(id).filter(|run| is_mirrored(run)) else { continue };
        if run.has_verdict && run.head_seq() == 0 {
            mirror_end(shard, id);
            continue;
        }
        if matches!(run.producer, Producer::Waiting(_)) {
            shard.guests.cluster.to_mirror.push(id);
            continue;
        }
        let spec = SubscribeSpec { policy: Policy::Replay, ..SubscribeSpec::default() };
        let is_replicated = shard.is_replicated(id);
        let waker = shard.guests.cluster.waker();
        let subscribed = match is_replicated {
            true => shard.subscribe_elsewhere(id, spec, waker),
            false => shard.subscribe_for_shard(id, spec, waker),
        };
        match subscribed {
            Ok(subscriber) => mirror(shard, id, Some(subscriber), is_replicated),
            Err(SubscribeError::NotYet { .. }) => shard.guests.cluster.to_mirror.push(id),
            Err(_) => {} // It must not be read elsewhere.
        }
    }
}

/// Mirrors the end of an execution that was over before it published anything. It may never have
/// had a ring.
fn mirror_end<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExecutionId) {
    let Some(run) = shard.run_of(id) else { return };
    let Some(verdict) = shard.engine.verdict(run.handle) else { return };
    let details = EndedDetails::of(&verdict, run.has_panicked);
    mirror(shard, id, None, false);
    tell_end(shard, id, &details, &verdict);
}

fn mirror<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    subscriber: Option<Subscriber>,
    is_replicated: bool,
) {
    let entry = entry_of(shard, id);
    let mirrored = Box::new(Mirrored { execution: id, entry, subscriber, is_replicated });
    let now = shard.now;
    shard.guests.cluster.send(ToCluster::Mirror(mirrored), now);
}

/// Sends the end of a replicated execution to the log. One that has published nothing may have no
/// mirror yet.
pub(in crate::server) fn send_end<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: Handle,
    details: &EndedDetails,
    verdict: &Verdict,
) {
    let id = shard.run_mut(execution).id;
    let to_mirror = &mut shard.guests.cluster.to_mirror;
    if let Some(at) = to_mirror.iter().position(|other| *other == id) {
        to_mirror.swap_remove(at);
        mirror(shard, id, None, true);
    }
    tell_end(shard, id, details, verdict);
}

fn tell_end<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    details: &EndedDetails,
    verdict: &Verdict,
) {
    let (details, published) = (details.encode().into(), Box::new(verdict.totals));
    let now = shard.now;
    shard.guests.cluster.send(ToCluster::End { execution: id, details, published }, now);
}

/// True if an execution of this shard is mirrored, now or once it runs.
fn is_mirrored(run: &ServedRun) -> bool {
    !run.is_replica && run.tool.is_some() && run.guest.stream.is_none()
}

/// Fails all executions that are mirrored, because other nodes will do so.
pub(super) fn give_up<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let mirrored = shard.runs.iter().flatten().filter(|run| is_mirrored(run));
    let all: Vec<Handle> = mirrored.map(|run| run.handle).collect();
    for execution in all {
        shard.tell(Event::GivenUp(execution, "its node was cut off from its cluster"));
    }
    shard.pump();
}

/// The entry of an execution. The thread that sends it adds the owner.
fn entry_of<R: Reactor + 'static>(shard: &ServerShard<R>, id: ExecutionId) -> Entry {
    let run = shard.run_of(id).expect("it was just followed");
    let tool = run.tool.as_deref();
    let opened = OpenedDetails {
        tool: tool.map(|tool| tool.name.as_str().into()),
        has_parts: tool.is_some_and(|tool| tool.has_parts),
        is_relayed: tool.is_some_and(|tool| tool.is_relayed),
        token: run.names.token.as_deref().map(Box::from),
        anchor: shard.anchor,
        goes_on: None,
        guest: archive::described(&shard.guests, run),
    };
    let mut details = opened.to_json();
    if details.to_string().len() > limits::CLUSTER_ENTRY_BYTES_MAX / 2 {
        details["guest"]["arguments"].take(); // They can be of any length.
    }
    Entry {
        owner: Incarnation(0),
        state: EntryState::Running,
        principal: shard.guests.access.name_of(run.guest.owner).map(Box::from),
        opened_us: shard.anchor.wall_us_at(run.opened_at.nanos()),
        ring_bytes: run.ring_bytes,
        chunk_bytes: run.chunk_bytes_max,
        chunks_expected: run.chunks_expected,
        details,
    }
}
