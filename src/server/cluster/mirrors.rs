//! Executions of this node that begin to be mirrored.
//!
//! The mirror is a reader on another thread. It begins when the execution runs, and not earlier:
//! it must not count as the subscriber that a tool waits for. It gates nobody. The shard of a
//! replicated execution waits for news of the log by itself.

use super::{Cluster, Mirrored, ToCluster};
use crate::base::{ExecutionId, Handle};
use crate::cluster::directory::{Entry, EntryState};
use crate::cluster::record::Incarnation;
use crate::engine::{Event, SubscribeError, SubscribeSpec, Verdict};
use crate::limits;
use crate::reactor::Reactor;
use crate::server::guests::ServedRun;
use crate::server::{ServerShard, archive};
use crate::shard::Subscriber;
use crate::shard::journal::{EndedDetails, OpenedDetails, shows_only_durable};
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
        let is_waiting = matches!(run.producer, Producer::Waiting(_));
        if is_waiting || attach_to(shard, id) == Attached::Later {
            shard.guests.cluster.to_mirror.push(id);
        }
    }
}

/// The result of an attempt to send the mirror to an execution.
#[derive(PartialEq, Eq)]
enum Attached {
    Now,
    /// It has no ring yet.
    Later,
    Never,
}

fn attach_to<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExecutionId) -> Attached {
    let spec = SubscribeSpec { policy: Policy::Replay, ..SubscribeSpec::default() };
    let is_replicated = shard.is_replicated(id);
    let through_seq = shard.run_of(id).and_then(shown_seq).filter(|_| !is_replicated);
    let waker = shard.guests.cluster.waker();
    // It keeps to what it is shown, or its shard waits for it.
    match shard.subscribe_elsewhere(id, spec, waker) {
        Ok(subscriber) => {
            if let Some(waker) = shard.guests.cluster.waker()
                && through_seq.is_none()
            {
                shard.wake_promptly(&subscriber, waker);
            }
            mirror(shard, id, Some(subscriber), (is_replicated, through_seq));
            if through_seq.is_some() {
                shard.guests.cluster.late.insert(id);
            }
            Attached::Now
        }
        Err(SubscribeError::NotYet { .. }) => Attached::Later,
        Err(_) => Attached::Never, // It must not be read elsewhere.
    }
}

/// The last chunk that may be seen of an execution whose chunks are given when they are durable;
/// `None` for all others.
fn shown_seq(run: &ServedRun) -> Option<u64> {
    shows_only_durable(run).then_some(run.ingested_seq)
}

/// Notes that the disk keeps more of an execution, which may be one that is given when it does.
pub(in crate::server) fn note_kept<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
) {
    let Cluster { late, to_show, .. } = &mut shard.guests.cluster;
    if late.contains(&id) {
        to_show.insert(id);
    }
}

/// Shows the mirror what is durable by now.
pub(super) fn show<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for id in std::mem::take(&mut shard.guests.cluster.to_show) {
        let shown_seq = shard.run_of(id).and_then(shown_seq);
        if let Some(through_seq) = shown_seq {
            let now = shard.now;
            shard.guests.cluster.send(ToCluster::Show { execution: id, through_seq }, now);
        }
    }
}

/// Notes that an execution of this node has ended. The end of one whose chunks are given when they
/// are durable goes to its mirror.
pub(in crate::server) fn note_ended<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    verdict: &Verdict,
) {
    if !shard.guests.cluster.is_on() {
        return;
    }
    let Some(run) = shard.run_of(id).filter(|run| is_mirrored(run)) else { return };
    let details = EndedDetails::of(verdict, run.has_panicked);
    let is_shown = shown_seq(run).is_some() && run.head_seq() > 0 && !shard.is_replicated(id);
    if is_shown && take_waiting(shard, id) && attach_to(shard, id) != Attached::Now {
        mirror(shard, id, None, (false, None));
        return tell_end(shard, id, &details, verdict);
    }
    if shard.guests.cluster.late.contains(&id) {
        shard.guests.cluster.to_show.insert(id);
        show(shard);
        shard.guests.cluster.late.remove(&id);
        tell_end(shard, id, &details, verdict);
    }
}

/// Mirrors the end of an execution that was over before it published anything. It may never have
/// had a ring.
fn mirror_end<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExecutionId) {
    let Some(run) = shard.run_of(id) else { return };
    let Some(verdict) = shard.engine.verdict(run.handle) else { return };
    let details = EndedDetails::of(&verdict, run.has_panicked);
    mirror(shard, id, None, (false, None));
    tell_end(shard, id, &details, &verdict);
}

fn mirror<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    subscriber: Option<Subscriber>,
    (is_replicated, through_seq): (bool, Option<u64>),
) {
    let entry = entry_of(shard, id);
    let mirrored =
        Box::new(Mirrored { execution: id, entry, subscriber, is_replicated, through_seq });
    let now = shard.now;
    shard.guests.cluster.send(ToCluster::Mirror(mirrored), now);
}

/// Takes an execution out of those that wait for the mirror. Returns false if it was none.
fn take_waiting<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExecutionId) -> bool {
    let to_mirror = &mut shard.guests.cluster.to_mirror;
    let found = to_mirror.iter().position(|other| *other == id);
    found.map(|at| to_mirror.swap_remove(at)).is_some()
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
    if take_waiting(shard, id) {
        mirror(shard, id, None, (true, None));
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
