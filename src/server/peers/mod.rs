//! The other shards of a server, and replies that gather answers from all of them.

pub(in crate::server) mod join;
pub(in crate::server) mod moves;
pub(in crate::server) mod remote;

pub(in crate::server) use join::{begin_joining, is_apart, join_late};
pub(in crate::server) use moves::{begin_move, home_of, send_off, take_in};
pub(in crate::server) use remote::{has_awake_remotes, look_at_remotes, lose_remote, poll_remotes};

use crate::server::hub;
use crate::server::{agents, calls, mcp, shm, workers};
use serde_json::Value;
use smallvec::SmallVec;

use crate::base::Principal;
use crate::endpoint::{Answer, ApiError, Call, McpRequest, MetricsFormat, documents};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::Guests;
use crate::server::hub::connection::Doing;
use crate::server::metrics::{ExecutionCounts, ProcessMetrics, ShardMetrics};
use crate::server::{ServerHandle, ServerShard, metrics};
use crate::shard::CallError;
use crate::shard::handle::{Command, Mailbox};
use crate::stream::{Outcome, State};
use crate::trace::Span;
use crate::wire::http1::Status;

/// A reply that is gathered from the answers of all shards.
#[derive(Debug)]
pub(in crate::server) struct Gathering {
    id: ConnectionId,
    format: Option<MetricsFormat>,
    /// The request, if the reply is a list of MCP.
    listed: Option<Box<McpRequest>>,
    /// The span of that request.
    span: Option<Box<Span>>,
    parts: Vec<Part>,
    /// The shards that have not answered.
    awaited: SmallVec<[u8; 8]>,
    /// The final reply, if the other shards only have to be told.
    answer: Option<Answer>,
}

/// The answer of one shard.
#[derive(Debug)]
enum Part {
    /// A document with one list, which is joined with those of the others.
    List(Value),
    /// The metrics of the shard.
    Metrics(Box<ShardMetrics>),
    /// The change was made.
    Done,
}

impl Gathering {
    /// True if it belongs to this connection.
    pub fn is_for(&self, id: ConnectionId) -> bool {
        self.id == id
    }
}

/// Makes shards that are driven by hand one server, in the order of their numbers. Spawned
/// shards use [`Shard::set_peers`].
pub(in crate::server) fn introduce<R: Reactor + 'static>(shards: &mut [ServerShard<R>]) {
    let peers: Vec<Mailbox<R, Guests<R>>> = shards.iter().map(ServerShard::mailbox).collect();
    shards.iter_mut().for_each(|shard| shard.guests.peers.clone_from(&peers));
}

/// Sets the shards of the server, including this one, in the order of their numbers.
pub(in crate::server) fn set_peers(shard: &mut ServerShard, peers: &[ServerHandle]) {
    shard.guests.peers = peers.iter().map(ServerHandle::to_mailbox).collect();
}

/// Returns the number of this shard.
pub(in crate::server) fn own_index<R: Reactor + 'static>(shard: &ServerShard<R>) -> usize {
    usize::from(shard.engine.limits().shard)
}

/// Returns the other shards that live, with their numbers.
fn other_peers<R: Reactor + 'static>(
    shard: &ServerShard<R>,
) -> impl Iterator<Item = (u8, &Mailbox<R, Guests<R>>)> {
    let (own, dead) = (own_index(shard) as u8, &shard.guests.dead_peers);
    let all = (0..).zip(&shard.guests.peers); // There are at most `limits::SHARDS_MAX`.
    all.filter(move |(index, _)| *index != own && !dead.contains(index))
}

/// Returns the error for a shard that accepts no command.
pub(in crate::server) fn peer_refusal(peer: usize, error: CallError) -> ApiError {
    if error == CallError::Busy {
        let error =
            ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", "a shard accepts no calls now");
        return error.retry_after(limits::BUSY_RETRY_AFTER);
    }
    ApiError::shards_dead(&[peer as u8])
}

/// Notes that another shard has died. Replies no longer wait for it.
pub(in crate::server) fn note_death<R: Reactor + 'static>(shard: &mut ServerShard<R>, peer: u8) {
    if shard.guests.dead_peers.contains(&peer) {
        return;
    }
    shard.guests.dead_peers.push(peer);
    shard.guests.dead_peers.sort_unstable();
    let gatherings = shard.guests.serve.iter().flat_map(|serve| &serve.gatherings);
    let waiting = gatherings.filter(|gathering| gathering.awaited.contains(&peer));
    let waiting: Vec<ConnectionId> = waiting.map(|gathering| gathering.id).collect();
    for id in waiting {
        take_part(shard, id, peer, None);
    }
}

/// Asks all shards. Returns true if the request was answered.
pub(in crate::server) fn gather<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: Call,
    principal: Principal,
) -> bool {
    let own_part = part_of(shard, &call, principal);
    ask_all(shard, id, call, principal, own_part, None)
}

/// Makes all other shards repeat a change that was made here. The reply is `answer`. Returns
/// true if it was given already.
pub(in crate::server) fn tell_all<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: Call,
    principal: Principal,
    answer: Answer,
) -> bool {
    ask_all(shard, id, call, principal, Part::Done, Some(answer))
}

fn ask_all<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: Call,
    principal: Principal,
    own_part: Part,
    answer: Option<Answer>,
) -> bool {
    let own = own_index(shard);
    let (mut awaited, mut dead) = (SmallVec::new(), Vec::new());
    let refused = other_peers(shard).find(|(index, peer)| {
        match ask_peer(peer, id, own, (call.clone(), principal)) {
            Ok(()) => awaited.push(*index),
            Err(CallError::Gone | CallError::Panicked) => dead.push(*index),
            Err(CallError::Busy) => return true,
        }
        false
    });
    if let Some(busy) = refused.map(|(index, _)| index) {
        let error = peer_refusal(busy.into(), CallError::Busy);
        return calls::answer_error(shard, id, &error);
    }
    dead.into_iter().for_each(|peer| note_death(shard, peer));
    let (format, listed) = match call {
        Call::Metrics(format) => (Some(format), None),
        Call::Mcp(request) => (None, Some(request)),
        _ => (None, None),
    };
    let parts = vec![own_part];
    let span = shard.guests.serve.as_mut().filter(|_| listed.is_some());
    let span = span.and_then(|serve| serve.mcp.take_span());
    let gathering = Gathering { id, format, listed, span, parts, awaited, answer };
    if gathering.awaited.is_empty() {
        return answer_gathered(shard, gathering);
    }
    let serve = shard.guests.serve.as_mut().expect("it has connections");
    serve.connection(id).expect("its request is being answered").doing = Doing::Elsewhere;
    serve.gatherings.push(gathering);
    false
}

/// Returns the answer of this shard for this principal.
fn part_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &Call,
    principal: Principal,
) -> Part {
    match call {
        Call::Executions => Part::List(calls::list_executions(shard, principal)),
        Call::Metrics(_) => Part::Metrics(Box::new(metrics(shard))),
        Call::Mcp(request) => Part::List(mcp::list_part(shard, request, principal)),
        Call::AllProgress => {
            let engine = &shard.engine;
            let own = engine.tokens().filter(|(_, id, _)| calls::is_owned(shard, *id, principal));
            Part::List(documents::all_progress(own.map(|(token, id, progress)| {
                (token, id, progress, engine.progress_texts(id.slot))
            })))
        }
        Call::PutVirtualTool(_) | Call::DeleteVirtualTool(_) => {
            // The first shard accepted the change.
            let _ = workers::change_tools_here(shard, call, principal);
            Part::Done
        }
        _ => unreachable!("no other call goes to all shards"),
    }
}

/// Takes the answer of another shard, or `None` if it has died.
fn take_part<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    peer: u8,
    part: Option<Part>,
) {
    let Some(serve) = &mut shard.guests.serve else { return };
    let Some(at) = serve.gatherings.iter().position(|gathering| gathering.id == id) else {
        return; // The connection that asked is gone.
    };
    let gathering = &mut serve.gatherings[at];
    gathering.parts.extend(part);
    gathering.awaited.retain(|awaited| *awaited != peer);
    if !gathering.awaited.is_empty() {
        return;
    }
    let gathering = serve.gatherings.swap_remove(at);
    if let Some(connection) = serve.connection(id) {
        connection.doing = Doing::Requests;
        answer_gathered(shard, gathering);
        shard.guests.serve.as_mut().expect("as above").answered.push(id);
    }
}

fn answer_gathered<R: Reactor + 'static>(shard: &mut ServerShard<R>, gathering: Gathering) -> bool {
    if let Some(answer) = gathering.answer {
        return calls::answer(shard, gathering.id, &answer);
    }
    let (mut name, mut list, mut shards) = (String::new(), Vec::new(), Vec::new());
    for part in gathering.parts {
        match part {
            Part::Metrics(metrics) => shards.push(*metrics),
            Part::List(Value::Object(members)) => {
                for (key, value) in members {
                    let Value::Array(items) = value else { unreachable!("a shard sends lists") };
                    list.extend(items);
                    name = key;
                }
            }
            Part::List(_) | Part::Done => unreachable!("a shard sends objects"),
        }
    }
    if let Some(request) = gathering.listed {
        return mcp::answer_listed(shard, gathering.id, &request, list, gathering.span);
    }
    let answer = match gathering.format {
        Some(format) => {
            shards.sort_by_key(|shard| shard.shard);
            let text =
                metrics::render(format, shards, process_metrics(shard), &shard.guests.upstreams);
            Answer::text(Status::OK, format.media_type(), text)
        }
        None => {
            Answer::json(Status::OK, &documents::gathered(name, list, &shard.guests.dead_peers))
        }
    };
    calls::answer(shard, gathering.id, &answer)
}

/// Returns the metrics of this shard.
fn metrics<R: Reactor + 'static>(shard: &mut ServerShard<R>) -> ShardMetrics {
    shm::count_all_reads(shard);
    let memory = shard.memory();
    let (mut executions, mut subscribers) = (ExecutionCounts::default(), 0);
    for (state, subscriber_count) in shard.engine.census() {
        let count = match state {
            State::Queued => &mut executions.queued,
            State::Running => &mut executions.running,
            State::Draining => &mut executions.draining,
            State::Ended(Outcome::Completed) => &mut executions.completed,
            State::Ended(Outcome::Failed) => &mut executions.failed,
            State::Ended(Outcome::Cancelled) => &mut executions.cancelled,
            State::Ended(Outcome::TimedOut) => &mut executions.timed_out,
        };
        *count += 1;
        subscribers += u64::from(subscriber_count);
    }
    let connections =
        shard.guests.serve.iter().flat_map(|serve| serve.connections.iter().flatten());
    let (mut streams, mut waiting_bytes) = (0, 0);
    for connection in connections {
        streams += u64::from(connection.stream.is_some());
        waiting_bytes += connection.waiting_bytes() as u64;
    }
    ShardMetrics {
        shard: own_index(shard) as u32,
        counters: shard.counters(),
        latencies: Box::new(
            shard
                .guests
                .serve
                .as_ref()
                .map(|serve| *serve.deliveries.latencies())
                .unwrap_or_default(),
        ),
        stalls: Box::new(shard.stalls),
        reactor: shard.reactor.counters().clone(),
        rings: memory.usage,
        rings_bytes_max: memory.rings_bytes_max,
        pressure: memory.pressure,
        decided_by: memory.decided_by,
        executions,
        subscribers,
        connections: hub::connection_count(shard).into(),
        streams,
        waiting_bytes,
        agents: agents::running_agents(shard).count() as u64,
        doors: shm::door_count(shard),
        door_bytes: shm::door_bytes(shard),
        mcp: shard.guests.serve.as_ref().map(|serve| serve.mcp.metrics()).unwrap_or_default(),
    }
}

fn process_metrics<R: Reactor + 'static>(shard: &ServerShard<R>) -> ProcessMetrics {
    let shard_count = shard.guests.peers.len().max(1) as u64;
    ProcessMetrics {
        connections_max: u64::from(shard.guests.socket_limits.connections_max) * shard_count,
        log_records_dropped: shard.guests.log.dropped_total(),
        spans_dropped: shard.guests.spans.dropped()(),
        shard_count: shard.guests.peers.len().max(1) as u32,
        dead_shards: shard.guests.dead_peers.iter().map(|peer| u32::from(*peer)).collect(),
    }
}

/// Asks another shard for its part of a call. The answer goes to shard `asker`.
fn ask_peer<R: Reactor + 'static>(
    peer: &Mailbox<R, Guests<R>>,
    id: ConnectionId,
    asker: usize,
    (call, principal): (Call, Principal),
) -> Result<(), CallError> {
    let question = Command::Call(Box::new(move |shard: &mut ServerShard<R>| {
        let (part, peer) = (part_of(shard, &call, principal), own_index(shard) as u8);
        let answer = Command::Call(Box::new(move |shard: &mut ServerShard<R>| {
            take_part(shard, id, peer, Some(part));
        }));
        if let Some(asker) = shard.guests.peers.get(asker) {
            let _ = asker.send(answer); // If it is gone by now, so is the connection.
        }
    }));
    peer.send(question).map_err(|(error, _)| error)
}
