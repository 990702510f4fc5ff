//! Executions of other nodes that this shard has, and the way of their chunks into their rings.
//!
//! The thread of the node sends parts of a log as they are stored. They wait here while a ring has
//! no room, because a `block` subscriber of this node has to read first. If too much waits, nothing
//! more is pulled from the log. The owner of the execution does not wait for anybody here.

use std::collections::VecDeque;

use serde_json::Value;

use super::ToCluster;
use super::port::Found;
use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Handle, Instant};
use crate::cluster::follow::Landmark;
use crate::cluster::piece::Piece;
use crate::cluster::record::Incarnation;
use crate::endpoint::Elsewhere;
use crate::limits;
use crate::reactor::Reactor;
use crate::server::{ServerShard, peers};
use crate::shard::journal::{EndedDetails, OpenedDetails};
use crate::shard::replica;
use crate::shard::run::Producer;
use crate::stream::Kinds;
use crate::tool::Report;

/// An execution of another node.
pub(super) struct Replica {
    /// Its place in the engine.
    place: Handle,
    /// The node that runs its tool.
    node: Elsewhere,
    owner: Incarnation,
    /// The place in the log behind everything that has come.
    at: Landmark,
    pending: VecDeque<Piece>,
    pending_bytes: usize,
    /// True if the thread of the node was told that there is no room.
    is_full: bool,
    /// The time since which nobody has followed it.
    idle_since: Option<Instant>,
}

impl Replica {
    /// Its place in the engine.
    pub fn place(&self) -> Handle {
        self.place
    }

    /// The life of the node that runs its tool, and the place in the log behind everything that has
    /// come.
    pub fn log(&self) -> (Incarnation, Landmark) {
        (self.owner, self.at)
    }
}

/// There is no place for a replica.
pub(super) struct NoPlace;

/// Makes a replica of an execution that was found.
pub(super) fn bring<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    found: Found,
) -> Result<(), NoPlace> {
    let Found { node, entry, at, end } = found;
    if shard.guests.cluster.replicas.len() >= limits::CLUSTER_REPLICAS_MAX {
        return Err(NoPlace);
    }
    let is_over = end.is_some();
    let replica = replica::Replica {
        opened: OpenedDetails::of_json(entry.details),
        opened_us: entry.opened_us,
        ring_bytes: entry.ring_bytes.max(limits::RING_SERVED_BYTES),
        chunk_bytes: entry.chunk_bytes,
        chunks_expected: entry.chunks_expected,
        before: at.position.totals,
        end: end.map(|details| EndedDetails::decode(&details)),
    };
    shard.adopt(id, replica).map_err(|_| NoPlace)?;
    let (now, home) = (shard.now, peers::own_index(shard) as u8);
    let owner = entry.owner;
    let replica = Replica {
        place: shard.place_of(id).slot,
        node,
        owner,
        at,
        pending: VecDeque::new(),
        pending_bytes: 0,
        is_full: false,
        idle_since: None,
    };
    let cluster = &mut shard.guests.cluster;
    cluster.replicas.insert(id, replica);
    cluster.look_at.get_or_insert(now + limits::CLUSTER_REPLICA_IDLE / 4);
    if !is_over {
        let from = Box::new(at);
        cluster.send(ToCluster::Follow { shard: home, execution: id, owner, from }, now);
    }
    Ok(())
}

/// Takes parts of a log.
pub(super) fn on_given<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    pieces: Vec<Piece>,
    at: Landmark,
) {
    let now = shard.now;
    let cluster = &mut shard.guests.cluster;
    let Some(replica) = cluster.replicas.get_mut(&id) else { return }; // It was let go.
    replica.at = at;
    replica.pending_bytes += pieces.iter().map(Piece::bytes).sum::<usize>();
    replica.pending.extend(pieces);
    let is_full = replica.pending_bytes > limits::CLUSTER_FEED_BYTES_MAX;
    if is_full && !std::mem::replace(&mut replica.is_full, true) {
        cluster.send(ToCluster::SetRoom { execution: id, has_room: false }, now);
    }
    note(shard, id);
}

fn note<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExecutionId) {
    shard.worked = true;
    let to_feed = &mut shard.guests.cluster.to_feed;
    if !to_feed.contains(&id) {
        to_feed.push_back(id);
    }
}

/// Notes that a replica may take more: its ring has room, or it has begun.
pub(in crate::server) fn note_room<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
) {
    note(shard, id);
}

/// Feeds the replicas that may take something, as far as a turn may.
pub(super) fn feed<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let mut left_bytes = limits::CLUSTER_FEED_BYTES_TURN;
    for _ in 0..shard.guests.cluster.to_feed.len() {
        if left_bytes == 0 {
            return;
        }
        let Some(id) = shard.guests.cluster.to_feed.pop_front() else { return };
        feed_one(shard, id, &mut left_bytes);
        let now = shard.now;
        let cluster = &mut shard.guests.cluster;
        let Some(replica) = cluster.replicas.get_mut(&id) else { continue };
        let has_room = replica.pending_bytes < limits::CLUSTER_FEED_BYTES_MIN;
        if has_room && std::mem::take(&mut replica.is_full) && !planted(Planted::RoomNotGivenBack) {
            cluster.send(ToCluster::SetRoom { execution: id, has_room: true }, now);
        }
    }
}

/// The result of an attempt to feed one part.
enum Fed {
    Whole,
    /// It has to wait.
    Waits,
    /// There is nothing to feed any more.
    Over,
}

/// Feeds one replica. Its turn comes again if no bytes are left for it.
fn feed_one<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    left_bytes: &mut usize,
) {
    loop {
        if *left_bytes == 0 {
            return note(shard, id);
        }
        let Some(replica) = shard.guests.cluster.replicas.get_mut(&id) else { return };
        let Some(piece) = replica.pending.pop_front() else { return };
        let bytes = piece.bytes();
        let fed = feed_piece(shard, id, &piece);
        let Some(replica) = shard.guests.cluster.replicas.get_mut(&id) else { return };
        match fed {
            Fed::Whole => {
                replica.pending_bytes -= bytes;
                *left_bytes = left_bytes.saturating_sub(bytes);
            }
            Fed::Waits if planted(Planted::WaitingPieceLost) => return,
            Fed::Waits => return replica.pending.push_front(piece),
            Fed::Over => {
                (replica.pending_bytes, replica.is_full) = (0, false);
                return replica.pending.clear();
            }
        }
    }
}

fn feed_piece<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
    piece: &Piece,
) -> Fed {
    let Some(run) = shard.run_of(id) else { return Fed::Over };
    if let Producer::Waiting(_) = run.producer {
        return Fed::Waits; // It has no ring yet.
    }
    match piece {
        Piece::Chunks(run) => {
            let (_, until_seq) = run.seqs();
            let chunks = run.run().chunks().map(|chunk| chunk.expect("the record was checked"));
            match shard.feed_replica(id, chunks) {
                Ok(next_seq) if next_seq >= until_seq => Fed::Whole,
                Ok(_) => Fed::Waits,
                Err(_) => Fed::Over,
            }
        }
        Piece::Gap(gap) if gap.after.of(Kinds::ALL).chunks <= run.head_seq() => Fed::Whole,
        Piece::Gap(gap) => match shard.skip_replica(id, &gap.after) {
            Ok(true) => Fed::Whole,
            Ok(false) => Fed::Waits,
            Err(_) => Fed::Over,
        },
        Piece::Note(body) => {
            tell_note(shard, id, body);
            Fed::Whole
        }
        Piece::End(details) => {
            let details = EndedDetails::decode(details);
            let _ = shard.end_replica(id, &details); // It has begun.
            Fed::Over
        }
    }
}

/// Passes a note of the owner on: see `nats/notes.rs`.
fn tell_note<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ExecutionId, body: &[u8]) {
    let note: Value = match body.split_first() {
        Some((_, text)) => serde_json::from_slice(text).unwrap_or_default(),
        None => return,
    };
    if let Some(count) = note["chunks_expected"].as_u64() {
        let _ = shard.expect_total(id, count);
    }
    if let Some(current) = note["progress"].as_f64() {
        let mut report = Report::amount(current, note["total"].as_f64());
        if let Some(message) = note["message"].as_str() {
            report = report.with_message(message);
        }
        if let Some(context) = note.get("context").filter(|context| !context.is_null()) {
            report = report.with_context(context);
        }
        let _ = shard.report(id, report);
    }
}

/// Returns the node that runs an execution, if it is another one.
pub(in crate::server) fn elsewhere<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
) -> Option<Elsewhere> {
    shard.guests.cluster.replicas.get(&id).map(|replica| replica.node.clone())
}

/// Asks the owner of a replica to cancel the execution. Its end comes with the log.
pub(in crate::server) fn cancel<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) {
    let now = shard.now;
    let cluster = &mut shard.guests.cluster;
    if let Some(Replica { node, .. }) = cluster.replicas.get(&execution) {
        let node = node.node.clone();
        cluster.send(ToCluster::Cancel { execution, node }, now);
    }
}

/// Lets running replicas go that nobody has followed for a while.
pub(super) fn dismiss_idle<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    let engine = &shard.engine;
    let cluster = &mut shard.guests.cluster;
    let mut idle = Vec::new();
    for (id, replica) in &mut cluster.replicas {
        replica.idle_since = match engine.subscriber_count(replica.place) {
            0 => Some(replica.idle_since.unwrap_or(now)),
            _ => None,
        };
        let is_idle = |since: Instant| now.since(since) >= limits::CLUSTER_REPLICA_IDLE;
        if replica.idle_since.is_some_and(is_idle) {
            idle.push(*id);
        }
    }
    let has_any = !cluster.replicas.is_empty();
    cluster.look_at = has_any.then(|| now + limits::CLUSTER_REPLICA_IDLE / 4);
    for id in idle {
        let _ = shard.dismiss_replica(id); // One that has ended goes after its retention.
    }
}
