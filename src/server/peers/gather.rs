//! Replies that gather the parts of all shards, and changes that all shards make.

use serde_json::Value;
use smallvec::SmallVec;

use crate::base::Principal;
use crate::endpoint::{Answer as Reply, ApiCall, McpRequest, MetricsFormat, documents};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::calls::Answered;
use crate::server::hub::connection::Doing;
use crate::server::metrics::{ExecutionCounts, ProcessMetrics, ShardMetrics};
use crate::server::peers::messages::{Question, Subject, ToPeer};
use crate::server::{ServerShard, agents, calls, hub, mcp, metrics, peers, shm, workers};
use crate::shard::CallError;
use crate::stream::{ExecutionState, Outcome};
use crate::trace::Span;
use crate::wire::http1::Status;

/// A reply that is gathered from the answers of all shards.
#[derive(Debug)]
pub(in crate::server) struct Gathering {
    format: Option<MetricsFormat>,
    /// The request, if the reply is a list of MCP.
    listed: Option<Box<McpRequest>>,
    /// The span of that request.
    span: Option<Box<Span>>,
    parts: Vec<Part>,
    /// The final reply, if the other shards only have to be told.
    answer: Option<Reply>,
}

/// The answer of one shard.
#[derive(Debug)]
pub enum Part {
    /// A document with one list, which is joined with those of the others.
    List(Value),
    /// The metrics of the shard.
    Metrics(Box<ShardMetrics>),
    /// The change was made.
    Done,
}

impl Part {
    /// The kind of the part.
    pub fn name(&self) -> &'static str {
        match self {
            Part::List(_) => "list",
            Part::Metrics(_) => "metrics",
            Part::Done => "done",
        }
    }
}

impl Gathering {
    /// Adds the part of a shard.
    pub fn add(&mut self, part: Part) {
        self.parts.push(part);
    }
}

/// Asks all shards. Returns true if the request was answered.
pub(in crate::server) fn gather<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ApiCall,
    principal: Principal,
) -> Answered {
    let own_part = part_of(shard, &call, principal);
    ask_all(shard, id, call, principal, own_part, None)
}

/// Makes all other shards repeat a change that was made here. The reply is `answer`. Returns
/// true if it was given already.
pub(in crate::server) fn tell_all<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ApiCall,
    principal: Principal,
    answer: Reply,
) -> Answered {
    ask_all(shard, id, call, principal, Part::Done, Some(answer))
}

fn ask_all<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ApiCall,
    principal: Principal,
    own_part: Part,
    answer: Option<Reply>,
) -> Answered {
    let ticket = shard.guests.peers.open.draw_ticket();
    let own = peers::own_index(shard) as u8;
    let (mut awaited, mut dead) = (SmallVec::new(), Vec::new());
    for peer in 0..shard.guests.peers.count() as u8 {
        if peer == own || shard.guests.peers.dead().contains(&peer) {
            continue;
        }
        let question = ToPeer::Ask(own, ticket, Question::Part(call.clone(), principal));
        match peers::send(shard, peer.into(), question) {
            Ok(()) => awaited.push(peer),
            Err(CallError::Gone | CallError::Panicked) => dead.push(peer),
            Err(CallError::Busy) => {
                let error = peers::peer_refusal(peer.into(), CallError::Busy);
                return calls::answer_error(shard, id, &error);
            }
        }
    }
    dead.into_iter().for_each(|peer| peers::messages::on_death(shard, peer));
    let (format, listed) = match call {
        ApiCall::Metrics(format) => (Some(format), None),
        ApiCall::Mcp(request) => (None, Some(request)),
        _ => (None, None),
    };
    let parts = vec![own_part];
    let span = listed.as_ref().and_then(|_| shard.guests.mcp.take_span());
    let gathering = Gathering { format, listed, span, parts, answer };
    if awaited.is_empty() {
        return answer_gathered(shard, id, gathering);
    }
    let hub = &mut shard.guests.hub;
    hub.connection(id).expect("its request is being answered").doing = Doing::Elsewhere;
    shard.guests.peers.open.insert(ticket, id, awaited, Subject::Gather(gathering));
    Answered::Later
}

/// Returns the answer of this shard for this principal.
pub(in crate::server) fn part_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &ApiCall,
    principal: Principal,
) -> Part {
    match call {
        ApiCall::Executions => Part::List(calls::list_executions(shard, principal)),
        ApiCall::Metrics(_) => Part::Metrics(Box::new(metrics(shard))),
        ApiCall::Mcp(request) => Part::List(mcp::list_part(shard, request, principal)),
        ApiCall::AllProgress => {
            let engine = &shard.engine;
            let own = engine.tokens().filter(|(_, id, _)| calls::is_owned(shard, *id, principal));
            Part::List(documents::all_progress(own.map(|(token, id, progress)| {
                (token, id, progress, engine.progress_texts(id.slot))
            })))
        }
        ApiCall::PutVirtualTool(_) | ApiCall::DeleteVirtualTool(_) => {
            // The first shard accepted the change.
            let _ = workers::change_tools_here(shard, call, principal);
            Part::Done
        }
        _ => unreachable!("no other call goes to all shards"),
    }
}

/// Answers a connection for which all parts have come.
pub(in crate::server) fn on_complete<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    gathering: Gathering,
) {
    let connection = shard.guests.hub.connection(id);
    if let Some(connection) = connection {
        connection.doing = Doing::Requests;
        answer_gathered(shard, id, gathering);
        shard.guests.hub.resume_later(id);
    }
}

fn answer_gathered<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    gathering: Gathering,
) -> Answered {
    if let Some(answer) = gathering.answer {
        return calls::answer(shard, id, &answer);
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
        return mcp::answer_listed(shard, id, &request, list, gathering.span);
    }
    let answer = match gathering.format {
        Some(format) => {
            shards.sort_by_key(|shard| shard.shard);
            let text =
                metrics::render(format, shards, process_metrics(shard), &shard.guests.upstreams);
            Reply::text(Status::OK, format.media_type(), text)
        }
        None => {
            Reply::json(Status::OK, &documents::gathered(name, list, shard.guests.peers.dead()))
        }
    };
    calls::answer(shard, id, &answer)
}

/// Returns the metrics of this shard.
fn metrics<R: Reactor + 'static>(shard: &mut ServerShard<R>) -> ShardMetrics {
    shm::count_all_reads(shard);
    let memory = shard.memory();
    let (mut executions, mut subscribers) = (ExecutionCounts::default(), 0);
    for (state, subscriber_count) in shard.engine.census() {
        let count = match state {
            ExecutionState::Queued => &mut executions.queued,
            ExecutionState::Running => &mut executions.running,
            ExecutionState::Draining => &mut executions.draining,
            ExecutionState::Ended(Outcome::Completed) => &mut executions.completed,
            ExecutionState::Ended(Outcome::Failed) => &mut executions.failed,
            ExecutionState::Ended(Outcome::Cancelled) => &mut executions.cancelled,
            ExecutionState::Ended(Outcome::TimedOut) => &mut executions.timed_out,
        };
        *count += 1;
        subscribers += u64::from(subscriber_count);
    }
    let connections = shard.guests.hub.connections();
    let (mut streams, mut waiting_bytes) = (0, 0);
    for connection in connections {
        streams += u64::from(connection.stream.is_some());
        waiting_bytes += connection.waiting_bytes() as u64;
    }
    ShardMetrics {
        shard: peers::own_index(shard) as u32,
        counters: shard.counters(),
        latencies: Box::new(*shard.guests.hub.latencies()),
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
        mcp: shard.guests.mcp.metrics(),
    }
}

fn process_metrics<R: Reactor + 'static>(shard: &ServerShard<R>) -> ProcessMetrics {
    let shard_count = shard.guests.peers.count().max(1) as u64;
    ProcessMetrics {
        connections_max: u64::from(shard.guests.socket_limits.connections_max) * shard_count,
        log_records_dropped: shard.guests.log.dropped_total(),
        spans_dropped: shard.guests.spans.dropped()(),
        shard_count: shard.guests.peers.count().max(1) as u32,
        dead_shards: shard.guests.peers.dead().iter().map(|peer| u32::from(*peer)).collect(),
    }
}
