//! Log records about connections, executions and subscribers.

use crate::base::{ExecutionId, Handle, SubscriberId};
use crate::engine::Verdict;
use crate::memory::Pressure;
use crate::memory::pressure::Diagnosis;
use crate::reactor::{ConnectionId, Peer, Reactor};
use crate::server::ServerShard;
use crate::stream::{End, EndState};
use crate::trace::{Level, Record};

impl<R: Reactor + 'static> ServerShard<R> {
    pub(in crate::server) fn wall_us(&self) -> u64 {
        self.anchor.wall_us_at(self.now.nanos())
    }

    /// Logs that a connection was opened, closed or refused.
    pub(in crate::server) fn log_connection(&self, event: &'static str, peer: Peer) {
        self.guests.log.record(self.wall_us(), Level::Debug, event, |record| {
            record.number("shard", self.own_index() as u64).show("peer", &peer);
        });
    }

    /// Logs a change of the memory pressure, with the reading that decided it.
    pub(in crate::server) fn log_pressure(&self, before: Pressure, diagnosis: Diagnosis) {
        let level = if diagnosis.pressure > before { Level::Warn } else { Level::Info };
        self.guests.log.record(self.wall_us(), level, "memory_pressure_changed", |record| {
            record.number("shard", self.own_index() as u64);
            record.show("pressure", &diagnosis.pressure).show("before", &before);
            if let Some(reading) = diagnosis.decided_by {
                record.show("reading", &reading.name());
                record.number("percent", reading.percent().into());
            }
        });
    }

    /// Adds the owner of an execution, if the server requires tokens.
    fn show_owner(&self, id: ExecutionId, record: &mut Record) {
        let run = self.runs.get(id.slot.index as usize).and_then(Option::as_ref);
        let owner = run.filter(|run| run.id == id).map(|run| run.guest.owner);
        if let Some(name) = owner.and_then(|owner| self.guests.access.name_of(owner)) {
            record.show("principal", &name);
        }
    }

    /// Logs that a client has started an execution.
    pub(in crate::server) fn log_started(
        &mut self,
        id: ConnectionId,
        execution: ExecutionId,
        tool: &str,
    ) {
        self.log_started_by(Some(id), execution, tool);
    }

    /// Logs the start of an execution, with the peer of this connection if it is still open.
    pub(in crate::server) fn log_started_by(
        &mut self,
        id: Option<ConnectionId>,
        execution: ExecutionId,
        tool: &str,
    ) {
        let peer = id.and_then(|id| Some(self.guests.serve.as_mut()?.connection(id)?.peer));
        self.guests.log.record(self.wall_us(), Level::Info, "execution_started", |record| {
            record.show("execution", &execution).show("tool", &tool);
            self.show_owner(execution, record);
            if let Some(peer) = peer {
                record.show("peer", &peer);
            }
        });
    }

    /// Logs that a tool's thread waited because its gate had not been published.
    pub(in crate::server) fn log_gate_told_late(&self, index: u32) {
        let Some(run) = &self.runs[index as usize] else { return };
        self.guests.log.record(self.wall_us(), Level::Error, "gate_told_late", |record| {
            record.show("execution", &run.id).number("chunks", run.ingested_seq);
        });
    }

    /// Logs that an execution has ended.
    pub(in crate::server) fn log_ended(&self, execution: Handle, verdict: &Verdict) {
        let run = self.runs[execution.index as usize].as_ref();
        let Some(id) = run.map(|run| run.id) else { return };
        self.guests.log.record(self.wall_us(), Level::Info, "execution_ended", |record| {
            record.show("execution", &id).show("state", &verdict.outcome);
            self.show_owner(id, record);
            record.number("chunks", verdict.head_seq);
            if let Some(error) = &verdict.error {
                record.show("error", error);
            }
        });
    }

    /// Logs that a subscriber was detached before its execution's end.
    pub(in crate::server) fn log_detached(
        &self,
        subscriber: SubscriberId,
        execution: Handle,
        end: &End,
    ) {
        let run = self.runs[execution.index as usize].as_ref();
        let Some(id) = run.map(|run| run.id) else { return };
        self.log_let_go(id, subscriber, end);
    }

    /// Logs that a subscriber was detached, for an execution of any shard.
    pub(in crate::server) fn log_let_go(
        &self,
        id: ExecutionId,
        subscriber: SubscriberId,
        end: &End,
    ) {
        let EndState::Detached { reason, resume_from } = end.state else { return };
        self.guests.log.record(self.wall_us(), Level::Warn, "subscriber_detached", |record| {
            record.show("execution", &id).show("subscriber", &subscriber);
            record.show("reason", &reason.name()).number("resume_from", resume_from);
            record.number("chunks", end.given.chunks).number("missed_chunks", end.missed.chunks);
        });
    }
}
