//! Replies of all shards: the part of this one, and the reply that is made of all.

use std::sync::Arc;

use crate::base::Principal;
use crate::endpoint::{Answer as Reply, ApiCall, ApiError, ListAsk, documents};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::cluster::Listed;
use crate::server::hub::Answered;
use crate::server::hub::connection::Doing;
use crate::server::metrics::{ExecutionCounts, ProcessMetrics, ShardMetrics, Snapshot};
use crate::server::peers::{Asked, Gathering, Part, Purpose, join_lists};
use crate::server::process_usage::ProcessUsage;
use crate::server::{
    ServerShard, agents, calls, cluster, executions, hub, mcp, metrics, peers, shm, workers,
};
use crate::stream::{ExecutionState, Outcome};
use crate::wire::http1::Status;

/// Asks all shards for a reply.
pub(in crate::server::turn) fn gather<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: &ApiCall,
    principal: Principal,
) -> Answered {
    let purpose = match call {
        ApiCall::Metrics(format) => Purpose::Metrics(*format),
        ApiCall::Executions(ask) => Purpose::Executions(ask.clone()),
        ApiCall::Tasks(search) => Purpose::Tasks(search.clone()),
        _ => Purpose::List,
    };
    let own_part = part_of(shard, call, principal);
    let gathering = Gathering::new(purpose, own_part);
    let of_nodes = match call {
        ApiCall::Executions(ask) if cluster::has_others(shard, ask) => Some(ask),
        _ => None,
    };
    let gathering = if of_nodes.is_some() { gathering.with_nodes() } else { gathering };
    match peers::ask_all(shard, id, call, principal, gathering) {
        Asked::Waits(ticket) => {
            if let Some(ask) = of_nodes {
                cluster::list_all(shard, ticket, ask, principal);
            }
            Answered::Later
        }
        Asked::Complete(gathering) => answer_with(shard, id, gathering),
        Asked::Refused(error) => hub::answer_error(shard, id, &error),
    }
}

/// Returns the answer of this shard for this principal.
pub(in crate::server) fn part_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &ApiCall,
    principal: Principal,
) -> Part {
    match call {
        ApiCall::Executions(ask) => Part::List(executions::list(shard, ask, principal)),
        ApiCall::Tasks(_) => Part::List(calls::list_part(shard, principal)),
        ApiCall::Metrics(_) => Part::Metrics(Box::new(metrics_of(shard))),
        ApiCall::Mcp(request) => Part::List(mcp::list_part(shard, request, principal)),
        ApiCall::AllProgress => {
            let engine = &shard.engine;
            let own =
                engine.tokens().filter(|(_, id, _)| executions::is_owned(shard, *id, principal));
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
        answer_with(shard, id, gathering);
        shard.guests.hub.resume_later(id);
    }
}

fn answer_with<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    gathering: Gathering,
) -> Answered {
    let Gathering { purpose, parts, .. } = gathering;
    let answer = match purpose {
        Purpose::Told(answer) => answer,
        Purpose::List => {
            let (name, list) = join_lists(parts);
            Reply::json(Status::OK, &documents::gathered(name, list, shard.guests.peers.dead()))
        }
        Purpose::Executions(ask) => listed(shard, parts, &ask),
        Purpose::Tasks(search) => calls::page(&search, &join_lists(parts).1),
        Purpose::Metrics(format) => {
            let mut shards: Vec<ShardMetrics> = Vec::with_capacity(parts.len());
            for part in parts {
                let Part::Metrics(metrics) = part else {
                    unreachable!("a shard sends its metrics")
                };
                shards.push(*metrics);
            }
            shards.sort_by_key(|shard| shard.shard);
            let upstreams = Arc::clone(&shard.guests.upstreams);
            let node = shard.guests.cluster.status();
            let snapshot = Snapshot { shards, process: process_metrics(shard), upstreams, node };
            let text = metrics::render(format, snapshot.metrics());
            Reply::text(Status::OK, format.media_type(), text)
        }
        Purpose::McpList(request, span) => {
            let (_, items) = join_lists(parts);
            return mcp::answer_listed(shard, id, &request, items, span);
        }
    };
    hub::answer(shard, id, &answer)
}

/// Returns a page of the executions of all shards, and of the other nodes if they were asked.
fn listed<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    mut parts: Vec<Part>,
    ask: &ListAsk,
) -> Reply {
    let of_nodes = parts.extract_if(.., |part| matches!(part, Part::Nodes(_))).next();
    let (_, mut list) = join_lists(parts);
    let missing = match of_nodes {
        Some(Part::Nodes(Some(Listed { node, mut executions, missing }))) => {
            list.iter_mut().for_each(|own| own["node"] = (*node).into());
            list.append(&mut executions);
            missing
        }
        Some(_) => {
            let text = "the cluster does not answer; `scope=server` lists what this server has";
            let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", text);
            return Reply::error(&error.retry_after(limits::BUSY_RETRY_AFTER));
        }
        None => Vec::new(),
    };
    let dead_shards = shard.guests.peers.dead();
    Reply::json(Status::OK, &documents::listed(list, ask, dead_shards, &missing))
}

/// Returns the metrics of this shard.
pub(in crate::server) fn metrics_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
) -> ShardMetrics {
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
        busy_disks: memory.busy_disks,
        executions,
        subscribers,
        connections: hub::connection_count(shard).into(),
        streams,
        waiting_bytes,
        agents: agents::running_agents(shard).count() as u64,
        doors: shm::door_count(shard),
        door_bytes: shm::door_bytes(shard),
        mcp: shard.guests.mcp.metrics(),
        requests: shard.guests.tally.counts(),
        scheme: if shard.guests.tls.is_some() { "https" } else { "http" },
        ended: shard.guests.ended.rows(),
    }
}

/// Returns the metrics of the process that this shard knows.
pub(in crate::server) fn process_metrics<R: Reactor + 'static>(
    shard: &ServerShard<R>,
) -> ProcessMetrics {
    let shard_count = shard.guests.peers.count().max(1) as u64;
    ProcessMetrics {
        connections_max: u64::from(shard.guests.socket_limits.connections_max) * shard_count,
        log_records_dropped: shard.guests.log.dropped_total(),
        spans_dropped: shard.guests.spans.dropped()(),
        shard_count: shard.guests.peers.count().max(1) as u32,
        dead_shards: shard.guests.peers.dead().iter().map(|peer| u32::from(*peer)).collect(),
        usage: ProcessUsage::read(),
    }
}
