//! Log records about connections, executions and subscribers.

use std::time::Duration;

use crate::base::plain::plain_line;
use crate::base::{ExecutionId, Handle, SubscriberId};
use crate::endpoint::AnsweredRequest;
use crate::engine::Verdict;
use crate::limits;
use crate::memory::Pressure;
use crate::memory::pressure::{Decisive, Diagnosis};
use crate::reactor::{ConnectionId, Peer, Reactor};
use crate::server::{ServerShard, peers};
use crate::stream::{End, EndState, Kinds};
use crate::trace::{Level, Record};
use crate::wire::http1::Status;

pub(in crate::server) fn wall_us<R: Reactor + 'static>(shard: &ServerShard<R>) -> u64 {
    shard.anchor.wall_us_at(shard.now.nanos())
}

/// Logs that a connection was opened, closed or refused.
pub(in crate::server) fn log_connection<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    event: &'static str,
    peer: Peer,
) {
    shard.guests.log.record(wall_us(shard), Level::Debug, event, |record| {
        record.number("shard", peers::own_index(shard) as u64).show("peer", &peer);
    });
}

/// Logs the answers that are not logged yet. Their connections should still be there.
#[inline]
pub(in crate::server) fn log_answered<R: Reactor + 'static>(shard: &ServerShard<R>) {
    while shard.guests.tally.has_answered() {
        let Some(answered) = shard.guests.tally.poll_answered() else { return };
        log_one_answer(shard, &answered);
    }
}

/// Logs an answer: as a refusal, together with those of the same code, and as a request if all of
/// them are logged.
fn log_one_answer<R: Reactor + 'static>(shard: &ServerShard<R>, answered: &AnsweredRequest) {
    let connection = shard.guests.hub.connection_at(ConnectionId(answered.connection));
    // Seven fields at most: each of the two records below adds one.
    const _: () = assert!(limits::LOG_FIELDS_MAX >= 8);
    let show = |record: &mut Record| {
        record.number("shard", peers::own_index(shard) as u64);
        record.number("status", answered.status.code().into());
        if !answered.code.is_empty() {
            record.show("code", &answered.code);
        }
        if let Some(method) = answered.method {
            record.show("method", &method);
        }
        match &answered.path {
            Some(path) => record.show("path", &plain_line(path)),
            None => record.show("route", &answered.route),
        };
        let Some(connection) = connection else { return };
        record.show("peer", &connection.peer);
        let principal = connection.http.principal();
        if let Some(name) = shard.guests.access.name_of(principal) {
            record.show("principal", &name);
        }
    };
    if answered.refused_count > 0 {
        let is_grave = matches!(
            answered.status,
            Status::UNAUTHORIZED | Status::FORBIDDEN | Status::TOO_MANY_REQUESTS
        ) || answered.status.code() >= 500;
        let level = if is_grave { Level::Warn } else { Level::Info };
        shard.guests.log.record(wall_us(shard), level, "requests_refused", |record| {
            record.number("count", answered.refused_count);
            show(record);
        });
    }
    if shard.guests.tally.logs_all() {
        shard.guests.log.record(wall_us(shard), Level::Info, "request", |record| {
            show(record);
            record.number("took_us", answered.took.as_micros() as u64);
        });
    }
}

/// Logs a change of the memory pressure, with the reading that decided it.
pub(in crate::server) fn log_pressure<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    before: Pressure,
    diagnosis: Diagnosis,
) {
    let level = if diagnosis.pressure > before { Level::Warn } else { Level::Info };
    shard.guests.log.record(wall_us(shard), level, "memory_pressure_changed", |record| {
        record.number("shard", peers::own_index(shard) as u64);
        record.show("pressure", &diagnosis.pressure).show("before", &before);
        if let Some(reading) = diagnosis.decided_by {
            record.show("reading", &reading.name());
            record.number("percent", reading.percent().into());
        }
    });
}

/// Logs that another node of the cluster has the path of a stream of this node.
pub(in crate::server) fn log_path_elsewhere<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    path: &str,
    node: &str,
) {
    shard.guests.log.record(wall_us(shard), Level::Warn, "stream_path_elsewhere", |record| {
        record.number("shard", peers::own_index(shard) as u64);
        record.show("path", &path).show("node", &node);
    });
}

/// Logs that disks have become busy or calm. Rings keep their size.
pub(in crate::server) fn log_disks<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    reading: Option<Decisive>,
) {
    let (level, event) = match reading {
        Some(_) => (Level::Warn, "disks_busy"),
        None => (Level::Info, "disks_calm"),
    };
    shard.guests.log.record(wall_us(shard), level, event, |record| {
        record.number("shard", peers::own_index(shard) as u64);
        record.show("pressure", &shard.memory().pressure);
        if let Some(reading) = reading {
            record.show("reading", &reading.name());
            record.number("percent", reading.percent().into());
        }
    });
}

/// Adds the owner of an execution, if the server requires tokens.
fn show_owner<R: Reactor + 'static>(shard: &ServerShard<R>, id: ExecutionId, record: &mut Record) {
    let owner = shard.run_of(id).map(|run| run.guest.owner);
    if let Some(name) = owner.and_then(|owner| shard.guests.access.name_of(owner)) {
        record.show("principal", &name);
    }
}

/// Logs that a client has started an execution.
pub(in crate::server) fn log_started<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    tool: &str,
) {
    log_started_by(shard, Some(id), execution, tool);
}

/// Logs the start of an execution, with the peer of this connection if it is still open.
pub(in crate::server) fn log_started_by<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: Option<ConnectionId>,
    execution: ExecutionId,
    tool: &str,
) {
    let peer = id.and_then(|id| Some(shard.guests.hub.connection(id)?.peer));
    shard.guests.log.record(wall_us(shard), Level::Info, "execution_started", |record| {
        record.show("execution", &execution).show("tool", &tool);
        show_owner(shard, execution, record);
        if let Some(peer) = peer {
            record.show("peer", &peer);
        }
    });
}

/// Logs that a tool's thread waited because its gate had not been published.
pub(in crate::server) fn log_gate_told_late<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    index: u32,
) {
    let Some(run) = &shard.runs[index as usize] else { return };
    shard.guests.log.record(wall_us(shard), Level::Error, "gate_told_late", |record| {
        record.show("execution", &run.id).number("chunks", run.ingested_seq);
    });
}

/// Logs that an execution has ended after `took`.
pub(in crate::server) fn log_ended<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: Handle,
    verdict: &Verdict,
    took: Duration,
) {
    let Some(run) = shard.runs[execution.index as usize].as_ref() else { return };
    shard.guests.log.record(wall_us(shard), Level::Info, "execution_ended", |record| {
        record.show("execution", &run.id);
        if let Some(tool) = &run.tool {
            record.show("tool", &tool.name);
        }
        record.show("state", &verdict.outcome);
        show_owner(shard, run.id, record);
        let totals = verdict.totals.of(Kinds::ALL);
        record.number("took_us", took.as_micros() as u64);
        record.number("chunks", totals.chunks).number("bytes", totals.bytes);
        if let Some(error) = &verdict.error {
            record.show("error", error);
        }
    });
}

/// Logs the end of a subscriber of this shard's execution.
pub(in crate::server) fn log_subscriber_ended<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    subscriber: SubscriberId,
    execution: Handle,
    end: &End,
) {
    let run = shard.runs[execution.index as usize].as_ref();
    let Some(id) = run.map(|run| run.id) else { return };
    log_reader_ended(shard, id, subscriber, end);
}

/// Logs the end of a subscriber of any shard's execution. The level is a warning if it was
/// detached, information if it has missed chunks, and a detail otherwise.
pub(in crate::server) fn log_reader_ended<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
    subscriber: SubscriberId,
    end: &End,
) {
    let (level, event) = match end.state {
        EndState::Detached { .. } => (Level::Warn, "subscriber_detached"),
        EndState::Ended(_) if end.missed.chunks > 0 => (Level::Info, "subscriber_ended"),
        EndState::Ended(_) => (Level::Debug, "subscriber_ended"),
    };
    shard.guests.log.record(wall_us(shard), level, event, |record| {
        record.show("execution", &id).show("subscriber", &subscriber);
        if let EndState::Detached { reason, resume_from } = end.state {
            record.show("reason", &reason.name()).number("resume_from", resume_from);
        }
        record.number("chunks", end.given.chunks).number("bytes", end.given.bytes);
        record.number("missed_chunks", end.missed.chunks);
        record.number("missed_bytes", end.missed.bytes);
    });
}
